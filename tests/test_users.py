"""Two users, or it lives with its paper: who uses each public name of the engines.

A user is a notebook, a module of labkit other than the one that defines the name, or a document
(the README, an engine's own docstring or README). Names with one user are printed, since what one
paper alone needs belongs in ``labkit.papers``: ``pytest -s tests/test_users.py``. A name that
nobody uses, neither a test nor its own module (say as a result), fails.
"""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from labkit import ENGINES
from labkit.workbook.run.imports import dotted_name

ROOT = Path(__file__).resolve().parents[1]
NAMES = [engine.name for engine in ENGINES]


def code_of(notebook: Path) -> str:
    """The code of a notebook, without the lines that only IPython understands."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
    cells_end = [line if line.endswith("\n") else f"{line}\n" for line in lines]
    return "".join(line for line in cells_end if not line.lstrip().startswith(("%", "!")))


def bound_names(tree: ast.Module) -> dict[str, str]:
    """The names that a file binds to what it imports, and the dotted names those stand for."""
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                bound[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                bound[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return bound


def used_in(code: str) -> Iterator[tuple[str, str]]:
    """Every (engine, name) that a file of Python refers to."""
    tree = ast.parse(code)
    bound = bound_names(tree)
    dotted = set(bound.values())
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    dotted |= {dotted_name(node, bound) for node in attributes}
    for text in dotted:
        parts = text.split(".")
        if parts[0] == "labkit" and len(parts) > 2 and parts[1] in NAMES:
            yield from ((parts[1], name) for name in parts[2:])


@cache
def users() -> dict[tuple[str, str], set[str]]:
    """Who uses each (engine, name): notebooks by key, modules and documents by path."""
    result = defaultdict(set)
    for notebook in sorted(ROOT.glob("notebooks/**/*.ipynb")):
        for name in used_in(code_of(notebook)):
            result[name].add(notebook.stem)
    for module in (*sorted(ROOT.glob("labkit/**/*.py")), *sorted(ROOT.glob("tests/**/*.py"))):
        for name in used_in(module.read_text(encoding="utf-8")):
            result[name].add(str(module.relative_to(ROOT)))
    for engine in NAMES:
        package = ROOT / "labkit" / engine
        documents = [ROOT / "README.md", package / "README.md", package / "__init__.py"]
        for document in filter(Path.exists, documents):
            text = document.read_text(encoding="utf-8")
            if document.suffix == ".py":
                text = ast.get_docstring(ast.parse(text)) or ""
            for name in re.findall(rf"\b{engine}\.(\w+)", text):
                result[engine, name].add(str(document.relative_to(ROOT)))
    return result


def users_of(engine: str, name: str) -> set[str]:
    """The users of a public name: not the module that it comes from."""
    home = getattr(getattr(import_module(f"labkit.{engine}"), name), "__module__", "")
    own = {f"{home.replace('.', '/')}.py", f"labkit/{engine}/__init__.py"}
    documented = {f"labkit/{engine}/__init__.py"} & users()[engine, name]
    return users()[engine, name] - own | documented


def is_used_at_home(engine: str, name: str) -> bool:
    """Whether the module that defines a name refers to it, for instance as what it returns."""
    home = getattr(getattr(import_module(f"labkit.{engine}"), name), "__module__", "")
    path = ROOT / f"{home.replace('.', '/')}.py"
    if not path.exists():
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


@pytest.mark.parametrize("engine", NAMES)
def test_every_public_name_has_a_user(engine: str) -> None:
    everybody = {name: users_of(engine, name) for name in import_module(f"labkit.{engine}").__all__}
    idle = [name for name, who in everybody.items() if not who]
    assert [name for name in idle if not is_used_at_home(engine, name)] == []
    counted = {
        name: sorted(user for user in who if not user.startswith("tests/"))
        for name, who in everybody.items()
    }
    few = {name: who for name, who in counted.items() if len(who) < 2}
    print(f"\n{engine}: {len(few)} of {len(counted)} public names have fewer than two users")
    for name, who in sorted(few.items(), key=lambda item: item[::-1]):
        print(f"  {name}: {who[0] if who else 'tests alone'}")
