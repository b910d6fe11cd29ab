"""How pytest's workers share the tests: what begins early, and what stays on one worker.

The workers run one scope after the other, as pytest-xdist's ``loadscope`` has it: a module's tests
stay together, so that its fixtures are made once. Where a module's tests share nothing and take
long, the module would end alone, long after all others: each of its tests is a scope of its own.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

APART = ("workbook/test_standins.py",)
"""Modules each of whose tests is a scope: they take as long as the notebooks that they execute."""
EARLY = (
    *APART,
    "workbook/test_cluster.py",
    "workbook/test_runner.py",
    "workbook/test_faults.py",
    "tests/test_readme.py",
    "memory/test_traced.py",
    "memory/test_context_parallel.py",
    "memory/test_recipes.py",
)
"""The modules that take longest, those that mostly wait first: none shall be the last to begin."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect without looking for garbage: there is none among a million objects that stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebooks first, then what else takes long: work for which no core shall wait at the end.

    The first notebook of each family, then the second of each: notebooks that begin together use
    different engines, so what numba compiles for one is stored when the next of its family begins.
    """
    turns: dict[Path, int] = {}
    families: Counter[Path] = Counter()
    for path in dict.fromkeys(item.path for item in items if item.path.suffix == ".ipynb"):
        turns[path] = families[path.parent]
        families[path.parent] += 1
    items.sort(key=lambda item: (turns.get(item.path, len(turns)), place_of(item.path)))


def place_of(path: Path) -> int:
    """A module's place among those that begin early; all others come after them."""
    names = path.as_posix()
    return next((n for n, name in enumerate(EARLY) if names.endswith(name)), len(EARLY))


def scope_of(nodeid: str) -> str:
    """What runs on one worker: the test's module, or its class, or where it stands apart the test.

    >>> scope_of("tests/kit/test_draw.py::test_a_line[1]")
    'tests/kit/test_draw.py'
    >>> scope_of("tests/workbook/test_standins.py::test_claims[zeus]")
    'tests/workbook/test_standins.py::test_claims[zeus]'
    """
    scope = nodeid.rsplit("::", 1)[0]
    return nodeid if scope.endswith(APART) else scope


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """pytest-xdist's own scheduler of scopes, with ours; None leaves other ways to it."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    return Shares(config, log)
