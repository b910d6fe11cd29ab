"""What each stage's forward and backward pass costs at each clock: seconds and joules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from labkit.errors import BadFile, UsageError
from labkit.pipeline.schedule import BACKWARD, FORWARD, INPUT, KINDS, WEIGHT, Kind

if TYPE_CHECKING:
    import pandas as pd

Dominance = Literal["net", "raw"]
COLUMNS = {
    "stage": "stage",
    "instruction": "kind",
    "frequency": "clock_mhz",
    "time": "time_s",
    "energy": "energy_j",
}
PLAUSIBLE_POWER_W = (1.0, 3000.0)  # of one accelerator; anything else is a mistaken unit


@dataclass(frozen=True, eq=False, kw_only=True)
class EnergyProfile:
    """Time and energy of one GPU for each stage, kind of work and clock.

    Rows are sorted by stage, kind (forward first) and clock (highest first); every array has one
    entry a row.

    Attributes:
        stage, kind (index into ``KINDS``), clock_mhz, time_s, energy_j: the measurements.
        kept: rows a planner may choose; the others are dominated, see ``dominance``.
        blocking_power_w: what a GPU draws while it waits for another stage.
        dominance: which rows are dropped. ``"net"``: those for which another clock of the same
            work is no slower and costs no more energy *above waiting*, ``E - P_b t``. A GPU that
            is not computing waits at ``P_b`` until the iteration ends, so exactly these rows can
            never help, and a bound over the others holds for every clock. ``"raw"``: those
            dominated in (time, energy) before waiting is subtracted, as Perseus does; it also
            drops clocks below the energy valley, which pay while a GPU would wait anyway.
    """

    blocking_power_w: float
    stage: np.ndarray
    kind: np.ndarray
    clock_mhz: np.ndarray
    time_s: np.ndarray
    energy_j: np.ndarray
    kept: np.ndarray
    dominance: Dominance = "net"

    @classmethod
    def from_csv(
        cls, path: str | Path, *, blocking_power_w: float, dominance: Dominance = "net"
    ) -> EnergyProfile:
        """Read columns stage, instruction, frequency (MHz), time (s), energy (J of one GPU).

        Lines that start with ``#`` may precede the header.

        Raises:
            BadFile: the file is missing or not such a table; names the line and the column.
            UsageError: the blocking power is not a finite number >= 0.
        """
        import pandas as pd

        path = Path(path)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            preamble = next((i for i, one in enumerate(lines) if not one.startswith("#")), 0)
            table = pd.read_csv(path, skiprows=preamble, skip_blank_lines=False)
        except FileNotFoundError:
            raise BadFile(path, "the file is missing") from None
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
            raise BadFile(path, f"not a CSV table: {' '.join(str(error).split())}") from None
        table.index += preamble + 2  # each row's line in the file
        return cls._checked(table.dropna(how="all"), blocking_power_w, dominance, path)

    @classmethod
    def from_frame(
        cls, table: pd.DataFrame, *, blocking_power_w: float, dominance: Dominance = "net"
    ) -> EnergyProfile:
        """The same from a table with the CSV's columns, or those of :meth:`frame`."""
        names = {ours: theirs for theirs, ours in COLUMNS.items()}
        return cls._checked(table.rename(columns=names), blocking_power_w, dominance, None)

    @classmethod
    def _checked(
        cls, table: pd.DataFrame, power_w: float, dominance: Dominance, path: Path | None
    ) -> EnergyProfile:
        if not np.isfinite(power_w) or power_w < 0:
            raise UsageError(f"blocking_power_w must be finite and >= 0, found {power_w!r}")
        if dominance not in ("net", "raw"):
            raise UsageError(f"dominance must be 'net' or 'raw', found {dominance!r}")
        table = _validated(table, path)
        table = table.sort_values(
            ["stage", "kind", "clock_mhz"], ascending=[True, True, False], kind="stable"
        )
        columns = {name: table[name].to_numpy() for name in ("stage", "kind", *_NUMBERS)}
        kept = _kept(columns, power_w if dominance == "net" else 0.0)
        return cls(blocking_power_w=float(power_w), kept=kept, dominance=dominance, **columns)

    @property
    def num_stages(self) -> int:
        return int(self.stage.max()) + 1

    @property
    def num_dropped(self) -> int:
        """How many rows are dominated, so that no planner needs to consider them."""
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

    def stage_table(self, stage: int) -> pd.DataFrame:
        """One microbatch on a stage, forward and backward, by clock, the highest first.

        Returns:
            clock_mhz, time_s, energy_j, above_waiting_j (what a waiting GPU would not have drawn).

        Raises:
            UsageError: the two were measured at no common clock.
        """
        import pandas as pd

        rows = [self.rows(stage, kind) for kind in ("forward", "backward")]
        common, *where = np.intersect1d(*(self.clock_mhz[r] for r in rows), return_indices=True)
        if not len(common):
            raise UsageError(f"stage {stage}: forward and backward have no clock in common")
        forward, backward = (r[w][::-1] for r, w in zip(rows, where, strict=True))
        return pd.DataFrame(
            {
                "clock_mhz": common[::-1],
                "time_s": self.time_s[forward] + self.time_s[backward],
                "energy_j": self.energy_j[forward] + self.energy_j[backward],
                "above_waiting_j": self.net_energy_j[forward] + self.net_energy_j[backward],
            }
        )

    def valley_clock_mhz(self, stage: int, *, above_waiting: bool = False) -> float:
        """The clock at which a stage takes the least energy (or the least above waiting)."""
        table = self.stage_table(stage)
        spent = table["above_waiting_j" if above_waiting else "energy_j"]
        return float(table["clock_mhz"].iloc[int(spent.argmin())])

    def restage(
        self, stages: Sequence[int], *, scale: Sequence[float] | None = None
    ) -> EnergyProfile:
        """A pipeline of other depth or balance made of these measurements.

        Args:
            stages: for each new stage, the measured stage it copies.
            scale: for each new stage, how much work it does compared with the one it copies;
                time and energy both grow by that factor at every clock.

        Raises:
            UsageError: an unknown stage, a factor that is not > 0, or lengths that differ.
        """
        import pandas as pd

        factors = [1.0] * len(stages) if scale is None else list(scale)
        if not stages or len(factors) != len(stages):
            raise UsageError(f"{len(factors)} factors for {len(stages)} stages")
        if bad := [s for s in stages if not 0 <= s < self.num_stages]:
            raise UsageError(f"no stage {bad[0]}; there are 0 to {self.num_stages - 1}")
        if bad_factors := [f for f in factors if not (np.isfinite(f) and f > 0)]:
            raise UsageError(f"a factor must be finite and > 0, found {bad_factors[0]!r}")
        table = self.frame().drop(columns="kept")
        parts = []
        for new, (old, factor) in enumerate(zip(stages, factors, strict=True)):
            part = table[table["stage"] == old]
            part = part.assign(stage=new, time_s=part["time_s"] * factor)
            parts.append(part.assign(energy_j=part["energy_j"] * factor))
        return EnergyProfile.from_frame(
            pd.concat(parts), blocking_power_w=self.blocking_power_w, dominance=self.dominance
        )

    def with_dominance(self, dominance: Dominance) -> EnergyProfile:
        """The same measurements under the other rule for which rows are dropped."""
        kept = _kept(
            {"stage": self.stage, "kind": self.kind, "time_s": self.time_s}
            | {"energy_j": self.energy_j},
            self.blocking_power_w if dominance == "net" else 0.0,
        )
        return replace(self, kept=kept, dominance=dominance)

    def frame(self) -> pd.DataFrame:
        """One row per measurement: stage, kind, clock_mhz, time_s, energy_j, kept."""
        import pandas as pd

        return pd.DataFrame(
            {
                "stage": self.stage,
                "kind": np.array(KINDS)[self.kind],
                "clock_mhz": self.clock_mhz,
                "time_s": self.time_s,
                "energy_j": self.energy_j,
                "kept": self.kept,
            }
        )


_NUMBERS = ("clock_mhz", "time_s", "energy_j")


def _fail(path: Path | None, problem: str, **where: object) -> Exception:
    if path is not None:
        return BadFile(path, problem, **where)  # type: ignore[arg-type]
    details = [f"{key} {value!r}" for key, value in where.items() if value not in (None, "")]
    return UsageError("; ".join([f"energy profile: {problem}", *details]))


def _validated(table: pd.DataFrame, path: Path | None) -> pd.DataFrame:
    """The table under our column names, numbers checked, kinds as numbers."""
    import pandas as pd

    for column in COLUMNS:
        if column not in table.columns:
            raise _fail(path, f"no column {column!r}", valid=", ".join(COLUMNS))
    if table.empty:
        raise _fail(path, "no measurements")

    def require(good: np.ndarray, column: str, problem: str, right: str) -> None:
        if not good.all():
            bad = int(np.argmin(good))
            line = None if path is None else int(table.index[bad])
            value = table[column].tolist()[bad]
            raise _fail(path, problem, line=line, field=column, value=value, valid=right)

    kinds = table["instruction"].astype(str).str.strip()
    require(kinds.isin(KINDS).to_numpy(), "instruction", "unknown instruction", " or ".join(KINDS))
    numbers = {}
    for column in ("stage", "frequency", "time", "energy"):
        values = pd.to_numeric(table[column], errors="coerce").to_numpy(float)
        numbers[column] = values
        if column == "stage":
            good, right = np.isfinite(values) & (values >= 0) & (values % 1 == 0), "an integer >= 0"
        else:
            good, right = np.isfinite(values) & (values > 0), "a finite number > 0"
        require(good, column, f"{column} out of range", right)
    power_w = numbers["energy"] / numbers["time"]
    low, high = PLAUSIBLE_POWER_W
    require(
        (low <= power_w) & (power_w <= high),
        "energy",
        "implausible power: is time in seconds and energy in joules?",
        f"energy / time between {low:g} and {high:g} W",
    )
    checked = pd.DataFrame(numbers).assign(instruction=kinds.map(KINDS.index).to_numpy())
    checked["stage"] = checked["stage"].astype(int)
    repeated = checked.duplicated(["stage", "instruction", "frequency"]).to_numpy()
    require(~repeated, "frequency", "a clock is measured twice", "one row per clock")
    _check_stages(checked, path)
    return checked.rename(columns=COLUMNS)


def _check_stages(table: pd.DataFrame, path: Path | None) -> None:
    have = set(zip(table["stage"], table["instruction"], strict=True))
    for stage in range(int(table["stage"].max()) + 1):
        halves = (stage, INPUT) in have and (stage, WEIGHT) in have
        missing = [FORWARD] if (stage, FORWARD) not in have else []
        if not halves and (stage, BACKWARD) not in have:
            missing.append(BACKWARD)
        if missing:
            raise _fail(
                path,
                f"stage {stage} has no {KINDS[missing[0]]} measurement",
                valid="every stage from 0 on, forward and backward (or input and weight)",
            )


def _kept(columns: dict[str, np.ndarray], power_w: float) -> np.ndarray:
    """Rows not dominated in (time, energy - power x time) by another of the same work."""
    net = columns["energy_j"] - power_w * columns["time_s"]
    group = columns["stage"] * len(KINDS) + columns["kind"]
    kept = np.zeros(len(net), dtype=bool)
    best, current = np.inf, -1
    for row in np.lexsort((net, columns["time_s"], group)):
        if group[row] != current:
            best, current = np.inf, group[row]
        if net[row] < best:
            kept[row], best = True, net[row]
    return kept
