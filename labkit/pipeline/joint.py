"""Schedule, in-flight cap and clocks chosen together, under a memory limit and a deadline.

A schedule that holds more activations leaves its clocks more freedom, one that holds fewer fits a
smaller device: which joules a limit on memory costs is a question about both at once. The search
is branch and bound over the candidates of a :class:`labkit.pipeline.candidates.Grid`. Each has a
bound on its energy that costs next to nothing and a tighter one from the linear relaxation; the
candidate with the least bound is looked at first, and once no bound lies below the best plan in
hand, that plan is certified: only the gap of its relaxation is left.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.candidates import Candidate, Grid, Memory
from labkit.pipeline.clocks import DEADLINE_TOLERANCE
from labkit.pipeline.costs import PerStage
from labkit.pipeline.epilogue import homes
from labkit.pipeline.families import FAMILIES
from labkit.pipeline.graph import longest_from, longest_to
from labkit.pipeline.optimal import lower_bound_j
from labkit.pipeline.plans import Plan, build_for, plan
from labkit.pipeline.profile import EnergyProfile

if TYPE_CHECKING:
    import pandas as pd

MEMORY_TOLERANCE = 1e-9  # relative: below it an excess is floating-point noise


@dataclass(eq=False, kw_only=True)
class State:
    """How far a search came with one candidate: what is known of its energy, and why it lost."""

    candidate: Candidate
    bound_j: float = np.nan
    made: Plan | None = None
    dropped: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class JointChoice:
    """The schedule, cap and clocks of least energy, and what they were chosen from.

    Attributes:
        best: the plan; ``best.schedule`` is the schedule.
        chosen: the candidate it is a plan of: what it was built from, and its memory.
        bound_j: no plan, of any candidate that fits, that meets the deadline needs less energy.
        deadline_s, memory_limit_bytes: what had to be kept; None for no limit on memory.
        reference: uncapped 1F1B at the highest clock, which savings are counted from.
        assumptions: what the numbers rest on, a sentence each.
        left_out: schedules that cannot be built at this size, and why.
        states: what the search found out about each candidate.
    """

    best: Plan
    chosen: Candidate
    bound_j: float
    deadline_s: float
    memory_limit_bytes: float | None
    reference: Plan
    assumptions: tuple[str, ...]
    left_out: dict[str, str]
    states: tuple[State, ...] = field(repr=False)

    @property
    def gap(self) -> float:
        """How far the best plan lies above the bound: 0.01 for at most 1 %."""
        return self.best.energy_j / self.bound_j - 1

    @property
    def saving(self) -> float:
        """Share of the energy of 1F1B at the highest clock that the best plan saves."""
        return 1 - self.best.energy_j / self.reference.energy_j

    def frame(self) -> pd.DataFrame:
        """One row per candidate: the best first, then by energy, bound and fastest makespan.

        Columns: schedule, num_chunks, max_in_flight (most over the devices, missing for no cap),
        peak_activation_bytes and parameter_bytes (of the device with most of each), fits,
        fastest_s, makespan_s, energy_j, bound_j, saving_fraction, dropped (why it was not chosen;
        empty for the best). What the search did not need to know is missing.
        """
        import pandas as pd

        table = pd.DataFrame([self._row(state) for state in self.states])
        table["max_in_flight"] = table["max_in_flight"].astype("Int64")
        order = ["lost", "energy_j", "bound_j", "fastest_s"]
        table = table.assign(lost=table["dropped"] != "").sort_values(
            order, kind="stable", ignore_index=True
        )
        return table.drop(columns="lost")

    def _row(self, state: State) -> dict[str, Any]:
        one, made = state.candidate, state.made
        return {
            "schedule": one.name,
            "num_chunks": one.num_chunks,
            "max_in_flight": None if one.max_in_flight is None else max(one.max_in_flight),
            "peak_activation_bytes": float(one.activation_bytes.max()),
            "parameter_bytes": float(one.parameter_bytes.max()),
            "fits": _fits(one, self.memory_limit_bytes),
            "fastest_s": one.fastest_s,
            "makespan_s": made.makespan_s if made else np.nan,
            "energy_j": made.energy_j if made else np.nan,
            "bound_j": state.bound_j,
            "saving_fraction": 1 - made.energy_j / self.reference.energy_j if made else np.nan,
            "dropped": state.dropped,
        }


def choose(
    profile: EnergyProfile,
    num_microbatches: int,
    *,
    memory_limit_bytes: float | None = None,
    deadline_s: float | None = None,
    **described: Any,
) -> JointChoice:
    """The schedule, in-flight cap and clocks of least energy within the limits.

    Args:
        memory_limit_bytes: what a device has for activations and parameters; None for no limit.
        deadline_s: latest end of the iteration; None for the makespan of 1F1B at the highest
            clock.
        **described: what to choose from, see :class:`Search`.

    Raises:
        UsageError: no candidate fits, or none that fits meets the deadline; the message names
            the least memory, or the earliest deadline, that would do.
    """
    search = Search(profile, num_microbatches, **described)
    return search.choose(memory_limit_bytes=memory_limit_bytes, deadline_s=deadline_s)


def tradeoff(
    profile: EnergyProfile,
    num_microbatches: int,
    *,
    memory_limits_bytes: Iterable[float | None] = (None,),
    deadlines_s: Iterable[float | None] = (None,),
    **described: Any,
) -> pd.DataFrame:
    """The least energy for every pair of a memory limit and a deadline: what each is worth.

    A plan found under tighter limits is a plan under looser ones too, so energy never rises with
    either.

    Returns:
        Columns memory_limit_bytes (infinite for None), deadline_s, schedule, num_chunks,
        max_in_flight, peak_activation_bytes, makespan_s, energy_j, bound_j, saving_fraction,
        problem (why nothing could be chosen; empty where something was), by deadline and limit.
    """
    import pandas as pd

    search = Search(profile, num_microbatches, **described)
    reference_s = search.reference.makespan_s
    deadlines = sorted(reference_s if one is None else float(one) for one in deadlines_s)
    limits = sorted(np.inf if one is None else float(one) for one in memory_limits_bytes)
    found: list[tuple[float, JointChoice]] = []
    rows = []
    for deadline in deadlines:
        for limit in limits:
            within = [choice for tighter, choice in found if tighter <= limit]
            row: dict[str, Any] = {"memory_limit_bytes": limit, "deadline_s": deadline}
            try:
                choice = search.choose(
                    memory_limit_bytes=limit if np.isfinite(limit) else None,
                    deadline_s=deadline,
                    known=min(within, key=lambda one: one.best.energy_j, default=None),
                )
            except UsageError as error:
                rows.append(row | {"problem": str(error)})
                continue
            found.append((limit, choice))
            rows.append(row | _summary(choice))
    columns = ["memory_limit_bytes", "deadline_s", *_SUMMARY, "problem"]
    return pd.DataFrame(rows, columns=columns).astype({"max_in_flight": "Int64"})


_SUMMARY = (
    "schedule", "num_chunks", "max_in_flight", "peak_activation_bytes", "makespan_s", "energy_j",
    "bound_j", "saving_fraction",
)  # fmt: skip


def _summary(choice: JointChoice) -> dict[str, Any]:
    best = choice._row(State(candidate=choice.chosen, bound_j=choice.bound_j, made=choice.best))
    return {name: best[name] for name in _SUMMARY} | {"problem": ""}


class Search:
    """The candidates for a profile, what is known of each, and the search among them.

    Args:
        activation_bytes: of one microbatch on a stage, one number or one per stage. The default
            of 1 makes a memory limit a number of microbatches.
        parameter_bytes: parameters, gradients and optimizer state of a stage, likewise; a
            schedule that keeps a stage on two devices pays twice.
        tolerance: stop when no candidate can need less than this share below the best plan; 0
            leaves none unexamined.
        **described: ``schedules``, ``num_chunks``, ``num_caps``, ``weight_fraction``, ``network``,
            see :class:`labkit.pipeline.candidates.Grid`.
    """

    def __init__(
        self,
        profile: EnergyProfile,
        num_microbatches: int,
        *,
        activation_bytes: PerStage = 1.0,
        parameter_bytes: PerStage = 0.0,
        tolerance: float = 0.0,
        **described: Any,
    ) -> None:
        if not 0 <= tolerance < 1:
            raise UsageError(f"tolerance must be >= 0 and < 1, found {tolerance!r}")
        self.tolerance = tolerance
        memory = Memory(activation_bytes=activation_bytes, parameter_bytes=parameter_bytes)
        self.grid = Grid(
            profile=profile, num_microbatches=num_microbatches, memory=memory, **described
        )
        self.candidates, self.left_out = self.grid.candidates()
        plain = build_for(profile, "1f1b", num_microbatches)
        self.reference = plan(plain, profile, "max-clock")
        self._bounds: dict[tuple[int, float], float] = {}
        self._plans: dict[tuple[int, float], Plan] = {}

    def choose(
        self,
        *,
        memory_limit_bytes: float | None = None,
        deadline_s: float | None = None,
        known: JointChoice | None = None,
    ) -> JointChoice:
        """As :func:`choose`; ``known``: a choice made under limits no looser than these."""
        _check_positive("memory_limit_bytes", memory_limit_bytes)
        _check_positive("deadline_s", deadline_s)
        deadline = self.reference.makespan_s if deadline_s is None else float(deadline_s)
        states = tuple(State(candidate=one) for one in self.candidates)
        self._drop_impossible(states, memory_limit_bytes, deadline)
        best = None if known is None else (known.best, known.chosen)
        made, chosen = self._branch_and_bound(states, deadline, best)
        _say_who_lost(states, made)
        return JointChoice(
            best=made,
            chosen=chosen,
            bound_j=min([made.energy_j, *(s.bound_j for s in states if np.isfinite(s.bound_j))]),
            deadline_s=deadline,
            memory_limit_bytes=memory_limit_bytes,
            reference=self.reference,
            assumptions=self.assumptions(chosen),
            left_out=self.left_out,
            states=states,
        )

    def assumptions(self, chosen: Candidate) -> tuple[str, ...]:
        """What a choice rests on, a sentence each."""
        power_w = self.reference.profile.blocking_power_w
        told = [
            f"A device is one GPU; whenever it does not work it draws {power_w:g} W until the "
            "iteration ends.",
            "The activations of a microbatch on a stage are held from its forward to the end of "
            "its backward (of the weight half, where halves run apart).",
            "Messages take no time and no energy."
            if self.grid.network is None
            else "Messages take time but no energy.",
        ]
        if self.grid.schedules is None:
            names = [name for name, family in FAMILIES.items() if family.asynchronous]
            told.append(
                f"Asynchronous schedules ({', '.join(names)}) are left out: they train on older "
                "weights, which changes what is learned."
            )
        if homes(chosen.schedule).sum(axis=1).max() > 1:
            told.append(
                "The sum of gradients over the two devices of a stage takes no time and no energy."
            )
        return (*told, *(f"{one[0].upper()}{one[1:]}." for one in chosen.profile.assumptions))

    def _drop_impossible(
        self, states: tuple[State, ...], limit: float | None, deadline_s: float
    ) -> None:
        for state in states:
            one = state.candidate
            if not _fits(one, limit):
                state.dropped = f"needs {one.peak_bytes:.6g} bytes on a device"
            elif one.fastest_s > deadline_s * (1 + DEADLINE_TOLERANCE):
                state.dropped = f"its fastest clocks need {one.fastest_s:.6g} s"
        fitting = [s.candidate for s in states if _fits(s.candidate, limit)]
        if not fitting:
            least = min(self.candidates, key=lambda one: one.peak_bytes)
            raise UsageError(
                f"memory_limit_bytes = {limit!r}: no schedule fits; the least that any needs is "
                f"{least.peak_bytes:.9g} bytes on a device ({least.title})"
            )
        if all(s.dropped for s in states):
            first = min(fitting, key=lambda one: one.fastest_s)
            among = "" if limit is None else f" within memory_limit_bytes = {limit!r}"
            raise UsageError(
                f"deadline_s = {deadline_s!r} cannot be met{among}: the earliest possible is "
                f"{first.fastest_s:.9g} s ({first.title})"
            )

    def _branch_and_bound(
        self, states: tuple[State, ...], deadline_s: float, best: tuple[Plan, Candidate] | None
    ) -> tuple[Plan, Candidate]:
        """Best first: a quick bound is sharpened, a sharp one tried, until none promises more."""
        heap: list[tuple[float, int, bool]] = []
        for i, state in enumerate(states):
            if not state.dropped:
                state.bound_j = quick_bound_j(state.candidate, deadline_s)
                heap.append((state.bound_j, i, False))
        heapq.heapify(heap)
        while heap:
            bound_j, i, sharp = heapq.heappop(heap)
            if best is not None and bound_j >= best[0].energy_j * (1 - self.tolerance):
                break
            state = states[i]
            if not sharp:
                state.bound_j = max(bound_j, self._bound_j(i, deadline_s))
                heapq.heappush(heap, (state.bound_j, i, True))
                continue
            state.made = self._plan(i, deadline_s)
            if best is None or state.made.energy_j < best[0].energy_j:
                best = state.made, state.candidate
        assert best is not None
        return best

    def _bound_j(self, i: int, deadline_s: float) -> float:
        if (i, deadline_s) not in self._bounds:
            one = self.candidates[i]
            self._bounds[i, deadline_s] = lower_bound_j(one.schedule, one.profile, deadline_s)
        return self._bounds[i, deadline_s]

    def _plan(self, i: int, deadline_s: float) -> Plan:
        if (i, deadline_s) not in self._plans:
            one = self.candidates[i]
            self._plans[i, deadline_s] = plan(one.schedule, one.profile, "optimal", deadline_s)
        return self._plans[i, deadline_s]


def quick_bound_j(one: Candidate, deadline_s: float) -> float:
    """A lower bound on a candidate's energy that needs no solver.

    Every device is looked at alone: its work must fit between the earliest moment its first
    instruction can start and the latest its last can end, clocks mixed along the lower hull as in
    the linear relaxation, of which this is a relaxation. The makespan T is one for all, so the
    bound is the least over T of ``G P_b T + sum_d net_d(T)``: convex and piecewise linear, hence
    least at a breakpoint. Time: that of two longest paths and one sort a device.
    """
    schedule, choices = one.schedule, one.choices
    graph, fastest = schedule.graph, choices.fastest_s()
    ends, tails = (longest(graph, fastest, one.lag_s) for longest in (longest_to, longest_from))
    last = np.cumsum(schedule.lengths) - 1
    first = last - np.array(schedule.lengths) + 1
    lines: list[tuple[np.ndarray, np.ndarray]] = []
    for a, b in zip(first.tolist(), last.tolist(), strict=True):
        if a > b:
            continue
        time, net = _mixed(one, choices.of[a : b + 1])
        around_s = (ends[a] - fastest[a]) + (tails[b] - fastest[b])
        lines.append((time + around_s, net))
    at = np.concatenate([[one.fastest_s, max(deadline_s, one.fastest_s)], *(t for t, _ in lines)])
    at = np.unique(at[(at >= one.fastest_s) & (at <= max(deadline_s, one.fastest_s))])
    waiting_w = one.profile.blocking_power_w * schedule.num_devices
    total = waiting_w * at + sum(np.interp(at, time, net) for time, net in lines)
    return float(total.min())


def _mixed(one: Candidate, works: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least net energy of a device's works against the time they take together: (time, net)."""
    choices = one.choices
    kinds, counts = np.unique(works, return_counts=True)
    lengths, slopes, start_s, start_j = [], [], 0.0, 0.0
    for work, count in zip(kinds.tolist(), counts.tolist(), strict=True):
        hull = choices.hull[work]
        time, net = choices.time_s[work, hull], choices.net_j[work, hull]
        start_s, start_j = start_s + count * time[0], start_j + count * net[0]
        lengths.append(count * np.diff(time))
        slopes.append(np.diff(net) / np.diff(time))
    length, slope = np.concatenate(lengths), np.concatenate(slopes)
    order = np.argsort(slope, kind="stable")
    length, saved = length[order], (length * slope)[order]
    return (
        start_s + np.concatenate([[0.0], np.cumsum(length)]),
        start_j + np.concatenate([[0.0], np.cumsum(saved)]),
    )


def _fits(one: Candidate, limit: float | None) -> bool:
    return limit is None or one.peak_bytes <= limit * (1 + MEMORY_TOLERANCE)


def _check_positive(name: str, value: float | None) -> None:
    if value is not None and not (np.isfinite(value) and value > 0):
        raise UsageError(f"{name} must be finite and > 0, found {value!r}")


def _say_who_lost(states: tuple[State, ...], best: Plan) -> None:
    for state in states:
        if state.made is not None and state.made is not best:
            state.dropped = "its plan needs more energy"
        elif state.made is None and not state.dropped:
            state.dropped = "its lower bound lies above the best plan"
