"""Plans for batch servers side by side: the same models and GPUs, and the rate each sustains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le, MinLen

from labkit.kit.describe import Count, NonNegative, Positive, Share, Whole, checked
from labkit.serving.batching.batches import Drop, Served, highest, serve
from labkit.serving.batching.packing import (
    Packing,
    Session,
    fill,
    fractional_bound,
    oblivious,
    share_prefix,
    stream,
)
from labkit.serving.batching.profiles import BatchProfile

Way = Literal["baseline", "packing", "prefixes"]


@checked
def copies(
    profiles: Annotated[Sequence[BatchProfile], MinLen(1)], count: Count, *, slo_s: Positive,
    rate_per_s: Positive = 1.0, zipf: Annotated[float, Ge(-9), Le(9)] = 0.9,
) -> list[Session]:  # fmt: skip
    """Models that share the profiles in turn; the i-th gets a share i^-zipf of all requests."""
    shares = np.arange(1, count + 1) ** -zipf
    rates = rate_per_s * shares / shares.sum()
    return [
        Session(model=f"copy {i}", profile=profiles[i % len(profiles)], slo_s=slo_s,
                rate_per_s=float(rate))
        for i, rate in enumerate(rates)
    ]  # fmt: skip


@checked
def planned(
    way: Way, sessions: Sequence[Session], num_gpus: Count, *, suffix_s: NonNegative = 0.0
) -> Packing:
    """A plan that uses all GPUs, for the sessions' rates in proportion.

    Args:
        way: ``baseline``: GPUs by load, blind to batches. ``packing``: squishy. ``prefixes``:
            squishy, models of one profile in common batches (:func:`share_prefix`).
    """
    if way == "baseline":
        return oblivious(sessions, num_gpus)
    return fill(
        share_prefix(sessions, suffix_s=suffix_s) if way == "prefixes" else sessions, num_gpus
    )


@checked
def run_plan(
    plan: Packing, rate_per_s: Positive, *, count: Count = 12_000, drop: Drop = "early",
    overhead: Positive = 1.0, cv: NonNegative = 1.0, rng: Whole = 0,
) -> Served:  # fmt: skip
    """About ``count`` requests at a rate of all sessions together, on the plan's GPUs."""
    total = sum(session.rate_per_s for session in plan.sessions)
    requests = stream(plan.sessions, count / total, cv=cv, rng=rng).at_rate(rate_per_s)
    return serve(requests, plan.servers, drop=drop, overhead=overhead)


@checked
def sustained(
    plan: Packing, *, target: Share = 0.99, warmup: Share = 0.1, count: Count = 12_000,
    drop: Drop = "early", overhead: Positive = 1.0, cv: NonNegative = 1.0, rng: Whole = 0,
    asked: tuple[Session, ...] | None = None,
) -> float:  # fmt: skip
    """Requests a second at which a plan answers the target share in time, to 1 %.

    At most the rate that no schedule can beat; 0 where not even a thirtieth of it is attained.

    Args:
        asked: what is really asked for; default: what was planned for.
    """
    asked = asked or plan.sessions
    total = sum(session.rate_per_s for session in asked)
    top = total * plan.num_gpus / fractional_bound(asked, waits=False)
    requests = stream(asked, count / total, cv=cv, rng=rng)

    def attainment(load: float) -> float:
        run = serve(requests.at_rate(load), plan.servers, drop=drop, overhead=overhead)
        return float(run.summary(warmup=warmup)["attainment"])

    low = top / 30
    load = highest(attainment, low, top, target=target, steps=8)
    return load if load > low or attainment(low) >= target else 0.0
