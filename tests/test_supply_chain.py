"""What the repository says of itself and of what it installs: pins, hashes, workflows, citation."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from labkit import __version__, extras
from labkit.workbook import notebooks
from labkit.workbook.normalise import rewrite

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):", MAKEFILE, flags=re.M))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
APART = {"torch"}
"""Packages whose files differ from index to index, and that no hash can fix."""
ADVISED = {
    *("jinja2", "jupyter-server", "jupyter-server-proxy", "jupyterlab", "mistune", "nbconvert"),
    *("nh3", "plotly", "pyarrow", "requests", "sphinx-revealjs", "tornado", "voila"),
}
"""Packages of which advisories speak, or that bring a script of which they do."""
CITATION_KEYS = {
    *("abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi"),
    *("identifiers", "keywords", "license", "license-url", "message", "preferred-citation"),
    *("references", "repository", "repository-artifact", "repository-code", "title", "type"),
    *("url", "version"),
}
"""The keys of the Citation File Format 1.2.0."""
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
"""The kinds of change of Keep a Changelog 1.1.0."""


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins(text: str) -> dict[str, str]:
    """The version of each package that lines ``name==version`` name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, flags=re.M)
    return {canonicalize_name(name): version for name, version in found}


def requirements() -> list[Requirement]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [Requirement(text) for texts in groups for text in texts]


PINS = pins(text_of("constraints.txt"))


# ---------------------------------------------------------------- what is installed


def test_the_lock_has_hashes_of_every_pin() -> None:
    text = text_of("requirements.lock")
    assert pins(text) == {name: v for name, v in PINS.items() if name not in APART}
    for entry in re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)[1:]:
        name, *hashes = entry.replace("\\\n", " ").split()
        assert hashes, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", part) for part in hashes), name


@pytest.mark.parametrize("name", ["requirements.lock", "constraints.txt", "pyproject.toml"])
def test_no_file_says_which_index_serves_it(name: str) -> None:
    assert not re.search(r"index-url|find-links|trusted-host|\bhttps?://|\bfile:", text_of(name))


def test_what_is_pinned_satisfies_what_is_asked_for() -> None:
    for asked in requirements():
        name = canonicalize_name(asked.name)
        if name != PROJECT["name"] and name in PINS:
            assert asked.specifier.contains(PINS[name]), str(asked)


@pytest.mark.parametrize("name", sorted(ADVISED))
def test_a_floor_keeps_old_versions_out(name: str) -> None:
    floors = [
        Version(part.version)
        for asked in requirements()
        if canonicalize_name(asked.name) == name
        for part in asked.specifier
        if part.operator == ">="
    ]
    assert floors, name
    assert max(floors) <= Version(PINS[name])


def test_the_build_back_end_is_the_pinned_one() -> None:
    (asked,) = PYPROJECT["build-system"]["requires"]
    assert asked == f"setuptools=={PINS['setuptools']}"


def test_one_name_is_installed_and_one_version_told() -> None:
    assert PROJECT["name"] == extras.DISTRIBUTION != "labkit"
    assert PROJECT["version"] == __version__
    assert PROJECT["scripts"]["labkit"] == "labkit.cli:main"


def test_no_text_sends_a_reader_to_somebody_else_s_package() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "labkit").rglob("*.*")]:
        if path.suffix in (".md", ".py", ".j2") and "__pycache__" not in path.parts:
            # Elsewhere it is said that the name is not ours.
            text = path.read_text(encoding="utf-8").replace("`pip install labkit`", "")
            assert not re.search(r"pip install ['\"]?labkit\b", text), path


# ---------------------------------------------------------------- workflows


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_reads_only_and_runs_what_there_is(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[True]  # `on`, which YAML 1.1 reads as true
    assert all(job["timeout-minutes"] <= 90 for job in workflow["jobs"].values())
    for step in steps(path):
        assert step.keys() & {"uses", "run"}
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])
        for line in step.get("run", "").splitlines():
            program, *words = line.split()
            if program == "make":
                assert set(words) <= TARGETS
            else:
                assert os.access(ROOT / program, os.X_OK), line


def test_tests_run_on_each_change_and_pins_are_audited_each_week() -> None:
    assert [path.stem for path in WORKFLOWS] == ["audit", "test"]
    audit, test = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in WORKFLOWS)
    assert {"push", "pull_request"} <= test[True].keys()
    (schedule,) = audit[True]["schedule"]
    assert len(schedule["cron"].split()) == 5
    assert schedule["cron"].split()[2:4] == ["*", "*"]
    assert schedule["cron"].split()[4].isdigit()
    commands = [[step["run"] for step in steps(path) if "run" in step] for path in WORKFLOWS]
    assert commands == [["make audit"], [".ci/run"]]
    versions = {Version(text) for text in test["jobs"]["test"]["strategy"]["matrix"]["python"]}
    assert min(versions) == Version(PROJECT["requires-python"].removeprefix(">="))


@pytest.mark.parametrize("target", ["lock", "locked", "audit"])
def test_the_targets_of_the_pins_can_be_made(target: str, tmp_path: Path) -> None:
    """What make would type; bash reads it."""
    shutil.copy2(ROOT / "Makefile", tmp_path)
    command = ["make", "-n", target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    checked = subprocess.run(["sh", "-n"], input=done.stdout, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    file = "requirements.lock" if target == "locked" else "constraints.txt"
    assert file in done.stdout


# ---------------------------------------------------------------- git


def test_git_compares_notebooks_as_nbdime_does() -> None:
    command = ["git", "check-attr", "diff", "merge", "--", "notebooks/energy/zeus.ipynb"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no git, or no repository")
    assert done.stdout.count("jupyternotebook") == 2


def test_the_hooks_run_programs_of_the_project() -> None:
    (local,) = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]
    assert local["repo"] == "local"
    assert [hook["id"] for hook in local["hooks"]] == [
        *("ruff", "ruff-format", "normalise", "labkit-check")
    ]
    for hook in local["hooks"]:
        program, *words = hook["entry"].split()
        assert hook["language"] == "system"
        assert (Path(sys.executable).parent / Path(program).name).exists(), program
        assert program.startswith(".venv/bin/")
        if "-m" in words:
            assert (ROOT / (words[-1].replace(".", "/") + ".py")).is_file()


def test_the_hook_writes_a_notebook_in_its_committed_form(tmp_path: Path) -> None:
    stored = ROOT / "notebooks" / "energy" / "zeus.ipynb"
    path = tmp_path / "zeus.ipynb"
    shutil.copy2(stored, path)
    assert rewrite([path]) == []
    content = json.loads(path.read_text(encoding="utf-8"))
    content["metadata"]["papermill"] = {"duration": 3.0}
    content["cells"][0]["metadata"]["collapsed"] = True
    path.write_text(json.dumps(content), encoding="utf-8")
    command = [sys.executable, "-m", "labkit.workbook.normalise", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "committed form" in done.stdout
    assert path.read_bytes() == stored.read_bytes()
    assert notebooks.read(path).metadata.get("papermill") is None


# ---------------------------------------------------------------- citation, changelog


def test_the_citation_is_whole() -> None:
    """By the keys and rules of the format, version 1.2.0."""
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation.keys() <= CITATION_KEYS
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] in ("software", "dataset")
    assert citation["message"]
    assert citation["title"]
    assert all(author.keys() & {"name", "family-names"} for author in citation["authors"])
    assert citation["version"] == __version__
    assert citation["license"] == PROJECT["license"]
    assert len(set(citation["keywords"])) == len(citation["keywords"])


def test_the_changelog_has_this_version_and_what_comes() -> None:
    text = text_of("CHANGELOG.md")
    headings = re.findall(r"^## \[(.+?)\](?: - (.+))?$", text, flags=re.M)
    assert headings[0] == ("Unreleased", "")
    assert headings[1][0] == __version__
    for version, day in headings[1:]:
        assert Version(version)
        assert not day or dt.date.fromisoformat(day)
    assert set(re.findall(r"^### (.+)$", text, flags=re.M)) <= KINDS


def test_an_audit_that_could_not_look_at_a_pin_fails() -> None:
    """Without ``--strict`` the auditor ends well where it found none of the pins."""
    command = ["make", "-n", "audit"]
    typed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert '/pip-audit" --strict ' in typed
