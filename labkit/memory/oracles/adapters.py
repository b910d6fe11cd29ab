"""One training step of a network with peft's adapters under torch's memory tracker.

The base is :mod:`labkit.memory.oracles.networks`'s, the adapters are what ``peft`` puts in place of
its projections. Frozen parameters are tensors without a gradient here, and no ``Parameter``: torch
treats them alike, but its tracker asks every ``Parameter`` for a gradient.

Importing this module does not load torch; its functions do.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from labkit import extras
from labkit.errors import UsageError
from labkit.memory.jobs.adapter import Adapter
from labkit.memory.oracles import tracker
from labkit.memory.oracles.tracker import Tracked
from labkit.memory.plans.plan import Plan
from labkit.memory.tape.mode import Mode
from labkit.memory.tape.step import Moment, Part, Phase
from labkit.models import Model

_MODULES = {"q": "query", "k": "key", "v": "value", "o": "out"}


def settings_of(plan: Plan) -> dict[str, Any]:
    """What :func:`track` takes for a plan's step.

    Raises:
        UsageError: the networks cannot run the plan as it says; the message says what is in the
            way.
    """
    recipe = plan.recipe
    adapter = recipe.adapter
    assert adapter is not None
    places = {recipe.offload_parameters, recipe.offload_gradients, recipe.offload_optimizer}
    plain = recipe.optimizer == "adam" and not recipe.amsgrad and recipe.second_gradients is None
    job = plan.estimate.job
    reasons = {
        "one rank": plan.parallel.world_size == 1,
        "a base that is not in 4 bits": not adapter.packed,
        "Adam over lists with states in the gradients' format and no master copy": plain
        and recipe.master is None
        and recipe.states == recipe.gradients
        and recipe.step == "foreach",
        "everything on the device": places == {"device"},
        "no accumulation": recipe.accumulation == 1,
        "layers recomputed each for itself, or not": job.mode.recompute != "every"
        and job.arguments["group"] == 1
        and not job.mode.loss.startswith("chunked"),
    }
    if missing := [rule for rule, holds in reasons.items() if not holds]:
        raise UsageError(f"oracle 'fake' needs {'; '.join(missing)} where there is an adapter")
    numbers = {name: job.arguments[name] for name in ("seq", "micro_batch")}
    width = job.arguments["adapter_bytes"]
    return {"model": job.model, "mode": job.mode, "adapter": adapter, "width": width, **numbers}


def track(
    model: Model, mode: Mode, adapter: Adapter, *, seq: int, micro_batch: int, width: int = 4
) -> Tracked:
    """Run one step (forward, loss, backward, AdamW over lists) on fake tensors and count.

    Args:
        mode: which operators run.
        adapter: what is trained.
        seq, micro_batch: tokens of a sample, and samples.
        width: bytes of an element of the adapters, 4 or 2.

    Raises:
        UsageError: peft is not there, or the networks lack what the model asks for.
    """
    extras.need("a step with adapters", "dev", "peft")
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from labkit.memory.oracles import networks

    network = _adapted(model, mode, adapter, seq)
    with FakeTensorMode():
        _allocate(network, torch.float32 if width == 4 else torch.bfloat16)
        trained = [part for part in network.parameters() if part.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, foreach=True)
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        batch = [torch.zeros(micro_batch, seq, dtype=torch.int64) for _ in range(2)]
        watch = tracker._watch(network, optimizer, batch)
        _name_moments(network, watch, model, mode)
        with watch:
            with networks.autocast(mode):
                loss = network(*batch)
            watch.moment = Moment.LOSS_BACKWARD
            loss.backward()
            del loss
            watch.moment = Moment.STEP
            optimizer.step()
    return Tracked(
        moments=watch.largest, peak_moment=watch.peak_moment, peak_bytes=watch.peak_bytes
    )


def _adapted(model: Model, mode: Mode, adapter: Adapter, seq: int) -> Any:
    """The network with adapters, on the meta device: peft does not build on fake tensors."""
    import torch
    from peft import LoraConfig, get_peft_model

    from labkit.memory.oracles import networks

    names = [_MODULES.get(target, target) for target in adapter.targets]
    config = LoraConfig(
        r=adapter.rank, target_modules=names, lora_dropout=0.1 if adapter.dropout else 0.0
    )
    with torch.device("meta"):
        network: Any = networks.build(model, mode, seq=seq)
        return get_peft_model(network, config).base_model.model


def _allocate(network: Any, dtype: Any) -> None:
    """Give every parameter and buffer a tensor in the mode at work, shared ones one tensor."""
    import torch

    made: dict[int, Any] = {}
    known = []  # what is replaced stays, so that no address is used again
    tables = [id(table) for table in (*network.mask, *network.tables)]
    for module in list(network.modules()):
        for name, old in [*module._parameters.items(), *module._buffers.items()]:
            if old is None:
                continue
            known.append(old)
            if id(old) not in made:
                new = torch.empty(old.shape, dtype=dtype if old.requires_grad else old.dtype)
                made[id(old)] = torch.nn.Parameter(new) if old.requires_grad else new
            if old.requires_grad:
                module._parameters[name] = made[id(old)]
            else:
                module._parameters.pop(name, None)
                module._buffers[name] = made[id(old)]
    masks = len(network.mask)
    network.mask = tuple(made[table] for table in tables[:masks])
    network.tables = tuple(made[table] for table in tables[masks:])


def _name_moments(network: Any, watch: Any, model: Model, mode: Mode) -> None:
    """Tell the watch which layer is at work, in both directions."""
    stretch = partial(tracker._stretch, model, mode, 1, 1)

    def before(number: int) -> None:
        if watch.moment.phase is Phase.FORWARD:
            watch.moment = Moment.of_layers(Phase.FORWARD, stretch(number))

    def after(number: int, output: Any) -> None:
        if watch.moment.phase is Phase.FORWARD and watch.moment.part is Part.LAYERS:
            moment = Moment.of_layers(Phase.BACKWARD, stretch(number))
            output.register_hook(lambda _: setattr(watch, "moment", moment))
            if number == model.num_layers - 1:
                watch.moment = Moment.LOSS_FORWARD

    for number, block in enumerate(network.blocks):
        block.register_forward_pre_hook(lambda *_, number=number: before(number))
        block.register_forward_hook(lambda _, __, output, number=number: after(number, output))
