"""Runs on Dask: real schedulers and workers, which are killed; wrong workers; files of options."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from labkit.workbook import notebooks
from labkit.workbook.run import batch, places, results
from labkit.workbook.run.jobs import Event
from tests.workbook.daskprocesses import Processes
from tests.workbook.factory import Recorder, go, workbook
from tests.workbook.test_runner import kernels_of, soon, tree

SQUARE = (
    ("n: int = 1", "parameters"),
    "import os, time\ntime.sleep(0.2)\nprint(n * n, os.path.basename(os.getcwd()))",
)
NUM_RUNS = 8


class Saboteur(Recorder):
    """Kills what ``kills`` says, at its count of starts, and starts something in its place."""

    def __init__(self, cluster: Processes, root: Path) -> None:
        super().__init__()
        self.cluster, self.root = cluster, root

    def event(self, event: Event) -> None:
        super().event(event)
        if event.kind != "cell":
            return
        ended = sum(e.kind == "end" for e in self.events)
        if event.worker == "first" and ended >= 1 and "first" in self.cluster.running:
            self.cluster.kill("first")
        if ended >= 4 and "second" in self.cluster.running:
            self.cluster.kill("scheduler")
            self.cluster.running.pop("second").wait(60)  # it ends with its scheduler
            self.cluster.scheduler()
            self.cluster.worker("third", self.root)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One run: a worker is killed, later the scheduler, which comes back with another worker."""
    folder = tmp_path_factory.mktemp("cluster")
    root = workbook(folder / "wb", a=SQUARE, fails=("# Text", "1 / 0"))
    there = shutil.copytree(root, folder / "elsewhere")
    with Processes(folder) as cluster:
        cluster.scheduler()
        cluster.worker("first", there)
        cluster.worker("second", there, nanny=True)
        watcher = Saboteur(cluster, there)
        sweep = {"n": ",".join(map(str, range(NUM_RUNS)))}
        where = places.read(cluster.address, 1)
        report = go(root, "a", watcher=watcher, sweeps=sweep, cluster=where)
        failure = go(root, "fails", watcher=watcher, cluster=where)
        yield root, there, watcher, report, failure, cluster


def test_all_runs_are_right_though_worker_and_scheduler_were_killed(ran: Any) -> None:
    root, _, _, report, *_ = ran
    assert [end.task.name for end in report.failures] == []
    for number in range(NUM_RUNS):
        slug = results.slug_of({} if number == 1 else {"n": number})
        record = results.read(results.folder_of(root, "a", slug))
        assert record is not None
        shown = notebooks.glimpse(record.notebook).cells[-1].outputs[0].text
        assert shown == f"{number * number} tests\n"
