"""Choosing a plan: the best stages for an objective, and a bound that no stages beat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from labkit.errors import BadValue, UsageError
from labkit.kit.describe import Count, Positive, checked
from labkit.kit.fabric import Fabric, Level
from labkit.planner.chain import Chain
from labkit.planner.costing import Cheapest, Costing, CostingName, StageCosts, as_costing
from labkit.planner.latency import Flush, Search
from labkit.planner.plans import Objective, Plan, microbatches, one_level
from labkit.planner.throughput import Program, Stage

_LARGEST = 4 * 10**7
"""Numbers in a table of stages that ``latency`` and ``flush`` hold in memory at most."""
_TIE = 1e-9
"""Costs this near to each other, as a share, count as equal."""


class _Answer(NamedTuple):
    """What a planner found."""

    stages: Sequence[Stage]
    cost_s: float
    bound_s: float
    evaluations: int


@checked
def plan(
    chain: Chain,
    fabric: Fabric,
    *,
    objective: Objective = "throughput",
    costing: Costing | CostingName = "ring",
    num_microbatches: Count | None = None,
    straight: bool = False,
    memory_bytes: Positive | None = None,
    tolerance: Positive = 1e-6,
) -> Plan:
    """The best stages of a chain on a fabric.

    All devices are used unless fewer are faster.

    Args:
        objective: ``throughput``: seconds a minibatch of an asynchronous pipeline (PipeDream);
            ``latency``: of an iteration of microbatches by DAPPLE's formula; ``flush``: of one in
            which nothing overlaps.
        costing: how compute and traffic add up; only its bytes count where microbatches flush.
        num_microbatches: of an iteration, for ``latency`` and ``flush``.
        straight: one device a stage.
        memory_bytes: of a device, with a version of weights and activations for each minibatch in
            flight; for ``throughput`` on one level.
        tolerance: how far, as a share, the cost of ``latency`` and ``flush`` may stay above the
            bound.

    Raises:
        UsageError: no plan fits, or the objective cannot take the fabric or the option.

    Source: PipeDream §3.1 (throughput), DAPPLE §IV (latency).

    >>> chain = Chain.even(4, forward_s=0.01, backward_s=0.02)
    >>> plan(chain, Fabric.flat(2, bandwidth_bytes_per_s=1e9)).cost_s
    0.06
    """
    flushes = microbatches(objective, num_microbatches)
    costs = StageCosts.of(chain, fabric.levels[0], as_costing(costing))
    if objective == "throughput":
        answer = _asynchronous(costs, fabric, straight, memory_bytes)
    else:
        one_level(fabric, f"objective {objective!r}")
        if memory_bytes is not None:
            raise BadValue("memory_bytes limits plans of objective 'throughput' alone")
        hidden = objective == "latency"
        flush = flush_costs(costs, flushes, hidden=hidden, straight=straight)
        answer = _flushing(costs, flush, straight, tolerance)
    return Plan(
        chain=chain,
        fabric=fabric,
        objective=objective,
        costing=costs.costing,
        stages=tuple(answer.stages),
        cost_s=float(answer.cost_s),
        bound_s=float(answer.bound_s),
        evaluations=answer.evaluations,
        num_microbatches=num_microbatches,
    )


# ---------------------------------------------------------------- throughput


def _asynchronous(
    costs: StageCosts, fabric: Fabric, straight: bool, memory_bytes: float | None
) -> _Answer:
    if len(fabric.levels) == 1:
        return _one_level(costs, memory_bytes, straight)
    if len(fabric.levels) > 2:
        raise UsageError(f"plan takes one or two levels of links; got {len(fabric.levels)}")
    if memory_bytes is not None or straight:
        raise UsageError("memory_bytes and straight take a flat fabric; got 2 levels")
    return _two_levels(costs, fabric.levels[1])


def _one_level(costs: StageCosts, memory_bytes: float | None, straight: bool) -> _Answer:
    first = np.array([0])
    program = Program(costs=costs, starts=first, memory_bytes=memory_bytes, straight=straight)
    best_s = program.solved[0][0, :, -1]  # by number of units
    units = _fewest(best_s)
    chosen = program.stages(0, units, len(costs.chain))
    return _Answer(chosen, best_s[units], best_s[units], program.evaluations)


def _fewest(best_s: np.ndarray) -> int:
    """All units, or the fewest of those numbers that are faster still."""
    least_s = best_s.min()
    if best_s[-1] <= least_s * (1 + _TIE):
        return len(best_s) - 1
    return int(np.flatnonzero(best_s <= least_s * (1 + _TIE))[0])


def _two_levels(costs: StageCosts, between: Level) -> _Answer:
    """The best stages of machines that run their layers in one of two ways on their own devices.

    1. The fastest stages inside, whatever the machines then exchange.
    2. One stage on all devices of a machine, which exchange least: w/r, added up over stages that
       share d devices, is at least W/d.

    No plan beats machines as fast as the first that exchange as little as the second: that is the
    bound. It is reached, too, where all devices of a machine count as replicas.
    """
    inner = Inside.of(costs)
    fastest = replace(costs, level=between, compute_s=inner.fastest_s, synced_bytes=inner.synced)
    alike = replace(costs, level=between, compute_s=inner.alike_s, synced_bytes=inner.least_synced)
    ideal = replace(fastest, synced_bytes=inner.least_synced)
    reached = costs.costing.machines_exchange == "devices"
    machines = Cheapest((ideal,) if reached else (fastest, alike))
    outer = Program(costs=machines, starts=np.array([0]))
    best_s = outer.solved[0][0, :, -1]
    units = _fewest(best_s)
    least_s = best_s
    if not reached:
        least_s = Program(costs=ideal, starts=np.array([0])).solved[0][0, :, -1]
    bound_s = min(least_s.min(), best_s[units])
    chosen = []
    for stage in outer.stages(0, units, len(costs.chain)):
        inside = inner.stages(stage, alike=machines.way_of(*stage[:3]) == 1)
        chosen.append(stage._replace(inside=inside))
    evaluations = inner.program.evaluations + outer.evaluations
    return _Answer(chosen, best_s[units], bound_s, evaluations)


@dataclass(frozen=True, kw_only=True)
class Inside:
    """How a machine runs every range of layers on its own devices, as ``[k, j]``.

    Attributes:
        fastest_s, synced: seconds of the fastest stages, and the weights that they exchange.
        alike_s, least_synced: the same of one stage on all devices.
        devices: how many the fastest stages stand on.
    """

    program: Program
    fastest_s: np.ndarray
    synced: np.ndarray
    alike_s: np.ndarray
    least_synced: np.ndarray
    devices: np.ndarray

    @classmethod
    def of(cls, costs: StageCosts) -> Inside:
        """All ranges of a chain on the devices of one machine."""
        layers = len(costs.chain)
        program = Program(costs=costs, starts=np.arange(layers), machines=True)
        times, weights = program.solved
        devices = times.argmin(1)
        fastest_s = np.full((layers + 1, layers + 1), np.inf)
        synced = np.zeros_like(fastest_s)
        fastest_s[:-1] = np.take_along_axis(times, devices[:, None], 1)[:, 0]
        synced[:-1] = np.take_along_axis(weights, devices[:, None], 1)[:, 0]
        alike_s = np.full_like(fastest_s, np.inf)
        for end in range(1, layers + 1):
            alike_s[:end, end] = costs.column(end)[-1]
        return cls(
            program=program,
            fastest_s=fastest_s,
            synced=synced,
            alike_s=alike_s,
            least_synced=costs.synced_bytes / costs.level.count,
            devices=devices,
        )

    def stages(self, stage: Stage, *, alike: bool) -> tuple[Stage, ...]:
        """The stages inside the machines of a stage."""
        if alike:
            return (Stage(stage.first, stage.end, self.program.costs.level.count),)
        devices = int(self.devices[stage.first, stage.end])
        return tuple(self.program.stages(stage.first, devices, stage.end))


# ---------------------------------------------------------------- flushed pipelines


def flush_costs(
    costs: StageCosts, num_microbatches: int, *, hidden: bool, straight: bool = False
) -> Flush:
    """The costs of every possible stage of a pipeline that flushes.

    Args:
        hidden: whether all-reduces run while earlier stages still work.
        straight: one device a stage.

    Raises:
        UsageError: the table would not fit into memory.
    """
    num_layers = len(costs.chain)
    devices = costs.level.count
    size = devices * (num_layers + 1) ** 2
    if size > _LARGEST:
        raise UsageError(
            f"{num_layers} layers on {devices} devices need a table of {size:.2g} numbers; valid: "
            f"at most {_LARGEST:.0e}, as Chain.coarse() makes"
        )
    return Flush.of(costs, num_microbatches, hidden=hidden, straight=straight)


def _flushing(costs: StageCosts, flush: Flush, straight: bool, tolerance: float) -> _Answer:
    """The exact search, from the best of the plans whose largest block is least."""
    start = min(by_largest_block(costs, straight=straight), key=flush.cost_s)
    search = Search(flush, tolerance, start)
    bound_s = search.run()
    return _Answer(search.best, search.cost_s, bound_s, search.evaluations)


def by_largest_block(costs: StageCosts, *, straight: bool = False) -> Iterator[list[Stage]]:
    """Plans whose largest block is least, the ones that DAPPLE's published planner tries.

    1. For each number of devices, the stages whose largest block is least, with and without
       replicas.
    2. Each of them also replicated as often as the devices allow.
    3. All plans of two stages.

    Args:
        straight: one device a stage.
    """
    devices = costs.level.count
    num_layers = len(costs.chain)
    free = replace(costs.costing, gradient_passes=1e-100, combine="max")
    for alone in {straight, True}:
        program = Program(costs=replace(costs, costing=free), starts=np.array([0]), straight=alone)
        for units in range(1, devices + 1):
            if np.isfinite(program.solved[0][0, units, -1]):
                stages = program.stages(0, units, num_layers)
                yield stages
                if not straight:
                    times = devices // units
                    yield [stage._replace(replicas=stage.replicas * times) for stage in stages]
    for units in range(1, min(2, devices) if straight else devices):
        other = 1 if straight else devices - units
        for cut in range(1, num_layers):
            yield [Stage(0, cut, units), Stage(cut, num_layers, other)]
