"""What communication hides behind computing: one training step on two lanes, compute and network.

The compute lane runs all layers forward, then all backward, last layer first. A layer's gradient
exists when its backward pass ends. Gradients are joined into messages, the network lane sends one
message at a time, and a layer of the next step runs forward when its weights are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from labkit.errors import BadValue
from labkit.kit.describe import NonNegative, Whole, checked

if TYPE_CHECKING:
    import pandas as pd

Policy = Literal["after", "wait-free", "across", "priority"]
"""When messages are sent, and what waits for them:

``after``: when the whole backward pass is over; the next step waits for all of them.
``wait-free``: as soon as their gradients exist, in that order; the next step waits for all.
``across``: the same, but each layer of the next step waits for its own weights only.
``priority``: as ``across``, and among messages that are ready the layer nearest to the input goes
first, since the next step needs it first.
"""
_STEPS = 64
"""Steps simulated at most until they repeat."""


class Message(NamedTuple):
    """Gradients that are sent together, those of layers ``first`` to ``last``."""

    first: int
    last: int
    num_bytes: int


class Event(NamedTuple):
    """Something on a lane, in the last step that was simulated and the one that follows it."""

    lane: str
    what: str
    layer: int
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """A training step in its rhythm.

    Attributes:
        step_s: from one step's start to the next one's.
        compute_s: of all layers, forward and backward.
        network_s: of all messages.
        events: of one step.
        messages: in the order of their gradients, last layer first.
    """

    policy: Policy
    step_s: float
    compute_s: float
    network_s: float
    events: tuple[Event, ...]
    messages: tuple[Message, ...]

    @property
    def exposed_s(self) -> float:
        """Seconds of a step in which nothing computes."""
        return self.step_s - self.compute_s

    @property
    def hidden_fraction(self) -> float:
        """The share of the network's seconds behind which something computes."""
        return 1 - self.exposed_s / self.network_s if self.network_s else 1.0

    @property
    def bound_s(self) -> float:
        """Seconds that no order of the same messages beats: the busier lane."""
        return max(self.compute_s, self.network_s)

    def frame(self) -> pd.DataFrame:
        """The step's events as a table: lane, what, layer, start_s, end_s."""
        import pandas as pd

        return pd.DataFrame(self.events, columns=list(Event._fields))

    def summary(self) -> dict[str, float | str]:
        """The policy and its totals."""
        return {
            "policy": self.policy,
            "step_s": self.step_s,
            "compute_s": self.compute_s,
            "network_s": self.network_s,
            "exposed_s": self.exposed_s,
            "hidden_fraction": self.hidden_fraction,
        }

    def why(self) -> str:
        """One sentence: what of the network's time shows, and what no order could hide."""
        return (
            f"{self.policy}: {len(self.messages)} messages take {self.network_s:.3g} s, of which "
            f"{self.exposed_s:.3g} s show beside {self.compute_s:.3g} s of compute; no order of "
            f"them is faster than {self.bound_s:.3g} s a step, this one takes {self.step_s:.3g} s"
        )


@checked
def overlap(
    profile: pd.DataFrame,
    message_s: Callable[[int], float] | Sequence[NonNegative],
    *,
    policy: Policy = "wait-free",
    bucket_bytes: Whole = 0,
) -> Overlap:
    """Simulate training steps until they repeat, and return one.

    Args:
        profile: one row a layer, the first layer first: ``forward_s``, ``backward_s`` and
            ``parameter_bytes``, as :meth:`labkit.planner.Chain.frame` has them.
        message_s: seconds of a message of so many bytes (a
            :func:`~labkit.collectives.message_time`, or the ``time_s`` of a fit); or the seconds
            of each layer's own message.
        policy: when messages are sent, and what waits for them.
        bucket_bytes: gradients are joined, last layer first, until a message has as many bytes;
            0 sends each layer's alone.

    Raises:
        BadValue: a column is missing, a value is negative or no number, or there are not as many
            seconds as layers.

    >>> import pandas as pd
    >>> layers = {"forward_s": [1.0, 1.0], "backward_s": [2.0, 2.0], "parameter_bytes": [1, 1]}
    >>> [overlap(pd.DataFrame(layers), [2.5, 2.5], policy=p).step_s for p in ("after", "wait-free")]
    [11.0, 9.0]
    """
    layers = _layers(profile)
    if not callable(message_s) and len(message_s) != len(profile):
        raise BadValue(
            f"collectives.overlap: message_s holds {len(message_s)} seconds for the "
            f"{len(profile)} layers of profile; one each is valid"
        )
    messages, sending_s = _messages(layers["parameter_bytes"], message_s, bucket_bytes)
    start_s = 0.0
    arrived_s = np.zeros(len(profile))
    step_s = np.nan  # nothing repeats before there were two steps
    for _ in range(_STEPS):
        step = _step(layers, messages, sending_s, start_s, arrived_s, policy)
        previous_s, step_s = step_s, step.next_start_s - start_s
        start_s = step.next_start_s
        arrived_s = step.arrived_s
        if np.isclose(step_s, previous_s, rtol=1e-12):
            break
    return Overlap(
        policy=policy,
        step_s=float(step_s),
        compute_s=float(layers["forward_s"].sum() + layers["backward_s"].sum()),
        network_s=float(sending_s.sum()),
        events=tuple(step.events),
        messages=tuple(messages),
    )


class _Step(NamedTuple):
    """One step, and what the next one needs of it."""

    events: list[Event]
    next_start_s: float
    arrived_s: np.ndarray


def _layers(profile: pd.DataFrame) -> dict[str, np.ndarray]:
    """The columns of a profile that count."""
    layers = {}
    for name in ("forward_s", "backward_s", "parameter_bytes"):
        if list(profile.columns).count(name) != 1:
            raise BadValue(
                f"collectives.overlap: profile lacks the column {name!r}, or has it twice; it has "
                f"{', '.join(map(str, profile.columns))}"
            )
        try:
            values = profile[name].to_numpy(dtype=float, na_value=np.nan)
        except (TypeError, ValueError):
            values = np.full(len(profile), np.nan)
        if not len(values) or not np.isfinite(values).all() or (values < 0).any():
            raise BadValue(
                f"collectives.overlap: {name} of profile must hold numbers of at least 0, a layer"
            )
        layers[name] = values
    return layers


def _messages(
    gradient_bytes: np.ndarray,
    message_s: Callable[[int], float] | Sequence[float],
    bucket_bytes: int,
) -> tuple[list[Message], np.ndarray]:
    """Join gradients into messages, last layer first, and time each; layers without any send none.

    A layer's own seconds, where they are given instead, are added up in a message.
    """
    messages = []
    seconds = []
    last = len(gradient_bytes) - 1
    pending = 0
    pending_s = 0.0
    for layer in range(len(gradient_bytes) - 1, -1, -1):
        pending += int(gradient_bytes[layer])
        if not callable(message_s):
            pending_s += message_s[layer]
        full = pending >= max(bucket_bytes, 1) or layer == 0
        if full and (pending or pending_s):
            messages.append(Message(layer, last, pending))
            seconds.append(_timed(message_s, pending) if callable(message_s) else pending_s)
        if full:
            last = layer - 1
            pending = 0
            pending_s = 0.0
    return messages, np.array(seconds)


def _timed(message_s: Callable[[int], float], num_bytes: int) -> float:
    """Seconds of a message, by a function that somebody gave."""
    try:
        seconds = float(message_s(num_bytes))
    except (TypeError, ValueError) as error:
        raise BadValue(f"collectives.overlap: message_s({num_bytes}) failed: {error}") from None
    if not np.isfinite(seconds) or seconds < 0:
        raise BadValue(
            f"collectives.overlap: message_s({num_bytes}) must be seconds of at least 0, got "
            f"{seconds}"
        )
    return seconds


def _step(
    layers: dict[str, np.ndarray],
    messages: list[Message],
    sending_s: np.ndarray,
    start_s: float,
    arrived_s: np.ndarray,
    policy: Policy,
) -> _Step:
    """One step: forward when weights are there, backward, then the network as the policy has it."""
    events = []
    now_s = start_s
    for layer, seconds in enumerate(layers["forward_s"]):
        begin_s = max(now_s, float(arrived_s[layer]))
        now_s = begin_s + float(seconds)
        events.append(Event("compute", "forward", layer, begin_s, now_s))
    exists_s = np.zeros(len(arrived_s))
    for layer in range(len(arrived_s) - 1, -1, -1):
        begin_s = now_s
        now_s += float(layers["backward_s"][layer])
        exists_s[layer] = now_s
        events.append(Event("compute", "backward", layer, begin_s, now_s))
    ready_s = [now_s if policy == "after" else float(exists_s[m.first]) for m in messages]
    sent = _send(messages, sending_s, ready_s, by_layer=policy == "priority")
    here_s = exists_s.copy()
    for message, (begin_s, end_s) in zip(messages, sent, strict=True):
        here_s[message.first : message.last + 1] = end_s
        events.append(Event("network", "gradients", message.first, begin_s, end_s))
    if policy in ("after", "wait-free"):
        return _Step(events, max(now_s, max((end for _, end in sent), default=0.0)), here_s)
    return _Step(events, now_s, here_s)


def _send(
    messages: list[Message], sending_s: np.ndarray, ready_s: list[float], *, by_layer: bool
) -> list[tuple[float, float]]:
    """Send one message at a time: among those that are ready the first one, or the lowest layer."""
    waiting = list(range(len(messages)))
    sent = [(0.0, 0.0)] * len(messages)
    now_s = 0.0
    while waiting:
        now_s = max(now_s, min(ready_s[index] for index in waiting))
        ready = [index for index in waiting if ready_s[index] <= now_s]
        chosen = min(ready, key=lambda index: messages[index].first) if by_layer else ready[0]
        end_s = now_s + float(sending_s[chosen])
        sent[chosen] = (now_s, end_s)
        now_s = end_s
        waiting.remove(chosen)
    return sent
