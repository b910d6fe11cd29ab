"""What others print of memory, beside ours: tables cell by cell, and peaks of real GPUs.

A printed table is a small CSV that keeps every digit as printed, since the digits say how a cell
was cut (``data/papers/<key>/*.csv``). Peaks stand with their sources in
``data/measured/gpu_peaks.yaml``, and nothing in the engine is fitted to them. A peak of torch's
allocated or active bytes is compared with the computed one; reserved bytes with the computed ones
times what the framework's logs show to be reserved for one allocated byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from labkit import files, hardware, quantities
from labkit.errors import not_among
from labkit.kit.describe import Positive, description
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.jobs.states import STAGE_NAMES
from labkit.memory.plans.detail import on_device
from labkit.memory.plans.frameworks import framework
from labkit.memory.plans.plan import Parallel, Plan
from labkit.memory.plans.search import largest_model
from labkit.memory.plans.throughput import Cluster, fit_cluster
from labkit.models import Model


def states(path: Path) -> pd.DataFrame:
    """A table of model states on a GPU: columns ``model, dp, zero, printed_gb``, and ours.

    Adds ``ours_gb`` and ``cut`` (see :func:`labkit.quantities.cut`).
    """
    table = pd.read_csv(path, dtype={"printed_gb": str})
    table["ours_gb"] = [
        Plan(model=model, parallel=Parallel(dp=dp, zero=zero)).states_bytes / quantities.GB
        for model, dp, zero in table[["model", "dp", "zero"]].to_numpy().tolist()
    ]
    return table.assign(cut=list(map(quantities.cut, table["ours_gb"], table["printed_gb"])))


def largest(path: Path, *, dp: int, capacity_bytes: int) -> pd.DataFrame:
    """A table of largest models: ``tp, gpus, kind, zero, printed, unit`` (B or T), and ours.

    Adds ``ours`` (the formula, in billions like ``printed_billion``), ``cell``, and ``cut``: how
    the cell came from its column's first row times ``tp``, as such tables are often filled.
    """
    table = pd.read_csv(path, dtype={"printed": str})
    thousands = table["unit"].map({"B": 1, "T": 1000})
    table["printed_billion"] = table["printed"].astype(float) * thousands
    table["ours"] = [
        largest_model(Parallel(dp=dp, tp=tp, zero=zero), capacity_bytes) / quantities.BILLION
        for tp, zero in table[["tp", "zero"]].to_numpy().tolist()
    ]
    first = table.groupby(["kind", "zero"])["printed_billion"].transform("first")
    multiple = (first * table["tp"] / thousands).round(9)
    table["cut"] = list(map(quantities.cut, multiple, table["printed"]))
    printed = table["printed"] + table["unit"]
    return table.assign(cell=printed + table["ours"].map(" ({:.5g}B)".format))


def grid(table: pd.DataFrame, *index: str) -> pd.DataFrame:
    """The cells laid out as printed: rows by ``index`` in their order, a column a stage."""
    cells = table.pivot(index=list(index), columns="zero", values="cell")
    cells = cells.reindex(pd.MultiIndex.from_frame(table[list(index)].drop_duplicates()))
    return cells.rename(columns=STAGE_NAMES).rename_axis(columns=None)


def runs(path: Path, recipe: Recipe | None = None) -> pd.DataFrame:
    """Runs of GPTs (``layers, hidden, heads, gpus, mp, stage, batch``), each with its ``plan``.

    Every layer is recomputed; 1,024 tokens and GPT-2's vocabulary, as in ZeRO's appendix.
    """
    table = pd.read_csv(path)
    sizes = ["layers", "hidden", "heads", "gpus", "mp", "stage", "batch"]
    plans = [
        Plan(
            model=Model(num_layers=layers, hidden=hidden, heads=heads, vocab=50257, positions=1024),
            parallel=Parallel(dp=gpus // mp, tp=mp, zero=stage),
            batch=Batch(seq=1024, micro_batch=batch, recompute="full"),
            recipe=recipe or Recipe(),
        )
        for layers, hidden, heads, gpus, mp, stage, batch in table[sizes].to_numpy().tolist()
    ]
    return table.assign(plan=pd.Series(plans, dtype=object))


def dgx2_cluster(path: Path) -> Cluster:
    """DGX-2 nodes; what a V100 and a ring sustain is fitted to Fig. 4 of ZeRO's :func:`runs`."""
    fig4 = runs(path).query("figure == 'Fig. 4' and stage == 2")
    ring, node, inside = map(hardware.link, ("ib-edr", "dgx2-node", "nvlink-v100"))
    line_rate = Cluster(flops_per_s=50e12, ring=ring, node=node, inside=inside, ranks_per_node=16)
    measured = (fig4["tflops"] * 1e12).tolist()
    return fit_cluster(line_rate, list(fig4["plan"]), measured, free=["flops_per_s", "ring"])


@description(slots=True)
class Peak:
    """A peak of GPU memory that others measured: who measured what, and the run in our terms.

    ``model`` is a preset or the sizes of one; ``fields`` differ from the framework's defaults;
    ``device`` is the pipeline device that was measured, the fullest where it is not said.
    """

    name: str
    framework: str
    gpu: str
    kind: Literal["allocated", "active", "reserved"]
    measured_mib: Positive
    model: str | Mapping[str, Any]
    fields: Mapping[str, Any] = field(default_factory=dict)
    source: str

    def __post_init__(self) -> None:
        framework(self.framework)

    @property
    def plan(self) -> Plan:
        model = Model.preset(self.model) if isinstance(self.model, str) else Model(**self.model)
        said = {name: value for name, value in self.fields.items() if name != "device"}
        return framework(self.framework).plan(model, **said)

    def predicted(self) -> tuple[str, float]:
        """The moment of the computed peak and its bytes, with the allocator's allowance where
        reserved bytes were printed."""
        plan = self.plan
        if "device" in self.fields:
            there = on_device(replace(plan.estimate.job, device=self.fields["device"]))
            return there.peak_moment, there.peak_bytes
        reserved = self.kind == "reserved"
        return plan.peak_moment, plan.reserved_bytes if reserved else plan.peak_bytes


def peaks(path: Path | None = None) -> dict[str, Peak]:
    """The published peaks by name, of ``data/measured/gpu_peaks.yaml``.

    Raises:
        BadFile: a row lacks a field, or has one that is unknown or impossible.
    """
    path = path or files.shipped("data/measured/gpu_peaks.yaml")
    return files.named(path, Peak)


def peak_errors(framework: str | None = None) -> pd.DataFrame:
    """A row a peak, of one framework or of all: ``run, framework, gpu, kind, measured_bytes,
    predicted_bytes, error`` (predicted over measured, less 1), ``moment`` and ``source``.

    Raises:
        UsageError: there is no run of that framework.
    """
    runs = list(peaks().values())
    if framework is not None:
        known = sorted({run.framework for run in runs})
        runs = [run for run in runs if run.framework == framework]
        if not runs:
            raise not_among("framework", framework, known)
    rows = []
    for row in runs:
        measured = row.measured_mib * quantities.MIB
        (moment, predicted) = row.predicted()
        sizes = round(measured), round(predicted), predicted / measured - 1
        rows.append([row.name, row.framework, row.gpu, row.kind, *sizes, moment, row.source])
    names = ["run", "framework", "gpu", "kind", "measured_bytes", "predicted_bytes", "error"]
    return pd.DataFrame(rows, columns=[*names, "moment", "source"])
