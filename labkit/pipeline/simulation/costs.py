"""What work and messages cost: seconds by kind of work, bytes held, links between devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from labkit.errors import BadValue, UsageError
from labkit.kit.describe import NonNegative, Positive, checked, description
from labkit.kit.randomness import Rng
from labkit.pipeline.scheduling.graph import Lag
from labkit.pipeline.scheduling.schedule import Schedule
from labkit.quantities import format_bytes, significant

PerStage = NonNegative | Sequence[NonNegative]
"""One number for all stages, or one for each; finite and >= 0."""
Jitter = Annotated[float, Ge(0), Le(10)]
"""The standard deviation of a duration's logarithm: 10 makes one of a thousand last 10^13 times as
long."""
Cost = Literal["forward_s", "backward_s", "weight_s", "activation_bytes"]


@description(slots=True)
class Costs:
    """Says how many seconds each kind of work takes and how many bytes it holds, for all stages or
    each.

    Stages are the schedule's, so that chunks of one device may differ too. Seconds and bytes may be
    in any unit as long as it is the same everywhere.

    Attributes:
        forward_s: of the forward pass of one microbatch on one stage.
        backward_s: of the gradient of the stage's input.
        weight_s: of the gradient of the stage's weights; a backward that is not split takes
            ``backward_s + weight_s``.
        activation_bytes: what one microbatch's forward on a stage leaves behind for its backward;
            by default 1, so that memory counts activations.
    """

    forward_s: PerStage
    backward_s: PerStage
    weight_s: PerStage = 0.0
    activation_bytes: PerStage = 1.0

    @checked
    def per_stage(self, name: Cost, schedule: Schedule) -> np.ndarray:
        """Spread the named attribute over the stages of the schedule, shape (num_stages,)."""
        return spread(name, getattr(self, name), schedule.num_stages, "stages")

    @checked
    def durations_s(self, schedule: Schedule) -> np.ndarray:
        """How long each instruction takes, in the order of ``schedule.frame()``."""
        names: tuple[Cost, ...] = ("forward_s", "backward_s", "weight_s")
        forward, half, weight = (self.per_stage(name, schedule) for name in names)
        table = np.stack([forward, half + weight, half, weight])  # as KINDS
        return table[schedule.kind, schedule.stage]


@description(slots=True)
class Network:
    """Links between devices, and what instructions send over them.

    A forward sends its output to the next stage, a full backward or an input half its gradient
    to the stage before; a weight half sends nothing, and neither do stages of one device to each
    other. A message takes ``latency_s + message_bytes / bandwidth_bytes_per_s``, in both
    directions alike. Messages do not queue behind each other, which is right while one takes
    less time than the work between two of them (see ``Timeline.busiest_link_ratio``). Where a
    network may be None, messages take no time.

    With ``overlap`` the sender goes on at once. Without, the sender's device is busy until the
    message has arrived, and the next instruction there waits. Receiving keeps no device busy.

    Attributes:
        latency_s, message_bytes, bandwidth_bytes_per_s: one number, or one for each pair of
            neighbouring stages (boundary k lies between stages k and k + 1). Without bandwidth
            only the latency counts.
        overlap: whether a device computes while it sends.
    """

    latency_s: PerStage = 0.0
    bandwidth_bytes_per_s: Positive | Sequence[Positive] | None = None
    message_bytes: PerStage = 0.0
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.bandwidth_bytes_per_s is None and np.any(self.message_bytes):
            raise BadValue("message_bytes need bandwidth_bytes_per_s")

    @checked
    def transfer_s(self, schedule: Schedule) -> np.ndarray:
        """How long each boundary's messages occupy a link, shape (num_stages - 1,)."""
        if self.bandwidth_bytes_per_s is None:
            return np.zeros(schedule.num_stages - 1)
        return self._boundaries("message_bytes", schedule) / self._boundaries(
            "bandwidth_bytes_per_s", schedule
        )

    @checked
    def lag_s(self, schedule: Schedule) -> Lag:
        """How long instructions wait besides for work, as :func:`.graph.longest_to` takes it.

        After the one before, they wait for its sending, where that keeps the device busy; after the
        one they need, for the message's way, which is 0 on one device.

        >>> from labkit.pipeline import build
        >>> schedule = build("1f1b", 2, 1)
        >>> before, needs = Network(latency_s=0.25).lag_s(schedule)
        >>> before.tolist(), needs.tolist()  # forward 0, backward 0; forward 0, backward 0
        ([0.0, 0.0, 0.0, 0.0], [0.0, 0.25, 0.25, 0.0])
        """
        graph = schedule.graph
        boundary = boundaries(schedule)
        each = self._boundaries("latency_s", schedule) + self.transfer_s(schedule)
        message_s = np.where(boundary >= 0, np.append(each, 0.0)[boundary], 0.0)
        sending_s = np.zeros(len(schedule) + 1)
        if not self.overlap:
            np.maximum.at(sending_s, graph.needs, message_s)
        return sending_s[graph.before], message_s

    def _boundaries(self, name: str, schedule: Schedule) -> np.ndarray:
        """Spread the named attribute over the boundaries between stages."""
        return spread(name, getattr(self, name), schedule.num_stages - 1, "stage boundaries")


def lags(schedule: Schedule, network: Network | None) -> Lag | None:
    """How long messages make instructions wait; None where there is no network."""
    return None if network is None else network.lag_s(schedule)


def boundaries(schedule: Schedule) -> np.ndarray:
    """Number the boundary that each instruction's input crosses between devices: (n,), or -1."""
    needs = schedule.graph.needs
    stage = np.append(schedule.stage, 0)
    device = np.append(schedule.device, -1)
    crosses = (needs < len(schedule)) & (device[needs] != schedule.device)
    return np.where(crosses, np.minimum(stage[needs], schedule.stage), -1)


def jitter_factors(jitter: float, count: int, rng: Rng | None) -> np.ndarray:
    """Draw factors of mean 1 whose logarithm has standard deviation ``jitter``, shape (count,).

    Args:
        jitter: the standard deviation; 0 draws nothing.
        count: how many factors.
        rng: a seed or a generator.

    Raises:
        UsageError: ``jitter`` is above 0 and there is no ``rng``.
    """
    if not jitter:
        return np.ones(count)
    if rng is None:
        raise UsageError("jitter needs rng: a seed, such as 0, or numpy.random.default_rng(0)")
    return np.exp(np.random.default_rng(rng).normal(-(jitter**2) / 2, jitter, count))


def spread(name: str, value: PerStage, count: int, things: str) -> np.ndarray:
    """Spread one number over all, or take one each, as an array of shape (count,).

    Args:
        name: what the values are called in an error.
        value: one number, or one each.
        count: how many there are.
        things: what they are called in an error.

    Raises:
        UsageError: there are values for another number of ``things``.
    """
    values = np.atleast_1d(np.asarray(value, dtype=float))
    if np.ndim(value) and len(values) != count:
        raise UsageError(f"{name} has {len(values)} values, the schedule {count} {things}")
    return np.broadcast_to(values, count)


def amount(value: float) -> str:
    """Write bytes where there are many, and a bare number where it counts activations."""
    if not np.isfinite(value):
        return "no limit"
    return significant(value, 4) if abs(value) < 1000 else format_bytes(value)
