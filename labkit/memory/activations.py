"""Activations kept for the backward pass, by two published formulas that disagree on purpose.

Both are approximations of a GPT-like block, in elements or bytes a layer; neither knows which
kernels run. They stand beside each other so that one can see what each leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from labkit.models import Model

Formula = Literal["zero-paper", "korthikanti"]
Recompute = Literal["none", "full"]

FORMULAS: dict[str, str] = {
    "zero-paper": "12·h·b·s elements a layer (ZeRO, footnote to §3.2): no term for attention",
    "korthikanti": "s·b·h·(34 + 5·a·s/h) bytes a layer (Korthikanti et al. 2022, eq. 1): "
    "16-bit, attention scores stored, dropout masks of one byte",
}
ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one model replica works on at a time: samples of ``seq`` tokens, and what is kept.

    ``recompute="full"`` keeps each layer's input and recomputes one layer at a time;
    ``partition_checkpoints`` divides those inputs among the model-parallel ranks (ZeRO's P_a).
    """

    seq: int
    micro_batch: int = 1
    recompute: Recompute = "none"
    formula: Formula = "zero-paper"
    partition_checkpoints: bool = False

    def __post_init__(self) -> None:
        if self.seq < 1 or self.micro_batch < 1:
            raise ValueError(
                f"seq and micro_batch must be >= 1, got {self.seq} and {self.micro_batch}"
            )
        if self.recompute not in {"none", "full"}:
            raise ValueError(f"recompute must be none or full, got {self.recompute!r}")
        if self.formula not in FORMULAS:
            raise ValueError(f"formula must be one of {', '.join(FORMULAS)}, got {self.formula!r}")


def layer_bytes(model: Model, batch: Batch) -> float:
    """Bytes one transformer layer keeps for its backward pass, nothing recomputed.

    >>> gpt2 = Model.preset("gpt2-1.5b")
    >>> round(48 * layer_bytes(gpt2, Batch(seq=1024, micro_batch=32)) / 1e9, 1)
    60.4
    """
    width = batch.seq * batch.micro_batch * model.hidden
    if batch.formula == "zero-paper":
        return 12 * width * ELEMENT_BYTES
    return width * (34 + 5 * model.heads * batch.seq / model.hidden)


def checkpoint_bytes(model: Model, batch: Batch) -> int:
    """Bytes of one layer's input: batch × sequence × hidden, 16 bits each."""
    return batch.seq * batch.micro_batch * model.hidden * ELEMENT_BYTES


def activation_bytes(model: Model, batch: Batch, *, tp: int = 1) -> float:
    """Bytes of activations on one rank: all layers', or the checkpoints and one layer at work.

    A layer at work is divided by ``tp`` here, its input is not (that is the redundancy P_a removes)
    unless ``batch.partition_checkpoints``. Source: ZeRO §3.2, §6.1; Korthikanti et al. 2022.
    """
    working = layer_bytes(model, batch) / tp
    if batch.recompute == "none":
        return model.num_layers * working
    shards = tp if batch.partition_checkpoints else 1
    return model.num_layers * checkpoint_bytes(model, batch) / shards + working


def square_root_bytes(model: Model, batch: Batch) -> float:
    """All layers' activations over √layers: the rule of thumb of §3.2 (Chen et al. 2016)."""
    return model.num_layers**0.5 * layer_bytes(model, batch)
