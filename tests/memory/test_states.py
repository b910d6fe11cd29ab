"""Model states: the papers' arithmetic, whole-element shards, and what must hold for both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.memory.jobs import states
from labkit.memory.jobs.states import COMPONENTS, Recipe
from labkit.models import Model, TensorShape

RECIPES = [
    Recipe.mixed_adam(),
    Recipe.fp32_adam(),
    Recipe.mixed_adam_fp32_gradients(),
    Recipe.mixed_adam_two_gradients(),
    Recipe.mixed_sgd(),
]
shapes = st.lists(
    st.one_of(st.tuples(st.integers(1, 40)), st.tuples(st.integers(1, 40), st.integers(1, 9))).map(
        lambda shape: TensorShape(name="t", shape=shape, unit="u")
    ),
    min_size=1,
    max_size=8,
)
shardings = st.sampled_from(["flat", "dim0", "tensor"])


def total(**arguments: object) -> float:
    return sum(states.even_states(1000, **arguments).values())  # type: ignore[arg-type]


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
    recipe, dp = Recipe.mixed_adam(), 10**7
    reductions = [16_000 / total(dp=dp, zero=zero, recipe=recipe) for zero in (1, 2, 3)]
    assert reductions == pytest.approx([4, 8, dp], rel=1e-5)


def test_arrays_broadcast() -> None:
    found = states.even_states(
        np.array([[1.0], [2.0]]), dp=np.array([1, 2, 4]), zero=3, recipe=Recipe.mixed_adam()
    )
    assert sum(found[c] for c in COMPONENTS).tolist() == [[16, 8, 4], [32, 16, 8]]


@given(shapes, st.integers(1, 12), shardings)
def test_shards_sum_to_the_model(
    tensors: list[TensorShape], num_ranks: int, sharding: states.Sharding
) -> None:
    held = states.shard_elements(tensors, num_ranks=num_ranks, sharding=sharding)
    assert len(held) == num_ranks
    assert held.sum() == sum(tensor.numel for tensor in tensors)
    assert held.min() >= 0


@given(shapes, st.integers(1, 12), shardings)
def test_no_rank_holds_more_than_is_stored_and_nothing_beats_an_even_split(
    tensors: list[TensorShape], num_ranks: int, sharding: states.Sharding
) -> None:
    held = states.shard_elements(tensors, num_ranks=num_ranks, sharding=sharding)
    stored = states.stored_elements(tensors, num_ranks=num_ranks, sharding=sharding)
    assert held.max() == stored
    assert stored * num_ranks >= sum(tensor.numel for tensor in tensors)


@given(st.integers(1, 200), st.integers(1, 20))
def test_rows_are_dealt_out_once_and_in_order(rows: int, num_ranks: int) -> None:
    dealt = [states.rows_on_rank(rows, num_ranks, rank) for rank in range(num_ranks)]
    assert [row for first, end in dealt for row in range(first, end)] == list(range(rows))
    sizes = [end - first for first, end in dealt]
    assert sizes == sorted(sizes, reverse=True)


@given(shapes, st.integers(2, 6))
def test_whole_tensors_stay_within_the_greedy_bound(
    tensors: list[TensorShape], num_ranks: int
) -> None:
    """Graham 1966: a list schedule is at most the mean load plus the largest item."""
    stored = states.stored_elements(tensors, num_ranks=num_ranks, sharding="tensor")
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
    tensors = Model.preset("gpt2-1.5b").tensors()
    assert states.stored_elements(tensors, num_ranks=1024, sharding="dim0") == by_hand


def test_dim0_never_falls_below_one_row_of_each_tensor() -> None:
    model = Model.preset("gpt3-175b")
    floor = sum(tensor.numel // tensor.shape[0] for tensor in model.tensors())
    for num_ranks in (10**5, 10**6, 10**9):
        assert (
            states.stored_elements(model.tensors(), num_ranks=num_ranks, sharding="dim0") == floor
        )


@pytest.mark.parametrize("sharding", ["even", "diagonal"])
def test_only_whole_element_shardings_have_elements(sharding: str) -> None:
    tensors = Model.preset("tiny-gpt").tensors()
    with pytest.raises(ValueError, match="sharding must be"):
        states.shard_elements(tensors, num_ranks=2, sharding=sharding)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_ranks"):
        states.stored_elements(tensors, num_ranks=0, sharding="dim0")
