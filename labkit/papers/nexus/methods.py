"""Nexus as a whole: a scheduler, a rule of dropping, common prefixes; and what it sustains.

Source: §6, §7.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from labkit.kit.describe import Count, NonNegative, Positive, Whole, checked, description
from labkit.papers.nexus.packing import (
    Packing,
    fractional_bound,
    fullest_packing,
    oblivious,
    share_prefix,
)
from labkit.serving.batching.batches import BatchServers, Drop, Session
from labkit.serving.requests import Requests, traffic
from labkit.serving.results import Served
from labkit.serving.simulation import simulate
from labkit.serving.sweeps import highest_load


class Scheduler(StrEnum):
    """Who gives GPUs to models."""

    DUTY_CYCLES = "duty cycles"
    """Nexus: squishy bin packing (:func:`fullest_packing`)."""
    FIXED_SIZES = "fixed sizes"
    """The same, but batches keep the size that they had alone."""
    BY_LOAD = "by load"
    """Blind to batches: GPUs in proportion to load (:func:`oblivious`)."""


@description
class Method:
    """Nexus, or Nexus with a part of it replaced.

    Attributes:
        scheduler: who gives GPUs to models.
        drop: what becomes of late requests, as of :class:`labkit.serving.BatchServers`.
        prefixes: whether models of one profile run their common layers in common batches.
        suffix_s: what a model's own layers take in such a batch, as of :func:`share_prefix`.
    """

    scheduler: Scheduler = Scheduler.DUTY_CYCLES
    drop: Drop = "early"
    prefixes: bool = True
    suffix_s: NonNegative = 0.0

    @checked
    def plan(self, sessions: Sequence[Session], num_gpus: Count) -> Packing:
        """A plan that uses all GPUs, for the sessions' rates in proportion."""
        if self.prefixes:
            sessions = share_prefix(sessions, suffix_s=self.suffix_s)
        if self.scheduler is Scheduler.BY_LOAD:
            return oblivious(sessions, num_gpus)
        squishy = self.scheduler is Scheduler.DUTY_CYCLES
        return fullest_packing(sessions, num_gpus, squishy=squishy)


def _stream(
    sessions: Sequence[Session], count: int, cv: float, rng: np.random.Generator | int
) -> Requests:
    """About so many requests of all sessions, in proportion to their rates."""
    rates = {session.model: session.rate_per_s for session in sessions}
    slo_s = {session.model: session.slo_s for session in sessions}
    return traffic(rates, count / sum(rates.values()), slo_s=slo_s, cv=cv, rng=rng)


@checked
def run_plan(
    plan: Packing,
    rate_per_s: Positive,
    *,
    count: Count = 12_000,
    drop: Drop = "early",
    rng: np.random.Generator | Whole = 0,
) -> Served:
    """About ``count`` Poisson requests at a rate of all sessions together, on the plan's GPUs.

    Args:
        rate_per_s: of all sessions together; each keeps its share of it.
        drop: what becomes of requests that are late, as of :class:`labkit.serving.BatchServers`.
        rng: a generator or a seed.
    """
    requests = _stream(plan.sessions, count, 1.0, rng)
    servers = BatchServers(servers=plan.servers, drop=drop)
    return simulate(requests.at_rate(rate_per_s), servers.profiles, servers)


@checked
def sustained_rate(
    plan: Packing,
    *,
    count: Count = 12_000,
    drop: Drop = "early",
    overhead: Positive = 1.0,
    cv: NonNegative = 1.0,
    rng: np.random.Generator | Whole = 0,
    asked: tuple[Session, ...] | None = None,
) -> float:
    """Requests a second of which a plan answers 99 % in time, to 1 %; the first tenth warms it up.

    At most the rate that no schedule can beat; 0 where not even a thirtieth of it is attained.

    Args:
        count: about so many requests are simulated at each rate that is tried.
        drop: what becomes of requests that are late, as of :class:`labkit.serving.BatchServers`.
        overhead: every batch takes this times what was planned with.
        cv: variation of each model's gaps; 1: Poisson.
        rng: a generator or a seed.
        asked: what is really asked for; default: what was planned for.
    """
    asked = asked or plan.sessions
    planned_per_s = sum(session.rate_per_s for session in asked)
    top_per_s = planned_per_s * plan.num_gpus / fractional_bound(asked, waits=False)
    requests = _stream(asked, count, cv, rng)
    servers = BatchServers(servers=plan.servers, drop=drop)
    slower = {model: profile.slower(overhead) for model, profile in servers.profiles.items()}

    def attainment(rate_per_s: float) -> float:
        run = simulate(requests.at_rate(rate_per_s), slower, servers)
        return float(run.met[len(requests) // 10 :].mean())

    low_per_s = top_per_s / 30
    rate_per_s = highest_load(attainment, low_per_s, top_per_s)
    if rate_per_s > low_per_s or attainment(rate_per_s) >= 0.99:
        return rate_per_s
    return 0.0


@checked
def late_share(
    plan: Packing,
    rate_per_s: Positive,
    *,
    count: Count = 50_000,
    drop: Drop = "early",
    rng: np.random.Generator | Whole = 0,
) -> float:
    """The share of requests that are late or dropped; arguments as of :func:`run_plan`."""
    run = run_plan(plan, rate_per_s, count=count, drop=drop, rng=rng)
    return float(1 - run.met.mean())
