"""The serving engine's panel: latency over throughput by batcher, and one run's requests."""

from __future__ import annotations

from functools import lru_cache
from shlex import quote
from typing import Any

from labkit import serving
from labkit.kit.panel import Panel
from labkit.serving.commands import RequestOptions

DEFAULT_MODEL = "gpt-13b"
DEVICE = "A100-40GB"
NUM_REQUESTS = 500
"""Of the synthetic stream that stands in where the user brings none."""
RATES_PER_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def panel(profile: str = "", model: str = "") -> Panel:
    """A language model on GPUs, batched by iteration and by request.

    Args:
        profile: a CSV file of requests, or the name of a published trace; default: a synthetic
            stream, whose gaps a control moves.
        model: a preset.
    """
    name = model or DEFAULT_MODEL

    @lru_cache(maxsize=64)
    def stream_at(rate: float, cv: float) -> Any:
        return RequestOptions(trace=profile, rate=rate, cv=cv, count=NUM_REQUESTS).read()

    @lru_cache(maxsize=64)
    def server_of(tensor: int) -> Any:
        return serving.TokenProfile.roofline(name, DEVICE, tensor=tensor)

    def curves(rate: float, cv: float, max_batch: int, tensor: int) -> Any:
        batchers = {
            "by iteration": serving.Batcher(max_batch=max_batch),
            "by request": serving.Batcher(level="request", max_batch=max_batch),
        }
        stream = stream_at(rate, cv)  # what the command answers for is one of the line's points
        least = serving.bound(stream, server_of(tensor), batchers["by iteration"])
        rates_per_s = sorted({stream.rate_per_s, *RATES_PER_S})
        table = serving.sweep(stream, server_of(tensor), batchers, rates_per_s)
        title = "Latency over throughput (simulated)"
        return serving.figure_latency(table, bound_per_s=least.rate_per_s, title=title)

    def requests(rate: float, cv: float, max_batch: int, tensor: int) -> Any:
        batcher = serving.Batcher(max_batch=max_batch)
        run = serving.simulate(stream_at(rate, cv), server_of(tensor), batcher)
        return serving.figure_requests({"": run}, title="The first requests (simulated)")

    def command(rate: float, cv: float, max_batch: int, tensor: int) -> str:
        stream = quote(profile) if profile else f"--count {NUM_REQUESTS} --cv {cv:g}"
        return (
            f"labkit serving simulate {stream} --rate {rate:g} --model {name} --tensor {tensor} "
            f"--stages 1 --max-batch {max_batch}"
        )

    return Panel(
        title=f"Serving: {name} on {DEVICE}",
        figures=(curves, requests),
        axes={
            "rate": (0.25, 8.0),
            "cv": (1.0, 6.0),
            "max_batch": (1, 64),
            "tensor": [1, 2, 4, 8],
        },
        call=command,
        label={"rate": "requests a second", "cv": "variation of the gaps"},
        start={"max_batch": 16, "rate": 1.0},
    )
