"""Batches of unequal GPUs: equal, by speed, with full memories relieved, and the optimum.

Source: hardware-aware load balance (read in notes on the paper; its section was not seen).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.errors import BadValue
from labkit.papers.whale.speeds import Speed


def proportional(total: int, weights: Sequence[float]) -> list[int]:
    """Whole batches by weight that add up to ``total``; the largest remainders are rounded up.

    >>> proportional(10, [2.0, 1.0])
    [7, 3]
    """
    shares = np.asarray(weights, dtype=float)
    exact = total * shares / shares.sum()
    whole = np.floor(exact).astype(int)
    missing = total - int(whole.sum())
    for place in np.argsort(whole - exact, kind="stable")[:missing]:
        whole[place] += 1
    return whole.tolist()


def relieved(
    batches: Sequence[int], limits: Sequence[int], flops_per_s: Sequence[float]
) -> list[int]:
    """Batches with what does not fit moved to GPUs with room, a sample at a time.

    1. A GPU whose batch is above its limit gives up a sample.
    2. It goes to the GPU with room that would be least loaded with it: samples over speed.
    3. So on, until all batches fit.

    Args:
        limits: samples that each GPU's memory holds.
        flops_per_s: what load is measured by.

    Raises:
        BadValue: all batches together are more than all memories hold.

    >>> relieved([7, 3], [5, 9], [2.0, 1.0])
    [5, 5]
    """
    if sum(batches) > sum(limits):
        raise BadValue(
            f"relieved: batches must be at most {sum(limits)} in all, which memories hold; "
            f"got {sum(batches)}"
        )
    moved = list(batches)
    gpus = range(len(moved))
    for full in gpus:
        while moved[full] > limits[full]:
            roomy = [gpu for gpu in gpus if moved[gpu] < limits[gpu]]
            least = min(roomy, key=lambda gpu: (moved[gpu] + 1) / flops_per_s[gpu])
            moved[full] -= 1
            moved[least] += 1
    return moved


def step_s(batches: Sequence[float], speeds: Sequence[Speed]) -> float:
    """Seconds until the slowest GPU has computed its batch."""
    return max(speed.step_s(batch) for batch, speed in zip(batches, speeds, strict=True))


def idle(batches: Sequence[float], speeds: Sequence[Speed]) -> float:
    """Largest share of the step for which a GPU waits for the slowest."""
    busy_s = [speed.step_s(batch) for batch, speed in zip(batches, speeds, strict=True)]
    return 1 - min(busy_s) / max(busy_s)


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best batches there are.

    Attributes:
        batches: of each GPU.
        step_s: seconds of the step.
    """

    batches: tuple[float, ...]
    step_s: float


def optimum(
    total: int,
    speeds: Sequence[Speed],
    limits: Sequence[int] | None = None,
    *,
    whole: bool = False,
) -> Optimum:
    """The least step by linear programming (HiGHS).

    Minimise T, where fixed + sample · batch ≤ T on each GPU, batches add up to ``total``, and each
    lies between 0 and its limit. A GPU with an empty batch still counts its fixed seconds here.

    Args:
        limits: samples that each GPU's memory holds; None sets no limit.
        whole: whether batches are whole numbers, which takes an integer program.

    Raises:
        BadValue: memories do not hold so many samples.
    """
    from scipy.optimize import linprog

    count = len(speeds)
    rows = np.zeros((count, count + 1))
    for place, speed in enumerate(speeds):
        rows[place, place] = speed.sample_s
    rows[:, -1] = -1
    highest = [None] * count if limits is None else list(limits)
    solved = linprog(
        c=[0.0] * count + [1.0],
        A_ub=rows,
        b_ub=[-speed.fixed_s for speed in speeds],
        A_eq=[[1.0] * count + [0.0]],
        b_eq=[total],
        bounds=[*((0, most) for most in highest), (0, None)],
        integrality=[int(whole)] * count + [0],
        method="highs",
    )
    if not solved.success:
        raise BadValue(f"optimum: total must be samples that the limits hold; got {total}")
    return Optimum(batches=tuple(solved.x[:-1].tolist()), step_s=float(solved.x[-1]))
