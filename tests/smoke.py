"""Executing a notebook where no published data can be had."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

SMOKE = "smoke run on the stand-in"
"""The name of the test that a notebook is where its published data cannot be had."""


@cache
def without_cells(path: Path) -> Any:
    """A notebook's metadata, read once a process: who collects tests asks for them four times."""
    from labkit.workbook import notebooks

    notebook = notebooks.read(path)
    notebook.cells = []
    return notebook


def execute(path: Path, **parameters: Any) -> Any:
    """Run a notebook with our papermill engine on stand-ins only; the executed notebook.

    The cache is an empty folder and the network is not tried, so no published file can be found.
    """
    import papermill

    with TemporaryDirectory() as folder:
        environment = {"LABKIT_OFFLINE": "1", "LABKIT_CACHE": folder, "LABKIT_DATA_MIRROR": ""}
        with mock.patch.dict(os.environ, environment):
            return papermill.execute_notebook(
                str(path),
                str(Path(folder) / path.name),
                parameters=parameters or None,
                engine_name="labkit",
                cwd=str(path.parent),
                progress_bar=False,
            )
