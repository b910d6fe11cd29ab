"""``make gpu``: what can be tested without a GPU, its parts on a CPU and the files it writes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from labkit.memory import Batch, Model, Plan, Recipe
from labkit.memory.oracles import cases, cuda

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "data/measured/on_gpu.py"
TINY = Model(name="tiny", num_layers=2, hidden=32, heads=4, vocab=101, positions=16)
CARD = {"gpu": "card", "torch": "1", "cuda": "12.0", "driver": "535.10", "date": "2026-01-02"}


@pytest.fixture(scope="module")
def on_gpu() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("on_gpu", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["on_gpu"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["on_gpu"]


def test_without_a_gpu_it_refuses_in_one_sentence(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    command = [sys.executable, str(SCRIPT), "--parts", "memory", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("make gpu needs a CUDA device, and torch finds none here")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_makefile_runs_the_script_and_takes_parts() -> None:
    command = ["make", "-n", "-o", ".venv/.ready", "gpu", "PARTS=overlap memory"]
    told = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert "data/measured/on_gpu.py --parts overlap memory" in told


@pytest.mark.parametrize("part", ["overlap", "lookups", "dispatch"])
def test_a_part_measures_on_a_cpu_and_writes_its_table(
    on_gpu: Any, part: str, tmp_path: Path
) -> None:
    """Every way of a part computes the same numbers; times are positive."""
    store = on_gpu.Store(folder=tmp_path, about=CARD)
    assert on_gpu.run(part, on_gpu.PARTS[part]("cpu", small=True), store, 100) == []
    table = pd.read_csv(tmp_path / f"gpu_{part}.csv", dtype=str)
    assert (table[list(CARD)] == list(CARD.values())).all(axis=None)
    seconds = [name for name in table if name.endswith("_s")]
    assert len(seconds) >= 3
    assert (table[seconds].astype(float) >= 0).all(axis=None)
    assert (table["difference"].astype(float) < 1e-4).all()
    assert [path.name for path in tmp_path.iterdir()] == [f"gpu_{part}.csv"]


def meter_of(peak: Callable[[], int]) -> cuda.Meter:
    return cuda.Meter(
        device="cpu", start=lambda: None, peak=peak, about={}, reserved=lambda: 2 * 10**6
    )


def test_peaks_stand_beside_the_estimate(on_gpu: Any, tmp_path: Path) -> None:
    """Two real steps of each plan on a CPU, with the allocator's part played by constants."""
    recipe = Recipe.fp32_adam(step="fused")
    plans = [
        Plan(model=TINY, recipe=recipe, batch=Batch(seq=8)),
        Plan(model=TINY, recipe=recipe, batch=Batch(seq=8, loss="chunked")),
    ]
    steps = on_gpu.memory("cpu", meter=meter_of(lambda: 10**6), plans=plans)
    on_gpu.run("memory", steps, on_gpu.Store(folder=tmp_path, about=CARD), 100)
    table = pd.read_csv(tmp_path / "gpu_memory.csv")
    predicted = [int(plan.peak_bytes) for plan in plans]
    assert table["predicted_bytes"].tolist() == predicted
    assert table["allocated_bytes"].tolist() == [10**6] * 2
    assert table["reserved_bytes"].tolist() == [2 * 10**6] * 2
    assert table["error_fraction"].tolist() == [round(p / 10**6 - 1, 6) for p in predicted]
    assert table["loss"].tolist() == [plan.batch.loss for plan in plans if plan.batch]


def test_what_is_trained_covers_the_choices_and_fits_24_gib(on_gpu: Any) -> None:
    plans = on_gpu.trainings()
    assert len(plans) >= 12
    assert max(plan.peak_bytes for plan in plans) < 24 * 2**30
    assert {plan.batch.recompute for plan in plans} >= {"none", "full"}
    assert "chunked" in {plan.batch.loss for plan in plans}
    assert any(plan.model.num_experts for plan in plans)
    assert any(plan.recipe.autocast for plan in plans)


def test_the_kinds_beyond_the_oracles_cases_really_train(on_gpu: Any) -> None:
    """Experts, recomputed experts and a chunked loss, at sizes that a CPU takes."""
    for plan in on_gpu.trainings()[len(cases.on_a_gpu()) :]:
        model = plan.model.resized(num_layers=1)
        narrow = {"hidden": 32, "heads": 4, "kv_heads": 4, "ffn": 48, "vocab": 101}
        small = Plan(
            model=replace(model, **narrow),
            recipe=plan.recipe,
            batch=replace(plan.batch, seq=16, micro_batch=1),
        )
        assert cuda.peak_of(small, meter_of(lambda: 7)) == 7


def test_eight_bit_states_go_through_the_same_steps(
    on_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain Adam stands for bitsandbytes' here, whose kernels need a GPU."""
    seen: list[Any] = []

    class Adam8bit(torch.optim.Adam):
        def __init__(self, parameters: Any) -> None:
            parameters = list(parameters)
            seen.extend(parameters)
            super().__init__(parameters)

    stand_in = type(sys)("bitsandbytes.optim")
    stand_in.Adam8bit = Adam8bit  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bitsandbytes", type(sys)("bitsandbytes"))
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", stand_in)
    plan = replace(on_gpu.eight_bit(), model=TINY, batch=Batch(seq=8))
    (row,) = on_gpu._eight_bit_row(plan, meter_of(lambda: 10**6))
    assert {parameter.dtype for parameter in seen} == {torch.bfloat16}
    assert row["predicted_bytes"] == int(plan.peak_bytes)


def test_what_the_card_cannot_hold_is_left_out_and_said(
    on_gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**6, 10**6))
    monkeypatch.setattr(on_gpu, "find_spec", lambda _: None)
    plans = [Plan(model=TINY, recipe=Recipe.fp32_adam(), batch=Batch(seq=16, micro_batch=64))]
    assert list(on_gpu.memory("cuda", meter=meter_of(lambda: 1), plans=plans)) == []
    assert "left out tiny" in capsys.readouterr().out


def test_rows_of_other_cards_stay_and_ones_own_are_replaced(on_gpu: Any, tmp_path: Path) -> None:
    ours = on_gpu.Store(folder=tmp_path, about=CARD)
    others = on_gpu.Store(folder=tmp_path, about={**CARD, "driver": "550.1"})
    ours.write("dispatch", [{"tokens": 1}])
    others.write("dispatch", [{"tokens": 2}])
    path = ours.write("dispatch", [{"tokens": 3}])
    table = pd.read_csv(path, dtype=str)
    assert table["tokens"].tolist() == ["2", "3"]
    assert table["driver"].tolist() == ["550.1", "535.10"]  # as told, not as a number


def test_a_part_ends_with_its_share_of_the_time(
    on_gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [(name, lambda: [{"value": 1}]) for name in ("first", "second")]
    on_gpu.run("dispatch", steps, on_gpu.Store(folder=tmp_path, about=CARD), -1)
    assert "left out: first; second" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert sum(on_gpu.SHARES_S.values()) <= on_gpu.ALL_S <= 8 * 60 - 60


def test_what_a_card_refuses_costs_its_row_alone(
    on_gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> list[dict[str, Any]]:
        raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    steps = [("large", refuse), ("small", lambda: [{"value": 1}])]
    store = on_gpu.Store(folder=tmp_path, about=CARD)
    assert on_gpu.run("dispatch", steps, store, 100) == ["large"]
    assert capsys.readouterr().err == "dispatch: large failed: CUDA out of memory.\n"
    assert pd.read_csv(tmp_path / "gpu_dispatch.csv")["value"].tolist() == [1]


def test_main_runs_the_parts_asked_for_on_the_device(
    on_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that is not there is played by parts of our own; everything else is the script."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(on_gpu, "machine", lambda: CARD)
    asked: list[str] = []

    def part(device: str) -> Any:
        asked.append(device)
        yield "row", lambda: [{"value": 1}]

    monkeypatch.setitem(on_gpu.PARTS, "dispatch", part)
    assert on_gpu.main(["--parts", "dispatch", "--out", str(tmp_path)]) == 0
    assert asked == ["cuda"]
    assert [path.name for path in tmp_path.iterdir()] == ["gpu_dispatch.csv"]
