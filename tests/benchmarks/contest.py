"""Forty small notebooks, two at a time, each way in a process of its own.

``python -m tests.benchmarks.contest WAY FOLDER NUMBER`` runs the workbook in FOLDER and prints the
seconds it took, imports included.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.workbook.factory import go, workbook

CELLS = (("n: int = 1", "parameters"), "total = sum(i * i for i in range(1000 * n))", "total")
NUM_AT_ONCE = 2


def paper(number: int) -> str:
    return f"paper{number:02}"


def prepare(folder: Path, number: int) -> Path:
    return workbook(folder, **{paper(index): CELLS for index in range(number)})


def execute(source: str, target: str) -> None:
    import papermill

    papermill.execute_notebook(source, target, progress_bar=False)


def files(root: Path) -> list[tuple[str, str]]:
    sources = sorted((root / "notebooks/tests").glob("*.ipynb"))
    (root / "out").mkdir()
    return [(str(path), str(root / "out" / path.name)) for path in sources]


def labkit(root: Path) -> None:
    report = go(root, num_jobs=NUM_AT_ONCE)
    assert not report.failures
    assert len(report.ended) == len(list((root / "notebooks/tests").iterdir()))


def pooled(pool: Executor, root: Path) -> None:
    with pool:
        for future in [pool.submit(execute, *names) for names in files(root)]:
            future.result()


def spawn(root: Path) -> None:
    pooled(ProcessPoolExecutor(NUM_AT_ONCE, mp_context=get_context("spawn")), root)


def threads(root: Path) -> None:
    pooled(ThreadPoolExecutor(NUM_AT_ONCE), root)


def dask(root: Path) -> None:
    from distributed import Client, LocalCluster

    local = {"host": "127.0.0.1", "dashboard_address": None}
    with (
        LocalCluster(n_workers=NUM_AT_ONCE, threads_per_worker=1, **local) as cluster,
        Client(cluster) as client,
    ):
        client.gather([client.submit(execute, *names, pure=False) for names in files(root)])


WAYS: dict[str, Callable[[Path], None]] = {
    way.__name__: way for way in (labkit, spawn, threads, dask)
}

if __name__ == "__main__":
    way, folder, number = sys.argv[1:]
    root = prepare(Path(folder), int(number))
    begun = time.monotonic()
    WAYS[way](root)
    print(time.monotonic() - begun)
