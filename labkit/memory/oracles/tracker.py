"""One training step under torch's own memory tracker, on tensors without numbers.

``FakeTensorMode`` runs the real program on shapes alone, so a model of billions of parameters fits
a laptop; ``MemTracker`` counts each storage from its making to its end. What comes out is what
:mod:`labkit.memory.tape.moments` must equal. Under FSDP2 the ranks are fake too: torch's ``fake``
process group says it is rank 0 of as many as are asked for, and its collectives do nothing, but
FSDP2 allocates and frees what it would.

The device is a CPU. There ``scaled_dot_product_attention`` runs ``_flash_attention_for_cpu``, which
saves query, key, value, output and one fp32 number a row and head, as the flash kernel of a GPU
does (that one also saves 16 bytes of random state; the memory-efficient kernel rounds the rows up
to a multiple of 32). LayerNorm's statistics have the input's dtype on a CPU and fp32 on a GPU.
Gradients that meet are added out of place under any dispatch mode, which real training does in
place where nobody else holds them.

Importing this module does not load torch; its functions do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from labkit.errors import UsageError
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.plans.plan import Plan
from labkit.memory.tape.mode import Mode
from labkit.memory.tape.step import Moment, Part, Phase, Stretch
from labkit.memory.traced import ranks
from labkit.models import Model

# Moments of the tracker under FSDP2 that the estimate names otherwise, or tells apart.
FSDP_NAMES = {
    Moment.LOSS_BACKWARD: (Moment.LOSS_BACKWARD, Moment.HEAD_BACKWARD),
    Moment.BACKWARD_MIDDLE: (Moment.PREFETCH,),
}
Observe = Callable[[Any, Any, list[Any]], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """What the tracker saw in one step, the optimizer's states there from before.

    Attributes:
        moments: at the largest total of each moment, bytes by MemTracker's own categories.
        peak_moment, peak_bytes: the first moment that reaches the largest total, and that total.
    """

    moments: dict[Moment, dict[str, int]]
    peak_moment: Moment
    peak_bytes: int


def settings_of(plan: Plan, oracle: str = "fake") -> dict[str, Any]:
    """What :func:`track` takes for a plan's step.

    Raises:
        UsageError: as :func:`require_plain` does.
    """
    require_plain(plan, oracle)
    job = plan.estimate.job
    names = ("seq", "micro_batch", "period", "group", "chunks")
    return {
        "model": job.model,
        "mode": job.mode,
        **{name: job.arguments[name] for name in names},
        "step": plan.recipe.step,
        "parallel": plan.parallel if plan.parallel.world_size > 1 else None,
    }


def require_plain(plan: Plan, oracle: str = "fake") -> None:
    """Refuse a plan that no network runs as it says.

    Raises:
        UsageError: the message says what is in the way.
    """
    recipe = plan.recipe
    alike = recipe.parameters == recipe.gradients == recipe.states
    plain = recipe.optimizer == "adam" and not recipe.amsgrad and recipe.second_gradients is None
    places = {recipe.offload_parameters, recipe.offload_gradients, recipe.offload_optimizer}
    sharded = oracle == "fake" and plan.parallel.zero == 3
    reasons = {
        "one rank (dp = tp = cp = pp = 1)": plan.parallel.world_size == 1 or sharded,
        "Adam with states in the parameters' format and no master copy, such as"
        " Recipe.fp32_adam() or the preset bf16-autocast": alike
        and plain
        and recipe.master is None,
        "weights used as they are stored, or autocast": recipe.autocast or recipe.compute is None,
        "everything on the device": places == {"device"},
        "no accumulation": recipe.accumulation == 1,
    }
    if missing := [rule for rule, holds in reasons.items() if not holds]:
        raise UsageError(f"oracle {oracle!r} needs {'; '.join(missing)}")


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
    parallel: Parallel | None = None,
    observe: Observe | None = None,
) -> Tracked:
    """Run one step (forward, loss, backward, AdamW) on fake tensors and count.

    Args:
        mode: which operators run.
        seq, micro_batch: tokens of a sample, and samples.
        step: how AdamW runs (``Recipe.step``).
        period, group, chunks: of recomputed layers and of a chunked head, as
            :class:`~labkit.memory.tape.sizes.Numbers` has them.
        parallel: shards the states by FSDP2 at ZeRO's stage 3; the bytes are rank 0's.
        observe: gives a context for the forward pass from the network, the tracker and the batch.

    Raises:
        UsageError: the networks lack what the model asks for, or FSDP2 what ``parallel`` does.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from labkit.memory.oracles import networks, worker

    if model.positions and seq > model.positions:
        raise UsageError(f"seq ({seq}) must not exceed the model's positions ({model.positions})")
    with ExitStack() as contexts:
        mesh: Any = contexts.enter_context(fake_ranks(parallel)) if parallel else None
        contexts.enter_context(FakeTensorMode())
        network = networks.build(model, mode, seq=seq, period=period, group=group, chunks=chunks)
        if parallel:
            worker.shard(network, parallel, mesh)
        stretch = partial(stretch_of, model, mode, group=group, period=period)
        optimizer = networks.adamw(network, step)
        batch = [torch.zeros(micro_batch, seq, dtype=torch.int64) for _ in range(2)]
        return step_of(network, optimizer, batch, mode=mode, stretch=stretch, observe=observe)


def step_of(
    network: Any,
    optimizer: Any,
    batch: list[Any],
    *,
    mode: Mode,
    stretch: Callable[[int], Stretch],
    observe: Observe | None = None,
    inside: Callable[[], Callable[[], object]] | None = None,
) -> Tracked:
    """Run one step of a network, in the tensor mode at work, and count.

    Args:
        network: a :class:`~labkit.memory.oracles.networks.Decoder`, or one with adapters.
        optimizer: of what is trained.
        batch: tokens and targets.
        stretch: the part of the stack that a layer is counted to, by its number.
        observe: as :func:`track` takes it.
        inside: has parameters stepped within the backward pass, in place of the optimizer's own
            step after it; what it returns runs when that pass ends.
    """
    from labkit.memory.oracles import networks

    _make_states(optimizer)
    watch = _watch(network, optimizer, batch)
    _name_moments(network, watch, stretch)
    observed = observe(network, watch, batch) if observe else nullcontext()
    end_backward = inside() if inside else None
    with watch:
        with observed, networks.autocast(mode):
            loss = network(*batch)
        watch.moment = Moment.LOSS_BACKWARD
        loss.backward()
        if end_backward is not None:
            end_backward()
        del loss
        watch.moment = Moment.STEP
        if end_backward is None:
            optimizer.step()
    return Tracked(
        moments=watch.largest, peak_moment=watch.peak_moment, peak_bytes=watch.peak_bytes
    )


def saved_bytes(model: Model, mode: Mode, *, seq: int, micro_batch: int) -> int:
    """Bytes of all storages that torch's graph saves in a forward pass, parameters left out.

    Args:
        mode: which operators run.
        seq, micro_batch: tokens of a sample, and samples.
    """
    from labkit.memory.oracles.blocks import saving

    def observe(network: Any, _: Any, batch: list[Any]) -> AbstractContextManager[None]:
        return saving(sizes, [*network.parameters(), *network.buffers(), *batch])

    sizes: dict[Any, int] = {}
    track(model, mode, seq=seq, micro_batch=micro_batch, observe=observe)
    return sum(sizes.values())


@contextmanager
def fake_ranks(parallel: Parallel) -> Iterator[Any]:
    """A mesh of fake ranks, of which this process is the first."""
    names = ("dp", "replicate", "partition_group", "reshard_after_forward", "wrap", "layer_split")
    known = {name: getattr(parallel, name) for name in (*names, "keep_gathered")}
    if parallel != Parallel(zero=3, **known) or parallel.dp < 2:
        raise UsageError(
            "FSDP2 is tracked for data parallelism at zero = 3 on 2 ranks or more; with a"
            " secondary_group it looks at its mesh's numbers, which tensors here do not have"
        )
    with ranks.Spread(parallel=parallel).ranks() as mesh:
        yield mesh


def _make_states(optimizer: Any) -> None:
    """Take a step before the one that counts, since AdamW makes its states at the first."""
    import torch

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


class _NoHook:
    """Stands where the tracker keeps the hook of a parameter that has no gradient."""

    def remove(self) -> None:
        """There is nothing to take away."""


def _watch(network: Any, optimizer: Any, batch: list[Any]) -> Any:
    """A MemTracker that knows the moment, and keeps each moment's largest total."""
    from torch.distributed._tools.mem_tracker import MemTracker

    class Watch(MemTracker):
        moment = Moment.EMBEDDING

        def __init__(self) -> None:
            super().__init__()
            self.largest: dict[Moment, dict[str, int]] = {}
            self.peak_bytes = 0
            self.peak_moment = Moment.INIT

        def _track_module_params_and_buffers(
            self, module: Any, install_grad_hooks: bool = True
        ) -> tuple[int, int]:
            """The tracker's own asks every parameter for a gradient, which frozen ones cannot have:
            here those count as having been asked.
            """
            handles = self._param_to_grad_hook_handles
            for parameter in module.parameters():
                if not parameter.requires_grad:
                    handles.setdefault(parameter, (_NoHook(), _NoHook()))
            return super()._track_module_params_and_buffers(module, install_grad_hooks)

        def _update_peak_stats(self, peak_state: Any) -> None:
            """The tracker's own keeps a snapshot a module at each operator; this one a moment."""
            (snapshot,) = self._curr_mem_snap.values()
            total = snapshot["Total"]
            if total > self.largest.get(self.moment, {"Total": -1})["Total"]:
                self.largest[self.moment] = {
                    str(getattr(kind, "value", kind)): size for kind, size in snapshot.items()
                }
            if total > self.peak_bytes:
                self.peak_bytes = total
                self.peak_moment = self.moment

    watch = Watch()
    watch.track_external(network, optimizer, *batch)
    return watch


def _name_moments(network: Any, watch: Any, stretch: Callable[[int], Stretch]) -> None:
    """Tell the watch which layer is at work, in both directions."""

    def when_gradient(tensor: Any, moment: Moment) -> None:
        if tensor.requires_grad:  # else it has none
            tensor.register_hook(lambda _: setattr(watch, "moment", moment))

    def before(number: int, inputs: Any) -> None:
        if watch.moment.phase is Phase.FORWARD:
            if number == 0:
                when_gradient(inputs[0], Moment.EMBEDDING_BACKWARD)
            watch.moment = Moment.of_layers(Phase.FORWARD, stretch(number))

    def after(number: int, output: Any) -> None:
        if watch.moment.phase is Phase.FORWARD and watch.moment.part is Part.LAYERS:
            when_gradient(output, Moment.of_layers(Phase.BACKWARD, stretch(number)))
            if number == len(network.blocks) - 1:
                watch.moment = Moment.LOSS_FORWARD

    for number, block in enumerate(network.blocks):
        block.register_forward_pre_hook(lambda _, inputs, number=number: before(number, inputs))
        block.register_forward_hook(lambda _, __, output, number=number: after(number, output))


def stretch_of(
    model: Model, mode: Mode, number: int, *, group: int = 1, period: int = 1
) -> Stretch:
    """The part of the stack in which the formulas have layer ``number``."""
    layers = model.num_layers
    dense = model.num_dense_layers
    if 0 < dense < layers:  # two kinds of layers: each has its own moments
        return Stretch.FIRST if number < dense else Stretch.LAST
    if mode.recompute == "every":
        end = layers // period * period
        if number in {layers - 1, end - 1, end - 2}:
            return Stretch.LAST
        return Stretch.FIRST if number in {0, period - 2, period - 1} else Stretch.MIDDLE
    size = min(group, layers) if mode.recompute == "full" else 1
    unit = number // size
    units = -(-layers // size)
    if unit == units - 1:
        return Stretch.LAST
    if unit == units - 2 and size > 1:
        return Stretch.LAST_FULL
    return Stretch.FIRST if unit == 0 else Stretch.MIDDLE
