"""A Transformer layer as a tensor program, its layouts in the paper, and seconds of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import prod

import numpy as np
import pandas as pd

from labkit.papers.gspmd.graphs import Graph, Layout, Mesh, propagate
from labkit.papers.gspmd.partitions import Program, partition

NUMBER_BYTES = 2
"""Of a weight or an activation in half precision."""


CORE_BYTES = 16 * 2**30
"""Memory of a core of TPU v3 (from memory)."""


class Way(StrEnum):
    """How a layer is cut over the cores."""

    FINAL = "2-D, finalised: batch and width of activations"
    SECOND = "2-D, second attempt: batch of activations alone"
    FIRST = "2-D, first attempt: width of activations alone"
    ONE = "1-D: weights alone, as Megatron"


WEIGHTS: dict[str, Layout] = {
    "wq": ("x", "y", ""),
    "wk": ("x", "y", ""),
    "wv": ("x", "y", ""),
    "wo": ("y", "", "x"),
    "w_up": ("x", "y"),
    "w_down": ("y", "x"),
}
"""Of the two-dimensional layouts: model width along x, heads and hidden width along y."""

DATA: dict[Way, Layout] = {
    Way.FINAL: ("x", "", "y"),
    Way.SECOND: ("x", "", ""),
    Way.FIRST: ("", "", "x"),
    Way.ONE: ("", "", ""),
}
"""Of the layer's input: batch, sequence, model width."""


def annotated(way: Way) -> dict[str, Layout]:
    """The seven annotations of a layer: its input, its six weights. Source: §5.1 (from memory)."""
    weights = WEIGHTS
    if way is Way.ONE:
        weights = {
            name: tuple("" if axis == "x" else axis for axis in layout)
            for name, layout in WEIGHTS.items()
        }
    return {"data": DATA[way], **weights}


def by_hand() -> dict[str, Layout]:
    """The layout of every tensor under the finalised way, written without propagation."""
    rows = ("x", "")
    stream = ("x", "", "y")
    heads = ("x", "", "y", "")
    scores = ("x", "y", "", "")
    return {
        **annotated(Way.FINAL),
        "squares": rows,
        "normed": stream,
        "query": heads,
        "key": heads,
        "value": heads,
        "scores": scores,
        "exponents": scores,
        "totals": ("x", "y", ""),
        "shares": scores,
        "context": heads,
        "attended": stream,
        "middle": stream,
        "squares 2": rows,
        "normed 2": stream,
        "up": ("x", "", "y"),
        "active": ("x", "", "y"),
        "down": stream,
        "out": stream,
    }


def _normed(values: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Sums of squares stand in for their mean: the width is known at run time alone."""
    return values / np.sqrt(squares + 1e-6)


def _shifted_exp(scores: np.ndarray) -> np.ndarray:
    return np.exp(scores / 8)


def _relu(values: np.ndarray) -> np.ndarray:
    return np.maximum(values, 0)


def transformer_layer(
    *, batch: int, sequence: int, model: int, heads: int, head: int, hidden: int
) -> Graph:
    """The forward pass of one layer: attention, two dense layers, two additions.

    Args:
        model: width of what travels between layers.
        head: width of one head.
        hidden: width between the two dense layers.
    """
    graph = Graph()
    graph.given("data", (batch, sequence, model))
    for name in ("wq", "wk", "wv"):
        graph.given(name, (model, heads, head))
    graph.given("wo", (heads, head, model))
    graph.given("w_up", (model, hidden))
    graph.given("w_down", (hidden, model))
    graph.product("bsm,bsm->bs", "data", "data", to="squares")
    graph.each("bsm,bs->bsm", "data", "squares", to="normed", function=_normed)
    for weight, name in (("wq", "query"), ("wk", "key"), ("wv", "value")):
        graph.product("bsm,mnd->bsnd", "normed", weight, to=name)
    graph.product("bsnd,btnd->bnst", "query", "key", to="scores")
    graph.each("bnst->bnst", "scores", to="exponents", function=_shifted_exp)
    graph.product("bnst->bns", "exponents", to="totals")
    graph.each("bnst,bns->bnst", "exponents", "totals", to="shares", function=np.divide)
    graph.product("bnst,btnd->bsnd", "shares", "value", to="context")
    graph.product("bsnd,ndm->bsm", "context", "wo", to="attended")
    graph.each("bsm,bsm->bsm", "data", "attended", to="middle", function=np.add)
    graph.product("bsm,bsm->bs", "middle", "middle", to="squares 2")
    graph.each("bsm,bs->bsm", "middle", "squares 2", to="normed 2", function=_normed)
    graph.product("bsm,mh->bsh", "normed 2", "w_up", to="up")
    graph.each("bsh->bsh", "up", to="active", function=_relu)
    graph.product("bsh,hm->bsm", "active", "w_down", to="down")
    graph.each("bsm,bsm->bsm", "middle", "down", to="out", function=np.add)
    return graph


def expert_layer(*, groups: int, tokens: int, experts: int, slots: int, model: int) -> Graph:
    """Tokens go to experts and come back; a one in ``gates`` says which slot takes a token."""
    graph = Graph()
    graph.given("tokens", (groups, tokens, model))
    graph.given("gates", (groups, tokens, experts, slots))
    graph.given("w_experts", (experts, model, model))
    graph.product("gsm,gsec->gecm", "tokens", "gates", to="sent")
    graph.product("gecm,emh->gech", "sent", "w_experts", to="computed")
    graph.product("gech,gsec->gsh", "computed", "gates", to="back")
    return graph


@dataclass(frozen=True, kw_only=True)
class Model:
    """A dense Transformer on cores in a grid.

    Attributes:
        name: its size, and on how many cores.
        layers: of it.
        model: width of what travels between layers.
        hidden: width between a layer's two dense layers.
        heads: of ``head`` numbers each.
        mesh: cores along x, where batch and model width are cut, and along y.
        batch: sequences of a step.
    """

    name: str
    layers: int
    model: int
    hidden: int
    heads: int
    mesh: tuple[int, int]
    batch: int
    head: int = 256
    sequence: int = 1024

    @property
    def cores(self) -> int:
        """In all."""
        return prod(self.mesh)

    @property
    def weights(self) -> int:
        """Of all layers."""
        attention = 4 * self.model * self.heads * self.head
        return self.layers * (attention + 2 * self.model * self.hidden)

    def graph(self) -> Graph:
        """One layer."""
        return transformer_layer(
            batch=self.batch,
            sequence=self.sequence,
            model=self.model,
            heads=self.heads,
            head=self.head,
            hidden=self.hidden,
        )


MODELS = (
    Model(
        name="64B on 128", layers=32, model=8192, hidden=65536, heads=128, mesh=(8, 16), batch=64
    ),
    Model(
        name="256B on 512",
        layers=32,
        model=16384,
        hidden=131072,
        heads=256,
        mesh=(16, 32),
        batch=256,
    ),
    Model(
        name="1T on 2,048",
        layers=128,
        model=16384,
        hidden=131072,
        heads=256,
        mesh=(32, 64),
        batch=1024,
    ),
)
"""Shapes from memory of the paper's table; the batches of the second and third are ours."""


@lru_cache(maxsize=64)
def partitioned(model: Model, way: Way) -> Program:
    """One layer's forward pass on the model's cores."""
    mesh = {"x": model.mesh[0], "y": model.mesh[1]}
    if way is Way.ONE:
        mesh = {"y": model.cores}
    graph = model.graph()
    layouts = propagate(graph, annotated(way))
    return partition(graph, layouts, mesh, number_bytes=NUMBER_BYTES)


@dataclass(frozen=True, kw_only=True)
class Core:
    """A core of TPU v3, and what a step costs on it.

    Attributes:
        flops_per_s: its peak (half of a chip's, from memory).
        efficiency: share of the peak that products reach (assumed).
        link_bytes_per_s: of a core along one axis of the torus, both ways round (from memory).
        recompute: whether layers are computed once more for the backward pass.
        hidden_share: of the collectives' seconds that pass while the core computes.
    """

    flops_per_s: float = 61.5e12
    efficiency: float = 0.85
    link_bytes_per_s: float = 82e9
    recompute: bool = True
    hidden_share: float = 0.0

    @property
    def bound(self) -> float:
        """The utilisation of a step without collectives and without filling."""
        return self.efficiency * (3 / 4 if self.recompute else 1)

    def parts(self, model: Model, way: Way) -> dict[str, float]:
        """Seconds of a step: products, and collectives that nothing hides.

        The backward pass has two products for each of the forward's, and each collective's
        counterpart: a sum of gradients where values were gathered, and the other way round.
        """
        program = partitioned(model, way)
        passes = 4 if self.recompute else 3
        flops = passes * model.layers * program.local_flops
        received = (passes - 1) * model.layers * program.received_bytes
        return {
            "compute_s": flops / (self.efficiency * self.flops_per_s),
            "collectives_s": (1 - self.hidden_share) * received / self.link_bytes_per_s,
        }

    def utilisation(self, model: Model, way: Way) -> float:
        """Operations that the model needs, over what the cores could do in the step's seconds."""
        needed = 3 * model.layers * model_flops(model)
        seconds = sum(self.parts(model, way).values())
        return needed / (model.cores * self.flops_per_s * seconds)


def largest_weights(model: Model, way: Way) -> float:
    """Weights of the model with as many more or fewer layers as its cores' memory holds.

    A core keeps its part of each weight and of its gradient, in single precision, and each layer's
    input in half precision. The optimizer's moments are factored, and small (from memory).
    """
    program = partitioned(model, way)
    kept = 8 / NUMBER_BYTES * program.held_bytes([*WEIGHTS]) + program.held_bytes(["data"])
    return CORE_BYTES // kept * model.weights / model.layers


def model_flops(model: Model) -> float:
    """Operations of one layer's forward pass, all cores: 2 a weight and token, and attention's."""
    tokens = model.batch * model.sequence
    attention = 4 * tokens * model.sequence * model.heads * model.head
    return 2 * tokens * model.weights / model.layers + attention


def measures(core: Core, way: Way) -> list[float]:
    """The claim's values: utilisation of the smallest and of the largest model."""
    return [core.utilisation(model, way) for model in (MODELS[0], MODELS[-1])]


def scaling(core: Core) -> pd.DataFrame:
    """Utilisation, a row a model and a column a way."""
    rows = []
    for model in MODELS:
        row: dict[str, object] = {"model": model.name}
        for way in Way:
            row[way.value] = core.utilisation(model, way)
        rows.append(row)
    return pd.DataFrame(rows)


def formula_bytes(
    shapes: Mapping[str, tuple[int, ...]], mesh: Mesh, number_bytes: int = NUMBER_BYTES
) -> float:
    """What a device receives in a layer under the finalised way, by counting on paper.

    Along y, activations: gathered before attention and before the dense layers, their sums
    scattered after; and the sums of squares, added twice. Along x, weights: gathered.
    """
    x = mesh["x"]
    y = mesh["y"]
    batch, sequence, model = shapes["data"]
    stream = batch / x * sequence * model
    activations = 4 * (y - 1) / y * stream
    squares = 2 * 2 * (y - 1) / y * batch / x * sequence
    weights = sum(prod(shapes[name]) for name in WEIGHTS)
    return number_bytes * (activations + squares + (x - 1) / x * weights / y)
