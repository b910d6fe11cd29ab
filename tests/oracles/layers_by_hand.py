"""What the parts of a layer keep for the backward pass: attention, its latents, MLP and experts.

Every number may be an array. ``value`` holds the sizes of one rank by unit, as
:func:`labkit.memory.tape.sizes.units` gives them; the letters are the tape's.
"""

from __future__ import annotations

from typing import Any

from labkit.memory.tape.mode import BF16, BOOL, FP32, Mode
from labkit.memory.tape.saved import Term
from labkit.memory.tape.sizes import Shape

TORCH = "torch 2.13, saved tensors"
KORTHIKANTI = "Korthikanti et al. 2022, §4"
FLASH = f"{TORCH}; Dao et al. 2022, Algorithm 1"
Values = dict[str, Any]


def term(component: str, num_bytes: Any, formula: str, source: str = TORCH) -> Term:
    return Term(component=component, num_bytes=num_bytes, formula=formula, source=source)


def is_zero(number: Any) -> bool:
    return isinstance(number, int) and number == 0


def norm(part: str, value: Values, mode: Mode, llama: bool) -> tuple[Term, ...]:
    """The norm before ``part``."""
    width = mode.stream_bytes
    if llama:
        return rms_norm(part, value, mode, width, "b·s·h", "b·s")
    statistic = FP32 if mode.gpu else width
    return (
        term(f"{part}.norm input", width * value["b·s·h"], f"{width}·b·s·h"),
        term(
            f"{part}.norm statistics",
            2 * statistic * value["b·s"],
            f"2·{statistic}·b·s (mean, 1/deviation)",
        ),
    )


def rms_norm(
    part: str, value: Values, mode: Mode, width: int, size: str, rows: str, *, held: str = ""
) -> tuple[Term, ...]:
    """A norm of elements ``width`` bytes wide; ``held``: what its input is a view of."""
    casts = not mode.norm_fused and width != FP32
    kept, input_size = (FP32, size) if casts else (width, held or size)
    terms = (
        term(
            f"{part}.norm input",
            kept * value[input_size],
            f"{kept}·{input_size}" + (" (in fp32)" if casts else ""),
        ),
        term(f"{part}.norm statistics", FP32 * value[rows], f"4·{rows} (1/rms)"),
    )
    if mode.norm_fused:
        return terms
    scaled = term(
        f"{part}.normalised", width * value[size], f"{width}·{size} (before the norm's weight)"
    )
    return (*terms, scaled)


def _inputs(component: str, value: Values, mode: Mode, readers: int) -> Term:
    """The input of several matrices, kept once: but autocast casts it once for each."""
    width = mode.compute_bytes
    copies = readers if mode.dtype == "autocast" else 1
    times = f"{copies}·" if copies > 1 else ""
    return term(component, copies * width * value["b·s·h"], f"{times}{width}·b·s·h")


def attention(
    shape: Shape, value: Values, mode: Mode, mask_bytes: Any, micro_batch: Any
) -> tuple[Term, ...]:
    """Projections, what makes queries and keys of them, the core, and the output's input."""
    latent = bool(shape.kv_rank)
    readers = 2 if latent else 1 if shape.fused_qkv else 3
    found = [_inputs("attention.projection input", value, mode, readers)]
    width = mode.compute_bytes
    if latent:
        found += _latents(shape, value, mode)
    elif shape.qk_norm:
        for name, letter, rows in (("query", "q", "a"), ("key", "k", "u")):
            sizes = (f"b·s·{letter}", f"b·s·{rows}")
            found += rms_norm(f"attention.{name}", value, mode, width, *sizes)
    found += _core(shape, value, mode, mask_bytes, micro_batch)
    out = "b·s·w" if latent else "b·s·q"
    return (*found, term("attention.output", width * value[out], f"{width}·{out}"))


def _latents(shape: Shape, value: Values, mode: Mode) -> list[Term]:
    """The latents of queries, and of keys and values, before and after their norms."""
    width = mode.compute_bytes
    found = list[Term]()
    if shape.q_rank:
        found += rms_norm("attention.query latent", value, mode, width, "b·s·i", "b·s")
        found.append(term("attention.query input", width * value["b·s·i"], f"{width}·b·s·i"))
    found += rms_norm("attention.latent", value, mode, width, "b·s·l", "b·s", held="b·s·j")
    found.append(term("attention.key and value input", width * value["b·s·l"], f"{width}·b·s·l"))
    return found


def _core(shape: Shape, value: Values, mode: Mode, mask_bytes: Any, micro_batch: Any) -> list[Term]:
    width = mode.compute_bytes
    kept = mode.recompute != "selective"
    written = mode.attention == "eager" and kept
    if shape.kv_rank:
        found = [_latent_operands(value, width, written, micro_batch)]
    else:
        key = "q" if written else "k"  # repeated for every query head
        size = value["b·s·q"] + 2 * value[f"b·s·{key}"]
        formula = f"{width}·b·s·(q + 2·{key})"
        if not kept and shape.qk_norm and mode.dtype == "autocast" and not mode.norm_fused:
            # The checkpoint keeps what it is given: normalised in fp32, cast by the product inside.
            size = size + value["b·s·q"] + value["b·s·k"]
            formula = "b·s·(4·q + 6·k)"
        if shape.mlp == "swiglu" and shape.fused_qkv:
            more, why = _whole_of(shape, value, written, micro_batch)
            size = size + more
            formula = formula + why.format(width=width)
        found = [term("attention.query, key, value", width * size, formula)]
    if kept and mode.attention == "sdpa":
        found.append(term("attention.log of sums", FP32 * value["b·s·a"], "4·a·b·s", FLASH))
    if written:
        found.extend(_scores(value, width, mask_bytes))
    return found


def _whole_of(shape: Shape, value: Values, written: bool, micro_batch: Any) -> tuple[Any, str]:
    """Values are a view of the one product that queries and keys, turned, have left."""
    more = value["b·s·q"] + value["b·s·k"]
    if not written:
        return more, " + {width}·b·s·(q + k) (values are a view)"
    alone = (micro_batch == 1) * (shape.heads == shape.kv_heads)
    return alone * more, ""


def _latent_operands(value: Values, width: int, written: bool, micro_batch: Any) -> Term:
    """Queries and keys are joined from parts; values are a view, unless they had to be copied."""
    view = value["b·s·z"]
    copy = value["b·s·w"]
    held = view if not written else view * (micro_batch == 1) + copy * (micro_batch != 1)
    letter = "w" if written else "z"
    return term(
        "attention.query, key, value",
        width * (2 * value["b·s·q"] + held),
        f"{width}·b·s·(2·q + {letter})"
        + ("" if written else " (values are a view of keys and values)"),
    )


def _scores(value: Values, width: int, mask_bytes: Any) -> list[Term]:
    scores = value["b·a·s²"]
    terms = [
        term("attention.softmax output", width * scores, f"{width}·a·b·s²"),
        term("attention.causal mask", BOOL * value["s²"], "s²"),
    ]
    if not is_zero(mask_bytes):
        terms.append(
            term(
                "attention.dropout mask and output",
                (mask_bytes > 0) * (width + mask_bytes) * scores,
                f"({width} + m)·a·b·s², m bytes of mask",
                KORTHIKANTI,
            )
        )
    return terms


def dropout(component: str, value: Values, mask_bytes: Any) -> tuple[Term, ...]:
    if is_zero(mask_bytes):
        return ()
    return (term(component, mask_bytes * value["b·s·h"], "m·b·s·h, m bytes of mask", KORTHIKANTI),)


def _gated(mode: Mode) -> tuple[str, ...]:
    """What a gated MLP keeps: SiLU's output only where another kernel multiplies it."""
    if mode.swiglu_fused:
        return ("gate", "up", "down input")
    return ("gate", "activation", "up", "down input")


def mlp(shape: Shape, value: Values, mode: Mode) -> tuple[Term, ...]:
    width = mode.compute_bytes
    llama = shape.mlp == "swiglu"
    inner = _gated(mode) if llama else ("up", "down input")
    return (
        _inputs("mlp.projection input", value, mode, 2 if llama else 1),
        *(term(f"mlp.{name}", width * value["b·s·f"], f"{width}·b·s·f") for name in inner),
    )


def experts(shape: Shape, value: Values, mode: Mode) -> tuple[Term, ...]:
    """Router, the tokens on their way, the routed experts and the shared ones."""
    width = mode.compute_bytes
    shared = bool(shape.shared_experts)
    copies = 2 if mode.dtype == "autocast" else 1
    times = f"{copies}·" if copies > 1 else ""
    inner = _gated(mode)
    chosen = 8 * value["b·s·n"] + 4 * value["b·s·n"] + 4 * value["b·s"]
    found = [
        _inputs("experts.router input", value, mode, 3 if shared else 1),
        term("experts.scores", FP32 * value["b·s·x"], "4·b·s·x"),
        term("experts.chosen and weights", chosen, "(12·n + 4)·b·s"),
        term("experts.places", (17 + width) * value["r"], f"(17 + {width})·r, r = y·t"),
        term("experts.rows", copies * width * value["r·h"], f"{times}{width}·r·h"),
        *(term(f"experts.{name}", width * value["r·g"], f"{width}·r·g") for name in inner),
        term("experts.output", width * value["r·h"], f"{width}·r·h"),
    ]
    if shared:
        found += [
            term(f"experts.shared {name}", width * value["b·s·m"], f"{width}·b·s·m")
            for name in inner
        ]
    return tuple(found)


def cached(shape: Shape, value: Values, mode: Mode, *, with_experts: bool) -> tuple[Term, ...]:
    """Autocast's bf16 copies of the weights, kept for the gradient of the layer's input."""
    if mode.dtype != "autocast":
        return ()
    weights = 2 * (value["h·q"] + value["h·k"])
    if shape.kv_rank:
        query = value["h·i"] + value["i·q"] if shape.q_rank else value["h·q"]
        weights = query + value["h·j"] + value["l·z"] + value["h·w"]
    if with_experts:
        weights = weights + 3 * (value["y·h·g"] + value["h·m"]) + value["h·x"]
    else:
        weights = weights + (3 if shape.mlp == "swiglu" else 2) * value["h·f"]
    name = "experts.cached weights" if with_experts else "cached weights"
    return (term(name, BF16 * weights, "2·(weights of the layer's matrices)"),)
