"""What each stage's forward and backward pass costs at each clock: seconds and joules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from labkit.errors import BadFile, BadValue, UsageError
from labkit.kit.describe import NonNegative, Positive, Whole, checked, description
from labkit.pipeline.profiles.checks import COLUMNS, NUMBERS, kept_rows, validated
from labkit.pipeline.profiles.variants import for_schedule, smoothed, split_backward
from labkit.pipeline.scheduling.schedule import KINDS, Kind, check_columns

if TYPE_CHECKING:
    import pandas as pd

Dominance = Literal["net", "raw"]


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
        check_columns("EnergyProfile", np.shape(self.kept), self, "stage", "kind", *NUMBERS, "kept")
        if not np.size(self.kept) or np.ndim(self.kept) != 1:
            raise BadValue("EnergyProfile needs rows: make one with from_csv or from_frame")

    @classmethod
    @checked
    def from_csv(cls, path: str | Path, *, blocking_power_w: NonNegative) -> EnergyProfile:
        """Read columns stage, instruction, frequency (MHz), time (s), energy (J of one GPU).

        Instructions are ``forward`` and ``backward``, or the backward pass's halves ``input`` and
        ``weight``. Lines that start with ``#`` may precede the header.

        Raises:
            BadFile: the file is missing or not such a table; names the line and the column.
        """
        import pandas as pd

        path = Path(path)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            preamble = next((i for i, line in enumerate(lines) if not line.startswith("#")), 0)
            table = pd.read_csv(path, skiprows=preamble, skip_blank_lines=False)
        except FileNotFoundError:
            raise BadFile(path, "the file is missing") from None
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
            raise BadFile(path, f"not a CSV table: {' '.join(str(error).split())}") from None
        table.index += preamble + 2  # each row's line in the file
        table = table.dropna(how="all")
        return cls._checked(table, blocking_power_w, path)

    @classmethod
    @checked
    def from_frame(cls, table: pd.DataFrame, *, blocking_power_w: NonNegative) -> EnergyProfile:
        """The same from a table with the CSV's columns, or those of :meth:`frame`."""
        names = {ours: theirs for theirs, ours in COLUMNS.items()}
        return cls._checked(table.rename(columns=names), blocking_power_w, None)

    @classmethod
    def _checked(cls, table: pd.DataFrame, power_w: float, path: Path | None) -> EnergyProfile:
        table = validated(table, path)
        columns = {name: table[name].to_numpy() for name in ("stage", "kind", *NUMBERS)}
        every = np.ones(len(table), dtype=bool)
        profile = cls(blocking_power_w=float(power_w), kept=every, **columns)  # type: ignore[arg-type]
        return profile._with_rows()

    @property
    def num_stages(self) -> int:
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

    def rows(self, stage: int, kind: Kind, *, kept_only: bool = False) -> np.ndarray:
        """Row numbers of one stage's kind of work, highest clock first."""
        match = (self.stage == stage) & (self.kind == KINDS.index(kind))
        return np.flatnonzero(match & self.kept if kept_only else match)

    @checked
    def stage_table(self, stage: Whole) -> pd.DataFrame:
        """One microbatch on a stage, forward and backward, by clock, the highest first.

        Where only the halves of the backward pass were measured, it is their sum.

        Returns:
            clock_mhz, time_s, energy_j, above_waiting_j (what a waiting GPU would not have drawn).

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
        """Rows of a forward and a backward pass at their common clocks: (2 or 3, clocks)."""
        if stage >= self.num_stages:
            raise BadValue(f"no stage {stage}; there are 0 to {self.num_stages - 1}")
        halves = not len(self.rows(stage, "backward"))
        kinds: list[Kind] = ["forward", "input", "weight"] if halves else ["forward", "backward"]
        rows = self.rows_together([(stage, KINDS.index(kind)) for kind in kinds])
        if not rows.size:
            raise UsageError(f"stage {stage}: {', '.join(kinds)} have no clock in common")
        return rows

    def rows_together(self, works: Sequence[tuple[int, int]]) -> np.ndarray:
        """Rows of works (stage, kind) at the clocks all have, the highest first: (work, clock)."""
        parts = [self.rows(stage, KINDS[kind]) for stage, kind in works]
        common = list(set.intersection(*(set(self.clock_mhz[rows].tolist()) for rows in parts)))
        return np.array([rows[np.isin(self.clock_mhz[rows], common)] for rows in parts])

    def valley_clock_mhz(self, stage: int) -> float:
        """The clock at which a stage takes the least energy."""
        table = self.stage_table(stage)
        return float(table["clock_mhz"].iloc[int(table["energy_j"].argmin())])

    @checked
    def restage(
        self, stages: Sequence[int], *, scale: Sequence[Positive] | None = None
    ) -> EnergyProfile:
        """A pipeline of other depth or balance made of these measurements.

        Args:
            stages: for each new stage, the measured stage it copies.
            scale: for each new stage, how much work it does compared with the one it copies;
                time and energy both grow by that factor at every clock.

        Raises:
            UsageError: an unknown stage, or lengths that differ.
        """
        factors = [1.0] * len(stages) if scale is None else list(scale)
        if not stages or len(factors) != len(stages):
            raise UsageError(f"{len(factors)} factors for {len(stages)} stages")
        if bad := [s for s in stages if not 0 <= s < self.num_stages]:
            raise UsageError(f"no stage {bad[0]}; there are 0 to {self.num_stages - 1}")
        rows = [np.flatnonzero(self.stage == old) for old in stages]
        count = [len(r) for r in rows]
        stage, factor = (np.repeat(x, count) for x in (np.arange(len(stages)), factors))
        return self._with_rows(row=np.concatenate(rows), stage=stage, factor=factor)

    @checked
    def scaled(self, *, factor: Positive) -> EnergyProfile:
        """The same pipeline with ``factor`` times the work on its last stage."""
        scale = [1.0] * (self.num_stages - 1)
        return self.restage(range(self.num_stages), scale=[*scale, factor])

    @checked
    def with_dominance(self, dominance: Dominance) -> EnergyProfile:
        """The same measurements under the other rule for which rows are dropped."""
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
        """Some of these rows, time and energy scaled by ``factor``, and other columns.

        ``assumed``: what was assumed to make it.
        """
        columns = {name: getattr(self, name)[row] for name in ("stage", "kind", *NUMBERS)} | columns
        columns |= {name: columns[name] * factor for name in ("time_s", "energy_j")}
        order = np.lexsort((-columns["clock_mhz"], columns["kind"], columns["stage"]))
        columns = {name: values[order] for name, values in columns.items()}
        assumptions = tuple(dict.fromkeys((*self.assumptions, *assumed)))
        every = np.ones(len(order), dtype=bool)
        profile = replace(self, kept=every, assumptions=assumptions, **columns)  # type: ignore[arg-type]
        return profile.with_dominance(self.dominance)

    # Profiles derived from this one: see ``variants``.
    smoothed = smoothed
    split_backward = split_backward
    for_schedule = for_schedule

    def __repr__(self) -> str:
        clocks = np.unique(self.clock_mhz)
        return (
            f"EnergyProfile({self.num_stages} stages; {len(self.kept)} measurements, "
            f"{self.num_dropped} dominated; {clocks[0]:g} to {clocks[-1]:g} MHz; "
            f"{self.blocking_power_w:g} W while waiting)"
        )

    def frame(self) -> pd.DataFrame:
        """One row per measurement: stage, kind, clock_mhz, time_s, energy_j, kept."""
        import pandas as pd

        columns = {name: getattr(self, name) for name in ("stage", "kind", *NUMBERS, "kept")}
        return pd.DataFrame(columns | {"kind": np.array(KINDS)[self.kind]})
