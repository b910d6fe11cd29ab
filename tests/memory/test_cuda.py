"""Measuring on a GPU: refused without one, and the same path on a CPU with a meter of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.memory.oracles import cases, cuda, tracker
from labkit.memory.plans.job import mode_of

TINY = Model(name="tiny", num_layers=2, hidden=32, heads=4, vocab=101, positions=16)


def without_gpu() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")


def test_without_a_gpu_it_refuses_in_a_paragraph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_gpu()
    assert cuda.main(["--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err.strip()
    assert "needs one that torch can use" in told
    assert "\n" not in told
    assert list(tmp_path.iterdir()) == []
    assert cuda.stored(tmp_path) is None


def test_what_is_measured_covers_the_choices_and_fits_24_gib() -> None:
    plans = cases.on_a_gpu()
    assert len(plans) >= 8
    assert {p.recipe.step for p in plans} == {"foreach", "fused", "for-loop"}
    assert {p.recipe.autocast for p in plans} == {True, False}
    assert {p.model.mlp for p in plans if isinstance(p.model, Model)} == {"gelu", "swiglu"}
    assert {p.batch.recompute for p in plans if p.batch} >= {"none", "full"}
    assert max(p.peak_bytes for p in plans) < 24 * 2**30


def test_the_same_path_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps a plan on real tensors; the second is what the meter reads."""
    pytest.importorskip("torch")
    calls: list[str] = []
    plans = [
        Plan(model=TINY, recipe=Recipe.fp32_adam(step="fused"), batch=Batch(seq=8)),
        Plan(
            model=TINY, recipe=Recipe.preset("bf16-autocast"), batch=Batch(seq=8, recompute="full")
        ),
    ]

    def peak() -> int:
        calls.append("peak")
        return 10**6

    meter = cuda.Meter(
        device="cpu", start=lambda: calls.append("start"), peak=peak, about={"gpu": "none: a CPU"}
    )
    monkeypatch.setattr(cuda, "gpu", lambda: meter)
    monkeypatch.setattr(cases, "on_a_gpu", lambda: tuple(plans))
    assert cuda.main(["--out", str(tmp_path)]) == 0
    assert calls == ["start", "start", "peak"] * 2
    table = cuda.stored(tmp_path)
    assert table is not None
    assert table["predicted_bytes"].tolist() == [int(plan.peak_bytes) for plan in plans]
    assert (table["error_bytes"] == table["predicted_bytes"] - 10**6).all()
    known = table[["script", "machine", "gpu", "torch", "date"]]
    assert known.notna().all(axis=None)
    assert [path.name for path in tmp_path.iterdir()] == [cuda.FILE]


def test_a_meter_that_counts_sees_the_predicted_peak() -> None:
    """The allocator's part played by torch's tracker, around the very same steps."""
    torch = pytest.importorskip("torch")
    from torch.distributed._tools.mem_tracker import MemTracker

    plan = Plan(model=TINY, recipe=Recipe.fp32_adam(step="fused"), batch=Batch(seq=8))
    assert plan.batch is not None
    watch: Any = MemTracker()

    def peak() -> int:
        return int(watch.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])

    meter = cuda.Meter(device="cpu", start=watch.reset_mod_stats, peak=peak, about={})
    with watch:
        seen = cuda.peak_of(plan, meter)
    tracked = tracker.track(
        TINY, mode_of(plan.model, plan.recipe, plan.batch), seq=8, micro_batch=1, step="fused"
    )
    # The tracker's peak is over both steps, the first of which also makes the states.
    assert plan.peak_bytes == tracked.peak_bytes <= seen < 1.2 * tracked.peak_bytes


def test_plans_of_many_ranks_are_refused() -> None:
    plan = Plan(model=TINY, parallel=Parallel(dp=2), recipe=Recipe.fp32_adam(), batch=Batch(seq=8))
    meter = cuda.Meter(device="cpu", start=lambda: None, peak=lambda: 0, about={})
    with pytest.raises(UsageError, match="one rank"):
        cuda.peak_of(plan, meter)


def test_a_card_that_is_known_has_its_workspaces_beside_the_estimate() -> None:
    plan = Plan(model=TINY, batch=Batch(seq=8))
    for gpu, size in (("NVIDIA H100 80GB HBM3", 2**25), ("NVIDIA A100-SXM4-80GB", 8_519_680)):
        assert cuda.on_card(plan, gpu).peak_bytes - plan.peak_bytes == 2 * size
    assert cuda.on_card(plan, "AMD Instinct MI300X").peak_bytes == plan.peak_bytes
    assert cuda.on_card(plan, "a card of 2031") == plan
