"""Choosing stages: the best plan for an objective, and what other links would change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np

from labkit.errors import BadValue, UsageError
from labkit.kit.describe import Count, Positive, checked
from labkit.planner.chain import Chain
from labkit.planner.cluster import Cluster, Level
from labkit.planner.costing import Costing, CostingName, StageCosts, as_costing
from labkit.planner.latency import Flush, Search
from labkit.planner.plans import Objective, Plan, microbatches, one_level, price
from labkit.planner.throughput import Program, Stage

if TYPE_CHECKING:
    import pandas as pd

Method = Literal["exact", "largest-block"]
Answer = tuple[Sequence[Stage], float, float, int]
"""Stages, their cost, a bound of it, and how much was computed."""
_LARGEST = 4 * 10**7
"""Numbers in a table of stages that ``latency`` and ``flush`` hold in memory at most."""
_TIE = 1e-9
"""Costs this near to each other, as a share, count as equal."""


@checked
def stages(
    chain: Chain,
    cluster: Cluster,
    *,
    objective: Objective = "throughput",
    costing: Costing | CostingName = "ring",
    num_microbatches: Count | None = None,
    method: Method = "exact",
    straight: bool = False,
    memory_bytes: Positive | None = None,
    tolerance: Positive = 1e-6,
) -> Plan:
    """The best stages of a chain on a cluster.

    Args:
        objective: ``throughput``: seconds a minibatch of an asynchronous pipeline (PipeDream);
            ``latency``: of an iteration of microbatches by DAPPLE's formula; ``flush``: of one in
            which nothing overlaps.
        costing: how compute and traffic add up; only its bytes count where microbatches flush.
        num_microbatches: of an iteration, for ``latency`` and ``flush``.
        method: ``exact``; for the latter two also ``largest-block``, as DAPPLE's published planner
            searches: for each number of devices the stages whose largest block is least, with and
            without replicas, each also as often as the devices allow, and all plans of two
            stages; all-reduces count only in the choice among these.
        straight: one device a stage.
        memory_bytes: of a device, with a version of weights and activations for each minibatch in
            flight; for ``throughput`` on one level.
        tolerance: how far, as a share, the cost of ``latency`` and ``flush`` may stay above the
            bound.

    All devices are used unless fewer are faster.

    Raises:
        UsageError: no plan fits, or the objective cannot take the cluster or the option.
    """
    flushes = microbatches(objective, num_microbatches)
    costs = StageCosts.of(chain, cluster.levels[0], as_costing(costing))
    if objective != "throughput":
        one_level(cluster, f"objective {objective!r}")
        if memory_bytes is not None:
            raise BadValue("memory_bytes limits plans of objective 'throughput' alone")
        hidden = objective == "latency"
        answer = _flushing(
            costs, flushes, method, hidden=hidden, straight=straight, tolerance=tolerance
        )
    elif method != "exact":
        raise BadValue("method 'largest-block' belongs to objective 'latency' or 'flush'")
    elif len(cluster.levels) == 1:
        answer = _one_level(costs, memory_bytes, straight)
    elif memory_bytes is not None or straight:
        raise UsageError("memory_bytes and straight take a flat cluster; got 2 levels")
    else:
        answer = _two_levels(costs, cluster.levels[1])
    best, cost_s, bound_s, evaluations = answer
    return Plan(
        chain=chain,
        cluster=cluster,
        objective=objective,
        costing=costs.costing,
        stages=tuple(best),
        cost_s=float(cost_s),
        bound_s=float(bound_s),
        evaluations=evaluations,
        num_microbatches=num_microbatches,
    )


# ---------------------------------------------------------------- throughput


def _one_level(costs: StageCosts, memory_bytes: float | None, straight: bool) -> Answer:
    first = np.array([0])
    program = Program(costs=costs, starts=first, memory_bytes=memory_bytes, straight=straight)
    best = program.solved[0][0, :, -1]
    units = _fewest(best)
    chosen = program.stages(0, units, len(costs.chain))
    return chosen, best[units], best[units], program.evaluations


def _fewest(best: np.ndarray) -> int:
    """All units, or the fewest of those numbers that are faster still."""
    least = best.min()
    if best[-1] <= least * (1 + _TIE):
        return len(best) - 1
    return int(np.flatnonzero(best <= least * (1 + _TIE))[0])


def _two_levels(costs: StageCosts, between: Level) -> Answer:
    layers = len(costs.chain)
    inner = Program(costs=costs, starts=np.arange(layers), machines=True)
    times, weights = inner.solved
    devices = times.argmin(1)  # of a machine, by first layer and end
    compute = np.full((layers + 1, layers + 1), np.inf)
    synced = np.zeros_like(compute)
    compute[:-1] = np.take_along_axis(times, devices[:, None], 1)[:, 0]
    synced[:-1] = np.take_along_axis(weights, devices[:, None], 1)[:, 0]
    machines = replace(costs, level=between, compute_s=compute, synced_bytes=synced)
    outer = Program(costs=machines, starts=np.array([0]))
    best = outer.solved[0][0, :, -1]
    units = _fewest(best)
    chosen = []
    for stage in outer.stages(0, units, layers):
        inside = inner.stages(stage.first, int(devices[stage.first, stage.end]), stage.end)
        chosen.append(stage._replace(inside=tuple(inside)))
    return chosen, best[units], best[units], inner.evaluations + outer.evaluations


# ---------------------------------------------------------------- flushed pipelines


def _flushing(
    costs: StageCosts,
    num_microbatches: int,
    method: Method,
    *,
    hidden: bool,
    straight: bool,
    tolerance: float,
) -> Answer:
    layers = len(costs.chain)
    devices = costs.level.count
    size = devices * (layers + 1) ** 2
    if size > _LARGEST:
        raise UsageError(
            f"{layers} layers on {devices} devices need a table of {size:.2g} numbers; valid: at "
            f"most {_LARGEST:.0e}, as Chain.coarse() makes"
        )
    flush = Flush.of(costs, num_microbatches, hidden=hidden, straight=straight)
    tried = list(_by_largest_block(costs, straight))
    first = min(tried, key=flush.cost_s)
    if method == "largest-block":
        return first, flush.cost_s(first), np.nan, len(tried)
    search = Search(flush, tolerance, first)
    bound_s = search.run()
    return search.best, search.cost_s, bound_s, search.evaluations


def _by_largest_block(costs: StageCosts, straight: bool) -> Iterator[list[Stage]]:
    """The least largest block for each number of devices, also replicated; any two stages."""
    devices = costs.level.count
    layers = len(costs.chain)
    free = replace(costs.costing, gradient_passes=1e-300, combine="max")
    for alone in {straight, True}:
        program = Program(costs=replace(costs, costing=free), starts=np.array([0]), straight=alone)
        for units in range(1, devices + 1):
            if np.isfinite(program.solved[0][0, units, -1]):
                stages = program.stages(0, units, layers)
                yield stages
                if not straight:
                    times = devices // units
                    yield [stage._replace(replicas=stage.replicas * times) for stage in stages]
    for units in range(1, min(2, devices) if straight else devices):
        other = 1 if straight else devices - units
        yield from ([Stage(0, k, units), Stage(k, layers, other)] for k in range(1, layers))


# ---------------------------------------------------------------- other links, side by side


@checked
def sensitivity(plan: Plan, *, bandwidth: Sequence[Positive] = (0.5, 1.0, 2.0)) -> pd.DataFrame:
    """What a plan costs where links are so many times as fast, beside the best plan there.

    Returns:
        One row a factor: the best plan's name, its cost, the kept plan's cost and its regret (how
        much more it costs, as a share).

    Raises:
        UsageError: the plan stands on two levels.
    """
    import pandas as pd

    one_level(plan.cluster, "sensitivity")
    rows = []
    for factor in bandwidth:
        links = plan.cluster.scaled(factor)
        best = stages(
            plan.chain,
            links,
            objective=plan.objective,
            costing=plan.costing,
            num_microbatches=plan.num_microbatches,
        )
        kept = plan.priced(cluster=links)
        rows.append((factor, best.name, best.cost_s, kept.cost_s, kept.cost_s / best.cost_s - 1))
    names = ["bandwidth", "best", "best_s", "kept_s", "regret_fraction"]
    return pd.DataFrame(rows, columns=names)


@checked
def compare(
    chains: Mapping[str, Chain],
    clusters: Sequence[Cluster],
    *,
    costings: Sequence[CostingName] = ("ring",),
) -> pd.DataFrame:
    """The best plan of each chain on each flat cluster, beside data parallelism there.

    Returns:
        One row for each chain, cluster and costing: the plan's name and seconds a minibatch, the
        same of data parallelism and of perfect speed-up (compute divided by devices), and for
        plan and data parallelism the bytes sent for a minibatch and those the fullest device holds.

    Raises:
        UsageError: a cluster has two levels.
    """
    import pandas as pd

    rows = []
    for name, chain in chains.items():
        for cluster, costing in product(clusters, costings):
            whole = price(chain, cluster, (cluster.num_devices,), costing=costing)
            best = stages(chain, cluster, costing=costing)
            rows.append(
                {
                    "network": name,
                    "devices": cluster.num_devices,
                    "bandwidth_gb_per_s": cluster.levels[0].bandwidth_bytes_per_s / 1e9,
                    "costing": costing,
                    "plan": best.name,
                    "cost_s": best.cost_s,
                    "data_parallel_s": whole.cost_s,
                    "perfect_s": chain.time_s / cluster.num_devices,
                    "speedup": whole.cost_s / best.cost_s,
                    "bytes_saved_fraction": 1 - best.sent_bytes / max(whole.sent_bytes, 1.0),
                    "fullest_bytes": max(best.memory_bytes),
                    "data_parallel_bytes": whole.memory_bytes[0],
                }
            )
    return pd.DataFrame(rows)
