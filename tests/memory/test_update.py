"""A step with its update elsewhere: limits, invariants, and Adam's kinds beside each other."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from labkit.errors import BadValue
from labkit.hardware import Link
from labkit.memory import Batch, Model, Parallel, Plan, Recipe, Update, updated_step
from labkit.memory.plans.throughput import Cluster, throughput

GPT = Model(num_layers=8, hidden=1024, heads=16, vocab=1000, positions=512)
AWAY = Recipe(offload_gradients="cpu", offload_optimizer="cpu")
FREE = Link(name="free", bytes_per_s=1e30, latency_s=1e-30, source="test")
CLUSTER = Cluster(flops_per_s=1e13, ring=FREE, node=FREE, inside=FREE)
UPDATE = Update(s_per_param=1e-9, link_bytes_per_s=1e10)


def plan(samples: int = 8, dp: int = 1, recipe: Recipe = AWAY) -> Plan:
    batch = Batch(seq=512, micro_batch=samples, recompute="full")
    return Plan(model=GPT, parallel=Parallel(dp=dp, zero=2), recipe=recipe, batch=batch)


def step_s(of: Plan, **changed: object) -> float:
    return updated_step(of, CLUSTER, replace(UPDATE, **changed)).step_s  # type: ignore[arg-type]


def test_where_host_and_link_cost_nothing_the_step_is_the_gpus() -> None:
    free = replace(UPDATE, s_per_param=1e-30, link_bytes_per_s=1e30)
    for kind in (free, replace(free, tiled=False), replace(free, delayed=True)):
        step = updated_step(plan(), CLUSTER, kind)
        assert step.step_s == pytest.approx(step.gpu_s)
        assert step.flops_per_s == pytest.approx(throughput(plan(), CLUSTER).flops_per_s)


def test_the_terms_by_hand() -> None:
    """Gradients hide behind the backward pass; 2 bytes a parameter come back; 1 ns an update."""
    params = GPT.num_params
    gpu_s = throughput(plan(), CLUSTER).compute_s
    update_s = params * 1e-9
    back_s = params * 2 / 1e10
    assert params * 2 / 1e10 < gpu_s / 2
    assert step_s(plan()) == pytest.approx(gpu_s + update_s)
    assert step_s(plan(), tiled=False) == pytest.approx(gpu_s + update_s + back_s)
    assert step_s(plan(), delayed=True) == pytest.approx(gpu_s)
    assert step_s(plan(), delayed=True, s_per_param=1e-6) == pytest.approx(params * 1e-6)


def test_gradients_that_the_backward_pass_does_not_hide_are_waited_for() -> None:
    slow = 1e8
    gpu_s = throughput(plan(samples=1), CLUSTER).compute_s
    leaves_s = back_s = GPT.num_params * 2 / slow
    exposed_s = leaves_s - 2 / 3 * gpu_s
    assert exposed_s > 0
    took_s = step_s(plan(samples=1), link_bytes_per_s=slow)
    assert took_s == pytest.approx(gpu_s + exposed_s + back_s)


@pytest.mark.parametrize("dp", [2, 4, 16])
def test_ranks_of_one_host_share_one_update(dp: int) -> None:
    """§4.2: each updates its shard, so the host's work does not grow with the ranks."""
    alone = updated_step(plan(), CLUSTER, UPDATE).update_s
    together = updated_step(plan(dp=dp), CLUSTER, replace(UPDATE, ranks=dp)).update_s
    assert together == pytest.approx(alone)


def test_a_larger_batch_never_lowers_throughput_and_delay_never_does() -> None:
    plans = [plan(samples=samples) for samples in (1, 2, 4, 8)]
    for kind in (UPDATE, replace(UPDATE, delayed=True)):
        rates = [updated_step(of, CLUSTER, kind).flops_per_s for of in plans]
        assert all(less <= more * (1 + 1e-9) for less, more in pairwise(rates))
    assert all(step_s(of, delayed=True) <= step_s(of) for of in plans)


def test_nothing_crosses_where_nothing_is_offloaded() -> None:
    step = updated_step(plan(recipe=Recipe()), CLUSTER, replace(UPDATE, link_bytes_per_s=1e-3))
    assert step.step_s == pytest.approx(step.gpu_s + GPT.num_params * 1e-9)


@pytest.mark.parametrize(
    "recipe", [Recipe(offload_gradients="cpu"), replace(AWAY, offload_parameters="cpu")]
)
def test_places_whose_transfers_it_does_not_order_are_refused(recipe: Recipe) -> None:
    of = replace(plan(), parallel=Parallel(zero=3), recipe=recipe)
    with pytest.raises(BadValue, match="recipe must offload the optimizer"):
        updated_step(of, CLUSTER, UPDATE)
