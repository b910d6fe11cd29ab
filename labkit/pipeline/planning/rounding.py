"""From a relaxed plan to real clocks: sweeps along the schedule that spend its slack at a price.

A sweep visits every instruction in topological order, forward or backward, and gives each the
choice that is cheapest at a price for its time, among those that fit between the longest path
before it and the longest path after it. So every plan on the way keeps the deadline. Prices start
at the relaxation's, where only what the best mixture would do is worth its time, and fall to zero,
where any slack left is spent.

Many plans are swept at once, one a column ("lane"): deadlines of a frontier, and variants of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from labkit.pipeline.planning.relaxation import Options, Relaxation
from labkit.pipeline.profiles.clocks import DEADLINE_TOLERANCE
from labkit.pipeline.scheduling.graph import Graph, Lag

SHARES = (0.97, 0.8, 0.5, 0.2, 0.0)  # of the relaxation's price, sweep by sweep
_CELLS = 240_000  # instructions times lanes swept together: about what processors' caches hold
_NEVER_S = 1e30  # duration of choices that are not there
_ROOM = 1e-12  # of the deadline: floating-point noise that may not cost a clock
_GRADE, _GRADES = 0.01, 1024  # steps of a price's logarithm, and how many: a range of 28,000
_NOISE = 1e-6  # of a duration: the linear program's tolerance
_CLOSE = 7e-4  # of the bound: plans this near it are not improved further
_EXTRA = ((1.5e-3, 8, 12), (1.8e-3, 2, 24), (4.8e-3, 3, 48))  # further off, how many, rounds more
_LANES = 32  # so many cost hardly more than one
Shake = tuple[float, float, float]
_SHAKES: tuple[
    Shake, ...
] = (  # spread of a price's logarithm: by work, by instruction, for that share of them
    (0.0, 0.0, 0.0),
    (0.05, 0.0, 0.0),
    (0.0, 0.05, 1.0),
    (0.2, 0.0, 0.0),
    (0.0, 1.0, 0.1),
    (0.1, 0.0, 0.0),
    (0.3, 0.0, 0.0),
    (0.1, 0.5, 0.1),
)


def _rounds(n: int) -> int:
    """How many rounds of shaken prices a schedule of n instructions is worth."""
    return max(1, min(16, 3000 // n))


class Swept(NamedTuple):
    """Plans and how far each instruction reaches in them.

    ``reach`` has shape (n + 1, lanes): after a forward sweep the earliest ends, after a backward
    one the longest paths from each start to the end; its last row is zero.
    """

    chosen: np.ndarray
    reach: np.ndarray
    forward: bool

    @property
    def makespan_s(self) -> np.ndarray:
        """When each plan ends, shape (lanes,)."""
        return self.reach.max(axis=0)


_Near = tuple[np.ndarray, np.ndarray | None]


class _Level(NamedTuple):
    """Instructions none of which waits for another."""

    part: slice
    near: list[_Near]  # whom they wait for, one each (n for none), and the lag between
    time: np.ndarray  # (choice, instruction, 1)


class Sweeper:
    """Sweeps over one schedule and its choices.

    Inside, instructions are numbered by level (all that an instruction waits for stands on lower
    levels), so that a level is a slice; arrays of plans have shape (n, lanes).
    """

    def __init__(self, graph: Graph, choices: Options, lag_s: Lag | None = None) -> None:
        n = self._n = len(graph)
        level = _levels(graph)
        order = np.argsort(level, kind="stable")
        self._place = np.argsort(order)  # instruction -> number inside
        place = np.append(self._place, n)
        lags = (np.zeros(n), np.zeros(n)) if lag_s is None else lag_s
        waits = [
            (place[who[order]], lag[order])
            for who, lag in zip((graph.before, graph.needs), lags, strict=True)
        ]
        self._work = choices.of[order][:, None]
        real = np.isfinite(choices.time_s)
        time_s = np.where(real, choices.time_s, _NEVER_S)[self._work[:, 0]]  # (n, choice)
        self._time = time_s.ravel()
        self._net = np.where(real, choices.net_j, np.inf)[self._work[:, 0]].ravel()
        self._width = time_s.shape[1]
        self._first = np.arange(n)[:, None] * self._width
        self._by_choice = time_s.T[:, :, None].copy()
        self._index = np.int8 if self._width < 128 else np.int16
        self._lowest_w, self._cheapest = _price_table(choices)
        self._forward = self._levels(np.bincount(level), waits)
        self._backward = self._levels(np.bincount(level), _followers(n, waits))[::-1]

    def _levels(
        self, sizes: np.ndarray, sources: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> list[_Level]:
        """The instructions of each level, and whom they wait for (or who waits for them)."""
        made = []
        for high, size in zip(np.cumsum(sizes).tolist(), sizes.tolist(), strict=True):
            part = slice(high - size, high)
            near = [
                (who[part], lag[part][:, None] if lag[part].any() else None) for who, lag in sources
            ]
            near = [one for one in near if (one[0] < self._n).any() or one[1] is not None]
            made.append(
                _Level(part, near or [(sources[0][0][part], None)], self._by_choice[:, part])
            )
        return made

    def __len__(self) -> int:
        return self._n

    def inside(self, values: np.ndarray) -> np.ndarray:
        """Values by instruction, shape (n, ...), in the numbering used here."""
        moved = np.empty_like(values)
        moved[self._place] = values
        return moved

    def outside(self, values: np.ndarray) -> np.ndarray:
        """The reverse of :meth:`inside`."""
        return values[self._place]

    def durations(self, chosen: np.ndarray) -> np.ndarray:
        return self._time.take(chosen + self._first)

    def net_j(self, chosen: np.ndarray) -> np.ndarray:
        """Energy above waiting of each plan, shape (lanes,)."""
        return self._net.take(chosen + self._first).sum(axis=0)

    def round_down(self, duration: np.ndarray) -> np.ndarray:
        """For each instruction the slowest choice no slower than given, shape as given."""
        return self._slowest(self._by_choice, duration)

    def _slowest(self, time: np.ndarray, room: np.ndarray) -> np.ndarray:
        """The last of the ascending times, shape (choice, ...), that fits; else the first."""
        fits = (time <= room).view(np.int8)
        return np.maximum(np.add.reduce(fits, axis=0, dtype=self._index), 1) - self._index(1)

    def sweep(
        self,
        plan: Swept,
        deadline: np.ndarray,
        *,
        forward: bool,
        price: np.ndarray | None = None,
        most: np.ndarray | None = None,
    ) -> Swept:
        """Choose anew for every instruction in turn, in plans that end by their deadlines.

        Args:
            deadline: of each lane, shape (lanes,).
            price: grades of :meth:`grade`, shape (n, lanes); None for time that costs nothing.
            most: the slowest choice allowed, shape (n, lanes); None for any.
        """
        beyond = self._beyond(plan, forward)
        deadline = deadline * (1 + _ROOM)
        chosen = np.empty_like(plan.chosen)
        reach = np.zeros((self._n + 1, chosen.shape[1]))  # ends, or what follows each start
        for part, near, time in self._forward if forward else self._backward:
            begin = _longest(reach, near)
            pick = self._slowest(time, deadline - beyond[part] - begin)
            if most is not None:
                np.minimum(pick, most[part], out=pick)
            if price is not None:
                pick = self._cheapest.take(price[part] + pick)
            chosen[part] = pick
            begin += self._time.take(pick + self._first[part])
            reach[part] = begin
        return Swept(chosen, reach, forward)

    def plan(self, chosen: np.ndarray) -> Swept:
        """Choices as something to sweep."""
        return Swept(chosen, self._reach(self._forward, self.durations(chosen)), True)

    def fastest(self, lanes: int) -> Swept:
        """That many times the plan in which every instruction is at its fastest."""
        return self.plan(np.zeros((self._n, lanes), dtype=self._index))

    def grade(self, price_w: np.ndarray) -> np.ndarray:
        """Prices of instructions' time, shape (n, lanes), as rows of a table made beforehand."""
        with np.errstate(divide="ignore"):
            step = np.log(np.maximum(price_w, 0.0) / self._lowest_w) / _GRADE
        grade = np.clip(step, 0, _GRADES - 1).astype(np.int32) + self._work * _GRADES
        return grade * self._width

    def shake(
        self, rng: np.random.Generator, shakes: Sequence[tuple[float, float, float]]
    ) -> np.ndarray:
        """Random factors for prices, shape (n, shakes); see ``_SHAKES``."""
        columns = []
        for by_work, by_instruction, share in shakes:
            work = rng.normal(0, by_work, int(self._work.max()) + 1)[self._work[:, 0]]
            alone = rng.normal(0, by_instruction, self._n) * (rng.random(self._n) < share)
            columns.append(work + alone)
        return np.exp(np.stack(columns, axis=1))

    def _beyond(self, plan: Swept, forward: bool) -> np.ndarray:
        """Longest path after each instruction, or before it: the side a sweep leaves as it is."""
        duration = self.durations(plan.chosen)
        if plan.forward != forward:
            reach = plan.reach
        else:
            reach = self._reach(self._backward if forward else self._forward, duration)
        return reach[:-1] - duration

    def _reach(self, levels: list[_Level], duration: np.ndarray) -> np.ndarray:
        """Longest path to each instruction, itself included, or from it; row n is zero."""
        reach = np.zeros((self._n + 1, duration.shape[1]))
        for part, near, _ in levels:
            reach[part] = _longest(reach, near) + duration[part]
        return reach


def _longest(reach: np.ndarray, near: list[_Near]) -> np.ndarray:
    """Where the furthest of ``near`` reaches, and its lag."""
    longest = None
    for who, lag in near:
        there = reach.take(who, axis=0)
        if lag is not None:
            there += lag
        longest = there if longest is None else np.maximum(longest, there, out=longest)
    assert longest is not None
    return longest


def _price_table(choices: Options) -> tuple[float, np.ndarray]:
    """For prices of time in geometric steps, the cheapest choice among each work's first k + 1.

    Returns:
        The lowest price (W); the table, flat, of shape (work, _GRADES, choice).
    """
    slopes = [
        -np.diff(net[hull]) / np.diff(time[hull])
        for time, net, hull in zip(choices.time_s, choices.net_j, choices.hull, strict=True)
    ]
    steepest_w = max((float(one.max()) for one in slopes if len(one)), default=1.0)
    lowest_w = 1.1 * steepest_w * np.exp(-_GRADE * (_GRADES - 1))
    price_w = lowest_w * np.exp(_GRADE * np.arange(_GRADES))
    price_w[0] = 0.0
    time = np.where(np.isfinite(choices.time_s), choices.time_s, 0.0)
    cost = choices.net_j[:, None, :] + price_w[:, None] * time[:, None, :]
    first = cost <= np.minimum.accumulate(cost, axis=2)
    number = np.arange(cost.shape[2], dtype=np.int16)
    first &= np.isfinite(cost)
    cheapest = np.maximum.accumulate(np.where(first, number, np.int16(0)), axis=2)
    return lowest_w, cheapest.ravel().astype(np.int8 if cost.shape[2] < 128 else np.int16)


def _levels(graph: Graph) -> np.ndarray:
    """Length of the longest chain of instructions before each one."""
    level = [-1] * (len(graph) + 1)
    topological, before, needs = graph.lists
    for i in topological:
        level[i] = max(level[before[i]], level[needs[i]]) + 1
    return np.array(level[:-1])


def _followers(
    n: int, waits: Sequence[tuple[np.ndarray, np.ndarray]]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each instruction those that wait for it, as columns padded with n, and the lags."""
    source = np.concatenate([who for who, _ in waits])
    lag = np.concatenate([lag for _, lag in waits])
    target = np.tile(np.arange(n), len(waits))
    order = np.argsort(source, kind="stable")
    order = order[source[order] < n]
    count = np.bincount(source[order], minlength=n)
    column = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    follow = []
    for k in range(max(1, int(count.max(initial=0)))):
        mine = order[column == k]
        who, wait = np.full(n, n), np.zeros(n)
        who[source[mine]], wait[source[mine]] = target[mine], lag[mine]
        follow.append((who, wait))
    return follow


@dataclass(eq=False)
class _Plans:
    """The best plan so far of every deadline, one a lane."""

    sweeper: Sweeper
    deadline: np.ndarray
    waiting_w: float
    chosen: np.ndarray
    energy_j: np.ndarray

    def offer(self, lanes: np.ndarray, swept: Swept) -> None:
        """Take plans that end in time and need less energy; several may be for one deadline."""
        makespan_s = swept.makespan_s
        energy_j = self.sweeper.net_j(swept.chosen) + self.waiting_w * makespan_s
        energy_j[makespan_s > self.deadline[lanes] * (1 + DEADLINE_TOLERANCE / 2)] = np.inf
        for column in np.argsort(energy_j, kind="stable").tolist():
            lane = lanes[column]
            if energy_j[column] < self.energy_j[lane]:
                self.energy_j[lane] = energy_j[column]
                self.chosen[:, lane] = swept.chosen[:, column]


def realise(
    sweeper: Sweeper,
    relaxed: Sequence[Relaxation],
    deadline_s: Sequence[float],
    waiting_w: float,
) -> np.ndarray:
    """A choice for every instruction, near each relaxed plan and done by its deadline.

    Args:
        relaxed: solutions, one for each deadline.
        waiting_w: what a longer makespan costs: the blocking power of all GPUs together.

    Returns:
        Shape (deadlines, n).
    """
    width = max(1, _CELLS // len(sweeper))
    deadline = np.array(deadline_s, dtype=float)
    chosen, energy_j = [], []
    for low in range(0, len(relaxed), width):
        part = slice(low, low + width)
        plans = _realise(sweeper, relaxed[part], deadline[part], waiting_w)
        chosen.append(plans.chosen)
        energy_j.append(plans.energy_j)
    best = np.concatenate(chosen, axis=1)
    need_j = np.concatenate(energy_j)
    order = np.argsort(deadline, kind="stable").tolist()
    for earlier, later in itertools.pairwise(order):  # in time for one, in time for all later
        if need_j[earlier] < need_j[later]:
            need_j[later], best[:, later] = need_j[earlier], best[:, earlier]
    return sweeper.outside(best).T.astype(int)


def _realise(
    sweeper: Sweeper, relaxed: Sequence[Relaxation], deadline: np.ndarray, waiting_w: float
) -> _Plans:
    n, lanes = len(sweeper), len(relaxed)
    price = sweeper.inside(np.stack([one.price_w for one in relaxed], axis=1))
    duration = sweeper.inside(np.stack([one.duration_s for one in relaxed], axis=1))
    fastest = sweeper.fastest(lanes)
    first_s = fastest.makespan_s
    horizon = np.maximum(np.minimum(deadline, [one.makespan_s for one in relaxed]), first_s)
    plans = _Plans(sweeper, deadline, waiting_w, fastest.chosen, np.full(lanes, np.inf))
    every = np.arange(lanes)
    # where clocks are few and far apart, ending later may not pay
    plans.offer(every, sweeper.sweep(fastest, first_s, forward=False))
    start = _start_plan(sweeper, duration, horizon, fastest).chosen
    search = _Search(plans, horizon, price, np.random.default_rng(0))
    for forward in (True, False):
        search.round(start, every, _SHAKES[:3], forward=forward)
    bound_j = np.array([one.bound_j for one in relaxed])
    search.improve(bound_j + _CLOSE * np.abs(bound_j), _rounds(n), most=lanes)
    for enough, most, rounds in _EXTRA:
        rounds = min(rounds, rounds * 2048 // n)
        search.improve(bound_j + enough * np.abs(bound_j), rounds, most=most)
    return plans


@dataclass(eq=False)
class _Search:
    """Sweeps at shaken prices, for those deadlines whose plans can still be much better."""

    plans: _Plans
    horizon: np.ndarray
    price: np.ndarray
    rng: np.random.Generator

    def improve(self, enough_j: np.ndarray, rounds: int, *, most: int) -> None:
        """Start again and again from the best plans, the worst ``most`` of those not enough."""
        forward = True
        while rounds > 0:
            over_j = self.plans.energy_j - enough_j
            wide = np.argsort(-over_j, kind="stable")[:most]
            wide = wide[over_j[wide] > 0]
            if not len(wide):
                break
            repeats = max(1, min(rounds, _LANES // (len(wide) * len(_SHAKES))))
            self.round(self.plans.chosen, wide, _SHAKES * repeats, forward=forward)
            rounds, forward = rounds - repeats, not forward

    def round(
        self, source: np.ndarray, lanes: np.ndarray, shakes: Sequence[Shake], *, forward: bool
    ) -> None:
        sweeper = self.plans.sweeper
        batches = min(len(lanes), -(-len(lanes) * len(shakes) * len(sweeper) // _CELLS))
        for some in np.array_split(lanes, batches):
            many = np.repeat(some, len(shakes))
            price = self.price[:, many] * sweeper.shake(self.rng, list(shakes) * len(some))
            plan = sweeper.plan(source[:, many])
            self.plans.offer(
                many, _anneal(sweeper, plan, self.horizon[many], price, forward=forward)
            )


def _start_plan(
    sweeper: Sweeper, duration: np.ndarray, horizon: np.ndarray, fastest: Swept
) -> Swept:
    """The relaxed plan rounded down, but to the clock itself where it is off by noise only."""
    safe = sweeper.plan(sweeper.round_down(duration * (1 - _NOISE)))
    if (safe.makespan_s > horizon).any():
        safe = fastest
    near = sweeper.round_down(duration * (1 + _NOISE))
    return sweeper.sweep(safe, horizon, forward=True, most=near)


def _anneal(
    sweeper: Sweeper, plan: Swept, horizon: np.ndarray, price_w: np.ndarray, *, forward: bool
) -> Swept:
    """Sweeps to and fro while the price of time falls to nothing."""
    for share in SHARES:
        asked = sweeper.grade(price_w * share) if share else None
        plan = sweeper.sweep(plan, horizon, price=asked, forward=forward)
        forward = not forward
    return plan
