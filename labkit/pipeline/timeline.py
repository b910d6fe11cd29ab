"""When every instruction of a schedule runs, and what that says: makespan, bubbles, slack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.graph import longest_from, longest_to
from labkit.pipeline.schedule import KINDS, Schedule

if TYPE_CHECKING:
    import pandas as pd

PerStage = float | Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that each kind of work takes, one number for all stages or one per stage.

    A full backward pass takes ``backward_s + weight_s``: the gradient of the input, then that of
    the weights. Schedules that do not split the two run them as one instruction.

    Raises:
        UsageError: a duration is negative or not a finite number.
    """

    forward_s: PerStage
    backward_s: PerStage
    weight_s: PerStage = 0.0

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "weight_s"):
            values = np.atleast_1d(np.asarray(getattr(self, name), dtype=float))
            if values.ndim != 1 or not np.all(np.isfinite(values)) or np.any(values < 0):
                raise UsageError(
                    f"{name} must be finite and >= 0, one number or one per stage, "
                    f"found {getattr(self, name)!r}"
                )

    @classmethod
    def uniform(cls, forward_s: float, backward_s: float, weight_s: float = 0.0) -> Costs:
        """The same durations on every stage.

        >>> from labkit.pipeline import build, simulate
        >>> costs = Costs.uniform(forward_s=1.0, backward_s=1.0, weight_s=1.0)
        >>> simulate(build("1f1b", num_stages=4, num_microbatches=8), costs).makespan_s
        33.0
        """
        return cls(forward_s=forward_s, backward_s=backward_s, weight_s=weight_s)

    def durations_s(self, schedule: Schedule) -> np.ndarray:
        """Duration of each instruction, in the order of ``schedule.frame()``.

        Raises:
            UsageError: there are values for another number of stages.
        """
        per_stage = []
        for name in ("forward_s", "backward_s", "weight_s"):
            values = np.atleast_1d(np.asarray(getattr(self, name), dtype=float))
            if len(values) not in (1, schedule.num_stages):
                raise UsageError(
                    f"{name} has {len(values)} values, the schedule {schedule.num_stages} stages"
                )
            per_stage.append(np.broadcast_to(values, schedule.num_stages))
        forward, backward, weight = per_stage
        table = np.stack([forward, backward + weight, backward, weight])
        return table[schedule.kind, schedule.stage]


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline:
    """When every instruction starts and ends, in the order of ``schedule.frame()``."""

    schedule: Schedule
    start_s: np.ndarray
    end_s: np.ndarray

    @property
    def duration_s(self) -> np.ndarray:
        """How long each instruction takes."""
        return self.end_s - self.start_s

    @property
    def makespan_s(self) -> float:
        """From the first start to the last end."""
        return float(self.end_s.max())

    @property
    def bubble_ratio(self) -> float:
        """Idle share of the devices' time; 0 for instructions that take no time.

        For S uniform stages and M microbatches it is (S - 1) / (M + S - 1) under GPipe and 1F1B.
        """
        available = self.schedule.num_devices * self.makespan_s
        return float(1 - self.duration_s.sum() / available) if available else 0.0

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """For each device, the most activations it holds at once."""
        return self.schedule.peak_in_flight

    @cached_property
    def slack_s(self) -> np.ndarray:
        """How much longer each instruction could take, alone, without a later makespan."""
        return self.makespan_s - self.start_s - longest_from(self.schedule.graph, self.duration_s)

    def frame(self) -> pd.DataFrame:
        """One row per instruction: device, stage, kind, microbatch, start_s, end_s, slack_s."""
        import pandas as pd

        schedule = self.schedule
        return pd.DataFrame(
            {
                "device": schedule.device,
                "stage": schedule.stage,
                "kind": np.array(KINDS)[schedule.kind],
                "microbatch": schedule.microbatch,
                "start_s": self.start_s,
                "end_s": self.end_s,
                "slack_s": self.slack_s,
            }
        )


def simulate(schedule: Schedule, costs: Costs | np.ndarray) -> Timeline:
    """Run the schedule: each instruction starts when its device and its input are ready.

    Args:
        costs: durations by stage and kind, or one duration in seconds for each instruction, in
            the order of ``schedule.frame()``.

    Communication takes no time here. Time: linear in the number of instructions.

    Raises:
        DeadlockError: the order can never finish.
        UsageError: a duration is negative, not finite, or missing.

    >>> from labkit.pipeline import build
    >>> line = simulate(build("gpipe", 4, 12), Costs.uniform(forward_s=1.0, backward_s=2.0))
    >>> line.makespan_s, round(line.bubble_ratio, 9)  # (S - 1) / (M + S - 1) = 3 / 15
    (45.0, 0.2)
    """
    graph = schedule.graph
    duration = costs.durations_s(schedule) if isinstance(costs, Costs) else np.asarray(costs, float)
    if duration.shape != (len(graph),):
        raise UsageError(f"{duration.shape} durations for the schedule's {len(graph)} instructions")
    if not np.all(np.isfinite(duration)) or np.any(duration < 0):
        raise UsageError("every duration must be finite and >= 0")
    end = longest_to(graph, duration)
    return Timeline(schedule=schedule, start_s=end - duration, end_s=end)
