"""FlexFlow's tasks beside the layouts that they stand for, and its experiments."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labkit import planner
from labkit.papers import flexflow
from labkit.papers.flexflow import Budget, Cluster, Simulated, Way

PAIR = Cluster(gpus=2, images=8)


def chain(fabric: planner.Fabric) -> Simulated:
    """Two dense operators."""
    draft = planner.Draft("chain", 64, 4)
    draft.dense("one", 256)
    draft.dense("two", 128)
    return Simulated(planner.split(draft.network(), fabric, flops_per_s=1e12))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_without_overlap_the_timeline_is_the_sum_of_times(count: int) -> None:
    """A chain whose first operator holds no weights of replicas: nothing can overlap."""
    split = chain(planner.Fabric.flat(count, bandwidth_bytes_per_s=1e9, latency_s=1e-5))
    parts = planner.layout_name((1, count, 1, 1))
    plan = {"image": split.layouts.problem.choices["image"][0], "one": parts, "two": parts}
    assert split.timeline(plan).end_s == pytest.approx(split.layouts.problem.cost(plan))


def test_a_step_is_no_longer_than_the_sum_and_no_shorter_than_even_compute() -> None:
    rng = np.random.default_rng(0)
    split = Cluster(gpus=4, images=8).split("alexnet")
    operators = split.layouts.network.operators
    alone_s = sum(split.layouts.compute_s(each, (1, 1, 1, 1)) for each in operators)
    for _ in range(30):
        plan = {
            name: ways[rng.integers(len(ways))]
            for name, ways in split.layouts.problem.choices.items()
        }
        timeline = split.timeline(plan)
        assert alone_s / 4 <= timeline.end_s * (1 + 1e-9)
        assert timeline.bound_s <= timeline.end_s


def test_bytes_on_links_are_those_of_the_layouts() -> None:
    split = chain(planner.Fabric.flat(4, bandwidth_bytes_per_s=1.0))
    plan = dict(split.fixed_plan(Way.KRIZHEVSKY))
    moved = split.layouts.moved_bytes("one", "two", plan)
    part = split.edge("one", "two", plan)
    # Out of and into each GPU, forward and back: each byte takes four tasks' seconds.
    assert part.seconds.sum() == pytest.approx(4 * moved.sum())


def test_machines_share_one_link() -> None:
    rates = {"inside_bytes_per_s": 1e9, "between_bytes_per_s": 1.0}
    split = chain(planner.Fabric.machines(2, 2, **rates))
    plan = dict(split.fixed_plan(Way.KRIZHEVSKY))
    part = split.edge("one", "two", plan)
    names = split.resource_names()
    moved = split.layouts.moved_bytes("one", "two", plan)
    between = moved[:2, 2:].sum()
    for resource, seconds in zip(part.resources, part.seconds, strict=True):
        if names[resource] == "out of machine 0":
            assert seconds == pytest.approx(between, rel=1e-6)
    assert "into machine 1" in {names[resource] for resource in part.resources}


def test_plain_tasks_say_what_the_engine_simulates() -> None:
    split = PAIR.split("alexnet")
    plan = split.fixed_plan(Way.KRIZHEVSKY)
    tasks = split.plain_tasks(plan)
    timeline = split.timeline(plan)
    ends = {(row.part, row.task): row.end_s for row in timeline.frame().itertuples()}
    assert tasks.keys() == ends.keys()
    for task, (_, milliseconds, needs) in tasks.items():
        earliest = max((ends[need] for need in needs), default=0.0)
        assert ends[task] >= earliest + milliseconds / 1000 - 1e-12


def test_searches_are_no_worse_than_where_they_begin() -> None:
    split = PAIR.split("alexnet")
    starts = [split.timeline(split.fixed_plan(way)).end_s for way in flexflow.RIVALS]
    budget = Budget(num_plans=40)
    for way in (Way.WALK, Way.DESCENT):
        assert budget.step_s(split, way) <= min(starts)
    assert split.fixed_plan(Way.OPTCNN) == planner.choose(split.layouts.problem).plan


def test_all_plans_of_lenet_are_tried() -> None:
    split = flexflow.lenet(PAIR, 16)
    best_s = flexflow.best_of_all(split)
    found = split.search(Way.WALK, num_plans=400, temperature=0.01, seed=0)
    assert best_s <= found.cost
    assert best_s == pytest.approx(found.cost, rel=0.05)


def test_counted_tasks_are_between_those_that_differ_and_all() -> None:
    counts = flexflow.count_tasks(PAIR.split("alexnet"), Budget(num_plans=10))
    assert counts["differ"] <= counts["from"] <= counts["all"]
    assert counts["limit"] <= counts["from"]
    assert counts["equal"] == 1


def test_slower_links_make_longer_steps() -> None:
    slow = flexflow.slower(PAIR, 0.1)
    assert slow == replace(
        PAIR,
        inside_bytes_per_s=0.1 * PAIR.inside_bytes_per_s,
        between_bytes_per_s=0.1 * PAIR.between_bytes_per_s,
    )
    budget = Budget(num_plans=4)
    near = budget.step_s(PAIR.split("alexnet"), Way.KRIZHEVSKY)
    assert budget.step_s(slow.split("alexnet"), Way.KRIZHEVSKY) > near


def test_a_difference_is_a_new_part_or_another_time() -> None:
    split = PAIR.split("alexnet")
    plan = dict(split.fixed_plan(Way.DATA))
    before = split.timeline(plan)
    assert flexflow.differing(before, before) == 0
    other = {**plan, "fc8": "one device"}
    after = before.changed(split.parts(["fc8"], other))
    assert flexflow.differing(before, after) >= len(split.operator("fc8", "one device").seconds)


def test_walks_of_sums_end_at_or_above_the_optimum() -> None:
    split = PAIR.split("alexnet")
    best = planner.choose(split.layouts.problem).cost
    walks = flexflow.walks_of_sums(split, Budget(num_plans=200), range(3))
    assert all(walk.cost >= best - 1e-12 for walk in walks)
    figure = flexflow.figure_walks(walks, best=best, best_is="optimum", title="walks")
    assert len(figure.data) == 3


def test_gains_are_over_the_better_rival_and_below_the_bound() -> None:
    table = flexflow.gains(PAIR, Budget(num_plans=4), [Way.KRIZHEVSKY, Way.DATA])
    assert (table.groupby("network")["gain"].max() == 1).all()
    assert (table["gain"] <= table["bound"] + 1e-9).all()
    figure = flexflow.figure_throughput(table, claimed=3.3, title="gains")
    assert {trace.name for trace in figure.data} >= {Way.KRIZHEVSKY.value, Way.DATA.value}
