"""Training jobs whose speed is step time times statistical efficiency, from measured tables.

A job trains for a number of epochs. An epoch is a number of steps at the initial batch size M0; a
step at batch M does the work of gain = (var + sqr) / (var·M0/M + sqr) such steps, by the gradient's
variance and square at that epoch, and takes as long as was measured on those GPUs of those nodes.
What lies between measured points is interpolated linearly.

Source: Pollux (OSDI'21), §3 and §5.3, whose simulator has these rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
from annotated_types import Ge, Le

from labkit.cluster.bounds import fluid
from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.policies.allocators import Floats, Ints
from labkit.errors import BadValue
from labkit.kit.describe import Positive, checked
from labkit.tuning.goodput import StepTimes, Tables

if TYPE_CHECKING:
    from labkit.datasets import Source

EPOCHS = {
    "bert": 2,
    "cifar10": 100,
    "deepspeech2": 80,
    "imagenet": 90,
    "ncf": 10,
    "yolov3": 50,
}
"""Epochs after which a job of the published workloads is done: it has then reached its target."""
MOST_ON_A_GPU = {"yolov3": 8}
"""Examples that fit on one GPU where fewer than were measured."""
FIXED_BATCH = {"ncf": 32768}
"""Batch sizes that no policy changes; such a job runs on one GPU."""
_SIZES = 50  # batch sizes that are tried for an allocation, on a geometric grid


class Training:
    """One kind of job: how long its steps take and what they are worth.

    Immutable. Its answers are kept, and it with them: trainings are few (hence B019 below).
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.name = tables.workload
        steps = tables.steps
        self.init_batch = tables.init_batch_size
        self.max_batch = tables.max_batch_size
        low, high = tables.atomic_bsz_range
        self.least_on_a_gpu = low
        self.most = MOST_ON_A_GPU.get(self.name, high)
        runs = [run for _, run in tables.runs.groupby("batch_size", sort=True)]
        self.sizes = np.array([run["batch_size"].iloc[0] for run in runs], dtype=float)
        self.epochs = min(EPOCHS[self.name], *map(len, runs))
        self.columns = {
            name: np.array([run[name].to_numpy()[: self.epochs] for run in runs])
            for name in ("progress", "iteration", "grad_sqr", "grad_var")
        }
        self.progress = np.append(0.0, self.columns["progress"].min(0))
        named = steps[~steps["allocation"].astype(str).str.contains("on")]
        table = named[["atomic_bsz", "step_time_s", "compute_time_s"]].to_numpy(float).T
        groups = named.groupby("allocation", sort=False).indices
        self.measured = {str(name): table[:, rows] for name, rows in groups.items()}

    @cached_property
    def _between(self) -> Any:
        """Step and compute time between all measured (nodes, GPUs, batch size of one GPU)."""
        from scipy.interpolate import LinearNDInterpolator

        place = ["num_nodes", "num_gpus", "atomic_bsz"]
        rows = self.tables.steps.groupby(place, as_index=False)[["step_time_s", "compute_time_s"]]
        mean = rows.mean()
        return LinearNDInterpolator(
            mean[place].to_numpy(float), mean[["step_time_s", "compute_time_s"]].to_numpy()
        )

    @cache  # noqa: B019
    def step_s(self, by_node: tuple[int, ...], atomic: int) -> tuple[float, float]:
        """Seconds of a step on so many GPUs of each node, and of its gradient alone.

        Raises:
            BadValue: no measured point lies beyond this one.
        """
        turned = min(by_node[i:] + by_node[:i] for i in range(len(by_node)))
        rows = self.measured.get("".join(map(str, turned)))
        if rows is not None and rows[0, 0] <= atomic <= rows[0, -1]:
            step, grad = (float(np.interp(atomic, rows[0], rows[i])) for i in (1, 2))
        else:
            step, grad = self._between([min(len(by_node), 16), sum(by_node), atomic])[0].tolist()
        if not step > 0:
            raise BadValue(
                f"{self.name}: no step was measured near {atomic} examples on each of "
                f"{sum(by_node)} GPUs of {len(by_node)} nodes"
            )
        return step, grad

    def whole_s(self, by_node: tuple[int, ...], split: tuple[int, int]) -> float:
        """Seconds of a step with the gradients before its last, as :meth:`split` gives them."""
        step, grad = self.step_s(by_node, split[0])
        return step + split[1] * grad

    @cache  # noqa: B019
    def _at(self, name: str, batch: float, epoch: int) -> float:
        column = self.columns[name][:, min(epoch, self.epochs - 1)]
        return float(np.interp(batch, self.sizes, column))

    def gradient(self, batch: float, epoch: int) -> tuple[float, float]:
        """Square and variance of the gradient in an epoch trained at a batch size."""
        return self._at("grad_sqr", batch, epoch), self._at("grad_var", batch, epoch)

    def steps_left(self, batch: float, epoch: int) -> float:
        """Steps at a batch size from the start of an epoch to the last one's end; 1 at least."""
        last = self.epochs - 1
        done = self._at("iteration", batch, epoch)
        return self._at("iteration", batch, last) - done if epoch < last else 1.0

    def split(self, batch: float, gpus: int) -> tuple[int, int]:
        """Examples of one GPU at a time, and gradients before the last, of a batch size."""
        local = ceil(batch / gpus - 1e-8)
        accum = ceil(local / self.most - 1e-8) - 1
        if gpus == 1 and batch > self.init_batch:  # noise is estimated from two gradients or more
            accum = max(1, accum)
        atomic = ceil(local / (accum + 1) - 1e-8)
        return min(atomic, self.max_batch // (gpus * (accum + 1))), accum

    @cache  # noqa: B019
    def speed(self, by_node: tuple[int, ...], split: tuple[int, int], epoch: int) -> float:
        """Steps at the initial batch size that a second is worth."""
        batch = sum(by_node) * split[0] * (split[1] + 1)
        square, variance = self.gradient(batch, epoch)
        gain = (variance + square) / (variance * self.init_batch / batch + square)
        return gain / self.whole_s(by_node, split)

    def duration_s(self, by_node: tuple[int, ...], batch: float) -> float:
        """How long the whole training takes on these GPUs with this batch size."""
        split = self.split(batch, sum(by_node))
        work = np.diff(self.progress)
        return float(sum(w / self.speed(by_node, split, e) for e, w in enumerate(work)))

    @cache  # noqa: B019
    def least(self, room: int, per_node: int) -> tuple[float, float]:
        """Seconds of the fastest training on any allocation, and GPU-seconds of the thriftiest."""
        counts = [*range(1, per_node), *range(per_node, room + 1, per_node)]
        if self.name in FIXED_BATCH:
            counts = [1]
            totals = np.array([FIXED_BATCH[self.name]])
        else:
            totals = np.geomspace(self.init_batch, self.max_batch, _SIZES)
        step, batch = np.full((2, len(counts), totals.size), np.inf)
        for row, gpus in enumerate(counts):
            for column, total in enumerate(totals):
                atomic, accum = self.split(total, gpus)
                if self.least_on_a_gpu <= atomic <= self.most:
                    step[row, column] = self.whole_s(packed(gpus, per_node), (atomic, accum))
                    batch[row, column] = gpus * atomic * (accum + 1)
        seconds = 0.0
        gpu_s = 0.0
        for epoch, work in enumerate(np.diff(self.progress)):
            square, variance = (
                np.interp(batch, self.sizes, self.columns[name][:, epoch])
                for name in ("grad_sqr", "grad_var")
            )
            gain = (variance + square) / (variance * self.init_batch / batch + square)
            need = work * step / gain
            seconds += need.min()
            gpu_s += (need * np.array(counts)[:, None]).min()
        return seconds, gpu_s


class Goodput:
    """The best goodput and batch of every number of GPUs, for any noise scale: what an agent fits.

    Row g of a table is an allocation of g GPUs on as few nodes as hold them; row g + ``most`` + 1
    one on a node more. ``bias``: the factor by which the agent misjudges the noise scale.
    """

    def __init__(
        self, training: Training, times: StepTimes, per_node: int, most: int, bias: float = 1.0
    ) -> None:
        self.training = training
        self.most = most
        self.bias = bias
        gpus = np.tile(np.arange(1, most + 1), 2)
        nodes = -(-gpus // per_node) + (np.arange(gpus.size) >= most)
        possible = nodes <= gpus
        init = training.init_batch
        largest = training.max_batch
        least = np.minimum(np.maximum(init, training.least_on_a_gpu * gpus), largest)
        total = np.geomspace(least, np.full(gpus.size, largest), _SIZES, axis=1)
        local = total / gpus[:, None]
        accum = np.ceil(local / training.most - 1e-8) - 1
        two = (gpus == 1)[:, None] & (total > init + 1e-8)
        accum = np.where(two, np.maximum(accum, 1), accum).astype(np.int64)
        atomic = np.ceil(local / (accum + 1) - 1e-8).astype(np.int64)
        self.batch = gpus[:, None] * atomic * (accum + 1)
        where = np.minimum(nodes, gpus)[:, None], gpus[:, None], atomic, accum
        # 36 bits: powers differ in the last bits between processors, and would decide ties
        mantissa, exponent = np.frexp(times.throughput(*where))
        rate = np.ldexp(np.rint(np.ldexp(mantissa, 36)), exponent - 36)
        fits = (atomic >= training.least_on_a_gpu) & (atomic <= training.most) & possible[:, None]
        self.rate = np.where(fits & (self.batch >= init), rate, 0.0)
        self.splits = np.stack([atomic, accum], axis=-1)

    @cache  # noqa: B019
    def at(self, noise_scale: float) -> tuple[Floats, Ints]:
        """Goodput by allocation (0 for none, then rows), and which batch of its grid is best."""
        believed = noise_scale * self.bias
        worth = (believed + self.training.init_batch) / (believed + self.batch)
        values = self.rate * worth
        best = values.argmax(1)
        top = values[np.arange(best.size), best].reshape(2, -1)
        return np.pad(top, ((0, 0), (1, 0))).ravel(), best

    @cache  # noqa: B019
    def split(self, noise_scale: float, gpus: int, is_spread: bool) -> tuple[int, int]:
        """The best batch of an allocation, as :meth:`Training.split` gives it."""
        row = gpus - 1 + is_spread * self.most
        atomic, accum = self.splits[row, self.at(noise_scale)[1][row]].tolist()
        return atomic, accum

    def batch_size(self, noise_scale: float, gpus: int) -> int:
        """The best batch size of GPUs on as few nodes as hold them, in examples."""
        atomic, accum = self.split(noise_scale, gpus, False)
        return gpus * atomic * (accum + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """Jobs that train, as users submitted them.

    Attributes:
        trace: arrivals, kinds, the GPUs users asked for, and how long those would need.
        batch_sizes: what users asked for, one a job.
        trainings: the kinds of jobs.
    """

    trace: Trace
    batch_sizes: tuple[int, ...]
    trainings: dict[str, Training]

    def training(self, job: int) -> Training:
        return self.trainings[self.trace.kind[job]]

    def bound_s(self, cluster: Cluster, *, start_s: float = 30.0) -> float:
        """Mean completion time that no allocator of this module beats.

        Every job alone on the GPUs where it is fastest; or, on one machine as fast as all GPUs, the
        least GPU-seconds each job can take, least remaining first. All batch sizes of a fine grid
        and all numbers of GPUs that fill nodes or part of one are tried, in every epoch anew.
        """
        room = cluster.num_gpus
        per_node = cluster.pools[0].gpus_per_node
        least = {name: kind.least(room, per_node) for name, kind in self.trainings.items()}
        seconds, gpu_s = np.array([least[kind] for kind in self.trace.kind]).T
        arrival = self.trace.column("arrival_s")
        end, _ = fluid(arrival, gpu_s, room, by_remaining=True)
        return max(float(seconds.mean()) + start_s, float((end - arrival).mean()))


class Progressing:
    """Progress of every job of a workload; a job that chooses its batch has a :class:`Goodput`."""

    def __init__(
        self, workload: Workload, goodput: dict[str, Goodput] | None, trace: Trace, cluster: Cluster
    ) -> None:
        if trace is not workload.trace:
            raise BadValue("the trace of a workload runs with its own allocators only")
        self.workload = workload
        self.goodput = goodput
        self.per_node = cluster.pools[0].gpus_per_node
        self.node_speed = np.repeat(
            [pool.speed for pool in cluster.pools], [pool.nodes for pool in cluster.pools]
        )
        num_jobs = len(workload.trace)
        kinds = [workload.training(job) for job in range(num_jobs)]
        self.kinds = kinds
        self.done = np.zeros(num_jobs)
        self.epoch = np.zeros(num_jobs, dtype=np.int64)
        self.left = np.array([kind.progress[-1] for kind in kinds])
        self.batch = [float(kind.init_batch) for kind in kinds]
        self.goals = [kind.progress.tolist() for kind in kinds]
        self.where: list[tuple[bytes, tuple[int, ...], float]] = [(b"", (), 0.0)] * num_jobs
        self.paces: dict[Any, tuple[float, float]] = {}  # batch size, and progress a second

    def noise_scale(self, job: int, epoch: int | None = None) -> float:
        """In examples, as estimated at the batch size the job trains with."""
        kind = self.kinds[job]
        at = int(self.epoch[job]) if epoch is None else epoch
        square, variance = kind.gradient(self.batch[job], at)
        return kind.init_batch * variance / max(square, 1e-12)

    def _split(self, job: int, by_node: tuple[int, ...], gpus: int, epoch: int) -> tuple[int, int]:
        kind = self.kinds[job]
        if self.goodput is None:
            return kind.split(self.workload.batch_sizes[job], gpus)
        if kind.name in FIXED_BATCH:
            return kind.split(FIXED_BATCH[kind.name], gpus)
        is_spread = len(by_node) > -(-gpus // self.per_node)
        return self.goodput[kind.name].split(self.noise_scale(job, epoch), gpus, is_spread)

    def advance(self, jobs: Ints, held: Ints, seconds: Floats) -> Floats:
        """An epoch at a time; ends are whole seconds, as in the published simulator."""
        needed = np.array(seconds)
        for place, (job, row) in enumerate(zip(jobs.tolist(), held, strict=True)):
            key = row.tobytes()
            if self.where[job][0] != key:
                by_node = tuple(sorted(row[row > 0].tolist(), reverse=True))
                self.where[job] = key, by_node, float(self.node_speed[row > 0].min())
            _, by_node, slowest = self.where[job]
            needed[place] = self._train(job, by_node, slowest, float(seconds[place]))
        return needed

    def _train(
        self, job: int, by_node: tuple[int, ...], node_speed: float, seconds: float
    ) -> float:
        kind = self.kinds[job]
        goals = self.goals[job]
        gpus = sum(by_node)
        rest = seconds
        epoch = int(self.epoch[job])
        done = float(self.done[job])
        sizes = self.batch if self.goodput else self.workload.batch_sizes
        while rest > 0 and epoch < kind.epochs:
            key = kind.name, sizes[job], by_node, node_speed, epoch
            if key not in self.paces:
                split = self._split(job, by_node, gpus, epoch)
                batch = float(gpus * split[0] * (split[1] + 1))
                self.paces[key] = batch, kind.speed(by_node, split, epoch) * node_speed
            self.batch[job], speed = self.paces[key]
            if done + speed * rest < goals[epoch + 1]:
                done += speed * rest
                break
            rest -= round((goals[epoch + 1] - done) / speed)
            done = goals[epoch + 1]
            epoch = epoch + 1
        self.done[job] = done
        self.epoch[job] = epoch
        self.left[job] = goals[-1] - done
        return seconds - rest if epoch == kind.epochs else seconds


@checked
def trainings(source: str | Source = "pollux-osdi21") -> dict[str, Training]:
    """The kinds of jobs of Pollux's workloads: six, or those whose files are at hand.

    ``source``: the data set, or its files.
    """
    from labkit import datasets
    from labkit.tuning import goodput

    files = datasets.source(source) if isinstance(source, str) else source
    has = [kind for kind in EPOCHS if files.has(f"simulator/traces/{kind}/placements.csv")]
    return {kind: Training(goodput.load(files, kind)) for kind in has}


@checked
def workload(
    number: Annotated[int, Ge(1), Le(4)] = 1,
    *,
    load: Positive = 1.0,
    source: str | Source = "pollux-osdi21",
    kinds: dict[str, Training] | None = None,
) -> Workload:
    """Jobs of ``pollux-osdi21`` over eight hours, 160 of them at load 1.

    Users ask for the GPUs and batch sizes that the authors tuned for each job.

    Args:
        number: which of the published workloads.
        load: 0.5 takes every other job; 1.5 and 2 add half and all of the jobs of the next
            workload, at their own times of the day. Other loads are refused.
        source, kinds: the data set or its files; what :func:`trainings` gives, if it is at hand.
    """
    from labkit import datasets

    if load not in (0.5, 1, 1.5, 2):
        raise BadValue(f"workload: load must be 0.5, 1, 1.5 or 2; got {load:g}")
    names = [f"simulator/workloads/workload-{n}.csv" for n in (number, number % 4 + 1)]
    files = datasets.source(source, names) if isinstance(source, str) else source
    table, other = (files.frame(name) for name in names)
    table = table.iloc[:: 2 if load < 1 else 1]
    if load > 1:
        other = other.iloc[:: 2 if load < 2 else 1]
        table = pd.concat([table, other.assign(name=other["name"] + "'")])
    table = table.sort_values("time", kind="stable")
    kinds = kinds or trainings(source)
    keys = list(zip(table["application"], table["num_replicas"], table["batch_size"], strict=True))
    asked = {}
    for application, replicas, batch in set(keys):
        seconds = kinds[application].duration_s(packed(replicas, 4), batch)
        asked[application, replicas, batch] = seconds
    trace = Trace(
        arrival_s=table["time"],
        gpus=table["num_replicas"],
        ids=tuple(table["name"]),
        kind=tuple(table["application"]),
        duration_s=[asked[key] for key in keys],
        name=f"workload {number}, load {load:g}",
    )
    return Workload(trace=trace, batch_sizes=tuple(table["batch_size"].tolist()), trainings=kinds)


def packed(gpus: int, per_node: int) -> tuple[int, ...]:
    """GPUs of each node, on as few nodes as hold them."""
    return (per_node,) * (gpus // per_node) + ((gpus % per_node,) if gpus % per_node else ())
