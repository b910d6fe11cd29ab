"""Model states: the papers' arithmetic, whole-element shards, and what must hold for both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.memory import Batch, Parallel, Plan, Recipe
from labkit.memory.jobs import states
from labkit.models import Model, TensorShape
from tests.memory.steps import stored_elements

RECIPES = [
    Recipe.mixed_adam(),
    Recipe.fp32_adam(),
    Recipe.preset("fp32-gradients"),
    Recipe.preset("two-gradients"),
    Recipe.preset("sgd"),
]
shapes = st.lists(
    st.one_of(st.tuples(st.integers(1, 40)), st.tuples(st.integers(1, 40), st.integers(1, 9))).map(
        lambda shape: TensorShape(name="t", shape=shape, unit="u")
    ),
    min_size=1,
    max_size=8,
)


def total(*, dp: int, zero: int, recipe: Recipe) -> float:
    return Plan(model=1000, parallel=Parallel(dp=dp, zero=zero), recipe=recipe).states_bytes


def test_the_recipes_cost_what_their_sources_say() -> None:
    costs = [recipe.bytes_per_param for recipe in RECIPES]
    assert costs == [16, 16, 18, 20, 12]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.name)
@given(dp=st.integers(1, 10_000))
def test_more_sharding_never_costs_more(recipe: Recipe, dp: int) -> None:
    by_stage = [total(dp=dp, zero=zero, recipe=recipe) for zero in range(4)]
    assert by_stage == sorted(by_stage, reverse=True)
    assert all(
        total(dp=dp + 1, zero=zero, recipe=recipe) <= total(dp=dp, zero=zero, recipe=recipe)
        for zero in range(4)
    )


@pytest.mark.parametrize("zero", range(4))
def test_one_rank_holds_everything_at_every_stage(zero: int) -> None:
    assert total(dp=1, zero=zero, recipe=Recipe.mixed_adam()) == 16_000


def test_limits_are_those_of_the_paper() -> None:
    """§5.1–5.3: a 4×, 8× and N_d× reduction as N_d grows."""
    recipe = Recipe.mixed_adam()
    dp = 10**7
    reductions = [16_000 / total(dp=dp, zero=zero, recipe=recipe) for zero in (1, 2, 3)]
    assert reductions == pytest.approx([4, 8, dp], rel=1e-5)


@given(shapes, st.integers(1, 12))
def test_shards_sum_to_the_model_and_the_first_rank_has_most(
    tensors: list[TensorShape], num_ranks: int
) -> None:
    held = [
        sum(shard.numel for shard in states.shard_shapes(tensors, num_ranks=num_ranks, rank=rank))
        for rank in range(num_ranks)
    ]
    assert sum(held) == sum(tensor.numel for tensor in tensors)
    assert max(held) == held[0] == stored_elements(tensors, num_ranks=num_ranks)


@given(st.integers(1, 200), st.integers(1, 20))
def test_rows_are_dealt_out_as_numpy_would_fill_chunks(rows: int, num_ranks: int) -> None:
    tensor = TensorShape(name="", shape=(rows, 3), unit="", role="hidden")
    chunk = -(-rows // num_ranks)
    filled = np.bincount(np.arange(rows) // chunk, minlength=num_ranks)
    for rank in range(num_ranks):
        (shard,) = states.shard_shapes([tensor], num_ranks=num_ranks, rank=rank)
        assert shard.shape == (filled[rank], 3)


@given(shapes, st.integers(2, 6))
def test_whole_tensors_stay_within_the_greedy_bound(
    tensors: list[TensorShape], num_ranks: int
) -> None:
    """Graham 1966: a list schedule is at most the mean load plus the largest item."""
    stored = stored_elements(tensors, num_ranks=num_ranks, sharding="tensor")
    largest = max(tensor.numel for tensor in tensors)
    mean = sum(tensor.numel for tensor in tensors) / num_ranks
    assert max(mean, largest) <= stored <= mean + largest


def test_ceiling_waste_of_gpt2_xl_at_1024_ranks() -> None:
    """Worked out by hand: over 1,024 ranks 50,257 rows become 50 a rank, 6,400 become 7, 4,800
    become 5, 1,600 become 2 and 1,024 one."""
    h = 1600
    embeddings = (50 + 1) * h
    weights = 5 * h + 2 * h + 7 * h + 2 * 4 * h  # qkv, out, up, down
    biases_and_norms = 5 + 2 + 7 + 2 + 4 * 2
    by_hand = embeddings + 48 * (weights + biases_and_norms) + 2 * 2
    assert rows_held(Model.preset("gpt2-1.5b"), dp=1024) == by_hand


def test_dim0_never_falls_below_one_row_of_each_tensor() -> None:
    model = Model.preset("gpt3-175b")
    floor = sum(tensor.numel // tensor.shape[0] for tensor in model.tensors())
    for num_ranks in (10**5, 10**6, 10**9):
        assert rows_held(model, dp=num_ranks) == floor


def rows_held(model: Model, *, dp: int) -> float:
    """Elements of the parameters that a rank allocates at stage 3."""
    plan = Plan(model=model, parallel=Parallel(dp=dp, zero=3), batch=Batch(seq=8))
    return next(t.num_bytes for t in plan.terms() if t.component == "parameters") / 2


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("place", ["cpu", "nvme"])
def test_the_papers_arithmetic_knows_what_is_kept_elsewhere(zero: int, place: Any) -> None:
    """ZeRO-Offload §4: a rank keeps its parameters, the host its share of all else."""
    recipe = Recipe.mixed_adam(offload_optimizer=place, offload_gradients=place)
    if place == "nvme" and zero < 3:
        with pytest.raises(UsageError, match="zero must be >= 3 where offload_gradients is nvme"):
            Plan(model=10**6, parallel=Parallel(dp=8, zero=zero), recipe=recipe)
        return
    plan = Plan(model=10**6, parallel=Parallel(dp=8, zero=zero), recipe=recipe)
    parameters_bytes = 2 * 10**6 / (8 if zero == 3 else 1)
    assert plan.peak_bytes == plan.states_bytes == parameters_bytes
    assert plan.elsewhere()["num_bytes"].tolist() == [2 * 10**6 / 8, 12 * 10**6 / 8]
    frame = plan.frame()
    assert set(frame["place"]) == {"device", place}
    assert frame.loc[frame["place"] == "device", "share"].sum() == 1


def test_the_papers_arithmetic_refuses_to_offload_what_no_stage_shards() -> None:
    with pytest.raises(UsageError, match="zero must be >= 1 where offload_optimizer is cpu, got 0"):
        Plan(model=10**6, recipe=Recipe(offload_optimizer="cpu"))


def test_frozen_parameters_have_neither_gradients_nor_states() -> None:
    nn = pytest.importorskip("torch").nn
    net = nn.Sequential(nn.Linear(1000, 1000, bias=False), nn.Linear(1000, 1000, bias=False))
    net[0].weight.requires_grad_(False)
    plan = Plan(model=Model.from_module(net), recipe=Recipe.fp32_adam())
    sizes = plan.frame().set_index("component")["num_bytes"]
    assert sizes.to_dict() == {"parameters": 8e6, "gradients": 4e6, "optimizer": 8e6}
    assert "Ψ trained = 1,000,000" in plan.explain("gradients")
