"""Device bytes of one rank at each moment of a training step: what a detailed plan answers from.

States by ZeRO's stage (:mod:`labkit.memory.jobs.states`) and what a step allocates
(:mod:`labkit.memory.tape.moments`, scaled to the recipe) are added up moment by moment. Sequence,
micro-batch, data-parallel ranks and layers may be arrays that broadcast; the arithmetic stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from labkit.errors import BadValue, UsageError
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import DTYPE_BYTES, Recipe
from labkit.memory.jobs.states import Holding, rows_of, step_temporaries
from labkit.memory.plans import fsdp
from labkit.memory.tape import forms, moments, saved
from labkit.memory.tape.mode import Mode, SequenceGather
from labkit.memory.tape.sizes import Shape, is_array, shape_of
from labkit.models import Model

INIT = "after init"
PREFETCH = fsdp.PREFETCH
REDUCE = fsdp.REDUCE
STEP = moments.STEP
MOMENTS = (INIT, *moments.MOMENTS[:-1], PREFETCH, REDUCE, STEP)
SEQUENCES = "gathered sequence"
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
)
Row = dict[str, Any]


@lru_cache(maxsize=256)
def mode_of(model: Model, recipe: Recipe, batch: Batch, gather: SequenceGather = "again") -> Mode:
    """Which operators a job runs."""
    narrow = "fp32" if recipe.compute_bytes == 4 else "bf16"
    again = batch.recompute
    if isinstance(again, int):
        again = "full" if again == 1 else "every"  # type: ignore[assignment]
    return Mode(
        dtype="autocast" if recipe.autocast else narrow,  # type: ignore[arg-type]
        attention="eager" if batch.attention == "eager" else "sdpa",
        recompute=again,  # type: ignore[arg-type]
        norm_fused=batch.norm_fused and "norm" not in model.operators,
        gelu_fused="gelu" not in model.operators,
        repeat_kv="repeat-kv" in model.operators,
        mask_added="mask" in model.operators,
        softmax_fp32="softmax-fp32" in model.operators,
        loss=batch.loss,
        logits_held=batch.logits_held,
        sequence_gather=gather,
        gpu=batch.gpu,
        dropout_mask_bytes=batch.dropout_mask_bytes,
    )


@lru_cache(maxsize=256)
def rank_shape(model: Model, tp: int) -> Shape:
    """The sizes of ``model`` on a rank of ``tp``, each norm as its kind of block has it.

    Raises:
        UsageError: the model's layers are not known, or not by the tape.
    """
    norm = "rmsnorm" if model.mlp == "swiglu" else "layernorm"
    # Fewer key heads than ranks are copied, so that each rank has one.
    kv_heads = max(model.kv_heads, tp)
    return shape_of(model.require_shapes(), layout=(), norm=norm, kv_heads=kv_heads)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The step of one rank of pipeline device ``device``.

    ``numbers`` are ``seq``, ``micro_batch``, ``dp`` and ``layers`` of a sweep, maybe arrays, in
    place of those that the batch, the parallelism and the model have.
    """

    model: Model
    parallel: Parallel
    recipe: Recipe
    batch: Batch
    device: int = 0
    ideal: bool = False
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what cannot be, or is not known.

        Raises:
            BadValue: a rule of :meth:`Parallel.check` or :meth:`Recipe.check_offload` is broken.
            UsageError: the account has no term for what is asked.
        """
        self.parallel.check(self.model, self.batch)
        self.recipe.check_offload(self.parallel.zero)
        self.model.require_shapes()
        if self.batch.partition_checkpoints:
            raise UsageError(
                "partition_checkpoints must be False in the account tensor by tensor;"
                " formula='zero-paper' has it"
            )
        if self.batch.every > max(1, self.model.num_layers):
            raise BadValue(
                f"recompute must be a word, or at most the {self.model.num_layers} layers of"
                f" {self.model.name}, got {self.batch.recompute}"
            )
        whole = self.recipe.optimizer in {"adafactor", "muon"}
        if whole and self.parallel.shard_rule == "flat":
            raise BadValue(
                f"shard_rule must be dim0 or tensor for {self.recipe.optimizer}, whose states need"
                " rows and columns; a slice of a flat buffer has none"
            )
        if self.batch.loss == "chunked" and self.batch.loss_chunks < 2:
            raise BadValue(
                f"loss_chunks must be >= 2 for a chunked head, got {self.batch.loss_chunks}"
            )

    @cached_property
    def mode(self) -> Mode:
        mode = mode_of(self.model, self.recipe, self.batch, self.parallel.sp_gather)
        if mode.recompute == "every" and self.batch.every > self.layers:
            return replace(mode, recompute="none")  # so seldom that it is never
        return mode

    @cached_property
    def shape(self) -> Shape:
        return rank_shape(self.model, self.parallel.tp)

    @cached_property
    def layers(self) -> int:
        lengths = self.parallel.stage_layers(self.model.num_layers)
        return sum(lengths[stage] for stage in self.parallel.stages(self.device))

    @cached_property
    def dense_layers(self) -> int:
        """Layers of the device that have an MLP and no experts."""
        units = self.parallel.units(self.model, self.device)
        return sum(unit.count for unit in units if unit.name == "block")

    @cached_property
    def ends(self) -> set[str]:
        """Units of the device that are no layers."""
        units = self.parallel.units(self.model, self.device)
        return {unit.name for unit in units if "block" not in unit.name}

    @cached_property
    def has_embedding(self) -> bool:
        return bool({"root", "embedding"} & self.ends)

    @cached_property
    def has_head(self) -> bool:
        return bool({"root", "head"} & self.ends)

    @property
    def microbatches(self) -> int:
        """Of a step; enough to fill a pipeline where the recipe does not say."""
        given = self.recipe.accumulation
        return given if given > 1 or self.parallel.pp == 1 else 2 * self.parallel.pp

    @cached_property
    def in_flight(self) -> float:
        return max(1.0, float(self.parallel.in_flight(self.device, self.microbatches)))

    @cached_property
    def whole_width(self) -> float:
        """Bytes of an element of a gathered layer: cast first, unless autocast does it."""
        recipe = self.recipe
        return recipe.parameter_bytes if recipe.autocast else recipe.compute_bytes

    @cached_property
    def casts(self) -> bool:
        """Whether weights are cast as wholes, before they are used."""
        recipe = self.recipe
        return not recipe.autocast and recipe.compute_bytes != recipe.parameter_bytes

    @cached_property
    def held(self) -> Holding:
        return Holding(
            tensors=rows_of(self.model, self.parallel, self.device),
            parallel=self.parallel,
            recipe=self.recipe,
            dp=self.numbers.get("dp", self.parallel.dp),
            layers=self.numbers.get("layers"),
            ideal=self.ideal,
        )

    @cached_property
    def own_shape(self) -> Shape:
        """The shape of the device's own layers; without both ends its vocabulary is next to
        nothing, so that no head is counted."""
        changes: Row = {"num_layers": self.layers, "dense_layers": self.dense_layers}
        if "layers" in self.numbers:
            changes = {"num_layers": self.numbers["layers"]}
        if not (self.has_embedding or self.has_head):
            changes["vocab"] = self.parallel.tp
        return shape_of(self.shape, **changes)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """What saved tensors and moments take beside the shape and the mode."""
        return {
            "seq": self.numbers.get("seq", self.batch.seq) // self.parallel.cp,
            "micro_batch": self.numbers.get("micro_batch", self.batch.micro_batch),
            "tp": self.parallel.tp,
            "ep": self.parallel.ep,
            "sequence_parallel": self.parallel.sp,
            "period": max(1, self.batch.every),
            "group": self.batch.recompute_group,
            "chunks": self.batch.loss_chunks,
        }


def rows(job: Job) -> dict[str, Row]:
    """Bytes of each component at each moment; :data:`PREFETCH` last but one where there is one."""
    there, gradients = _always(job.held)
    shape = job.own_shape
    given = job.arguments
    sequences = job.parallel.sp and job.parallel.tp > 1 and job.parallel.sp_gather == "buffer"
    if sequences and (job.layers or job.has_head):
        tokens = given["micro_batch"] * given["seq"]
        there[SEQUENCES] = job.mode.compute_bytes * tokens * job.model.hidden
    ran = _once(moments.moments, shape, job.mode, given)
    persistent = job.recipe.accumulation > 1 or job.parallel.pp > 1
    passing = fsdp.Passing(job)
    # What the layers keep for one microbatch that waits for its backward pass.
    gathers = passing.gathers and passing.shared
    waits = gathers or job.in_flight > 1
    kept = _once(_stack_bytes, shape, job.mode, given) if waits else 0
    others = (job.in_flight - 1) * kept if job.in_flight > 1 else 0
    by_moment: dict[str, Row] = {INIT: dict(there)}
    for name in moments.MOMENTS[:-1]:
        apart = name != forms.HEAD or passing.gathers
        if name not in ran or not _happens(job, name) or not apart:
            continue
        part = ran[name]
        share = part["gradients"] / ran[STEP]["gradients"]
        row = there | {
            "activations": part["activations"] + others,
            "cached weights": part["cached weights"],
            "temporaries": part["temporaries"],
            "buffers and inputs": part["buffers and inputs"],
        }
        by_moment[name] = row | passing.gradients(name, share, gradients)
        by_moment[name] |= passing.weights(name) | passing.sent(name)
        if persistent:
            by_moment[name]["gradients"] = gradients
    if gathers:
        by_moment |= _between(passing, by_moment, ran, kept, gradients)
    by_moment[STEP] = there | {
        "buffers and inputs": ran[STEP]["buffers and inputs"],
        "gradients": gradients,
        "temporaries": _step_temporaries(job),
    }
    if job.mode.logits_held != "none" and job.has_head:
        by_moment[STEP]["activations"] = ran[STEP]["activations"]
    return by_moment


def _between(
    passing: fsdp.Passing, by_moment: dict[str, Row], ran: dict[str, Row], kept: Any, total: Any
) -> dict[str, Row]:
    """Moments that one rank does not have: layers and gradients on their way."""
    first = by_moment["backward, first"]
    whole = ran[STEP]["gradients"]
    parts = first | {"share": ran["backward, first"]["gradients"] / whole, "total": total}
    block = passing.size("block").whole / passing.held.whole
    rows_there = passing.prefetched(parts, first, layer_bytes=kept / passing.layers, share=block)
    more = {PREFETCH: largest((PREFETCH, row) for row in rows_there)[1]}
    if "embedding backward" in by_moment:
        gone = {"activations": 0, "temporaries": 0, "cached weights": 0}
        base = by_moment["embedding backward"] | gone | {fsdp.GATHERED: 0, fsdp.GATHER: 0}
        more[REDUCE] = passing.last_sent(base, total)
    return more


def _always(held: Holding) -> tuple[Row, Any]:
    """What is on the device all the time, and the gradients once all are there."""
    row: Row = {}
    gradients: Any = 0
    for state in held.states():
        if state.place != "device":
            continue
        if state.component == "gradients":
            gradients = state.num_bytes
            continue
        row[state.row] = row.get(state.row, 0) + state.num_bytes
    return row, gradients


def _stack_bytes(shape: Shape, mode: Mode, **arguments: Any) -> Any:
    return saved.total_bytes(saved.stack_terms(shape, mode, **arguments))


def _once(function: Callable[..., Any], shape: Any, mode: Mode, arguments: Row) -> Any:
    """``function``, computed once for the same numbers: a stage or dp changes nothing in it."""
    given = (*vars(shape).values(), *arguments.values())
    if any(map(is_array, given)):
        return function(shape, mode, **arguments)
    return _remembered(function, tuple(vars(shape).items()), mode, tuple(arguments.items()))


@lru_cache(maxsize=4096)
def _remembered(function: Callable[..., Any], sizes: Any, mode: Mode, arguments: Any) -> Any:
    return function(SimpleNamespace(**dict(sizes)), mode, **dict(arguments))


def _happens(job: Job, name: str) -> bool:
    """Devices inside a pipeline have no embedding, or no head."""
    if "embedding" in name:
        return job.has_embedding
    if "loss" in name or name == forms.HEAD:
        return job.has_head
    return job.layers > 0


def _step_temporaries(job: Job) -> Any:
    """What the optimizer allocates: Adam's roots, and gradients in the master's format."""
    recipe = job.recipe
    held = job.held.trained
    if recipe.offload_optimizer != "device" or not held.tensors:
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
    return size


def total(row: Row) -> Any:
    return sum(row.values())


def largest(named: Iterable[tuple[str, Row]]) -> tuple[Any, Row]:
    """The name and components of the largest row; of equals the first. For arrays, of each."""
    names, parts = zip(*named, strict=True)
    totals = [total(row) for row in parts]
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
    """The components of each configuration's own row."""
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


def jobs(
    model: Model, parallel: Parallel, recipe: Recipe, batch: Batch, ideal: bool, **numbers: Any
) -> Iterator[Job]:
    """A rank of each pipeline device that can be the fullest; raises as :meth:`Job.check` does."""
    for device in devices(parallel, model):
        job = Job(
            model=model,
            parallel=parallel,
            recipe=recipe,
            batch=batch,
            device=device,
            ideal=ideal,
            numbers=numbers,
        )
        if device == 0:
            job.check()
        yield job


def devices(parallel: Parallel, model: Model) -> tuple[int, ...]:
    """The pipeline devices that can be the fullest: all, or three where the others are alike.

    Activations in flight do not grow from device 1 on in any schedule known here, and what lies
    between the ends has the same layers unless the first of them are dense and the rest not.
    """
    uneven = parallel.layers is not None or parallel.layer_split != "even" or model.dense_layers
    if uneven or parallel.pp <= 3:
        return tuple(range(parallel.pp))
    return (0, 1, parallel.pp - 1)
