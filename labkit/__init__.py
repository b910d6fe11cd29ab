"""Engines and workbook for systems-for-ML papers.

``import labkit`` is cheap: engines and the workbook load on first use, so the command line
answers at once and an engineer who wants one engine never pays for the others.
"""

from importlib import import_module
from typing import Any, NamedTuple

__version__ = "0.1.0"


class Engine(NamedTuple):
    """An engine: the package ``labkit.<name>``, whose ``commands`` are ``labkit <name>``.

    One that ``has_panel`` has a module ``panel``, which ``labkit panel <name>`` shows.
    """

    name: str
    summary: str
    has_panel: bool = False


ENGINES = (
    Engine(
        "pipeline",
        "Pipeline parallelism: what a schedule costs in time, memory and joules.",
        has_panel=True,
    ),
    Engine(
        "memory",
        "Training memory: the peak and its moment, what fits, what dominates.",
        has_panel=True,
    ),
    Engine("collectives", "Collectives as programs: what they cost on links, and run for real."),
    Engine("planner", "Parallel training plans: layers on devices, and what bounds them."),
    Engine("swap", "Recomputation: what to keep for the backward pass, and what it costs."),
    Engine(
        "tuning",
        "Batch size, power limit and number of GPUs: time and energy to a target.",
        has_panel=True,
    ),
    Engine(
        "cluster",
        "GPU clusters: which job runs when, under which policy; what none can beat.",
        has_panel=True,
    ),
    Engine(
        "serving",
        "Serving models: requests, batches, devices; latency and throughput.",
        has_panel=True,
    ),
)
"""Every engine, in the one order in which they may import each other: later ones the earlier."""

LATE = {engine.name: f"labkit.{engine.name}" for engine in ENGINES} | {
    "datasets": "labkit.datasets",
    "figures": "labkit.kit.draw",
    "sweep": "labkit.kit.sweep",
    "workbook": "labkit.workbook",
}
"""Where the names of the library stand; ``sweep`` is the function of its module."""

__all__ = ["ENGINES", "__version__", *LATE]


def __getattr__(name: str) -> Any:
    if name in LATE:
        module = import_module(LATE[name])
        return module.sweep if name == "sweep" else module
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
