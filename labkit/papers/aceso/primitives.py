"""Aceso's moves: each gives a plan, or None where it has nothing to move.

A move is made for one stage and completed by its partners, so that GPUs and operators add up. What
it does to the stage stands in ``EFFECTS``; what is computed again follows by itself, since pricing
a stage chooses it.

Source: Table 1 of the paper (seen in the artifact's ``search/aceso_prims.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from labkit.papers.aceso.pricing import Job, Plan, Price, Stage

GOALS = (0.4, 0.2, 0.0)
"""Shares of the gap between two stages that a move of operators tries to close."""
_ROUNDS = 5
"""How often a move of operators goes on with the stage that is longest then."""

_STEPS = 128
"""In how many steps, about, a stage may hand on its operators."""


class Move(StrEnum):
    """What can be done for a stage."""

    FEWER_OPERATORS = "fewer operators"
    MORE_REPLICAS = "more replicas"
    FEWER_REPLICAS = "fewer replicas"
    HIGHER_DEGREE = "higher degree"
    LOWER_DEGREE = "lower degree"
    LARGER_MICROBATCH = "larger microbatch"
    SMALLER_MICROBATCH = "smaller microbatch"


class Resource(StrEnum):
    """What a stage spends."""

    COMPUTE = "compute"
    LOSS = "what sharing loses"
    MEMORY = "memory"


EFFECTS: dict[Move, dict[Resource, int]] = {
    Move.FEWER_OPERATORS: {Resource.COMPUTE: -1, Resource.LOSS: 0, Resource.MEMORY: -1},
    Move.MORE_REPLICAS: {Resource.COMPUTE: -1, Resource.LOSS: 1, Resource.MEMORY: -1},
    Move.FEWER_REPLICAS: {Resource.COMPUTE: 1, Resource.LOSS: -1, Resource.MEMORY: 1},
    Move.HIGHER_DEGREE: {Resource.COMPUTE: -1, Resource.LOSS: 1, Resource.MEMORY: -1},
    Move.LOWER_DEGREE: {Resource.COMPUTE: 1, Resource.LOSS: -1, Resource.MEMORY: 1},
    Move.LARGER_MICROBATCH: {Resource.COMPUTE: -1, Resource.LOSS: 0, Resource.MEMORY: 1},
    Move.SMALLER_MICROBATCH: {Resource.COMPUTE: 1, Resource.LOSS: 0, Resource.MEMORY: -1},
}
"""Whether a stage spends more (1) or less (-1) of each resource after a move."""


def apply(job: Job, plan: Plan, number: int, move: Move) -> list[Plan]:
    """The plans that a move for stage ``number`` gives; none where there is no such move."""
    if move is Move.FEWER_OPERATORS:
        return fewer_operators(job, plan, number)
    if move in (Move.LARGER_MICROBATCH, Move.SMALLER_MICROBATCH):
        moved = other_microbatch(job, plan, 1 if move is Move.LARGER_MICROBATCH else -1)
    else:
        grows = move in (Move.MORE_REPLICAS, Move.HIGHER_DEGREE)
        replicas = move in (Move.MORE_REPLICAS, Move.FEWER_REPLICAS)
        moved = other_gpus(job, plan, number, grows=grows, replicas=replicas)
    return [] if moved is None else [moved]


def _values(price: Price) -> list[float]:
    """What is to be levelled: memory while a stage is above the limit, else seconds."""
    if price.fits:
        return [stage.time_s for stage in price.stages]
    return [stage.memory_mib for stage in price.stages]


def fewer_operators(job: Job, plan: Plan, number: int) -> list[Plan]:
    """Operators move from a stage to others, through those between: a plan for each partner.

    The first plan goes on, with the stage that is longest then and the one that has least to do,
    for a few rounds.
    """
    plans = []
    levelled = plan
    here = number
    for _ in range(_ROUNDS):
        moved = next(_levelled(job, levelled, here), None)
        if moved is None:
            break
        levelled = moved
        here = job.price(levelled).bottleneck
    if levelled != plan:
        plans.append(levelled)
    for moved in _levelled(job, plan, number):
        if moved not in plans:
            plans.append(moved)
    return plans


def _levelled(job: Job, plan: Plan, number: int) -> Iterator[Plan]:
    """Plans in which a stage has handed operators to another, least busy partner first."""
    price = job.price(plan)
    values = _values(price)
    others = [place for place in range(len(values)) if place != number]
    for partner in sorted(others, key=lambda place: values[place]):
        gap = values[number] - values[partner]
        if gap <= 0:
            continue
        goals = [values[number] - gap * share for share in GOALS]
        if not price.fits:
            goals = [job.limit_mib]
        for goal in goals:
            moved = _moved(job, plan, number, partner, goal, in_seconds=price.fits)
            if moved is not None:
                yield moved
                break


def _moved(
    job: Job, plan: Plan, number: int, partner: int, goal: float, *, in_seconds: bool
) -> Plan | None:
    """The plan in which all stages on the way are below the goal; None where that cannot be."""
    step = 1 if partner > number else -1
    moved = 0
    for here in range(number, partner, step):
        count = _fewest(job, plan, here, step, goal, in_seconds)
        if count is None:
            return None
        moved += count
        plan = _handed_on(plan, here, step, count)
    value = _value(job, plan, partner, in_seconds)
    return plan if moved and value < goal else None


def _value(job: Job, plan: Plan, number: int, in_seconds: bool) -> float:
    price = job.price_stage(plan, number)
    return price.time_s if in_seconds else price.memory_mib


def _fewest(
    job: Job, plan: Plan, number: int, step: int, goal: float, in_seconds: bool
) -> int | None:
    """How many operators a stage must hand on to be below the goal; None where all but one do not.

    They are tried one by one (in larger steps where a stage is long): what is computed again jumps,
    so seconds do not fall steadily.
    """
    stage = plan.stages[number]
    size = stage.end - stage.first
    for count in range(0, size, max(1, size // _STEPS)):
        if _value(job, _handed_on(plan, number, step, count), number, in_seconds) < goal:
            return count
    return None


def _handed_on(plan: Plan, number: int, step: int, count: int) -> Plan:
    """The plan after a stage has given operators to the next (or, with step -1, the last)."""
    stages = [*plan.stages]
    stage = stages[number]
    other = stages[number + step]
    if step > 0:
        stages[number] = replace(stage, end=stage.end - count)
        stages[number + step] = replace(other, first=other.first - count)
    else:
        stages[number] = replace(stage, first=stage.first + count)
        stages[number + step] = replace(other, end=other.end + count)
    return replace(plan, stages=tuple(stages))


def handed_on(job: Job, plan: Plan, number: int, step: int, count: int) -> Plan | None:
    """The plan after a stage has handed so many operators to a neighbour, where it can."""
    if not 0 <= number + step < len(plan.stages):
        return None
    moved = _handed_on(plan, number, step, count)
    return moved if job.is_legal(moved) else None


def other_gpus(job: Job, plan: Plan, number: int, *, grows: bool, replicas: bool) -> Plan | None:
    """A stage doubles or halves its degree or replicas; partners give or take the GPUs."""
    own = _resized(job, plan, number, grows, replicas)
    if own is None:
        return None
    plan = own
    done = {number}
    while True:
        missing = job.gpus - sum(stage.gpus for stage in plan.stages)
        if missing == 0:
            break
        # Partners do the opposite; whoever is fastest after it comes first.
        offers = _offers(job, plan, done, missing)
        if not offers:
            return None
        _, partner, plan = min(offers, key=lambda offer: offer[:2])
        done.add(partner)
    return plan if job.is_legal(plan) else None


def _offers(job: Job, plan: Plan, done: set[int], missing: int) -> list[tuple[float, int, Plan]]:
    offers = []
    for partner, stage in enumerate(plan.stages):
        gpus = stage.gpus if missing > 0 else stage.gpus // 2
        if partner in done or not 0 < gpus <= abs(missing):
            continue
        for replicas in (False, True):
            changed = _resized(job, plan, partner, missing > 0, replicas)
            if changed is not None:
                time_s = job.price_stage(changed, partner).time_s
                offers.append((time_s, partner, changed))
    return offers


def _resized(job: Job, plan: Plan, number: int, grows: bool, replicas: bool) -> Plan | None:
    stage = plan.stages[number]
    count = stage.replicas if replicas else stage.degree
    if not grows and count == 1:
        return None
    changed = count * 2 if grows else count // 2
    resized = replace(stage, replicas=changed) if replicas else replace(stage, degree=changed)
    if not job.is_measured(plan.microbatch, resized.degree, resized.replicas):
        return None
    return with_stage(plan, number, resized)


def with_stage(plan: Plan, number: int, stage: Stage) -> Plan:
    """The plan with another stage in that place."""
    stages = [*plan.stages]
    stages[number] = stage
    return replace(plan, stages=tuple(stages))


def other_microbatch(job: Job, plan: Plan, step: int) -> Plan | None:
    """The next larger or smaller microbatch; each stage takes the degree that is fastest then."""
    sizes = job.tables.microbatches
    place = sizes.index(plan.microbatch) + step
    if not 0 <= place < len(sizes):
        return None
    plan = replace(plan, microbatch=sizes[place])
    for number, stage in enumerate(plan.stages):
        choices = _choices(job, plan, number, stage.gpus)
        if not choices:
            return None
        plan = min(choices, key=_first)[1]
    return plan


def _choices(
    job: Job, plan: Plan, number: int, gpus: int
) -> list[tuple[tuple[float, float], Plan]]:
    """Each degree of a stage: memory above the limit, seconds, and the plan with it."""
    choices = []
    for degree, replicas in job.ways(plan.microbatch, gpus):
        stage = replace(plan.stages[number], degree=degree, replicas=replicas)
        changed = with_stage(plan, number, stage)
        price = job.price_stage(changed, number)
        excess_mib = max(0.0, price.memory_mib - job.limit_mib)
        choices.append(((excess_mib, price.time_s), changed))
    return choices


def _first(choice: tuple[tuple[float, float], Plan]) -> tuple[float, float]:
    return choice[0]


def even_plan(job: Job, num_stages: int) -> Plan | None:
    """Equally many operators a stage, GPUs doubled from the first on, degrees alone.

    Source: the artifact's initial point ``balance``.
    """
    gpus = [1] * num_stages
    grown = True
    while sum(gpus) < job.gpus and grown:
        grown = False
        for place in range(num_stages):
            free = job.gpus - sum(gpus)
            if free and gpus[place] <= free and gpus[place] * 2 in job.tables.degrees:
                gpus[place] *= 2
                grown = True
    if sum(gpus) != job.gpus or num_stages > len(job.chain):
        return None
    each = len(job.chain) // num_stages
    ends = [each * (place + 1) for place in range(num_stages - 1)] + [len(job.chain)]
    return plan_of(job.tables.microbatches[0], ends, [(degree, 1) for degree in gpus])


def plan_of(microbatch: int, ends: Sequence[int], ways: Sequence[tuple[int, int]]) -> Plan:
    """A plan from where its stages end, and the degree and replicas of each."""
    stages = []
    first = 0
    for end, (degree, replicas) in zip(ends, ways, strict=True):
        stages.append(Stage(first, end, degree, replicas))
        first = end
    return Plan(microbatch, tuple(stages))
