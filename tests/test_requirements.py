"""What is imported is asked for: the engines by the package itself, the workbook by its extras."""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import pytest

from labkit import ENGINES
from tests.test_architecture import KNOWN, MODULES, PACKAGE, name_of, outline, room

PYPROJECT = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
PROJECT: dict[str, Any] = tomllib.loads(PYPROJECT)["project"]
NOT_ENGINES = {"cli", "mcp", "papers", "workbook"}
PARTS = {"pydantic_core": "pydantic"}
"""Packages whose version another one fixes, which is asked for in their place."""
LOADS_AN_EXTRA = {
    "labkit.collectives.executing": "labkit.kit.ranks",
    "labkit.kit.meters": "labkit.kit.ranks",
    "labkit.kit.rank_process": "labkit.kit.ranks",
    "labkit.memory.movement.quantise": "",  # it is given tensors
    "labkit.memory.oracles.adapters": "labkit.memory.oracles.checking",
    "labkit.memory.oracles.blocks": "labkit.memory.oracles.checking",
    "labkit.memory.oracles.checkpoints": "labkit.memory.oracles.checking",
    "labkit.memory.oracles.collective": "labkit.kit.ranks",
    "labkit.memory.oracles.cuda": "labkit.memory.oracles.cuda",
    "labkit.memory.oracles.digits": "labkit.kit.ranks",
    "labkit.memory.oracles.four_bits": "labkit.memory.oracles.checking",
    "labkit.memory.oracles.kernels": "labkit.memory.oracles.checking",
    "labkit.memory.oracles.modules": "labkit.memory.oracles.checking",
    "labkit.memory.oracles.networks": "labkit.memory.oracles.checking",
    "labkit.memory.oracles.older": "labkit.memory.oracles.checking",
    "labkit.memory.oracles.oracle": "labkit.memory.oracles.oracle",
    "labkit.memory.oracles.split_block": "labkit.kit.ranks",
    "labkit.memory.oracles.tracker": "labkit.memory.oracles.checking",
    "labkit.memory.oracles.tuners": "labkit.memory.oracles.checking",
    "labkit.memory.oracles.ways": "labkit.memory.oracles.checking",
    "labkit.memory.oracles.worker": "labkit.kit.ranks",
    "labkit.memory.traced.modules": "labkit.memory.traced.modules",
    "labkit.memory.traced.network": "labkit.memory.traced.modules",
    "labkit.memory.traced.ranks": "labkit.memory.traced.modules",
    "labkit.memory.traced.recorder": "labkit.memory.traced.modules",
    "labkit.memory.traced.step": "labkit.memory.traced.modules",
    "labkit.swap.running": "labkit.swap.running",
    "labkit.tuning.recording.adaptive": "labkit.tuning.recording.training",
    "labkit.tuning.recording.meters": "labkit.tuning.recording.meters",
    "labkit.tuning.recording.stacked": "labkit.tuning.recording.training",
    "labkit.tuning.recording.training": "labkit.tuning.recording.training",
}
"""Modules of the engines that load torch and its kin, and the module that is called before them
and says what to install where that is missing."""


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def asked_for(texts: list[str]) -> set[str]:
    """The distributions that requirements name."""
    return {plain(re.split(r"[\s\[<>=!~;(]", text)[0]) for text in texts}


NAME = PROJECT["name"]
BASE = asked_for(PROJECT["dependencies"])
EXTRAS = {extra: asked_for(texts) for extra, texts in PROJECT["optional-dependencies"].items()}


@cache
def distributions() -> dict[str, set[str]]:
    """The installed distributions that an imported name may come from."""
    names = metadata.packages_distributions()
    return {top: {plain(name) for name in owners} for top, owners in names.items()}


def foreign(path: Path) -> set[str]:
    """The top-level names that a module imports and that are neither Python's nor ours; also those
    that it imports in a function, not those for type checkers."""
    tops = {name.split(".")[0] for name in outline(path).imported}
    return tops - sys.stdlib_module_names - {"labkit", "__future__"}


def owners(top: str) -> set[str]:
    return {PARTS.get(top, top)} if top in PARTS else distributions().get(top, {plain(top)})


@pytest.mark.parametrize(
    "path", [path for path in MODULES if room(name_of(path)) not in NOT_ENGINES], ids=name_of
)
def test_engines_import_what_a_plain_installation_brings(path: Path) -> None:
    more = {top for top in foreign(path) if not owners(top) & BASE}
    assert bool(more) == (name_of(path) in LOADS_AN_EXTRA), more
    assert more <= {"peft", "psutil", "sklearn", "torch", "transformers", "zeus"}


@pytest.mark.parametrize("guard", sorted({*LOADS_AN_EXTRA.values()} - {""}))
def test_what_loads_an_extra_is_guarded(guard: str) -> None:
    """``test_wheel`` reads the sentences themselves."""
    text = KNOWN[guard].read_text(encoding="utf-8")
    assert re.search(r"extras\.(need|lacking|command)\(|pip install ", text)


@pytest.mark.parametrize(
    "path", [path for path in MODULES if room(name_of(path)) in NOT_ENGINES], ids=name_of
)
def test_the_workbook_imports_what_it_asks_for(path: Path) -> None:
    known = BASE.union(*(names for extra, names in EXTRAS.items() if extra != "dev"))
    assert {top for top in foreign(path) if not owners(top) & known} == set()


def test_extras_name_each_other_where_one_needs_the_other() -> None:
    """``all`` is all of them; whatever runs or serves notebooks brings the workbook."""
    optional = PROJECT["optional-dependencies"]
    (everything,) = optional["all"]
    named = everything.removeprefix(f"{NAME}[").removesuffix("]").split(",")
    assert sorted(named) == sorted(optional.keys() - {"all", "dev"})
    reached = {extra: {extra} for extra in optional}
    for _ in optional:
        for extra, texts in optional.items():
            for text in texts:
                if text.startswith(f"{NAME}["):
                    for other in text.removeprefix(f"{NAME}[").removesuffix("]").split(","):
                        reached[extra] |= reached[other]
    assert {extra for extra in optional if "workbook" in reached[extra]} == {
        *("all", "cluster", "collab", "kubernetes", "lab", "workbook"),
    }


def test_the_makefile_installs_the_workbook_too() -> None:
    text = (PACKAGE.parent / "Makefile").read_text(encoding="utf-8")
    assert "-c constraints.txt -e '.[workbook,torch,lab,dev]'" in text


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_an_engine_with_a_panel_has_a_module_of_that_name(engine: object) -> None:
    name, _, has_panel = engine  # type: ignore[misc]
    assert has_panel == (PACKAGE / name / "panel.py").is_file()
    if has_panel:
        panel = import_module(f"labkit.{name}.panel").panel
        brought = inspect.signature(panel).parameters
        assert {*brought} <= {"profile", "model"}
        assert all(parameter.default == "" for parameter in brought.values())
