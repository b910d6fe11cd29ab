"""The account of a traced network: its recorded step, with states by arithmetic tensor by tensor.

What the module allocates forward and backward is recorded once
(:mod:`labkit.memory.traced.recording`). Parameters, gradients in the recipe's formats, optimizer
states, their shards and the optimizer's step follow from the network's tensors, as they do for
models of known sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import BadValue
from labkit.memory.jobs import traffic
from labkit.memory.jobs.adapter import Adapter
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import DTYPE_BYTES, Recipe
from labkit.memory.jobs.states import SHARDINGS
from labkit.memory.movement.volumes import step_collectives
from labkit.memory.plans import estimate as estimates
from labkit.memory.plans import fsdp, workspaces
from labkit.memory.plans.detail import Estimate
from labkit.memory.plans.estimate import Row
from labkit.memory.plans.job import Job
from labkit.memory.tape.saved import Term
from labkit.memory.tape.step import Moment, Phase
from labkit.memory.traced.network import Network
from labkit.memory.traced.ranks import Spread
from labkit.memory.traced.recording import ACTIVATIONS, GRADIENTS, TEMPORARIES, Recording
from labkit.memory.traced.step import traced
from labkit.quantities import format_bytes

if TYPE_CHECKING:
    import pandas as pd

# What may be said of a traced network; every other field must have its default.
KNOWN: dict[type, tuple[str, ...]] = {
    Batch: (
        *("seq", "target_seq", "micro_batch", "recompute", "attention", "gpu", "logits_held"),
        "workspace_bytes",
        "input_gradients",  # those of a frozen embedding, and here nothing is frozen by the plan
    ),
    Parallel: (
        *("dp", "zero", "shard_rule", "gradient_buckets", "replicate", "partition_group"),
        *("wrap", "reshard_after_forward", "keep_gathered"),
    ),
    Recipe: (
        *("name", "source", "parameters", "gradients", "second_gradients", "master", "states"),
        *("optimizer", "momentum", "amsgrad", "block", "compute", "autocast", "gather", "reduce"),
        *("reduce_bucket_size", "overlap_comm", "step", "accumulation", "gradient_buffer"),
        *("offload_optimizer", "offload_fraction", "paged", "wide_embeddings"),
    ),
}
_FORMATS = ("fp32", "bf16", "fp16")
_UNITS = {
    2: "stage 2 keeps this rank's rows of a gradient once all of its unit are there (in a bucket:"
    " each at once); units are the children of the module's outermost lists, and the rest",
    3: "stage 3 runs under torch's FSDP2 on ranks that are not there; units are the children of the"
    " module's outermost lists, and the rest as the root",
}
SOURCE = "recorded on tensors without numbers (torch's FakeTensorMode)"
_MOMENTS = {Phase.FORWARD: Moment.FORWARD, Phase.BACKWARD: Moment.BACKWARD}
MOST_NAMED = 3
"""Tensors that the sentence on the peak names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced(Estimate):
    """The account of a plan whose network was traced.

    Attributes:
        recording: what forward and backward pass allocated.
        time: of the recording, at the peak; -1 where the peak is outside of both passes.
    """

    recording: Recording
    time: int

    def largest(self, number: int = 10) -> pd.DataFrame:
        """What the passes hold most of at the peak, a row for a tensor or for those of like layers.

        Columns are module (``*`` for layers), operator, shape, dtype, category, number and
        num_bytes, of all of them.

        Args:
            number: how many rows at most.
        """
        return self.recording.largest(self.time, number)

    def ranks(self) -> pd.DataFrame:
        """The one rank that a traced network has: rank, peak_moment and peak_bytes."""
        import pandas as pd

        row = {"rank": 0, "peak_moment": self.peak_moment, "peak_bytes": self.peak_bytes}
        return pd.DataFrame([row])

    def timeline(self) -> pd.DataFrame:
        """Bytes at every operator that allocates: see :meth:`Recording.timeline`."""
        return self.recording.timeline()

    def _activations(self) -> Iterator[Term]:
        """What the forward pass keeps, by module; layers of a stack are one."""
        for name, size in self.recording.kept().items():
            yield Term(f"activation.{name}", float(size), "what its operators keep", SOURCE)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the account takes for granted, and where the peak is."""
        job = self.job
        notes = [
            f"{job.model.source}: every operator of one forward and backward pass, on tensors"
            " without numbers; torch's MemTracker sees the same bytes",
            *self.recording.notes,
            "dropout is the module's own, in training mode: a mask of one byte an element, nothing"
            " in attention's kernel",
            "states and the optimizer's step are computed from the module's tensors",
        ]
        if self.recording.unused:
            names = ", ".join(self.recording.unused[:MOST_NAMED])
            more = len(self.recording.unused) - MOST_NAMED
            notes.append(
                f"no gradient reaches {names}{f' and {more} more' if more > 0 else ''}: they have"
                " no optimizer states"
            )
        if spread_of(job.parallel, job.recipe) is not None:
            notes.append(_UNITS[job.parallel.zero])
        if job.parallel.zero:
            rule = SHARDINGS["even" if job.ideal else job.parallel.shard_rule]
            notes.append(f"what is sharded takes {rule}")
        lives = "there throughout a step" if job.gradients_stay else "made backward, then dropped"
        if job.gradients_once:
            lives = "in a buffer that is allocated once"
        notes.append(f"gradients are {lives}")
        notes.append(self._where())
        left = "" if job.batch.workspace_bytes else " library workspaces,"
        return (*notes, f"left out: CUDA's context,{left} fragmentation")

    def _where(self) -> str:
        """A sentence on where the peak is, and what is the largest there."""
        if self.time < 0:
            return f"the peak is outside of both passes: {self.peak_moment}"
        named = [
            f"{format_bytes(s.num_bytes)} of {s.operator} in {s.module or 'the loss'}"
            for s in self.recording.there(self.time)[:MOST_NAMED]
        ]
        at = self.recording.modules[self.time] or "the loss"
        return f"the peak is at {at} ({self.peak_moment}); the largest there: {', '.join(named)}"

    def collectives(self, *, ranks_per_node: int) -> tuple[traffic.Collective, ...]:
        """What data parallelism sends in a step, all parameters in one call."""
        job = self.job
        at = {"ranks_per_node": ranks_per_node, "num_units": 1}
        return step_collectives(job.parallel, job.recipe, job.held.whole, **at)

    @property
    def letters(self) -> dict[str, int]:
        """Values of the letters in formulas."""
        batch = self.job.batch
        return {"b": batch.micro_batch, "s": batch.seq, "Ψ": self.job.held.whole}


@lru_cache(maxsize=512)
def account(
    network: Network, parallel: Parallel, recipe: Recipe, batch: Batch, ideal: bool = False
) -> Traced:
    """Trace a network's step, or take it from memory, and add what the plan says.

    Raises:
        UsageError: an option needs known sizes, or the module cannot be run; the message says
            which.
    """
    _check(network, parallel, recipe, batch)
    spread = spread_of(parallel, recipe)
    stored = recipe.autocast or (spread is not None and parallel.zero == 3)
    wide = recipe.parameters if stored else recipe.compute_format
    recording = traced(
        network.subject,
        batch,
        bits=32 if wide == "fp32" else 16,
        autocast=recipe.autocast,
        spread=spread,
    )
    job = Job(
        model=_without(network, recording.unused),
        parallel=parallel,
        recipe=recipe,
        batch=batch,
        ideal=ideal,
    )
    by_moment, times = _rows(job, recording)
    moment, peak = estimates.fullest_moment(by_moment.items())
    return Traced(
        job=job,
        moments=by_moment,
        peak_moment=moment,
        peak=peak,
        recording=recording,
        time=times.get(moment, -1),
    )


def spread_of(parallel: Parallel, recipe: Recipe) -> Spread | None:
    """How a network's module is spread; None where it runs as it does on one rank."""
    if parallel.zero < 2 or parallel.shard_degree == 1:
        return None
    if parallel.zero == 2:
        own = Parallel(dp=parallel.dp, zero=2)
        return Spread(parallel=own, at_once=bool(recipe.reduce_bucket_size))
    groups = ("dp", "zero", "replicate", "partition_group")
    names = (*groups, "wrap", "reshard_after_forward", "keep_gathered")
    casts = not recipe.autocast and recipe.compute_format != recipe.parameters
    return Spread(
        parallel=Parallel(**{name: getattr(parallel, name) for name in names}),
        compute=recipe.compute_format if casts else None,
        reduce=recipe.reduce,
    )


def _check_spread(parallel: Parallel, recipe: Recipe) -> None:
    """Refuse formats and buckets that FSDP2 does not have, at stage 3."""
    if parallel.zero < 3:
        return
    cast = None if recipe.autocast else recipe.compute_format
    if recipe.gather not in (None, cast, recipe.parameters):
        raise BadValue(
            "gather must be left out where a network is traced at zero = 3: FSDP2 gathers what it"
            f" computes with, got {recipe.gather}"
        )
    if recipe.reduce not in (None, *_FORMATS):
        raise BadValue(
            f"reduce must be one of {', '.join(_FORMATS)} where a network is traced at zero = 3,"
            f" got {recipe.reduce}"
        )
    if recipe.reduce_bucket_size:
        raise BadValue(
            "reduce_bucket_size must be left out where a network is traced at zero = 3: FSDP2"
            f" reduces unit by unit, got {recipe.reduce_bucket_size}"
        )


def _check(network: Network, parallel: Parallel, recipe: Recipe, batch: Batch) -> None:
    """Refuse what a trace cannot follow.

    Raises:
        BadValue: the message names the field, and what it must be.
    """
    for part in (parallel, recipe, batch):
        known = KNOWN[type(part)]
        for item in fields(part):
            given = getattr(part, item.name)
            if item.name not in known and given != item.default:
                if isinstance(given, Adapter):
                    given = given.kind
                raise BadValue(
                    f"{item.name} must be {item.default} where a network is traced, got {given}:"
                    f" its module runs as it is, on one rank; a Model of known sizes has it"
                )
    parallel.check(network, batch)
    recipe.check_offload(parallel.zero)
    if spread_of(parallel, recipe) is not None:
        _check_spread(parallel, recipe)
    for name in ("parameters", "compute_format"):
        if (given := getattr(recipe, name)) not in _FORMATS:
            raise BadValue(
                f"{name} must be one of {', '.join(_FORMATS)} where a network is traced,"
                f" got {given}"
            )
    if recipe.in_backward:
        raise BadValue(
            f"step must be foreach, fused or for-loop where a network is traced, got {recipe.step}"
        )
    if batch.recompute not in ("none", "full"):
        raise BadValue(
            f"recompute must be none or full where a network is traced, got {batch.recompute}: its"
            " own checkpoints are each layer"
        )
    if batch.logits_held == "fp32":
        raise BadValue("logits_held must be none or compute where a network is traced, got fp32")
    network.check_batch(batch)


def _without(network: Network, unused: tuple[str, ...]) -> Network:
    """The network with tensors that get no gradient as untrained."""
    if not unused:
        return network
    names = set(unused)
    layout = tuple(replace(t, trained=t.trained and t.name not in names) for t in network.layout)
    return replace(network, layout=layout)


def _rows(job: Job, recording: Recording) -> tuple[dict[Moment, Row], dict[Moment, int]]:
    """Bytes of each component at each moment, and the recording's time of those inside it."""
    there, gradients = estimates.always(job.held)
    there["buffers and inputs"] = recording.buffers_bytes + recording.inputs_bytes
    if job.batch.workspace_bytes:
        there[estimates.WORKSPACES] = workspaces.THREADS * job.batch.workspace_bytes
    if not job.held.trained.tensors:
        gradients = 0
    if job.parallel.gradient_buckets == "copies" and job.parallel.dp > 1:
        there[fsdp.SENT] = gradients
    by_moment: dict[Moment, Row] = {Moment.INIT: dict(there)}
    if job.gradients_once:
        by_moment[Moment.INIT]["gradients"] = gradients
    times = {}
    gathers = job.parallel.zero == 3 and spread_of(job.parallel, job.recipe) is not None
    for phase, moment in _MOMENTS.items():
        passing = dict(there)
        if job.casts and not gathers:
            passing["cast parameters"] = job.recipe.compute_bytes * job.held.whole
        if phase is Phase.BACKWARD:
            passing |= _buckets(job)
        row, times[moment] = _fullest(job, recording, phase, gradients)
        for name, size in row.items():
            passing[name] = passing.get(name, 0) + size
        by_moment[moment] = passing
    step = there | {"gradients": gradients, TEMPORARIES: _step_temporaries(job)}
    if job.batch.logits_held == "compute":
        step[ACTIVATIONS] = int(recording.bytes_by_category[ACTIVATIONS][-1])
    by_moment[Moment.STEP] = step
    return by_moment, times


def _fullest(job: Job, recording: Recording, phase: Phase, gradients: Any) -> tuple[Row, int]:
    """Bytes by category at the fullest time of a phase, and that time."""
    span = recording.span(phase)
    series: dict[str, Any] = {
        name: sizes[span] for name, sizes in recording.bytes_by_category.items()
    }
    made = series[GRADIENTS]
    if job.gradients_stay:
        # A new gradient is there until it is added to the one that stays.
        series[TEMPORARIES] = series[TEMPORARIES] + recording.arriving[span]
        series[GRADIENTS] = np.full(len(made), gradients)
    elif recording.gradients_bytes not in (0, gradients):  # in another format
        series[GRADIENTS] = made * (gradients / recording.gradients_bytes)
    place = int(np.argmax(sum(series.values())))
    return {name: sizes[place].item() for name, sizes in series.items()}, span.start + place


def _buckets(job: Job) -> Row:
    """Buffers through which gradients are reduced."""
    recipe = job.recipe
    if not (job.parallel.zero in {1, 2} and job.parallel.dp > 1 and recipe.reduce_bucket_size):
        return {}
    elements = recipe.reduce_bucket_size * (2 if recipe.overlap_comm else 1)
    return {fsdp.SENT: DTYPE_BYTES[recipe.reduce or recipe.gradients] * elements}


def _step_temporaries(job: Job) -> Any:
    """Bytes that the optimizer allocates and frees again.

    One by one, two temporaries of a tensor are there beside the previous tensor's.
    """
    recipe = job.recipe
    one_by_one = recipe.step == "for-loop" and recipe.optimizer == "adam"
    zero = job.parallel.zero
    degree = job.held.degree_of("optimizer")
    by_tensor = degree == 1 or (zero > 1 and job.held.rule == "dim0")
    if not (one_by_one and by_tensor) or recipe.offload_optimizer != "device":
        return estimates.step_temporaries_of(job)
    trained = [tensor for tensor in job.model.layout if tensor.trained]
    rows = [tensor.shape[0] if tensor.shape else 1 for tensor in trained]
    parts = zip(rows, trained, strict=True)
    sizes = [0, *(-(-first // degree) * (tensor.numel // first) for first, tensor in parts)]
    width = DTYPE_BYTES[recipe.states]
    size = width * max((2 * late + early for early, late in pairwise(sizes)), default=0)
    narrow = recipe.master_bytes and recipe.second_gradients is None
    if narrow and DTYPE_BYTES[recipe.gradients] < recipe.master_bytes:
        size += recipe.master_bytes * max(sizes)
    return size
