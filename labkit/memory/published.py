"""Peaks of GPU memory that others measured on real GPUs and published, beside ours.

They stand with their sources in ``data/measured/gpu_peaks.yaml``, and nothing in the engine is
fitted to them. A peak of torch's allocated or active bytes is compared with the computed one;
reserved bytes with the computed ones times what the framework's logs show to be reserved for one
allocated byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from labkit import files, quantities
from labkit.errors import not_among
from labkit.hardware import named_in
from labkit.kit.describe import Positive, checked, description
from labkit.memory.jobs.adapter import Adapter
from labkit.memory.plans.frameworks import framework
from labkit.memory.plans.plan import Plan
from labkit.memory.traced.network import Network, networks
from labkit.models import Model


@description(slots=True)
class Peak:
    """A peak of GPU memory that others measured: who measured what, and the run in our terms.

    ``model`` is a preset, a network of ``data/networks.yaml``, or the sizes of a model; ``fields``
    differ from the framework's defaults; cuBLAS's workspaces are those of the card that ``gpu``
    names; ``device`` is the pipeline device that was measured, the
    fullest where it is not said.
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
        """The run as a plan of its framework."""
        model = Model(**self.model) if isinstance(self.model, Mapping) else _named(self.model)
        said = dict(self.fields)
        rank = said.pop("device", None)
        if "adapter" in said:
            given = said["adapter"]
            said["adapter"] = Adapter(**{**given, "targets": tuple(given["targets"])})
        plan = framework(self.framework).plan(model, card=named_in(self.gpu), **said)
        return plan if rank is None else replace(plan, rank=rank)

    def predicted(self) -> tuple[str, float]:
        """The moment of the computed peak, and its bytes.

        Where reserved bytes were printed, they hold the allocator's allowance.
        """
        plan = self.plan
        reserved = self.kind == "reserved"
        return plan.peak_moment, plan.reserved_bytes if reserved else plan.peak_bytes


TRACED = "data/measured/traced_peaks.yaml"
"""Peaks of architectures that are traced, each of which takes seconds."""


def _named(name: str) -> Model:
    """A model or a network by its name."""
    return Network.preset(name) if name in networks() else Model.preset(name)


@checked
def peaks(path: str | Path | None = None) -> dict[str, Peak]:
    """The published peaks by name.

    Args:
        path: ``data/measured/gpu_peaks.yaml`` by default.

    Raises:
        BadFile: a row lacks a field, or has one that is unknown or impossible.
    """
    path = files.shipped("data/measured/gpu_peaks.yaml") if path is None else Path(path)
    return files.named(path, Peak)


@checked
def peak_errors(framework: str | None = None, *, path: str | Path | None = None) -> pd.DataFrame:
    """A row a peak: what was measured, and what we compute.

    Args:
        framework: only its runs; None for all.
        path: as :func:`peaks` takes it.

    Returns:
        Columns run, framework, gpu, kind, measured_bytes, predicted_bytes, error (predicted over
        measured, less 1), moment and source.

    Raises:
        UsageError: there is no run of that framework.
    """
    runs = list(peaks(path).values())
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
