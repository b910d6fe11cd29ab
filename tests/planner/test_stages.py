"""Plans: the best of all by trying all, the authors' own, and what more devices and links do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import planner
from labkit.errors import UsageError
from labkit.planner.costing import COSTINGS, Costing, as_costing
from tests.oracles.all_plans import best_of_all, least_on_machines
from tests.planner.conftest import chains, fabrics, published

TEN_GBIT = 10 * 1e9 / 8
costings = st.sampled_from(COSTINGS)
POOL = "node32 MaxPool2d"
"""The last pooling layer of VGG-16: behind it stand the layers with nearly all weights."""


@settings(max_examples=60)
@given(chain=chains(), fabric=fabrics(), costing=costings)
def test_the_program_finds_the_best_of_all_plans(chain: Any, fabric: Any, costing: Any) -> None:
    best = best_of_all(chain, fabric, costing=costing)
    plan = planner.plan(chain, fabric, costing=costing)
    assert plan.cost_s == pytest.approx(best.cost_s, rel=1e-12)
    assert plan.gap == 0


@settings(max_examples=60)
@given(
    chain=chains(5),
    fabric=fabrics(4),
    objective=st.sampled_from(["latency", "flush"]),
    count=st.integers(1, 12),
)
def test_flushed_pipelines_lie_between_bound_and_best(
    chain: Any, fabric: Any, objective: Any, count: int
) -> None:
    """With as many microbatches as devices, or nothing hidden, the best plan itself is reached."""
    kinds: dict[str, Any] = {"objective": objective, "num_microbatches": count}
    best = best_of_all(chain, fabric, **kinds)
    plan = planner.plan(chain, fabric, tolerance=1e-9, **kinds)
    assert plan.bound_s <= best.cost_s * (1 + 1e-9)
    assert plan.cost_s >= best.cost_s * (1 - 1e-9)
    if count >= fabric.num_devices or objective == "flush":
        assert plan.cost_s == pytest.approx(best.cost_s, rel=1e-6)


@settings(max_examples=40)
@given(chain=chains(), fabric=fabrics(), costing=costings, factor=st.floats(1.0, 50.0))
def test_faster_links_never_cost_more(chain: Any, fabric: Any, costing: Any, factor: float) -> None:
    slow = planner.plan(chain, fabric, costing=costing)
    fast = planner.plan(chain, fabric.scaled(factor), costing=costing)
    assert fast.cost_s <= slow.cost_s * (1 + 1e-12)


@settings(max_examples=40)
@given(chain=chains(), fabric=fabrics(), costing=costings)
def test_more_devices_never_cost_more_and_never_beat_perfect_speedup(
    chain: Any, fabric: Any, costing: Any
) -> None:
    level = fabric.levels[0]
    more = planner.Fabric.flat(
        level.count + 1,
        bandwidth_bytes_per_s=level.bandwidth_bytes_per_s,
        latency_s=level.latency_s,
    )
    costs = [planner.plan(chain, each, costing=costing).cost_s for each in (fabric, more)]
    assert costs[1] <= costs[0] * (1 + 1e-12)
    assert costs[1] >= chain.time_s / more.num_devices * (1 - 1e-12)


@settings(max_examples=40)
@given(chain=chains(), fabric=fabrics(), costing=costings, room=st.floats(0.3, 3.0))
def test_memory_limits_every_stage(chain: Any, fabric: Any, costing: Any, room: float) -> None:
    """A limit is kept with the gradients set aside; a plan that kept it anyway stays."""
    free = planner.plan(chain, fabric, costing=costing)
    weights = [chain.weight_bytes[s.first, s.end] for s in free.stages]
    needed = max(b - w for b, w in zip(free.memory_bytes, weights, strict=True))
    limit = max(needed * room, 1.0)
    try:
        plan = planner.plan(chain, fabric, costing=costing, memory_bytes=limit)
    except UsageError:
        plan = None  # nothing fits, though the free plan needs no more
    if plan is None:
        assert room < 1
        return
    assert plan.cost_s >= free.cost_s * (1 - 1e-12)
    if room >= 1 and free.num_devices == fabric.num_devices:
        assert plan.cost_s == pytest.approx(free.cost_s)
    if plan.num_devices == fabric.num_devices:
        weights = [chain.weight_bytes[s.first, s.end] for s in plan.stages]
        kept = [b - w for b, w in zip(plan.memory_bytes, weights, strict=True)]
        assert max(kept) <= limit * (1 + 1e-9)


@settings(max_examples=30)
@given(chain=chains(), fabric=fabrics(), costing=costings)
def test_straight_plans_have_no_replicas(chain: Any, fabric: Any, costing: Any) -> None:
    plan = planner.plan(chain, fabric, costing=costing, straight=True)
    assert {stage.replicas for stage in plan.stages} == {1}
    assert plan.cost_s >= planner.plan(chain, fabric, costing=costing).cost_s


@pytest.mark.parametrize("objective", ["latency", "flush"])
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_straight_plans_have_no_more_stages_than_devices(devices: int, objective: Any) -> None:
    """Microbatches of a flushed pipeline overlap, so that every device pays."""
    chain = planner.Chain.even(6, forward_s=0.1, backward_s=0.2, parameter_bytes=0)
    plan = planner.plan(
        chain,
        planner.Fabric.flat(devices, bandwidth_bytes_per_s=1e9),
        straight=True,
        objective=objective,
        num_microbatches=8,
    )
    assert len(plan.stages) == plan.num_devices == devices


@settings(max_examples=30)
@given(chain=chains(5), inner=st.integers(1, 3), outer=st.integers(1, 3), costing=costings)
def test_two_levels_of_equal_links(chain: Any, inner: int, outer: int, costing: Any) -> None:
    """One machine, or machines of one device, are a flat fabric."""
    flat = planner.Fabric.flat(inner * outer, bandwidth_bytes_per_s=1e9)
    level = [planner.Level(count=n, bandwidth_bytes_per_s=1e9) for n in (inner, outer)]
    both = planner.plan(chain, planner.Fabric(levels=tuple(level)), costing=costing)
    one = planner.plan(chain, flat, costing=costing)
    if min(inner, outer) == 1:
        assert both.cost_s == pytest.approx(one.cost_s)
    assert both.cost_s >= chain.time_s / (inner * outer) * (1 - 1e-12)


@settings(max_examples=40)
@given(
    chain=chains(4),
    inner=st.integers(1, 3),
    outer=st.integers(1, 3),
    slower=st.sampled_from([1, 8, 100]),
    costing=costings,
)
def test_no_plan_on_machines_beats_the_bound(
    chain: Any, inner: int, outer: int, slower: int, costing: Any
) -> None:
    """Against all plans of machines with all plans inside them."""
    rates = {"inside_bytes_per_s": 1e9, "between_bytes_per_s": 1e9 / slower}
    fabric = planner.Fabric.machines(outer, inner, **rates)
    plan = planner.plan(chain, fabric, costing=costing)
    least_s = least_on_machines(chain, fabric, costing)
    assert plan.bound_s <= least_s * (1 + 1e-9)
    assert plan.cost_s >= least_s * (1 - 1e-9)
    if as_costing(costing).machines_exchange == "devices":
        assert plan.cost_s == pytest.approx(least_s)


def test_machines_may_be_slower_inside_to_exchange_less() -> None:
    """Layers that balance exactly as 1-1: the second one's weights are then exchanged whole."""
    chain = planner.Chain(
        forward_s=(0.5, 0.5), backward_s=(0.5, 0.5), activation_bytes=(0, 0),
        cut_bytes=(1e9, 0), parameter_bytes=(0, 5e8),
    )  # fmt: skip
    fabric = planner.Fabric.machines(2, 2, inside_bytes_per_s=1e12, between_bytes_per_s=1e9)
    costing = Costing(gradient_passes=4.0, combine="sum")
    plan = planner.plan(chain, fabric, costing=costing)
    inside_s = (2 + 4 / 2 * 5e8 / 1e12) / 2
    assert plan.name == "2×(2)"
    assert plan.cost_s == pytest.approx((inside_s + 4 / 2 * 2.5e8 / 1e9) / 2)
    assert 0 < plan.gap < 0.001


def test_machines_exchange_weights_once_for_the_replicas_inside() -> None:
    """Data parallel inside and between: C against 2 (r - 1)/r W/B at each level, then divided."""
    chain = planner.Chain.even(1, forward_s=0.1, backward_s=0.2, parameter_bytes=4e8)
    near = 1e10
    far = 1e9
    fabric = planner.Fabric(
        levels=(
            planner.Level(count=4, bandwidth_bytes_per_s=near),
            planner.Level(count=2, bandwidth_bytes_per_s=far),
        )
    )
    plan = planner.plan(chain, fabric)
    inside = max(0.3, 2 * 3 / 4 * 4e8 / near) / 4
    assert plan.cost_s == pytest.approx(max(inside, 2 * 1 / 2 * (4e8 / 4) / far) / 2)
    assert plan.name == "2×(4)"


# ---------------------------------------------------------------- the authors' profiles


@pytest.mark.parametrize(
    ("costing", "name"),
    [
        ("code", "9-1-2-1-1-1-1"),
        ("code+activations", "13-2-1"),
        ("server", "15-1"),
        ("ring", "15-1"),
    ],
)
def test_vgg16_on_16_by_costing(costing: Any, name: str) -> None:
    """The plans of the authors' program, run as it is; 15-1 is the one they ship."""
    fabric = planner.Fabric.flat(16, bandwidth_bytes_per_s=TEN_GBIT)
    plan = planner.plan(published("vgg16"), fabric, costing=costing)
    assert plan.name == name
    if name == "15-1":
        assert plan.chain.layers[plan.cuts[0] - 1] == POOL


# Shipped plans: network, devices, replicas, last layer of the first stage (None: not published).
SHIPPED = [
    ("vgg16", 4, "3-1", "node18 MaxPool2d"),
    ("vgg16", 8, "7-1", None),
    ("vgg16", 16, "15-1", POOL),
    ("alexnet", 4, "3-1", "node14 MaxPool2d"),
    ("alexnet", 16, "15-1", None),
    ("resnet50", 16, "16", None),
    ("gnmt", 4, "1-1-1-1", None),
]


@pytest.mark.parametrize(("network", "devices", "name", "last"), SHIPPED)
@pytest.mark.parametrize("bandwidth", [1e9, TEN_GBIT])
def test_overlapped_servers_give_the_shipped_plans(
    network: str, devices: int, name: str, last: str | None, bandwidth: float
) -> None:
    """At the published optimizer's default rate and at 10 Gbit/s alike."""
    fabric = planner.Fabric.flat(devices, bandwidth_bytes_per_s=bandwidth)
    plan = planner.plan(published(network), fabric, costing="server")
    assert plan.name == name
    if last is not None:
        assert plan.chain.layers[plan.cuts[0] - 1] == last


def test_the_authors_worked_example() -> None:
    """Their README: 4 devices, activations charged, default bandwidth; three replicas and one."""
    fabric = planner.Fabric.flat(4, bandwidth_bytes_per_s=1e9)
    plan = planner.plan(published("vgg16"), fabric, costing="code+activations")
    assert (plan.name, plan.chain.layers[plan.cuts[0] - 1]) == ("3-1", "node18 MaxPool2d")


def test_two_levels_are_planned_as_their_program_does() -> None:
    """``-n 8 2 --activation_compression_ratio 1 -b 4294967296 2147483648`` prints 78.39 ms."""
    fabric = planner.Fabric.machines(
        2, 8, inside_bytes_per_s=4294967296, between_bytes_per_s=2147483648
    )
    plan = planner.plan(published("vgg16"), fabric, costing="code+activations")
    assert plan.name == "2×(7-1)"
    assert plan.cost_s == pytest.approx(0.0783925, abs=5e-8)


def test_two_levels_of_resnet50_are_planned() -> None:
    fabric = planner.Fabric.machines(4, 4, inside_bytes_per_s=12e9, between_bytes_per_s=TEN_GBIT)
    plan = planner.plan(published("resnet50"), fabric)
    assert plan.name == "4×(4)"
    assert plan.cost_s == pytest.approx(published("resnet50").time_s / 16)


def test_dapples_formula_by_hand() -> None:
    """Two stages on one device each: fill, steady, ending phase, all written out."""
    chain = planner.Chain(
        forward_s=(0.1, 0.2), backward_s=(0.2, 0.4), activation_bytes=(1e6, 1e6),
        cut_bytes=(1e8, 0.0), parameter_bytes=(1e9, 4e9),
    )  # fmt: skip
    fabric = planner.Fabric.flat(3, bandwidth_bytes_per_s=1e9)
    kinds: dict[str, Any] = {"objective": "latency", "num_microbatches": 5}
    plan = planner.price(chain, fabric, (1, 2), (1,), **kinds)
    transfers = 1e8 / 1e9 + 1e8 / 2e9
    block = max(0.3, 0.6 / 2, 2 * 1e8 / 1e9)
    exchange = 2 * 1 / 2 * 4e9 / 1e9
    assert plan.cost_s == pytest.approx(
        0.3 + 0.6 / 2 + transfers + 4 * block + exchange - 1 * block
    )
    flush = planner.price(chain, fabric, (1, 2), (1,), objective="flush", num_microbatches=5)
    slowest = max(0.3 + 0.1, 0.3 + 0.05)
    assert flush.cost_s == pytest.approx(0.6 + transfers + 4 * slowest + exchange)


def test_flush_is_the_time_of_a_simulated_pipeline() -> None:
    """1F1B with a flush, free links and equal stages: the closed form and the simulation."""
    chain = planner.Chain.even(8, forward_s=0.1, backward_s=0.2)
    fabric = planner.Fabric.flat(4, bandwidth_bytes_per_s=1e12)
    plan = planner.price(
        chain, fabric, (1, 1, 1, 1), (2, 4, 6), objective="flush", num_microbatches=12
    )
    assert plan.timeline(12).makespan_s == pytest.approx(plan.cost_s)
    assert plan.in_flight == (4, 3, 2, 1)
    assert tuple(plan.timeline(12).schedule.peak_in_flight) == plan.in_flight


@settings(max_examples=20)
@given(chain=chains(), fabric=fabrics(), costing=costings, count=st.integers(1, 8))
def test_the_same_stages_priced_otherwise(
    chain: Any, fabric: Any, costing: Any, count: int
) -> None:
    plan = planner.plan(chain, fabric, costing=costing)
    assert plan.priced().cost_s == pytest.approx(plan.cost_s)
    other: dict[str, Any] = {"objective": "flush", "num_microbatches": count}
    best = planner.plan(chain, fabric, costing=costing, tolerance=1e-9, **other)
    assert plan.priced(**other).cost_s >= best.bound_s * (1 - 1e-9)
    assert plan.priced(**other).priced(objective="throughput").name == plan.name


def test_bytes_sent_by_hand() -> None:
    """3-1 behind a light layer: gradients of a ring of three, activations there and back."""
    chain = planner.Chain(
        forward_s=(0.1, 0.1), backward_s=(0.1, 0.1), activation_bytes=(5e6, 1e6),
        cut_bytes=(7e6, 0.0), parameter_bytes=(3e6, 90e6),
    )  # fmt: skip
    fabric = planner.Fabric.flat(4, bandwidth_bytes_per_s=1e9)
    plan = planner.price(chain, fabric, (3, 1), (1,))
    assert plan.sent_bytes == pytest.approx(2 * 2 / 3 * 3e6 + 2 * 7e6)
    assert plan.in_flight == (2, 1)
    assert plan.memory_bytes == pytest.approx((3e6 + 2 * (3e6 + 5e6), 90e6 + (90e6 + 1e6)))
    row = planner.sweep({"a": chain}, [fabric]).iloc[0]
    whole = planner.price(chain, fabric, (4,))
    assert row.speedup == pytest.approx(whole.cost_s / row.cost_s)
    assert whole.sent_bytes == pytest.approx(2 * 3 / 4 * 93e6)


@pytest.mark.parametrize("count", [8, 32])
def test_long_chains_are_bounded_too(count: int) -> None:
    """AlexNet on 16: the plan lies at its bound, below every plan of two stages."""
    chain = published("alexnet")
    fabric = planner.Fabric.flat(16, bandwidth_bytes_per_s=TEN_GBIT)
    kinds: dict[str, Any] = {"objective": "latency", "num_microbatches": count}
    plan = planner.plan(chain, fabric, tolerance=1e-3, **kinds)
    assert -1e-9 <= plan.gap <= 1e-3 * (1 + 1e-9)
    assert plan.cost_s == pytest.approx(
        planner.price(chain, fabric, plan.replicas, plan.cuts, **kinds).cost_s
    )
    for cut in range(1, len(chain)):
        for devices in range(1, 16):
            pair = planner.price(chain, fabric, (devices, 16 - devices), (cut,), **kinds)
            assert pair.cost_s >= plan.bound_s * (1 - 1e-9)
