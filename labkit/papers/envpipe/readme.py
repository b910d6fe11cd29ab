"""Durations for the plan that the README of EnvPipe's authors prints without any.

The README prints the order of the units, their clocks and the milliseconds that a GPU waits before
each. How long a unit takes is missing; the waits say it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from labkit import pipeline
from labkit.errors import UsageError
from labkit.kit.describe import checked, description
from labkit.pipeline.scheduling.schedule import Schedule
from labkit.pipeline.simulation.timeline import Timeline

FIRST_GUESS_MS = (20.0, 20.0, 40.0, 40.0)
"""Forward at the highest clock and lower, backward at the highest clock and lower."""


def readme_order(printed: pd.DataFrame) -> Schedule:
    """The schedule of the printed plan: 1F1B with early forwards on stages 1 and 2.

    Args:
        printed: ``data/papers/envpipe/readme_plan.csv``, a row a unit: stage, unit, clock_mhz,
            wait_ms.

    Raises:
        UsageError: the table's units stand in another order.
    """
    order = pipeline.build("envpipe", 4, 4, early_forwards=(0, 1, 2, 0))
    if unit_names(order) != printed["unit"].tolist():
        raise UsageError("the printed units do not stand in the order of the README's plan")
    return order


def unit_names(schedule: Schedule) -> list[str]:
    """Names as the README prints them: F0 is the forward of microbatch 0.

    >>> unit_names(pipeline.build("1f1b", 1, 2))
    ['F0', 'B0', 'F1', 'B1']
    """
    table = schedule.frame()
    names = table["kind"].str[0].str.upper() + table["microbatch"].astype(str)
    return names.tolist()


@description(eq=False)
class Fit:
    """Durations of the README's units.

    Attributes:
        order: the schedule.
        unit_s: seconds of each unit on a stage of work 1, shape (n,).
        last_stage: work of the last stage, over that of the others.
        worst_ms: largest difference between a wait of ours and the printed one.
    """

    order: Schedule
    unit_s: np.ndarray
    last_stage: float
    worst_ms: float

    def timeline(self, last_stage: float | None = None) -> Timeline:
        """The plan replayed, with the fitted weight of the last stage or another."""
        factor = self.last_stage if last_stage is None else last_stage
        return _replayed(self.order, self.unit_s, factor)


@checked
def fit_readme(printed: pd.DataFrame) -> Fit:
    """Fit five numbers to the printed waits.

    They are a forward's and a backward's duration at the highest clock and below it, and the work
    of the last stage.

    Args:
        printed: see :func:`readme_order`.
    """
    order = readme_order(printed)
    is_backward = (order.frame()["kind"] == "backward").to_numpy()
    is_slow = (printed["clock_mhz"] < printed["clock_mhz"].max()).to_numpy()
    slot = 2 * is_backward + is_slow
    wait_ms = printed["wait_ms"].to_numpy()

    def misfit_ms(values: np.ndarray) -> np.ndarray:
        line = _replayed(order, values[slot] / 1000, values[-1])
        return 1000 * _waits_s(line) - wait_ms

    found = least_squares(misfit_ms, [*FIRST_GUESS_MS, 1.0])
    return Fit(
        order=order,
        unit_s=found.x[slot] / 1000,
        last_stage=float(found.x[-1]),
        worst_ms=float(np.abs(found.fun).max()),
    )


def _replayed(order: Schedule, unit_s: np.ndarray, last_stage: float) -> Timeline:
    is_last = order.stage == order.num_stages - 1
    return pipeline.simulate(order, unit_s * np.where(is_last, last_stage, 1.0))


def _waits_s(line: Timeline) -> np.ndarray:
    """How long each unit's GPU waited before it."""
    table = line.frame()
    free_s = table.groupby("device")["end_s"].shift(fill_value=0.0)
    return (table["start_s"] - free_s).to_numpy()
