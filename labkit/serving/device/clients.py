"""Programs that clients issue to one GPU, and how the GPU takes them."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import MinLen

from labkit.kit.describe import Count, NonNegative, Positive, Share, Whole, description

Mode = Literal["alone", "sequential", "streams", "wait", "reset", "padded", "guests"]
"""What real-time clients do with the GPU; :mod:`labkit.serving.device.timeline` says of each."""


@description
class Client:
    """Issues one program again and again, the next never before the last has ended.

    Due at ``arrival_s``, or (None) ``gap_s`` after the last one ended.

    Attributes:
        program: its name in the profile.
        real_time: whether it goes before the clients that are not.
    """

    program: str
    arrival_s: tuple[NonNegative, ...] | None = None
    gap_s: NonNegative = 0.0
    real_time: bool = False


@description
class Workload:
    """Clients of one GPU until a moment; programs that have not ended by then do not count."""

    clients: Annotated[tuple[Client, ...], MinLen(1)]
    until_s: Positive


@description
class Gpu:
    """A GPU of ``units`` compute units, and how its clients share it.

    Attributes:
        mode: ``alone``, ``sequential``, ``streams``, ``wait``, ``reset``, ``padded`` (REEF) or
            ``guests`` (AntMan): :mod:`labkit.serving.device.timeline` says what each does.
        reset_s: seconds to kill all kernels and empty the queues.
        queue: kernels of a client that are launched beyond the running one.
        contention: what a real-time kernel loses to padding on all units, for bandwidth.
        killable: share of kernels that may be killed; others are waited for.
    """

    mode: Mode
    units: Count = 60
    reset_s: NonNegative = 40e-6
    queue: Whole = 2
    contention: NonNegative = 0.0
    killable: Share = 1.0
