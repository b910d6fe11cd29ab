"""How sure an answer is: stored errors are those of today, nearest peaks are the nearest."""

from __future__ import annotations

import csv

import pytest

from labkit import files
from labkit.errors import UsageError
from labkit.memory import (
    FRAMEWORKS,
    Adapter,
    Batch,
    Model,
    Parallel,
    Plan,
    Recipe,
    certainty,
    published,
)

LLAMA = Model.preset("llama-3-8b")
PEAKS = published.peaks()


def test_stored_errors_are_computed_again() -> None:
    """After a change of ours: python -m labkit.memory.certainty."""
    with files.shipped(certainty.ERRORS).open(encoding="utf-8", newline="") as rows:
        assert list(csv.DictReader(rows)) == certainty.table()


@pytest.mark.parametrize("name", PEAKS)
def test_the_nearest_of_a_measured_run_is_a_run_of_its_kind(name: str) -> None:
    run = PEAKS[name]
    sure = certainty.of(run.plan, run.framework)
    same = sure.nearest[sure.nearest["differs"] == ""]
    assert name in set(same["run"])
    assert sure.elsewhere == sure.unmeasured == ()
    assert "none of them" not in sure.reason
    table = published.peak_errors(run.framework)
    assert sure.num_peaks == len(table)
    assert sure.worst_of_all == pytest.approx(table["error"].abs().max(), abs=1e-8)
    errors = table.set_index("run")["error"].abs()
    assert sure.worst == pytest.approx(errors[sure.nearest["run"].tolist()].max(), abs=1e-8)


def test_at_least_three_peaks_and_all_that_are_as_near() -> None:
    plan = FRAMEWORKS["megatron"].plan(LLAMA, dp=8, tp=2, cp=2, seq=8192)
    sure = certainty.of(plan, "megatron")
    unlike = [len(text.split(", ")) if text else 0 for text in sure.nearest["differs"]]
    assert unlike == sorted(unlike)
    assert len(unlike) >= certainty.AT_LEAST
    others = set(PEAKS) - set(sure.nearest["run"])
    asked = certainty.features(plan)
    for name in others:
        if PEAKS[name].framework == "megatron":
            differs = certainty._differences(asked, certainty.features(PEAKS[name].plan))
            assert len(differs) > unlike[-1]


def test_what_nobody_measured_is_said() -> None:
    """Of a framework, and of all."""
    plan = FRAMEWORKS["torchtitan"].plan(LLAMA, dp=4, cp=2, seq=8192, offload_optimizer="cpu")
    sure = certainty.of(plan, "torchtitan")
    assert sure.elsewhere == ("context parallelism",)
    assert sure.unmeasured == ("offloading",)
    assert "nothing measured with offloading" in sure.reason
    assert "with other frameworks only: context parallelism" in sure.reason
    two = FRAMEWORKS["deepspeed"].plan(
        LLAMA, dp=4, zero=2, seq=512, recipe="adam-8bit", offload_gradients="cpu"
    )
    reason = certainty.of(two, "deepspeed").reason
    assert "nothing measured with ZeRO stage 2, offloading or the optimizer adam-8bit" in reason
    assert "on the only measured peak of deepspeed" in reason


def test_without_a_framework_all_peaks_are_looked_at() -> None:
    plan = Plan(model=LLAMA, recipe=Recipe.bf16_mixed(), batch=Batch(seq=512))
    sure = certainty.of(plan)
    assert sure.num_peaks == len(PEAKS)
    assert "of all frameworks (none is named)" in sure.reason
    assert sure.verdict.startswith("within ")


def test_the_papers_arithmetic_and_wrong_names() -> None:
    sure = certainty.of(Plan(model=10**9, parallel=Parallel(dp=8, zero=1)))
    assert (sure.verdict, len(sure.nearest)) == ("not measured", 0)
    assert "no moments" in sure.reason
    with pytest.raises(UsageError, match="no framework 'megatrom'; did you mean 'megatron'"):
        certainty.of(Plan(model=LLAMA, batch=Batch(seq=64)), "megatrom")


def test_an_error_that_is_larger_than_the_margin_is_seen() -> None:
    plan = FRAMEWORKS["hf-trainer"].plan(LLAMA, recipe="qlora", seq=512)
    sure = certainty.of(plan, "hf-trainer")
    assert sure.covers(0.9 * sure.worst * plan.peak_bytes, plan.peak_bytes)
    assert not sure.covers(1.1 * sure.worst * plan.peak_bytes, plan.peak_bytes)
    papers = certainty.of(Plan(model=10**9))
    assert not papers.covers(0.0, 1.0)


@pytest.mark.parametrize(
    ("adapter", "word"),
    [
        (Adapter(kind="dora"), "DoRA"),
        (Adapter(kind="ia3", targets=("k", "v", "down")), "IA3"),
        (Adapter(kind="prompt", tokens=8), "virtual tokens"),
    ],
)
def test_other_adapters_than_lora_are_said_to_be_unmeasured(adapter: Adapter, word: str) -> None:
    recipe = Recipe.preset("lora", adapter=adapter)
    plan = Plan(model=Model.preset("llama-2-7b"), recipe=recipe, batch=Batch(seq=512))
    sure = certainty.of(plan)
    assert sure.unmeasured == (word,)
    assert "none of them like it in all" in sure.reason
