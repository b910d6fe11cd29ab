"""The least energy any clock plan can need, from a linear program, and where its solution lies.

Every instruction may mix its clocks: its duration moves along the lower convex hull of its
(time, net energy) points, net meaning above waiting. Each real choice is one of those mixtures,
so the optimum bounds every plan from below:

    min  sum_i net_i(d_i) + G P_b T   s.t.  s_j >= s_i + d_i on every dependency,  s_i + d_i <= T

with G GPUs, blocking power P_b and T at most the deadline. The hull enters as one bounded
variable per segment; being convex, its segments fill in order without being told to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.clocks import DEADLINE_TOLERANCE, check_stages
from labkit.pipeline.graph import Graph, longest_to
from labkit.pipeline.profile import EnergyProfile
from labkit.pipeline.schedule import KINDS, Schedule


@dataclass(frozen=True, eq=False)
class Options:
    """The choices of each kind of work, by ascending time: what planners and bounds pick from.

    Arrays have shape (work, choice), work = kind * num_stages + stage; short lists are padded
    with infinite times. ``row`` points into the profile.
    """

    row: np.ndarray
    time_s: np.ndarray
    net_j: np.ndarray
    of: np.ndarray  # (n,) work of each instruction

    @cached_property
    def hull(self) -> list[np.ndarray]:
        """For each work, the choices on its lower convex hull, ascending in time."""
        return [
            _lower_hull(time[np.isfinite(time)], net)
            for time, net in zip(self.time_s, self.net_j, strict=True)
        ]

    def fastest_s(self) -> np.ndarray:
        """Shortest duration of each instruction."""
        return self.time_s[self.of, 0]


def options(schedule: Schedule, profile: EnergyProfile) -> Options:
    """The clocks worth choosing for every instruction of ``schedule``.

    Raises:
        UsageError: schedule and profile have different numbers of stages.
    """
    check_stages(schedule, profile)
    works = [(stage, kind) for kind in KINDS for stage in range(profile.num_stages)]
    rows = [profile.rows(stage, kind, kept_only=True) for stage, kind in works]
    rows = [r[np.argsort(profile.time_s[r], kind="stable")] for r in rows]
    width = max(len(r) for r in rows)
    row = np.array([np.pad(r, (0, width - len(r))) for r in rows])
    real = np.arange(width) < np.array([len(r) for r in rows])[:, None]
    return Options(
        row=row,
        time_s=np.where(real, profile.time_s[row], np.inf),
        net_j=np.where(real, profile.net_energy_j[row], np.inf),
        of=schedule.kind * profile.num_stages + schedule.stage,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Relaxation:
    """Solution of the linear program.

    Attributes:
        bound_j: no plan that ends by the deadline needs less energy.
        makespan_s: when the relaxed plan ends.
        start_s, duration_s: of each instruction in the relaxed plan.
    """

    bound_j: float
    makespan_s: float
    start_s: np.ndarray
    duration_s: np.ndarray


def relax(
    schedule: Schedule, profile: EnergyProfile, deadline_s: float, choices: Options
) -> Relaxation:
    """Solve the relaxation for one deadline with HiGHS.

    ``bound_j`` is evaluated from the dual multipliers over the variables' box, so it is a lower
    bound whatever the solver's tolerance.

    Raises:
        UsageError: not even the fastest clocks meet the deadline.
    """
    from scipy.optimize import linprog

    graph, n = schedule.graph, len(schedule.graph)
    fastest = choices.fastest_s()
    floor_s = float(longest_to(graph, fastest).max())
    if not np.isfinite(deadline_s) or deadline_s < floor_s * (1 - DEADLINE_TOLERANCE):
        raise UsageError(
            f"deadline_s = {deadline_s!r} cannot be met: the fastest clocks need {floor_s:.9g} s"
        )
    deadline_s = max(deadline_s, floor_s)
    owner, length, slope = _segments(choices)
    price = profile.blocking_power_w * schedule.num_devices
    cost = np.concatenate([np.zeros(n), [price], slope])
    upper = np.concatenate([np.full(n + 1, deadline_s), length])
    matrix, right = _precedence(graph, fastest, owner)
    solved = linprog(
        cost, A_ub=matrix, b_ub=right, bounds=np.stack([0 * upper, upper], axis=1), method="highs"
    )
    if solved.x is None:
        raise UsageError(f"the relaxation was not solved: {solved.message}")
    duration = fastest + np.bincount(owner, weights=solved.x[n + 1 :], minlength=n)
    base_j = float(choices.net_j[choices.of, 0].sum())
    multiplier = np.maximum(-solved.ineqlin.marginals, 0.0)
    reduced = cost + matrix.T @ multiplier
    dual_j = float(np.minimum(reduced, 0.0) @ upper - multiplier @ right)
    return Relaxation(
        bound_j=base_j + dual_j,
        makespan_s=float(solved.x[n]),
        start_s=solved.x[:n],
        duration_s=duration,
    )


def _segments(choices: Options) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Owner (instruction), length (s) and slope (W, negative) of every hull segment."""
    lengths, slopes = [], []
    for work, hull in enumerate(choices.hull):
        time, net = choices.time_s[work, hull], choices.net_j[work, hull]
        lengths.append(np.diff(time))
        slopes.append(np.diff(net) / np.diff(time))
    counts = np.array([len(one) for one in lengths])[choices.of]
    owner = np.repeat(np.arange(len(choices.of)), counts)
    return (
        owner,
        np.concatenate([lengths[work] for work in choices.of]),
        np.concatenate([slopes[work] for work in choices.of]),
    )


def _precedence(graph: Graph, fastest: np.ndarray, owner: np.ndarray):  # type: ignore[no-untyped-def]
    """Rows ``s_i + d_i - s_j <= 0`` and, for last instructions, ``s_i + d_i - T <= 0``.

    Columns: n starts, the makespan T, one per segment; durations are the fastest plus segments.
    """
    from scipy.sparse import coo_matrix, csr_matrix, hstack

    n = len(graph)
    here = np.arange(n)
    pairs = [np.stack([p[p < n], here[p < n]]) for p in (graph.before, graph.needs)]
    followed = np.zeros(n, dtype=bool)
    followed[pairs[0][0]] = True
    ends = np.flatnonzero(~followed)
    pairs.append(np.stack([ends, np.full(len(ends), n)]))
    source, target = np.unique(np.concatenate(pairs, axis=1), axis=1)
    row = np.arange(len(source))
    starts = coo_matrix(
        (
            np.concatenate([np.ones(len(row)), -np.ones(len(row))]),
            (np.concatenate([row, row]), np.concatenate([source, target])),
        ),
        shape=(len(row), n + 1),
    )
    pick = csr_matrix((np.ones(len(row)), (row, source)), shape=(len(row), n))
    own = csr_matrix((np.ones(len(owner)), (owner, np.arange(len(owner)))), shape=(n, len(owner)))
    return hstack([starts, pick @ own]).tocsr(), -fastest[source]


def _lower_hull(time: np.ndarray, net: np.ndarray) -> np.ndarray:
    """Indices of the lower convex hull of points ascending in time and descending in energy."""
    hull: list[int] = []
    for i in range(len(time)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (net[b] - net[a]) * (time[i] - time[b]) < (net[i] - net[b]) * (time[b] - time[a]):
                break
            hull.pop()
        hull.append(i)
    return np.array(hull, dtype=int)
