"""Timelines beside an independent event simulator, delta beside full, and searches on them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import planner
from labkit.errors import BadValue, UsageError
from labkit.planner.moves import Chosen, Search
from labkit.planner.simulating import Part, Timeline
from tests.planner.test_choices import problems

NUM_WAYS = 3


class Graph:
    """Operators in layers that follow one another, and edges with transfers, all drawn.

    Whole seconds, zeros among them, so that many tasks are ready at once.
    """

    def __init__(self, seed: int, num_operators: int, num_devices: int = 3) -> None:
        self.rng = np.random.default_rng(seed)
        self.names = [f"o{place}" for place in range(num_operators)]
        self.choices = {name: [f"w{way}" for way in range(NUM_WAYS)] for name in self.names}
        self.num_devices = num_devices
        self.edges = [
            (one, other)
            for one, other in itertools.combinations(self.names, 2)
            if self.rng.random() < 0.4
        ]
        self.drawn: dict[object, Part] = {}

    def operator(self, name: str, way: str) -> Part:
        if (name, way) not in self.drawn:
            count = int(self.rng.integers(1, 4))
            self.drawn[name, way] = Part(
                resources=self.rng.integers(-1, self.num_devices, count),
                seconds=self.rng.integers(0, 5, count) * 1.0,
            )
        return self.drawn[name, way]

    def edge(self, one: str, other: str, plan: Mapping[str, str]) -> Part:
        key = (one, other, plan[one], plan[other])
        if key not in self.drawn:
            name = f"{one}-{other}"
            sources = len(self.operator(one, plan[one]).seconds)
            readers = len(self.operator(other, plan[other]).seconds)
            count = int(self.rng.integers(0, 3))
            ends = [(sources, count), (count, readers)]
            pairs = [np.argwhere(self.rng.random(shape) < 0.7) for shape in ends]
            straight = np.argwhere(self.rng.random((sources, readers)) < 0.5)
            self.drawn[key] = Part(
                resources=self.rng.integers(self.num_devices, self.num_devices + 2, count),
                seconds=self.rng.integers(0, 5, count) * 1.0,
                needs=[(one, name, pairs[0]), (name, other, pairs[1]), (one, other, straight)],
            )
        return self.drawn[key]

    def parts(self, nodes: Iterable[str], plan: Mapping[str, str]) -> dict[str, Part]:
        nodes = set(nodes)
        parts = {name: self.operator(name, plan[name]) for name in self.names if name in nodes}
        for one, other in self.edges:
            if one in nodes or other in nodes:
                parts[f"{one}-{other}"] = self.edge(one, other, plan)
        return parts

    def moves(self, *, delta: bool = True) -> planner.TimelineMoves:
        return planner.TimelineMoves(self.choices, self.parts, delta=delta)

    def first(self) -> dict[str, str]:
        return dict.fromkeys(self.names, "w0")


def times_of(parts: Mapping[str, Part]) -> dict[tuple[str, int], tuple[float, float]]:
    """Ready and end of each task, by going through moments: no heap, no counts, no arrays."""
    tasks = [(name, number) for name, part in parts.items() for number in range(len(part.seconds))]
    needs: dict[tuple[str, int], set[tuple[str, int]]] = {task: set() for task in tasks}
    for part in parts.values():
        for earlier, later, pairs in part.needs:
            for one, other in pairs:
                needs[later, int(other)].add((earlier, int(one)))
    times: dict[tuple[str, int], tuple[float, float]] = {}
    free: dict[int, float] = {}
    while len(times) < len(tasks):
        offers = []
        for place, task in enumerate(tasks):
            if task not in times and all(other in times for other in needs[task]):
                ready = max((times[other][1] for other in needs[task]), default=0.0)
                offers.append((ready, place))
        ready, place = min(offers)
        name, number = tasks[place]
        resource = int(parts[name].resources[number])
        start = max(ready, free.get(resource, 0.0)) if resource >= 0 else ready
        end = start + float(parts[name].seconds[number])
        free[resource] = end
        times[name, number] = (ready, end)
    return times


def table(timeline: Timeline) -> dict[tuple[str, int], tuple[float, float]]:
    frame = timeline.frame()
    keys = zip(frame["part"], frame["task"], strict=True)
    values = zip(frame["ready_s"], frame["end_s"], strict=True)
    return dict(zip(keys, values, strict=True))


graphs = st.builds(Graph, st.integers(0, 2**32 - 1), st.integers(1, 7))


@given(graph=graphs)
def test_times_are_those_of_an_independent_simulator(graph: Graph) -> None:
    parts = graph.parts(graph.names, graph.first())
    timeline = planner.simulate(parts)
    expected = times_of(parts)
    assert table(timeline) == expected
    assert timeline.end_s == max((end for _, end in expected.values()), default=0.0)
    assert timeline.end_s >= timeline.bound_s
    assert timeline.num_simulated == timeline.num_tasks == len(expected)


@given(graph=graphs, seed=st.integers(0, 1000))
def test_delta_equals_full_along_a_random_walk(graph: Graph, seed: int) -> None:
    rng = np.random.default_rng(seed)
    moves = graph.moves()
    plan = moves.start(graph.first())
    for _ in range(12):
        change = moves.propose(plan, rng)
        _, changed = moves.price(plan, change, math.inf)
        full = planner.simulate(graph.parts(graph.names, changed.choices))
        assert changed.timeline is not None
        assert table(changed.timeline) == table(full)
        assert changed.cost == full.end_s
        assert changed.timeline.num_simulated <= full.num_simulated
        if rng.random() < 0.7:
            plan = changed


@given(graph=graphs, seed=st.integers(0, 1000), share=st.floats(0.3, 1.5))
def test_a_limit_stops_what_ends_after_it_and_nothing_else(
    graph: Graph, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    moves = graph.moves()
    plan = moves.start(graph.first())
    change = moves.propose(plan, rng)
    end_s, _ = moves.price(plan, change, math.inf)
    limit_s = share * end_s
    stopped_s, _ = moves.price(plan, change, limit_s)
    assert stopped_s == (end_s if end_s <= limit_s else math.inf)


@settings(max_examples=30)
@given(graph=graphs, seed=st.integers(0, 1000), temperature=st.sampled_from([0.0, 1.0, 10.0]))
def test_a_walk_is_the_same_with_delta_and_when_it_stops_early(
    graph: Graph, seed: int, temperature: float
) -> None:
    found = []
    for delta, early in itertools.product([True, False], [True, False]):
        moves = graph.moves(delta=delta)
        start = moves.start(graph.first())
        search = planner.walk(
            moves,
            start,
            num_plans=25,
            temperature=temperature,
            rng=np.random.default_rng(seed),
            stop_early=early,
        )
        found.append((search.plan.choices, search.history, search.num_accepted))
    assert all(each == found[0] for each in found)


@settings(max_examples=15)
@given(graph=st.builds(Graph, st.integers(0, 2**32 - 1), st.integers(1, 3)))
def test_a_long_walk_finds_the_best_of_all_plans(graph: Graph) -> None:
    best = min(
        planner.simulate(graph.parts(graph.names, dict(zip(graph.names, ways, strict=True)))).end_s
        for ways in itertools.product(*graph.choices.values())
    )
    moves = graph.moves()
    start = moves.start(graph.first())
    rng = np.random.default_rng(0)
    search = planner.walk(moves, start, num_plans=600, temperature=5.0, rng=rng)
    assert search.cost == best
    assert search.cost == planner.simulate(graph.parts(graph.names, search.plan.choices)).end_s


@given(problem=problems(), seed=st.integers(0, 1000))
def test_prices_of_choices_are_the_problems_own(problem: planner.Problem, seed: int) -> None:
    if all(len(names) == 1 for names in problem.choices.values()):
        with pytest.raises(UsageError, match="nothing to search"):
            planner.ChoiceMoves(problem)
        return
    rng = np.random.default_rng(seed)
    moves = planner.ChoiceMoves(problem)
    plan = moves.start({node: names[0] for node, names in problem.choices.items()})
    for _ in range(20):
        price, changed = moves.price(plan, moves.propose(plan, rng), 1e9)
        if math.isfinite(price):
            assert price == problem.cost(changed.choices)
            plan = changed
    assert planner.descend(moves, plan).cost >= planner.choose(problem).cost


@given(graph=graphs)
def test_a_descent_ends_where_no_change_is_better(graph: Graph) -> None:
    moves = graph.moves()
    search = planner.descend(moves, moves.start(graph.first()))
    for change in moves.changes(search.plan):
        assert moves.price(search.plan, change, math.inf)[0] >= search.cost
    costs = [better.cost for better in search.history]
    assert costs == sorted(costs, reverse=True)
    assert search.best_after(1) == costs[0]
    assert search.best_after(search.num_priced) == search.cost
    assert f"{search.num_priced:,} plans" in search.why()
    assert len(search.frame()) == len(search.history)


def test_a_walk_takes_dearer_plans_as_often_as_metropolis_says() -> None:
    """Two plans, a apart: the dearer one holds exp(-a) / (1 + exp(-a)) of the time."""
    costs = {"a": np.array([0.0, 1.0])}
    moves = planner.ChoiceMoves(planner.Problem(choices={"a": ("x", "y")}, node_costs=costs))
    num_plans = 20_000
    rng = np.random.default_rng(3)
    start = moves.start({"a": "x"})
    search = planner.walk(moves, start, num_plans=num_plans, temperature=1.0, rng=rng)
    # Each move up is followed by one down: of the time, 1 / (1 + e) is spent above.
    expected = 2 / (1 + math.e)
    assert search.num_accepted / num_plans == pytest.approx(expected, abs=0.02)
    assert search.cost == 0.0


def test_a_bound_gives_a_gap_and_a_timeline_says_why() -> None:
    part = Part(resources=np.array([0, 1]), seconds=np.array([1.0, 3.0]))
    timeline = planner.simulate({"one": part})
    assert timeline.why() == (
        "one ends last, after 3 s; the busiest resource, 1, works 100 % of them"
    )
    plan = Chosen({}, 4.0)
    search = Search(plan=plan, cost=4.0, num_priced=1, num_accepted=0, history=(), bound=3.0)
    assert search.gap == 0.25


def test_what_cannot_be_simulated_is_refused() -> None:
    one = Part(resources=np.array([0]), seconds=np.array([1.0]))
    pair = np.array([[0, 0]])
    ring = Part(
        resources=np.array([0]),
        seconds=np.array([1.0]),
        needs=[("one", "ring", pair), ("ring", "one", pair)],
    )
    after = Part(resources=np.array([0]), seconds=np.array([1.0]), needs=[("one", "after", pair)])
    with pytest.raises(UsageError, match="2 tasks wait for each other"):
        planner.simulate({"one": one, "ring": ring})
    timeline = planner.simulate({"one": one, "after": after})
    with pytest.raises(UsageError, match="change both"):
        timeline.changed({"one": one})
    with pytest.raises(BadValue, match="there is no part 'two'"):
        timeline.changed({"two": one})
    with pytest.raises(BadValue, match="unknown part 'one'"):
        planner.simulate({"after": after})
    stopped = timeline.changed({"one": one, "after": after}, limit_s=0.5)
    assert stopped.end_s == math.inf
    with pytest.raises(UsageError, match="stopped by its limit"):
        stopped.changed({"one": one, "after": after})
    far = Part(
        resources=np.array([0]), seconds=np.array([1.0]), needs=[("one", "far", np.array([[1, 0]]))]
    )
    with pytest.raises(BadValue, match="a task of 'one' that is not there; it has 1"):
        planner.simulate({"one": one, "far": far})


@pytest.mark.parametrize(
    ("resources", "seconds", "problem"),
    [
        ([0, 1], [1.0], "one value a task"),
        ([-2], [1.0], "whole numbers from -1"),
        ([0.5], [1.0], "whole numbers from -1"),
        ([10**9], [1.0], "below 1,048,576"),
        ([0], [-1.0], "finite numbers from 0"),
        ([0], [math.nan], "finite numbers from 0"),
    ],
)
def test_parts_are_checked(resources: list[float], seconds: list[float], problem: str) -> None:
    with pytest.raises(BadValue, match=problem):
        Part(resources=np.array(resources), seconds=np.array(seconds))
