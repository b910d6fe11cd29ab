"""Plans beside each other: under other links, on other fabrics, with other costings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from labkit.kit.describe import Positive, checked
from labkit.kit.fabric import Fabric
from labkit.planner.chain import Chain
from labkit.planner.costing import CostingName
from labkit.planner.planning import plan as best_plan
from labkit.planner.plans import Plan, one_level, price

if TYPE_CHECKING:
    import pandas as pd


@checked
def sensitivity(plan: Plan, *, bandwidth: Sequence[Positive] = (0.5, 1.0, 2.0)) -> pd.DataFrame:
    """What a plan costs where links are so many times as fast, beside the best plan there.

    Args:
        bandwidth: how many times as fast.

    Returns:
        One row a factor: the best plan's name, its cost, the kept plan's cost and its regret (how
        much more it costs, as a share).

    Raises:
        UsageError: the plan stands on two levels.
    """
    import pandas as pd

    one_level(plan.fabric, "sensitivity")
    rows = []
    for factor in bandwidth:
        links = plan.fabric.scaled(factor)
        best = best_plan(
            plan.chain,
            links,
            objective=plan.objective,
            costing=plan.costing,
            num_microbatches=plan.num_microbatches,
        )
        kept = plan.priced(fabric=links)
        rows.append((factor, best.name, best.cost_s, kept.cost_s, kept.cost_s / best.cost_s - 1))
    names = ["bandwidth", "best", "best_s", "kept_s", "regret_fraction"]
    return pd.DataFrame(rows, columns=names)


@checked
def sweep(
    chains: Mapping[str, Chain],
    fabrics: Sequence[Fabric],
    *,
    costings: Sequence[CostingName] = ("ring",),
) -> pd.DataFrame:
    """The best plan of each chain on each flat fabric, beside data parallelism there.

    Args:
        chains: by the name of their network.
        costings: how compute and traffic add up, several.

    Returns:
        One row for each chain, fabric and costing: the plan's name and seconds a minibatch, the
        same of data parallelism and of perfect speed-up (compute divided by devices), and for
        plan and data parallelism the bytes sent for a minibatch and those the fullest device holds.

    Raises:
        UsageError: a fabric has two levels.
    """
    import pandas as pd

    rows = []
    for name, chain in chains.items():
        for fabric, costing in product(fabrics, costings):
            whole = price(chain, fabric, (fabric.num_devices,), costing=costing)
            best = best_plan(chain, fabric, costing=costing)
            rows.append(
                {
                    "network": name,
                    "devices": fabric.num_devices,
                    "bandwidth_gb_per_s": fabric.levels[0].bandwidth_bytes_per_s / 1e9,
                    "costing": costing,
                    "plan": best.name,
                    "cost_s": best.cost_s,
                    "data_parallel_s": whole.cost_s,
                    "perfect_s": chain.time_s / fabric.num_devices,
                    "speedup": whole.cost_s / best.cost_s,
                    "bytes_saved_fraction": 1 - best.sent_bytes / max(whole.sent_bytes, 1.0),
                    "fullest_bytes": max(best.memory_bytes),
                    "data_parallel_bytes": whole.memory_bytes[0],
                }
            )
    return pd.DataFrame(rows)
