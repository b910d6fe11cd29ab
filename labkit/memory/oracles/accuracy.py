"""How close predictions are to torch on this machine: each part a table, a row a case.

Saved activations of a network, peaks of whole models with the moment each names, shards on real
ranks, stage 3 with its buffers, and a GPU's peaks where they were measured. Each row that misses
says so in its column ``why``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pandas as pd

from labkit import extras
from labkit.errors import UsageError, not_among
from labkit.files import shipped
from labkit.memory.jobs.batch import Batch
from labkit.memory.oracles import cases, families
from labkit.memory.oracles.checking import PEAK, check
from labkit.memory.plans.plan import Plan
from labkit.models import Model

PARTS = {
    "layers": "activations saved for the backward pass beside torch's hooks",
    "models": "peaks and their moments beside torch's MemTracker",
    "adapters": "peaks with peft's adapters beside torch's MemTracker",
    "shards": "bytes of every rank of every scheme beside real ranks over gloo",
    "stage3": "peaks with collectives' buffers beside FSDP2",
    "families": "peaks by family of architecture beside torch's MemTracker, stored",
    "gpu": "peaks that a GPU's allocator saw",
}
UNEXPLAINED = "not explained: a fault of the estimate, or torch has changed; please report it"


def table(part: str, *, every: bool = False, fresh: bool = False) -> pd.DataFrame | None:
    """The rows of one part; None where nothing has been measured yet.

    Args:
        part: one of :data:`PARTS`.
        every: more of the cases.
        fresh: run families anew in place of what is stored.

    Raises:
        UsageError: there is no such part, or no torch to compare with.
    """
    if part not in PARTS:
        raise not_among("part", part, PARTS)
    if part == "gpu":
        from labkit.memory.oracles import cuda

        return cuda.stored(shipped("data/measured"))
    if part == "families" and not fresh:
        return pd.DataFrame(families.stored()["rows"])
    extras.need("memory accuracy", "torch", "torch", "psutil")
    if part in {"adapters", "families"}:
        extras.need("memory accuracy", "dev", "peft", "transformers")
    if part == "families":
        return pd.DataFrame(families.run()["rows"])
    rows = {
        "layers": _layers,
        "adapters": _adapters,
        "models": _models,
        "shards": _shards,
        "stage3": _stage_3,
    }
    return pd.DataFrame(rows[part](every=every))


def lacking() -> str:
    """What is lacking for the part ``adapters``, in a sentence; empty where nothing is."""
    try:
        extras.need("this part", "dev", "peft")
    except UsageError as error:
        return str(error)
    return ""


def why(error_bytes: float, moment: str = "", tracked_moment: str = "") -> str:
    """The reason for a miss in words; empty where there is none."""
    if error_bytes:
        return UNEXPLAINED
    return "" if moment == tracked_moment else "moments with equal bytes, the first is named"


def peak_row(plan: Plan) -> dict[str, Any]:
    """The peak of :func:`~labkit.memory.oracles.checking.check` and both names of its moment."""
    peak = check(plan).iloc[-1]
    moment = str(peak["component"]).removeprefix(PEAK)
    error = int(peak["difference_bytes"])
    return {
        "predicted_bytes": int(peak["predicted_bytes"]),
        "tracked_bytes": int(peak["measured_bytes"]),
        "error_bytes": error,
        "predicted_moment": plan.peak_moment,
        "tracked_moment": moment,
        "why": why(error, plan.peak_moment, moment),
    }


def _models(*, every: bool) -> Iterator[dict[str, Any]]:
    """Peaks of whole models on one rank."""
    for plan in cases.on_one_rank(every=every):
        job = plan.estimate.job
        choices = ("dtype", "attention", "recompute", "loss")
        row = {"model": job.model.name, **{name: getattr(job.mode, name) for name in choices}}
        row |= {"step": job.recipe.step, "seq": job.batch.seq, "micro_batch": job.batch.micro_batch}
        yield row | peak_row(plan)


def _adapters(*, every: bool) -> Iterator[dict[str, Any]]:
    """Peaks with a frozen base."""
    for plan in cases.with_adapters(every=every):
        job = plan.estimate.job
        adapter = job.recipe.adapter
        assert adapter is not None
        row = {"model": job.model.name, "rank": adapter.rank, "targets": ",".join(adapter.targets)}
        row |= {name: getattr(job.mode, name) for name in ("dtype", "attention", "recompute")}
        row |= {"adapters": job.recipe.gradients, "dropout": adapter.dropout}
        row |= {"seq": job.batch.seq, "micro_batch": job.batch.micro_batch}
        yield row | peak_row(plan)


def _stage_3(*, every: bool) -> Iterator[dict[str, Any]]:
    """Peaks of stage 3 under FSDP2."""
    for plan in cases.at_stage_3(every=every):
        job = plan.estimate.job
        row = {"model": job.model.name, "layers": job.model.num_layers, "dp": job.parallel.dp}
        row |= {"shared_by": job.parallel.shard_degree, "recipe": job.recipe.name}
        yield row | {"seq": job.batch.seq, "recompute": job.batch.recompute} | peak_row(plan)


def _layers(*, every: bool) -> Iterator[dict[str, Any]]:
    """Activation terms of a plan beside the storages that torch saves."""
    from labkit.memory.oracles import tracker

    dtypes = cases.RECIPES if every else ("bf16", "autocast")
    sizes = [(3, 33), (2, 64), (4, 7)] if every else [(3, 33)]
    gpt = Model(name="gpt2", num_layers=2, hidden=96, heads=6, vocab=211, positions=80)
    models = (gpt, cases.TINY_LLAMA)
    choices = product(models, dtypes, ("eager", "sdpa"), ("none", "selective", "full"), sizes)
    for model, dtype, attention, recompute, (samples, seq) in choices:
        batch = Batch(seq=seq, micro_batch=samples, attention=attention, recompute=recompute)  # type: ignore[arg-type]
        plan = Plan(model=model, recipe=cases.RECIPES[dtype], batch=batch)
        terms = [t for t in plan.terms() if t.component.startswith("activation.")]
        kept = int(sum(term.num_bytes for term in terms))
        mode = plan.estimate.job.mode
        seen = tracker.saved_bytes(model, mode, seq=seq, micro_batch=samples)
        yield {
            **{"model": model.name, "heads": model.heads, "micro_batch": samples, "seq": seq},
            **{"dtype": dtype, "attention": attention, "recompute": recompute},
            **{"predicted_bytes": kept, "tracked_bytes": seen, "error_bytes": kept - seen},
            "why": why(kept - seen),
        }


def _shards(*, every: bool) -> Iterator[dict[str, Any]]:
    """Parameter, gradient and Adam bytes of every rank of every scheme, the worst error of each."""
    from labkit.memory.oracles import oracle

    tiny = Model.preset("tiny-gpt")
    for model in (tiny, cases.TINY_LLAMA) if every else (tiny,):
        states = oracle.measure(model, schemes=list(oracle.SCHEMES), steps=2).states()
        states["error_bytes"] = (states["measured_bytes"] - states["predicted_bytes"]).abs()
        groups: Any = states.groupby(["scheme", "ranks"], sort=False)
        for (scheme, ranks), part in groups:
            worst = int(part["error_bytes"].max())
            parallel = oracle.parallel_of(scheme, ranks)
            yield {
                "model": model.name,
                "scheme": scheme,
                "ranks": ranks,
                "zero": parallel.zero,
                "rule": parallel.shard_rule,
                "counts": len(part),
                "worst_error_bytes": worst,
                "why": why(worst),
            }
