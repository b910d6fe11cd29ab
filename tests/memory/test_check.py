"""Plans beside runs of the same: to the byte where the estimate says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labkit import memory
from labkit.errors import UsageError
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from tests.memory.models import LITTLE_LLAMA as LLAMA

GPT = Model(name="small", num_layers=6, hidden=64, heads=4, vocab=1010, positions=64)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize(
    ("recipe", "batch"),
    [
        (Recipe.fp32_adam(), {}),
        (Recipe.preset("bf16-autocast", step="fused"), {"recompute": "full"}),
        (Recipe(master=None, states="bf16"), {"attention": "eager", "loss": "chunked"}),
        (Recipe.fp32_adam(step="for-loop"), {"recompute": 2}),
        (Recipe.fp32_adam(), {"seq": 2}),  # the optimizer's step is the peak
    ],
)
def test_one_rank_to_the_byte(model: Model, recipe: Recipe, batch: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    given = {"seq": 48, "micro_batch": 3} | batch
    table = memory.check(Plan(model=model, recipe=recipe, batch=Batch(**given)))
    assert table["difference_bytes"].tolist() == [0] * len(table)
    assert table["component"].iloc[-1].startswith("peak")


def test_what_cannot_be_checked_says_why() -> None:
    plan = Plan(model=GPT, batch=Batch(seq=8))
    with pytest.raises(UsageError, match=r"no oracle 'fak'; did you mean 'fake'"):
        memory.check(plan, oracle="fak")
    with pytest.raises(UsageError, match="no master copy"):
        memory.check(plan)
    wide = replace(plan, recipe=Recipe.fp32_adam())
    with pytest.raises(UsageError, match=r"one rank \(dp = tp = cp = pp = 1\)"):
        memory.check(replace(wide, parallel=Parallel(dp=2)))
    with pytest.raises(UsageError, match="data parallelism only"):
        memory.check(replace(wide, parallel=Parallel(dp=2, tp=2)), oracle="gloo")
    twice = replace(wide.recipe, second_gradients="fp32")
    with pytest.raises(UsageError, match="runs fp32 and Adam"):
        memory.check(replace(wide, recipe=twice, parallel=Parallel(dp=2)), oracle="gloo")
    with pytest.raises(UsageError, match="without a formula"):
        memory.check(Plan(model=10))


def test_without_a_gpu_the_cuda_oracle_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    plan = Plan(model=GPT, recipe=Recipe.fp32_adam(), batch=Batch(seq=8))
    with pytest.raises(UsageError, match="a GPU needs one"):
        memory.check(plan, oracle="cuda")
