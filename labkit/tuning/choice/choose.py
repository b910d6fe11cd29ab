"""Batch size, learning-rate rule, power limit and number of GPUs, chosen together.

    choice = tuning.choose(
        goodput.fit(tables.steps).step_times,
        ModelledProgress.from_tables(tables),   # steps to the target
        GpuPower.from_job(job),                 # slowdown and draw by power limit
        allocations=[(1, 1), (1, 2), (1, 4), (2, 8)],
        batch_sizes=[128, 256, 512, 1024],
        atomic_bsz_range=tables.atomic_bsz_range,
        deadline_s=3600,
    )
    choice.best                                 # the point of least energy in time
    choice.frontier                             # all that no other beats in time and energy both
    choice.assumptions                          # what was put together, and what has to hold

The grid is finite and every point of it is evaluated, in one go with NumPy, so the choice is
optimal for the model by exhaustion; ``certificate`` counts what was looked at. Time and energy are
put together from separate measurements, never measured themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from labkit.errors import BadValue, UsageError
from labkit.kit.describe import Count, Positive, checked
from labkit.tuning.choice.gpu_power import GpuPower, HostPower
from labkit.tuning.choice.progress import ModelledProgress
from labkit.tuning.configurations.outcomes import undominated
from labkit.tuning.goodput.step_times import StepTimes, allocation_of

PLACE = ("num_nodes", "num_gpus", "batch_size", "atomic_bsz", "accum_steps")


def place_text(point: Any) -> str:
    """Write a point in a few words."""
    gpus = counted(point.num_gpus, "GPU")
    nodes = counted(point.num_nodes, "node")
    return f"{gpus} on {nodes}, batch {point.batch_size} ({point.rule}), {point.power_limit_w:g} W"


def counted(number: Any, what: str) -> str:
    """Write a number before its noun, which gets an s where there are several."""
    return f"{number} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True, eq=False, kw_only=True)
class JointChoice:
    """The point of least energy in time, with all it was chosen from.

    A point is one way to run the job, and what the models predict of it. Columns: num_nodes,
    num_gpus, batch_size (of all GPUs), atomic_bsz, accum_steps (0), rule, power_limit_w, steps,
    step_time_s, time_s (infinite: never reaches the target), energy_j, average_power_w.
    """

    best: pd.Series
    deadline_s: float | None
    points: pd.DataFrame
    """Every point evaluated."""
    assumptions: tuple[str, ...]

    @property
    def frontier(self) -> pd.DataFrame:
        """The points that no other beats in time and energy both, fastest first; is_chosen marks
        one.

        It spans all times, whatever the deadline.
        """
        table = self.frame()
        kept = undominated(table["time_s"].to_numpy(), table["energy_j"].to_numpy())
        front = table[kept].sort_values("time_s", ignore_index=True).drop(columns="in_time")
        chosen = (front["time_s"] == self.best.time_s) & (front["energy_j"] == self.best.energy_j)
        return front.assign(is_chosen=chosen)

    @property
    def certificate(self) -> str:
        """Say what the search looked at: all there is, by its times and energies alone."""
        reaching = self.frame()
        energies = reaching.loc[reaching["in_time"], "energy_j"]
        return (
            f"{len(self.points):,} points evaluated, {len(reaching):,} reach the target, "
            f"{len(energies):,} of them in time, {(energies < self.best.energy_j).sum()} of those "
            "with less energy than the choice"
        )

    def frame(self) -> pd.DataFrame:
        """Every point that reaches the target, with a column in_time."""
        table = self.points[np.isfinite(self.points["time_s"])].reset_index(drop=True)
        return table.assign(in_time=table["time_s"] <= _limit(self.deadline_s))

    @checked
    def one_by_one(self, *, num_nodes: Count, num_gpus: Count, batch_size: Count) -> pd.DataFrame:
        """Show what choosing together is worth: the same search with some things held as given.

        Each row is the least energy in time with only ``knobs`` free. Where the knobs are chosen
        one after the other, what came first stays: ``GPUs and batch size, then power limit`` takes
        the fastest way to the target (Pollux) and then the limit of least energy on it that is in
        time (Zeus). Rows that nothing in time satisfies have missing values.

        Args:
            num_nodes, num_gpus: the allocation that is given.
            batch_size: the batch size that is given; with it go AdaScale and the highest power
                limit.

        Returns:
            A table with columns knobs, those of a point, energy_saving_fraction (against the energy
            of "as given") and excess_fraction (over the energy of all chosen together).

        Raises:
            UsageError: the given point is not in the grid.
        """
        points = self.points
        same = {
            "GPUs": (points["num_nodes"] == num_nodes) & (points["num_gpus"] == num_gpus),
            "batch": points["batch_size"] == batch_size,
            "rule": points["rule"] == "adascale",
            "power": points["power_limit_w"] == points["power_limit_w"].max(),
        }

        def free(*knobs: str) -> pd.DataFrame:
            held = [mask for name, mask in same.items() if name not in knobs]
            return points[np.logical_and.reduce(held)]

        given = free()
        fastest = free("GPUs", "batch", "rule")
        if given.empty:
            raise UsageError(
                f"batch size {batch_size} (adascale) on {num_gpus} GPUs on {num_nodes} node(s) is "
                "not in the grid"
            )
        kept = [*PLACE, "rule"]
        first = fastest.iloc[int(fastest["time_s"].argmin())][kept]
        searches = {
            "as given": given,
            "power limit": free("power"),
            "batch size and rule": free("batch", "rule"),
            "GPUs": free("GPUs"),
            "batch size, rule and power limit": free("batch", "rule", "power"),
            "GPUs and batch size, then power limit": points[(points[kept] == first).all(axis=1)],
            "all together": points,
        }
        rows = [_cheapest(among, self.deadline_s) for among in searches.values()]
        table = pd.DataFrame([dict.fromkeys(points) if row is None else dict(row) for row in rows])
        table.insert(0, "knobs", list(searches))
        table["energy_saving_fraction"] = 1 - table["energy_j"] / given["energy_j"].min()
        table["excess_fraction"] = table["energy_j"] / self.best.energy_j - 1
        return table


@checked
def choose(
    step_times: StepTimes,
    progress: ModelledProgress,
    power: GpuPower,
    *,
    allocations: Sequence[tuple[Count, Count]],
    batch_sizes: Sequence[Count],
    atomic_bsz_range: tuple[Count, Count],
    deadline_s: Positive | None = None,
    host: HostPower | None = None,
) -> JointChoice:
    """Find the way to the target that takes the least energy within a deadline.

    Of equals in energy the fastest is chosen, then the one on the fewest GPUs.

    Args:
        step_times: seconds of a step at the highest power limit of ``power``.
        progress: how many steps lead to the target, by batch size and learning-rate rule.
        power: what one GPU draws, and how fast it is, by batch size and power limit.
        allocations: (nodes, GPUs) to choose from.
        batch_sizes: total batch sizes to choose from; one that an allocation cannot split into
            equal whole parts is left out there.
        atomic_bsz_range: least and most examples a GPU may hold at a time.
        deadline_s: latest expected time to the target; None asks for the least energy however long
            it takes.
        host: what draws power besides; by default GPUs alone draw any.

    Raises:
        UsageError: nothing reaches the target in time; the message names the fastest way.
    """
    host = host or HostPower()
    places = _places(allocations, batch_sizes, atomic_bsz_range)
    points = _points(places, step_times, progress, power, host)
    best = _cheapest(points, deadline_s)
    if best is None:
        fastest = points.iloc[int(points["time_s"].argmin())]
        raise UsageError(
            f"nothing reaches the target within {_limit(deadline_s):g} s; the fastest takes "
            f"{fastest['time_s']:.6g} s: {place_text(fastest)}"
        )
    assumptions = (*_OF_STEPS, *progress.assumptions, *power.assumptions, *host.assumptions)
    return JointChoice(best=best, deadline_s=deadline_s, points=points, assumptions=assumptions)


_OF_STEPS = (
    "Time and energy are predicted: step times, steps to the target and power were measured (or "
    "modelled) apart and are put together here; no run was made at the chosen point.",
    "Step times follow the model given, at the highest power limit, and hold on average all along; "
    "evaluation, checkpoints and start-up are left out.",
)


def _cheapest(points: pd.DataFrame, deadline_s: float | None) -> pd.Series | None:
    """Pick the point of least energy in time; of equals the fastest, then the one on the fewest
    GPUs.
    """
    in_time = points[np.isfinite(points["time_s"]) & (points["time_s"] <= _limit(deadline_s))]
    if in_time.empty:
        return None
    order = np.lexsort([in_time[name] for name in ("num_gpus", "time_s", "energy_j")])
    return in_time.iloc[order[0]]


def _limit(deadline_s: float | None) -> float:
    """The deadline as a number that times can be compared with."""
    return np.inf if deadline_s is None else deadline_s


# ---------------------------------------------------------------- the grid


def _places(
    allocations: Sequence[tuple[int, int]],
    batch_sizes: Sequence[int],
    atomic_bsz_range: tuple[float, float],
) -> pd.DataFrame:
    """List every whole split of a batch size over an allocation."""
    if not allocations or not batch_sizes:
        raise UsageError("a choice needs one or more of allocations and of batch_sizes")
    allocation_of(*np.array(allocations).T)
    low, high = atomic_bsz_range
    if low > high:
        raise BadValue(f"atomic_bsz_range must ascend, got {atomic_bsz_range}")
    sizes = sorted(set(batch_sizes))
    rows = [
        (nodes, gpus, batch, batch // gpus, 0)
        for (nodes, gpus), batch in product(dict.fromkeys(map(tuple, allocations)), sizes)
        if batch % gpus == 0 and low <= batch // gpus <= high
    ]
    if not rows:
        raise UsageError(
            f"no batch size of {', '.join(map(str, sizes))} can be split evenly over any "
            f"allocation with {low:g} to {high:g} examples a GPU"
        )
    return pd.DataFrame(rows, columns=list(PLACE))


def _points(
    places: pd.DataFrame,
    times: StepTimes,
    progress: ModelledProgress,
    power: GpuPower,
    host: HostPower,
) -> pd.DataFrame:
    """List places × power limits × rules as rows: seconds of a step, draw of everything, and
    totals.
    """
    nodes, gpus, _, size, _ = (places[name].to_numpy()[:, None] for name in PLACE)
    speed, busy_w = power.at(size[:, 0])
    idle_w = host.idle_gpu_power_w
    if idle_w > np.nanmin(busy_w):
        raise BadValue(
            f"idle_gpu_power_w must not exceed what a busy GPU draws, {busy_w.min():g} W; got "
            f"{idle_w:g}"
        )
    step_s = times.step_time_s(nodes, gpus, size, slowdown=1 / speed)
    others = host.idle_gpus(nodes[:, 0], gpus[:, 0])[:, None]
    watts = gpus * busy_w + others * idle_w + nodes * host.node_power_w
    rules = progress.rules
    steps = np.stack([progress.steps(places["batch_size"], rule) for rule in rules], -1)
    shape = (*step_s.shape, len(rules))
    where, limit, of_rule = (index.ravel() for index in np.indices(shape))
    table = places.iloc[where].reset_index(drop=True)
    table["rule"] = np.array(rules, dtype=object)[of_rule]
    table["power_limit_w"] = np.array(power.power_limits_w)[limit]
    table["steps"] = steps[where, of_rule]
    table["step_time_s"] = step_s[where, limit]
    table["time_s"] = table["step_time_s"] * table["steps"]
    table["energy_j"] = table["time_s"] * watts[where, limit]
    table["average_power_w"] = watts[where, limit]
    return table
