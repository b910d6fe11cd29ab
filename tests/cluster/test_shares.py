"""Shares of time, and the rounds that realise them."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import cluster
from labkit.errors import LabkitError
from labkit.files import project_root
from tests.cluster.turns import (
    ALONE,
    GPU_TYPES,
    TABLE,
    check_no_gpu_is_used_twice_and_all_work_is_done,
    jobs,
)


@pytest.mark.parametrize("policy", cluster.SHARE_POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_no_gpu_is_used_twice_and_all_work_is_done(policy: str, seed: int) -> None:
    chosen = cluster.share_policy(policy, rng=seed, pairs=ALONE, restart_s=10)
    pairs = policy in ("packed", "packed-by-sum")
    check_no_gpu_is_used_twice_and_all_work_is_done(chosen, seed, most_gpus=3, pairs=pairs)


def test_first_come_first_served_in_short_rounds_is_the_event_loops() -> None:
    trace = cluster.generate(150, num_gpus=4, load=0.9, gpus={1: 1}, rng=3)
    machines = cluster.Cluster.nodes(1, gpus=4)
    exact = cluster.simulate(trace, machines, cluster.fifo())
    policy = cluster.share_policy("fifo", round_s=2.0, reset_s=0.0)
    rounds = cluster.simulate(trace, machines, policy)
    assert rounds.jct_s.mean() == pytest.approx(exact.jct_s.mean(), rel=0.01)
    assert (rounds.start_s >= trace.column("arrival_s")).all()


def test_jobs_are_drawn_from_the_papers_distributions() -> None:
    trace = cluster.generate_continuous(20_000, jobs_per_hour=4.0, rng=7)
    mean = [60 * (10**b - 10**a) / ((b - a) * np.log(10)) for a, b in ((1.5, 3.0), (3.0, 4.0))]
    assert trace.column("duration_s").mean() == pytest.approx(
        0.8 * mean[0] + 0.2 * mean[1], rel=0.03
    )
    gaps = np.diff(trace.column("arrival_s"))
    assert gaps.mean() == pytest.approx(900, rel=0.03)
    assert gaps.std() == pytest.approx(900, rel=0.05)
    wide = cluster.generate_continuous(20_000, jobs_per_hour=None, rng=7, wide=True)
    sizes = [np.mean(wide.column("gpus") == gpus) for gpus in (1, 2, 4, 8)]
    assert sizes == pytest.approx([0.7, 0.1, 0.15, 0.05], abs=0.01)
    assert set(wide.column("arrival_s")) == {0.0}


def test_a_sweep_has_the_runs_numbers_and_refuses_traces_that_end_too_soon() -> None:
    trace = cluster.generate_continuous(400, jobs_per_hour=1.0)
    standin = project_root() / "data/profiles/standin_gavel_throughputs.csv"
    machines = cluster.load_throughputs(standin).cluster(10, 10, 10)
    policy = cluster.share_policy("las")
    windows = [(0, 50), (50, 90)]
    rows = cluster.sweep({"a": trace}, [machines], [policy], windows=windows)
    done = cluster.simulate(trace, machines, policy, window=(0, 90))
    assert rows["trace"].tolist() == ["a", "a"]
    assert rows["first"].tolist() == [0, 50]
    assert rows.mean_jct_s.tolist() == pytest.approx([done.jct_s[a:b].mean() for a, b in windows])
    assert (rows.slowdown_ratio >= 1).all()
    assert (rows.worst_slowdown_ratio >= rows.slowdown_ratio).all()
    assert done.why(399) == "399 had not ended when the run was stopped"
    assert "first ran" in done.why(5) or "ran at once" in done.why(5)
    with pytest.raises(LabkitError, match="draw more jobs"):
        cluster.sweep({"a": trace}, [machines], [policy], windows=[(300, 399)])


def test_a_comparison_is_a_sweep_of_one_trace() -> None:
    trace = cluster.generate(60, num_gpus=8, rng=1)
    machines = cluster.Cluster.nodes(1)
    policies = [cluster.fifo(), cluster.share_policy("las")]
    table = cluster.compare(trace, machines, policies)
    assert table.policy.tolist() == ["fifo", "las"]
    assert table.equals(cluster.sweep([trace], [machines], policies))


def test_a_policy_of_ones_own_takes_one_method() -> None:
    """The last to come gets the GPU from the next round on; the first waits until it has ended."""

    class Last(cluster.SharePolicy):
        def decide(self, active: cluster.Active) -> cluster.Shares:
            share = np.zeros((active.jobs.size, active.room.size))
            share[-1] = 1.0
            return cluster.Shares(share)

    trace = jobs("aa", 3600.0, arrival_s=1.0)
    policy = Last(name="last", strict=True, round_s=60.0, reset_s=0.0)
    done = cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=1), policy)
    assert done.end_s.tolist() == [7200.0, 3660.0]


def test_figures_show_the_tables_numbers() -> None:
    heat = cluster.figure_pairs(TABLE, gpu=0).data[0].z
    assert heat[0][0] == pytest.approx(2 * 1.5 / 2)
    with pytest.raises(LabkitError, match="gpu must be from 0 to 1"):
        cluster.figure_pairs(TABLE, gpu=2)


def test_errors_say_what_would_be_valid() -> None:
    las = cluster.share_policy("las")
    with pytest.raises(LabkitError, match="did you mean 'packed'"):
        cluster.share_policy("paked")
    with pytest.raises(LabkitError, match="EqualShares has no field 'seed'"):
        cluster.share_policy("las", seed=1)
    with pytest.raises(LabkitError, match="fits in no pool"):
        cluster.simulate(jobs("a", 1.0, gpus=3), TABLE.cluster(2, 2), las)
    with pytest.raises(LabkitError, match="window must be two places from 0 to 2"):
        cluster.simulate(jobs("aa", 1.0), TABLE.cluster(2, 2), las, window=(1, 1))
    with pytest.raises(LabkitError, match="'las' places jobs itself"):
        cluster.simulate(jobs("aa", 1.0), TABLE.cluster(2, 2), las, placement="consolidated")
    with pytest.raises(LabkitError, match="kind"):
        TABLE.of(["c"])
    with pytest.raises(LabkitError, match="shape"):
        cluster.Throughputs(kinds=("a",), gpu_types=GPU_TYPES, alone=[[1.0]], shared=[[[1.0]]])
