"""Which of our modules a notebook reaches, read from the code without running it.

From the notebook's cells the import statements are followed through every module of ours, also
those inside functions, with the ``__init__`` of each package on the way. Three things an
import statement does not show are followed as well: attributes of a package (``labkit.pipeline``
after ``import labkit``), modules named by a string in code that calls ``import_module`` (how our
packages load their figures late), and nothing under ``if TYPE_CHECKING``. The top package's own
late names are left out: ``from labkit import pipeline`` reaches the pipeline engine only.
"""

from __future__ import annotations

import ast
import hashlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path

from labkit import LATE

_LATE = ("import_module", "__import__", "attach")  # the last is lazy_loader's
_STANDS_AT = {f"labkit.{name}": module for name, module in LATE.items()}


@dataclass(frozen=True, kw_only=True)
class Module:
    """What one file refers to: dotted names that may be modules, and its string constants."""

    name: str
    path: Path
    sha256: str
    references: frozenset[str]
    strings: frozenset[str]


def source_root() -> Path:
    """The folder that holds the ``labkit`` package."""
    return Path(__file__).resolve().parents[3]


def reached(cells: Iterable[ast.Module], search: Sequence[Path]) -> dict[str, Module]:
    """The modules under ``search`` that a notebook's ``cells`` reach, by name."""
    tops = _top_names(tuple(search))
    modules: dict[str, Module] = {}
    pending = set[str]().union(*(references(cell, tops=tops) for cell in cells))
    while pending:
        wave = sorted(pending)
        pending = set()  # a package before what may stand in it
        for name in (_STANDS_AT.get(name, name) for name in wave):
            if name in modules or name.split(".")[0] not in tops or _is_attribute(name, modules):
                continue
            path = _file_of(name, search)
            if path is not None:
                modules[name] = load(name, path, tops)
                pending |= modules[name].references
    return dict(sorted(modules.items()))


def _is_attribute(name: str, modules: Mapping[str, Module]) -> bool:
    """Whether what holds ``name`` is no package, so that the disk need not be asked for a file."""
    parent = name.rpartition(".")[0]
    is_package = parent in modules and modules[parent].path.name == "__init__.py"
    return bool(parent) and not is_package and name not in _STANDS_AT.values()


def load(name: str, path: Path, tops: frozenset[str]) -> Module:
    """The module ``name`` at ``path``, parsed once for as long as the file does not change."""
    stat = path.stat()
    # The time of a change to the file, ctime, cannot be set as mtime can.
    state = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return _load(name, path, state, tops)


@lru_cache(maxsize=4096)
def _load(name: str, path: Path, state: tuple[int, ...], tops: frozenset[str]) -> Module:
    content = path.read_bytes()
    try:
        tree = ast.parse(content)
    except SyntaxError:  # it cannot be imported either; its content still counts
        tree = ast.Module(body=[], type_ignores=[])
    is_package = path.name == "__init__.py"
    package = name if is_package else name.rpartition(".")[0]
    return Module(
        name=name,
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        references=frozenset(
            references(tree, package=package, tops=tops, late=not (is_package and "." not in name))
        ),
        strings=frozenset(strings(tree)),
    )


def strings(tree: ast.AST) -> set[str]:
    """Every string constant of ``tree``, documentation included."""
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def references(
    tree: ast.Module, *, package: str = "", tops: frozenset[str], late: bool = True
) -> set[str]:
    """Dotted names in ``tree`` that may be modules, each with the packages above it."""
    names: set[str] = set()
    bound: dict[str, str] = {}
    nodes = list(_running_code(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.add(alias.name)
                top = alias.name.split(".")[0]
                bound[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # of what lies beyond the top package
                base = resolve_name("." * node.level + (node.module or ""), package)
                names.add(base)
                for alias in node.names:
                    names.add(f"{base}.{alias.name}")
                    bound[alias.asname or alias.name] = f"{base}.{alias.name}"
    for node in nodes:
        if isinstance(node, ast.Attribute) and (chained := dotted_name(node, bound)):
            names.add(chained)
    if late and any(_name(node) in _LATE for node in nodes if isinstance(node, ast.Call)):
        for text in strings(tree):
            names |= _named(text, package, tops)
    dotted = (name.split(".") for name in names)
    ours = (parts for parts in dotted if parts[0] in tops)
    return {prefix for parts in ours for prefix in accumulate(parts, "{}.{}".format)}


def _running_code(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING``, which never runs."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and _name(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield other
                yield from _running_code(other)
            continue
        yield child
        yield from _running_code(child)


def _name(node: ast.AST) -> str:
    """The last name of a call, an attribute or a plain name."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def dotted_name(node: ast.Attribute, bound: Mapping[str, str]) -> str:
    """``p.figures.draw`` as ``labkit.pipeline.figures.draw`` where ``p`` is an imported name."""
    names: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        names.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name) or inner.id not in bound:
        return ""
    return ".".join([bound[inner.id], *reversed(names)])


def _named(text: str, package: str, tops: frozenset[str]) -> set[str]:
    """The modules a string may name: dotted from the top, or relative to ``package``."""
    if not re.fullmatch(r"\.?[A-Za-z_]\w*(\.\w+)*\.?", text):
        return set()
    text = text.strip(".")
    if text.split(".")[0] in tops:
        return {text}
    return {f"{package}.{text}"} if package else set()


def _file_of(name: str, search: Sequence[Path]) -> Path | None:
    for folder in search:
        stem = folder.joinpath(*name.split("."))
        for path in (stem / "__init__.py", stem.with_name(stem.name + ".py")):
            if path.is_file():
                return path
    return None


@lru_cache(maxsize=64)
def _top_names(search: tuple[Path, ...]) -> frozenset[str]:
    """Packages and modules that stand directly in the folders searched."""
    return frozenset(module.name for module in pkgutil.iter_modules(map(str, search)))
