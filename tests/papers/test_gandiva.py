"""A search for the good trial: on one GPU it ends where the formula says."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import cluster
from labkit.papers import gandiva


@pytest.mark.parametrize("feedback", [1.0, 0.1])
def test_a_search_on_one_gpu_ends_where_the_formula_says(feedback: float) -> None:
    hours = gandiva.search_hours(
        cluster.fifo(), 20, feedback=feedback, num_gpus=1, trial_s=3600.0, seeds=range(30)
    )
    place = [int(np.random.default_rng(draw).integers(20)) for draw in range(30)]
    assert hours == pytest.approx([k * feedback + 1 for k in place])
    sliced = gandiva.search_hours(
        cluster.las(60.0), 20, feedback=feedback, num_gpus=1, trial_s=3600.0, seeds=range(5)
    )
    assert (sliced <= 19 * feedback + 1 + 1e-9).all()  # no worse than last of all
    assert (sliced > 1).all()
