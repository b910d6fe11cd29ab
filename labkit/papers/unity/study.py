"""The experiment: networks on a modelled cluster, planned in four ways.

All numbers of the cluster are ours, near the data sheets of V100 machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pandas as pd

from labkit.kit.fabric import Fabric
from labkit.papers.unity.costs import LINEAR_KERNELS, Machine
from labkit.papers.unity.layouts import Graph, Step, best_layouts
from labkit.papers.unity.networks import bottleneck, dlrm, inception, mlp
from labkit.papers.unity.rules import Rule, Verdict, dividing, ours, tried
from labkit.papers.unity.search import Optimized, one_after_the_other, together
from labkit.papers.unity.terms import COPIES, Op, layout, terms_of


class Way(StrEnum):
    """How a network is planned."""

    TOGETHER = "together"
    ONE_AFTER_THE_OTHER = "one after the other"
    LAYOUTS = "layouts alone"
    DATA = "data parallelism"


@dataclass(frozen=True, kw_only=True)
class Library:
    """Rules that hold, by what they are for.

    Attributes:
        verdicts: of every rule that was read, by name.
        algebra: rules that move nothing between devices.
        dividers: rules that divide one operator.
    """

    verdicts: Mapping[str, Verdict]
    algebra: tuple[Rule, ...]
    dividers: tuple[Rule, ...]

    @classmethod
    def of(cls, rules: Sequence[Rule], rng: np.random.Generator) -> Library:
        """Try all rules, and keep those that hold, with those of ours."""
        verdicts = {rule.name: tried(rule, rng) for rule in rules}
        hold = [rule for rule in rules if verdicts[rule.name] is Verdict.HOLDS]
        algebra = [rule for rule in hold if not rule.parallel and not _on_copies(rule)]
        fuse, *divide = ours()
        return cls(
            verdicts=verdicts,
            algebra=(fuse, *algebra),
            dividers=(*dividing(hold), *divide),
        )

    @property
    def held_fraction(self) -> float:
        """Of the rules that were read, those that hold."""
        return float(np.mean([verdict is Verdict.HOLDS for verdict in self.verdicts.values()]))


def _on_copies(rule: Rule) -> bool:
    terms = terms_of(rule.source + rule.target)
    return any(one.axis == COPIES for one in terms)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A network's plan.

    Attributes:
        steps: every rule that was applied, in order.
        graph: the parallel computation graph that they make.
        evaluations: graphs that were priced for it.
    """

    step_s: float
    steps: tuple[Step, ...]
    graph: Graph
    memory_bytes: float
    evaluations: int = 1
    history: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cluster, and what runs on it.

    Attributes:
        machines: of four GPUs.
        samples: of a step, a GPU.
        between_bytes_per_s: of a machine's link.
        launch_s: of a kernel.
        budget: graphs that a search prices at most.
    """

    library: Library = field(repr=False)
    machines: int = 16
    samples: int = 64
    inside_bytes_per_s: float = 50e9
    between_bytes_per_s: float = 25e9
    latency_s: float = 5e-6
    flops_per_s: float = 10e12
    launch_s: float = 10e-6
    budget: int = 400
    _planned: dict[tuple[Graph, Way], Outcome] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _machines: list[Machine] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def gpus(self) -> int:
        """In all."""
        return 4 * self.machines

    @property
    def machine(self) -> Machine:
        """The cluster, with what was priced on it."""
        if not self._machines:
            fabric = Fabric.machines(
                self.machines,
                4,
                inside_bytes_per_s=self.inside_bytes_per_s,
                between_bytes_per_s=self.between_bytes_per_s,
                latency_s=self.latency_s,
            )
            machine = Machine(fabric=fabric, flops_per_s=self.flops_per_s, launch_s=self.launch_s)
            self._machines.append(machine)
        return self._machines[0]

    def networks(self) -> dict[str, Graph]:
        """The three networks of the claims."""
        samples = self.samples * self.gpus
        return {"DLRM": dlrm(samples), "MLP": mlp(samples), "Inception block": inception(samples)}

    def bottleneck(self, narrow: int) -> Graph:
        """A wide layer and a narrow one, each with a ReLU."""
        return bottleneck(self.samples * self.gpus, narrow=narrow)

    def plan(self, graph: Graph, way: Way) -> Outcome:
        """The plan of a network, worked out once."""
        if (graph, way) not in self._planned:
            self._planned[graph, way] = self._outcome(graph, way)
        return self._planned[graph, way]

    def _outcome(self, graph: Graph, way: Way) -> Outcome:
        machine = self.machine
        dividers = self.library.dividers
        if way in (Way.DATA, Way.LAYOUTS):
            only = "by samples" if way is Way.DATA else None
            plan = best_layouts(graph, machine, dividers, only=only)
            return Outcome(
                step_s=plan.step_s,
                steps=plan.steps,
                graph=plan.graph,
                memory_bytes=machine.memory_bytes(plan.graph),
            )
        optimize = together if way is Way.TOGETHER else one_after_the_other
        found: Optimized = optimize(
            graph, machine, self.library.algebra, dividers, budget=self.budget
        )
        return Outcome(
            step_s=found.step_s,
            steps=found.steps,
            graph=found.plan.graph,
            memory_bytes=machine.memory_bytes(found.plan.graph),
            evaluations=found.algebra.evaluations,
            history=found.algebra.history,
        )

    def times(self, graph: Graph, way: Way, rival: Way) -> float:
        """Throughput of a way over a rival's."""
        return self.plan(graph, rival).step_s / self.plan(graph, way).step_s

    def bound(self, graph: Graph) -> float:
        """Throughput over data parallelism's that no plan can beat.

        All GPUs multiply at their full rate, and nothing is sent, read or launched.
        """
        flops = 0.0
        for one in terms_of(graph):
            if one.op is Op.LINEAR:
                x, weight = (layout(arg) for arg in one.args)
                flops += LINEAR_KERNELS * 2.0 * x.num_numbers * weight.sizes[1]
        least_s = flops / (self.gpus * self.flops_per_s)
        return self.plan(graph, Way.DATA).step_s / least_s


def measures(setting: Setting, way: Way = Way.TOGETHER) -> dict[str, object]:
    """The headline claims' values, with a way in the method's place."""
    networks = setting.networks()
    over_data = [setting.times(graph, way, Way.DATA) for graph in networks.values()]
    gains = [setting.times(graph, way, Way.ONE_AFTER_THE_OTHER) for graph in networks.values()]
    return {"speedup": over_data, "joint": max(gains)}


def kept_apart(outcome: Outcome) -> str:
    """Whether a plan has a ReLU apart from the layer before it, which is divided by reduction."""
    for one in terms_of(outcome.graph):
        if one.op is Op.RELU:
            below = one.args[0]
            while below.op in (Op.PARTITION, Op.REDUCE):
                if below.op is Op.REDUCE and below.args[0].op is Op.LINEAR:
                    return "kept apart"
                below = below.args[0]
    return "fused"


def table(setting: Setting, graphs: Mapping[str, Graph]) -> pd.DataFrame:
    """Throughput over data parallelism's: a row a network and way."""
    rows = []
    for name, graph in graphs.items():
        for way in Way:
            rows.append({"network": name, "way": way, "times": setting.times(graph, way, Way.DATA)})
    return pd.DataFrame(rows)


def by_width(setting: Setting, widths: Sequence[int]) -> pd.DataFrame:
    """The bottleneck's gain of one search over two, by the width of its narrow layer."""
    rows = []
    for narrow in widths:
        graph = setting.bottleneck(narrow)
        gain = setting.times(graph, Way.TOGETHER, Way.ONE_AFTER_THE_OTHER)
        rows.append({"narrow": narrow, "gain": gain})
    return pd.DataFrame(rows)
