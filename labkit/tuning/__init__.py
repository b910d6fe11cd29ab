"""Batch size and power limit for recurring training jobs: energy, time, and who finds the best.

    trace = tuning.load("zeus-nsdi23", gpu="v100")
    job = trace.job("cifar100")
    tuning.outcomes(job)                            # every configuration's time and energy
    tuning.simulate(job, policy="zeus").summary()   # what a policy saves as the job recurs

    tuning.choose(times, progress, power, ...)      # batch, rule, limit and GPUs for a deadline

``tuning.goodput`` predicts step times and the best batch size of an allocation,
``tuning.noise`` estimates the gradient noise scale, ``tuning.large_batch`` holds learning-rate
rules and the critical batch size. Figures are in ``tuning.figures`` and
``tuning.goodput_figures``, which load Plotly and are loaded on first use.
"""

from importlib import import_module
from types import ModuleType

from labkit.tuning import goodput
from labkit.tuning.choice.choose import JointChoice, choose
from labkit.tuning.choice.gpu_power import GpuPower, HostPower
from labkit.tuning.choice.progress import ModelledProgress
from labkit.tuning.configurations import jit
from labkit.tuning.configurations.outcomes import (
    batch_curves,
    best_power_limits,
    convergence,
    default_choice,
    epoch_cost_j,
    eta_sweep,
    hindsight,
    optimum,
    outcomes,
    pareto_front,
    potential,
    reach_shares,
)
from labkit.tuning.configurations.selectors import cost_j, select_limits
from labkit.tuning.goodput import large_batch, noise
from labkit.tuning.policies.bandits import EpsilonGreedy, LowerConfidenceBound, Thompson
from labkit.tuning.policies.cost_curve import CostCurve
from labkit.tuning.policies.names import POLICIES
from labkit.tuning.policies.player import Outcome, Player, Policy, Task
from labkit.tuning.policies.pruning import Zeus
from labkit.tuning.policies.scripted import Scripted
from labkit.tuning.policies.searches import Fixed, GridSearch, Halving, RandomSearch
from labkit.tuning.simulation.runs import (
    PAPER_RANGE,
    Runs,
    regret_bands,
    savings,
    simulate,
    sweep,
)
from labkit.tuning.traces.checks import ImplausiblePower, IncompleteTrace, TraceWarning
from labkit.tuning.traces.job import Job
from labkit.tuning.traces.sources import load
from labkit.tuning.traces.trace import TrainingTrace
from labkit.tuning.traces.workloads import PUBLISHED

__all__ = [
    "PAPER_RANGE",
    "POLICIES",
    "PUBLISHED",
    "CostCurve",
    "EpsilonGreedy",
    "Fixed",
    "GpuPower",
    "GridSearch",
    "Halving",
    "HostPower",
    "ImplausiblePower",
    "IncompleteTrace",
    "Job",
    "JointChoice",
    "LowerConfidenceBound",
    "ModelledProgress",
    "Outcome",
    "Player",
    "Policy",
    "RandomSearch",
    "Runs",
    "Scripted",
    "Task",
    "Thompson",
    "TraceWarning",
    "TrainingTrace",
    "Zeus",
    "batch_curves",
    "best_power_limits",
    "choose",
    "convergence",
    "cost_j",
    "default_choice",
    "epoch_cost_j",
    "eta_sweep",
    "goodput",
    "hindsight",
    "jit",
    "large_batch",
    "load",
    "noise",
    "optimum",
    "outcomes",
    "pareto_front",
    "potential",
    "reach_shares",
    "regret_bands",
    "savings",
    "select_limits",
    "simulate",
    "sweep",
]


_ON_FIRST_USE = {"figures": "figures", "goodput_figures": "figures.goodput_figures"}


def __getattr__(name: str) -> ModuleType:
    if name in _ON_FIRST_USE:  # Plotly is loaded with the first figure, not with the engine
        return import_module(f"labkit.tuning.{_ON_FIRST_USE[name]}")
    raise AttributeError(f"module 'labkit.tuning' has no attribute {name!r}")
