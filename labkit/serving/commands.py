"""``labkit serving``: requests to served models, from the shell."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd

from labkit import serving
from labkit.errors import UsageError, not_among
from labkit.kit.command import Commands, argument, numbers, option, pairs
from labkit.kit.report import Report, Sheet, records
from labkit.serving.requests import TRACES, Requests

commands = Commands(
    "serving",
    "Serving models: how requests become batches, and how long users wait. All simulated.",
)


def whole_range(name: str, text: str) -> tuple[int, int]:
    """``32-512`` or ``64`` as the least and the most."""
    low, dash, high = text.partition("-")
    if not low.strip().isdigit() or (dash and not high.strip().isdigit()):
        raise UsageError(f"{name} {text!r} is no range; valid: 32-512, or 64 for every request")
    return int(low), int(high if dash else low)


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """The requests: published, of a CSV file, or synthetic."""

    PANEL = "Requests"
    trace: Annotated[
        str,
        argument(
            "A CSV file or azure-llm-2023; default: synthetic requests.",
            metavar="[TRACE]",
            complete=lambda: list(TRACES),
        ),
    ] = ""
    columns: Annotated[
        str,
        option("The file's own headings.", metavar="prompt_tokens=HEADING,…"),
    ] = ""
    first: Annotated[int, option("Only the first requests; 0: all.", min=0)] = 0
    count: Annotated[int, option("Number of synthetic requests.", min=1)] = 2000
    rate: Annotated[float, option("Synthetic requests a second.")] = 1.0
    cv: Annotated[float, option("Variation of their gaps; 1: Poisson, above: bursts.")] = 1.0
    prompts: Annotated[str, option("Tokens of synthetic prompts.", metavar="LOW-HIGH")] = "32-512"
    prefix_share: Annotated[
        float, option("Share of each prompt that is in the cache already.", min=0, max=1)
    ] = 0.0
    outputs: Annotated[str, option("Tokens generated for them.", metavar="LOW-HIGH")] = "1-128"
    seed: Annotated[int, option("Of synthetic requests.", min=0)] = 0

    def read(self) -> Requests:
        requests = self._read()
        if not self.prefix_share:
            return requests
        prefix = np.floor(self.prefix_share * requests.column("prompt_tokens"))
        return requests.changed(prefix_tokens=prefix)

    def _read(self) -> Requests:
        if not self.trace:
            return serving.generate(
                self.rate,
                self.count,
                cv=self.cv,
                rng=self.seed,
                prompt_tokens=whole_range("--prompts", self.prompts),
                output_tokens=whole_range("--outputs", self.outputs),
            )
        if self.trace in TRACES:
            requests = serving.load(self.trace)
        elif Path(self.trace).suffix:
            requests = serving.from_csv(self.trace, columns=pairs("--columns", self.columns))
        else:
            raise UsageError(f"{not_among('trace', self.trace, TRACES)}; or give a CSV file")
        return requests.head(self.first) if self.first else requests


@commands.add(examples=["labkit serving requests --rate 2 --cv 4"])
def requests(stream: RequestOptions) -> Report:
    """What a stream of requests looks like: its rate, its bursts, its lengths."""
    trace = stream.read()
    shares = (0.1, 0.5, 0.9, 0.99, 1.0)
    table = pd.DataFrame({"share of requests": [f"{share:.0%}" for share in shares]})
    for name in ("prompt_tokens", "output_tokens"):
        table[name] = np.quantile(trace.column(name), shares)
    return Report(
        title=f"{trace.name}: {len(trace):,} requests",
        lead=f"{trace.rate_per_s:.3g} a second, gaps of CV {trace.gap_cv:.2f}",
        tables=[Sheet(table=table, heading="Tokens, at most, of the shortest share")],
        csv=trace.frame(),
        data={
            "command": "requests",
            "trace": trace.name,
            "requests": len(trace),
            "rate_per_s": trace.rate_per_s,
            "gap_cv": trace.gap_cv,
            "rows": records(table),
        },
        notes=["the coefficient of variation of the gaps is 1 for Poisson arrivals"],
    )


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The model, its GPUs, and how requests become batches."""

    PANEL = "Server"
    model: Annotated[str, option("A preset of data/models.yaml, a config.json, or its folder.")] = (
        "gpt3-175b"
    )
    gpu: Annotated[str, option("A preset of data/hardware.yaml.")] = "A100-40GB"
    tensor: Annotated[int, option("GPUs of a replica that share a layer.", min=1)] = 8
    stages: Annotated[int, option("Stages of the pipeline.", min=1)] = 2
    max_batch: Annotated[int, option("Most requests of a batch.", min=1)] = 32
    chunk: Annotated[int, option("Most prompt tokens of an iteration; 0: whole.", min=0)] = 0
    paged: Annotated[bool, option("Keys and values in pages, not reserved.")] = False
    compute_share: Annotated[float, option("Of peak operations that kernels reach.")] = 0.5
    bandwidth_share: Annotated[float, option("Of peak memory bandwidth.")] = 0.8
    sequence_us: Annotated[
        float,
        option("Of a sequence's own attention kernel, a layer; Orca's takes about 5.", min=0),
    ] = 0.0

    link_gb_per_s: Annotated[
        float, option("GB/s that a GPU sends in an all-reduce; 0: their bytes take no time.", min=0)
    ] = 0.0
    iteration_us: Annotated[
        float, option("Of an iteration beside the GPUs' work, such as scheduling.", min=0)
    ] = 0.0
    request_ms: Annotated[
        float, option("Of a request before a batch can take it, such as tokenising.", min=0)
    ] = 0.0

    @cached_property
    def profile(self) -> serving.TokenProfile:
        from labkit.models import Model

        path = Path(self.model)
        is_file = path.suffix == ".json" or path.is_dir() or len(path.parts) > 1
        return serving.TokenProfile.roofline(
            Model.from_hf(path) if is_file else self.model,
            self.gpu,
            tensor=self.tensor,
            stages=self.stages,
            compute_share=self.compute_share,
            bandwidth_share=self.bandwidth_share,
            sequence_s=1e-6 * self.sequence_us,
            link_bytes_per_s=1e9 * self.link_gb_per_s or None,
            iteration_s=1e-6 * self.iteration_us,
            request_s=1e-3 * self.request_ms,
        )

    @property
    def batchers(self) -> dict[str, serving.Batcher]:
        ours = serving.Batcher(
            max_batch=self.max_batch,
            chunk_tokens=self.chunk or None,
            memory="paged" if self.paged else "reserved",
        )
        return {"iteration": ours} | {
            f"request, {name}": serving.Batcher(level="request", max_batch=size)
            for name, size in (("one by one", 1), (f"up to {self.max_batch}", self.max_batch))
        }

    @property
    def notes(self) -> list[str]:
        return [
            f"every number is simulated on a roofline model of {self.profile.name}, not measured",
            "it is one replica: where several share nothing, give each its share of the rate",
            "the first tenth of the requests is left out of latencies as warm-up",
        ]


_SHOWN = {
    "batcher": "batches by",
    "rate_per_s": "rate",
    "throughput_per_s": "throughput",
    "median_token_s": "median/token",
    "p99_token_s": "99th/token",
    "median_first_s": "first token",
    "mean_next_s": "next tokens, mean",
    "mean_batch": "mean batch",
    "wasted_fraction": "wasted",
}
_WIDE = ("p99_token_s", "median_first_s", "mean_next_s")


def _table(command: str, stream: Requests, server: ServerOptions, rates: list[float]) -> Report:
    table = serving.sweep(stream, server.profile, server.batchers, rates)
    least = serving.bound(stream, server.profile, server.batchers["iteration"])
    return Report(
        title=f"{stream.name} on {server.profile.name}",
        lead=f"under this profile ({server.compute_share:.0%} of peak operations, "
        f"{server.bandwidth_share:.0%} of bandwidth) no batcher serves more than "
        f"{least.rate_per_s:.2f} requests/s, or gives the median token in less than "
        f"{1e3 * least.token_latency_s:.0f} ms",
        tables=[
            Sheet(
                table=table, columns=_SHOWN, wide=("p99_token_s", "median_first_s", "mean_next_s")
            )
        ],
        csv=table,
        data={
            "command": command,
            "requests": stream.name,
            "bound_per_s": least.rate_per_s,
            "bound_token_s": least.token_latency_s,
            "rows": records(table),
        },
        notes=server.notes,
        figures=lambda: [
            (
                "Latency over throughput",
                "Simulated.",
                serving.figure_latency(table, bound_per_s=least.rate_per_s),
            )
        ],
    )


@commands.add(
    examples=[
        "labkit serving simulate --rate 4",
        "labkit serving simulate --rate 4 --count 500 --why 100",
    ]
)
def simulate(
    stream: RequestOptions,
    server: ServerOptions,
    *,
    why: Annotated[
        int | None, option("Explain the latency of the request at this place.", min=0)
    ] = None,
) -> Report:
    """One stream of requests, batched by iteration and by request."""
    trace = stream.read()
    if why is None:
        if not np.isfinite(trace.rate_per_s):
            raise UsageError(
                f"{trace.name}: batchers are compared at a rate, so requests must arrive at two "
                f"moments or more; got {len(trace)} at one (--why explains a single one)"
            )
        return _table("simulate", trace, server, [trace.rate_per_s])
    run = serving.simulate(trace, server.profile, server.batchers["iteration"])
    return Report(
        title=f"{trace.name} on {server.profile.name}",
        lead=run.why(why),
        csv=run.frame(),
        data={"command": "simulate", "why": run.why(why), **run.summary()},
        notes=server.notes,
        figures=lambda: [
            ("Requests", "Simulated.", serving.figure_requests({"": run}, first=max(0, why - 8)))
        ],
    )


@commands.add(examples=["labkit serving sweep --count 500 --rates 1,4,8"])
def sweep(
    stream: RequestOptions,
    server: ServerOptions,
    *,
    rates: Annotated[str, option("Requests a second.", metavar="R,…")] = "0.25,0.5,1,2,4,8,12",
) -> Report:
    """The same requests at several rates: latency over throughput, beside the bound."""
    return _table("sweep", stream.read(), server, numbers("--rates", rates))
