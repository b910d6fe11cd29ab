"""What is simulated, and the replay itself: what each decision leads to, seeds as arrays.

A job may recur before its predecessor has ended: ``concurrency`` recurrences are in flight, each in
a slot of its own. Slots take turns, so that a decision is made while the last concurrency − 1 are
unobserved, as if all runs took equally long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from labkit.errors import LabkitError, UsageError
from labkit.kit.describe import Seeds, Share, description
from labkit.tuning.configurations.outcomes import cost_j, epoch_cost_j
from labkit.tuning.policies.policy import Outcome, Policy, Task
from labkit.tuning.traces.job import Job

MAX_TRIES = 20
"""How often a recurrence may fail before the target counts as out of reach (as zeus-ml has it)."""

Recurrences = Annotated[int, Ge(1), Le(10**6)]
"""How often a job recurs: more would take hours."""
Concurrency = Annotated[int, Ge(1), Le(10**4)]
"""How many recurrences are in flight at once, each with the state of every seed."""

_PENALTY = 100.0  # a run too costly for even one epoch counts as this many times its bound
_CHUNK = 128


@description(slots=True)
class Experiment:
    """A policy at work on one recurring job; the fields are what ``simulate`` takes."""

    job: Job
    policy: str
    eta_knob: Share
    beta_knob: Annotated[float, Gt(1)]
    num_recurrences: Recurrences
    seeds: Seeds
    drift: tuple[Job, ...] = ()
    concurrency: Concurrency = 1

    def __post_init__(self) -> None:
        names = ("batch_sizes", "power_limits_w", "default_batch_size")
        for job in self.drift:
            refused = f"a job may drift only among the same choices, but {job.name!r}"
            for name in names:
                ours = getattr(self.job, name)
                theirs = getattr(job, name)
                if ours != theirs:
                    raise UsageError(
                        f"{refused} has {name} {theirs}, where {self.job.name!r} has {ours}"
                    )
            if (self.job.profiled != job.profiled).any():
                raise UsageError(
                    f"{refused} was not profiled at the same pairs of batch size and power limit "
                    f"as {self.job.name!r}"
                )

    @property
    def slices(self) -> tuple[Job, ...]:
        """The job as it is over time: first itself, then what it drifts to."""
        return (self.job, *self.drift)

    def slice_of(self, recurrence: NDArray[np.intp]) -> NDArray[np.intp]:
        """Tell which of :attr:`slices` a recurrence (from 0) belongs to."""
        return recurrence * len(self.slices) // self.num_recurrences

    @property
    def slice_per_recurrence(self) -> NDArray[np.intp]:
        """Which of :attr:`slices` each recurrence belongs to."""
        return self.slice_of(np.arange(self.num_recurrences))


def replay(setup: Experiment, policy: Policy, profiled_limits: NDArray) -> dict[str, NDArray]:
    """Play an experiment and return every run as columns, in order of decision (see ``Runs``).

    It takes O(runs of a seed) NumPy steps over all seeds.

    Args:
        setup: the job, and how often it recurs for which seeds.
        policy: what decides.
        profiled_limits: the index of the limit that a profile of each batch size chooses.
    """
    if policy.trusts_default:
        for job in setup.slices:
            _check_default(job)
    state = _State(setup, policy, profiled_limits)
    flights: list[tuple[NDArray, Outcome] | None] = [None] * setup.concurrency
    kept: list[dict[str, NDArray]] = []
    for step, (lot, noise) in enumerate(_draws(setup.seeds, len(setup.job.batch_sizes))):
        slot = step % setup.concurrency
        if landed := flights[slot]:
            state.player.observe(*landed)
            state.settle(slot, landed[0], landed[1].reached)
        who = state.board(slot)
        if len(who):
            run, outcome = state.run(slot, who, lot[who], noise[who])
            flights[slot] = who, outcome
            kept.append(run)
            continue
        flights[slot] = None
        if not any(flights) and not state.left.any():
            break
    return {name: np.concatenate([run[name] for run in kept]) for name in kept[0]}


class _State:
    """Holds the tables of an experiment's jobs as arrays, and how far each seed is."""

    def __init__(self, setup: Experiment, policy: Policy, profiled_limits: NDArray) -> None:
        jobs = setup.slices
        shape = (setup.concurrency, len(setup.seeds))
        task = Task(
            batch_sizes=setup.job.batch_sizes,
            power_limits_w=setup.job.power_limits_w,
            default_index=setup.job.default_index,
            profiled_limits=profiled_limits,
            num_recurrences=setup.num_recurrences,
            num_seeds=len(setup.seeds),
            concurrency=setup.concurrency,
            profiled=setup.job.profiled,
        )
        self.setup = setup
        self.policy = policy
        self.player = policy.start(task)
        self.num_runs = np.array([[len(runs) for runs in job.epochs_to_target] for job in jobs])
        self.epochs = np.full((*self.num_runs.shape, self.num_runs.max()), np.inf)
        for table, job in zip(self.epochs, jobs, strict=True):
            for row, runs in zip(table, job.epochs_to_target, strict=True):
                row[: len(runs)] = runs
        self.max_epochs = np.array([float(job.max_epochs) for job in jobs])
        self.time_s = np.stack([job.epoch_time_s for job in jobs])
        self.energy_j = np.stack([job.epoch_energy_j for job in jobs])
        self.epoch_cost_j = np.stack([epoch_cost_j(job, setup.eta_knob) for job in jobs])
        self.active = np.zeros(shape, dtype=bool)
        self.spent_j = np.zeros(shape)
        self.recurrence, self.tries = np.zeros((2, *shape), dtype=np.intp)
        self.left = np.full(shape[1], setup.num_recurrences)
        self.cheapest_j = np.full(shape[1], np.inf)
        self.profiled = np.zeros(task.shape, dtype=bool)

    def board(self, slot: int) -> NDArray:
        """Find the seeds with a run to start in this slot: a failure again or a new recurrence."""
        new = ~self.active[slot] & (self.left > 0)
        self.recurrence[slot, new] = self.setup.num_recurrences - self.left[new]
        self.left[new] -= 1
        self.active[slot, new] = True
        self.tries[slot, new] = 0
        self.spent_j[slot, new] = 0.0
        return np.flatnonzero(self.active[slot])

    def run(
        self, slot: int, who: NDArray, lot: NDArray, noise: NDArray
    ) -> tuple[dict[str, NDArray], Outcome]:
        """Decide and run once for each seed; ``lot`` in [0, 1) draws the recorded run to repeat."""
        recurrence = self.recurrence[slot, who]
        part = self.setup.slice_of(recurrence)
        batch, power = self.player.decide(who, noise)
        each_j = self.epoch_cost_j[part, batch, power]
        self._check_profiled(batch, power, each_j)
        limit = self._limit(who, part, batch, each_j)
        needed = self.epochs[part, batch, (lot * self.num_runs[part, batch]).astype(np.intp)]
        reached = (needed <= limit) & (limit > 0)
        epochs = np.where(reached, needed, limit)
        extra = (epochs > 0) & ~self.profiled[who, batch] & self.policy.profiles_power
        self.profiled[who[extra], batch[extra]] = True
        time = self.time_s[part, batch]
        energy = self.energy_j[part, batch]
        rows = np.arange(len(who))
        profile_s = extra * (np.nanmean(time, axis=1) - time[rows, power])
        profile_j = extra * (np.nanmean(energy, axis=1) - energy[rows, power])
        time_s = epochs * time[rows, power] + profile_s
        energy_j = epochs * energy[rows, power] + profile_j
        cost = cost_j(
            energy_j, time_s, eta=self.setup.eta_knob, max_power_w=self.setup.job.max_power_w
        )
        self.spent_j[slot, who] += cost
        self.tries[slot, who] += 1
        # a run that could not even start counts as far above its bound
        refused_j = np.where(cost == 0, self.cheapest_j[who], 0.0)
        charged_j = cost + _PENALTY * self.setup.beta_knob * refused_j
        columns = {
            "seed": who,
            "recurrence": recurrence,
            "batch": batch,
            "power": power,
            "time_s": time_s,
            "energy_j": energy_j,
            "cost_j": cost,
            "profiling_energy_j": profile_j,
            "reached": reached,
        }
        return columns, Outcome(
            batch=batch, power=power, cost_j=charged_j, epochs=epochs, reached=reached
        )

    def _check_profiled(self, batch: NDArray, power: NDArray, each_j: NDArray) -> None:
        """Refuse a choice that was not profiled."""
        holes = np.flatnonzero(np.isnan(each_j))
        if len(holes):
            job = self.setup.job
            first = holes[0]
            raise UsageError(
                f"job {job.name!r}: policy {self.setup.policy!r} chose batch size "
                f"{job.batch_sizes[batch[first]]} at {job.power_limits_w[power[first]]:g} W, which "
                "was not profiled; Task.profiled says what may run"
            )

    def _limit(self, who: NDArray, part: NDArray, batch: NDArray, each_j: NDArray) -> NDArray:
        """Work out after how many epochs each run is given up."""
        limit = self.max_epochs[part]
        if self.policy.stops_early:
            bound = self.setup.beta_knob * self.cheapest_j[who] / each_j
            limit = np.minimum(limit, np.floor(bound))
        patience = np.maximum(np.floor(self.player.patience(who, batch, each_j)), 1.0)
        return np.minimum(limit, patience)

    def settle(self, slot: int, who: NDArray, reached: NDArray) -> None:
        """Book runs that ended: successes end their recurrence, failures are tried again."""
        done = who[reached]
        self.cheapest_j[done] = np.minimum(self.cheapest_j[done], self.spent_j[slot, done])
        self.active[slot, done] = False
        stuck = np.flatnonzero(self.active[slot] & (self.tries[slot] >= MAX_TRIES))
        if len(stuck):
            raise LabkitError(
                f"job {self.setup.job.name!r} under {self.setup.policy!r}, seed "
                f"{self.setup.seeds[stuck[0]]}: recurrence {self.recurrence[slot, stuck[0]] + 1} "
                f"missed the target {MAX_TRIES} times; the target counts as out of reach"
            )


def _draws(seeds: tuple[int, ...], num_arms: int) -> Iterator[tuple[NDArray, NDArray]]:
    """Draw for every step a uniform number a seed, and a normal one a seed and arm, from own
    streams.
    """
    streams = [np.random.default_rng(seed) for seed in seeds]
    while True:
        lots = np.stack([stream.random(_CHUNK) for stream in streams])
        noise = np.stack([stream.standard_normal((_CHUNK, num_arms)) for stream in streams])
        for step in range(_CHUNK):
            yield lots[:, step], noise[:, step]


def _check_default(job: Job) -> None:
    """Refuse a job whose default batch size misses the target in some recorded run."""
    reached = np.array(job.epochs_to_target[job.default_index]) <= job.max_epochs
    if not reached.all():
        raise UsageError(
            f"job {job.name!r}: Zeus assumes that the default batch size always reaches the "
            f"target, but {job.default_batch_size} reaches {job.target_metric:g} in only "
            f"{int(reached.sum())} of {len(reached)} recorded runs within {job.max_epochs} "
            "epochs; choose another default_batch_size or target_metric"
        )
