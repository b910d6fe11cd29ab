"""Sweeps as typed: runs joined into a table and a page, shown, compared and cleared away.

Notebooks do not run here: a pool that computes what each would have shown stands in for kernels.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from labkit.cli import main
from labkit.kit.stats import mean_interval
from labkit.workbook import notebooks
from labkit.workbook.export import sweeps
from labkit.workbook.review import claims, tables
from labkit.workbook.run import executors, guard, inventory, results, runs
from labkit.workbook.run.jobs import Event, Job, Outcome, Terms, now
from tests.workbook.factory import workbook

CLAIMS = """
claims:
  - {id: saving, kind: headline, statement: saves energy, flip: no plan, paper: 0.25,
     unit: fraction, source: "§6", verified: true, checked: "§6", judge: ratio, tolerance: 0.2}
  - {id: order, kind: consistency, statement: in order, paper: [a, b], source: "§6",
     verified: true, checked: "§6", judge: ordering}
"""
PAPER = (("seed: int = 0\nnum_stages: int = 4\ngpu: str = 'V100'", "parameters"), "run()")
SWEEP = "grid: {num_stages: [2, 4, 8]}\nlist: [{gpu: V100}, {gpu: A40}]\nseeds: 3\n"


def saving(seed: int, num_stages: int, gpu: str) -> float:
    return (0.2 if gpu == "A40" else 0.1) + 0.01 * num_stages + 0.002 * seed


class Pool:
    """Ends each notebook at once, as if its cells had recorded these numbers; gpu=bad raises."""

    def __init__(self, num_workers: int, terms: Terms, scratch: Any) -> None:
        self.num_workers = num_workers
        self.terms = terms

    def run(self, given: Iterable[Job]) -> Iterator[Event]:
        for job in given:
            yield Event(kind="start", job=job)
            at = {"seed": 0, "num_stages": 4, "gpu": "V100"} | job.overrides
            book = json.loads(job.text)
            book["cells"][1]["outputs"] = [] if at["gpu"] == "bad" else self.shown(job, **at)
            state: Any = {"status": "failed", "error": "ValueError", "message": "bad"}
            outcome = Outcome(
                **(state if at["gpu"] == "bad" else {"status": "ok"}),
                notebook=json.dumps(book),
                started=now(),
                duration_s=1.0,
            )
            yield Event(kind="end", job=job, outcome=outcome)

    def shown(self, job: Job, **at: Any) -> list[dict[str, Any]]:
        values = {"saving": saving(**at), "order": ["a", "b"]}
        table = claims.judge(self.terms.root, job.key, values, flips={"saving": 0.0})
        numbers = tables.metrics_table({"time_s": 100 / at["num_stages"], "peak_bytes": 7})
        return [
            {"output_type": "display_data", "metadata": {}, "data": shown._repr_mimebundle_()}
            for shown in (table, numbers)
        ]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = workbook(tmp_path / "wb", zeus=PAPER)
    path = folder / "data" / "papers" / "zeus" / "claims.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(CLAIMS)
    (folder / "sweep.yaml").write_text(SWEEP)
    monkeypatch.setattr(executors, "LocalPool", Pool)
    monkeypatch.setenv("LABKIT_ROOT", str(folder))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str, code: int = 0) -> str:
        assert main(list(arguments)) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.out + captured.err

    return run


def test_a_sweep_joins_into_one_table(root: Path, said: Any) -> None:
    said("run", "zeus", "--sweep-file", "sweep.yaml")
    table = pd.read_parquet(runs.path_of(root, "zeus"))
    assert len(table) == 3 * 2 * 3
    assert [name for name in table if "." not in name] == ["gpu", "num_stages", "seed"]
    for row in table.to_dict("records"):
        at = {name: row[name] for name in ("seed", "num_stages", "gpu")}
        assert row["claim.saving"] == pytest.approx(saving(**at), rel=1e-3)
        within = abs(saving(**at) / 0.25 - 1) <= 0.2
        assert row["verdict.saving"] == ("reproduced" if within else "differs")
        assert row["metric.time_s"] == 100 / at["num_stages"]
        assert json.loads(row["claim.order"]) == ["a", "b"]
    assert table["run.version"].nunique() == 1


def test_the_table_follows_from_the_folders(root: Path, said: Any) -> None:
    """Removed or grown old it comes back the same; what is gone from the folders leaves it."""
    said("run", "zeus", "--sweep-file", "sweep.yaml")
    path = runs.path_of(root, "zeus")
    before = path.read_bytes()
    path.unlink()
    assert "18 up to date" in said("run", "zeus", "--sweep-file", "sweep.yaml")
    assert path.read_bytes() == before
    shutil.rmtree(root / "results/zeus/seed=1")
    said("run", "zeus")
    assert len(pd.read_parquet(path)) == 17
    assert not runs.write(root, "zeus")


def test_the_page_draws_what_was_run(root: Path, said: Any) -> None:
    said("run", "zeus", "--sweep-file", "sweep.yaml")
    text = sweeps.path_of(root, "zeus").read_text()
    assert "Verdicts, in runs" in text
    assert "the same in every run: peak_bytes" in text.replace("The same", "the same")
    page = sweeps.report(root, "zeus")
    assert page is not None
    [(heading, note, figure), (second, _, _)] = page.figures()
    assert (heading, second) == ("saving", "time (s)")
    table = pd.read_parquet(runs.path_of(root, "zeus"))
    kept = int((table["verdict.saving"] == "reproduced").sum())
    assert f"{kept} of 18 runs reproduce it" in note
    marks = {trace.name: len(trace.y) for trace in figure.data if trace.mode == "markers"}
    assert marks == {"✔ reproduced": kept, "✘ differs": 18 - kept}
    line = next(trace for trace in figure.data if trace.name == "gpu=A40")
    for x, y, half in zip(line.x, line.y, line.error_y.array, strict=True):
        own = [round(saving(seed, x, "A40"), 4) for seed in range(3)]
        mean, _, high = mean_interval(own)
        assert (y, half) == pytest.approx((mean, high - mean), rel=1e-4)
    [band] = figure.layout.shapes
    assert (band.y0, band.y1) == pytest.approx((0.2, 0.3))
    for folder in (root / "results/zeus").iterdir():
        if folder.is_dir() and folder.name != "default":
            shutil.rmtree(folder)
    said("run", "zeus")
    assert not sweeps.path_of(root, "zeus").exists()


@pytest.mark.parametrize("seed", [2**63, 2**64, -(2**63) - 1, 10**300])
def test_whole_numbers_of_any_size_are_kept_to_the_digit(root: Path, said: Any, seed: int) -> None:
    said("run", "zeus", "-p", f"seed={seed}")
    said("run", "zeus", "--sweep", "seed=1,0")
    table = pd.read_parquet(runs.path_of(root, "zeus"))
    assert set(table["seed"].map(int)) == {0, 1, seed}
    ledger = pd.read_parquet(runs.ledger_path(root))
    assert any(f'"seed": {seed}' in text for text in ledger["parameters"])
    assert str(seed)[:20] in said("results", "zeus", "--json", "-")


def test_runs_of_another_version_are_not_drawn_beside_new_ones(root: Path, said: Any) -> None:
    said("run", "zeus", "--sweep", "num_stages=2,4,8")
    workbook(root, zeus=(*PAPER[:1], "run()  # changed"))
    said("run", "zeus", "--sweep", "num_stages=2,4")
    page = sweeps.report(root, "zeus")
    assert page is not None
    assert page.facts[0] == ("runs", 2, "")
    assert any("1 runs of another version" in note for note in page.notes)


def test_a_page_on_fitted_models_says_so(
    root: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said("run", "zeus", "--sweep", "num_stages=2,4")
    assert "Fitted models" not in sweeps.path_of(root, "zeus").read_text()
    fitted = [
        replace(
            record,
            claims=[{**claim, "fitted": 3.8, "fitted_median": 0.052} for claim in record.claims],
        )
        for record in results.records(root, "zeus")
    ]
    monkeypatch.setattr(results, "records", lambda root, key: fitted)
    page = sweeps.report(root, "zeus")
    assert page is not None
    assert "half of their values lie within 5.2" in page.banner
    assert "380" not in page.banner


def test_results_say_what_still_holds(root: Path, said: Any) -> None:
    said("run", "zeus", "--sweep", "num_stages=2,4")
    said("run", "zeus", "-p", "gpu=bad", code=1)
    workbook(root, zeus=(*PAPER[:1], "run()  # changed"), lone=("1",))
    said("run", "zeus")
    shown = json.loads(said("results", "zeus", "--json", "-"))["runs"]
    states = {row["run.slug"]: row["run.state"] for row in shown}
    assert states == {"default": "current", "num_stages=2": "stale", "gpu=bad": "failed"}
    text = said("results", "--where", "state=stale")
    assert "changed: source" in text
    assert "1 of 3 runs" in text
    assert "num_stages=2" in said("results", "zeus", "--where", "metric.time_s>=50")
    assert "0 of 3" in said("results", "zeus", "--where", "num_stages<2")
    rows = json.loads(said("results", "zeus", "--claims", "--json", "-"))["runs"]
    assert {row["id"] for row in rows} == {"saving", "order"}
    assert len(rows) == 4
    csv = root / "out.csv"
    said("results", "zeus", "--csv", str(csv))
    assert len(pd.read_csv(csv)) == 3


def test_wrong_use_says_what_there_is(root: Path, said: Any) -> None:
    said("run", "zeus", "--sweep", "num_stages=2,4")
    for arguments, wrong in (
        (["results", "zues"], "no paper 'zues'; did you mean 'zeus'?"),
        (["results", "--where", "stages"], "valid: a column and a value"),
        (["results", "--where", "num_stage=2"], "no column 'num_stage'; did you mean 'num_stages'"),
        (["results", "--where", "num_stages=two"], "'two' is not of type float"),
        (["diff", "zues", "zeus"], "no paper with results 'zues'; did you mean 'zeus'?"),
        (["diff", "zeus", "zeus[num_stages=3]"], "no run of zeus 'num_stages=3'; did you mean"),
        (["run", "zeus", "--sweep-file", "none.yaml"], "none.yaml: the file is missing"),
    ):
        assert wrong in " ".join(said(*arguments, code=2).split())


def test_no_heading_breaks_at_eighty_columns(
    root: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line a run, whatever it recorded; its metrics are a row each where they are asked for."""
    said("run", "zeus", "--sweep", "num_stages=2,4")
    monkeypatch.setenv("COLUMNS", "80")
    lines = said("results", "zeus").splitlines()
    heading = next(line for line in lines if line.startswith("paper"))
    assert heading.split() == ["paper", "run", "state", "verdicts", "took"]
    assert sum("current" in line for line in lines[2:]) == 2
    assert "time_s" not in "".join(lines)
    shown = said("results", "zeus", "--metrics")
    assert re.search(r"^zeus +num_stages=2 +time_s +50 *$", shown, re.MULTILINE)
    rows = json.loads(said("results", "zeus", "--metrics", "--json", "-"))["runs"]
    assert {(row["run"], row["metric"], row["value"]) for row in rows} == {
        ("default", "time_s", 25),
        ("default", "peak_bytes", 7),
        ("num_stages=2", "time_s", 50),
        ("num_stages=2", "peak_bytes", 7),
    }
    assert "one of them" in said("results", "--claims", "--metrics", code=2)


def test_where_there_are_no_runs_that_is_said(root: Path, said: Any) -> None:
    assert "0 of 0 runs" in said("results", "--where", "num_stages=2")
    assert "`labkit run KEY` makes results" in said("diff", "zeus", "zeus[num_stages=3]", code=2)


def test_a_difference_of_two_runs(root: Path, said: Any) -> None:
    said("run", "zeus", "--sweep", "num_stages=2,8", "--sweep", "gpu=V100,A40")
    folder = "results/zeus/num_stages=8"
    for other in ("zeus[gpu=A40,num_stages=2]", "zeus [gpu=A40,num_stages=2]"):
        answer = json.loads(said("diff", folder, other, "--json", "-"))
        assert {row["name"] for row in answer["parameters"]} == {"gpu", "num_stages"}
        [row] = [row for row in answer["claims"] if row["name"] == "saving"]
        first = saving(0, 8, "V100")
        second = saving(0, 2, "A40")
        assert (row["first"], row["second"]) == pytest.approx((first, second))
        assert row["verdict"] == "differs → reproduced"
        [time] = [row for row in answer["metrics"] if row["name"] == "time_s"]
        assert time["ratio"] == 4
        assert answer["also_differ"] == []


def test_clean_lists_first_and_keeps_what_holds(root: Path, said: Any) -> None:
    said("run", "zeus", "--sweep", "num_stages=2,4")
    said("run", "zeus", "-p", "gpu=bad", code=1)
    assert "nothing to clear" not in said("clean")
    shutil.copytree(root / "results/zeus", root / "results/gone")
    (root / "results/gone/default/zeus.ipynb").rename(root / "results/gone/default/gone.ipynb")
    (root / "results/zeus/default/claims.json").write_text("")
    listed = said("clean")
    for line in ("results/gone/num_stages=2  orphan", "results/.failed/zeus/gpu=bad  failed"):
        assert line in listed
    assert "results/zeus/default" not in listed
    assert "nothing removed: `labkit clean --yes`" in listed
    assert (root / "results/.failed/zeus/gpu=bad").is_dir()
    said("clean", "--yes")
    assert sorted(path.name for path in (root / "results/zeus").iterdir() if path.is_dir()) == [
        "default",
        "num_stages=2",
    ]
    assert not (root / "results/gone").exists()
    assert not (root / "results/.failed").exists()
    said("clean", "--yes", "--defaults")
    assert [each.folder.name for each in inventory.inventory(root)] == ["num_stages=2"]


def test_clean_leaves_alone_what_no_run_wrote(root: Path, said: Any) -> None:
    """Folders of somebody's own in results/, and what links there lead to."""
    said("run", "zeus", "--sweep", "num_stages=2,4")
    victim = root.parent / "victim" / "thesis"
    victim.mkdir(parents=True)
    (victim / "run.json").write_text("{}")
    (root / "results/evil").symlink_to(victim.parent)
    (root / "results/ghost").mkdir()
    (root / "results/ghost/thesis").symlink_to(victim)
    plots = root / "results/myplots"
    for name, file in (("run1", "log.txt"), ("run2", "run.json"), ("run3", "myplots.ipynb")):
        (plots / name).mkdir(parents=True)
        (plots / name / file).write_text("")
        (plots / name / "thesis.dat").write_text("years of work")
    (root / "results/zeus/num_stages=2/notes.md").write_text("mine")
    text = said("clean", "--yes", "--sweeps")
    assert "nothing to clear away" in text
    assert "results/evil/thesis  left alone: reached by a link" in text
    assert "results/ghost/thesis  left alone: reached by a link" in text
    assert "results/myplots/run2  left alone: no run wrote thesis.dat" in text
    assert "results/zeus/num_stages=2  left alone: no run wrote notes.md" in text
    assert "myplots/run1" not in text
    assert (victim / "run.json").exists()
    assert len(list(plots.rglob("thesis.dat"))) == 3


def test_clean_takes_stale_sweeps_and_parameters_that_are_gone(root: Path, said: Any) -> None:
    said("run", "zeus", "--sweep", "num_stages=2,4", "--sweep", "seed=0,1")
    workbook(root, zeus=(("seed: int = 0", "parameters"), "run()"))
    states = {each.folder.name: each for each in inventory.inventory(root)}
    assert states["num_stages=2"].reason == "the notebook has no parameter 'num_stages'"
    assert (states["seed=1"].state, states["default"].state) == ("stale", "stale")
    said("clean", "zeus", "--yes")
    assert [each.folder.name for each in inventory.inventory(root)] == ["default"]
    assert len(pd.read_parquet(runs.path_of(root, "zeus"))) == 1


def test_clean_keeps_the_runs_of_a_notebook_that_is_being_edited(root: Path, said: Any) -> None:
    said("run", "zeus", "--sweep", "num_stages=2,4")
    for cells in ((("num_stages: int = (", "parameters"),), None):
        path = workbook(root, zeus=cells or PAPER) / "notebooks/tests/zeus.ipynb"
        if cells is None:
            path.write_text("{")
        assert {each.state for each in inventory.inventory(root)} == {"unknown"}
        assert "nothing to clear" in said("clean", "--yes", "--sweeps", "--defaults")


def test_clean_waits_for_a_run_and_spares_what_it_renewed(
    root: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said("run", "zeus", "--sweep", "num_stages=2,4")
    text = (root / "notebooks/tests/zeus.ipynb").read_text()
    workbook(root, zeus=(*PAPER[:1], "run()  # changed"))
    real = guard.lock

    def renewing(*given: Any) -> Any:  # another run ends before the lock is had
        (root / "notebooks/tests/zeus.ipynb").write_text(text)
        return real(*given)

    monkeypatch.setattr(guard, "lock", renewing)
    assert "removed 0 of 1 folder" in said("clean", "--yes")
    assert results.read(root / "results/zeus/num_stages=2") is not None


def test_metrics_are_read_from_the_outputs() -> None:
    book = notebooks.parse(
        json.dumps(
            {
                "nbformat": 4,
                "cells": [
                    {"source": "", "outputs": [{"data": shown._repr_mimebundle_()}]}
                    for shown in (
                        tables.metrics_table({"a_s": 1 / 3, "b": 2}),
                        tables.metrics_table({"b": 3}),
                    )
                ],
            }
        )
    )
    assert tables.metrics_in(book) == {"a_s": 0.3333, "b": 3}
