"""Engines and workbook for systems-for-ML papers.

``import labkit`` is cheap: engines and the workbook load on first use, so the command line
answers at once and an engineer who wants one engine never pays for the others.
"""

from importlib import import_module
from types import ModuleType

__version__ = "0.1.0"

_LAZY = ("datasets", "figures", "memory", "pipeline", "tuning", "workbook")

__all__ = ["__version__", *_LAZY]


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        return import_module(f"labkit.{name}")
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
