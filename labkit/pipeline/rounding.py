"""From a relaxed plan to real clocks: round down, then spend what slack is left."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np

from labkit.pipeline.graph import Graph
from labkit.pipeline.relaxation import Options, Relaxation

_EPSILON_S = 1e-12


def round_down(choices: Options, relaxed: Relaxation) -> np.ndarray:
    """For each instruction, the slowest choice that is no slower than the relaxed plan's.

    Durations only shrink, so the result ends no later than the relaxed plan.
    """
    room = relaxed.duration_s[:, None] * (1 + 1e-12) + _EPSILON_S
    return np.maximum((choices.time_s[choices.of] <= room).sum(axis=1) - 1, 0)


def round_near(
    graph: Graph, choices: Options, relaxed: Relaxation, deadline_s: float
) -> np.ndarray:
    """For each instruction, the choice that ends nearest to where it ends in the relaxed plan.

    Instructions go in topological order, so what one loses by rounding the next can use. Every
    choice leaves room for all that follows to be rounded down, so the deadline holds.
    """
    chosen = round_down(choices, relaxed)
    tail = LongestPaths(graph, choices, chosen).tail
    target = (relaxed.start_s + relaxed.duration_s).tolist()
    end = [0.0] * (len(graph) + 1)
    before, needs, of = graph.before.tolist(), graph.needs.tolist(), choices.of.tolist()
    for i in graph.topological.tolist():
        start = max(end[before[i]], end[needs[i]])
        times = choices.time_s[of[i]]
        room = deadline_s - tail[i] - start + _EPSILON_S
        allowed = times <= max(room, times[0])
        chosen[i] = int(np.argmin(np.where(allowed, np.abs(times - (target[i] - start)), np.inf)))
        end[i] = start + float(times[chosen[i]])
    return chosen


class LongestPaths:
    """Earliest starts and latest ends under a plan that changes one instruction at a time.

    ``head[i]`` is the longest path before instruction i, ``tail[i]`` the longest after it; both
    exclude i itself. A change is carried only as far as it moves anything.
    """

    def __init__(self, graph: Graph, choices: Options, chosen: np.ndarray) -> None:
        n = len(graph)
        self.before, self.needs = graph.before.tolist(), graph.needs.tolist()
        self.followers: list[list[int]] = [[] for _ in range(n)]
        for i in range(n):
            for source in {self.before[i], self.needs[i]} - {n}:
                self.followers[source].append(i)
        self.order = graph.topological.tolist()
        self.position = np.argsort(graph.topological).tolist()
        self.of = choices.of.tolist()
        real = np.isfinite(choices.time_s)
        self.times = [t[r].tolist() for t, r in zip(choices.time_s, real, strict=True)]
        self.nets = [e[r].tolist() for e, r in zip(choices.net_j, real, strict=True)]
        self.chosen = chosen.tolist()
        self.duration = [self.times[self.of[i]][self.chosen[i]] for i in range(n)]
        self.head, self.tail = [0.0] * n, [0.0] * n
        self.end, self.rest = [0.0] * (n + 1), [0.0] * (n + 1)  # i included
        for i in self.order:
            self._update_head(i)
        for i in reversed(self.order):
            self._update_tail(i)

    @property
    def makespan_s(self) -> float:
        return max(self.end)

    def net_j(self) -> float:
        return sum(self.nets[self.of[i]][k] for i, k in enumerate(self.chosen))

    def _update_head(self, i: int) -> None:
        self.head[i] = max(self.end[self.before[i]], self.end[self.needs[i]])
        self.end[i] = self.head[i] + self.duration[i]

    def _update_tail(self, i: int) -> None:
        self.tail[i] = max((self.rest[j] for j in self.followers[i]), default=0.0)
        self.rest[i] = self.tail[i] + self.duration[i]

    def choose(self, i: int, choice: int) -> None:
        """Give instruction ``i`` another choice and carry the change to all it moves."""
        self.chosen[i] = choice
        self.duration[i] = self.times[self.of[i]][choice]
        self._carry(i, forward=True)
        self._carry(i, forward=False)

    def _carry(self, i: int, *, forward: bool) -> None:
        """Update from ``i`` on in topological order, stopping wherever nothing moved."""
        n, value = len(self.head), self.end if forward else self.rest
        sign = 1 if forward else -1
        queue, queued = [(sign * self.position[i], i)], {i}
        while queue:
            _, one = heapq.heappop(queue)
            queued.discard(one)
            old = value[one]
            (self._update_head if forward else self._update_tail)(one)
            if value[one] == old:
                continue
            near: Iterable[int] = (
                self.followers[one] if forward else (self.before[one], self.needs[one])
            )
            for j in near:
                if j < n and j not in queued:
                    queued.add(j)
                    heapq.heappush(queue, (sign * self.position[j], j))


def spend_slack(paths: LongestPaths, deadline_s: float) -> None:
    """Slow instructions down, the most joules per second of slack first, until none fits.

    Slack only shrinks, so an offer once out of reach stays so: offers wait in a heap and are
    looked at again only when their turn comes. Time: about (offers) x (log n + what each moves).
    """

    def offer(i: int) -> tuple[float, int, int] | None:
        times, nets, now = paths.times[paths.of[i]], paths.nets[paths.of[i]], paths.chosen[i]
        slack = deadline_s - paths.head[i] - paths.duration[i] - paths.tail[i] + _EPSILON_S
        best: tuple[float, int, int] | None = None
        for k in range(now + 1, len(times)):
            longer = times[k] - times[now]
            if longer > slack:
                break
            rate = (nets[now] - nets[k]) / longer
            if best is None or rate > -best[0]:
                best = (-rate, i, k)
        return best

    heap = [one for one in map(offer, range(len(paths.head))) if one is not None]
    heapq.heapify(heap)
    while heap:
        stale = heapq.heappop(heap)
        fresh = offer(stale[1])
        if fresh == stale:
            paths.choose(stale[1], stale[2])
            fresh = offer(stale[1])
        if fresh is not None:
            heapq.heappush(heap, fresh)


def realise(
    graph: Graph, choices: Options, relaxed: Relaxation, deadline_s: float, waiting_w: float
) -> np.ndarray:
    """A choice for every instruction, near the relaxed plan and done by the deadline.

    The better of two roundings, slack spent up to the relaxed plan's end. Where clocks are few and
    far apart both can be worse than not slowing down at all; then the fastest plan, its slack
    spent, is taken instead.

    Args:
        waiting_w: what a longer makespan costs: the blocking power of all GPUs together.
    """
    horizon_s = min(deadline_s, relaxed.makespan_s)
    starts = (
        round_down(choices, relaxed),
        round_near(graph, choices, relaxed, horizon_s),
    )
    tried = [LongestPaths(graph, choices, start) for start in starts]
    for paths in tried:
        spend_slack(paths, horizon_s)
    fastest = LongestPaths(graph, choices, np.zeros(len(graph), dtype=int))

    def energy_j(paths: LongestPaths) -> float:
        return paths.net_j() + waiting_w * paths.makespan_s

    if min(map(energy_j, tried)) > energy_j(fastest):
        spend_slack(fastest, fastest.makespan_s)
        tried.append(fastest)
    return np.array(min(tried, key=energy_j).chosen)
