"""Training memory: what a rank holds and sends, what fits, and the same measured.

    plan = memory.Plan(
        model=memory.Model.preset("llama-2-7b"), parallel=memory.Parallel(dp=64, zero=3),
        recipe=memory.Recipe.bf16_mixed(), batch=memory.Batch(seq=4096, micro_batch=1))
    plan.peak_bytes, plan.peak_moment, plan.frame(), plan.traffic()
    memory.fit(plan, vary="micro_batch", device="H100-80GB")
    memory.sweep(plan, dp=[8, 64, 1024], zero=[0, 1, 2, 3])

:func:`measure` runs a plan on real processes, :func:`check` sets it beside a run. Importing this
loads neither torch nor Plotly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel, split_layers
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.movement.offload import offload
from labkit.memory.plans.frameworks import FRAMEWORKS
from labkit.memory.plans.plan import Plan
from labkit.memory.plans.search import compare, fit, largest_model, stages, sweep
from labkit.memory.tools import published
from labkit.models import Model

if TYPE_CHECKING:
    import labkit.memory.figures as figures
    from labkit.memory.movement.volumes import collectives
    from labkit.memory.oracles.adam_speed import adam_speed
    from labkit.memory.oracles.checking import check
    from labkit.memory.oracles.oracle import measure
    from labkit.memory.plans.rivals import rivals
    from labkit.memory.plans.throughput import Cluster
    from labkit.memory.plans.update import Update, updated_step
    from labkit.memory.tools.conventions import count, differences

_LAZY = {
    "Cluster": "plans.throughput",
    "Update": "plans.update",
    "adam_speed": "oracles.adam_speed",
    "check": "oracles.checking",
    "collectives": "movement.volumes",
    "count": "tools.conventions",
    "differences": "tools.conventions",
    "measure": "oracles.oracle",
    "rivals": "plans.rivals",
    "updated_step": "plans.update",
}

__all__ = [
    "FRAMEWORKS",
    "Batch",
    "Cluster",
    "Model",
    "Parallel",
    "Plan",
    "Recipe",
    "Update",
    "adam_speed",
    "check",
    "collectives",
    "compare",
    "count",
    "differences",
    "figures",
    "fit",
    "largest_model",
    "measure",
    "offload",
    "published",
    "rivals",
    "split_layers",
    "stages",
    "sweep",
    "updated_step",
]


def __getattr__(name: str) -> Any:
    if name == "figures":
        return import_module("labkit.memory.figures")
    if name in _LAZY:
        return getattr(import_module(f"labkit.memory.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'labkit.memory' has no attribute {name!r}")
