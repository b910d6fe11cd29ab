"""Peaks of GPU memory that others published, beside what the engine computes for them.

``data/measured/gpu_peaks.yaml`` holds them with their sources. Nothing in the engine is fitted to
them. A peak of torch's allocated or active bytes is compared with the computed one; reserved bytes
with the computed ones times what the framework's logs show to be reserved for one allocated byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from labkit import files
from labkit.errors import not_among
from labkit.kit.describe import Positive, description
from labkit.kit.report import Report, Sheet, records
from labkit.memory.plans.detail import on_device
from labkit.memory.plans.frameworks import framework
from labkit.memory.plans.plan import Plan
from labkit.models import Model
from labkit.quantities import MIB, formatted


@description(slots=True)
class Published:
    """One published peak: who measured what, and the run in our terms.

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
            job = replace(plan.estimate.job, device=self.fields["device"])
            there = on_device(job)
            return there.peak_moment, there.peak_bytes
        reserved = self.kind == "reserved"
        return plan.peak_moment, plan.reserved_bytes if reserved else plan.peak_bytes


def load(path: Path | None = None) -> dict[str, Published]:
    """The published peaks by name.

    Raises:
        BadFile: a row lacks a field, or has one that is unknown or impossible.
    """
    path = path or files.project_root() / "data" / "measured" / "gpu_peaks.yaml"
    return files.named(path, Published)


def table(path: Path | None = None) -> pd.DataFrame:
    """A row a peak: ``run, framework, gpu, kind, measured_bytes, predicted_bytes, moment, error``
    (predicted over measured, less 1) and ``source``."""
    rows = []
    for row in load(path).values():
        measured, (moment, predicted) = row.measured_mib * MIB, row.predicted()
        rows.append(
            {
                **{"run": row.name, "framework": row.framework, "gpu": row.gpu, "kind": row.kind},
                **{"measured_bytes": round(measured), "predicted_bytes": round(predicted)},
                **{"error": predicted / measured - 1, "moment": moment},
                "source": row.source,
            }
        )
    return pd.DataFrame(rows)


def report(framework: str | None = None) -> Report:
    """The table by framework, how many are met, and the worst.

    Raises:
        UsageError: there is no run of that framework.
    """
    rows = table()
    if framework is not None:
        if framework not in set(rows["framework"]):
            raise not_among("framework", framework, sorted(set(rows["framework"])))
        rows = rows.query("framework == @framework")
    off = rows["error"].abs().to_numpy()
    worst = formatted("error_fraction", float(off.max()))
    return Report(
        title="Published peaks of GPU memory, and ours",
        facts=[
            ("within 10 %", f"{(off <= 0.1).sum()} of {len(rows)}", "by options alone"),
            ("worst", worst, str(rows["run"].iloc[int(off.argmax())])),
        ],
        tables=[
            Sheet(
                heading=str(name),
                table=part.rename(columns={"error": "error_fraction"}),
                columns=["run", "kind", "measured_bytes", "predicted_bytes", "error_fraction"],
            )
            for name, part in rows.groupby("framework", sort=False)
        ],
        notes=[
            "Nothing is fitted to these runs. Reserved bytes are compared with the computed peak"
            " times what the framework's logs reserve for one allocated byte."
        ],
        data={"command": "peaks", "rows": records(rows)},
        csv=rows,
    )
