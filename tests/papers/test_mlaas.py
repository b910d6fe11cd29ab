"""Estimates of durations: means of what is over, and no look ahead."""

from __future__ import annotations

import numpy as np
import pandas as pd
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


def test_the_shortest_estimate_goes_first_or_last() -> None:
    """One GPU is held until 100 s; of two jobs that wait, a's past is short and b's is long."""
    trace = cluster.Trace(
        arrival_s=[0, 0, 50, 60, 61],
        duration_s=[10, 40, 50, 30, 5],
        gpus=[1, 1, 2, 2, 2],
        tenant=("a", "b", "c", "b", "a"),
    )
    nodes = cluster.Cluster.nodes(1, gpus=2)
    shortest = mlaas.shortest_estimate("by user", ["tenant"])
    longest = mlaas.shortest_estimate("by user", ["tenant"], longest=True)
    assert cluster.simulate(trace, nodes, shortest).end_s.tolist() == [10, 40, 100, 135, 105]
    assert cluster.simulate(trace, nodes, longest).end_s.tolist() == [10, 40, 100, 130, 135]


def test_groups_are_rows_of_a_tenants_jobs() -> None:
    trace = cluster.Trace(
        arrival_s=[0, 10, 3000, 3700, 9000],
        duration_s=[1] * 5,
        gpus=[1] * 5,
        tenant=("a", "b", "a", "b", "a"),
    )
    assert mlaas.groups_by_gap(trace, gap_h=1.0) == ("0", "0", "0", "1", "1")
    assert mlaas.groups_by_gap(trace, gap_h=2.0) == ("0",) * 5
    with pytest.raises(BadValue, match="does not know tenants"):
        mlaas.groups_by_gap(cluster.generate(5, num_gpus=8), gap_h=1.0)


def test_a_burst_comes_after_what_is_old() -> None:
    trace = jobs()
    is_old = np.random.default_rng(0).random(len(trace)) < 0.5
    mixed = mlaas.burst(trace, is_old, gap_h=1.0)
    arrival_s = mixed.column("arrival_s")
    new = arrival_s >= mlaas.IN_BURST_S
    assert new.sum() == (~is_old).sum()
    assert np.ptp(arrival_s[new]) < 60
    assert (arrival_s + mixed.column("duration_s"))[~new].max() < mlaas.IN_BURST_S
    with pytest.raises(BadValue, match="one a job"):
        mlaas.burst(trace, is_old[:3], gap_h=1.0)
    nodes = cluster.Cluster.nodes(1000)
    duration_s = mixed.column("duration_s")[new]
    mean_s = mlaas.mean_in_burst_s(mixed, nodes, cluster.sjf())
    assert mean_s == pytest.approx(duration_s.mean())  # nobody waits


def test_parts_are_counted_in_halves_of_a_gpu() -> None:
    trace = jobs()
    parts, whole = mlaas.parts_of_gpus(trace, 0.5, rng=0)
    gpus = np.array(trace.gpus)
    assert (np.array(whole.gpus) == 2 * gpus).all()
    is_half = np.array(parts.gpus) == 1
    assert (gpus[is_half] == 1).all()
    assert is_half.sum() == pytest.approx(0.5 * (gpus == 1).sum(), rel=0.2)


def test_labels_by_lot_explain_nothing() -> None:
    trace = jobs()
    rng = np.random.default_rng(5)
    lot = tuple(rng.choice(["x", "y", "z"], len(trace)).tolist())
    short = np.array(trace.duration_s) < np.median(trace.duration_s)
    assert abs(mlaas.explained_variance(trace, lot)) < 0.02
    assert mlaas.explained_variance(trace, [str(each) for each in short]) > 0.5


def test_figures_show_the_readme_beside_ours() -> None:
    gains = pd.DataFrame({"user": [0.4, 0.6], "group": [0.7, 0.9]})
    bars = mlaas.figure_gains(gains, pd.Series({"group": 0.95}), title="Gains")
    assert bars.data[0].y == pytest.approx((0.5, 0.8))
    assert bars.data[1].x == ("group",)
    lines = mlaas.figure_sharing(pd.DataFrame({"parts": [1.0], "whole": [2.0]}, index=[100]))
    assert [trace.y for trace in lines.data] == [(1.0,), (2.0,)]
    errors = mlaas.figure_errors(pd.DataFrame({"user": [1.0, 2.0]}, index=[0.0, 0.5]))
    assert errors.data[0].name == "by user"
    idea = mlaas.figure_idea()
    assert "mean end 92 min" in idea.data[0].y[1]
