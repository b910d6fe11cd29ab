"""Ways to split a network over GPUs of a modelled cluster: OptCNN's search and its rivals.

The cluster is OptCNN's (§6, from memory): machines of four P100, as many as the GPUs need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from math import prod

import numpy as np
import pandas as pd

from labkit import planner
from labkit.errors import BadValue
from labkit.planner.chain import Chain
from labkit.planner.choices import Choice, Problem
from labkit.planner.layouts import Layout, Layouts
from labkit.planner.networks import Network, Operator

GPUS_OF_A_MACHINE = 4
NETWORKS: dict[str, str] = {"alexnet": "AlexNet", "vgg16": "VGG-16", "inception3": "Inception-v3"}
"""Networks of the paper, and what they are called."""
_MEASURED_KINDS = {"Conv2d": "convolution", "MaxPool2d": "pool", "Linear": "dense"}


class Way(StrEnum):
    """How a network is split."""

    LAYER_WISE = "OptCNN: each layer its own layout"
    TWO_LAYOUTS = "OptCNN's search, Krizhevsky's two layouts"
    NO_PLACES = "OptCNN's search, samples and channels"
    KRIZHEVSKY = "Krizhevsky's"
    DATA = "data parallelism"
    MODEL = "model parallelism"


RIVALS = (Way.KRIZHEVSKY, Way.DATA, Way.MODEL)
"""What the paper compares with."""


class Gradients(StrEnum):
    """How gradients of a layer's replicas are added."""

    RINGS = "rings"
    SERVER = "one server a layer"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs, their links, and a batch of so many images a GPU.

    Attributes:
        gpus: in machines of four.
        images: of a step, a GPU.
        inside_bytes_per_s: of a GPU's link inside its machine, each way.
        between_bytes_per_s: of a machine's link, each way; its GPUs share it.
        flops_per_s: that a GPU sustains.
        gradients: how they are added.
    """

    gpus: int = 16
    images: int = 32
    inside_bytes_per_s: float = 20e9
    between_bytes_per_s: float = 12.5e9
    flops_per_s: float = 5e12
    gradients: Gradients = Gradients.RINGS

    @property
    def fabric(self) -> planner.Fabric:
        """The links."""
        if self.gpus <= GPUS_OF_A_MACHINE:
            return planner.Fabric.flat(self.gpus, bandwidth_bytes_per_s=self.inside_bytes_per_s)
        if self.gpus % GPUS_OF_A_MACHINE:
            raise BadValue(
                f"Cluster.gpus must be at most {GPUS_OF_A_MACHINE}, or a multiple of it; "
                f"got {self.gpus}"
            )
        return planner.Fabric.machines(
            self.gpus // GPUS_OF_A_MACHINE,
            GPUS_OF_A_MACHINE,
            inside_bytes_per_s=self.inside_bytes_per_s,
            between_bytes_per_s=self.between_bytes_per_s,
        )

    def split(self, network: str) -> Split:
        """A network on this cluster, with the seconds that its operations take."""
        return _split(self, network)


@lru_cache(maxsize=64)
def _split(cluster: Cluster, network: str) -> Split:
    shapes = planner.network(network, batch=cluster.images * cluster.gpus)
    layouts = planner.split(shapes, cluster.fabric, flops_per_s=cluster.flops_per_s)
    return Split(cluster=cluster, layouts=layouts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """A network on a cluster: what each way to split it costs.

    Attributes:
        layouts: from which layers choose.
    """

    cluster: Cluster
    layouts: Layouts
    _plans: dict[Way, Mapping[str, str]] = field(default_factory=dict, repr=False)
    _tables: dict[Way, pd.DataFrame] = field(default_factory=dict, repr=False)

    @cached_property
    def problem(self) -> Problem:
        """Seconds of a step, by the layouts of all operators.

        Where gradients go through one server a layer, that server takes in and sends out the
        gradients of all other replicas over its one link: r/2 times as many bytes as pass through
        each link of a ring of r replicas.
        """
        problem = self.layouts.problem
        if self.cluster.gradients is Gradients.RINGS:
            return problem
        nodes = {}
        for operator in self.layouts.network.operators:
            costs = []
            for layout in self.layouts.choices[operator.name]:
                replicas = prod(layout) // layout[1]
                rings_s = self.layouts.gradients_s(operator, layout)
                compute_s = self.layouts.compute_s(operator, layout)
                costs.append(compute_s + rings_s * max(replicas / 2, 1))
            nodes[operator.name] = np.array(costs)
        return replace(problem, node_costs=nodes)

    def plan(self, way: Way) -> Mapping[str, str]:
        """The name of each operator's layout."""
        if way not in self._plans:
            self._plans[way] = self._planned(way)
        return self._plans[way]

    def _planned(self, way: Way) -> Mapping[str, str]:
        gpus = self.cluster.gpus
        samples = (gpus, 1, 1, 1)
        channels = (1, gpus, 1, 1)
        if way is Way.LAYER_WISE:
            return planner.choose(self.problem).plan
        if way is Way.TWO_LAYOUTS:
            return self.searched(lambda layout: layout in (samples, channels)).plan
        if way is Way.NO_PLACES:
            return self.searched(lambda layout: layout[2:] == (1, 1)).plan
        convolutions = channels if way is Way.MODEL else samples
        dense = samples if way is Way.DATA else channels
        plan = {}
        for operator in self.layouts.network.operators:
            layout = dense if operator.kind == "dense" else convolutions
            if operator.kind == "input":  # each GPU loads the images that it needs
                layout = samples
            plan[operator.name] = planner.layout_name(layout)
        return plan

    def searched(self, allowed: Callable[[Layout], bool]) -> Choice:
        """The best plan of those whose layouts are allowed."""
        return planner.choose(restricted(self.problem, self.layouts, allowed))

    def step_s(self, way: Way) -> float:
        """Seconds of a step."""
        return self.problem.cost(self.plan(way))

    def table(self, way: Way) -> pd.DataFrame:
        """Layout, seconds and bytes of each operator, with gradients in rings."""
        if way not in self._tables:
            self._tables[way] = self.layouts.parts(self.plan(way))
        return self._tables[way]

    def sent_bytes(self, way: Way) -> float:
        """Bytes that all GPUs send in a step: activations, their gradients, weights' gradients."""
        table = self.table(way)
        return float(table["transferred_bytes"].sum() + table["gradient_bytes"].sum())

    def speedup(self, way: Way) -> float:
        """Throughput over that of one GPU, which computes and sends nothing."""
        operators = self.layouts.network.operators
        alone = (1, 1, 1, 1)
        alone_s = sum(self.layouts.compute_s(operator, alone) for operator in operators)
        return alone_s / self.step_s(way)

    def hidden_s(self, way: Way) -> float:
        """Seconds of a step if weights' gradients travel, in rings, while layers compute."""
        table = self.table(way)
        compute_s, transfers_s, gradients_s = table[
            ["compute_s", "transfers_s", "gradients_s"]
        ].sum()
        return float(transfers_s + max(compute_s, gradients_s))


def restricted(problem: Problem, layouts: Layouts, allowed: Callable[[Layout], bool]) -> Problem:
    """The problem with those layouts alone; an input keeps all, since loading images is free.

    Raises:
        BadValue: an operator has none of them.
    """
    places = {}
    for operator in layouts.network.operators:
        options = layouts.choices[operator.name]
        if operator.kind == "input":
            kept = [*range(len(options))]
        else:
            kept = [place for place, layout in enumerate(options) if allowed(layout)]
        if not kept:
            raise BadValue(f"operator {operator.name!r} has none of the layouts that are allowed")
        places[operator.name] = kept
    choices = {}
    nodes = {}
    for name, kept in places.items():
        choices[name] = tuple(problem.choices[name][place] for place in kept)
        nodes[name] = problem.node_costs[name][kept]
    edges = {}
    for (one, other), costs in problem.edge_costs.items():
        edges[one, other] = costs[np.ix_(places[one], places[other])]
    return Problem(choices=choices, node_costs=nodes, edge_costs=edges)


def measures(
    cluster: Cluster, way: Way = Way.LAYER_WISE, networks: Iterable[str] = tuple(NETWORKS)
) -> dict[str, object]:
    """The values of the claims on a cluster, with a way in the method's place.

    Args:
        networks: over which least and largest are taken.
    """
    gains = []
    savings = []
    for name in networks:
        split = cluster.split(name)
        gains.append(min(split.step_s(rival) for rival in RIVALS) / split.step_s(way))
        savings += [split.sent_bytes(rival) / split.sent_bytes(way) for rival in RIVALS]
    vgg = cluster.split("vgg16")
    return {
        "speedup": [min(gains), max(gains)],
        "over-data": vgg.step_s(Way.DATA) / vgg.step_s(way),
        "traffic": [min(savings), max(savings)],
    }


def scaling(cluster: Cluster, ways: tuple[Way, ...]) -> pd.DataFrame:
    """Speed-up over one GPU, one row a network, number of GPUs, and way."""
    rows = []
    for name in NETWORKS:
        for gpus in (1, 2, 4, 8, 16):
            split = replace(cluster, gpus=gpus).split(name)
            for way in ways:
                row = {"network": NETWORKS[name], "gpus": gpus, "way": way}
                rows.append({**row, "speedup": split.speedup(way)})
    return pd.DataFrame(rows)


def measured_s(chain: Chain, network: Network) -> dict[str, float]:
    """Seconds of a network's operators by a profile, forward and backward, at the network's batch.

    What stands between two operators in the profile (ReLU, dropout) counts with the one before.
    The size of the last output, in single precision, says how many images the profile's minibatch
    has: PipeDream's authors took 256 for AlexNet and 128 for VGG-16.

    Raises:
        BadValue: the profile has other operators than the network, or no size of its last output.
    """
    kinds = []
    seconds: list[float] = []
    for layer, forward_s, backward_s in zip(
        chain.layers, chain.forward_s, chain.backward_s, strict=True
    ):
        kind = _MEASURED_KINDS.get(layer.split()[-1])
        if kind:
            kinds.append(kind)
            seconds.append(0.0)
        if not seconds:
            raise BadValue(f"measured_s: the profile of {network.name} begins with {layer!r}")
        seconds[-1] += forward_s + backward_s
    operators: list[Operator] = [each for each in network.operators if each.kind != "input"]
    if [operator.kind for operator in operators] != kinds:
        raise BadValue(f"measured_s: the profile has other operators than {network.name}")
    output_bytes = chain.activation_bytes[-1]
    if not output_bytes > 0:
        raise BadValue(f"measured_s: the profile of {network.name} has no size of its last output")
    scale = 4 * operators[-1].num_outputs / output_bytes
    names = [operator.name for operator in operators]
    return {name: scale * each for name, each in zip(names, seconds, strict=True)}


def random_problem(rng: np.random.Generator, *, num_nodes: int, num_choices: int = 3) -> Problem:
    """A connected graph whose edges and costs are drawn."""
    names = [f"n{number}" for number in range(num_nodes)]
    edges = {}
    for number in range(1, num_nodes):
        sources = rng.random(number) < 0.5
        sources[rng.integers(number)] = True
        for source in np.flatnonzero(sources):
            edges[names[source], names[number]] = rng.random((num_choices, num_choices))
    return Problem(
        choices={name: [f"way {place}" for place in range(num_choices)] for name in names},
        node_costs={name: rng.random(num_choices) for name in names},
        edge_costs=edges,
    )
