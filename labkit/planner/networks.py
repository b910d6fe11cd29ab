"""Networks as graphs of operators with shapes: what they compute, hold, and read of each other.

An operator's output has four axes: ``sample``, ``channel``, ``height``, ``width``. Shapes are those
of the models' published definitions; a multiplication and an addition count as two operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Literal, get_args

from labkit.errors import BadValue, not_among
from labkit.kit.describe import Count, Whole, checked

if TYPE_CHECKING:
    import pandas as pd

Axis = Literal["sample", "channel", "height", "width"]
AXES: tuple[Axis, ...] = get_args(Axis)
Kind = Literal["input", "convolution", "pool", "dense", "add", "concat"]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator of a network.

    Attributes:
        name: unique in its network.
        kind: what it does. An ``add`` sums its inputs, a ``concat`` joins their channels.
        inputs: names of the operators whose outputs it reads.
        output: size of each axis of what it makes.
        depth: channels of its input that each output number reads, for convolutions; numbers of
            its input, for dense operators.
        window: (height, width) of what it reads around a place.
        stride: of its window.
        padding: (height, width) of zeros around its input.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    output: Mapping[Axis, int]
    depth: int = 0
    window: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)

    @property
    def num_outputs(self) -> int:
        """Numbers that it makes, of all samples."""
        return prod(self.output.values())

    @property
    def weights(self) -> int:
        """Trained numbers: a window of ``depth`` for each output channel, and its bias."""
        if self.kind not in ("convolution", "dense"):
            return 0
        return self.output["channel"] * (self.depth * prod(self.window) + 1)

    @property
    def forward_flops(self) -> float:
        """Operations of a forward pass of all samples, those of pools and adds among them."""
        reads = {
            "convolution": 2 * self.depth * prod(self.window),
            "dense": 2 * self.depth,
            "pool": prod(self.window),
            "add": len(self.inputs),
        }
        return float(self.num_outputs * reads.get(self.kind, 0))


@dataclass(frozen=True, kw_only=True)
class Network:
    """Operators, each after those that it reads."""

    name: str
    operators: tuple[Operator, ...]

    @cached_property
    def by_name(self) -> dict[str, Operator]:
        """The operators by their names."""
        return {operator.name: operator for operator in self.operators}

    @property
    def edges(self) -> list[tuple[str, str]]:
        """Each pair of an operator and one that reads it."""
        return [(name, reader.name) for reader in self.operators for name in reader.inputs]

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.operators[0].output["sample"]

    def frame(self) -> pd.DataFrame:
        """One row an operator: kind, output shape, operations of a forward pass, weights."""
        import pandas as pd

        rows = [
            {
                "operator": operator.name,
                "kind": operator.kind,
                **operator.output,
                "forward_flops": operator.forward_flops,
                "weights": operator.weights,
            }
            for operator in self.operators
        ]
        return pd.DataFrame(rows)


class Draft:
    """A network that is being written: each method adds an operator and returns its name.

    ``after`` names what the operator reads; None is the operator that was added last.
    """

    @checked
    def __init__(self, name: str, batch: Count, size: Count) -> None:
        shape: dict[Axis, int] = {"sample": batch, "channel": 3, "height": size, "width": size}
        self.name = name
        self.operators = {"image": Operator(name="image", kind="input", inputs=(), output=shape)}

    def _add(self, operator: Operator) -> str:
        if operator.name in self.operators:
            raise BadValue(f"planner.Network: {operator.name!r} names two operators")
        self.operators[operator.name] = operator
        return operator.name

    def _of(self, after: str | None) -> Operator:
        """The operator of that name, or the last one."""
        if after is None:
            return list(self.operators.values())[-1]
        if after not in self.operators:
            raise not_among("operator", after, self.operators)
        return self.operators[after]

    def _alike(self, inputs: Sequence[str], *axes: Axis) -> dict[Axis, int]:
        """The shape of several operators' outputs, which must be one on these axes."""
        if not inputs:
            raise BadValue("planner.Network: inputs is empty; one operator at least is valid")
        shapes = [self._of(name).output for name in inputs]
        for shape in shapes:
            if any(shape[axis] != shapes[0][axis] for axis in axes):
                raise BadValue(
                    f"planner.Network: inputs {', '.join(inputs)} have outputs of different "
                    f"{', '.join(axes)}"
                )
        return dict(shapes[0])

    def _slides(
        self,
        name: str,
        kind: Kind,
        source: Operator,
        channels: int,
        window: int | tuple[int, int],
        stride: int,
        padding: int | tuple[int, int],
    ) -> str:
        """An operator whose window slides over its input."""
        tall, wide = (window, window) if isinstance(window, int) else window
        above, beside = (padding, padding) if isinstance(padding, int) else padding
        output: dict[Axis, int] = {
            "sample": source.output["sample"],
            "channel": channels,
            "height": (source.output["height"] + 2 * above - tall) // stride + 1,
            "width": (source.output["width"] + 2 * beside - wide) // stride + 1,
        }
        if min(output.values()) < 1:
            raise BadValue(
                f"planner.Network: window {window} of {name!r} is larger than its input with its "
                f"padding {padding}"
            )
        operator = Operator(
            name=name,
            kind=kind,
            inputs=(source.name,),
            output=output,
            depth=source.output["channel"] if kind == "convolution" else 0,
            window=(tall, wide),
            stride=stride,
            padding=(above, beside),
        )
        return self._add(operator)

    @checked
    def convolution(
        self,
        name: str,
        channels: Count,
        window: Count | tuple[Count, Count],
        *,
        stride: Count = 1,
        padding: Whole | tuple[Whole, Whole] = 0,
        after: str | None = None,
    ) -> str:
        """A convolution over all input channels."""
        source = self._of(after)
        return self._slides(name, "convolution", source, channels, window, stride, padding)

    @checked
    def pool(
        self,
        name: str,
        window: Count,
        *,
        stride: Count,
        padding: Whole = 0,
        after: str | None = None,
    ) -> str:
        """A maximum or average of each channel over a window."""
        source = self._of(after)
        channels = source.output["channel"]
        return self._slides(name, "pool", source, channels, window, stride, padding)

    @checked
    def dense(self, name: str, channels: Count, *, after: str | None = None) -> str:
        """A fully connected operator over all that a sample has."""
        source = self._of(after)
        sample = source.output["sample"]
        output: dict[Axis, int] = {"sample": sample, "channel": channels, "height": 1, "width": 1}
        depth = source.num_outputs // sample
        return self._add(
            Operator(name=name, kind="dense", inputs=(source.name,), output=output, depth=depth)
        )

    @checked
    def add(self, name: str, inputs: Sequence[str]) -> str:
        """The sum of outputs of one shape."""
        output = self._alike(inputs, *AXES)
        return self._add(Operator(name=name, kind="add", inputs=tuple(inputs), output=output))

    @checked
    def concat(self, name: str, inputs: Sequence[str]) -> str:
        """Channels of several outputs, one after another."""
        output = self._alike(inputs, "sample", "height", "width")
        output["channel"] = sum(self.operators[source].output["channel"] for source in inputs)
        return self._add(Operator(name=name, kind="concat", inputs=tuple(inputs), output=output))

    def network(self) -> Network:
        """The network as it stands."""
        return Network(name=self.name, operators=tuple(self.operators.values()))


def _alexnet(batch: int) -> Network:
    """Source: Krizhevsky 2014, the network of one tower."""
    draft = Draft("alexnet", batch, 224)
    draft.convolution("conv1", 64, 11, stride=4, padding=2)
    draft.pool("pool1", 3, stride=2)
    draft.convolution("conv2", 192, 5, padding=2)
    draft.pool("pool2", 3, stride=2)
    draft.convolution("conv3", 384, 3, padding=1)
    draft.convolution("conv4", 256, 3, padding=1)
    draft.convolution("conv5", 256, 3, padding=1)
    draft.pool("pool5", 3, stride=2)
    draft.dense("fc6", 4096)
    draft.dense("fc7", 4096)
    draft.dense("fc8", 1000)
    return draft.network()


def _vgg16(batch: int) -> Network:
    """Source: Simonyan and Zisserman 2014, configuration D."""
    draft = Draft("vgg16", batch, 224)
    for block, (count, channels) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)], 1):
        for place in range(1, count + 1):
            draft.convolution(f"conv{block}_{place}", channels, 3, padding=1)
        draft.pool(f"pool{block}", 2, stride=2)
    for number, channels in enumerate([4096, 4096, 1000], 6):
        draft.dense(f"fc{number}", channels)
    return draft.network()


def _resnet50(batch: int) -> Network:
    """Source: He et al. 2015, table 1; the stride of a block stands in its 3 × 3 convolution."""
    draft = Draft("resnet50", batch, 224)
    draft.convolution("conv1", 64, 7, stride=2, padding=3)
    last = draft.pool("pool1", 3, stride=2, padding=1)
    for stage, (count, channels) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 2):
        for place in range(1, count + 1):
            name = f"block{stage}_{place}"
            stride = 2 if stage > 2 and place == 1 else 1
            draft.convolution(f"{name}_a", channels, 1, after=last)
            draft.convolution(f"{name}_b", channels, 3, stride=stride, padding=1)
            branch = draft.convolution(f"{name}_c", 4 * channels, 1)
            if place == 1:
                last = draft.convolution(f"{name}_d", 4 * channels, 1, stride=stride, after=last)
            last = draft.add(name, [branch, last])
    draft.pool("pool5", 7, stride=1)
    draft.dense("fc", 1000)
    return draft.network()


Sides = int | tuple[int, int]
"""Of a square, or height and width."""


def _branches(
    draft: Draft, name: str, source: str, branches: list[list[tuple[int, Sides, int, Sides]]]
) -> list[str]:
    """Convolutions one after another in several branches.

    Args:
        branches: of each convolution channels, window, stride and padding.

    Returns:
        The last operator of each branch.
    """
    ends = []
    for number, branch in enumerate(branches, 1):
        last = source
        for place, (channels, window, stride, padding) in enumerate(branch, 1):
            last = draft.convolution(
                f"{name}_{number}_{place}",
                channels,
                window,
                stride=stride,
                padding=padding,
                after=last,
            )
        ends.append(last)
    return ends


def _inception3(batch: int) -> Network:
    """Source: Szegedy et al. 2015, table 1 and figures 5 to 7, without the auxiliary head."""
    draft = Draft("inception3", batch, 299)
    draft.convolution("conv1", 32, 3, stride=2)
    draft.convolution("conv2", 32, 3)
    draft.convolution("conv3", 64, 3, padding=1)
    draft.pool("pool1", 3, stride=2)
    draft.convolution("conv4", 80, 1)
    draft.convolution("conv5", 192, 3)
    last = draft.pool("pool2", 3, stride=2)
    tall = ((7, 1), 1, (3, 0))
    wide = ((1, 7), 1, (0, 3))
    for place, pooled in enumerate([32, 64, 64], 1):
        name = f"mixed5_{place}"
        branches: list[list[tuple[int, Sides, int, Sides]]] = [
            [(64, 1, 1, 0)],
            [(48, 1, 1, 0), (64, 5, 1, 2)],
            [(64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 1, 1)],
        ]
        ends = _branches(draft, name, last, branches)
        pool = draft.pool(f"{name}_pool", 3, stride=1, padding=1, after=last)
        ends.append(draft.convolution(f"{name}_pooled", pooled, 1, after=pool))
        last = draft.concat(name, ends)
    branches = [[(384, 3, 2, 0)], [(64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 2, 0)]]
    ends = _branches(draft, "mixed6_0", last, branches)
    last = draft.concat("mixed6_0", [*ends, draft.pool("mixed6_0_pool", 3, stride=2, after=last)])
    for place, middle in enumerate([128, 160, 160, 192], 1):
        name = f"mixed6_{place}"
        branches = [
            [(192, 1, 1, 0)],
            [(middle, 1, 1, 0), (middle, *wide), (192, *tall)],
            [(middle, 1, 1, 0), (middle, *tall), (middle, *wide), (middle, *tall), (192, *wide)],
        ]
        ends = _branches(draft, name, last, branches)
        pool = draft.pool(f"{name}_pool", 3, stride=1, padding=1, after=last)
        ends.append(draft.convolution(f"{name}_pooled", 192, 1, after=pool))
        last = draft.concat(name, ends)
    branches = [
        [(192, 1, 1, 0), (320, 3, 2, 0)],
        [(192, 1, 1, 0), (192, *wide), (192, *tall), (192, 3, 2, 0)],
    ]
    ends = _branches(draft, "mixed7_0", last, branches)
    last = draft.concat("mixed7_0", [*ends, draft.pool("mixed7_0_pool", 3, stride=2, after=last)])
    for place in (1, 2):
        name = f"mixed7_{place}"
        branches = [[(320, 1, 1, 0)], [(384, 1, 1, 0)], [(448, 1, 1, 0), (384, 3, 1, 1)]]
        ends = _branches(draft, name, last, branches)
        deep = ends.pop()
        split = ends.pop()
        for source, letter in ((split, "a"), (deep, "b")):
            for way, (window, padding) in enumerate([((1, 3), (0, 1)), ((3, 1), (1, 0))], 1):
                ends.append(
                    draft.convolution(
                        f"{name}_{letter}{way}", 384, window, padding=padding, after=source
                    )
                )
        pool = draft.pool(f"{name}_pool", 3, stride=1, padding=1, after=last)
        ends.append(draft.convolution(f"{name}_pooled", 192, 1, after=pool))
        last = draft.concat(name, ends)
    draft.pool("pool3", 8, stride=1)
    draft.dense("fc", 1000)
    return draft.network()


_NETWORKS: dict[str, Callable[[int], Network]] = {
    "alexnet": _alexnet,
    "vgg16": _vgg16,
    "resnet50": _resnet50,
    "inception3": _inception3,
}
NAMES = tuple(_NETWORKS)


@checked
def network(name: str, *, batch: Count) -> Network:
    """A network by its name: alexnet, vgg16, resnet50 or inception3.

    Args:
        batch: samples of a step.

    Raises:
        UsageError: there is no such network.

    >>> round(sum(operator.weights for operator in network("vgg16", batch=1).operators) / 1e6, 1)
    138.4
    """
    if name not in _NETWORKS:
        raise not_among("network", name, _NETWORKS)
    return _NETWORKS[name](batch)
