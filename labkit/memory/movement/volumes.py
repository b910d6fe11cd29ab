"""Bytes that one rank of a training job sends in a step, by parallelism, phase and link.

Every term has its formula in words and its source. Letters: A = s·b·h bytes of activations of one
microbatch (the sequence divided by cp), m microbatches a step, l layers of the pipeline device,
t, c, p, e the degrees of tensor, context, pipeline and expert parallelism; G and P the bytes of
gradients and parameters that a rank holds before ZeRO.

Collectives of the backward pass that recomputation repeats have the phase ``RECOMPUTE``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, checked
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.jobs.states import Rows, rows_of
from labkit.memory.jobs.traffic import Collective, Kind, placed
from labkit.memory.jobs.trained import trained_of
from labkit.memory.tape.step import Phase
from labkit.models import Model

CONTEXT = (
    "keys and values are gathered before attention and again in the backward pass, their gradients"
    " reduce-scattered (Llama 3, §3.3.2)"
)
TENSOR = "Shoeybi et al. 2019, §3; Korthikanti et al. 2022, §4.2.2"
PIPELINE = "Narayanan et al. 2021, §3.2: b·s·h a boundary, microbatch and direction"
FINALIZE = "Megatron-LM, finalize_model_grads"
EXPERT = "Lepikhin et al. 2021 (GShard), §3.2: dispatch and combine"


def collectives(
    model: Model,
    parallel: Parallel,
    recipe: Recipe,
    batch: Batch | None = None,
    *,
    device: int = 0,
    ranks_per_node: int = 8,
) -> tuple[Collective, ...]:
    """Everything one rank of a pipeline device sends in one optimizer step.

    Tokens are routed evenly, each to ``experts_per_token`` experts.

    Args:
        recipe: its ``accumulation`` is the number of microbatches.
        batch: None where only data parallelism is asked for.
        device: of the pipeline.
        ranks_per_node: of a node.

    Raises:
        BadValue: the model or the sequence does not divide.

    >>> found = collectives(
    ...     Model.preset("gpt2-1.5b"), Parallel(pp=2), Recipe(accumulation=4), Batch(seq=1024)
    ... )
    >>> [(c.phase, c.kind, c.message_bytes) for c in found if c.axis == "pp"][0]
    (<Phase.FORWARD: 'forward'>, 'send', 13107200.0)
    """
    parallel.check(model, batch)
    job = _Job(model, parallel, recipe, batch or Batch(seq=1), device, ranks_per_node)
    if batch is None or model.layout:
        return tuple(_data(job))
    model.require_shapes()
    return (*_tensor(job), *_context(job), *_expert(job), *_pipeline(job), *_data(job))


@dataclass(frozen=True, slots=True)
class _Job:
    """One rank of a pipeline device, and what its collectives are worked out from."""

    model: Model
    parallel: Parallel
    recipe: Recipe
    batch: Batch
    device: int
    ranks_per_node: int

    @property
    def layers(self) -> tuple[int, int]:
        """Dense and expert layers of the device."""
        units = self.parallel.units(self.model, self.device)
        dense = sum(unit.count for unit in units if unit.name == "block")
        return dense, sum(unit.count for unit in units if unit.name == "expert block")

    @property
    def tokens(self) -> float:
        """Tokens of a microbatch that one rank of ``cp`` has."""
        return self.batch.tokens / self.parallel.cp

    @property
    def activation_bytes(self) -> float:
        """A: one microbatch's hidden states, in the compute format."""
        return self.tokens * self.model.hidden * self.recipe.compute_bytes

    @property
    def passes(self) -> float:
        """Microbatches that each of the device's layers works on in a step."""
        return self.recipe.accumulation / self.parallel.model_copies

    @property
    def again(self) -> float:
        """The share of the device's layers whose whole forward pass runs again."""
        layers = sum(self.layers)
        return self.batch.num_recomputed(layers) / layers if layers else 0

    def stride(self, axis: str) -> int:
        """Ranks from one member of an axis to the next: tp, cp, dp, pp from neighbours outward, as
        Megatron-LM numbers them."""
        degrees = {name: getattr(self.parallel, name) for name in ("tp", "cp", "dp", "pp")}
        return prod(list(degrees.values())[: list(degrees).index(axis)])

    def has(self, *names: str) -> bool:
        """Whether the device holds one of the model's ends."""
        return any(u.name in names for u in self.parallel.units(self.model, self.device))

    def send(
        self,
        axis: str,
        phase: Phase,
        kind: Kind,
        what: str,
        message: float,
        calls: float,
        formula: str,
        source: str,
    ) -> Collective:
        """A collective over the whole of an axis, ``message`` bytes a call."""
        size = getattr(self.parallel, axis)
        # Experts are spread over neighbours of dp × cp.
        along = "cp" if axis == "ep" and self.parallel.cp > 1 else "dp" if axis == "ep" else axis
        stride = self.stride(along)
        place = placed(size, stride, self.ranks_per_node)
        if kind == "send":
            place["nodes"] = min(place["nodes"], 2)
            apart = min(stride, self.ranks_per_node)
            place["rings_per_node"] = apart if place["nodes"] > 1 else 1
        if kind == "all-to-all":
            place["rings_per_node"] = self.ranks_per_node
        return Collective(
            phase=phase,
            kind=kind,
            what=what,
            message_bytes=message * calls,
            num_calls=max(1, round(calls)),
            axis=axis,
            **place,
            formula=f"{formula} × {calls:g}",
            source=source,
        )


def _each_phase(calls: float, again: float) -> tuple[tuple[Phase, float], ...]:
    """How often a layer's exchange happens in each phase, ``again`` of them for recomputation."""
    return ((Phase.FORWARD, calls), (Phase.RECOMPUTE, again), (Phase.BACKWARD, calls))


def _tensor(job: _Job) -> Iterator[Collective]:
    """Collectives of tensor parallelism: two regions a layer, attention and MLP.

    An expert layer's second region works on the k·A of the tokens that were routed to the rank, and
    on A where it has shared experts.
    """
    if job.parallel.tp == 1:
        return
    dense, sparse = job.layers
    own = job.activation_bytes
    routed = job.model.experts_per_token * own
    shared = sparse if job.model.shared_experts else 0
    if job.parallel.sp:
        yield from _regions(job, "layers", own, 2 * dense + sparse + shared, "A")
        yield from _regions(job, "experts", routed, sparse, "k·A")
    else:  # combined before they are summed, so that one sum serves routed and shared experts
        yield from _regions(job, "layers", own, 2 * (dense + sparse), "A")
    yield from _ends(job)
    if job.batch.partition_checkpoints and job.again:
        calls = job.again * sum(job.layers) * job.passes
        what = "checkpoints (Pa)"
        source = "ZeRO §8"
        yield job.send("tp", Phase.RECOMPUTE, "all-gather", what, own, calls, "A", source)
    if job.parallel.sp:
        yield _norms(job)


def _regions(job: _Job, what: str, message: float, count: int, text: str) -> Iterator[Collective]:
    """A region's collectives: a gather before its first matrix and a reduction after its second.

    Backward they are the other way round. Without sequence parallelism that is one all-reduce each
    way. With it, the gathered input is not kept, so the backward pass gathers it once more
    (Korthikanti et al. 2022, §4.2.2); the tokens routed to experts are kept.
    """
    calls = count * job.passes
    again = job.again * calls
    kinds: tuple[Kind, ...] = ("all-gather", "reduce-scatter")
    if not job.parallel.sp:
        kinds = ("all-reduce",)
    for phase, number in _each_phase(calls, again):
        for kind in kinds:
            if number:
                yield job.send("tp", phase, kind, what, message, number, text, TENSOR)
    if job.parallel.sp and what == "layers" and calls:
        inputs = "inputs of layers, again"
        yield job.send("tp", Phase.BACKWARD, "all-gather", inputs, message, calls, text, TENSOR)


def _ends(job: _Job) -> Iterator[Collective]:
    """Collectives of the embedding's sum, the head's input and the loss over a vocabulary in t
    parts.
    """
    own = job.activation_bytes
    sp = job.parallel.sp
    number = job.passes

    def send(phase: Phase, kind: Kind, what: str, message: float, text: str) -> Collective:
        return job.send("tp", phase, kind, what, message, number, text, TENSOR)

    if job.has("embedding", "root"):
        yield send(Phase.FORWARD, "reduce-scatter" if sp else "all-reduce", "embedding", own, "A")
        if sp:
            yield send(Phase.BACKWARD, "all-gather", "embedding", own, "A")
    if job.has("head", "root"):
        if sp:
            yield send(Phase.FORWARD, "all-gather", "head", own, "A")
            yield send(Phase.BACKWARD, "all-gather", "input of head, again", own, "A")
        yield send(Phase.BACKWARD, "reduce-scatter" if sp else "all-reduce", "head", own, "A")
        loss = 3 * 4 * job.tokens
        yield send(Phase.FORWARD, "all-reduce", "loss", loss, "3 fp32 numbers a token")


def _norms(job: _Job) -> Collective:
    """The sum, once a step, of gradients of what tp copies: each rank has seen only its tokens."""
    copied = sum(
        unit.count * tensor.numel
        for unit in job.parallel.units(job.model, job.device)
        for tensor in unit.tensors
        if "norm" in tensor.name or tensor.role == "router"
    )
    what = "gradients of norms"
    text = "G of norms and routers"
    size = job.recipe.gradient_bytes
    return job.send("tp", Phase.STEP, "all-reduce", what, size * copied, 1, text, FINALIZE)


def _context(job: _Job) -> Iterator[Collective]:
    """Gathers of keys and values of the whole sequence, K bytes on a rank of tp, in every layer."""
    if job.parallel.cp == 1:
        return
    model = job.model
    tp = job.parallel.tp
    if model.kv_rank:
        width = model.heads // tp * (model.query_size // model.heads + model.value_head_dim)
    else:
        width = 2 * model.head_dim * max(1, model.kv_heads // tp)
    message = float(job.batch.tokens * width * job.recipe.compute_bytes)
    calls = sum(job.layers) * job.passes
    # Selective recomputation runs attention's core again, and with it the exchange.
    again = calls if job.batch.recompute == "selective" else job.again * calls
    for phase, number in _each_phase(calls, again):
        if number:
            what = "keys and values"
            yield job.send("cp", phase, "all-gather", what, message, number, "K", CONTEXT)
    what = "their gradients"
    yield job.send("cp", Phase.BACKWARD, "reduce-scatter", what, message, calls, "K", CONTEXT)


def _expert(job: _Job) -> Iterator[Collective]:
    """Four all-to-alls: each token goes to k experts and comes back, forward and backward."""
    _, sparse = job.layers
    if job.parallel.ep == 1 or not sparse:
        return
    along = job.parallel.tp if job.parallel.sp else 1
    message = job.model.experts_per_token * job.activation_bytes / along
    text = "k·A/t" if along > 1 else "k·A"
    calls = sparse * job.passes
    again = job.again * calls
    for phase, number in _each_phase(calls, again):
        for what in ("dispatch", "combine"):
            if number:
                yield job.send("ep", phase, "all-to-all", what, message, number, text, EXPERT)


def _pipeline(job: _Job) -> Iterator[Collective]:
    """What crosses to the next stage and back, where that is another device."""
    parallel = job.parallel
    if parallel.pp == 1:
        return
    folded = len(parallel.stages(0)) > 1 and parallel.model_copies == 1
    last = parallel.pp * (len(parallel.stages(0)) if folded else 1) - 1
    mine = parallel.stages(job.device)
    near = mine if parallel.model_copies == 1 else ()
    split = parallel.tp if parallel.sp else 1
    message = job.activation_bytes / split
    text = "A/t" if split > 1 else "A"
    ahead = sum(stage < last and stage + 1 not in near for stage in mine)
    back = sum(stage > 0 and stage - 1 not in near for stage in mine)
    for phase, what, stages in (
        (Phase.FORWARD, "activations", ahead),
        (Phase.BACKWARD, "gradients of activations", back),
    ):
        if stages:
            calls = stages * job.passes
            yield job.send("pp", phase, "send", what, message, calls, text, PIPELINE)
    if job.model.tied and job.has("embedding", "head") and not job.has("root"):
        size = job.recipe.gradient_bytes * job.model.vocab * job.model.hidden / parallel.tp
        yield _pair(job, "gradients of the tied embedding", size, "G of the embedding", FINALIZE)


def _frozen_elements(row: Rows, recipe: Recipe) -> float:
    """Elements in the format of the base that hold frozen tensors, where they are gathered."""
    adapter = recipe.adapter
    number = row.number * row.times
    if not row.packed or adapter is None:
        return number * row.rows * row.rest
    if not adapter.is_cut:
        return 0
    stored = adapter.storage_bytes * adapter.packed_rows(row.rows * row.rest)
    return number * stored / recipe.parameter_bytes


def _pair(job: _Job, what: str, message: float, formula: str, source: str) -> Collective:
    """An all-reduce between two devices of the pipeline, once a step."""
    whole = job.send("pp", Phase.STEP, "all-reduce", what, message, 1, formula, source)
    apart = job.ranks_per_node if whole.nodes > 1 else 1
    return replace(whole, **placed(2, apart, job.ranks_per_node))


def _data(job: _Job) -> Iterator[Collective]:
    """ZeRO's collectives over dp × cp, of experts over what ep leaves of it."""
    parallel = job.parallel
    recipe = job.recipe
    usual, experts = parallel.elements(job.model, job.device)
    trained = trained_of(job.model, recipe.adapter, recipe.trained)
    frozen: float = 0
    if recipe.adapter is not None or recipe.trained:  # what is frozen has no gradients to send
        rows = rows_of(job.model, parallel, job.device, recipe.adapter, trained)
        frozen = sum(_frozen_elements(row, recipe) for row in rows if not row.trained)
        usual = sum(row.number * row.times * row.rows * row.rest for row in rows if row.trained)
        experts = 0
        own = recipe.parameters if recipe.adapter is None else recipe.gradients
        recipe = replace(recipe, adapter=None, trained=(), parameters=own)
    if parallel.ep == 1:
        usual = usual + experts
        experts = 0
    count = sum(unit.count for unit in parallel.units(job.model, job.device))
    stride = job.stride("cp" if parallel.cp > 1 else "dp")
    at = {"ranks_per_node": job.ranks_per_node, "num_units": count}
    yield from step_collectives(parallel, recipe, usual, stride=stride, **at)
    if frozen and parallel.zero == 3:
        base = replace(job.recipe, adapter=None, trained=())
        for item in step_collectives(parallel, base, frozen, stride=stride, **at):
            if item.kind == "all-gather":
                yield replace(item, what="frozen parameters")
    if experts:
        at |= {"stride": stride * parallel.ep, "spread": parallel.ep}
        for item in step_collectives(parallel, recipe, experts, **at):
            yield replace(item, what=f"{item.what} of experts")
    if parallel.model_copies > 1:
        size = recipe.gradient_bytes * (usual + experts)
        source = "Li and Hoefler 2021 (Chimera), §3.2"
        yield _pair(job, "gradients of a stage's two copies", size, "G", source)


@checked
def step_collectives(
    parallel: Parallel,
    recipe: Recipe,
    elements: NonNegative,
    *,
    ranks_per_node: Count = 8,
    num_units: Count = 1,
    spread: Count = 1,
    stride: Count = 1,
) -> tuple[Collective, ...]:
    """List the data-parallel collectives of one training step.

    Stages 0–2 move two model sizes, stage 3 three. With several micro-batches a step, stages 2 and
    3 reduce-scatter each one's gradients and stage 3 gathers the parameters for each; stages 0 and
    1 reduce the sum once, and so do the groups of MiCS among each other.

    Args:
        parallel, recipe: the ranks that share the work, and their number formats.
        elements: what a rank holds before ZeRO.
        ranks_per_node: how many ranks a node has.
        num_units: calls of each pass, one a layer.
        spread: over how many of the ranks the elements (experts) are spread before.
        stride: the distance between neighbours of a group, the ranks that other kinds of
            parallelism put between them.

    Raises:
        BadValue: the ranks that ``spread`` leaves do not divide by their groups.

    Source: ZeRO §7; ZeRO++ §3; MiCS §3.

    >>> found = step_collectives(Parallel(dp=4, zero=3), Recipe(), elements=1)
    >>> [item.sent_bytes for item in found]
    [1.5, 1.5, 1.5]
    """
    dp = parallel.sharing // spread
    group = max(1, parallel.shard_degree // spread)
    if dp % group:
        raise BadValue(f"dp ({dp}) must divide by partition_group ({group})")
    weight_scale, gradient_scale = recipe.scales
    whole = recipe.parameter_bytes * elements
    weights = whole * weight_scale
    gradients = recipe.gradient_bytes * elements * gradient_scale

    call = partial(_call, num_units, (stride, ranks_per_node))
    if parallel.zero == 0:
        return (call(Phase.BACKWARD, "all-reduce", "gradients", gradients, dp, "G, once a step"),)
    often = recipe.accumulation if parallel.zero > 1 else 1
    scatter = call(Phase.BACKWARD, "reduce-scatter", "gradients", gradients, group, "G", often)
    if parallel.zero < 3:
        return scatter, call(Phase.STEP, "all-gather", "parameters", weights, dp, "P, updated")
    forward = call(Phase.FORWARD, "all-gather", "parameters", weights, group, "P", often)
    backward = replace(forward, phase=Phase.BACKWARD)
    if second := parallel.secondary_group:  # kept and gathered in full precision (hpZ)
        text = "P, from the second copy"
        near = min(max(1, second // spread), group)
        backward = call(Phase.BACKWARD, "all-gather", "parameters", whole, near, text, often)
    if dp == group:
        return forward, backward, scatter
    between = _sum_of_groups(gradients / group, dp // group, group * stride, ranks_per_node)
    return forward, backward, scatter, between


def _sum_of_groups(message: float, size: int, stride: int, ranks_per_node: int) -> Collective:
    """Sum gradient shards once a step between the groups of MiCS, which lie ``stride`` apart."""
    return Collective(
        phase=Phase.STEP,
        kind="all-reduce",
        what="gradient shards",
        message_bytes=message,
        formula="G/group, once a step",
        source="MiCS §3",
        **placed(size, stride, ranks_per_node),
    )


def _call(
    units: int,
    place: tuple[int, int],
    phase: Phase,
    kind: Kind,
    what: str,
    message: float,
    size: int,
    formula: str,
    often: int = 1,
) -> Collective:
    """A collective among ``size`` neighbours, one call a unit and ``often`` times as many bytes."""
    return Collective(
        phase=phase,
        kind=kind,
        what=what,
        message_bytes=often * message,
        num_calls=units * often,
        formula=f"{often} × {formula}" if often > 1 else formula,
        source="ZeRO §7; ZeRO++ §3; MiCS §3",
        **placed(size, *place),
    )
