"""Device bytes of one rank at each moment of a training step: what a detailed plan answers from.

States by ZeRO's stage (:mod:`labkit.memory.jobs.states`) and what a step allocates
(:mod:`labkit.memory.tape.moments`, scaled to the recipe) are added up moment by moment. Sequence,
micro-batch, data-parallel ranks and layers may be arrays that broadcast; the arithmetic stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from labkit.memory.jobs.recipe import DTYPE_BYTES
from labkit.memory.jobs.states import Holding, step_temporaries
from labkit.memory.plans import fsdp, workspaces
from labkit.memory.plans.job import Job
from labkit.memory.tape import moments, saved
from labkit.memory.tape.mode import Mode
from labkit.memory.tape.sizes import Shape, is_array, shape_of
from labkit.memory.tape.step import ON_TAPE, Moment, Part

SEQUENCES = "gathered sequence"
WORKSPACES = "workspaces"
# The rows of a table of moments, in this order.
COMPONENTS = (
    "parameters",
    "second copy of the parameters",
    "cast parameters",
    fsdp.GATHERED,
    fsdp.GATHER,
    "gradients",
    fsdp.WHOLE,
    fsdp.SENT,
    "optimizer",
    "activations",
    "cached weights",
    "temporaries",
    SEQUENCES,
    "buffers and inputs",
    WORKSPACES,
)
Row = dict[str, Any]


def rows_by_moment(job: Job) -> dict[Moment, Row]:
    """Bytes of each component at each moment of the job's step."""
    there, gradients = always(job.held)
    shape = job.own_shape
    given = job.arguments
    sequences = job.parallel.sp and job.parallel.tp > 1 and job.parallel.sp_gather == "buffer"
    if sequences and (job.layers or job.has_head):
        tokens = given["micro_batch"] * given["seq"]
        there[SEQUENCES] = job.mode.compute_bytes * tokens * job.model.hidden
    if size := workspaces_of(job):
        there[WORKSPACES] = size
    ran = _once(moments.moments, shape, job.mode, given)
    passing = fsdp.Passing(job)
    # What the layers keep for one microbatch that waits for its backward pass.
    gathers = passing.gathers and passing.shared
    waits = (gathers or job.in_flight > 1) and not job.mode.offload
    kept = _once(_stack_bytes, shape, job.mode, given) if waits else 0
    others = (job.in_flight - 1) * kept if job.in_flight > 1 else 0
    there |= passing.buckets(gradients)
    by_moment: dict[Moment, Row] = {Moment.INIT: dict(there)}
    if job.gradients_once:
        by_moment[Moment.INIT]["gradients"] = gradients
    for moment in ON_TAPE:
        apart = moment is not Moment.HEAD_BACKWARD or passing.gathers
        if moment not in ran or not _happens(job, moment) or not apart:
            continue
        part = ran[moment]
        whole = ran[Moment.STEP]["gradients"]
        share = part["gradients"] / whole if not job.recipe.in_backward else 0
        row = there | {
            "activations": part["activations"] + others,
            "cached weights": part["cached weights"],
            "temporaries": part["temporaries"],
            "buffers and inputs": part["buffers and inputs"],
        }
        by_moment[moment] = row | passing.gradients(moment, share, gradients)
        by_moment[moment] |= passing.weights(moment) | passing.sent(moment)
        if job.gradients_stay:
            by_moment[moment]["gradients"] = gradients
        if job.recipe.in_backward:
            by_moment[moment]["gradients"] = part["gradients"]
    if gathers:
        by_moment |= _between(passing, by_moment, ran, kept, gradients)
    by_moment[Moment.STEP] = there | {
        "buffers and inputs": ran[Moment.STEP]["buffers and inputs"],
        "gradients": 0 if job.recipe.in_backward else gradients,
        "temporaries": step_temporaries_of(job),
    }
    if job.mode.logits_held != "none" and job.has_head:
        by_moment[Moment.STEP]["activations"] = ran[Moment.STEP]["activations"]
    return by_moment


def _between(
    passing: fsdp.Passing,
    by_moment: dict[Moment, Row],
    ran: dict[Moment, Row],
    kept: Any,
    total: Any,
) -> dict[Moment, Row]:
    """Moments that one rank does not have: layers and gradients on their way."""
    more: dict[Moment, Row] = {}
    between = [
        row
        for moment in (Moment.BACKWARD_FIRST, Moment.BACKWARD_LAST)
        if moment in by_moment
        and (moment is Moment.BACKWARD_FIRST or passing.starts_late or passing.varied)
        for row in _inside(passing, moment, by_moment, ran, kept, total)
    ]
    if between:
        _, more[Moment.PREFETCH] = fullest_moment((Moment.PREFETCH, row) for row in between)
    if passing.frozen:
        _add_starts(passing, by_moment, kept)
    ends = (Moment.EMBEDDING_BACKWARD, Moment.BACKWARD_FIRST, Moment.LOSS_BACKWARD)
    last = next((moment for moment in ends if moment in by_moment), None)
    if last is Moment.EMBEDDING_BACKWARD or (last is not None and passing.deepest >= 0):
        gone = {"activations": 0, "temporaries": 0, "cached weights": 0}
        gone |= {fsdp.GATHERED: 0, fsdp.GATHER: 0}
        more[Moment.LAST_REDUCE] = passing.last_sent(by_moment[last] | gone, total)
    return more


def workspaces_of(job: Job) -> int:
    """Bytes that cuBLAS keeps on the rank: the layers' own library's, and those of torch's threads.

    Without such a library torch multiplies for all; with it, for the head, stored scores, routers.
    """
    batch = job.batch
    own = batch.layer_workspace_bytes if job.layers else 0
    others = job.has_head or batch.attention == "eager" or job.model.num_experts
    if batch.layer_workspace_bytes and not others:
        return own
    return own + workspaces.THREADS * batch.workspace_bytes


def _inside(
    passing: fsdp.Passing,
    moment: Moment,
    by_moment: dict[Moment, Row],
    ran: dict[Moment, Row],
    kept: Any,
    total: Any,
) -> list[Row]:
    """Rows between the ends of the stack: what the layer of ``moment`` needs, elsewhere in it."""
    block = passing.updated.size("block").made / passing.updated.made
    made = ran[moment]["gradients"] / ran[Moment.STEP]["gradients"]
    row = by_moment[moment]
    each = _kept_by_one(passing, kept)
    if moment is Moment.BACKWARD_LAST:
        above = passing.backwards - 1
        row = row | {"activations": row["activations"] - above * each}
        made = made + above * block
    parts = row | {"share": made, "total": total}
    return passing.prefetched(parts, row, layer_bytes=each, share=block)


def _kept_by_one(passing: fsdp.Passing, kept: Any) -> Any:
    """Bytes that a layer after the first keeps: the first, whose input has no gradient, keeps less.

    Args:
        kept: bytes that all layers keep.
    """
    if not passing.starts_late or passing.varied:
        return kept / passing.backwards
    job = passing.job
    longer = shape_of(job.own_shape, num_layers=job.own_shape.num_layers + 1)
    return _once(_stack_bytes, longer, job.mode, job.arguments) - kept


def _add_starts(passing: fsdp.Passing, by_moment: dict[Moment, Row], kept: Any) -> None:
    """Where a unit's start is fuller than its work, take that: one more buffer, and no work yet."""
    before_last = kept - _kept_by_one(passing, kept) if np.all(passing.backwards > 0) else 0
    there = {Moment.EMBEDDING: 0, Moment.FORWARD_LAST: before_last, Moment.LOSS_FORWARD: kept}
    for moment, row in passing.starts(by_moment).items():
        given = row | {"activations": row["activations"] + there[moment]}
        _, by_moment[moment] = fullest_moment([(moment, by_moment[moment]), (moment, given)])


def always(held: Holding) -> tuple[Row, Any]:
    """Bytes that are on the device all the time, and those of the gradients once all are there."""
    row: Row = {}
    gradients: Any = 0
    for state in held.states():
        if state.place != "device":
            continue
        if state.component == "gradients":
            gradients = gradients + state.num_bytes
            continue
        row[state.row] = row.get(state.row, 0) + state.num_bytes
    return row, gradients


def _stack_bytes(shape: Shape, mode: Mode, **arguments: Any) -> Any:
    """Bytes that all layers keep for one microbatch."""
    return saved.total_bytes(saved.stack_terms(shape, mode, **arguments))


def _once(function: Callable[..., Any], shape: Any, mode: Mode, arguments: Row) -> Any:
    """``function``, computed once for the same numbers: a stage or dp changes nothing in it."""
    given = (*vars(shape).values(), *arguments.values())
    if any(map(is_array, given)):
        return function(shape, mode, **arguments)
    return _remembered(function, tuple(vars(shape).items()), mode, tuple(arguments.items()))


@lru_cache(maxsize=4096)
def _remembered(function: Callable[..., Any], sizes: Any, mode: Mode, arguments: Any) -> Any:
    """:func:`_once`'s memory; arguments must be hashable."""
    return function(SimpleNamespace(**dict(sizes)), mode, **dict(arguments))


def _happens(job: Job, moment: Moment) -> bool:
    """Whether the device has the moment: inside a pipeline there is no embedding, or no head."""
    if moment.part is Part.EMBEDDING:
        return job.has_embedding
    if moment.part is Part.HEAD:
        return job.has_head
    return job.layers > 0


def step_temporaries_of(job: Job) -> Any:
    """Bytes that the optimizer allocates: Adam's roots, and gradients in the master's format."""
    parts = [_temporaries(job, part) for part in job.held.updated]
    if job.recipe.step == "foreach":
        return sum(parts)
    return max(parts, default=0)  # one tensor after the other


def _temporaries(job: Job, held: Holding) -> Any:
    """:func:`_step_temporaries` of what one recipe updates."""
    recipe = held.recipe
    if recipe.paged and recipe.optimizer == "adam":
        return 0  # one kernel of bitsandbytes a tensor
    away = recipe.offload_optimizer != "device" and recipe.offload_fraction == 1
    if away or recipe.in_backward:
        return 0
    if recipe.step == "fused" and recipe.optimizer not in {"adafactor", "muon"}:
        return 0  # those two have no fused kernel
    degree = held.degree_of("optimizer")
    updated = held.elements(degree) if recipe.step == "foreach" else held.largest(degree)
    size: Any = 0
    if recipe.optimizer != "adam":
        size = step_temporaries(held, degree)
    else:
        width = DTYPE_BYTES[recipe.states]
        size = width * updated * (1 if recipe.step == "foreach" else 3)
        if recipe.step == "for-loop" and np.ndim(degree) == 0 and degree == 1:
            numbers = moments.Numbers(**job.arguments)
            bytes_there = moments.for_loop_temporaries(job.own_shape, job.mode, numbers)
            size = bytes_there * width // job.mode.stream_bytes
    narrow = recipe.master_bytes and recipe.second_gradients is None
    if narrow and DTYPE_BYTES[recipe.gradients] < recipe.master_bytes:
        size = size + recipe.master_bytes * updated
    if recipe.offload_optimizer != "device" and recipe.step != "for-loop":
        size = (1 - recipe.offload_fraction) * size
    return size


def row_bytes(row: Row) -> Any:
    """Bytes of all components together."""
    return sum(row.values())


def fullest_moment(named: Iterable[tuple[Moment, Row]]) -> tuple[Any, Row]:
    """The moment and components of the largest row; of equals the first. For arrays, of each."""
    names, parts = zip(*named, strict=True)
    totals = [row_bytes(row) for row in parts]
    if not any(np.ndim(num_bytes) for num_bytes in totals):
        best = int(np.argmax(totals))
        return names[best], parts[best]
    size = np.broadcast_shapes(*map(np.shape, totals))
    top = np.array(np.broadcast_to(totals[0], size), dtype=float)
    which = np.zeros(size, np.int16)
    for number, num_bytes in enumerate(totals[1:], 1):
        more = num_bytes > top
        which[more] = number
        np.maximum(top, num_bytes, out=top)
    return np.array(names, dtype=object)[which], _chosen(parts, which)


def _chosen(parts: Sequence[Row], which: Any) -> Row:
    """The components of each configuration's own fullest row."""
    used = np.flatnonzero(np.bincount(which.ravel(), minlength=len(parts))).tolist()
    row: Row = {}
    for component in [name for name in COMPONENTS if any(name in part for part in parts)]:
        values = [parts[number].get(component, 0) for number in used]
        if all(value is values[0] for value in values):
            row[component] = values[0]
            continue
        out = np.empty(which.shape)
        for number, value in zip(used, values, strict=True):
            np.copyto(out, value, where=which == number)
        row[component] = out
    return row
