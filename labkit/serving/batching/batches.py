"""Batch servers: one GPU that runs batches of several models in turn, and drops what is too late.

The compiled loop has one order. Whenever the GPU is free, the models take turns, starting after the
one that ran last; a model without requests is passed over. From the first model with requests it
forms a batch by the drop policy; every request of the batch ends together. Requests of a model are
served first come, first served. Where all queues are empty, time moves on to the next arrival.
Complexity: O(models) a batch and O(1) a request, for ``early`` O(dropped requests) more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias, get_args

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit.compiled import hear, njit
from labkit.kit.describe import Count, NonNegative, Positive, checked, description
from labkit.serving.batching.profiles import BatchProfile
from labkit.serving.requests import Requests
from labkit.serving.results import Served

Drop = Literal["early", "lazy", "never"]
EARLY = 0
LAZY = 1

Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]


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


@description
class BatchServers:
    """GPUs that serve several models in batches.

    Attributes:
        servers: a model's requests go to the servers that hold it in turn, by planned rates.
            Requests for a model that none holds are dropped.
        drop: ``early`` looks for the first request whose deadline a whole batch from it on meets,
            and drops those before it; ``lazy`` drops only requests that not even a batch of one
            can answer in time, and runs what the oldest request's deadline allows; ``never``
            drops nothing.
    """

    servers: Annotated[tuple[BatchServer, ...], MinLen(1)]
    drop: Drop = "early"

    @property
    def profiles(self) -> dict[str, BatchProfile]:
        """The profile that each model was planned with."""
        return {
            slot.session.model: slot.session.profile
            for server in self.servers
            for slot in server.slots
        }


@njit(cache=True)
def _batch(deadline: Floats, latency: Floats, cap: int, rule: int, now: float) -> tuple[int, int]:
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
    arrival: Floats,
    deadline: Floats,
    edges: Whole,
    latency: Floats,
    caps: Whole,
    rule: int,
    end: Floats,
) -> None:
    """Fill end (NaN: dropped). Requests stand in order of model, then of arrival; those of a model
    from edges[model] to before edges[model + 1]."""
    head = edges[:-1].copy()  # by model: its first request that waits
    tail = edges[:-1].copy()  # by model: its first request that has not arrived
    num_models = caps.size
    turn = 0
    now = 0.0
    turns = 0
    while now < np.inf:
        turns += 1
        hear(turns, 4096)
        coming = np.inf
        for step in range(num_models):
            # 1. The models take turns, each with whoever has arrived by now.
            model = (turn + step) % num_models
            while tail[model] < edges[model + 1] and arrival[tail[model]] <= now:
                tail[model] += 1
            # 2. The drop policy forms a batch of it.
            waiting = deadline[head[model] : tail[model]]
            dropped, size = _batch(waiting, latency[model], caps[model], rule, now)
            head[model] += dropped
            if size > 0:
                # 3. All of the batch ends together; the next model's turn comes.
                now += latency[model, size - 1]
                end[head[model] : head[model] + size] = now
                head[model] += size
                turn = model + 1
                break
            if tail[model] < edges[model + 1]:
                coming = min(coming, arrival[tail[model]])
        else:
            now = coming  # 4. Nobody waits: time moves on to the next arrival, if there is one.


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
        of_model = np.flatnonzero(requests.model_index == place)
        shares = np.array(list(rates.values())) / sum(rates.values())
        counts = np.ceil(shares * of_model.size).astype(int) + 1
        # A server with a share w of the requests is due for its k-th at (k - 1/2) / w.
        due = [(np.arange(n) + 0.5) / share for n, share in zip(counts, shares, strict=True)]
        order = np.argsort(np.concatenate(due), kind="stable")[: of_model.size]
        server_of = np.repeat(list(rates), counts)[order]
        for number in rates:
            queues[number, model] = of_model[server_of == number]
    return queues


def _check(profile: Mapping[str, BatchProfile], servers: tuple[BatchServer, ...]) -> None:
    for slot in (slot for server in servers for slot in server.slots):
        model = slot.session.model
        if model not in profile:
            raise BadValue(f"simulate: profile lacks {model!r}; it has: {', '.join(profile)}")
        if profile[model].max_batch < slot.batch:
            raise BadValue(
                f"simulate: the profile of {model!r} ends at batches of {profile[model].max_batch}"
                f"; valid: up to its slot's {slot.batch}"
            )


@checked
def simulate(
    requests: Requests, profile: Mapping[str, BatchProfile], server: BatchServers
) -> Served:
    """Run requests on batch servers.

    Args:
        profile: by model, how long its batches really take; ``server.profiles`` are those that
            were planned with.

    Raises:
        BadValue: a model of the servers has no profile, or one that is too short.

    Source: Nexus (SOSP'19) §6.3, and ``backend/model_exec.cpp`` of its authors' program.

    >>> profile = BatchProfile(name="p", latency_s=(0.1, 0.15))
    >>> session = Session(model="m", profile=profile, rate_per_s=10, slo_s=0.25)
    >>> slot = Slot(session=session, batch=2, rate_per_s=10)
    >>> gpu = BatchServers(servers=(BatchServer(slots=(slot,)),))
    >>> requests = Requests(arrival_s=[0, 0.02, 0.03], slo_s=[0.25] * 3, model=("m",) * 3)
    >>> simulate(requests, {"m": profile}, gpu).end_s.tolist()  # one alone, then a batch of two
    [0.1, 0.25, 0.25]
    """
    _check(profile, server.servers)
    queues = _queues(requests, server.servers)
    rule = get_args(Drop).index(server.drop)
    arrival_s = requests.column("arrival_s")
    slo_s = requests.column("slo_s")
    end_s = np.full(len(requests), np.nan)
    server_of = np.full(len(requests), -1)
    nobody = np.zeros(0, int)
    for number, gpu in enumerate(server.servers):
        models = [slot.session.model for slot in gpu.slots]
        by_model = [queues.get((number, model), nobody) for model in models]
        chosen = np.concatenate(by_model)
        edges = np.cumsum([0, *map(len, by_model)])
        caps = np.array([slot.batch for slot in gpu.slots])
        tables = [profile[model].latency_s for model in models]  # read up to the caps
        latency_s = np.array([np.resize(table, caps.max()) for table in tables])
        deadline_s = arrival_s[chosen] + slo_s[chosen] * (1 + 1e-9)
        own_end_s = np.full(chosen.size, np.nan)
        _serve(arrival_s[chosen], deadline_s, edges, latency_s, caps, rule, own_end_s)
        end_s[chosen] = own_end_s
        server_of[chosen] = number
    return Served(requests=requests, end_s=end_s, server=server_of)
