"""Aceso's search: name the bottleneck, alleviate it, repeat; where one move does not help, chain.

From a plan, the search looks at the stage that limits it (memory first, then seconds), and at what
that stage spends more of than its share: compute, what sharing an operator loses, or computing
again for want of memory. Moves that spend less of it are tried first. Where none gives a faster
plan, the search goes on from each plan that they gave, a hop further, up to seven hops. What was
seen and not taken is kept for a new start.

Every number of stages is searched by itself; here they take turns.

Source: §3 and §4 (from the artifact's ``search/aceso_search.py`` and ``aceso_policy.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from labkit.papers.aceso.pricing import Job, Plan, Price
from labkit.papers.aceso.primitives import EFFECTS, Move, Resource, apply, even_plan

MAX_HOPS = 7
_NEAR = 1.2
"""Plans up to so many times the best one's seconds are kept for a new start."""


def shares(job: Job, plan: Plan, number: int) -> dict[Resource, float]:
    """A stage's part in what all stages spend: of ideal compute, of loss, of computing again.

    Ideal compute is what one GPU takes, divided by the stage's GPUs.
    """
    spent: dict[Resource, list[float]] = {resource: [] for resource in Resource}
    price = job.price(plan)
    for stage, stage_price in zip(plan.stages, price.stages, strict=True):
        ideal_s = job.ideal_s(stage, plan.microbatch)
        spent[Resource.COMPUTE].append(ideal_s)
        spent[Resource.LOSS].append(stage_price.compute_s - ideal_s)
        spent[Resource.MEMORY].append(stage_price.again_s)
    parts = {}
    for resource, values in spent.items():
        total = sum(values)
        parts[resource] = values[number] / total if values[number] > 0 and total > 0 else 0.0
    return parts


def by_bottleneck(job: Job, plan: Plan, number: int) -> list[list[Move]]:
    """Moves that spend less of what the stage has too much of, in groups, best first.

    Of each resource first the moves that spend no more of another scarce one.
    """
    if not job.price(plan).fits:
        return [[move for move in Move if EFFECTS[move][Resource.MEMORY] < 0]]
    parts = shares(job, plan, number)
    level = 1 / len(plan.stages)
    scarce = {resource for resource, part in parts.items() if part > level}
    if parts[Resource.MEMORY] > 0:
        scarce.add(Resource.MEMORY)
    groups: list[list[Move]] = []
    taken: set[Move] = set()
    for resource in sorted(Resource, key=lambda each: -parts[each]):
        helping = [move for move in Move if EFFECTS[move][resource] < 0 and move not in taken]
        harmless = []
        for move in helping:
            if all(EFFECTS[move][other] <= 0 for other in scarce - {resource}):
                harmless.append(move)
        groups.append(harmless)
        groups.append([move for move in helping if move not in harmless])
        taken.update(helping)
    groups.append([move for move in Move if move not in taken])
    return [group for group in groups if group]


def in_random_order(rng: np.random.Generator) -> Callable[[Job, Plan, int], list[list[Move]]]:
    """The authors' ablation: one move after the other, in random order."""

    def choose(job: Job, plan: Plan, number: int) -> list[list[Move]]:
        moves = [*Move]
        return [[moves[place]] for place in rng.permutation(len(moves))]

    return choose


@dataclass(frozen=True)
class Found:
    """A better plan, and when it was found.

    Attributes:
        priced: stages priced until then.
        moves: what led to it from the plan before.
    """

    priced: int
    iteration_s: float
    plan: Plan
    moves: tuple[tuple[int, Move], ...] = ()


@dataclass(kw_only=True, eq=False)
class Search:
    """One number of stages: a plan, what was seen, and what is left for a new start."""

    job: Job
    plan: Plan
    choose: Callable[[Job, Plan, int], list[list[Move]]]
    budget: int
    max_hops: int = MAX_HOPS
    best: Plan = field(init=False)
    done: bool = False
    _seen: set[Plan] = field(default_factory=set)
    _waiting: dict[Plan, Price] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.best = self.plan
        self._seen.add(self.plan)

    def step(self) -> Found | None:
        """Look for a faster plan from the present one; else make a new start."""
        goal = self.job.price(self.best).rank
        for number in self._by_need(self.plan):
            found = self._hop(self.plan, number, goal, ())
            if found is not None:
                self.plan = found.plan
                self.best = found.plan
                return found
        if self._waiting:
            self.plan = min(self._waiting, key=lambda plan: self._waiting[plan].rank)
            del self._waiting[self.plan]
        else:
            self.done = True
        return None

    def _by_need(self, plan: Plan) -> Iterable[int]:
        price = self.job.price(plan)
        if price.fits:
            values = [stage.time_s for stage in price.stages]
        else:
            values = [stage.memory_mib for stage in price.stages]
        return np.argsort(values)[::-1].tolist()

    def _hop(
        self, plan: Plan, number: int, goal: tuple[float, float], path: tuple[tuple[int, Move], ...]
    ) -> Found | None:
        """A plan below the goal within the hops that are left."""
        if len(path) == self.max_hops:
            return None
        for group in self.choose(self.job, plan, number):
            candidates = self._candidates(plan, number, group)
            if not candidates:
                continue
            rank, move, candidate = candidates[0]
            if rank < goal:
                self._waiting.pop(candidate, None)
                moves = (*path, (number, move))
                return Found(
                    self.job.priced, self.job.price(candidate).iteration_s, candidate, moves
                )
            for _, move, candidate in candidates:
                if self.job.priced >= self.budget:
                    return None
                self._waiting.pop(candidate, None)
                further = self.job.price(candidate).bottleneck
                found = self._hop(candidate, further, goal, (*path, (number, move)))
                if found is not None:
                    return found
        return None

    def _candidates(
        self, plan: Plan, number: int, group: Iterable[Move]
    ) -> list[tuple[tuple[float, float], Move, Plan]]:
        candidates = []
        near_s = self.job.price(self.best).iteration_s * _NEAR
        for move in group:
            if self.job.priced >= self.budget:
                break
            for candidate in apply(self.job, plan, number, move):
                if candidate in self._seen:
                    continue
                self._seen.add(candidate)
                price = self.job.price(candidate)
                if price.iteration_s < near_s:
                    self._waiting[candidate] = price
                candidates.append((price.rank, move, candidate))
        return sorted(candidates, key=lambda each: each[0])


@dataclass(frozen=True)
class Result:
    """What a search found, and its way there.

    Attributes:
        plan: the best that fits, or None.
        price: of that plan.
        steps: each better plan.
        priced: stages priced in all.
    """

    plan: Plan | None
    price: Price | None
    steps: tuple[Found, ...]
    priced: int

    @property
    def iteration_s(self) -> float:
        """Of the best plan; infinite where none fits."""
        return self.price.iteration_s if self.price is not None else np.inf

    def priced_within(self, iteration_s: float) -> float:
        """Stages priced until a plan was as fast; infinite where none was."""
        reached = [step.priced for step in self.steps if step.iteration_s <= iteration_s]
        return float(min(reached, default=np.inf))


def result_of(job: Job, steps: Iterable[Found]) -> Result:
    """The result of steps, each better than the last one kept."""
    kept: list[Found] = []
    for step in steps:
        if job.price(step.plan).fits and (not kept or step.iteration_s < kept[-1].iteration_s):
            kept.append(step)
    if not kept:
        return Result(None, None, (), job.priced)
    plan = kept[-1].plan
    return Result(plan, job.price(plan), tuple(kept), job.priced)


def alleviate(
    job: Job,
    *,
    budget: int,
    choose: Callable[[Job, Plan, int], list[list[Move]]] = by_bottleneck,
    max_hops: int = MAX_HOPS,
    num_stages: Iterable[int] | None = None,
) -> Result:
    """Search by alleviating bottlenecks, all numbers of stages in turn.

    Args:
        job: priced anew from nothing.
        budget: stages priced.
        choose: groups of moves for a stage, most promising first.
        max_hops: moves in a chain.
        num_stages: which numbers of stages; all from one to as many as GPUs, sixteen at most.
    """
    job = job.fresh()
    searches = []
    steps = []
    for count in num_stages or range(1, min(job.gpus, 16) + 1):
        plan = even_plan(job, count)
        if plan is None or not job.is_legal(plan):
            continue
        search = Search(job=job, plan=plan, choose=choose, budget=budget, max_hops=max_hops)
        searches.append(search)
        steps.append(Found(job.priced, job.price(plan).iteration_s, plan))
    while searches and job.priced < budget:
        for search in searches:
            found = search.step()
            if found is not None:
                steps.append(found)
            if job.priced >= budget:
                break
        searches = [search for search in searches if not search.done]
    return result_of(job, steps)
