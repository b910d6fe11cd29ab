"""Small notebooks through ``labkit run``'s pool, beside papermill in pools, threads and on Dask.

``make bench`` runs forty. The aim: at most 1.15 times the fastest of the others. One process tree
at a time; the order turns from round to round, and the ratio is of medians. Of ten thousand runs
that are queued the memory is looked at, with an executor that executes nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from labkit.workbook.run import batch
from labkit.workbook.run.jobs import Event, Job, Outcome, now
from tests.benchmarks.contest import WAYS, prepare
from tests.workbook.factory import Recorder, stated

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


class Nothing:
    """An executor whose notebooks have 200 KB of output at once; looks at memory on the way."""

    num_workers = 2

    def __init__(self) -> None:
        self.resident_bytes: list[int] = []

    def run(self, jobs: Iterable[Job]) -> Iterator[Event]:
        printed = {"output_type": "stream", "name": "stdout", "text": "x" * 200_000}
        for number, job in enumerate(jobs):
            notebook = json.loads(job.text)
            notebook["cells"][-1]["outputs"] = [printed]
            text = json.dumps(notebook)
            outcome = Outcome(status="ok", notebook=text, started=now(), log=text)
            yield Event(kind="end", job=job, outcome=outcome)
            if number % 100 == 99:
                self.resident_bytes.append(psutil.Process().memory_info().rss)


@pytest.mark.parametrize("number", [300, pytest.param(10_000, marks=pytest.mark.large)])
def test_memory_over_many_runs(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    root = prepare(tmp_path / "wb", 1)
    executor = Nothing()
    monkeypatch.setattr(batch, "_executor", lambda *args: nullcontext(executor))
    # Kept whole, a hundred outcomes would be 40 MB; the results are not what is measured.
    monkeypatch.setattr(batch.results, "store", lambda root, key, *rest: root)
    watcher = Quiet()
    request = batch.Request(sweep=stated({}, {"n": ",".join(map(str, range(number)))}))
    report = benchmark.pedantic(lambda: batch.run(root, request, watcher), rounds=1)
    assert [end.ok for end in report.ended] == [True] * number
    first = executor.resident_bytes[0]
    last = executor.resident_bytes[-1]
    benchmark.extra_info |= {"grew_bytes": last - first}
    print(f"\n{number} runs: from {first / 2**20:.0f} to {last / 2**20:.0f} MiB")
    assert last - first < 20 * 2**20


class Quiet(Recorder):
    def event(self, event: object) -> None:
        pass
