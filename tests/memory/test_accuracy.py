"""The tables of accuracy: what each says of a miss, and of what was not measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.errors import UsageError
from labkit.memory.oracles import accuracy, cases, cuda, tracker


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
