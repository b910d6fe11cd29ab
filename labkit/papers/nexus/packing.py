"""Who shares a GPU: profiles, sessions, and the ways to give GPUs to them.

A GPU runs its models in turn, one batch of each a *duty cycle*. A request may just miss its batch
and wait for the next, so its worst latency is the duty cycle plus its own batch. What a request
costs depends on its batch, its batch on the duty cycle, and that on who shares the GPU: items
change size in the bin, which is why the paper calls its bin packing squishy.

Source: §4.1, §6.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge, Le, MinLen

from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, checked
from labkit.serving.batching.batches import BatchServer, Session, Slot
from labkit.serving.batching.profiles import BatchProfile
from labkit.serving.sweeps import highest_load

if TYPE_CHECKING:
    import pandas as pd

    from labkit.datasets import Source

DATASET = "nexus-sosp19"
MODELS = ("vgg16", "vgg_face", "vgg_s")
"""The models whose profiles are published."""

SLACK = 1 + 1e-9
"""Relative slack of comparisons between sums of times: far below any latency's precision."""


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


@checked
def profile_through(
    name: str,
    small: tuple[Positive, Positive],
    large: tuple[Positive, Positive],
    *,
    max_batch: Count = 40,
) -> BatchProfile:
    """The line through two rows of a printed profile.

    Args:
        name: of the profile.
        small, large: a batch and its milliseconds, each.
        max_batch: the largest batch in the table.

    Raises:
        BadValue: the larger batch is not larger and slower, or the line starts below 0.

    Source: Eq. 1.

    >>> profile_through("A", (8, 75), (16, 100)).name
    'A'
    """
    more = large[0] - small[0]
    longer_ms = large[1] - small[1]
    alpha_ms = longer_ms / more if more > 0 else -1.0
    beta_ms = small[1] - alpha_ms * small[0]
    if alpha_ms < 0 or beta_ms < 0:
        raise BadValue(
            f"profile_through: large must be a larger batch than small, slower in all and faster a "
            f"request; got {small} and {large}"
        )
    return replace(linear_profile(alpha_ms, beta_ms, max_batch=max_batch), name=name)


@checked
def profile_of_rate(
    alpha_ms: NonNegative, *, slo_s: Positive, best_per_s: Positive
) -> BatchProfile:
    """The line with a slope whose best batch within half the objective reaches a given rate.

    Args:
        alpha_ms: what a request adds.
        slo_s: the latency objective, of which a batch may take half.
        best_per_s: requests a second of that batch.

    Source: Eq. 1, and the simulation of drop policies (§6.3).

    >>> profile_of_rate(1.0, slo_s=0.1, best_per_s=500).best(0.05)
    (25, 500.0)
    """
    batch = best_per_s * slo_s / 2
    return linear_profile(alpha_ms, 1e3 * slo_s / 2 - alpha_ms * batch)


def example_sessions(table: pd.DataFrame) -> list[Session]:
    """The models of the paper's example, a row each.

    Args:
        table: ``model``, ``rate_per_s``, ``slo_ms``, and two rows of its profile: ``small_batch``
            in ``small_ms``, ``large_batch`` in ``large_ms``.

    Source: §4.1, Table 2.
    """
    sessions = []
    rows: Any = table.itertuples()
    for row in rows:
        small = (row.small_batch, row.small_ms)
        profile = profile_through(row.model, small, (row.large_batch, row.large_ms))
        sessions.append(
            Session(
                model=row.model,
                profile=profile,
                rate_per_s=row.rate_per_s,
                slo_s=row.slo_ms / 1e3,
            )
        )
    return sessions


def profiles_by_budget(table: pd.DataFrame) -> dict[str, BatchProfile]:
    """Profiles through the first and last of a model's rates by budget.

    Args:
        table: ``model``, ``budget_ms``, ``rate_per_s``: what a GPU reaches within a budget.

    Source: Fig. 4(a).
    """
    profiles = {}
    for model, rows in table.groupby("model"):
        by_budget: Any = rows.sort_values("budget_ms").itertuples()
        first, *_, last = by_budget
        small = (first.rate_per_s * first.budget_ms / 1e3, first.budget_ms)
        large = (last.rate_per_s * last.budget_ms / 1e3, last.budget_ms)
        profiles[str(model)] = profile_through(str(model), small, large)
    return profiles


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


def _merged(gpus: Sequence[BatchServer], squishy: bool = True) -> BatchServer | None:
    """Several GPUs' models on one, at the shortest duty cycle; None: they do not fit.

    1. Each model's batch is what arrives in one duty cycle, rounded up: batches shrink. Where they
       are not squishy, they stay as large as each was alone.
    2. They fit if the batches take no longer than the duty cycle together and each model's worst
       latency, the duty cycle plus its batch, meets its objective.
    """
    duty_s = min(gpu.duty_s for gpu in gpus)
    slots = []
    for slot in itertools.chain.from_iterable(gpu.slots for gpu in gpus):
        batch = ceil(duty_s * slot.rate_per_s / SLACK) if squishy else slot.batch
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
def pack(sessions: Sequence[Session], *, merge: bool = True, squishy: bool = True) -> Packing:
    """Squishy bin packing.

    1. Give each session as many whole GPUs as it fills at its best batch.
    2. What is left over, each with the largest batch it can gather in time, is a bin of its own
       with a duty cycle and an occupancy (its batch's seconds over the duty cycle).
    3. From the fullest: merge each into the bin that becomes fullest, at the shorter duty cycle,
       or open a new one.

    Args:
        merge: without, no two models share a GPU.
        squishy: without, batches keep the size that they had alone, as items of ordinary bin
            packing do.

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
            if merge and (merged := _merged((gpu, residue), squishy)):
                fits[place] = merged
        if fits:
            fullest = max(fits, key=lambda place: _occupancy(fits[place]))
            shared_gpus[fullest] = fits[fullest]
        else:
            shared_gpus.append(residue)
    return Packing(sessions=tuple(sessions), servers=(*whole_gpus, *shared_gpus))


@checked
def fullest_packing(
    sessions: Sequence[Session], num_gpus: Count, *, squishy: bool = True
) -> Packing:
    """The packing of the largest multiple of the sessions' rates that fits into the GPUs.

    Args:
        squishy: as of :func:`pack`.

    Raises:
        BadValue: not even a thousandth of what the GPUs could serve fits.
    """

    def at_load(load: float) -> Packing:
        scaled = [replace(s, rate_per_s=s.rate_per_s * load) for s in sessions]
        return pack(scaled, squishy=squishy)

    def fits(load: float) -> float:
        return float(at_load(load).num_gpus <= num_gpus)

    most = num_gpus / fractional_bound(pack(sessions).sessions)
    packing = at_load(highest_load(fits, most / 1000, most, target=1.0, steps=14))
    if packing.num_gpus > num_gpus:
        raise BadValue(
            f"fullest_packing: num_gpus is {num_gpus}, and the sessions need {packing.num_gpus} "
            "even at a thousandth of the rate; valid: as many, or fewer sessions"
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
    families: Count | None = None,
) -> list[Session]:
    """Models that share the profiles in turn; the i-th gets a share i^-zipf of all requests.

    Args:
        slo_s: the latency objective of each.
        rate_per_s: requests a second of all of them.
        zipf: how uneven their popularity is; 0: all alike; below 0: the last is the most popular.
        families: in how many kinds of networks they fall; copies of one kind have a common prefix,
            and kinds of one profile take equally long. None: a kind a profile.

    >>> two = specialised_copies([linear_profile(1.0, 25.0)], 2, slo_s=0.1, zipf=1.0)
    >>> [round(session.rate_per_s, 3) for session in two]
    [0.667, 0.333]
    """
    shares = np.arange(1, count + 1) ** -zipf
    rates = rate_per_s * shares / shares.sum()
    kinds = [
        replace(profiles[i % len(profiles)], name=f"network {i}") for i in range(families or 0)
    ]
    networks = kinds or profiles
    return [
        Session(
            model=f"copy {i}",
            profile=networks[i % len(networks)],
            slo_s=slo_s,
            rate_per_s=float(rate),
        )
        for i, rate in enumerate(rates)
    ]
