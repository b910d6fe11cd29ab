"""Layouts of PaLM's layers over chips: bytes moved, seconds of a pass, longest contexts.

A layer is two products, width → inner and inner → width; attention's projections lie beside the
feed-forward's. A pass takes the tokens of a batch through all layers.

    partition = effscale_inference.Partition(model=Model.preset("palm-540b"), chips=64)
    partition.step(64, context=2048).total_s     # seconds a token
    partition.longest_context(128)               # tokens that fit beside the weights

Source: §3 and Appendix A of Pope et al., Efficiently Scaling Transformer Inference (MLSys'23), for
any number of columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import MinLen

from labkit import hardware
from labkit.errors import BadValue
from labkit.kit.describe import Count, NonNegative, Positive, Share, Whole, checked, description
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd

NUMBER_BYTES = 2
"""Of an activation, and of a cached key or value."""


class Layout(StrEnum):
    """How the weights of a layer lie on chips, and what travels."""

    ONE_D = "1D"
    TWO_D = "2D"
    GATHERED = "gathered"


class Attention(StrEnum):
    """By what keys and values are divided among chips."""

    HEADS = "heads"
    BATCH = "batch"
    SEQUENCE = "sequence"


PALM: dict[str, Model] = {
    "8B": Model(
        num_layers=32,
        hidden=4096,
        heads=16,
        head_dim=256,
        kv_heads=1,
        ffn=16384,
        vocab=256000,
        bias=False,
        mlp="swiglu",
    ),
    "62B": Model(
        num_layers=64,
        hidden=8192,
        heads=32,
        head_dim=256,
        kv_heads=1,
        ffn=32768,
        vocab=256000,
        bias=False,
        mlp="swiglu",
    ),
    "540B": Model.preset("palm-540b"),
}
"""The paper's three models. Source: Chowdhery et al. 2022, Table 1."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Seconds of one pass by cause: all modelled.

    Attributes:
        compute_s: operations at the peak rate.
        weights_s, cache_s: reading weights, and cached keys and values, from memory.
        traffic_s: bytes between chips at the link's rate.
        hops_s: latency of the collectives' steps.
        mfu_fraction: 2 × parameters × tokens at the peak rate, over ``total_s``.
    """

    compute_s: float
    weights_s: float
    cache_s: float
    traffic_s: float
    hops_s: float
    mfu_fraction: float

    @property
    def total_s(self) -> float:
        """Computing hides behind memory or memory behind computing; nothing hides traffic."""
        return max(self.compute_s, self.weights_s + self.cache_s) + self.traffic_s + self.hops_s

    @property
    def least_s(self) -> float:
        """Everything hides behind the longest: no schedule of this layout is faster."""
        return max(self.compute_s, self.weights_s + self.cache_s, self.traffic_s)


@description
class Partition:
    """A model on a slice of chips.

    Attributes:
        layout: 1D: inner columns are split over all chips; 2D: width over some, inner over the
            others; gathered: tokens are split over groups of chips that gather weights, each group
            of 1D inside.
        split: chips along the width (2D), or over which tokens are split and weights gathered
            (gathered); None: the number that moves fewest bytes.
        attention: keys and values split over heads (a head on several chips is copied), over the
            sequences of the batch, or over the tokens of each sequence.
        weight_bytes: of a weight in memory and on links: 2, or 1 for int8.
        link_bytes_per_s: of a chip; None: the accelerator's.
        hop_s: latency of one step of a collective (assumed).
    """

    model: Model
    chips: Count = 64
    accelerator: str = "TPU-v4"
    layout: Layout = Layout.TWO_D
    split: Count | None = None
    attention: Attention = Attention.BATCH
    weight_bytes: Positive = 2
    link_bytes_per_s: Positive | None = None
    hop_s: NonNegative = 1e-6

    def __post_init__(self) -> None:
        if self.split and self.chips % self.split:
            raise BadValue(f"Partition.split must divide {self.chips} chips; got {self.split}")
        if self.layout is Layout.ONE_D and self.split:
            raise BadValue("Partition.split: layout '1D' has none; valid: None")

    @property
    def columns(self) -> tuple[int, int]:
        """Inner columns of the first product and rows of the second, of all chips."""
        shape = self.model
        gates = 2 if self.model.mlp == "swiglu" else 1
        queries = shape.heads * shape.head_dim
        keys = 2 * shape.kv_heads * shape.head_dim
        return gates * shape.ffn + queries + keys, shape.ffn + queries

    @checked
    def ways(self, tokens: Count) -> int:
        """``split``, or the divisor of the chips that moves fewest bytes for so many tokens."""
        if self.split or self.layout is Layout.ONE_D:
            return self.split or 1
        choices = [n for n in range(1, self.chips + 1) if self.chips % n == 0]
        if self.layout is Layout.GATHERED:
            choices = [n for n in choices if n <= tokens and n > 1] or [1]
        return min(choices, key=lambda n: self._layer_bytes(tokens, n))

    @checked
    def layer_bytes(self, tokens: Count) -> float:
        """Bytes that a chip receives in a layer, for so many tokens in all.

        A gather of D bytes over k chips, or a scatter of sums, brings each of them D (k − 1) / k.
        """
        return self._layer_bytes(tokens, self.ways(tokens))

    def _layer_bytes(self, tokens: int, split: int) -> float:
        return layer_bytes(
            self.layout,
            tokens=tokens,
            width=self.model.hidden,
            columns=self.columns,
            chips=self.chips,
            split=split,
            weight_bytes=self.weight_bytes,
        )

    def _hops(self, chips: int) -> float:
        """Steps of a collective that goes around one axis of a cube-shaped torus after another."""
        side = self.chips ** (1 / 3)
        return (side - 1) * math.log(chips) / math.log(side) if chips > 1 else 0.0

    @checked
    def cache_bytes(self, batch: Count, context: Count) -> float:
        """Keys and values on the fullest chip."""
        heads = self.model.kv_heads
        sequences = batch
        tokens = context
        if self.attention is Attention.HEADS:
            heads = -(-heads // self.chips)
        elif self.attention is Attention.BATCH:
            sequences = -(-batch // self.chips)
        else:
            tokens = -(-context // self.chips)
        each = 2 * NUMBER_BYTES * self.model.num_layers * heads * self.model.head_dim
        return float(each * sequences * tokens)

    @checked
    def longest_context(self, batch: Count, *, memory_share: Share = 0.3) -> int:
        """Tokens of context that fit beside the weights in a share of each chip's memory."""
        free_bytes = memory_share * hardware.accelerator(self.accelerator).memory_bytes
        if self.attention is Attention.SEQUENCE:
            return self.chips * int(free_bytes / self.cache_bytes(batch, self.chips))
        return int(free_bytes / self.cache_bytes(batch, 1))

    @checked
    def step(self, batch: Count, *, tokens: Count = 1, context: Whole = 0) -> Pass:
        """One pass of a batch through all layers.

        Args:
            batch: sequences.
            tokens: new ones of each sequence.
            context: cached ones of each sequence.
        """
        shape = self.model
        chip = hardware.accelerator(self.accelerator)
        all_tokens = batch * tokens
        peak_flops = self.chips * chip.peak_flops
        dense_s = 2 * shape.num_params * all_tokens / peak_flops
        seen = context + (tokens - 1) / 2  # tokens that a new one attends to, on average
        width = shape.heads * shape.head_dim
        attention_s = 4 * shape.num_layers * width * all_tokens * seen / peak_flops
        split = self.ways(all_tokens)
        hops = 2 * (self._hops(self.chips // split) + self._hops(split))
        link_bytes_per_s = self.link_bytes_per_s or chip.nvlink_bytes_per_s
        whole = Pass(
            compute_s=dense_s + attention_s,
            weights_s=self.weight_bytes * shape.num_params / self.chips / chip.hbm_bytes_per_s,
            cache_s=self.cache_bytes(batch, context) / chip.hbm_bytes_per_s if context else 0.0,
            traffic_s=shape.num_layers * self.layer_bytes(all_tokens) / link_bytes_per_s,
            hops_s=shape.num_layers * hops * self.hop_s,
            mfu_fraction=0.0,
        )
        return replace(whole, mfu_fraction=dense_s / whole.total_s)


@checked
def layer_bytes(
    layout: Layout,
    *,
    tokens: Count,
    width: Count,
    columns: tuple[Count, Count],
    chips: Count,
    split: Count = 1,
    weight_bytes: Positive = NUMBER_BYTES,
) -> float:
    """Bytes that a chip receives for a layer of two products, width → inner and inner → width.

    A gather of D bytes over k chips, or a scatter of sums, brings each of them D (k - 1) / k.

    Args:
        tokens: in all of a batch.
        columns: inner columns of the first product, and rows of the second.
        split: chips along the width (2D), or over which tokens are split (gathered).

    Source: §3.2.1 to §3.2.3 and Appendix A, for any number of columns.
    """
    inner_in, inner_out = columns
    others = chips // split
    share_over_split = (split - 1) / split  # what one of so many chips receives
    share_over_others = (others - 1) / others
    if layout is Layout.GATHERED:
        weights = weight_bytes * width * (inner_in + inner_out) / others * share_over_split
        return weights + 2 * NUMBER_BYTES * tokens / split * width * share_over_others
    across = 2 * tokens * width / split * share_over_others  # gathered before, scattered after
    inside = tokens * (inner_in + inner_out) / others * share_over_split
    return NUMBER_BYTES * (across + inside)


@checked
def layouts(partition: Partition, tokens: Annotated[Sequence[Count], MinLen(1)]) -> pd.DataFrame:
    """Bytes that a chip receives in a layer, by layout and tokens.

    Weights that are gathered have a row for each number of chips that tokens are split over.

    Args:
        partition: its layout and split are those of each row instead.
        tokens: in all of a batch.
    """
    import pandas as pd

    kinds: dict[str, Partition] = {}
    for layout in (Layout.ONE_D, Layout.TWO_D):
        kinds[layout] = replace(partition, layout=layout, split=None)
    for power in range(1, 1 + int(np.log(partition.chips) / np.log(4))):
        split = 4**power
        name = f"gathered over {split}"
        kinds[name] = replace(partition, layout=Layout.GATHERED, split=split)
    rows = []
    for count in tokens:
        for name, kind in kinds.items():
            if kind.layout is not Layout.GATHERED or (kind.split or 1) <= count:
                bytes_in = kind.layer_bytes(count)
                rows.append({"layout": name, "tokens": count, "layer_bytes": bytes_in})
    return pd.DataFrame(rows)


def fewest_bytes(moved: pd.DataFrame) -> list[str]:
    """The layouts of :func:`layouts` that move fewest bytes, from few tokens to many."""
    fewest = moved.loc[moved.groupby("tokens")["layer_bytes"].idxmin()]
    return [str(name) for name in fewest["layout"].drop_duplicates()]


@checked
def frontier(
    partitions: Mapping[str, Partition], batches: Sequence[Count], *, context: Whole = 0
) -> pd.DataFrame:
    """Decoding under several partitions: time of a token against its cost in chip-seconds.

    ``least_s``: what the layout cannot beat, everything hidden behind the longest part.

    Args:
        partitions: by the name that the table shows.
        batches: sequences that are decoded at once.
        context: tokens cached for each of them.
    """
    import pandas as pd

    rows = []
    for name, partition in partitions.items():
        for batch in batches:
            step = partition.step(batch, context=context)
            rows.append(
                {
                    "partition": name,
                    "chips": partition.chips,
                    "batch": batch,
                    "token_s": step.total_s,
                    "least_s": step.least_s,
                    "chip_s": partition.chips * step.total_s / batch,
                    "mfu_fraction": step.mfu_fraction,
                }
            )
    return pd.DataFrame(rows)


@checked
def pareto(
    partitions: Mapping[str, Partition],
    chips: Annotated[Sequence[Count], MinLen(1)],
    batches: Annotated[Sequence[Count], MinLen(1)],
    *,
    context: Whole = 0,
) -> pd.DataFrame:
    """Of each partition on every number of chips, the batches that no other beats.

    Args:
        partitions: by the name that the table shows.
        chips: numbers of chips to try; those whose memory does not hold weights and cache are
            left out.
        batches, context: as :func:`frontier`.

    Returns:
        The rows of :func:`frontier` for which no other of the partition is both as fast and as
        cheap, from fast to slow.
    """
    import pandas as pd

    best = []
    for name, partition in partitions.items():
        tried = []
        for count in chips:
            sized = replace(partition, chips=count)
            memory_bytes = hardware.accelerator(sized.accelerator).memory_bytes
            weights_bytes = sized.weight_bytes * sized.model.num_params / count
            fitting = []
            for batch in batches:
                if weights_bytes + sized.cache_bytes(batch, context or 1) <= memory_bytes:
                    fitting.append(batch)
            if fitting:
                tried.append(frontier({name: sized}, fitting, context=context))
        rows = pd.concat(tried).sort_values(["token_s", "chip_s"])
        cheapest_so_far = rows["chip_s"].cummin()
        best.append(rows[(rows["chip_s"] <= cheapest_so_far) & ~cheapest_so_far.duplicated()])
    return pd.concat(best, ignore_index=True)
