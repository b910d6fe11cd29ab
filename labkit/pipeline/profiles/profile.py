"""What each stage's forward and backward pass costs at each clock: seconds and joules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt, MinLen

from labkit.errors import BadValue, UsageError
from labkit.kit import tables
from labkit.kit.describe import NonNegative, Positive, Whole, checked, description
from labkit.pipeline.profiles.checks import COLUMNS, NUMBERS, kept_rows, validated
from labkit.pipeline.scheduling.schedule import (
    BACKWARD,
    INPUT,
    KINDS,
    WEIGHT,
    Kind,
    Schedule,
    check_columns,
)

if TYPE_CHECKING:
    import pandas as pd

Dominance = Literal["net", "raw"]
Inner = Annotated[float, Gt(0), Lt(1)]
"""A share that leaves something on both sides."""
KindNumber = Annotated[int, Ge(0), Le(len(KINDS) - 1)]
"""An index into ``KINDS``."""


@description(eq=False, repr=False)
class EnergyProfile:
    """Time and energy of one GPU for each stage, kind of work and clock.

    Rows are sorted by stage, kind (forward first) and clock (highest first); every array has one
    entry a row.

    Attributes:
        stage, kind (index into ``KINDS``), clock_mhz, time_s, energy_j: the measurements.
        kept: rows a planner may choose; the others are dominated, see ``dominance``.
        blocking_power_w: what a GPU draws while it waits for another stage.
        dominance: which rows are dropped. ``"net"``: those for which another clock of the same
            work is no slower and costs no more energy *above waiting*, ``E - P_b t``: a GPU waits
            at ``P_b`` until the iteration ends, so exactly these rows can never help, and a bound
            over the others holds for every clock. ``"raw"``: those dominated in (time, energy),
            as Perseus does; it also drops clocks below the energy valley, which pay while a GPU
            would wait anyway.
        assumptions: what was not measured but assumed, a plain sentence each.
    """

    blocking_power_w: NonNegative
    stage: np.ndarray
    kind: np.ndarray
    clock_mhz: np.ndarray
    time_s: np.ndarray
    energy_j: np.ndarray
    kept: np.ndarray
    dominance: Dominance = "net"
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not np.size(self.kept) or np.ndim(self.kept) != 1:
            raise BadValue(
                "EnergyProfile.kept must have rows: make a profile with from_csv or from_frame"
            )
        shape = np.shape(self.stage)
        check_columns("EnergyProfile", shape, self, "stage", "kind", *NUMBERS, "kept")
        for name in NUMBERS:
            if not np.isfinite(getattr(self, name)).all():
                raise BadValue(f"EnergyProfile.{name} must hold finite numbers")

    @classmethod
    @checked
    def from_csv(cls, path: str | Path, *, blocking_power_w: NonNegative) -> EnergyProfile:
        """Read columns stage, instruction, frequency (MHz), time (s), energy (J of one GPU).

        Instructions are ``forward`` and ``backward``, or the backward pass's halves ``input`` and
        ``weight``. Lines that start with ``#`` hold no measurement.

        Args:
            path: the file.
            blocking_power_w: what a GPU draws while it waits for another stage.

        Raises:
            BadFile: the file is missing or not such a table; names the line and the column.
        """
        path = Path(path)
        table = tables.typed(path).dropna(how="all")
        return cls._checked(table, blocking_power_w, path)

    @classmethod
    @checked
    def from_frame(cls, table: pd.DataFrame, *, blocking_power_w: NonNegative) -> EnergyProfile:
        """Read a table with the CSV's columns, or those of :meth:`frame`, as :meth:`from_csv` reads
        a file.
        """
        names = {ours: theirs for theirs, ours in COLUMNS.items()}
        return cls._checked(table.rename(columns=names), blocking_power_w, None)

    @classmethod
    def _checked(cls, table: pd.DataFrame, power_w: float, path: Path | None) -> EnergyProfile:
        """Make a profile of a table that :func:`.checks.validated` finds right."""
        table = validated(table, path)
        columns = {name: table[name].to_numpy() for name in ("stage", "kind", *NUMBERS)}
        every = np.ones(len(table), dtype=bool)
        profile = cls(blocking_power_w=float(power_w), kept=every, **columns)  # type: ignore[arg-type]
        return profile._with_rows()

    @property
    def num_stages(self) -> int:
        """How many stages were measured."""
        return int(self.stage.max()) + 1

    @property
    def num_dropped(self) -> int:
        """How many rows are dominated."""
        return int((~self.kept).sum())

    @cached_property
    def net_energy_j(self) -> np.ndarray:
        """Energy of each row above what its GPU would draw if it waited instead."""
        return self.energy_j - self.blocking_power_w * self.time_s

    def works(self) -> list[tuple[int, int]]:
        """What was measured: pairs (index into ``KINDS``, stage), sorted."""
        return sorted(set(zip(self.kind.tolist(), self.stage.tolist(), strict=True)))

    @checked
    def rows(self, stage: Whole, kind: Kind, *, kept_only: bool = False) -> np.ndarray:
        """List the numbers of one stage's rows of a kind of work, highest clock first.

        Args:
            stage: the stage's number.
            kind: a name among ``KINDS``.
            kept_only: leave dominated rows out.
        """
        match = (self.stage == stage) & (self.kind == KINDS.index(kind))
        return np.flatnonzero(match & self.kept if kept_only else match)

    @checked
    def stage_table(self, stage: Whole) -> pd.DataFrame:
        """Table one microbatch on a stage, forward and backward, by clock, the highest first.

        Where only the halves of the backward pass were measured, it is their sum.

        Returns:
            Columns clock_mhz, time_s, energy_j and above_waiting_j (what a waiting GPU would not
            have drawn).

        Raises:
            UsageError: they were measured at no common clock.
        """
        import pandas as pd

        rows = self._whole_stage(stage)
        columns = {"time_s": self.time_s, "energy_j": self.energy_j}
        columns["above_waiting_j"] = self.net_energy_j
        table = pd.DataFrame({name: values[rows].sum(axis=0) for name, values in columns.items()})
        table.insert(0, "clock_mhz", self.clock_mhz[rows[0]])
        return table

    def _whole_stage(self, stage: int) -> np.ndarray:
        """Find the rows of a forward and a backward at their common clocks: (2 or 3, clocks)."""
        if stage >= self.num_stages:
            raise BadValue(f"no stage {stage}; there are stages 0 to {self.num_stages - 1}")
        halves = not len(self.rows(stage, "backward"))
        kinds: list[Kind] = ["forward", "input", "weight"] if halves else ["forward", "backward"]
        rows = self.rows_together([(stage, KINDS.index(kind)) for kind in kinds])
        if not rows.size:
            raise UsageError(f"stage {stage}: {', '.join(kinds)} have no clock in common")
        return rows

    @checked
    def rows_together(
        self, works: Annotated[Sequence[tuple[Whole, KindNumber]], MinLen(1)]
    ) -> np.ndarray:
        """Find the rows of works (stage, kind) at the clocks all have, the highest first: (work,
        clock).
        """
        parts = [self.rows(stage, KINDS[kind]) for stage, kind in works]
        common = list(set.intersection(*(set(self.clock_mhz[rows].tolist()) for rows in parts)))
        return np.array([rows[np.isin(self.clock_mhz[rows], common)] for rows in parts])

    @checked
    def valley_clock_mhz(self, stage: Whole) -> float:
        """The clock at which a stage takes the least energy."""
        table = self.stage_table(stage)
        return float(table["clock_mhz"].iloc[int(table["energy_j"].argmin())])

    @checked
    def restage(
        self, stages: Sequence[int], *, scale: Sequence[Positive] | None = None
    ) -> EnergyProfile:
        """Make a pipeline of other depth or balance of these measurements.

        Args:
            stages: for each new stage, the measured stage it copies.
            scale: for each new stage, how much work it does compared with the one it copies; time
                and energy both grow by that factor at every clock.

        Raises:
            UsageError: an unknown stage, or lengths that differ.
        """
        factors = [1.0] * len(stages) if scale is None else list(scale)
        if not stages or len(factors) != len(stages):
            raise UsageError(f"scale has {len(factors)} factors for {len(stages)} stages")
        if bad := [s for s in stages if not 0 <= s < self.num_stages]:
            raise UsageError(f"no stage {bad[0]}; there are stages 0 to {self.num_stages - 1}")
        rows = [np.flatnonzero(self.stage == old) for old in stages]
        count = [len(r) for r in rows]
        stage, factor = (np.repeat(x, count) for x in (np.arange(len(stages)), factors))
        return self._with_rows(row=np.concatenate(rows), stage=stage, factor=factor)

    @checked
    def scaled(self, *, factor: Positive) -> EnergyProfile:
        """Make the same pipeline with ``factor`` times the work on its last stage."""
        scale = [1.0] * (self.num_stages - 1)
        return self.restage(range(self.num_stages), scale=[*scale, factor])

    @checked
    def with_dominance(self, dominance: Dominance) -> EnergyProfile:
        """Keep the measurements and drop rows by the other rule."""
        energy = self.net_energy_j if dominance == "net" else self.energy_j
        kept = kept_rows(self.stage, self.kind, self.time_s, energy)
        return replace(self, kept=kept, dominance=dominance)

    def _with_rows(
        self,
        *assumed: str,
        row: np.ndarray | slice = slice(None),
        factor: np.ndarray | float = 1.0,
        **columns: np.ndarray,
    ) -> EnergyProfile:
        """Take some of these rows, time and energy scaled by ``factor``, and other columns.

        ``assumed`` says what was assumed to make it.
        """
        columns = {name: getattr(self, name)[row] for name in ("stage", "kind", *NUMBERS)} | columns
        columns |= {name: columns[name] * factor for name in ("time_s", "energy_j")}
        order = np.lexsort((-columns["clock_mhz"], columns["kind"], columns["stage"]))
        columns = {name: values[order] for name, values in columns.items()}
        assumptions = tuple(dict.fromkeys((*self.assumptions, *assumed)))
        every = np.ones(len(order), dtype=bool)
        profile = replace(self, kept=every, assumptions=assumptions, **columns)  # type: ignore[arg-type]
        return profile.with_dominance(self.dominance)

    def smoothed(self) -> EnergyProfile:
        """Take the noise of measuring out of times and energies; the clocks stay.

        For each stage and kind two least-squares fits of relative error are made, under no other
        assumption than a shape:

        - time falls with the clock, ever more slowly (decreasing and convex): true of work that
          takes a + b / f, and of a power cap, above which a higher clock changes nothing;
        - energy is a convex function of that time: each further second saves less than the one
          before, beyond the energy valley it costs ever more.

        Nothing is left to tune, and data of that shape are returned as they are. Neither a formula
        for power nor Perseus's exponential is imposed, since both miss the plateau of a capped GPU.

        Raises:
            UsageError: a fit is not positive, so wide is the scatter.
        """
        time = self.time_s.copy()
        energy = self.energy_j.copy()
        for kind, stage in self.works():
            rows = self.rows(stage, KINDS[kind])
            time[rows] = _convex_fit(-self.clock_mhz[rows], time[rows], rising=True)
            energy[rows] = _convex_fit(time[rows], energy[rows])
            if min(time[rows].min(), energy[rows].min()) <= 0:
                raise UsageError(
                    f"stage {stage} {KINDS[kind]}: measurements scatter too widely to be smoothed"
                )
        moved_time = np.abs(time / self.time_s - 1).max()
        moved_energy = np.abs(energy / self.energy_j - 1).max()
        return self._with_rows(
            f"times and energies are smoothed, changed by at most {moved_time:.2%} and "
            f"{moved_energy:.2%}",
            time_s=time,
            energy_j=energy,
        )

    @checked
    def split_backward(self, weight_fraction: Inner = 0.5) -> EnergyProfile:
        """Add input and weight halves, assumed to be a fixed share of the full backward.

        Full backward rows stay; halves that were measured stay as they are. ``weight_fraction`` is
        the weight half's share of both time and energy, at every clock.
        """
        measured = set(self.works())
        every = len(self.kept)
        row = [np.arange(every)]
        kind = [self.kind]
        factor = [np.ones(every)]
        for half, share in ((INPUT, 1 - weight_fraction), (WEIGHT, weight_fraction)):
            lacking = [s for s in range(self.num_stages) if (half, s) not in measured]
            rows = np.flatnonzero((self.kind == BACKWARD) & np.isin(self.stage, lacking))
            row.append(rows)
            kind.append(np.full(len(rows), half))
            factor.append(np.full(len(rows), share))
        source = np.concatenate(row)
        scale = np.concatenate(factor)
        if len(source) == every:
            return self
        return self._with_rows(
            f"the weight half takes {weight_fraction:g} of a full backward's time and energy at "
            "every clock, the input half the rest",
            row=source,
            kind=np.concatenate(kind),
            factor=scale,
        )

    def _with_whole_backward(self) -> EnergyProfile:
        """Add a full backward for each stage that has only its halves: their sum, at one clock."""
        measured = set(self.works())
        stages = [s for s in range(self.num_stages) if (BACKWARD, s) not in measured]
        _, first, second = np.concatenate([self._whole_stage(s) for s in stages], axis=1)
        both = {name: getattr(self, name) for name in ("time_s", "energy_j")}
        return self._with_rows(
            "a full backward takes the time and energy of its halves at one clock",
            row=np.append(np.arange(len(self.kept)), first),
            kind=np.append(self.kind, np.full(len(first), BACKWARD)),
            **{name: np.append(x, x[first] + x[second]) for name, x in both.items()},
        )

    def _cut(self, devices: list[int]) -> EnergyProfile:
        """Cut the stages into chunks that lie on these devices; each device's work is shared."""
        counts = np.bincount(devices, minlength=self.num_stages)
        cut = self.restage(devices, scale=(1 / counts[devices]).tolist())
        held = sorted(set(counts.tolist()))
        assumed = (
            f"a device's work is shared equally by its {' or '.join(map(str, held))} chunks: each "
            "takes that part of the measured stage's time and energy at every clock"
        )
        return replace(cut, assumptions=(*cut.assumptions, assumed))

    @checked
    def for_schedule(self, schedule: Schedule, weight_fraction: Inner = 0.5) -> EnergyProfile:
        """Derive whatever ``schedule`` runs from what was measured.

        Stages are cut where each device holds several, the backward pass is split or joined where
        the schedule runs what was not measured; ``assumptions`` says what was assumed. A profile
        that already fits is returned as it is.

        Args:
            schedule: what is to run.
            weight_fraction: share of a backward pass that its weight half takes.

        Raises:
            UsageError: the schedule has another depth, or a stage is spread over devices.
        """
        profile = self
        if schedule.num_stages != self.num_stages:
            profile = self._cut(self._devices(schedule))
        lacks = schedule.works - set(profile.works())
        if any(kind in (INPUT, WEIGHT) for kind, _ in lacks):
            profile = profile.split_backward(weight_fraction)
        if any(kind == BACKWARD for kind, _ in lacks):
            profile = profile._with_whole_backward()
        return profile

    def _devices(self, schedule: Schedule) -> list[int]:
        """Find the one device that holds each stage of a schedule of chunks."""
        if schedule.num_devices != self.num_stages:
            raise UsageError(
                f"the schedule runs {schedule.num_stages} stages on {schedule.num_devices} "
                f"devices, the profile measured {self.num_stages}; EnergyProfile.restage makes a "
                "profile of another depth"
            )
        pairs = np.unique(np.stack([schedule.stage, schedule.device]), axis=1)
        if pairs.shape[1] != schedule.num_stages:
            twice = int(pairs[0, np.flatnonzero(np.diff(pairs[0]) == 0)[0]])
            raise UsageError(
                f"stage {twice} lies on several devices; a profile can be cut into chunks only "
                "where each stage lies on one"
            )
        return [int(device) for device in pairs[1]]

    def __repr__(self) -> str:
        clocks = np.unique(self.clock_mhz)
        return (
            f"EnergyProfile({self.num_stages} stages; {len(self.kept)} measurements, "
            f"{self.num_dropped} dominated; {clocks[0]:g} to {clocks[-1]:g} MHz; "
            f"{self.blocking_power_w:g} W while waiting)"
        )

    def frame(self) -> pd.DataFrame:
        """Table the measurements, one row each: stage, kind, clock_mhz, time_s, energy_j, kept."""
        import pandas as pd

        columns = {name: getattr(self, name) for name in ("stage", "kind", *NUMBERS, "kept")}
        return pd.DataFrame(columns | {"kind": np.array(KINDS)[self.kind]})


def _convex_fit(x: np.ndarray, y: np.ndarray, *, rising: bool = False) -> np.ndarray:
    """Fit the convex function of ``x`` nearest to ``y`` in relative least squares, at ``x``.

    A convex function through sorted points is a constant, a slope, and a hinge at each inner point
    with a weight >= 0; ``rising`` keeps the slope >= 0 as well.
    """
    from scipy.optimize import nnls

    knots = np.unique(x)
    if len(knots) == 1:
        weight = 1 / y**2
        return np.full(len(y), (weight * y).sum() / weight.sum())
    scaled = (x - knots[0]) / np.ptp(knots)
    knots = (knots - knots[0]) / np.ptp(knots)
    columns = [np.ones(len(x)), -np.ones(len(x)), scaled]
    columns += [] if rising else [-scaled]
    columns += [np.maximum(scaled - knot, 0) for knot in knots[1:-1]]
    matrix = np.stack(columns, axis=1)
    relative = matrix / y[:, None]
    solution, _ = nnls(relative, np.ones(len(y)), maxiter=100 * matrix.shape[1])
    return matrix @ solution
