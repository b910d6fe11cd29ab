"""Small notebooks through ``labkit run``'s pool, beside papermill in pools, threads and on Dask.

``make bench`` runs forty. The aim: at most 1.15 times the fastest of the others. One process tree
at a time; the order turns from round to round, and the ratio is of medians.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.contest import WAYS

TOP = Path(__file__).resolve().parents[2]


def seconds(way: str, folder: Path, number: int) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.contest", way, str(folder), str(number)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TOP)}
    environment.pop("LABKIT_ROOT", None)
    done = subprocess.run(
        command, cwd=TOP, env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


@pytest.mark.parametrize(
    ("number", "rounds"), [(2, 1), pytest.param(40, 3, marks=pytest.mark.large)]
)
def test_small_notebooks(benchmark: Any, tmp_path: Path, number: int, rounds: int) -> None:
    ways = ["labkit", "threads"] if number < 40 else list(WAYS)
    took: dict[str, list[float]] = {way: [] for way in ways}

    def contest() -> None:
        for turn in range(rounds):
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                folder = tmp_path / f"{way}{turn}-{time.monotonic_ns()}"
                took[way].append(seconds(way, folder, number))

    benchmark.pedantic(contest, rounds=1)
    medians = {way: statistics.median(took[way]) for way in ways}
    fastest = min(medians[way] for way in ways if way != "labkit")
    benchmark.extra_info |= medians | {"ratio": medians["labkit"] / fastest}
    shown = ", ".join(f"{way} {value:.1f} s" for way, value in medians.items())
    print(f"\n{number} notebooks: {shown}; ours {medians['labkit'] / fastest:.2f} of the fastest")
