"""Training memory: what a rank holds and sends, what fits, and the same measured.

Describe (:class:`Model`, :class:`Parallel`, :class:`Recipe`, :class:`Batch` in a :class:`Plan`),
then ask: ``plan.frame()``, ``plan.traffic()``, :func:`fit`, :func:`sweep`. :func:`measure` runs the
same on real processes, :func:`check` sets a plan beside a run. Importing this loads neither torch
nor Plotly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labkit.memory import published
from labkit.memory.activations import Batch
from labkit.memory.panel import panel
from labkit.memory.plan import Parallel, Plan, Term
from labkit.memory.search import Fit, compare, fit, frontier, largest_model, stages, sweep
from labkit.memory.states import STAGE_NAMES, Recipe
from labkit.memory.traffic import Collective, Scheme
from labkit.models import Model

if TYPE_CHECKING:
    import labkit.memory.figures as figures
    from labkit.memory.checking import check
    from labkit.memory.oracle import SCHEMES, Measurement, measure

_LAZY = {"check": "checking", "measure": "oracle", "Measurement": "oracle", "SCHEMES": "oracle"}

__all__ = [
    "SCHEMES",
    "STAGE_NAMES",
    "Batch",
    "Collective",
    "Fit",
    "Measurement",
    "Model",
    "Parallel",
    "Plan",
    "Recipe",
    "Scheme",
    "Term",
    "check",
    "compare",
    "figures",
    "fit",
    "frontier",
    "largest_model",
    "measure",
    "panel",
    "published",
    "stages",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "figures":
        return import_module("labkit.memory.figures")
    if name in _LAZY:
        return getattr(import_module(f"labkit.memory.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'labkit.memory' has no attribute {name!r}")
