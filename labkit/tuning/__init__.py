"""Batch size and power limit for recurring training jobs: energy, time, and who finds the best.

    trace = tuning.load("zeus-nsdi23", gpu="v100")
    job = trace.job("cifar100")
    tuning.outcomes(job)                            # every configuration's time and energy
    tuning.simulate(job, policy="zeus").summary()   # what a policy saves as the job recurs

    tuning.choose(times, progress, power, ...)      # batch, rule, limit and GPUs for a deadline

``tuning.goodput`` predicts step times and the best batch size of an allocation,
``tuning.noise`` estimates the gradient noise scale, ``tuning.large_batch`` holds learning-rate
rules and the critical batch size. Figures are in ``tuning.figures`` and
``tuning.goodput_figures``, which load Plotly.
"""

from importlib import import_module
from typing import Any

import lazy_loader

_HOMES = {  # where each public name comes from; modules are loaded with the first of their names
    "choice.choose": ("JointChoice", "choose"),
    "choice.gpu_power": ("GpuPower", "HostPower"),
    "choice.progress": ("ModelledProgress",),
    "configurations.outcomes": (
        "best_power_limits", "convergence", "default_choice", "epoch_cost_j", "optimum", "outcomes",
    ),
    "configurations.power_limits": ("cost_j", "select_limits"),
    "policies.cost_curve": ("CostCurve",),
    "policies.names": ("POLICIES",),
    "policies.policy": ("Outcome", "Policy", "Task"),
    "policies.pruning": ("Zeus",),
    "policies.scripted": ("Scripted",),
    "policies.searches": (
        "EpsilonGreedy", "Fixed", "GridSearch", "Halving", "LowerConfidenceBound", "RandomSearch",
        "Thompson",
    ),
    "simulation.runs": ("PAPER_RANGE", "Runs", "savings", "simulate", "sweep"),
    "traces.checks": ("ImplausiblePower", "IncompleteTrace", "TraceWarning"),
    "traces.job": ("PUBLISHED", "Job"),
    "traces.trace": ("TrainingTrace", "load"),
}  # fmt: skip
_attribute, __dir__, _names = lazy_loader.attach(__name__, submod_attrs=_HOMES)
_MODULES = {  # public modules
    "figures": "figures",
    "goodput": "goodput",
    "goodput_figures": "figures.goodput_figures",
    "large_batch": "goodput.large_batch",
    "noise": "goodput.noise",
}

__all__ = [*_names, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{_MODULES[name]}")
    return _attribute(name)
