"""A query of several models: how its latency objective is split among them.

Source: §4.2, §6.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit.describe import NonNegative, Positive, checked, description
from labkit.papers.nexus.packing import SLACK
from labkit.serving.batching.profiles import BatchProfile


@description
class Stage:
    """A model of a query, which asks several models one after another.

    Attributes:
        fan_out: requests to it for each request to its parent.
        parent: place of its parent in the query; stages come after their parents; -1: the root.
    """

    model: str
    profile: BatchProfile
    fan_out: NonNegative = 1.0
    parent: int = -1


@checked
def split_latency(
    stages: Sequence[Stage], *, slo_s: Positive, step_s: Positive, waits: bool = True
) -> tuple[float, ...]:
    """Latency budgets, in seconds, of a query's stages: those that take the fewest GPUs while every
    path from the root stays within ``slo_s``.

    Dynamic programming over the tree, leaves first: cost[u](t) is the least, over own budgets
    k <= t, of rate_u / throughput_u(k) + Σ cost[child](t - k). O(stages · (slo/step)²).

    Args:
        step_s: budgets are whole multiples of it.
        waits: a budget pays for two batches, as in :func:`fractional_bound`; otherwise for one.

    Raises:
        BadValue: the stages are no tree in order, or no split meets the objective.

    Source: §6.2.
    """
    for place, stage in enumerate(stages):
        if not -1 <= stage.parent < place or (stage.parent == -1) != (place == 0):
            raise BadValue(
                f"split_latency: stage {place} must come after its parent, and only the first has "
                f"none (-1); got parent {stage.parent}"
            )
    if not stages or slo_s / step_s > 1e4:
        raise BadValue("split_latency: needs a stage or more, and slo_s of at most 10,000 steps")
    steps = int(slo_s / step_s * SLACK)
    rates = [1.0]  # of each stage, for each query
    for stage in stages[1:]:
        rates.append(rates[stage.parent] * stage.fan_out)
    # 1. From the leaves up: the fewest GPUs of a stage and all below it, by steps left.
    gpus = np.zeros((len(stages), steps + 1))
    gpus_of_children = np.zeros((len(stages), steps + 1))
    own_budget = np.zeros((len(stages), steps + 1), np.int64)
    for place in reversed(range(len(stages))):
        own = _gpus_by_budget(stages[place], rates[place], steps, step_s / (2 if waits else 1))
        for left in range(steps + 1):
            tried = own[: left + 1] + gpus_of_children[place, left::-1]
            own_budget[place, left] = tried.argmin()
            gpus[place, left] = tried.min()
        if place:
            gpus_of_children[stages[place].parent] += gpus[place]
    if not np.isfinite(gpus[0, steps]):
        raise BadValue(f"split_latency: no split of slo_s {slo_s} in steps of {step_s} is enough")
    # 2. From the root down: each stage takes its own share of what its parent leaves.
    steps_left = [steps]
    budgets = [int(own_budget[0, steps])]
    for place, stage in enumerate(stages[1:], start=1):
        steps_left.append(steps_left[stage.parent] - budgets[stage.parent])
        budgets.append(int(own_budget[place, steps_left[place]]))
    return tuple(budget * step_s for budget in budgets)


def _gpus_by_budget(
    stage: Stage, rate_per_s: float, steps: int, step_s: float
) -> NDArray[np.float64]:
    """GPUs of a stage alone for each budget in steps; infinite where no batch fits."""
    speeds = [stage.profile.best(budget * step_s * SLACK)[1] for budget in range(steps + 1)]
    speed_per_s = np.array(speeds)
    gpus = np.full(steps + 1, np.inf if rate_per_s else 0.0)
    return np.divide(rate_per_s, speed_per_s, out=gpus, where=speed_per_s > 0)
