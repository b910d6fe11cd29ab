"""``python -m tests.faults.cluster [RUNS]``: a sweep on Dask, with everything killed on the way.

A scheduler and workers are processes on loopback, each worker in a checkout of its own; one dies
as soon as the sweep is a tenth done, a kernel at two tenths, and so on (:data:`FAULTS`), each
by its process id. A supervisor starts anew what ended, as systemd, Slurm or Kubernetes would. All
runs must be right and the same as those of this machine's pool, and only what was under way at a
fault may have begun twice.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

from labkit.workbook.run import places, results
from labkit.workbook.run.jobs import Event
from tests.workbook.daskprocesses import Processes
from tests.workbook.factory import Recorder, go, workbook
from tests.workbook.test_runner import kernels_of, soon

NOTEBOOK = (
    ("n: int = 0", "parameters"),
    "import pathlib, random, time\n"
    "def count(kind):\n"
    "    with (pathlib.Path.cwd() / f'{kind}.txt').open('a') as file: file.write(f'{n}\\n')\n"
    "count('begun')\ntime.sleep(0.3)",
    "values = random.Random(n).choices(range(1000), k=1000)\nsum(values), max(values)",
    "count('ended')",
)
FAULTS = {
    0.1: "worker",
    0.2: "kernel",
    0.3: "worker below its nanny",
    0.4: "kernel",
    0.5: "nanny",
    0.6: "scheduler",
    0.7: "process of the notebook",
    0.8: "worker",
    0.9: "kernel",
}
WORKERS = {"alone": False, "nursed": True}
"""Workers by name, and whether a nanny starts them."""


class Saboteur(Recorder):
    """Kills by :data:`FAULTS`, and remembers which runs were under way then."""

    def __init__(self, processes: Processes, root: Path, number: int) -> None:
        super().__init__()
        self.processes = processes
        self.root = root
        self.number = number
        self.faults = {share * number: what for share, what in FAULTS.items()}
        self.begun = time.monotonic()
        self.running: dict[str, str] = {}
        self.suspects: set[str] = set()
        self.num_ended = 0

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:6.1f} s  {text}", flush=True)

    def event(self, event: Event) -> None:
        name = event.job.name
        if event.kind == "cell":
            due = [share for share in self.faults if share <= self.num_ended]
            if due and set(WORKERS) <= set(self.processes.running):
                self._kill(self.faults.pop(min(due)), event.worker)
            return
        super().event(event)
        if event.kind == "start":
            self.running[name] = event.worker
        elif event.kind == "end":
            self.running.pop(name, None)
            self.num_ended += 1

    def _kill(self, what: str, worker: str) -> None:
        """Kill ``what`` of the ``worker`` that has just begun a cell; start anew what ended."""
        if what in ("nanny", "worker below its nanny"):
            worker = "nursed"
        elif what == "worker":
            worker = "alone"
        below = self.processes.below(worker)
        self.suspects |= set(self.running)
        if what == "scheduler":
            self.processes.kill("scheduler")
            self.processes.scheduler()
        elif what in ("worker", "nanny"):
            self.processes.kill(worker)
            assert soon(lambda: not any(map(alive, below)), 60), f"{what} left processes behind"
        else:
            victims = [process for process in below if is_a(what, process)]
            if not victims:  # it is just being started; the next cell will do
                self.faults[self.num_ended] = what
                return
            victims[0].send_signal(signal.SIGKILL)
        self.note(f"killed: {what} ({worker}), with {len(self.running)} runs under way")


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def is_a(what: str, process: psutil.Process) -> bool:
    """Whether ``process``, below a worker, is the kernel, its notebook's process or the worker."""
    line = " ".join(process.cmdline())
    if what == "kernel":
        return "ipykernel" in line
    if what == "process of the notebook":
        return any("ipykernel" in " ".join(child.cmdline()) for child in process.children())
    return "spawn_main" in line and "forkserver" not in line


def supervise(processes: Processes, root: Path, over: threading.Event) -> None:
    """Start the workers, and again those that ended: also with their scheduler they do."""
    while not over.wait(0.5):
        for name, nanny in WORKERS.items():
            if name not in processes.running or processes.running[name].poll() is not None:
                processes.worker(name, root, nanny=nanny)


def counted(root: Path, kind: str) -> Counter[int]:
    path = root / f"notebooks/tests/{kind}.txt"
    return Counter(map(int, path.read_text().split()))


def main(number: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="labkit-cluster-"))
    root = workbook(folder / "wb", a=NOTEBOOK)
    there = Path(shutil.copytree(root, folder / "there"))
    local = Path(shutil.copytree(root, folder / "local"))
    sweep = {"n": ",".join(map(str, range(number)))}
    with Processes(folder) as processes:
        processes.scheduler()
        over = threading.Event()
        supervisor = threading.Thread(target=supervise, args=(processes, there, over))
        supervisor.start()
        watcher = Saboteur(processes, there, number)
        where = places.read(processes.address, 1)
        try:
            report = go(root, watcher=watcher, sweeps=sweep, cluster=where)
        finally:
            over.set()
            supervisor.join()
        watcher.note(f"{len(report.ended)} ended")
    assert soon(lambda: not kernels_of(there), 60), "a kernel outlived the run"
    assert not watcher.faults, f"not tried: {watcher.faults}"
    assert [end.job.name for end in report.failures] == []
    go(local, sweeps=sweep)
    for end in report.ended:
        assert end.folder is not None
        beside = results.folder_of(local, "a", end.job.slug)
        for name in ("a.ipynb", "claims.json"):
            assert (end.folder / name).read_bytes() == (beside / name).read_bytes(), end.job.name
    again = {n for n, count in counted(there, "begun").items() if count > 1}
    suspects = {
        int(name.rpartition("=")[2].strip("]")) if "=" in name else 0 for name in watcher.suspects
    }
    assert again <= suspects, f"ran again without need: {again - suspects}"
    causes = Counter(
        event.outcome.error for event in watcher.events if event.kind == "retry" and event.outcome
    )
    print(
        json.dumps(
            {
                "runs": number,
                "right_and_as_on_this_machine": len(report.ended),
                "faults": len(FAULTS),
                "under_way_at_a_fault": len(suspects),
                "begun_more_than_once": len(again),
                "ended_more_than_once": sum(c > 1 for c in counted(there, "ended").values()),
                "retries_by_cause": causes,
                "most_attempts": max(end.outcome.attempts for end in report.ended),
                "seconds": round(time.monotonic() - watcher.begun),
            },
            indent=1,
        )
    )
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
