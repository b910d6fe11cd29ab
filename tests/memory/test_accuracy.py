"""The tables of accuracy: what each says of a miss, and what it says where nothing was measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.memory.oracles import accuracy, cuda, fsdp_tracker
from labkit.models import Model


def test_a_miss_is_never_without_a_word() -> None:
    assert accuracy.why(5, 5) == accuracy.why(5, 5, "step", "step") == ""
    assert "first is named" in accuracy.why(5, 5, "loss backward", "backward, last")
    assert accuracy.why(5, 6) == accuracy.UNEXPLAINED


def test_the_grid_of_layers_has_every_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid itself is run in test_saved; here a tracker that sees nothing."""
    seen = SimpleNamespace(layer_saved_bytes=(0, 0))
    monkeypatch.setattr(accuracy.tracker, "track", lambda *_, **__: seen)
    table = accuracy.saved_layers(quick=True)
    choices = table[["model", "dtype", "attention", "recompute"]].drop_duplicates()
    assert len(choices) == len(table) == 2 * 3 * 2 * 3
    assert (table["error_bytes"] > 0).all()
    assert (table["why"] == accuracy.UNEXPLAINED).all()


def test_rows_of_stage_3_explain_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tracker that sees a byte more than the estimate has."""

    def more(model: Model, *_: object, **__: object) -> dict[str, dict[str, int]]:
        return {"loss backward": {"Total": 10**15}}

    monkeypatch.setattr(fsdp_tracker, "track", more)
    table = accuracy.sharded_peaks(quick=True)
    assert (table["error_bytes"] < 0).all()
    assert (table["why"] == accuracy.UNEXPLAINED).all()


def test_without_a_gpu_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pandas as pd

    assert accuracy.on_a_gpu(tmp_path) is None
    nothing = pd.DataFrame({"error_bytes": [0]})
    for name in ("saved_layers", "shards", "sharded_peaks"):
        monkeypatch.setattr(accuracy, name, lambda *, quick: nothing)
    monkeypatch.setattr(accuracy, "table", lambda cases: nothing)
    monkeypatch.setattr(accuracy, "on_a_gpu", lambda: None)
    accuracy.main(["--quick"])
    assert "not yet measured" in capsys.readouterr().out
    (tmp_path / cuda.FILE).write_text("gpu,error_bytes\nX,12\n")
    monkeypatch.setattr(accuracy, "on_a_gpu", lambda: cuda.stored(tmp_path))
    accuracy.main([])
    told = capsys.readouterr().out
    assert "not yet measured" not in told
    assert "12" in told.rpartition("Peaks on a GPU")[2]
