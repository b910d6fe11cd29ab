"""Pollux's simulations: the published workloads at each load, under Pollux and its rivals."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.results import Run
from labkit.papers.pollux.scheduling import Rule, goodputs, train
from labkit.papers.pollux.training import Goodput, Training, Workload, trainings, workload

if TYPE_CHECKING:
    from labkit.datasets import Source

WORKLOADS: dict[float, tuple[int, ...]] = {0.5: (1, 2, 3, 4), 1.0: (1, 2, 3, 4), 2.0: (1, 3)}
"""Which of the published workloads are run at which load; at 2, each takes in its neighbour."""

_NO_NOISE_IS_TOO_MUCH = 1e9  # times the noise scale: every batch size then looks efficient


class Method(StrEnum):
    """Who gets GPUs, and who chooses batch sizes."""

    POLLUX = "Pollux"
    FIXED_BATCH = "Pollux, users' batches"
    BLIND = "Pollux, throughput alone"
    TIRESIAS = "Tiresias"
    OPTIMUS = "Optimus"
    JUMPS = "Optimus, several GPUs at once"
    FAIR = "equal shares"


_RULES: dict[Method, tuple[Rule, dict[str, Any]]] = {
    Method.POLLUX: ("pollux", {}),
    Method.FIXED_BATCH: ("fixed batch", {}),
    Method.BLIND: ("pollux", {}),
    Method.TIRESIAS: ("tiresias", {}),
    Method.OPTIMUS: ("optimus", {}),
    Method.JUMPS: ("optimus", {"jumps": True}),
    Method.FAIR: ("fair", {}),
}


class Inputs:
    """The published jobs, read once and kept.

    Args:
        source: the data set's files (``paper.data("pollux-osdi21")``).
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.trainings: dict[str, Training] = trainings(source)

    @cache  # noqa: B019
    def workload(self, number: int, load: float) -> Workload:
        """One of the published workloads, as :func:`labkit.papers.pollux.workload` gives it."""
        return workload(number, load=load, source=self.source, kinds=self.trainings)

    @cache  # noqa: B019
    def agents(
        self, nodes: int, gpus: int, law: Literal["linear", "doubling"], noise_bias: float
    ) -> dict[str, Goodput]:
        """What agents know of each kind of job on so many nodes of so many GPUs."""
        machines = Cluster.nodes(nodes, gpus=gpus)
        return goodputs(self.trainings, machines, law=law, noise_bias=noise_bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """A cluster, its clocks, and what Pollux's agents believe; ``dataclasses.replace`` changes one.

    Attributes:
        inputs: the jobs.
        machines: whose GPUs are divided.
        round_s: seconds between decisions.
        restart_s: seconds without progress after a job's GPUs have changed.
        law: the form of the step times that agents fit (:func:`labkit.papers.pollux.goodputs`).
        noise_bias: the noise scale that agents believe, over the true one.
        explores: whether a job may have twice the GPUs it has had, at most.

    Source: §5.1 and §5.3.
    """

    inputs: Inputs
    machines: Cluster = field(default_factory=lambda: Cluster.nodes(16, gpus=4))
    round_s: float = 60.0
    restart_s: float = 30.0
    law: Literal["linear", "doubling"] = "linear"
    noise_bias: float = 1.0
    explores: bool = True
    _runs: dict[tuple[Method, int, float], Run] = field(
        default_factory=dict, init=False, repr=False
    )

    def agents(self, noise_bias: float = 1.0) -> dict[str, Goodput]:
        """What agents know; ``noise_bias`` multiplies the experiment's own."""
        nodes = sum(pool.nodes for pool in self.machines.pools)
        gpus = self.machines.pools[0].gpus_per_node
        return self.inputs.agents(nodes, gpus, self.law, self.noise_bias * noise_bias)

    def run(self, method: Method, number: int, load: float = 1.0) -> Run:
        """Every job of a workload until its end.

        Args:
            method: who gets GPUs.
            number: of the published workload.
            load: jobs over those of load 1.
        """
        key = (method, number, load)
        if key not in self._runs:
            rule, options = _RULES[method]
            bias = _NO_NOISE_IS_TOO_MUCH if method is Method.BLIND else 1.0
            self._runs[key] = train(
                self.inputs.workload(number, load),
                self.machines,
                rule,
                goodput=self.agents(bias),
                explores=self.explores,
                round_s=self.round_s,
                restart_s=self.restart_s,
                **options,
            )
        return self._runs[key]

    def mean_s(
        self, method: Method, load: float = 1.0, numbers: tuple[int, ...] | None = None
    ) -> list[float]:
        """Mean completion time of each workload of a load, or of those that are named."""
        chosen = WORKLOADS[load] if numbers is None else numbers
        return [float(self.run(method, number, load).jct_s.mean()) for number in chosen]

    def saving(self, method: Method, rival: Method, load: float = 1.0) -> float:
        """How much less the mean completion time is than a rival's, as a share of the rival's."""
        return 1 - float(np.mean(self.mean_s(method, load)) / np.mean(self.mean_s(rival, load)))

    def offered_load(self, load: float) -> float:
        """GPU time that users' settings need, over the cluster's in the span of the arrivals."""
        works = [self.inputs.workload(number, load) for number in WORKLOADS[load]]
        return float(np.mean([each.trace.offered_load(self.machines.num_gpus) for each in works]))

    def bound_s(self, load: float) -> float:
        """Mean completion time below which no method comes, the mean of the load's workloads."""
        works = [self.inputs.workload(number, load) for number in WORKLOADS[load]]
        return float(np.mean([each.bound_s(self.machines) for each in works]))

    def held(self, method: Method, kind: str, load: float = 1.0) -> pd.DataFrame:
        """What jobs of a kind held: GPUs, GPU-seconds, and jobs in the cluster meanwhile.

        Args:
            method: who gives GPUs.
            kind: of job, say ``cifar10``.
            load: jobs over those of load 1.

        Returns:
            A row a stretch of time in which a job's GPUs stay: ``gpus``, ``gpu_s``, ``present``.
        """
        tables = []
        for number in WORKLOADS[load]:
            run = self.run(method, number, load)
            trace = self.inputs.workload(number, load).trace
            segments = run.segments
            arrivals = np.sort(trace.column("arrival_s"))
            arrived = np.searchsorted(arrivals, segments["start_s"], "right")
            ended = np.searchsorted(np.sort(run.end_s), segments["start_s"], "right")
            table = pd.DataFrame(
                {
                    "gpus": segments["gpus"],
                    "gpu_s": (segments["end_s"] - segments["start_s"]) * segments["gpus"],
                    "present": arrived - ended,
                }
            )
            tables.append(table[np.array(trace.kind)[segments["job"]] == kind])
        return pd.concat(tables, ignore_index=True)
