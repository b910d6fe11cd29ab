"""When every instruction of a schedule runs, and what that says: makespan, idle time, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import UsageError
from labkit.kit.describe import checked
from labkit.kit.randomness import Rng
from labkit.pipeline.scheduling.graph import Lag, critical_path, longest_from, longest_to
from labkit.pipeline.scheduling.schedule import BACKWARD, FORWARD, INPUT, KINDS, Schedule
from labkit.pipeline.simulation.costs import (
    Costs,
    Jitter,
    Network,
    boundaries,
    jitter_factors,
    lags,
)

if TYPE_CHECKING:
    import pandas as pd

CAUSES = ("warm-up", "dependency", "steady", "communication", "drain")
"""Why a device waits, see :attr:`Timeline.idle_s`."""
_NOISE = 1e-12
"""Share of the makespan below which a slack counts as floating-point noise."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline:
    """When every instruction starts and ends, in the order of ``schedule.frame()``.

    Attributes:
        start_s, end_s: of each instruction, shape (n,).
        activation_bytes: of a microbatch on each stage; 1 where only durations are known.
        lag_s: the waits for the network's messages; None for none.
    """

    schedule: Schedule
    start_s: np.ndarray
    end_s: np.ndarray
    activation_bytes: np.ndarray
    network: Network | None = None
    lag_s: Lag | None = None

    @cached_property
    def duration_s(self) -> np.ndarray:
        """How long each instruction takes."""
        return self.end_s - self.start_s

    @cached_property
    def makespan_s(self) -> float:
        """The time from the first start to the last end."""
        return float(self.end_s.max())

    @cached_property
    def busy_s(self) -> np.ndarray:
        """Seconds that each device works, shape (num_devices,)."""
        return self._by_device(self.duration_s)

    def _by_device(self, values: np.ndarray) -> np.ndarray:
        """Sum the values, one an instruction, of each device."""
        return np.bincount(self.schedule.device, values, minlength=self.schedule.num_devices)

    @property
    def bubble_ratio(self) -> float:
        """The idle share of the devices' time; 0 for instructions that take no time.

        For S uniform stages and M microbatches it is (S - 1) / (M + S - 1) under GPipe and 1F1B.
        """
        available = self.schedule.num_devices * self.makespan_s
        return float(1 - self.busy_s.sum() / available) if available else 0.0

    @cached_property
    def steady_bubble_ratio(self) -> float:
        """The idle share of the devices' steady phases: what remains of it over many microbatches.

        A device's steady phase runs from the start of its first backward to the end of its last
        forward. An asynchronous schedule pays for the rest once, not every iteration. It is NaN
        where no device has a steady phase.
        """
        first, last = self._steady_phase
        device = self.schedule.device
        number = np.arange(len(self.schedule))
        inside = (number >= first[device]) & (number <= last[device])
        some = first <= last
        whole_s = float((self.end_s[last[some]] - self.start_s[first[some]]).sum())
        return 1 - float(self.duration_s[inside].sum()) / whole_s if whole_s else float("nan")

    @cached_property
    def _steady_phase(self) -> tuple[np.ndarray, np.ndarray]:
        """The first backward and the last forward of each device, as instruction numbers.

        Between them it alternates directions; the phase is empty where the first is the later.
        """
        schedule = self.schedule
        number = np.arange(len(self.schedule))
        first = np.full(schedule.num_devices, len(schedule))
        last = np.full(schedule.num_devices, -1)
        turns = (schedule.kind == BACKWARD) | (schedule.kind == INPUT)
        forward = schedule.kind == FORWARD
        np.minimum.at(first, schedule.device[turns], number[turns])
        np.maximum.at(last, schedule.device[forward], number[forward])
        return first, last

    @cached_property
    def idle_s(self) -> Mapping[str, np.ndarray]:
        """Seconds each device does not work, by cause: each of shape (num_devices,).

        With ``busy_s`` they add up to the makespan on every device. A device's steady phase is
        that of :attr:`steady_bubble_ratio`.

        - ``"warm-up"``: before its first instruction.
        - ``"communication"``: between its first and last instruction, while what it waits for is
          under way to it, or while it is itself busy sending.
        - ``"steady"``: in its steady phase, while what it waits for is not sent yet: other devices
          have more work or a worse order. It comes back with every microbatch.
        - ``"dependency"``: the same outside of the steady phase: the pipeline fills or empties
          around it, once an iteration.
        - ``"drain"``: after its last instruction.
        """
        schedule = self.schedule
        starts = np.cumsum([0, *schedule.lengths])
        works = np.array(schedule.lengths) > 0
        warm_up, done = np.zeros((2, schedule.num_devices))
        warm_up[works] = self.start_s[starts[:-1][works]]
        done[works] = self.end_s[starts[1:][works] - 1]
        unsent_s, moving_s = self._waits_s()
        first, last = (edge[schedule.device] for edge in self._steady_phase)
        number = np.arange(len(schedule))
        steady = (number > first) & (number <= last)
        return {
            "warm-up": warm_up,
            "dependency": self._by_device(np.where(steady, 0.0, unsent_s)),
            "steady": self._by_device(np.where(steady, unsent_s, 0.0)),
            "communication": self._by_device(moving_s),
            "drain": self.makespan_s - done,
        }

    def _waits_s(self) -> tuple[np.ndarray, np.ndarray]:
        """How long each instruction waits since the one before it, cut where its message was sent.

        First the device may still be sending, then the message may not be sent yet, then it is
        under way: (not sent yet, sending or under way).
        """
        graph = self.schedule.graph
        start = self.start_s
        end = np.append(self.end_s, 0.0)
        inner = graph.before < len(graph)
        before_lag = 0.0 if self.lag_s is None else self.lag_s[0]
        since = np.where(inner, np.minimum(end[graph.before], start), start)
        free = np.minimum(since + np.where(inner, before_lag, 0.0), start)
        sent = np.clip(end[graph.needs], free, start)
        return sent - free, (free - since) + (start - sent)

    def idle_frame(self) -> pd.DataFrame:
        """Table the devices, one row each: device, busy_s, then the causes of :attr:`idle_s`,
        makespan_s.
        """
        import pandas as pd

        columns = {"device": np.arange(self.schedule.num_devices), "busy_s": self.busy_s}
        columns |= {f"{cause.replace('-', '_')}_s": self.idle_s[cause] for cause in CAUSES}
        return pd.DataFrame(columns).assign(makespan_s=self.makespan_s)

    @cached_property
    def peak_activation_bytes(self) -> tuple[float, ...]:
        """For each device, the most bytes of activations it holds at once."""
        return tuple(self.schedule.peak_held(self.activation_bytes).tolist())

    def memory_frame(self) -> pd.DataFrame:
        """Table activations held over time: device, time_s, activation_bytes, a row each change.

        Every device starts at 0 s; what a row says holds until the device's next row. A forward
        holds its activation from its start, a backward frees it at its end.
        """
        import pandas as pd

        during, after = self.schedule.held(self.activation_bytes)
        device = self.schedule.device
        every = np.arange(self.schedule.num_devices)
        none = np.zeros(len(every))
        columns = {
            "device": np.append(every, np.repeat(device, 2)),
            "time_s": np.append(none, np.ravel([self.start_s, self.end_s], order="F")),
            "activation_bytes": np.append(none, np.ravel([during, after], order="F")),
        }
        table = pd.DataFrame(columns).sort_values("device", kind="stable", ignore_index=True)
        changes = table.groupby("device")["activation_bytes"].diff().ne(0)
        return table[changes].reset_index(drop=True)

    @cached_property
    def slack_s(self) -> np.ndarray:
        """How much longer each instruction could take, alone, without a later makespan."""
        longest = longest_from(self.schedule.graph, self.duration_s, self.lag_s)
        return self._clean(self.makespan_s - self.start_s - longest)

    def _clean(self, slack_s: np.ndarray) -> np.ndarray:
        """Set slack that is but rounding to 0."""
        return np.where(np.abs(slack_s) <= _NOISE * self.makespan_s, 0.0, slack_s)

    @cached_property
    def critical_path(self) -> np.ndarray:
        """The rows of :meth:`frame`, first to last, that the makespan is made of."""
        return critical_path(self.schedule.graph, self.end_s, self.lag_s)

    @cached_property
    def critical_share(self) -> dict[str, float]:
        """What share of the makespan each kind of work, and communication, has on that path."""
        path = self.critical_path
        kind = self.schedule.kind
        took = np.bincount(kind[path], self.duration_s[path], minlength=len(KINDS))
        shares: dict[str, float] = dict(zip(KINDS, took.tolist(), strict=True))
        shares["communication"] = float(self._clean(self.makespan_s - took.sum()))
        return {name: s / self.makespan_s for name, s in shares.items() if s > 0}

    @cached_property
    def busiest_link_ratio(self) -> float:
        """The largest share of the makespan for which messages occupy one link in one direction.

        The simulation lets messages of one link overlap; near 1 they would queue in reality.
        """
        if self.network is None or not self.makespan_s:
            return 0.0
        schedule = self.schedule
        boundary = boundaries(self.schedule)
        mine = np.flatnonzero(boundary >= 0)
        source = schedule.device[schedule.graph.needs[mine]]
        link = source * schedule.num_devices + schedule.device[mine]
        busy = np.bincount(link, self.network.transfer_s(schedule)[boundary[mine]])
        return float(busy.max(initial=0.0)) / self.makespan_s

    def messages_frame(self) -> pd.DataFrame:
        """Table the messages, one row each: source, device, stage, kind, microbatch, sent_s,
        arrived_s.

        They are in order of ``sent_s``; ``source`` is the sending device, the rest is the
        receiver's.
        """
        mine = np.flatnonzero(boundaries(self.schedule) >= 0)
        producer = self.schedule.graph.needs[mine]
        sent_s = self.end_s[producer]
        under_way = 0.0 if self.lag_s is None else self.lag_s[1][mine]
        table = self.schedule.frame().iloc[mine]
        table.insert(0, "source", self.schedule.device[producer])
        table = table.assign(sent_s=sent_s, arrived_s=sent_s + under_way)
        return table.sort_values("sent_s", kind="stable", ignore_index=True)

    def frame(self) -> pd.DataFrame:
        """Table the instructions, one row each: device, stage, kind, microbatch, start_s, end_s,
        slack_s.
        """
        table = self.schedule.frame()
        return table.assign(start_s=self.start_s, end_s=self.end_s, slack_s=self.slack_s)

    @checked
    def save_trace(self, path: Path | str) -> Path:
        """Write the timeline as trace events, for https://ui.perfetto.dev or chrome://tracing."""
        from labkit.pipeline.simulation.trace import save_events, trace_events

        return save_events(path, self.schedule.name, trace_events(self, self.frame()))


@checked
def simulate(
    schedule: Schedule,
    costs: Costs | np.ndarray,
    *,
    network: Network | None = None,
    jitter: Jitter = 0.0,
    rng: Rng | None = None,
) -> Timeline:
    """Run the schedule: each instruction starts when its device and its input are ready.

    It takes time linear in the number of instructions.

    Args:
        schedule: what runs.
        costs: durations by stage and kind, or one duration in seconds for each instruction, in the
            order of ``schedule.frame()``.
        network: links between devices; None where messages take no time.
        jitter: standard deviation of the logarithm of each instruction's duration, mean kept; needs
            ``rng``.
        rng: a seed, or a generator, of the jitter.

    Raises:
        DeadlockError: the order can never finish.
        UsageError: a duration is negative, not finite, or missing.

    >>> from labkit.pipeline import build
    >>> line = simulate(build("gpipe", 4, 12), Costs(forward_s=1.0, backward_s=2.0))
    >>> line.makespan_s, round(line.bubble_ratio, 9)  # (S - 1) / (M + S - 1) = 3 / 15
    (45.0, 0.2)
    """
    graph = schedule.graph
    each = np.ones(schedule.num_stages)
    if isinstance(costs, Costs):
        each = costs.per_stage("activation_bytes", schedule)
        costs = costs.durations_s(schedule)
    duration = np.asarray(costs, dtype=float)
    if duration.shape != (len(graph),):
        raise UsageError(
            f"costs must hold a duration for each of the schedule's {len(graph)} instructions; got "
            f"shape {duration.shape}"
        )
    if not np.all(np.isfinite(duration)) or np.any(duration < 0):
        raise UsageError("costs: every duration must be finite and >= 0")
    duration = duration * jitter_factors(jitter, len(graph), rng)
    lag_s = lags(schedule, network)
    end = longest_to(graph, duration, lag_s)
    return Timeline(
        schedule=schedule,
        start_s=end - duration,
        end_s=end,
        activation_bytes=each,
        network=network,
        lag_s=lag_s,
    )
