"""The optimal planner beside lowtime: CPU seconds of a whole frontier, and how the plans compare.

``make bench`` runs it; nothing here asserts a time. Both plan 1F1B over the Perseus artifact's
GPT-3 profile on the same machine, one after the other: lowtime its only product, all its cuts,
ours 40 deadlines with realised plans.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from labkit.pipeline import build, compare, plan
from labkit.pipeline.planning.relaxation import OptimalPlanner
from labkit.pipeline.planning.rounding import realise
from labkit.pipeline.profiles.clocks import Task
from tests.oracles.lowtime_frontiers import lowtime_frontier
from tests.pipeline.conftest import generated, measured, published  # noqa: F401  (fixtures)

SIZES = {"8x12": (8, 12), "8x64": (8, 64), "8x128": (8, 128), "16x256": (16, 256)}


def depth(profile: Any, num_stages: int) -> Any:
    """The measured eight stages, or twice as many of half the work each."""
    if num_stages == profile.num_stages:
        return profile
    halves = [stage // 2 for stage in range(num_stages)]
    return profile.restage(halves, scale=[0.5] * num_stages)


def forty_plans(schedule: Any, profile: Any) -> tuple[float, Any, list[float]]:
    """CPU seconds, choices and deadlines of a frontier."""
    start = time.process_time()
    planner = OptimalPlanner(Task(schedule, profile))
    deadlines_s = np.linspace(*planner.range_s, 40).tolist()
    made = planner.choose(deadlines_s)
    return time.process_time() - start, made, deadlines_s


def growth(small: tuple[int, float], large: tuple[int, float]) -> float:
    """Exponent of cost in the number of instructions, from two (instructions, seconds)."""
    return float(np.log(large[1] / small[1]) / np.log(large[0] / small[0]))


def report_gaps(benchmark: Any, name: str, gaps: list[float], cpu_s: float) -> None:
    benchmark.extra_info |= {
        "cpu_s": round(cpu_s, 2),
        "mean_gap": round(float(np.mean(gaps)), 5),
        "largest_gap": round(max(gaps), 5),
    }
    print(
        f"\n{name}: 40 plans in {cpu_s:.2f} CPU s, {np.mean(gaps):.3%} above the bound on "
        f"average, {max(gaps):.3%} at most"
    )


@pytest.mark.large
@pytest.mark.filterwarnings("ignore")  # lowtime's searches for a first guess overflow
def test_frontier_beside_lowtime(measured: Any, capsys: Any) -> None:  # noqa: F811
    profile = measured("gpt3-175b")
    rows = []
    for num_microbatches in (8, 16):
        schedule = build("1f1b", 8, num_microbatches)
        ours_s, _, _ = forty_plans(schedule, profile)  # the first also pays for imports
        ours_s, _, _ = forty_plans(schedule, profile)
        start = time.process_time()
        theirs = lowtime_frontier(schedule, profile, 1e-3)
        lowtime_s = time.process_time() - start
        rows.append((len(schedule), ours_s, lowtime_s))
        with capsys.disabled():
            print(
                f"\n8 x {num_microbatches}: 40 plans in {ours_s:.2f} CPU s, lowtime {len(theirs)} "
                f"in {lowtime_s:.2f}: {lowtime_s / ours_s:.0f} times"
            )
    (n, ours_s, lowtime_s), (m, ours_m, lowtime_m) = rows
    with capsys.disabled():
        print(
            f"cost grows as instructions^{growth((n, ours_s), (m, ours_m)):.2f}, "
            f"lowtime's as ^{growth((n, lowtime_s), (m, lowtime_m)):.2f}"
        )


@pytest.mark.parametrize(
    "size", ["8x12", *(pytest.param(s, marks=pytest.mark.large) for s in list(SIZES)[1:])]
)
def test_frontier(benchmark: Any, measured: Any, size: str) -> None:  # noqa: F811
    num_stages, num_microbatches = SIZES[size]
    profile = depth(measured("gpt3-175b"), num_stages)
    schedule = build("1f1b", num_stages, num_microbatches)
    cpu_s, made, deadlines_s = benchmark.pedantic(
        forty_plans, (schedule, profile), rounds=1, iterations=1
    )
    gaps = []
    for deadline_s, choice in zip(deadlines_s, made, strict=True):
        makespan_s, energy_j = Task(schedule, profile).cost(choice.row)
        assert makespan_s <= deadline_s * (1 + 1e-9)
        gaps.append(energy_j / choice.bound_j - 1)
    assert min(gaps) > -1e-9
    report_gaps(benchmark, size, gaps, cpu_s)


@pytest.mark.large
@pytest.mark.parametrize("effort", [1, 4, 16])
@pytest.mark.parametrize("name", ["gpt3-175b/a100_sxm", "gpt3-175b/a40", "generated"])
def test_gap(benchmark: Any, measured: Any, generated: Any, name: str, effort: int) -> None:  # noqa: F811
    """What more effort brings: 40 deadlines at 8 x 64, CPU seconds of rounding alone."""
    profile = generated(101) if name == "generated" else measured(*name.split("/"))
    task = Task(build("1f1b", 8, 64), profile)
    planner = OptimalPlanner(task)
    deadlines_s = np.linspace(*planner.range_s, 40).tolist()
    relaxed = planner._relaxed(deadlines_s)
    work = (task, planner.choices, relaxed, deadlines_s)
    start = time.process_time()
    rows = benchmark.pedantic(realise, work, {"effort": effort}, rounds=1, iterations=1)
    cpu_s = time.process_time() - start
    need_j = [task.cost(row)[1] for row in rows]
    gaps = [need / each.bound_j - 1 for need, each in zip(need_j, relaxed, strict=True)]
    report_gaps(benchmark, f"{name}, effort {effort}", gaps, cpu_s)


@pytest.mark.large
@pytest.mark.parametrize(
    ("model", "device"), [("gpt3-175b", "a100_sxm"), ("bloom", "a100_sxm"), ("gpt3-175b", "a40")]
)
def test_one_deadline(benchmark: Any, measured: Any, model: str, device: str) -> None:  # noqa: F811
    """At the time of the highest clocks, 64 microbatches: what is saved, how surely, how fast."""
    profile = measured(model, device)
    schedule = build("1f1b", 8, 64)
    start = time.process_time()
    made = benchmark.pedantic(plan, (schedule, profile, "optimal"), rounds=1, iterations=1)
    cpu_s = time.process_time() - start
    table = compare({"max clock": plan(schedule, profile, "max-clock"), "optimal": made})
    ours = table.iloc[1]
    assert ours.slowdown_fraction <= 1e-9
    benchmark.extra_info |= {"cpu_s": round(cpu_s, 3), "gap": round(ours.gap_fraction, 5)}
    print(
        f"\n{model} on {device}: saves {ours.saving_fraction:.2%}, no plan saves more than "
        f"{ours.best_saving_fraction:.2%}, {ours.slowdown_fraction:+.2%} time, {cpu_s:.2f} CPU s"
    )
