"""The best plan of a chain by trying all: any number of stages on any number of devices."""

from __future__ import annotations

import math
from collections.abc import Iterator

from labkit.planner import Chain, Cluster
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
    cluster: Cluster,
    *,
    objective: Objective = "throughput",
    costing: CostingName = "ring",
    num_microbatches: int | None = None,
) -> Plan:
    """The cheapest plan on a flat cluster."""
    costs = StageCosts.of(chain, cluster.levels[0], as_costing(costing))
    hidden = objective == "latency"
    flush = Flush.of(costs, num_microbatches or 1, hidden=hidden, straight=False)
    columns = [costs.column(end) for end in range(1, len(chain) + 1)]

    def cost(stages: list[Stage]) -> float:
        if objective == "throughput":
            return float(max(columns[s.end - 1][s.replicas - 1, s.first] for s in stages))
        return flush.cost_s(stages)

    best = min(all_plans(0, len(chain), cluster.num_devices), key=cost)
    return price(
        chain,
        cluster,
        [s.replicas for s in best],
        [s.end for s in best[:-1]],
        objective=objective,
        costing=costing,
        num_microbatches=num_microbatches,
    )


def all_plans(first: int, layers: int, devices: int) -> Iterator[list[Stage]]:
    for end in range(first + 1, layers + 1):
        for replicas in range(1, devices + 1):
            head = Stage(first, end, replicas)
            if end == layers:
                yield [head]
            else:
                yield from ([head, *tail] for tail in all_plans(end, layers, devices - replicas))
