"""Without network, mirror or cache a notebook still runs, says so, and names the fits' errors."""

from __future__ import annotations

import pytest

from labkit.files import project_root
from labkit.workbook import notebooks
from labkit.workbook.review import claims, ranges, tally
from tests.smoke import execute, without_cells

ROOT = project_root()
WITH_DATA = [
    key
    for key, path in notebooks.paths(ROOT).items()
    if notebooks.dataset_names(without_cells(path))
]

# Parameters without whose defaults a notebook judges no claim, as it says; `make tried` moves them.
WHERE_CLAIMS_SPEAK = {"zeus": ("gpu", "eta_knob")}

# Notebooks whose data stand beside what the claims rest on; OptCNN's measured layers beside shapes.
BESIDE_THE_CLAIMS = {"optcnn"}


@pytest.mark.slow
@pytest.mark.parametrize("key", WITH_DATA)
def test_claims_on_a_standin_name_the_error_of_its_fit(key: str) -> None:
    """At other values of all parameters at once, since nothing below depends on them."""
    values = ranges.together(ranges.load(ROOT, key))
    for name in WHERE_CLAIMS_SPEAK.get(key, ()):
        del values[name]
    executed = execute(notebooks.path_of(ROOT, key), **values)
    shown = " ".join(str(cell.get("outputs", "")) for cell in executed.cells).lower()
    assert "stand-in" in shown
    cells = list(enumerate(executed.cells))
    boxes = [n for n, cell in cells if "STAND-IN DATA" in str(cell.get("outputs"))]
    opens = [n for n, cell in cells if "paper.data(" in cell.source]
    assert boxes == opens, "the box stands where data are opened, once, whatever the cell ends in"
    on_data = {claim.id for claim in claims.load(ROOT, key) if claim.dataset}
    if key in BESIDE_THE_CLAIMS:
        assert not on_data
        return
    assert on_data, "a notebook that declares a dataset judges some claim on it"
    records = {row["id"]: row for row in claims.from_notebook(executed)}
    judged = [records[name] for name in on_data if records[name]["verdict"] != "not attempted"]
    assert judged
    for record in judged:
        assert (record["fitted"] is None) == (record["verdict"] == "not judged"), record["id"]
        # A fraction; the largest are REEF's shortest kernels and a pair of Gavel's jobs that hardly
        # fits on one GPU: a model by size misses them by up to five times.
        assert 0 < (record["fitted"] or 1) < 6
    assert tally.standin_warning(records.values())
    counted = [row for row in judged if row["kind"] in ("headline", "mechanism")]
    assert tally.tally(counted).reproductions.keys() <= {"not judged"}, "counted apart"


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(notebooks.paths(ROOT).keys() - set(WITH_DATA)))
def test_a_notebook_without_data_runs_at_other_values_of_all_parameters(key: str) -> None:
    """`make tried` changes one at a time; notebooks with data are tried above."""
    values = ranges.together(ranges.load(ROOT, key))
    executed = execute(notebooks.path_of(ROOT, key), **values)
    [injected] = notebooks.tagged(executed, "injected-parameters")
    assert all(f"{name} = " in injected.source for name in values)
    assert claims.from_notebook(executed)
