"""A pipeline schedule: which instructions each device runs in which order, and who waits for whom.

Where orders come from is :mod:`.policies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from labkit.errors import BadValue, UsageError, shown
from labkit.kit.describe import Count, Whole, checked, description
from labkit.pipeline.scheduling.graph import Graph, build_graph

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["forward", "backward", "input", "weight"]
KINDS: tuple[Kind, ...] = ("forward", "backward", "input", "weight")
FORWARD, BACKWARD, INPUT, WEIGHT = range(4)
MOST_WORKS = 10**7
"""Pairs of a stage and a microbatch of a schedule; more fill the memory."""


class Instruction(NamedTuple):
    """One unit of work for one microbatch on one stage.

    ``kind`` is the forward pass, the full backward pass, or one of the backward pass's halves:
    the gradient of the stage's input (what the stage before waits for) and that of its weights.
    """

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind} {self.microbatch} on stage {self.stage}"


@description(eq=False)
class Schedule:
    """Says in which order each device runs its instructions.

    Every stage runs every microbatch's forward once and its backward once, whole or as input and
    weight halves, all on one device. Stages are slices of the model in order; a device may hold
    several (chunks), and a stage may live on several devices that split the microbatches between
    them (bidirectional pipelines).

    Attributes:
        lengths: number of instructions of each device.
        stage, kind, microbatch: of each instruction, shape (n,), device by device in running order;
            ``kind`` is an index into ``KINDS``.
        asynchronous: True where the next iteration starts without waiting for this one's end
            (PipeDream), so that warm-up and drain are paid once, not every iteration.
        weight_versions: for each device, how many versions of its weights it keeps.

    Raises:
        UsageError: an instruction is missing, repeated, unknown, or stands before what it needs of
            its own stage.
    """

    name: str
    num_stages: Count
    num_microbatches: Count
    lengths: tuple[Whole, ...]
    stage: np.ndarray
    kind: np.ndarray
    microbatch: np.ndarray
    asynchronous: bool = False
    weight_versions: tuple[Count, ...] | None = None

    def __post_init__(self) -> None:
        self._check_sizes()
        check_columns("Schedule", (sum(self.lengths),), self, "stage", "kind", "microbatch")
        self._check_ranges()
        self._check_whole()
        self._check_order()

    @classmethod
    @checked
    def from_order(cls, order: Sequence[Sequence[tuple[int, str, int]]], *, name: str) -> Schedule:
        """Make a schedule of one sequence of instructions per device; its sizes are what they span.

        Args:
            order: what each device runs.
            name: what the schedule is called.

        Raises:
            UsageError: an instruction is out of place or there is none, or a kind of instruction
                does not exist.

        >>> one = [Instruction(0, "forward", 0), Instruction(0, "backward", 0)]
        >>> Schedule.from_order([one], name="mine").num_microbatches
        1
        """
        rows = [list(device) for device in order]
        flat = list(chain.from_iterable(rows))
        if not flat:
            raise UsageError(f"the order of schedule {name!r} holds no instruction")
        if unknown := [each for each in flat if each[1] not in KINDS]:
            stage_had, kind_had, microbatch_had = unknown[0]
            raise UsageError(
                f"schedule {name!r} holds {shown(kind_had)} {microbatch_had} on stage {stage_had}; "
                f"valid kinds: {', '.join(KINDS)}"
            )
        numbers = [(stage, KINDS.index(kind), microbatch) for stage, kind, microbatch in flat]
        stage, kind, microbatch = np.array(numbers, dtype=int).reshape(-1, 3).T
        return cls(
            name=name,
            num_stages=1 + int(stage.max()),
            num_microbatches=1 + int(microbatch.max()),
            lengths=tuple(map(len, rows)),
            stage=stage,
            kind=kind,
            microbatch=microbatch,
        )

    def __len__(self) -> int:
        return len(self.stage)

    def __getitem__(self, i: int) -> Instruction:
        return Instruction(int(self.stage[i]), KINDS[self.kind[i]], int(self.microbatch[i]))

    @property
    def num_devices(self) -> int:
        """How many devices there are."""
        return len(self.lengths)

    @cached_property
    def device(self) -> np.ndarray:
        """The device of each instruction, shape (n,)."""
        return np.repeat(np.arange(self.num_devices), self.lengths)

    @cached_property
    def order(self) -> tuple[tuple[Instruction, ...], ...]:
        """The instructions of each device, first to last."""
        numbers = self.by_device(np.arange(len(self)))
        return tuple(tuple(map(self.__getitem__, mine.tolist())) for mine in numbers)

    @cached_property
    def position(self) -> np.ndarray:
        """Where each instruction stands: (kind, stage, microbatch) -> its number, n for none."""
        table = np.full((len(KINDS), self.num_stages, self.num_microbatches), len(self))
        table[self.kind, self.stage, self.microbatch] = np.arange(len(self))
        return table

    @property
    def works(self) -> set[tuple[int, int]]:
        """Pairs (index into ``KINDS``, stage) of all that runs."""
        return set(zip(self.kind.tolist(), self.stage.tolist(), strict=True))

    @property
    def splits_backward(self) -> bool:
        """Whether any backward pass runs as input and weight halves."""
        return bool((self.kind >= INPUT).any())

    @checked
    def held(self, each: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add up what devices hold while each instruction runs, and after it, shape (n,) each.

        An activation is held from its forward until its backward, or weight half, has run; ``each``
        is its size by stage.
        """
        each = np.asarray(each)
        if each.shape != (self.num_stages,):
            raise BadValue(
                f"each must hold a size for each of {self.num_stages} stages; got shape "
                f"{each.shape}"
            )
        sign = np.where(self.kind == FORWARD, 1, np.where(self.kind == INPUT, 0, -1))
        change = each[self.stage] * sign
        after = np.concatenate([np.cumsum(part) for part in self.by_device(change)])
        return np.maximum(after, after - change), after

    @checked
    def peak_held(self, each: np.ndarray) -> np.ndarray:
        """The most that each device holds at once, shape (num_devices,); see :meth:`held`."""
        return np.array([part.max(initial=0) for part in self.by_device(self.held(each)[1])])

    @cached_property
    def homes(self) -> np.ndarray:
        """Whether each stage lives on each device: shape (num_stages, num_devices)."""
        table = np.zeros((self.num_stages, self.num_devices), dtype=bool)
        table[self.stage, self.device] = True
        return table

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """For each device, the most activations (of a microbatch on a stage) it holds at once."""
        return tuple(self.peak_held(np.ones(self.num_stages, dtype=int)).tolist())

    @checked
    def by_device(self, values: np.ndarray) -> list[np.ndarray]:
        """Cut ``values``, one an instruction, into one array a device."""
        if np.shape(values) != (len(self),):
            raise BadValue(
                f"values must hold one for each of {len(self)} instructions; got shape "
                f"{np.shape(values)}"
            )
        return np.split(values, np.cumsum(self.lengths)[:-1])

    @cached_property
    def graph(self) -> Graph:
        """Who waits for whom, in an order in which all can run.

        Raises:
            DeadlockError: no such order exists; the message names the circle.
        """
        return build_graph(self.lengths, self._producers(), self.__getitem__)

    @property
    def data(self) -> dict[str, Any]:
        """The schedule's name and sizes, for JSON."""
        names = ["name", "num_devices", "num_stages", "num_microbatches", "splits_backward"]
        names += ["asynchronous", "peak_in_flight"]
        return {name: getattr(self, name) for name in names} | {"num_instructions": len(self)}

    def frame(self) -> pd.DataFrame:
        """Table the instructions, one row each: device, stage, kind, microbatch; devices in running
        order.
        """
        import pandas as pd

        return pd.DataFrame(
            {
                "device": self.device,
                "stage": self.stage,
                "kind": np.array(KINDS)[self.kind],
                "microbatch": self.microbatch,
            }
        )

    def _producers(self) -> np.ndarray:
        """Find the instruction whose output each one consumes; n where there is none."""
        n = len(self)
        last = self.num_stages - 1
        forward, backward, half, _ = self.position
        gradient = np.where(backward < n, backward, half)  # what makes the input's gradient
        is_forward = self.kind == FORWARD
        is_weight = self.kind == WEIGHT
        is_gradient = ~is_forward & ~is_weight
        needs = np.full(n, n)
        for mine, table, source in (
            (is_forward & (self.stage > 0), forward, -1),
            (is_gradient & (self.stage < last), gradient, 1),
            (is_gradient & (self.stage == last), forward, 0),
            (is_weight, half, 0),
        ):
            needs[mine] = table[self.stage[mine] + source, self.microbatch[mine]]
        return needs

    def _check_sizes(self) -> None:
        """Refuse sizes that fill the memory, and other lengths than there are instructions."""
        check_size(
            self.num_stages * self.num_microbatches,
            f"num_stages {self.num_stages} and num_microbatches {self.num_microbatches}",
        )
        if sum(self.lengths) != np.size(self.stage):
            raise BadValue(
                f"Schedule.lengths must add up to its {np.size(self.stage)} instructions; got "
                f"{shown(self.lengths)}, which stage and its like must follow"
            )

    def _check_ranges(self) -> None:
        """Refuse numbers of stages, kinds and microbatches that there are none of."""
        stage = self.stage
        microbatch = self.microbatch
        inside = (stage >= 0) & (stage < self.num_stages)
        inside &= (microbatch >= 0) & (microbatch < self.num_microbatches)
        inside &= (self.kind >= 0) & (self.kind < len(KINDS))
        if not inside.all():
            raise UsageError(
                f"schedule {self.name!r} holds {self[int(np.argmin(inside))]}; valid: stages 0 to "
                f"{self.num_stages - 1}, microbatches 0 to {self.num_microbatches - 1} "
                "(num_stages, num_microbatches)"
            )

    def _check_whole(self) -> None:
        """Refuse orders but those of every forward once and every backward once, whole or in two
        halves.
        """
        count = np.zeros((self.num_stages, self.num_microbatches, len(KINDS)), dtype=int)
        np.add.at(count, (self.stage, self.microbatch, self.kind), 1)
        split = count[..., INPUT] + count[..., WEIGHT] > 0
        needed = np.stack([np.ones_like(split), ~split, split, split], axis=-1)
        missing = needed & (count == 0)
        of = f"{self.num_stages} stages and {self.num_microbatches} microbatches"
        for wrong, problem in (
            (count > 1, "runs {} twice"),
            (count > needed, "runs {} whole and as halves"),
            (missing, f"lacks {missing.sum()} of the instructions that {of} need, first {{}}"),
        ):
            if wrong.any():
                stage, microbatch, kind = np.argwhere(wrong)[0].tolist()
                instruction = Instruction(stage, KINDS[kind], microbatch)
                raise UsageError(f"schedule {self.name!r} {problem.format(instruction)}")

    def _check_order(self) -> None:
        """Refuse a backward before its forward on the same device, and a weight half before its
        input.
        """
        first = np.full(len(self), -1)
        backward = (self.kind == BACKWARD) | (self.kind == INPUT)
        weight = self.kind == WEIGHT
        for mine, kind in ((backward, FORWARD), (weight, INPUT)):
            first[mine] = self.position[kind, self.stage[mine], self.microbatch[mine]]
        own = np.arange(len(self))
        good = (first < 0) | ((first < own) & (self.device[first] == self.device))
        if not good.all():
            i = int(np.argmin(good))
            raise UsageError(
                f"schedule {self.name!r} puts {self[i]} before its {self[int(first[i])].kind}, "
                "or on another device"
            )


def check_size(num_works: int, sizes: str) -> None:
    """Refuse schedules of so many stages and microbatches that they fill the memory.

    Args:
        num_works: stages times microbatches.
        sizes: the arguments that say how many, for the error.
    """
    if num_works > MOST_WORKS:
        raise BadValue(
            f"{sizes} make {num_works:.3g} pairs of a stage and a microbatch; a schedule has up to "
            f"{MOST_WORKS:.0e}"
        )


def check_columns(owner: str, shape: tuple[int, ...], record: object, *names: str) -> None:
    """Refuse arrays of another shape, and numbers of instructions or stages that are not whole."""
    for name in names:
        values = getattr(record, name)
        if not isinstance(values, np.ndarray):
            raise BadValue(f"{owner}.{name} must be an array; got {shown(values)}")
        if values.shape != shape:
            raise BadValue(f"{owner}.{name} must have shape {shape}; got shape {values.shape}")
        if name in ("stage", "kind", "microbatch") and values.dtype.kind not in "iu":
            raise BadValue(f"{owner}.{name} must hold whole numbers; got {values.dtype}")
