"""``labkit serving``: requests to served models, from the shell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd

from labkit import serving
from labkit.errors import UsageError, not_among
from labkit.kit.command import Commands, argument, option
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
            metavar="[TRACE]", complete=lambda: list(TRACES),
        ),
    ] = ""  # fmt: skip
    first: Annotated[int, option("Only the first requests; 0: all.", min=0)] = 0
    count: Annotated[int, option("Number of synthetic requests.", min=1)] = 2000
    rate: Annotated[float, option("Synthetic requests a second.")] = 1.0
    cv: Annotated[float, option("Variation of their gaps; 1: Poisson, above: bursts.")] = 1.0
    prompts: Annotated[str, option("Tokens of synthetic prompts.", metavar="LOW-HIGH")] = "32-512"
    outputs: Annotated[str, option("Tokens generated for them.", metavar="LOW-HIGH")] = "1-128"
    seed: Annotated[int, option("Of synthetic requests.", min=0)] = 0

    def read(self) -> Requests:
        if not self.trace:
            return serving.generate(
                self.rate, self.count, cv=self.cv, rng=self.seed,
                prompt_tokens=whole_range("--prompts", self.prompts),
                output_tokens=whole_range("--outputs", self.outputs),
            )  # fmt: skip
        if self.trace in TRACES:
            requests = serving.load(self.trace)
        elif Path(self.trace).suffix:
            requests = serving.from_csv(self.trace)
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
            "command": "requests", "trace": trace.name, "requests": len(trace),
            "rate_per_s": trace.rate_per_s, "gap_cv": trace.gap_cv, "rows": records(table),
        },
        notes=["the coefficient of variation of the gaps is 1 for Poisson arrivals"],
    )  # fmt: skip
