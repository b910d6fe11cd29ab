"""Aceso's cost model: seconds and MiB of a plan, from tables of its operators.

A plan cuts the chain of operators into stages. A stage has GPUs, a degree (how many share each
operator; the others are replicas), and recomputes some of its operators in the backward pass. For
B microbatches and stages s with t_s seconds each,

    iteration = (B - 1) max t_s + sum t_s.

A stage's memory holds weights with gradients and the optimizer's state, what it keeps of its own
microbatch and of one more for each stage behind it, the largest run that it computes again, and
space that the allocator reserves. Gradients of replicas are summed for nothing: their model has no
term for it.

Which operators are computed again is chosen as the authors do: operators of one name together,
those that save most first, until the stage fits.

Source: the artifact's ``search/aceso_cost_model.py`` (formulas), checked on its published
predictions in ``tests/papers/test_aceso.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np

from labkit.errors import BadValue
from labkit.kit.compiled import njit
from labkit.papers.aceso.tables import (
    BACKWARD,
    BACKWARD_SPACE,
    FORWARD,
    FORWARD_SPACE,
    INPUT,
    KEPT,
    OUTPUT,
    WEIGHTS,
    Tables,
)

US = 1e-6


class Recompute(IntEnum):
    """What a stage computes again in the backward pass."""

    NOTHING = 0
    ALL = 1
    AS_NEEDED = 2


@dataclass(frozen=True, order=True)
class Stage:
    """Operators ``first`` to ``end`` (not included) on ``degree`` × ``replicas`` GPUs."""

    first: int
    end: int
    degree: int
    replicas: int

    @property
    def gpus(self) -> int:
        """How many it has."""
        return self.degree * self.replicas


@dataclass(frozen=True, order=True)
class Plan:
    """Stages of a chain, and the samples of a microbatch (of all replicas together)."""

    microbatch: int
    stages: tuple[Stage, ...]

    @property
    def name(self) -> str:
        """Operators, degree and replicas of each stage.

        >>> Plan(2, (Stage(0, 5, 2, 1), Stage(5, 9, 1, 2))).name
        '5 on 2×1, 4 on 1×2, microbatch 2'
        """
        parts = []
        for stage in self.stages:
            parts.append(f"{stage.end - stage.first} on {stage.degree}×{stage.replicas}")
        return ", ".join(parts) + f", microbatch {self.microbatch}"


@dataclass(frozen=True)
class StagePrice:
    """A stage's seconds a microbatch, by cause, and its memory."""

    compute_s: float
    again_s: float
    transfers_s: float
    memory_mib: float

    @property
    def time_s(self) -> float:
        """All of it."""
        return self.compute_s + self.again_s + self.transfers_s


@dataclass(frozen=True)
class Price:
    """A plan's price: of each stage, and of an iteration."""

    stages: tuple[StagePrice, ...]
    num_microbatches: int
    limit_mib: float

    @property
    def iteration_s(self) -> float:
        """The longest stage for each further microbatch, then all stages once."""
        times = [stage.time_s for stage in self.stages]
        return (self.num_microbatches - 1) * max(times) + sum(times)

    @property
    def memory_mib(self) -> float:
        """Of the stage that needs most."""
        return max(stage.memory_mib for stage in self.stages)

    @property
    def fits(self) -> bool:
        """Whether every stage is within the limit."""
        return self.memory_mib <= self.limit_mib

    @property
    def rank(self) -> tuple[float, float]:
        """What is minimised: memory above the limit first, then seconds."""
        return max(0.0, self.memory_mib - self.limit_mib), self.iteration_s

    @property
    def bottleneck(self) -> int:
        """The stage with most memory where one is above the limit, else the longest."""
        if self.fits:
            values = [stage.time_s for stage in self.stages]
        else:
            values = [stage.memory_mib for stage in self.stages]
        return int(np.argmax(values))


@njit(cache=True)
def _saved(
    first: int,
    end: int,
    again: np.ndarray,
    kept: np.ndarray,
    ends_block: np.ndarray,
    shared: np.ndarray,
) -> tuple[float, float]:
    """MiB that are not kept because they are computed again, and the largest run of them.

    An operator's output is dropped where it and the next one are computed again. Before a block's
    first operator the output stays, but takes room once more in the run's peak.
    """
    saved = 0.0
    peak = 0.0
    run = 0.0
    for place in range(first, end - 1):
        here = place - first
        if again[here] and again[here + 1]:
            run += kept[place]
            # 1. Softmax and its dropout share their space; they never end a run.
            if shared[place]:
                saved += kept[place]
                continue
            # 2. A block's input is kept; the run ends there.
            if ends_block[place]:
                peak = max(peak, run)
                run = 0.0
            else:
                saved += kept[place]
                if place == end - 2:
                    peak = max(peak, run)
                    run = 0.0
        elif run > 0:
            # 3. The run ends where an operator is kept.
            peak = max(peak, run)
            run = 0.0
    return saved, peak


@njit(cache=True)
def _largest(
    sums: np.ndarray, done: np.ndarray, excluded: np.ndarray, order: np.ndarray, count: int
) -> int:
    """The name, not yet taken, whose operators keep most; -1 where none keeps anything."""
    best = -1
    most = 0.0
    for number in range(count):
        name = order[number]
        if not done[name] and not excluded[name] and sums[name] > most:
            most = sums[name]
            best = name
    return best


@njit(cache=True)
def _choose(
    first: int,
    end: int,
    names: np.ndarray,
    raw: np.ndarray,
    kept: np.ndarray,
    ends_block: np.ndarray,
    shared: np.ndarray,
    excluded: np.ndarray,
    behind: int,
    memory: float,
    limit: float,
) -> np.ndarray:
    """Which operators a stage computes again so that it fits, those that save most first."""
    size = end - first
    again = np.zeros(size, np.bool_)
    if memory <= limit:
        return again
    # 1. Add up what the operators of each name keep, in the order in which names appear.
    sums = np.zeros(len(excluded))
    order = np.empty(len(excluded), np.int64)
    seen = np.full(len(excluded), -1)
    count = 0
    for place in range(first, end):
        name = names[place]
        if seen[name] < 0:
            seen[name] = place
            order[count] = name
            count += 1
        sums[name] += raw[place] * (behind + 1)
    done = np.zeros(len(excluded), np.bool_)
    old_saved = 0.0
    old_peak = 0.0
    # 2. Until the stage fits, take the name that keeps most, and the operator after each of it.
    while memory > limit:
        name = _largest(sums, done, excluded, order, count)
        if name < 0 or seen[name] + 1 >= end:
            break
        done[name] = True
        done[names[seen[name] + 1]] = True
        excess = memory - limit
        partly = sums[name] >= excess
        gained = 0.0
        for place in range(first, end):
            if names[place] != name:
                continue
            # 3. Of the last name only as many operators as it takes.
            if partly and gained > excess:
                break
            gained += raw[place] * (behind + 1)
            again[place - first] = True
            if place < end - 1:
                again[place - first + 1] = True
        saved, peak = _saved(first, end, again, kept, ends_block, shared)
        memory -= (saved - old_saved) * (behind + 1)
        memory += peak - old_peak
        old_saved = saved
        old_peak = peak
    return again


@njit(cache=True)
def _price(
    first: int,
    end: int,
    names: np.ndarray,
    table: np.ndarray,
    kept: np.ndarray,
    flags: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    behind: int,
    copies: float,
    limit: float,
    mode: int,
    given: np.ndarray,
) -> tuple[float, float, float]:
    """Microseconds of both passes, of computing again, and MiB of a stage.

    ``table`` has a row an operator's name. ``flags`` are, by place, whether a block ends and
    whether space is shared, and by name whether it is never chosen and whether never repeated.
    """
    ends_block, shared, excluded, never = flags
    compute = 0.0
    weights = 0.0
    held = table[names[first], INPUT]
    forward_space = 0.0
    backward_space = 0.0
    for place in range(first, end):
        row = table[names[place]]
        compute += row[FORWARD] + row[BACKWARD]
        weights += row[WEIGHTS]
        held += kept[place]
        if place < end - 1:
            forward_space = max(forward_space, row[FORWARD_SPACE])
            backward_space = max(backward_space, row[BACKWARD_SPACE])
    reserved = max(forward_space + backward_space, weights)
    memory = weights * copies + held * (behind + 1) + reserved
    if mode == 2:
        raw = table[names, KEPT]
        again = _choose(
            first, end, names, raw, kept, ends_block, shared, excluded, behind, memory, limit
        )
    elif mode == 1:
        again = ~never[names[first:end]]
    elif mode == 0:
        again = np.zeros(end - first, np.bool_)
    else:
        again = given
    saved, peak = _saved(first, end, again, kept, ends_block, shared)
    repeated = 0.0
    for place in range(first, end):
        if again[place - first]:
            repeated += table[names[place], FORWARD]
    return compute, repeated, memory - saved * (behind + 1) + peak


def link_us(size_mib: float, gb_per_s: np.ndarray) -> float:
    """Microseconds of a message: the rate is that of the power of two below the next smaller.

    Source: the artifact's look-up, which is one place off, and wraps below one MiB.
    """
    if size_mib <= 0:
        return 0.0
    place = int(np.log2(size_mib))
    if place >= 1:
        place -= 1
    return size_mib / (gb_per_s[min(place, len(gb_per_s) - 1)] * 1e-3)


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A network, its GPUs and its batch: prices plans, and counts the stages that it priced.

    Attributes:
        tables: of the operators.
        chain: names of the operators, in order.
        gpus: how many there are.
        gpus_of_a_machine: GPUs of a machine; a stage never has GPUs of two machines.
        batch: samples of an iteration.
        limit_mib: memory of a GPU.
        copies: bytes of weights, gradients and state over bytes of the weights.
        headroom_mib: kept free while choosing what is computed again.
    """

    tables: Tables
    chain: tuple[str, ...]
    gpus: int
    gpus_of_a_machine: int = 8
    batch: int = 1024
    limit_mib: float = 28000.0
    copies: float = 8.0
    headroom_mib: float = 0.0
    _seen: dict[tuple[object, ...], StagePrice] = field(default_factory=dict, repr=False)

    def fresh(self) -> Job:
        """The same job, with nothing priced yet."""
        from dataclasses import replace

        return replace(self, _seen={})

    @property
    def priced(self) -> int:
        """Different stages priced so far."""
        return len(self._seen)

    @cached_property
    def names(self) -> np.ndarray:
        """Places of the chain's operators in the tables."""
        places = {name: place for place, name in enumerate(self.tables.operators)}
        return np.array([places[name] for name in self.chain])

    @cached_property
    def flags(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        opens = np.array([_opens_block(name) for name in self.tables.operators])[self.names]
        ends_block = np.append(opens[1:], False)
        never = np.array([name in _NEVER for name in self.tables.operators])
        excluded = np.array([_is_excluded(name) for name in self.tables.operators]) | never
        share = np.array([_share(name) for name in self.tables.operators])[self.names]
        return ends_block, share != 1.0, excluded, never

    @cached_property
    def _shares(self) -> np.ndarray:
        return np.array([_share(name) for name in self.tables.operators])[self.names]

    @cached_property
    def _kept(self) -> dict[tuple[int, int], np.ndarray]:
        return {}

    def kept_mib(self, row: int, column: int) -> np.ndarray:
        """What each operator of the chain keeps, where softmax and dropout share their space."""
        if (row, column) not in self._kept:
            raw = self.tables.values[row, column, self.names, KEPT]
            self._kept[row, column] = raw * self._shares
        return self._kept[row, column]

    @property
    def block_cuts(self) -> list[int]:
        """Places where the chain may be cut between blocks."""
        return [0, *(np.flatnonzero(self.flags[0]) + 1).tolist(), len(self.chain)]

    def ways(self, microbatch: int, gpus: int) -> list[tuple[int, int]]:
        """Degrees and replicas that so many GPUs may have."""
        ways = []
        for degree in self.tables.degrees:
            replicas = gpus // degree
            if degree * replicas == gpus and self.is_measured(microbatch, degree, replicas):
                ways.append((degree, replicas))
        return ways

    def is_measured(self, microbatch: int, degree: int, replicas: int) -> bool:
        """Whether the tables hold that degree, at that many samples on each replica."""
        samples = microbatch / replicas
        return samples in self.tables.microbatches and degree in self.tables.degrees

    def stage(
        self,
        stage: Stage,
        microbatch: int,
        behind: int,
        *,
        recompute: Recompute = Recompute.AS_NEEDED,
        crosses: tuple[bool, bool] = (False, False),
    ) -> StagePrice:
        """A stage's price.

        Args:
            behind: stages after it.
            recompute: what it computes again.
            crosses: whether its input and its output leave the machine.
        """
        key = (stage, microbatch, behind, recompute, crosses)
        if key not in self._seen:
            self._seen[key] = self._stage(stage, microbatch, behind, int(recompute), crosses)
        return self._seen[key]

    def _stage(
        self,
        stage: Stage,
        microbatch: int,
        behind: int,
        mode: int,
        crosses: tuple[bool, bool],
        again: np.ndarray | None = None,
    ) -> StagePrice:
        row = self.tables.microbatches.index(microbatch // stage.replicas)
        column = self.tables.degrees.index(stage.degree)
        table = self.tables.values[row, column]
        given = np.zeros(0, np.bool_) if again is None else again
        compute_us, again_us, memory_mib = _price(
            stage.first,
            stage.end,
            self.names,
            table,
            self.kept_mib(row, column),
            self.flags,
            behind,
            self.copies,
            self.limit_mib - self.headroom_mib,
            mode,
            given,
        )
        sizes = table[self.names[stage.first], INPUT], table[self.names[stage.end - 1], OUTPUT]
        transfers_us = 0.0
        for size_mib, crossing in zip(sizes, crosses, strict=True):
            tables = self.tables
            rates = tables.between_gb_per_s if crossing else tables.inside_gb_per_s
            transfers_us += link_us(size_mib, rates)
        return StagePrice(compute_us * US, again_us * US, transfers_us * US, memory_mib)

    def price(self, plan: Plan, recompute: Recompute = Recompute.AS_NEEDED) -> Price:
        """A plan's price, each stage computing again what it must."""
        prices = []
        gpus = 0
        for number, stage in enumerate(plan.stages):
            crosses_in = gpus > 0 and gpus % self.gpus_of_a_machine == 0
            gpus += stage.gpus
            crosses = (crosses_in, gpus % self.gpus_of_a_machine == 0)
            behind = len(plan.stages) - 1 - number
            prices.append(
                self.stage(stage, plan.microbatch, behind, recompute=recompute, crosses=crosses)
            )
        return Price(tuple(prices), self.batch // plan.microbatch, self.limit_mib)

    def price_stage(self, plan: Plan, number: int) -> StagePrice:
        """The price of one stage of a plan (the others need not fit together yet)."""
        stages = plan.stages
        before = sum(stage.gpus for stage in stages[:number])
        after = before + stages[number].gpus
        machine = self.gpus_of_a_machine
        crosses = (before > 0 and before % machine == 0, after % machine == 0)
        behind = len(stages) - 1 - number
        return self.stage(stages[number], plan.microbatch, behind, crosses=crosses)

    def price_given(self, stage: Stage, microbatch: int, again: np.ndarray) -> Price:
        """The price of a plan of one stage that computes again what it is told to."""
        crosses = (False, stage.gpus % self.gpus_of_a_machine == 0)
        price = self._stage(stage, microbatch, 0, 3, crosses, again)
        return Price((price,), self.batch // microbatch, self.limit_mib)

    def ideal_s(self, stage: Stage, microbatch: int) -> float:
        """Seconds of both passes if a stage's GPUs divided the work of one GPU evenly."""
        row = self.tables.microbatches.index(microbatch)
        table = self.tables.values[row, 0, self.names[stage.first : stage.end]]
        return float(table[:, : BACKWARD + 1].sum()) * US / stage.gpus

    def check(self, plan: Plan) -> None:
        """Refuse a plan that is none of this job.

        Raises:
            BadValue: stages do not follow each other, or GPUs do not add up.
        """
        ends = [0, *(stage.end for stage in plan.stages)]
        firsts = [*(stage.first for stage in plan.stages), len(self.chain)]
        if ends != firsts:
            raise BadValue(f"stages must follow each other from 0 to {len(self.chain)}; got {ends}")
        if sum(stage.gpus for stage in plan.stages) != self.gpus:
            raise BadValue(f"stages must have {self.gpus} GPUs together; got {plan.name}")
        for stage in plan.stages:
            if not self.is_measured(plan.microbatch, stage.degree, stage.replicas):
                raise BadValue(f"the tables hold no such stage: {plan.name}")

    def is_legal(self, plan: Plan) -> bool:
        """Whether GPUs add up, fill machines, and every stage is in the tables."""
        gpus = 0
        starts = set()
        for stage in plan.stages:
            if stage.first >= stage.end or stage.gpus not in (1, 2, 4, 8):
                return False
            if not self.is_measured(plan.microbatch, stage.degree, stage.replicas):
                return False
            gpus += stage.gpus
            starts.add(gpus)
        machines = range(self.gpus_of_a_machine, self.gpus + 1, self.gpus_of_a_machine)
        return gpus == self.gpus and starts.issuperset(machines)


_NEVER = frozenset({"encoder-embedding", "gpt-post-process", "conv1"})
"""Operators that are never computed again."""


def _opens_block(name: str) -> bool:
    return name == "enc-1st-layernorm" or "-conv1" in name


def _is_excluded(name: str) -> bool:
    """Whether an operator is never chosen for itself (it may follow one that is)."""
    return _opens_block(name) or "-relu" in name


def _share(name: str) -> float:
    """By how much what an operator keeps is multiplied, since some share their space."""
    if name == "enc-attention-dropout":
        return 1.5
    if name in ("enc-attention-softmax", "bn1") or "-bn3" in name:
        return 0.0
    if "-downsample" in name and "0-0" not in name:
        return 0.0
    return 1.0
