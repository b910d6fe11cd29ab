"""A search for the good trial: on one GPU it ends where the formula says."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import cluster
from labkit.errors import BadValue
from labkit.papers import gandiva


@pytest.mark.parametrize("feedback", [1.0, 0.1])
def test_a_search_on_one_gpu_ends_where_the_formula_says(feedback: float) -> None:
    hours = gandiva.search_hours(
        cluster.fifo(), 20, feedback=feedback, num_gpus=1, trial_s=3600.0, seeds=range(30)
    )
    place = [int(np.random.default_rng(draw).integers(20)) for draw in range(30)]
    assert hours == pytest.approx([k * feedback + 1 for k in place])
    sliced = gandiva.search_hours(
        gandiva.slices(60.0, longest_s=3600.0),
        20,
        feedback=feedback,
        num_gpus=1,
        trial_s=3600.0,
        seeds=range(5),
    )
    assert (sliced <= 19 * feedback + 1 + 1e-9).all()  # no worse than last of all
    assert (sliced > 1).all()


def test_jobs_in_slices_end_one_slice_after_another() -> None:
    num_jobs = 5
    trace = cluster.Trace(
        arrival_s=[0] * num_jobs, duration_s=[600.0] * num_jobs, gpus=[1] * num_jobs
    )
    turns = gandiva.slices(100.0, longest_s=600.0)
    run = cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=1), turns)
    last = num_jobs * 600.0
    assert run.end_s == pytest.approx(last - 100.0 * np.arange(num_jobs)[::-1])


def test_best_so_far_trials_that_run_to_their_end_delay_the_good_one() -> None:
    alone = gandiva.search_hours(cluster.fifo(), 40, feedback=0.05)
    compared = gandiva.search_hours(cluster.fifo(), 40, feedback=0.05, compared=True)
    assert (compared >= alone - 1e-9).all()
    assert compared.mean() > alone.mean()


def test_a_slice_that_a_restart_fills_is_refused() -> None:
    with pytest.raises(BadValue, match="restart_s"):
        gandiva.slices(100.0, restart_s=100.0)
