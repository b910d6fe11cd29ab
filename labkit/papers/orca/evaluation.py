"""Orca's experiment: its servers and requests, and rates at one limit of latency.

Source: Yu et al., Orca (OSDI'22), Table 1, §6.1, §6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import MinLen

from labkit.kit.describe import Count, NonNegative, Positive, Share, Whole, checked
from labkit.serving.bounds import bound
from labkit.serving.generation.batcher import Batcher, Batching
from labkit.serving.generation.tokens import TokenProfile
from labkit.serving.requests import Requests, generate
from labkit.serving.results import WARMUP
from labkit.serving.simulation import simulate
from labkit.serving.sweeps import bisected

if TYPE_CHECKING:
    import pandas as pd

Batchers = Annotated[Mapping[str, Batcher | Batching], MinLen(1)]

MODELS: dict[str, tuple[str, int, int]] = {
    "13B": ("gpt-13b", 1, 1),
    "101B": ("gpt-101b", 8, 1),
    "175B": ("gpt3-175b", 8, 2),
    "341B": ("gpt-341b", 8, 4),
}
"""The paper's models: our preset, GPUs that share a layer, stages of the pipeline (Table 1)."""
OWN_ATTENTION_S = 5e-6
"""A kernel of one request's attention in a layer: Orca does not batch it (§4.2). Ours, a launch."""


def server(model: str) -> TokenProfile:
    """What an iteration costs on the paper's A100s of 40 GB: modelled, not measured.

    Args:
        model: a key of :data:`MODELS`.
    """
    preset, tensor, stages = MODELS[model]
    return TokenProfile.roofline(
        preset, "A100-40GB", tensor=tensor, stages=stages, sequence_s=OWN_ATTENTION_S
    )


@checked
def stream(
    count: Count,
    *,
    prompt_tokens: tuple[int, int] = (32, 512),
    output_tokens: tuple[int, int] = (1, 128),
    cv: NonNegative = 1.0,
    rng: np.random.Generator | Whole = 0,
) -> Requests:
    """The paper's requests: lengths drawn evenly, Poisson arrivals, one a second (§6.2).

    Args:
        count: of requests.
        prompt_tokens, output_tokens: least and most.
        cv: coefficient of variation of the gaps; 1: a Poisson process.
        rng: a generator or a seed.
    """
    return generate(
        1, count, prompt_tokens=prompt_tokens, output_tokens=output_tokens, cv=cv, rng=rng
    )


@checked
def capacity(
    requests: Requests,
    profile: TokenProfile,
    batchers: Mapping[str, Batcher | Batching],
    *,
    times_alone: Positive = 2.0,
    limit_s: Positive | None = None,
    quantile: Share = 0.5,
) -> pd.Series[float]:
    """The highest rate, by batcher, at which a quantile of the latency per output meets a limit.

    Bisection to 0.5 % on the same requests with stretched gaps; 0 where no rate meets it.

    Args:
        requests: the first tenth by arrival is served, and left out of the quantile.
        profile: what an iteration costs.
        batchers: by the name that the result shows.
        times_alone: the limit, in medians of the latency per output on an idle server.
        limit_s: the limit in seconds, instead.
        quantile: of the latencies per output, which must meet the limit; 0.5: their median.
    """
    import pandas as pd

    first = int(WARMUP * len(requests))

    def highest_rate(batcher: Batcher | Batching) -> float:
        least = bound(requests, profile, batcher)
        limit = limit_s or times_alone * least.token_latency_s

        def fits(rate: float) -> bool:
            run = simulate(requests.at_rate(rate), profile, batcher)
            return bool(np.quantile(run.token_latency_s[first:], quantile) <= limit)

        low = least.rate_per_s / 1e4
        high = least.rate_per_s  # no long stream fits at the bound
        return bisected(fits, low, high, 11) if fits(low) else 0.0

    rates = {name: highest_rate(batcher) for name, batcher in batchers.items()}
    return pd.Series(rates, name="rate_per_s", dtype=float)


@checked
def gain(
    requests: Requests,
    profile: TokenProfile,
    new: Batchers,
    old: Batchers,
    *,
    old_profile: TokenProfile | None = None,
    times_alone: Positive = 2.0,
    limit_s: Positive | None = None,
    quantile: Share = 0.5,
) -> dict[str, float | None]:
    """The best of two sets of batchers at one limit of latency, and their ratio, as a row.

    ``load`` is the new rate over the bound. The ratio is None where the old never meet the limit.

    Args:
        requests: that both serve.
        profile: the engine of the new, from which the limit comes for both.
        new, old: batchers by name; the best of each set counts.
        old_profile: the engine of the old; None: the same.
        times_alone, limit_s, quantile: as of :func:`capacity`.
    """
    least = bound(requests, profile, max(new.values(), key=lambda batcher: batcher.max_batch))
    limit = limit_s or times_alone * least.token_latency_s

    def best_rate(server: TokenProfile, batchers: Mapping[str, Batcher | Batching]) -> float:
        rates = capacity(requests, server, batchers, limit_s=limit, quantile=quantile)
        return float(rates.max())

    new_per_s = best_rate(profile, new)
    old_per_s = best_rate(old_profile or profile, old)
    return {
        "new_per_s": new_per_s,
        "old_per_s": old_per_s,
        "ratio": new_per_s / old_per_s if old_per_s else None,
        "load": new_per_s / least.rate_per_s,
    }
