"""What a simulation gives back: what became of every request, in tables and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit.describe import Whole, checked
from labkit.quantities import seconds
from labkit.serving.bounds import bound
from labkit.serving.device.clients import Gpu, Workload
from labkit.serving.device.kernels import Program
from labkit.serving.generation.batcher import Batcher, Batching
from labkit.serving.generation.tokens import TokenProfile
from labkit.serving.requests import Requests

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

WARMUP = 0.1
"""The share of requests, first by arrival, that a run's latencies leave out."""
CAUSES = {
    "": "a batch was running",
    "batch": "the batch was full",
    "memory": "memory for its keys and values lacked",
}
"""What a request was passed over for, in words."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What became of every request to a language model: all of it simulated.

    Attributes:
        batcher: the server it ran on.
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
    batcher: Batcher | Batching
    start_s: Floats
    first_s: Floats
    end_s: Floats
    stall_s: Floats
    causes: tuple[str, ...]
    preemptions: NDArray[np.int64]
    wasted_steps: NDArray[np.int64]
    iterations: int
    sequences: float
    busy_s: float
    most_slots: int

    @property
    def latency_s(self) -> Floats:
        """From arrival to the last output."""
        return self.end_s - self.requests.column("arrival_s")

    @property
    def token_latency_s(self) -> Floats:
        """Latency over the outputs: what the Orca paper calls normalised."""
        return self.latency_s / self.requests.column("output_tokens")

    @property
    def next_token_s(self) -> Floats:
        """From the first output to the last, for each after the first; NaN where there is one.

        It is what servers report as time per output token (TPOT).
        """
        later = self.requests.column("output_tokens") - 1.0
        return (self.end_s - self.first_s) / np.where(later > 0, later, np.nan)

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
        if len(self.requests) < 2:
            raise BadValue(f"summary: a run needs two requests or more; got {len(self.requests)}")
        first = int(WARMUP * len(self.requests))
        arrival = self.requests.column("arrival_s")
        output = self.requests.column("output_tokens")
        span_s = float(self.end_s.max() - arrival[0])
        per_token = self.token_latency_s[first:]
        latency = self.latency_s[first:]
        until_first = (self.first_s - arrival)[first:]
        several = bool((output[first:] > 1).any())
        steps = self.wasted_steps.sum() + output.sum()
        most_per_s = bound(self.requests, self.profile, self.batcher).rate_per_s
        return {
            "rate_per_s": self.requests.rate_per_s,
            "offered_load": self.requests.rate_per_s / most_per_s,
            "throughput_per_s": len(self.requests) / span_s,
            "tokens_per_s": float(output.sum()) / span_s,
            "median_token_s": float(np.median(per_token)),
            "p99_token_s": float(np.quantile(per_token, 0.99)),
            "median_latency_s": float(np.median(latency)),
            "p99_latency_s": float(np.quantile(latency, 0.99)),
            "median_first_s": float(np.median(until_first)),
            "mean_first_s": float(until_first.mean()),
            "mean_next_s": float(np.nanmean(self.next_token_s[first:])) if several else np.nan,
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
        arrival_s = self.requests.column("arrival_s")[request]
        prompt = self.requests.column("prompt_tokens")[request]
        output = self.requests.column("output_tokens")[request]
        waited_s = self.start_s[request] - arrival_s
        alone_s = self.profile.alone_s(self.requests)[request]
        began = "started at once"
        if waited_s > 1e-9:
            began = f"waited {seconds(waited_s)}: {CAUSES[self.causes[request]]}"
        sentence = (
            f"request {request} ({prompt} tokens in, {output} out) arrived at {arrival_s:.2f} s "
            f"and {began}. Its answer was whole after {seconds(self.latency_s[request])}, "
            f"{self.latency_s[request] / alone_s:.1f} times what it takes alone"
        )
        if lost := self.preemptions[request]:
            sentence += f"; it started again {lost} times"
        if wasted := self.wasted_steps[request]:
            sentence += f"; {wasted} iterations gave it nothing"
        return sentence


@dataclass(frozen=True, kw_only=True, eq=False)
class Served:
    """What became of each request to models that answer once, in the order of the requests; all
    simulated.

    Attributes:
        end_s: when its answer came; NaN where it was dropped.
        server: which server or group it went to; -1: none holds its model.
    """

    requests: Requests
    end_s: Floats
    server: NDArray[np.int64]

    @property
    def latency_s(self) -> Floats:
        """Seconds from arrival to answer; NaN where there was none."""
        return self.end_s - self.requests.column("arrival_s")

    @property
    def met(self) -> NDArray[np.bool_]:
        """Which requests were answered within their latency objective."""
        return self.latency_s <= self.requests.column("slo_s") * (1 + 1e-9)

    def frame(self) -> pd.DataFrame:
        """One row a request, in order of arrival."""
        return self.requests.frame().assign(
            end_s=self.end_s, latency_s=self.latency_s, server=self.server, met=self.met
        )

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


@dataclass(frozen=True, kw_only=True, eq=False)
class GpuRun:
    """What became of each program that clients issued to one GPU: all of it simulated.

    Attributes:
        profile: the programs by name.
        log: a row for each program that ended, in order, with the fields ``client`` (its place),
            ``issued_s`` and ``end_s``.
        busy_fraction: mean share of compute units with a block on them.
    """

    workload: Workload
    profile: Mapping[str, Program]
    gpu: Gpu
    log: NDArray[Any]
    busy_fraction: float

    @checked
    def latency_s(self, *, real_time: bool = True) -> Floats:
        """Of each program of real-time clients (or of the others), from its issue."""
        is_real_time = np.array([client.real_time for client in self.workload.clients])
        chosen = is_real_time[self.log["client"]] == real_time
        latency_s: Floats = (self.log["end_s"] - self.log["issued_s"])[chosen]
        return latency_s

    def rate_per_s(self) -> float:
        """Programs that ended a second."""
        return len(self.log) / self.workload.until_s

    @checked
    def over(self, base: GpuRun) -> tuple[float, float]:
        """Mean real-time latency and programs a second, both over another run's."""
        latency = self.latency_s().mean() / base.latency_s().mean()
        return float(latency), self.rate_per_s() / base.rate_per_s()

    def frame(self) -> pd.DataFrame:
        """One row a program that ended, in order."""
        import pandas as pd

        clients = [self.workload.clients[place] for place in self.log["client"]]
        return pd.DataFrame(
            {
                "client": self.log["client"],
                "program": [client.program for client in clients],
                "real_time": [client.real_time for client in clients],
                "issued_s": self.log["issued_s"],
                "end_s": self.log["end_s"],
                "latency_s": self.log["end_s"] - self.log["issued_s"],
            }
        )

    def summary(self) -> dict[str, float]:
        """Programs that ended, latency of real-time clients and use of the GPU; NaN: none ended."""
        latency_s = self.latency_s()
        return {
            "programs": len(self.log),
            "rate_per_s": self.rate_per_s(),
            "mean_real_time_s": float(latency_s.mean()) if latency_s.size else np.nan,
            "p99_real_time_s": float(np.quantile(latency_s, 0.99)) if latency_s.size else np.nan,
            "busy_fraction": self.busy_fraction,
        }
