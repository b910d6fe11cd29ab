"""Bytes at each moment of a training step, and the peak: the maximum over moments.

The step is run once per choice of operators with symbolic sizes (:mod:`labkit.memory.shadow`). Of
its few hundred points only those remain that can be the largest for some sizes; each is a linear
form in about thirty units. Everything here then is arithmetic on numbers or on arrays that
broadcast: a choice costs milliseconds once, a number microseconds.

What is counted: tensors a rank allocates in one step, optimizer states there from before, as
torch's ``MemTracker`` counts them on a CPU. What is not: CUDA's context and workspaces, rounding to
512 bytes, fragmentation, buffers of collectives.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labkit.errors import UsageError
from labkit.memory import tape as tapes
from labkit.memory.forms import MOMENTS, STEP, Numbers, Points, columns_of, over, points, units
from labkit.memory.saved import FP32, INT64, Mode, Shape, supported
from labkit.memory.shadow import Program

Step = Literal["foreach", "fused", "for-loop"]
STEPS = ("foreach", "fused", "for-loop")

BLOCK = 1 << 14  # configurations evaluated at a time: what a cache holds
SIZES = ("num_layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "positions")
CHOICES = ("tied", "bias", "mlp", "norm")
HELD = ("parameters", "optimizer", "buffers and inputs")
COMPONENTS = (*HELD, *tapes.CATEGORIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The largest moment: its name, its bytes, and what they are."""

    moment: Any
    num_bytes: Any
    components: dict[str, Any]


def _program(shape: Shape, mode: Mode, numbers: Numbers, *, batched: bool) -> Program:
    structure = "flat"
    if mode.loss == "chunked" and not _all(np.asarray(numbers.chunks) >= 2):
        raise UsageError(f"chunks must be >= 2 for a chunked head, got {numbers.chunks}")
    if mode.recompute == "full" and not _all(np.asarray(numbers.group) == 1):
        structure = "nested"
    if mode.recompute == "every":
        if not _all((np.asarray(numbers.period) >= 2) & (numbers.period <= shape.num_layers)):
            raise UsageError(
                f"period must be in 2..num_layers, got {numbers.period} of {shape.num_layers}"
                " (1 is recompute='full')"
            )
        structure = "periodic"
    return Program(
        mode=mode,
        mlp=shape.mlp,
        bias=shape.bias,
        tied=shape.tied,
        positions=_choice("positions", np.asarray(shape.positions) > 0),
        grouped=_choice("kv_heads < heads", np.asarray(shape.kv_heads) < shape.heads),
        batched=batched,
        structure=structure,
    )


def _all(condition: Any) -> bool:
    return bool(np.all(condition))


def _choice(name: str, condition: NDArray[np.bool_]) -> bool:
    if np.all(condition) != np.any(condition):
        raise UsageError(f"{name} must hold for all configurations of one call or for none")
    return bool(np.all(condition))


def num_params(shape: Shape, *, tp: Any = 1) -> Any:
    """Parameters of a rank, from the sizes; a model's own count is the same for ``tp=1``."""
    h, q, k = (
        shape.hidden,
        over(shape.heads * shape.head_dim, tp),
        over(shape.kv_heads * shape.head_dim, tp),
    )
    f, gated = over(shape.ffn, tp), shape.mlp == "swiglu"
    norm = h if gated else 2 * h
    layer = 2 * norm + 2 * h * (q + k) + (3 if gated else 2) * h * f
    if shape.bias:
        layer = layer + q + 2 * k + h + (2 if gated else 1) * f + h
    ends = (1 if shape.tied else 2) * h * over(shape.vocab, tp) + h * shape.positions + norm
    return shape.num_layers * layer + ends


def num_tensors(shape: Shape) -> Any:
    """Parameter tensors, each of which has a step counter in AdamW."""
    gated = shape.mlp == "swiglu"
    linears, norm = (7, 1) if gated else (4, 2)
    layer = 2 * norm + linears * (2 if shape.bias else 1)
    return (
        shape.num_layers * layer
        + norm
        + (1 if shape.tied else 2)
        + (np.asarray(shape.positions) > 0) * 1
    )


def held(shape: Shape, mode: Mode, numbers: Numbers) -> dict[str, Any]:
    """Bytes that are there from the first moment to the last: AdamW's states included."""
    count, width = num_params(shape, tp=numbers.tp), mode.stream_bytes
    buffers = 2 * INT64 * numbers.micro_batch * numbers.seq
    if shape.mlp == "swiglu":
        buffers = buffers + 2 * mode.compute_bytes * numbers.seq * shape.head_dim
    optimizer = 2 * width * count + FP32 * num_tensors(shape)
    return dict(zip(HELD, (width * count, optimizer, buffers), strict=True))


def step_temporaries(shape: Shape, mode: Mode, numbers: Numbers, step: str) -> Any:
    """The largest temporary of AdamW's step.

    ``foreach`` takes the root of every variance at once; ``for-loop`` tensor by tensor, where two
    live beside the previous tensor's; ``fused`` has none.
    """
    if step not in STEPS:
        raise UsageError(f"step must be one of {', '.join(STEPS)}, got {step!r}")
    width = mode.stream_bytes
    if step == "fused":
        return 0
    if step == "foreach":
        return width * num_params(shape, tp=numbers.tp)
    sizes = _parameter_sizes(shape, numbers)
    pairs = [
        2 * sizes[0],
        *(2 * late + early for early, late in pairwise(sizes)),
    ]
    return width * np.maximum.reduce(np.broadcast_arrays(*pairs))


def _parameter_sizes(shape: Shape, numbers: Numbers) -> list[Any]:
    """Elements of the parameters in their order, two layers of them (the second shows what follows
    the first)."""
    value = dict(zip(tapes.UNITS, units(shape, numbers), strict=True))
    h, gated = value["h"], shape.mlp == "swiglu"
    norm = [h] if gated else [h, h]

    def linear(weight: Any, bias: Any) -> list[Any]:
        return [weight, bias] if shape.bias else [weight]

    layer = list(norm)
    if gated:
        layer += linear(value["h·q"], value["q"])
        layer += 2 * linear(value["h·k"], value["k"])
    else:
        layer += linear(value["h·q"] + 2 * value["h·k"], value["q"] + 2 * value["k"])
    layer += [*linear(value["h·q"], h), *norm]
    layer += (2 if gated else 1) * linear(value["h·f"], value["f"]) + linear(value["h·f"], h)
    ends = [] if shape.tied else [value["h·v"]]
    positions = [value["h·p"]] if np.any(np.asarray(shape.positions) > 0) else []
    return [value["h·v"], *positions, *layer, *layer, *norm, *ends]


def moments(
    shape: Shape,
    mode: Mode,
    *,
    seq: Any,
    micro_batch: Any,
    step: str = "foreach",
    period: Any = 1,
    group: Any = 1,
    chunks: Any = 8,
    tp: Any = 1,
    sequence_parallel: bool = False,
) -> dict[str, dict[str, Any]]:
    """Bytes of each component at the fullest point of each moment.

    Sizes may be arrays that broadcast; what decides which operators run must not vary within a
    call. ``group`` layers are recomputed together (``recompute="full"``), every ``period``-th
    layer (``"every"``), the head runs over ``chunks`` parts (``loss="chunked"``).

    Raises:
        UsageError: the model has parts that are not known here, or a size is below 1.

    >>> from labkit.models import Model
    >>> found = moments(Model.preset("gpt2-124m"), Mode(), seq=1024, micro_batch=8)
    >>> max(found, key=lambda moment: sum(found[moment].values()))
    'loss backward'
    """
    supported(shape)
    numbers = Numbers(
        seq=seq,
        micro_batch=micro_batch,
        period=period,
        group=group,
        chunks=chunks,
        tp=tp,
        sequence_parallel=sequence_parallel,
    )
    there = held(shape, mode, numbers)
    found = {
        moment: {**there, **dict(zip(tapes.CATEGORIES, parts, strict=True))}
        for moment, parts in _largest(shape, mode, numbers).items()
    }
    width = mode.stream_bytes
    gradients = width * num_params(shape, tp=tp)
    at_step = (0, gradients, 0, step_temporaries(shape, mode, numbers, step))
    found[STEP] = {**there, **dict(zip(tapes.CATEGORIES, at_step, strict=True))}
    return found


def _largest(shape: Shape, mode: Mode, numbers: Numbers) -> dict[str, list[Any]]:
    """By moment: bytes of each category at the point with the largest total."""
    one_sample = np.asarray(numbers.micro_batch) == 1
    if mode.attention == "eager" and np.any(one_sample) and not np.all(one_sample):
        return _merged(
            _evaluated(_program(shape, mode, numbers, batched=True), shape, numbers),
            _evaluated(_program(shape, mode, numbers, batched=False), shape, numbers),
            one_sample,
        )
    batched = not bool(np.all(one_sample)) and mode.attention == "eager"
    return _evaluated(_program(shape, mode, numbers, batched=batched), shape, numbers)


def _merged(
    many: dict[str, list[Any]], one: dict[str, list[Any]], where: NDArray[np.bool_]
) -> dict[str, list[Any]]:
    return {
        moment: [np.where(where, a, b) for a, b in zip(one[moment], many[moment], strict=True)]
        for moment in many
    }


def _evaluated(program: Program, shape: Shape, numbers: Numbers) -> dict[str, list[Any]]:
    table = points(program)
    columns = columns_of(table, program, shape, numbers)
    if not any(isinstance(value, np.ndarray) and value.ndim for value in columns):
        return _scalar(table, table.coefficients @ np.array(columns, dtype=np.int64))
    size = np.broadcast_shapes(*map(np.shape, columns))
    return _arrays(table, _matrix(columns, size), size)


def _matrix(columns: list[Any], size: tuple[int, ...]) -> NDArray[np.float64]:
    """Columns as rows of one matrix (columns, configurations); exact below 2⁵³."""
    found = np.empty((len(columns), int(np.prod(size))))
    for row, value in zip(found, columns, strict=True):
        row[:] = np.broadcast_to(value, size).ravel()
    return found


def _scalar(table: Points, parts: NDArray[np.int64]) -> dict[str, list[Any]]:
    totals = parts.sum(axis=1).tolist()
    best: dict[int, int] = {}
    for place, number in enumerate(table.moment.tolist()):
        if number not in best or totals[place] > totals[best[number]]:
            best[number] = place
    return {MOMENTS[number]: parts[place].tolist() for number, place in best.items()}


def _arrays(
    table: Points, matrix: NDArray[np.float64], size: tuple[int, ...]
) -> dict[str, list[Any]]:
    found = {}
    for number in np.unique(table.moment):
        here = table.coefficients[table.moment == number].astype(float)
        best = np.argmax(here.sum(axis=1) @ matrix, axis=0)[None]
        found[MOMENTS[number]] = [
            np.take_along_axis(here[:, place] @ matrix, best, axis=0)[0].reshape(size)
            for place in range(here.shape[1])
        ]
    return found


def peak(shape: Shape, mode: Mode, **sizes: Any) -> Peak:
    """The largest moment of a step; arguments as in :func:`moments`."""
    found = moments(shape, mode, **sizes)
    names = [moment for moment in MOMENTS if moment in found]
    totals = [sum(found[moment].values()) for moment in names]
    if not any(np.shape(total) for total in totals):
        best = int(np.argmax(totals))
        return Peak(moment=names[best], num_bytes=int(totals[best]), components=found[names[best]])
    stacked = np.array(np.broadcast_arrays(*totals))
    best_of = np.argmax(stacked, axis=0)
    components = {
        part: np.choose(
            best_of, np.broadcast_arrays(stacked[0], *(found[m][part] for m in names))[1:]
        )
        for part in COMPONENTS
    }
    return Peak(
        moment=np.array(names)[best_of], num_bytes=stacked.max(axis=0), components=components
    )


def peak_bytes(
    shape: Shape, mode: Mode, *, step: str = "foreach", seq: Any, micro_batch: Any, **sizes: Any
) -> Any:
    """The peak alone, the quick way for arrays: one matrix product for many configurations.

    Nothing is kept of what the peak is made of. Works through the configurations in blocks that a
    processor's cache holds.
    """
    supported(shape)
    given = {name: getattr(shape, name) for name in (*SIZES, *CHOICES)}
    given |= {"seq": seq, "micro_batch": micro_batch, **sizes}
    arrays = {name: value for name, value in given.items() if np.ndim(value)}
    size = np.broadcast_shapes(*(value.shape for value in arrays.values()))
    if np.prod(size, dtype=int) <= BLOCK:
        return _block_peak(given, mode, step)
    flat = {name: np.broadcast_to(value, size).ravel() for name, value in arrays.items()}
    found = np.empty(int(np.prod(size)))
    for start in range(0, len(found), BLOCK):
        piece = slice(start, start + BLOCK)
        block = given | {name: value[piece] for name, value in flat.items()}
        found[piece] = _block_peak(block, mode, step)
    return found.reshape(size)


def _block_peak(given: dict[str, Any], mode: Mode, step: str) -> Any:
    names = (*SIZES, *CHOICES)
    shape = SimpleNamespace(**{name: given[name] for name in names})
    numbers = Numbers(**{name: value for name, value in given.items() if name not in names})
    there = sum(held(shape, mode, numbers).values())
    gradients = mode.stream_bytes * num_params(shape, tp=numbers.tp)
    at_step = gradients + step_temporaries(shape, mode, numbers, step)
    one_sample = np.asarray(numbers.micro_batch) == 1
    kinds = np.unique(~one_sample) if mode.attention == "eager" else [True]
    found: Any = 0
    for batched in map(bool, kinds):
        top = _top(_program(shape, mode, numbers, batched=batched), shape, numbers)
        found = np.where(one_sample == batched, found, top) if len(kinds) > 1 else top
    return there + np.maximum(found, at_step)


def _top(program: Program, shape: Shape, numbers: Numbers) -> Any:
    table = points(program)
    columns = columns_of(table, program, shape, numbers)
    size = np.broadcast_shapes(*map(np.shape, columns))
    totals = table.coefficients[table.top].sum(axis=1).astype(float)
    return (totals @ _matrix(columns, size)).max(axis=0).reshape(size)
