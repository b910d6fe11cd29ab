"""A bound on the iteration of every plan, whatever its stages compute again.

For a stage of operators k to j and any price λ ≥ 0 of a MiB,

    seconds ≥ min over all choices of (seconds + λ memory) - λ limit,

and the minimum is a shortest path along the chain with two states, "computed again" or not. The
largest of these over many λ bounds the stage. Then, for B microbatches,

    iteration ≥ (B - 1) min over plans of max t_s + min over plans of sum t_s,

two dynamic programs over (stages behind, GPUs, operators). The path of the first is a plan too.
What is computed again takes room once more, by runs: the largest run is no smaller than the mean,
over the stage's blocks, of the run that holds the block's largest operator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from labkit.kit.compiled import njit
from labkit.papers.aceso.pricing import US, Job, Plan, Stage, link_us
from labkit.papers.aceso.tables import (
    BACKWARD,
    BACKWARD_SPACE,
    FORWARD,
    FORWARD_SPACE,
    INPUT,
    OUTPUT,
    WEIGHTS,
)

_PRICES = 24
"""How many prices of a MiB are tried."""


@njit(cache=True)
def _advance(
    costs: tuple[float, float, float],
    forward: float,
    price: float,
    dropped: float,
    room: float,
    opens: bool,
    marked: bool,
) -> tuple[float, float, float]:
    """Costs of the three states one operator further.

    Args:
        costs: kept; computed again in a run without its block's largest operator; in one with it.
        forward: microseconds of this operator.
        price: microseconds of a MiB.
        dropped: MiB that the operator before saves if both are computed again.
        room: MiB that it takes in the largest run, as a share.
        opens: whether this operator opens a block: runs end before it.
        marked: whether the operator before is its block's largest.
    """
    kept, without, with_it = costs
    least = min(kept, without, with_it)
    going_without = without - price * dropped
    if marked:
        going_without = np.inf
    going_with = with_it - price * dropped + price * room
    if opens:
        joined = min(going_without, going_with)
        going_without = joined
        going_with = joined
    return least, forward + min(kept, going_without), forward + min(kept, going_with)


@njit(cache=True)
def _stage_bounds(
    rows: np.ndarray,
    kept: np.ndarray,
    ends_block: np.ndarray,
    largest: np.ndarray,
    prices: np.ndarray,
    behind: int,
    blocks: int,
    copies: float,
    limit: float,
    received: np.ndarray,
    sent: np.ndarray,
    most: float,
) -> np.ndarray:
    """Least microseconds of stages ``[k, j]``; infinite above ``most``.

    ``rows`` has a row an operator of the chain, ``prices`` rise from 0. The largest run is no
    smaller than the mean, over the first ``blocks`` blocks, of the runs with ``largest`` operators.
    """
    size = len(rows)
    bounds = np.full((size, size + 1), np.inf)
    costs = np.zeros((len(prices), 3))
    for first in range(size):
        compute = 0.0
        weights = 0.0
        held = rows[first, INPUT]
        forward_space = 0.0
        backward_space = 0.0
        block = 0
        for place in range(first, size):
            row = rows[place]
            # 1. What the stage needs whatever it computes again.
            compute += row[FORWARD] + row[BACKWARD]
            if compute > most:
                break
            weights += row[WEIGHTS]
            held += kept[place]
            dropped = 0.0
            room = 0.0
            opens = False
            if place > first:
                forward_space = max(forward_space, rows[place - 1, FORWARD_SPACE])
                backward_space = max(backward_space, rows[place - 1, BACKWARD_SPACE])
                opens = ends_block[place - 1]
                dropped = 0.0 if opens else kept[place - 1] * (behind + 1)
                room = kept[place - 1] / blocks if block < blocks else 0.0
                block += opens
            reserved = max(forward_space + backward_space, weights)
            excess = weights * copies + held * (behind + 1) + reserved - limit
            # 2. One operator further, and the bound at each price of a MiB.
            best = -np.inf
            for number in range(len(prices)):
                price = prices[number]
                if place == first:
                    costs[number, 0] = 0.0
                    costs[number, 1:] = row[FORWARD]
                else:
                    before = (costs[number, 0], costs[number, 1], costs[number, 2])
                    marked = largest[place - 1]
                    after = _advance(before, row[FORWARD], price, dropped, room, opens, marked)
                    costs[number, 0] = after[0]
                    costs[number, 1] = after[1]
                    costs[number, 2] = after[2]
                best = max(best, costs[number].min() + price * excess)
            total = compute + best + received[first] + sent[place]
            if total <= most:
                bounds[first, place + 1] = total
    return bounds


@njit(cache=True)
def _least(
    bounds: np.ndarray, gpus: int, size: int, sums: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least total (or largest) of stages over ``[stages, GPUs, first operator]``.

    ``bounds`` is ``[GPUs of a stage as a power of two, stages behind, first, end]``.
    """
    found = np.full((gpus + 1, gpus + 1, size + 1), np.inf)
    ends = np.full((gpus + 1, gpus + 1, size + 1), -1)
    powers = np.full((gpus + 1, gpus + 1, size + 1), -1)
    found[0, 0, size] = 0.0
    for count in range(1, gpus + 1):
        for used in range(count, gpus + 1):
            for first in range(size - 1, -1, -1):
                best = np.inf
                for power in range(bounds.shape[0]):
                    rest = used - 2**power
                    if rest < count - 1:
                        break
                    for end in range(first + 1, size + 1):
                        here = bounds[power, count - 1, first, end]
                        after = found[count - 1, rest, end]
                        total = here + after if sums else max(here, after)
                        if total < best:
                            best = total
                            ends[count, used, first] = end
                            powers[count, used, first] = power
                found[count, used, first] = best
    return found, ends, powers


@dataclass(frozen=True)
class Bound:
    """What no plan beats, and the plan on which it rests."""

    iteration_s: float
    microbatch: int
    longest_s: float
    sum_s: float
    plan: Plan | None


def prices_of(forward_us: np.ndarray, kept_mib: np.ndarray) -> np.ndarray:
    """Prices of a MiB around what dropping an operator's output costs."""
    holds = kept_mib > 0
    ratios = forward_us[holds] / kept_mib[holds]
    return np.append(0.0, np.geomspace(ratios.min() / 8, ratios.max() * 8, _PRICES))


def bound(job: Job, *, most_s: float = np.inf) -> Bound:
    """A bound on every plan of one machine, over all microbatches.

    Args:
        job: of one machine.
        most_s: the iteration of a plan that is known; longer ones are left out.
    """
    bounds = [_bound(job, microbatch, most_s) for microbatch in job.tables.microbatches]
    least = min(bounds, key=_iteration_s)
    return replace(least, iteration_s=min(least.iteration_s, most_s))


def _iteration_s(bound: Bound) -> float:
    return bound.iteration_s


def _bound(job: Job, microbatch: int, most_s: float) -> Bound:
    count = job.batch // microbatch
    size = len(job.chain)
    most_us = most_s / count / US
    powers = [power for power in range(4) if 2**power <= job.gpus]
    shape = (len(powers), job.gpus, size, size + 1)
    bounds = np.full(shape, np.inf)
    ways: dict[tuple[int, int], list[tuple[int, int]]] = {}
    choice = np.zeros(shape, np.int8)
    for power in powers:
        gpus = 2**power
        for number, (degree, replicas) in enumerate(job.ways(microbatch, gpus)):
            ways.setdefault((power, 0), []).append((degree, replicas))
            for behind in range(job.gpus - gpus + 1):
                table = stage_bounds_us(job, microbatch, degree, replicas, behind, most_us)
                better = table < bounds[power, behind]
                bounds[power, behind][better] = table[better]
                choice[power, behind][better] = number
    longest, ends, taken = _least(bounds, job.gpus, size, False)
    sums, _, _ = _least(bounds, job.gpus, size, True)
    least_longest = longest[:, job.gpus, 0].min()
    least_sum = sums[:, job.gpus, 0].min()
    if not np.isfinite(least_longest):
        return Bound(np.inf, microbatch, np.inf, np.inf, None)
    stages = []
    number = int(longest[:, job.gpus, 0].argmin())
    used = job.gpus
    first = 0
    while first < size:
        end = int(ends[number, used, first])
        power = int(taken[number, used, first])
        degree, replicas = ways[power, 0][choice[power, number - 1, first, end]]
        stages.append(Stage(first, end, degree, replicas))
        first = end
        used -= 2**power
        number -= 1
    iteration_s = ((count - 1) * least_longest + least_sum) * US
    plan = Plan(microbatch, tuple(stages))
    return Bound(iteration_s, microbatch, least_longest * US, least_sum * US, plan)


def stage_bounds_us(
    job: Job, microbatch: int, degree: int, replicas: int, behind: int, most_us: float = np.inf
) -> np.ndarray:
    """Least microseconds of every stage of that degree, as ``[first, end]``."""
    row = job.tables.microbatches.index(microbatch // replicas)
    column = job.tables.degrees.index(degree)
    table = job.tables.values[row, column]
    kept = job.kept_mib(row, column)
    rows = table[job.names]
    rates = job.tables.inside_gb_per_s
    received = np.array([link_us(mib, rates) for mib in table[:, INPUT]])[job.names]
    sent = np.array([link_us(mib, rates) for mib in table[:, OUTPUT]])[job.names]
    prices = prices_of(rows[:, FORWARD], kept) / (behind + 1)
    share = degree * replicas / job.gpus
    return _stage_bounds(
        rows,
        kept,
        job.flags[0],
        _largest_of_blocks(kept, job.block_cuts),
        prices,
        behind,
        max(1, round((len(job.block_cuts) - 2) * share)),
        job.copies,
        job.limit_mib,
        received,
        sent,
        most_us,
    )


def _largest_of_blocks(kept_mib: np.ndarray, cuts: list[int]) -> np.ndarray:
    """Whether an operator keeps most of its block."""
    largest = np.zeros(len(kept_mib), np.bool_)
    for first, end in pairwise(cuts):
        largest[first + int(kept_mib[first:end].argmax())] = True
    return largest
