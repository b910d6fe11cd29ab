"""What a joint choice chooses from: every schedule, chunks and in-flight cap worth a look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkit.errors import BadValue, UsageError
from labkit.kit.describe import Count, description
from labkit.pipeline.planning.fitted import resolved
from labkit.pipeline.planning.relaxation import OptimalPlanner, Options
from labkit.pipeline.profiles.clocks import Task
from labkit.pipeline.profiles.profile import EnergyProfile, Inner
from labkit.pipeline.scheduling.families import EVEN, FAMILIES, family_of
from labkit.pipeline.scheduling.graph import longest_from, longest_to
from labkit.pipeline.scheduling.policies import build
from labkit.pipeline.scheduling.schedule import Schedule
from labkit.pipeline.simulation.costs import Network, PerStage, lags, spread

Cap = tuple[int, ...] | None
_MOST_TIMES_STAGES = 3
"""No cap is above this many times the stages (1F1B holds as many as stages on its first device): it
limits the candidates where there are many more microbatches than stages."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Candidate:
    """A schedule for a profile, and what it needs whatever the clocks.

    Attributes:
        name, settings: what it was built from, see :func:`.fitted.fitted`.
        max_in_flight: most activations a device may hold; None where nothing was capped.
        task: the schedule, its messages, and the stages' profile, or that of their chunks.
        activation_bytes, parameter_bytes: what each device holds of them at its peak.
    """

    name: str
    settings: Mapping[str, Any]
    max_in_flight: Cap
    task: Task
    activation_bytes: np.ndarray
    parameter_bytes: np.ndarray

    @property
    def schedule(self) -> Schedule:
        """The schedule of the task."""
        return self.task.schedule

    @property
    def num_chunks(self) -> int:
        """How many chunks each stage of the measured pipeline is cut into."""
        return self.schedule.num_stages // self.schedule.num_devices

    @property
    def peak_bytes(self) -> float:
        """How many bytes the device holds that holds most."""
        return float((self.activation_bytes + self.parameter_bytes).max())

    @cached_property
    def fastest_s(self) -> float:
        """The makespan with every instruction at its fastest clock."""
        fastest = self.planner.choices.fastest_s()
        return float(longest_to(self.schedule.graph, fastest, self.task.lag_s).max())

    @cached_property
    def planner(self) -> OptimalPlanner:
        """The planner that finds bounds and plans for any deadline."""
        return OptimalPlanner(self.task)

    @property
    def data(self) -> dict[str, Any]:
        """What it was built from and what it holds, for JSON."""
        return {
            "options": {key: np.asarray(value).tolist() for key, value in self.settings.items()},
            "max_in_flight": self.max_in_flight,
            "activation_bytes": self.activation_bytes,
            "parameter_bytes": self.parameter_bytes,
        }

    @property
    def title(self) -> str:
        """What the candidate is called in a sentence."""
        parts = [self.name]
        for key, value in self.settings.items():
            parts.append("made for even durations" if key == "durations_s" else f"{key} {value}")
        if self.max_in_flight is not None:
            low = min(self.max_in_flight)
            high = max(self.max_in_flight)
            parts.append(f"at most {high if low == high else f'{low} to {high}'} in flight")
        return ", ".join(parts)


@description(eq=False)
class Grid:
    """Says which schedules, options and caps there are to choose from, for one profile.

    Attributes:
        profile: what the stages cost at each clock.
        num_microbatches: in an iteration.
        network: what messages take; None where they take no time.
        schedules: names; None for every synchronous one that can be built at this size.
        num_chunks: stages a device, for the schedules that cut them into chunks.
        activation_bytes: what one microbatch on a stage keeps from its forward to the end of its
            backward, one number or one per stage. The default of 1 makes a memory limit a number of
            microbatches.
        parameter_bytes: what a stage keeps whatever the schedule: parameters, gradients, optimizer
            state. A device that holds two stages, or several versions, pays for each.
        num_caps: how many in-flight caps to try besides none. A cap is a number of bytes, the same
            for every device, that each fills with as many microbatches as fit.
        weight_fraction: share of a backward pass that its weight half takes, see
            :meth:`EnergyProfile.for_schedule`.
    """

    profile: EnergyProfile
    num_microbatches: Count
    schedules: Sequence[str] | None = None
    num_chunks: Sequence[Count] = (2,)
    activation_bytes: PerStage = 1.0
    parameter_bytes: PerStage = 0.0
    num_caps: Count = 24
    weight_fraction: Inner = 0.5
    network: Network | None = None

    def __post_init__(self) -> None:
        for name in ("activation_bytes", "parameter_bytes"):
            self._of_stages(name)
        for name in self.schedules or ():
            family_of(name)
        if self.schedules is not None and not self.schedules:
            raise BadValue(f"no schedules to choose from; there are: {', '.join(FAMILIES)}")

    def _of_stages(self, name: str) -> np.ndarray:
        """Give each of the profile's stages its ``activation_bytes`` or ``parameter_bytes``."""
        return spread(name, getattr(self, name), self.profile.num_stages, "stages")

    def peak_bytes(self, schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
        """Find each device's most activation bytes at once, and its parameter bytes.

        Where devices hold chunks of the profile's stages, each carries an equal part of its
        device's stage (as :meth:`EnergyProfile.for_schedule` shares its work).
        """
        places = schedule.homes
        chunks = schedule.num_stages // self.profile.num_stages
        part = places.argmax(axis=1) if chunks > 1 else np.arange(schedule.num_stages)
        activation, parameter = (
            self._of_stages(name)[part] / chunks for name in ("activation_bytes", "parameter_bytes")
        )
        versions = np.array(schedule.weight_versions or (1,) * schedule.num_devices)
        return schedule.peak_held(activation), parameter @ places * versions

    def ladder(self, plain: Schedule) -> list[tuple[int, ...]]:
        """List caps worth trying on a schedule, tightest first: each device's share of more memory.

        None lies above what the schedule holds of itself, nor above three times the stages.
        """
        places = plain.homes
        chunks = plain.num_stages // plain.num_devices
        each = self._of_stages("activation_bytes") / chunks
        share = each if chunks > 1 else np.where(places, each[:, None], 0.0).max(axis=0)
        share = np.where(share > 0, share, share.max() or 1.0)
        most = min(max(plain.peak_in_flight), _MOST_TIMES_STAGES * plain.num_stages)
        levels = np.unique(np.outer(np.arange(1, most + 1), share))
        count = min(self.num_caps, len(levels))
        picked = np.linspace(0, len(levels) - 1, count).round().astype(int)
        caps = (levels[picked, None] / share * (1 + 1e-9)).astype(int)
        return list(dict.fromkeys(tuple(row) for row in np.clip(caps, 1, most).tolist()))

    def candidates(self) -> tuple[list[Candidate], dict[str, str]]:
        """List every different schedule, under the first name that gave it, and why a name gave
        none.

        The list depends on the activation bytes but on no limit, so that a tighter limit only ever
        takes candidates away.

        Raises:
            UsageError: a schedule that was asked for by name cannot be built at this size.
        """
        different: dict[tuple[Any, ...], Candidate] = {}
        left_out: dict[str, str] = {}
        for name in self._names():
            for settings in self._settings(name):
                try:
                    for candidate in self._capped(name, settings):
                        different.setdefault(_key(candidate.schedule), candidate)
                except UsageError as error:
                    if self.schedules is not None:
                        raise
                    left_out[name] = str(error)
        return list(different.values()), left_out

    def _names(self) -> list[str]:
        """List the schedules' names, 1F1B first: schedules that turn out to be the same bear the
        plainer name.
        """
        if self.schedules is not None:
            return list(dict.fromkeys(self.schedules))
        known = [name for name, family in FAMILIES.items() if not family.asynchronous]
        return sorted(known, key=lambda name: name != "1f1b")

    def _settings(self, name: str) -> list[dict[str, Any]]:
        """List the options of a schedule worth trying."""
        known = FAMILIES[name].options
        options: list[dict[str, Any]] = []
        if "num_chunks" in known:
            options = [{"num_chunks": chunks} for chunks in self.num_chunks if chunks > 1]
        elif "num_waves" in known:
            options = [{"num_waves": n // 2} for n in self.num_chunks if n % 2 == 0]
        elif "warmup" in known:
            options = [{"warmup": policy} for policy in ("a", "b")]
        options = options or [{}]
        if "durations_s" in known:  # besides those measured
            options += [settings | {"durations_s": EVEN} for settings in options]
        return options

    def _capped(self, name: str, settings: Mapping[str, Any]) -> Iterator[Candidate]:
        """Build a schedule as it is, and under every cap that it can keep."""
        sizes = (name, self.profile.num_stages, self.num_microbatches)
        share = self.weight_fraction
        whole = resolved(self.profile, name, self.num_microbatches, settings, share)
        plain = build(*sizes, **whole)
        profile = self.profile.for_schedule(plain, share)
        for cap in (None, *self.ladder(plain)):
            try:
                schedule = plain if cap is None else build(*sizes, max_in_flight=cap, **whole)
            except UsageError:  # less than this schedule can run in
                continue
            activation, parameter = self.peak_bytes(schedule)
            yield Candidate(
                name=name,
                settings=settings,
                max_in_flight=cap,
                task=Task(schedule, profile, lag_s=lags(schedule, self.network)),
                activation_bytes=activation,
                parameter_bytes=parameter,
            )


def _key(schedule: Schedule) -> tuple[Any, ...]:
    """What tells two schedules apart: their orders, and what they keep."""
    orders = (schedule.stage, schedule.kind, schedule.microbatch)
    kept = (schedule.lengths, schedule.asynchronous, schedule.weight_versions)
    return *kept, *(array.tobytes() for array in orders)


def quick_bound_j(candidate: Candidate, deadline_s: float) -> float:
    """Bound a candidate's energy from below without a solver.

    Every device is looked at alone: its work must fit between the earliest moment its first
    instruction can start and the latest its last can end, clocks mixed along the lower hull as in
    the linear relaxation, of which this is a relaxation. The makespan T is one for all, so the
    bound is the least over T of ``G P_b T + sum_d net_d(T)``: convex and piecewise linear, hence
    least at a breakpoint. It takes the time of two longest paths and one sort a device.

    Args:
        candidate: what is bounded.
        deadline_s: latest end of the iteration.
    """
    schedule = candidate.schedule
    choices = candidate.planner.choices
    graph = schedule.graph
    fastest = choices.fastest_s()
    lag_s = candidate.task.lag_s
    first_s = candidate.fastest_s
    ends, tails = (longest(graph, fastest, lag_s) for longest in (longest_to, longest_from))
    lines: list[tuple[np.ndarray, np.ndarray]] = []
    for own in filter(len, schedule.by_device(np.arange(len(schedule)))):
        time, net = _mixed(choices, choices.of[own])
        a = own[0]
        b = own[-1]
        around_s = (ends[a] - fastest[a]) + (tails[b] - fastest[b])
        lines.append((time + around_s, net))
    last_s = max(deadline_s, first_s)
    at = np.concatenate([[first_s, last_s], *(time for time, _ in lines)])
    at = np.unique(at[(at >= first_s) & (at <= last_s)])
    total = candidate.task.waiting_w * at + sum(np.interp(at, time, net) for time, net in lines)
    return float(total.min())


def _mixed(choices: Options, works: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Trade a device's least net energy against the time its works take together: (time, net)."""
    kinds, counts = np.unique(works, return_counts=True)
    parts = [choices.segments[work] for work in kinds]
    length = np.concatenate([n * part[0] for n, part in zip(counts, parts, strict=True)])
    slope = np.concatenate([part[1] for part in parts])
    order = np.argsort(slope, kind="stable")
    start_s, start_j = (float(counts @ x[kinds, 0]) for x in (choices.time_s, choices.net_j))
    net_j = np.cumsum([start_j, *(length * slope)[order]])
    return np.cumsum([start_s, *length[order]]), net_j
