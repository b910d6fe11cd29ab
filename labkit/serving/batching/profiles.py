"""Batch profiles: how long one batch takes on a GPU, by its size. A table, never a line."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labkit import files
from labkit.errors import BadFile, BadValue
from labkit.kit.describe import NonNegative, Positive, checked, description

HEADING = "batch,latency(us),std(us),memory(B)"
"""The line above a profile's rows in the files of Nexus's authors."""


@description
class BatchProfile:
    """A model's latency by batch size on one kind of GPU.

    Attributes:
        latency_s: seconds that batches of 1, 2, 3, … take. They need not rise: real kernels jump.
        std_s: standard deviation of each; default: none was measured.

    Raises:
        BadValue: there is no latency, or ``std_s`` has another length.
    """

    name: str
    latency_s: tuple[Positive, ...]
    std_s: tuple[NonNegative, ...] = ()

    def __post_init__(self) -> None:
        if not self.latency_s or len(self.std_s) not in (0, len(self.latency_s)):
            raise BadValue(
                f"BatchProfile.latency_s of {self.name!r} must have one for batch 1 or more, and "
                f"std_s as many or none; got {len(self.latency_s)} and {len(self.std_s)}"
            )

    @classmethod
    @checked
    def read(cls, path: str | Path) -> BatchProfile:
        """A profile in the format of Nexus's authors: a heading, then a row a batch size.

        Raises:
            BadFile: the heading is missing, a row is no row of numbers, or batches are not
                1, 2, ….
        """
        path = Path(path)
        try:
            lines = files.read_text(path).removeprefix("\ufeff").splitlines()
            start = lines.index(HEADING) + 1
        except (OSError, ValueError) as error:
            raise BadFile(path, f"no profile ({type(error).__name__})", valid=HEADING) from None
        rows = list(takewhile(lambda line: not line.endswith("latency"), lines[start:]))
        if not rows:
            raise BadFile(path, "no row follows the heading", valid="1,6277.4,22.4,949944320")
        table = np.array(
            [_row(path, start + batch, line, batch) for batch, line in enumerate(rows, start=1)]
        )
        with files.holding(path, HEADING):
            return cls(
                name=path.name.split(":")[1] if path.name.count(":") > 1 else path.stem,
                latency_s=tuple((table[:, 0] / 1e6).tolist()),
                std_s=tuple((table[:, 1] / 1e6).tolist()),
            )

    @property
    def max_batch(self) -> int:
        """The largest batch in the table."""
        return len(self.latency_s)

    @property
    def throughput_per_s(self) -> NDArray[np.float64]:
        """Requests a second by batch size, one batch after another."""
        return np.arange(1, self.max_batch + 1) / np.array(self.latency_s)

    @checked
    def slower(self, factor: Positive) -> BatchProfile:
        """The same with every latency multiplied.

        >>> BatchProfile(name="two sizes", latency_s=(0.25, 0.5)).slower(2).latency_s
        (0.5, 1.0)
        """
        latency_s = tuple(seconds * factor for seconds in self.latency_s)
        return replace(self, latency_s=latency_s)

    @checked
    def largest(self, limit_s: float, *, per_request_s: NonNegative = 0.0) -> int:
        """The largest batch b with latency(b) + b · per_request_s <= limit_s; 0: there is none.

        >>> two = BatchProfile(name="two", latency_s=(0.25, 0.4))
        >>> two.largest(0.45), two.largest(0.45, per_request_s=0.1), two.largest(0.2)
        (2, 1, 0)
        """
        sizes = np.arange(1, self.max_batch + 1)
        fits = np.array(self.latency_s) + sizes * per_request_s <= limit_s * (1 + 1e-12)
        return int(sizes[fits].max()) if fits.any() else 0

    @checked
    def best(self, limit_s: float) -> tuple[int, float]:
        """The batch with the most requests a second whose latency is within the limit, and that
        rate; (0, 0.0) where there is none.

        >>> BatchProfile(name="two", latency_s=(0.25, 0.4)).best(1.0)
        (2, 5.0)
        """
        rates = np.where(np.array(self.latency_s) <= limit_s, self.throughput_per_s, 0.0)
        batch = int(rates.argmax())
        return (batch + 1, float(rates[batch])) if rates[batch] > 0 else (0, 0.0)


def _row(path: Path, number: int, line: str, batch: int) -> tuple[float, float]:
    try:
        size, latency_us, std_us, _ = (float(part) for part in line.split(","))
    except ValueError:
        size = latency_us = std_us = np.nan
    if size != batch or not 0 < latency_us < np.inf or not 0 <= std_us < np.inf:
        raise BadFile(
            path,
            "no row of a profile",
            line=number,
            value=line,
            valid=f"batch {batch}, microseconds above 0, their deviation, bytes",
        )
    return latency_us, std_us
