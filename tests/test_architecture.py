"""The house rules a program can check: imports point one way, and importing is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from labkit import ENGINES

PACKAGE = Path(__file__).resolve().parents[1] / "labkit"
GROUND = {"errors", "extras", "files", "quantities", "hardware", "models", "datasets"}
NAMES = [engine.name for engine in ENGINES]
ROOMS = {  # what each room rests on; engines may also import the engines before them
    **dict.fromkeys(GROUND, GROUND - {"models"}),
    "kit": GROUND - {"models"} | {"kit"},
    "models": GROUND | {"kit"},  # its records are declared as the engines' are
    "workbook": GROUND | {"kit", "workbook"},
    **{name: GROUND | {"kit", *NAMES[: i + 1]} for i, name in enumerate(NAMES)},
    "papers": GROUND | {"kit", "papers", *NAMES},
}
FLOORS = {  # of rooms made of packages, from the ground up: each imports only those before it
    "workbook": ("queue", "review", "run", "export", "session"),
    "memory": ("tape", "jobs", "movement", "traced", "plans", "oracles"),
    "pipeline": (
        "scheduling", "simulation", "profiles", "planning", "choice", "figures",
    ),
    "tuning": (
        "traces", "configurations", "policies", "simulation", "goodput", "choice",
        "recording", "live", "figures",
    ),
    "cluster": ("inputs", "policies", "loops"),
    "serving": ("generation", "batching", "device"),
}  # fmt: skip
# Modules of a room that stand beside its packages.
LOBBIES = {
    "workbook": {"notebooks", "normalise", "engine", "founding"},
    "cluster": {"bounds", "figures", "results", "simulation"},
    "memory": {"certainty", "figures", "published"},
    "serving": {"bounds", "figures", "requests", "results", "simulation", "sweeps"},
}
ROOF = {"commands", "panel"}  # of an engine: what rests on all of it, and nothing on them
# Imports for type checkers alone that point back at who imports the module, and why they stay.
BACK_REFERENCES = {
    ("labkit.pipeline.planning.rounding", "labkit.pipeline.planning.relaxation"): (
        "rounding realises what the relaxation solved, and is called by its planner"
    ),
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


KNOWN = {name_of(path): path for path in MODULES}


class Outline(NamedTuple):
    """What the rules ask of a module, from one reading of it."""

    imported: set[str]
    """Dotted names imported anywhere: in functions, by ``import_module``."""
    for_types: set[str]
    """Those imported for type checkers only."""
    assigned: set[str]
    """Every name given to a value: variables, loop variables, parameters."""
    lines_of: dict[str, int]
    """Lines of each function, by name; the longest of those named alike."""


@cache
def outline(path: Path) -> Outline:
    seen = Outline(set(), set(), set(), {})
    _read(ast.parse(path.read_text(encoding="utf-8")), seen, seen.imported)
    return seen


def _read(tree: ast.AST, seen: Outline, imported: set[str]) -> None:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                seen.assigned.add(node.id)
            continue
        if isinstance(node, ast.arg):
            seen.assigned.add(node.arg)
        elif isinstance(node, ast.FunctionDef):
            size = (node.end_lineno or 0) - node.lineno + 1
            seen.lines_of[node.name] = max(size, seen.lines_of.get(node.name, 0))
        else:
            imported.update(targets(node))
        typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        _read(node, seen, seen.for_types if typing else imported)


def targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args:
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if "import_module" in called and isinstance(text := node.args[0], ast.Constant):
            yield str(text.value)


def imported(path: Path, *, typing: bool = False) -> set[str]:
    """Every module of labkit that ``path`` imports; for type checkers where ``typing`` says so."""
    names = outline(path).imported | (outline(path).for_types if typing else set())
    return {module_of(name) for name in names if name.split(".")[0] == "labkit"}


def module_of(name: str) -> str:
    """The longest beginning of a dotted name that is a module."""
    while name not in KNOWN and "." in name:
        name = name.rpartition(".")[0]
    return name


def room(module: str) -> str:
    """The part of labkit a module stands in, e.g. ``pipeline`` for ``labkit.pipeline.plans``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "labkit" else ""


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    used = {room(name) for name in imported(path, typing=True)} - {""}
    assert used <= ROOMS.get(room(name_of(path)), used)


def test_papers_are_leaves() -> None:
    """Nothing of labkit imports a paper's module but the modules of the same paper."""
    for name, path in KNOWN.items():
        used = {paper_of(other) for other in imported(path, typing=True)} - {""}
        assert used <= {paper_of(name)}, name


def test_standins_rest_on_no_paper() -> None:
    """What a stand-in and a paper both need is an engine's, or reads the data set for both."""
    used = {paper_of(name) for name in imported(PACKAGE.parent / "data" / "profiles" / "fit.py")}
    assert used == {""}


def paper_of(module: str) -> str:
    """The paper that a module belongs to: ``hived`` for ``labkit.papers.hived.cells``."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[1] == "papers" else ""


def test_no_cycle_between_modules() -> None:
    """Also not one that imports inside functions hide, or imports for type checkers alone."""
    graph = {}
    for name, path in KNOWN.items():
        graph[name] = imported(path, typing=True) - {name} - parents(name)
        graph[name] -= {other for other in graph[name] if (name, other) in BACK_REFERENCES}
    TopologicalSorter(graph).prepare()


def parents(name: str) -> set[str]:
    """The packages a module lies in: a submodule may name its package for its public names."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def test_every_package_of_a_room_is_a_floor() -> None:
    for name, floors in FLOORS.items():
        packages = {path.parent.name for path in (PACKAGE / name).glob("*/__init__.py")}
        assert packages - ROOF == set(floors)
        files = {path.stem for path in (PACKAGE / name).glob("*.py")}
        assert files - ROOF - {"__init__"} == LOBBIES.get(name, set())


@pytest.mark.parametrize(("engine", "floor"), [(e, f) for e in FLOORS for f in FLOORS[e]])
def test_floors_rest_on_those_below(engine: str, floor: str) -> None:
    below = {*FLOORS[engine][: FLOORS[engine].index(floor) + 1], *LOBBIES.get(engine, set())}
    for path in (PACKAGE / engine / floor).glob("*.py"):
        within = [name.split(".") for name in imported(path, typing=True)]
        used = {parts[2] for parts in within if parts[1:2] == [engine] and parts[2:]}
        assert used <= below, path.name


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_figures_draw_and_only_the_runner_executes(path: Path) -> None:
    tops = {name.split(".")[0] for name in outline(path).imported | outline(path).for_types}
    if not path.stem.endswith("figures") and path.parent.name != "export":
        assert "plotly" not in tops or path.name in {
            "explore.py",
            "stored.py",
            "live.py",
            "draw.py",
        }
    if path.name not in {"runner.py", "engine.py"}:
        assert "papermill" not in tops


def test_importing_labkit_is_light() -> None:
    code = (
        "import sys, labkit, labkit.datasets, labkit.workbook;"
        "print(*{'torch', 'plotly', 'pandas', 'numpy', 'papermill', 'pooch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("engine", NAMES)
def test_importing_an_engine_neither_draws_nor_loads_torch(engine: str) -> None:
    code = (
        f"import sys, labkit.{engine};"
        "print(*{'torch', 'plotly', 'papermill', 'nbformat'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_fit_on_a_screen(path: Path) -> None:
    assert not {name: size for name, size in outline(path).lines_of.items() if size > 70}


def test_one_place_says_what_may_have_been_meant() -> None:
    """So that every refusal names the near names first, by the same rule."""
    users = {name_of(path) for path in MODULES if "difflib" in outline(path).imported}
    assert users == {"labkit.errors"}


def test_fake_ranks_are_made_in_one_place() -> None:
    """Papers and tests use the engine's own: it refuses a second group and ends its own."""
    texts = [*MODULES, *(PACKAGE.parent / "tests").rglob("*.py")]
    name = "Fake" + "Store"
    makers = [path for path in texts if name in path.read_text(encoding="utf-8")]
    assert [path.relative_to(PACKAGE) for path in makers] == [Path("memory/traced/ranks.py")]
