"""Recurring jobs, replayed: a policy decides, the trace says what each run takes.

Trace-driven: every epoch count, epoch time and power was measured by the authors of the trace.
Seeds advance side by side as arrays, one run each a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal, get_args

import numpy as np
import pandas as pd
from annotated_types import Gt
from numpy.typing import NDArray

from labkit.errors import UsageError
from labkit.kit.describe import NonNegative, Share, Whole, checked
from labkit.kit.stats import mean_interval
from labkit.tuning.configurations import outcomes
from labkit.tuning.configurations.power_limits import Selector
from labkit.tuning.policies.names import Policy, policy_named
from labkit.tuning.simulation.replay import Concurrency, Experiment, Recurrences, replay
from labkit.tuning.traces.job import PUBLISHED, Job
from labkit.tuning.traces.trace import TrainingTrace

PAPER_RANGE = (0.153, 0.758)
"""Energy saved by Zeus on the V100, least and most of the six workloads. Source: abstract."""

SIMULATOR_ENERGY_REDUCTION = {
    (gpu, workload.title, "zeus"): saved
    for gpu, each in {
        "v100": (0.748, 0.204, 0.191, 0.383, 0.646, 0.209),
        "a40": (0.667, 0.134, 0.168, 0.663, 0.619, 0.206),
    }.items()
    for workload, saved in zip(PUBLISHED.values(), each, strict=True)
}
"""By GPU, workload and policy: mean of five seeds, last five recurrences, η = 0.5, of zeus-ml's own
simulator on its traces."""

RunQuantity = Literal["time_s", "energy_j", "cost_j", "profiling_energy_j", "reached"]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """What an experiment did, run by run; arrays have one entry a run, in order of time."""

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
        """Table the runs, one row each: seed, recurrence (from 1), batch_size, power_limit_w,
        time_s, …, reached.

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
                **{name: getattr(self, name) for name in get_args(RunQuantity)},
            }
        )
        return table.sort_values(["seed", "recurrence"], kind="stable", ignore_index=True)

    @checked
    def path(self, seed: int) -> pd.DataFrame:
        """List where one seed went: its rows of :meth:`frame` without runs that stayed or never
        started.

        ``visit`` counts earlier moves to the same configuration.
        """
        ran = self.frame().query("seed == @seed and time_s > 0")
        moved = (ran["batch_size"].diff() != 0) | (ran["power_limit_w"].diff() != 0)
        path = ran[moved].reset_index(drop=True)
        return path.assign(visit=path.groupby(["batch_size", "power_limit_w"]).cumcount())

    @checked
    def per_recurrence(self, quantity: RunQuantity) -> NDArray[np.float64]:
        """Sum a quantity (``energy_j``, …) over each recurrence, retries included (seeds × R)."""
        shape = (len(self.experiment.seeds), self.experiment.num_recurrences)
        total = np.zeros(shape)
        np.add.at(total, (self.seed, self.recurrence), getattr(self, quantity))
        return total

    def regret_j(self) -> NDArray[np.float64]:
        """Add up cost above the oracle's expected cost over recurrences (seeds × R)."""
        setup = self.experiment
        best = np.array([outcomes.optimum(job, eta=setup.eta_knob).cost_j for job in setup.slices])
        excess = self.per_recurrence("cost_j") - best[setup.slice_per_recurrence]
        return np.cumsum(excess, axis=1)

    def summary(self) -> pd.Series:
        """Savings against (b0, highest power) in steady state, with 95 % intervals of the mean.

        energy_reduction and time_reduction compare the mean of the last five recurrences with the
        baseline's expectation; …_low and …_high bound the mean over seeds (Student's t; missing for
        one seed). total_energy_reduction compares all recurrences, exploration included.
        profiling_fraction is the share of all energy that power profiling added. regret_j is the
        mean cumulative regret with its interval; batch_size and power_limit_w are what most seeds
        end with, agreement_fraction how many; excess_cost_fraction is the expected cost of what
        each seed ends with above the oracle's.
        """
        setup = self.experiment
        energy = self.per_recurrence("energy_j")
        time = self.per_recurrence("time_s")
        bases = [outcomes.default_choice(job, eta=setup.eta_knob) for job in setup.slices]
        part = setup.slice_per_recurrence
        base_j = np.array([base.energy_to_accuracy_j for base in bases])[part]
        base_s = np.array([base.time_to_accuracy_s for base in bases])[part]
        saved = 1 - energy[:, -5:].mean(1) / base_j[-5:].mean()
        faster = 1 - time[:, -5:].mean(1) / base_s[-5:].mean()
        row: dict[str, object] = {"workload": setup.job.title, "policy": setup.policy}
        row |= with_interval("energy_reduction", saved) | with_interval("time_reduction", faster)
        row["total_energy_reduction"] = 1 - energy.mean() / base_j.mean()
        row["profiling_fraction"] = self.profiling_energy_j.sum() / self.energy_j.sum()
        row |= with_interval("regret_j", self.regret_j()[:, -1])
        return pd.Series(row | self._settled())

    def _settled(self) -> dict[str, object]:
        """Find what seeds end with: the configuration of each one's last successful run."""
        setup = self.experiment
        last = self.reached & (self.recurrence == self.recurrence.max())
        batch = self.batch[last]
        power = self.power[last]
        pairs, counts = np.unique(np.stack([batch, power], 1), axis=0, return_counts=True)
        most = pairs[counts.argmax()]
        job = setup.slices[-1]
        eta = setup.eta_knob
        expected = outcomes.convergence(job)[1][:, None] * outcomes.epoch_cost_j(job, eta)
        excess = float(np.mean(expected[batch, power]) / outcomes.optimum(job, eta=eta).cost_j)
        return {
            "batch_size": job.batch_sizes[most[0]],
            "power_limit_w": job.power_limits_w[most[1]],
            "agreement_fraction": counts.max() / len(batch),
            "excess_cost_fraction": round(excess - 1, 12) + 0.0,
        }


@checked
def simulate(
    job: Job,
    *,
    policy: str | Policy = "zeus",
    eta: Share = 0.5,
    beta: Annotated[float, Gt(1)] = 2.0,
    recurrences: Recurrences | None = None,
    seeds: Iterable[Whole] = range(100),
    drift: Sequence[Job] = (),
    concurrency: Concurrency = 1,
    selector: Selector = "cost",
    max_slowdown: NonNegative | None = None,
) -> Runs:
    """Replay a recurring job under a policy, for many seeds at once.

    A recurrence repeats one recorded run of the chosen batch size, drawn at random. A run that
    misses the target within ``max_epochs``, or that a policy with early stopping ends at ``beta``
    times the cheapest success so far, is tried again and its cost counts to the recurrence. The
    first run of a batch size spends its first epoch on the power profile, in equal slices of each
    limit, where the policy profiles.

    Args:
        job: the job to replay.
        policy: one of ``POLICIES``, or one of your own.
        eta: weight of energy against time, 0 to 1.
        beta: early-stop factor, above 1.
        recurrences: how often the job recurs; default: twice the number of configurations, as in
            the paper.
        seeds: non-negative integers; seed k gives the same runs whatever else is simulated.
        drift: what the job turns into: with it, equal shares of the recurrences, in this order;
            power limits stay as profiled at first.
        concurrency: recurrences in flight at once: each is decided before the results of the
            concurrency − 1 before it are known.
        selector, max_slowdown: how a profile chooses the limit, as ``best_power_limits`` takes
            them.

    Raises:
        UsageError: a knob is out of range, or the policy cannot start on this job.
        LabkitError: some recurrence failed 20 times.

    The time is O(recurrences · seeds · batch sizes), in about one NumPy step a recurrence.

    Source: Zeus §4 and §6.1; semantics of a run as in zeus-ml's simulator.
    """
    setup = Experiment(
        job=job,
        policy=policy if isinstance(policy, str) else type(policy).__name__,
        eta_knob=eta,
        beta_knob=beta,
        num_recurrences=job.num_recurrences if recurrences is None else recurrences,
        seeds=tuple(seeds),
        drift=tuple(drift),
        concurrency=concurrency,
    )
    if policy == "oracle" and drift:
        raise UsageError("the oracle stays with one configuration and knows of no drift")
    limits = outcomes.best_power_limits(job, eta, selector=selector, max_slowdown=max_slowdown)
    chosen = policy_named(policy, job, eta, limits) if isinstance(policy, str) else policy
    return Runs(experiment=setup, **replay(setup, chosen, limits))


@checked
def sweep(
    jobs: Iterable[Job],
    policies: Iterable[str],
    *,
    eta: Share = 0.5,
    seeds: Iterable[Whole] = range(100),
) -> pd.DataFrame:
    """Replay every job under every policy; each pair is a row, as :meth:`Runs.summary` has it.

    Args:
        jobs: the jobs to replay.
        policies: the policies' names.
        eta: weight of energy against time, 0 to 1.
        seeds: as :func:`simulate` takes them.
    """
    jobs = tuple(jobs)
    seeds = tuple(seeds)
    cases = product(policies, jobs)
    runs = (simulate(job, policy=name, eta=eta, seeds=seeds) for name, job in cases)
    return pd.DataFrame([run.summary() for run in runs])


@checked
def savings(
    traces: Iterable[TrainingTrace],
    *,
    policies: Iterable[str] = ("zeus",),
    eta: Share = 0.5,
    seeds: Iterable[Whole] = range(100),
) -> pd.DataFrame:
    """Table energy and time saved in steady state per GPU, workload and policy, with 95 %
    intervals.

    Args:
        traces: a trace for each GPU.
        policies: the policies' names.
        eta: weight of energy against time, 0 to 1.
        seeds: as :func:`simulate` takes them.

    Returns:
        Columns gpu, those of ``Runs.summary``, in_paper_range (the energy saved lies in
        :data:`PAPER_RANGE`) and published_energy_reduction (:data:`SIMULATOR_ENERGY_REDUCTION`,
        missing where there is none).
    """
    policies = tuple(policies)
    seeds = tuple(seeds)
    rows = []
    for trace, job in ((each, job) for each in traces for job in each.jobs()):
        table = sweep([job], policies, eta=eta, seeds=seeds)
        for row in table.to_dict("records"):
            place = trace.gpu, row["workload"], row["policy"]
            compared = {
                "in_paper_range": PAPER_RANGE[0] <= row["energy_reduction"] <= PAPER_RANGE[1],
                "published_energy_reduction": SIMULATOR_ENERGY_REDUCTION.get(place, np.nan),
            }
            rows.append({"gpu": trace.gpu} | row | compared)
    return pd.DataFrame(rows)


def with_interval(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    """Put the mean over seeds and its 95 % interval by Student's t in three columns."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), mean_interval(values), strict=True))
