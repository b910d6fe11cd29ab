"""Dispatch of small tasks: local schedulers first, a global one for the rest, a sharded store.

A task is submitted on a node and waits for that node's scheduler. A share of the tasks is passed
on to the global scheduler. Each then writes its record to a shard of the store. Every station
serves one task at a time, first come first served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, Share, Whole, checked, description

if TYPE_CHECKING:
    import pandas as pd


@description
class Dispatch:
    """Schedulers of a cluster of equal nodes, and the store of their state.

    Attributes:
        nodes: how many nodes submit and run tasks.
        local_s, global_s, store_s: mean service of a task at a node's scheduler, at the global
            scheduler, and at a shard of the store; exponential.
        passed_on: the share of tasks that the global scheduler places; 1: a central scheduler.
        global_schedulers: replicas of the global scheduler; a task goes to one of them at random.
        shards: of the store; each task's record goes to one of them.
        hot: the share of all tasks that is submitted on one node, beside an even share of the rest.
    """

    nodes: Count
    local_s: Positive = 60e-6
    global_s: Positive = 100e-6
    store_s: Positive = 10e-6
    passed_on: Share = 0.0
    global_schedulers: Count = 1
    shards: Count = 8
    hot: Share = 0.0

    @property
    def stations(self) -> dict[str, tuple[list[float], float]]:
        """By kind of station: the share of tasks that each serves, the busiest first; service."""
        rest = (1 - self.hot) / self.nodes
        return {
            "local": ([self.hot + rest] + [rest] * (self.nodes - 1), self.local_s),
            "global": (
                [self.passed_on / self.global_schedulers] * self.global_schedulers,
                self.global_s,
            ),
            "store": ([1 / self.shards] * self.shards, self.store_s),
        }

    @property
    def limit_per_s(self) -> float:
        """Tasks a second at which the first station saturates.

        >>> round(Dispatch(nodes=100, passed_on=1, global_s=1e-4).limit_per_s)
        10000
        """
        return 1 / max(parts[0] * service for parts, service in self.stations.values())

    @property
    def bottleneck(self) -> str:
        """The station that saturates first."""
        stations = self.stations
        return max(stations, key=lambda name: stations[name][0][0] * stations[name][1])


@checked
def mean_latency_s(dispatch: Dispatch, tasks_per_s: Positive) -> dict[str, float]:
    """Mean seconds of a task at each kind of station, waiting and service: a network of M/M/1.

    Poisson arrivals stay Poisson behind an exponential server (Burke), so each station stands by
    itself: 1 / (1 / service - rate). A task that is not passed on spends nothing at ``global``.

    Raises:
        BadValue: a station is asked for more than it can serve.

    Source: Jackson (1957).
    """
    if tasks_per_s >= dispatch.limit_per_s:
        raise BadValue(
            f"tasks_per_s {tasks_per_s:g} saturates {dispatch.bottleneck}; valid: below "
            f"{dispatch.limit_per_s:g}"
        )
    return {
        name: sum(part / (1 / service - part * tasks_per_s) for part in parts)
        for name, (parts, service) in dispatch.stations.items()
    }


@checked
def dispatch_tasks(
    dispatch: Dispatch,
    tasks_per_s: Positive,
    num_tasks: Count,
    *,
    rng: np.random.Generator | Whole = 0,
) -> pd.DataFrame:
    """Simulate tasks that arrive at random: seconds at each station, one row a task.

    Above the limit queues grow for as long as tasks come. O(n log n).

    Args:
        dispatch: the schedulers and the store.
        tasks_per_s: of Poisson arrivals.
        num_tasks: how many.
        rng: a generator or a seed.
    """
    import pandas as pd

    draw = np.random.default_rng(rng)
    now = np.cumsum(draw.exponential(1 / tasks_per_s, num_tasks))
    node = draw.integers(dispatch.nodes, size=num_tasks)
    node[draw.random(num_tasks) < dispatch.hot] = 0
    shard = draw.integers(dispatch.shards, size=num_tasks)
    is_passed_on = draw.random(num_tasks) < dispatch.passed_on
    replica = np.zeros(num_tasks, np.int64)
    if dispatch.global_schedulers > 1:
        replica = draw.integers(dispatch.global_schedulers, size=num_tasks)
    servers = {"local": node, "global": np.where(is_passed_on, replica, -1), "store": shard}
    seconds = {"arrival_s": now}
    for name, server_of in servers.items():
        service_s = draw.exponential(dispatch.stations[name][1], num_tasks)
        done = now.copy()
        for server in np.unique(server_of[server_of >= 0]):
            tasks = np.flatnonzero(server_of == server)
            tasks = tasks[np.argsort(now[tasks], kind="stable")]
            done[tasks] = _served(now[tasks], service_s[tasks])
        seconds[f"{name}_s"] = done - now
        now = done
    return pd.DataFrame(seconds).assign(done_s=now)


def _served(arrival: NDArray[np.float64], service: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ends at one server: D_k = max(A_k, D_{k-1}) + S_k, unrolled into a running maximum."""
    work = np.cumsum(service)
    return np.asarray(work + np.maximum.accumulate(arrival - (work - service)))
