"""Batchers of one replica of a language model: simulate requests, sweep rates, bound them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, Whole, checked, description
from labkit.quantities import seconds
from labkit.serving.generation.tokens import TokenProfile
from labkit.serving.requests import Requests

if TYPE_CHECKING:
    import pandas as pd

WARMUP = 0.1
"""The share of requests, first by arrival, that latencies leave out."""


@description
class Batcher:
    """How waiting requests become batches.

    Attributes:
        level: ``iteration``: the batch is chosen anew before each iteration, first come first
            served (Orca); ``request``: a batch stays together until its last request is done.
        max_batch: most requests of a batch.
        memory: of keys and values: ``reserved`` for a request's whole length when it starts, or
            ``paged``: in blocks as it grows; where none is left, the latest request gives its own
            back and starts again (iteration level only).
        reserve_tokens: what ``reserved`` keeps for each request; None: its prompt and output.
        block_tokens: of ``paged``.
        chunk_tokens: most tokens of prompts in an iteration; None: prompts stay whole.
        microbatches: parts of a request-level batch that share a pipeline's stages.
        prompts: of a request-level batch: its first iteration takes as much of each as the
            ``shortest`` has and the rest token by token (FasterTransformer), or pads them to the
            ``longest``.
    """

    level: Literal["iteration", "request"] = "iteration"
    max_batch: Count = 32
    memory: Literal["reserved", "paged"] = "reserved"
    reserve_tokens: Count | None = None
    block_tokens: Count = 16
    chunk_tokens: Count | None = None
    microbatches: Count = 1
    prompts: Literal["shortest", "longest"] = "shortest"

    def __post_init__(self) -> None:
        by_iteration = self.level == "iteration"
        if not by_iteration and (self.memory == "paged" or self.chunk_tokens):
            raise BadValue("Batcher: paged memory and chunk_tokens need level 'iteration'")
        if by_iteration and self.microbatches > 1:
            raise BadValue(
                "Batcher: microbatches need level 'request'; by iteration, whole "
                "batches fill the stages"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What became of every request: all of it simulated.

    Attributes:
        start_s, first_s, end_s: first iteration, first output that a client sees, last output.
        stall_s: longest gap between two outputs of a request.
        causes: what each was last passed over for: "", "batch" (full) or "memory".
        preemptions: how often it lost its keys and values.
        wasted_steps: iterations a request was computed in beside those that gave its outputs.
        iterations, sequences: of the whole run; ``busy_s``: seconds of all stages.
        most_slots: of keys and values, held at once.
    """

    requests: Requests
    profile: TokenProfile
    batcher: Batcher
    start_s: NDArray[np.float64]
    first_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    stall_s: NDArray[np.float64]
    causes: tuple[str, ...]
    preemptions: NDArray[np.int64]
    wasted_steps: NDArray[np.int64]
    iterations: int
    sequences: float
    busy_s: float
    most_slots: int

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """From arrival to the last output."""
        return self.end_s - self.requests.column("arrival_s")

    @property
    def token_latency_s(self) -> NDArray[np.float64]:
        """Latency over the outputs: what the Orca paper calls normalised."""
        return self.latency_s / self.requests.column("output_tokens")

    def frame(self) -> pd.DataFrame:
        """One row a request, in order of arrival."""
        return self.requests.frame().assign(
            start_s=self.start_s,
            first_s=self.first_s,
            end_s=self.end_s,
            latency_s=self.latency_s,
            token_latency_s=self.token_latency_s,
            stall_s=self.stall_s,
            preemptions=self.preemptions,
            wasted_steps=self.wasted_steps,
            waited_for=self.causes,
        )

    def summary(self) -> dict[str, Any]:
        """Latency, throughput and waste in one row.

        Raises:
            BadValue: there are fewer than two requests.
        """
        first = int(WARMUP * len(self.requests))
        if len(self.requests) < 2:
            raise BadValue(f"summary: a run needs two requests or more; got {len(self.requests)}")
        arrival, output = (self.requests.column(n) for n in ("arrival_s", "output_tokens"))
        span_s = float(self.end_s.max() - arrival[0])
        per_token = self.token_latency_s[first:]
        latency = self.latency_s[first:]
        steps = self.wasted_steps.sum() + output.sum()
        return {
            "rate_per_s": self.requests.rate_per_s,
            "offered_load": self.requests.rate_per_s
            / bound(self.requests, self.profile, self.batcher).rate_per_s,
            "throughput_per_s": len(self.requests) / span_s,
            "tokens_per_s": float(output.sum()) / span_s,
            "median_token_s": float(np.median(per_token)),
            "p99_token_s": float(np.quantile(per_token, 0.99)),
            "median_latency_s": float(np.median(latency)),
            "p99_latency_s": float(np.quantile(latency, 0.99)),
            "median_first_s": float(np.median((self.first_s - arrival)[first:])),
            "p99_stall_s": float(np.quantile(self.stall_s[first:], 0.99)),
            "slo_fraction": float((latency <= self.requests.column("slo_s")[first:]).mean()),
            "mean_batch": self.sequences / self.iterations,
            "wasted_fraction": float(self.wasted_steps.sum() / steps),
            "busy_fraction": self.busy_s / (self.profile.stages * span_s),
            "preemptions": int(self.preemptions.sum()),
            "iterations": self.iterations,
        }

    @checked
    def why(self, request: Whole) -> str:
        """What a request, by its place, waited for.

        Raises:
            BadValue: there is no such request.
        """
        if request >= len(self.requests):
            raise BadValue(
                f"why: there is no request {request}; valid: 0 to {len(self.requests) - 1}"
            )
        column = {
            name: self.requests.column(name)[request]
            for name in ("arrival_s", "prompt_tokens", "output_tokens")
        }
        waited = self.start_s[request] - column["arrival_s"]
        alone = self.profile.alone_s(self.requests)[request]
        cause = {
            "batch": "the batch was full",
            "memory": "memory for its keys and values lacked",
            "": "a batch was running",
        }[self.causes[request]]
        lost = self.preemptions[request]
        return (
            f"request {request} ({column['prompt_tokens']} tokens in, {column['output_tokens']} "
            f"out) arrived at {column['arrival_s']:.2f} s and "
            + (f"waited {seconds(waited)}: {cause}" if waited > 1e-9 else "started at once")
            + f". Its answer was whole after {seconds(self.latency_s[request])}, "
            f"{self.latency_s[request] / alone:.1f} times what it takes alone"
            + (f"; it started again {lost} times" if lost else "")
            + (
                f"; {self.wasted_steps[request]} iterations gave it nothing"
                if self.wasted_steps[request]
                else ""
            )
        )


@checked
def simulate(requests: Requests, profile: TokenProfile, batcher: Batcher) -> Run:
    """Run requests through one replica, iteration by iteration. O(iterations × batch).

    Source: Algorithm 1 of Orca (OSDI'22), with its pool sorted by arrival, its reservation, and as
    many batches in flight as the pipeline has stages.

    Raises:
        BadValue: a request needs more slots than the profile has.
    """
    from labkit.serving.generation import core

    prompt = requests.column("prompt_tokens")
    output = requests.column("output_tokens")
    prompt = np.maximum(prompt, 1)
    table = np.zeros(len(requests), core.REQUEST)
    table["arrival"] = requests.column("arrival_s")
    table["prompt"] = prompt
    table["output"] = output
    table["need"] = prompt
    table["start"] = np.nan
    table["end"] = np.nan
    table["reserve"] = batcher.reserve_tokens or prompt + output
    _check(table, profile, batcher)
    costs = core.Costs(*(getattr(profile, name) for name in core.Costs._fields))
    block = batcher.block_tokens if batcher.memory == "paged" else 0
    rule = core.Rule(
        batcher.max_batch,
        batcher.chunk_tokens or 0,
        block,
        batcher.microbatches,
        batcher.prompts == "longest",
    )
    loop = core.by_iteration if batcher.level == "iteration" else core.by_request
    (state,) = loop(table, costs, rule)
    return Run(
        requests=requests,
        profile=profile,
        batcher=batcher,
        start_s=table["start"],
        first_s=table["first"],
        end_s=table["end"],
        stall_s=table["stall"],
        causes=tuple(np.array(["", "batch", "memory"])[table["cause"]]),
        preemptions=table["preempted"],
        wasted_steps=table["wasted"],
        iterations=int(state["iterations"]),
        sequences=float(state["sequences"]),
        busy_s=float(state["busy"]),
        most_slots=int(state["most"]),
    )


def _check(table: NDArray[Any], profile: TokenProfile, batcher: Batcher) -> None:
    length = table["prompt"] + table["output"]
    need = table["reserve"]
    if batcher.memory == "paged":
        need = -(-length // batcher.block_tokens) * batcher.block_tokens
    elif (length > need).any():
        row = int(np.argmax(length > need))
        raise BadValue(
            f"simulate: request {row} has {length[row]} tokens in and out; valid: at most "
            f"reserve_tokens, {batcher.reserve_tokens}"
        )
    if (need > profile.slots).any():
        row = int(np.argmax(need > profile.slots))
        raise BadValue(
            f"simulate: request {row} needs {need[row]} slots of keys and values; valid: at most "
            f"the profile's {profile.slots}"
        )


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
def bound(requests: Requests, profile: TokenProfile, batcher: Batcher) -> Bound:
    """The most requests a second and the least latency of any schedule of these batches."""
    prompt = requests.column("prompt_tokens")
    output = requests.column("output_tokens")
    prompt = np.maximum(prompt, 1)
    cached = (output - 1) * (2 * prompt + output - 2) / 2
    own = output * profile.sequence_s + cached * profile.cached_token_s
    shared = output / batcher.max_batch
    read = shared * (profile.fixed_s + profile.weights_s)
    computed = shared * profile.fixed_s + (prompt + output - 1) * profile.token_s
    least_s = max(float((own + read).mean()), float((own + computed).mean()))
    alone = profile.alone_s(requests) / output
    return Bound(rate_per_s=1 / least_s, token_latency_s=float(np.median(alone)))


@checked
def sweep(
    requests: Requests,
    profile: TokenProfile,
    batchers: Mapping[str, Batcher],
    rates_per_s: Sequence[Positive],
) -> pd.DataFrame:
    """The same requests at several rates under several batchers: one row each."""
    import pandas as pd

    streams = [requests.at_rate(rate) for rate in dict.fromkeys(rates_per_s)]
    return pd.DataFrame(
        [
            {"batcher": name} | simulate(stream, profile, batcher).summary()
            for name, batcher in batchers.items()
            for stream in streams
        ]
    )
