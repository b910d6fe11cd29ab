"""Groups of GPUs that serve several models: each model split over a group, or whole on each GPU.

A group runs its requests first come, first served through its stages. A request goes to the group
that holds its model and is free first; it is dropped on arrival if it would miss its objective,
which is known then, since latencies are fixed. One order: requests by arrival, ties as given;
groups that are free at the same time by number. O(groups + stages) a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit.compiled import hear, njit
from labkit.kit.describe import Count, NonNegative, Positive, checked, description
from labkit.serving.requests import Requests
from labkit.serving.results import Served

Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]


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
    """GPUs that hold every one of its models together.

    Attributes:
        stages: of layers, one after another.
        tensor: GPUs that share the layers of a stage.
    """

    models: tuple[str, ...] = ()
    stages: Count = 1
    tensor: Count = 1

    def __post_init__(self) -> None:
        if len(set(self.models)) < len(self.models):
            raise BadValue(f"Group.models must differ from each other; got {self.models}")

    @property
    def num_gpus(self) -> int:
        """GPUs of all stages."""
        return self.stages * self.tensor

    @checked
    def stage_s(self, model: ServedModel) -> float:
        """Seconds of one stage of a model on this group.

        >>> model = ServedModel(name="m", latency_s=8.0, stage_overhead=0.5)
        >>> Group(stages=1).stage_s(model), Group(stages=4).stage_s(model)
        (8.0, 3.0)
        """
        more = 1 + model.stage_overhead * (self.stages > 1)
        tensor = 1 + model.tensor_overhead * (self.tensor > 1)
        return model.latency_s * more * tensor / self.num_gpus


@description
class Groups:
    """Groups of GPUs behind one dispatcher.

    Attributes:
        fixed_s: added to every answer (network, dispatch); occupies no GPU.
    """

    groups: Annotated[tuple[Group, ...], MinLen(1)]
    fixed_s: NonNegative = 0.0


@njit(cache=True)
def _queue(
    arrival: Floats,
    model: Whole,
    slo: Floats,
    hosts: NDArray[np.bool_],
    stage_s: Floats,
    stages: Whole,
    fixed_s: float,
    end: Floats,
    chosen: Whole,
) -> None:
    """Fill end (NaN: dropped) and chosen. ``hosts``: by model, whether each group holds it."""
    free = np.zeros((stages.size, stages.max()))  # by group: when each stage is free
    finish = np.zeros(stages.max())  # of the request: when each stage is done
    for request in range(arrival.size):
        own = model[request]
        hear(request + 1, 4096)
        # 1. The group that holds its model and whose last stage is free first.
        best = -1
        free_first = np.inf
        for group in range(stages.size):
            last = free[group, stages[group] - 1]
            if hosts[own, group] and last < free_first:
                best = group
                free_first = last
        chosen[request] = best
        if best < 0:
            continue
        # 2. Through its stages, each when it is free.
        moment = arrival[request]
        for stage in range(stages[best]):
            moment = max(moment, free[best, stage]) + stage_s[own, best]
            finish[stage] = moment
        # 3. Only a request that will be in time occupies them.
        if moment + fixed_s - arrival[request] <= slo[request]:
            end[request] = moment + fixed_s
            free[best, : stages[best]] = finish[: stages[best]]


@checked
def simulate(requests: Requests, profile: Sequence[ServedModel], server: Groups) -> Served:
    """Run requests on groups.

    Args:
        profile: the models that requests ask for and groups hold.

    Raises:
        BadValue: a request or a group names a model that ``profile`` lacks.

    Source: AlpaServe (OSDI'23), and its authors' simulator.

    >>> requests = Requests(arrival_s=[0, 0], slo_s=[1.5, 1.5], model=("a", "b"))
    >>> models = [ServedModel(name="a", latency_s=1.0), ServedModel(name="b", latency_s=1.0)]
    >>> both = Group(models=("a", "b"), stages=2)
    >>> simulate(requests, models, Groups(groups=(both,))).end_s.tolist()  # b follows a by a stage
    [1.0, 1.5]
    """
    groups = server.groups
    known = {model.name: model for model in profile}
    names = requests.models
    for name in (*names, *(name for group in groups for name in group.models)):
        if name not in known:
            raise BadValue(f"simulate: profile lacks {name!r}; it has: {', '.join(known)}")
    stage_s = np.array([[group.stage_s(known[name]) for group in groups] for name in names])
    hosts = np.array([[name in group.models for group in groups] for name in names])
    end_s = np.full(len(requests), np.nan)
    chosen = np.zeros(len(requests), np.int64)
    _queue(
        requests.column("arrival_s"),
        requests.model_index,
        requests.column("slo_s"),
        hosts,
        stage_s,
        np.array([group.stages for group in groups]),
        float(server.fixed_s),
        end_s,
        chosen,
    )
    return Served(requests=requests, end_s=end_s, server=chosen)
