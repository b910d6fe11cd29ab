"""Groups of GPUs that serve several models: each model split over a group, or whole on each GPU.

A group runs its requests first come, first served through its stages. A request goes to the group
that holds its model and is free first; it is dropped on arrival if it would miss its objective,
which is known then, since latencies are fixed. One order: requests by arrival, ties as given;
groups that are free at the same time by number. O(groups + stages) a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen

from labkit.errors import BadValue
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, NonNegative, Positive, checked, description
from labkit.serving.batching.batches import Served
from labkit.serving.requests import Requests

SHAPES = ((1, 1), (2, 1), (4, 1), (8, 1))
"""Shapes of groups that a placement tries: stages, and GPUs a stage."""


@description
class ServedModel:
    """A model: its latency and weights on one GPU, and what splitting it costs.

    Attributes:
        latency_s: of one request on one GPU. A group of g GPUs takes latency / g a stage where it
            splits layers (``stages``), and latency / g in all where it splits matrices
            (``tensor``), each times one plus its overhead.
    """

    name: str
    latency_s: Positive
    memory_bytes: NonNegative = 0.0
    stage_overhead: NonNegative = 0.0
    tensor_overhead: NonNegative = 0.0


@description
class Group:
    """GPUs that hold every one of its models together: stages of layers, each of them split over
    ``tensor`` GPUs."""

    models: tuple[str, ...] = ()
    stages: Count = 1
    tensor: Count = 1

    def __post_init__(self) -> None:
        if len(set(self.models)) < len(self.models):
            raise BadValue(f"Group.models must differ from each other; got {self.models}")

    @property
    def num_gpus(self) -> int:
        return self.stages * self.tensor

    def stage_s(self, model: ServedModel) -> float:
        """Seconds of one stage of a model on this group."""
        more = 1 + model.stage_overhead * (self.stages > 1)
        tensor = 1 + model.tensor_overhead * (self.tensor > 1)
        return model.latency_s * more * tensor / self.num_gpus


@njit(cache=True)
def _queue(
    arrival: Any,
    model: Any,
    slo: Any,
    hosts: Any,
    stage_s: Any,
    stages: Any,
    fixed_s: float,
    end: Any,
    chosen: Any,
) -> None:
    """Fill end (NaN: dropped) and chosen. ``hosts``: by model, whether each group holds it."""
    clock = np.zeros((stages.size, stages.max()))
    finish = np.zeros(stages.max())
    for i in range(arrival.size):
        m = model[i]
        group = -1
        free = np.inf
        for g in range(stages.size):
            if hosts[m, g] and clock[g, stages[g] - 1] < free:
                group = g
                free = clock[g, stages[g] - 1]
        chosen[i] = group
        if group < 0:
            continue
        t = arrival[i]
        for k in range(stages[group]):
            t = max(t, clock[group, k]) + stage_s[m, group]
            finish[k] = t
        if t + fixed_s - arrival[i] <= slo[i]:
            end[i] = t + fixed_s
            clock[group, : stages[group]] = finish[: stages[group]]


@checked
def serve_groups(
    requests: Requests,
    groups: Annotated[Sequence[Group], MinLen(1)],
    models: Sequence[ServedModel],
    *,
    fixed_s: NonNegative = 0.0,
) -> Served:
    """Run requests on groups.

    Args:
        models: what the requests ask for, and the groups hold.
        fixed_s: added to every answer (network, dispatch); occupies no GPU.

    Raises:
        BadValue: a request or a group names a model that ``models`` lacks.
    """
    known = {model.name: model for model in models}
    names = requests.models
    index = requests.model_index
    for name in (*names, *(name for group in groups for name in group.models)):
        if name not in known:
            raise BadValue(f"serve_groups: models lacks {name!r}; it has: {', '.join(known)}")
    stage_s = np.array([[group.stage_s(known[name]) for group in groups] for name in names])
    hosts = np.array([[name in group.models for group in groups] for name in names])
    end = np.full(len(requests), np.nan)
    chosen = np.zeros(len(requests), np.int64)
    _queue(
        requests.column("arrival_s"),
        index,
        requests.column("slo_s"),
        hosts,
        stage_s,
        np.array([group.stages for group in groups]),
        float(fixed_s),
        end,
        chosen,
    )
    return Served(requests=requests, end_s=end, server=chosen)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Groups, and the share of requests they answered in time where they were chosen."""

    groups: tuple[Group, ...]
    attainment: float


@checked
def place(
    requests: Requests,
    models: Sequence[ServedModel],
    *,
    num_gpus: Count,
    memory_bytes: Positive,
    shapes: tuple[tuple[Count, Count], ...] = SHAPES,
) -> Placement:
    """Where models go: greedily for every shape of group, judged by simulation; the best shape.

    1. For each shape (stages, tensor) that divides the GPUs, begin with empty groups.
    2. Simulate. Add a copy of the model with the most unanswered requests to the group with the
       fewest requests that has room for it.
    3. Until nothing fits.

    Replication is ``shapes=((1, 1),)``.

    Raises:
        BadValue: no shape divides the GPUs, or no model fits into any group.

    Source: AlpaServe (OSDI'23) §4.2, Algorithms 1 and 2 for models of one latency.
    """
    best: tuple[float, float, tuple[Group, ...]] | None = None
    for stages, tensor in shapes:
        number, rest = divmod(num_gpus, stages * tensor)
        if rest:
            continue
        empty = (Group(stages=stages, tensor=tensor),) * number
        groups, run = _filled(requests, models, empty, memory_bytes)
        if any(group.models for group in groups):
            answered_s = run.latency_s[~np.isnan(run.end_s)]
            mean_s = float(answered_s.mean()) if answered_s.size else 0.0
            if best is None or (float(run.met.mean()), -mean_s) > best[:2]:
                best = (float(run.met.mean()), -mean_s, groups)
    if best is None:
        raise BadValue(
            f"place: no model fits into {memory_bytes:.3g} bytes on each of {num_gpus} GPUs in "
            f"groups of shapes {shapes}"
        )
    return Placement(groups=best[2], attainment=best[0])


def _filled(
    requests: Requests,
    models: Sequence[ServedModel],
    groups: tuple[Group, ...],
    memory_bytes: float,
) -> tuple[tuple[Group, ...], Served]:
    """Empty groups with copies added one by one until nothing fits; of equals, the first."""
    names = [model.name for model in models]
    weights = np.array([model.memory_bytes for model in models])
    held = np.zeros((len(groups), len(models)), dtype=bool)
    sizes = np.array([group.num_gpus for group in groups])
    while True:
        run = serve_groups(requests, groups, models)
        room = memory_bytes * sizes * (1 + 1e-9) - held @ weights
        able = ~held & (weights <= room[:, None])
        if not able.any():
            return groups, run
        asked = np.bincount(run.server[run.server >= 0], minlength=len(groups))
        column = np.array([names.index(name) for name in requests.models])[requests.model_index]
        missed = np.bincount(column, ~run.met, len(models))
        g = int(np.where(able.any(axis=1), asked, np.inf).argmin())
        m = int(np.where(able[g], missed, -1).argmax())
        more = replace(groups[g], models=(*groups[g].models, names[m]))
        groups = (*groups[:g], more, *groups[g + 1 :])
        held[g, m] = True
