"""What a layer keeps for its backward pass, in closed form, term by term.

Every formula is plain arithmetic: it takes Python integers or NumPy arrays that broadcast. Which
terms there are follows from the choices in :class:`Mode`; how large they are, from the numbers.
The tests hold each formula against the storages that torch saves, with 0 bytes of difference, for
``tp = sp = 1`` and no dropout; dropout, tensor and sequence parallelism follow Korthikanti et al.
(2022) and are held against their equations.

Letters: b samples, s tokens a sample, h hidden size, q width of all a query heads, k width of all
key heads, f width of the MLP, v vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from labkit.errors import UsageError
from labkit.memory.lines import Term

Dtype = Literal["bf16", "fp32", "autocast"]
Attention = Literal["eager", "sdpa"]
Recompute = Literal["none", "selective", "full", "every"]
Loss = Literal["eager-fp32", "plain", "chunked"]

VALID: dict[str, tuple[str, ...]] = {
    "dtype": ("bf16", "fp32", "autocast"),
    "attention": ("eager", "sdpa"),
    "recompute": ("none", "selective", "full", "every"),
    "loss": ("eager-fp32", "plain", "chunked"),
}
TORCH = "torch 2.13, saved tensors"
KORTHIKANTI = "Korthikanti et al. 2022, §4"
FP32, BF16, INT64, BOOL = 4, 2, 8, 1


# The numbers of a model, each of which may be an array: num_layers, hidden, heads, kv_heads,
# head_dim, ffn, vocab, positions; and the choices tied, bias, mlp. ``labkit.models.Model`` is one.
Shape = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """The choices that decide which operators run, and so what is saved.

    Attributes:
        dtype: ``"bf16"`` and ``"fp32"`` throughout, or fp32 parameters under bf16 ``"autocast"``.
        attention: ``"eager"`` (all scores exist) or ``"sdpa"`` (a flash kernel).
        recompute: nothing, attention's core (``"selective"``, Korthikanti et al. 2022, §5), every
            layer or group of layers (``"full"``), or every k-th layer (``"every"``).
        norm_fused: RMSNorm is one kernel; otherwise the usual lines in fp32. LayerNorm always is.
        loss: cross-entropy of logits cast to fp32, of the logits as they are, or over one part of
            the tokens at a time, each recomputed (``"chunked"``, which also casts).
        wide_norm_statistics: LayerNorm keeps mean and 1/deviation in fp32 whatever its input. A GPU
            does; torch's CPU kernel keeps them in the input's dtype, and so by default do we.
    """

    dtype: Dtype = "bf16"
    attention: Attention = "sdpa"
    recompute: Recompute = "none"
    norm_fused: bool = True
    loss: Loss = "eager-fp32"
    wide_norm_statistics: bool = False

    def __post_init__(self) -> None:
        for name, valid in VALID.items():
            if getattr(self, name) not in valid:
                raise UsageError(
                    f"{name} must be one of {', '.join(valid)}, got {getattr(self, name)!r}"
                )

    @property
    def compute_bytes(self) -> int:
        """Bytes of an element in matrix products."""
        return FP32 if self.dtype == "fp32" else BF16

    @property
    def stream_bytes(self) -> int:
        """Bytes of an element between the layers, and of a parameter."""
        return BF16 if self.dtype == "bf16" else FP32


def supported(shape: Shape) -> None:
    """Refuse what these formulas do not cover.

    Raises:
        UsageError: the model has experts, latent attention, normalised queries, unequal biases,
            or a norm other than its kind of block has.
    """
    absent = {"num_experts": 0, "kv_rank": 0, "qk_norm": False, "layout": ()}
    absent |= {"qkv_bias": None, "out_bias": None, "mlp_bias": None}
    for name, nothing in absent.items():
        if getattr(shape, name, nothing) not in (
            nothing,
            shape.bias if "bias" in name else nothing,
        ):
            raise UsageError(
                f"{name}={getattr(shape, name)!r}: activations are known for plain GPT blocks"
                " (layernorm, gelu) and plain Llama blocks (rmsnorm, swiglu) only"
            )
    pair = (shape.mlp, getattr(shape, "norm", None))
    if pair not in {("gelu", "layernorm"), ("swiglu", "rmsnorm")}:
        raise UsageError(
            f"mlp and norm must be gelu and layernorm, or swiglu and rmsnorm, got {pair}"
        )


def _term(component: str, num_bytes: Any, formula: str, source: str = TORCH) -> Term:
    return Term(component=component, num_bytes=num_bytes, formula=formula, source=source)


def _over(number: Any, parts: Any) -> Any:
    return number // parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Elements of one layer's tensors on one rank."""

    rows: Any
    hidden: Any
    query: Any
    key: Any
    inner: Any
    sums: Any
    scores: Any
    pairs: Any
    attention_weights: Any
    mlp_weights: Any

    @classmethod
    def of(
        cls, shape: Shape, *, seq: Any, micro_batch: Any, tp: Any, sequence_parallel: bool
    ) -> _Sizes:
        tokens = micro_batch * seq
        along = tp if sequence_parallel else 1
        query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        matrices = 3 if shape.mlp == "swiglu" else 2
        return cls(
            rows=_over(tokens, along),
            hidden=_over(tokens * shape.hidden, along),
            query=_over(tokens * query, tp),
            key=_over(tokens * key, tp),
            inner=_over(tokens * shape.ffn, tp),
            sums=_over(tokens * shape.heads, tp),
            scores=_over(micro_batch * shape.heads * seq * seq, tp),
            pairs=seq * seq,
            attention_weights=_over(2 * shape.hidden * (query + key), tp),
            mlp_weights=_over(matrices * shape.hidden * shape.ffn, tp),
        )


def layer_terms(
    shape: Shape,
    mode: Mode,
    *,
    seq: Any,
    micro_batch: Any,
    dropout_mask_bytes: Any = 0,
    tp: Any = 1,
    sequence_parallel: bool = False,
) -> tuple[Term, ...]:
    """What one layer keeps, all of it (``recompute="full"``: its input only).

    ``dropout_mask_bytes`` is what dropout stores an element: 0 without dropout, 1 on a GPU (2 in
    bf16 on a CPU). With ``recompute="every"`` these are the terms of a layer that is not
    recomputed; :func:`stack_terms` counts both kinds.

    >>> from labkit.models import Model
    >>> gpt = Model.preset("gpt2-124m")
    >>> terms = layer_terms(gpt, Mode(), seq=1024, micro_batch=1)
    >>> sum(t.num_bytes for t in terms) == 1024 * (32 * gpt.hidden + 4 * gpt.heads + 8)
    True
    """
    sizes = _Sizes.of(
        shape, seq=seq, micro_batch=micro_batch, tp=tp, sequence_parallel=sequence_parallel
    )
    if mode.recompute == "full":
        return (_input_term(sizes, mode),)
    llama = shape.mlp == "swiglu"
    return (
        *_norm_terms("attention", sizes, mode, llama),
        *_projection_terms(sizes, mode, llama),
        *_core_terms(sizes, mode, dropout_mask_bytes),
        *_dropout_term("attention.dropout mask", sizes, dropout_mask_bytes),
        *_norm_terms("mlp", sizes, mode, llama),
        *_mlp_terms(sizes, mode, llama),
        *_dropout_term("mlp.dropout mask", sizes, dropout_mask_bytes),
        *_cached_terms(sizes, mode),
    )


def _input_term(sizes: _Sizes, mode: Mode) -> Term:
    width = mode.stream_bytes
    return _term(
        "input",
        width * sizes.hidden,
        f"{width}·b·s·h",
        f"{TORCH}; Korthikanti et al. 2022, Table 2",
    )


def _norm_terms(part: str, sizes: _Sizes, mode: Mode, llama: bool) -> tuple[Term, ...]:
    width = mode.stream_bytes
    if not llama:
        statistic = FP32 if mode.wide_norm_statistics else width
        return (
            _term(f"{part}.norm input", width * sizes.hidden, f"{width}·b·s·h"),
            _term(
                f"{part}.norm statistics",
                2 * statistic * sizes.rows,
                f"2·{statistic}·b·s (mean, 1/deviation)",
            ),
        )
    kept = width if mode.norm_fused else FP32
    terms = (
        _term(
            f"{part}.norm input",
            kept * sizes.hidden,
            f"{kept}·b·s·h" + ("" if mode.norm_fused else " (in fp32)"),
        ),
        _term(f"{part}.norm statistics", FP32 * sizes.rows, "4·b·s (1/rms)"),
    )
    if mode.norm_fused:
        return terms
    scaled = _term(
        f"{part}.normalised", width * sizes.hidden, f"{width}·b·s·h (before the norm's weight)"
    )
    return (*terms, scaled)


def _projection_terms(sizes: _Sizes, mode: Mode, llama: bool) -> tuple[Term, ...]:
    """The input of query, key and value. Autocast casts it once for each matrix it meets."""
    width = mode.compute_bytes
    copies = 3 if llama and mode.dtype == "autocast" else 1
    times = f"{copies}·" if copies > 1 else ""
    return (
        _term("attention.projection input", copies * width * sizes.hidden, f"{times}{width}·b·s·h"),
    )


def _core_terms(sizes: _Sizes, mode: Mode, mask_bytes: Any) -> tuple[Term, ...]:
    width = mode.compute_bytes
    kept = mode.recompute != "selective"
    repeated = mode.attention == "eager" and kept  # key heads copied for every query head
    key, letter = (sizes.query, "q") if repeated else (sizes.key, "k")
    terms = [
        _term(
            "attention.query, key, value",
            width * (sizes.query + 2 * key),
            f"{width}·b·s·(q + 2·{letter})",
        )
    ]
    if kept and mode.attention == "sdpa":
        terms.append(
            _term(
                "attention.log of sums",
                FP32 * sizes.sums,
                "4·a·b·s",
                f"{TORCH}; Dao et al. 2022, Algorithm 1",
            )
        )
    if kept and mode.attention == "eager":
        terms.extend(_score_terms(sizes, width, mask_bytes))
    terms.append(_term("attention.output", width * sizes.query, f"{width}·b·s·q"))
    return tuple(terms)


def _score_terms(sizes: _Sizes, width: int, mask_bytes: Any) -> list[Term]:
    terms = [
        _term("attention.softmax output", width * sizes.scores, f"{width}·a·b·s²"),
        _term("attention.causal mask", BOOL * sizes.pairs, "s²"),
    ]
    if not _is_zero(mask_bytes):
        terms.append(
            _term(
                "attention.dropout mask and output",
                _where_positive(mask_bytes, width + mask_bytes) * sizes.scores,
                f"({width} + m)·a·b·s², m bytes of mask",
                KORTHIKANTI,
            )
        )
    return terms


def _is_zero(number: Any) -> bool:
    return isinstance(number, int) and number == 0


def _where_positive(number: Any, wanted: Any) -> Any:
    return (number > 0) * wanted


def _dropout_term(component: str, sizes: _Sizes, mask_bytes: Any) -> tuple[Term, ...]:
    if _is_zero(mask_bytes):
        return ()
    return (_term(component, mask_bytes * sizes.hidden, "m·b·s·h, m bytes of mask", KORTHIKANTI),)


def _mlp_terms(sizes: _Sizes, mode: Mode, llama: bool) -> tuple[Term, ...]:
    width = mode.compute_bytes
    copies = 2 if llama and mode.dtype == "autocast" else 1
    inner = ("gate", "activation", "up", "down input") if llama else ("up", "down input")
    times = f"{copies}·" if copies > 1 else ""
    return (
        _term("mlp.projection input", copies * width * sizes.hidden, f"{times}{width}·b·s·h"),
        *(_term(f"mlp.{name}", width * sizes.inner, f"{width}·b·s·f") for name in inner),
    )


def _cached_terms(sizes: _Sizes, mode: Mode) -> tuple[Term, ...]:
    """Autocast's bf16 copies of the weights, kept for the gradient of the layer's input."""
    if mode.dtype != "autocast":
        return ()
    return (
        _term(
            "cached weights",
            BF16 * (sizes.attention_weights + sizes.mlp_weights),
            "2·(weights of the layer's matrices)",
        ),
    )


def stack_terms(
    shape: Shape,
    mode: Mode,
    *,
    seq: Any,
    micro_batch: Any,
    period: Any = 1,
    group: Any = 1,
    dropout_mask_bytes: Any = 0,
    tp: Any = 1,
    sequence_parallel: bool = False,
) -> tuple[Term, ...]:
    """What all layers together keep at the end of the forward pass.

    ``group`` layers keep one input between them under ``recompute="full"``; under ``"every"``
    each ``period``-th layer keeps its input only.
    """
    sizes = _Sizes.of(
        shape, seq=seq, micro_batch=micro_batch, tp=tp, sequence_parallel=sequence_parallel
    )
    layers = shape.num_layers
    if mode.recompute == "full":
        inputs, whole = -(-layers // group), 0 * layers
    elif mode.recompute == "every":
        inputs, whole = layers // period, layers - layers // period
    else:
        inputs, whole = 0, layers
    found = []
    if mode.recompute in {"full", "every"}:
        one = _input_term(sizes, mode)
        count = "ceil(l/group)" if mode.recompute == "full" else "floor(l/period)"
        found.append(_times(one, inputs, count))
    if mode.recompute != "full":
        terms = layer_terms(
            shape,
            mode,
            seq=seq,
            micro_batch=micro_batch,
            dropout_mask_bytes=dropout_mask_bytes,
            tp=tp,
            sequence_parallel=sequence_parallel,
        )
        count = "(l - floor(l/period))" if mode.recompute == "every" else "l"
        found.extend(_times(term, whole, count) for term in terms)
    return tuple(found)


def _times(term: Term, number: Any, text: str) -> Term:
    return _term(
        f"layers.{term.component}", number * term.num_bytes, f"{text}·({term.formula})", term.source
    )


def end_terms(
    shape: Shape,
    mode: Mode,
    *,
    seq: Any,
    micro_batch: Any,
    tp: Any = 1,
    sequence_parallel: bool = False,
) -> tuple[Term, ...]:
    """What is kept before the first layer and after the last: positions, final norm, head, loss."""
    sizes = _Sizes.of(
        shape, seq=seq, micro_batch=micro_batch, tp=tp, sequence_parallel=sequence_parallel
    )
    llama = shape.mlp == "swiglu"
    found = []
    if not _is_zero(shape.positions):
        found.append(_term("embedding.position numbers", INT64 * seq, "8·s"))
    found.extend(_norm_terms("head", sizes, mode, llama))
    chunked = mode.loss == "chunked"
    width = mode.stream_bytes if chunked else mode.compute_bytes
    found.append(_term("head.input", width * sizes.hidden, f"{width}·b·s·h"))
    if chunked:
        return tuple(found)
    wide = FP32 if mode.loss == "eager-fp32" or mode.dtype != "bf16" else BF16
    found.append(
        _term(
            "loss.log-softmax", wide * _over(micro_batch * seq * shape.vocab, tp), f"{wide}·b·s·v"
        )
    )
    found.append(_term("loss.sum of weights", wide, f"{wide}"))
    if mode.dtype == "autocast":
        found.append(
            _term("head.cached weight", BF16 * _over(shape.vocab * shape.hidden, tp), "2·v·h")
        )
    return tuple(found)


def total_bytes(terms: tuple[Term, ...]) -> Any:
    """The sum of the terms' bytes."""
    return sum(term.num_bytes for term in terms)
