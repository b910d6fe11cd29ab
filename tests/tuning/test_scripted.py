"""Policies written as generators: the published policy in a dozen lines, and what is refused."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from labkit import tuning
from labkit.errors import BadValue, UsageError
from labkit.tuning.traces.job import Job


def zeus(default, costs, draws):
    """Alg. 1 twice (down from the start until a run fails, then up), then Thompson sampling."""
    alive = range(len(costs))
    start = default
    for _ in range(2):
        good = []
        for side in ([b for b in alive if b <= start][::-1], [b for b in alive if b > start]):
            for batch in side:
                if not (yield batch):
                    break
                good.append(batch)
        alive = sorted(good) or [start]
        start = min(alive, key=lambda b: costs[b][-1])
    while True:
        error = [np.std(seen) / max(len(seen), 1) ** 0.5 if seen else 0.0 for seen in costs]
        yield min(alive, key=lambda b: np.mean(costs[b]) + draws[b] * error[b])


def stays(default: int, costs: list, draws: np.ndarray) -> Iterator[int]:
    while True:
        yield default


def test_the_published_policy_as_printed_decides_as_the_engine_does(standin) -> None:
    for job in standin.jobs():
        runs = [
            tuning.simulate(job, policy=policy, seeds=range(8)).frame()
            for policy in (tuning.Scripted(script=zeus), "zeus")
        ]
        pd.testing.assert_frame_equal(*runs)


def test_a_script_that_stays_is_the_tuned_power_policy(standin) -> None:
    job = standin.job("cifar100")
    policy = tuning.Scripted(script=stays, stops_early=False, trusts_default=False)
    ours = tuning.simulate(job, policy=policy, seeds=range(3)).frame()
    pd.testing.assert_frame_equal(
        ours, tuning.simulate(job, policy="tuned-power", seeds=range(3)).frame()
    )


def test_a_seed_runs_alike_alone_and_among_others(standin) -> None:
    job = standin.job("librispeech")
    policy = tuning.Scripted(script=zeus)
    alone = tuning.simulate(job, policy=policy, seeds=[3]).frame()
    among = (
        tuning.simulate(job, policy=policy, seeds=range(5))
        .frame()
        .query("seed == 3")
        .reset_index(drop=True)
    )
    pd.testing.assert_frame_equal(alone, among)


def _ends(default: int, costs: list, draws: np.ndarray) -> Iterator[int]:
    yield default


def _beyond(default: int, costs: list, draws: np.ndarray) -> Iterator[int]:
    yield len(costs)


def _a_size(default: int, costs: list, draws: np.ndarray) -> Iterator[str]:
    yield "1024"


@pytest.mark.parametrize(
    ("script", "words"),
    [(_ends, "generator ended"), (_beyond, "got 10"), (_a_size, "got '1024'")],
)
def test_a_script_that_cannot_be_followed_is_refused_in_words(standin, script, words) -> None:
    job: Job = standin.job("cifar100")
    with pytest.raises(UsageError, match=words):
        tuning.simulate(job, policy=tuning.Scripted(script=script), seeds=[0])


def test_a_script_cannot_run_ahead_of_its_results(standin) -> None:
    with pytest.raises(UsageError, match="concurrency must be 1, got 2"):
        tuning.simulate(
            standin.job("cifar100"), policy=tuning.Scripted(script=stays), seeds=[0], concurrency=2
        )


def test_a_script_must_be_a_function() -> None:
    with pytest.raises(BadValue, match=r"Scripted.script"):
        tuning.Scripted(script="zeus")
