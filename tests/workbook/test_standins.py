"""Without network, mirror or cache a notebook still runs, says so, and names the fits' errors."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.files import project_root
from labkit.workbook import notebooks
from labkit.workbook.review import claims, tally
from tests.smoke import execute

ROOT = project_root()
WITH_DATA = [
    key
    for key, path in notebooks.paths(ROOT).items()
    if notebooks.dataset_names(notebooks.read(path))
]
# Less of the same: nothing below depends on how much is simulated or trained.
SMALLER: dict[str, dict[str, Any]] = {
    "antman": {"until_s": 0.5},
    "gavel": {"seeds": 1, "round_s": 1440.0},
    "hare": {"seeds": 1},
    "hived": {"num_days": 2.0},
    "kungfu": {"num_seeds": 1},
    "largebatch": {"num_epochs": 4, "num_seeds": 2},
    "liquid": {"seeds": 1},
    "megatron": {"num_ranks": 2},
    "nexus": {"num_models": 24},
    "optimus": {"num_seeds": 1},
    "pipedream": {"seeds": 1},
    "pollux": {"round_s": 240.0},
    "reef": {"until_s": 1.0},
    "tiresias": {"seeds": 2},
    "zeus": {"num_seeds": 20},
}


@pytest.mark.slow
@pytest.mark.parametrize("key", WITH_DATA)
def test_claims_on_a_standin_name_the_error_of_its_fit(key: str) -> None:
    executed = execute(notebooks.path_of(ROOT, key), **SMALLER.get(key, {}))
    shown = " ".join(str(cell.get("outputs", "")) for cell in executed.cells).lower()
    assert "stand-in" in shown
    cells = list(enumerate(executed.cells))
    boxes = [n for n, cell in cells if "STAND-IN DATA" in str(cell.get("outputs"))]
    opens = [n for n, cell in cells if "paper.data(" in cell.source]
    assert boxes == opens, "the box stands where data are opened, once, whatever the cell ends in"
    on_data = {claim.id for claim in claims.load(ROOT, key) if claim.dataset}
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
