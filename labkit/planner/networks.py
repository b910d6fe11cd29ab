"""Networks as graphs of operators with shapes: what they compute, hold, and read of each other.

An operator's output has four axes: ``sample``, ``channel``, ``height``, ``width``. Shapes are those
of the models' published definitions; a multiplication and an addition count as two operations.

A transformer's samples are sequences, and its ``height`` the places of one. What a place has is its
``channel``; of attention's scores these are the heads, and ``width`` the places that are attended
to. The projection to queries, keys and values makes them head by head (as Megatron-LM stores them),
so that a cut of its channels is a cut of the heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from annotated_types import Ge, Le

from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.describe import Count, Whole, checked

if TYPE_CHECKING:
    import pandas as pd

    from labkit.models import Model

Axis = Literal["sample", "channel", "height", "width"]
AXES: tuple[Axis, ...] = get_args(Axis)
Kind = Literal[
    "input",
    "convolution",
    "pool",
    "dense",
    "add",
    "concat",
    "embedding",
    "linear",
    "norm",
    "pointwise",
    "scores",
    "softmax",
    "context",
]
SUMMED: tuple[Kind, ...] = ("embedding", "linear")
"""Operators whose sum over their depth may be divided among devices, which then add up parts."""
ATTENTION: tuple[Kind, ...] = ("scores", "softmax", "context")
NumBlocks = Annotated[int, Ge(1), Le(200)]
"""Blocks of a transformer: each is a dozen operators, with a table for each pair of neighbours."""
_FUSED = 3
"""Queries, keys and values, which one projection makes."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator of a network.

    Attributes:
        name: unique in its network.
        kind: what it does. An ``add`` sums its inputs, a ``concat`` joins their channels; a
            ``linear`` operator is dense at each place, a ``norm`` needs all channels of a place;
            ``scores`` multiply queries with keys, a ``context`` multiplies their ``softmax`` with
            values.
        inputs: names of the operators whose outputs it reads.
        output: size of each axis of what it makes.
        depth: channels of its input that each output number reads, for convolutions and linear
            operators; numbers of its input, for dense operators; of an embedding its rows, of
            scores the channels of a head, of a context the places that are attended to.
        window: (height, width) of what it reads around a place.
        stride: of its window.
        padding: (height, width) of zeros around its input.
        heads: of attention.
        bias: whether each output channel has one, of operators with weights.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...]
    output: Mapping[Axis, int]
    depth: int = 0
    window: tuple[int, int] = (1, 1)
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    heads: int = 0
    bias: bool = True

    @property
    def num_outputs(self) -> int:
        """Numbers that it makes, of all samples."""
        return prod(self.output.values())

    @property
    def weights(self) -> int:
        """Trained numbers: a window of ``depth`` for each output channel, and its bias.

        A norm has a scale and a bias for each channel, an embedding ``depth`` rows without bias.
        """
        if self.kind == "norm":
            return 2 * self.output["channel"]
        if self.kind == "embedding":
            return self.output["channel"] * self.depth
        if self.kind not in ("convolution", "dense", "linear"):
            return 0
        return self.output["channel"] * (self.depth * prod(self.window) + self.bias)

    @property
    def forward_flops(self) -> float:
        """Operations of a forward pass of all samples, those of pools and adds among them."""
        reads = {
            "convolution": 2 * self.depth * prod(self.window),
            "dense": 2 * self.depth,
            "linear": 2 * self.depth,
            "scores": 2 * self.depth,
            "context": 2 * self.depth,
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
    def is_transformer(self) -> bool:
        """Whether it has linear operators, which may divide their sums."""
        return any(operator.kind in SUMMED for operator in self.operators)

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

    @classmethod
    @checked
    def of_tokens(cls, name: str, batch: Count, length: Count) -> Draft:
        """Begin with sequences of so many tokens instead of images."""
        draft = cls(name, batch, 1)
        shape: dict[Axis, int] = {"sample": batch, "channel": 1, "height": length, "width": 1}
        tokens = Operator(name="tokens", kind="input", inputs=(), output=shape)
        draft.operators = {"tokens": tokens}
        return draft

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

    def _at_places(self, name: str, kind: Kind, after: str | None, channels: int = 0) -> Operator:
        """An operator that works on each place by itself."""
        source = self._of(after)
        output = dict(source.output)
        output["channel"] = channels or output["channel"]
        return Operator(name=name, kind=kind, inputs=(source.name,), output=output)

    @checked
    def embedding(
        self, name: str, channels: Count, rows: Count, *, after: str | None = None
    ) -> str:
        """A row of a table for each token."""
        operator = self._at_places(name, "embedding", after, channels)
        return self._add(replace(operator, depth=rows))

    @checked
    def linear(
        self,
        name: str,
        channels: Count,
        *,
        after: str | None = None,
        bias: bool = True,
    ) -> str:
        """A fully connected operator over the channels of each place.

        Args:
            bias: whether each channel has one.
        """
        operator = self._at_places(name, "linear", after, channels)
        depth = self._of(after).output["channel"]
        return self._add(replace(operator, depth=depth, bias=bias))

    @checked
    def norm(self, name: str, *, after: str | None = None) -> str:
        """A layer norm over the channels of each place."""
        return self._add(self._at_places(name, "norm", after))

    @checked
    def pointwise(self, name: str, *, after: str | None = None) -> str:
        """A function of each number."""
        return self._add(self._at_places(name, "pointwise", after))

    @checked
    def attention(self, name: str, heads: Count, *, after: str | None = None) -> str:
        """Scores, their softmax, and the context, from a projection to queries, keys and values.

        Raises:
            BadValue: the projection's channels are not three for each channel of each head.
        """
        source = self._of(after)
        length = source.output["height"]
        channels = source.output["channel"]
        if channels % (_FUSED * heads):
            raise BadValue(
                f"planner.Network: {source.name!r} has {channels} channels, no multiple of 3 times "
                f"{heads} heads, as queries, keys and values need"
            )
        head = channels // _FUSED // heads
        square: dict[Axis, int] = {**source.output, "channel": heads, "width": length}
        scores = Operator(
            name=f"{name}_scores",
            kind="scores",
            inputs=(source.name,),
            output=square,
            depth=head,
            heads=heads,
        )
        self._add(scores)
        softmax = Operator(
            name=f"{name}_softmax",
            kind="softmax",
            inputs=(scores.name,),
            output=square,
            heads=heads,
        )
        self._add(softmax)
        context = Operator(
            name=f"{name}_context",
            kind="context",
            inputs=(softmax.name, source.name),
            output={**source.output, "channel": heads * head},
            depth=length,
            heads=heads,
        )
        return self._add(context)

    @checked
    def block(self, name: str, heads: Count, wide: Count, *, after: str | None = None) -> str:
        """A block of a transformer: attention, then two linear operators, each with a residual.

        Args:
            wide: channels between the two linear operators.
        """
        before = self._of(after)
        hidden = before.output["channel"]
        self.norm(f"{name}_norm1", after=before.name)
        self.linear(f"{name}_qkv", _FUSED * hidden)
        self.attention(name, heads)
        projected = self.linear(f"{name}_projection", hidden)
        middle = self.add(f"{name}_add1", [projected, before.name])
        self.norm(f"{name}_norm2")
        self.linear(f"{name}_up", wide)
        self.pointwise(f"{name}_gelu")
        down = self.linear(f"{name}_down", hidden)
        return self.add(f"{name}_add2", [down, middle])

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


def transformer_names() -> tuple[str, ...]:
    """Models of ``data/models.yaml`` whose blocks are GPT's: fused projections, two-layer MLPs."""
    from labkit.models.model import presets

    return tuple(name for name, model in presets().items() if _is_gpt(model))


def _is_gpt(model: Model) -> bool:
    usual = model.mlp == "gelu" and model.fused_qkv and not model.num_experts
    own_head_dim = model.heads * model.head_dim != model.hidden
    return usual and model.kv_heads == model.heads and model.positions > 0 and not own_head_dim


@cache
def _transformer(name: str, batch: int, length: int | None, num_layers: int | None) -> Network:
    """A model of ``data/models.yaml``, on sequences as long as its positions by default.

    A head that is tied to the embedding counts as weights of its own: the two may be cut in
    different ways, and then each has its gradients to exchange.
    """
    from labkit.models import Model

    model = Model.preset(name)
    places = length or model.positions
    draft = Draft.of_tokens(name, batch, places)
    last = draft.embedding("embedding", model.hidden, model.vocab + model.positions)
    for block in range(1, (num_layers or model.num_layers) + 1):
        last = draft.block(f"block{block}", model.heads, model.ffn, after=last)
    draft.norm("norm", after=last)
    draft.linear("head", model.vocab, bias=False)
    return draft.network()


_NETWORKS: dict[str, Callable[[int], Network]] = {
    "alexnet": _alexnet,
    "vgg16": _vgg16,
    "resnet50": _resnet50,
    "inception3": _inception3,
}
NAMES = tuple(_NETWORKS)


@checked
def network(
    name: str,
    *,
    batch: Count,
    length: Count | None = None,
    num_layers: NumBlocks | None = None,
) -> Network:
    """A network by its name: alexnet, vgg16, resnet50, inception3, or a GPT of data/models.yaml.

    Args:
        batch: samples of a step.
        length: tokens of a sequence; by default as many as a model has positions.
        num_layers: of a transformer, instead of all.

    Raises:
        UsageError: there is no such network, or images are given a length.

    >>> round(sum(operator.weights for operator in network("vgg16", batch=1).operators) / 1e6, 1)
    138.4
    >>> round(sum(o.weights for o in network("gpt2-124m", batch=1).operators) / 1e6, 1)
    163.0
    """
    if name in _NETWORKS:
        if length is not None or num_layers is not None:
            raise UsageError(f"planner.network: {name} reads images; length, num_layers are GPTs'")
        return _NETWORKS[name](batch)
    known = transformer_names()
    if name not in known:
        raise not_among("network", name, [*_NETWORKS, *known])
    return _transformer(name, batch, length, num_layers)
