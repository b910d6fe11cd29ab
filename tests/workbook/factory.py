"""Small workbooks for the tests of the runner: notebooks of a few cells each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.workbook.run.batch import Report, Request, run
from labkit.workbook.run.jobs import Event, Job
from labkit.workbook.run.parameters import Sweep, choices


def workbook(folder: Path, **papers: Sequence[Any]) -> Path:
    """A workbook with one notebook for each keyword; a cell is its code, or (code, tag)."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reading_queue.yaml").write_text("papers: []\n")
    entries = [f"@misc{{{key}, title={{T}}, author={{A, B}}, year=2020}}\n" for key in papers]
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "papers.bib").write_text("".join(entries))
    for key, cells in papers.items():
        write(folder, key, *cells)
    return folder


def write(root: Path, key: str, *cells: Any, datasets: Sequence[str] = ()) -> Path:
    """Write the notebook ``key``; cells of text that starts with # are Markdown."""
    path = root / "notebooks" / "tests" / f"{key}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "P", "language": "python"},
            "labkit": {"paper": key, "datasets": list(datasets)},
        },
        "cells": [_cell(number, cell) for number, cell in enumerate(cells)],
    }
    path.write_text(json.dumps(content))
    return path


def _cell(number: int, cell: Any) -> dict[str, Any]:
    source, tag = cell if isinstance(cell, tuple) else (cell, "")
    common = {
        "id": f"cell{number}",
        "source": source,
        "metadata": {"tags": [tag]} if tag else {},
    }
    if source.startswith("# "):
        return {**common, "cell_type": "markdown"}
    return {**common, "cell_type": "code", "outputs": [], "execution_count": None}


class Recorder:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.events: list[Event] = []
        self.began: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, jobs: Sequence[Job], num_workers: int) -> None:
        self.began += [job.name for job in jobs]

    def event(self, event: Event) -> None:
        self.events.append(event)


def stated(fixed: Mapping[str, str], sweeps: Mapping[str, str], more: Sweep | None = None) -> Sweep:
    """What ``-p`` and ``--sweep`` say, by name, and a sweep file besides."""
    texts = ([f"{name}={text}" for name, text in given.items()] for given in (fixed, sweeps))
    given = [*choices(next(texts)), *choices(next(texts), "--sweep")]
    more = more or Sweep()
    return replace(more, choices=[*given, *more.choices])


def go(
    root: Path,
    *keys: str,
    watcher: Recorder | None = None,
    fixed: Mapping[str, str] | None = None,
    sweeps: Mapping[str, str] | None = None,
    **options: Any,
) -> Report:
    request = Request(keys=keys, sweep=stated(fixed or {}, sweeps or {}), **options)
    return run(root, request, watcher or Recorder())
