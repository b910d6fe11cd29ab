"""Relaxed plans rounded to measured clocks, by sweeps that choose every clock anew.

A sweep visits instructions in topological order, forward or backward, and gives each the choice
that is cheapest at a price for its time, among those that fit between the longest path before it
and the longest path after it. So every plan on the way keeps the deadline.

An annealing is a few sweeps to and fro. Their prices start at the relaxation's, where only what
the best mixture would do is worth its time, and fall to zero, where any slack left is spent. A
plan is made so:

1. The relaxed plan is rounded to clocks, and the whole of it is annealed a few times.
2. It is improved window by window: inside a few instructions of every device, all else staying as
   it is, annealings are tried at prices shaken at random, and the best one is kept. So a long
   schedule is improved in many places at once, where the whole would have to be lucky everywhere.
3. Step 2 is repeated, each time in other windows; a short plan is also begun anew.

How near the bound the plans come is a matter of effort first. Of 40 deadlines at 8 stages x 64
microbatches (1F1B, one core), mean and largest gap, and CPU seconds of rounding alone:

    effort                          1                   4                  16
    GPT-3, A100      0.089/0.193 % 0.3 s  0.083/0.169 % 1.1 s  0.080/0.156 % 4.1 s
    GPT-3, A40       0.234/0.548 % 0.3 s  0.221/0.503 % 1.0 s  0.215/0.497 % 3.8 s
    generated        0.197/0.302 % 0.4 s  0.179/0.276 % 1.3 s  0.168/0.270 % 5.0 s

Four times as much again gains next to nothing. At 4 x 6 what then remains is mostly the bound's;
for long schedules that is open (a quarter or less of it is proven to be the bound's): a mixture of
clocks lets all paths end at the same moment, real clocks rarely can, and the fewer and the further
apart they are, the less. Over 16 deadlines at 4 x 6, where a MILP solver (HiGHS) had 60 s for each,
plans were 0.057 % above the bound on average, the best that either found 0.053 %, and no plan can
be less than 0.038 % above it. Of 96 instructions in the midst of an 8 x 64 plan, cut free from all
others, the same solver proves in 90 s that they lie at least 0.03 % (GPT-3, A100) or 0.12 % (A40)
above it near the fastest deadlines. So a certificate of 0.1 % everywhere would take a bound that
knows whole clocks, at minutes of that solver's time for each piece of a plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labkit.kit.compiled import njit
from labkit.pipeline.profiles.clocks import Task
from labkit.pipeline.scheduling.graph import longest_to

if TYPE_CHECKING:
    from labkit.pipeline.planning.relaxation import Options, Relaxation

_DEADLINE_NOISE = 1e-12
"""Share of the deadline that counts as floating-point noise: it may not cost a clock."""
_SOLVER_NOISE = 1e-6
"""Share of a duration by which the linear program's solution may be wrong."""
_ROUNDED_UP = (1e-6, 2e-3)
"""Share by which a first plan may lengthen a duration to reach the next clock: for solutions that
are exact, and for those of the interior-point method, which end near a clock, not at it."""

# How hard rounding searches. Tuned by trial for CPU time, on the published profiles and on
# generated ones; tests hold what gaps are reached on them and on others.
_SHARES = np.array([0.99, 0.9, 0.5, 0.0])
"""The price of time in each sweep of an annealing, as a share of the relaxation's price."""
_SHAKEN = (0.15, 0.5)
"""Largest share by which a shaken price differs from the relaxation's; runs use them in turn."""
_WINDOW = 6
"""Instructions of each device in a window, on average."""
_TRIES = 6
"""Annealings of each window."""
_VISITS = 6_000_000
"""How many instructions the sweeps of all windows may visit, for all deadlines together."""
_VISITS_OF_PLAN = 300_000
"""The same for one deadline, so that a plan by itself is not searched for much longer."""
_FEWEST_PASSES = 4
"""Passes through a plan's windows; the shorter the schedule and the fewer the plans, the more."""
_PASSES_OF_RUN = 5
"""Passes for each window of a plan after which it begins anew: short plans rarely get better then,
long ones would lose what many windows have gained."""
_GOOD_GAP = 3e-4
"""Gap to the bound, as a share of it, at which a plan is improved no further."""


def realise(
    task: Task,
    choices: Options,
    relaxed: Sequence[Relaxation],
    deadlines_s: Sequence[float],
    *,
    effort: float = 1.0,
) -> np.ndarray:
    """A choice for every instruction, near each relaxed plan, that ends by its deadline.

    Args:
        relaxed: solutions, one for each deadline.
        effort: how many times the usual number of passes through windows is made.

    Returns:
        Rows of the profile, (deadlines, n).
    """
    problem = _problem(task, choices)
    visits_of_pass = len(problem.work) * _TRIES * len(_SHARES)
    visits = min(_VISITS / max(1, len(deadlines_s)), _VISITS_OF_PLAN)
    passes = round(effort * max(_FEWEST_PASSES, visits / visits_of_pass))
    rows = []
    need_j = []
    for solution, deadline_s in zip(relaxed, deadlines_s, strict=True):
        chosen = _rounded(task, problem, solution, deadline_s, passes)
        row = choices.row[choices.of, chosen]
        rows.append(row)
        need_j.append(task.cost(row)[1])
    order = np.argsort(deadlines_s, kind="stable").tolist()
    for earlier, later in itertools.pairwise(order):  # in time for one, in time for all later
        if need_j[earlier] < need_j[later]:
            need_j[later] = need_j[earlier]
            rows[later] = rows[earlier]
    return np.array(rows)


class _Problem(NamedTuple):
    """What compiled loops have to know of a task; instructions are numbered 0 to n - 1.

    Arrays of two rows speak of the instruction before it on its device and of the one that it
    needs; n stands for "none". Those that wait for instruction i are entries ``first[i]`` to
    ``first[i + 1]`` of ``follower``.
    """

    order: np.ndarray  # (n,) topological
    source: np.ndarray  # (2, n) whom each instruction waits for
    source_lag_s: np.ndarray  # (2, n)
    first: np.ndarray  # (n + 1,)
    follower: np.ndarray
    follower_lag_s: np.ndarray
    work: np.ndarray  # (n,) row of the tables below
    time_s: np.ndarray  # (work, choice) ascending, then infinite
    net_j: np.ndarray


class _Plan(NamedTuple):
    """A plan, and how far each instruction could move in it.

    The last entries of ``duration_s`` and ``start_s`` are those of "none", zero.
    """

    choice: np.ndarray  # (n,) column of the problem's tables
    duration_s: np.ndarray  # (n + 1,)
    start_s: np.ndarray  # (n + 1,) the earliest
    due_s: np.ndarray  # (n,) the latest end


def _problem(task: Task, choices: Options) -> _Problem:
    graph = task.schedule.graph
    n = len(graph)
    depth = longest_to(graph, np.ones(n))  # how many it waits for in a row
    source, target, lag_s = graph.edges(task.lag_s)
    inner = np.flatnonzero(target < n)
    inner = inner[np.argsort(source[inner], kind="stable")]
    return _Problem(
        order=np.argsort(depth, kind="stable"),
        source=np.stack([graph.before, graph.needs]),
        source_lag_s=np.zeros((2, n)) if task.lag_s is None else np.stack(task.lag_s),
        first=np.searchsorted(source[inner], np.arange(n + 1)),
        follower=target[inner],
        follower_lag_s=lag_s[inner],
        work=choices.of,
        time_s=choices.time_s,
        net_j=choices.net_j,
    )


def _rounded(
    task: Task, problem: _Problem, solution: Relaxation, deadline_s: float, passes: int
) -> np.ndarray:
    """The best plan found for one deadline, as each instruction's choice."""
    search = _Search(problem, solution.price_w, task.waiting_w, np.random.default_rng(0))
    # 1. Where clocks are few and far apart, ending later than the fastest plan may not pay.
    search.fill(np.zeros(len(problem.work)))
    floor_s = search.makespan_s
    search.anneal_whole(floor_s, shaken=0.0)
    best = search.plan.choice.copy()
    best_j = search.need_j
    # 2. From the relaxed plan on, in a few runs, until one is near the bound.
    horizon_s = max(min(deadline_s, solution.makespan_s), floor_s)
    enough_j = solution.bound_j + _GOOD_GAP * abs(solution.bound_j)
    window = _WINDOW * task.schedule.num_devices
    windows = -(-len(problem.work) // window)
    runs = max(1, passes // (_PASSES_OF_RUN * windows))
    for run in range(runs):
        shaken = _SHAKEN[run % len(_SHAKEN)]
        search.start(solution.duration_s, horizon_s)
        search.anneal_whole(horizon_s, shaken=shaken)
        search.anneal_windows(horizon_s, window, passes // runs, enough_j, shaken=shaken)
        if search.need_j < best_j:
            best = search.plan.choice.copy()
            best_j = search.need_j
        if best_j <= enough_j:
            break
    return best


class _Search:
    """A plan that is made better and better, at given prices of its instructions' time."""

    def __init__(
        self, problem: _Problem, price_w: np.ndarray, waiting_w: float, rng: np.random.Generator
    ) -> None:
        n = len(problem.work)
        self.problem = problem
        self.price_w = price_w[problem.order]
        self.waiting_w = waiting_w
        self.rng = rng
        self.plan = _Plan(
            choice=np.zeros(n, dtype=np.int64),
            duration_s=np.zeros(n + 1),
            start_s=np.zeros(n + 1),
            due_s=np.zeros(n),
        )

    @property
    def makespan_s(self) -> float:
        """When the plan ends."""
        return float((self.plan.start_s + self.plan.duration_s).max())

    @property
    def need_j(self) -> float:
        """Energy of the plan."""
        net_j = self.problem.net_j[self.problem.work, self.plan.choice].sum()
        return float(net_j) + self.waiting_w * self.makespan_s

    def take(self, choice: np.ndarray) -> None:
        """Make it the plan of these choices."""
        problem = self.problem
        self.plan.choice[:] = choice
        self.plan.duration_s[:-1] = problem.time_s[problem.work, choice]
        _settle(problem, self.plan, 0, len(problem.work), np.inf, True)

    def fill(self, longest_s: np.ndarray) -> None:
        """Give every instruction its slowest choice no longer than given, or its fastest."""
        fitting = (self.problem.time_s[self.problem.work] <= longest_s[:, None]).sum(axis=1)
        self.take(np.maximum(fitting - 1, 0))

    def start(self, duration_s: np.ndarray, horizon_s: float) -> None:
        """The relaxed plan, rounded to clocks, and the whole of it annealed."""
        best_j = np.inf
        best = self.plan.choice
        for near in _ROUNDED_UP:
            self._round(duration_s, horizon_s, near)
            self.anneal_whole(horizon_s, shaken=0.0)
            if self.need_j < best_j:
                best_j = self.need_j
                best = self.plan.choice.copy()
        self.take(best)

    def _round(self, duration_s: np.ndarray, horizon_s: float, near: float) -> None:
        """Round durations down, but up where that lengthens one by no more than ``near``."""
        problem = self.problem
        n = len(problem.work)
        latest_s = horizon_s * (1 + _DEADLINE_NOISE)
        self.fill(duration_s * (1 - _SOLVER_NOISE))
        if self.makespan_s > latest_s:
            self.fill(np.zeros(n))
        _settle(problem, self.plan, 0, n, latest_s, False)
        longest_s = duration_s[problem.order] * (1 + near)
        _sweep(problem, self.plan, 0, n, latest_s, True, np.zeros(n), longest_s)

    def anneal_whole(self, horizon_s: float, *, shaken: float) -> None:
        """Anneal the plan as one window, forward first and backward first."""
        self._pass(horizon_s, np.array([len(self.price_w)]), tries=2, shaken=shaken)

    def anneal_windows(
        self, horizon_s: float, window: int, passes: int, enough_j: float, *, shaken: float
    ) -> None:
        """Anneal windows side by side, the first cut short at random, until energy is enough."""
        n = len(self.price_w)
        for _ in range(passes):
            if self.need_j <= enough_j:
                break
            cut = int(self.rng.integers(1, window + 1))
            ends = np.array([*range(cut, n, window), n])
            self._pass(horizon_s, ends, tries=_TRIES, shaken=shaken)

    def _pass(self, horizon_s: float, ends: np.ndarray, *, tries: int, shaken: float) -> None:
        latest_s = horizon_s * (1 + _DEADLINE_NOISE)
        prices = (self.price_w, _SHARES, shaken)
        _pass(self.problem, self.plan, ends, latest_s, *prices, tries, self.rng)


@njit(cache=True, nogil=True)
def _pass(
    problem: Any,
    plan: Any,
    ends: Any,
    latest_s: float,
    price_w: Any,
    shares: Any,
    shaken: float,
    tries: int,
    rng: Any,
) -> None:
    """Improve window after window of a plan; each begins where the last one ended."""
    # Dues are right behind a window from the start, starts before it once it is reached.
    _settle(problem, plan, 0, ends[-1], latest_s, False)
    low = 0
    for high in ends:
        prices_w = price_w[low:high]
        _improve(problem, plan, low, high, latest_s, prices_w, shares, shaken, tries, rng)
        low = high


@njit(cache=True, nogil=True)
def _improve(
    problem: Any,
    plan: Any,
    low: int,
    high: int,
    latest_s: float,
    price_w: Any,
    shares: Any,
    shaken: float,
    tries: int,
    rng: Any,
) -> None:
    """Anneal a window, places ``low`` to ``high`` of the order, and keep the best plan of all."""
    window = problem.order[low:high]
    # 1. The plan as it stands is the best so far.
    best = plan.choice[window]
    best_j = 0.0
    for i in window:
        best_j += problem.net_j[problem.work[i], plan.choice[i]]
    free_s = np.full(window.size, np.inf)
    for t in range(tries):
        # 2. Each try starts from the best plan, at prices of its own, to and fro or fro and to.
        _put(problem, plan, window, best)
        factor = 1 + shaken * (2 * rng.random(window.size) - 1)
        forward = t % 2 == 0
        _settle(problem, plan, low, high, latest_s, not forward)
        need_j = 0.0
        for share in shares:
            asked_w = share * factor * price_w
            need_j = _sweep(problem, plan, low, high, latest_s, forward, asked_w, free_s)
            forward = not forward
        # 3. It is kept if it needs less.
        if need_j < best_j:
            best_j = need_j
            best = plan.choice[window]
    # 4. The best plan is left behind, with starts and dues as they are in it.
    _put(problem, plan, window, best)
    _settle(problem, plan, low, high, latest_s, True)
    _settle(problem, plan, low, high, latest_s, False)


@njit(cache=True, nogil=True)
def _put(problem: Any, plan: Any, window: Any, choice: Any) -> None:
    """Choices of a window's instructions, and so their durations."""
    for k in range(window.size):
        i = window[k]
        plan.choice[i] = choice[k]
        plan.duration_s[i] = problem.time_s[problem.work[i], choice[k]]


@njit(cache=True, nogil=True)
def _earliest_s(i: int, source: Any, source_lag_s: Any, start_s: Any, duration_s: Any) -> float:
    """When those an instruction waits for let it start."""
    a = source[0, i]
    b = source[1, i]
    first_s = start_s[a] + duration_s[a] + source_lag_s[0, i]
    return max(first_s, start_s[b] + duration_s[b] + source_lag_s[1, i])


@njit(cache=True, nogil=True)
def _latest_s(
    i: int, end_s: float, first: Any, follower: Any, lag_s: Any, due_s: Any, duration_s: Any
) -> float:
    """When those that wait for an instruction need it to end; ``end_s`` if there are none."""
    for k in range(first[i], first[i + 1]):
        j = follower[k]
        end_s = min(end_s, due_s[j] - duration_s[j] - lag_s[k])
    return end_s


@njit(cache=True, nogil=True)
def _settle(problem: Any, plan: Any, low: int, high: int, latest_s: float, forward: bool) -> None:
    """Bring a window's starts (forward) or dues up to date."""
    order, source, source_lag_s, first, follower, follower_lag_s, _, _, _ = problem
    _, duration_s, start_s, due_s = plan
    if forward:
        for i in order[low:high]:
            start_s[i] = _earliest_s(i, source, source_lag_s, start_s, duration_s)
    else:
        for i in order[low:high][::-1]:
            due_s[i] = _latest_s(i, latest_s, first, follower, follower_lag_s, due_s, duration_s)


@njit(cache=True, nogil=True)
def _sweep(
    problem: Any,
    plan: Any,
    low: int,
    high: int,
    latest_s: float,
    forward: bool,
    price_w: Any,
    longest_s: Any,
) -> float:
    """Choose anew for every instruction of a window in turn.

    Prices and longest durations are the window's, in its order. Returns its energy above waiting.
    """
    # Taken out here, for in the loop each access would count a reference.
    order, source, source_lag_s, first, follower, follower_lag_s, work, time_s, net_j = problem
    choice, duration_s, start_s, due_s = plan
    total_j = 0.0
    for step in range(high - low):
        k = step if forward else high - low - 1 - step
        i = order[low + k]
        # 1. How far it can move, as those now stand that were visited before it.
        if forward:
            start_s[i] = _earliest_s(i, source, source_lag_s, start_s, duration_s)
        else:
            due_s[i] = _latest_s(i, latest_s, first, follower, follower_lag_s, due_s, duration_s)
        room_s = min(due_s[i] - start_s[i], longest_s[k])
        # 2. The cheapest choice that fits; if none does, the fastest.
        w = work[i]
        least_j = np.inf
        pick = 0
        for c in range(time_s.shape[1]):
            if time_s[w, c] > room_s:
                break
            cost_j = net_j[w, c] + price_w[k] * time_s[w, c]
            if cost_j <= least_j:
                least_j = cost_j
                pick = c
        choice[i] = pick
        duration_s[i] = time_s[w, pick]
        total_j += net_j[w, pick]
    return total_j
