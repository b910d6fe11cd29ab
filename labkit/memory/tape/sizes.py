"""The numbers of a step, and from them the values of the tape's units on one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.errors import UsageError
from labkit.memory.tape.shapes import Shape, get
from labkit.memory.tape.tape import UNITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The sizes of a step that are numbers; each may be an array. See :func:`moments`."""

    seq: Any
    micro_batch: Any
    period: Any = 1
    group: Any = 1
    chunks: Any = 8
    tp: Any = 1
    ep: Any = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        for name in ("seq", "micro_batch", "period", "group", "chunks", "tp", "ep"):
            value = getattr(self, name)
            if np.any(value < 1) if is_array(value) else value < 1:
                raise UsageError(f"{name} must be >= 1, got {value}")


def is_array(value: Any) -> bool:
    """Cheaper than ``np.ndim`` for plain numbers, of which an estimate has thousands."""
    return isinstance(value, np.ndarray) and value.ndim > 0


def units(shape: Shape, numbers: Numbers, *, chunked: bool = False) -> list[Any]:
    """The values of :data:`labkit.memory.tape.tape.UNITS` on one rank."""
    b, s, tp = numbers.micro_batch, numbers.seq, numbers.tp
    tokens = b * s
    rows = over(tokens, tp) if numbers.sequence_parallel else tokens
    h, v, f = shape.hidden, over(shape.vocab, tp), over(shape.ffn, tp)
    q, k = over(shape.heads * shape.head_dim, tp), over(shape.kv_heads * shape.head_dim, tp)
    heads, wide = over(shape.heads, tp), rows * h
    values = {
        **{"1": 1, "s": s, "b·s": rows, "b·s·h": wide, "b·s·q": tokens * q},
        **{"b·s·k": tokens * k, "b·s·f": tokens * f, "b·s·a": tokens * heads},
        **{"b·s·v": tokens * v, "b·a·s²": tokens * heads * s, "s²": s * s, "s·h": s * h},
        **{"h": h, "q": q, "k": k, "f": f, "h·q": h * q, "h·k": h * k, "h·f": h * f},
        **{"h·v": h * v, "h·p": h * shape.positions, "tp·b·s·h": tokens * h},
    }
    if chunked:
        chunk, last = chunk_rows(rows, numbers.chunks)
        values |= {"c": chunk, "c·h": chunk * h, "c·v": chunk * v}
        values |= {"e": last, "e·h": last * h, "e·v": last * v}
    if get(shape, "qk_norm"):
        values |= {"b·s·u": tokens * over(shape.kv_heads, tp), "d": shape.head_dim}
    if get(shape, "kv_rank"):
        values |= _latent_units(shape, rows, tokens, heads)
    if get(shape, "num_experts"):
        values |= _expert_units(shape, numbers, rows, tokens)
    return [values.get(name, 0) for name in UNITS]


def _latent_units(shape: Shape, rows: Any, tokens: Any, heads: Any) -> dict[str, Any]:
    """What is per head is cut for tensor parallelism; latents follow the sequence's own cut."""
    h, i, l = shape.hidden, shape.q_rank, shape.kv_rank  # noqa: E741
    o = shape.rope_head_dim
    q, j = heads * (shape.head_dim + o), l + o
    z, w = heads * (shape.head_dim + shape.value_head_dim), heads * shape.value_head_dim
    return {
        **{"b·s·q": tokens * q, "q": q, "h·q": h * q, "b·s·i": rows * i, "b·s·j": rows * j},
        **{"b·s·l": rows * l, "b·s·o": tokens * o, "b·s·a·o": tokens * heads * o},
        **{"b·s·z": tokens * z, "b·s·w": tokens * w, "i": i, "j": j, "l": l},
        **{"h·i": h * i, "i·q": i * q, "h·j": h * j, "l·z": l * z, "h·w": h * w},
    }


def _expert_units(shape: Shape, numbers: Numbers, rows: Any, tokens: Any) -> dict[str, Any]:
    """Tokens are spread evenly; a rank's experts get those of all ``ep`` ranks that share them."""
    x, n, h = shape.num_experts, shape.experts_per_token, shape.hidden
    y, g = over(x, numbers.ep), over(shape.expert_ffn, numbers.tp)
    t = -(-tokens * n // y)
    m = shape.shared_experts * g
    return {
        **{"b·s·x": rows * x, "b·s·n": rows * n, "x": x, "h·x": h * x, "t": t},
        **{"r": y * t, "r·h": y * t * h, "r·g": y * t * g, "y·h·g": y * h * g},
        **{"b·s·m": tokens * m, "h·m": h * m},
    }


def over(number: Any, parts: Any) -> Any:
    """Whole parts; nothing is computed where there is one, which arrays notice."""
    return number if isinstance(parts, int) and parts == 1 else number // parts


def chunk_rows(rows: Any, chunks: Any) -> tuple[Any, Any]:
    """Rows of a chunk, and of the last one: ``torch.chunk``'s rule."""
    chunk = -(-rows // chunks)
    return chunk, rows - (-(-rows // chunk) - 1) * chunk
