"""Groups of GPUs that serve several models: each model split over a group, or whole on each GPU.

A group runs its requests first come, first served through its stages. A request goes to the group
that holds its model and is free first; it is dropped on arrival if it would miss its objective,
which is known then, since latencies are fixed. One order: requests by arrival, ties as given;
groups that are free at the same time by number. O(groups + stages) a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen

from labkit.errors import BadValue
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, NonNegative, Positive, checked, description
from labkit.serving.batching.batches import Served
from labkit.serving.requests import Requests


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
