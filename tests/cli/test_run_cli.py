"""``labkit run`` and ``labkit refresh`` as typed."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from labkit.cli import main, progress
from labkit.workbook.run import batch, results
from labkit.workbook.run.jobs import CellPlace, Event, Job, Outcome
from labkit.workbook.run.runs import refresh, write_ledger
from tests.workbook.factory import workbook

PAPER = (("seed: int = 0\neta: float = 0.5\ngpu: str = 'V100'", "parameters"), "print(seed, eta)")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = workbook(tmp_path / "wb", zeus=PAPER)
    monkeypatch.setenv("LABKIT_ROOT", str(folder))
    monkeypatch.setenv("COLUMNS", "200")
    return folder


def slugs(root: Path) -> list[str]:
    return [record.slug for record in results.records(root)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["zeus", "-p", "sed=1"], "no parameter 'sed'; did you mean 'seed'?"),
        (["-p", "eta=fast"], "parameter eta: 'fast' is not of type float"),
        (["-p", "seed"], "not of the form name=value"),
        (["-p", "seed=1", "-p", "seed=2"], "given twice"),
        (["-p", "seed=1", "--sweep", "seed=1,2"], "both with -p and with --sweep"),
        (["zues"], "no notebook for 'zues'; did you mean 'zeus'? There are: zeus"),
        (["--jobs", "0"], "--jobs"),
        (["--timeout", "soon"], "--timeout"),
        (["--cell-timeout", "0"], "--cell-timeout"),
        (
            ["--cluster", "here"],
            "'here' is no cluster; valid: a scheduler's address such as tcp://",
        ),
        (["--cluster", "no.yaml"], "no.yaml: "),
    ],
)
def test_wrong_use_exits_2_and_runs_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["run", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (root / "results").exists()


def test_a_sweep_makes_a_folder_for_each_combination(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = ["run", "zeus", "-p", "gpu=A40", "--sweep", "seed=0,1", "--sweep", "eta=0.5,1"]
    assert main([*swept, "-n"]) == 0
    assert capsys.readouterr().out.count("no result yet") == 4
    assert main(swept) == 0
    told = capsys.readouterr().out
    assert "4 ran" in told
    assert "\x1b" not in told
    expected = ["eta=1.0,gpu=A40", "eta=1.0,gpu=A40,seed=1", "gpu=A40", "gpu=A40,seed=1"]
    assert slugs(root) == expected
    [last] = [r for r in results.records(root) if r.slug == "eta=1.0,gpu=A40,seed=1"]
    assert last.parameters == {"seed": 1, "eta": 1.0, "gpu": "A40"}
    assert '"1 1.0\\n"' in last.notebook.read_text()
    assert main([*swept, "-p", "seed=1"]) == 2
    assert main(swept) == 0
    assert "4 up to date" in capsys.readouterr().out


def test_a_failure_is_reported_and_exits_1(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workbook(root, bad=(("n: int = 3", "parameters"), ("[m for m in 1 / (n - 3)]", "figure")))
    assert main(["run"]) == 1
    told = capsys.readouterr().out
    for part in (
        "1 ran, 1 failed",
        "cell 2 of 2 [figure]",
        "ZeroDivisionError: division by zero",
        "n=3",
        "in the cell that starts `[m for m in 1 / (n - 3)]`",
        "results/.failed/bad/default/bad.ipynb",
    ):
        assert part in told
    assert slugs(root) == ["default"]
    assert (root / "results/claims.parquet").is_file()
    assert (root / "results/scoreboard.html").is_file()
    workbook(root, bad=("1",))
    assert main(["run", "bad"]) == 0
    assert not (root / "results/.failed").exists()


def test_the_site_stands_before_the_first_notebook_runs_and_is_whole_after_the_last(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "data/papers.bib").write_text("@misc{zeus, title={Zeus}, author={A, B}, year={2023}}")
    queue = "papers:\n  - {key: zeus, status: reviewed, priority: 1, why: it saves}\n"
    (root / "reading_queue.yaml").write_text(queue)
    monkeypatch.setattr("labkit.workbook.export.reference.write", lambda folder: False)
    site = root / "results" / "site"
    states = []
    run = batch.run

    def watched(*arguments: object) -> batch.Report:
        states.append(str("not run here yet" in (site / "papers/zeus.html").read_text()))
        states.append(capsys.readouterr().out)
        report = run(*arguments)
        states.append(str("not run here yet" in (site / "papers/zeus.html").read_text()))
        return report

    monkeypatch.setattr(batch, "run", watched)
    assert main(["run", "--site"]) == 1, "its notebook has no sections, which is told"
    before, said, after = states
    assert (before, after) == ("True", "False")
    assert str(site / "index.html") in said
    told = capsys.readouterr().out
    assert "1 ran" in told
    assert "cannot be shown as it stands: slides/zeus.html: no cell is tagged" in told
    assert str(site / "index.html") in told
    main(["run", "--site"])
    assert "is up to date" in states[-2]


def test_a_site_that_cannot_be_built_keeps_no_notebook_from_running(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "reading_queue.yaml").write_text("papers: [")
    monkeypatch.setattr("labkit.workbook.export.reference.write", lambda folder: False)
    assert main(["run", "--site"]) != 0
    assert slugs(root) == ["default"]
    told = capsys.readouterr()
    assert "reading_queue.yaml" in told.out + told.err


def test_refresh_writes_outputs_back(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "notebooks/tests/zeus.ipynb"
    assert main(["refresh"]) == 0
    assert "outputs written back" in capsys.readouterr().out
    first = path.read_bytes()
    assert b"0 0.5" in first
    assert main(["refresh", "--force", "zeus"]) == 0
    assert "outputs unchanged" in capsys.readouterr().out
    assert path.read_bytes() == first


def test_when_nothing_changed_nothing_heavy_is_loaded(root: Path) -> None:
    assert main(["run"]) == 0
    code = (
        "import sys; from labkit.cli import main; assert main(['run']) == 0;"
        "print(*{'papermill', 'nbformat', 'pandas', 'zmq', 'plotly'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, heavy = done.stdout.splitlines()
    assert "1 up to date" in said
    assert heavy == ""


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(root: Path, request: batch.Request, watcher: progress.Watcher) -> None:
        watcher.begin([task("a", None), task("b", None)], 1)
        job = task("a", None)
        watcher.event(Event(kind="start", job=job, worker="w1"))
        watcher.event(Event(kind="end", job=job, outcome=Outcome(status="failed")))
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "run", interrupted)
    assert main(["run"]) == 130
    said = capsys.readouterr().out
    assert "on w1" in said
    assert "(1/2, 1 failed" in said
    assert "stopped; 1 of 2 notebooks had ended, 1 of them failed. What ended is kept" in said


def test_two_runs_at_once_do_the_work_once(root: Path) -> None:
    """Both want zeus, the second also another."""
    count = f"import time; time.sleep(1); open({str(root / 'count')!r}, 'a')"
    workbook(root, zeus=(f"{count}.write('z')",), hare=(f"{count}.write('h')",))
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "labkit", "run", *keys],
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        for keys in (["zeus"], [])
    ]
    told = [run.communicate(timeout=120)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert sorted((root / "count").read_text()) == ["h", "z"]
    assert any("up to date" in text for text in told)
    assert [record.key for record in results.records(root)] == ["hare", "zeus"]
    assert refresh(root, write_ledger) == []  # the later of the two saw both results


# ---------------------------------------------------------------- what is shown


def task(key: str, expected_s: float | None) -> Job:
    return Job(key=key, slug="default", path=Path(key), expected_s=expected_s)


def test_the_estimate_is_the_schedule_worked_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers; d was never timed and counts as the median of the others."""
    moment = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: moment[0])
    tasks = [task("a", 10.0), task("b", 4.0), task("c", 3.0), task("d", None)]
    estimate = progress.Estimate(tasks, 2)
    assert estimate.remaining_s() == 11.0  # a: 10 | b c d: 4 + 3 + 4
    estimate.start("a")
    estimate.start("b")
    moment[0] += 2
    assert estimate.remaining_s() == 9.0
    estimate.end("b")  # sooner than expected
    assert estimate.remaining_s() == 8.0  # a: 8 | c d: 3 + 4
    assert progress.Estimate([task("a", None)], 1).remaining_s() is None


@pytest.mark.parametrize("forced", [False, True])
def test_a_log_gets_no_bars(forced: bool) -> None:
    """FORCE_COLOR, which CI sets, asks for colours and makes no terminal that bars can redraw."""
    log = io.StringIO()
    watcher = progress.Watcher(Console(file=log, force_terminal=forced, width=120))
    with watcher.bars:
        watcher.begin([task("a", 10.0)], 1)
    text = re.sub("\x1b\\[[\\d;]*m", "", log.getvalue())
    assert text.strip() == "1 notebook to run, about 10 s left"


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Outcome(status="failed", error="KeyError", message="'x'"), "KeyError: 'x'"),
        (Outcome(status="hung", error="CellTimeoutError", message="no end"), "hung: no end"),
        (
            Outcome(status="died", message="by signal 9", attempts=2),
            "kernel died (2 times): by signal 9",
        ),
        (Outcome(status="broken", message="not a notebook"), "not a notebook"),
    ],
)
def test_how_a_notebook_failed_in_words(outcome: Outcome, told: str) -> None:
    assert progress.how_it_failed(outcome) == told


def test_where_a_notebook_failed_in_words() -> None:
    assert progress.where(None) == "before its first cell"
    place = CellPlace(number=3, total=9, tag="claims", first_line="x")
    assert progress.where(place) == "cell 3 of 9 [claims]"
