"""Estimates of durations: means of what is over, and no look ahead."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import cluster
from labkit.errors import BadValue
from labkit.papers import mlaas


def jobs(**columns: object) -> cluster.Trace:
    many = cluster.generate(500, num_gpus=8, load=1.0, rng=3)
    rng = np.random.default_rng(1)
    tenant = tuple(rng.choice(["a", "b", "c"], 500).tolist())
    return cluster.Trace(
        arrival_s=many.arrival_s,
        duration_s=columns.get("duration_s", many.duration_s),
        gpus=many.gpus,
        tenant=tenant,
    )


def test_estimates_are_means_of_what_is_over() -> None:
    trace = jobs()
    arrival, duration, gpus = (trace.column(n) for n in ("arrival_s", "duration_s", "gpus"))
    ours = mlaas.estimates(trace, by=["tenant", "gpus"])
    tenant = np.array(trace.tenant)
    for job in (120, 300, 499):
        over = arrival + duration <= arrival[job]
        alike = over & (tenant == tenant[job]) & (gpus == gpus[job])
        pool = alike if alike.any() else over & (tenant == tenant[job])
        assert ours[job] == pytest.approx(duration[pool].mean())


def test_estimates_do_not_look_ahead() -> None:
    trace = jobs()
    longer = trace.column("duration_s").copy()
    longer[400:] *= 50
    ours = [mlaas.estimates(t, by=["tenant"])[:401] for t in (trace, jobs(duration_s=longer))]
    assert ours[0].tolist() == ours[1].tolist()


def test_an_unknown_feature_is_named() -> None:
    with pytest.raises(BadValue, match="does not know 'kind'"):
        mlaas.estimates(jobs(), by=["kind"])


def test_the_more_a_group_says_the_better_the_estimate() -> None:
    """Logarithms of durations add up from the user, the task, the GPUs and the run."""
    draw = np.random.default_rng(2)
    owner = draw.integers(20, size=200)
    task = draw.integers(200, size=20_000)
    gpus = draw.choice([1, 4], 20_000)
    usual = draw.normal(0, 0.8, 20)[owner] + draw.normal(0, 1.2, 200)
    trace = cluster.Trace(
        arrival_s=np.arange(20_000) * 1e4,
        gpus=gpus,
        duration_s=600 * np.exp(usual[task]) * gpus**-0.2 * draw.lognormal(0, 0.2, 20_000),
        tenant=tuple(map(str, owner[task])),
        kind=tuple(map(str, task)),
    )
    known = slice(10_000, None)
    logs = np.log(trace.column("duration_s"))
    spread = []
    for by in (["tenant"], ["tenant", "kind"], ["tenant", "kind", "gpus"]):
        guess = mlaas.estimates(trace, by=by)
        spread.append(float(np.std((logs - np.log(np.maximum(guess, 1e-9)))[known])))
    assert spread[0] > 2 * spread[1] > 2 * spread[2]
    assert spread[2] == pytest.approx(0.2, rel=0.05)  # what is left is what differs between runs
