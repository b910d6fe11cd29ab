"""Stages on meshes: layers cut into stages, and devices into meshes that the stages stand on.

A stage of layers k to j - 1 takes ``seconds[m, k, j]`` for a microbatch on mesh m, and occupies the
devices of that mesh. The stages of a plan occupy all devices. An iteration of B microbatches takes

    cost = Σ over stages of seconds  +  (B - 1) · the slowest stage's seconds

and the s-th stage from the end has min(s, B) microbatches in flight, which must fit into memory:

    stage_bytes[m, k, j] + min(s, B) · microbatch_bytes[m, k, j] ≤ memory_bytes

If no stage may be slower than a given limit, the sum is least along a shortest path over (stages,
layers, devices), from the last stage to the first. The search splits intervals of that limit, the
one with the least bound first, as for pipelines that flush (:mod:`labkit.planner.latency`).

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
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, Positive, Whole, checked, description
from labkit.planner.latency import Flush, Search
from labkit.planner.throughput import Stage
from labkit.quantities import format_bytes, seconds

if TYPE_CHECKING:
    import pandas as pd

_MAX_PATHS = 2 * 10**7
"""The most sums that one step of the shortest path may compare, to keep within memory."""


@description(eq=False)
class StageTable:
    """Seconds and bytes of every stage on every mesh, for n layers and M meshes.

    Tables of stages are read as ``[m, k, j]``: on mesh m, layers k to j - 1; their shape is
    (M, n + 1, n + 1), and only k < j is read.

    Attributes:
        meshes: names of the meshes.
        devices: how many devices of each kind a mesh has; shape (M, kinds), or (M,) for one kind.
        seconds: of a stage for one microbatch, forward and backward; infinite where a stage
            cannot stand on a mesh.
        stage_bytes: on each device, however many microbatches are in flight; zeros by default.
        microbatch_bytes: on each device, for each microbatch in flight; zeros by default.

    Raises:
        BadValue: a shape does not fit, a number is NaN or negative, bytes are infinite, or a mesh
            has no device.
    """

    meshes: Annotated[tuple[str, ...], MinLen(1)]
    devices: np.ndarray
    seconds: np.ndarray
    stage_bytes: np.ndarray | None = None
    microbatch_bytes: np.ndarray | None = None

    def __post_init__(self) -> None:
        by_kind = np.asarray(self.devices)
        if by_kind.ndim not in (1, 2) or len(by_kind) != len(self.meshes):
            raise BadValue(
                f"planner.StageTable: devices must have a row for each of the {len(self.meshes)} "
                f"meshes, got the shape {by_kind.shape}"
            )
        whole = np.issubdtype(by_kind.dtype, np.integer) and (by_kind >= 0).all()
        if not whole or not by_kind.reshape(len(by_kind), -1).any(axis=1).all():
            raise BadValue(
                "planner.StageTable: devices must be whole numbers, and each mesh has some"
            )
        shape = np.shape(self.seconds)
        if len(shape) != 3 or shape[0] != len(by_kind) or shape[1] != shape[2] or shape[1] < 2:
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
                raise BadValue(
                    f"planner.StageTable: {name} must be finite; infinite seconds forbid a stage"
                )

    @property
    def num_layers(self) -> int:
        """Layers of the chain."""
        return int(np.shape(self.seconds)[1]) - 1

    @cached_property
    def devices_by_kind(self) -> np.ndarray:
        """``devices`` with an axis for kinds even where there is one; shape (M, kinds)."""
        return np.asarray(self.devices).reshape(len(self.meshes), -1)

    def _or_zeros(self, values: np.ndarray | None) -> np.ndarray:
        return np.zeros(np.shape(self.seconds)) if values is None else np.asarray(values, float)

    @cached_property
    def bytes_per_stage(self) -> np.ndarray:
        """``stage_bytes``, or zeros where it was left out."""
        return self._or_zeros(self.stage_bytes)

    @cached_property
    def bytes_per_microbatch(self) -> np.ndarray:
        """``microbatch_bytes``, or zeros where it was left out."""
        return self._or_zeros(self.microbatch_bytes)


def _needed_bytes(table: StageTable, in_flight: int) -> np.ndarray:
    """Bytes on each device of every stage, with so many microbatches in flight."""
    return table.bytes_per_stage + in_flight * table.bytes_per_microbatch


@njit(cache=True)
def _longer_s(
    least_s: np.ndarray, stage_s: np.ndarray, may_have: np.ndarray, further: np.ndarray
) -> np.ndarray:
    """The least sums with one more stage before the others.

    Args:
        least_s: of the other stages, as ``[first layer, devices]``.
        stage_s: of that stage, as ``[size of its mesh, first layer, end]``.
        may_have: whether the others may have such devices, as ``[size of its mesh, devices]``.
        further: how many places further on the devices are with the mesh's among them.
    """
    longer_s = np.full_like(least_s, np.inf)
    for size in range(stage_s.shape[0]):
        devices = np.flatnonzero(may_have[size])
        for first in range(stage_s.shape[1]):
            for end in range(first + 1, stage_s.shape[2]):
                step_s = stage_s[size, first, end]
                if step_s == np.inf:
                    continue
                for place in devices:
                    sum_s = step_s + least_s[end, place]
                    if sum_s < longer_s[first, place + further[size]]:
                        longer_s[first, place + further[size]] = sum_s
    return longer_s


@dataclass(frozen=True, kw_only=True)
class _Paths(Flush):
    """Shortest paths over stages, layers and devices, for the search in :mod:`.latency`.

    That search describes a stage by first layer, end and ``replicas``, which count from 1. Here
    ``replicas`` holds the number of the stage's mesh plus 1: the mesh is all that a stage chooses.

    Attributes:
        num_devices: of each kind; the stages of a plan occupy all of them.
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
        """The paths over the stages of a table."""
        boundaries = np.arange(table.num_layers + 1)
        has_layers = boundaries[:, None] < boundaries[None, :]
        stage_s = np.where(has_layers, np.asarray(table.seconds, dtype=float), np.inf)
        return cls(
            work_s=stage_s,
            block_s=stage_s,
            exchange_s=np.zeros_like(stage_s),  # the table's seconds hold all that is sent
            num_microbatches=num_microbatches,
            hidden=False,
            table=table,
            num_devices=num_devices,
            memory_bytes=memory_bytes,
        )

    def allowed_s(self, block_s: float, from_end: int) -> np.ndarray:
        """Seconds of every stage, infinite where it is too slow or does not fit into memory.

        Args:
            block_s: no stage may take longer.
            from_end: 1 for the last stage of the pipeline, 2 for the one before it, and so on.
        """
        allowed = np.where(self.block_s <= block_s, self.work_s, np.inf)
        if self.memory_bytes is not None:
            needed = _needed_bytes(self.table, min(from_end, self.num_microbatches))
            allowed = np.where(needed <= self.memory_bytes, allowed, np.inf)
        return allowed

    def shortest(
        self, block_s: float, ending_s: float, most_s: float = np.inf
    ) -> tuple[float, list[Stage]]:
        """The stages on all devices that take the least sum of seconds, and that sum.

        Infinite, without stages, where there is no such plan.

        1. ``least_s[s][k, d…]`` is the least sum of s stages that hold layers k to the last one, on
           d… devices of each kind. No stages hold no layers, on no devices.
        2. Put one more stage before them, on each mesh and from each layer on.
        3. Take the number of stages with the least sum (the fewest, where several have it), and
           read the stages off, from the first one on.

        Args:
            block_s: no stage may take longer.
            ending_s: has no effect, since nothing is exchanged after the last microbatch.
            most_s: plans whose sum is not below this are not looked for.
        """
        num_layers = self.table.num_layers
        by_devices = tuple(count + 1 for count in self.num_devices)
        no_stages = np.full((num_layers + 1, *by_devices), np.inf)
        no_stages[(num_layers, *(0 for _ in by_devices))] = 0.0
        least_s = [no_stages]  # 1
        allowed_s: list[np.ndarray] = []
        for from_end in range(1, min(num_layers, sum(self.num_devices)) + 1):
            allowed_s.append(self.allowed_s(block_s, from_end))
            least_s.append(self._one_stage_more(least_s[-1], allowed_s[-1]))  # 2
            if not np.isfinite(least_s[-1]).any():
                break
        total_s = np.array([sums[(0, *self.num_devices)] for sums in least_s])
        num_stages = int(total_s.argmin())  # 3
        if not np.isfinite(total_s[num_stages]) or total_s[num_stages] >= most_s:
            return np.inf, []
        return float(total_s[num_stages]), self._path(least_s, allowed_s, num_stages)

    def _one_stage_more(self, least_s: np.ndarray, allowed_s: np.ndarray) -> np.ndarray:
        """The least sums with one more stage before the others.

        Args:
            least_s: without that stage, as ``[first layer, devices of each kind…]``.
            allowed_s: of that stage, as ``[mesh, first layer, end]``.
        """
        flat_s = least_s.reshape(len(least_s), -1)
        soonest_s = np.array([allowed_s[alike].min(axis=0) for alike in self._sizes[0]])
        soonest_s = soonest_s.reshape(-1, *allowed_s.shape[1:])  # also where no mesh fits
        longer_s = _longer_s(flat_s, soonest_s, self._places, self._steps)
        return longer_s.reshape(least_s.shape)

    @cached_property
    def _sizes(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Meshes of the same devices, and those devices; without meshes that are too large."""
        fits = (self.table.devices_by_kind <= self.num_devices).all(axis=1)
        meshes = np.flatnonzero(fits)
        devices, number = np.unique(self.table.devices_by_kind[meshes], axis=0, return_inverse=True)
        number = number.reshape(-1)
        return [meshes[number == size] for size in range(len(devices))], devices

    @cached_property
    def _places(self) -> np.ndarray:
        """Whether the other stages may have so many devices of each kind beside a mesh.

        Shape (sizes of meshes, all numbers of devices in one row).
        """
        by_devices = tuple(count + 1 for count in self.num_devices)
        others = np.indices(by_devices).reshape(len(by_devices), -1)
        room = np.array(self.num_devices)[None, :, None] - self._sizes[1][:, :, None]
        return (others[None] <= room).all(axis=1)

    @cached_property
    def _steps(self) -> np.ndarray:
        """How many places further on the devices are with those of a mesh among them."""
        by_devices = tuple(count + 1 for count in self.num_devices)
        strides = np.array(
            [int(np.prod(by_devices[kind + 1 :])) for kind in range(len(by_devices))]
        )
        return self._sizes[1] @ strides

    def _path(
        self, least_s: list[np.ndarray], allowed_s: list[np.ndarray], num_stages: int
    ) -> list[Stage]:
        """The stages whose sum is the least one of so many stages."""
        stages: list[Stage] = []
        first = 0
        devices = np.array(self.num_devices)
        for from_end in range(num_stages, 0, -1):
            sum_s = least_s[from_end][(first, *devices)]
            stage_s = allowed_s[from_end - 1][:, first]
            mesh, end = self._step(least_s[from_end - 1], stage_s, devices, sum_s)
            stages.append(Stage(first, end, mesh + 1))
            devices = devices - self.table.devices_by_kind[mesh]
            first = end
        return stages

    def _step(
        self, after_s: np.ndarray, stage_s: np.ndarray, devices: np.ndarray, sum_s: float
    ) -> tuple[int, int]:
        """The mesh and the end of the stage that, with those after it, takes the sum.

        Args:
            after_s: least sums of the stages after it, as ``[first layer, devices…]``.
            stage_s: of the stage, as ``[mesh, end]``.
            devices: that the stage and those after it have.
        """
        for mesh, mesh_devices in enumerate(self.table.devices_by_kind):
            if (mesh_devices <= devices).all():
                sums_s = stage_s[mesh] + after_s[(slice(None), *(devices - mesh_devices))]
                ends = np.flatnonzero(sums_s == sum_s)  # the same addition as before: exact
                if ends.size:
                    return mesh, int(ends[0])
        raise AssertionError("a least sum comes from some stage")


@dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """The stages of a plan, their meshes, what an iteration takes, and a bound.

    Attributes:
        table: the seconds and bytes from which the plan was made.
        num_microbatches: of an iteration.
        ends: the first layer after each stage.
        meshes: the mesh of each stage, as a row of the table.
        cost_s: seconds of an iteration.
        bound_s: no plan on all devices takes less.
        num_candidates: pairs of a stage and a mesh for which the table has finite seconds.
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
        """The share of the cost that another plan could still save, at most."""
        return 1 - self.bound_s / self.cost_s if self.cost_s else 0.0

    @property
    def name(self) -> str:
        """How many layers each stage has, and on which mesh it stands.

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
        """One row a stage: layers, mesh, seconds of a microbatch, bytes on each device.

        ``in_flight`` counts microbatches at the time when the stage holds most of them.
        """
        import pandas as pd

        rows = []
        first = 0
        for number, (end, mesh) in enumerate(zip(self.ends, self.meshes, strict=True)):
            in_flight = min(len(self.ends) - number, self.num_microbatches)
            needed_bytes = _needed_bytes(self.table, in_flight)[mesh, first, end]
            rows.append(
                {
                    "stage": number,
                    "first": first,
                    "num_layers": end - first,
                    "mesh": self.table.meshes[mesh],
                    "devices": int(self.table.devices_by_kind[mesh].sum()),
                    "seconds": float(np.asarray(self.table.seconds)[mesh, first, end]),
                    "in_flight": in_flight,
                    "memory_bytes": float(needed_bytes),
                }
            )
            first = end
        return pd.DataFrame(rows)

    def why(self) -> str:
        """Say which stage limits the plan, what the others add, how much memory, and the bound."""
        stages = self.frame()
        slowest = stages.iloc[int(stages["seconds"].to_numpy().argmax())]
        others_s = stages["seconds"].sum() - slowest.seconds
        others_share = others_s / self.cost_s if self.cost_s else 0.0
        memory = format_bytes(stages["memory_bytes"].max())
        return (
            f"{self.name}: stage {slowest.stage} limits it, {seconds(slowest.seconds)} a "
            f"microbatch; the other stages add {others_share:.0%} of an iteration of "
            f"{self.num_microbatches} microbatches, {seconds(self.cost_s)}; at most {memory} on a "
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
    """Find the stages and meshes that occupy all devices and finish an iteration soonest.

    Args:
        table: seconds and bytes of every stage on every mesh.
        num_devices: of each kind, as the table's meshes count them.
        num_microbatches: of an iteration.
        memory_bytes: of a device; None for no limit.
        tolerance: the search ends when the bound is within this share of the cost.

    Raises:
        BadValue: there are other kinds of devices than in the table, or no device.
        UsageError: no stages occupy exactly these devices and fit into their memory, or the search
            itself would need too much memory.

    Source: Alpa §5.2.

    >>> seconds = np.full((2, 3, 3), np.inf)
    >>> seconds[0, 0, 1] = seconds[0, 1, 2] = 1.0  # a layer on one device
    >>> seconds[1, 0, 2] = 1.5  # both layers on a pair
    >>> table = StageTable(meshes=("one", "pair"), devices=np.array([1, 2]), seconds=seconds)
    >>> [place(table, 2, num_microbatches=count).name for count in (1, 8)]
    ['2 on pair', '1 on one, 1 on one']
    """
    counts = num_devices if isinstance(num_devices, tuple) else (num_devices,)
    if len(counts) != table.devices_by_kind.shape[1] or not sum(counts):
        raise BadValue(
            f"planner.place: num_devices names {len(counts)} kinds, the table's meshes use "
            f"{table.devices_by_kind.shape[1]}; of one kind at least one device"
        )
    num_paths = int(np.prod([count + 1.0 for count in counts])) * (table.num_layers + 1) ** 2
    if num_paths > _MAX_PATHS:
        raise UsageError(
            f"planner.place: {table.num_layers} layers on num_devices {sum(counts)} need a table "
            f"of {num_paths:.2g} sums; valid: at most {_MAX_PATHS:.0e}, so fewer devices or layers"
        )
    paths = _Paths.over(table, counts, num_microbatches, memory_bytes)
    least_s, stages = paths.shortest(np.inf, 0.0)
    if not np.isfinite(least_s):
        limit = "" if memory_bytes is None else f" within memory_bytes, {memory_bytes:.4g}"
        raise UsageError(
            f"planner.place: no stages of {table.num_layers} layers use exactly "
            f"{' + '.join(map(str, counts))} devices{limit}; valid: other meshes, or more memory"
        )
    search = Search(paths, tolerance, stages)
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
