"""The one door: requests, what they cost, and what serves them; what comes out is a result.

========================= =========================================== =============================
server                    requests, and their profile                 result
========================= =========================================== =============================
``Batcher``, or one's own ``Requests``, a ``TokenProfile``            :class:`~.results.Run`
``BatchServers``          ``Requests``, a ``BatchProfile`` a model    :class:`~.results.Served`
``Groups``                ``Requests``, the ``ServedModel``\\\\ s       :class:`~.results.Served`
``Gpu``                   a ``Workload``, a ``Program`` a name        :class:`~.results.GpuRun`
========================= =========================================== =============================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from labkit.kit.describe import checked
from labkit.serving.batching import batches, groups
from labkit.serving.batching.batches import BatchServers
from labkit.serving.batching.groups import Groups, ServedModel
from labkit.serving.batching.profiles import BatchProfile
from labkit.serving.device import timeline
from labkit.serving.device.clients import Gpu, Workload
from labkit.serving.device.kernels import Program
from labkit.serving.generation import replica
from labkit.serving.generation.batcher import Batcher, Batching
from labkit.serving.generation.tokens import TokenProfile
from labkit.serving.requests import Requests
from labkit.serving.results import GpuRun, Run, Served

LOOPS: dict[type, Callable[[Any, Any, Any], Run | Served | GpuRun]] = {
    BatchServers: batches.simulate,
    Groups: groups.simulate,
    Gpu: timeline.simulate,
}
"""What runs each kind of server; every other is a batcher of one replica."""


# What each kind of server takes and gives, for type checkers.
@overload
def simulate(requests: Requests, profile: TokenProfile, server: Batcher | Batching) -> Run: ...
@overload
def simulate(
    requests: Requests, profile: Mapping[str, BatchProfile], server: BatchServers
) -> Served: ...
@overload
def simulate(requests: Requests, profile: Sequence[ServedModel], server: Groups) -> Served: ...
@overload
def simulate(requests: Workload, profile: Mapping[str, Program], server: Gpu) -> GpuRun: ...
@checked
def simulate(
    requests: Requests | Workload,
    profile: Any,
    server: Batcher | BatchServers | Groups | Gpu | Batching,
) -> Run | Served | GpuRun:
    """What becomes of requests on a server.

    Args:
        requests: who asks, and when; a :class:`Workload` of clients for a :class:`Gpu`.
        profile: what a request costs, in the form that the server needs.
        server: what serves them; the loop that runs follows from its kind. A batcher of one's own
            is any object with the attribute and the two methods of :class:`Batching`.

    Raises:
        BadValue: requests or profile are not what this server takes, or a request cannot be
            served.

    >>> from labkit import serving
    >>> requests = serving.Requests(arrival_s=[0.0, 0.5], output_tokens=[3, 1])
    >>> second = serving.TokenProfile(weights_s=1.0)  # an iteration takes a second
    >>> serving.simulate(requests, second, serving.Batcher(max_batch=2)).end_s.tolist()
    [3.0, 2.0]
    >>> whole = serving.Batcher(level="request", max_batch=2)
    >>> serving.simulate(requests, second, whole).end_s.tolist()
    [3.0, 4.0]
    """
    return LOOPS.get(type(server), replica.simulate)(requests, profile, server)
