"""Batch servers: one GPU that runs batches of several models in turn, and drops what is too late.

The compiled loop has one order. Whenever the GPU is free, the models take turns, starting after the
one that ran last; a model without requests is passed over. From the first model with requests it
forms a batch by the drop policy; every request of the batch ends together. Requests of a model are
served first come, first served. Where all queues are empty, time moves on to the next arrival.
Complexity: O(models) a batch and O(1) a request, for ``early`` O(dropped requests) more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, Positive, Share, checked, description
from labkit.serving.batching.profiles import BatchProfile
from labkit.serving.requests import Requests

Drop = Literal["early", "lazy", "never"]
EARLY, LAZY = 0, 1


@description
class Slot:
    """A model on a batch server.

    Attributes:
        model: the name that requests ask for.
        profile: its latency by batch size.
        batch: the largest batch it may form.
        rate_per_s: the requests it was planned for; a model on several servers sends each of them
            this share.
    """

    model: str
    profile: BatchProfile
    batch: Count
    rate_per_s: Positive

    def __post_init__(self) -> None:
        if self.batch > self.profile.max_batch:
            raise BadValue(
                f"Slot.batch of {self.model!r} must be from 1 to {self.profile.max_batch}, as far "
                f"as its profile goes; got {self.batch}"
            )

    @property
    def latency_s(self) -> float:
        """Seconds of a full batch."""
        return float(self.profile.latency_s[self.batch - 1])


@description
class BatchServer:
    """One GPU and the models it runs in turn."""

    slots: Annotated[tuple[Slot, ...], MinLen(1)]

    def __post_init__(self) -> None:
        names = [slot.model for slot in self.slots]
        if len(set(names)) < len(names):
            raise BadValue(f"BatchServer.slots must hold different models; got {names}")


class _Queues(NamedTuple):
    """Requests in order of model, then of arrival; model m has those from first[m] to last[m]."""

    arrival: Any
    deadline: Any
    first: Any
    last: Any


@njit(cache=True)
def _batch(queues: Any, head: int, waiting: int, latency: Any, cap: int, rule: int, now: float
           ) -> tuple[int, int]:  # fmt: skip
    """How many requests to drop from the head of a queue, and how many to run then."""
    dropped = 0
    if rule == EARLY:  # the first request that a whole window after it can still meet
        while dropped < waiting:
            size = min(cap, waiting - dropped)
            if now + latency[size - 1] <= queues.deadline[head + dropped]:
                return dropped, size
            dropped += 1
        return dropped, 0
    if rule == LAZY:  # only what cannot be met any more; the oldest request limits the batch
        while dropped < waiting and now + latency[0] > queues.deadline[head + dropped]:
            dropped += 1
        size = min(cap, waiting - dropped)
        while size > 1 and now + latency[size - 1] > queues.deadline[head + dropped]:
            size -= 1
        return dropped, size
    return 0, min(cap, waiting)


@njit(cache=True)
def _serve(queues: Any, latency: Any, caps: Any, rule: int, end: Any, size_of: Any) -> float:
    """Serve all requests; fills end (NaN: dropped) and size_of; returns busy seconds."""
    head, tail = queues.first.copy(), queues.first.copy()
    now, busy, turn, num = 0.0, 0.0, 0, caps.size
    while True:
        ran = False
        for step in range(num):
            m = (turn + step) % num
            while tail[m] < queues.last[m] and queues.arrival[tail[m]] <= now:
                tail[m] += 1
            if head[m] == tail[m]:
                continue
            waiting = tail[m] - head[m]
            dropped, size = _batch(queues, head[m], waiting, latency[m], caps[m], rule, now)
            head[m] += dropped
            if size == 0:
                continue
            spent = latency[m, size - 1]
            now += spent
            busy += spent
            end[head[m] : head[m] + size] = now
            size_of[head[m] : head[m] + size] = size
            head[m] += size
            turn, ran = m + 1, True
            break
        if not ran:
            coming = np.inf
            for m in range(num):
                if tail[m] < queues.last[m]:
                    coming = min(coming, queues.arrival[tail[m]])
            if coming == np.inf:
                return busy
            now = coming


@dataclass(frozen=True, kw_only=True, eq=False)
class Served:
    """What became of each request, in the order of the requests; all simulated.

    Attributes:
        end_s: when its answer came; NaN where it was dropped.
        server: which server or group it went to; -1: none holds its model.
        batch: the size of its batch; 0 where it was dropped.
        busy_s: seconds each server worked; of a group, each of its GPUs.
    """

    requests: Requests
    end_s: NDArray[np.float64]
    server: NDArray[np.int64]
    batch: NDArray[np.int64]
    busy_s: NDArray[np.float64]

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """Seconds from arrival to answer; NaN where there was none."""
        return self.end_s - self.requests.column("arrival_s")

    @property
    def met(self) -> NDArray[np.bool_]:
        """Which requests were answered within their latency objective."""
        return self.latency_s <= self.requests.column("slo_s") * (1 + 1e-9)

    @checked
    def summary(self, *, warmup: Share = 0.0) -> dict[str, Any]:
        """Attainment, latency and utilisation in one row.

        Args:
            warmup: the fraction of requests, first by arrival, left out of all but utilisation.
        """
        counted = np.arange(len(self.requests)) >= int(warmup * len(self.requests))
        latency = self.latency_s[counted & ~np.isnan(self.end_s)]
        last = np.nanmax(self.end_s) if np.isfinite(self.end_s).any() else np.nan
        span_s = float(last - self.requests.column("arrival_s")[0])
        answered = latency.size > 0
        return {
            "requests": int(counted.sum()),
            "attainment": float(self.met[counted].mean()),
            "dropped": int(np.isnan(self.end_s[counted]).sum()),
            "mean_latency_s": float(latency.mean()) if answered else np.nan,
            "p99_latency_s": float(np.quantile(latency, 0.99)) if answered else np.nan,
            "mean_batch": float(self.batch[self.batch > 0].mean()) if answered else np.nan,
            "utilisation_fraction": float(self.busy_s.sum() / (self.busy_s.size * span_s)),
        }


def _dispatched(
    names: tuple[str, ...], index: NDArray[np.int64], servers: tuple[BatchServer, ...]
) -> NDArray[np.int64]:
    """Each request's server: a model's requests go to its servers in turn, by their shares."""
    target = np.full(index.size, -1, dtype=np.int64)
    for place, model in enumerate(names):
        mine = np.flatnonzero(index == place)
        rates = {
            number: slot.rate_per_s
            for number, server in enumerate(servers) for slot in server.slots
            if slot.model == model
        }  # fmt: skip
        if not rates or not mine.size:
            continue
        shares = np.array(list(rates.values())) / sum(rates.values())
        counts = np.ceil(shares * mine.size).astype(int) + 1
        turns = np.concatenate([(np.arange(n) + 0.5) / w for n, w in zip(counts, shares)])  # noqa: B905
        order = np.argsort(turns, kind="stable")[: mine.size]
        target[mine] = np.repeat(np.array(list(rates)), counts)[order]
    return target


@checked
def serve(
    requests: Requests, servers: Annotated[tuple[BatchServer, ...], MinLen(1)], *,
    drop: Drop = "early", overhead: Positive = 1.0,
) -> Served:  # fmt: skip
    """Run requests on batch servers.

    Args:
        servers: a model's requests go to the servers that hold it in turn, by planned rates.
            Requests for a model that none holds are dropped.
        drop: ``early`` looks for the first request whose deadline a whole batch from it on meets,
            and drops those before it; ``lazy`` drops only requests that not even a batch of one
            can answer in time, and runs what the oldest request's deadline allows; ``never``
            drops nothing.
        overhead: every batch takes this times its profile's latency.

    Source: Nexus (SOSP'19) §6.3, and ``backend/model_exec.cpp`` of its authors' program.
    """
    names, index = requests.models, requests.model_index
    target = _dispatched(names, index, servers)
    end = np.full(len(requests), np.nan)
    batch, busy = np.zeros(len(requests), np.int64), np.zeros(len(servers))
    for number, server in enumerate(servers):
        mine = np.flatnonzero(target == number)
        places = {slot.model: place for place, slot in enumerate(server.slots)}
        model = np.array([places.get(name, -1) for name in names])[index[mine]]
        chosen, queues = _queues(requests, mine, model, len(server.slots))
        ends, sizes = np.full(chosen.size, np.nan), np.zeros(chosen.size, np.int64)
        latency = _table(server, overhead)
        caps = np.array([slot.batch for slot in server.slots])
        rule = get_args(Drop).index(drop)
        busy[number] = _serve(queues, latency, caps, rule, ends, sizes)
        end[chosen], batch[chosen] = ends, sizes
    return Served(requests=requests, end_s=end, server=target, batch=batch, busy_s=busy)


def _queues(
    requests: Requests, mine: NDArray[np.int64], model: NDArray[np.int64], num_models: int
) -> tuple[NDArray[np.int64], _Queues]:
    """A server's requests in order of its models, and the queues made of them."""
    order = np.argsort(model, kind="stable")
    chosen = mine[order]
    edges = np.searchsorted(model[order], np.arange(num_models + 1))
    arrival = requests.column("arrival_s")[chosen]
    deadline = arrival + requests.column("slo_s")[chosen] * (1 + 1e-9)
    return chosen, _Queues(arrival, deadline, edges[:-1], edges[1:])


def _table(server: BatchServer, overhead: float) -> NDArray[np.float64]:
    """Latencies, model by batch; rows of short profiles are filled with infinity."""
    longest = max(slot.profile.max_batch for slot in server.slots)
    latency = np.full((len(server.slots), longest), np.inf)
    for row, slot in enumerate(server.slots):
        latency[row, : slot.profile.max_batch] = np.array(slot.profile.latency_s) * overhead
    return latency


@checked
def highest(
    attainment: Callable[[float], float], low: Positive, high: Positive, *, target: Share = 0.99,
    steps: Count = 8,
) -> float:  # fmt: skip
    """The highest load at which a server still attains its target, by bisection of its logarithm.

    Args:
        attainment: the share of requests in time at a load: a rate, a burstiness.
        low, high: where to look; ``low`` is returned where even that fails.

    Raises:
        BadValue: ``high`` is not above ``low``.
    """
    if high <= low:
        raise BadValue(f"highest: high must be above low; got {low} and {high}")
    try:
        if attainment(high) >= target:
            return high
    except TypeError as error:
        raise BadValue(f"highest: attainment must map a load to a share; {error}") from None
    for _ in range(steps):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if attainment(middle) >= target else (low, middle)
    return low
