"""Stages on meshes, found twice: by trying all, and by the loops of Alpa's Algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from labkit.planner.meshes import StageTable

Stages = list[tuple[int, int, int]]
"""Mesh, first layer and end of each stage."""


def all_stages(table: StageTable, left: tuple[int, ...], first: int = 0) -> Iterator[Stages]:
    """All stages of the layers from ``first`` on that use exactly the devices left."""
    if first == table.num_layers:
        if not any(left):
            yield []
        return
    for mesh, uses in enumerate(table.devices_by_kind.tolist()):
        rest = tuple(count - used for count, used in zip(left, uses, strict=True))
        if min(rest) < 0:
            continue
        for end in range(first + 1, table.num_layers + 1):
            for tail in all_stages(table, rest, end):
                yield [(mesh, first, end), *tail]


def cost_s(
    table: StageTable, stages: Stages, num_microbatches: int, memory_bytes: float | None = None
) -> float:
    """What an iteration takes; infinite where a stage does not fit."""
    times = [float(table.seconds[stage]) for stage in stages]
    if math.inf in times:
        return math.inf
    for number, stage in enumerate(stages):
        in_flight = min(len(stages) - number, num_microbatches)
        needed = table.bytes_per_stage[stage] + in_flight * table.bytes_per_microbatch[stage]
        if memory_bytes is not None and needed > memory_bytes:
            return math.inf
    return sum(times) + (num_microbatches - 1) * max(times)


def least_s(
    table: StageTable,
    num_devices: tuple[int, ...],
    num_microbatches: int,
    memory_bytes: float | None = None,
) -> float:
    """The least cost of all stages; infinite where there are none."""
    tried = all_stages(table, num_devices)
    costs = (cost_s(table, stages, num_microbatches, memory_bytes) for stages in tried)
    return min(costs, default=math.inf)


def by_published_loops(table: StageTable, num_devices: int, num_microbatches: int) -> float:
    """The least cost without a limit of memory, as Algorithm 1 goes about it.

    1. The slowest stage may take each of the table's values, in rising order.
    2. For so many stages, from each layer on, on so many devices: try each end and each mesh.
    3. Stop where the slowest stage alone takes longer than the best plan.

    Source: Alpa §5.2, Algorithm 1, restated.
    """
    layers = table.num_layers
    seconds = np.asarray(table.seconds).tolist()
    sizes = table.devices_by_kind[:, 0].tolist()
    ordered = sorted(
        {
            seconds[mesh][first][end]
            for mesh in range(len(sizes))
            for first in range(layers)
            for end in range(first + 1, layers + 1)
        }
    )
    best = math.inf
    for slowest in ordered:  # 1
        if math.isinf(slowest) or num_microbatches * slowest >= best:  # 3
            break
        after = {(layers, 0): 0.0}
        for _ in range(layers):  # 2
            before: dict[tuple[int, int], float] = {}
            for first in range(layers):
                for devices in range(1, num_devices + 1):
                    least = math.inf
                    for end in range(first + 1, layers + 1):
                        for mesh, size in enumerate(sizes):
                            step = seconds[mesh][first][end]
                            if step <= slowest:
                                rest = after.get((end, devices - size), math.inf)
                                least = min(least, step + rest)
                    if least < math.inf:
                        before[first, devices] = least
            after = before
            total = after.get((0, num_devices), math.inf) + (num_microbatches - 1) * slowest
            best = min(best, total)
    return best
