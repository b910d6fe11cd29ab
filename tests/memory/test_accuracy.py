"""The tables of accuracy: what each says of a miss, and of what was not measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from labkit.errors import UsageError
from labkit.memory import Plan
from labkit.memory.oracles import accuracy, cases, cuda, families, tracker


def test_a_miss_is_never_without_a_word() -> None:
    assert accuracy.why(0) == accuracy.why(0, "step", "step") == ""
    assert "first is named" in accuracy.why(0, "loss backward", "backward, last")
    assert accuracy.why(-1, "step", "step") == accuracy.UNEXPLAINED


def test_the_grid_of_layers_has_every_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid itself is run in test_saved; here a tracker that sees nothing."""
    monkeypatch.setattr(tracker, "saved_bytes", lambda *_, **__: 0)
    table = accuracy.table("layers", every=True)
    assert table is not None
    choices = table[["model", "dtype", "attention", "recompute"]].drop_duplicates()
    assert len(table) == 3 * len(choices) == 3 * 2 * 3 * 2 * 3
    assert (table["error_bytes"] > 0).all()
    assert (table["why"] == accuracy.UNEXPLAINED).all()


def test_rows_of_stage_3_explain_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tracker that sees far more than the estimate has."""
    seen = SimpleNamespace(peak_moment="loss backward", peak_bytes=10**15)
    monkeypatch.setattr(tracker, "track", lambda **_: seen)
    table = accuracy.table("stage3", every=True)
    assert table is not None
    assert len(table) > 5
    assert (table["error_bytes"] < 0).all()
    assert (table["why"] == accuracy.UNEXPLAINED).all()


def test_layers_and_stage_3_are_torchs() -> None:
    """A few of the rows themselves; models are run in test_moments, shards in test_oracle."""
    pytest.importorskip("torch")
    plan = cases.at_stage_3()[1]
    assert accuracy.peak_row(plan)["error_bytes"] == 0


def test_without_a_gpu_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "shipped", lambda name: tmp_path / name)
    assert accuracy.table("gpu") is None
    (tmp_path / "data" / "measured").mkdir(parents=True)
    (tmp_path / "data" / "measured" / cuda.FILE).write_text("gpu,error_bytes\nX,12\n")
    measured = accuracy.table("gpu")
    assert measured is not None
    assert measured["error_bytes"].tolist() == [12]


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(UsageError, match="no part 'layer'; did you mean 'layers'"):
        accuracy.table("layer")


def test_every_family_is_torchs() -> None:
    """What is stored; the rows are run again in test_traced, and all by ``--fresh``."""
    table = accuracy.table("families")
    assert table is not None
    assert set(table["part"]) == set(families.PARTS)
    assert set(table.loc[table["part"] == "traced", "family"]) == set(families.CONFIGS)
    assert (table["error_bytes"] == 0).all()
    assert (table["predicted_bytes"] == table["tracked_bytes"]).all()
    closed = _closed(table)
    assert len(closed) > len(families.CLOSED)
    for plan, tracked in closed:
        peak = plan.peak_bytes
        counters = 0 if plan.recipe.step == "fused" else tracked - peak
        assert peak + counters == tracked
        assert 0 <= counters <= 4 * len(plan.sized()[0].tensors())


def _closed(table: pd.DataFrame) -> list[tuple[Plan, int]]:
    """The plans with closed forms, and what the tracker saw of each."""
    rows = table[table["part"] == "closed forms"]["tracked_bytes"].tolist()
    plans = [plan for _, _, plan in families.closed_steps()]
    return list(zip(plans, rows, strict=True))


def test_a_family_is_a_row_with_its_stages() -> None:
    rows = [("a", 0, 0), ("a", 2, 1), ("a", 3, 2), ("b", 0, 3)]
    names = ("family", "zero", "error_bytes")
    table = families.by_family(pd.DataFrame(rows, columns=names).assign(part="traced"))
    assert table["family"].tolist() == ["a", "b"]
    assert table["error_bytes"].tolist() == [0, 3]
    assert table["zero_2_error_bytes"].tolist()[0] == 1
    assert table["zero_3_error_bytes"].isna().tolist() == [False, True]
