from __future__ import annotations

import importlib.util
import math
import sys

import numpy as np
import pytest

from labkit import tuning
from tests.tuning.conftest import PROFILES


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("maker", PROFILES / "make_zeus_standin.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["maker"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["maker"]


def test_the_script_writes_the_committed_files(maker) -> None:
    for name, text in maker.files().items():
        assert (PROFILES / name).read_text(encoding="utf-8") == text


def test_every_published_workload_can_be_replayed(standin: tuning.TrainingTrace) -> None:
    assert standin.names == list(tuning.PUBLISHED)
    for job in standin.jobs():
        reach, _ = tuning.convergence(job)
        assert reach[job.default_index] == 1.0
        assert len(job.power_limits_w) == 7


def test_the_model_obeys_its_physics(standin: tuning.TrainingTrace) -> None:
    """Power stays under the limit where the clock can still fall, and lower limits only slow."""
    for job in standin.jobs():
        power, limits = np.array(job.average_power_w), np.array(job.power_limits_w)
        assert (power <= limits + 1e-3).all()
        assert (np.diff(job.epoch_time_s, axis=1) <= 1e-9).all()
        assert (np.diff(power, axis=1) >= -1e-9).all()


def test_the_spread_of_runs_is_the_stated_one(maker) -> None:
    """Five normal quantiles: log epochs have mean zero and the same five values everywhere."""
    for workload in maker.WORKLOADS:
        for size in workload.batch_sizes:
            logs = [math.log(maker.epochs_to_target(workload, size, 1.0, r)) for r in range(1, 6)]
            middle = math.log(
                workload.epochs
                * (1 + size / workload.critical_batch_size + workload.smallest_useful / size)
            )
            assert np.mean(logs) == pytest.approx(middle)
            assert max(logs) - middle == pytest.approx(1.2815515655446 * workload.spread)
