"""The least costly way to end a schedule ever earlier, one unit of time at a time.

Every instruction may take any whole number of units between two bounds, and costs more the
shorter it is, by a convex curve. From the plan with all at their longest, each step shortens the
whole by one unit at the least cost. Which instructions that hurries is a minimum cut of the
network of critical ones: a unit less of what the cut crosses from source to sink costs, a unit
more of what it crosses on the way back saves, so the flow through an instruction is bounded from
below by what slowing it would save and from above by what hurrying it would cost.

The network is built once. Start and end of an instruction are the potentials of its two nodes,
its duration their distance, and a cut moves all nodes behind it forward by one unit. The flow
that proves one cut minimal stays within the bounds of the next network (whoever is hurried
carries exactly its old upper bound, which is its new lower one), so each step only adds to it.

They are written out because keeping the flow from one cut to the next makes the frontier an order
of magnitude cheaper than solving each from the start, as ``lowtime`` does.

Source: Fulkerson, "A Network Flow Computation for Project Cost Curves", Management Science 1961;
Phillips and Dessouky, "Solving the Project Time/Cost Tradeoff Problem Using the Minimal Cut
Concept", Management Science 1977.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkit.pipeline.scheduling.graph import Graph, Lag, longest_to

_LARGEST_FLOW = 2**29
"""Of the whole network: SciPy's flows have 32 bits, and two of them are added."""
_UNCUTTABLE = 2**30 - 1
"""Capacity of arcs that no cut may cross: waiting, and instructions at their shortest."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Menus:
    """What every instruction may take and what that costs.

    Attributes:
        least, most: bounds of each instruction's duration in units, shape (n,).
        cost: curves, one after the other, each falling and convex from a least to a most.
        offset: duration q of instruction i is entry ``offset[i] + q`` of ``cost``.
    """

    least: np.ndarray
    most: np.ndarray
    cost: np.ndarray
    offset: np.ndarray

    def joules(self, i: int, units: int) -> float:
        """What instruction ``i`` costs in ``units``; nothing more once it waits, inf if too few."""
        if units < self.least[i]:
            return math.inf
        return float(self.cost[self.offset[i] + min(units, self.most[i])])


Node = str | tuple[int, str]


def events(graph: Graph, menus: Menus) -> tuple[dict[Node, int], list[tuple[Node, Node]]]:
    """The network that cuts walk, for those who want to walk it themselves.

    Returns:
        When, in units, each event happens if everything runs at its longest: ``"S"`` and ``"T"``,
        the first start and the last end, and ``(i, "start")`` and ``(i, "end")`` of instruction i;
        and which event must not come before which: pairs (earlier, later).
    """
    end = longest_to(graph, menus.most.astype(float)).astype(int).tolist()
    at: dict[Node, int] = {"S": 0, "T": max(end)}
    order: list[tuple[Node, Node]] = []
    for i, last in enumerate(end):
        at |= {(i, "start"): last - int(menus.most[i]), (i, "end"): last}
        order.append(("S", (i, "start")))
    for before, after, _ in zip(*graph.edges(), strict=True):
        order.append(((int(before), "end"), (int(after), "start") if after < len(end) else "T"))
    return at, order


def span(graph: Graph, duration: np.ndarray, lag: Lag | None) -> int:
    """Units from the first start to the last end."""
    return int(longest_to(graph, duration.astype(float), lag).max())


def hurried(graph: Graph, menus: Menus, lag: Lag | None = None) -> Iterator[np.ndarray]:
    """Durations in units, all at their longest first, then after each cut; the fastest last.

    Every plan costs the least of all that end as early, up to a rounding of unit costs to about
    the largest one times n / 2**29. Of equal cuts the one nearest to the source is taken.

    Args:
        lag: whole units; see :func:`.graph.longest_to`.
    """
    network = _Network(graph, menus, lag)
    end = longest_to(graph, menus.most.astype(float), lag).astype(np.int64)
    potential = np.concatenate([end - menus.most, end, [0, end.max()]])  # as early as they can
    flow = np.zeros(len(network.tail), dtype=np.int64)
    yield menus.most.copy()
    for _ in range(int(end.max()) - span(graph, menus.least, lag)):
        behind = network.cut(potential, flow)
        potential[behind] -= 1
        yield np.minimum(network.distance(potential)[: len(graph)], menus.most)


class _Network:
    """Nodes: n starts, n ends, source, sink. Arcs: n instructions, then waits for one another."""

    def __init__(self, graph: Graph, menus: Menus, lag: Lag | None) -> None:
        self.tail, self.head, self.wait = _arcs(graph, lag)  # wait: least distance of the latter
        rows = np.concatenate([self.tail, self.head])
        columns = np.concatenate([self.head, self.tail])
        order = np.lexsort((columns, rows))
        # The residual matrix has an entry for every arc both ways: first all, then all reversed.
        self.place = np.argsort(order)
        self.indices = columns[order].astype(np.int32)
        ends = np.arange(2 * len(graph) + 3)
        self.indptr = np.searchsorted(rows[order], ends).astype(np.int32)
        self.hurry, self.slow, self.entry = _prices(menus)
        self.beyond = menus.most + 1  # one unit more than the longest, where both prices are 0

    def distance(self, potential: np.ndarray) -> np.ndarray:
        return potential[self.head] - potential[self.tail]

    def cut(self, potential: np.ndarray, flow: np.ndarray) -> np.ndarray:
        """Nodes behind the minimum cut, as a mask; adds to ``flow`` what proves it minimal."""
        from scipy.sparse.csgraph import maximum_flow

        n = len(self.entry)
        distance = self.distance(potential)
        at = np.minimum(distance[:n], self.beyond) + self.entry
        lower = self.slow[at]
        upper = self.hurry[at]
        tight = np.where(distance[n:] == self.wait, _UNCUTTABLE, 0)
        source = 2 * n
        sink = 2 * n + 1
        while True:
            forth = np.concatenate([upper - flow[:n], tight])
            back = np.concatenate([flow[:n] - lower, flow[n:]])
            residual = np.empty(len(self.place), dtype=np.int32)
            residual[self.place] = np.concatenate([forth, back])
            behind = ~self._reached(residual, source)
            if behind[sink]:
                return behind
            more = maximum_flow(self._matrix(residual, self.indices, self.indptr), source, sink)
            flow += more.flow.data[self.place[: len(flow)]]

    def _reached(self, residual: np.ndarray, source: int) -> np.ndarray:
        """Which nodes more flow could reach from the source."""
        from scipy.sparse.csgraph import breadth_first_order

        some = residual > 0
        indptr = np.concatenate([[0], np.cumsum(some)])[self.indptr]
        matrix = self._matrix(residual[some], self.indices[some], indptr)
        reached = np.zeros(2 * len(self.entry) + 2, dtype=bool)
        reached[breadth_first_order(matrix, source, return_predecessors=False)] = True
        return reached

    def _matrix(self, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray):  # type: ignore[no-untyped-def]
        from scipy.sparse import csr_matrix

        return csr_matrix((data, indices, indptr), shape=(len(indptr) - 1, len(indptr) - 1))


def _arcs(graph: Graph, lag: Lag | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tail and head of every arc, instructions first, and the waits of the others."""
    n = len(graph)
    starts = np.arange(len(graph))
    source, target, wait = graph.edges(lag)
    first = np.setdiff1d(starts, target)
    tail = np.concatenate([starts, n + source, np.full(len(first), 2 * n)])
    head = np.concatenate([n + starts, np.where(target == n, 2 * n + 1, target), first])
    return tail, head, np.concatenate([wait, np.zeros(len(first))]).astype(int)


def _prices(menus: Menus) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a unit less costs and a unit more saves, scaled to whole numbers, and where it stands.

    A flow never exceeds a cut, and no cut takes more than every instruction at its dearest.
    """
    start, first = np.unique(menus.offset + menus.least, return_index=True)
    width = (menus.most - menus.least)[first] + 1
    steps = [-np.diff(menus.cost[s : s + w]) for s, w in zip(start, width, strict=True)]
    dearest = max((float(step.max()) for step in steps if len(step)), default=0.0)
    scale = _LARGEST_FLOW / (len(menus.least) * dearest) if dearest > 0 else 1.0
    whole = [np.rint(step * scale).astype(np.int64) for step in steps]
    hurry = np.concatenate([np.concatenate([[_UNCUTTABLE], step, [0]]) for step in whole])
    slow = np.concatenate([np.concatenate([step, [0, 0]]) for step in whole])
    moved = np.cumsum([0, *(width + 1)])[:-1] - start
    entry = menus.offset + moved[np.searchsorted(start, menus.offset + menus.least)]
    return hurry, slow, entry
