"""What would help where a plan does not fit: one change at a time, each with its peak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from labkit.errors import LabkitError
from labkit.memory.commands.options import Job, Room
from labkit.memory.plans.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

LEAST_SAVED_SHARE = 0.02  # of the peak: what saves less is not named
MOST_ROWS = 4
TOGETHER = "--recompute full --set loss=chunked"


def changes(job: Job, plan: Plan) -> Iterator[tuple[str, Job]]:
    """Options that a job has not, as they are said, and the job with each.

    Args:
        plan: the job's.
    """
    batch = plan.batch
    recipe = plan.recipe
    parts = replace(job, assigned=[*(job.assigned or []), "loss=chunked"])
    if batch is not None:
        keeps_layers = batch.recompute != "full"
        whole_logits = batch.loss == "eager-fp32" and batch.logits_held == "none"
        if keeps_layers:
            yield "--recompute full", replace(job, recompute="full")
        if whole_logits:
            yield "--set loss=chunked", parts
        if keeps_layers and whole_logits:
            yield TOGETHER, replace(parts, recompute="full")
        if batch.micro_batch > 1:
            yield "--micro-batch 1", replace(job, micro_batch=1)
    if plan.parallel.dp > 1 and plan.parallel.zero < 3:
        yield "--zero 3", replace(job, zero=3)
    if recipe.adapter is not None and not recipe.adapter.packed:
        yield "--recipe qlora", replace(job, recipe="qlora")
    if plan.parallel.zero and recipe.offload_optimizer == "device":
        away = ["offload_optimizer=cpu", "offload_gradients=cpu"]
        said = " ".join(f"--set {one}" for one in away)
        yield said, replace(job, assigned=[*(job.assigned or []), *away])


def table(job: Job, room: Room, plan: Plan) -> pd.DataFrame:
    """What lowers the peak of a job, those that fit first: say, peak_bytes, fits.

    Args:
        plan: the job's, with the room's allowances.
    """
    import pandas as pd

    rows = []
    for say, other in changes(job, plan):
        with suppress(LabkitError):  # a change that breaks a rule is none
            changed = room.allow(other.plan(room.card))
            peak = changed.peak_bytes
            if peak < (1 - LEAST_SAVED_SHARE) * plan.peak_bytes:
                fits = peak <= room.usable_bytes(changed)
                rows.append({"say": say, "peak_bytes": peak, "fits": fits})
    if any(row["fits"] for row in rows if row["say"] != TOGETHER):
        rows = [row for row in rows if row["say"] != TOGETHER]
    rows.sort(key=lambda row: (not row["fits"], row["peak_bytes"]))
    return pd.DataFrame(rows[:MOST_ROWS], columns=["say", "peak_bytes", "fits"])
