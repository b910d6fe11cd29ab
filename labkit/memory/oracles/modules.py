"""One training step of any torch module under torch's memory tracker, beside a traced plan's.

The tracker counts by itself. Two things are as in :mod:`labkit.memory.traced.recorder`: functions
are exchanged for those that keep a GPU's bytes, and the module is the network's. The tracker's own
hooks on several gradients keep the first until the last is there, which a step without a tracker
does not; they are left out, and only the names of modules in its tables are lost with them.

Importing this module does not load torch; its functions do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from labkit.errors import UsageError
from labkit.memory.oracles import tracker
from labkit.memory.oracles.tracker import Tracked
from labkit.memory.plans.plan import Plan
from labkit.memory.tape.step import Moment
from labkit.memory.traced.modules import in_dicts, no_packing, quiet
from labkit.memory.traced.network import Network


def track(plan: Plan) -> Tracked:
    """Run one step of a traced plan (forward, backward, AdamW) on fake tensors and count.

    Raises:
        UsageError: the plan is not traced, or not plain enough to be run.
    """
    tracker.require_plain(plan)
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
    with quiet(), no_packing(), FakeTensorMode(), _no_multi_grad_hooks(), AsOnCuda(gpu=False):
        again = batch.recompute == "full"
        module: Any = subject.build(attention=batch.attention, bits=bits, recompute=again)
        inputs = subject.inputs(module, batch)
        _hide_frozen(module)

        def loss_of_step() -> Any:
            enabled = plan.recipe.autocast
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                output = module(**inputs)
                return subject.loss(output)

        optimizer = networks.adamw(module, plan.recipe.step)
        backward(loss_of_step())  # AdamW makes its states at its first step
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
            del loss
            watch.moment = Moment.STEP
            optimizer.step()
    return Tracked(
        moments=watch.largest, peak_moment=watch.peak_moment, peak_bytes=watch.peak_bytes
    )


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
