"""What came out of a simulation: every job's times, what it waited for, who held which GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster, best_speed
from labkit.cluster.inputs.traces import Trace
from labkit.errors import BadValue
from labkit.kit.describe import Share, checked

if TYPE_CHECKING:
    import pandas as pd

Placement = Literal["any", "consolidated"]

CAUSES = ("capacity", "order", "fragmentation", "preemption", "round")
"""What a job waits for: too few GPUs free; jobs ahead of it in a queue that blocks, or a policy
that leaves GPUs free; enough free GPUs, on too many nodes; GPUs again, after it was stopped; the
next round of a policy that decides in rounds. The event loop counts the first four, in order."""

_WORDS = {
    "capacity": "enough free GPUs",
    "order": "jobs ahead of it in the queue",
    "fragmentation": "free GPUs on few enough nodes",
    "preemption": "GPUs again after it was stopped",
    "round": "the next round",
}


class Named(Protocol):
    """Whatever decided a run; tables show its name."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What became of every job of a trace: all of it simulated.

    Attributes:
        trace, cluster, policy, placement: what was simulated.
        start_s, end_s: first start and end of each job; NaN for one that can never run.
        preemptions: how often each job was stopped or moved.
        waits_s: seconds waited, one row a job, one column a cause (:data:`CAUSES`).
        restart_s: seconds each job held GPUs without progress, after it was stopped.
        segments: every stretch of a job on its GPUs: job, start_s, end_s, pool, gpus.
        held: the nodes of each segment: segment, node, gpus. Under ``any`` placement a pool
            counts as one node.
        refused: jobs that a policy did not admit; they have no end.
        stops_early: whether the run stopped when a window of jobs had ended.
    """

    trace: Trace
    cluster: Cluster
    policy: Named
    placement: Placement
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    preemptions: NDArray[np.int64]
    waits_s: NDArray[np.float64]
    restart_s: NDArray[np.float64]
    segments: dict[str, NDArray[Any]]
    held: dict[str, NDArray[np.int64]]
    refused: NDArray[np.bool_] | None = None
    stops_early: bool = False

    @property
    def ran(self) -> NDArray[np.bool_]:
        """Which jobs ran to their end; others can never run, or a window of jobs ended the run."""
        return ~np.isnan(self.end_s)

    @property
    def jct_s(self) -> NDArray[np.float64]:
        """Job completion times: end minus arrival."""
        return self.end_s - self.trace.column("arrival_s")

    def frame(self) -> pd.DataFrame:
        """One row a job, in order of arrival."""
        table = self.trace.frame().drop(columns="deadline_s")
        deadline = self.trace.column("deadline_s")
        ran = self.ran
        waits = {f"waited_{cause}_s": self.waits_s[:, i] for i, cause in enumerate(CAUSES)}
        met = (self.end_s <= deadline).astype(object)
        met[np.isinf(deadline)] = None
        if self.trace.has("recorded_start_s"):
            table["recorded_wait_s"] = self._recorded_wait_s
        return table.assign(
            start_s=self.start_s,
            end_s=self.end_s,
            jct_s=self.jct_s,
            **waits,
            restart_s=np.where(ran, self.restart_s, np.nan),
            preemptions=self.preemptions,
            deadline_met=met,
            ran=ran,
        )

    @checked
    def summary(
        self, *, warmup: Share = 0.0, window: tuple[int, int] | None = None
    ) -> dict[str, Any]:
        """Completion times, deadlines, utilisation and waiting in one row.

        Args:
            warmup: the fraction of jobs, first by arrival, left out of all averages.
            window: the first job that counts and the first behind it that does not, by place in
                the trace; default: all. Makespan and utilisation are of the whole run in any case.

        Returns:
            Seconds end in ``_s``. ``slowdown_ratio`` is the mean completion time over the mean
            that jobs alone on their fastest GPUs have; ``worst_slowdown_ratio`` is the largest of
            a job. Where starts were recorded, ``median_recorded_wait_s`` and
            ``median_simulated_wait_s`` are of the jobs whose start is known.

        Raises:
            BadValue: no job ran among those that count.
        """
        place = np.arange(len(self.trace))
        within = place >= int(warmup * len(self.trace))
        if window is not None:
            within &= (place >= window[0]) & (place < window[1])
        counted = self.ran & within
        if not counted.any():
            raise BadValue(
                f"summary: no job ran after a warmup of {warmup:g}"
                f"{'' if window is None else f' within the window {window}'}; give a smaller one"
            )
        jct_s = self.jct_s[counted]
        arrival_s = self.trace.column("arrival_s")
        makespan_s = float(np.nanmax(self.end_s) - arrival_s[self.ran][0])
        due_s = self.trace.column("deadline_s")
        has_deadline = np.isfinite(due_s) & within
        in_time = self.end_s <= due_s
        waits_s = self.waits_s[counted].mean(axis=0)
        alone_s = self.trace.column("duration_s") / self._fastest()
        return {
            "policy": self.policy.name,
            "jobs": int(counted.sum()),
            "never_ran": int((~self.ran).sum()),
            "mean_jct_s": float(jct_s.mean()),
            "median_jct_s": float(np.median(jct_s)),
            "p90_jct_s": float(np.quantile(jct_s, 0.9)),
            "p95_jct_s": float(np.quantile(jct_s, 0.95)),
            "p99_jct_s": float(np.quantile(jct_s, 0.99)),
            "slowdown_ratio": float(jct_s.mean() / alone_s[counted].mean()),
            "worst_slowdown_ratio": float((jct_s / alone_s[counted]).max()),
            "makespan_s": makespan_s,
            "deadlines_met_fraction": (
                float(in_time[has_deadline].mean()) if has_deadline.any() else None
            ),
            "utilisation_fraction": self._busy_gpu_s() / (self.cluster.num_gpus * makespan_s),
            "mean_wait_s": float(waits_s.sum()),
            **{f"mean_wait_{cause}_s": float(waits_s[i]) for i, cause in enumerate(CAUSES)},
            "preemptions": int(self.preemptions[counted].sum()),
            **self._recorded_waits(counted),
        }

    @property
    def _recorded_wait_s(self) -> NDArray[np.float64]:
        """Each job's wait as it was recorded; NaN where it was not."""
        start_s = self.trace.column("recorded_start_s")
        return np.where(np.isinf(start_s), np.nan, start_s) - self.trace.column("arrival_s")

    def _recorded_waits(self, counted: NDArray[np.bool_]) -> dict[str, float]:
        """The median wait until the first start, recorded and simulated, of the same jobs."""
        known = counted & np.isfinite(self._recorded_wait_s)
        if not known.any():
            return {}
        simulated_s = self.start_s - self.trace.column("arrival_s")
        return {
            "median_recorded_wait_s": float(np.median(self._recorded_wait_s[known])),
            "median_simulated_wait_s": float(np.median(simulated_s[known])),
        }

    def _fastest(self) -> NDArray[np.float64]:
        """Each job's speed on its fastest pool; 1 for one that fits in none."""
        speed = best_speed(self.trace, self.cluster)
        return np.where(speed > 0, speed, 1.0)

    def _busy_gpu_s(self) -> float:
        """GPU-seconds held by jobs; NaN for a run without segments."""
        spans_s = self.segments["end_s"] - self.segments["start_s"]
        return float((spans_s * self.segments["gpus"]).sum()) if spans_s.size else np.nan

    @checked
    def why(self, job: str | int, *, most: int = 3) -> str:
        """What a job waited for, and who held the GPUs meanwhile.

        Args:
            job: its id, or its place in the trace.
            most: how many of the jobs that held GPUs meanwhile are named.

        Raises:
            BadValue: there is no such job.
        """
        index = self.trace.index_of(job)
        name = self.trace.id_of(index)
        gpus = int(self.trace.column("gpus")[index])
        if self.refused is not None and self.refused[index]:
            return f"{name} was refused by {self.policy.name} when it arrived"
        if not self.ran[index]:
            if self.stops_early:
                return f"{name} had not ended when the run was stopped"
            return f"{name} can never run: {_reason(self.trace, self.cluster, index)}"
        waits = {c: w for c, w in zip(CAUSES, self.waits_s[index], strict=True) if w > 0}
        arrival = float(self.trace.column("arrival_s")[index])
        text = f"{name} asked for {gpus} GPU{'s' * (gpus > 1)} at {arrival:,.0f} s"
        if not waits:
            return f"{text} and ran at once; it ended at {self.end_s[index]:,.0f} s"
        parts = [f"{seconds:,.0f} s for {_WORDS[cause]}" for cause, seconds in waits.items()]
        stops = int(self.preemptions[index])
        stopped = f", was stopped {stops} time{'s' * (stops > 1)}" if stops else ""
        others = ", ".join(
            f"{self.trace.id_of(other)} ({gpu_s:,.0f} GPU-s)"
            for other, gpu_s in self._meanwhile(index)[:most]
        )
        return (
            f"{text}, first ran at {self.start_s[index]:,.0f} s{stopped} and ended at "
            f"{self.end_s[index]:,.0f} s; it waited {', '.join(parts)}. While it waited, the "
            f"most GPU time went to {others or 'nobody'}"
        )

    def _meanwhile(self, index: int) -> list[tuple[int, float]]:
        """The other jobs by GPU-seconds held while this one waited, most first."""
        job, start_s, end_s = (self.segments[name] for name in ("job", "start_s", "end_s"))
        mine = job == index
        # It waited from its arrival, and from each of its ends, to the next of its starts.
        waits_from = [float(self.trace.column("arrival_s")[index]), *sorted(end_s[mine])]
        held_gpu_s = np.zeros(len(self.trace))
        for low, high in zip(waits_from, sorted(start_s[mine]), strict=False):
            both_s = np.clip(np.minimum(end_s, high) - np.maximum(start_s, low), 0, None)
            np.add.at(held_gpu_s, job, both_s * self.segments["gpus"])
        order = np.argsort(-held_gpu_s, kind="stable")
        return [(int(other), float(held_gpu_s[other])) for other in order if held_gpu_s[other] > 0]


def _reason(trace: Trace, cluster: Cluster, index: int) -> str:
    """Why no pool can ever hold a job."""
    gpus = int(trace.column("gpus")[index])
    wanted = trace.gpu[index] if trace.gpu else ""
    kind = trace.kind[index] if trace.kind else ""
    pools = ", ".join(
        f"{pool.gpu} has {pool.num_gpus}"
        + (" but cannot run it" if not pool.speed_of(kind) else "")
        for pool in cluster.pools
        if wanted in ("", pool.gpu)
    )
    return f"it needs {gpus} {wanted or ''} GPUs of one pool, and {pools}".replace("  ", " ")
