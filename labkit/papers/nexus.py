"""Nexus: which models share a GPU, in batches of which size, and how a query splits its latency.

A GPU runs its models in turn, one batch of each a *duty cycle*. A request may just miss its batch
and wait for the next, so its worst latency is the duty cycle plus its own batch. What a request
costs depends on its batch, its batch on the duty cycle, and that on who shares the GPU: items
change size in the bin, which is why the paper calls its bin packing squishy.

    sessions = nexus.specialised_copies(profiles, 96, slo_s=0.1)
    packing = nexus.plan("prefixes", sessions, 16)
    nexus.sustained_rate(packing)              # requests a second of which 99 % are in time
    nexus.fractional_bound(packing.sessions)   # GPUs that no schedule can do without

Batches run on :class:`labkit.serving.BatchServer`, which is the engine's.

Source: Shen et al., Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis
(SOSP'19), and its authors' program.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Ge, Le, MinLen
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, Whole, checked, description
from labkit.serving.batching.batches import BatchServer, BatchServers, Drop, Session, Slot
from labkit.serving.batching.profiles import BatchProfile
from labkit.serving.requests import Requests, traffic
from labkit.serving.results import Served
from labkit.serving.simulation import simulate
from labkit.serving.sweeps import highest_load

if TYPE_CHECKING:
    import pandas as pd

    from labkit.datasets import Source

DATASET = "nexus-sosp19"
MODELS = ("vgg16", "vgg_face", "vgg_s")
"""The models whose profiles are published."""

SLACK = 1 + 1e-9
"""Relative slack of comparisons between sums of times: far below any latency's precision."""
Way = Literal["baseline", "packing", "prefixes"]


@checked
def published_profiles(source: Source | None = None) -> dict[str, BatchProfile]:
    """The profiles of ``nexus-sosp19`` by model, on a TITAN X.

    Args:
        source: published or stand-in, as ``labkit.datasets.source`` opens it; None: what is here.
    """
    from labkit import datasets

    data = source or datasets.source(DATASET)
    return {
        name: replace(BatchProfile.read(data.path(f"caffe:{name}:1.txt")), name=name)
        for name in MODELS
    }


@checked
def linear_profile(
    alpha_ms: NonNegative, beta_ms: NonNegative, *, max_batch: Count = 40
) -> BatchProfile:
    """A made-up profile in which a batch of b requests takes α·b + β.

    Args:
        alpha_ms: what a request adds.
        beta_ms: what a batch costs however small.
        max_batch: the largest batch in the table.

    Raises:
        BadValue: both are 0.

    Source: Eq. 1.

    >>> linear_profile(1.0, 25.0).best(0.05)  # 25 requests in 50 ms
    (25, 500.0)
    """
    latency_s = (alpha_ms * np.arange(1, max_batch + 1) + beta_ms) / 1e3
    return BatchProfile(
        name=f"{alpha_ms:g} b + {beta_ms:g} ms", latency_s=tuple(latency_s.tolist())
    )


# ---------------------------------------------------------------- squishy bin packing


@dataclass(frozen=True, kw_only=True)
class Packing:
    """What is planned for, and what each GPU runs."""

    sessions: tuple[Session, ...]
    servers: tuple[BatchServer, ...]

    @property
    def num_gpus(self) -> int:
        """GPUs of the plan."""
        return len(self.servers)

    def frame(self) -> pd.DataFrame:
        """One row a model on a GPU."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "gpu": gpu,
                    "model": slot.session.model,
                    "batch": slot.batch,
                    "rate_per_s": slot.rate_per_s,
                    "latency_s": slot.latency_s,
                    "duty_s": server.duty_s,
                    "worst_s": server.duty_s + slot.latency_s,
                }
                for gpu, server in enumerate(self.servers)
                for slot in server.slots
            ]
        )


def _occupancy(gpu: BatchServer) -> float:
    """Seconds of a full batch of each model, over the duty cycle."""
    return sum(slot.latency_s for slot in gpu.slots) / gpu.duty_s


def _merged(gpus: Sequence[BatchServer]) -> BatchServer | None:
    """Several GPUs' models on one, at the shortest duty cycle; None: they do not fit.

    1. Each model's batch is what arrives in one duty cycle, rounded up: batches shrink.
    2. They fit if the batches take no longer than the duty cycle together and each model's worst
       latency, the duty cycle plus its batch, meets its objective.
    """
    duty_s = min(gpu.duty_s for gpu in gpus)
    slots = []
    for slot in itertools.chain.from_iterable(gpu.slots for gpu in gpus):
        batch = ceil(duty_s * slot.rate_per_s / SLACK)
        latency_s = slot.session.profile.latency_s
        if batch > len(latency_s):
            return None
        if duty_s + latency_s[batch - 1] > slot.session.slo_s * SLACK:
            return None
        slots.append(replace(slot, batch=batch))
    merged = BatchServer(slots=tuple(slots), duty_s=duty_s)
    return merged if _occupancy(merged) <= SLACK else None


def _alone(session: Session, rate_per_s: float) -> BatchServer:
    """A residual load by itself: the largest batch b with latency(b) + b / rate <= objective."""
    batch = session.profile.largest(session.slo_s, per_request_s=1 / rate_per_s)
    duty_s = batch / rate_per_s if batch else session.slo_s - session.profile.latency_s[0]
    slot = Slot(session=session, batch=max(batch, 1), rate_per_s=rate_per_s)
    return BatchServer(slots=(slot,), duty_s=duty_s)


@checked
def pack(sessions: Sequence[Session], *, merge: bool = True) -> Packing:
    """Squishy bin packing.

    1. Give each session as many whole GPUs as it fills at its best batch.
    2. What is left over, each with the largest batch it can gather in time, is a bin of its own
       with a duty cycle and an occupancy (its batch's seconds over the duty cycle).
    3. From the fullest: merge each into the bin that becomes fullest, at the shorter duty cycle,
       or open a new one.

    Args:
        merge: without, no two models share a GPU.

    Raises:
        BadValue: there is no session, or two are of one name.

    Source: §6.1, Algorithm 1.
    """
    if not sessions or len({session.model for session in sessions}) < len(sessions):
        raise BadValue("pack: sessions must be of different models, one or more")
    whole_gpus: list[BatchServer] = []
    residues: list[BatchServer] = []
    for session in sessions:
        batch, best_per_s = session.best
        count = floor(session.rate_per_s / best_per_s * SLACK)
        slot = Slot(session=session, batch=batch, rate_per_s=best_per_s)
        whole_gpus += [BatchServer(slots=(slot,), duty_s=slot.latency_s)] * count
        left_per_s = session.rate_per_s - count * best_per_s
        if left_per_s > 1e-9 * best_per_s:
            residues.append(_alone(session, left_per_s))
    shared_gpus: list[BatchServer] = []
    for residue in sorted(residues, key=_occupancy, reverse=True):
        fits: dict[int, BatchServer] = {}
        for place, gpu in enumerate(shared_gpus):
            if merge and (merged := _merged((gpu, residue))):
                fits[place] = merged
        if fits:
            fullest = max(fits, key=lambda place: _occupancy(fits[place]))
            shared_gpus[fullest] = fits[fullest]
        else:
            shared_gpus.append(residue)
    return Packing(sessions=tuple(sessions), servers=(*whole_gpus, *shared_gpus))


@checked
def fullest_packing(sessions: Sequence[Session], num_gpus: Count) -> Packing:
    """The packing of the largest multiple of the sessions' rates that fits into the GPUs.

    Raises:
        BadValue: not even a thousandth of what the GPUs could serve fits.
    """

    def at_load(load: float) -> Packing:
        return pack([replace(s, rate_per_s=s.rate_per_s * load) for s in sessions])

    def fits(load: float) -> float:
        return float(at_load(load).num_gpus <= num_gpus)

    most = num_gpus / fractional_bound(pack(sessions).sessions)
    packing = at_load(highest_load(fits, most / 1000, most, target=1.0, steps=14))
    if packing.num_gpus > num_gpus:
        raise BadValue(
            f"fullest_packing: num_gpus must hold every session at a low rate; got {num_gpus}"
        )
    return packing


@checked
def share_prefix(sessions: Sequence[Session], *, suffix_s: NonNegative = 0.0) -> list[Session]:
    """Sessions whose models differ in their last layers only, as one session a common profile.

    Args:
        suffix_s: what the layers of its own take for each different model in a batch.

    Raises:
        BadValue: sessions of one profile have different objectives.

    Source: §6.3, prefix batching.
    """
    merged = []
    for profile in dict.fromkeys(session.profile for session in sessions):
        parts = [session for session in sessions if session.profile == profile]
        if len({part.slo_s for part in parts}) > 1:
            raise BadValue(f"share_prefix: sessions of {profile.name!r} must have one slo_s")
        models = np.minimum(np.arange(1, profile.max_batch + 1), len(parts))
        latency_s = np.array(profile.latency_s) + suffix_s * models
        merged.append(
            Session(
                model=profile.name,
                profile=replace(profile, latency_s=tuple(latency_s.tolist())),
                rate_per_s=sum(part.rate_per_s for part in parts),
                slo_s=parts[0].slo_s,
            )
        )
    return merged


@checked
def oblivious(sessions: Sequence[Session], num_gpus: Count) -> Packing:
    """A scheduler that does not look at batches: sessions get GPUs in proportion to their load.

    A session's load is its rate over the most requests a second it reaches alone. Loads are laid
    end to end over the GPUs, a session cut where a GPU is full; each forms its best batch as if it
    were alone. That is the batch-oblivious baseline of the paper's evaluation.

    Raises:
        BadValue: there is no session, or two are of one name.
    """
    if not sessions or len({session.model for session in sessions}) < len(sessions):
        raise BadValue("oblivious: sessions must be of different models, one or more")
    loads = np.cumsum([session.rate_per_s / session.best[1] for session in sessions])
    edges = np.r_[0, loads] / fractional_bound(sessions) * num_gpus
    servers = []
    for gpu in range(num_gpus):
        slots = []
        for session, start, end in zip(sessions, edges[:-1], edges[1:], strict=True):
            share_here = min(end, gpu + 1) - max(start, gpu)
            if share_here > 1e-9:
                rate_per_s = session.rate_per_s * share_here / (end - start)
                slots.append(Slot(session=session, batch=session.best[0], rate_per_s=rate_per_s))
        duty_s = sum(slot.latency_s for slot in slots)
        servers.append(BatchServer(slots=tuple(slots), duty_s=duty_s))
    return Packing(sessions=tuple(sessions), servers=tuple(servers))


@checked
def fractional_bound(sessions: Sequence[Session], *, waits: bool = True) -> float:
    """GPUs that no schedule can do without, were a GPU divisible.

    Args:
        waits: of all schedules under which a request may wait for another batch of its model
            (latency 2 · latency(b) within the objective); otherwise of any schedule: a request's
            own batch must end within the objective.
    """
    return sum(
        session.rate_per_s / session.profile.best(session.slo_s / (2 if waits else 1))[1]
        for session in sessions
    )


@checked
def specialised_copies(
    profiles: Annotated[Sequence[BatchProfile], MinLen(1)],
    count: Count,
    *,
    slo_s: Positive,
    rate_per_s: Positive = 1.0,
    zipf: Annotated[float, Ge(-9), Le(9)] = 0.9,
) -> list[Session]:
    """Models that share the profiles in turn; the i-th gets a share i^-zipf of all requests.

    Args:
        slo_s: the latency objective of each.
        rate_per_s: requests a second of all of them.
        zipf: how uneven their popularity is; 0: all alike; below 0: the last is the most popular.

    >>> two = specialised_copies([linear_profile(1.0, 25.0)], 2, slo_s=0.1, zipf=1.0)
    >>> [round(session.rate_per_s, 3) for session in two]
    [0.667, 0.333]
    """
    shares = np.arange(1, count + 1) ** -zipf
    rates = rate_per_s * shares / shares.sum()
    return [
        Session(
            model=f"copy {i}",
            profile=profiles[i % len(profiles)],
            slo_s=slo_s,
            rate_per_s=float(rate),
        )
        for i, rate in enumerate(rates)
    ]


@checked
def plan(
    way: Way, sessions: Sequence[Session], num_gpus: Count, *, suffix_s: NonNegative = 0.0
) -> Packing:
    """A plan that uses all GPUs, for the sessions' rates in proportion.

    Args:
        way: ``baseline``: GPUs by load, blind to batches (:func:`oblivious`). ``packing``:
            squishy (:func:`fullest_packing`). ``prefixes``: squishy, models of one profile in
            common batches (:func:`share_prefix`).
        suffix_s: of ``prefixes``, as of :func:`share_prefix`.
    """
    if way == "baseline":
        return oblivious(sessions, num_gpus)
    return fullest_packing(
        share_prefix(sessions, suffix_s=suffix_s) if way == "prefixes" else sessions, num_gpus
    )


def _stream(
    sessions: Sequence[Session], count: int, cv: float, rng: np.random.Generator | int
) -> Requests:
    """About so many requests of all sessions, in proportion to their rates."""
    rates = {session.model: session.rate_per_s for session in sessions}
    slo_s = {session.model: session.slo_s for session in sessions}
    return traffic(rates, count / sum(rates.values()), slo_s=slo_s, cv=cv, rng=rng)


@checked
def run_plan(
    plan: Packing,
    rate_per_s: Positive,
    *,
    count: Count = 12_000,
    drop: Drop = "early",
    rng: np.random.Generator | Whole = 0,
) -> Served:
    """About ``count`` Poisson requests at a rate of all sessions together, on the plan's GPUs.

    Args:
        rate_per_s: of all sessions together; each keeps its share of it.
        drop: what becomes of requests that are late, as of :class:`labkit.serving.BatchServers`.
        rng: a generator or a seed.
    """
    requests = _stream(plan.sessions, count, 1.0, rng)
    servers = BatchServers(servers=plan.servers, drop=drop)
    return simulate(requests.at_rate(rate_per_s), servers.profiles, servers)


@checked
def sustained_rate(
    plan: Packing,
    *,
    count: Count = 12_000,
    drop: Drop = "early",
    overhead: Positive = 1.0,
    cv: NonNegative = 1.0,
    rng: np.random.Generator | Whole = 0,
    asked: tuple[Session, ...] | None = None,
) -> float:
    """Requests a second of which a plan answers 99 % in time, to 1 %; the first tenth warms it up.

    At most the rate that no schedule can beat; 0 where not even a thirtieth of it is attained.

    Args:
        count: about so many requests are simulated at each rate that is tried.
        drop: what becomes of requests that are late, as of :class:`labkit.serving.BatchServers`.
        overhead: every batch takes this times what was planned with.
        cv: variation of each model's gaps; 1: Poisson.
        rng: a generator or a seed.
        asked: what is really asked for; default: what was planned for.
    """
    asked = asked or plan.sessions
    planned_per_s = sum(session.rate_per_s for session in asked)
    top_per_s = planned_per_s * plan.num_gpus / fractional_bound(asked, waits=False)
    requests = _stream(asked, count, cv, rng)
    servers = BatchServers(servers=plan.servers, drop=drop)
    slower = {model: profile.slower(overhead) for model, profile in servers.profiles.items()}

    def attainment(rate_per_s: float) -> float:
        run = simulate(requests.at_rate(rate_per_s), slower, servers)
        return float(run.met[len(requests) // 10 :].mean())

    low_per_s = top_per_s / 30
    rate_per_s = highest_load(attainment, low_per_s, top_per_s)
    if rate_per_s > low_per_s or attainment(rate_per_s) >= 0.99:
        return rate_per_s
    return 0.0


# ---------------------------------------------------------------- queries


@description
class Stage:
    """A model of a query, which asks several models one after another.

    Attributes:
        fan_out: requests to it for each request to its parent.
        parent: place of its parent in the query; stages come after their parents; -1: the root.
    """

    model: str
    profile: BatchProfile
    fan_out: NonNegative = 1.0
    parent: int = -1


@checked
def split_latency(
    stages: Sequence[Stage], *, slo_s: Positive, step_s: Positive, waits: bool = True
) -> tuple[float, ...]:
    """Latency budgets, in seconds, of a query's stages: those that take the fewest GPUs while every
    path from the root stays within ``slo_s``.

    Dynamic programming over the tree, leaves first: cost[u](t) is the least, over own budgets
    k <= t, of rate_u / throughput_u(k) + Σ cost[child](t - k). O(stages · (slo/step)²).

    Args:
        step_s: budgets are whole multiples of it.
        waits: a budget pays for two batches, as in :func:`fractional_bound`; otherwise for one.

    Raises:
        BadValue: the stages are no tree in order, or no split meets the objective.

    Source: §6.2.
    """
    for place, stage in enumerate(stages):
        if not -1 <= stage.parent < place or (stage.parent == -1) != (place == 0):
            raise BadValue(
                f"split_latency: stage {place} must come after its parent, and only the first has "
                f"none (-1); got parent {stage.parent}"
            )
    if not stages or slo_s / step_s > 1e4:
        raise BadValue("split_latency: needs a stage or more, and slo_s of at most 10,000 steps")
    steps = int(slo_s / step_s * SLACK)
    rates = [1.0]  # of each stage, for each query
    for stage in stages[1:]:
        rates.append(rates[stage.parent] * stage.fan_out)
    # 1. From the leaves up: the fewest GPUs of a stage and all below it, by steps left.
    gpus = np.zeros((len(stages), steps + 1))
    gpus_of_children = np.zeros((len(stages), steps + 1))
    own_budget = np.zeros((len(stages), steps + 1), np.int64)
    for place in reversed(range(len(stages))):
        own = _gpus_by_budget(stages[place], rates[place], steps, step_s / (2 if waits else 1))
        for left in range(steps + 1):
            tried = own[: left + 1] + gpus_of_children[place, left::-1]
            own_budget[place, left] = tried.argmin()
            gpus[place, left] = tried.min()
        if place:
            gpus_of_children[stages[place].parent] += gpus[place]
    if not np.isfinite(gpus[0, steps]):
        raise BadValue(f"split_latency: no split of slo_s {slo_s} in steps of {step_s} is enough")
    # 2. From the root down: each stage takes its own share of what its parent leaves.
    steps_left = [steps]
    budgets = [int(own_budget[0, steps])]
    for place, stage in enumerate(stages[1:], start=1):
        steps_left.append(steps_left[stage.parent] - budgets[stage.parent])
        budgets.append(int(own_budget[place, steps_left[place]]))
    return tuple(budget * step_s for budget in budgets)


def _gpus_by_budget(
    stage: Stage, rate_per_s: float, steps: int, step_s: float
) -> NDArray[np.float64]:
    """GPUs of a stage alone for each budget in steps; infinite where no batch fits."""
    speeds = [stage.profile.best(budget * step_s * SLACK)[1] for budget in range(steps + 1)]
    speed_per_s = np.array(speeds)
    gpus = np.full(steps + 1, np.inf if rate_per_s else 0.0)
    return np.divide(rate_per_s, speed_per_s, out=gpus, where=speed_per_s > 0)
