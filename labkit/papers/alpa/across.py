"""Across meshes: stages of a model on meshes of a cluster, for Alpa and for its rivals.

Source: Alpa §5 and §8; machines of 8 V100 with 16 GB, joined by 25 Gbit/s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, get_args

import numpy as np
import pandas as pd

from labkit import planner
from labkit.errors import UsageError
from labkit.kit.fabric import GBIT
from labkit.papers.alpa.inside import _PASSES, Inside, Mesh, Rule, Stages
from labkit.papers.alpa.models import SUITES, Kind, Model, model_on

Method = Literal[
    "Alpa",
    "intra-operator alone",
    "inter-operator alone",
    "stages and data parallelism",
    "data parallelism",
    "DeepSpeed",
    "DeepSpeed, gradients divided",
    "equal layers",
    "equal meshes",
    "no limit of memory",
]
METHODS: tuple[Method, ...] = get_args(Method)
GPUS = (1, 2, 4, 8, 16, 32)
"""The numbers of GPUs that the suites name; eight are a machine."""
_PER_MACHINE = 8
PRICES_S = (0.0, 1e-11, 1e-10, 1e-9, 1.0)
"""Prices of a parameter at which each mesh is tried, up to weights cut as far as they can be."""
_RULES: dict[Method, Rule] = {
    "stages and data parallelism": "data",
    "data parallelism": "data",
    "DeepSpeed": "experts",
    "DeepSpeed, gradients divided": "experts",
}
_DIVIDED: Method = "DeepSpeed, gradients divided"
_ONE_MESH = ("intra-operator alone", "data parallelism", "DeepSpeed", _DIVIDED)
"""Methods without stages; they take whichever number of microbatches suits them best."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Machines of eight GPUs.

    Attributes:
        inside_bytes_per_s: of a GPU's link inside its machine.
        between_bytes_per_s: of a machine's link, shared by its GPUs.
        memory_bytes: of a GPU.
        overlap: whether a stage sends while it computes.
        resharding: whether stages wait for what the stage before sends them, over machines' links.
    """

    inside_bytes_per_s: float = 100e9
    between_bytes_per_s: float = 25 * GBIT
    memory_bytes: float = 15 * 2**30
    overlap: bool = False
    resharding: bool = False

    def mesh(self, *sizes: int, machines: int = 1) -> Mesh:
        """A mesh of some GPUs of a machine along one or two axes, or of all of several machines."""
        words = " × ".join(map(str, sizes))
        if machines == 1:
            return Mesh(
                name=words, sizes=sizes, bandwidths=tuple(self.inside_bytes_per_s for _ in sizes)
            )
        return Mesh(
            name=f"{words} in {machines} machines",
            sizes=(*sizes, machines),
            bandwidths=(
                *(self.inside_bytes_per_s for _ in sizes),
                self.between_bytes_per_s / _PER_MACHINE,
            ),
        )

    def meshes(self, gpus: int) -> list[Mesh]:
        """All meshes of at most so many GPUs."""
        inside = [self.mesh(1), self.mesh(2), self.mesh(4), self.mesh(2, 2), self.mesh(8)]
        inside.append(self.mesh(2, 4))
        between = [self.mesh(8, machines=count) for count in (2, 4)]
        return [mesh for mesh in (*inside, *between) if mesh.num_devices <= gpus]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a method's plan is predicted to do.

    Attributes:
        placement: the stages and their meshes.
        degrees: into how many parts the weights of each stage are cut.
        tera_flops: of a GPU, as the artifact counts: computing activations again counts too.
    """

    method: Method
    model: Model
    gpus: int
    placement: planner.meshes.Placement
    degrees: tuple[int, ...]
    tera_flops: float


@cache
def _stages(
    kind: Kind,
    gpus: int,
    count: int,
    layers: int,
    mesh: Mesh,
    rule: Rule,
    rate: float,
    price_s: float,
    divided: bool,
) -> tuple[Model, Stages]:
    """The stages of one model on one mesh; a model has at least so many layers."""
    model = _with_layers(model_on(kind, gpus, num_microbatches=count), layers)
    inside = Inside(
        model=model,
        mesh=mesh,
        flops_per_s=rate,
        rule=rule,
        price_s=price_s,
        divided_gradients=divided,
    )
    return model, inside.stages


def _with_layers(model: Model, fewest: int) -> Model:
    """The model with layers cut into blocks, where it has too few."""
    if len(model.layers) >= fewest:
        return model
    blocks = [block for layer in model.layers for block in layer]
    size = max(1, len(blocks) // fewest)
    places = range(0, size * (len(blocks) // size), size)
    layers = [tuple(blocks[place : place + size]) for place in places]
    rest = tuple(blocks[size * len(places) :])
    return replace(model, layers=(*layers[:-1], (*layers[-1], *rest)))


def table_of(
    cluster: Cluster, model: Model, meshes: Sequence[Mesh], stages: Sequence[Stages]
) -> planner.StageTable:
    """What every stage takes on every mesh."""
    seconds = []
    for each in stages:
        both = np.maximum(each.sent_s, each.compute_s)
        taken = both if cluster.overlap else each.sent_s + each.compute_s
        if cluster.resharding:
            taken = taken + _arrival_s(cluster, model)[:, None]
        seconds.append(taken)
    return planner.StageTable(
        meshes=tuple(mesh.name for mesh in meshes),
        devices=np.array([mesh.num_devices for mesh in meshes]),
        seconds=np.stack(seconds),
        stage_bytes=np.stack([each.fixed_bytes(model) for each in stages]),
        microbatch_bytes=np.stack([each.kept_bytes for each in stages]),
    )


def _arrival_s(cluster: Cluster, model: Model) -> np.ndarray:
    """Seconds in which a stage's input comes over a machine's link, and its gradient goes back."""
    sizes = [0.0, *(layer[0].input_bytes for layer in model.layers[1:]), 0.0]
    return 2 * np.array(sizes) / cluster.between_bytes_per_s


def _restricted(table: planner.StageTable, method: Method) -> list[planner.StageTable]:
    """The tables among which a method chooses the best plan."""
    layers = table.num_layers
    if method == "equal layers":
        found = []
        for size in (size for size in range(1, layers + 1) if layers % size == 0):
            places = np.arange(layers + 1)
            even = (places[:, None] % size == 0) & (places[None, :] - places[:, None] == size)
            found.append(replace(table, seconds=np.where(even, table.seconds, np.inf)))
        return found
    if method == "equal meshes":
        found = []
        for size in np.unique(table.devices):
            alike = (table.devices == size)[:, None, None]
            found.append(replace(table, seconds=np.where(alike, table.seconds, np.inf)))
        return found
    return [table]


def predict(
    method: Method,
    kind: Kind,
    gpus: int,
    rate_flops_per_s: float,
    cluster: Cluster | None = None,
    *,
    num_microbatches: int | None = None,
) -> Prediction | None:
    """What a method's best plan is predicted to do; None where no plan fits into memory.

    Args:
        rate_flops_per_s: that a GPU sustains alone.
        num_microbatches: instead of the artifact's; methods without stages also try a half, a
            quarter and an eighth of them.
    """
    fabric = cluster or Cluster()
    usual = num_microbatches or SUITES[kind][gpus][1]
    counts = [usual]
    if method in _ONE_MESH:
        counts = [usual // share for share in (1, 2, 4, 8) if usual >= share]
    found = [_predicted(method, kind, gpus, rate_flops_per_s, fabric, count) for count in counts]
    fitting = [each for each in found if each is not None]
    return max(fitting, key=lambda each: each.tera_flops, default=None)


@cache
def _predicted(
    method: Method, kind: Kind, gpus: int, rate: float, cluster: Cluster, count: int
) -> Prediction | None:
    """The same with one number of microbatches."""
    meshes = cluster.meshes(gpus)
    layers = 1
    if method == "inter-operator alone":
        meshes = meshes[:1]
        layers = 4 * gpus  # a stage a GPU: layers must be small enough to balance them
    elif method in _ONE_MESH:
        meshes = [mesh for mesh in meshes if mesh.num_devices == gpus]
    rule = _RULES.get(method, "all")
    prices = PRICES_S if rule == "all" else PRICES_S[:1]
    tried = [(mesh, price_s) for mesh in meshes for price_s in prices]
    divided = method == _DIVIDED
    pairs = [
        _stages(kind, gpus, count, layers, mesh, rule, rate, price_s, divided)
        for mesh, price_s in tried
    ]
    model = pairs[0][0]
    table = table_of(cluster, model, [mesh for mesh, _ in tried], [stages for _, stages in pairs])
    limit = None if method == "no limit of memory" else cluster.memory_bytes
    best: planner.meshes.Placement | None = None
    for each in _restricted(table, method):
        try:
            placed = planner.place(each, gpus, num_microbatches=count, memory_bytes=limit)
        except UsageError:
            continue  # no plan fits
        if best is None or placed.cost_s < best.cost_s:
            best = placed
    if best is None:
        return None
    flops = _PASSES * model.forward_flops * count
    return Prediction(
        method=method,
        model=model,
        gpus=gpus,
        placement=best,
        degrees=_degrees(best, [stages for _, stages in pairs]),
        tera_flops=flops / best.cost_s / gpus / 1e12,
    )


def measures(
    method: Method, rates: Mapping[Kind, float], cluster: Cluster | None = None
) -> dict[str, float | None]:
    """What the headline claims come to with a method in Alpa's place; None without a plan.

    Args:
        rates: that a GPU sustains alone, in FLOP/s, by model.
    """
    found: dict[str, float | None] = {}
    for machines in (2, 4):
        rivals: dict[str, Method] = {
            f"moe-{machines}-nodes": "DeepSpeed",
            f"moe-divided-{machines}": _DIVIDED,
        }
        ours = predict(method, "moe", 8 * machines, rates["moe"], cluster)
        for key, rival in rivals.items():
            theirs = predict(rival, "moe", 8 * machines, rates["moe"], cluster)
            found[key] = None
            if theirs is not None:
                found[key] = 0.0 if ours is None else ours.tera_flops / theirs.tera_flops
    wide = predict(method, "wresnet", 32, rates["wresnet"], cluster)
    found["wresnet-scaling"] = 0.0
    if wide is not None:
        found["wresnet-scaling"] = 1e12 * wide.tera_flops / rates["wresnet"]
    return found


def throughput(
    methods: Sequence[Method], rates: Mapping[Kind, float], cluster: Cluster | None = None
) -> pd.DataFrame:
    """Modelled TFLOP/s of a GPU: kind, method, gpus, tera_flops; NaN without a plan.

    Baselines that the paper compares one model with stand beside that model alone.

    Args:
        rates: that a GPU sustains alone, in FLOP/s, by model.
    """
    rows = []
    for kind, rate in rates.items():
        for method in methods:
            if _ONE_MODEL.get(method, kind) != kind:
                continue
            for gpus in GPUS:
                found = predict(method, kind, gpus, rate, cluster)
                value = float("nan") if found is None else found.tera_flops
                row = {"kind": kind, "method": method, "gpus": gpus, "tera_flops": value}
                rows.append(row)
    return pd.DataFrame(rows)


_ONE_MODEL: dict[Method, Kind] = {
    "DeepSpeed": "moe",
    _DIVIDED: "moe",
    "stages and data parallelism": "wresnet",
}


def _degrees(placement: planner.meshes.Placement, stages: Sequence[Stages]) -> tuple[int, ...]:
    """Into how many parts the weights of each stage are cut."""
    firsts = (0, *placement.ends[:-1])
    return tuple(
        round(stages[mesh].all_parameters[first, end] / stages[mesh].parameters[first, end])
        for first, end, mesh in zip(firsts, placement.ends, placement.meshes, strict=True)
    )
