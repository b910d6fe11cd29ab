"""Stages on meshes: layers cut into stages, and devices into meshes that the stages stand on.

A stage of layers k to j - 1 takes ``seconds[m, k, j]`` a microbatch on mesh m, which uses so many
devices of each kind. All devices are used. An iteration of B microbatches takes

    cost = Σ over stages of seconds  +  (B - 1) · the slowest stage's seconds

and where a limit of memory is given, the s-th stage from the end keeps min(s, B) microbatches:

    stage_bytes[m, k, j] + min(s, B) · microbatch_bytes[m, k, j] ≤ limit

With the slowest stage at most some value, the rest is a shortest path over (stages, layers,
devices), from the last stage to the first. Intervals of that value are split, best bound first, as
for pipelines that flush (:mod:`labkit.planner.latency`).

Source: Zheng et al. 2022 (Alpa), §5.2, Eqs. 2 to 4; meshes of several kinds of devices: Jia et al.
2022 (Whale).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import MinLen

from labkit.errors import BadValue, UsageError
from labkit.kit.describe import Count, Positive, Whole, checked, description
from labkit.planner.latency import Flush, Search
from labkit.planner.throughput import Stage
from labkit.quantities import format_bytes, seconds

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = 2 * 10**7
"""Numbers in a table of shortest paths at most."""


@description(eq=False)
class StageTable:
    """What every stage takes on every mesh; n layers, M meshes.

    Attributes:
        meshes: names of the meshes.
        devices: that a mesh uses, of each kind; shape (M, kinds), or (M,) where there is one kind.
        seconds: of a microbatch, forward and backward, of layers k to j - 1, as ``[m, k, j]``;
            shape (M, n + 1, n + 1); infinite where a stage cannot stand on a mesh.
        stage_bytes: on a device of the mesh, whatever is in flight; zeros where left out.
        microbatch_bytes: on a device of the mesh, for each microbatch in flight; zeros where left
            out.

    Raises:
        BadValue: a shape does not fit, a number is NaN or negative, bytes are infinite, or a mesh
            uses no device.
    """

    meshes: Annotated[tuple[str, ...], MinLen(1)]
    devices: np.ndarray
    seconds: np.ndarray
    stage_bytes: np.ndarray | None = None
    microbatch_bytes: np.ndarray | None = None

    def __post_init__(self) -> None:
        uses = np.asarray(self.devices)
        if uses.ndim not in (1, 2) or len(uses) != len(self.meshes):
            raise BadValue(
                f"planner.StageTable: devices must have a row for each of the {len(self.meshes)} "
                f"meshes, got the shape {uses.shape}"
            )
        whole = np.issubdtype(uses.dtype, np.integer) and (uses >= 0).all()
        if not whole or not uses.reshape(len(uses), -1).any(axis=1).all():
            raise BadValue("planner.StageTable: devices must be whole, and each mesh uses some")
        shape = np.shape(self.seconds)
        if len(shape) != 3 or shape[0] != len(uses) or shape[1] != shape[2] or shape[1] < 2:
            raise BadValue(
                "planner.StageTable: seconds must have the shape (meshes, layers + 1, layers + 1), "
                f"got {shape}"
            )
        for name in ("seconds", "stage_bytes", "microbatch_bytes"):
            values = getattr(self, name)
            if values is None:
                continue
            numbers = np.asarray(values, dtype=float)
            if numbers.shape != shape:
                raise BadValue(
                    f"planner.StageTable: {name} must have the shape {shape}, got {numbers.shape}"
                )
            if np.isnan(numbers).any() or (numbers < 0).any():
                raise BadValue(f"planner.StageTable: {name} holds NaN or a negative number")
            if name != "seconds" and np.isinf(numbers).any():
                raise BadValue(f"planner.StageTable: {name} must be finite; seconds may forbid")

    @property
    def num_layers(self) -> int:
        """Layers of the chain."""
        return int(np.shape(self.seconds)[1]) - 1

    @cached_property
    def uses(self) -> np.ndarray:
        """Devices of each mesh by kind; shape (M, kinds)."""
        return np.asarray(self.devices).reshape(len(self.meshes), -1)

    def _bytes(self, values: np.ndarray | None) -> np.ndarray:
        return np.zeros(np.shape(self.seconds)) if values is None else np.asarray(values, float)

    @cached_property
    def fixed_bytes(self) -> np.ndarray:
        """Bytes of a stage, whatever is in flight; ``[m, k, j]``."""
        return self._bytes(self.stage_bytes)

    @cached_property
    def flying_bytes(self) -> np.ndarray:
        """Bytes for each microbatch in flight; ``[m, k, j]``."""
        return self._bytes(self.microbatch_bytes)


@dataclass(frozen=True, kw_only=True)
class _Paths(Flush):
    """Shortest paths over stages, layers and devices; a stage's ``replicas`` is its mesh, from 1.

    Attributes:
        num_devices: of each kind; all are used.
        memory_bytes: of a device; None for no limit.
    """

    table: StageTable
    num_devices: tuple[int, ...]
    memory_bytes: float | None

    @classmethod
    def over(
        cls,
        table: StageTable,
        num_devices: tuple[int, ...],
        num_microbatches: int,
        memory_bytes: float | None,
    ) -> _Paths:
        """The paths of a table, whose stages exchange nothing at the end."""
        size = table.num_layers + 1
        possible = np.arange(size)[:, None] < np.arange(size)[None, :]
        work = np.where(possible, np.asarray(table.seconds, dtype=float), np.inf)
        return cls(
            work_s=work,
            block_s=work,
            exchange_s=np.zeros_like(work),
            num_microbatches=num_microbatches,
            hidden=False,
            table=table,
            num_devices=num_devices,
            memory_bytes=memory_bytes,
        )

    def allowed_s(self, block_s: float, from_end: int) -> np.ndarray:
        """Seconds of stages that are short enough, and fit into memory at their place."""
        allowed = np.where(self.block_s <= block_s, self.work_s, np.inf)
        if self.memory_bytes is not None:
            flying = min(from_end, self.num_microbatches)
            needed = self.table.fixed_bytes + flying * self.table.flying_bytes
            allowed = np.where(needed <= self.memory_bytes, allowed, np.inf)
        return allowed

    def shortest(
        self, block_s: float, ending_s: float, most_s: float = np.inf
    ) -> tuple[float, list[Stage]]:
        """The stages that take the least work on all devices, and that work.

        1. ``rest[s][k, d…]`` is the least work of layers k to the end in s stages on d… devices.
        2. One more stage goes before them: on each mesh, up to each layer.
        3. The stages are read off from the first on, with the most stages that reach the least.

        Args:
            block_s: no stage may take longer.
            ending_s: stages exchange nothing; any value will do.
            most_s: only less work is looked for.
        """
        size = self.work_s.shape[-1]
        grid = tuple(count + 1 for count in self.num_devices)
        nothing = np.full((size, *grid), np.inf)
        nothing[(size - 1, *(0 for _ in grid))] = 0.0
        rest = [nothing]  # 1
        allowed: list[np.ndarray] = []
        for from_end in range(1, min(size - 1, sum(self.num_devices)) + 1):
            allowed.append(self.allowed_s(block_s, from_end))
            rest.append(self._before(rest[-1], allowed[-1]))  # 2
            if not np.isfinite(rest[-1]).any():
                break
        ends = np.array([table[(0, *self.num_devices)] for table in rest])
        least = float(ends.min())
        if not np.isfinite(least) or least >= most_s:
            return np.inf, []
        return least, self._path(rest, allowed, int(ends.argmin()))  # 3

    def _before(self, rest: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """The least work with one more stage in front, by layers and devices."""
        more = np.full_like(rest, np.inf)
        for uses, step in zip(self.table.uses, allowed, strict=True):
            if (uses > self.num_devices).any() or not np.isfinite(step).any():
                continue
            left = tuple(
                slice(0, count + 1 - used)
                for count, used in zip(self.num_devices, uses, strict=True)
            )
            taken = tuple(slice(used, None) for used in uses)
            after = rest[(slice(None), *left)]
            flat = after.reshape(len(rest), -1)
            total = (step[:, :, None] + flat[None, :, :]).min(axis=1)
            place = more[(slice(None), *taken)]
            np.minimum(place, total.reshape(after.shape), out=place)
        return more

    def _path(self, rest: list[np.ndarray], allowed: list[np.ndarray], count: int) -> list[Stage]:
        """The stages behind the least work in so many of them."""
        stages: list[Stage] = []
        first = 0
        left = np.array(self.num_devices)
        for from_end in range(count, 0, -1):
            wanted = rest[from_end][(first, *left)]
            mesh, end = self._step(
                rest[from_end - 1], allowed[from_end - 1][:, first], left, wanted
            )
            stages.append(Stage(first, end, mesh + 1))
            left = left - self.table.uses[mesh]
            first = end
        return stages

    def _step(
        self, rest: np.ndarray, steps: np.ndarray, left: np.ndarray, wanted: float
    ) -> tuple[int, int]:
        """The mesh and the end of a first stage that leaves the least work."""
        for mesh, uses in enumerate(self.table.uses):
            if (uses <= left).all():
                totals = steps[mesh] + rest[(slice(None), *(left - uses))]
                ends = np.flatnonzero(totals == wanted)
                if ends.size:
                    return mesh, int(ends[0])
        raise AssertionError("the least work comes from some mesh")


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """Stages on meshes, what an iteration costs, and what none can beat.

    Attributes:
        ends: how many layers stand before the end of each stage.
        meshes: the mesh of each stage, by its place in the table.
        bound_s: no stages on all devices take less.
        num_candidates: stages on meshes that the table prices.
        evaluations: shortest paths that were computed.
    """

    table: StageTable
    num_microbatches: int
    ends: tuple[int, ...]
    meshes: tuple[int, ...]
    cost_s: float
    bound_s: float
    num_candidates: int
    evaluations: int

    @property
    def gap(self) -> float:
        """By how much, as a share of the cost, other stages could be cheaper at most."""
        return 1 - self.bound_s / self.cost_s if self.cost_s else 0.0

    @property
    def name(self) -> str:
        """Layers of each stage and its mesh.

        >>> times = np.ones((1, 3, 3))
        >>> place(StageTable(meshes=("pair",), devices=np.array([2]), seconds=times), 2).name
        '2 on pair'
        """
        firsts = (0, *self.ends[:-1])
        return ", ".join(
            f"{end - first} on {self.table.meshes[mesh]}"
            for first, end, mesh in zip(firsts, self.ends, self.meshes, strict=True)
        )

    def frame(self) -> pd.DataFrame:
        """One row a stage: its layers, its mesh, seconds a microbatch, bytes of a device."""
        import pandas as pd

        rows = []
        first = 0
        for number, (end, mesh) in enumerate(zip(self.ends, self.meshes, strict=True)):
            place_ = (mesh, first, end)
            flying = min(len(self.ends) - number, self.num_microbatches)
            kept = self.table.fixed_bytes[place_] + flying * self.table.flying_bytes[place_]
            rows.append(
                {
                    "stage": number,
                    "first": first,
                    "num_layers": end - first,
                    "mesh": self.table.meshes[mesh],
                    "devices": int(self.table.uses[mesh].sum()),
                    "seconds": float(np.asarray(self.table.seconds)[place_]),
                    "in_flight": flying,
                    "memory_bytes": float(kept),
                }
            )
            first = end
        return pd.DataFrame(rows)

    def why(self) -> str:
        """Name the stage that limits the plan, what of the time is filling, and the memory."""
        stages = self.frame()
        slowest = stages.iloc[int(stages["seconds"].to_numpy().argmax())]
        filling = (stages["seconds"].sum() - slowest.seconds) / self.cost_s if self.cost_s else 0.0
        room = format_bytes(stages["memory_bytes"].max())
        return (
            f"{self.name}: stage {slowest.stage} limits it, {seconds(slowest.seconds)} a "
            f"microbatch; the other stages add {filling:.0%} of an iteration of "
            f"{self.num_microbatches} microbatches, {seconds(self.cost_s)}; at most {room} on a "
            f"device. {self.num_candidates:,} stages were priced, and no plan takes less than "
            f"{seconds(self.bound_s)}."
        )


@checked
def place(
    table: StageTable,
    num_devices: Count | tuple[Whole, ...],
    *,
    num_microbatches: Count = 1,
    memory_bytes: Positive | None = None,
    tolerance: Positive = 1e-9,
) -> Placement:
    """The stages and meshes on which an iteration takes least, all devices in use.

    Args:
        num_devices: of each kind.
        num_microbatches: of an iteration.
        memory_bytes: of a device; stages near the front keep more microbatches.
        tolerance: how far, as a share, the cost may stay above the bound.

    Raises:
        BadValue: the devices' kinds are not those of the table.
        UsageError: no stages use exactly these devices and fit, or the table would not fit into
            memory.

    Source: Alpa §5.2.

    >>> seconds = np.full((2, 3, 3), np.inf)
    >>> seconds[0, 0, 1] = seconds[0, 1, 2] = 1.0  # a layer on one device
    >>> seconds[1, 0, 2] = 1.5  # both layers on a pair
    >>> table = StageTable(meshes=("one", "pair"), devices=np.array([1, 2]), seconds=seconds)
    >>> [place(table, 2, num_microbatches=count).name for count in (1, 8)]
    ['2 on pair', '1 on one, 1 on one']
    """
    counts = num_devices if isinstance(num_devices, tuple) else (num_devices,)
    if len(counts) != table.uses.shape[1] or not sum(counts):
        raise BadValue(
            f"planner.place: num_devices names {len(counts)} kinds, the table's meshes use "
            f"{table.uses.shape[1]}; of one kind at least one device"
        )
    size = int(np.prod([count + 1.0 for count in counts])) * (table.num_layers + 1) ** 2
    if size > _LARGEST:
        raise UsageError(
            f"planner.place: {table.num_layers} layers on num_devices {sum(counts)} need a table "
            f"of {size:.2g} numbers; valid: at most {_LARGEST:.0e}, so fewer devices or layers"
        )
    paths = _Paths.over(table, counts, num_microbatches, memory_bytes)
    work, first = paths.shortest(np.inf, 0.0)
    if not np.isfinite(work):
        limit = "" if memory_bytes is None else f" within memory_bytes, {memory_bytes:.4g}"
        raise UsageError(
            f"planner.place: no stages of {table.num_layers} layers use exactly "
            f"{' + '.join(map(str, counts))} devices{limit}; valid: other meshes, or more memory"
        )
    search = Search(paths, tolerance, first)
    bound_s = search.run()
    return _placement(paths, search.best, search.cost_s, bound_s, search.evaluations + 1)


def _placement(
    paths: _Paths, stages: Sequence[Stage], cost_s: float, bound_s: float, evaluations: int
) -> Placement:
    """The result of a search."""
    return Placement(
        table=paths.table,
        num_microbatches=paths.num_microbatches,
        ends=tuple(stage.end for stage in stages),
        meshes=tuple(stage.replicas - 1 for stage in stages),
        cost_s=float(cost_s),
        bound_s=float(bound_s),
        num_candidates=int(np.isfinite(paths.work_s).sum()),
        evaluations=evaluations,
    )
