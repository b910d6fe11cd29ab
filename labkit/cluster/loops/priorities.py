"""Run a trace under a priority policy, event by event: the records that the event loop works on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster, speeds
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.loops import event_loop
from labkit.cluster.loops.records import LIFE, jobs_of, run_of
from labkit.cluster.policies.orders import ORDERS, Policy
from labkit.cluster.results import CAUSES, Placement, Run
from labkit.errors import BadValue

JOB = np.dtype(
    [  # what every pass reads comes first, in one line of the cache
        ("status", "i8"),  # AHEAD to NEVER of the event loop
        ("pool", "i8"),  # where it runs
        ("key", "f8"),  # the queue is sorted by it,
        ("waits", "i8"),  # then by this: 0 where it ran after the last pass
        ("held", "i8"),  # where its nodes begin in World.held
        ("num_held", "i8"),  # how many nodes it holds
        ("row", "i8"),  # of World.speed
        *LIFE,
        ("attained", "f8"),  # seconds that it has held GPUs
        ("place", "i8"),  # among the running
        ("level", "i8"),  # its queue, 0 for the first
        ("cause", "i8"),  # what it waits for
        ("estimate", "f8"),  # seconds of work, as its user said
    ]
)
POOL = np.dtype(
    [
        ("first", "i8"),  # its first node
        ("last", "i8"),  # the node behind its last
        ("size", "i8"),  # GPUs of each
        ("free", "i8"),  # GPUs that no job holds
        ("avail", "i8"),  # GPUs that no job holds, or one that comes later in this pass
    ]
)
NODE = np.dtype(
    [
        ("free", "i8"),  # GPUs that no job holds
        ("avail", "i8"),  # GPUs that no job holds, or one that comes later in this pass
    ]
)
SLOT = np.dtype(
    [
        ("node", "i8"),
        ("gpus", "i8"),  # of the node
    ]
)
SEGMENT = np.dtype(
    [  # a run of a job
        ("job", "i8"),
        ("start", "f8"),
        ("end", "f8"),
        ("pool", "i8"),
        ("held", "i8"),  # where its nodes begin in Log.held
    ]
)


def run(trace: Trace, cluster: Cluster, policy: Policy, placement: Placement) -> Run:
    """A trace to its end.

    Raises:
        BadValue: the policy's key is not one finite number a job; or it backfills, and there are
            several pools or nodes matter.
    """
    if policy.backfills and (len(cluster.pools) > 1 or placement != "any"):
        raise BadValue(
            f"simulate: {policy.name!r} reserves GPUs by number; got {len(cluster.pools)} pools "
            f"and placement {placement!r}; valid: a cluster of one pool, placement 'any'"
        )
    whole_nodes = placement == "consolidated"
    world = _world(trace, cluster, policy, whole_nodes)
    rule = event_loop.Rule(
        order=ORDERS.index(policy.order),
        preemptive=policy.preemptive,
        blocks=policy.blocks,
        backfills=policy.backfills,
        thresholds=np.array(policy.thresholds, dtype=float),
        ranks=np.array(policy.ranks or range(len(policy.thresholds) + 1), dtype=float),
        late_demotion=policy.demotion == "tiresias",
        restart_s=float(policy.restart_s),
        nodes_matter=whole_nodes,
    )
    empty = event_loop.Log(np.zeros(len(trace), SEGMENT), np.zeros(len(trace), SLOT))
    log = event_loop.run(world, rule, empty)
    segments = log.segments[: world.count[event_loop.NUM_SEGMENTS]]
    held = log.held[: world.count[event_loop.NUM_HELD]]
    columns = [segments[name] for name in ("job", "start", "end", "pool")]
    columns.append(world.jobs["gpus"][segments["job"]])
    num_nodes = np.diff(np.append(segments["held"], held.size))
    segment_of_node = np.repeat(np.arange(num_nodes.size), num_nodes)
    return run_of(
        trace,
        cluster,
        policy,
        world.jobs,
        world.waited,
        columns,
        nodes=(segment_of_node, held["node"], held["gpus"]),
        placement=placement,
    )


def _keys(policy: Policy, trace: Trace) -> NDArray[np.float64]:
    """What the queue is ordered by at first, one number a job."""
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


def _world(trace: Trace, cluster: Cluster, policy: Policy, whole_nodes: bool) -> event_loop.World:
    """Before the first event: no job is there, all GPUs are free."""
    row, speed = speeds(trace, cluster)
    # 1. Pools and nodes; where only numbers of GPUs matter, a pool is one node.
    pools = np.zeros(len(cluster.pools), POOL)
    pools["size"] = [p.gpus_per_node if whole_nodes else p.num_gpus for p in cluster.pools]
    pools["last"] = np.cumsum([p.nodes if whole_nodes else 1 for p in cluster.pools])
    pools["first"][1:] = pools["last"][:-1]
    pools["free"] = [pool.num_gpus for pool in cluster.pools]
    nodes = np.zeros(int(pools["last"][-1]), NODE)
    nodes["free"] = np.repeat(pools["size"], pools["last"] - pools["first"])
    # 2. Jobs; each has room in ``held`` for the most nodes it may need.
    gpus = trace.column("gpus")
    jobs = jobs_of(trace, JOB)
    jobs["row"] = row
    jobs["key"] = _keys(policy, trace)
    jobs["waits"] = 1
    estimate_s = trace.column("estimate_s")
    jobs["estimate"] = np.where(np.isinf(estimate_s), trace.duration_s, estimate_s)
    jobs["cause"] = event_loop.ORDER if policy.blocks else event_loop.CAPACITY
    most_nodes = gpus // pools["size"].min() + 1
    jobs["held"][1:] = np.cumsum(most_nodes)[:-1]
    runs = speed[row] > 0
    has_room = pools["free"][None, :] >= gpus[:, None]
    fits = (runs & has_room).any(axis=1)
    jobs["status"] = np.where(fits, event_loop.AHEAD, event_loop.NEVER)
    return event_loop.World(
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
        count=np.zeros(event_loop.NUM_COUNTS, np.int64),
    )
