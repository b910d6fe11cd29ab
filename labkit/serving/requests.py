"""Requests to served models: when each arrives, for which model, how many tokens in and out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.errors import BadFile, BadValue, not_among
from labkit.kit.describe import AnyNumber, Count, NonNegative, Positive, checked, description

if TYPE_CHECKING:
    import pandas as pd

AZURE = "azure-llm-2023"
TRACES = {AZURE: "data/AzureLLMInferenceTrace_conv.csv"}
"""Published traces: an hour of conversations with language models at Azure."""
COLUMNS = {  # spellings of each column, ours first; others are of published traces
    "arrival_s": ("arrival_s", "TIMESTAMP", "arrived_at", "timestamp"),
    "prompt_tokens": ("prompt_tokens", "ContextTokens", "num_prefill_tokens"),
    "output_tokens": ("output_tokens", "GeneratedTokens", "num_decode_tokens"),
    "slo_s": ("slo_s", "slo"),
    "model": ("model", "model_name"),
}
NUMBERS = ("arrival_s", "prompt_tokens", "output_tokens", "slo_s")
TOKENS = ("prompt_tokens", "output_tokens")
VALID = {
    "arrival_s": "a finite number of seconds, at least 0",
    "prompt_tokens": "a whole number, at least 0",
    "output_tokens": "a whole number, at least 1",
    "slo_s": "a number of seconds above 0, or nothing (inf) for none",
}
LEAST = {"prompt_tokens": 0, "output_tokens": 1}


class _Fault(NamedTuple):
    """The first value of a column that cannot be."""

    column: str
    row: int
    value: object
    problem: str = "the value is not allowed"


def _fault(columns: Mapping[str, NDArray[np.float64]]) -> _Fault | None:
    arrival, slo = columns["arrival_s"], columns["slo_s"]
    wrong = {"arrival_s": ~(np.isfinite(arrival) & (arrival >= 0)), "slo_s": ~(slo > 0)}
    for name in TOKENS:
        tokens = columns[name]
        wrong[name] = ~((tokens >= LEAST[name]) & (tokens < 2**31) & (tokens == np.floor(tokens)))
    for name, is_wrong in wrong.items():
        if is_wrong.any():
            row = int(np.argmax(is_wrong))
            return _Fault(name, row, columns[name][row].item())
    return None


@description
@dataclass(frozen=True, kw_only=True, eq=False)
class Requests:
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

    def __post_init__(self) -> None:
        arrays = {name: self._column(name) for name in NUMBERS}
        count = arrays["arrival_s"].size
        for name, value in (("prompt_tokens", 0.0), ("output_tokens", 1.0), ("slo_s", np.inf)):
            if not arrays[name].size:
                arrays[name] = np.full(count, value)
        lengths = {name: array.size for name, array in arrays.items()}
        lengths |= {"model": len(self.model)} if self.model else {}
        for name, length in lengths.items():
            if length != count or not count:
                raise BadValue(
                    f"Requests.{name} must have one entry a request; got {length} where arrival_s "
                    f"has {count}; valid: one request or more, every column of the same length"
                )
        if fault := _fault(arrays):
            raise BadValue(
                f"Requests.{fault.column}[{fault.row}]: {fault.problem}; found {fault.value!r}; "
                f"valid: {VALID[fault.column]}"
            )
        order = np.argsort(arrays["arrival_s"], kind="stable")
        for name, array in arrays.items():
            column = array[order].astype(np.int64 if name in TOKENS else np.float64)
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        if self.model:
            object.__setattr__(self, "model", tuple(self.model[row] for row in order))

    def _column(self, name: str) -> NDArray[np.float64]:
        array = np.asarray(getattr(self, name), dtype=float)
        if array.ndim != 1:
            raise BadValue(f"Requests.{name} must be a list of numbers; got {array!r}")
        return array

    def __len__(self) -> int:
        return self.column("arrival_s").size

    def column(self, name: str) -> NDArray[Any]:
        """A column of numbers, read-only, such as ``arrival_s``."""
        return np.asarray(getattr(self, name))

    @property
    def models(self) -> tuple[str, ...]:
        """The models asked for, in order of their first request; ("",) where none is named."""
        return tuple(dict.fromkeys(self.model)) or ("",)

    @property
    def model_index(self) -> NDArray[np.int64]:
        """Each request's place in :attr:`models`."""
        places = {name: place for place, name in enumerate(self.models)}
        return np.array([places[name] for name in self.model] or [0] * len(self), dtype=np.int64)

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
    def head(self, count: int) -> Requests:
        """The first requests alone.

        Raises:
            BadValue: there are fewer, or ``count`` is below 1.
        """
        if not 1 <= count <= len(self):
            raise BadValue(f"head: count must be from 1 to {len(self)}; got {count}")
        return self._with(**{name: self.column(name)[:count] for name in NUMBERS},
                          model=self.model[:count])  # fmt: skip

    @checked
    def at_rate(self, rate_per_s: Positive) -> Requests:
        """The same requests with their gaps stretched to this mean rate."""
        if not np.isfinite(self.rate_per_s):
            raise BadValue("at_rate: the requests all arrive at once; there is no rate to change")
        return self._with(arrival_s=self.column("arrival_s") * self.rate_per_s / rate_per_s)

    def _with(self, **changes: Any) -> Requests:
        names = (*NUMBERS, "model", "name")
        return Requests(**{name: getattr(self, name) for name in names} | changes)

    def frame(self) -> pd.DataFrame:
        """One row a request, in order of arrival."""
        import pandas as pd

        columns: dict[str, Any] = {name: self.column(name) for name in NUMBERS}
        return pd.DataFrame(columns | ({"model": list(self.model)} if self.model else {}))


@checked
def together(parts: Sequence[Requests], *, name: str = "requests") -> Requests:
    """Several streams of requests as one, in order of arrival.

    Raises:
        BadValue: there are none, or only some of them name their models.
    """
    if not parts:
        raise BadValue("together: parts must hold one stream of requests or more")
    if len({bool(part.model) for part in parts}) > 1:
        raise BadValue("together: only some parts name their model; valid: all or none")
    columns: dict[str, Any] = {
        column: np.concatenate([part.column(column) for part in parts]) for column in NUMBERS
    }
    return Requests(**columns, model=sum((part.model for part in parts), ()), name=name)


@checked
def generate(
    rate_per_s: Positive,
    count: Count,
    *,
    cv: NonNegative = 1.0,
    prompt_tokens: tuple[int, int] = (0, 0),
    output_tokens: tuple[int, int] = (1, 1),
    slo_s: AnyNumber = float("inf"),
    model: str = "",
    rng: np.random.Generator | int = 0,
) -> Requests:
    """A synthetic stream for one model; :func:`together` joins several.

    Args:
        rate_per_s: mean requests a second.
        cv: coefficient of variation of the gaps, which are gamma distributed: 0 for even gaps,
            1 for a Poisson process, above 1 for bursts.
        prompt_tokens, output_tokens: least and most; drawn evenly, both ends included.
        slo_s: the latency that every request should not exceed.
        rng: a generator or a seed.

    Raises:
        BadValue: a range is empty or begins too low, or ``slo_s`` is not above 0.
    """
    draw = np.random.default_rng(rng) if isinstance(rng, int) and rng >= 0 else rng
    if isinstance(draw, int):
        raise BadValue(f"generate: rng must be a generator or a seed, at least 0; got {rng}")
    for name, (low, high) in zip(TOKENS, (prompt_tokens, output_tokens), strict=True):
        if not LEAST[name] <= low <= high < 2**31:
            raise BadValue(
                f"generate: {name} must be the least and the most, from {LEAST[name]}; "
                f"got ({low}, {high})"
            )
    if not slo_s > 0:
        raise BadValue(f"generate: slo_s must be above 0; got {slo_s}")
    shape = 1 / cv**2 if cv > 1e-6 else np.inf
    unit = draw.gamma(shape, 1 / shape, count) if np.isfinite(shape) else np.ones(count)
    return Requests(
        arrival_s=np.cumsum(unit / rate_per_s),
        prompt_tokens=draw.integers(*prompt_tokens, count, endpoint=True),
        output_tokens=draw.integers(*output_tokens, count, endpoint=True),
        slo_s=np.full(count, slo_s),
        model=(model,) * count if model else (),
        name=f"generated ({rate_per_s:g}/s, gaps of CV {cv:g})",
    )


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
            ``slo_s``, ``model``. The spellings of published traces are known.
        columns: the file's own spellings, such as ``{"arrival_s": "Start"}``.
        name: of the requests; default: the file's.

    Raises:
        BadFile: a column is missing or a value cannot be; names the row, the column, the value.
        BadValue: ``columns`` names a column that requests do not have.
    """
    import pandas as pd

    path = Path(path)
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise BadFile(path, "the file is missing") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise BadFile(path, f"is no table: {problem}", valid="a CSV file with headings") from None
    spelt = _spellings(table, path, columns or {})
    if table.empty:
        raise BadFile(path, "holds no requests", valid="one row a request below the headings")
    numbers: dict[str, Any] = {
        column: _numbers(table[spelt[column]], path, column)
        for column in NUMBERS
        if column in spelt
    }
    filled = {c: numbers.get(c, np.full(len(table), LEAST.get(c, np.inf))) for c in NUMBERS}
    if fault := _fault(filled):
        raise _bad(path, fault, spelt[fault.column])
    model = tuple(table[spelt["model"]].str.strip()) if "model" in spelt else ()
    return Requests(**numbers, model=model, name=name or path.stem)


def _spellings(table: pd.DataFrame, path: Path, columns: Mapping[str, str]) -> dict[str, str]:
    """The file's heading of each of our columns that it has."""
    if unknown := set(columns) - set(COLUMNS):
        raise BadValue(
            f"from_csv: columns names {sorted(unknown)[0]!r}; valid: {', '.join(COLUMNS)}"
        )
    near = {c: [n for n in names if n in table.columns][:1] for c, names in COLUMNS.items()}
    spelt = {column: names[0] for column, names in near.items() if names} | dict(columns)
    for column in dict.fromkeys(["arrival_s", *spelt]):
        heading = spelt.get(column)
        if heading is None or heading not in table.columns:
            raise BadFile(
                path, "a column is missing", line=1, field=heading or column,
                value=", ".join(map(str, table.columns)),
                valid=f"a column {' or '.join(COLUMNS[column])}, or columns={{{column!r}: …}}",
            )  # fmt: skip
    return spelt


def _numbers(texts: pd.Series[str], path: Path, column: str) -> NDArray[np.float64]:
    """A column as numbers. Dates with times become seconds from the first; an empty SLO is none."""
    import pandas as pd

    texts = texts.str.strip()
    values = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=float)
    if column == "arrival_s" and np.isnan(values).all():
        dates = pd.to_datetime(texts, errors="coerce", format="ISO8601", utc=True)
        values = ((dates - dates.min()) / pd.Timedelta(seconds=1)).to_numpy(dtype=float)
    if column == "slo_s":
        values = np.where(texts == "", np.inf, values)
    if np.isnan(values).any():
        row = int(np.argmax(np.isnan(values)))
        raise _bad(path, _Fault(column, row, texts.iloc[row], "no number"), str(texts.name))
    return values


def _bad(path: Path, fault: _Fault, heading: str) -> BadFile:
    return BadFile(
        path, fault.problem, line=fault.row + 2, field=heading, value=fault.value,
        valid=VALID[fault.column],
    )  # fmt: skip
