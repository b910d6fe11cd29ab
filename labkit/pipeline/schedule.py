"""Pipeline schedules: what each device runs, in which order.

A schedule is described by three things, never by a program per paper: where each stage lives
(placement), which kind of work goes first (priority), and how many microbatches may be in flight
on each stage (cap). :func:`build` turns such a description into an order per device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from labkit.errors import LabkitError, UsageError

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["forward", "backward"]
KINDS: tuple[Kind, ...] = ("forward", "backward")


class DeadlockError(LabkitError):
    """The order can never finish: some instructions wait for each other in a circle."""


class Instruction(NamedTuple):
    """One unit of work: the forward or the full backward pass of a microbatch on a stage."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind} {self.microbatch} on stage {self.stage}"


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


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The order in which each device runs its instructions.

    Attributes:
        name: what it is called, for tables and figures.
        num_stages, num_microbatches: the pipeline's size; every stage runs every microbatch's
            forward and backward exactly once.
        order: one tuple of instructions per device, first to last.

    Raises:
        UsageError: an instruction is missing, repeated, unknown, or a backward stands before
            its own forward.
    """

    name: str
    num_stages: int
    num_microbatches: int
    order: tuple[tuple[Instruction, ...], ...]

    def __post_init__(self) -> None:
        _check_sizes(self.num_stages, self.num_microbatches)
        seen: set[Instruction] = set()
        for instruction in chain.from_iterable(self.order):
            self._check_instruction(instruction, seen)
            seen.add(instruction)
        missing = 2 * self.num_stages * self.num_microbatches - len(seen)
        if missing:
            raise UsageError(
                f"schedule {self.name!r} lacks {missing} of the "
                f"{2 * self.num_stages * self.num_microbatches} instructions that "
                f"{self.num_stages} stages and {self.num_microbatches} microbatches need"
            )

    def _check_instruction(self, one: Instruction, seen: set[Instruction]) -> None:
        if (
            not 0 <= one.stage < self.num_stages
            or not 0 <= one.microbatch < self.num_microbatches
            or one.kind not in KINDS
        ):
            raise UsageError(
                f"schedule {self.name!r} holds {one}; valid: stages 0 to {self.num_stages - 1}, "
                f"microbatches 0 to {self.num_microbatches - 1}, kinds {', '.join(KINDS)}"
            )
        if one in seen:
            raise UsageError(f"schedule {self.name!r} runs {one} twice")
        if one.kind == "backward" and one._replace(kind="forward") not in seen:
            raise UsageError(
                f"schedule {self.name!r} puts {one} before its forward, or on another device"
            )

    @property
    def num_devices(self) -> int:
        return len(self.order)

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """For each stage, the most microbatches whose activations it holds at once."""
        peaks, held = [0] * self.num_stages, [0] * self.num_stages
        for stage, kind, _ in chain.from_iterable(self.order):
            held[stage] += 1 if kind == "forward" else -1
            peaks[stage] = max(peaks[stage], held[stage])
        return tuple(peaks)

    @cached_property
    def graph(self) -> Graph:
        """Who waits for whom, in an order in which all can run.

        Raises:
            DeadlockError: no such order exists; the message names the circle.
        """
        return _graph(self)

    def frame(self) -> pd.DataFrame:
        """One row per instruction: device, position, stage, kind, microbatch."""
        import pandas as pd

        rows = [
            (device, position, *instruction)
            for device, instructions in enumerate(self.order)
            for position, instruction in enumerate(instructions)
        ]
        return pd.DataFrame(rows, columns=["device", "position", "stage", "kind", "microbatch"])


@dataclass(frozen=True, eq=False, slots=True)
class Graph:
    """A schedule's dependencies, instructions numbered device by device, in running order.

    Attributes:
        device, stage, microbatch: of each instruction, shape (n,).
        kind: index into ``KINDS``, shape (n,).
        before: the instruction just before on the same device; n where there is none.
        needs: the instruction whose output it consumes; n where there is none.
        topological: all instructions, each after those it waits for.
    """

    device: np.ndarray
    stage: np.ndarray
    kind: np.ndarray
    microbatch: np.ndarray
    before: np.ndarray
    needs: np.ndarray
    topological: np.ndarray

    def __len__(self) -> int:
        return len(self.stage)


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
    _check_sizes(num_stages, num_microbatches)
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
    return Schedule(
        name=name,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        order=policy.order(num_microbatches),
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


def _check_sizes(num_stages: int, num_microbatches: int) -> None:
    for name, value in (("num_stages", num_stages), ("num_microbatches", num_microbatches)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise UsageError(f"{name} must be an integer >= 1, found {value!r}")


def _graph(schedule: Schedule) -> Graph:
    flat = list(chain.from_iterable(schedule.order))
    number = {instruction: i for i, instruction in enumerate(flat)}
    none = len(flat)
    producers = [_producer(one, schedule.num_stages) for one in flat]
    needs = [none if one is None else number[one] for one in producers]
    lengths = [len(instructions) for instructions in schedule.order]
    before = np.arange(none) - 1
    first = np.cumsum([0, *lengths[:-1]])
    before[first[np.array(lengths) > 0]] = none
    return Graph(
        device=np.repeat(np.arange(schedule.num_devices), lengths),
        stage=np.array([one.stage for one in flat]),
        kind=np.array([KINDS.index(one.kind) for one in flat]),
        microbatch=np.array([one.microbatch for one in flat]),
        before=before,
        needs=np.array(needs),
        topological=_topological(flat, lengths, needs),
    )


def _producer(one: Instruction, num_stages: int) -> Instruction | None:
    """The instruction on another stage (or the last stage's forward) that feeds ``one``."""
    if one.kind == "forward":
        return one._replace(stage=one.stage - 1) if one.stage else None
    if one.stage < num_stages - 1:
        return one._replace(stage=one.stage + 1)
    return one._replace(kind="forward")


def _topological(flat: list[Instruction], lengths: list[int], needs: list[int]) -> np.ndarray:
    """Let every device run until it must wait; a device resumes when what it waits for is done."""
    start = np.cumsum([0, *lengths]).tolist()
    head = start[:-1].copy()
    done = [False] * len(flat) + [True]
    waiting: dict[int, int] = {}
    order: list[int] = []
    runnable = list(range(len(lengths)))
    while runnable:
        device = runnable.pop()
        while head[device] < start[device + 1]:
            i = head[device]
            if not done[needs[i]]:
                waiting[needs[i]] = device
                break
            done[i] = True
            order.append(i)
            head[device] += 1
            if i in waiting:
                runnable.append(waiting.pop(i))
    if len(order) < len(flat):
        raise DeadlockError(_circle(flat, start, head, needs))
    return np.array(order)


def _circle(flat: list[Instruction], start: list[int], head: list[int], needs: list[int]) -> str:
    """Follow who waits for whom from any blocked device until a device repeats."""
    owner = [d for d in range(len(head)) for _ in range(start[d], start[d + 1])]
    device = next(d for d in range(len(head)) if head[d] < start[d + 1])
    path: list[int] = []
    while device not in path:
        path.append(device)
        device = owner[needs[head[device]]]
    circle = path[path.index(device) :]
    waits = [f"{flat[head[d]]} waits for {flat[needs[head[d]]]}" for d in circle]
    behind = [
        f"which stands behind {flat[head[owner[needs[head[d]]]]]} on device {owner[needs[head[d]]]}"
        for d in circle
    ]
    return "the order deadlocks: " + "; ".join(
        f"{wait}, {why}" for wait, why in zip(waits, behind, strict=True)
    )
