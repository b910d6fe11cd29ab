"""Batch servers: one GPU that runs batches of several models in turn, and drops what is too late.

The compiled loop has one order. Whenever the GPU is free, the models take turns, starting after the
one that ran last; a model without requests is passed over. From the first model with requests it
forms a batch by the drop policy; every request of the batch ends together. Requests of a model are
served first come, first served. Where all queues are empty, time moves on to the next arrival.
Complexity: O(models) a batch and O(1) a request, for ``early`` O(dropped requests) more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, NonNegative, Positive, checked, description
from labkit.serving.batching.profiles import BatchProfile
from labkit.serving.requests import Requests

Drop = Literal["early", "lazy", "never"]
EARLY = 0
LAZY = 1


@description
class Session:
    """A model with the rate and the latency objective of its requests.

    Raises:
        BadValue: not even batches of one can meet the objective: a request may wait for one batch
            and then run in the next.
    """

    model: str
    profile: BatchProfile
    rate_per_s: Positive
    slo_s: Positive

    def __post_init__(self) -> None:
        if not self.best[0]:
            raise BadValue(
                f"Session.slo_s of {self.model!r} must be at least twice the latency of a batch, "
                f"{2 * min(self.profile.latency_s):.4g}; got {self.slo_s}"
            )

    @property
    def best(self) -> tuple[int, float]:
        """The batch with the most requests a second that may wait for another of its kind, and
        that rate."""
        return self.profile.best(self.slo_s / 2)


@description
class Slot:
    """A session's requests on a batch server.

    Attributes:
        batch: the largest batch it may form.
        rate_per_s: its requests there; a session on several servers sends each of them this share.
    """

    session: Session
    batch: Count
    rate_per_s: Positive

    def __post_init__(self) -> None:
        if self.batch > (most := self.session.profile.max_batch):
            raise BadValue(
                f"Slot.batch of {self.session.model!r} must be from 1 to {most}, as far as its "
                f"profile goes; got {self.batch}"
            )

    @property
    def latency_s(self) -> float:
        """Seconds of a full batch."""
        return float(self.session.profile.latency_s[self.batch - 1])


@description
class BatchServer:
    """One GPU and the models it runs in turn.

    Attributes:
        duty_s: the duty cycle it was planned with, in which it runs a batch of each; 0: none.
    """

    slots: Annotated[tuple[Slot, ...], MinLen(1)]
    duty_s: NonNegative = 0.0

    def __post_init__(self) -> None:
        names = [slot.session.model for slot in self.slots]
        if len(set(names)) < len(names):
            raise BadValue(f"BatchServer.slots must hold different models; got {names}")


@njit(cache=True)
def _batch(deadline: Any, latency: Any, cap: int, rule: int, now: float) -> tuple[int, int]:
    """How many of the waiting requests to drop from the head, and how many to run then."""
    waiting = deadline.size
    dropped = 0
    if rule == EARLY:  # the first request that a whole window after it can still meet
        while dropped < waiting:
            size = min(cap, waiting - dropped)
            if now + latency[size - 1] <= deadline[dropped]:
                return dropped, size
            dropped += 1
        return dropped, 0
    if rule == LAZY:  # only what cannot be met any more; the oldest request limits the batch
        while dropped < waiting and now + latency[0] > deadline[dropped]:
            dropped += 1
        size = min(cap, waiting - dropped)
        while size > 1 and now + latency[size - 1] > deadline[dropped]:
            size -= 1
        return dropped, size
    return 0, min(cap, waiting)


@njit(cache=True)
def _serve(
    arrival: Any, deadline: Any, edges: Any, latency: Any, caps: Any, rule: int, end: Any
) -> None:
    """Fill end (NaN: dropped). Requests stand in order of model, then of arrival; those of model m
    from edges[m] to before edges[m + 1]."""
    head = edges[:-1].copy()
    tail = edges[:-1].copy()
    now = 0.0
    turn = 0
    num = caps.size
    while now < np.inf:
        coming = np.inf
        for step in range(num):
            m = (turn + step) % num
            while tail[m] < edges[m + 1] and arrival[tail[m]] <= now:
                tail[m] += 1
            dropped, size = _batch(deadline[head[m] : tail[m]], latency[m], caps[m], rule, now)
            head[m] += dropped
            if size > 0:
                now += latency[m, size - 1]
                end[head[m] : head[m] + size] = now
                head[m] += size
                turn = m + 1
                break
            if tail[m] < edges[m + 1]:
                coming = min(coming, arrival[tail[m]])
        else:
            now = coming


@dataclass(frozen=True, kw_only=True, eq=False)
class Served:
    """What became of each request, in the order of the requests; all simulated.

    Attributes:
        end_s: when its answer came; NaN where it was dropped.
        server: which server or group it went to; -1: none holds its model.
    """

    requests: Requests
    end_s: NDArray[np.float64]
    server: NDArray[np.int64]

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """Seconds from arrival to answer; NaN where there was none."""
        return self.end_s - self.requests.column("arrival_s")

    @property
    def met(self) -> NDArray[np.bool_]:
        """Which requests were answered within their latency objective."""
        return self.latency_s <= self.requests.column("slo_s") * (1 + 1e-9)

    def summary(self) -> dict[str, float]:
        """Requests by what became of them, goodput and latency, in one row; NaN: none answered."""
        answered = self.latency_s[~np.isnan(self.end_s)]
        p50_s, p99_s = np.quantile(answered, (0.5, 0.99)) if answered.size else (np.nan, np.nan)
        return {
            "requests": len(self.requests),
            "dropped": len(self.requests) - answered.size,
            "slo_fraction": float(self.met.mean()),
            "goodput_per_s": self.requests.rate_per_s * float(self.met.mean()),
            "median_latency_s": float(p50_s),
            "p99_latency_s": float(p99_s),
        }


def _queues(
    requests: Requests, servers: tuple[BatchServer, ...]
) -> dict[tuple[int, str], NDArray[np.int64]]:
    """The requests of each server's models: a model's go to its servers in turn, by their rates."""
    queues: dict[tuple[int, str], NDArray[np.int64]] = {}
    for place, model in enumerate(requests.models):
        rates = {
            number: slot.rate_per_s
            for number, server in enumerate(servers)
            for slot in server.slots
            if slot.session.model == model
        }
        if not rates:
            continue
        mine = np.flatnonzero(requests.model_index == place)
        shares = np.array(list(rates.values())) / sum(rates.values())
        counts = np.ceil(shares * mine.size).astype(int) + 1
        turns = np.concatenate([(np.arange(n) + 0.5) / w for n, w in zip(counts, shares)])  # noqa: B905
        order = np.argsort(turns, kind="stable")[: mine.size]
        server_of = np.repeat(list(rates), counts)[order]
        queues |= {(number, model): mine[server_of == number] for number in rates}
    return queues


@checked
def serve(
    requests: Requests,
    servers: Annotated[tuple[BatchServer, ...], MinLen(1)],
    *,
    drop: Drop = "early",
    overhead: Positive = 1.0,
) -> Served:
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
    queues = _queues(requests, servers)
    rule = get_args(Drop).index(drop)
    arrival_s = requests.column("arrival_s")
    slo_s = requests.column("slo_s")
    end = np.full(len(requests), np.nan)
    target = np.full(len(requests), -1)
    for number, server in enumerate(servers):
        mine = [queues.get((number, slot.session.model), np.zeros(0, int)) for slot in server.slots]
        chosen = np.concatenate(mine)
        edges = np.cumsum([0, *map(len, mine)])
        caps = np.array([slot.batch for slot in server.slots])
        tables = [slot.session.profile.latency_s for slot in server.slots]  # read up to the caps
        latency = overhead * np.array([np.resize(table, caps.max()) for table in tables])
        deadline = arrival_s[chosen] + slo_s[chosen] * (1 + 1e-9)
        ends = np.full(chosen.size, np.nan)
        _serve(arrival_s[chosen], deadline, edges, latency, caps, rule, ends)
        end[chosen] = ends
        target[chosen] = number
    return Served(requests=requests, end_s=end, server=target)
