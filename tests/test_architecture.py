"""The house rules a program can check: imports point one way, and importing is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "labkit"
GROUND = {"errors", "files", "units", "hardware", "models", "datasets", "figures"}
ENGINES = {"pipeline", "memory", "tuning"}
FLOORS = {  # of engines made of packages, from the ground up: each imports only those before it
    "memory": ("tape", "jobs", "movement", "plans", "tools", "papers", "oracles", "figures"),
    "pipeline": (
        "scheduling", "simulation", "profiles", "planning", "choice", "studies", "figures",
    ),
}  # fmt: skip
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Every module ``path`` imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(module: str) -> str:
    """The part of labkit a module stands in, e.g. ``pipeline`` for ``labkit.pipeline.plans``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "labkit" else ""


def rooms_imported(path: Path) -> set[str]:
    return {room(name) for name in imported(path)} - {"", "__version__"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    here, used = room(name_of(path)), rooms_imported(path)
    if here in GROUND:
        assert used <= GROUND
    elif here in ENGINES:
        assert used <= GROUND | {here}
    elif here == "workbook":
        assert used <= GROUND | {"workbook"}


def test_every_package_of_an_engine_is_a_floor() -> None:
    for engine, floors in FLOORS.items():
        assert {path.parent.name for path in (PACKAGE / engine).glob("*/__init__.py")} == set(
            floors
        )
        assert [path.name for path in (PACKAGE / engine).glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize(("engine", "floor"), [(e, f) for e in FLOORS for f in FLOORS[e]])
def test_floors_rest_on_those_below(engine: str, floor: str) -> None:
    below = FLOORS[engine][: FLOORS[engine].index(floor) + 1]
    for path in (PACKAGE / engine / floor).glob("*.py"):
        within = {name for name in imported(path) if name.split(".")[1:2] == [engine]}
        assert {"".join(name.split(".")[2:3]) for name in within} <= set(below), path.name


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_figures_draw_and_only_the_runner_executes(path: Path) -> None:
    tops = {name.split(".")[0] for name in imported(path)}
    if not path.name.endswith("figures.py") and path.parent.name != "export":
        assert "plotly" not in tops or path.name == "explore.py"
    if path.name not in {"runner.py", "engine.py"}:
        assert "papermill" not in tops


def test_importing_labkit_is_light() -> None:
    code = (
        "import sys, labkit, labkit.datasets, labkit.workbook;"
        "print(*{'torch', 'plotly', 'pandas', 'numpy', 'papermill', 'pooch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_importing_an_engine_neither_draws_nor_loads_torch(engine: str) -> None:
    code = (
        f"import sys, labkit.{engine};"
        "print(*{'torch', 'plotly', 'papermill', 'nbformat'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 450


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_fit_on_a_screen(path: Path) -> None:
    long = {
        f"{node.name} ({(node.end_lineno or 0) - node.lineno + 1} lines)"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    }
    assert not long
