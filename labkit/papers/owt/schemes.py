"""A box of GPUs, and what a step takes under each of the paper's schemes.

Compute and bytes are those of :func:`labkit.planner.split`; the schemes differ in who sends the
last convolution's activations when, and so in what hides behind the dense layers' compute.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

import pandas as pd

from labkit import planner
from labkit.planner.layouts import Layout, Layouts
from labkit.planner.networks import Network


class Scheme(StrEnum):
    """How a network is split over the GPUs, and how activations travel."""

    ROTATING = "scheme b: one GPU's images at a time"
    SHARED = "scheme c: a part of every GPU's images at a time"
    ALL_AT_ONCE = "scheme a: all images at once"
    DATA = "data parallelism for all layers"
    MODEL = "model parallelism for all layers"


@dataclass(frozen=True, kw_only=True)
class Box:
    """GPUs in one machine that train a network.

    Attributes:
        gpus: how many, K.
        images: a GPU, of a step.
        bytes_per_s: of a GPU's link, each way.
        flops_per_s: that a GPU sustains.
        halves: GPUs are joined in two halves that share one link between them.
        multicast: a message to all others leaves its sender once.
        network: its name, as :func:`labkit.planner.network` knows it.
    """

    gpus: int = 8
    images: int = 128
    bytes_per_s: float = 5e9
    flops_per_s: float = 1.5e12
    halves: bool = False
    multicast: bool = False
    network: str = "alexnet"

    @property
    def layouts(self) -> Layouts:
        """The network's layouts on this box."""
        return _layouts(self)

    @property
    def shapes(self) -> Network:
        """The network at the batch of all GPUs."""
        return self.layouts.network

    @property
    def alone_s(self) -> float:
        """Seconds in which one GPU takes all images of a step."""
        layouts = self.layouts
        return sum(layouts.compute_s(each, (1, 1, 1, 1)) for each in self.shapes.operators)

    def table(self, scheme: Scheme) -> pd.DataFrame:
        """Layout, seconds and bytes of each operator, nothing hidden."""
        return _table(self, scheme)

    def step_s(self, scheme: Scheme) -> float:
        """Seconds of a step.

        Schemes b and c take K turns. While one turn's images pass through the dense layers, those
        of the next arrive, and gradients of those before leave:

            K · max(dense compute + exchange, activations + exchange) + first arrival + last leaving

        In scheme b the activations of a turn leave through one GPU's link, K - 1 times unless links
        multicast; in scheme c through all links. Their gradients come back the same way, in the
        links' other direction.

        Source: §4, from memory.
        """
        table = self.table(scheme)
        whole_s = float(table[["compute_s", "transfers_s", "gradients_s"]].to_numpy().sum())
        if scheme not in (Scheme.ROTATING, Scheme.SHARED) or self.gpus == 1:
            return whole_s
        dense = table[table["kind"] == "dense"]
        compute_s = float(dense["compute_s"].sum())
        arriving_s = float(dense["transfers_s"].iloc[0]) / 2  # forward; as much goes back
        exchange_s = float(dense["transfers_s"].iloc[1:].sum())
        before_s = whole_s - compute_s - 2 * arriving_s - exchange_s
        turn_s = arriving_s / self.gpus
        if scheme is Scheme.ROTATING:
            turn_s = arriving_s / (self.gpus - 1) if self.multicast else arriving_s
        busy_s = max(compute_s / self.gpus, turn_s) + exchange_s / self.gpus
        return before_s + self.gpus * busy_s + 2 * turn_s

    def speedup(self, scheme: Scheme) -> float:
        """Images a second, over those of one GPU."""
        return self.alone_s / self.step_s(scheme)

    def sent_bytes(self, scheme: Scheme) -> float:
        """Bytes that all GPUs send in a step."""
        table = self.table(scheme)
        return float(table["transferred_bytes"].sum() + table["gradient_bytes"].sum())


@lru_cache(maxsize=64)
def _layouts(box: Box) -> Layouts:
    network = planner.network(box.network, batch=box.images * box.gpus)
    fabric = planner.Fabric.flat(box.gpus, bandwidth_bytes_per_s=box.bytes_per_s)
    if box.halves and box.gpus > 4:
        fabric = planner.Fabric.machines(
            2,
            box.gpus // 2,
            inside_bytes_per_s=box.bytes_per_s,
            between_bytes_per_s=box.bytes_per_s,
        )
    axes = ["sample", "channel"]
    return planner.split(network, fabric, flops_per_s=box.flops_per_s, axes=axes)


@lru_cache(maxsize=256)
def _table(box: Box, scheme: Scheme) -> pd.DataFrame:
    samples: Layout = (box.gpus, 1, 1, 1)
    channels: Layout = (1, box.gpus, 1, 1)
    convolutions = channels if scheme is Scheme.MODEL else samples
    dense = samples if scheme is Scheme.DATA else channels
    plan = {}
    for operator in box.shapes.operators:
        layout = dense if operator.kind == "dense" else convolutions
        if operator.kind == "input":  # each GPU loads the images that it needs
            layout = samples
        plan[operator.name] = planner.layout_name(layout)
    return box.layouts.parts(plan)


def speedups(
    box: Box, schemes: tuple[Scheme, ...], gpus: tuple[int, ...] = (1, 2, 4, 8)
) -> pd.DataFrame:
    """Speed-up over one GPU: a row a number of GPUs, a column a scheme."""
    table = pd.DataFrame(index=pd.Index(gpus, name="GPUs"))
    for scheme in schemes:
        table[scheme.value] = [replace(box, gpus=number).speedup(scheme) for number in gpus]
    return table


def feed_forward(*, batch: int, tokens_a_side: int, hidden: int) -> Network:
    """A transformer's feed-forward layers: the same two dense layers for each token.

    Written as convolutions of one place, each place a token.

    Args:
        batch: samples.
        tokens_a_side: a sample has this many squared.
        hidden: channels of a token; four times as many between the layers.
    """
    draft = planner.Draft("feed-forward", batch, tokens_a_side)
    draft.convolution("embed", hidden, 1)
    draft.convolution("up", 4 * hidden, 1)
    draft.convolution("down", hidden, 1)
    return draft.network()
