"""What HiveD's notebook runs: weeks of tenants' jobs, three orders of queues, ways to share."""

from __future__ import annotations

from functools import cache
from typing import Annotated

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from labkit.cluster.inputs.traces import Trace
from labkit.cluster.policies.orders import Policy, fifo, sjf
from labkit.errors import not_among
from labkit.kit.describe import NonNegative, Positive, description
from labkit.papers.hived.sharing import (
    Shared,
    Sharing,
    cells_for,
    load_tenants,
    nodes_for,
    simulate,
)

ORDERS: dict[str, Policy] = {
    "first come, first served": fifo(),
    "first come, with passing": fifo(blocks=False),
    "shortest first": sjf(),
}
"""Orders of a tenant's queue. With passing, a job starts while one before it waits."""


@description
class Week:
    """Some days of all tenants' jobs, and the cells that their work asks for.

    Runs are kept, since figures, claims and rivals ask for the same ones.

    Attributes:
        first_day: on the clock of the traces.
        num_days: how many.
        load: work that a tenant's jobs of a level offer to its cells of that level, at most.
        whole_nodes: whether a tenant reserves nodes only, instead of cells of every level.
    """

    first_day: NonNegative
    num_days: Annotated[float, Gt(0)] = 7.0
    load: Positive = 0.8
    whole_nodes: bool = False

    @property
    def jobs(self) -> Trace:
        """The jobs of all tenants."""
        return load_tenants(self.first_day, self.num_days)

    @property
    def cells(self) -> dict[str, dict[str, int]]:
        """The cells that each tenant reserves, by level."""
        reserve = nodes_for if self.whole_nodes else cells_for
        return reserve(self.jobs, self.load)

    def run(self, order: str, sharing: Sharing, spread_slowdown: float | None = None) -> Shared:
        """What becomes of every job.

        Args:
            order: of each tenant's queue, a key of ``ORDERS``.
            sharing: who may use what.
            spread_slowdown: as :func:`~labkit.papers.hived.sharing.simulate` takes it.
        """
        return _run(self, order, sharing, spread_slowdown)

    def extra_delay_min(self, order: str, sharing: Sharing) -> NDArray[np.float64]:
        """Minutes that each job waits longer than on its tenant's private cluster."""
        private_s = self.run(order, Sharing.PRIVATE).wait_s
        return (self.run(order, sharing).wait_s - private_s) / 60

    def longest_min(self, sharing: Sharing) -> dict[str, float]:
        """The longest extra delay of any job, by order of the queues."""
        return {order: float(self.extra_delay_min(order, sharing).max()) for order in ORDERS}

    def lend(self, order: str, sharing: Sharing, low_day: float) -> Shared:
        """The same week with jobs of low priority on GPUs that are free.

        Args:
            order: of each tenant's queue.
            sharing: one of the ways that reserve cells.
            low_day: where the days begin whose jobs have low priority.
        """
        jobs = load_tenants(self.first_day, self.num_days, low_day=low_day)
        return simulate(jobs, self.cells, _order(order), sharing, low_priority=("low",))


def _order(name: str) -> Policy:
    if name not in ORDERS:
        raise not_among("order", name, [*ORDERS])
    return ORDERS[name]


@cache
def _run(week: Week, order: str, sharing: Sharing, spread_slowdown: float | None) -> Shared:
    return simulate(week.jobs, week.cells, _order(order), sharing, spread_slowdown=spread_slowdown)
