"""The sizes of a network and the numbers of a step, and from them the values of the tape's units.

A shape has the sizes of a :class:`labkit.models.Model`; each may be an array.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from labkit.errors import UsageError
from labkit.memory.tape.mode import FP32, CpExchange, Mode
from labkit.memory.tape.tape import UNITS
from labkit.memory.tape.trained import Trained
from labkit.models import Model

Shape = Any
DENSE = "dense"
EXPERTS = "experts"
MIXED = "mixed"
_SIZES = {field.name for field in fields(Model)} - {"name", "operators", "source"}
# A rank's tokens are cut by sequence parallelism where what each of them has is whole on it.
_CUT = ("b·s", "b·s·h", "b·s·i", "b·s·j", "b·s·l", "b·s·x", "b·s·n")
_LETTERS = [
    unit.split("·")
    if unit == "b·s²"
    else unit.replace("tp·b·s", "tokens")
    .replace("b·s", "rows" if unit in _CUT else "tokens")
    .split("·")
    for unit in UNITS
]
_NONE = dict.fromkeys((letter for unit in _LETTERS for letter in unit), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The sizes of a step that are numbers; each may be an array. See :func:`moments`.

    ``cp`` and those from ``trained`` on are no arrays. They say what is trained (None: all), which
    projections have adapters, of which ``rank`` and of how many bytes an element, whether with
    dropout, and whether the base is in 4 bits; ``update`` is how the optimizer steps inside the
    backward pass (:data:`labkit.memory.tape.tape.UPDATES`), by temporaries of ``state_bytes`` an
    element. ``reentrant``: layers are recomputed inside a backward pass of their own. ``tuner``:
    what is trained beside the base, where that is not LoRA
    (:data:`labkit.memory.tape.tuners.Tuner`); ``prompt_tokens`` of the ``seq`` tokens are virtual,
    and their encoder is ``prompt_hidden`` wide.
    """

    seq: Any
    micro_batch: Any
    period: Any = 1
    group: Any = 1
    chunks: Any = 8
    chunk_tokens: Any = None
    tp: Any = 1
    ep: Any = 1
    cp: int = 1
    cp_exchange: CpExchange = "all-gather"
    sequence_parallel: bool = False
    trained: Trained | None = None
    rank: int = 0
    adapted: tuple[str, ...] = ()
    adapter_bytes: int = FP32
    adapter_dropout: bool = False
    packed: bool = False
    update: str = ""
    state_bytes: int = 0
    reentrant: bool = False
    tuner: str = ""
    prompt_tokens: int = 0
    prompt_hidden: int = 0

    def __post_init__(self) -> None:
        for name in ("seq", "micro_batch", "period", "group", "chunks", "tp", "ep"):
            value = getattr(self, name)
            if np.any(value < 1) if is_array(value) else value < 1:
                raise UsageError(f"{name} must be >= 1, got {value}")

    @property
    def rows(self) -> Any:
        """Tokens of a rank between the layers: sequence parallelism cuts them by tp."""
        tokens = self.micro_batch * self.seq
        return over(tokens, self.tp) if self.sequence_parallel else tokens

    @property
    def chunk_rows(self) -> tuple[Any, Any]:
        """Rows of a chunk of a head, and of the last one: ``torch.chunk``'s rule, or that of
        ``torch.split`` where the rows are given.
        """
        rows = self.rows
        chunk = -(-rows // self.chunks)
        if self.chunk_tokens is not None:
            chunk = np.minimum(self.chunk_tokens, rows) if is_array(rows) else self._within(rows)
        return chunk, rows - (-(-rows // chunk) - 1) * chunk

    def _within(self, rows: int) -> Any:
        """The rows of a chunk, of which there are not more than ``rows``."""
        tokens = self.chunk_tokens
        return np.minimum(tokens, rows) if is_array(tokens) else min(tokens, rows)

    @property
    def num_chunks(self) -> Any:
        """Chunks of a head: as many as are asked for, or as the rows of each make."""
        if self.chunk_tokens is None:
            return self.chunks
        return -(-self.rows // self.chunk_rows[0])


def shape_of(model: Model | Shape, **changes: Any) -> Shape:
    """The sizes of a model, or of another shape, some of them changed.

    Raises:
        UsageError: the layers are not known, a block mixes GPT's parts and Llama's, or experts,
            latents or normalised heads are in a block other than Llama's.
    """
    if not isinstance(model, Model):
        return SimpleNamespace(**(vars(model) | changes)) if changes else model
    biases = {"qkv_bias": "qkv", "out_bias": "out", "mlp_bias": "mlp"}
    sizes = {name: getattr(model, name) for name in _SIZES}
    sizes |= {name: model.has_bias(where) for name, where in biases.items()}  # type: ignore[arg-type]
    shape = SimpleNamespace(**(sizes | changes))
    _require_known(shape)
    return shape


def _require_known(shape: Shape) -> None:
    """Refuse a shape of whose blocks the tape has no program."""
    if shape.layout:
        raise UsageError("layout must be empty: activations follow from sizes, not from tensors")
    pair = (shape.mlp, shape.norm)
    if pair not in {("gelu", "layernorm"), ("swiglu", "rmsnorm")}:
        raise UsageError(
            f"mlp and norm must be gelu and layernorm, or swiglu and rmsnorm, got {pair}"
        )
    parts = ("num_experts", "kv_rank", "qk_norm")
    if shape.mlp == "gelu" and (there := [name for name in parts if getattr(shape, name)]):
        raise UsageError(
            f"mlp must be swiglu where {there[0]}={getattr(shape, there[0])!r}: experts, latent"
            " attention and normalised heads are known in Llama's blocks only"
        )
    if shape.num_experts and shape.mlp_bias:
        raise UsageError("mlp_bias must be False where there are experts: they are known without")
    if shape.qk_norm and shape.fused_qkv:
        raise UsageError(
            "fused_qkv must be False where qk_norm is True: heads are normalised alone"
        )
    if shape.kv_rank and shape.qk_norm:
        raise UsageError("qk_norm must be False where kv_rank is not 0: latents have norms")


def num_dense(shape: Shape) -> Any:
    """Layers with an MLP; the rest have experts."""
    return shape.dense_layers if shape.num_experts else shape.num_layers


def stack(shape: Shape) -> str:
    """Which kinds of layers there are: ``"dense"``, ``"experts"``, or ``"mixed"``: both.

    Raises:
        UsageError: an array of layers has some configurations of one kind and some of both.
    """
    both = np.asarray(shape.num_layers > num_dense(shape))
    if both.all() != both.any():
        raise UsageError(
            f"num_layers must exceed dense_layers ({num_dense(shape)}) for all configurations of"
            " one call or for none"
        )
    if not both.all():
        return DENSE
    return MIXED if num_dense(shape) else EXPERTS


def is_array(value: Any) -> bool:
    """Whether a value is an array; for the thousands of plain numbers quicker than ``np.ndim``."""
    return isinstance(value, np.ndarray) and value.ndim > 0


def units(shape: Shape, numbers: Numbers, mode: Mode) -> list[Any]:
    """The values of :data:`labkit.memory.tape.tape.UNITS` on one rank; 0 of what there is not."""
    value = _letters(shape, numbers, mode)
    return [prod([value[letter] for letter in letters]) for letters in _LETTERS]


def _letters(shape: Shape, numbers: Numbers, mode: Mode) -> dict[str, Any]:
    """The value of each letter that units are products of.

    What is per head, the MLP and the vocabulary are cut by tp; latents are not. Tokens are spread
    evenly over experts; a rank's experts get those of all ``ep`` ranks that share them.
    """
    s = numbers.seq
    tp = numbers.tp
    tokens = numbers.micro_batch * s
    rows = numbers.rows
    heads = over(shape.heads, tp)
    letters = _NONE | {
        **{"1": 1, "b": numbers.micro_batch, "s": s, "s²": s * s, "tokens": tokens, "rows": rows},
        **{"h": shape.hidden, "a": heads, "q": over(shape.heads * shape.head_dim, tp)},
        **{"k": over(shape.kv_heads * shape.head_dim, tp), "f": over(shape.ffn, tp)},
        **{"v": over(shape.vocab, tp), "p": shape.positions, "ρ": numbers.rank},
        "cp": numbers.cp,
        "δ": shape.rope_head_dim or shape.head_dim,
    }
    if numbers.tuner:
        letters |= {f"{letter}²": letters[letter] ** 2 for letter in "hqf"}
        wide = numbers.prompt_hidden
        letters |= {"τ": numbers.prompt_tokens, "η": wide, "η²": wide * wide}
    if mode.chunked:
        letters["c"], letters["e"] = numbers.chunk_rows
    if shape.qk_norm:
        letters |= {"u": over(shape.kv_heads, tp), "d": shape.head_dim}
    if shape.kv_rank:
        turned = shape.rope_head_dim
        latent = shape.kv_rank
        letters |= {"i": shape.q_rank, "j": latent + turned, "l": latent, "o": turned}
        letters |= {"q": heads * (shape.head_dim + turned), "w": heads * shape.value_head_dim}
        letters |= {"z": heads * (shape.head_dim + shape.value_head_dim)}
    if shape.num_experts:
        experts = shape.num_experts
        few = shape.experts_per_token
        own = over(experts, numbers.ep)
        width = over(shape.expert_ffn, tp)
        places = -(-tokens * few // own)
        letters |= {"x": experts, "n": few, "y": own, "g": width, "t": places, "r": own * places}
        letters |= {"m": shape.shared_experts * width}
    return letters


def over(number: Any, parts: Any) -> Any:
    """``number`` divided among ``parts``; one part leaves it alone, which arrays are spared."""
    return number if isinstance(parts, int) and parts == 1 else number // parts
