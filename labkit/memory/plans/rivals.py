"""One training job by the methods that compete for it, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from labkit.errors import not_among
from labkit.kit.describe import Count, checked
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.plans.plan import Plan
from labkit.memory.plans.throughput import Cluster, throughput
from labkit.memory.plans.update import Update, updated_step
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd


@checked
def rivals(
    model: Model,
    cluster: Cluster,
    methods: Sequence[str] | None = None,
    *,
    gpus: Count,
    partition_group: Count,
    seq: Count = 2048,
    micro_batch: Count = 1,
    accumulation: Count = 1,
    host: Update | None = None,
) -> pd.DataFrame:
    """One job by the methods that compete for it: throughput of a GPU, what is not computing
    (``traffic_s``), and the states it holds; ``gain`` is the throughput over ZeRO-3's.

    ``micro_batch`` samples a GPU, layers recomputed. Tensor parallelism and ZeRO++'s second copy
    span a node; its hpZ alone quantises nothing, the whole sends int8 weights, int4 gradients.
    With a ``host`` that updates, ZeRO-Offload comes last, with tensor parallelism: without it, the
    parameters stay whole on each GPU. ``methods`` names those wanted beside ZeRO-3; None: all.

    Raises:
        UsageError: no such method.
        BadValue: the nodes of the cluster or the groups do not divide the GPUs.
    """
    import pandas as pd

    node, usual = cluster.ranks_per_node, Recipe.mixed_adam(accumulation=accumulation)
    away = replace(usual, offload_gradients="cpu", offload_optimizer="cpu")
    quantised = replace(usual, gather="int8", reduce="int4")
    ways = {
        "Megatron-LM": (Parallel(tp=node, dp=gpus // node), usual),
        "Megatron-LM, ZeRO-1": (Parallel(tp=node, dp=gpus // node, zero=1), usual),
        "ZeRO-3": (Parallel(dp=gpus, zero=3), usual),
        "ZeRO++, hpZ": (Parallel(dp=gpus, zero=3, secondary_group=node), usual),
        "ZeRO++": (Parallel(dp=gpus, zero=3, secondary_group=node), quantised),
        "MiCS": (Parallel(dp=gpus, zero=3, partition_group=partition_group), usual),
    }
    if host:
        ways["Megatron-LM, ZeRO-Offload"] = (Parallel(tp=node, dp=gpus // node, zero=2), away)
    rows = []
    for name in ways if methods is None else dict.fromkeys(["ZeRO-3", *methods]):
        if name not in ways:
            raise not_among("method", name, ways)
        parallel, recipe = ways[name]
        batch = Batch(seq=seq, micro_batch=micro_batch * parallel.tp, recompute="full")
        plan = Plan(model=model, parallel=parallel, recipe=recipe, batch=batch)
        step = _timed(plan, cluster, host if recipe is away else None)
        rows.append([name, *step, plan.states_bytes])
    columns = ["method", "gpu_flops_per_s", "traffic_s", "states_bytes"]
    table = pd.DataFrame(rows, columns=columns).set_index("method")
    rate = table["gpu_flops_per_s"]
    return table.assign(gain=rate / rate["ZeRO-3"])


def _timed(plan: Plan, cluster: Cluster, host: Update | None) -> tuple[float, float]:
    """Operations a second of a GPU, and the seconds of a step in which it does not compute."""
    if host is None:
        step = throughput(plan, cluster)
        return step.flops_per_s, step.tensor_s + step.data_s
    updated = updated_step(plan, cluster, host)
    return updated.flops_per_s, updated.step_s - updated.flops / cluster.flops_per_s
