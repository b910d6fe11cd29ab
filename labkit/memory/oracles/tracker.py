"""One training step under torch's own memory tracker, on tensors without numbers.

``FakeTensorMode`` runs the real program on shapes alone, so a model of billions of parameters fits
a laptop; ``MemTracker`` counts each storage from its making to its end. What comes out is what the
formulas of :mod:`labkit.memory.tape.saved` and :mod:`labkit.memory.tape.moments` must equal.

The device is a CPU. There ``scaled_dot_product_attention`` runs ``_flash_attention_for_cpu``, which
saves query, key, value, output and one fp32 number a row and head, as the flash kernel of a GPU
does (that one also saves 16 bytes of random state; the memory-efficient kernel rounds the rows up
to a multiple of 32). LayerNorm's statistics have the input's dtype on a CPU and fp32 on a GPU.
Gradients that meet are added out of place under any dispatch mode, which real training does in
place where nobody else holds them. Dropout is left out: its mask has two bytes here, one on a GPU.

Importing this module does not load torch; its functions do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError
from labkit.memory.tape import moments as predicted
from labkit.memory.tape.saved import Mode
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """What the tracker saw in one step, the optimizer's states there from before.

    Attributes:
        layer_saved_bytes: unique storages each layer packs for its backward pass, parameters
            left out, by torch's saved-tensor hooks; a storage counts where it is packed first.
        saved_bytes: the same over the whole network.
        layer_kept_bytes: what MemTracker's total grew from the start of one layer to the start of
            the next, so without the last layer; includes all that lives, saved or not.
        moments: at the largest total of each moment, bytes by MemTracker's own categories.
        peak_moment, peak_bytes: the first moment that reaches the largest total, and that total.
    """

    layer_saved_bytes: tuple[int, ...]
    saved_bytes: int
    layer_kept_bytes: tuple[int, ...]
    moments: dict[str, dict[str, int]]
    peak_moment: str
    peak_bytes: int

    def frame(self) -> pd.DataFrame:
        """A row a moment and category: bytes at the moment's largest total."""
        import pandas as pd

        return pd.DataFrame(
            {"moment": moment, "category": category, "num_bytes": size}
            for moment, parts in self.moments.items()
            for category, size in parts.items()
        )


def track(
    model: Model,
    mode: Mode,
    *,
    seq: int,
    micro_batch: int,
    step: str = "foreach",
    period: int = 1,
    group: int = 1,
    chunks: int = 8,
) -> Tracked:
    """Run one step (forward, loss, backward, AdamW) on fake tensors and count.

    Raises:
        UsageError: the networks do not have what the model asks for.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from labkit.memory.oracles import networks

    if step not in networks.OPTIMIZERS:
        raise UsageError(f"step must be one of {', '.join(networks.OPTIMIZERS)}, got {step!r}")
    if model.positions and seq > model.positions:
        raise UsageError(f"seq ({seq}) must not exceed the model's positions ({model.positions})")
    with FakeTensorMode():
        network = networks.build(model, mode, seq=seq, period=period, group=group, chunks=chunks)
        optimizer = networks.adamw(network, step)
        _make_states(network, optimizer)
        batch = [torch.zeros(micro_batch, seq, dtype=torch.int64) for _ in range(2)]
        watch = _watch(network, optimizer, batch)
        _name_moments(network, watch, mode, group=group, period=period)
        packed = _Packed(network, batch)
        with watch:
            with packed, networks.autocast(mode):
                loss = network(*batch)
            watch.moment = "loss backward"
            loss.backward()
            del loss
            watch.moment = predicted.STEP
            optimizer.step()
    return Tracked(
        layer_saved_bytes=tuple(packed.by_layer),
        saved_bytes=packed.total,
        layer_kept_bytes=tuple(late - early for early, late in pairwise(watch.starts)),
        moments=watch.largest,
        peak_moment=watch.peak_moment,
        peak_bytes=watch.peak,
    )


def _make_states(network: Any, optimizer: Any) -> None:
    """A step as there has been before: AdamW makes its states at the first one."""
    import torch

    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def _watch(network: Any, optimizer: Any, batch: list[Any]) -> Any:
    """MemTracker that knows the moment, and keeps each moment's largest total."""
    from torch.distributed._tools.mem_tracker import MemTracker

    class Watch(MemTracker):
        moment = "embedding"

        def __init__(self) -> None:
            super().__init__()
            self.largest: dict[str, dict[str, int]] = {}
            self.tops: dict[str, int] = {}
            self.starts: list[int] = []
            self.peak, self.peak_moment = 0, ""

        def total(self) -> int:
            return sum(snapshot["Total"] for snapshot in self._curr_mem_snap.values())

        def _update_peak_stats(self, peak_state: Any) -> None:
            """Instead of a snapshot for each of a network's modules, at each operator."""
            total = self.total()
            if total > self.tops.get(self.moment, -1):
                self.tops[self.moment] = total
                (snapshot,) = self._curr_mem_snap.values()
                self.largest[self.moment] = {
                    str(getattr(kind, "value", kind)): size for kind, size in snapshot.items()
                }
            if total > self.peak:
                self.peak, self.peak_moment = total, self.moment

    watch = Watch()
    watch.track_external(network, optimizer, *batch)
    return watch


def _name_moments(network: Any, watch: Any, mode: Mode, *, group: int, period: int) -> None:
    """Tell the watch which layer is at work, in both directions."""
    from labkit.memory.oracles.blocks import Experts

    layers = len(network.blocks)

    def before(number: int) -> Any:
        def hook(module: Any, inputs: Any) -> None:
            if watch.moment.startswith(("embedding", "forward")):
                if number == 0:
                    _when_gradient(inputs[0], "embedding backward")
                watch.moment = f"forward, {place(number)}"
                watch.starts.append(watch.total())

        return hook

    def after(number: int) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            if watch.moment.startswith("forward"):
                _when_gradient(output, f"backward, {place(number)}")
                if number == layers - 1:
                    watch.moment = "loss forward"

        return hook

    def _when_gradient(tensor: Any, moment: str) -> None:
        tensor.register_hook(lambda _: setattr(watch, "moment", moment))

    dense = sum(not isinstance(block.mlp, Experts) for block in network.blocks)

    def place(number: int) -> str:
        if 0 < dense < layers:  # two kinds of layers: each has its own moments
            return "first" if number < dense else "last"
        return _place(number, layers, mode, group=group, period=period)

    for number, block in enumerate(network.blocks):
        block.register_forward_pre_hook(before(number))
        block.register_forward_hook(after(number))


def _place(number: int, layers: int, mode: Mode, *, group: int, period: int) -> str:
    """The name that the formulas give a layer's place in the stack."""
    if mode.recompute == "every":
        end = layers // period * period
        if number in {layers - 1, end - 1, end - 2}:
            return "last"
        return "first" if number in {0, period - 2, period - 1} else "middle"
    size = min(group, layers) if mode.recompute == "full" else 1
    unit, units = number // size, -(-layers // size)
    if unit == units - 1:
        return "last"
    if unit == units - 2 and size > 1:
        return "last full"
    return "first" if unit == 0 else "middle"


class _Packed:
    """Storages that the graph packs during a forward pass, by the layer that packs them first.

    A checkpoint packs its inputs before its first layer starts; they count as that layer's.
    """

    def __init__(self, network: Any, batch: list[Any]) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._weakly = StorageWeakRef
        known = [*network.parameters(), *network.buffers(), *batch]
        self.seen = {tensor.untyped_storage()._cdata for tensor in known}
        # A weak reference keeps an address from being given to another storage, not the bytes.
        self.addresses: list[Any] = []
        self.by_layer = [0] * len(network.blocks)
        self.outside: dict[int, int] = {}
        self.total = 0
        self.layer: int | None = None
        for number, block in enumerate(network.blocks):
            block.register_forward_pre_hook(self._enter(number))
            block.register_forward_hook(self._leave)

    def _enter(self, number: int) -> Any:
        def hook(module: Any, inputs: Any) -> None:
            self.layer = number
            own = self.outside.pop(inputs[0].untyped_storage()._cdata, 0)
            self.by_layer[number] += own

        return hook

    def _leave(self, *_: Any) -> None:
        self.layer = None

    def pack(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.seen:
            self.seen.add(storage._cdata)
            self.addresses.append(self._weakly(storage))
            self.total += storage.nbytes()
            if self.layer is None:
                self.outside[storage._cdata] = storage.nbytes()
            else:
                self.by_layer[self.layer] += storage.nbytes()
        return tensor

    def __enter__(self) -> None:
        from torch.autograd.graph import saved_tensors_hooks

        self.hooks = saved_tensors_hooks(self.pack, lambda tensor: tensor)
        self.hooks.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)
