"""Allocators of training jobs: attained-service queues, and the most goodput."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Literal

import numpy as np

from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.policies.allocators import (
    Allocator,
    FairShares,
    Floats,
    Ints,
    MarginalGains,
    State,
    divide,
    on_freest,
)
from labkit.cluster.results import Run
from labkit.cluster.simulation import simulate
from labkit.errors import BadValue
from labkit.kit.describe import Positive, checked, description
from labkit.papers.pollux.training import (
    FIXED_BATCH,
    Goodput,
    Progressing,
    Training,
    Workload,
    packed,
)


@description(eq=False)
class Queues(Allocator):
    """Two queues by attained service; within a queue, in order of arrival or of demotion.

    Source: Tiresias (NSDI'19) §3.2, as Pollux's simulator has it.
    """

    name: str = "tiresias"
    threshold_gpu_s: Positive = 57_600.0

    def decide(self, state: State) -> Ints:
        jobs = state.jobs
        asked = state.trace.column("gpus")[state.jobs]
        fell = state.memory.setdefault("fell", {})
        for job in jobs[state.attained_gpu_s[jobs] >= self.threshold_gpu_s].tolist():
            fell.setdefault(job, len(fell))
        order = np.argsort([fell.get(job, -1) for job in jobs.tolist()], kind="stable")
        room = int(state.capacity.sum())
        wanted = np.zeros(jobs.size, dtype=np.int64)
        for row in order:
            if asked[row] <= room:
                wanted[row] = asked[row]
                room -= asked[row]
        return on_freest(state.held[jobs], wanted, state.capacity, order)


def pack(held: Ints, wanted: Ints, capacity: Ints) -> Ints:
    """Place jobs on as few nodes as hold each; jobs whose number stays keep their GPUs if they can.

    Where keeping all leaves no room, jobs on nodes that are not full move; where that leaves none,
    all move.

    Args:
        held: job × node: GPUs until now.
        wanted: GPUs of each job. They fill whole nodes, then a power of two at most half of one,
            so that they fit in falling order.
        capacity: GPUs of each node.

    Raises:
        BadValue: the jobs do not fit.
    """
    keeps = (held.sum(1) == wanted) & (wanted > 0)
    full_nodes = held[keeps].sum(0) == capacity
    on_full_nodes = ((held == 0) | full_nodes).all(1)
    most = int(capacity.max())
    for kept in (keeps, keeps & on_full_nodes, np.zeros_like(keeps)):
        given = np.where(kept[:, None], held, 0)
        free = (capacity - given.sum(0)).tolist()
        order = np.argsort(-wanted, kind="stable")
        for row in order[~kept[order]]:
            short = int(wanted[row])
            while short > 0:
                least = min((f for f in free if f >= min(short, most)), default=0)
                if not least:
                    break
                node = free.index(least)
                taken = min(short, least)
                given[row, node] += taken
                free[node] -= taken
                short -= taken
            if short:
                break
        else:
            return np.asarray(given)
    raise BadValue(f"pack: {wanted.tolist()} GPUs do not fit on nodes of {capacity.tolist()}")


@description(eq=False)
class MostGoodput(Allocator):
    """The GPUs of every job that make the mean of speed-ups most, by a power mean of exponent -1.

    A job's speed-up is its goodput over that on its fair share of the cluster. A job whose GPUs
    would change counts (age - restarts·delay) / (age + delay) of it, since it would restart. It may
    have twice the GPUs it has had, at most. One sum over jobs of 1 / (speed-up + 0.001) is least:
    found exactly by :func:`labkit.cluster.divide`, where the paper runs a genetic algorithm.

    Attributes:
        goodput: by kind of job: a :class:`~labkit.papers.pollux.training.Goodput`.
        explores: whether a job may have only twice the GPUs it has had.

    Source: Pollux (OSDI'21) §4.2, Eqs. 9 to 11; the rule of twice is in §4.1.
    """

    name: str = "pollux"
    goodput: Any
    explores: bool = True

    def decide(self, state: State) -> Ints:
        jobs = state.jobs
        room = int(state.capacity.sum())
        held = state.held[jobs]
        now = held.sum(1)
        most = state.memory.setdefault("most", {})
        size = int(state.capacity.max())
        powers = [0, *(2**k for k in range(size.bit_length()) if 2**k < size)]
        sizes = np.array([*powers, *range(size, room + 1, size)])
        speedups = np.array([self._speedups(state, job, sizes) for job in jobs.tolist()])
        age = state.now_s - state.trace.column("arrival_s")[jobs]
        after = np.maximum(age + self.restart_s, 1e-9)  # with no delay, restarts cost nothing
        factor = np.maximum(after - self.restart_s * (1 + state.stops[jobs]), 0.0) / after
        changes = sizes[None, :] != now[:, None]
        speedups = (
            speedups * np.where(changes, factor[:, None], 1.0) * size / room * state.capacity.size
        )
        for row, job in enumerate(jobs.tolist()):
            most[job] = max(most.get(job, 0), int(now[row]))
        limit = np.array([max(2 * most[j], 1) if self.explores else room for j in jobs.tolist()])
        fixed = np.array([state.trace.kind[job] in FIXED_BATCH for job in jobs])
        limit = np.where(fixed, 1, limit)
        values = np.where(sizes[None, :] <= limit[:, None], 1 / (speedups + 1e-3), np.inf)
        wanted = divide(values, room, sizes)
        return pack(held, wanted, state.capacity)

    def _speedups(self, state: State, job: int, sizes: Ints) -> Floats:
        """Goodput by number of GPUs over that of the fair share."""
        table = self.goodput[state.trace.kind[job]]
        values = table.at(state.progress.noise_scale(job))[0]
        fair = values[-(-table.most // state.jobs.size)]
        return np.asarray(values[sizes] / max(fair, 1e-12))


@description(eq=False)
class FixedBatches(MostGoodput):
    """Pollux's division of GPUs where every job keeps the batch size its user chose.

    A job's speed-up is then its rate of steps over that on its fair share. All other rules are
    those of :class:`MostGoodput`.

    Attributes:
        step_s: seconds of a step by job of the trace and number of GPUs from 1 on, NaN beyond the
            most it may have.
    """

    name: str = "fixed batch"
    step_s: Any

    def _speedups(self, state: State, job: int, sizes: Ints) -> Floats:
        rates = np.append(0.0, np.nan_to_num(1 / self.step_s[job]))
        room = int(state.capacity.sum())
        fair = min(-(-room // state.jobs.size), int(np.count_nonzero(rates)))
        speedups: Floats = rates[sizes] / rates[fair]
        return speedups


def _step_s(work: Workload, cluster: Cluster) -> Floats:
    """Seconds of a step at the users' batch size, by job and GPUs from one on; NaN: too many."""
    room = cluster.num_gpus
    size = cluster.pools[0].gpus_per_node

    @cache
    def row(kind: Training, batch: int) -> Floats:
        most = 1 if kind.name in FIXED_BATCH else min(batch // kind.least_on_a_gpu, room)
        splits = {gpus: kind.split(batch, gpus) for gpus in range(1, most + 1)}
        times = [kind.whole_s(packed(gpus, size), split) for gpus, split in splits.items()]
        return np.pad(times, (0, room + 1 - most), constant_values=np.nan)

    return np.array([row(work.training(job), batch) for job, batch in enumerate(work.batch_sizes)])


@checked
def goodputs(
    kinds: dict[str, Training],
    cluster: Cluster,
    *,
    law: Literal["linear", "doubling"] = "linear",
    noise_bias: Positive = 1.0,
) -> dict[str, Goodput]:
    """What agents know of each kind of job, fitted to its measured step times.

    Args:
        kinds: by name.
        cluster: the machines whose numbers of GPUs they know.
        law: Pollux's form, or ours, whose network times grow with the logarithm of GPUs and whose
            gradient times are those measured.
        noise_bias: the factor by which agents misjudge the noise scale; a very large one makes
            every batch size look as good as the initial one, so that throughput alone counts.
    """
    from labkit.tuning.goodput.step_fit import fit

    compute: Literal["linear", "measured"] = "linear" if law == "linear" else "measured"
    size = cluster.pools[0].gpus_per_node
    room = cluster.num_gpus
    fits = {name: fit(kind.tables.steps, compute=compute, sync=law) for name, kind in kinds.items()}
    return {name: Goodput(kinds[name], fits[name], size, room, noise_bias) for name in kinds}


Rule = Literal["pollux", "fixed batch", "tiresias", "optimus", "fair"]


def allocator(
    work: Workload,
    cluster: Cluster,
    policy: Rule,
    *,
    goodput: dict[str, Goodput] | None = None,
    explores: bool = True,
    jumps: bool = False,
    **options: Any,
) -> Allocator:
    """Make one of the five.

    All but Pollux keep the batch sizes users tuned; Tiresias their GPUs too. ``fixed batch``
    divides GPUs as Pollux does and has measured step times. Optimus has these and an oracle of
    steps left; ``fair`` gives equal numbers of GPUs.

    Args:
        work, cluster: whose jobs on which machines.
        policy: which of the five.
        goodput, explores: what Pollux's agents know (:func:`goodputs`), and whether they must try
            GPUs first.
        jumps: whether Optimus may offer several GPUs at once.
        options: ``round_s``, and ``restart_s`` (default: 30).

    Raises:
        BadValue: Pollux's agents know nothing.
    """
    knows = goodput if policy == "pollux" else None
    if policy == "pollux" and not knows:
        raise BadValue(f"train: {policy!r} needs goodput=pollux.goodputs(…), what its agents know")
    given: dict[str, Any] = {"restart_s": 30.0, "rates": partial(Progressing, work, knows)}
    given |= options
    if policy == "pollux":
        return MostGoodput(goodput=knows, explores=explores, **given)
    if policy == "tiresias":
        return Queues(**given)
    step_s = _step_s(work, cluster)
    if policy == "fixed batch":
        return FixedBatches(goodput=None, step_s=step_s, explores=explores, **given)
    if policy == "fair":
        return FairShares(most=np.isfinite(step_s).sum(1), **given)

    def steps_left(progress: Any, job: int) -> float:
        return work.training(job).steps_left(work.batch_sizes[job], int(progress.epoch[job]))

    return MarginalGains(step_s=step_s, steps_left=steps_left, jumps=jumps, **given)


@checked
def train(work: Workload, cluster: Cluster, policy: Rule, **options: Any) -> Run:
    """Run a workload under one of the five.

    Args:
        work: the jobs.
        cluster: the machines.
        policy: who gets GPUs.
        options: of :func:`allocator`.
    """
    return simulate(work.trace, cluster, allocator(work, cluster, policy, **options))
