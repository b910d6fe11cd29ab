"""What a joint choice chooses from: every schedule, chunks and in-flight cap worth a look."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkit.errors import UsageError
from labkit.pipeline.envpipe import early_forwards
from labkit.pipeline.graph import longest_to
from labkit.pipeline.policies import build
from labkit.pipeline.profile import EnergyProfile
from labkit.pipeline.relaxation import Options, options
from labkit.pipeline.schedule import FORWARD, INPUT, Schedule, check_sizes

PerStage = float | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What the devices of a pipeline must hold, one number or one per stage of the profile.

    Attributes:
        activation_bytes: of one microbatch on a stage, kept from its forward to its backward.
        parameter_bytes: of a stage whatever the schedule: parameters, gradients, optimizer
            state. A device that holds two stages, or several versions, pays for each.

    Raises:
        UsageError: a number is negative or not finite, or their count fits no stages.
    """

    activation_bytes: PerStage = 1.0
    parameter_bytes: PerStage = 0.0

    def __post_init__(self) -> None:
        for name in ("activation_bytes", "parameter_bytes"):
            values = np.atleast_1d(np.asarray(getattr(self, name), dtype=float))
            if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
                raise UsageError(
                    f"{name} must be finite and >= 0, one number or one per stage, "
                    f"found {getattr(self, name)!r}"
                )

    def per_stage(self, name: str, num_stages: int) -> np.ndarray:
        """``activation_bytes`` or ``parameter_bytes`` of each of ``num_stages`` stages."""
        values = np.atleast_1d(np.asarray(getattr(self, name), dtype=float))
        if len(values) not in (1, num_stages):
            raise UsageError(f"{name} has {len(values)} values for {num_stages} stages")
        return np.broadcast_to(values, num_stages)

    def peak_bytes(self, schedule: Schedule, num_stages: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each device: most activation bytes at once, and parameter bytes.

        Where devices hold chunks of the profile's ``num_stages`` stages, each carries an equal
        part of its device's stage (as :meth:`EnergyProfile.for_schedule` shares its work).
        """
        chunks = schedule.num_stages // num_stages
        of = schedule.stage if chunks == 1 else schedule.device
        activation, parameter = (
            self.per_stage(name, num_stages)[of] / chunks
            for name in ("activation_bytes", "parameter_bytes")
        )
        sign = np.where(schedule.kind == FORWARD, 1, np.where(schedule.kind == INPUT, 0, -1))
        held = [
            float(np.cumsum(part).max(initial=0.0))
            for part in schedule.by_device(sign * activation)
        ]
        versions = schedule.weight_versions or (1,) * schedule.num_devices
        kept = []
        for device, (stages, sizes) in enumerate(
            zip(schedule.by_device(schedule.stage), schedule.by_device(parameter), strict=True)
        ):
            once = np.unique(stages, return_index=True)[1]
            kept.append(versions[device] * float(sizes[once].sum()))
        return np.array(held), np.array(kept)


@dataclass(frozen=True, eq=False, kw_only=True)
class Candidate:
    """A schedule for a profile, and what it needs whatever the clocks.

    Attributes:
        name, num_chunks, max_in_flight: what it was built from; ``max_in_flight`` is one number
            a device, or None where nothing was capped.
        profile: the stages' profile, or that of their chunks.
        activation_bytes, parameter_bytes: at their peak, of each device.
    """

    name: str
    num_chunks: int
    max_in_flight: tuple[int, ...] | None
    schedule: Schedule
    profile: EnergyProfile
    activation_bytes: np.ndarray
    parameter_bytes: np.ndarray

    @property
    def peak_bytes(self) -> float:
        """Of the device that holds most."""
        return float((self.activation_bytes + self.parameter_bytes).max())

    @cached_property
    def choices(self) -> Options:
        return options(self.schedule, self.profile)

    @cached_property
    def fastest_s(self) -> float:
        """Makespan with every instruction at its fastest clock."""
        return float(longest_to(self.schedule.graph, self.choices.fastest_s()).max())

    @property
    def title(self) -> str:
        """What it is called in a sentence."""
        parts = [self.name]
        if self.num_chunks > 1:
            parts.append(f"{self.num_chunks} chunks")
        if self.max_in_flight is not None:
            caps = sorted(set(self.max_in_flight))
            told = str(caps[0]) if len(caps) == 1 else f"{caps[0]} to {caps[-1]}"
            parts.append(f"at most {told} in flight")
        return ", ".join(parts)


def candidates(
    profile: EnergyProfile,
    num_microbatches: int,
    *,
    schedules: Iterable[str] | None = None,
    num_chunks: Iterable[int] = (2,),
    memory: Memory | None = None,
    num_caps: int = 24,
    weight_fraction: float = 0.5,
) -> list[Candidate]:
    """Every different schedule among the names, chunks and caps, named by the first that gave it.

    The list depends on the activation bytes but on no limit, so that a tighter limit only ever
    takes candidates away.

    Args:
        schedules: names; None for every synchronous one that the profile's stages allow.
        num_chunks: stages a device, for the schedules that cut them into chunks.
        num_caps: how many in-flight caps to try for a schedule that takes one, beside none. A cap
            is a number of bytes, the same for every device, that each fills with as many
            microbatches as fit.
        weight_fraction: share of a backward pass that its weight half takes, see
            :meth:`EnergyProfile.for_schedule`.

    Raises:
        UsageError: an unknown name, or one that cannot be built at this size.
    """
    check_sizes(num_microbatches=num_microbatches, num_caps=num_caps)
    memory = memory or Memory()
    names = None if schedules is None else list(schedules)
    made: list[Candidate] = []
    seen: set[tuple[Any, ...]] = set()
    ladder = _ladder(memory, profile.num_stages, num_microbatches, num_caps)
    for name in DEFAULT if names is None else names:
        for chunks, cap in itertools.product((1,), (None, *ladder)):
            schedule = _built(profile, name, num_microbatches, cap)
            key = (schedule.lengths, *(x.tobytes() for x in _arrays(schedule)))
            if key in seen:
                continue
            seen.add(key)
            activation, parameter = memory.peak_bytes(schedule, profile.num_stages)
            made.append(
                Candidate(
                    name=name,
                    num_chunks=chunks,
                    max_in_flight=cap,
                    schedule=schedule,
                    profile=profile,
                    activation_bytes=activation,
                    parameter_bytes=parameter,
                )
            )
    return made


DEFAULT = ("1f1b", "gpipe", "envpipe")


def _arrays(schedule: Schedule) -> tuple[np.ndarray, ...]:
    return schedule.stage, schedule.kind, schedule.microbatch


def _ladder(
    memory: Memory, num_stages: int, num_microbatches: int, num_caps: int
) -> list[tuple[int, ...]]:
    """Caps worth trying, tightest first: each device's share of an ever larger memory.

    No cap lies above three times the stages: 1F1B holds at most one times as many, early
    forwards at most two times more.
    """
    share = memory.per_stage("activation_bytes", num_stages)
    share = np.where(share > 0, share, share.max() or 1.0)
    most = min(num_microbatches, 3 * num_stages)
    levels = np.unique(np.outer(np.arange(1, most + 1), share))
    picked = np.unique(np.linspace(0, len(levels) - 1, min(num_caps, len(levels))).round())
    caps = (levels[picked.astype(int), None] / share * (1 + 1e-9)).astype(int)
    return list(dict.fromkeys(tuple(row) for row in np.clip(caps, 1, most).tolist()))


def _built(
    profile: EnergyProfile, name: str, num_microbatches: int, cap: tuple[int, ...] | None
) -> Schedule:
    settings: dict[str, Any] = {"max_in_flight": cap}
    if name == "envpipe":
        settings["early_forwards"] = early_forwards(profile, num_microbatches)
    return build(name, profile.num_stages, num_microbatches, **settings)
