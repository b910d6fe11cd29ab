"""Aceso's rivals on the same prices: an even grid, a dynamic program over layers, a random walk.

All are given the same tables and limit, and count the same thing: different stages priced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from labkit.papers.aceso.alleviating import Found, Result, result_of
from labkit.papers.aceso.pricing import Job, Plan, Recompute, Stage
from labkit.papers.aceso.primitives import Move, apply, even_plan, handed_on, plan_of

ALL_OR_NOTHING = (Recompute.NOTHING, Recompute.ALL)
_SINGLE_STEPS = (1, 2, 4, 8, 13)
"""How many operators the walk hands on."""


def _best(job: Job, plans: Iterable[tuple[Plan, Recompute]]) -> Result:
    """Price plans in their order; the fastest that fits, and each that was the fastest so far."""
    steps: list[Found] = []
    best_s = np.inf
    chosen = Result(None, None, (), 0)
    for plan, recompute in plans:
        price = job.price(plan, recompute)
        if price.fits and price.iteration_s < best_s:
            best_s = price.iteration_s
            steps.append(Found(job.priced, best_s, plan))
            chosen = Result(plan, price, tuple(steps), job.priced)
    return replace(chosen, priced=job.priced)


def even_grid(job: Job) -> Result:
    """Every plan of equally many blocks a stage, one degree for all, all or nothing recomputed.

    Source: the artifact's ``search/gen_megatron_plan.py``.
    """
    job = job.fresh()
    return _best(job, product(_even_plans(job), ALL_OR_NOTHING))


def _even_plans(job: Job) -> Iterator[Plan]:
    """The legal plans of equally many blocks a stage, one degree for all."""
    starts = job.block_cuts[1:-1]
    for num_stages, degree, size in product(
        range(1, min(job.gpus, len(starts)) + 1), job.tables.degrees, job.tables.microbatches
    ):
        if job.gpus % (num_stages * degree):
            continue
        each = len(starts) // num_stages
        ends = [starts[each * place] for place in range(1, num_stages)] + [len(job.chain)]
        way = (degree, job.gpus // (num_stages * degree))
        plan = plan_of(size, ends, [way] * num_stages)
        if len(starts) % num_stages == 0 and job.is_legal(plan):
            yield plan


def layer_grid(job: Job, recomputes: Sequence[Recompute] = ALL_OR_NOTHING) -> Result:
    """The best plan with cuts between blocks, all or nothing recomputed, by dynamic programming.

    What is minimised needs the longest stage and the sum: the sum's least path is found with
    stages of at most some seconds, and that is lowered until nothing is gained. Every stage of the
    grid is priced first. This is Alpa's space of stages; a block is never split.

    Args:
        recomputes: what all stages may compute again.

    Source: Alpa §5.
    """
    job = job.fresh()
    plans = (
        (plan, recompute)
        for size, recompute in product(job.tables.microbatches, recomputes)
        for plan in _Grid(job, size, recompute).plans()
    )
    return _best(job, plans)


class _Grid:
    """Seconds of every stage between two cuts, by GPUs and by stages behind it."""

    def __init__(self, job: Job, microbatch: int, recompute: Recompute) -> None:
        self.job = job
        self.microbatch = microbatch
        self.cuts = job.block_cuts
        blocks = len(self.cuts) - 1
        self.sizes = [size for size in (1, 2, 4, 8) if size <= job.gpus]
        shape = (len(self.sizes), job.gpus, blocks, blocks + 1)
        self.times_s = np.full(shape, np.inf)
        self.ways = np.zeros((*shape, 2), np.int64)
        for row, gpus in enumerate(self.sizes):
            for way, behind in product(job.ways(microbatch, gpus), range(job.gpus - gpus + 1)):
                self._fill(row, behind, way, recompute)

    def _fill(self, row: int, behind: int, way: tuple[int, int], recompute: Recompute) -> None:
        blocks = len(self.cuts) - 1
        for first in range(blocks):
            for end in range(first + 1, blocks + 1):
                stage = Stage(self.cuts[first], self.cuts[end], *way)
                price = self.job.stage(stage, self.microbatch, behind, recompute=recompute)
                place = (row, behind, first, end)
                if price.memory_mib > self.job.limit_mib or price.time_s >= self.times_s[place]:
                    continue
                self.times_s[place] = price.time_s
                self.ways[place] = way

    def plans(self) -> Iterator[Plan]:
        """Plans of least sum, the longest stage allowed falling from one to the next."""
        most_s = np.inf
        while True:
            plan, longest_s = self._least(most_s)
            if plan is None:
                return
            yield plan
            most_s = longest_s * (1 - 1e-9)

    def _least(self, most_s: float) -> tuple[Plan | None, float]:
        gpus = self.job.gpus
        blocks = len(self.cuts) - 1
        times = np.where(self.times_s <= most_s, self.times_s, np.inf)
        found = np.full((gpus + 1, gpus + 1, blocks + 1), np.inf)
        found[0, 0, blocks] = 0.0
        choice: dict[tuple[int, int, int], tuple[int, int]] = {}
        for count, used in product(range(1, gpus + 1), range(1, gpus + 1)):
            for row, size in enumerate(self.sizes):
                if size > used:
                    break
                totals = times[row, count - 1] + found[count - 1, used - size]
                ends = totals.argmin(1)
                least = totals[np.arange(blocks), ends]
                for first in np.flatnonzero(least < found[count, used, :blocks]).tolist():
                    found[count, used, first] = least[first]
                    choice[count, used, first] = (row, int(ends[first]))
        count = int(found[:, gpus, 0].argmin())
        if not np.isfinite(found[count, gpus, 0]):
            return None, np.inf
        return self._path(choice, count)

    def _path(
        self, choice: dict[tuple[int, int, int], tuple[int, int]], count: int
    ) -> tuple[Plan, float]:
        used = self.job.gpus
        first = 0
        longest_s = 0.0
        ends = []
        ways = []
        while count:
            row, end = choice[count, used, first]
            place = (row, count - 1, first, end)
            longest_s = max(longest_s, self.times_s[place])
            ends.append(self.cuts[end])
            ways.append((int(self.ways[place][0]), int(self.ways[place][1])))
            used -= self.sizes[row]
            first = end
            count -= 1
        return plan_of(self.microbatch, ends, ways), longest_s


def walk(job: Job, *, budget: int, rng: np.random.Generator, warmth: float = 0.02) -> Result:
    """Metropolis: a random move of a random stage, worse plans taken with less and less chance.

    One walk for each number of stages, in turn. A plan above the limit costs its excess over the
    limit as a share of the iteration.

    Args:
        budget: stages priced.
        rng: draws moves.
        warmth: share of the iteration by which a plan may be worse at chance 1/e.
    """
    job = job.fresh()
    plans = []
    steps = []
    for count in range(1, job.gpus + 1):
        plan = even_plan(job, count)
        if plan is not None and job.is_legal(plan):
            plans.append(plan)
            steps.append(Found(job.priced, job.price(plan).iteration_s, plan))
    idle = 0
    while job.priced < budget and idle < 20 * budget:
        place = int(rng.integers(len(plans)))
        priced = job.priced
        candidate = _neighbour(job, plans[place], rng)
        if candidate is None:
            idle += 1
            continue
        worse = _energy(job, candidate) / _energy(job, plans[place]) - 1
        if worse <= 0 or rng.random() < np.exp(-worse / warmth):
            plans[place] = candidate
            steps.append(Found(job.priced, job.price(candidate).iteration_s, candidate))
        idle = 0 if job.priced > priced else idle + 1
    return result_of(job, steps)


def _energy(job: Job, plan: Plan) -> float:
    price = job.price(plan)
    return price.iteration_s * (1 + price.rank[0] / job.limit_mib)


def _neighbour(job: Job, plan: Plan, rng: np.random.Generator) -> Plan | None:
    number = int(rng.integers(len(plan.stages)))
    if rng.random() < 0.7:
        step = int(rng.choice([-1, 1]))
        count = int(rng.choice(_SINGLE_STEPS))
        return handed_on(job, plan, number, step, count)
    moves = [move for move in Move if move is not Move.FEWER_OPERATORS]
    found = apply(job, plan, number, moves[int(rng.integers(len(moves)))])
    return found[0] if found else None
