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

from labkit.kit.compiled import njit

LEAST, MOST, TURNS = range(3)
NOBODY, EACH, TOGETHER = range(3)  # who is judged on arrival
START, RESTART, STAY = range(3)  # rows of Rule.lost_s
JOB = np.dtype([
    ("arrival", "f8"), ("due", "f8"), ("left", "f8"), ("top", "i8"), ("level", "i8"),
    ("since", "f8"), ("warm", "f8"), ("start", "f8"), ("end", "f8"), ("lost", "f8"),
    ("stops", "i8"), ("refused", "i8"),
])  # fmt: skip
TOLERANCE = 1e-9  # of a slot, or of work


class Rule(NamedTuple):
    """A policy, for the loop."""

    gpus: Any  # of each level
    lost_s: Any  # cause (START, RESTART, STAY) × level: seconds without progress at a decision
    slot_s: float
    total: int
    share: int
    judged: int
    spare: bool


class Plan(NamedTuple):
    """Moments; GPUs free from each; moment × job: levels; scratch: levels of a job, seconds."""

    at: Any
    free: Any
    levels: Any
    own: Any
    spans: Any


@njit(cache=True)
def _fits(rule: Rule, free: int, level: int) -> int:
    while level > 0 and rule.gpus[level] > free:
        level -= 1
    return level


@njit(cache=True)
def _insert(plan: Plan, n: int, moment: float) -> int:
    """Split the stretch that a moment lies in; returns how many moments there are."""
    k = n
    while plan.at[k - 1] > moment:
        k -= 1
    if plan.at[k - 1] == moment:
        return n
    for i in range(n, k, -1):
        plan.at[i], plan.free[i], plan.own[i] = plan.at[i - 1], plan.free[i - 1], plan.own[i - 1]
        plan.levels[i] = plan.levels[i - 1]
    plan.at[k], plan.free[k], plan.own[k] = moment, plan.free[k - 1], plan.own[k - 1]
    plan.levels[k] = plan.levels[k - 1]
    return n + 1


@njit(cache=True)
def _span(plan: Plan, n: int, k: int, due: float) -> float:
    until = plan.at[k + 1] if k + 1 < n else np.inf
    return max(0.0, min(until, due) - plan.at[k])


@njit(cache=True)
def _least(
    rule: Rule, plan: Plan, n: int, i: int, first: int, speed: Any, job: Any, left: float
) -> int:
    """The least level that meets the deadline from a moment on; the most there is if none does."""
    plan.spans[:] = 0.0
    for k in range(first, n):
        cap = _fits(rule, plan.free[k] + rule.gpus[plan.levels[k, i]], job.top)
        plan.spans[cap] += _span(plan, n, k, job.due)
    for level in range(1, job.top):
        work = 0.0
        for cap in range(1, job.top + 1):
            if plan.spans[cap] > 0:
                work += plan.spans[cap] * speed[min(cap, level)]
        if work >= left:
            return level
    return int(job.top)


@njit(cache=True)
def _walk(
    rule: Rule, plan: Plan, n: int, i: int, first: int, speed: Any, job: Any, left: float
) -> tuple[float, float, bool]:
    """A job's levels from a moment on, into ``plan.own``: its end, GPU-seconds, if it is in time.

    The end is that of a slot.
    """
    level, area = job.top, 0.0
    if rule.share == LEAST:
        level = _least(rule, plan, n, i, first, speed, job, left)
    plan.own[first:n] = 0
    for k in range(first, n):
        cap = _fits(rule, plan.free[k] + rule.gpus[plan.levels[k, i]], level)
        plan.own[k], span = cap, _span(plan, n, k, np.inf)
        if cap > 0 and speed[cap] * span >= left * (1 - TOLERANCE):
            slots = np.ceil((plan.at[k] + left / speed[cap] - plan.at[0]) / rule.slot_s - TOLERANCE)
            end = min(plan.at[0] + slots * rule.slot_s, plan.at[k] + span)
            in_time = plan.at[k] + left / speed[cap] <= job.due + TOLERANCE * rule.slot_s
            return end, area + rule.gpus[cap] * (end - plan.at[k]), in_time
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
    size = 3 * who.size + 4
    plan = Plan(
        np.zeros(size), np.zeros(size, np.int64), np.zeros((size, who.size), np.int8),
        np.zeros(size, np.int8), np.zeros(rule.gpus.size),
    )  # fmt: skip
    plan.at[0], plan.free[0], n, in_time = now, rule.total, 1, True
    for i in range(who.size):
        job = jobs[who[i]]
        slots = np.ceil((job.due - now) / rule.slot_s - TOLERANCE)
        if 0 < slots < np.inf:
            n = _insert(plan, n, now + slots * rule.slot_s)
        end, _, is_in_time = _walk(rule, plan, n, i, 0, speed[who[i]], job, job.left)
        n = _lay(rule, plan, n, i, end)
        in_time = in_time and is_in_time
    return in_time, n, plan


@njit(cache=True)
def _raised(rule: Rule, plan: Plan, n: int, i: int, speed: Any, job: Any) -> tuple[float, float]:
    """A job's plan with one level more until the next moment: its end and GPU-seconds."""
    level, span = plan.levels[0, i] + 1, _span(plan, n, 0, np.inf)
    done = speed[level] * span
    if done >= job.left:
        slots = np.ceil(job.left / speed[level] / rule.slot_s - TOLERANCE)
        end = min(plan.at[0] + slots * rule.slot_s, plan.at[0] + span)
        plan.own[:n] = 0
        plan.own[0] = level
        return end, rule.gpus[level] * (end - plan.at[0])
    end, area, _ = _walk(rule, plan, n, i, 1, speed, job, job.left - done)
    plan.own[0] = level
    return end, area + rule.gpus[level] * span


@njit(cache=True)
def give_idle(rule: Rule, jobs: Any, speed: Any, who: Any, n: int, plan: Plan) -> int:
    """Give GPUs idle now, a level at a time, to the job whose GPU time that cuts most per GPU.

    Jobs that would hold nothing come first. A gain is computed anew before it is trusted.
    """
    gain, is_new = np.full(who.size, np.inf), np.zeros(who.size, np.bool_)
    while who.size > 0 and plan.free[0] > 0 and n + 1 < plan.at.size:
        i = int(np.argmax(gain))
        if gain[i] == -np.inf:
            break
        job, now = jobs[who[i]], plan.levels[0, i]
        more = rule.gpus[now + 1] - rule.gpus[now] if now < job.top else rule.total + 1
        if more > plan.free[0]:
            gain[i] = -np.inf
            continue
        end, area = _raised(rule, plan, n, i, speed[who[i]], job)
        if is_new[i]:
            n = _lay(rule, plan, n, i, end)
            is_new[:] = False
            gain[gain > -np.inf] = np.inf
            continue
        held = 0.0
        for k in range(n - 1):
            held += rule.gpus[plan.levels[k, i]] * (plan.at[k + 1] - plan.at[k])
        gain[i], is_new[i] = (held - area) / more if now > 0 else 1e300, True
    return n


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
        begin, rate = min(max(last, job.warm), now), speed[who[i], job.level]
        job.lost += begin - last
        if job.left <= (now - begin) * rate + TOLERANCE * rate * rule.slot_s:
            job.end = begin + job.left / rate
            log.append((float(who[i]), job.since, job.end, float(rule.gpus[job.level])))
            job.left, job.level, keeps[i] = 0.0, 0, False
        else:
            job.left -= (now - begin) * rate
    return who[keeps]


@njit(cache=True)
def _joined(rule: Rule, jobs: Any, who: Any, j: int) -> Any:
    """The jobs and a new one: by deadline, or at the end where they take turns."""
    k = who.size
    while rule.share != TURNS and k > 0 and jobs[who[k - 1]].due > jobs[j].due:
        k -= 1
    return np.concatenate((who[:k], np.array([j]), who[k:]))


@njit(cache=True)
def _admit(rule: Rule, jobs: Any, speed: Any, who: Any, ahead: int, until: int, now: float) -> Any:
    """Take in the jobs that arrived, each or together, if every deadline can then be met."""
    first = ahead
    for j in range(ahead, until):
        if jobs[j].top == 0:
            continue
        who = _joined(rule, jobs, who, j)
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
    levels, free = np.zeros(who.size, np.int64), rule.total
    if rule.share != LEAST:
        for i in range(who.size):
            top = jobs[who[i]].top
            level = _fits(rule, free, top)
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
    for i in range(who.size):
        job, level = jobs[who[i]], levels[i]
        if level == job.level:
            job.warm = now + rule.lost_s[STAY, level] if level > 0 else job.warm
            continue
        if job.level > 0:
            log.append((float(who[i]), job.since, now, float(rule.gpus[job.level])))
            job.stops += 1
        is_first = np.isnan(job.start)
        if is_first:
            job.start = now
        job.level, job.since = level, now
        job.warm = now + rule.lost_s[START if is_first else RESTART, level]


@njit(cache=True)
def replay(rule: Rule, jobs: Any, speed: Any) -> tuple[Any, int]:
    """Run all jobs, in order of arrival: (job, start, end, GPUs) of their runs; decisions."""
    log = [(0.0, 0.0, 0.0, 0.0) for _ in range(0)]
    who, ahead, decisions = np.zeros(0, np.int64), 0, 0
    last, change = -np.inf, np.inf
    while True:
        now = min(change, jobs[ahead].arrival) if ahead < jobs.size else change
        for i in range(who.size):
            job = jobs[who[i]]
            if job.level > 0:
                now = min(now, max(last, job.warm) + job.left / speed[who[i], job.level])
        if now == np.inf:
            rows = np.empty((len(log), 4))  # a list would become Python's objects, 3 µs a row
            for k in range(len(log)):
                rows[k] = log[k]
            return rows, decisions
        now = max(now, last + rule.slot_s)
        who, until = _progress(rule, jobs, speed, who, last, now, log), ahead
        while until < jobs.size and jobs[until].arrival <= now:
            until += 1
        who, ahead = _admit(rule, jobs, speed, who, ahead, until, now), until
        levels, change = _decide(rule, jobs, speed, who, now)
        _hold(rule, jobs, who, levels, now, log)
        if rule.share == TURNS:
            who = np.concatenate((who[levels == 0], who[levels > 0]))
        last, decisions = now, decisions + 1
