"""Lookups of many tables: one table after another, or all in one operation, really run.

:func:`compare` takes the device, so the same call measures a processor or a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from labkit.kit.randomness import Rng, seed_of

Variant = Literal["loop", "loop, rows only", "lookups fused", "all fused"]
VARIANTS: tuple[Variant, ...] = ("loop", "loop, rows only", "lookups fused", "all fused")
"""A table at a time with a dense gradient, as torch's SGD has it, or with updates of the rows that
were looked up; one lookup of all tables, then the loop's gradients; everything in one operation."""
RATE = 0.01
"""Of learning."""


@dataclass(frozen=True, kw_only=True)
class Lookups:
    """Tables that lie one after the other in one matrix, and a batch that looks rows up in them.

    Attributes:
        weights: [tables · rows, columns].
        ids: [tables, samples · ids of a sample]: rows of each table, counted from its own first.
        gradients: [tables, samples, columns]: of the outputs.
    """

    weights: Tensor
    ids: Tensor
    gradients: Tensor

    @classmethod
    def draw(
        cls,
        *,
        num_tables: int,
        rows: int = 128,
        columns: int = 128,
        samples: int = 64,
        ids: int = 1,
        device: str = "cpu",
        rng: Rng = 0,
    ) -> Lookups:
        """Draw weights, ids and gradients of the same sizes for all tables.

        Args:
            num_tables: how many.
            rows, columns: of each.
            samples: of the batch.
            ids: that a sample looks up in each table.
            device: where they lie, as torch names it.
            rng: of all numbers.
        """
        generator = torch.Generator().manual_seed(seed_of(rng))
        weights = torch.randn(num_tables * rows, columns, generator=generator)
        drawn = torch.randint(rows, (num_tables, samples * ids), generator=generator)
        gradients = torch.randn(num_tables, samples, columns, generator=generator)
        return cls(weights=weights.to(device), ids=drawn.to(device), gradients=gradients.to(device))

    @property
    def num_tables(self) -> int:
        return self.ids.shape[0]

    @property
    def samples(self) -> int:
        return self.gradients.shape[1]

    @property
    def ids_of_a_sample(self) -> int:
        return self.ids.shape[1] // self.samples

    def copy(self) -> Lookups:
        """The same batch on a copy of the weights."""
        return Lookups(weights=self.weights.clone(), ids=self.ids, gradients=self.gradients)

    def fused_ids(self) -> Tensor:
        """Rows of the one matrix: each table's ids, shifted by the rows before it."""
        rows = len(self.weights) // self.num_tables
        first = torch.arange(self.num_tables, device=self.ids.device) * rows
        return (self.ids + first[:, None]).reshape(-1)

    def looked_up(self) -> Tensor:
        """Outputs of all tables by one operation: [tables, samples, columns]."""
        bags = self.fused_ids().reshape(-1, self.ids_of_a_sample)
        summed = functional.embedding_bag(bags, self.weights, mode="sum")
        return summed.reshape(self.gradients.shape)

    def looped(self) -> Tensor:
        """The same by one operation a table."""
        outputs = []
        for table, ids in zip(self.weights.chunk(self.num_tables), self.ids, strict=True):
            bags = ids.reshape(self.samples, -1)
            outputs.append(functional.embedding_bag(bags, table, mode="sum"))
        return torch.stack(outputs)

    def update(self, *, dense: bool) -> None:
        """Subtract the gradients, a table at a time; a dense gradient has all its rows."""
        tables = self.weights.chunk(self.num_tables)
        for table, ids, gradients in zip(tables, self.ids, self.gradients, strict=True):
            repeated = gradients.repeat_interleave(self.ids_of_a_sample, 0)
            if dense:
                gradient = torch.zeros_like(table).index_add_(0, ids, repeated)
                table.sub_(gradient, alpha=RATE)
            else:
                table.index_add_(0, ids, repeated, alpha=-RATE)

    def update_fused(self) -> None:
        """Subtract the gradients of all tables by one operation."""
        flat = self.gradients.reshape(-1, self.gradients.shape[-1])
        repeated = flat.repeat_interleave(self.ids_of_a_sample, 0)
        self.weights.index_add_(0, self.fused_ids(), repeated, alpha=-RATE)

    def step(self, variant: Variant) -> Tensor:
        """Look up, then update; return the outputs."""
        one_lookup = variant in ("lookups fused", "all fused")
        outputs = self.looked_up() if one_lookup else self.looped()
        if variant == "all fused":
            self.update_fused()
        else:
            self.update(dense=variant != "loop, rows only")
        return outputs


def least_s(run: Callable[[], object], device: str, repeats: int) -> float:
    """Seconds of the fastest run: the processor's own on a processor, by the clock on a GPU."""
    on_gpu = device.startswith("cuda")
    clock = time.perf_counter if on_gpu else time.process_time
    seconds = []
    for _ in range(repeats):
        start_s = clock()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(clock() - start_s)
    return min(seconds)


def compare(
    device: str,
    *,
    num_tables: Sequence[int] = (10, 26, 100, 1000),
    rows: int = 128,
    columns: int = 128,
    samples: int = 64,
    ids: int = 1,
    variants: Sequence[Variant] = VARIANTS,
    repeats: int = 20,
    rng: Rng = 0,
) -> pd.DataFrame:
    """Measure a step of each variant.

    Args:
        device: as torch names it: ``"cpu"``, ``"cuda"``.
        num_tables: how many tables, a row each.
        rows, columns: of a table.
        samples: of the batch.
        ids: that a sample looks up in a table.
        variants: which are measured.
        repeats: of which the fastest counts, after one run that does not.
        rng: of weights, ids and gradients.

    Returns:
        Seconds, a row a number of tables, a column a variant.
    """
    seconds = pd.DataFrame(
        index=pd.Index(num_tables, name="tables"), columns=[*variants], dtype=float
    )
    for count in num_tables:
        drawn = Lookups.draw(
            num_tables=count,
            rows=rows,
            columns=columns,
            samples=samples,
            ids=ids,
            device=device,
            rng=rng,
        )
        for variant in variants:
            lookups = drawn.copy()
            lookups.step(variant)
            if device.startswith("cuda"):
                torch.cuda.synchronize()

            def run(lookups: Lookups = lookups, variant: Variant = variant) -> None:
                lookups.step(variant)

            seconds.loc[count, variant] = least_s(run, device, repeats)
    return seconds


def largest_difference(lookups: Lookups, variants: Sequence[Variant] = VARIANTS) -> float:
    """The largest difference of outputs and weights among the variants, from the same start."""
    found = []
    for variant in variants:
        start = lookups.copy()
        outputs = start.step(variant)
        found.append(torch.cat([outputs.reshape(-1), start.weights.reshape(-1)]))
    differences = [float((other - found[0]).abs().max()) for other in found[1:]]
    return float(np.max(differences))
