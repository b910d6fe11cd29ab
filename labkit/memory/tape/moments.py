"""Bytes at each moment of a training step, and the peak: the maximum over moments.

The step is run once per choice of operators with symbolic sizes (:mod:`labkit.memory.tape.shadow`).
Of its few hundred points only those remain that can be the largest for some sizes; each is a linear
form in about thirty units. Everything here then is arithmetic on numbers or on arrays that
broadcast: a choice costs milliseconds once, a number microseconds.

What is counted: parameters and what a rank allocates in one step, as torch's ``MemTracker`` counts
it on a CPU. What is not: the optimizer, CUDA's context and workspaces, rounding to 512 bytes,
fragmentation, buffers of collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from labkit.errors import BadValue, UsageError
from labkit.memory.tape import tape as tapes
from labkit.memory.tape.forms import Points, columns_of, multiplicities, parameters, points
from labkit.memory.tape.mode import FP32, INT64, Mode
from labkit.memory.tape.network import Program
from labkit.memory.tape.sizes import (
    MIXED,
    Numbers,
    Shape,
    is_array,
    num_dense,
    over,
    shape_of,
    stack,
    units,
)
from labkit.memory.tape.step import ON_TAPE, Moment
from labkit.memory.tape.trained import Trained

# Choices of a shape that are a program's under the same name.
_CHOICES = ("mlp", "qkv_bias", "out_bias", "mlp_bias", "fused_qkv", "qk_norm", "tied")
MOST_EXCHANGES = 5  # of keys and values; those after are like it
Key = TypeVar("Key", bound=str)
_MOST = 2**53  # elements that a float still counts one by one


class TooLarge(BadValue):
    """A tensor has more elements than can be counted; no device holds it either."""


def _program(shape: Shape, mode: Mode, numbers: Numbers, *, batched: bool) -> Program:
    """The program that a shape, a mode and the numbers run; refuses what no program stands for."""
    structure = "flat"
    if mode.logits_held != "none" and mode.loss not in {"eager-fp32", "loss-parallel"}:
        raise UsageError(
            f"logits_held must be none where loss is {mode.loss}, which leaves no logits;"
            f" got {mode.logits_held}"
        )
    if mode.loss.startswith("chunked") and not _all(numbers.num_chunks >= 2):
        raise UsageError(f"chunks must be >= 2 for a chunked head, got {numbers.num_chunks}")
    kinds = stack(shape)
    fixed = {}
    if mode.recompute == "full" and not _all(numbers.group == 1):
        structure = "nested"
    if mode.recompute == "every":
        if not _all((numbers.period >= 2) & (numbers.period <= shape.num_layers)):
            raise UsageError(
                f"period must be in 2..num_layers, got {numbers.period} of {shape.num_layers}"
                " (1 is recompute='full')"
            )
        structure = "periodic"
    trained = numbers.trained
    if trained is None and numbers.adapted:
        trained = Trained(layers=(frozenset({"adapters"}),))
    varied = trained is not None and len(trained.layers) > 1
    if (kinds == MIXED or varied) and structure != "flat":
        structure = "listed"
        fixed = _fixed(shape, mode, numbers)
    elif varied:
        structure = "runs"
        fixed = _fixed(shape, mode, numbers)
    return Program(
        mode=mode,
        **{name: getattr(shape, name) for name in _CHOICES},
        latent=bool(shape.kv_rank),
        query_rank=bool(shape.q_rank),
        stack=kinds,
        shared=bool(shape.shared_experts),
        sigmoid=shape.router_bias,
        positions=_choice("positions", shape.positions > 0),
        grouped=_choice("kv_heads < heads", shape.kv_heads < shape.heads),
        batched=batched,
        sequence_parallel=numbers.sequence_parallel and not _all(numbers.tp == 1),
        trained=trained,
        adapted=numbers.adapted,
        adapter_width=numbers.adapter_bytes,
        adapter_dropout=numbers.adapter_dropout,
        packed=numbers.packed,
        exchange=numbers.cp_exchange if numbers.cp > 1 else "",
        exchanges=_exchanges(mode, numbers.cp),
        update=numbers.update,
        state_width=numbers.state_bytes,
        reentrant=numbers.reentrant,
        tuner=numbers.tuner,
        structure=structure,
        **fixed,
    )


def _exchanges(mode: Mode, cp: int) -> tuple[int, int]:
    """Exchanges of the fullest rank of ``cp``, and how many of them are with earlier ranks.

    Merging all queries' outputs takes most for a moment, merging half of them leaves a copy that is
    kept: a rank in the middle does both. Of two ranks the last is the fuller where that copy is
    soon gone and the outputs are cast to be merged.
    """
    if cp == 2:
        kept = mode.recompute == "none" or mode.dtype == "fp32"
        return 2, 0 if kept else 1
    return min(cp, MOST_EXCHANGES), 1


def _fixed(shape: Shape, mode: Mode, numbers: Numbers) -> dict[str, Any]:
    """The counts of a program that has its layers one by one.

    That is how it is where layers that differ are recomputed in groups, or every so many of them,
    and where some layers are trained and others frozen.
    """
    repeat = numbers.group if mode.recompute == "full" else numbers.period
    dense = num_dense(shape)
    if np.ndim(repeat) or np.ndim(shape.num_layers) or np.ndim(dense):
        raise UsageError(
            "num_layers and the recomputed groups or periods must be numbers, not arrays, where"
            " dense layers come before layers with experts, or some layers are frozen"
        )
    if numbers.trained is not None and len(numbers.trained.layers) not in {1, shape.num_layers}:
        raise UsageError(
            f"trained must speak of {shape.num_layers} layers, got {len(numbers.trained.layers)}"
        )
    return {"layers": (int(dense), int(shape.num_layers - dense)), "repeat": int(repeat)}


def _all(condition: Any) -> bool:
    """Whether a condition holds throughout; a plain one does not become an array on the way."""
    return condition if isinstance(condition, bool) else bool(np.all(condition))


def _any(condition: Any) -> bool:
    """Whether a number is not 0 throughout."""
    return bool(np.any(condition))


def _choice(name: str, condition: Any) -> bool:
    """Whether a condition holds, which it must for all configurations of one call or for none."""
    every = _all(condition)
    if not every and np.any(condition):
        raise UsageError(f"{name} must hold for all configurations of one call or for none")
    return every


def held(shape: Shape, mode: Mode, numbers: Numbers) -> dict[str, Any]:
    """Bytes of parameters, and of what is there from the first moment to the last beside them."""
    shape = shape_of(shape)
    width = mode.stream_bytes
    routed = shape.num_layers - num_dense(shape)
    corrections = routed * shape.num_experts if shape.router_bias else 0  # of routers' choices
    given = numbers.seq - numbers.prompt_tokens
    buffers = 2 * INT64 * numbers.micro_batch * given + width * corrections
    if not mode.gpu:  # peft's numbers of virtual tokens stay on the host
        buffers = buffers + INT64 * numbers.prompt_tokens
    if shape.mlp == "swiglu":
        turned = shape.rope_head_dim or shape.head_dim
        buffers = buffers + 2 * mode.table_bytes * numbers.seq * turned
    if mode.attention == "eager" and mode.mask_added and "mask-a-sample" not in mode.older:
        buffers = buffers + width * numbers.seq**2
    size = trained_bytes(shape, mode, numbers)
    if numbers.trained is not None or numbers.adapted:
        size = size + _bytes_of(_parts(shape, mode, numbers, True))
    return {"parameters": size, "buffers and inputs": buffers}


Sizes = list[tuple[Any, list[Any]]]


def tensors(shape: Shape, mode: Mode, numbers: Numbers, *, frozen: bool = False) -> Sizes:
    """Elements of each trained tensor in order, or of each ``frozen`` one, part by part.

    Parts are what comes before the layers, one layer with an MLP, one with experts (stacked), and
    what comes after the layers; or, where layers differ in what is trained, each run's layers. With
    each part comes how often it is there. A router's correction is not among the tensors: it is
    kept with the buffers.
    """
    return [
        (times, [size for size, _ in part]) for times, part in _parts(shape, mode, numbers, frozen)
    ]


def trained_bytes(shape: Shape, mode: Mode, numbers: Numbers) -> Any:
    """Bytes of all trained tensors, which are those of their gradients: adapters have a format of
    their own.
    """
    return _bytes_of(_parts(shape, mode, numbers, False))


def _bytes_of(parts: list[tuple[Any, list[tuple[Any, int]]]]) -> Any:
    """Bytes of all tensors of the parts."""
    return sum(times * sum(size * width for size, width in part) for times, part in parts)


def _parts(
    shape: Shape, mode: Mode, numbers: Numbers, frozen: bool
) -> list[tuple[Any, list[tuple[Any, int]]]]:
    """How often each part is there, and its tensors' elements and bytes an element."""
    value = units(shape, numbers, mode)
    program = _program(shape, mode, numbers, batched=False)
    dense = num_dense(shape)
    of_kind = {None: 1, False: dense, True: shape.num_layers - dense}
    found = []
    for part in parameters(program, frozen=frozen):
        times = of_kind[part.experts]
        if part.times is not None:
            times = multiplicities(shape, numbers, program)[part.times]
        sizes = [
            (sum(n * value[place] for place, n in form), width) for form, width in part.amounts
        ]
        found.append((times, sizes))
    return found


def over_layers(shape: Shape, parts: Sizes, of: Callable[[list[Any]], Any]) -> Any:
    """What ``of`` (``sum``, ``len``) says of all tensors of a network, given :func:`tensors`'s
    parts.
    """
    return sum(times * of(sizes) for times, sizes in parts)


def for_loop_temporaries(shape: Shape, mode: Mode, numbers: Numbers) -> Any:
    """The largest temporary of AdamW's step tensor by tensor.

    Two of a tensor live beside the previous tensor's. A step over all tensors at once has the root
    of every variance; in one kernel there is none.
    """
    # Of each part two: one shows what follows the other.
    parts = [(times, sizes) for times, sizes in tensors(shape, mode, numbers) if np.any(times > 0)]
    sizes = [size for times, part in parts for size in part * (2 if np.any(times > 1) else 1)]
    pairs = [2 * late + early for early, late in pairwise([0, *sizes])]
    return mode.stream_bytes * np.maximum.reduce(np.broadcast_arrays(*pairs))


def moments(shape: Shape, mode: Mode, **sizes: Any) -> dict[Moment, dict[str, Any]]:
    """Bytes of each component at the fullest point of each moment, the optimizer's left out.

    ``shape`` may be a model. ``sizes`` are fields of :class:`~labkit.memory.tape.sizes.Numbers`,
    maybe arrays that broadcast; what decides which operators run must not vary within a call.
    ``group`` layers are recomputed together (``recompute="full"``), every ``period``-th layer
    (``"every"``), the head runs over ``chunks`` parts (``loss="chunked"``).

    Raises:
        UsageError: the model has parts that are not known here, or a size is below 1.

    >>> from labkit.models import Model
    >>> found = moments(Model.preset("gpt2-124m"), Mode(), seq=1024, micro_batch=8)
    >>> print(max(found, key=lambda moment: sum(found[moment].values())))
    loss backward
    """
    shape = shape_of(shape)
    numbers = Numbers(**sizes)
    there = held(shape, mode, numbers)
    fullest = by_samples(shape, mode, numbers, partial(_evaluated, shape, numbers), np.where)
    by_moment = {
        moment: {**there, **dict(zip(tapes.CATEGORIES, parts, strict=True))}
        for moment, parts in fullest.items()
    }
    held_on = {"none": 0, "compute": mode.compute_bytes, "fp32": FP32}[mode.logits_held]
    logits = held_on * numbers.micro_batch * numbers.seq * over(shape.vocab, numbers.tp)
    gradients = trained_bytes(shape, mode, numbers)  # they are as wide as what is trained
    at_step = (logits, 0 if numbers.update else gradients, 0, 0)
    by_moment[Moment.STEP] = {**there, **dict(zip(tapes.CATEGORIES, at_step, strict=True))}
    return by_moment


def by_samples(
    shape: Shape,
    mode: Mode,
    numbers: Numbers,
    of: Callable[[Program], dict[Key, Any]],
    where: Callable[[Any, Any, Any], Any],
) -> dict[Key, Any]:
    """What ``of`` says of the program that runs, or of two, value by value.

    Attention written out, and a loss that shifts its logits, run another program for one sample
    than for several. Where some
    configurations have one and others more, ``where(one_sample, alone, several)`` picks each value.
    """
    one_sample = numbers.micro_batch == 1
    differ = mode.attention == "eager" or mode.shifted or _any(numbers.prompt_tokens)
    many = differ and not _all(one_sample)
    answer = of(_program(shape, mode, numbers, batched=many))
    if many and np.any(one_sample):
        alone = of(_program(shape, mode, numbers, batched=False))
        return {name: where(one_sample, alone[name], answer[name]) for name in answer}
    return answer


def _evaluated(shape: Shape, numbers: Numbers, program: Program) -> dict[Moment, list[Any]]:
    """Bytes of each category by moment, at the point with the largest total."""
    table = points(program)
    columns = columns_of(table, program, shape, numbers)
    if not any(map(is_array, columns)):
        if max(columns) > _MOST:
            raise TooLarge(
                f"the model and the batch must keep every tensor below {_MOST:.2g} elements; these"
                f" have one of {float(max(columns)):.2g}"
            )
        return _scalar(table, table.coefficients @ np.array(columns, dtype=np.int64))
    spread = np.broadcast_arrays(*columns)  # as rows of one matrix; exact below 2⁵³
    matrix = np.array(spread, dtype=float).reshape(len(columns), -1)
    return _arrays(table, matrix, spread[0].shape)


def _scalar(table: Points, parts: NDArray[np.int64]) -> dict[Moment, list[Any]]:
    """:func:`_evaluated` where all sizes are plain numbers: ``parts`` are points × categories."""
    totals = parts.sum(axis=1).tolist()
    best: dict[int, int] = {}
    for place, number in enumerate(table.moment.tolist()):
        if number not in best or totals[place] > totals[best[number]]:
            best[number] = place
    return {ON_TAPE[number]: parts[place].tolist() for number, place in best.items()}


def _arrays(
    table: Points, matrix: NDArray[np.float64], size: tuple[int, ...]
) -> dict[Moment, list[Any]]:
    """:func:`_evaluated` where sizes are arrays of shape ``size``: ``matrix`` is columns ×
    configurations.
    """
    by_moment = {}
    for number in np.unique(table.moment):
        forms = table.coefficients[table.moment == number].astype(float)
        best = np.argmax(forms.sum(axis=1) @ matrix, axis=0)[None]
        by_moment[ON_TAPE[number]] = [
            np.take_along_axis(forms[:, place] @ matrix, best, axis=0)[0].reshape(size)
            for place in range(forms.shape[1])
        ]
    return by_moment
