"""Choices on a graph: each node takes one of its ways to run, and neighbours must fit together.

    cost = Σ over nodes i of node[i][c_i]  +  Σ over edges (i, j) of edge[i, j][c_i, c_j]

with at most so many bytes, where a limit is given: Σ over nodes of memory[i][c_i] ≤ limit. How a
layer is split over devices is such a choice, and what an edge costs is bringing a tensor from its
producer's layout into its consumer's. An infinite cost forbids a choice or a pair.

Three methods find the least cost:

1. *Elimination* takes a node away and remembers, for each choice of its neighbours, its best one.
   It is exact, and fast where few nodes hang together at a time (OptCNN's node and edge
   eliminations are the cases of two neighbours and of parallel edges).
2. The *integer program* has a variable a node and choice, and one an edge and pair, tied by
   equalities: what pairs of an edge add up to for a choice is that choice's variable. Without
   wholeness the same program is a bound, mostly the optimum itself.
3. *Trying all* is for small graphs, and for tests.

Source: the local polytope, Wainwright and Jordan 2008, §4.1; eliminations, Jia et al. 2018
(OptCNN), §5.2; the integer program of layouts, Zheng et al. 2022 (Alpa), §4.2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from labkit.errors import BadValue, UsageError, did_you_mean
from labkit.kit.describe import Positive, checked, description

if TYPE_CHECKING:
    import pandas as pd

Method = Literal["eliminate", "integer", "all"]
_LARGEST_TABLE = 2 * 10**7
"""Numbers in a table of elimination at most."""
_MOST_PLANS = 10**6
"""Plans that are tried one by one at most."""


@description(eq=False)
class Problem:
    """Nodes, their choices, and what choices and pairs of choices cost.

    Attributes:
        choices: names of the choices of each node, by the node's name.
        node_costs: of each choice, by node; shape (choices,).
        edge_costs: of each pair of choices, by (node, node); shape (choices, choices).
        memory_bytes: of each choice, by node; nodes that are left out take none.

    Raises:
        BadValue: a shape does not fit, a cost is NaN, a node has no choice, an edge joins a node
            to itself or to one that is unknown, or a pair of nodes has two edges.
    """

    choices: Mapping[str, Sequence[str]]
    node_costs: Mapping[str, np.ndarray]
    edge_costs: Mapping[tuple[str, str], np.ndarray] = field(default_factory=dict)
    memory_bytes: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node, names in self.choices.items():
            if not len(names):
                raise BadValue(f"planner.Problem: node {node!r} has no choice")
            self._check(f"node_costs[{node!r}]", self.node_costs.get(node), (len(names),))
        for node, sizes in self.memory_bytes.items():
            self._known(node, "memory_bytes")
            self._check(f"memory_bytes[{node!r}]", sizes, (len(self.choices[node]),))
            if not np.isfinite(sizes).all():
                raise BadValue(f"planner.Problem: memory_bytes[{node!r}] must be finite")
        for pair, costs in self.edge_costs.items():
            for node in pair:
                self._known(node, "edge_costs")
            if pair[0] == pair[1] or (pair[1], pair[0]) in self.edge_costs:
                raise BadValue(
                    f"planner.Problem: edge {pair} joins a node to itself, or is there twice"
                )
            shape = (len(self.choices[pair[0]]), len(self.choices[pair[1]]))
            self._check(f"edge_costs[{pair}]", costs, shape)

    def _known(self, node: str, where: str) -> None:
        if node not in self.choices:
            hint = did_you_mean(node, self.choices) or "choices names all nodes"
            raise BadValue(f"planner.Problem: {where} has no node {node!r}; {hint}")

    @staticmethod
    def _check(name: str, costs: np.ndarray | None, shape: tuple[int, ...]) -> None:
        values = np.asarray(costs, dtype=float)  # of nothing, one NaN
        if values.shape != shape:
            raise BadValue(
                f"planner.Problem: {name} must have the shape {shape}, got {values.shape}"
            )
        if np.isnan(values).any() or (values == -math.inf).any():
            raise BadValue(f"planner.Problem: {name} holds NaN or minus infinity")

    @cached_property
    def num_plans(self) -> int:
        """All combinations of choices."""
        return math.prod(len(names) for names in self.choices.values())

    @checked
    def cost(self, plan: Mapping[str, str]) -> float:
        """What a plan costs.

        Args:
            plan: the name of the choice of each node.

        Raises:
            BadValue: a node is missing, or it has no such choice.
        """
        index = {}
        for node, names in self.choices.items():
            if plan.get(node) not in names:
                raise BadValue(
                    f"planner.Problem: plan[{node!r}] is {plan.get(node)!r}, which is no choice of "
                    f"it; there are: {', '.join(names)}"
                )
            index[node] = list(names).index(plan[node])
        return self._cost_of(index)

    def _cost_of(self, index: Mapping[str, int]) -> float:
        cost = sum(float(self.node_costs[node][index[node]]) for node in self.choices)
        for (one, other), costs in self.edge_costs.items():
            cost += float(costs[index[one], index[other]])
        return cost

    def _memory_of(self, index: Mapping[str, int]) -> float:
        return sum(float(sizes[index[node]]) for node, sizes in self.memory_bytes.items())


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """The choices of all nodes, and what none can beat.

    Attributes:
        plan: the name of the choice of each node.
        cost: of the plan.
        bound: no plan costs less.
        evaluations: entries of tables, plans that were tried, or nodes of the search tree.
    """

    problem: Problem
    plan: Mapping[str, str]
    cost: float
    bound: float
    evaluations: int
    method: Method

    @property
    def gap(self) -> float:
        """By how much, as a share of the cost, a better plan could be cheaper at most."""
        return 1 - self.bound / self.cost if self.cost else 0.0

    @property
    def memory_bytes(self) -> float:
        """Bytes of the plan."""
        return self.problem._memory_of(self._index)

    @cached_property
    def _index(self) -> dict[str, int]:
        problem = self.problem
        return {node: list(problem.choices[node]).index(name) for node, name in self.plan.items()}

    def frame(self) -> pd.DataFrame:
        """One row a node: its choice, what it costs, and what its edges cost, each counted half."""
        import pandas as pd

        index = self._index
        edges = dict.fromkeys(self.plan, 0.0)
        for (one, other), costs in self.problem.edge_costs.items():
            for node in (one, other):
                edges[node] += float(costs[index[one], index[other]]) / 2
        rows = [
            (node, name, float(self.problem.node_costs[node][index[node]]), edges[node])
            for node, name in self.plan.items()
        ]
        return pd.DataFrame(rows, columns=["node", "choice", "node_cost", "edge_cost"])

    def why(self, node: str) -> str:
        """One sentence: what each other choice of a node would cost, all else as it is.

        Raises:
            BadValue: there is no such node.
        """
        self.problem._known(node, "the problem")
        others = {
            name: self.problem.cost({**self.plan, node: name})
            for name in self.problem.choices[node]
            if name != self.plan[node]
        }
        words = ", ".join(f"{name} {cost:.4g}" for name, cost in others.items())
        return f"{node}: {self.plan[node]} costs {self.cost:.4g}; instead {words or 'nothing else'}"


@checked
def choose(
    problem: Problem, *, method: Method = "eliminate", memory_limit_bytes: Positive | None = None
) -> Choice:
    """The cheapest choices of all nodes.

    Args:
        method: ``eliminate`` and ``all`` are exact without a limit of memory; ``integer`` is exact
            with one as well.
        memory_limit_bytes: that the choices may take together.

    Raises:
        UsageError: no plan is allowed, a limit is given to elimination, or the graph is too large
            for the method.

    >>> costs = {"a": np.array([1.0, 3.0]), "b": np.array([3.0, 1.0])}
    >>> ways = {"a": ["rows", "columns"], "b": ["rows", "columns"]}
    >>> moving = {("a", "b"): np.array([[0.0, 5.0], [5.0, 0.0]])}
    >>> choose(Problem(choices=ways, node_costs=costs, edge_costs=moving)).cost
    4.0
    """
    if method == "eliminate":
        if memory_limit_bytes is not None:
            raise UsageError(
                "planner.choose: elimination knows no limit of memory; method='integer' does"
            )
        return _eliminated(problem)
    if method == "all":
        return _best_of_all(problem, memory_limit_bytes)
    return _program(problem, memory_limit_bytes, whole=True)


@checked
def relax(problem: Problem, *, memory_limit_bytes: Positive | None = None) -> float:
    """What no plan can beat: the integer program without wholeness.

    Raises:
        UsageError: not even parts of choices are allowed together.
    """
    return _program(problem, memory_limit_bytes, whole=False).bound


# ---------------------------------------------------------------- elimination


class _Table(NamedTuple):
    """Costs of some nodes' choices together: an axis a node."""

    nodes: tuple[str, ...]
    costs: np.ndarray

    def spread(self, nodes: Sequence[str]) -> np.ndarray:
        """The costs with axes in the order of more nodes, of length 1 where a node is not here."""
        order = sorted(range(len(self.nodes)), key=lambda axis: nodes.index(self.nodes[axis]))
        shape = [1] * len(nodes)
        for axis in order:
            shape[nodes.index(self.nodes[axis])] = self.costs.shape[axis]
        return self.costs.transpose(order).reshape(shape)


class _Gone(NamedTuple):
    """A node that was taken away, and its best choice for each choice of its neighbours."""

    node: str
    neighbours: tuple[str, ...]
    best: np.ndarray


class _Tables:
    """The tables that are left while nodes are taken away, and what taking each away would need.

    Attributes:
        left: all tables, oldest first.
        sizes: of each node that is left, numbers in the table of all nodes that it hangs together
            with, its own choices among them; only neighbours' sizes change when a node goes.
    """

    def __init__(self, problem: Problem) -> None:
        self.counts = {node: len(names) for node, names in problem.choices.items()}
        self.by_number: dict[int, _Table] = {}
        self.numbers: dict[str, list[int]] = {node: [] for node in problem.choices}
        for name, costs in problem.node_costs.items():
            self._add(_Table((name,), np.asarray(costs, dtype=float)))
        for pair, costs in problem.edge_costs.items():
            self._add(_Table(pair, np.asarray(costs, dtype=float)))
        self.added = len(self.by_number)
        self.sizes = {node: self._size(node) for node in problem.choices}

    @property
    def left(self) -> list[_Table]:
        return list(self.by_number.values())

    def of(self, node: str) -> list[_Table]:
        """The tables that speak of a node, oldest first."""
        return [self.by_number[number] for number in self.numbers[node]]

    def _add(self, table: _Table, number: int | None = None) -> None:
        place = len(self.by_number) if number is None else number
        self.by_number[place] = table
        for node in table.nodes:
            self.numbers[node].append(place)

    def _size(self, node: str) -> int:
        involved = {name for table in self.of(node) for name in table.nodes}
        return math.prod(self.counts[name] for name in involved)

    def replace(self, node: str, table: _Table) -> None:
        """Take a node away, with its tables; what its neighbours cost together comes instead."""
        for number in self.numbers.pop(node):
            for name in self.by_number.pop(number).nodes:
                if name != node:
                    self.numbers[name].remove(number)
        del self.sizes[node]
        self._add(table, self.added)
        self.added += 1
        for name in table.nodes:
            self.sizes[name] = self._size(name)


def _eliminated(problem: Problem) -> Choice:
    """Take nodes away, cheapest table first, and then choose in the opposite order.

    1. Of each node, the tables that speak of it are added into one.
    2. The node whose table is smallest goes: its table's least over the node's choices stays.
    3. When no node is left, the last table is the least cost; each node's choice follows from those
       of the neighbours that it had, last node first.
    """
    tables = _Tables(problem)
    gone: list[_Gone] = []
    evaluations = 0
    while tables.sizes:
        node = min(tables.sizes, key=tables.sizes.__getitem__)
        mine = tables.of(node)
        neighbours = tuple(dict.fromkeys(n for t in mine for n in t.nodes if n != node))
        if tables.sizes[node] > _LARGEST_TABLE:
            raise UsageError(
                f"planner.choose: elimination would need a table of {len(neighbours) + 1} nodes "
                "at once; method='integer' takes such graphs"
            )
        order = (*neighbours, node)
        whole = sum((table.spread(order) for table in mine), np.zeros([1] * len(order)))
        evaluations += whole.size
        gone.append(_Gone(node, neighbours, whole.argmin(axis=-1)))
        tables.replace(node, _Table(neighbours, whole.min(axis=-1)))
    cost = float(sum(float(table.costs) for table in tables.left))
    if not math.isfinite(cost):
        raise UsageError("planner.choose: no plan is allowed: every one has an infinite cost")
    index: dict[str, int] = {}
    for node, neighbours, best in reversed(gone):
        index[node] = int(best[tuple(index[name] for name in neighbours)])
    return _choice(problem, index, cost, evaluations, "eliminate")


def _choice(
    problem: Problem, index: Mapping[str, int], bound: float, evaluations: int, method: Method
) -> Choice:
    """The choice of these places."""
    return Choice(
        problem=problem,
        plan={node: problem.choices[node][index[node]] for node in problem.choices},
        cost=problem._cost_of(index),
        bound=bound,
        evaluations=evaluations,
        method=method,
    )


def _best_of_all(problem: Problem, memory_limit_bytes: float | None) -> Choice:
    """Try every plan."""
    if problem.num_plans > _MOST_PLANS:
        raise UsageError(
            f"planner.choose: {problem.num_plans:,} plans are too many to try one by one; at most "
            f"{_MOST_PLANS:,}"
        )
    limit = math.inf if memory_limit_bytes is None else memory_limit_bytes
    best: dict[str, int] = {}
    least = math.inf
    for places in itertools.product(*(range(len(names)) for names in problem.choices.values())):
        index = dict(zip(problem.choices, places, strict=True))
        cost = problem._cost_of(index)
        if cost < least and problem._memory_of(index) <= limit:
            best = index
            least = cost
    if not best:
        raise UsageError("planner.choose: no plan is allowed, or none fits memory_limit_bytes")
    return _choice(problem, best, least, problem.num_plans, "all")


# ---------------------------------------------------------------- integer program


def _program(problem: Problem, memory_limit_bytes: float | None, *, whole: bool) -> Choice:
    """Solve the integer program, or its relaxation, with HiGHS.

    Variables: x of each node and choice, then y of each edge and pair. Rows: the x of a node add up
    to 1; the y of an edge in a row of its table add up to the x of that choice, and in a column to
    the x of the other's. What costs infinitely much is fixed at 0.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    costs = [np.asarray(problem.node_costs[node], dtype=float) for node in problem.choices]
    starts = np.cumsum([0, *(len(part) for part in costs)])
    first = dict(zip(problem.choices, starts, strict=False))
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    values: list[np.ndarray] = []
    rhs: list[float] = []

    def add(places: np.ndarray, factors: np.ndarray, total: float) -> None:
        rows.append(np.full(len(places), len(rhs)))
        columns.append(places)
        values.append(factors)
        rhs.append(total)

    for node, part in zip(problem.choices, costs, strict=True):
        places = first[node] + np.arange(len(part))
        add(places, np.ones(len(part)), 1.0)
    begin = int(starts[-1])
    for (one, other), table in problem.edge_costs.items():
        pairs = begin + np.arange(np.size(table)).reshape(np.shape(table))
        for node, lines in ((one, pairs), (other, pairs.T)):
            for choice, line in enumerate(lines):
                places = np.append(line, first[node] + choice)
                add(places, np.append(np.ones(len(line)), -1.0), 0.0)
        costs.append(np.asarray(table, dtype=float).ravel())
        begin += np.size(table)
    cost = np.concatenate(costs)
    shape = (len(rhs), len(cost))
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    constraints = [LinearConstraint(coo_array(entries, shape=shape).tocsr(), rhs, rhs)]
    if memory_limit_bytes is not None:
        sizes = np.zeros(len(cost))
        for node, taken in problem.memory_bytes.items():
            sizes[first[node] : first[node] + len(taken)] = taken
        constraints.append(LinearConstraint(sizes / memory_limit_bytes, -np.inf, 1.0))
    allowed = np.isfinite(cost)
    integrality = np.zeros(len(cost))
    if whole:
        integrality[: starts[-1]] = 1
    answer = milp(
        np.where(allowed, cost, 0.0),
        constraints=constraints,
        bounds=Bounds(0, allowed.astype(float)),
        integrality=integrality,
        options={"mip_rel_gap": 0.0},
    )
    if answer.x is None:
        raise UsageError("planner.choose: no plan is allowed, or none fits memory_limit_bytes")
    bound = float(answer.mip_dual_bound) if whole else float(answer.fun)
    chosen = np.split(answer.x[: starts[-1]], starts[1:-1])
    index = {node: int(np.argmax(part)) for node, part in zip(problem.choices, chosen, strict=True)}
    evaluations = int(answer.mip_node_count or 1)
    return _choice(problem, index, bound, evaluations, "integer")
