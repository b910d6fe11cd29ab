"""What a layer keeps for its backward pass, in closed form, term by term.

Every formula is plain arithmetic: it takes Python integers or NumPy arrays that broadcast. Which
terms there are follows from the choices in :class:`Mode`; how large they are, from the numbers.
The tests hold each formula against the storages that torch saves, with 0 bytes of difference, for
``tp = sp = 1``; tensor and sequence parallelism follow Korthikanti et al. (2022) and are held
against their equations.

Letters: b samples, s tokens a sample, h hidden size, q width of all a query heads, k width of all
key heads, f width of the MLP, v vocabulary; those of latents and experts stand at
:data:`labkit.memory.tape.tape.UNITS`.
"""

from __future__ import annotations

from typing import Any

from labkit.memory.tape.mode import BF16, FP32, INT64, Mode
from labkit.memory.tape.saved import Term
from labkit.memory.tape.sizes import (
    EXPERTS,
    Numbers,
    Shape,
    num_dense,
    shape_of,
    stack,
    units,
)
from labkit.memory.tape.tape import UNITS
from tests.oracles import layers_by_hand as parts
from tests.oracles.layers_by_hand import TORCH, is_zero, term


def _values(
    shape: Shape, *, seq: Any, micro_batch: Any, tp: Any, ep: Any, sequence_parallel: bool
) -> dict[str, Any]:
    """The sizes of one rank by unit."""
    numbers = Numbers(
        seq=seq, micro_batch=micro_batch, tp=tp, ep=ep, sequence_parallel=sequence_parallel
    )
    return dict(zip(UNITS, units(shape_of(shape), numbers, Mode()), strict=True))


def layer_terms(
    shape: Shape,
    mode: Mode,
    *,
    seq: Any,
    micro_batch: Any,
    dropout_mask_bytes: Any = None,
    tp: Any = 1,
    ep: Any = 1,
    sequence_parallel: bool = False,
    experts: bool | None = None,
) -> tuple[Term, ...]:
    """What one layer keeps, all of it (``recompute="full"``: its input only).

    ``dropout_mask_bytes`` is what dropout stores an element, the mode's own unless given: 0 without
    dropout, 1 on a GPU (2 in bf16 on a CPU). ``experts`` asks for a layer with experts or for one
    with an MLP; by default for the kind that the last layer is of. With ``recompute="every"`` these
    are the terms of a layer that is not recomputed; :func:`stack_terms` counts both kinds.

    >>> from labkit.models import Model
    >>> gpt = Model.preset("gpt2-124m")
    >>> terms = layer_terms(gpt, Mode(), seq=1024, micro_batch=1)
    >>> sum(t.num_bytes for t in terms) == 1024 * (32 * gpt.hidden + 4 * gpt.heads + 8)
    True
    """
    value = _values(
        shape,
        seq=seq,
        micro_batch=micro_batch,
        tp=tp,
        ep=ep,
        sequence_parallel=sequence_parallel,
    )
    if mode.recompute == "full":
        return (_input_term(value, mode),)
    masks = mode.dropout_mask_bytes if dropout_mask_bytes is None else dropout_mask_bytes
    routed = bool(shape.num_experts) if experts is None else experts
    return (
        *_attention_half(shape, value, mode, masks, micro_batch),
        *_mlp_half(shape, value, mode, masks, routed=routed),
    )


def _attention_half(
    shape: Shape, value: dict[str, Any], mode: Mode, masks: Any, micro_batch: Any
) -> tuple[Term, ...]:
    llama = shape.mlp == "swiglu"
    return (
        *parts.norm("attention", value, mode, llama),
        *parts.attention(shape, value, mode, masks, micro_batch),
        *parts.dropout("attention.dropout mask", value, masks),
        *parts.norm("mlp", value, mode, llama),
        *parts.dropout("mlp.dropout mask", value, masks),
    )


def _mlp_half(
    shape: Shape, value: dict[str, Any], mode: Mode, masks: Any, *, routed: bool
) -> tuple[Term, ...]:
    """What differs between a layer with experts and one without."""
    inner = parts.experts if routed else parts.mlp
    return (
        *inner(shape, value, mode),
        *parts.cached(shape, value, mode, with_experts=routed),
    )


def _input_term(value: dict[str, Any], mode: Mode) -> Term:
    width = mode.stream_bytes
    source = f"{TORCH}; Korthikanti et al. 2022, Table 2"
    return term("input", width * value["b·s·h"], f"{width}·b·s·h", source)


def stack_terms(
    shape: Shape,
    mode: Mode,
    *,
    seq: Any,
    micro_batch: Any,
    period: Any = 1,
    group: Any = 1,
    dropout_mask_bytes: Any = None,
    tp: Any = 1,
    ep: Any = 1,
    sequence_parallel: bool = False,
) -> tuple[Term, ...]:
    """What all layers together keep at the end of the forward pass.

    ``group`` layers keep one input between them under ``recompute="full"``; under ``"every"``
    each ``period``-th layer keeps its input only.
    """
    value = _values(
        shape,
        seq=seq,
        micro_batch=micro_batch,
        tp=tp,
        ep=ep,
        sequence_parallel=sequence_parallel,
    )
    if mode.recompute == "full":
        inputs = -(-shape.num_layers // group)
        return (_times(_input_term(value, mode), inputs, "ceil(l/group)"),)
    masks = mode.dropout_mask_bytes if dropout_mask_bytes is None else dropout_mask_bytes
    every = mode.recompute == "every"
    found = []
    if every:
        inputs = shape.num_layers // period
        found.append(_times(_input_term(value, mode), inputs, "floor(l/period)"))
    kinds = {"dense": _kept(num_dense(shape), period, every)} if stack(shape) != EXPERTS else {}
    whole = _kept(shape.num_layers, period, every)
    if stack(shape) != "dense":
        kinds["experts"] = whole - kinds.get("dense", 0)
    count = "(l - floor(l/period))" if every else "l"
    half = _attention_half(shape, value, mode, masks, micro_batch)
    found += [_times(one, whole, count) for one in half]
    for kind, number in kinds.items():
        letter = count if len(kinds) == 1 else f"l of {kind}"
        rest = _mlp_half(shape, value, mode, masks, routed=kind == "experts")
        found += [_times(one, number, letter) for one in rest]
    return tuple(found)


def _kept(layers: Any, period: Any, every: bool) -> Any:
    """Of the first ``layers``, those that are not recomputed."""
    return layers - layers // period if every else layers


def _times(one: Term, number: Any, text: str) -> Term:
    return term(
        f"layers.{one.component}", number * one.num_bytes, f"{text}·({one.formula})", one.source
    )


def end_terms(
    shape: Shape,
    mode: Mode,
    *,
    seq: Any,
    micro_batch: Any,
    dropout_mask_bytes: Any = None,
    tp: Any = 1,
    ep: Any = 1,
    sequence_parallel: bool = False,
) -> tuple[Term, ...]:
    """What is kept before the first layer and after the last: positions, final norm, head, loss."""
    value = _values(
        shape,
        seq=seq,
        micro_batch=micro_batch,
        tp=tp,
        ep=ep,
        sequence_parallel=sequence_parallel,
    )
    masks = mode.dropout_mask_bytes if dropout_mask_bytes is None else dropout_mask_bytes
    found = []
    if not is_zero(shape.positions):
        found.append(term("embedding.position numbers", INT64 * seq, "8·s"))
    found.extend(parts.dropout("embedding.dropout mask", value, masks))
    found.extend(parts.norm("head", value, mode, shape.mlp == "swiglu"))
    return (*found, *_loss_terms(value, mode))


def _loss_terms(value: dict[str, Any], mode: Mode) -> tuple[Term, ...]:
    width = mode.stream_bytes if mode.loss == "chunked" else mode.compute_bytes
    if mode.loss == "fused":
        wide = mode.stream_bytes
        source = f"{TORCH}; Hsu et al. 2024 (Liger Kernel)"
        return (
            term("loss.gradient of the input", wide * value["b·s·h"], f"{wide}·b·s·h", source),
            term("loss.gradient of the weight", wide * value["h·v"], f"{wide}·h·v", source),
        )
    found = [term("head.input", width * value["b·s·h"], f"{width}·b·s·h")]
    if mode.loss == "chunked":
        return tuple(found)
    wide = FP32 if mode.loss == "eager-fp32" or mode.dtype != "bf16" else BF16
    found.append(term("loss.log-softmax", wide * value["b·s·v"], f"{wide}·b·s·v"))
    found.append(term("loss.sum of weights", wide, f"{wide}"))
    if mode.dtype == "autocast":
        found.append(term("head.cached weight", BF16 * value["h·v"], "2·v·h"))
    return tuple(found)


def total_bytes(terms: tuple[Term, ...]) -> Any:
    """The sum of the terms' bytes."""
    return sum(one.num_bytes for one in terms)
