"""Rounds of tasks on mixed GPUs: the rules, a bound, and the exact optimum of tiny cases."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import BadValue
from labkit.papers import hare

SPEED = np.array([[4.0, 3.0, 1.0], [4.0, 1.0, 0.5], [2.0, 3.0, 2.0]])


def jobs(seed: int, num_jobs: int = 12, each: int = 2, load: float = 1.5) -> hare.Rounds:
    return hare.draw_rounds(
        SPEED, (each,) * 3, num_jobs=num_jobs, load=load, tasks=(1, 2), mean_rounds=5, rng=seed
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(sorted(hare.WAYS)), st.floats(0.3, 20))
def test_every_schedule_keeps_the_rules(seed: int, way: str, load: float) -> None:
    """All tasks run once, on one GPU at a time, rounds follow each other, and nobody beats the
    bound."""
    case = jobs(seed, load=load)
    run = hare.schedule(case, **hare.WAYS[way])
    job, gpu, start, end = run.log.T
    whole = hare.WAYS[way].get("how") == "whole"
    rounds = np.ones(12) if whole else np.asarray(case.rounds)
    assert (np.bincount(job.astype(int), minlength=12) == rounds * case.tasks).all()
    for g in np.unique(gpu):
        order = np.argsort(start[gpu == g], kind="stable")
        assert (start[gpu == g][order][1:] >= end[gpu == g][order][:-1] - 1e-9).all()
    for j in range(12):
        mine = np.flatnonzero(job == j).reshape(-1, int(case.tasks[j]))  # type: ignore[index]
        over = end[mine].max(axis=1)
        begin = start[mine].min(axis=1)
        sync_s = 0.0 if whole else float(case.sync_s[j])  # type: ignore[index]
        assert (begin[1:] >= over[:-1] + sync_s - 1e-9).all()
        assert begin[0] >= case.arrival_s[j] - 1e-9  # type: ignore[index]
        assert run.end_s[j] == pytest.approx(over[-1] + sync_s)
    assert run.weighted_jct_s(case) >= case.bound_s() - 1e-9


def optimum(case: hare.Rounds) -> float:
    """Least weighted mean completion time, by OR-Tools, of relaxed rounds; whole seconds."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    seconds = np.asarray(case.task_s).astype(int)
    weight = np.asarray(case.weight).astype(int)
    horizon = int(seconds.max(axis=1) @ np.asarray(case.rounds) * 4 + np.max(case.arrival_s))
    on_gpu: list[list[Any]] = [[] for _ in range(seconds.shape[1])]
    ends = []
    for j, row in enumerate(seconds.tolist()):
        ready: Any = int(case.arrival_s[j])  # type: ignore[index]
        for r in range(int(case.rounds[j])):  # type: ignore[index]
            over = model.new_int_var(0, horizon, f"over {j} {r}")
            for k in range(int(case.tasks[j])):  # type: ignore[index]
                start = model.new_int_var(0, horizon, f"start {j} {r} {k}")
                model.add(start >= ready)
                picks = [model.new_bool_var(f"{j} {r} {k} {g}") for g in range(len(row))]
                model.add_exactly_one(picks)
                for g, pick in enumerate(picks):
                    stop = model.new_int_var(0, horizon, "")
                    on_gpu[g].append(model.new_optional_interval_var(start, row[g], stop, pick, ""))
                    model.add(over >= stop).only_enforce_if(pick)
            ready = over + int(case.sync_s[j])  # type: ignore[index]
        ends.append(ready)
    for intervals in on_gpu:
        model.add_no_overlap(intervals)
    model.minimize(sum(int(w) * end for w, end in zip(weight, ends, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 60
    assert solver.solve(model) == cp_model.OPTIMAL
    arrived = float(weight @ np.asarray(case.arrival_s))
    return (solver.objective_value - arrived) / float(weight.sum())


def test_near_the_optimum_of_tiny_cases() -> None:
    """Within a half of the exact optimum, which lies between the bound and the heuristic."""
    cases = []
    for seed in range(8):
        draw = np.random.default_rng(seed)
        case = hare.Rounds(
            arrival_s=draw.integers(0, 6, 3),
            weight=draw.integers(1, 6, 3),
            rounds=draw.integers(1, 3, 3),
            tasks=draw.integers(1, 3, 3),
            task_s=draw.integers(1, 9, (3, 2)),
            sync_s=draw.integers(0, 2, 3),
        )
        cases.append(case)
    # In a process of its own: OR-Tools and highspy each bring a HiGHS, and one process holds one.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        best_s = list(fresh.map(optimum, cases))
    ratios = []
    for case, best in zip(cases, best_s, strict=True):
        assert best >= case.bound_s() - 1e-6
        ratios.append(hare.schedule(case).weighted_jct_s(case) / best)
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) <= 1.5


def test_cases_by_hand() -> None:
    """Two tasks on a fast and a slow GPU: in turn on the fast one they end at 2, a gang at 5."""
    case = hare.Rounds(
        arrival_s=[0], weight=[1], rounds=[2], tasks=[2], task_s=[[1, 5]], sync_s=[0.5]
    )
    assert hare.schedule(case).end_s.tolist() == [5.0]  # two rounds of 2 s, two of 0.5 s
    assert set(hare.schedule(case).log[:, 1]) == {0}
    assert hare.schedule(case, "gang").end_s.tolist() == [11.0]
    assert case.capacity == pytest.approx(1.2)
    assert case.area_s.tolist() == [4.0]
    two = replace(case, tasks=[1], rounds=[1], task_s=[[3, 3]], sync_s=[0])
    assert hare.schedule(two, switch_s=2).end_s.tolist() == [5.0]


def test_a_backlog_of_single_tasks_on_equal_gpus_is_smiths_rule() -> None:
    """One machine, all jobs there at 0: weight by area is optimal, and the bound is met."""
    draw = np.random.default_rng(0)
    seconds = draw.integers(1, 20, 30).astype(float)
    weight = draw.integers(1, 9, 30)
    ones = np.ones(30)
    case = hare.Rounds(
        arrival_s=0 * ones,
        weight=weight,
        rounds=ones,
        tasks=ones,
        task_s=seconds[:, None],
        sync_s=0 * ones,
    )
    order = np.argsort(seconds / weight, kind="stable")
    least = float(weight[order] @ np.cumsum(seconds[order])) / weight.sum()
    assert hare.schedule(case, order="area").weighted_jct_s(case) == pytest.approx(least)
    assert case.bound_s() == pytest.approx(least)


def test_what_cannot_be_is_said() -> None:
    case = jobs(0)
    with pytest.raises(BadValue, match="a gang of 2 tasks"):
        hare.schedule(jobs(0, each=1), "gang", one_type=True)
    with pytest.raises(BadValue, match="believed_s"):
        hare.schedule(case, believed_s=np.ones(3))
    with pytest.raises(BadValue, match=r"Rounds\.rounds"):
        replace(case, rounds=np.full(12, 1.5))
    with pytest.raises(BadValue, match=r"Rounds\.types"):
        replace(case, types=np.full(6, -1))


def test_gains_are_over_the_best_gang_and_nobody_gains_more_than_the_bound() -> None:
    draws = hare.Draws(steps_per_s=SPEED, gpus=4, seeds=range(3))
    gains = draws.gains()
    assert list(gains.index) == [0, 1, 2]
    assert gains[[*hare.GANGS]].max(axis=1).tolist() == pytest.approx([1.0] * 3)
    assert (gains.drop(columns="bound").le(gains["bound"] + 1e-9, axis=0)).all(axis=None)
    row = hare.summary(gains)
    assert row["relaxed, least"] <= row["relaxed"] <= row["relaxed, most"]


def test_a_dear_switch_costs_relaxed_rounds_more_than_gangs() -> None:
    draws = hare.Draws(steps_per_s=SPEED, gpus=4, seeds=range(3))
    free = draws.gains()["relaxed"].median()
    dear = draws.changed(switch_s=60.0).gains()["relaxed"].median()
    assert dear < free


def test_right_times_are_those_of_no_error() -> None:
    draws = hare.Draws(steps_per_s=SPEED, gpus=4, seeds=[1])
    jobs = draws.jobs(1)
    expected = hare.compare(jobs)["weighted_jct_s"]
    assert draws.weighted_jct_s()[[*hare.WAYS]].iloc[0].to_dict() == expected.to_dict()
    assert draws.changed(error=1.0).gains()["relaxed"].iloc[0] != draws.gains()["relaxed"].iloc[0]
