"""One trace on clusters of several sizes, under Tiresias and its rivals."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from labkit.cluster.bounds import Bound, bound
from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.policies.orders import Policy, fifo, las, las2d, srsf
from labkit.cluster.results import Placement, Run
from labkit.cluster.simulation import simulate
from labkit.papers.tiresias.policies import gittins, slices


class Method(StrEnum):
    """Who runs next."""

    FIFO = "FIFO"
    BEST_EFFORT = "best effort"
    LAS = "LAS, time alone"
    LAS2D = "2D-LAS"
    SLICES = "time slicing"
    GITTINS = "2D-Gittins"
    SRSF = "SRSF, knows all"


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """A trace, what is known of it, and what a stop costs; ``dataclasses.replace`` changes one.

    Attributes:
        trace: the jobs.
        known_jobs: the first jobs of the trace, whose GPU time 2D-Gittins has seen.
        slice_s: of time slicing.
        restart_s: how long a job that was stopped holds its GPUs before it goes on.
        placement: whether jobs are put on as few nodes as hold them, or anywhere.
    """

    trace: Trace
    known_jobs: int = 800
    slice_s: float = 3600.0
    restart_s: float = 0.0
    placement: Placement = "consolidated"
    _runs: dict[tuple[Method, int], Run] = field(default_factory=dict, init=False, repr=False)

    def policy(self, method: Method) -> Policy:
        """The method as the engine takes it."""
        stop_s = self.restart_s
        match method:
            case Method.FIFO:
                return fifo()
            case Method.BEST_EFFORT:
                return fifo(blocks=False)
            case Method.LAS:
                return las(restart_s=stop_s)
            case Method.LAS2D:
                return las2d(restart_s=stop_s)
            case Method.SLICES:
                return slices(self.slice_s, longest_s=1e6, restart_s=stop_s)
            case Method.GITTINS:
                known_gpu_s = self.trace.work_gpu_s[: self.known_jobs]
                return gittins(known_gpu_s, restart_s=stop_s)
            case Method.SRSF:
                return srsf(restart_s=stop_s)

    def run(self, method: Method, num_gpus: int) -> Run:
        """Every job until its end, on nodes of eight GPUs."""
        key = (method, num_gpus)
        if key not in self._runs:
            self._runs[key] = self.run_policy(self.policy(method), num_gpus)
        return self._runs[key]

    def run_policy(self, policy: Policy, num_gpus: int) -> Run:
        """The same under any order of jobs."""
        nodes = Cluster.nodes(num_gpus // 8)
        return simulate(self.trace, nodes, policy, placement=self.placement)

    def mean_s(self, method: Method, num_gpus: int) -> float:
        """Mean completion time."""
        return float(self.run(method, num_gpus).jct_s.mean())

    def over(self, slower: Method, method: Method, num_gpus: int) -> float:
        """How many times as long one method's mean completion time is as another's."""
        return self.mean_s(slower, num_gpus) / self.mean_s(method, num_gpus)

    def bound(self, num_gpus: int) -> Bound:
        """What no method beats."""
        return bound(self.trace, Cluster.nodes(num_gpus // 8))


def dealt_anew(trace: Trace, seeds: int) -> list[Trace]:
    """The same jobs at the same moments of arrival, but which comes when is drawn.

    Args:
        trace: the jobs.
        seeds: how many draws, with the seeds from 0 on.
    """
    traces = []
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(trace))
        traces.append(
            Trace(
                arrival_s=trace.arrival_s,
                duration_s=trace.column("duration_s")[order],
                gpus=trace.column("gpus")[order],
            )
        )
    return traces
