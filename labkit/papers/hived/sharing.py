"""Tenants who share a cluster: alone, by quotas of GPUs, or by reserved cells; all simulated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit import datasets
from labkit.cluster.inputs.published import ITP, PARTS, RAW, STANDIN_PART, load
from labkit.cluster.inputs.traces import NEEDED, Trace
from labkit.cluster.policies.orders import Policy
from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, checked
from labkit.papers.hived.cells import Buddies, Held, Hierarchy, Reserved, bind_for_good

DAY_S = 86400.0


class Sharing(StrEnum):
    """Ways of sharing a cluster among tenants."""

    PRIVATE = "private clusters"
    """Each tenant runs its jobs on its own cells, and nothing is shared."""
    QUOTA = "quotas, load spread"
    """Each takes any free cells up to the GPUs it has reserved, from the largest free cell."""
    PACKED_QUOTA = "quotas, packed"
    """Each takes any free cells up to the GPUs it has reserved, from the smallest that will do."""
    CELLS = "cells, buddies"
    """HiveD: each uses its own cells, bound to the smallest hardware that will do."""
    CELLS_LARGEST_FIRST = "cells, largest first"
    """Each uses its own cells, bound to hardware that is cut from the largest free cell."""
    FIXED_CELLS = "a fixed partition"
    """Each uses its own cells, which stand for the same hardware for ever: a fixed partition."""


BY_QUOTA = {Sharing.QUOTA, Sharing.PACKED_QUOTA}
BY_CELLS = {Sharing.CELLS, Sharing.CELLS_LARGEST_FIRST, Sharing.FIXED_CELLS}
FROM_LARGEST = {Sharing.QUOTA, Sharing.CELLS_LARGEST_FIRST}


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared:
    """What became of every job, in order of arrival; simulated.

    Attributes:
        start_s, end_s: first start and end.
        busy_gpu_s: GPU-seconds held within the span of the arrivals, over all jobs.
        num_evictions: times that a job of low priority gave its GPUs back before its end.
    """

    trace: Trace
    num_gpus: int
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    busy_gpu_s: float
    num_evictions: int = 0

    @property
    def wait_s(self) -> NDArray[np.float64]:
        """Queueing delay until the first start."""
        return self.start_s - self.trace.column("arrival_s")

    @property
    def jct_s(self) -> NDArray[np.float64]:
        return self.end_s - self.trace.column("arrival_s")

    @property
    def offered_load(self) -> float:
        return self.trace.offered_load(self.num_gpus)

    @property
    def utilisation_fraction(self) -> float:
        """GPUs held by jobs over all GPUs, while jobs arrive."""
        arrival = self.trace.column("arrival_s")
        return self.busy_gpu_s / (self.num_gpus * float(arrival[-1] - arrival[0]))


def merge_tenants(parts: Sequence[tuple[str, Trace, float]], days: float) -> Trace:
    """One trace of several tenants: so many days of each one's jobs, laid over each other.

    Args:
        parts: a tenant, jobs of its own, and their first day on the clock of their trace.

    Raises:
        BadValue: there is no job in the days of a tenant; the message says on which days its jobs
            arrive.
    """
    columns: dict[str, Any] = {name: [] for name in (*NEEDED, "tenant")}
    for tenant, trace, first_day in parts:
        start_s = DAY_S * first_day
        arrival = trace.column("arrival_s")
        inside = (arrival >= start_s) & (arrival < start_s + DAY_S * days)
        if not inside.any():
            first = arrival.min() / DAY_S
            last = arrival.max() / DAY_S
            raise BadValue(
                f"merge_tenants: no job of {tenant!r} arrives on days {first_day:g} to "
                f"{first_day + days:g}, only on some of the days {first:.0f} to {last:.0f}; "
                "valid: days on which every tenant has a job"
            )
        for name in NEEDED:
            columns[name] += (trace.column(name)[inside] - start_s * (name == "arrival_s")).tolist()
        columns["tenant"] += [tenant] * int(inside.sum())
    return Trace(**columns, name=f"{len({*columns['tenant']})} tenants, {days:g} days")


@cache
def _part(part: str) -> Trace:
    return load(ITP, part=part)


@cache
@checked
def load_tenants(first_day: NonNegative, days: Positive, *, low_day: float | None = None) -> Trace:
    """The ten clusters of ``itp-elasticflow`` as tenants, in some days that all of them have.

    Where the traces cannot be had, seven tenants: weeks of the stand-in of one cluster.

    Args:
        first_day: on the clock of the traces.
        days: how many.
        low_day: adds the jobs of all of them in as many days from there, as the tenant ``low``;
            default: there is no such tenant.
    """
    if datasets.source(ITP, [RAW]).is_standin:
        owners = [(f"week {week}", _part(STANDIN_PART), 7.0 * week) for week in range(7)]
        first_day = first_day % 7
        low_day = None if low_day is None else low_day % 7
    else:
        owners = [(part, _part(part), 0.0) for part in PARTS[ITP][:10]]
    days_of = [(name, trace, start + first_day) for name, trace, start in owners]
    if low_day is not None:
        days_of += [("low", trace, start + low_day) for _, trace, start in owners]
    return merge_tenants(days_of, days)


@checked
def nodes_for(trace: Trace, most_load: Positive, *, gpus: Count = 8) -> dict[str, dict[str, int]]:
    """Nodes for each tenant: its jobs offer at most ``most_load``, and the largest fits.

    Args:
        trace: jobs of tenants.
        most_load: work that a tenant's jobs offer, over what its GPUs can do.
        gpus: of a node.
    """
    tenant = np.array(trace.tenant)
    span_s = float(np.ptp(trace.column("arrival_s")))
    nodes = {}
    for name in sorted(set(trace.tenant)):
        mine = tenant == name
        busy_gpus = trace.work_gpu_s[mine].sum() / span_s
        needed = max(busy_gpus / most_load, trace.column("gpus")[mine].max())
        nodes[name] = {"node": int(-(-needed // gpus))}
    return nodes


@checked
def cells_for(trace: Trace, most_load: Positive) -> dict[str, dict[str, int]]:
    """Cells of every level for each tenant, as many as its jobs of that level keep busy.

    A tenant's jobs of a level offer at most ``most_load`` to its cells of that level, and each job
    fits.

    Args:
        trace: jobs of tenants.
        most_load: work that jobs offer, over what the cells can do.
    """
    hierarchy = Hierarchy()
    names = list(hierarchy.sizes)
    span_s = float(np.ptp(trace.column("arrival_s")))
    busy_s: dict[str, dict[str, float]] = {name: {} for name in sorted(set(trace.tenant))}
    most: dict[str, dict[str, int]] = {name: {} for name in busy_s}
    durations_s = trace.column("duration_s").tolist()
    gpus = trace.column("gpus").tolist()
    shapes = {num_gpus: hierarchy.shape(num_gpus) for num_gpus in set(gpus)}
    for tenant, duration_s, num_gpus in zip(trace.tenant, durations_s, gpus, strict=True):
        levels = shapes[num_gpus]
        level = names[levels[0]]
        busy_s[tenant][level] = busy_s[tenant].get(level, 0.0) + duration_s * len(levels)
        most[tenant][level] = max(most[tenant].get(level, 0), len(levels))
    cells: dict[str, dict[str, int]] = {}
    for tenant, by_level in busy_s.items():
        cells[tenant] = {}
        for level in names:
            if level in by_level:
                needed = by_level[level] / span_s / most_load
                cells[tenant][level] = max(math.ceil(needed), most[tenant][level])
    return cells


def num_nodes(reservations: Iterable[Mapping[str, int]], hierarchy: Hierarchy) -> int:
    """Nodes that hold all reservations; the last may have GPUs to spare."""
    sizes = hierarchy.sizes
    gpus = sum(sizes[level] * count for cells in reservations for level, count in cells.items())
    return -(-gpus // sizes[hierarchy.node])


@checked
def simulate(
    trace: Trace,
    tenants: Mapping[str, Mapping[str, int]],
    policy: Policy,
    sharing: Sharing,
    *,
    low_priority: tuple[str, ...] = (),
    spread_slowdown: Positive | None = None,
) -> Shared:
    """Run every tenant's jobs in its own queue on a cluster as large as all reservations.

    A job takes the cells of :meth:`Hierarchy.shape`; the queue's order is the policy's.

    Args:
        trace: jobs of tenants.
        tenants: the cells each has reserved, by level.
        policy: an order of jobs that stops none.
        sharing: who may use what, and which free cell is cut.
        low_priority: tenants without cells whose jobs, smallest first, take GPUs that are free and
            give them back when a reserved cell needs them; what is left of a job is kept.
        spread_slowdown: under ``quota``, a job without its cells runs at once on scattered GPUs,
            so many times slower; None: it waits.

    Raises:
        BadValue: ``sharing`` is none of them, the policy preempts, a tenant's job is larger than
            its cells, or low_priority without cells.
    """
    if policy.order != "key":
        raise BadValue(
            f"hived.simulate: policy {policy.name!r} preempts; valid: fifo, best-effort, sjf"
        )
    if low_priority and sharing not in BY_CELLS:
        raise BadValue(
            f"hived.simulate: low_priority needs cells, such as Sharing.CELLS; got {sharing!r}"
        )
    names = trace.tenant or ("",) * len(trace)
    state = _State(trace, names, tenants, policy, sharing, spread_slowdown, set(low_priority))
    fitting: set[tuple[str, int]] = set()
    for job, name in enumerate(names):
        kind = (name, state.gpus[job])
        if kind in fitting:
            continue
        fitting.add(kind)
        cells = state.own.get(name)
        levels = state.shapes[state.gpus[job]]
        if name not in state.low and not (cells and cells.could_hold(levels)):
            raise BadValue(
                f"hived.simulate: job {trace.id_of(job)} of tenant {name!r} needs "
                f"{state.gpus[job]} GPUs; valid: what fits its cells, {dict(tenants.get(name, {}))}"
            )
    return state.run()


class _State:
    """Queues, cells and running jobs, at one moment."""

    def __init__(
        self,
        trace: Trace,
        names: tuple[str, ...],
        tenants: Mapping[str, Mapping[str, int]],
        policy: Policy,
        sharing: Sharing,
        slowdown: float | None,
        low: set[str],
    ) -> None:
        hierarchy = Hierarchy()
        self.trace = trace
        self.names = names
        self.low = low
        self.slowdown = slowdown
        self.arrival = trace.column("arrival_s").tolist()
        self.gpus = trace.column("gpus").tolist()
        self.left = trace.column("duration_s").tolist()
        self.blocks = policy.blocks
        keys = np.asarray(policy.key(trace)).tolist()
        self.rank = [  # smaller jobs of low priority come first
            (gpus if name in low else 0, key, job)
            for job, (gpus, name, key) in enumerate(zip(self.gpus, names, keys, strict=True))
        ]
        nodes = num_nodes(tenants.values(), hierarchy)
        self.physical = Buddies(
            hierarchy, {hierarchy.node: nodes}, largest_first=sharing in FROM_LARGEST
        )
        self.by_quota = sharing in BY_QUOTA
        # Where others can take the hardware, a tenant's jobs may start when another's end.
        self.may_be_refused = self.by_quota or sharing is Sharing.CELLS_LARGEST_FIRST
        binds = self.physical if sharing in BY_CELLS else None
        self.own = {name: Reserved(hierarchy, cells, binds) for name, cells in tenants.items()}
        if sharing is Sharing.FIXED_CELLS:
            bind_for_good(self.own.values())
        self.quota = {name: own.virtual.num_gpus for name, own in self.own.items()}
        self.queues: dict[str, dict[int, list[tuple[int, float, int]]]] = {}
        self.ends: list[tuple[float, int, int]] = []
        self.held: dict[int, Held] = {}
        self.owner = np.full(self.physical.num_gpus, -1)  # the low-priority job on each GPU
        self.taken = np.zeros(self.physical.num_gpus, dtype=bool)  # by jobs of reserved cells
        self.start = np.full(len(trace), np.nan)
        self.end = np.full(len(trace), np.nan)
        self.since = np.zeros(len(trace))
        self.evictions = [0] * len(trace)
        self.busy = 0.0
        self.shapes = {gpus: hierarchy.shape(gpus) for gpus in set(self.gpus)}
        self.sizes = hierarchy.gpus
        self.need = {n: sum(self.sizes[k] for k in levels) for n, levels in self.shapes.items()}

    def run(self) -> Shared:
        order = self.arrival
        arrived = 0
        while arrived < len(order) or self.ends:
            now = min(
                self.ends[0][0] if self.ends else np.inf,
                order[arrived] if arrived < len(order) else np.inf,
            )
            dirty: set[str] = set()
            while self.ends and self.ends[0][0] == now:
                _, job, stops = heappop(self.ends)
                if stops == self.evictions[job]:
                    self.stop(job, now)
                    dirty.add(self.names[job])
            if dirty and self.may_be_refused:
                dirty = {name for name, queue in self.queues.items() if queue}
            while arrived < len(order) and order[arrived] == now:
                self.put(arrived)
                dirty.add(self.names[arrived])
                arrived += 1
            self.serve(dirty - self.low, now)
            self.serve(self.low, now)
        return Shared(
            trace=self.trace,
            num_gpus=self.physical.num_gpus,
            start_s=self.start,
            end_s=self.end,
            busy_gpu_s=self.busy,
            num_evictions=sum(self.evictions),
        )

    def put(self, job: int) -> None:
        """Into its tenant's queue; without blocking, one queue a size, since sizes fit alike."""
        size = 0 if self.blocks and self.names[job] not in self.low else self.gpus[job]
        queue = self.queues.setdefault(self.names[job], {}).setdefault(size, [])
        heappush(queue, self.rank[job])

    def serve(self, dirty: set[str], now: float) -> None:
        """Start what can be started: the tenant whose first job comes first, first."""
        heads = [
            (queue[0], name, size)
            for name in dirty
            for size, queue in self.queues.get(name, {}).items()
        ]
        heapify(heads)
        while heads:
            (_, _, job), name, size = heappop(heads)
            if self.begin(job, now):
                queue = self.queues[name][size]
                heappop(queue)
                if queue:
                    heappush(heads, (queue[0], name, size))
                else:
                    del self.queues[name][size]

    def begin(self, job: int, now: float) -> bool:
        """Give a job its cells and start it, if they are to be had.

        One of low priority takes free GPUs, those that buddies would give last.
        """
        name = self.names[job]
        gpus = self.gpus[job]
        duration = self.left[job]
        levels = self.shapes[gpus]
        held: Held | None = None
        if name in self.low:
            free = np.flatnonzero(~self.taken & (self.owner < 0))[-gpus:]
            if free.size == gpus:
                self.owner[free] = job
                held = [(0, int(gpu)) for gpu in free]
        elif self.by_quota:
            size = self.need[gpus]
            if size > self.quota[name]:
                return False
            held = self.physical.allocate_all(levels)
            if held is None and self.slowdown:
                held = self.physical.allocate_all([0] * gpus)
                duration = duration * self.slowdown
                size = gpus
            if held is not None:
                self.quota[name] -= size
        else:
            held = self.own[name].allocate(levels)
        if held is None:
            return False
        self.held[job] = held
        self.since[job] = now
        self.start[job] = now if np.isnan(self.start[job]) else self.start[job]
        if self.low and name not in self.low:
            self.evict(self.own[name].hardware(held), now)
        heappush(self.ends, (now + duration, job, self.evictions[job]))
        return True

    def stop(self, job: int, now: float) -> None:
        """A job ends or is evicted: its cells are free."""
        held = self.held.pop(job)
        name = self.names[job]
        until = min(now, self.arrival[-1])
        self.busy += max(until - self.since[job], 0.0) * self.gpus[job]
        if name in self.low:
            for _, gpu in held:
                self.owner[gpu] = -1
        elif self.by_quota:
            self.quota[name] += sum(self.sizes[level] for level, _ in held)
            for cell in held:
                self.physical.release(*cell)
        else:
            if self.low:
                for level, gpu in self.own[name].hardware(held):
                    self.taken[gpu : gpu + self.sizes[level]] = False
            self.own[name].release(held)
        self.end[job] = now

    def evict(self, cells: Held, now: float) -> None:
        """Jobs of low priority leave the GPUs that a reserved cell needs."""
        for level, gpu in cells:
            gpus = slice(gpu, gpu + self.sizes[level])
            self.taken[gpus] = True
            for job in set(self.owner[gpus].tolist()) - {-1}:
                self.stop(job, now)
                self.left[job] -= now - self.since[job]
                self.evictions[job] += 1
                self.put(job)
