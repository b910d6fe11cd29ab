"""The best plan of a chain by trying all: any number of stages on any number of devices."""

from __future__ import annotations

import math
from collections.abc import Iterator

from labkit.planner import Chain, Fabric
from labkit.planner.costing import CostingName, StageCosts, as_costing
from labkit.planner.latency import Flush
from labkit.planner.plans import Objective, Plan, price
from labkit.planner.throughput import Stage


def num_plans(layers: int, devices: int) -> int:
    """How many plans there are."""
    return sum(
        math.comb(layers - 1, stages - 1) * math.comb(devices, stages)
        for stages in range(1, min(layers, devices) + 1)
    )


def best_of_all(
    chain: Chain,
    fabric: Fabric,
    *,
    objective: Objective = "throughput",
    costing: CostingName = "ring",
    num_microbatches: int | None = None,
) -> Plan:
    """The cheapest plan on a flat fabric."""
    costs = StageCosts.of(chain, fabric.levels[0], as_costing(costing))
    hidden = objective == "latency"
    flush = Flush.of(costs, num_microbatches or 1, hidden=hidden, straight=False)
    columns = [costs.column(end) for end in range(1, len(chain) + 1)]

    def cost(stages: list[Stage]) -> float:
        if objective == "throughput":
            return float(max(columns[s.end - 1][s.replicas - 1, s.first] for s in stages))
        return flush.cost_s(stages)

    best = min(all_plans(0, len(chain), fabric.num_devices), key=cost)
    return price(
        chain,
        fabric,
        [s.replicas for s in best],
        [s.end for s in best[:-1]],
        objective=objective,
        costing=costing,
        num_microbatches=num_microbatches,
    )


def least_on_machines(chain: Chain, fabric: Fabric, costing: CostingName) -> float:
    """Seconds a minibatch of the cheapest plan on machines, all plans inside each stage tried.

    A stage's machines exchange the weights of the stages inside, each divided by its replicas, or
    by all devices of a machine.
    """
    near, far = fabric.levels
    rules = as_costing(costing)
    inside = StageCosts.of(chain, near, rules)
    between = StageCosts.of(chain, far, rules)

    def ways(stage: Stage) -> Iterator[tuple[float, float]]:
        for plan in all_plans(stage.first, stage.end, near.count):
            slowest_s = max(inside.column(s.end)[s.replicas - 1, s.first] for s in plan)
            shares = [
                near.count if rules.machines_exchange == "devices" else s.replicas for s in plan
            ]
            weights = (chain.weight_bytes[s.first, s.end] for s in plan)
            yield slowest_s, sum(w / share for w, share in zip(weights, shares, strict=True))

    def seconds(stage: Stage) -> float:
        r = stage.replicas
        gradients_s = rules.gradient_passes * (r - 1) / r / far.bandwidth_bytes_per_s
        both = max if rules.combine == "max" else lambda *parts: sum(parts)
        least_s = min(both(slow_s, gradients_s * weights) / r for slow_s, weights in ways(stage))
        if not rules.activations:
            return least_s
        return max(least_s, *between.transfers_s[r - 1, [stage.first, stage.end]])

    plans = all_plans(0, len(chain), far.count)
    return float(min(max(map(seconds, plan)) for plan in plans))


def all_plans(first: int, layers: int, devices: int) -> Iterator[list[Stage]]:
    for end in range(first + 1, layers + 1):
        for replicas in range(1, devices + 1):
            head = Stage(first, end, replicas)
            if end == layers:
                yield [head]
            else:
                yield from ([head, *tail] for tail in all_plans(end, layers, devices - replicas))
