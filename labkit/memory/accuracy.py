"""The accuracy table: peaks predicted and tracked, model by model, with the moment each names.

``python -m labkit.memory.accuracy`` prints it in two to three minutes, with ``--quick`` a part
of it in half a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from labkit.memory import moments, tracker
from labkit.memory.saved import Mode
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training step to predict and to track."""

    name: str
    model: Model
    seq: int
    micro_batch: int
    mode: Mode = field(default_factory=Mode)
    step: str = "foreach"
    group: int = 1
    period: int = 1
    chunks: int = 8

    @property
    def sizes(self) -> dict[str, Any]:
        names = ("seq", "micro_batch", "step", "group", "period", "chunks")
        return {name: getattr(self, name) for name in names}


def gpt_1_3b() -> Model:
    """GPT-3 XL's sizes (Brown et al. 2020, Table 2.1) with heads of 128."""
    return Model(name="gpt-1.3b", num_layers=24, hidden=2048, heads=16, vocab=50257, positions=2048)


def quick_cases() -> tuple[Case, ...]:
    """Each model of the table once, and six different moments at the peak."""
    preset = Model.preset
    full = {"recompute": "full", "loss": "chunked"}
    return (
        _case(preset("gpt2-124m"), 1024, 8),
        _case(preset("gpt2-124m"), 1024, 16, attention="eager", **full),
        _case(preset("gpt2-355m"), 1024, 16, dtype="autocast", **full),
        _case(preset("gpt2-1.5b"), 128, 1, dtype="fp32", step="fused"),
        _case(gpt_1_3b(), 2048, 4, step="fused", **full),
        _case(preset("llama-2-7b"), 4096, 1),
    )


def cases() -> tuple[Case, ...]:
    """The quick ones and, for each model, number formats and recomputation in turn."""
    preset = Model.preset
    models = [(preset(f"gpt2-{size}"), 1024, 8) for size in ("124m", "355m", "1.5b")]
    models += [(gpt_1_3b(), 2048, 2), (preset("llama-2-7b"), 4096, 1)]
    grid = [
        _case(model, seq, micro_batch, dtype=dtype, recompute=recompute)
        for model, seq, micro_batch in models
        for dtype in ("bf16", "fp32", "autocast")
        for recompute in ("none", "full")
    ]
    return (*quick_cases(), *(case for case in grid if case not in quick_cases()))


def _case(
    model: Model, seq: int, micro_batch: int, *, step: str = "foreach", **choices: Any
) -> Case:
    return Case(
        name=model.name,
        model=model,
        seq=seq,
        micro_batch=micro_batch,
        step=step,
        mode=Mode(**choices),
    )


def compare(case: Case) -> dict[str, Any]:
    """One row: predicted and tracked peak, their difference, and both names of the moment."""
    seen = tracker.track(case.model, case.mode, **case.sizes)
    told = moments.peak(case.model, case.mode, **case.sizes)
    return {
        "model": case.name,
        **{name: getattr(case.mode, name) for name in ("dtype", "attention", "recompute", "loss")},
        **{name: getattr(case, name) for name in ("step", "seq", "micro_batch")},
        "predicted_bytes": told.num_bytes,
        "tracked_bytes": seen.peak_bytes,
        "error_bytes": told.num_bytes - seen.peak_bytes,
        "predicted_moment": told.moment,
        "tracked_moment": seen.peak_moment,
    }


def table(chosen: Iterable[Case] | None = None) -> pd.DataFrame:
    """The table for ``chosen`` cases, all of :func:`cases` by default."""
    import pandas as pd

    return pd.DataFrame([compare(case) for case in (cases() if chosen is None else chosen)])


if __name__ == "__main__":
    print(table(quick_cases() if "--quick" in sys.argv[1:] else None).to_string(index=False))
