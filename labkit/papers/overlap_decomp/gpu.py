"""The gathered product on one device, with two streams: copies of parts beside slices.

``python -m labkit.papers.overlap_decomp.gpu --out FOLDER`` measures on a GPU, prints and stores.

One device stands for a chip of the ring; its neighbours' parts come from the host's pinned memory
over the host's link, or from elsewhere in the device's own memory. So a hop is a copy at that
link's rate, without a peer that computes at the same time. Importing this module does not load
torch; its functions do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from labkit import extras
from labkit.errors import BadValue, UsageError
from labkit.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

FILE = "overlap_decomp_gpu.csv"
Home = Literal["host", "device"]
"""Where a part lies before its hop."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds of one shape on one device; medians of repeated calls.

    Attributes:
        product_s: of the whole product, its rows in place.
        copies_s: of all copies, alone.
        whole_s: of all copies, then the whole product.
        slices_s: of all slices, their rows in place: what cutting costs.
        loop_s: of the loop, a copy beside each slice.
        difference: largest of the loop's result from the whole product's, over its largest number.
    """

    device: str
    home: str
    tokens: int
    inner: int
    outputs: int
    workers: int
    product_s: float
    copies_s: float
    whole_s: float
    slices_s: float
    loop_s: float
    difference: float

    @property
    def gain(self) -> float:
        """Speed of the loop over copies and product one after the other."""
        return self.whole_s / self.loop_s


class _Ring:
    """A product, its parts at home, and the buffers that they are copied into."""

    def __init__(
        self, device: str, tokens: int, inner: int, outputs: int, workers: int, home: Home
    ) -> None:
        import torch

        self.torch = torch
        self.cuda = device.startswith("cuda")
        kind = torch.bfloat16 if self.cuda else torch.float32
        random = torch.Generator().manual_seed(0)
        rows = torch.randn(tokens, inner, generator=random).to(kind)
        self.parts = list(rows.chunk(workers))
        if self.cuda:
            away = [part.to(device) for part in self.parts]
            pinned = [part.pin_memory() for part in self.parts]
            self.parts = pinned if home == "host" else away
        self.weights = (torch.randn(inner, outputs, generator=random) / inner**0.5).to(kind)
        self.weights = self.weights.to(device)
        self.rows = torch.empty(tokens, inner, dtype=kind, device=device)
        self.result = torch.empty(tokens, outputs, dtype=kind, device=device)
        self.places = list(self.rows.chunk(workers))
        self.results = list(self.result.chunk(workers))
        self.copying = torch.cuda.Stream(device) if self.cuda else None

    def product(self) -> None:
        self.torch.matmul(self.rows, self.weights, out=self.result)

    def copies(self) -> None:
        for place, part in zip(self.places, self.parts, strict=True):
            place.copy_(part, non_blocking=True)

    def whole(self) -> None:
        self.copies()
        self.product()

    def slices(self) -> None:
        for place, result in zip(self.places, self.results, strict=True):
            self.torch.matmul(place, self.weights, out=result)

    def loop(self) -> None:
        """Copy part after part on one stream; multiply each on the other when it has arrived."""
        if self.copying is None:
            for place, part, result in zip(self.places, self.parts, self.results, strict=True):
                place.copy_(part)
                self.torch.matmul(place, self.weights, out=result)
            return
        cuda = self.torch.cuda
        computing = cuda.current_stream()
        self.copying.wait_stream(computing)  # the last call's slices are done with the buffers
        for place, part, result in zip(self.places, self.parts, self.results, strict=True):
            with cuda.stream(self.copying):
                place.copy_(part, non_blocking=True)
                arrived = self.copying.record_event()
            computing.wait_event(arrived)
            self.torch.matmul(place, self.weights, out=result)

    def seconds(self, call: Callable[[], None], repeats: int) -> float:
        """The median of repeated calls, after two that are not counted."""
        found = []
        for number in range(repeats + 2):
            if self.cuda:
                self.torch.cuda.synchronize()
            start_s = time.perf_counter()
            call()
            if self.cuda:
                self.torch.cuda.synchronize()
            if number >= 2:
                found.append(time.perf_counter() - start_s)
        return statistics.median(found)


def measure(
    device: str = "cuda",
    *,
    tokens: int = 16384,
    inner: int = 12288,
    outputs: int = 6144,
    workers: int = 8,
    home: Home = "host",
    repeats: int = 20,
) -> Measured:
    """Measure the gathered product of one shape on a device.

    Without a GPU (``device="cpu"``) the same slices are computed one after another: numbers are
    checked, and nothing overlaps.

    Args:
        device: as torch names it.
        tokens: rows in all, a multiple of workers.
        inner, outputs: the product is (tokens, inner) × (inner, outputs).
        workers: parts.
        home: where a part lies before its hop; ignored without a GPU.

    Raises:
        BadValue: tokens is no multiple of workers.
        UsageError: torch is missing, or finds no such device.
    """
    extras.need("measuring a product in slices", "torch", "torch")
    import torch

    if tokens % workers:
        raise BadValue(f"measure: tokens must be a multiple of workers {workers}; got {tokens}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"measure: torch finds no device {device!r} here; 'cpu' is valid")
    ring = _Ring(device, tokens, inner, outputs, workers, home)
    ring.whole()
    expected = ring.result.float().clone()
    ring.rows.zero_()
    ring.loop()
    if ring.cuda:
        torch.cuda.synchronize()
    difference = (ring.result.float() - expected).abs().max() / expected.abs().max()
    return Measured(
        device=torch.cuda.get_device_name(device) if ring.cuda else device,
        home=home if ring.cuda else "device",
        tokens=tokens,
        inner=inner,
        outputs=outputs,
        workers=workers,
        product_s=ring.seconds(ring.product, repeats),
        copies_s=ring.seconds(ring.copies, repeats),
        whole_s=ring.seconds(ring.whole, repeats),
        slices_s=ring.seconds(ring.slices, repeats),
        loop_s=ring.seconds(ring.loop, repeats),
        difference=float(difference),
    )


def sweep(
    device: str = "cuda",
    *,
    tokens: Sequence[int] = (1024, 4096, 16384),
    outputs: Sequence[int] = (1536, 6144, 24576),
    workers: Sequence[int] = (4, 8),
    inner: int = 12288,
    repeats: int = 20,
) -> pd.DataFrame:
    """A table of shapes: a row for each home, number of parts, outputs and tokens, and its gain.

    Args:
        tokens, outputs, workers: values that are combined.
        inner, repeats: as :func:`measure` takes them.
    """
    import pandas as pd

    homes: tuple[Home, ...] = ("host", "device")
    rows = []
    for home, parts, columns, count in product(homes, workers, outputs, tokens):
        found = measure(
            device,
            tokens=count,
            inner=inner,
            outputs=columns,
            workers=parts,
            home=home,
            repeats=repeats,
        )
        rows.append({**asdict(found), "gain": found.gain})
    return pd.DataFrame(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure on the first GPU, print, and store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder of the table")
    chosen = parser.parse_args(arguments)
    table = sweep()
    print(table.to_string(index=False))
    chosen.out.mkdir(parents=True, exist_ok=True)
    write_atomically(chosen.out / FILE, table.to_csv(index=False))


if __name__ == "__main__":
    main()
