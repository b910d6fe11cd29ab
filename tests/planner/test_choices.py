"""Choices on a graph: three methods agree, relaxing bounds them, wrong problems are refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import planner
from labkit.errors import BadValue, UsageError


@st.composite
def problems(draw: st.DrawFn, most_nodes: int = 5) -> planner.Problem:
    """Any graph of a few nodes, costs with some choices forbidden but never all."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nodes = [f"n{place}" for place in range(draw(st.integers(1, most_nodes)))]
    choices = {node: [f"c{c}" for c in range(random.integers(1, 4))] for node in nodes}
    node_costs = {node: random.integers(0, 20, len(names)) * 1.0 for node, names in choices.items()}
    edges = {}
    for place, one in enumerate(nodes):
        for other in nodes[place + 1 :]:
            if random.random() < 0.6:
                table = random.integers(0, 20, (len(choices[one]), len(choices[other]))) * 1.0
                table[1:, 1:][random.random(table[1:, 1:].shape) < 0.2] = math.inf
                edges[one, other] = table
    memory = {node: random.integers(1, 10, len(names)) * 1.0 for node, names in choices.items()}
    return planner.Problem(
        choices=choices, node_costs=node_costs, edge_costs=edges, memory_bytes=memory
    )


@given(problem=problems())
def test_three_methods_agree_and_the_relaxation_is_a_bound(problem: planner.Problem) -> None:
    tried = planner.choose(problem, method="all")
    eliminated = planner.choose(problem)
    whole = planner.choose(problem, method="integer")
    assert eliminated.cost == tried.cost
    assert whole.cost == pytest.approx(tried.cost)
    assert whole.bound == pytest.approx(tried.cost)
    assert planner.relax(problem) <= tried.cost + 1e-6
    assert problem.cost(eliminated.plan) == eliminated.cost
    assert eliminated.gap == pytest.approx(0)


@given(problem=problems(), share=st.floats(0.3, 1.2))
def test_a_limit_of_memory_is_kept(problem: planner.Problem, share: float) -> None:
    free = planner.choose(problem)
    limit = max(share * free.memory_bytes, 1.0)
    try:
        tried = planner.choose(problem, method="all", memory_limit_bytes=limit)
    except UsageError:
        with pytest.raises(UsageError, match="none fits memory_limit"):
            planner.choose(problem, method="integer", memory_limit_bytes=limit)
        return
    whole = planner.choose(problem, method="integer", memory_limit_bytes=limit)
    assert whole.memory_bytes <= limit * (1 + 1e-9)
    assert whole.cost == pytest.approx(tried.cost)
    assert tried.cost >= free.cost
    assert planner.relax(problem, memory_limit_bytes=limit) <= tried.cost + 1e-6


def chain(length: int, random: np.random.Generator) -> planner.Problem:
    """A chain with a bypass at each second node, as residual networks have."""
    nodes = [f"layer {place}" for place in range(length)]
    ways = ["sample", "channel", "height", "copies"]
    edges = {pair: random.random((4, 4)) for pair in itertools.pairwise(nodes)}
    for place in range(0, length - 2, 2):
        edges[nodes[place], nodes[place + 2]] = random.random((4, 4))
    return planner.Problem(
        choices=dict.fromkeys(nodes, ways),
        node_costs={node: random.random(4) for node in nodes},
        edge_costs=edges,
    )


def test_long_graphs_take_tables_of_three_nodes() -> None:
    problem = chain(200, np.random.default_rng(0))
    found = planner.choose(problem)
    assert found.evaluations <= 200 * 4**3
    assert planner.choose(problem, method="integer").cost == pytest.approx(found.cost)


def test_why_names_what_the_others_would_cost() -> None:
    found = planner.choose(chain(4, np.random.default_rng(1)))
    words = found.why("layer 1")
    assert words.startswith("layer 1: ")
    assert words.count(", ") == 2
    table = found.frame()
    assert table["node_cost"].sum() + table["edge_cost"].sum() == pytest.approx(found.cost)


ONE = {"choices": {"a": ["x", "y"]}, "node_costs": {"a": np.zeros(2)}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"choices": {"a": []}}, "node 'a' has no choice"),
        ({"node_costs": {"a": np.zeros(3)}}, "must have the shape (2,), got (3,)"),
        ({"node_costs": {}}, "must have the shape (2,), got ()"),
        ({"node_costs": {"a": np.array([0, math.nan])}}, "holds NaN"),
        ({"edge_costs": {("a", "b"): np.zeros((2, 2))}}, "edge_costs has no node 'b'"),
        ({"edge_costs": {("a", "a"): np.zeros((2, 2))}}, "joins a node to itself"),
        ({"memory_bytes": {"b": np.zeros(2)}}, "memory_bytes has no node 'b'"),
    ],
)
def test_wrong_problems_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadValue) as caught:
        planner.Problem(**(ONE | change))
    assert problem in str(caught.value)


def test_what_cannot_be_chosen_is_said() -> None:
    never = planner.Problem(choices={"a": ["x"]}, node_costs={"a": np.array([math.inf])})
    with pytest.raises(UsageError, match="no plan is allowed"):
        planner.choose(never)
    with pytest.raises(UsageError, match="no plan is allowed"):
        planner.choose(never, method="integer")
    problem = chain(4, np.random.default_rng(2))
    with pytest.raises(UsageError, match="elimination knows no limit of memory"):
        planner.choose(problem, memory_limit_bytes=1.0)
    with pytest.raises(UsageError, match="too many to try one by one"):
        planner.choose(chain(40, np.random.default_rng(2)), method="all")
    with pytest.raises(BadValue, match="is 'rows', which is no choice"):
        problem.cost(dict.fromkeys(problem.choices, "rows"))
    with pytest.raises(BadValue, match="has no node 'layer 9'"):
        planner.choose(problem).why("layer 9")
