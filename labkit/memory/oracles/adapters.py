"""One training step of a network that is partly frozen under torch's memory tracker.

The network is :mod:`labkit.memory.oracles.networks`'s; adapters are what ``peft`` puts in place of
its projections. On one rank frozen parameters are tensors without a gradient, and no
``Parameter``, which torch treats alike; FSDP2 shards parameters alone, so that there they are
``Parameter`` too, which the watch of :mod:`labkit.memory.oracles.tracker` does not ask for a
gradient. FSDP2 casts what it gathers where the recipe has a ``compute`` format.

Importing this module does not load torch; its functions do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from labkit import extras
from labkit.errors import UsageError
from labkit.memory.jobs.adapter import Adapter
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import DTYPE_BYTES
from labkit.memory.jobs.trained import tape_name
from labkit.memory.oracles import tracker
from labkit.memory.oracles.tracker import Tracked
from labkit.memory.plans.plan import Plan
from labkit.memory.tape.mode import Mode
from labkit.memory.tape.step import Stretch
from labkit.memory.tape.trained import ALL, Trained, is_trained
from labkit.models import Model
from labkit.models.tensors import TUNERS

EVERYTHING = Trained(frozenset({"embedding", "position", "norm", "head"}), (ALL,))
_ENDS = {"embedding": "token", "head": "output"}
_MODULES = {"q": "query", "k": "key", "v": "value", "o": "out"}


def settings_of(plan: Plan) -> dict[str, Any]:
    """What :func:`track` takes for a plan's step.

    Raises:
        UsageError: the networks cannot run the plan as it says; the message says what is in the
            way.
    """
    recipe = plan.recipe
    adapter = recipe.adapter
    places = {recipe.offload_parameters, recipe.offload_gradients, recipe.offload_optimizer}
    plain = recipe.optimizer == "adam" and not recipe.amsgrad and recipe.second_gradients is None
    job = plan.estimate.job
    trained = job.arguments.get("trained", EVERYTHING)
    sharded = plan.parallel.world_size > 1
    reasons = {
        "one rank, or zero = 3": not sharded or plan.parallel.zero == 3,
        "one rank where the base is in 4 bits": not sharded
        or adapter is None
        or not adapter.packed,
        "experts that are not in 4 bits": adapter is None
        or not (adapter.packed and job.model.num_experts),
        "no tensors that are whole beside their shards": not plan.parallel.persistent,
        "Adam with states in the gradients' format and no master copy": plain
        and recipe.master is None
        and recipe.states == recipe.gradients,
        "gradients in the parameters' format, but for adapters": adapter is not None
        or recipe.gradients == recipe.parameters,
        "weights used as they are stored, autocast, or FSDP's casts": recipe.autocast
        or recipe.compute is None
        or sharded,
        "everything on the device": places == {"device"},
        "no accumulation": recipe.accumulation == 1,
        "a loss that is not chunked-output": job.mode.loss != "chunked-output",
    }
    if missing := [rule for rule, holds in reasons.items() if not holds]:
        raise UsageError(f"oracle 'fake' needs {'; '.join(missing)} where parameters are frozen")
    names = ("seq", "micro_batch", "period", "group", "chunks")
    numbers = {name: job.arguments[name] for name in names}
    width = int(DTYPE_BYTES[recipe.gradients])
    own = {"model": job.model, "mode": job.mode, "step": recipe.step}
    own["reentrant"] = job.batch.reentrant
    own["parallel"] = plan.parallel if sharded else None
    if sharded and recipe.compute is not None and not recipe.autocast:
        own["policy"] = (recipe.compute, recipe.reduce or recipe.compute)
        own["stored"] = recipe.parameters
    return {**own, "trained": trained, "adapter": adapter, "width": width, **numbers}


def track(
    model: Model,
    mode: Mode,
    trained: Trained,
    *,
    adapter: Adapter | None = None,
    trains: Callable[[str], bool] | None = None,
    seq: int,
    micro_batch: int,
    step: str = "foreach",
    width: int = 4,
    period: int = 1,
    group: int = 1,
    chunks: int = 8,
    reentrant: bool = False,
    parallel: Parallel | None = None,
    policy: tuple[str, str] | None = None,
    stored: str | None = None,
) -> Tracked:
    """Run one step (forward, loss, backward, AdamW) on fake tensors and count.

    Args:
        mode: which operators run.
        trained: what is trained.
        adapter: the adapters, if those are.
        trains: whether a parameter is trained, by its name in the network; by default as
            ``trained`` says.
        seq, micro_batch: tokens of a sample, and samples.
        step: how AdamW runs (``Recipe.step``).
        width: bytes of an element of the adapters, 4 or 2.
        period, group, chunks: of recomputed layers and of a chunked head, as
            :class:`~labkit.memory.tape.sizes.Numbers` has them.
        reentrant: whether recomputed layers are reentrant checkpoints.
        parallel: shards all by FSDP2 at ZeRO's stage 3; the bytes are rank 0's.
        policy: the formats in which FSDP2 gathers parameters and reduces gradients.
        stored: the format of the base, if it is not that of the products.

    Raises:
        UsageError: peft is not there, or the networks lack what the model asks for.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from labkit.memory.oracles import networks, tuners, worker

    sizes = {"seq": seq, "period": period, "group": group, "chunks": chunks}
    decoder = _decoder(model, mode, adapter, sizes, reentrant=reentrant)
    if adapter is not None:
        network = _adapted(decoder, model, adapter)
    else:
        network = _learning(decoder, trains or (lambda name: _is_trained(name, model, trained)))
    if mode.input_gradients:
        decoder.token.register_forward_hook(lambda *given: given[2].requires_grad_(True))
    with ExitStack() as contexts:
        mesh: Any = contexts.enter_context(tracker.fake_ranks(parallel)) if parallel else None
        if adapter is not None and adapter.kind == "dora":
            contexts.enter_context(tuners.without_cycles())
        contexts.enter_context(FakeTensorMode())
        _allocate(network, width, stored=stored, shards=parallel is not None)
        if parallel:
            worker.shard(network, parallel, mesh, policy=policy)
        optimizer = networks.adamw(network, step)
        virtual = adapter.tokens if adapter is not None else 0
        given = (micro_batch, seq - virtual)
        batch = [torch.zeros(given, dtype=torch.int64) for _ in range(2)]
        stretch = _stretch_of(model, mode, trained, group=group, period=period)
        observe = partial(_observed, decoder, stretch) if reentrant or virtual else None
        return tracker.step_of(
            network, optimizer, batch, mode=mode, stretch=stretch, observe=observe
        )


@contextmanager
def _observed(
    decoder: Any, stretch: Callable[[int], Stretch], network: Any, watch: Any, _: list[Any]
) -> Iterator[None]:
    """Tell the watch what no hook of a module does: numbers of tokens, and blocks at work.

    Args:
        decoder: whose blocks they are.
        stretch: the part of the stack that a block is counted to, by its number.
        network: what is tracked: the decoder, or peft's model around it.
    """
    from labkit.memory.oracles import checkpoints, tuners

    if isinstance(network, tuners.Prompted):
        network.number(watch)
    if isinstance(decoder, checkpoints.Reentrant):
        checkpoints.tell(decoder, stretch, watch)
    yield


def _decoder(
    model: Model, mode: Mode, adapter: Adapter | None, sizes: dict[str, int], *, reentrant: bool
) -> Any:
    """The network without its adapters, in the base's formats, on no device."""
    import torch

    from labkit.memory.oracles import checkpoints, four_bits, networks

    with torch.device("meta"):
        decoder = networks.build(model, mode, **sizes)
        if mode.base:
            _narrow(decoder, mode)
        if adapter is not None and adapter.packed:
            four_bits.pack(decoder.blocks, adapter.base_bytes)
    if reentrant:
        decoder.__class__ = checkpoints.Reentrant
    return decoder


def _stretch_of(
    model: Model, mode: Mode, trained: Trained, *, group: int, period: int
) -> Callable[[int], Stretch]:
    """What says to which part of the stack a layer is counted."""
    if len(trained.layers) > 1:
        return partial(trained.stretch, group=group if mode.recompute == "full" else 1)
    return partial(tracker.stretch_of, model, mode, group=group, period=period)


def _learning(network: Any, learns: Callable[[str], bool]) -> Any:
    """The network, of which only those parameters learn whose names are taken."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(learns(name))
    return network


def _narrow(network: Any, mode: Mode) -> None:
    """Make a frozen base narrow under autocast: all of it, or the layers' matrices; tables and
    masks are as wide as the stream.
    """
    import torch

    stream = torch.float32 if mode.stream_bytes == 4 else torch.bfloat16
    for name, parameter in network.named_parameters():
        matrix = name.startswith("blocks.") and parameter.dim() > 1
        parameter.data = parameter.data.to(torch.bfloat16 if matrix else stream)
    for name, buffer in list(network.named_buffers()):
        setattr(network, name, buffer.to(stream))
    tables = [buffer for _, buffer in network.named_buffers()]
    masks = len(network.mask)
    network.mask = tuple(tables[:masks])
    network.tables = tuple(tables[masks:])


def _is_trained(name: str, model: Model, trained: Trained) -> bool:
    """Whether a network's parameter is trained."""
    part, _, rest = name.partition(".")
    if part != "blocks":
        return {"token": "embedding", "output": "head"}.get(part, part) in trained.ends
    number = int(rest.partition(".")[0])
    names = trained.layers[number % len(trained.layers)]
    return is_trained(str(tape_name(name, model)), names)


def _adapted(network: Any, model: Model, adapter: Adapter) -> Any:
    """The network with adapters, on the meta device: peft does not build on fake tensors."""
    import torch

    from labkit.memory.oracles import four_bits, tuners

    extras.need("a step with adapters", "dev", "peft")
    if adapter.is_prompt:
        with torch.device("meta"):
            adapted = tuners.Prompted(network, model, adapter)
    else:
        adapted = _by_peft(network, adapter)
    if adapter.packed:
        four_bits.forward_as_peft(adapted)
    return adapted


def _by_peft(network: Any, adapter: Adapter) -> Any:
    """The network with adapters in place of its projections."""
    from peft import IA3Config, LoraConfig, get_peft_model

    saved = [_ENDS[end] for end in adapter.saved] or None
    targets = [_MODULES.get(target, target) for target in adapter.targets]
    if adapter.kind == "ia3":
        inner = [target for target in targets if target == "down"]
        factors = IA3Config(
            target_modules=targets, feedforward_modules=inner, modules_to_save=saved
        )
        return get_peft_model(network, factors).base_model.model
    config = LoraConfig(
        r=adapter.rank,
        use_dora=adapter.kind == "dora",
        target_modules=targets,
        lora_dropout=0.1 if adapter.dropout else 0.0,
        layers_to_transform=None if adapter.layers is None else list(adapter.layers),
        layers_pattern=None if adapter.layers is None else "blocks",
        modules_to_save=saved,
    )
    return get_peft_model(network, config).base_model.model


def _allocate(network: Any, width: int, *, stored: str | None = None, shards: bool = False) -> None:
    """Give every parameter and buffer a tensor in the mode at work, shared ones one tensor.

    Args:
        width: bytes of an adapter's element, 4 or 2.
        stored: the format of all other parameters; None for that in which they are.
        shards: frozen tensors are parameters too, which alone FSDP2 shards.
    """
    import torch

    from labkit.memory.oracles.worker import FORMATS

    dtype = torch.float32 if width == 4 else torch.bfloat16
    base = None if stored is None else FORMATS[stored]
    made: dict[int, Any] = {}
    known = []  # what is replaced stays, so that no address is used again
    tables = [id(table) for table in (*network.mask, *network.tables)]
    for path, module in list(network.named_modules()):
        for name, old in [*module._parameters.items(), *module._buffers.items()]:
            if old is None:
                continue
            known.append(old)
            if id(old) not in made:
                own = base if base is not None and name in module._parameters else old.dtype
                tuned = any(part in f"{path}." for part in TUNERS)
                new = torch.empty(old.shape, dtype=dtype if tuned else own)
                sharded = shards and name in module._parameters
                made[id(old)] = (
                    torch.nn.Parameter(new, requires_grad=old.requires_grad)
                    if sharded or old.requires_grad
                    else new
                )
            if isinstance(made[id(old)], torch.nn.Parameter):
                module._parameters[name] = made[id(old)]
            else:
                module._parameters.pop(name, None)
                module._buffers[name] = made[id(old)]
    masks = len(network.mask)
    network.mask = tuple(made[table] for table in tables[:masks])
    network.tables = tuple(made[table] for table in tables[masks:])
