"""Simulate a trace on a cluster under a policy, and read what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.jobs.clusters import Cluster, speeds
from labkit.cluster.jobs.jobs import Trace
from labkit.cluster.policies.orders import ORDERS, Policy
from labkit.cluster.policies.shares import SharePolicy
from labkit.cluster.running import core
from labkit.errors import BadValue, did_you_mean
from labkit.kit.describe import Share, checked

if TYPE_CHECKING:
    import pandas as pd

    from labkit.cluster.running.rounds import Allocator

Placement = Literal["any", "consolidated"]
CAUSES = ("capacity", "order", "fragmentation", "preemption", "round")
"""What a job waits for: too few GPUs free; jobs ahead of it in a queue that blocks, or a policy
that leaves GPUs free; enough free GPUs, on too many nodes; GPUs again, after it was stopped; the
next round of a policy that decides in rounds. The event loop counts the first four, in order."""
LIFE = [
    ("gpus", "i8"),
    ("arrival", "f8"),
    ("left", "f8"),  # left: work, when it last stopped
    ("since", "f8"),
    ("warm", "f8"),  # start of this run (or of waiting), and of its progress
    ("start", "f8"),
    ("end", "f8"),  # of all; NaN: not yet, or never
    ("stops", "i8"),
    ("lost", "f8"),  # how often it was stopped; seconds held without progress
]
"""What every loop knows of a job."""
JOB = np.dtype(
    [  # what every pass reads comes first, in one line of the cache
        ("status", "i8"),
        ("pool", "i8"),  # pool: where it runs
        ("key", "f8"),
        ("waits", "i8"),  # sorted by both; waits: 0 where it ran after the last pass
        ("held", "i8"),
        ("num_held", "i8"),  # its nodes, in World.held
        ("row", "i8"),
        *LIFE,  # row: of World.speed
        ("attained", "f8"),
        ("place", "i8"),
        ("level", "i8"),
        ("cause", "i8"),  # place: among running
    ]
)
POOL = np.dtype([("first", "i8"), ("last", "i8"), ("size", "i8"), ("free", "i8"), ("avail", "i8")])
"""Nodes from first to before last, of size GPUs each; free: of no job; avail: or of later ones."""
NODE = np.dtype([("free", "i8"), ("avail", "i8")])
SLOT = np.dtype([("node", "i8"), ("gpus", "i8")])
SEGMENT = np.dtype([("job", "i8"), ("start", "f8"), ("end", "f8"), ("pool", "i8"), ("held", "i8")])
"""A run of a job; ``held`` is where its nodes begin among the held of the log."""


def jobs_of(trace: Trace, kind: np.dtype[np.void]) -> Any:
    """Records of a trace's jobs before anything has happened."""
    jobs = np.zeros(len(trace), kind)
    jobs["gpus"] = trace.gpus
    jobs["left"] = trace.duration_s
    jobs["arrival"] = jobs["since"] = trace.arrival_s
    jobs["start"] = jobs["end"] = np.nan
    return jobs


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What became of every job of a trace: all of it simulated.

    Attributes:
        start_s, end_s: first start and end of each job; NaN for one that can never run.
        preemptions: how often each job was stopped or moved.
        waits_s: seconds waited, one row a job, one column a cause (:data:`CAUSES`).
        restart_s: seconds each job held GPUs without progress, after it was stopped.
        segments: every stretch of a job on its GPUs: job, start_s, end_s, pool, gpus.
        held: the nodes of each segment: segment, node, gpus. Under ``any`` placement a pool
            counts as one node.
        refused: jobs that a policy did not admit; they have no end.
    """

    trace: Trace
    cluster: Cluster
    policy: Policy | Allocator | SharePolicy
    placement: Placement
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    preemptions: NDArray[np.int64]
    waits_s: NDArray[np.float64]
    restart_s: NDArray[np.float64]
    segments: dict[str, NDArray[Any]]
    held: dict[str, NDArray[np.int64]]
    refused: NDArray[np.bool_] | None = None

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
    def summary(self, *, warmup: Share = 0.0) -> dict[str, Any]:
        """Completion times, deadlines, utilisation and waiting in one row.

        Args:
            warmup: the fraction of jobs, first by arrival, left out of all averages; makespan and
                utilisation are of the whole run.

        Raises:
            BadValue: no job ran after the warm-up.
        """
        first = int(warmup * len(self.trace))
        counted = self.ran & (np.arange(len(self.trace)) >= first)
        if not counted.any():
            raise BadValue(f"summary: no job ran after a warmup of {warmup:g}; give a smaller one")
        jct = self.jct_s[counted]
        first_s = self.trace.column("arrival_s")[self.ran][0]
        makespan_s = float(np.nanmax(self.end_s) - first_s)
        spans = self.segments["end_s"] - self.segments["start_s"]
        busy = float((spans * self.segments["gpus"]).sum()) if spans.size else np.nan
        due = self.trace.column("deadline_s")
        has_deadline = np.isfinite(due) & (np.arange(len(self.trace)) >= first)
        waits = self.waits_s[counted].mean(axis=0)
        return {
            "policy": self.policy.name,
            "jobs": int(counted.sum()),
            "never_ran": int((~self.ran).sum()),
            "mean_jct_s": float(jct.mean()),
            "median_jct_s": float(np.median(jct)),
            "p95_jct_s": float(np.quantile(jct, 0.95)),
            "p99_jct_s": float(np.quantile(jct, 0.99)),
            "makespan_s": makespan_s,
            "deadlines_met_fraction": (
                float((self.end_s <= due)[has_deadline].mean()) if has_deadline.any() else None
            ),
            "utilisation_fraction": busy / (self.cluster.num_gpus * makespan_s),
            "mean_wait_s": float(waits.sum()),
            **{f"mean_wait_{cause}_s": float(waits[i]) for i, cause in enumerate(CAUSES)},
            "preemptions": int(self.preemptions[counted].sum()),
        }

    @checked
    def why(self, job: str | int, *, most: int = 3) -> str:
        """What a job waited for, and who held the GPUs meanwhile; by id, or place in the trace.

        Raises:
            BadValue: there is no such job.
        """
        index = self.trace.index_of(job)
        name = self.trace.id_of(index)
        gpus = int(self.trace.column("gpus")[index])
        if self.refused is not None and self.refused[index]:
            return f"{name} was refused by {self.policy.name} when it arrived"
        if not self.ran[index]:
            if isinstance(self.policy, SharePolicy):  # whose runs refuse jobs that fit nowhere
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
            f"{self.trace.id_of(other)} ({share:,.0f} GPU-s)"
            for other, share in self._meanwhile(index)[:most]
        )
        return (
            f"{text}, first ran at {self.start_s[index]:,.0f} s{stopped} and ended at "
            f"{self.end_s[index]:,.0f} s; it waited {', '.join(parts)}. While it waited, the "
            f"most GPU time went to {others or 'nobody'}"
        )

    def _meanwhile(self, index: int) -> list[tuple[int, float]]:
        """The other jobs by GPU-seconds held while this one waited, most first."""
        of, start, end = (self.segments[name] for name in ("job", "start_s", "end_s"))
        mine = of == index
        stops = [float(self.trace.column("arrival_s")[index]), *sorted(end[mine])]
        shares = np.zeros(len(self.trace))
        for low, high in zip(stops, sorted(start[mine]), strict=False):
            both = np.clip(np.minimum(end, high) - np.maximum(start, low), 0, None)
            np.add.at(shares, of, both * self.segments["gpus"])
        order = np.argsort(-shares, kind="stable")
        return [(int(other), float(shares[other])) for other in order if shares[other] > 0]


_WORDS = {
    "capacity": "enough free GPUs",
    "order": "jobs ahead of it in the queue",
    "fragmentation": "free GPUs on few enough nodes",
    "preemption": "GPUs again after it was stopped",
    "round": "the next round",
}


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


@checked
def simulate(
    trace: Trace, cluster: Cluster, policy: Policy | Allocator, *, placement: Placement = "any"
) -> Run:
    """Run a trace on a cluster under a policy, event by event; an allocator's, round by round.

    A job that fits in no pool can never run: it is reported (``Run.ran``, ``Run.why``) and the
    others do not wait for it. Jobs stay where they run until they are stopped.

    Args:
        placement: ``any``: any free GPUs of a pool will do; ``consolidated``: as few nodes as can
            hold the job, whole nodes first.

    Raises:
        BadValue: a job needs a GPU type that the cluster lacks or more GPUs than it has, or the
            policy's key is not one finite number a job.
    """
    check_gpus(trace, cluster)
    if not isinstance(policy, Policy):
        return policy.run(trace, cluster)
    whole = placement == "consolidated"
    world = _world(trace, cluster, policy, whole)
    rule = core.Rule(
        order=ORDERS.index(policy.order),
        preemptive=policy.preemptive,
        blocks=policy.blocks,
        thresholds=np.array(policy.thresholds, dtype=float),
        ranks=np.array(policy.ranks or range(len(policy.thresholds) + 1), dtype=float),
        late_demotion=policy.demotion == "tiresias",
        restart_s=float(policy.restart_s),
        nodes_matter=whole,
    )
    segments = np.zeros(len(trace), SEGMENT)
    held = np.zeros(len(trace), SLOT)
    log = core.run(world, rule, core.Log(segments, held))
    segments = log.segments[: world.count[core.NUM_SEGMENTS]]
    held = log.held[: world.count[core.NUM_HELD]]
    columns = [segments[name] for name in ("job", "start", "end", "pool")]
    columns.append(world.jobs["gpus"][segments["job"]])
    sizes = np.diff(np.append(segments["held"], held.size))
    return run_of(
        trace,
        cluster,
        policy,
        world.jobs,
        world.waited,
        columns,
        nodes=(np.repeat(np.arange(sizes.size), sizes), held["node"], held["gpus"]),
        placement=placement,
    )


def check_gpus(trace: Trace, cluster: Cluster) -> None:
    """Refuse jobs that the cluster has not the GPUs for."""
    known = {"", *cluster.gpu_types}
    for job, wanted in enumerate(trace.gpu):
        if wanted not in known:
            hint = did_you_mean(wanted, cluster.gpu_types)
            raise BadValue(
                f"{trace.name}, job {trace.id_of(job)}: gpu {wanted!r} is not in the cluster; "
                f"{hint + ' ' if hint else ''}valid: {', '.join(cluster.gpu_types)}, or nothing"
            )
    gpus = trace.column("gpus")
    if (gpus > cluster.num_gpus).any():
        job = int(np.argmax(gpus > cluster.num_gpus))
        raise BadValue(
            f"{trace.name}, job {trace.id_of(job)}: gpus {gpus[job]} is more than the cluster "
            f"has; valid: 1 to {cluster.num_gpus}"
        )


def _keys(policy: Policy, trace: Trace) -> NDArray[np.float64]:
    if policy.order != "key":
        return np.full(len(trace), float((policy.ranks or (0,))[0]))
    try:
        keys = np.array(policy.key(trace), dtype=float)
    except (TypeError, ValueError, AttributeError) as error:
        raise BadValue(f"the key of policy {policy.name!r} failed: {error}") from None
    if keys.shape != (len(trace),) or not np.isfinite(keys).all():
        raise BadValue(
            f"the key of policy {policy.name!r} must be one finite number a job; got an array of "
            f"shape {keys.shape} for {len(trace)} jobs"
        )
    return keys


def _world(trace: Trace, cluster: Cluster, policy: Policy, whole: bool) -> core.World:
    """Before the first event: no job is there, all GPUs are free."""
    row, speed = speeds(trace, cluster)
    pools = np.zeros(len(cluster.pools), POOL)
    pools["size"] = [p.gpus_per_node if whole else p.num_gpus for p in cluster.pools]
    pools["last"] = np.cumsum([p.nodes if whole else 1 for p in cluster.pools])
    pools["first"][1:] = pools["last"][:-1]
    pools["free"] = [pool.num_gpus for pool in cluster.pools]
    nodes = np.zeros(int(pools["last"][-1]), NODE)
    nodes["free"] = np.repeat(pools["size"], pools["last"] - pools["first"])
    gpus = trace.column("gpus")
    jobs = jobs_of(trace, JOB)
    jobs["row"] = row
    jobs["key"] = _keys(policy, trace)
    jobs["waits"] = 1
    jobs["cause"] = core.ORDER if policy.blocks else core.CAPACITY
    most_nodes = gpus // pools["size"].min() + 1
    jobs["held"][1:] = np.cumsum(most_nodes)[:-1]
    fits = ((speed[row] > 0) & (pools["free"][None, :] >= gpus[:, None])).any(axis=1)
    jobs["status"] = np.where(fits, core.AHEAD, core.NEVER)
    return core.World(
        jobs=jobs,
        pools=pools,
        nodes=nodes,
        speed=speed,
        preference=np.argsort(-speed, axis=1, kind="stable"),
        waited=np.zeros((len(jobs), len(CAUSES))),
        order=np.zeros(len(jobs), np.int64),
        running=np.zeros(len(jobs), np.int64),
        ends=np.zeros(len(jobs)),
        falls=np.zeros(len(jobs)),
        held=np.zeros(int(most_nodes.sum()), SLOT),
        scratch=np.zeros(nodes.size + 1, SLOT),
        misfit=np.zeros((len(speed), int(gpus.max()) + 1), np.int64),
        count=np.zeros(core.NUM_COUNTS, np.int64),
    )


def run_of(
    trace: Trace,
    cluster: Cluster,
    policy: Policy | Allocator | SharePolicy,
    jobs: NDArray[Any],
    waits_s: NDArray[np.float64],
    columns: Sequence[NDArray[Any]],
    *,
    nodes: Sequence[NDArray[np.int64]] = (),
    placement: Placement = "any",
    refused: NDArray[np.bool_] | None = None,
) -> Run:
    """The run that a loop's records of jobs say, and the columns of its segments.

    ``nodes``: columns of ``Run.held``; default: every pool counts as one node.
    """
    job, _, _, pool, gpus = columns
    nodes = nodes or (np.arange(job.size), pool, gpus)
    return Run(
        trace=trace,
        cluster=cluster,
        policy=policy,
        placement=placement,
        start_s=jobs["start"].copy(),
        end_s=jobs["end"].copy(),
        preemptions=jobs["stops"].copy(),
        waits_s=waits_s,
        restart_s=jobs["lost"].copy(),
        refused=refused,
        segments=dict(zip(("job", "start_s", "end_s", "pool", "gpus"), columns, strict=True)),
        held=dict(zip(("segment", "node", "gpus"), nodes, strict=True)),
    )


def replayed(
    policy: Allocator,
    trace: Trace,
    cluster: Cluster,
    jobs: NDArray[np.void],
    rows: NDArray[np.float64],
    refused: NDArray[np.bool_] | None = None,
) -> Run:
    """What a compiled loop on one pool has done; ``rows``: job, start, end and GPUs of its runs."""
    rows = rows[rows[:, 2] > rows[:, 1]]
    held_s = np.bincount(rows[:, 0].astype(np.int64), rows[:, 2] - rows[:, 1], jobs.size)
    of, start, end, gpus = rows[np.argsort(rows[:, 2], kind="stable")].T
    of = of.astype(np.int64)
    gpus = gpus.astype(np.int64)
    waits = np.zeros((jobs.size, len(CAUSES)))
    waits[:, core.ORDER] = np.nan_to_num(jobs["start"] - jobs["arrival"])
    waits[:, core.PREEMPTED] = np.nan_to_num(jobs["end"] - jobs["start"] - held_s).clip(0)
    columns = of, start, end, np.zeros_like(of), gpus
    return run_of(trace, cluster, policy, jobs, waits, columns, refused=refused)


@checked
def sweep(
    traces: Sequence[Trace],
    clusters: Sequence[Cluster],
    policies: Sequence[Policy | Allocator | Callable[[Trace], Allocator]],
    *,
    placement: Placement = "any",
    warmup: Share = 0.0,
) -> pd.DataFrame:
    """Every trace on every cluster under every policy: one row each, beside the bound.

    A policy may be a function that makes one for a trace.
    ``times_bound_ratio`` is the mean completion time over :func:`bound`'s, of all jobs.
    """
    import pandas as pd

    from labkit.cluster.running.bounds import bound

    rows = []
    for trace in traces:
        for cluster in clusters:
            least = bound(trace, cluster)
            for policy in policies:
                chosen = policy(trace) if callable(policy) else policy
                run = simulate(trace, cluster, chosen, placement=placement)
                mean_s = float(run.jct_s[run.ran].mean())
                rows.append(
                    {
                        "trace": trace.name,
                        "gpus": cluster.num_gpus,
                        "offered_load": trace.offered_load(cluster.num_gpus),
                        **run.summary(warmup=warmup),
                        "bound_jct_s": least.mean_jct_s,
                        "times_bound_ratio": mean_s / least.mean_jct_s,
                    }
                )
    return pd.DataFrame(rows)
