"""How to split a gradient over servers: the theorem's shares, and programs that find the best.

Letters: n GPU machines, k spare machines, all with links of B bytes a second in each direction, and
a gradient of M bytes. Times are in passes: one pass is M / B, the gradient once through a link.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from labkit import collectives


class Split(NamedTuple):
    """Shares of the gradient by who adds them up, as a fraction of it.

    Attributes:
        own: that each GPU machine adds up for all.
        spare: that each spare machine adds up.
    """

    own: float
    spare: float

    def passes(
        self, machines: int, spare: int, *, add: float = math.inf, uplink: float = math.inf
    ) -> float:
        """Passes until all have the sum: what the busiest link, CPU or uplink needs.

        1. A GPU machine sends what others add up, and n - 1 copies of the sums that it has made;
           as much arrives.
        2. A spare machine takes its part from n machines, and sends n sums.
        3. Who adds a part up adds n pieces of it.
        4. What goes to spare machines passes the uplink, and so does what comes back.

        Args:
            machines, spare: n and k.
            add: bytes a second that a machine's CPUs add up, over B.
            uplink: bytes a second between all GPU machines and the spare ones, over n · B.
        """
        gpu_link = (1 - self.own) + (machines - 1) * self.own
        spare_link = machines * self.spare if spare else 0.0
        adding = max(machines * self.own, spare_link) / add
        crossing = spare * self.spare / uplink
        return max(gpu_link, spare_link, adding, crossing)


def theorem(machines: int, spare: int) -> Split:
    """The paper's shares, with at most n spare machines in use.

    Source: §4.1, theorem 1.

    >>> theorem(4, 0), theorem(4, 4)
    (Split(own=0.25, spare=0.0), Split(own=0.0, spare=0.25))
    """
    used = min(machines, spare)
    own, of_spare = collectives.byteps_shares(machines, used)
    if not spare:
        return Split(own, 0.0)
    return Split(own, of_spare * used / spare)


def best_split(
    machines: int, spare: int, *, add: float = math.inf, uplink: float = math.inf
) -> Split:
    """The split with the fewest passes, by a linear program that knows no formula.

    It chooses own, spare and the passes t: t is at least what each resource of
    :meth:`Split.passes` needs, and the shares make up the whole gradient.

    Args:
        machines, spare, add, uplink: as :meth:`Split.passes` has them.
    """
    needs = [
        [machines - 2.0, 0.0, -1.0],  # a GPU machine's link, which needs 1 more
        [0.0, float(machines), -1.0],  # a spare machine's link
        [machines / add, 0.0, -1.0],
        [0.0, machines / add, -1.0],
        [0.0, spare / uplink, -1.0],
    ]
    found = linprog(
        [0.0, 0.0, 1.0],
        A_ub=needs,
        b_ub=[-1.0, 0.0, 0.0, 0.0, 0.0],
        A_eq=[[machines, spare, 0.0]],
        b_eq=[1.0],
        bounds=[(0, None), (0, None if spare else 0), (0, None)],
        method="highs",
    )
    return Split(float(found.x[0]), float(found.x[1]))


def best_trees(machines: int, spare: int) -> float:
    """Passes of the best mix of trees, if parts of the gradient may take other ways than BytePS's.

    A part that GPU machines add up alone crosses 2(n - 1) links, on whatever tree. A part that
    passes a spare machine may first be added up along j GPU machines, so that n - j pieces reach
    it, and its sum may be passed on along i of them, so that it sends n - i. BytePS has
    j = i = 0. The program chooses how much of the gradient goes each way; machines of a kind
    share the load evenly, which is the best for them.
    """
    ways = [(j, i) for j in range(machines) for i in range(machines)] if spare else []
    gpu_in = [2.0 * (machines - 1), *(float(machines + j) for j, _ in ways)]
    gpu_out = [2.0 * (machines - 1), *(float(machines + i) for _, i in ways)]
    spare_in = [0.0, *(float(machines - j) for j, _ in ways)]
    spare_out = [0.0, *(float(machines - i) for _, i in ways)]
    needs = [
        [*gpu_in, -machines],
        [*gpu_out, -machines],
        [*spare_in, -spare],
        [*spare_out, -spare],
    ]
    found = linprog(
        [*np.zeros(len(gpu_in)), 1.0],
        A_ub=needs,
        b_ub=np.zeros(4),
        A_eq=[[*np.ones(len(gpu_in)), 0.0]],
        b_eq=[1.0],
        bounds=(0, None),
        method="highs",
    )
    return float(found.x[-1])
