"""``make tried``: every notebook at the other values of its parameters, as a researcher runs them.

``data/papers/KEY/parameters.yaml`` names the values. Each runs by itself, the other parameters at
their defaults; with ``--together`` a run sets all parameters at once, which takes a third of the
time. Runs are kept as any of ``labkit run``: what is up to date does not run again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from labkit.cli import progress
from labkit.files import project_root
from labkit.workbook import notebooks
from labkit.workbook.review import ranges
from labkit.workbook.run import batch
from labkit.workbook.run.parameters import Setting, Sweep

TURNS = 2
"""Runs that set all parameters at once: their first other values, then their second."""


def sweep_of(points: Sequence[Mapping[str, Any]], path: Path) -> Sweep:
    """One run for each of ``points``, whose values come from the file at ``path``."""
    settings = [
        tuple(Setting(name, value, (str(path), name)) for name, value in point.items())
        for point in points
    ]
    return Sweep(choices=[settings])


def points_of(root: Path, key: str, *, together: bool) -> list[dict[str, Any]]:
    known = ranges.load(root, key)
    if together:
        return [ranges.together(known, turn) for turn in range(TURNS)]
    return ranges.points(known)


def try_notebook(
    root: Path, key: str, watcher: progress.Watcher, *, together: bool, num_jobs: int | None
) -> list[batch.Ended]:
    """Run a notebook at its other values; those that failed."""
    points = points_of(root, key, together=together)
    if not points:
        return []
    sweep = sweep_of(points, ranges.path_of(root, key))
    request = batch.Request(keys=(key,), sweep=sweep, num_jobs=num_jobs)
    return batch.run(root, request, watcher).failures


def main() -> int:
    reader = argparse.ArgumentParser(prog="python -m tests.tried", description=__doc__)
    reader.add_argument("keys", nargs="*", metavar="KEY", help="papers; none: all of them")
    reader.add_argument("--together", action="store_true", help="all parameters of a run at once")
    reader.add_argument("--jobs", type=int, metavar="N", help="notebooks at a time")
    options = reader.parse_args()
    root = project_root()
    console = Console()
    table = Table("notebook and values", "what became of it", title="Stopped")
    keys = options.keys or list(notebooks.paths(root))
    for key in keys:
        watcher = progress.Watcher(console)
        failures = try_notebook(
            root, key, watcher, together=options.together, num_jobs=options.jobs
        )
        for end in failures:
            outcome = end.outcome
            table.add_row(escape(end.job.name), escape(f"{outcome.status}: {outcome.message}"))
    if table.row_count:
        console.print(table)
    else:
        console.print(f"at every other value of their parameters run: {', '.join(keys)}")
    return int(bool(table.row_count))


if __name__ == "__main__":
    sys.exit(main())
