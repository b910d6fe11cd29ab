"""PipeDream's plans beside its rivals', by the seconds that a minibatch takes.

All are compared with data parallelism under the same costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import pandas as pd

from labkit import planner
from labkit.kit.fabric import Fabric
from labkit.planner.chain import Chain
from labkit.planner.costing import Costing, CostingName
from labkit.planner.plans import Plan

GBIT = 1e9 / 8
"""Bytes of a gigabit."""
NOTHING_SENT = Costing(gradient_passes=1e-9, activations=False)
"""Costs of compute alone."""


class Way(StrEnum):
    """How a network is trained on several GPUs: PipeDream's way, then its rivals."""

    PIPEDREAM = "PipeDream"
    FLUSHED = "PipeDream's stages, GPipe's flush"
    BALANCED = "one GPU a stage, balanced by compute"
    ALONE = "one minibatch at a time"


def balanced(chain: Chain, fabric: Fabric) -> Plan:
    """A straight pipeline whose stages compute about equally long, as GPipe cuts a network.

    Args:
        chain: the layers.
        fabric: as many devices as there are stages.
    """
    return planner.plan(chain, fabric, costing=NOTHING_SENT, straight=True)


def minibatch_s(
    way: Way, chain: Chain, fabric: Fabric, *, costing: CostingName = "server"
) -> float:
    """Seconds a minibatch, where a way trains a network.

    A flush comes after as many minibatches as there are devices: then an update rests on as many
    images as one of data parallelism does.

    Args:
        way: how the network is trained.
        chain: its layers.
        fabric: its devices, all joined alike.
        costing: how compute and traffic add up; where a pipeline flushes only its bytes count.
    """
    if way in (Way.PIPEDREAM, Way.FLUSHED):
        plan = planner.plan(chain, fabric, costing=costing)
    else:
        plan = balanced(chain, fabric)
    if way in (Way.PIPEDREAM, Way.BALANCED):
        return plan.priced(costing=costing).cost_s
    size = 1 if way is Way.ALONE else fabric.num_devices
    flushed = plan.priced(objective="flush", costing=costing, num_microbatches=size)
    return flushed.cost_s / size


def speedups(
    way: Way,
    chain: Chain,
    num_devices: int,
    gbits_per_s: Sequence[float],
    *,
    costing: CostingName = "server",
) -> pd.DataFrame:
    """How many times as fast as data parallelism a way is, by the rate of a GPU's link.

    Args:
        way: how the network is trained.
        chain: its layers, with the images that a GPU gets.
        num_devices: all joined alike.
        gbits_per_s: of a device's link.
        costing: of gradients, in both.

    Returns:
        A row a rate: gbit_per_s; speedup; bound, where nothing but compute took any time.
    """
    rows = []
    for rate in gbits_per_s:
        fabric = planner.Fabric.flat(num_devices, bandwidth_bytes_per_s=rate * GBIT)
        whole = planner.price(chain, fabric, (num_devices,), costing=costing)
        ours_s = minibatch_s(way, chain, fabric, costing=costing)
        least_s = chain.time_s / num_devices
        rows.append((rate, whole.cost_s / ours_s, whole.cost_s / least_s))
    return pd.DataFrame(rows, columns=["gbit_per_s", "speedup", "bound"])
