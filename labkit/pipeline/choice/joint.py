"""Schedule, in-flight cap and clocks chosen together, under a memory limit and a deadline.

A schedule that holds more activations leaves its clocks more freedom, one that holds fewer fits a
smaller device: which joules a limit on memory costs is a question about both at once. The search
is branch and bound over the candidates of a :class:`.candidates.Grid`. Each has a
bound on its energy that costs next to nothing and a tighter one from the linear relaxation; the
candidate with the least bound is looked at first, and once no bound lies below the best plan in
hand, that plan is certified: only the gap of its relaxation is left.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Lt

from labkit.errors import BadValue, UsageError
from labkit.kit.describe import Count, Positive, checked
from labkit.pipeline.choice.candidates import Candidate, Grid, quick_bound_j
from labkit.pipeline.planning.plans import Plan, plan
from labkit.pipeline.profiles.clocks import DEADLINE_TOLERANCE
from labkit.pipeline.profiles.profile import EnergyProfile
from labkit.pipeline.scheduling.families import FAMILIES
from labkit.pipeline.scheduling.policies import build

if TYPE_CHECKING:
    import pandas as pd

MEMORY_TOLERANCE = 1e-9
"""Share of the limit below which an excess counts as floating-point noise."""


class OutOfReach(UsageError):
    """No candidate keeps the limits; the message says what the least would be."""


@dataclass(eq=False, kw_only=True)
class State:
    """Remembers how far a search came with one candidate: what is known of its energy, and why it
    lost.
    """

    candidate: Candidate
    bound_j: float = np.nan
    plan: Plan | None = None
    dropped: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class JointChoice:
    """The schedule, cap and clocks of least energy, and what they were chosen from.

    Attributes:
        best, chosen: the plan, and the candidate it is a plan of.
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

    def frame(self) -> pd.DataFrame:
        """Table the candidates, the best first, then by what is known: energy, bound, fit, speed.

        Columns: schedule, num_chunks, max_in_flight (most over the devices, missing for no cap),
        peak_activation_bytes and parameter_bytes (of the device with most of each), fits,
        fastest_s, makespan_s, energy_j, bound_j, saving_fraction, dropped (why it was not chosen;
        empty for the best). What the search did not need to know is missing.
        """
        import pandas as pd

        table = pd.DataFrame([self._row(state) for state in self.states])
        table["max_in_flight"] = table["max_in_flight"].astype("Int64")
        keys = (table["fastest_s"], ~table["fits"], table["bound_j"], table["energy_j"])
        order = np.lexsort((*keys, table["dropped"] != ""))  # what is missing comes last
        return table.iloc[order].reset_index(drop=True)

    def _row(self, state: State) -> dict[str, Any]:
        """Describe a candidate by the columns of :meth:`frame`."""
        candidate = state.candidate
        plan = state.plan
        return {
            "schedule": candidate.name,
            "num_chunks": candidate.num_chunks,
            "max_in_flight": candidate.max_in_flight and max(candidate.max_in_flight),
            "peak_activation_bytes": float(candidate.activation_bytes.max()),
            "parameter_bytes": float(candidate.parameter_bytes.max()),
            "fits": _fits(candidate, self.memory_limit_bytes),
            "fastest_s": candidate.fastest_s,
            "makespan_s": plan.makespan_s if plan else np.nan,
            "energy_j": plan.energy_j if plan else np.nan,
            "bound_j": state.bound_j,
            "saving_fraction": 1 - plan.energy_j / self.reference.energy_j if plan else np.nan,
            "dropped": state.dropped,
        }


@checked
def choose(
    profile: EnergyProfile,
    num_microbatches: Count,
    *,
    memory_limit_bytes: Positive | None = None,
    deadline_s: Positive | None = None,
    **described: Any,
) -> JointChoice:
    """Choose the schedule, in-flight cap and clocks of least energy within the limits.

    Args:
        profile: what the stages cost at each clock.
        num_microbatches: in an iteration.
        memory_limit_bytes: what a device has for activations and parameters; None for no limit.
        deadline_s: latest end of the iteration; None for the makespan of 1F1B at the highest clock.
        **described: what to choose from, see :class:`Search`.

    Raises:
        OutOfReach: no candidate fits, or none that fits meets the deadline; the message names the
            least memory, or the earliest deadline, that would do.
    """
    search = Search(profile, num_microbatches, **described)
    return search.choose(memory_limit_bytes=memory_limit_bytes, deadline_s=deadline_s)


class Search:
    """Holds the candidates for a profile and what is known of each, and searches among them.

    Args:
        profile: what the stages cost at each clock.
        num_microbatches: in an iteration.
        tolerance: stop when no candidate can need less than this share below the best plan; 0
            leaves none unexamined.
        **described: the other fields of :class:`.candidates.Grid`.
    """

    @checked
    def __init__(
        self,
        profile: EnergyProfile,
        num_microbatches: Count,
        *,
        tolerance: Annotated[float, Ge(0), Lt(1)] = 0.0,
        **described: Any,
    ) -> None:
        self.tolerance = tolerance
        self.grid = Grid(profile=profile, num_microbatches=num_microbatches, **described)
        self.candidates, self.left_out = self.grid.candidates()
        if not self.candidates:
            raise BadValue("no schedule can be chosen: " + "; ".join(self.left_out.values()))
        plain = build("1f1b", profile.num_stages, num_microbatches)
        self.reference = plan(plain, profile, "max-clock", network=self.grid.network)
        self._bound_j = cache(lambda i, t: self.candidates[i].planner.bounds_j([t])[0])
        self._plan = cache(self._planned)

    @checked
    def choose(
        self,
        *,
        memory_limit_bytes: Positive | None = None,
        deadline_s: Positive | None = None,
        known: JointChoice | None = None,
    ) -> JointChoice:
        """Choose among the candidates as :func:`choose` does.

        Args:
            memory_limit_bytes, deadline_s: the limits.
            known: a choice made under limits no looser than these.
        """
        deadline = self.reference.makespan_s if deadline_s is None else float(deadline_s)
        states = tuple(State(candidate=each) for each in self.candidates)
        self._drop_impossible(states, memory_limit_bytes, deadline)
        best = None if known is None else (known.best, known.chosen)
        plan, chosen = self._branch_and_bound(states, deadline, best)
        for state in states:
            if state.plan is not None and state.plan is not plan:
                state.dropped = "its plan needs more energy"
            elif state.plan is None and not state.dropped:
                state.dropped = "its lower bound lies above the best plan"
        return JointChoice(
            best=plan,
            chosen=chosen,
            bound_j=min([plan.energy_j, *(s.bound_j for s in states if np.isfinite(s.bound_j))]),
            deadline_s=deadline,
            memory_limit_bytes=memory_limit_bytes,
            reference=self.reference,
            assumptions=self.assumptions(chosen),
            left_out=self.left_out,
            states=states,
        )

    @checked
    def tradeoff(
        self,
        *,
        memory_limits_bytes: Sequence[Positive | None] = (None,),
        deadlines_s: Sequence[Positive | None] = (None,),
    ) -> pd.DataFrame:
        """Find what memory and time are worth: the least energy for every pair of limits.

        A plan found under tighter limits is a plan under looser ones too, so energy never rises
        with either.

        Args:
            memory_limits_bytes: what a device has for activations and parameters; None for no
                limit.
            deadlines_s: latest ends of the iteration; None for the makespan of 1F1B at the highest
                clock.

        Returns:
            Columns memory_limit_bytes (infinite for None), deadline_s, schedule, num_chunks,
            max_in_flight, peak_activation_bytes, makespan_s, energy_j, bound_j, saving_fraction,
            problem (why nothing could be chosen; empty where something was); by deadline, then by
            limit.
        """
        import pandas as pd

        least_s = self.reference.makespan_s
        deadlines = sorted(least_s if t is None else float(t) for t in deadlines_s)
        limits = sorted(np.inf if m is None else float(m) for m in memory_limits_bytes)
        choices: list[tuple[float, JointChoice]] = []
        rows = []
        for deadline, limit in itertools.product(deadlines, limits):
            within = [choice for tighter, choice in choices if tighter <= limit]
            row: dict[str, Any] = {"memory_limit_bytes": limit, "deadline_s": deadline}
            try:
                choice = self.choose(
                    memory_limit_bytes=None if limit == np.inf else limit,
                    deadline_s=deadline,
                    known=min(within, key=lambda choice: choice.best.energy_j, default=None),
                )
            except OutOfReach as error:
                rows.append(row | {"problem": str(error)})
                continue
            choices.append((limit, choice))
            best = State(candidate=choice.chosen, bound_j=choice.bound_j, plan=choice.best)
            rows.append(row | choice._row(best) | {"problem": ""})
        columns = ["memory_limit_bytes", "deadline_s", "schedule", "num_chunks", "max_in_flight"]
        columns += ["peak_activation_bytes", "makespan_s", "energy_j", "bound_j"]
        table = pd.DataFrame(rows, columns=[*columns, "saving_fraction", "problem"])
        return table.astype({"max_in_flight": "Int64", "num_chunks": "Int64"})

    def assumptions(self, chosen: Candidate | None = None) -> tuple[str, ...]:
        """Say in sentences what every choice rests on and, if given, this one."""
        power_w = self.reference.profile.blocking_power_w
        cost = "no time and no energy" if self.grid.network is None else "time but no energy"
        texts = [
            f"A device is one GPU; whenever it does not work it draws {power_w:g} W until the "
            "iteration ends.",
            "The activations of a microbatch on a stage are held from its forward to the end of "
            "its backward (of the weight half, where halves run apart).",
            f"Messages take {cost}.",
        ]
        if self.grid.schedules is None:
            names = [name for name, family in FAMILIES.items() if family.asynchronous]
            texts.append(
                f"Asynchronous schedules ({', '.join(names)}) are left out: they train on older "
                "weights, which changes what is learned."
            )
        if chosen is not None and chosen.schedule.homes.sum(axis=1).max() > 1:
            texts.append(
                "The sum of gradients over the two devices of a stage takes no time and no energy."
            )
        assumed = () if chosen is None else chosen.task.profile.assumptions
        return (*texts, *(f"{text[0].upper()}{text[1:]}." for text in assumed))

    def _drop_impossible(
        self, states: tuple[State, ...], limit: float | None, deadline_s: float
    ) -> None:
        """Drop candidates that break a limit at any clocks, and refuse limits that all of them
        break.
        """
        for state in states:
            candidate = state.candidate
            if not _fits(candidate, limit):
                state.dropped = f"needs {candidate.peak_bytes:.6g} bytes on a device"
            elif candidate.fastest_s > deadline_s * (1 + DEADLINE_TOLERANCE):
                state.dropped = f"its fastest clocks need {candidate.fastest_s:.6g} s"
        fitting = [s.candidate for s in states if _fits(s.candidate, limit)]
        if not fitting:
            least = min(self.candidates, key=lambda each: each.peak_bytes)
            raise OutOfReach(
                f"memory_limit_bytes = {limit!r}: no schedule fits; the least that any needs is "
                f"{least.peak_bytes:.9g} bytes on a device ({least.title})"
            )
        if all(s.dropped for s in states):
            first = min(fitting, key=lambda each: each.fastest_s)
            among = "" if limit is None else f" within memory_limit_bytes = {limit!r}"
            raise OutOfReach(
                f"deadline_s = {deadline_s!r} cannot be met{among}: the earliest possible is "
                f"{first.fastest_s:.9g} s ({first.title})"
            )

    def _branch_and_bound(
        self, states: tuple[State, ...], deadline_s: float, best: tuple[Plan, Candidate] | None
    ) -> tuple[Plan, Candidate]:
        """Work on the most promising first: sharpen a quick bound, try a sharp one, until none
        promises more.
        """
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
            state.plan = self._plan(i, deadline_s)
            if best is None or state.plan.energy_j < best[0].energy_j:
                best = state.plan, state.candidate
        assert best is not None
        return best

    def _planned(self, i: int, deadline_s: float) -> Plan:
        """Choose a candidate's clocks."""
        candidate = self.candidates[i]
        choice = candidate.planner.choose([deadline_s])[0]
        return Plan(
            schedule=candidate.schedule,
            profile=candidate.task.profile,
            method="optimal",
            row=choice.row,
            deadline_s=deadline_s,
            known_bound_j=choice.bound_j,
            network=self.grid.network,
        )


def _fits(candidate: Candidate, limit: float | None) -> bool:
    """Tell whether a candidate keeps within the memory there is."""
    return limit is None or candidate.peak_bytes <= limit * (1 + MEMORY_TOLERANCE)
