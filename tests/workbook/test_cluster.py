"""Runs on Dask: real schedulers and workers, which are killed; wrong workers; files of options."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from distributed import Client, LocalCluster

from labkit.errors import BadFile, LabkitError, UsageError
from labkit.workbook import notebooks
from labkit.workbook.run import batch, cluster, places, remote, results
from labkit.workbook.run.jobs import Event, Job, Outcome, Terms
from tests.workbook.daskprocesses import Processes
from tests.workbook.factory import Recorder, go, workbook
from tests.workbook.test_runner import kernels_of, soon

NUM_RUNS = 6
SQUARE = (
    ("n: int = 1", "parameters"),
    "import os, time\ntime.sleep(0.2)\nprint(n * n, os.path.basename(os.getcwd()))",
)


def slug(number: int) -> str:
    return results.slug_of({} if number == 1 else {"n": number})


# ---------------------------------------------------------------- processes that are killed


class Saboteur(Recorder):
    """Kills a worker at work, then the scheduler, which comes back with another worker."""

    def __init__(self, processes: Processes, root: Path) -> None:
        super().__init__()
        self.processes = processes
        self.root = root
        self.lost: list[str] = []

    def event(self, event: Event) -> None:
        super().event(event)
        if event.kind != "cell":
            return
        ended = sum(e.kind == "end" for e in self.events)
        if event.worker == "first" and not self.lost:
            self.lost.append(event.job.name)
            self.processes.kill("first")
        elif ended >= 3 and "second" in self.processes.running:
            self.processes.kill("scheduler")
            self.processes.running.pop("second").wait(60)  # it ends with its scheduler
            self.processes.scheduler()
            self.processes.worker("third", self.root)


Ran = tuple[Path, Path, Saboteur, batch.Report, str]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """One sweep on workers with a checkout of their own, and then what a wrong one is told."""
    folder = tmp_path_factory.mktemp("cluster")
    root = workbook(folder / "wb", a=SQUARE)
    there = Path(shutil.copytree(root, folder / "there"))
    with Processes(folder) as processes:
        processes.scheduler()
        processes.worker("first", there)
        processes.worker("second", there, nanny=True)
        watcher = Saboteur(processes, there)
        sweep = {"n": ",".join(map(str, range(NUM_RUNS)))}
        where = places.read(processes.address, 1)
        report = go(root, watcher=watcher, sweeps=sweep, cluster=where)
        (there / "data/papers.bib").write_text("@misc{a, title={Another}}\n")
        with pytest.raises(remote.WrongWorker) as refused:
            go(root, force=True, cluster=where)
        yield root, there, watcher, report, str(refused.value)


def test_all_runs_are_right_though_worker_and_scheduler_were_killed(ran: Ran) -> None:
    root, there, watcher, report, _ = ran
    assert [end.ok for end in report.ended] == [True] * NUM_RUNS
    for number in range(NUM_RUNS):
        record = results.read(results.folder_of(root, "a", slug(number)))
        assert record is not None
        shown = notebooks.glimpse(record.notebook).cells[-1].outputs[0].text
        assert shown == f"{number * number} tests\n"
        assert record.meta["worker"] in {"first", "second", "third"}
        assert record.meta["machine"]["cores"] == os.cpu_count()
    assert any("lost the scheduler" in note for note in watcher.notes)
    assert not (there / "results").exists()  # workers share no file system with the client
    assert soon(lambda: not kernels_of(there), 10)


def test_nothing_runs_twice_but_what_was_lost(ran: Ran) -> None:
    _, _, watcher, report, _ = ran
    attempts = {end.job.name: end.outcome.attempts for end in report.ended}
    assert attempts[watcher.lost[0]] >= 2
    retried = {event.job.name for event in watcher.events if event.kind == "retry"}
    assert retried == {name for name, count in attempts.items() if count > 1}
    # The killed worker ran one job, the lost scheduler's worker another; a third may have been
    # done and not yet taken when its worker went.
    assert len(retried) <= 3


def test_results_are_those_of_a_local_run(ran: Ran, tmp_path: Path) -> None:
    root = ran[0]
    local = workbook(tmp_path / "wb", a=SQUARE)
    go(local, fixed={"n": "3"})
    ours, theirs = (results.folder_of(r, "a", slug(3)) for r in (local, root))
    for name in ("a.ipynb", "claims.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    metas = [results.read_meta(folder) or {} for folder in (ours, theirs)]
    # The wrong worker's bibliography was never part of either.
    assert metas[0]["fingerprint_parts"] == metas[1]["fingerprint_parts"]
    assert go(root, sweeps={"n": "1,3"}).ended == []


def test_a_worker_with_another_checkout_is_refused_by_name_and_field(ran: Ran) -> None:
    assert "worker third (tcp://127.0.0.1:" in ran[4]
    assert "bibliography of a is " in ran[4]
    assert ran[4].count(" there and ") == 1


class Assassin(Recorder):
    """Kills the process of a nanny's worker whenever it reaches a cell of ``deadly``."""

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self.processes = processes

    def event(self, event: Event) -> None:
        super().event(event)
        if event.kind == "cell" and event.job.key == "deadly":
            for child in psutil.Process(self.processes.running["nanny"].pid).children():
                child.kill()


@pytest.mark.slow
def test_a_notebook_that_loses_every_worker_is_given_up_and_others_end(tmp_path: Path) -> None:
    root = workbook(tmp_path / "wb", a=SQUARE, deadly=("import time; time.sleep(1000)",))
    there = Path(shutil.copytree(root, tmp_path / "there"))
    with Processes(tmp_path) as processes:
        processes.scheduler()
        processes.worker("nanny", there, nanny=True)
        watcher = Assassin(processes)
        report = go(root, watcher=watcher, cluster=places.read(processes.address, 1))
        outcomes = {end.job.key: end.outcome for end in report.ended}
        assert outcomes["a"].status == "ok", outcomes["a"].message
        deadly = outcomes["deadly"]
        assert (deadly.status, deadly.error) == ("died", "WorkerLost")
        starts = [e for e in watcher.events if e.kind == "start" and e.job.key == "deadly"]
        assert deadly.attempts == len(starts) == cluster.MAX_STARTS
        assert f"{cluster.MAX_STARTS} workers were lost" in deadly.message
        assert soon(lambda: not kernels_of(there), 10)


# ---------------------------------------------------------------- in this process


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A scheduler with one worker of two threads, in this process: it costs no start."""
    with LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        processes=False,
        host="127.0.0.1",
        protocol="tcp://",
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        worker_dashboard_address="127.0.0.1:0",
    ) as started:
        yield started.scheduler_address


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = workbook(tmp_path / "wb", a=SQUARE)
    monkeypatch.setenv("LABKIT_ROOT", str(folder))
    return folder


def test_a_cells_own_error_and_a_dying_kernel_end_as_on_this_machine(
    root: Path, address: str
) -> None:
    workbook(root, fails=("# Text", ("1 / 0", "claims")), dies=("import os; os._exit(9)",))
    watcher = Recorder()
    report = go(root, "fails", "dies", watcher=watcher, cluster=places.read(address, 1))
    outcomes = {end.job.key: end.outcome for end in report.ended}
    assert (outcomes["fails"].status, outcomes["fails"].attempts) == ("failed", 1)
    assert outcomes["fails"].cell is not None
    assert (outcomes["fails"].cell.number, outcomes["fails"].cell.tag) == (2, "claims")
    assert (outcomes["dies"].status, outcomes["dies"].attempts) == ("died", 2)
    told = [(e.kind, e.job.key) for e in watcher.events if e.job.key == "dies"]
    assert [kind for kind, _ in told] == ["start", "cell", "retry", "start", "cell", "end"]
    assert (root / "results/.failed/fails/default/fails.ipynb").is_file()


def test_a_worker_that_comes_later_is_checked_with_its_first_job(
    root: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.DaskExecutor, "_check_workers", lambda self: None)
    ours = remote.standing()
    monkeypatch.setattr(cluster.remote, "standing", lambda: {**ours, "numpy": "1.0"})
    packed = remote.packed

    def checked_there(job: Job, terms: Terms) -> bytes:
        call = packed(job, terms)
        monkeypatch.setattr(remote, "standing", lambda: ours)
        return call

    monkeypatch.setattr(remote, "packed", checked_there)
    with pytest.raises(remote.WrongWorker, match=rf"numpy is {ours['numpy']} there and 1\.0 here"):
        go(root, cluster=places.read(address, 1))
    assert not (root / "results/a").exists()


def test_a_worker_that_finds_no_workbook_is_named_with_what_it_needs(
    root: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> Path:
        raise UsageError("no workbook found")

    monkeypatch.setattr(remote, "project_root", nowhere)
    told = r"worker .*\(tcp://.*\) cannot say .* UsageError: no workbook found\. .* LABKIT_ROOT set"
    with pytest.raises(LabkitError, match=told):
        go(root, cluster=places.read(address, 1))


def test_an_interrupted_run_ends_its_kernels_and_goes_on_later(root: Path, address: str) -> None:
    slow = (("n: int = 1", "parameters"), "import time\ntime.sleep(0 if n else 1000)")
    workbook(root, a=slow)

    class Impatient(Recorder):
        def event(self, event: Event) -> None:
            super().event(event)
            if event.cell and event.cell.number == 2 and event.job.name == "a [n=0]":
                assert kernels_of(root)
                raise KeyboardInterrupt

    where = places.read(address, 1)
    with pytest.raises(KeyboardInterrupt):
        go(root, watcher=Impatient(), sweeps={"n": "0"}, cluster=where)
    assert soon(lambda: not kernels_of(root), 10)
    with Client(address, set_as_default=False) as client:
        assert soon(lambda: not any(client.processing().values()), 10)
    assert [end.ok for end in go(root, cluster=where).ended] == [True]


def light(*_: object) -> Outcome:
    return Outcome(status="ok", notebook="x" * 1000, started="2020-01-01T00:00:00+00:00")


def test_jobs_are_taken_as_there_is_room(
    root: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "execute", light)
    [first] = batch.plan(root, batch.Request(keys=("a",)))
    terms = Terms(root=root)
    ahead = 0
    most = 0

    def jobs() -> Iterator[Job]:
        nonlocal ahead, most
        for number in range(200):
            ahead += 1
            most = max(most, ahead)
            yield replace(first, slug=f"n={number}")

    executor = cluster.DaskExecutor(
        lambda: Client(address, set_as_default=False), [first], terms, print
    )
    names = set()
    for event in executor.run(jobs()):
        if event.kind == "end":
            ahead -= 1
            names.add(event.job.name)
    assert len(names) == 200
    assert most <= 2 * 2  # twice the worker's threads


# ---------------------------------------------------------------- where to run


def options(folder: Path, text: str) -> str:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return str(path)


SLURM = """\
kind: slurm
workers: 3
options:
  queue: short
  cores: 4
  memory: 16GB
  walltime: "02:00:00"
  job_script_prologue: [cd /home/me/workbook]
"""
KUBERNETES = """\
kind: kubernetes
workers: 2
options:
  image: registry/labkit:1
  env: {LABKIT_ROOT: /workbook}
  resources: {limits: {memory: 4Gi}}
"""


def test_a_slurm_file_gives_the_job_script(tmp_path: Path) -> None:
    script = places.described(places.read(options(tmp_path, SLURM), 1))
    for line in ("3 Slurm jobs", "#SBATCH -p short", "#SBATCH --cpus-per-task=4", "--mem=15G"):
        assert line in script
    assert "#SBATCH -t 02:00:00" in script
    assert script.index("cd /home/me/workbook") < script.index("dask_worker tcp://HOST:PORT")


def test_a_kubernetes_file_gives_the_pods(tmp_path: Path) -> None:
    import json

    spec = json.loads(places.described(places.read(options(tmp_path, KUBERNETES), 1)))
    worker = spec["spec"]["worker"]
    assert worker["replicas"] == 2
    container = worker["spec"]["containers"][0]
    assert container["image"] == "registry/labkit:1"
    assert {"name": "LABKIT_ROOT", "value": "/workbook"} in container["env"]
    assert container["resources"] == {"limits": {"memory": "4Gi"}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SLURM.replace("queue", "queu"), "cluster.yaml:4: no such option.*did you mean 'queue'"),
        (SLURM.replace("4", "many", 1), "cluster.yaml: options are refused"),
        (SLURM.replace("  cores: 4\n", ""), "options are refused.*cores"),
        (SLURM.replace("workers: 3", "workers: 0"), "cluster.yaml:2.*workers.*at least 1"),
        (SLURM.replace("slurm", "pbs"), "cluster.yaml:1.*'kind'.*'local', 'slurm' or 'kubernetes'"),
        (SLURM + "  n_workers: 4\n", "cluster.yaml:9: the number is `workers`"),
        (KUBERNETES.replace("{limits", "[limits").replace("Gi}}", "Gi}]"), "cluster.yaml:6.*resou"),
        (KUBERNETES + "  jupyter: loud\n", "cluster.yaml:7.*valid boolean.*jupyter.*'loud'"),
        ("address: tcp://10.0.0.1:8786\n", "cluster.yaml:1: an address is given without a file"),
        ("kind: local\noptions: {loop: 1}\n", "cluster.yaml:2: no such option"),
    ],
)
def test_a_wrong_file_names_the_line_and_what_is_valid(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(BadFile, match=said):
        places.read(options(tmp_path, text), 1)


def test_what_is_no_cluster_says_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"tcp://10\.0\.0\.1:8786, `local`, or a YAML file"):
        places.read("10.0.0.1:8786", 1)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"pip install 'mlsys-labkit\[cluster\]'"):
        places.read("local", 1)


def test_a_scheduler_that_does_not_answer_is_one_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "CONNECT_S", 0.5)
    with pytest.raises(LabkitError, match=r"does not answer: .*tcp://127\.0\.0\.1:9"):
        go(root, cluster=places.read("tcp://127.0.0.1:9", 1))
