"""Stage 3 beside FSDP2 itself: every moment's bytes, buffers of collectives included."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.memory.oracles import tracker
from labkit.memory.plans import fsdp
from labkit.memory.tape.mode import Mode
from labkit.memory.tape.step import Moment, Part
from tests.memory.models import LITTLE_LLAMA as LLAMA

GPT = Model(name="small", num_layers=5, hidden=48, heads=4, vocab=501, positions=64)
CASES: list[tuple[Model, dict[str, Any], str, dict[str, Any]]] = [
    (GPT, {"dp": 4}, "fp32-adam", {}),
    (GPT, {"dp": 3}, "bf16-autocast", {"recompute": "full"}),
    (GPT, {"dp": 4, "replicate": 2}, "fp32-adam", {"attention": "eager"}),
    (GPT, {"dp": 4, "reshard_after_forward": False}, "fp32-adam", {}),
    (LLAMA, {"dp": 4}, "fp32-adam", {}),
    (LLAMA, {"dp": 3}, "bf16", {}),
    (LLAMA, {"dp": 8}, "bf16-autocast", {"recompute": "full"}),
    (LLAMA, {"dp": 4, "partition_group": 2}, "fp32-adam", {}),
    (LLAMA, {"dp": 3}, "fp32-adam", {"seq": 4, "micro_batch": 1}),  # hardly any activations
    *(
        (LLAMA, {"dp": 4, "wrap": wrap, "keep_gathered": kept}, recipe, {"recompute": recompute})
        for wrap, kept, recipe, recompute in (
            ("blocks", "none", "fp32-adam", "none"),
            ("blocks", "last block", "bf16", "full"),
            ("blocks", "last block", "fp32-adam", "operators"),
            ("parts", "last block", "bf16-autocast", "none"),
            ("parts", "head", "fp32-adam", "full"),
            ("parts", "head", "bf16", "operators"),
        )
    ),
    (GPT, {"dp": 4, "wrap": "blocks"}, "bf16", {"logits_held": "fp32"}),
    (GPT, {"dp": 4, "keep_gathered": "last block"}, "fp32-adam", {}),
    (
        LLAMA,
        {"dp": 4, "reshard_after_forward": False, "wrap": "parts", "keep_gathered": "last block"},
        "fp32-adam",
        {"recompute": "full"},
    ),
    # Two layers: the next arrives while the head's gradients go, never while a layer's do.
    *((replace(LLAMA, num_layers=2), {"dp": 4}, recipe, {}) for recipe in ("fp32-adam", "bf16")),
    *((replace(GPT, num_layers=2), {"dp": 4}, recipe, {}) for recipe in ("fp32-adam", "bf16")),
]
RECIPES = {
    "fp32-adam": Recipe.fp32_adam(step="fused"),
    "bf16-autocast": Recipe.preset("bf16-autocast", step="fused"),
    "bf16": Recipe(master=None, states="bf16", step="fused"),
}
# Where several of the estimate's moments are one of the tracker's, and where FSDP2 already starts
# on the next unit while the tracker still names the last (a head that is a unit of its own starts
# within the loss): that start, with two units' buffers more, is no moment of the estimate.
SAME = tracker.FSDP_NAMES
STARTS = {Moment.EMBEDDING, Moment.FORWARD_FIRST, Moment.EMBEDDING_BACKWARD}


@pytest.mark.parametrize(("model", "degrees", "recipe", "batch"), CASES)
def test_every_moment_is_fsdps(
    model: Model, degrees: dict[str, Any], recipe: str, batch: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    plan = Plan(
        model=model,
        parallel=Parallel(zero=3, **degrees),
        recipe=RECIPES[recipe],
        batch=Batch(**({"seq": 40, "micro_batch": 3} | batch)),
    )
    assert plan.batch is not None
    seen = tracker.track(**tracker.settings_of(plan)).moments
    told = plan.moments()["total"]
    tracked = {moment: parts["Total"] for moment, parts in seen.items()}
    assert plan.peak_bytes == max(tracked.values())
    most = max(tracked, key=lambda moment: tracked[moment])
    assert plan.peak_moment in SAME.get(most, (most,))
    passing = fsdp.Passing(plan.estimate.job)
    units = sum(passing.size(name).gathered for name in ("block", "root", "embedding", "head"))
    for moment in tracked.keys() - {Moment.FORWARD_MIDDLE}:
        ours = max(told[name] for name in SAME.get(moment, (moment,)) if name in told)
        starts_within = not model.tied and moment.part is Part.HEAD
        if moment in STARTS or plan.batch.seq < 8 or starts_within:
            assert 0 <= tracked[moment] - ours <= 2 * units, moment
        else:
            assert ours == tracked[moment], moment


def test_what_fsdp_does_not_do_is_refused() -> None:
    pytest.importorskip("torch")
    for parallel in (Parallel(dp=2), Parallel(zero=3), Parallel(dp=4, zero=3, secondary_group=2)):
        with pytest.raises(UsageError, match="zero = 3 on 2 ranks or more"):
            tracker.track(GPT, Mode(), seq=8, micro_batch=1, parallel=parallel)
