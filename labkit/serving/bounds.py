"""What no batcher of a language model can beat: requests a second, and seconds an output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.kit.describe import checked
from labkit.serving.generation.batcher import Batcher, Batching
from labkit.serving.generation.tokens import TokenProfile
from labkit.serving.requests import Requests


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What no batcher can beat.

    Attributes:
        rate_per_s: requests a second in the long run. A stage's iteration takes at least
            fixed_s + (1 − x) weights_s + x tokens × token_s for every x from 0 to 1, and at most
            ``max_batch`` requests share it; x = 0 and x = 1 give two bounds, the lesser stands.
        token_latency_s: median over requests of the latency alone over the outputs.
    """

    rate_per_s: float
    token_latency_s: float


@checked
def bound(requests: Requests, profile: TokenProfile, server: Batcher | Batching) -> Bound:
    """The most requests a second and the least latency of any schedule of these batches.

    Args:
        requests: their lengths count; when they arrive does not.
        profile: the replica they run on.
        server: only the size of its batches counts.

    >>> from labkit import serving
    >>> requests = serving.generate(1, 100, output_tokens=(10, 10))
    >>> profile = serving.TokenProfile(weights_s=0.02)
    >>> round(bound(requests, profile, serving.Batcher(max_batch=8)).rate_per_s)  # 8 / (10 × 0.02)
    40
    """
    prompt = requests.column("prompt_tokens")
    output = requests.column("output_tokens")
    prompt = np.maximum(prompt, 1)
    reused = requests.reused_tokens
    cached = reused + (output - 1) * (2 * prompt + output - 2) / 2
    tokens = prompt - reused + output - 1
    own = output * profile.sequence_s + cached * profile.cached_token_s
    own += tokens * profile.sent_token_s
    shared = output / server.max_batch
    read = shared * (profile.fixed_s + profile.weights_s)
    computed = shared * profile.fixed_s + tokens * profile.token_s
    least_s = max(float((own + read).mean()), float((own + computed).mean()))
    alone = profile.alone_s(requests) / output
    return Bound(rate_per_s=1 / least_s, token_latency_s=float(np.median(alone)))
