"""Transformer layers on a ring of chips: their matrix products, each with its gather or scatter.

Activations are cut by tokens between products and weights by columns or rows, as in Megatron with
sequence parallelism. A layer then has four products forward, and each has two backward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from labkit import hardware
from labkit.papers.overlap_decomp.timeline import Product, Rings

TPU = hardware.accelerator("TPU-v4")
BYTES = 2
"""Of a number (bf16)."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A chip and its links in a ring.

    Attributes:
        flops_per_s: that whole matrix products reach.
        link_bytes_per_s: to one neighbour, one way; a chip of a three-dimensional torus has six
            links, and 270 GB/s in all.
        latency_s: of a hop (ours).
        memory_bytes_per_s: of the chip's memory.
        slice_s: what starting a product costs (ours).
        tile_rows: rows that a product is cut into; a slice that does not fill its last tile pays
            for it (128 on this chip's matrix unit).
    """

    flops_per_s: float = 0.75 * TPU.peak_flops
    link_bytes_per_s: float = 45e9
    latency_s: float = 1e-6
    memory_bytes_per_s: float = 1200e9
    slice_s: float = 2e-6
    tile_rows: int = 128

    def hop_s(self, num_bytes: float) -> float:
        """Seconds of a message to a neighbour."""
        return self.latency_s + num_bytes / self.link_bytes_per_s

    def collective_s(self, workers: int, shard_bytes: float) -> float:
        """Seconds of a gather or a scatter that uses both directions of the ring."""
        return (workers - 1) * self.hop_s(shard_bytes / 2)

    def product(
        self,
        *,
        workers: int,
        tokens: int,
        width: int,
        flops: float,
        scatter: bool,
        interference: float = 0.0,
    ) -> Product:
        """A product whose gathered or scattered side is ``workers`` × tokens rows of ``width``.

        Args:
            tokens: rows of one chip.
            width: numbers of a row.
            flops: of one chip's whole product.
            scatter: whether its result is scattered, else an operand is gathered.
        """
        shard_bytes = tokens * width * BYTES
        copy_s = 2 * shard_bytes / self.memory_bytes_per_s  # read and write
        return Product(
            workers=workers,
            compute_s=flops / self.flops_per_s,
            collective_s=self.collective_s(workers, shard_bytes),
            hop_s=self.hop_s(shard_bytes),
            half_hop_s=self.hop_s(shard_bytes / 2),
            slice_s=self.slice_s,
            rows=tokens,
            tile_rows=self.tile_rows,
            copy_s=copy_s,
            add_s=1.5 * copy_s,  # two parts are read, one is written
            interference=interference,
            scatter=scatter,
        )


@dataclass(frozen=True, kw_only=True)
class Model:
    """A transformer's shape: its width, its layers; the inner width is four times the width."""

    name: str
    layers: int
    width: int

    @property
    def parameters(self) -> int:
        """Weights of all layers: 12 · layers · width²."""
        return 12 * self.layers * self.width**2


SIX = (
    Model(name="10B", layers=48, width=4096),
    Model(name="32B", layers=70, width=6144),
    Model(name="100B", layers=80, width=10240),
    Model(name="200B", layers=110, width=12288),
    Model(name="500B", layers=122, width=18432),
    Model(name="1T", layers=138, width=24576),
)
"""Six models of the sizes that the abstract names; the shapes are ours."""

OUTPUTS = {"queries, keys, values": 3, "attention's output": 1, "inner": 4, "outer": 4}
"""The layer's products -> their inner or outer width over the model's."""
SCATTERED = ("attention's output", "outer")
"""Products whose result is scattered going forward."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One transformer layer, forward and backward, on a ring of chips.

    Attributes:
        width: of the model.
        workers: chips of the ring.
        tokens: of one chip.
        sequence: tokens that attend to each other.
    """

    width: int
    workers: int = 16
    tokens: int = 512
    sequence: int = 2048
    chip: Chip = Chip()
    interference: float = 0.0

    def _flops(self, factor: float) -> float:
        """Of one chip's part of a product with ``factor`` · width outputs."""
        rows = self.tokens * self.workers
        return 2 * rows * self.width * factor * self.width / self.workers

    def _product(self, factor: float, scatter: bool) -> Product:
        return self.chip.product(
            workers=self.workers,
            tokens=self.tokens,
            width=self.width,
            flops=self._flops(factor),
            scatter=scatter,
            interference=self.interference,
        )

    @property
    def products(self) -> dict[str, Product]:
        """The products that have a gather or a scatter, by name.

        Forward, a product either gathers its operand or scatters its result. Backward, the
        gradient of a gathered operand is scattered, and its weights' gradient gathers the operand
        again; where the result was scattered, its gradient is gathered, for both at once.
        """
        found = {}
        for name, factor in OUTPUTS.items():
            scattered = name in SCATTERED
            found[f"{name}, forward"] = self._product(factor, scattered)
            found[f"{name}, backward"] = self._product(factor, not scattered)
            if not scattered:
                found[f"{name}, weights"] = self._product(factor, False)
        return found

    @property
    def alone_s(self) -> float:
        """Seconds of what no collective belongs to: attention's core, and weights' gradients."""
        core = 3 * 4 * self.tokens * self.sequence * self.width
        weights = sum(self._flops(OUTPUTS[name]) for name in SCATTERED)
        return (core + weights) / self.chip.flops_per_s

    @property
    def whole_s(self) -> float:
        """Seconds of the layer, undecomposed."""
        return self.alone_s + sum(product.whole_s for product in self.products.values())

    @property
    def beside_s(self) -> float:
        """Seconds with products whole, where collectives of the backward pass hide behind products
        that do not wait for them, as in Megatron's sequence parallelism.

        An operand is gathered again for its weights' gradient while its own gradient is computed;
        that gradient is scattered while the weights' gradient is computed.
        """
        hidden_s = 0.0
        products = self.products
        for name in OUTPUTS:
            if name not in SCATTERED:
                own = products[f"{name}, backward"]
                weights = products[f"{name}, weights"]
                hidden_s += min(weights.collective_s, own.compute_s)
                hidden_s += min(own.collective_s, weights.compute_s)
        return self.whole_s - hidden_s

    @property
    def bound_s(self) -> float:
        """Seconds with each product at its bound."""
        return self.alone_s + sum(product.bound_s for product in self.products.values())

    def seconds(self, *, rings: Rings = 2, gated: bool = True) -> float:
        """Seconds of the layer with its products as unrolled loops.

        Args:
            gated: whether a product stays whole where its loop would be slower (§5.5).
        """
        total_s = self.alone_s
        for product in self.products.values():
            if gated:
                total_s += product.faster(rings=rings)
            else:
                total_s += product.loop(rings=rings).seconds
        return total_s

    @property
    def communication(self) -> float:
        """Share of the undecomposed layer that is gathers and scatters."""
        sent_s = sum(product.collective_s for product in self.products.values())
        return sent_s / self.whole_s

    def utilisation(self, *, rings: Rings = 2) -> float:
        """Share of a chip's peak that the decomposed layer reaches."""
        products = self.products.values()
        useful_s = self.alone_s + sum(product.compute_s for product in products)
        return useful_s * self.chip.flops_per_s / TPU.peak_flops / self.seconds(rings=rings)


def speedups(layer: Layer, *, rings: Rings = 2, gated: bool = True) -> list[float]:
    """Throughput over undecomposed of the six models, each with this layer's other numbers."""
    found = []
    for model in SIX:
        other = replace(layer, width=model.width)
        found.append(other.whole_s / other.seconds(rings=rings, gated=gated))
    return found
