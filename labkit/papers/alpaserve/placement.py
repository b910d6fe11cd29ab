"""Which models a group of GPUs holds, and in how many stages it runs them.

A model that is split over a group can use all its GPUs for a burst of its own requests, at the
price of what splitting adds. Groups and their queue are the engine's
(:class:`labkit.serving.Group`); what stands here chooses the groups.

Source: Li et al., AlpaServe (OSDI'23), §4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, checked
from labkit.serving.batching.groups import Group, Groups, ServedModel
from labkit.serving.requests import Requests
from labkit.serving.results import Served
from labkit.serving.simulation import simulate

SHAPES = ((1, 1), (2, 1), (4, 1), (8, 1))
"""Shapes of groups that a placement tries: stages, and GPUs a stage."""


class Method(StrEnum):
    """How models are laid on GPUs: AlpaServe's way and its rivals'."""

    ALPASERVE = "AlpaServe"
    FOUR_STAGES = "four stages, no search"
    EIGHT_STAGES = "eight stages, no search"
    MATRICES = "matrices split, not layers"
    REPLICATION = "replication"

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes of groups among which it chooses: stages, and GPUs a stage."""
        return {
            Method.ALPASERVE: SHAPES,
            Method.FOUR_STAGES: ((4, 1),),
            Method.EIGHT_STAGES: ((8, 1),),
            Method.MATRICES: ((1, 1), (1, 2), (1, 4), (1, 8)),
            Method.REPLICATION: ((1, 1),),
        }[self]


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

    Args:
        requests: what a placement is judged on.
        models: that they ask for.
        num_gpus: of the cluster.
        memory_bytes: of each GPU.
        shapes: of groups to try, stages and GPUs a stage; replication is ``((1, 1),)``.

    Raises:
        BadValue: no shape divides the GPUs, or no model fits into any group.

    Source: §4.2, Algorithms 1 and 2 for models of one latency.
    """
    best: Placement | None = None
    best_rank = (-1.0, 0.0)
    for stages, tensor in shapes:
        num_groups, rest = divmod(num_gpus, stages * tensor)
        if rest:
            continue
        empty = (Group(stages=stages, tensor=tensor),) * num_groups
        groups, run = _filled(requests, models, empty, memory_bytes)
        if not any(group.models for group in groups):
            continue
        answered_s = run.latency_s[~np.isnan(run.end_s)]
        mean_s = float(answered_s.mean()) if answered_s.size else 0.0
        attainment = float(run.met.mean())
        if (attainment, -mean_s) > best_rank:  # of equals, the lower mean latency
            best_rank = (attainment, -mean_s)
            best = Placement(groups=groups, attainment=attainment)
    if best is None:
        raise BadValue(
            f"place: no model fits into {memory_bytes:.3g} bytes on each of {num_gpus} GPUs in "
            f"groups of shapes {shapes}"
        )
    return best


def _filled(
    requests: Requests,
    models: Sequence[ServedModel],
    groups: tuple[Group, ...],
    memory_bytes: float,
) -> tuple[tuple[Group, ...], Served]:
    """Empty groups with copies added one by one until nothing fits; of equals, the first."""
    names = [model.name for model in models]
    weight_bytes = np.array([model.memory_bytes for model in models])
    holds = np.zeros((len(groups), len(models)), dtype=bool)
    group_gpus = np.array([group.num_gpus for group in groups])
    while True:
        run = simulate(requests, models, Groups(groups=groups))
        free_bytes = memory_bytes * group_gpus * (1 + 1e-9) - holds @ weight_bytes
        fits = ~holds & (weight_bytes <= free_bytes[:, None])
        if not fits.any():
            return groups, run
        num_requests = np.bincount(run.server[run.server >= 0], minlength=len(groups))
        asked_model = np.array([names.index(name) for name in requests.models])
        num_missed = np.bincount(asked_model[requests.model_index], ~run.met, len(models))
        group = int(np.where(fits.any(axis=1), num_requests, np.inf).argmin())
        model = int(np.where(fits[group], num_missed, -1).argmax())
        more = replace(groups[group], models=(*groups[group].models, names[model]))
        groups = (*groups[:group], more, *groups[group + 1 :])
        holds[group, model] = True
