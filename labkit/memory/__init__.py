"""Training memory: what a rank holds and sends, what fits, and the same measured.

    plan = memory.Plan(
        model=memory.Model.preset("llama-2-7b"), parallel=memory.Parallel(dp=64, zero=3),
        recipe=memory.Recipe.bf16_mixed(), batch=memory.Batch(seq=4096, micro_batch=1))
    plan.peak_bytes, plan.fits("H100-80GB"), plan.peak_moment, plan.frame(), plan.traffic()
    memory.fit(plan, vary="micro_batch", device="H100-80GB")
    memory.sweep(plan, dp=[8, 64, 1024], zero=[0, 1, 2, 3])

:func:`measure` runs a plan on real processes, :func:`check` sets it beside a run. Importing this
loads neither torch nor Plotly.
"""

import lazy_loader

_HOMES = {  # where each public name comes from; modules are loaded with the first of their names
    "jobs.adapter": ("Adapter",),
    "jobs.batch": ("Batch",),
    "jobs.parallel": ("Parallel", "split_layers"),
    "jobs.recipe": ("Recipe",),
    "movement.offload": ("offload",),
    "oracles.checking": ("check",),
    "oracles.oracle": ("measure",),
    "plans.conventions": ("convention_terms", "differences"),
    "plans.frameworks": ("FRAMEWORKS",),
    "plans.inference": ("inference",),
    "plans.plan": ("Model", "Plan"),
    "plans.search": ("compare", "fit", "limits", "sweep"),
    "traced.network": ("Network",),
    "plans.throughput": ("Cluster", "Update", "rivals", "updated_step"),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=("certainty", "figures", "published"), submod_attrs=_HOMES
)
