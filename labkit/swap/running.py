"""Chains that torch really runs: networks as lists of blocks, their bytes, and plans carried out.

Loads torch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

from annotated_types import Ge, Le, MinLen

from labkit import extras
from labkit.errors import BadValue, shown
from labkit.kit.describe import Count, Share, checked
from labkit.swap.chain import BACKWARD, FORWARD, KEEP, Chain, Plan

try:
    import torch
    from torch import Tensor, nn
    from torch.utils.flop_counter import FlopCounterMode
except ModuleNotFoundError as error:
    raise extras.lacking("running a chain of blocks", [error.name or "torch"], "torch") from error

Block = Callable[[Tensor], Tensor]
Shape = Annotated[Sequence[Count], MinLen(1)]
NumLayers = Annotated[int, Ge(13), Le(10_000)]
Width = Annotated[int, Ge(1), Le(256)]
Classes = Annotated[int, Ge(1), Le(10**6)]
_CAPTURED: dict[tuple, tuple[Tensor, dict[str, int]]] = {}  # by what prints, modules, input's shape


def conv_bn(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution and its norm; the ReLU that follows works in place.

    Args:
        inputs, outputs: channels.
        size: width and height of its filters.
        stride: pixels from one filter to the next.
    """
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut. Source: He et al. 2015, Fig. 5."""

    def __init__(self, inputs: int, width: int, stride: int, dropout: float = 0.0) -> None:
        super().__init__()
        act = nn.ReLU(inplace=True)
        narrow = conv_bn(inputs, width, 1)
        middle = conv_bn(width, width, 3, stride)
        self.body = nn.Sequential(narrow, act, middle, act, conv_bn(width, 4 * width, 1))
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else conv_bn(inputs, 4 * width, 1, stride)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output; its last ReLU works in place."""
        return self.dropout((self.body(x) + self.shortcut(x)).relu_())


@checked
def resnet(
    num_layers: NumLayers, *, width: Width = 64, classes: Classes = 1000, dropout: Share = 0.0
) -> list[nn.Module]:
    """A ResNet for images of about ``num_layers`` convolutions, three a block.

    Its four stages grow in the proportions of ResNet-50 (3, 4, 6, 3).

    Args:
        num_layers: at least 13, a block a stage.
        width: channels of the first stage; each later one has twice as many.
        classes: outputs.
        dropout: share of a block's outputs that are dropped.

    Source: He et al. 2015, Table 1.

    >>> len(resnet(50)), len(resnet(152))  # a stem, 16 or 50 blocks, the head
    (18, 52)
    """
    num_blocks = round((num_layers - 2) / 3)
    ends = [round(num_blocks * part / 16) for part in (3, 7, 13, 16)]
    stem = [*conv_bn(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    blocks: list[nn.Module] = [nn.Sequential(*stem)]
    inputs = width
    for number in range(num_blocks):
        stage = next(k for k, end in enumerate(ends) if number < end)
        stride = 2 if stage and number == ends[stage - 1] else 1
        blocks.append(Bottleneck(inputs, width << stage, stride, dropout))
        inputs = 4 * (width << stage)
    pool = nn.AdaptiveAvgPool2d(1)
    return [*blocks, nn.Sequential(pool, nn.Flatten(), nn.Linear(inputs, classes))]


@checked
def capture(make: Callable[[], Sequence[nn.Module]], shape: Shape) -> tuple[Chain, int]:
    """The chain of a network, and how many parameters it has, from one pass without numbers.

    Args:
        make: makes the blocks; on torch's meta device, so that none of them has numbers.
        shape: of the input.

    Kept bytes are the storages that autograd saves for a block's backward pass, but for its input,
    its output and its parameters; extra bytes are what torch's tracker sees beside those, gradients
    of the block's own parameters included. Costs are operations of matrix products and
    convolutions. Blocks of the same modules and parameters that print alike run once for each
    shape of their input, whatever network they stand in.
    """
    with torch.device("meta"), _naming_shape("capture", shape):
        blocks = _made("capture", make)
        x = torch.empty(*shape)
        first = x.nbytes
        rows = []
        for block in blocks:
            modules = ((type(module), module.training) for module in block.modules())
            values = ((p.shape, p.dtype, p.requires_grad) for p in block.parameters())
            kind = (repr(block), x.shape, x.dtype, *modules, *values)
            if kind not in _CAPTURED:
                _CAPTURED[kind] = _captured(block, x)
            x, row = _CAPTURED[kind]
            rows.append(row)
        num_params = sum(p.numel() for block in blocks for p in block.parameters())
    by_block: dict[str, Any] = {name: tuple(row[name] for row in rows) for name in rows[0]}
    return Chain(input_bytes=first, **by_block), num_params


def _made(function: str, make: Callable[[], Sequence[nn.Module]]) -> list[nn.Module]:
    """The blocks that a function of the caller's makes, where it makes some."""
    try:
        blocks = list(make())
    except TypeError as error:
        raise BadValue(f"{function}: make must give a list of torch modules; {error}") from error
    if not blocks or not all(isinstance(block, nn.Module) for block in blocks):
        raise BadValue(f"{function}: make must give a list of torch modules, one or more")
    return blocks


@contextlib.contextmanager
def _naming_shape(function: str, shape: Sequence[int]) -> Iterator[None]:
    """Name the input's shape in an error of torch's, which says what of it does not fit."""
    try:
        yield
    except RuntimeError as error:
        problem = str(error).partition("\n")[0]
        raise BadValue(f"{function}: shape {tuple(shape)} does not fit: {problem}") from error


def _captured(block: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, int]]:
    """A block's output, and its fields of a chain."""
    for parameter in block.parameters():
        parameter.grad = torch.empty_like(parameter)
    start = x.detach().requires_grad_()
    kept = dict[int, int]()
    watch = _watch()
    with FlopCounterMode(display=False) as forward, _saving(kept):
        out = block(start)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    own = {tensor.untyped_storage()._cdata for tensor in (x, out, *block.parameters())}
    size = sum(num_bytes for storage, num_bytes in kept.items() if storage not in own)
    del out
    watch.track_external(block, x)
    with watch:  # apart from the hooks and the counter, which hold on to tensors
        before = watch.total()
        with torch.no_grad():
            block(x)
        forward_peak = watch.peak
        watch.peak = 0
        out = block(x.detach().requires_grad_())
        keep_peak = watch.peak
        watch.peak = 0
        torch.autograd.backward(out, torch.empty_like(out))
    there = size + out.nbytes
    return out.detach(), {
        "output_bytes": out.nbytes,
        "kept_bytes": size,
        "forward_cost": forward.get_total_flops(),
        "backward_cost": backward.get_total_flops(),
        "forward_extra_bytes": max(0, forward_peak - before - out.nbytes),
        "keep_extra_bytes": max(0, keep_peak - before - there),
        "backward_extra_bytes": max(0, watch.peak - before - there - out.nbytes - x.nbytes),
    }


@contextlib.contextmanager
def _saving(kept: dict[int, int]) -> Iterator[None]:
    """Note every storage that autograd saves, by its address."""

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


@checked
def execute(
    blocks: Sequence[Block],
    x: Tensor,
    gradient: Callable[[Tensor], Tensor],
    plan: Plan,
    *,
    restore_random: bool = True,
) -> Tensor:
    """Carry out a plan, operation by operation; parameters get their gradients.

    Args:
        blocks: the chain's, in order.
        x: what the first of them reads.
        gradient: gives the loss's gradient from the last output.
        plan: whose operations are carried out.
        restore_random: whether a block that runs again draws the random numbers that it drew first.

    Returns:
        The gradient of ``x``.

    Raises:
        BadValue: the plan is of another number of blocks, or lacks an operation; or ``gradient``
            gives no tensor of the output's shape.
    """
    if len(blocks) != plan.chain.num_blocks:
        raise BadValue(
            f"execute: blocks must be as many as the plan's, {plan.chain.num_blocks}; got "
            f"{len(blocks)}"
        )
    plan.replay()
    outputs = {0: x}
    graphs = dict[int, tuple[Tensor, Tensor]]()
    gradients: dict[int, Any] = {}
    random: dict[int, Tensor] = {}
    for action, number in plan.operations:
        if action == BACKWARD:
            start, end = graphs.pop(number)
            torch.autograd.backward(end, gradients.pop(number + 1))
            gradients[number] = start.grad
            del outputs[number + 1], start, end
            if number and number - 1 not in graphs:  # made again where it is needed again
                del outputs[number]
            continue
        if restore_random:
            again = random.setdefault(number, torch.get_rng_state())
            torch.set_rng_state(again)
        if action == KEEP:
            start = outputs[number].detach().requires_grad_()
            end = blocks[number](start)
            graphs[number] = (start, end)
            outputs[number + 1] = end.detach()
            del start, end
        else:
            with torch.no_grad():
                outputs[number + 1] = blocks[number](outputs[number])
        if action == FORWARD:
            del outputs[number]
        if not gradients and number + 1 == len(blocks):
            output = outputs[number + 1]
            gradients[number + 1] = _gradient(gradient, output)
            del output
    return gradients[0]


def _gradient(gradient: Callable[[Tensor], Tensor], output: Tensor) -> Tensor:
    """The loss's gradient, where it is one."""
    try:
        given = gradient(output)
    except (TypeError, ValueError) as error:
        raise BadValue(f"execute: gradient must take the last output; {error}") from error
    if not isinstance(given, Tensor) or given.shape != output.shape:
        raise BadValue(
            f"execute: gradient must give a tensor of shape {tuple(output.shape)}, as the last "
            f"output's; got {shown(given)}"
        )
    return given


@checked
def tracked_bytes(make: Callable[[], Sequence[nn.Module]], shape: Shape, plan: Plan) -> int:
    """The peak of a plan that really runs, as torch's tracker counts it.

    Parameters and their gradients are there from the start and left out; the input counts.

    Args:
        make: makes the blocks.
        shape: of the input.
        plan: what to keep and what to recompute.
    """
    blocks = _made("tracked_bytes", make)
    with _naming_shape("tracked_bytes", shape):
        x = torch.zeros(*shape)
    for parameter in nn.ModuleList(blocks).parameters():
        parameter.grad = torch.zeros_like(parameter)
    watch = _watch()
    watch.track_external(*blocks, x)
    with watch:
        before = watch.total() - x.nbytes
        with _naming_shape("tracked_bytes", shape):
            execute(blocks, x, torch.zeros_like, plan, restore_random=False)
    return int(watch.peak - before)


def _watch() -> Any:
    """torch's ``MemTracker``, by total alone and without a module's name."""
    from torch.distributed._tools.mem_tracker import MemTracker

    class NoModules(contextlib.ExitStack):
        """In place of hooks on modules, which keep tensors in cycles until Python collects them."""

        is_bw = False

        def register_user_hooks(self, *_: Any) -> None: ...

        def clear_user_hooks(self) -> None: ...

    class Watch(MemTracker):
        def __init__(self) -> None:
            super().__init__()
            self._mod_tracker: Any = NoModules()
            self.peak = 0

        def total(self) -> int:
            return sum(int(snapshot["Total"]) for snapshot in self._curr_mem_snap.values())

        def _update_peak_stats(self, peak_state: Any) -> None:
            self.peak = max(self.peak, self.total())

    return Watch()
