"""The plan that DAPPLE's published planner finds.

It tries the plans whose largest block is least, and takes the one whose iteration ends first.

Source: Fan et al., DAPPLE: A Pipelined Data Parallel Approach for Training Large Models (PPoPP'21),
§IV, and its published planner.
"""

from __future__ import annotations

from labkit.kit.describe import Count, checked
from labkit.kit.fabric import Fabric
from labkit.planner.chain import Chain
from labkit.planner.costing import Costing, CostingName, StageCosts, as_costing
from labkit.planner.planning import by_largest_block, flush_costs
from labkit.planner.plans import Plan, one_level


@checked
def published_plan(
    chain: Chain,
    fabric: Fabric,
    *,
    num_microbatches: Count,
    costing: Costing | CostingName = "ring",
) -> Plan:
    """The best of the plans that DAPPLE's published planner tries; it knows no bound.

    All-reduces count only in the choice among these plans.

    Args:
        num_microbatches: of an iteration.
        costing: how many bytes of gradients cross a link.

    Raises:
        UsageError: the fabric has two levels, or the chain is too long.

    >>> chain = Chain.even(4, forward_s=0.01, backward_s=0.02)
    >>> two = Fabric.flat(2, bandwidth_bytes_per_s=1e9)
    >>> published_plan(chain, two, num_microbatches=8).name
    '2'
    """
    one_level(fabric, "published_plan")
    costs = StageCosts.of(chain, fabric.levels[0], as_costing(costing))
    flush = flush_costs(costs, num_microbatches, hidden=True)
    tried = list(by_largest_block(costs))
    best = min(tried, key=flush.cost_s)
    return Plan(
        chain=chain,
        fabric=fabric,
        objective="latency",
        costing=costs.costing,
        stages=tuple(best),
        cost_s=flush.cost_s(best),
        evaluations=len(tried),
        num_microbatches=num_microbatches,
    )
