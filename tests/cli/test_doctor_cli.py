"""``labkit doctor``: finds what is ill, says what to do, and never dies of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from labkit.cli import doctor
from labkit.cli.doctor import Checkout, Finding
from labkit.workbook.run import guard, results

COMMIT = "ab" * 20
REGISTRY = f"""\
datasets:
  runs24:
    title: Runs
    origin: https://example.org/lab/runs
    commit: {COMMIT}
    licence: MIT
    citation: runs
    notes: Seconds.
    files:
      - path: time.csv
        url: http://127.0.0.1:9/time.csv
        sha256: 2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881
        bytes: 1
"""  # the one byte is "x"
PYPROJECT = """\
[project]
name = "workbook"
dependencies = ["pytest>=1", "ruamel.yaml"]
[project.optional-dependencies]
workbook = ["pyyaml", "pytest", "not-installed-here"]
lab = ["no-such-package==1.0", "workbook[workbook]"]
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    (tmp_path / "data").mkdir()
    (tmp_path / "reading_queue.yaml").write_text("")
    (tmp_path / "data" / "datasets.yaml").write_text(REGISTRY)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    pins = f"# pinned\npytest=={pytest.__version__}\nruamel.yaml==0.0.1\n"
    (tmp_path / "constraints.txt").write_text(pins)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    monkeypatch.delenv("LABKIT_DATA_MIRROR", raising=False)
    return Checkout(tmp_path)


def add_notebook(checkout: Checkout, key: str, *datasets: str) -> None:
    folder = checkout.root / "notebooks" / "energy"
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"labkit": {"paper": key, "datasets": list(datasets)}}
    notebook = {"cells": [], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    (folder / f"{key}.ipynb").write_text(json.dumps(notebook))


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.callback()(lambda: None)
    app.add_typer(doctor.commands)
    result = CliRunner().invoke(app, ["doctor", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def only(monkeypatch: pytest.MonkeyPatch, *chosen: Any) -> None:
    monkeypatch.setattr(doctor, "CHECKS", chosen)


def test_the_checkout_it_stands_in_is_examined_throughout() -> None:
    """On the real workbook: every check comes to a finding, and none of them breaks."""
    findings = list(doctor.examine())
    broken = [finding for finding in findings if "the check itself failed" in finding.observed]
    assert not broken
    named = {finding.check for finding in findings}
    wanted = {"python", "disk", "jupyter kernel", "papermill engine", "reveal.js", "notebooks"}
    assert wanted | {"reading queue", "bibliography", "network", "cache writable"} <= named
    assert all(finding.advice for finding in findings if finding.status == "warn")


def test_a_failure_ends_with_1_and_warnings_with_0(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(status: Any) -> Any:
        return lambda _: iter(
            [Finding(check="x", status=status, observed="seen", advice="do this")]
        )

    only(monkeypatch, say("ok"), say("warn"))
    code, printed = run()
    assert code == 0
    assert "1 ok, 1 warnings, 0 failed" in printed
    assert "do this" in printed
    only(monkeypatch, say("ok"), say("fail"))
    assert run()[0] == 1


def test_json_holds_the_same_findings(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, doctor.check_notebooks)
    code, printed = run("--json")
    report = json.loads(printed)
    assert code == 1
    assert report["ok"] is False
    assert [f["check"] for f in report["findings"]] == ["notebooks"]
    assert report["findings"][0]["status"] == "fail"


def test_a_check_that_breaks_is_a_finding(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_something_odd(_: Checkout) -> Iterator[Finding]:
        raise RuntimeError("a surprise")
        yield

    only(monkeypatch, check_something_odd, doctor.check_disk)
    first, second = doctor.examine()
    assert (first.check, first.status) == ("something odd", "fail")
    assert "a surprise" in first.observed
    assert second.check == "disk"


def test_without_a_workbook_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    (finding,) = doctor.examine()
    assert finding.status == "fail"
    assert "reading_queue.yaml" in finding.observed


def test_packages_are_imported_and_compared_with_their_pins(checkout: Checkout) -> None:
    found = {finding.check: finding for finding in doctor.check_packages(checkout)}
    assert found["package pytest"].status == "ok"
    assert found["package ruamel.yaml"].status == "warn"
    assert "pinned 0.0.1" in found["package ruamel.yaml"].observed
    assert found["package no-such-package"].status == "warn", "an optional one is no failure"
    advice = found["package no-such-package"].advice
    assert advice == "optional: pip install -c constraints.txt -e '.[lab]'", "make brings no more"
    assert found["package not-installed-here"].status == "fail", "a workbook needs its own extra"
    assert "package workbook" not in found, "an extra that names another is no package"


def test_a_package_is_imported_by_the_name_that_it_has_as_a_module() -> None:
    names = ["PyYAML", "beautifulsoup4", "ruamel.yaml", "jupyter-client"]
    modules = ["yaml", "bs4", "ruamel.yaml", "jupyter_client"]
    assert list(map(doctor._imported_as, names)) == modules


def test_a_missing_or_broken_dependency_is_a_failure(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = checkout.root / "pytest_broken.py"
    broken.write_text("raise OSError('libfoo.so: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(str(checkout.root))
    version_of = doctor.metadata.version
    monkeypatch.setattr(
        doctor.metadata, "version", lambda name: "1.0" if "broken" in name else version_of(name)
    )
    found = doctor._package("pytest-broken", {}, must_import=True)
    assert found.status == "fail"
    assert "libfoo.so" in found.observed
    assert doctor._package("absent", {}, must_import=True).observed == "not installed"


def test_a_local_version_part_is_no_difference() -> None:
    assert doctor._same("2.13.0+cpu", "2.13.0")
    assert not doctor._same("2.13.1", "2.13.0")


def test_an_old_python_is_a_failure(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    (finding,) = doctor.check_python(checkout)
    assert finding.status == "fail"
    assert "3.11" in finding.advice


def test_data_here_missing_and_damaged_are_told_apart(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_notebook(checkout, "zeus", "runs24")
    add_notebook(checkout, "zero")
    (finding,) = doctor.check_data(checkout)
    assert (finding.check, finding.status) == ("published data", "warn")
    assert "runs24 (zeus)" in finding.observed
    assert "labkit data fetch runs24" in finding.advice
    add_notebook(checkout, "perseus", "runs24")  # one line, however many notebooks
    (finding,) = doctor.check_data(Checkout(checkout.root))
    assert "runs24 (perseus, zeus)" in finding.observed
    mirrored = checkout.root / "mirror" / "runs24" / "time.csv"
    mirrored.parent.mkdir(parents=True)
    monkeypatch.setenv("LABKIT_DATA_MIRROR", str(checkout.root / "mirror"))
    mirrored.write_bytes(b"x")
    (finding,) = doctor.check_data(checkout)
    assert finding.status == "ok"
    mirrored.write_bytes(b"y")
    (finding,) = doctor.check_data(checkout)
    assert finding.status == "fail"
    assert "labkit data verify" in finding.advice


def test_the_network_matters_only_where_data_is_missing(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LABKIT_OFFLINE")
    add_notebook(checkout, "zero")
    (finding,) = doctor.check_network(Checkout(checkout.root))
    assert finding.status == "ok"
    assert "refused" in finding.observed
    add_notebook(checkout, "zeus", "runs24")
    (finding,) = doctor.check_network(Checkout(checkout.root))
    assert finding.status == "warn"
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    (finding,) = doctor.check_network(checkout)
    assert "not tried" in finding.observed


def test_an_unreadable_notebook_and_an_unknown_dataset_are_failures(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_notebook(checkout, "zeus", "runs25")
    only(monkeypatch, doctor.check_data)
    (finding,) = doctor.examine()
    assert finding.status == "fail"
    assert "did you mean 'runs24'" in finding.observed
    (checkout.root / "notebooks" / "energy" / "zero.ipynb").write_text("{")
    only(monkeypatch, doctor.check_notebooks)
    (finding,) = doctor.examine()
    assert finding.status == "fail"
    assert "zero.ipynb" in finding.observed


def test_a_folder_that_cannot_be_written_is_a_failure(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout.root / "in-the-way").write_text("")
    monkeypatch.setenv("LABKIT_CACHE", str(checkout.root / "in-the-way" / "cache"))
    found = {finding.check: finding for finding in doctor.check_folders(checkout)}
    assert found["results/ writable"].status == "ok"
    assert not (checkout.root / "results").exists(), "looking leaves nothing behind"
    assert found["cache writable"].status == "fail"
    assert "LABKIT_CACHE" in found["cache writable"].advice


def test_what_a_killed_or_failed_run_left_is_a_warning(checkout: Checkout) -> None:
    assert [finding.status for finding in doctor.check_results(checkout)] == ["ok"]
    meta: dict[str, Any] = {"parameters": {}}
    folder = results.store(checkout.root, "zeus", "default", {"claims.json": "[]"}, meta)
    results.store(checkout.root, "hare", "default", {"claims.json": "[]"}, meta)
    results.store_failure(checkout.root, "reef", "seed=1", {"reef.ipynb": "{}"})
    (folder / "claims.json").write_text("[ ")
    guard.journal_file(checkout.root).write_text("")
    [finding] = doctor.check_results(checkout)
    assert finding.status == "warn"
    assert finding.observed == (
        "zeus/default: result damaged: claims.json; reef/seed=1 failed; "
        "a run is at work or was killed"
    )
    assert finding.advice == "labkit run"


def test_a_kernel_of_another_python_is_a_warning(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_client import kernelspec

    kernels = checkout.root / "jupyter" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    spec = {"argv": ["/opt/other/bin/python", "-m", "ipykernel_launcher"], "display_name": "p"}
    (kernels / "kernel.json").write_text(json.dumps(spec))
    found = kernelspec.KernelSpec.from_resource_dir(str(kernels))
    monkeypatch.setattr(kernelspec.KernelSpecManager, "get_kernel_spec", lambda self, name: found)
    (finding,) = doctor.check_kernel(checkout)
    assert finding.status == "warn"
    assert "/opt/other/bin/python" in finding.observed


def test_well_packages_share_a_line_unless_all_are_asked_for(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, doctor.check_packages)
    _, brief = run()
    _, whole = run("--all")
    assert "package pytest" not in brief
    assert "package pytest" in whole
    for printed in (brief, whole):
        assert "package ruamel.yaml" in printed
