"""Pairs of batch size and power limit that were not profiled: masked, counted, never run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import tuning
from labkit.errors import LabkitError, UsageError
from labkit.tuning import figures
from tests.amounts import amounts
from tests.oracles import trace_slices
from tests.tuning.conftest import PROFILES, make_job, random_job


def punched(job: tuning.Job, holes: np.ndarray) -> tuning.Job:
    """The same job without the pairs of ``holes`` (batch size × power limit)."""
    time_s, power_w = (
        np.where(holes, np.nan, np.array(table, dtype=float))
        for table in (job.time_per_epoch_s, job.average_power_w)
    )
    return replace(
        job,
        time_per_epoch_s=tuple(map(tuple, time_s.tolist())),
        average_power_w=tuple(map(tuple, power_w.tolist())),
    )


def random_holes(job: tuning.Job, seed: int, share: float) -> np.ndarray:
    """Holes at random that leave every batch size one profiled limit."""
    rng = np.random.default_rng(seed)
    holes = rng.random(job.profiled.shape) < share
    holes[np.arange(len(holes)), rng.integers(0, holes.shape[1], len(holes))] = False
    return holes


def pairs(table: pd.DataFrame) -> set[tuple[int, float]]:
    return set(zip(table["batch_size"], table["power_limit_w"], strict=True))


def profiled_pairs(job: tuning.Job) -> set[tuple[int, float]]:
    return {
        (job.batch_sizes[i], job.power_limits_w[j])
        for i, j in zip(*job.profiled.nonzero(), strict=True)
    }


any_holes = given(st.integers(0, 10**6), amounts(0.9))


@settings(max_examples=30, deadline=None)
@any_holes
def test_what_was_profiled_is_worth_what_it_was_in_the_full_trace(seed: int, share: float) -> None:
    full = random_job(seed)
    job = punched(full, random_holes(full, seed, share))
    columns = [
        "batch_size",
        "power_limit_w",
        "time_to_accuracy_s",
        "energy_to_accuracy_j",
        "cost_j",
    ]
    ours = tuning.outcomes(job)[columns]
    whole = tuning.outcomes(full)[columns]
    merged = ours.merge(whole, on=columns[:2], suffixes=("", "_full"))
    assert pairs(ours) == profiled_pairs(job)
    for column in columns[2:]:
        assert (merged[column] == merged[f"{column}_full"]).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), amounts(0.9), amounts(1))
def test_the_optimum_is_the_least_of_what_was_profiled(seed: int, share: float, eta: float) -> None:
    """Brute force over the pairs that are left; so it never lies in a hole."""
    job = random_job(seed)
    job = punched(job, random_holes(job, seed, share))
    best = tuning.optimum(job, eta=eta)
    cost = tuning.convergence(job)[1][:, None] * tuning.epoch_cost_j(job, eta)
    assert best.cost_j == pytest.approx(np.nanmin(cost))
    assert (best.batch_size, best.power_limit_w) in profiled_pairs(job)
    front = tuning.outcomes(job, eta=eta).query("is_pareto")
    assert pairs(front) <= profiled_pairs(job)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6),
    amounts(0.9),
    st.sampled_from(["cost", "energy", "time", "max-slowdown"]),
)
def test_no_selector_takes_a_limit_that_was_not_profiled(
    seed: int, share: float, selector: str
) -> None:
    """Each row by itself, with the holes cut out, gives the same limit."""
    job = random_job(seed)
    job = punched(job, random_holes(job, seed, share))
    slowdown = 0.3 if selector == "max-slowdown" else None
    limits = tuning.best_power_limits(job, 0.5, selector=selector, max_slowdown=slowdown)
    for row, limit in enumerate(limits):
        known = np.flatnonzero(job.profiled[row])
        alone = tuning.select_limits(
            job.epoch_time_s[row, known],
            job.epoch_energy_j[row, known],
            max_power_w=job.max_power_w,
            selector=selector,
            max_slowdown=slowdown,
        )
        assert limit == known[alone]


@pytest.mark.parametrize("policy", tuning.POLICIES)
@pytest.mark.parametrize("share", [0.2, 0.7])
def test_no_policy_runs_a_pair_that_was_not_profiled(share: float, policy: str) -> None:
    job = random_job(len(policy), reliable=True)
    job = punched(job, random_holes(job, len(policy), share))
    runs = tuning.simulate(job, policy=policy, seeds=range(3), recurrences=30, beta=1e3)
    assert job.profiled[runs.batch, runs.power].all()
    assert np.isfinite(runs.energy_j).all()
    assert np.isfinite(runs.summary()[["energy_reduction", "regret_j"]].astype(float)).all()


@settings(max_examples=9, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["zeus", "halving", "cost-curve"]))
def test_a_hole_that_no_profile_would_choose_changes_no_decision(seed: int, policy: str) -> None:
    """Policies with a profile see one limit a batch size: another one's absence is not seen.

    Only the overhead of the first epoch changes, which has one limit less to try: none here, where
    a hole's epoch takes what the mean of the others takes.
    """
    full = random_job(seed, reliable=True)
    chosen = tuning.best_power_limits(full, 0.5)
    holes = np.zeros(full.profiled.shape, dtype=bool)
    rows = [i for i in range(len(holes)) if chosen[i] != 0]
    holes[rows, 0] = True
    time_s = full.epoch_time_s
    energy_j = full.epoch_energy_j
    time_s[rows, 0] = time_s[rows, 1:].mean(1)
    energy_j[rows, 0] = energy_j[rows, 1:].mean(1)
    full = replace(
        full,
        time_per_epoch_s=tuple(map(tuple, time_s.tolist())),
        average_power_w=tuple(map(tuple, (energy_j / time_s).tolist())),
    )
    job = punched(full, holes)
    assert (tuning.best_power_limits(job, 0.5) == tuning.best_power_limits(full, 0.5)).all()
    options = {"policy": policy, "seeds": range(4), "recurrences": 25, "beta": 1e3}
    ours = tuning.simulate(job, **options).frame()
    whole = tuning.simulate(full, **options).frame()
    for column in ("batch_size", "power_limit_w", "reached"):
        assert (ours[column] == whole[column]).all()
    assert ours["cost_j"].to_numpy() == pytest.approx(whole["cost_j"].to_numpy())


def test_grid_search_tries_each_profiled_pair_once() -> None:
    job = make_job([[5.0]] * 3, [[4.0, 3.0]] * 3, [[50.0, 60.0]] * 3, default=1)
    job = punched(job, np.array([[0, 1], [0, 1], [0, 0]], dtype=bool))
    runs = tuning.simulate(job, policy="grid", seeds=[0], recurrences=6).frame()
    tried = list(zip(runs["batch_size"], runs["power_limit_w"], strict=True))[:4]
    assert tried == [(4, 100.0), (2, 100.0), (8, 110.0), (8, 100.0)]
    assert job.num_recurrences == 2 * 4


def test_the_baseline_is_b0_at_the_highest_limit_it_was_profiled_at() -> None:
    job = make_job([[5.0]] * 2, [[4.0, 3.0, 2.0]] * 2, [[50.0, 60.0, 70.0]] * 2)
    job = punched(job, np.array([[0, 0, 1], [0, 0, 0]], dtype=bool))
    base = tuning.default_choice(job)
    assert (base.batch_size, base.power_limit_w) == (2, 110.0)
    assert job.max_power_w == 120.0  # what time is charged at stays the GPU's highest limit
    assert tuning.outcomes(job)["is_default"].sum() == 1
    runs = tuning.simulate(job, policy="default", seeds=[0], recurrences=5)
    assert set(np.array(job.power_limits_w)[runs.power]) == {110.0}
    assert runs.summary()["energy_reduction"] == pytest.approx(0.0)


def test_a_profile_shares_its_epoch_among_the_limits_there_are() -> None:
    full = make_job([[5.0]], [[4.0, 3.0, 2.0]], [[50.0, 60.0, 70.0]])
    job = punched(full, np.array([[0, 1, 0]], dtype=bool))
    (profile,) = trace_slices.profile_job(job)
    assert [part.power_limit_w for part in profile] == [100.0, 120.0]
    assert trace_slices.taken(profile)[0] == pytest.approx((4.0 + 2.0) / 2)
    with pytest.raises(UsageError, match="110 W was not profiled; there are 100, 120"):
        trace_slices.TraceSlices(job=job, batch_size=2).run_slice(110.0)


@settings(max_examples=25, deadline=None)
@any_holes
def test_gpu_power_fills_holes_between_batch_sizes_and_keeps_the_rest(
    seed: int, share: float
) -> None:
    full = random_job(seed)
    job = punched(full, random_holes(full, seed, share))
    if not job.profiled[:, -1].any():
        return
    ours = tuning.GpuPower.from_job(job)
    whole = tuning.GpuPower.from_job(full)
    places = [full.power_limits_w.index(w) for w in ours.power_limits_w]
    speed, watts = ours.at(np.array(ours.batch_sizes))
    assert (speed > 0).all()
    assert np.isfinite(watts).all()
    rows = [full.batch_sizes.index(b) for b in ours.batch_sizes]
    known = job.profiled[np.ix_(rows, places)]
    every_speed, every_watts = whole.at(np.array(ours.batch_sizes))
    assert speed[known] == pytest.approx(every_speed[:, places][known])
    assert watts[known] == pytest.approx(every_watts[:, places][known])


def test_a_map_of_configurations_marks_and_counts_its_holes() -> None:
    job = random_job(5)
    holes = random_holes(job, 5, 0.5)
    figure = figures.figure_map(tuning.outcomes(punched(job, holes)))
    (marks,) = [trace for trace in figure.data if (trace.name or "").startswith("not profiled")]
    assert marks.name == f"not profiled ({holes.sum()})"
    cells = set(zip(marks.y, marks.x, strict=True))
    assert cells == {(limit, size) for size, limit in zip(*holes.nonzero(), strict=True)}
    whole = figures.figure_map(tuning.outcomes(job))
    assert not any((trace.name or "").startswith("not profiled") for trace in whole.data)


# ---------------------------------------------------------------- from the files


def standin_with_holes(tmp_path, keep: np.ndarray | None = None, seed: int = 0):
    """The stand-in trace with rows of its power table left out."""
    text = (PROFILES / "standin_v100_power.csv").read_text().splitlines(keepends=True)
    first = next(n for n, line in enumerate(text) if line.startswith("dataset"))
    rows = text[first + 1 :]
    if keep is None:
        keep = np.random.default_rng(seed).random(len(rows)) < 0.6
    kept = [row for row, stays in zip(rows, keep, strict=True) if stays]
    path = tmp_path / "power.csv"
    path.write_text("".join([*text[: first + 1], *kept]))
    train = PROFILES / "standin_train.csv"
    with pytest.warns(tuning.IncompleteTrace, match="pairs of batch size and power limit not prof"):
        return tuning.TrainingTrace.from_csv(train, path, gpu="p100")


@pytest.mark.parametrize("seed", range(4))
def test_a_trace_with_holes_at_random_answers_for_all_that_is_left(tmp_path, seed: int) -> None:
    """Never a raw error: an answer, or a LabkitError of one paragraph, for every policy."""
    trace = standin_with_holes(tmp_path, seed=seed)
    answered = 0
    for name in trace.names:
        with pytest.warns(tuning.IncompleteTrace, match=rf"workload '{name}' on p100: \d+ pairs "):
            job = trace.job(name)
        assert job.num_holes == (~job.profiled).sum() > 0
        tuning.outcomes(job)
        for policy in ("grid", "zeus", "oracle"):
            try:
                runs = tuning.simulate(job, policy=policy, seeds=range(2), recurrences=10)
            except LabkitError:
                continue  # a default batch size that does not always reach the target, say
            assert job.profiled[runs.batch, runs.power].all()
            answered += 1
    assert answered >= 2 * len(trace.names)


def test_a_workload_is_refused_only_where_nothing_is_left(tmp_path) -> None:
    text = (PROFILES / "standin_v100_power.csv").read_text().splitlines()
    rows = [line for line in text if line and not line.startswith(("#", "dataset"))]
    train = pd.read_csv(PROFILES / "standin_train.csv", comment="#")
    trained = set(train.loc[train["dataset"] == "squad", "batch_size"].astype(str))
    squad = [line.startswith("squad") for line in rows]
    last = max(n for n, line in enumerate(rows) if squad[n] and line.split(",")[2] in trained)
    keep = np.array([not here or n == last for n, here in enumerate(squad)])
    keep[0] = False  # another workload's, so that there is a hole to warn of
    trace = standin_with_holes(tmp_path, keep)
    job = trace.job("squad")
    assert (len(job.batch_sizes), len(job.power_limits_w), job.num_holes) == (1, 1, 0)
    assert job.default_batch_size == job.batch_sizes[0]
    keep[last] = False
    assert "squad" not in standin_with_holes(tmp_path, keep).names


def test_what_cannot_be_a_job_is_refused_in_words() -> None:
    job = make_job([[5.0]] * 2, [[4.0, 3.0]] * 2, [[50.0, 60.0]] * 2)
    with pytest.raises(UsageError, match="batch size 4 was not profiled at any power limit"):
        punched(job, np.array([[0, 0], [1, 1]], dtype=bool))
    with pytest.raises(UsageError, match="must be NaN for the same pairs"):
        replace(job, average_power_w=((50.0, np.nan), (50.0, 60.0)))
    with pytest.raises(UsageError, match="time_per_epoch_s must be positive and finite, or NaN"):
        replace(job, time_per_epoch_s=((4.0, -3.0), (4.0, 3.0)))
    with pytest.raises(UsageError, match="a column for each of 2 power limits"):
        replace(job, time_per_epoch_s=((4.0,), (4.0, 3.0)))
    with pytest.raises(UsageError, match="known at one power limit or more"):
        tuning.select_limits([np.nan], [np.nan], max_power_w=100.0)
    other = punched(job, np.array([[0, 1], [0, 0]], dtype=bool))
    with pytest.raises(UsageError, match="not profiled at the same pairs"):
        tuning.simulate(job, drift=[other])


def test_a_policy_that_asks_for_a_hole_is_stopped_by_name() -> None:
    job = make_job([[5.0]] * 2, [[4.0, 3.0]] * 2, [[50.0, 60.0]] * 2)
    job = punched(job, np.array([[0, 0], [0, 1]], dtype=bool))
    with pytest.raises(UsageError, match="'Fixed' chose batch size 4 at 110 W, which was not"):
        tuning.simulate(job, policy=tuning.Fixed(batch=1, power=1), seeds=[0])
