"""A plan: stages, what they cost, what bounds them, how they run, and why they are as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le

from labkit.errors import BadValue, UsageError
from labkit.kit.describe import Count, checked
from labkit.kit.fabric import Fabric
from labkit.planner.chain import Chain
from labkit.planner.costing import Costing, CostingName, StageCosts, as_costing
from labkit.planner.latency import Flush
from labkit.planner.throughput import Stage
from labkit.quantities import format_bytes, seconds

if TYPE_CHECKING:
    import pandas as pd

    from labkit.pipeline import Timeline

Minibatches = Annotated[int, Ge(1), Le(100_000)]
Objective = Literal["throughput", "latency", "flush"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Stages of a chain on a fabric, and what they cost.

    Attributes:
        cost_s: seconds a minibatch in steady state (throughput), or of an iteration of
            ``num_microbatches`` microbatches (latency, flush).
        bound_s: what no plan of the same kind can beat; NaN where nothing was searched.
        evaluations: stages (throughput) or shortest paths (latency, flush) that were computed.
    """

    chain: Chain
    fabric: Fabric
    objective: Objective
    costing: Costing
    stages: tuple[Stage, ...]
    cost_s: float
    bound_s: float = float("nan")
    evaluations: int = 0
    num_microbatches: int | None = None

    @property
    def name(self) -> str:
        """Replicas of each stage, as PipeDream's authors write plans: ``15-1``."""
        return "-".join(stage.name for stage in self.stages)

    @property
    def cuts(self) -> tuple[int, ...]:
        """How many layers stand before each boundary between stages."""
        return tuple(stage.end for stage in self.stages[:-1])

    @property
    def replicas(self) -> tuple[int, ...]:
        """Replicas of each stage."""
        return tuple(stage.replicas for stage in self.stages)

    @property
    def num_devices(self) -> int:
        """Devices that the plan uses."""
        return sum(stage.num_devices for stage in self.stages)

    @property
    def gap(self) -> float:
        """By how much, as a share of the cost, a better plan could be cheaper at most."""
        return 1 - self.bound_s / self.cost_s

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Minibatches of each stage between their forward and backward, on each replica.

        1F1B admits ceil(devices from this stage on / its replicas) of them.
        """
        sizes = [stage.num_devices for stage in self.stages]
        left = [sum(sizes[place:]) for place in range(len(sizes))]
        most = math.inf if self.objective == "throughput" else self.num_microbatches or math.inf
        return tuple(
            int(min(most, math.ceil(rest / size))) for rest, size in zip(left, sizes, strict=True)
        )

    @property
    def memory_bytes(self) -> tuple[float, ...]:
        """Of a device of each stage: weights and gradients, and a version of weights and
        activations for every minibatch in flight (PipeDream's weight stashing).

        A synchronous plan keeps one version of the weights, and its replicas share activations.
        """
        stashes = self.objective == "throughput"
        totals = []
        for stage, versions in zip(self.stages, self.in_flight, strict=True):
            weights = self.chain.weight_bytes[stage.first, stage.end]
            kept = self.chain.kept_bytes[stage.first, stage.end]
            share = kept if stashes else kept / stage.replicas
            totals.append(weights * (1 + (versions if stashes else 1)) + versions * share)
        return tuple(float(total) for total in totals)

    @property
    def sent_bytes(self) -> float:
        """What all devices send for one minibatch: gradients in rings, activations both ways."""
        gradients = sum(
            2 * (1 - 1 / stage.replicas) * self.chain.weight_bytes[stage.first, stage.end]
            for stage in self.stages
        )
        return float(gradients + 2 * sum(self.chain.crossing_bytes[cut] for cut in self.cuts))

    def frame(self) -> pd.DataFrame:
        """One row a stage: layers, replicas, parts of its seconds, memory."""
        import pandas as pd

        costs = StageCosts.of(self.chain, self.fabric.levels[0], self.costing)
        rows = []
        for number, stage in enumerate(self.stages):
            parts = {} if stage.inside else costs.steady_s(stage.first, stage.end, stage.replicas)
            rows.append(
                {
                    "stage": number,
                    "first": self.chain.layers[stage.first],
                    "last": self.chain.layers[stage.end - 1],
                    "num_layers": stage.end - stage.first,
                    "replicas": stage.name,
                    **parts,
                }
            )
        table = pd.DataFrame(rows)
        if len(self.fabric.levels) == 1:
            table = table.assign(in_flight=self.in_flight, memory_bytes=self.memory_bytes)
        return table

    @checked
    def priced(
        self,
        *,
        fabric: Fabric | None = None,
        objective: Objective | None = None,
        costing: Costing | CostingName | None = None,
        num_microbatches: Count | None = None,
    ) -> Plan:
        """The same stages under other links, another objective or another costing.

        Args:
            fabric, objective, costing: instead of the plan's own.
            num_microbatches: of an iteration, where the objective needs it and is not the plan's.
        """
        aim = objective or self.objective
        same = aim == self.objective and num_microbatches is None
        return price(
            self.chain,
            fabric or self.fabric,
            self.replicas,
            self.cuts,
            objective=aim,
            costing=costing or self.costing,
            num_microbatches=self.num_microbatches if same else num_microbatches,
        )

    @checked
    def timeline(
        self, num_minibatches: Minibatches = 8, schedule: str = "1f1b", **options: object
    ) -> Timeline:
        """The plan's schedule simulated, a stage's replicas as one device that is as much faster.

        Messages take their time on the links; gradients are not drawn.

        Args:
            options: of :func:`labkit.pipeline.build`, such as ``warmup`` of schedule ``dapple``.

        Raises:
            UsageError: the plan has one stage, or two levels.
        """
        from labkit import pipeline

        if len(self.stages) < 2 or len(self.fabric.levels) > 1:
            raise UsageError(f"no pipeline to draw: the plan is {self.name}")
        forward, backward = (
            [sum(times[stage.first : stage.end]) / stage.replicas for stage in self.stages]
            for times in (self.chain.forward_s, self.chain.backward_s)
        )
        level = self.fabric.levels[0]
        network = pipeline.Network(
            latency_s=level.latency_s,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s,
            message_bytes=[
                self.chain.crossing_bytes[stage.end] / min(stage.replicas, after.replicas)
                for stage, after in zip(self.stages, self.stages[1:], strict=False)
            ],
        )
        order = pipeline.build(schedule, len(self.stages), num_minibatches, **options)
        costs = pipeline.Costs(forward_s=forward, backward_s=backward)
        return pipeline.simulate(order, costs, network=network)

    def why(self) -> str:
        """The stage that limits the plan, what of it does, and how much memory the plan needs."""
        if len(self.fabric.levels) > 1:
            return f"{self.name}: {seconds(self.cost_s)} a minibatch, two levels of links."
        table = self.frame()
        parts = ["compute_s", "gradients_s", "transfers_s"]
        if not self.costing.activations:
            parts.pop()
        sums = self.costing.combine == "sum" and self.objective == "throughput"
        whole = table[parts[:2]].sum(axis=1) if sums else table[parts].max(axis=1)
        slowest = table.iloc[int(whole.to_numpy().argmax())]
        part = str(slowest[parts].astype(float).idxmax()).removesuffix("_s")
        room = format_bytes(max(self.memory_bytes))
        unit = "a minibatch"
        if self.objective != "throughput":
            unit = f"an iteration of {self.num_microbatches} microbatches"
        return (
            f"{self.name}: stage {slowest.stage} ({slowest['first']} to {slowest['last']}, "
            f"{slowest.replicas} replicas) limits it, by its {part}; "
            f"{seconds(self.cost_s)} {unit}, at most {room} on a device."
        )


def microbatches(objective: Objective, num_microbatches: int | None) -> int:
    """The number of microbatches that an objective needs.

    Raises:
        BadValue: it is missing, or given where nothing is flushed.
    """
    if (objective == "throughput") != (num_microbatches is None):
        raise BadValue(
            "num_microbatches belongs to objective 'latency' or 'flush', which need it; got "
            f"{num_microbatches} with {objective!r}"
        )
    return num_microbatches or 1


def one_level(fabric: Fabric, what: str) -> None:
    """Refuse a fabric of several levels, with a UsageError."""
    if len(fabric.levels) > 1:
        raise UsageError(f"{what} takes a flat fabric; got {len(fabric.levels)} levels")


@checked
def price(
    chain: Chain,
    fabric: Fabric,
    replicas: Sequence[Count],
    cuts: Sequence[Count] = (),
    *,
    objective: Objective = "throughput",
    costing: Costing | CostingName = "ring",
    num_microbatches: Count | None = None,
) -> Plan:
    """A plan of one's own with what it costs.

    Args:
        replicas: of each stage.
        cuts: how many layers stand before each boundary between stages.
        objective, costing, num_microbatches: as of :func:`labkit.planner.plan`.

    >>> chain = Chain.even(4, forward_s=0.01, backward_s=0.02)
    >>> price(chain, Fabric.flat(4, bandwidth_bytes_per_s=1e9), (3, 1), (3,)).cost_s
    0.03

    Raises:
        BadValue: cuts are out of order or do not fit the replicas, or there are too few devices.
    """
    one_level(fabric, "price")
    ends = [0, *cuts, len(chain)]
    if len(ends) != len(replicas) + 1 or any(b <= a for a, b in pairwise(ends)):
        raise BadValue(
            f"cuts must rise between 1 and {len(chain) - 1}, one fewer than replicas; got "
            f"{list(cuts)} for {len(replicas)} stages"
        )
    if sum(replicas) > fabric.num_devices:
        raise BadValue(f"replicas add up to {sum(replicas)}, devices to {fabric.num_devices}")
    flushes = microbatches(objective, num_microbatches)
    stages = tuple(map(Stage, ends, ends[1:], replicas))
    costs = StageCosts.of(chain, fabric.levels[0], as_costing(costing))
    if objective == "throughput":
        cost_s = float(max(costs.column(s.end)[s.replicas - 1, s.first] for s in stages))
    else:
        flush = Flush.of(costs, flushes, hidden=objective == "latency", straight=False)
        cost_s = flush.cost_s(stages)
    return Plan(
        chain=chain,
        fabric=fabric,
        objective=objective,
        costing=costs.costing,
        stages=stages,
        cost_s=cost_s,
        num_microbatches=num_microbatches,
    )
