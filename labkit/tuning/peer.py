"""zeus-ml's own simulator on the same jobs: the independent implementation to agree with.

Source: ``zeus._legacy`` of the zeus-ml package (Apache-2.0), the artifact of Zeus (NSDI'23).
"""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit.errors import UsageError
from labkit.tuning.bandit import Runs, simulate, with_interval
from labkit.tuning.power import default_choice

if TYPE_CHECKING:
    from labkit.tuning.trace import Job

_SAME = 1e-9  # relative: two sums of the same numbers in another order


def peer_history(
    job: Job,
    *,
    seed: int,
    eta: float = 0.5,
    beta: float = 2.0,
    recurrences: int | None = None,
) -> pd.DataFrame:
    """What zeus-ml's simulator does with a job, a row a run.

    Columns as ``Runs.of_seed``: batch_size, power_limit_w, energy_j, time_s, reached; runs that
    were refused before their first epoch are not in it.

    Raises:
        UsageError: zeus-ml is not installed, or the job counts host or idle power, which it cannot.
    """
    if job.host_power_w or job.idle_power_w:
        raise UsageError(f"job {job.name!r}: zeus-ml's simulator knows no host or idle power")
    try:
        from zeus._legacy.job import Job as PeerJob
        from zeus._legacy.policy import optimizer as policies
        from zeus._legacy.simulate import Simulator
    except ImportError as error:
        raise UsageError(
            "zeus-ml is not installed; `pip install zeus-ml` brings its simulator"
        ) from error
    name = (job.name, "model", "optimizer")
    simulator = Simulator(
        *_tables(job, name),
        policies.PruningGTSBatchSizeOptimizer(seed=seed, verbose=False),
        policies.JITPowerLimitOptimizer(verbose=False),
        seed=seed,
        verbose=False,
    )
    task = PeerJob(*name, job.target_metric, job.max_epochs, job.default_batch_size)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a variance of zero: its precision is infinite
        entries = simulator.simulate_one_job(
            task, recurrences or job.num_recurrences, beta_knob=beta, eta_knob=eta
        )
    return pd.DataFrame(
        {
            "batch_size": [entry.bs for entry in entries],
            "power_limit_w": [float(entry.pl) for entry in entries],
            "energy_j": [float(entry.energy) for entry in entries],
            "time_s": [float(entry.time) for entry in entries],
            "reached": [bool(entry.reached) for entry in entries],
        }
    )


def against_peer(
    jobs: Iterable[Job],
    *,
    seeds: Iterable[int] = range(100),
    peer_seeds: Iterable[int] = range(1, 6),
    eta: float = 0.5,
    beta: float = 2.0,
    recurrences: int | None = None,
    last: int = 5,
) -> pd.DataFrame:
    """The published policy here and in zeus-ml's simulator, one row a job and quantity.

    Both report the mean saving of the last ``last`` runs of each seed. Columns: workload,
    quantity (energy or time), ours, peer, peer_low, peer_high (Student's 95 % interval of its mean
    over its seeds), inside (ours lies in it; where its seeds do not vary, its mean in our
    interval), p_value (Welch's test that the means are equal; 1 where neither varies and both
    agree), times_faster (peer's CPU seconds a recurrence over ours).
    """
    seeds, peer_seeds = tuple(seeds), tuple(peer_seeds)
    if len(peer_seeds) < 2:
        raise UsageError("against_peer needs two peer seeds or more: an interval comes from them")
    rows: list[dict[str, Any]] = []
    for job in jobs:
        begin = time.process_time()
        runs = simulate(job, eta=eta, beta=beta, recurrences=recurrences, seeds=seeds)
        ours_s = (time.process_time() - begin) / len(seeds)
        begin = time.process_time()
        histories = [
            peer_history(job, seed=seed, eta=eta, beta=beta, recurrences=recurrences)
            for seed in peer_seeds
        ]
        peer_s = (time.process_time() - begin) / len(peer_seeds)
        for quantity in ("energy", "time"):
            ours, peer = _saved(runs, histories, quantity, last)
            rows.append(
                {"workload": job.title, "quantity": quantity}
                | _agreement(ours, peer)
                | {"times_faster": peer_s / ours_s}
            )
    return pd.DataFrame(rows)


def _saved(
    runs: Runs, histories: list[pd.DataFrame], quantity: str, last: int
) -> tuple[np.ndarray, np.ndarray]:
    """Saved fractions of the last runs that took place, failures among them, a seed each."""
    column = {"energy": "energy_j", "time": "time_s"}[quantity]
    base = default_choice(runs.experiment.job, eta=runs.experiment.eta_knob)
    whole = {"energy": base.energy_to_accuracy_j, "time": base.time_to_accuracy_s}[quantity]
    frame = runs.frame()
    ran = frame[frame["time_s"] > 0].groupby("seed").tail(last)
    ours = 1 - ran.groupby("seed")[column].mean().to_numpy() / whole
    peer = 1 - np.array([history[column].tail(last).mean() for history in histories]) / whole
    return ours, peer


def _agreement(ours: np.ndarray, peer: np.ndarray) -> dict[str, Any]:
    from scipy.stats import ttest_ind

    row = with_interval("peer", peer)
    mean, theirs = float(ours.mean()), float(peer.mean())
    exact = max(np.ptp(ours), np.ptp(peer)) < _SAME
    if np.ptp(peer) < _SAME:  # no spread, no interval: ask ours instead
        own = with_interval("own", ours)
        inside = own["own_low"] - _SAME <= theirs <= own["own_high"] + _SAME
    else:
        inside = row["peer_low"] <= mean <= row["peer_high"]
    p_value = 1.0 if exact and inside else float(ttest_ind(ours, peer, equal_var=False).pvalue)
    return {"ours": mean} | row | {"inside": bool(inside), "p_value": p_value}


def _tables(job: Job, name: tuple[str, str, str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The job as the two tables the simulator reads; no value where a run never arrived."""
    train = [
        (*name, size, job.target_metric, run, 0.0, epochs if np.isfinite(epochs) else np.nan)
        for size, runs in zip(job.batch_sizes, job.epochs_to_target, strict=True)
        for run, epochs in enumerate(runs, 1)
    ]
    power = [
        (*name, size, limit, time_s, power_w)
        for size, times, powers in zip(
            job.batch_sizes, job.time_per_epoch_s, job.average_power_w, strict=True
        )
        for limit, time_s, power_w in zip(job.power_limits_w, times, powers, strict=True)
    ]
    key = ["dataset", "network", "optimizer", "batch_size"]
    return (
        pd.DataFrame(
            train, columns=[*key, "target_metric", "run", "learning_rate", "target_epoch"]
        ),
        pd.DataFrame(power, columns=[*key, "power_limit", "time_per_epoch", "average_power"]),
    )
