"""Compiled: jobs laid into the future in order of deadline, each on as few GPUs as meet its own.

A plan is a list of moments and, from each to the next, the GPUs that are free and the level of each
job. A level is a place among the sizes a job may have; level 0 holds nothing. Moments lie on a grid
of slots that begins now, and GPUs come free at the end of a slot.

A run goes from decision to decision. At each, in this order: jobs whose work was done have ended;
jobs that arrived are admitted or refused; jobs are laid anew; idle GPUs are given away; jobs whose
level changed begin anew after a restart. The next decision comes with the next arrival, end or
change in the plan, but a slot later or more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from labkit.cluster.loops.records import LIFE
from labkit.kit.compiled import hear, njit

LEAST, MOST, TURNS = range(3)  # how many GPUs a job gets: Rule.share
NOBODY, EACH, TOGETHER = range(3)  # who is judged on arrival: Rule.judged
CHANGE, STAY = range(2)  # rows of Rule.lost_s
JOB = np.dtype(
    [
        *LIFE,
        ("due", "f8"),  # its deadline
        ("top", "i8"),  # the highest level that it may have
        ("level", "i8"),  # that it has now
        ("refused", "i8"),  # 1: it was not taken in
    ]
)
TOLERANCE = 1e-9  # of a slot, or of work


class Rule(NamedTuple):
    """A policy, for the loop."""

    gpus: Any  # of each level
    lost_s: Any  # cause (CHANGE, STAY) × level: seconds without progress at a decision
    slot_s: float  # moments of a plan lie so far apart
    total: int  # GPUs of the cluster
    share: int  # LEAST, MOST or TURNS
    judged: int  # NOBODY, EACH or TOGETHER
    spare: bool  # idle GPUs are given away
    is_artifact: bool  # the rules are those of the authors' program


class Plan(NamedTuple):
    """Jobs laid into the future."""

    at: Any  # moments, rising
    free: Any  # GPUs that are free from each moment to the next
    levels: Any  # moment × job: the level of each job
    area: Any  # GPU-seconds of each job
    own: Any  # scratch: the levels of one job, by moment


@njit(cache=True)
def _fits(rule: Rule, free: int, level: int, speed: Any) -> int:
    """The highest level up to this one at which a job can run on the GPUs that are free."""
    while level > 0 and (rule.gpus[level] > free or speed[level] == 0):
        level -= 1
    return level


@njit(cache=True)
def _room(rule: Rule, plan: Plan, i: int, k: int) -> int:
    """The GPUs that a job could have from a moment on."""
    return plan.free[k] + rule.gpus[plan.levels[k, i]]


@njit(cache=True)
def _change(rule: Rule, plan: Plan, n: int, i: int, k: int) -> int:
    """The next moment at which a job's room changes; ``n`` if none."""
    later = k + 1
    while later < n and _room(rule, plan, i, later) == _room(rule, plan, i, k):
        later += 1
    return later


@njit(cache=True)
def _insert(plan: Plan, n: int, moment: float) -> int:
    """Split the stretch that a moment lies in; returns how many moments there are."""
    k = np.searchsorted(plan.at[:n], moment)
    if k < n and plan.at[k] == moment:
        return n
    for i in range(n, k - 1, -1):
        plan.at[i] = plan.at[i - 1]
        plan.free[i] = plan.free[i - 1]
        plan.own[i] = plan.own[i - 1]
        plan.levels[i] = plan.levels[i - 1]
    plan.at[k] = moment
    return n + 1


@njit(cache=True)
def _span(plan: Plan, n: int, k: int, due: float) -> float:
    """Seconds from a moment to the next, or to a deadline before it."""
    until = plan.at[k + 1] if k + 1 < n else np.inf
    return max(0.0, min(until, due) - plan.at[k])


@njit(cache=True)
def _least(
    rule: Rule, plan: Plan, n: int, i: int, first: int, speed: Any, job: Any, left: float
) -> tuple[int, int]:
    """The least level that meets the deadline from a moment on, and that moment; or the most.

    In the artifact the moment is the last from which on it does.
    """
    for level in range(1, job.top + 1):
        work = 0.0
        for k in range(n - 1, first - 1, -1):
            room = _room(rule, plan, i, k)
            work += _span(plan, n, k, job.due) * speed[_fits(rule, room, level, speed)]
            if work >= left and (k == first or room != _room(rule, plan, i, k - 1)):
                return level, k if rule.is_artifact else first
    return int(job.top), first


@njit(cache=True)
def _walk(
    rule: Rule, plan: Plan, n: int, i: int, speed: Any, job: Any, raised: int
) -> tuple[float, float, bool]:
    """A job's levels, into ``plan.own``: the end of its last slot, GPU-seconds, if it is in time.

    ``raised``, if not 0, is its level until its room changes.
    """
    # 1. The level that it is raised to now, until its room changes.
    first = 0
    if raised > 0:
        first = _change(rule, plan, n, i, 0)
    raised_s = plan.at[first] - plan.at[0] if first < n else np.inf
    left = job.left - speed[raised] * raised_s
    # 2. The least level that then meets the deadline, and from when on.
    level = job.top
    since = first
    if rule.share == LEAST and left > 0:
        level, since = _least(rule, plan, n, i, first, speed, job, left)
    # 3. Moment by moment, as much of that as there is room for, until its work is done.
    left = job.left
    area = 0.0
    plan.own[:n] = 0
    for k in range(n):
        if k < first:
            most = raised
        elif k < since:  # in the artifact, a level below until then
            most = level - 1
        else:
            most = level
        cap = _fits(rule, _room(rule, plan, i, k), most, speed)
        span = _span(plan, n, k, np.inf)
        plan.own[k] = cap
        if cap > 0 and speed[cap] * span >= left * (1 - TOLERANCE):
            done = plan.at[k] + left / speed[cap]
            slots = np.ceil((done - plan.at[0]) / rule.slot_s - TOLERANCE)
            end = min(plan.at[0] + slots * rule.slot_s, plan.at[k] + span)
            later = _change(rule, plan, n, i, k) if rule.is_artifact and k >= first else n
            until = plan.at[later] if later < n and plan.at[later] < job.due else end
            in_time = done <= job.due + TOLERANCE * rule.slot_s
            return end, area + rule.gpus[cap] * (until - plan.at[k]), in_time
        if cap > 0:
            left -= speed[cap] * span
            area += rule.gpus[cap] * span
    return np.inf, np.inf, False


@njit(cache=True)
def _lay(rule: Rule, plan: Plan, n: int, i: int, end: float) -> int:
    """Put the levels of ``plan.own`` until ``end`` in the place of a job's old ones."""
    if end < np.inf:
        n = _insert(plan, n, end)
    for k in range(n):
        level = plan.own[k] if plan.at[k] < end else 0
        plan.free[k] += rule.gpus[plan.levels[k, i]] - rule.gpus[level]
        plan.levels[k, i] = level
    return n


@njit(cache=True)
def lay_all(rule: Rule, jobs: Any, speed: Any, who: Any, now: float) -> tuple[bool, int, Plan]:
    """Lay jobs in the order given: whether all are in time, the number of moments, the plan."""
    size = (2 + rule.gpus.size) * who.size + 2  # a deadline, an end, and one more at each level
    plan = Plan(
        np.zeros(size),
        np.zeros(size, np.int64),
        np.zeros((size, who.size), np.int8),
        np.zeros(who.size),
        np.zeros(size, np.int8),
    )
    plan.at[0] = now
    plan.free[0] = rule.total
    n = 1
    in_time = True
    for i in range(who.size):
        job = jobs[who[i]]
        slots = np.ceil((job.due - now) / rule.slot_s - TOLERANCE)
        if 0 < slots < np.inf:
            n = _insert(plan, n, now + slots * rule.slot_s)
        end, plan.area[i], is_in_time = _walk(rule, plan, n, i, speed[who[i]], job, 0)
        n = _lay(rule, plan, n, i, end)
        in_time = in_time and is_in_time
    return in_time, n, plan


@njit(cache=True)
def give_idle(rule: Rule, jobs: Any, speed: Any, who: Any, n: int, plan: Plan) -> int:
    """Give GPUs idle now, a level at a time, to the job whose GPU time that cuts most per GPU.

    Jobs that would hold nothing come first. The artifact prefers whose GPU time it adds to most.
    """
    order = np.arange(who.size)
    gain = np.empty(who.size)
    above = np.zeros(who.size, np.int64)
    while who.size > 0:
        for i in range(who.size):
            job = jobs[who[i]]
            now = plan.levels[0, i]
            gain[i] = -np.inf
            above[i] = now + 1
            while above[i] < job.top and speed[who[i], above[i]] == 0:
                above[i] += 1
            if now < job.top and rule.gpus[above[i]] <= rule.gpus[now] + plan.free[0]:
                more = rule.gpus[above[i]] - rule.gpus[now]
                saved = plan.area[i] - _walk(rule, plan, n, i, speed[who[i]], job, above[i])[1]
                gain[i] = (-saved if rule.is_artifact else saved) / more if now > 0 else np.inf
        order = order[np.argsort(-gain[order], kind="mergesort")]
        i = order[0]
        if gain[i] == -np.inf:
            break
        end, plan.area[i], _ = _walk(rule, plan, n, i, speed[who[i]], jobs[who[i]], above[i])
        n = _lay(rule, plan, n, i, end)
    return n


@njit(cache=True)
def _end(rule: Rule, job: Any, rate: float) -> float:
    """When a job is done if it keeps its level; in the artifact, slots after its restart."""
    if rule.is_artifact:
        return job.warm + np.ceil(job.left / rate / rule.slot_s - TOLERANCE) * rule.slot_s
    return job.warm + job.left / rate


@njit(cache=True)
def _progress(
    rule: Rule, jobs: Any, speed: Any, who: Any, last: float, now: float, log: Any
) -> Any:
    """Let the jobs run from the last decision to this; returns those that are not done."""
    keeps = np.ones(who.size, np.bool_)
    for i in range(who.size):
        job = jobs[who[i]]
        if job.level == 0:
            continue
        rate = speed[who[i], job.level]
        until = now
        if rule.is_artifact:  # progress stops at the planned end, which leaves out the restart
            until = min(now, last + np.ceil(job.left / rate - TOLERANCE))
        end = _end(rule, job, rate)
        work = max(0.0, until - job.warm) * rate
        job.lost += min(job.warm, now) - last
        if end > now and work >= job.left:
            end = until
        if end <= now + TOLERANCE * rule.slot_s:
            job.end = end
            log.append((float(who[i]), job.since, job.end, float(rule.gpus[job.level])))
            job.left = 0.0
            job.level = 0
            keeps[i] = False
        else:
            job.left -= work
    return who[keeps]


@njit(cache=True)
def _admit(rule: Rule, jobs: Any, speed: Any, who: Any, ahead: int, until: int, now: float) -> Any:
    """Take in the jobs that arrived, each or together, if every deadline can then be met."""
    first = ahead
    for j in range(ahead, until):
        last = rule.share == TURNS
        k = who.size if last else np.searchsorted(jobs.due[who], jobs[j].due, "right")
        who = np.concatenate((who[:k], np.array([j]), who[k:]))
        if rule.judged == NOBODY or (rule.judged == TOGETHER and j + 1 < until):
            continue
        if not lay_all(rule, jobs, speed, who, now)[0]:
            first = j if rule.judged == EACH else ahead
            jobs[first : j + 1].refused[:] = 1
            who = who[who < first]  # they arrived last
    return who


@njit(cache=True)
def _decide(rule: Rule, jobs: Any, speed: Any, who: Any, now: float) -> tuple[Any, float]:
    """The level of each job from now on, and when the plan changes next."""
    levels = np.zeros(who.size, np.int64)
    free = rule.total
    if rule.share != LEAST:
        for i in range(who.size):
            top = jobs[who[i]].top
            level = _fits(rule, free, top, speed[who[i]])
            levels[i] = level if rule.share == MOST or level == top else 0
            free -= rule.gpus[levels[i]]
        return levels, now + rule.slot_s if rule.share == TURNS and who.size > 0 else np.inf
    _, n, plan = lay_all(rule, jobs, speed, who, now)
    if rule.spare:
        n = give_idle(rule, jobs, speed, who, n, plan)
    levels[:] = plan.levels[0]
    for k in range(1, n):
        if (plan.levels[k] != plan.levels[0]).any():
            return levels, plan.at[k]
    return levels, np.inf


@njit(cache=True)
def _hold(rule: Rule, jobs: Any, who: Any, levels: Any, now: float, log: Any) -> None:
    """Give jobs their levels; one whose level changes ends its run and begins another."""
    for i in range(who.size):
        job = jobs[who[i]]
        level = levels[i]
        if level == job.level:
            job.warm = now + rule.lost_s[STAY, level] if level > 0 else job.warm
            continue
        if job.level > 0:
            log.append((float(who[i]), job.since, now, float(rule.gpus[job.level])))
            job.stops += 1
        job.start = now if np.isnan(job.start) else job.start
        job.level = level
        job.since = now
        job.warm = now + rule.lost_s[CHANGE, level]


@njit(cache=True)
def replay(rule: Rule, jobs: Any, speed: Any) -> Any:
    """Run all jobs, in order of arrival: (job, start, end, GPUs) of their runs."""
    log = [(0.0, 0.0, 0.0, 0.0)]  # says what rows are
    who = np.zeros(0, np.int64)
    ahead = 0
    last = -np.inf
    change = np.inf
    decisions = 0
    while True:
        decisions += 1
        hear(decisions, 16)
        # 1. The next decision: with the next arrival, end or change in the plan.
        now = jobs[ahead].arrival if ahead < jobs.size else np.inf
        for i in range(who.size):
            job = jobs[who[i]]
            if job.level > 0:
                end = _end(rule, job, speed[who[i], job.level])
                now = min(now, end)
                if rule.share == LEAST and change >= end - (job.warm - last):
                    change = np.inf
        now = min(now, change)
        if now == np.inf:
            return np.array(log)[1:]  # a list would become Python's, 3 µs a row
        now = max(now, last + rule.slot_s)
        # 2. Jobs whose work was done have ended; those that arrived are taken in or refused.
        who = _progress(rule, jobs, speed, who, last, now, log)
        until = int(np.searchsorted(jobs.arrival, now, "right"))
        who = _admit(rule, jobs, speed, who, ahead, until, now)
        ahead = until
        # 3. Who has how many GPUs from now on; in turns, those that ran go to the end.
        levels, change = _decide(rule, jobs, speed, who, now)
        _hold(rule, jobs, who, levels, now, log)
        if rule.share == TURNS:
            who = np.concatenate((who[levels == 0], who[levels > 0]))
        last = now
