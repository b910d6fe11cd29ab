"""A plan beside a run of the same: predicted and measured bytes, component by component.

Three oracles: torch's tracker on tensors without numbers (``"fake"``: one rank, or FSDP2 on fake
ranks, any size), real processes on a CPU (``"gloo"``: shards, small models), and a GPU's allocator
(``"cuda"``).
"""

from __future__ import annotations

import pandas as pd

from labkit import extras
from labkit.errors import UsageError, not_among
from labkit.kit.describe import checked
from labkit.memory.jobs.recipe import COUNTER_BYTES
from labkit.memory.jobs.states import COMPONENTS
from labkit.memory.oracles.tracker import FSDP_NAMES, Tracked
from labkit.memory.plans.plan import Plan
from labkit.memory.tape import moments
from labkit.memory.tape.sizes import Numbers
from labkit.memory.tape.step import Moment
from labkit.models import Model

PEAK = "peak, "  # before the moment's name, in the row of the total
REST = "activations, temporaries, inputs"  # what the tracker does not tell apart
_TRACKED = {"Parameter": "parameters", "Optstate": "optimizer", "Gradient": "gradients"}


@checked
def check(plan: Plan, *, oracle: str = "fake") -> pd.DataFrame:
    """A row a component: predicted and measured bytes, and their difference.

    What is sharded is cut as ``plan.parallel.shard_rule`` says, there and here.

    Args:
        oracle: ``"fake"``, torch's tracker on tensors without numbers, compares the peak, on one
            rank also its components, where what the tracker does not tell apart (activations,
            temporaries, inputs) is one row. ``"gloo"`` compares the states of every rank, then the
            plan's own with those of the fullest rank. ``"cuda"`` compares the peak on a GPU.

    Raises:
        UsageError: the oracle is unknown, cannot run this plan, or there is no torch or no GPU.
    """
    if oracle not in ORACLES:
        raise not_among("oracle", oracle, ORACLES)
    if not plan.detailed:
        raise UsageError("only a plan with a Model and a Batch without a formula can be checked")
    extras.need("memory.check", "torch", "torch")
    table = pd.DataFrame(
        ORACLES[oracle](plan), columns=["component", "predicted_bytes", "measured_bytes"]
    )
    difference = table["predicted_bytes"] - table["measured_bytes"]
    relative = difference / table["measured_bytes"].where(table["measured_bytes"] != 0)
    return table.assign(difference_bytes=difference, difference_fraction=relative)


Rows = list[tuple[str, float, float]]


def _fake(plan: Plan) -> Rows:
    """The plan beside torch's tracker."""
    from labkit.memory.oracles import adapters, tracker, ways

    if plan.traced:
        return _traced(plan)
    offload = plan.batch is not None and plan.batch.offload_activations != "device"
    in_parts = plan.batch is not None and plan.batch.loss == "chunked-output"
    _refuse_uneven_chunks(plan)
    frozen = "trained" in plan.estimate.job.arguments
    if plan.batch is not None and plan.batch.reentrant:
        seen = adapters.track(**adapters.settings_of(plan))
        return _beside(plan, seen, frozen=frozen)
    if (plan.recipe.in_backward or offload or in_parts) and not frozen:
        settings = tracker.settings_of(plan)
        if settings.pop("parallel") is not None:
            raise UsageError(
                "oracle 'fake' needs one rank where activations are offloaded or the loss is"
                " chunked-output"
            )
        seen = ways.track(**settings, offload=offload)
    elif not frozen:
        seen = tracker.track(**tracker.settings_of(plan))
    else:
        seen = adapters.track(**adapters.settings_of(plan))
    return _beside(plan, seen, frozen=frozen)


def _beside(plan: Plan, seen: Tracked, *, frozen: bool) -> Rows:
    """The plan's components beside those that the tracker saw."""
    assert isinstance(plan.model, Model)
    counters = 0
    if not plan.recipe.step.endswith("fused"):  # on a CPU they count too
        job = plan.estimate.job
        numbers = Numbers(**job.arguments)
        parts = moments.tensors(job.shape, job.mode, numbers)
        counters = COUNTER_BYTES * moments.over_layers(job.shape, parts, len)
    if plan.parallel.world_size > 1:
        names = FSDP_NAMES.get(seen.peak_moment, ())
        moment = plan.peak_moment if plan.peak_moment in names else seen.peak_moment
        return [(f"{PEAK}{moment}", float(plan.peak_bytes + counters), float(seen.peak_bytes))]
    ours = dict(plan.estimate.moments[seen.peak_moment])
    if seen.peak_moment is Moment.STEP:  # the tracker has the step's temporaries with the optimizer
        ours["optimizer"] += ours.pop("temporaries")
    ours["optimizer"] += counters
    tracked: dict[str, int] = {}
    for kind, size in seen.moments[seen.peak_moment].items():
        if kind.lower() != "total":
            name = _TRACKED.get(kind.rpartition(".")[2].capitalize(), REST)
            if name == "parameters" and frozen:
                name = REST  # a frozen base is no Parameter there
            tracked[name] = tracked.get(name, 0) + size
    predicted = {name: float(ours.pop(name)) for name in tracked if name in ours}
    predicted[REST] = float(sum(ours.values()))
    tracked.setdefault(REST, 0)
    rows = [(name, predicted.get(name, 0.0), float(size)) for name, size in tracked.items()]
    return [*rows, (f"{PEAK}{seen.peak_moment}", sum(predicted.values()), float(seen.peak_bytes))]


def _refuse_uneven_chunks(plan: Plan) -> None:
    """Refuse a head whose parts the networks, which cut by number, would cut otherwise."""
    arguments = plan.estimate.job.arguments
    each = arguments.get("chunk_tokens")
    if each is not None and (arguments["seq"] * arguments["micro_batch"]) % each:
        raise UsageError(
            f"oracle 'fake' needs tokens that divide by those of a part of the loss, {each}"
        )


def _traced(plan: Plan) -> Rows:
    """A traced network's peak beside torch's tracker, which counts the step's counters too."""
    from labkit.memory.oracles import modules

    predicted = plan.peak_bytes
    seen = modules.track(plan)
    counted = sum(t.num_bytes for t in plan.terms() if t.component == "optimizer.step")
    counters = counted if plan.recipe.counters_on == "cpu" else 0
    peak = float(predicted + counters)
    return [(f"{PEAK}{seen.peak_moment}", peak, float(seen.peak_bytes))]


def _refuse_adapter(plan: Plan, oracle: str) -> None:
    """Refuse adapters and frozen parameters where none are run."""
    if plan.recipe.adapter is not None or plan.recipe.trained:
        raise UsageError(f"oracle {oracle!r} runs no frozen parameters: give oracle 'fake'")


def _gloo(plan: Plan) -> Rows:
    """Each rank's states, then the fullest rank's beside the plan's own account."""
    from labkit.memory.oracles.oracle import SECOND_COPY, measure, scheme_of

    _refuse_adapter(plan, "gloo")
    assert isinstance(plan.model, Model)
    assert plan.batch is not None
    scheme = scheme_of(plan.parallel)
    if scheme is None:
        raise UsageError(
            "oracle 'gloo' needs data parallelism only, by a scheme that runs here: zero = 0; 1"
            " with shard_rule flat or tensor; 2 with shard_rule flat; 3, resharded or not, or with"
            " secondary_group, partition_group or replicate"
        )
    recipe = plan.recipe
    formats = (recipe.parameters, recipe.gradients, recipe.states)
    more = recipe.master or recipe.second_gradients or recipe.amsgrad
    if formats != ("fp32", "fp32", "fp32") or recipe.optimizer != "adam" or more:
        raise UsageError("oracle 'gloo' runs fp32 and Adam: give Recipe.fp32_adam()")
    name, group = scheme
    run = measure(
        plan.model, schemes=[name], ranks=[plan.parallel.dp], group=group, seq=plan.batch.seq
    )
    table = run.states([*COMPONENTS, "step counters", SECOND_COPY])
    whole = table[table["component"].isin(COMPONENTS)].groupby("rank")["measured_bytes"].sum()
    fullest = table[table["rank"] == whole.idxmax()].set_index("component")["measured_bytes"]
    table["component"] += ", rank " + table["rank"].astype(str)
    rows = table[["component", "predicted_bytes", "measured_bytes"]].itertuples(index=False)
    own: dict[str, float] = {}
    for term in plan.terms():
        name = term.component.partition(".")[0]
        name = "step counters" if term.component == "optimizer.step" else name
        own[name] = own.get(name, 0.0) + term.num_bytes
    return [*rows, *((f"{name}, plan", own[str(name)], size) for name, size in fullest.items())]


def _cuda(plan: Plan) -> Rows:
    """The peak of one step by the allocator's own count, after a first that makes the states."""
    from labkit.memory.oracles import cuda

    _refuse_adapter(plan, "cuda")
    job = plan.estimate.job
    if plan.recipe.in_backward or job.mode.offload or job.mode.loss == "chunked-output":
        raise UsageError(
            "oracle 'cuda' takes its step after the backward pass, keeps activations on the device"
            " and runs no chunked-output: give oracle 'fake'"
        )
    meter = cuda.gpu()
    predicted = cuda.on_card(plan, meter.about["gpu"]).peak_bytes
    return [("peak", float(predicted), float(cuda.peak_of(plan, meter)))]


ORACLES = {"fake": _fake, "gloo": _gloo, "cuda": _cuda}
