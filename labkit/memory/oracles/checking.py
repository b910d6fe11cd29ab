"""A plan beside a run of the same: predicted and measured bytes, component by component.

Three oracles: torch's tracker on tensors without numbers (``"fake"``: one rank, any size), real
processes on a CPU (``"gloo"``: shards, small models), and a GPU's allocator (``"cuda"``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from labkit.errors import UsageError, not_among
from labkit.memory.jobs.modes import mode_of
from labkit.memory.jobs.states import COMPONENTS
from labkit.memory.plans.plan import Plan
from labkit.memory.tape import moments as steps
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd

Oracle = Literal["fake", "gloo", "cuda"]
ORACLES: dict[str, str] = {
    "fake": "torch's MemTracker on fake tensors: one rank, any size, no GPU",
    "gloo": "FSDP2 and others on real processes of this machine: model states of small models",
    "cuda": "torch.cuda.max_memory_allocated on this machine's GPU: one rank, the peak",
}
_MEASURED = {"Parameter": "parameters", "Optstate": "optimizer", "Gradient": "gradients"}


def check(plan: Plan, *, oracle: str = "fake") -> pd.DataFrame:
    """A row a component: predicted and measured bytes, and their difference.

    ``"fake"`` and ``"cuda"`` compare the peak; ``"fake"`` also at its components, where what the
    tracker does not tell apart (activations, temporaries, inputs) is one row. ``"gloo"`` compares
    the states of every rank, then the plan's own with those of the fullest rank; what is sharded is
    cut as ``plan.parallel.shard_rule`` says, there and here.

    Raises:
        UsageError: the oracle is unknown, cannot run this plan, or there is no GPU.
    """
    if oracle not in ORACLES:
        raise not_among("oracle", oracle, ORACLES)
    if not plan.detailed:
        raise UsageError("only a plan with a Model and a Batch without a formula can be checked")
    return {"fake": _fake, "gloo": _gloo, "cuda": _cuda}[oracle](plan)


def _table(rows: list[tuple[str, float, float]]) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame(rows, columns=["component", "predicted_bytes", "measured_bytes"])
    difference = table["predicted_bytes"] - table["measured_bytes"]
    relative = difference / table["measured_bytes"].where(table["measured_bytes"] != 0)
    return table.assign(difference_bytes=difference, difference_fraction=relative)


def one_rank(plan: Plan, oracle: str) -> tuple[Model, Any]:
    """The model and batch of a plan that one rank can run as the networks do.

    Raises:
        UsageError: it cannot; the message says what is in the way.
    """
    assert isinstance(plan.model, Model)
    assert plan.batch is not None
    recipe = plan.recipe
    wide = recipe.parameters == recipe.gradients == recipe.states
    plain = recipe.optimizer == "adam" and not recipe.amsgrad and recipe.second_gradients is None
    away = {recipe.offload_parameters, recipe.offload_gradients, recipe.offload_optimizer}
    reasons = {
        "one rank (dp = tp = cp = pp = 1)": plan.parallel.world_size == 1,
        "Adam with states in the parameters' format and no master copy, such as"
        " Recipe.fp32_adam() or Recipe.bf16_autocast()": wide and plain and recipe.master is None,
        "weights used as they are stored, or autocast": recipe.autocast or recipe.compute is None,
        "everything on the device": away == {"device"},
        "no accumulation": recipe.accumulation == 1,
    }
    if missing := [rule for rule, holds in reasons.items() if not holds]:
        raise UsageError(f"oracle {oracle!r} needs {'; '.join(missing)}")
    return plan.model, plan.batch


def _fake(plan: Plan) -> pd.DataFrame:
    from labkit.memory.oracles import tracker

    model, batch = one_rank(plan, "fake")
    seen = tracker.track(
        model,
        mode_of(plan.recipe, batch),
        seq=batch.seq,
        micro_batch=batch.micro_batch,
        step=plan.recipe.step,
        period=max(1, batch.every),
        group=batch.recompute_group,
        chunks=batch.loss_chunks,
    )
    told = dict(plan.estimate.moments[seen.peak_moment])
    if seen.peak_moment == steps.STEP:  # the tracker has the step's temporaries with the optimizer
        told["optimizer"] += told.pop("temporaries")
    if plan.recipe.step != "fused":  # on a CPU the step counters count too
        told["optimizer"] += 4 * int(steps.num_tensors(model))
    found = _by_component(seen.moments[seen.peak_moment])
    predicted = {name: float(told.pop(name, 0)) for name in found if name in told}
    predicted[REST] = float(sum(told.values()))
    rows = [(name, predicted.get(name, 0.0), float(size)) for name, size in found.items()]
    rows.append((f"peak, {seen.peak_moment}", sum(predicted.values()), float(seen.peak_bytes)))
    return _table(rows)


REST = "activations, temporaries, inputs"


def _by_component(parts: dict[str, int]) -> dict[str, int]:
    """The tracker's own headings, under our names."""
    found: dict[str, int] = {}
    for kind, size in parts.items():
        if kind.lower() == "total":
            continue
        name = _MEASURED.get(kind.rpartition(".")[2].capitalize(), REST)
        found[name] = found.get(name, 0) + size
    found.setdefault(REST, 0)
    return found


def _gloo(plan: Plan) -> pd.DataFrame:
    """Each rank's states, then the fullest rank's beside the plan's own account."""
    from labkit.memory.jobs.shards import on_rank
    from labkit.memory.oracles.oracle import measure, scheme_of

    assert isinstance(plan.model, Model)
    assert plan.batch is not None
    ran = scheme_of(plan.parallel)
    if ran is None:
        raise UsageError(
            "oracle 'gloo' needs data parallelism only, by a scheme that runs here: zero = 0; 1 or"
            " 2 by shard_rule; 3, resharded or not, or with secondary_group, partition_group or"
            " replicate"
        )
    recipe = plan.recipe
    wide = (recipe.parameters, recipe.gradients, recipe.states, recipe.master)
    if wide != ("fp32", "fp32", "fp32", None) or recipe.optimizer != "adam" or recipe.amsgrad:
        raise UsageError("oracle 'gloo' runs fp32 and Adam: give Recipe.fp32_adam()")
    scheme, group = ran
    found = measure(
        plan.model, schemes=[scheme], ranks=[plan.parallel.dp], group=group, seq=plan.batch.seq
    )
    rows, seen = [], {}
    for report in found.reports:
        seen[report["rank"]] = held = dict(report["held_bytes"])
        held["second copy of the parameters"] = held.pop("parameters after forward")
        told = on_rank(plan.model, plan.parallel, recipe, report["rank"])
        names = [name for name in _HELD if name in told]
        rows += [(f"{name}, rank {report['rank']}", told[name], held[name]) for name in names]
    fullest = max(seen.values(), key=lambda held: sum(held[name] for name in COMPONENTS))
    own = _of_plan(plan)
    return _table(rows + [(f"{name}, plan", own[name], fullest[name]) for name in names])


_HELD = (
    *("parameters", "gradients", "optimizer", "step counters"),
    "second copy of the parameters",
)


def _of_plan(plan: Plan) -> dict[str, float]:
    """The plan's own states, by the names of what is measured."""
    own: dict[str, float] = {}
    for term in plan.terms():
        name = term.component.partition(".")[0]
        name = "step counters" if term.component == "optimizer.step" else name
        own[name] = own.get(name, 0.0) + term.num_bytes
    return own


def _cuda(plan: Plan) -> pd.DataFrame:
    """One step after a first that makes the optimizer's states, by the allocator's own count."""
    from labkit.memory.oracles import cuda

    one_rank(plan, "cuda")
    seen = cuda.peak_of(plan, cuda.gpu())
    return _table([("peak", plan.peak_bytes, float(seen))])
