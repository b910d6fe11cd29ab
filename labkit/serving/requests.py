"""Requests to served models: when each arrives, for which model, how many tokens in and out."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from math import ceil, inf
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le, MinLen
from numpy.typing import ArrayLike, NDArray

from labkit.errors import BadValue, not_among
from labkit.kit.arrivals import MOST_S, Arrivals, Column, counts, read_csv, seconds
from labkit.kit.describe import (
    AnyNumber,
    Positive,
    Whole,
    checked,
    description,
)

TRACES = {"azure-llm-2023": "data/AzureLLMInferenceTrace_conv.csv"}
"""Published traces: an hour of conversations with language models at Azure."""
TOKENS = {"prompt_tokens": 0, "output_tokens": 1}
"""Columns of tokens, and the least a request has."""
COLUMNS = {
    "arrival_s": seconds(
        *("arrival_s", "TIMESTAMP", "arrived_at", "timestamp", "Timestamp"), dates=True
    ),
    "prompt_tokens": counts(
        *("prompt_tokens", "ContextTokens", "num_prefill_tokens", "input_toks", "Request tokens"),
        least=0,
        default=0,
        resembles="tok|length",
    ),
    "output_tokens": counts(
        *("output_tokens", "GeneratedTokens", "num_decode_tokens", "output_toks"),
        "Response tokens",
        least=1,
        default=1,
        resembles="tok|length",
    ),
    "slo_s": Column(
        spellings=("slo_s", "slo"),
        allows=lambda slo, _: slo > 0,
        default=inf,
        valid="a number of seconds above 0, or nothing (inf) for none",
    ),
    "model": Column(spellings=("model", "model_name")),
}


MOST_REQUESTS = 10**7
"""Requests that are drawn at most; more would fill the memory of whoever asks."""
NumRequests = Annotated[int, Ge(1), Le(MOST_REQUESTS)]
Variation = Annotated[float, Ge(0), Le(100)]
"""A coefficient of variation; beyond, nearly all gaps would be 0."""


@description(eq=False)
class Requests(Arrivals):
    """Requests in order of arrival; those that arrive together keep the order they are given in.

    Attributes:
        arrival_s: when each request arrives.
        prompt_tokens: tokens it brings; default: 0, for models that have no prompt.
        output_tokens: tokens that are generated for it (for other models: 1); default: 1.
        slo_s: the latency it should not exceed; ``inf`` for none; default: none.
        model: the model it is for; default: all are for one.
        name: of the requests, as tables show it.

    Raises:
        BadValue: a time is negative or not finite, a number of tokens is no whole number, or
            columns differ in length.
    """

    arrival_s: ArrayLike
    prompt_tokens: ArrayLike = ()
    output_tokens: ArrayLike = ()
    slo_s: ArrayLike = ()
    model: tuple[str, ...] = ()
    name: str = "requests"

    COLUMNS: ClassVar[dict[str, Column]] = COLUMNS
    ROW: ClassVar[str] = "request"

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The models asked for, in order of their first request; ("",) where none is named."""
        return tuple(dict.fromkeys(self.model)) or ("",)

    @cached_property
    def model_index(self) -> NDArray[np.int64]:
        """Each request's place in :attr:`models`."""
        places = {name: place for place, name in enumerate(self.models)}
        index = np.array([places[name] for name in self.model] or [0] * len(self), dtype=np.int64)
        index.setflags(write=False)  # worked out once
        return index

    @property
    def rate_per_s(self) -> float:
        """Requests a second from the first arrival to the last; inf where all arrive at once."""
        arrival = self.column("arrival_s")
        span_s = float(arrival[-1] - arrival[0])
        return (len(self) - 1) / span_s if span_s > 0 else float("inf")

    @property
    def gap_cv(self) -> float:
        """Coefficient of variation of the gaps between arrivals: 1 for a Poisson process."""
        gaps = np.diff(self.column("arrival_s"))
        return float(gaps.std() / gaps.mean()) if gaps.size and gaps.any() else 0.0

    @checked
    def at_rate(self, rate_per_s: Positive) -> Requests:
        """The same requests with their gaps stretched to this mean rate.

        Raises:
            BadValue: they all arrive at once.

        >>> Requests(arrival_s=[0, 1, 2]).at_rate(2).column("arrival_s").tolist()
        [0.0, 0.5, 1.0]
        """
        if not np.isfinite(self.rate_per_s):
            raise BadValue("at_rate: the requests all arrive at once; there is no rate to change")
        arrival_s = self.column("arrival_s") * self.rate_per_s / rate_per_s
        if not arrival_s[-1] <= MOST_S:
            raise BadValue(
                f"at_rate: rate_per_s must be high enough for the last request to come within "
                f"{MOST_S:.0e} s; got {rate_per_s:g}"
            )
        arrival_s.setflags(write=False)
        changed = {"arrival_s": arrival_s, "model_index": self.model_index}
        stretched = copy(self)  # in order and checked already
        vars(stretched).update(changed)
        return stretched


@checked
def merge_streams(
    parts: Annotated[Sequence[Requests], MinLen(1)], *, name: str = "requests"
) -> Requests:
    """Several streams of requests as one, in order of arrival.

    Args:
        parts: of those that arrive together, the earlier part's come first.
        name: of the whole.

    Raises:
        BadValue: only some of them name their models.

    >>> parts = [generate(2, 3, cv=0, model="a"), generate(4, 2, cv=0, model="b")]
    >>> merge_streams(parts).frame()[["arrival_s", "model"]].values.tolist()
    [[0.25, 'b'], [0.5, 'a'], [0.5, 'b'], [1.0, 'a'], [1.5, 'a']]
    """
    if len({bool(part.model) for part in parts}) > 1:
        raise BadValue("merge_streams: only some parts name their model; valid: all or none")
    columns: dict[str, Any] = {
        column: np.concatenate([part.column(column) for part in parts])
        for column in Requests.names_of(texts=False)
    }
    return Requests(**columns, model=sum((part.model for part in parts), ()), name=name)


@checked
def generate(
    rate_per_s: Positive,
    count: NumRequests,
    *,
    cv: Variation = 1.0,
    prompt_tokens: tuple[int, int] = (0, 0),
    output_tokens: tuple[int, int] = (1, 1),
    slo_s: Annotated[AnyNumber, Gt(0)] = inf,
    model: str = "",
    rng: np.random.Generator | Whole = 0,
) -> Requests:
    """A synthetic stream for one model; :func:`merge_streams` joins several.

    Args:
        rate_per_s: mean requests a second.
        count: of requests.
        cv: coefficient of variation of the gaps, which are gamma distributed: 0 for even gaps,
            1 for a Poisson process, above 1 for bursts.
        prompt_tokens, output_tokens: least and most; drawn evenly, both ends included.
        slo_s: the latency that every request should not exceed.
        model: the model they are for; empty: they name none.
        rng: a generator or a seed.

    Raises:
        BadValue: a range is empty or begins too low.

    >>> generate(4, 3, cv=0).column("arrival_s").tolist()
    [0.25, 0.5, 0.75]
    """
    draw = np.random.default_rng(rng)
    for name, (low, high) in zip(TOKENS, (prompt_tokens, output_tokens), strict=True):
        if not TOKENS[name] <= low <= high < 2**31:
            raise BadValue(
                f"generate: {name} must be the least and the most, from {TOKENS[name]}; "
                f"got ({low}, {high})"
            )
    shape = 1 / cv**2 if cv > 1e-6 else np.inf
    unit = draw.gamma(shape, 1 / shape, count) if np.isfinite(shape) else np.ones(count)
    arrival_s = np.cumsum(unit / rate_per_s)
    if not arrival_s[-1] <= MOST_S:
        raise BadValue(
            f"generate: rate_per_s must be high enough for {count} requests to come within "
            f"{MOST_S:.0e} s; got {rate_per_s:g}"
        )
    return Requests(
        arrival_s=arrival_s,
        prompt_tokens=draw.integers(*prompt_tokens, count, endpoint=True),
        output_tokens=draw.integers(*output_tokens, count, endpoint=True),
        slo_s=np.full(count, slo_s),
        model=(model,) * count if model else (),
        name=f"generated ({rate_per_s:g}/s, gaps of CV {cv:g})",
    )


@checked
def traffic(
    rates_per_s: Annotated[dict[str, Positive], MinLen(1)],
    seconds: Positive,
    *,
    slo_s: Positive | dict[str, Positive] | None = None,
    cv: Variation = 1.0,
    rng: np.random.Generator | Whole = 0,
) -> Requests:
    """Requests of several models for so long, each with gaps of this variation; one each at least.

    Args:
        rates_per_s: mean requests a second by model.
        seconds: how long.
        slo_s: the latency objective of all models, or of each.
        cv: coefficient of variation of the gaps, as of :func:`generate`.
        rng: a generator or a seed, of which every model gets one of its own.

    Raises:
        UsageError: ``slo_s`` names a model that has no rate.

    >>> traffic({"a": 1.0, "b": 2.0}, 2.0, cv=0).model
    ('b', 'a', 'b', 'b')
    """
    slos = slo_s if isinstance(slo_s, dict) else dict.fromkeys(rates_per_s, slo_s or np.inf)
    for model in set(slos) - set(rates_per_s):
        raise not_among("model of rates_per_s", model, rates_per_s)
    draws: Sequence[np.random.Generator | int]
    if isinstance(rng, np.random.Generator):
        draws = rng.spawn(len(rates_per_s))
    else:
        draws = [1000 * rng + place for place in range(len(rates_per_s))]
    parts = []
    for (model, rate), draw in zip(rates_per_s.items(), draws, strict=True):
        expected = rate * seconds
        most = expected + 6 * (1 + cv) * expected**0.5 + 6  # six deviations more
        if not most <= MOST_REQUESTS:
            raise BadValue(
                f"traffic: rates_per_s of {model!r}, seconds and cv make {most:.2g} requests; "
                f"valid: {MOST_REQUESTS:.0e} at most"
            )
        enough = ceil(most)
        slo = slos.get(model, np.inf)
        part = generate(rate, enough, cv=cv, slo_s=slo, model=model, rng=draw)
        inside = int(np.searchsorted(part.column("arrival_s"), seconds))
        parts.append(part.head(max(inside, 1)))
    return merge_streams(parts)


@checked
def load(name: str) -> Requests:
    """A published trace: ``azure-llm-2023``, lengths and arrival times of conversations.

    Raises:
        UsageError: there is no such trace.
        DatasetUnavailable: it is not on this machine and cannot be downloaded.
    """
    from labkit import datasets

    if name not in TRACES:
        raise not_among("trace of requests", name, TRACES)
    return from_csv(datasets.open(f"{name}/{TRACES[name]}"), name=name)


@checked
def from_csv(
    path: str | Path, *, columns: dict[str, str] | None = None, name: str | None = None
) -> Requests:
    """Requests from a CSV file with a row of headings and one row a request.

    Args:
        path: the file. Needed column: ``arrival_s`` (seconds, or dates with times, which count
            from the first); used where they are there: ``prompt_tokens``, ``output_tokens``,
            ``slo_s``, ``model``. The spellings of published traces are known; another heading of
            tokens or lengths is refused where it would be left out.
        columns: the file's own spellings, such as ``{"arrival_s": "Start"}``.
        name: of the requests; default: the file's.

    Raises:
        BadFile: a column is missing or a value cannot be; names the row, the column, the value.
        BadValue: ``columns`` names a column that requests do not have.
    """
    return read_csv(Requests, path, columns or {}, name)
