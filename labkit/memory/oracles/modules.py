"""One training step of any torch module under torch's memory tracker, beside a traced plan's.

The tracker counts by itself. Two things are as in :mod:`labkit.memory.traced.recorder`: functions
are exchanged for those that keep a GPU's bytes, and the module is the network's. The tracker's own
hooks on several gradients keep the first until the last is there, which a step without a tracker
does not; they are left out, and only the names of modules in its tables are lost with them.

Importing this module does not load torch; its functions do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from labkit.errors import UsageError
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.oracles import tracker
from labkit.memory.oracles.tracker import Tracked
from labkit.memory.plans.plan import Plan
from labkit.memory.plans.traced import spread_of
from labkit.memory.tape.step import Moment
from labkit.memory.traced.modules import in_dicts, no_packing, quiet
from labkit.memory.traced.network import Network
from labkit.memory.traced.ranks import Spread, units_of


def track(plan: Plan) -> Tracked:
    """Run one step of a traced plan (forward, backward, AdamW) on fake tensors and count.

    Raises:
        UsageError: the plan is not traced, or not plain enough to be run.
    """
    spread = spread_of(plan.parallel, plan.recipe)
    _require_plain(plan, spread)
    model, batch = plan.sized()
    if not isinstance(model, Network) or model.subject is None:
        raise UsageError(f"a plan of a Network must be given, got one of {model.name}")
    if batch.gpu:
        raise UsageError("oracle 'fake' needs gpu = False where a network is traced")
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from labkit.memory.oracles import networks
    from labkit.memory.traced.recorder import AsOnCuda, backward

    subject = model.subject
    bits = 32 if plan.recipe.parameters == "fp32" else 16
    with ExitStack() as contexts:
        contexts.enter_context(quiet())
        mesh: Any = contexts.enter_context(spread.ranks()) if spread else None
        modes = (no_packing(), FakeTensorMode(), _no_multi_grad_hooks(), AsOnCuda(gpu=False))
        for mode in modes:
            contexts.enter_context(mode)
        again = batch.recompute == "full"
        module: Any = subject.build(attention=batch.attention, bits=bits, recompute=again)
        inputs = subject.inputs(module, batch)
        if mesh is None:
            _hide_frozen(module)
        elif spread is not None:
            spread.cut(module, mesh)
        slices = _Slices(module, spread) if spread is not None and mesh is None else None

        def loss_of_step() -> Any:
            enabled = plan.recipe.autocast
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                output = module(**inputs)
                return subject.loss(output)

        updated: Any = module if slices is None else slices
        optimizer = networks.adamw(updated, plan.recipe.step)
        backward(loss_of_step())  # AdamW makes its states at its first step
        finish = slices.finish if slices is not None else int
        finish()
        optimizer.step()
        optimizer.zero_grad()
        tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
        tensors += in_dicts(module)
        watch = tracker._watch(module, optimizer, tensors)
        watch.moment = Moment.FORWARD
        with watch:
            loss = loss_of_step()
            watch.moment = Moment.BACKWARD
            backward(loss)
            finish()
            del loss
            watch.moment = Moment.STEP
            optimizer.step()
    return Tracked(
        moments=watch.largest, peak_moment=watch.peak_moment, peak_bytes=watch.peak_bytes
    )


def track_forward(network: Network, batch: Batch, *, bits: int) -> int:
    """The peak of a network's forward pass without gradients on fake tensors.

    Args:
        bits: 16 or 32, of the parameters.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from labkit.memory.traced.recorder import AsOnCuda

    subject = network.subject
    assert subject is not None
    with quiet(), no_packing(), FakeTensorMode(), AsOnCuda(gpu=False), torch.no_grad():
        module: Any = subject.build(attention=batch.attention, bits=bits, recompute=False).eval()
        inputs = subject.questions(module, batch)
        tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
        optimizer = torch.optim.SGD(module.parameters())  # the tracker asks for one
        watch = tracker._watch(module, optimizer, tensors)
        watch.moment = Moment.FORWARD
        with watch:
            output = module(**inputs)
        del output
    return int(watch.peak_bytes)


def _require_plain(plan: Plan, spread: Spread | None) -> None:
    """Refuse a plan that no module runs as it says.

    FSDP2 also casts what it gathers, and at stage 2 gradients are reduced here.
    """
    if spread is not None and plan.parallel.zero == 2:
        if plan.parallel.shard_rule != "dim0" or spread.at_once:
            raise UsageError(
                "oracle 'fake' needs shard_rule = dim0 and no reduce_bucket_size at zero = 2"
            )
        plan = replace(plan, parallel=Parallel())
    elif spread is not None:
        compute = plan.recipe.compute if plan.recipe.autocast else None
        plan = replace(plan, recipe=replace(plan.recipe, compute=compute, reduce=None))
    tracker.require_plain(plan)


class _Slices:
    """Rows of every parameter that this rank updates; gradients become theirs unit by unit."""

    def __init__(self, module: Any, spread: Spread) -> None:
        import torch

        self.own: dict[Any, Any] = {}
        for parameter in module.parameters():
            if parameter.requires_grad:
                rows = math.ceil(len(parameter) / spread.parallel.shard_degree)
                self.own[parameter] = torch.nn.Parameter(parameter.detach()[:rows])
                parameter.register_post_accumulate_grad_hook(self._after)
        self.units: list[set[Any]] = []
        left = set(self.own)
        for unit in units_of(module, spread.parallel.wrap).values():
            self.units.append(left & set(unit.parameters()))
            left -= self.units[-1]

    def parameters(self) -> Iterator[Any]:
        """What the optimizer updates."""
        return iter(self.own.values())

    def _after(self, parameter: Any) -> None:
        """A gradient is there: if all of its unit are, they are cut."""
        for unit in self.units:
            if parameter in unit and all(p.grad is not None for p in unit):
                self._cut(unit)

    def _cut(self, unit: set[Any]) -> None:
        """Keep this rank's rows of a unit's gradients."""
        for parameter in unit:
            if parameter.grad is not None:
                mine = self.own[parameter]
                mine.grad = parameter.grad[: len(mine)].clone()
                parameter.grad = None

    def finish(self) -> None:
        """Cut what has no whole unit."""
        for unit in self.units:
            self._cut(unit)


def _hide_frozen(module: Any) -> None:
    """Make frozen parameters buffers: the tracker asks every parameter for a gradient."""
    for part in module.modules():
        for name, parameter in list(part._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del part._parameters[name]
                part.register_buffer(name, parameter.data, persistent=False)
    for part in module.modules():
        if any(True for _ in part.parameters()) or not isinstance(
            getattr(type(part), "dtype", None), property
        ):
            continue
        # transformers reads a model's format from its first parameter, and there is none now.
        dtype = next(tensor.dtype for tensor in part.buffers() if tensor.is_floating_point())
        part.__class__ = type(type(part).__name__, (type(part),), {"dtype": dtype})


@contextmanager
def _no_multi_grad_hooks() -> Iterator[None]:
    """Keep the tracker from hooks that hold gradients."""
    from torch.distributed._tools import mod_tracker

    class Nothing:
        def remove(self) -> None:
            """There is no hook."""

    before = mod_tracker.register_multi_grad_hook
    mod_tracker.register_multi_grad_hook = lambda *_, **__: Nothing()  # type: ignore[assignment]
    try:
        yield
    finally:
        mod_tracker.register_multi_grad_hook = before
