"""Policies that give every job a share of its time on each GPU type.

    table = cluster.load_throughputs()
    trace = cluster.generate_continuous(6000, jobs_per_hour=5.6)
    run = cluster.simulate(trace, table.cluster(36, 36, 36), cluster.share_policy("las"))

A policy sees the jobs that are there and answers with shares; :mod:`labkit.cluster.loops.shares`
realises them in rounds. Jobs of one kind and number of GPUs are alike, so a program may have a row
a group and not a row a job. To write a policy takes one method::

    @description
    class Halves(cluster.SharePolicy):
        def decide(self, active):
            return Shares(np.full((active.jobs.size, active.room.size), 0.5))
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.cluster.inputs.throughputs import Throughputs, packed
from labkit.errors import not_among
from labkit.kit.describe import NonNegative, Positive, Whole, checked, description


class Active(NamedTuple):
    """What a policy sees: the jobs in the system, in order of arrival; pools in the last axis."""

    jobs: NDArray[np.int64]  # places in the trace
    group: NDArray[np.int64]  # of alike jobs: rows of ``speed`` and ``gpus``
    left_s: NDArray[np.float64]  # of work at speed 1
    speed: NDArray[np.float64]  # group × pool
    gpus: NDArray[np.int64]  # GPUs that a job of each group holds
    shared: NDArray[np.float64]  # group × other × pool: speed beside the other on the same GPUs
    room: NDArray[np.int64]  # GPUs of each pool
    memory: dict[str, Any]  # the policy's own, of one run


class Shares(NamedTuple):
    """Share of its time that each job runs alone on each pool, and each pair of jobs together."""

    alone: NDArray[np.float64]  # job × pool
    pairs: NDArray[np.int64] = np.zeros((0, 2), np.int64)  # pair × 2: places among the active jobs
    together: NDArray[np.float64] | None = None  # pair × pool


@description
class SharePolicy:
    """Shares of time, computed anew where jobs came or went. Subclasses write :meth:`decide`.

    Attributes:
        name: as tables show it.
        rng: the seed of what it draws, and of the order in which pools are filled where it knows
            no speeds.
        believes: the speeds it computes with; default: the true ones.
        pairs: speeds of two jobs on one GPU, for policies that pair them; default: none fit.
        round_s: seconds of a round.
        reset_s: seconds between two computations of shares, at least.
        restart_s: seconds without progress of a job that was stopped or moved.
        strict: whether jobs that are due nothing leave free GPUs idle.
        aware: whether it knows speeds; one that does not fills the pools in a random order.
    """

    name: str
    rng: Whole = 0
    believes: Throughputs | None = None
    pairs: Throughputs | None = None
    round_s: Positive = 360.0
    reset_s: NonNegative = 1920.0
    restart_s: NonNegative = 0.0
    strict: bool = False
    aware: bool = True

    def decide(self, active: Active) -> Shares:
        """The shares of the jobs that are there."""
        raise NotImplementedError


@description
class EqualShares(SharePolicy):
    """Least attained service that knows no speeds: the same GPU time to every job.

    A job of g GPUs gets the share min(1, t / g), at the level t at which all GPUs are busy, spread
    over the pools by their GPUs. Where all speeds are equal, no division is fairer.
    """

    aware: bool = False

    def decide(self, active: Active) -> Shares:
        wanted = active.gpus[active.group]
        gpus = np.sort(wanted)
        total = int(active.room.sum())
        # The level if the k narrowest jobs never wait; the first that is no more than the next job
        # asks for is the one.
        never_wait = np.concatenate([[0], np.cumsum(gpus)[:-1]])
        level = (total - never_wait) / np.arange(gpus.size, 0, -1)
        reached = np.flatnonzero(level <= gpus)
        most = level[reached[0]] if reached.size else gpus[-1]
        return Shares(np.outer(np.minimum(1, most / wanted), active.room / total))


@description
class FirstCome(SharePolicy):
    """First come, first served, a whole pool's GPUs each: the fastest free one if it is ``aware``,
    else a random one, on which the job stays."""

    strict: bool = True

    def decide(self, active: Active) -> Shares:
        group_of = dict(zip(active.jobs.tolist(), active.group.tolist(), strict=True))
        speed = active.speed.tolist()
        gpus = active.gpus.tolist()
        pool_of = {} if self.aware else self._kept(active, group_of)
        free = active.room.tolist()
        for job, pool in pool_of.items():
            free[pool] -= gpus[group_of[job]]
        draw = active.memory.setdefault("draw", random.Random(self.rng))
        for job, group in group_of.items():
            if job in pool_of:
                continue
            able = [p for p, v in enumerate(speed[group]) if v > 0 and free[p] >= gpus[group]]
            if not able:
                break
            if self.aware:
                pool_of[job] = max(able, key=speed[group].__getitem__)
            else:
                pool_of[job] = draw.choice(able[::-1])
            free[pool_of[job]] -= gpus[group]
        return whole_shares(active, pool_of)

    def _kept(self, active: Active, group_of: dict[int, int]) -> dict[int, int]:
        """The pools of jobs that stay; the next in the queue takes the place of one that ended."""
        before = active.memory.get("stays", {})
        queue = [job for job in group_of if job not in before]
        kept: dict[int, int] = {}
        for job, pool in sorted(before.items()):
            if job in group_of:
                kept[job] = pool
            elif queue and active.speed[group_of[queue[0]], pool] > 0:
                kept[queue.pop(0)] = pool
        return kept


def whole_shares(active: Active, pool_of: dict[int, int]) -> Shares:
    """All of its time for each job that has a pool; the policy's memory keeps who has which."""
    active.memory["stays"] = pool_of
    alone = np.zeros((active.jobs.size, active.room.size))
    alone[np.searchsorted(active.jobs, list(pool_of)), list(pool_of.values())] = 1.0
    return Shares(alone)


@description
class RandomPairs(SharePolicy):
    """Gandiva's packing: random pairs, given up where both get less done than one after the other.

    Attributes:
        by_sum: whether a pair is judged by the sum over GPU types, as Gavel's program has it,
            under which three types keep pairs at a third of that; else by the mean.

    Source: Gandiva (OSDI'18), its packing, as Gavel's program (OSDI'20) pairs at random.
    """

    by_sum: bool = False

    def decide(self, active: Active) -> Shares:
        memory = active.memory
        place_of = {job: place for place, job in enumerate(active.jobs.tolist())}
        partner: dict[int, int] = memory.setdefault("pairs", {})
        self._part(partner, place_of, active)
        wanted = active.gpus[active.group]
        pairs = []
        if wanted.sum() > active.room.sum():
            self._pair(partner, place_of, wanted.tolist(), memory)
            pairs = [(place_of[a], place_of[b]) for a, b in partner.items() if a < b]
        chosen = np.array(pairs, np.int64).reshape(-1, 2)
        split = active.room / (len(place_of) - len(pairs)) / wanted[:, None]
        split = split / np.maximum(split.sum(axis=1), 1.0)[:, None]
        alone = split.copy()
        alone[chosen.ravel()] = 0.0
        return Shares(alone, chosen, split[chosen[:, 0]])

    def _part(self, partner: dict[int, int], place_of: dict[int, int], active: Active) -> None:
        """Give up pairs of which one job has ended, or which get less done together."""
        if "worth" not in active.memory:
            part = packed(active.speed, active.shared)
            worth = part.sum(axis=2) / (1 if self.by_sum else part.shape[2])
            active.memory["worth"] = np.where((part > 0).all(axis=2), worth, 0.0).tolist()
        worth_of = active.memory["worth"]
        group = active.group.tolist()
        for job, other in list(partner.items()):
            groups = [group[place_of[each]] for each in (job, other) if each in place_of]
            if len(groups) < 2 or worth_of[groups[0]][groups[1]] < 1.0:
                partner.pop(job)

    def _pair(
        self,
        partner: dict[int, int],
        place_of: dict[int, int],
        gpus: list[int],
        memory: dict[str, Any],
    ) -> None:
        """Draw two jobs as often as there are jobs alone; those of as many GPUs become a pair."""
        draw = memory.setdefault("draw", random.Random(self.rng))
        alone = [job for job in place_of if job not in partner]
        for _ in range(len(alone)):
            if len(alone) < 2:
                return
            a, b = draw.sample(alone, 2)
            if gpus[place_of[a]] == gpus[place_of[b]]:
                alone.remove(a)
                alone.remove(b)
                partner[a] = b
                partner[b] = a


SHARE_POLICIES: dict[str, Callable[..., SharePolicy]] = {
    "las": EqualShares,
    "fifo": partial(FirstCome, aware=False),
    "fifo-aware": FirstCome,
    "packed": RandomPairs,
    "packed-by-sum": partial(RandomPairs, by_sum=True),
}
"""Policies by name: least attained service without speeds; first come, first served without and
with speeds; Gandiva's packing, and as Gavel's program has it."""


@checked
def share_policy(name: str, **settings: Any) -> SharePolicy:
    """One of :data:`SHARE_POLICIES`.

    Args:
        name: as :data:`SHARE_POLICIES` has it.
        settings: fields of :class:`SharePolicy`, such as ``rng``, ``pairs`` or ``round_s``.

    Raises:
        UsageError: there is no such policy.
        BadValue: a setting does not exist or breaks its rule.

    >>> share_policy("las").aware
    False
    """
    if name not in SHARE_POLICIES:
        raise not_among("share policy", name, SHARE_POLICIES)
    return SHARE_POLICIES[name](**{"name": name, **settings})
