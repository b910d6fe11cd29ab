"""What a notebook imports: ``from labkit import workbook``.

Thin on purpose: each name loads its module on first use, and none of them pulls in the runner,
the exporter or the queue, so that a notebook's kernel starts fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.workbook.explore import explore
    from labkit.workbook.paper import Paper, open_paper
    from labkit.workbook.tables import Table, table

__all__ = ["Paper", "Table", "explore", "open_paper", "table"]

_HOME = {
    "Paper": "paper",
    "Table": "tables",
    "explore": "explore",
    "open_paper": "paper",
    "table": "tables",
}


class _Package(ModuleType):
    """Keeps ``workbook.explore`` the function, also after its module of that name was imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "explore" and isinstance(value, ModuleType):
            return  # importing a submodule sets it on its package; __getattr__ serves the function
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'labkit.workbook' has no attribute {name!r}")
    return getattr(import_module(f"labkit.workbook.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
