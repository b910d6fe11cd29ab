"""Seconds of a step: the limits of the model, the operations, and what a link is shared by."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from labkit.errors import BadValue, UsageError
from labkit.hardware import Link
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.memory.jobs.traffic import Collective
from labkit.memory.plans.throughput import Cluster, StepTime, fit_cluster, rivals, throughput

GPT = Model(num_layers=12, hidden=2048, heads=16, vocab=51200)


def link(bytes_per_s: float, latency_s: float = 0.0) -> Link:
    return Link(name="test", bytes_per_s=bytes_per_s, latency_s=latency_s, source="test")


def cluster(**changes: Any) -> Cluster:
    rates = {"ring": link(1e10), "node": link(8e10), "inside": link(1.5e11)}
    return Cluster(**({"flops_per_s": 5e13, "ranks_per_node": 16} | rates | changes))


def step_flops(job: Plan) -> float:
    return throughput(job, cluster()).flops


def seconds(step: StepTime) -> float:
    return step.compute_s + step.tensor_s + step.data_s


def plan(*, dp: int = 32, tp: int = 1, zero: int = 2, **batch: Any) -> Plan:
    shape = Batch(**({"seq": 1024, "recompute": "full"} | batch))
    return Plan(model=GPT, parallel=Parallel(dp=dp, tp=tp, zero=zero), batch=shape)


@pytest.mark.parametrize("micro_batch", [1, 8])
def test_operations_are_megatrons(micro_batch: int) -> None:
    """Korthikanti et al. 2022, eq. 7: 72·B·l·s·h²·(1 + s/6h + V/12hl); recomputing the layers
    makes the 72 into 96, but not in the head's share."""
    hidden = GPT.hidden
    layers = GPT.num_layers
    extra = 1024 / (6 * hidden) + GPT.vocab / (12 * hidden * layers)
    paper = 72 * micro_batch * layers * 1024 * hidden**2 * (1 + extra)
    kept = plan(dp=1, micro_batch=micro_batch, recompute="none")
    assert step_flops(kept) == pytest.approx(paper, rel=1e-3)  # biases and norms are not in theirs
    head = 6 * micro_batch * 1024 * GPT.vocab * GPT.hidden
    again = plan(dp=1, micro_batch=micro_batch)
    assert step_flops(again) == pytest.approx((paper - head) * 4 / 3 + head, rel=1e-3)


def test_tensor_parallel_ranks_and_microbatches_share_and_multiply_the_operations() -> None:
    whole = step_flops(plan(dp=1))
    assert step_flops(plan(dp=1, tp=8)) == pytest.approx(whole / 8)
    twice = replace(plan(dp=1), recipe=Recipe.mixed_adam(accumulation=2))
    assert step_flops(twice) == pytest.approx(2 * whole)


def test_with_links_that_cost_nothing_the_rate_is_the_gpus() -> None:
    free = link(1e30)
    fast = cluster(ring=free, node=free, inside=free)
    assert throughput(plan(tp=8), fast).flops_per_s == pytest.approx(5e13)


def test_with_operations_that_cost_nothing_the_step_is_its_bytes() -> None:
    """Stage 2 over two nodes: a ring sends (n-1)/n of 2 + 2 bytes a parameter through one card."""
    step = throughput(plan(), cluster(flops_per_s=1e30))
    assert step.tensor_s == 0
    assert seconds(step) == pytest.approx(4 * GPT.num_params * 31 / 32 / 1e10)


def test_rings_share_a_nodes_cards_and_no_ring_gets_more_than_one() -> None:
    """Sixteen rings over eight cards get half a card each; four rings a whole one each."""
    halves = throughput(plan(dp=4, tp=16), cluster(flops_per_s=1e30))
    whole = throughput(plan(dp=16, tp=4), cluster(flops_per_s=1e30))
    assert halves.data_s == pytest.approx(4 * GPT.num_params / 16 * 3 / 4 / 0.5e10, rel=0.01)
    assert whole.data_s == pytest.approx(4 * GPT.num_params / 4 * 15 / 16 / 1e10, rel=0.01)


def test_a_hop_costs_the_mean_latency_of_its_ring() -> None:
    """32 ranks over two nodes: of 32 hops two are between nodes."""
    slow = {"ring": link(1e30, 3e-6), "node": link(1e30), "inside": link(1e30, 1e-6)}
    single = Plan(model=GPT, parallel=Parallel(dp=32, zero=0), batch=Batch(seq=1024))
    step = throughput(single, cluster(flops_per_s=1e30, **slow))
    hop_s = (2 * 3e-6 + 30 * 1e-6) / 32
    calls = step.data_s / (2 * 31 * hop_s)
    assert calls == pytest.approx(round(calls))


def test_overlap_hides_at_most_the_backward_collectives_and_at_most_the_backward_pass() -> None:
    for micro_batch in (1, 64):
        job = plan(micro_batch=micro_batch)
        apart = throughput(job, cluster())
        over = throughput(job, cluster(overlap=True))
        hidden_s = seconds(apart) - seconds(over)
        # of stage 2's two model sizes one, the reduce-scatter, is in the backward pass: 3 of 4
        assert hidden_s == pytest.approx(min(apart.data_s / 2, 0.75 * apart.compute_s), rel=0.02)


def test_a_larger_batch_is_never_slower_an_operation() -> None:
    rates = [throughput(plan(tp=8, micro_batch=b), cluster()).flops_per_s for b in (1, 2, 8, 64)]
    assert rates == sorted(rates)


def test_fit_returns_the_rates_that_made_the_measurements() -> None:
    truth = cluster(flops_per_s=4e13, ring=link(7e9), node=link(3e10))
    jobs = [plan(micro_batch=b) for b in (1, 4, 32)] + [plan(tp=16, dp=4, micro_batch=2)]
    measured = [throughput(job, truth).flops_per_s for job in jobs]
    fitted = fit_cluster(cluster(), jobs, measured, free=("flops_per_s", "ring", "node"))
    assert fitted.flops_per_s == pytest.approx(4e13, rel=1e-4)
    assert fitted.ring.bytes_per_s == pytest.approx(7e9, rel=1e-4)
    assert fitted.node.bytes_per_s == pytest.approx(3e10, rel=1e-4)


def test_what_the_model_does_not_know_is_refused() -> None:
    with pytest.raises(BadValue, match="pp = 2"):
        step_flops(replace(plan(), parallel=Parallel(pp=2)))
    with pytest.raises(BadValue, match="dense Model"):
        step_flops(Plan(model=10**9))
    with pytest.raises(BadValue, match="flops_per_s"):
        cluster(flops_per_s=0)
    with pytest.raises(BadValue, match="as many as each other"):
        fit_cluster(cluster(), [plan()], [], free=("ring",))


def test_rivals_on_free_links_differ_in_what_they_hold_only() -> None:
    """What a rank holds is 16 bytes a parameter over the ranks that share them; hpZ's copy is not
    among the states between steps."""
    free = link(1e30)
    rates = {"ring": free, "node": free, "inside": free}
    shape = Model(num_layers=12, hidden=2048, heads=16, vocab=51200, positions=0)
    table = rivals(shape, cluster(**rates), gpus=64, partition_group=32)
    assert table["gpu_flops_per_s"].to_numpy() == pytest.approx([5e13] * len(table), rel=1e-6)
    shares = 16 * shape.num_params / table["states_bytes"]
    assert shares["ZeRO-3"] == pytest.approx(64, rel=0.02)
    assert shares["MiCS"] == pytest.approx(32, rel=0.02)
    assert shares["Megatron-LM"] == pytest.approx(16, rel=0.02)
    assert shares["Megatron-LM, ZeRO-1"] > 2 * shares["Megatron-LM"]


def test_gathers_in_two_stages_cross_with_what_a_node_does_not_hold() -> None:
    """(p - k) / p of the message leaves a node of k of the group's p ranks, not (p - 1) / p."""
    far = link(1e9, 1e-3)
    near = link(1e11, 1e-4)
    ring = Collective(
        phase="forward",
        kind="all-gather",
        what="parameters",
        message_bytes=1e9,
        num_ranks=16,
        num_calls=3,
        nodes=2,
    )
    rings = cluster(ring=far, node=far, inside=near)
    staged = replace(rings, staged=True)
    hops_s = 3 * (1 * far.latency_s + 7 * near.latency_s)
    assert rings.time_s(ring) > 15 / 16
    assert staged.time_s(ring) == pytest.approx(8 / 16 + 7 / 8 / 100 + hops_s)
    for other in (
        replace(ring, kind="reduce-scatter"),
        replace(ring, num_ranks=8, nodes=1),
        replace(ring, num_ranks=2),
    ):
        assert staged.time_s(other) == rings.time_s(other)


def test_rivals_pay_for_the_slow_link_in_the_order_of_what_crosses_it() -> None:
    fast = link(1e30)
    slow = link(1e9)
    links = {"ring": slow, "node": slow, "inside": fast}
    table = rivals(GPT.resized(positions=2048), cluster(**links), gpus=64, partition_group=16)
    seconds = table["traffic_s"]
    assert seconds["ZeRO-3"] == pytest.approx(1.5 * seconds["ZeRO++, hpZ"], rel=0.01)
    # int8 forward and int4 backward: 0.75 of the model where ZeRO-3 sends 3 (ZeRO++, abstract)
    assert seconds["ZeRO-3"] == pytest.approx(4 * seconds["ZeRO++"], rel=0.01)
    assert seconds["MiCS"] < seconds["ZeRO++, hpZ"]  # a sixteenth of the gradients, twice
    some = rivals(
        GPT.resized(positions=2048), cluster(**links), ["MiCS"], gpus=64, partition_group=16
    )
    pd.testing.assert_frame_equal(some, table.loc[["ZeRO-3", "MiCS"]])
    with pytest.raises(UsageError, match="FSDP"):
        rivals(GPT, cluster(**links), ["FSDP"], gpus=64, partition_group=16)
