"""Iterations of PipeDream's plans beside those of DAPPLE's planner and of its rivals.

All plans are synchronous: weights stay equal, gradients are summed once an iteration, and an
iteration is as long as DAPPLE's formula says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import pandas as pd

from labkit import pipeline, planner
from labkit.kit.describe import Count, checked
from labkit.kit.fabric import Fabric
from labkit.papers.dapple.published import published_plan
from labkit.planner.chain import Chain
from labkit.planner.costing import Costing, CostingName
from labkit.planner.plans import Plan

NETWORKS = {"vgg16": "VGG-16", "resnet50": "ResNet-50", "alexnet": "AlexNet", "gnmt": "GNMT"}
"""Networks with a profile of PipeDream's authors: short name -> what figures call it."""
NOTHING_SENT = Costing(gradient_passes=1e-9, activations=False)
"""Costs of compute alone."""
BACKWARD = 2.0
"""Seconds of a backward where a forward takes one."""


class Way(StrEnum):
    """How stages are chosen for a synchronous iteration: DAPPLE's way, then its rivals."""

    DAPPLE = "DAPPLE's planner"
    DATA = "data parallelism"
    GPIPE = "one GPU a stage, balanced by compute"


def plan_of(way: Way, chain: Chain, fabric: Fabric, num_microbatches: int) -> Plan:
    """The plan of a way, priced by DAPPLE's formula.

    Args:
        way: how stages are chosen.
        chain: the layers, with the seconds of a microbatch.
        fabric: devices that are all joined alike.
        num_microbatches: of an iteration.
    """
    if way is Way.DAPPLE:
        return published_plan(chain, fabric, num_microbatches=num_microbatches)
    if way is Way.DATA:
        plan = planner.price(chain, fabric, (fabric.num_devices,))
    else:
        plan = planner.plan(chain, fabric, costing=NOTHING_SENT, straight=True)
    return _iteration(plan, num_microbatches)


def pipedreams_plan(
    chain: Chain,
    fabric: Fabric,
    num_microbatches: int,
    *,
    costing: CostingName = "code+activations",
) -> Plan:
    """The plan that PipeDream's published program finds, priced by DAPPLE's formula.

    Args:
        chain, fabric, num_microbatches: as :func:`plan_of` takes them.
        costing: the program's option: activations charged, as its README does, or "code", its
            default.
    """
    return _iteration(planner.plan(chain, fabric, costing=costing), num_microbatches)


def ratios(
    way: Way,
    chains: Mapping[str, Chain],
    fabric: Fabric,
    sizes: Sequence[int],
    *,
    costing: CostingName = "code+activations",
) -> pd.DataFrame:
    """How much longer an iteration of PipeDream's plan is than one of a way's plan.

    Args:
        way: how stages are chosen.
        chains: by network.
        fabric: as :func:`plan_of` takes it.
        sizes: numbers of microbatches of an iteration.
        costing: as :func:`pipedreams_plan` takes it.

    Returns:
        A row a network and size: network, num_microbatches, plan (of the way), ratio.
    """
    rows = []
    for network, chain in chains.items():
        for size in sizes:
            ours = plan_of(way, chain, fabric, size)
            theirs = pipedreams_plan(chain, fabric, size, costing=costing)
            rows.append((network, size, ours.name, theirs.cost_s / ours.cost_s))
    return pd.DataFrame(rows, columns=["network", "num_microbatches", "plan", "ratio"])


@checked
def equal_memory_gain(num_stages: Count, room: Count = 1, *, num_microbatches: Count = 64) -> float:
    """Throughput of early backward over GPipe, which flushes when its memory is full.

    Stages are equal and a backward takes twice as long as a forward; messages take no time.

    Args:
        num_stages: of the pipeline.
        room: GPipe's memory for activations, in multiples of what early backward needs.
        num_microbatches: of an iteration under early backward.

    >>> round(equal_memory_gain(2), 3)  # (2 S - 1) / S, less what filling costs early backward
    1.477
    """
    costs = pipeline.Costs(forward_s=1.0, backward_s=BACKWARD / 2, weight_s=BACKWARD / 2)
    full = room * num_stages
    early = pipeline.simulate(pipeline.build("dapple", num_stages, num_microbatches), costs)
    flushed = pipeline.simulate(pipeline.build("gpipe", num_stages, full), costs)
    return float(flushed.makespan_s / full / (early.makespan_s / num_microbatches))


def _iteration(plan: Plan, num_microbatches: int) -> Plan:
    return plan.priced(objective="latency", costing="ring", num_microbatches=num_microbatches)
