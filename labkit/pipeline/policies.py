"""Where orders come from: the least that describes each schedule, and what makes an order of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.schedule import Instruction, Kind, Schedule, check_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The least that describes a schedule.

    Attributes:
        placement: device of each stage.
        priority: kinds of work, the preferred one first; a kind waits when it is not allowed.
        in_flight_cap: for each stage, how many microbatches may have started their forward
            there without having finished their backward.
    """

    placement: tuple[int, ...]
    priority: tuple[Kind, ...]
    in_flight_cap: tuple[int, ...]

    def order(self, num_microbatches: int) -> tuple[tuple[Instruction, ...], ...]:
        """The instructions of each device. Time: linear in their number."""
        return tuple(tuple(self._stage_order(stage, num_microbatches)) for stage in self.placement)

    def _stage_order(self, stage: int, num_microbatches: int) -> list[Instruction]:
        order: list[Instruction] = []
        done = {"forward": 0, "backward": 0}
        cap = self.in_flight_cap[stage]
        while done["backward"] < num_microbatches:
            in_flight = done["forward"] - done["backward"]
            allowed = {
                "forward": done["forward"] < num_microbatches and in_flight < cap,
                "backward": in_flight > 0,
            }
            kind = next(kind for kind in self.priority if allowed[kind])
            order.append(Instruction(stage, kind, done[kind]))
            done[kind] += 1
        return order


def build(name: str, num_stages: int, num_microbatches: int, **options: Any) -> Schedule:
    """A named schedule of any size.

    Args:
        name: ``"gpipe"`` (all forwards, then all backwards), ``"1f1b"`` (at most S - s
            microbatches in flight on stage s) or ``"envpipe"`` (1F1B that runs some forwards
            early, so that idle time comes after a unit that can be stretched into it).
        num_stages: S >= 1.
        num_microbatches: M >= 1, also fewer than S.
        **options: ``max_in_flight`` for every schedule: what the memory of a device can hold,
            one number or one per stage. ``early_forwards`` for ``"envpipe"``: how many more
            forwards than 1F1B each stage runs before its first backward, one number or one per
            stage (see :func:`labkit.pipeline.early_forwards`); default: as many as fit into
            the wait for the first backward where a backward takes two forwards.

    Raises:
        UsageError: an unknown name or option, a size below 1, or a cap that would deadlock.

    >>> print(*build("1f1b", num_stages=2, num_microbatches=3).order[0], sep="; ")
    forward 0 on stage 0; forward 1 on stage 0; backward 0 on stage 0; forward 2 on stage 0; \
backward 1 on stage 0; backward 2 on stage 0

    Source: GPipe (NeurIPS 2019) Fig. 2; PipeDream-Flush/1F1B (ICML 2021) Fig. 2; EnvPipe
    (USENIX ATC 2023), scheduler: early forwards.
    """
    check_sizes(num_stages=num_stages, num_microbatches=num_microbatches)
    if name not in _CAPS:
        raise UsageError(f"no schedule {name!r}; there are: {', '.join(_CAPS)}")
    valid = {"max_in_flight"} | ({"early_forwards"} if name == "envpipe" else set())
    if unknown := sorted(set(options) - valid):
        raise UsageError(
            f"schedule {name!r} has no option {unknown[0]!r}; it has: {', '.join(sorted(valid))}"
        )
    limit = _per_stage("max_in_flight", options.pop("max_in_flight", None), num_stages, least=1)
    caps = _CAPS[name](num_stages, num_microbatches, **options)
    policy = Policy(
        placement=tuple(range(num_stages)),
        priority=("forward", "backward"),
        in_flight_cap=_feasible(caps, limit, num_microbatches),
    )
    return Schedule.from_order(
        policy.order(num_microbatches),
        name=name,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
    )


def _gpipe_caps(num_stages: int, num_microbatches: int) -> list[int]:
    return [num_microbatches] * num_stages


def _1f1b_caps(num_stages: int, num_microbatches: int) -> list[int]:
    return [num_stages - stage for stage in range(num_stages)]


def _envpipe_caps(
    num_stages: int, num_microbatches: int, early_forwards: int | Sequence[int] | None = None
) -> list[int]:
    early = _per_stage("early_forwards", early_forwards, num_stages, least=0)
    if early is None:
        early = [2 * (num_stages - 1 - stage) for stage in range(num_stages)]
    return [cap + e for cap, e in zip(_1f1b_caps(num_stages, 0), early, strict=True)]


_CAPS: dict[str, Callable[..., list[int]]] = {
    "gpipe": _gpipe_caps,
    "1f1b": _1f1b_caps,
    "envpipe": _envpipe_caps,
}


def _feasible(caps: list[int], limit: list[int] | None, num_microbatches: int) -> tuple[int, ...]:
    """Caps cut to the number of microbatches, to the memory, and to what earlier stages send.

    A stage holds one microbatch less than the one before it. Holding as many, it would wait
    before each backward for a forward that the stage before can only send after its own next
    backward: every step a round trip, every cap beyond it a deadlock. Only where all microbatches
    are in flight there is nothing to wait for.
    """
    if limit is not None:
        caps = [min(cap, most) for cap, most in zip(caps, limit, strict=True)]
    kept: list[int] = []
    for cap in caps:
        last = kept[-1] if kept else num_microbatches
        sent = last if last == num_microbatches else max(1, last - 1)
        kept.append(min(cap, sent))
    return tuple(kept)


def _per_stage(
    name: str, value: int | Sequence[int] | None, num_stages: int, *, least: int
) -> list[int] | None:
    if value is None:
        return None
    values = [value] * num_stages if isinstance(value, int | np.integer) else list(value)
    if len(values) != num_stages:
        raise UsageError(f"{name} has {len(values)} values for {num_stages} stages")
    for stage, one in enumerate(values):
        if not isinstance(one, int | np.integer) or one < least:
            raise UsageError(
                f"{name} of stage {stage} must be an integer >= {least}, found {one!r}"
            )
    return [int(one) for one in values]
