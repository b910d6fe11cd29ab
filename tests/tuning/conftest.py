from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from labkit import tuning
from tests.published import need

PROFILES = Path(__file__).resolve().parents[2] / "data" / "profiles"
STANDIN = (PROFILES / "standin_train.csv", PROFILES / "standin_v100_power.csv")


def make_job(
    epochs: list[list[float]],
    time_s: list[list[float]],
    power_w: list[list[float]],
    *,
    default: int = 0,
    max_epochs: int = 100,
) -> tuning.Job:
    """A job whose batch sizes are 2, 4, 8… and whose power limits are 100 W, 110 W…"""
    sizes = tuple(2 ** (i + 1) for i in range(len(epochs)))
    return tuning.Job(
        name="made-up",
        title="made up",
        default_batch_size=sizes[default],
        target_metric=1.0,
        max_epochs=max_epochs,
        batch_sizes=sizes,
        power_limits_w=tuple(100.0 + 10 * i for i in range(len(time_s[0]))),
        epochs_to_target=tuple(map(tuple, epochs)),
        time_per_epoch_s=tuple(map(tuple, time_s)),
        average_power_w=tuple(map(tuple, power_w)),
    )


def task_of(job: tuning.Job, num_seeds: int = 1) -> tuning.Task:
    """What a policy is told of a job."""
    return tuning.Task(
        batch_sizes=job.batch_sizes,
        power_limits_w=job.power_limits_w,
        default_index=job.default_index,
        profiled=job.profiled,
        profiled_limits=tuning.best_power_limits(job),
        num_recurrences=job.num_recurrences,
        num_seeds=num_seeds,
    )


def random_job(
    seed: int,
    num_sizes: int = 6,
    num_limits: int = 4,
    num_runs: int = 3,
    *,
    reliable: bool = False,
) -> tuning.Job:
    """A job in which nothing is regular; every run of most batch sizes reaches the target.

    The default batch size always does. Unless ``reliable``, one other never does and one fails
    now and then.
    """
    rng = np.random.default_rng(seed)
    epochs = rng.integers(1, 40, (num_sizes, num_runs)).astype(float)
    default, never, sometimes = rng.permutation(num_sizes)[:3]
    if not reliable:
        epochs[never] = np.inf
        epochs[sometimes, 0] = np.inf
    return make_job(
        epochs.tolist(),
        rng.uniform(1, 50, (num_sizes, num_limits)).tolist(),
        rng.uniform(40, 130, (num_sizes, num_limits)).tolist(),
        default=int(default),
    )


def trace_files(name: str, gpu: str = "v100") -> tuple[Path, Path]:
    """The train and power file of a trace; skips where the published ones are not here."""
    if name == "stand-in":
        return STANDIN
    files = ["summary_train.csv", f"summary_power_{gpu}.csv"]
    source = need("zeus-nsdi23", files)
    return source.path(files[0]), source.path(files[1])


def published_trace(gpu: str) -> tuning.TrainingTrace:
    trace_files("published", gpu)
    return tuning.load("zeus-nsdi23", gpu=gpu)


@pytest.fixture(scope="session")
def standin() -> tuning.TrainingTrace:
    return tuning.TrainingTrace.from_csv(*STANDIN, gpu="v100")


@pytest.fixture(scope="session")
def published() -> tuning.TrainingTrace:
    return published_trace("v100")


@pytest.fixture(scope="session", params=["stand-in", "published"])
def tables(request: pytest.FixtureRequest) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The train and power table as the peer (zeus-ml) reads them."""
    train, power = trace_files(request.param)
    return pd.read_csv(train, comment="#"), pd.read_csv(power, comment="#")


@pytest.fixture(scope="session")
def both(
    tables: tuple[pd.DataFrame, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[pd.DataFrame], tuning.TrainingTrace]:
    """Our trace of the same tables as the peer's, with the train table given."""

    def read(train: pd.DataFrame) -> tuning.TrainingTrace:
        folder = tmp_path_factory.mktemp("trace")
        train.to_csv(folder / "train.csv", index=False)
        tables[1].to_csv(folder / "power.csv", index=False)
        return tuning.TrainingTrace.from_csv(folder / "train.csv", folder / "power.csv")

    return read
