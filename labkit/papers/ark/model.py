"""Seconds of messages by who starts them, and of a training's all-reduces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit import collectives, hardware, models
from labkit.collectives import Fabric

LINK = hardware.link("pcie3-x16")
NUMBER_BYTES = 2
"""Of a gradient in half precision."""


@dataclass(frozen=True, kw_only=True)
class Starter:
    """What a message costs by who starts it.

    A message takes ``latency_s`` before its bytes flow. With several under way at once, one ends
    whenever the link has carried it, or every ``alone_s / in_flight``, whichever is longer.

    Attributes:
        latency_s: of a message that is waited for.
        bytes_per_s: of the link.
        in_flight: messages under way at most.

    >>> starter = Starter(latency_s=4e-6, bytes_per_s=1e9, in_flight=4)
    >>> [round(1e6 * starter.message_s(num_bytes), 3) for num_bytes in (1000, 8000)]
    [1.25, 8.0]
    """

    latency_s: float
    bytes_per_s: float = LINK.bytes_per_s
    in_flight: int = 1

    def alone_s(self, num_bytes: float) -> float:
        """Seconds of a message that is waited for."""
        return self.latency_s + num_bytes / self.bytes_per_s

    def message_s(self, num_bytes: float) -> float:
        """Seconds from the end of a message to the end of the next."""
        return max(self.alone_s(num_bytes) / self.in_flight, num_bytes / self.bytes_per_s)

    def rate(self, num_bytes: float) -> float:
        """Bytes a second with messages of so many bytes."""
        return num_bytes / self.message_s(num_bytes)

    def size_at(self, share: float) -> float:
        """Bytes of the smallest message that reaches so large a share of the link's rate.

        It solves rate(size) = share · bytes_per_s for size; with many in flight the whole link is
        reached.
        """
        per_byte_s = 1 / self.bytes_per_s
        return self.latency_s / per_byte_s / (self.in_flight / share - 1)


def in_flight(latency_s: float, num_bytes: float, share: float, bytes_per_s: float) -> float:
    """How many messages must be under way to reach a share of the link's rate.

    Args:
        latency_s: of a message, bytes apart.
        num_bytes: of a message.
        share: of the link's rate.
        bytes_per_s: of the link.

    >>> in_flight(1e-6, 1000, 1.0, 1e9)
    2.0
    """
    between_s = num_bytes / (share * bytes_per_s)
    return (latency_s + num_bytes / bytes_per_s) / between_s


def tensor_bytes(model: str) -> list[int]:
    """Bytes of each tensor's gradient of a transformer, first to last."""
    return [NUMBER_BYTES * tensor.numel for tensor in models.Model.preset(model).tensors()]


def all_reduces_s(
    messages: Sequence[float],
    latency_s: float,
    *,
    num_gpus: int = 8,
    bytes_per_s: float = LINK.bytes_per_s,
) -> float:
    """Seconds of all-reduces by a ring, one after another.

    Args:
        messages: bytes of each.
        latency_s: of each message from a GPU to the next.
        num_gpus: of the ring.
        bytes_per_s: of each GPU's link.
    """
    fabric = Fabric.flat(num_gpus, bandwidth_bytes_per_s=bytes_per_s, latency_s=latency_s)
    return float(collectives.message_time("ring", fabric)(list(messages)).sum())
