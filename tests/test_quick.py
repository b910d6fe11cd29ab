"""``make quick`` tells what changed, and which notebooks need not run."""

from __future__ import annotations

import pytest

from labkit.workbook import notebooks
from labkit.workbook.run import fingerprint
from tests import quick


def test_a_notebook_is_current_until_what_it_rests_on_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = notebooks.paths(quick.ROOT)["ray"]
    notebook = notebooks.read(path)
    monkeypatch.setattr(notebooks, "read", lambda _: notebook)
    stored = fingerprint.of_notebook(quick.ROOT, path, notebook, {}).digest
    notebook.metadata.labkit[fingerprint.OUTPUTS] = stored
    assert quick.is_current(path)
    notebook.cells[1].source += "\n# edited"
    assert not quick.is_current(path)
    del notebook.metadata.labkit[fingerprint.OUTPUTS]
    assert not quick.is_current(path)


def test_tests_of_a_changed_module_come_first_and_others_not_at_all() -> None:
    chosen = quick.affected({quick.ROOT / "labkit/planner/chain.py"})
    assert "test_chain.py" in [path.name for path in chosen[:2]]
    assert not {"pipeline", "cluster"} & {path.parent.name for path in chosen}
