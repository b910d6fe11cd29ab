"""Volumes against ZeRO §7, ZeRO++ and MiCS; times against the α–β model's limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import collectives
from labkit.hardware import Link
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.jobs.traffic import Collective, frame, step_time_s
from labkit.memory.movement.volumes import step_collectives

M = 1000.0
FREE = Link(name="free", bytes_per_s=1e30, latency_s=0, source="")


def step(recipe: Recipe | None = None, **degrees: Any) -> tuple[Collective, ...]:
    """What is sent of a model whose parameters, and whose gradients, take M bytes."""
    recipe = recipe or Recipe()
    return step_collectives(Parallel(**degrees), recipe, M / recipe.parameter_bytes)


def sent(**degrees: Any) -> float:
    """Bytes a rank sends, in the papers' unit: model sizes, the (n−1)/n left out."""
    dp = degrees["dp"]
    return sum(item.sent_bytes for item in step(**degrees)) / M * dp / (dp - 1)


@pytest.mark.parametrize("dp", [2, 3, 64, 4096])
def test_section_7_two_two_two_three(dp: int) -> None:
    assert [sent(zero=zero, dp=dp) for zero in (0, 1, 2, 3)] == pytest.approx([2, 2, 2, 3])


def test_one_rank_sends_nothing() -> None:
    for zero in range(4):
        found = step(zero=zero)
        assert sum(item.sent_bytes for item in found) == 0
        assert step_time_s(found, inter=FREE, intra=FREE) == 0


def test_zero_plus_plus_leaves_a_quarter_between_nodes() -> None:
    """ZeRO++, abstract: 3M between nodes becomes 0.75M (large n: the ring's (n−1)/n is 1)."""
    plain = step(zero=3, dp=10**6)
    better = step(Recipe.preset("quantised"), zero=3, dp=10**6, secondary_group=8)
    between = [sum(item.node_bytes for item in found) / M for found in (plain, better)]
    assert between == pytest.approx([3, 0.75], rel=1e-5)


@pytest.mark.parametrize(("group", "dp"), [(8, 64), (8, 512), (16, 512), (2, 64), (4, 8)])
def test_mics_sends_little_between_nodes(group: int, dp: int) -> None:
    """What crosses nodes: an all-reduce of each rank's shard, and the gathers of wide groups."""
    found = step(dp=dp, zero=3, partition_group=group)
    across = [item for item in found if item.what == "gradient shards"]
    assert len(across) == 1
    replicas = dp // group
    assert across[0].sent_bytes == pytest.approx(2 * M / group * (replicas - 1) / replicas)
    inside = [item.node_bytes for item in found if item is not across[0]]
    assert (max(inside) == 0) == (group <= 8)


def test_shards_of_one_node_cross_together() -> None:
    """Eight ranks of a node each all-reduce an eighth: two model sizes leave the node in all."""
    found = step(dp=8 * 10**5, zero=3, partition_group=8)
    assert sum(item.node_bytes for item in found) == pytest.approx(2 * M, rel=1e-4)


@given(st.integers(2, 10**6), st.floats(1, 1e12))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(num_ranks: int, size: float) -> None:
    parts = [
        Collective(phase="step", kind=kind, what="", message_bytes=size, num_ranks=num_ranks)
        for kind in ("all-reduce", "reduce-scatter", "all-gather")
    ]
    whole, *halves = (item.sent_bytes for item in parts)
    assert whole == pytest.approx(sum(halves))
    assert parts[0].num_hops == sum(item.num_hops for item in parts[1:])


def test_time_is_latency_for_small_and_bandwidth_for_large_messages() -> None:
    link = Link(name="l", bytes_per_s=100.0, latency_s=2.0, source="")
    one = Collective(
        phase="step", kind="all-gather", what="", message_bytes=1e9, num_ranks=11, num_calls=3
    )
    assert one.time_s(FREE, link) == pytest.approx(3 * 10 * 2.0 + 1e9 * 10 / 11 / 100)
    tiny = Collective(phase="step", kind="all-gather", what="", message_bytes=0, num_ranks=11)
    assert tiny.time_s(FREE, link) == 20.0


def test_the_slow_link_carries_what_leaves_the_node() -> None:
    slow = Link(name="slow", bytes_per_s=1.0, latency_s=0.0, source="")
    near, far = (step(dp=dp, zero=3) for dp in (8, 16))
    assert step_time_s(near, inter=slow, intra=FREE) == pytest.approx(0, abs=1e-9)
    assert step_time_s(far, inter=slow, intra=FREE) == pytest.approx(3 * M * 15 / 16)


def test_the_table_adds_up() -> None:
    found = step(dp=16, zero=3)
    table = frame(found)
    assert table["sent_bytes"].sum() == sum(item.sent_bytes for item in found)
    assert list(table["phase"]) == ["forward", "backward", "backward"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"zero": 4}, "zero must be"),
        ({"zero": 2, "partition_group": 8}, "unless zero is 3"),
        (
            {"zero": 3, "secondary_group": 0},
            "Parallel.secondary_group must be a whole number, at least 1",
        ),
    ],
)
def test_impossible_schemes_are_refused(arguments: dict[str, int], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Parallel(**arguments)  # type: ignore[arg-type]


def test_uneven_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="must divide"):
        step(dp=10, zero=3, partition_group=4)


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter"])
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_a_ring_takes_as_long_as_the_program_of_collectives(kind: Any, num_ranks: int) -> None:
    """The two engines have links of their own; where both know a ring they must agree."""
    link = Link(name="link", bytes_per_s=1e10, latency_s=3e-6, source="a test")
    one = Collective(
        phase="step",
        kind=kind,
        what="gradients",
        message_bytes=8e6,
        num_ranks=num_ranks,
        nodes=1,
        formula="",
        source="",
    )
    fabric = collectives.Fabric.flat(num_ranks, bandwidth_bytes_per_s=1e10, latency_s=3e-6)
    ring = collectives.program("ring", num_ranks, 8_000_000, op=kind)
    cost = collectives.cost(ring, fabric)
    assert one.time_s(link, link) == pytest.approx(cost.time_s)
    assert one.sent_bytes == pytest.approx(cost.busiest_bytes)
