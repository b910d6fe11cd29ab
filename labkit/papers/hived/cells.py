"""Cells: GPUs by how near they are, reserved for tenants, and bound to hardware by buddies.

A hierarchy says how many GPUs a cell of each level holds. A tenant reserves cells, not a number of
GPUs, so what it may place is the same as on a private cluster of those cells, whatever others do.

Source: HiveD (OSDI'20) §3, buddy cell allocation; this is our own code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import pairwise
from operator import itemgetter
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from labkit.errors import BadValue, not_among
from labkit.kit.describe import Count, Whole, checked, description

Held = list[tuple[int, int]]
"""Cells: level and first GPU of each."""


@description
class Hierarchy:
    """Levels of cells, smallest first, and the GPUs of a cell of each.

    Attributes:
        sizes: GPUs by level. A cell divides into equal cells of the level below.
        node: the level that a job of more GPUs takes several cells of.

    Raises:
        BadValue: the smallest holds more than one GPU, a size does not divide the next, or there
            is no level ``node``.
    """

    sizes: Annotated[dict[str, Count], MinLen(1)] = field(
        default_factory=lambda: {"GPU": 1, "switch": 2, "socket": 4, "node": 8}
    )
    node: str = "node"

    def __post_init__(self) -> None:
        gpus = [1, *self.sizes.values()]
        pairs = list(pairwise(gpus))
        if gpus[1] != 1 or any(high % low or high == low for low, high in pairs[1:]):
            raise BadValue(
                f"Hierarchy.sizes must rise from 1, each dividing the next; got {self.sizes}"
            )
        if self.node not in self.sizes:
            raise not_among("level", self.node, self.sizes)

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(self.sizes.values())

    def level(self, name: str) -> int:
        """The place of a level, 0 for single GPUs."""
        if name not in self.sizes:
            raise not_among("level", name, self.sizes)
        return list(self.sizes).index(name)

    @checked
    def shape(self, num_gpus: Count) -> list[int]:
        """The levels of the cells that a job takes: the smallest that holds it, or whole nodes.

        >>> Hierarchy().shape(3), Hierarchy().shape(16)
        ([2], [3, 3])
        """
        top = self.level(self.node)
        if num_gpus > self.gpus[top]:
            return [top] * -(-num_gpus // self.gpus[top])
        return [next(k for k, size in enumerate(self.gpus) if size >= num_gpus)]


class Buddies:
    """Free cells by level, split when a smaller one is asked for and merged when all are back.

    ``allocate`` takes a free cell of the level; without one it divides the smallest larger free
    cell. So a cell is divided only while every cell below it is in use, which is why requests that
    stay within a reservation that fits are always met (HiveD's theorem).
    """

    @checked
    def __init__(
        self, hierarchy: Hierarchy, roots: Mapping[str, Whole], *, largest_first: bool = False
    ) -> None:
        self.gpus = hierarchy.gpus
        self.largest_first = largest_first
        self.free: list[set[int]] = [set() for _ in self.gpus]
        self.roots: dict[tuple[int, int], None] = {}
        start = 0
        for level in sorted(map(hierarchy.level, roots), reverse=True):  # larger first: aligned
            for _ in range(roots[list(hierarchy.sizes)[level]]):
                self.roots[level, start] = None
                self.free[level].add(start)
                start += self.gpus[level]
        self.num_gpus = start

    def allocate(self, level: int) -> int | None:
        """The first GPU of a cell of this level; None: there is none."""
        order = range(level, len(self.free))
        at = next((k for k in (order[::-1] if self.largest_first else order) if self.free[k]), None)
        if at is None:
            return None
        start = min(self.free[at])
        self.free[at].remove(start)
        for below in range(at - 1, level - 1, -1):
            step = self.gpus[below]
            self.free[below].update(range(start + step, start + self.gpus[below + 1], step))
        return start

    def release(self, level: int, start: int) -> None:
        """Give a cell back; as long as all its buddies are free they become one cell again."""
        while (level, start) not in self.roots:
            free = self.free[level]
            size = self.gpus[level + 1]
            parent = start - start % size
            buddies = {*range(parent, parent + size, self.gpus[level])} - {start}
            if not buddies <= free:
                break
            free -= buddies
            level = level + 1
            start = parent
        self.free[level].add(start)

    def allocate_all(self, levels: list[int]) -> Held | None:
        """A cell of each level, or None and nothing taken."""
        held: Held = []
        for level in levels:
            start = self.allocate(level)
            if start is None:
                for cell in held:
                    self.release(*cell)
                return None
            held.append((level, start))
        return held


class Reserved:
    """A tenant's cells: what it may place, and which hardware each reserved cell stands for now.

    A reserved cell is bound to a physical one when its first part is used, and let go with its
    last. Without ``physical`` it is a private cluster.

    Source: HiveD (OSDI'20), abstract and §3: the dynamic binding of cells.
    """

    @checked
    def __init__(
        self, hierarchy: Hierarchy, cells: Mapping[str, Whole], physical: Buddies | None
    ) -> None:
        self.virtual = Buddies(hierarchy, cells)
        self.physical = physical
        gpus = self.virtual.gpus
        self.root = [(k, at) for k, at in self.virtual.roots for _ in range(gpus[k])]  # by GPU
        self.bound: dict[tuple[int, int], int] = {}
        self.used: dict[tuple[int, int], int] = {}
        self.keeps_hardware = False

    def could_hold(self, levels: list[int]) -> bool:
        """Whether a private cluster of the tenant's cells would start such a job now."""
        cells = self.virtual.allocate_all(levels)
        for cell in cells or ():
            self.virtual.release(*cell)
        return cells is not None

    def allocate(self, levels: list[int]) -> Held | None:
        """Cells of the tenant's own for a job; None: it has none free, or no hardware is."""
        held = self.virtual.allocate_all(levels)
        for place, cell in enumerate(held or ()):
            root = self.root[cell[1]]
            if root not in self.bound and self.physical is not None:
                start = self.physical.allocate(root[0])
                if start is None:  # never, where the reservations fit
                    for later in held[place:]:  # type: ignore[index]
                        self.virtual.release(*later)
                    self.release(held[:place])  # type: ignore[index]
                    return None
                self.bound[root] = start
            self.used[root] = self.used.get(root, 0) + 1
        return held

    def release(self, held: Held) -> None:
        for cell in held:
            root = self.root[cell[1]]
            self.virtual.release(*cell)
            self.used[root] -= 1
            if not self.used[root] and root in self.bound and not self.keeps_hardware:
                self.physical.release(root[0], self.bound.pop(root))  # type: ignore[union-attr]

    def hardware(self, held: Held) -> Held:
        """The physical cells behind a job's own."""
        roots = [self.root[start] for _, start in held]
        at = zip(held, roots, strict=True)
        return [(level, self.bound[root] + start - root[1]) for (level, start), root in at]


def bind_for_good(tenants: Iterable[Reserved]) -> None:
    """Bind all cells of tenants to hardware, larger ones first, and never let go: a partition.

    Args:
        tenants: whose cells are all free, on one hardware that holds them.
    """
    roots = [(root, tenant) for tenant in tenants for root in tenant.virtual.roots]
    for root, tenant in sorted(roots, key=itemgetter(0), reverse=True):
        tenant.keeps_hardware = True
        start = tenant.physical.allocate(root[0])  # type: ignore[union-attr]
        if start is None:
            raise BadValue(f"bind_for_good: no free cell of level {root[0]}; valid: what fits")
        tenant.bound[root] = start


@checked
def refusals(
    hierarchy: Hierarchy,
    roots: dict[str, Count],
    tenants: Annotated[Mapping[str, dict[str, Whole]], MinLen(1)],
    *,
    requests: Count = 4000,
    largest_first: bool = False,
    rng: np.random.Generator | Whole = 0,
) -> int:
    """Random requests that private clusters would meet and the shared hardware does not.

    Each is for one cell of a level, by a tenant; between them, jobs leave.

    Args:
        hierarchy: levels of cells.
        roots: cells of the hardware, by level.
        tenants: cells that each has reserved, by level.
        requests: how many.
        largest_first: whether the largest free cell is cut, not the smallest that will do.
        rng: a generator or a seed.
    """
    hardware = Buddies(hierarchy, roots, largest_first=largest_first)
    mine = [Reserved(hierarchy, cells, hardware) for cells in tenants.values()]
    running: list[tuple[Reserved, Held]] = []
    refused = 0
    for who, size, leave in np.random.default_rng(rng).random((requests, 3)):
        owner = mine[int(who * len(mine))]
        level = [int(size * len(hierarchy.gpus))]
        if running and leave < 0.45:
            last, held = running.pop(int(leave * len(running)))
            last.release(held)
        elif owner.could_hold(level):
            cells = owner.allocate(level)
            refused += cells is None
            running += [(owner, cells)] if cells else []
    return refused
