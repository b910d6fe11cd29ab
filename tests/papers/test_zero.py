"""ZeRO's largest models and printed tables, cell by cell."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest

from labkit import quantities
from labkit.memory import Parallel, Plan
from labkit.papers import zero

PAPER = Path(__file__).resolve().parents[2] / "data" / "papers" / "zero"
PAPER_GPU_BYTES = 32 * quantities.GB  # the paper's tables take a 32 GB V100 as 32 × 10⁹ bytes


def cells(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((PAPER / name).open(encoding="utf-8")))


@pytest.mark.parametrize(
    "cell",
    [cell for cell in cells("table2.csv") if cell["kind"] == "theory"],
    ids=lambda c: "-".join(c.values()),
)
def test_table_2_cell_is_its_printed_first_row_times_mp(cell: dict[str, str]) -> None:
    """The first row is the formula; the others multiply what was printed there."""
    tp = int(cell["tp"])
    stage = int(cell["zero"])
    printed = cell["printed"]
    one = {"B": quantities.BILLION, "T": quantities.TRILLION}[cell["unit"]]
    largest = zero.largest_model(Parallel(dp=64, tp=tp, zero=stage), PAPER_GPU_BYTES)
    first = next(c for c in cells("table2.csv") if c["tp"] == "1" and c["zero"] == cell["zero"])
    multiple = Fraction(first["printed"]) * quantities.BILLION * tp / one
    assert quantities.cut(multiple, printed) in {"exact", "rounded"}
    assert float(printed) * one == pytest.approx(largest, rel=0.025)
    if tp == 1:
        assert quantities.cut(Fraction(largest, one), printed) in {"exact", "rounded"}


def test_the_tables_as_frames_agree_with_their_cells() -> None:
    table1 = zero.printed_states(PAPER / "table1.csv")
    assert len(table1) == 54
    assert (table1["cut"] != "differs").all()
    cell = table1.set_index(["model", "dp", "zero"]).loc[(128 * 10**9, 1024, 1)]
    assert (cell["printed_gb"], cell["ours_gb"], cell["cut"]) == ("513", 513.5, "truncated")
    table2 = zero.printed_largest(PAPER / "table2.csv", dp=64, capacity_bytes=PAPER_GPU_BYTES)
    assert (table2.query("kind == 'theory'")["cut"] != "differs").all()
    ran = table2.query("kind == 'measured'")
    assert (ran["printed_billion"] < ran["ours"]).all()
    grid = zero.printed_grid(ran, "tp", "gpus")
    assert (len(grid), next(iter(grid))) == (ran["tp"].nunique(), "Baseline DP")
    assert all(grid["Baseline DP"].str.contains("B (", regex=False))


def test_the_largest_model_fits_and_one_more_parameter_does_not() -> None:
    parallel = Parallel(dp=64, tp=2, zero=2)
    largest = zero.largest_model(parallel, PAPER_GPU_BYTES)
    for more, fits in ((0, True), (1, False)):
        plan = Plan(model=largest + more, parallel=parallel)
        assert (plan.states_bytes <= PAPER_GPU_BYTES) == fits


def test_stages_differ_in_nothing_but_their_stage() -> None:
    plans = list(zero.stages(10**9, dp=8).values())
    assert [plan.parallel for plan in plans] == [Parallel(dp=8, zero=stage) for stage in range(4)]
    assert {plan.model for plan in plans} == {10**9}
