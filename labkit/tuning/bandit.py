"""Recurring jobs, replayed: a policy decides, the trace says what each run takes.

Trace-driven: every epoch count, epoch time and power was measured by the authors of the trace;
which recorded run a recurrence repeats is drawn at random, per seed. Seeds advance side by side as
arrays, one run each a step, and a seed's result does not depend on which others are simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from labkit.errors import LabkitError, UsageError
from labkit.tuning.policies import Policy, policy_named
from labkit.tuning.power import (
    best_power_limits,
    convergence,
    cost_j,
    default_choice,
    epoch_cost_j,
    optimum,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from labkit.tuning.trace import Job

MAX_TRIES = 20
"""How often a recurrence may fail before the target counts as out of reach (as zeus-ml has it)."""

_PENALTY = 100.0  # a run too costly for even one epoch counts as this many times its bound
_CHUNK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A policy at work on one recurring job."""

    job: Job
    policy: str
    eta_knob: float
    """Weight of energy against time in the cost, 0 to 1."""
    beta_knob: float
    """A run stops when its cost would exceed this many times the cheapest success so far."""
    num_recurrences: int
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.eta_knob <= 1:
            raise UsageError(f"eta must lie in [0, 1], got {self.eta_knob}")
        if not self.beta_knob > 1:
            raise UsageError(f"beta must be above 1, got {self.beta_knob}")
        if self.num_recurrences < 1:
            raise UsageError(f"recurrences must be >= 1, got {self.num_recurrences}")
        if not self.seeds:
            raise UsageError("at least one seed is needed")


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What an experiment did, run by run. Arrays have one entry a run, in order of time."""

    experiment: Experiment
    seed: NDArray[np.intp]
    recurrence: NDArray[np.intp]
    batch: NDArray[np.intp]
    power: NDArray[np.intp]
    time_s: NDArray[np.float64]
    energy_j: NDArray[np.float64]
    cost_j: NDArray[np.float64]
    profiling_energy_j: NDArray[np.float64]
    reached: NDArray[np.bool_]

    def frame(self) -> pd.DataFrame:
        """One row a run: seed, recurrence (from 1), batch_size, power_limit_w, time_s, …, reached.

        A recurrence that had to be retried has several rows; a run that was refused because even
        one epoch would have cost too much has zero time and energy.
        """
        job = self.experiment.job
        table = pd.DataFrame(
            {
                "seed": np.array(self.experiment.seeds)[self.seed],
                "recurrence": self.recurrence + 1,
                "batch_size": np.array(job.batch_sizes)[self.batch],
                "power_limit_w": np.array(job.power_limits_w)[self.power],
                "time_s": self.time_s,
                "energy_j": self.energy_j,
                "cost_j": self.cost_j,
                "profiling_energy_j": self.profiling_energy_j,
                "reached": self.reached,
            }
        )
        return table.sort_values(["seed", "recurrence"], kind="stable", ignore_index=True)

    def of_seed(self, seed: int) -> pd.DataFrame:
        """The rows of :meth:`frame` of one seed."""
        table = self.frame()
        return table[table["seed"] == seed].reset_index(drop=True)

    def path(self, seed: int) -> pd.DataFrame:
        """Where one seed went: :meth:`of_seed` without runs that stayed or never started.

        ``visit`` counts earlier moves to the same configuration.
        """
        ran = self.of_seed(seed).query("time_s > 0")
        moved = (ran["batch_size"].diff() != 0) | (ran["power_limit_w"].diff() != 0)
        path = ran[moved].reset_index(drop=True)
        return path.assign(visit=path.groupby(["batch_size", "power_limit_w"]).cumcount())

    def per_recurrence(self, quantity: str) -> NDArray[np.float64]:
        """A quantity (``energy_j``, …) of each recurrence, retries included (seeds × R)."""
        shape = (len(self.experiment.seeds), self.experiment.num_recurrences)
        total = np.zeros(shape)
        np.add.at(total, (self.seed, self.recurrence), getattr(self, quantity))
        return total

    def regret_j(self) -> NDArray[np.float64]:
        """Cost above the oracle's expected cost, accumulated over recurrences (seeds × R)."""
        best = optimum(self.experiment.job, eta=self.experiment.eta_knob).cost_j
        return np.cumsum(self.per_recurrence("cost_j") - best, axis=1)

    def final(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The batch size and power limit (indices) of each seed's last successful run."""
        last = np.flatnonzero(self.reached & (self.recurrence == self.recurrence.max()))
        last = last[np.argsort(self.seed[last])]
        return self.batch[last], self.power[last]

    def summary(self, last: int = 5) -> pd.Series:
        """Savings against (b0, highest power) in steady state, with 95 % intervals of the mean.

        energy_reduction and time_reduction compare the mean of the ``last`` recurrences with the
        baseline's expectation; …_low and …_high bound the mean over seeds (Student's t; missing
        for one seed). total_energy_reduction compares all recurrences, exploration included.
        profiling_fraction is the share of all energy that power profiling added. regret_j is the
        mean cumulative regret; batch_size and power_limit_w are what most seeds
        end with, agreement_fraction how many; excess_cost_fraction is the expected cost of what
        each seed ends with above the oracle's.
        """
        setup = self.experiment
        base = default_choice(setup.job, eta=setup.eta_knob)
        energy, time = self.per_recurrence("energy_j"), self.per_recurrence("time_s")
        row: dict[str, object] = {"workload": setup.job.title, "policy": setup.policy}
        row |= _with_interval(
            "energy_reduction", 1 - energy[:, -last:].mean(1) / base.energy_to_accuracy_j
        )
        row |= _with_interval(
            "time_reduction", 1 - time[:, -last:].mean(1) / base.time_to_accuracy_s
        )
        row["total_energy_reduction"] = 1 - energy.mean() / base.energy_to_accuracy_j
        row["profiling_fraction"] = self.profiling_energy_j.sum() / self.energy_j.sum()
        row["regret_j"] = self.regret_j()[:, -1].mean()
        return pd.Series(row | self._settled())

    def _settled(self) -> dict[str, object]:
        setup = self.experiment
        batch, power = self.final()
        pairs, counts = np.unique(np.stack([batch, power], 1), axis=0, return_counts=True)
        most = pairs[counts.argmax()]
        expected = _expected_cost_j(setup.job, setup.eta_knob)
        best = optimum(setup.job, eta=setup.eta_knob).cost_j
        return {
            "batch_size": setup.job.batch_sizes[most[0]],
            "power_limit_w": setup.job.power_limits_w[most[1]],
            "agreement_fraction": counts.max() / len(batch),
            "excess_cost_fraction": round(float(np.mean(expected[batch, power]) / best - 1), 12)
            + 0.0,
        }


def simulate(
    job: Job,
    *,
    policy: str | Policy = "zeus",
    eta: float = 0.5,
    beta: float = 2.0,
    recurrences: int | None = None,
    seeds: Iterable[int] = range(100),
) -> Runs:
    """Replay a recurring job under a policy, for many seeds at once.

    A recurrence repeats one recorded run of the chosen batch size, drawn at random. A run that
    misses the target within ``max_epochs``, or that a policy with early stopping ends at ``beta``
    times the cheapest success so far, is tried again and its cost counts to the recurrence. The
    first run of a batch size spends its first epoch on the power profile, in equal slices of each
    limit, where the policy profiles.

    Args:
        policy: one of ``policies.POLICIES``, or a policy of your own.
        eta, beta: weight of energy against time, 0 to 1; early-stop factor, above 1.
        recurrences: default: twice the number of configurations, as in the paper.
        seeds: non-negative integers; seed k gives the same runs whatever else is simulated.

    Raises:
        UsageError: a knob is out of range, or the policy cannot start on this job.
        LabkitError: some recurrence failed 20 times.

    O(recurrences · seeds · batch sizes), in about one NumPy step a recurrence.
    Source: Zeus §4 and §6.1; semantics of a run as in zeus-ml's simulator.
    """
    setup = Experiment(
        job=job,
        policy=policy if isinstance(policy, str) else type(policy).__name__,
        eta_knob=eta,
        beta_knob=beta,
        num_recurrences=job.num_recurrences if recurrences is None else recurrences,
        seeds=tuple(seeds),
    )
    chosen = policy_named(policy, job, eta) if isinstance(policy, str) else policy
    return _replay(setup, chosen)


def sweep(
    jobs: Iterable[Job],
    policies: Iterable[str],
    *,
    eta: float = 0.5,
    seeds: Iterable[int] = range(100),
    recurrences: int | None = None,
) -> pd.DataFrame:
    """:meth:`Runs.summary` of every job under every policy, one row each."""
    jobs, seeds = tuple(jobs), tuple(seeds)
    return pd.DataFrame(
        [
            simulate(job, policy=name, eta=eta, seeds=seeds, recurrences=recurrences).summary()
            for name in policies
            for job in jobs
        ]
    )


# ---------------------------------------------------------------- the replay


class _Replay:
    """The tables of a job as arrays, and each seed's progress."""

    def __init__(self, setup: Experiment, policy: Policy) -> None:
        job, num_seeds = setup.job, len(setup.seeds)
        self.setup, self.policy = setup, policy
        self.num_runs = np.array([len(runs) for runs in job.epochs_to_target])
        self.epochs = np.full((len(job.batch_sizes), self.num_runs.max()), np.inf)
        for row, runs in zip(self.epochs, job.epochs_to_target, strict=True):
            row[: len(runs)] = runs
        self.time_s, self.energy_j = job.epoch_time_s, job.epoch_energy_j
        self.epoch_cost_j = epoch_cost_j(job, setup.eta_knob)
        self.best_power = best_power_limits(job, setup.eta_knob)
        self.recurrence = np.zeros(num_seeds, dtype=np.intp)
        self.tries = np.zeros(num_seeds, dtype=np.intp)
        self.spent_j = np.zeros(num_seeds)
        self.cheapest_j = np.full(num_seeds, np.inf)
        self.profiled = np.zeros((num_seeds, len(job.batch_sizes)), dtype=bool)

    def run(self, who: NDArray, batch: NDArray, power: NDArray, lot: NDArray) -> dict[str, NDArray]:
        """One run for each seed of ``who``; ``lot`` in [0, 1) draws the recorded run to repeat."""
        setup = self.setup
        limit = np.full(len(who), float(setup.job.max_epochs))
        if self.policy.stops_early:
            bound = setup.beta_knob * self.cheapest_j[who] / self.epoch_cost_j[batch, power]
            limit = np.minimum(limit, np.floor(bound))
        needed = self.epochs[batch, (lot * self.num_runs[batch]).astype(np.intp)]
        reached = (needed <= limit) & (limit > 0)
        epochs = np.where(reached, needed, limit)
        extra = (epochs > 0) & ~self.profiled[who, batch] & self.policy.profiles_power
        self.profiled[who[extra], batch[extra]] = True
        profile_s = extra * (self.time_s.mean(1)[batch] - self.time_s[batch, power])
        profile_j = extra * (self.energy_j.mean(1)[batch] - self.energy_j[batch, power])
        time_s = epochs * self.time_s[batch, power] + profile_s
        energy_j = epochs * self.energy_j[batch, power] + profile_j
        return {
            "time_s": time_s,
            "energy_j": energy_j,
            "cost_j": cost_j(
                energy_j, time_s, eta=setup.eta_knob, max_power_w=setup.job.max_power_w
            ),
            "profiling_energy_j": profile_j,
            "reached": reached,
        }

    def settle(self, who: NDArray, cost: NDArray, reached: NDArray) -> None:
        """Book the runs: successes end their recurrence, failures are tried again."""
        self.spent_j[who] += cost
        self.tries[who] += 1
        done = who[reached]
        self.cheapest_j[done] = np.minimum(self.cheapest_j[done], self.spent_j[done])
        self.recurrence[done] += 1
        self.spent_j[done], self.tries[done] = 0.0, 0
        stuck = who[self.tries[who] >= MAX_TRIES]
        if len(stuck):
            raise LabkitError(
                f"job {self.setup.job.name!r} under {self.setup.policy!r}, seed "
                f"{self.setup.seeds[stuck[0]]}: recurrence {self.recurrence[stuck[0]] + 1} missed "
                f"the target {MAX_TRIES} times; the target counts as out of reach"
            )

    def penalty_j(self, who: NDArray, cost: NDArray) -> NDArray:
        """What a policy is told of a run that could not even start: far above its bound."""
        refused = cost == 0
        bound = np.where(refused, self.cheapest_j[who], 0.0)
        return cost + refused * _PENALTY * self.setup.beta_knob * bound


def _replay(setup: Experiment, policy: Policy) -> Runs:
    state = _Replay(setup, policy)
    player = policy.start(setup.job, setup.eta_knob, len(setup.seeds))
    kept: list[dict[str, NDArray]] = []
    for lot, noise in _draws(setup.seeds, len(setup.job.batch_sizes)):
        who = np.flatnonzero(state.recurrence < setup.num_recurrences)
        if not len(who):
            break
        batch, power = player.decide(who, noise[who])
        result = state.run(who, batch, power, lot[who])
        told = state.penalty_j(who, result["cost_j"])
        player.observe(who, batch, power, told, result["reached"])
        place = {"seed": who, "recurrence": state.recurrence[who], "batch": batch, "power": power}
        kept.append(place | result)
        state.settle(who, result["cost_j"], result["reached"])
    columns = {name: np.concatenate([step[name] for step in kept]) for name in kept[0]}
    return Runs(experiment=setup, **columns)


def _draws(seeds: tuple[int, ...], num_arms: int) -> Iterator[tuple[NDArray, NDArray]]:
    """For every step a uniform draw a seed and a normal draw a seed and arm, from own streams."""
    streams = [np.random.default_rng(seed) for seed in seeds]
    while True:
        lots = np.stack([stream.random(_CHUNK) for stream in streams])
        noise = np.stack([stream.standard_normal((_CHUNK, num_arms)) for stream in streams])
        for step in range(_CHUNK):
            yield lots[:, step], noise[:, step]


def _expected_cost_j(job: Job, eta: float) -> NDArray[np.float64]:
    return convergence(job)[1][:, None] * epoch_cost_j(job, eta)


def _with_interval(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    """Mean over seeds and its 95 % interval by Student's t."""
    mean, count = float(values.mean()), len(values)
    if count < 2:
        return {name: mean, f"{name}_low": np.nan, f"{name}_high": np.nan}
    from scipy.special import stdtrit

    half = float(stdtrit(count - 1, 0.975) * values.std(ddof=1) / np.sqrt(count))
    return {name: mean, f"{name}_low": mean - half, f"{name}_high": mean + half}
