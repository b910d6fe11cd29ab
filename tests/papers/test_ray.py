"""Dispatch against Jackson's formula and its limits; recovery of values on killed processes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce

import numpy as np
import pandas as pd
import pytest

from labkit.errors import BadValue, UsageError
from labkit.papers import ray

SMALL = ray.Dispatch(nodes=4, passed_on=0.3, shards=2, store_s=40e-6)


@pytest.mark.parametrize("hot", [0.0, 0.2])
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_simulation_and_closed_form_agree(share: float, hot: float) -> None:
    stations = ray.Dispatch(nodes=4, passed_on=0.3, shards=2, store_s=40e-6, hot=hot)
    rate = share * stations.limit_per_s
    expected = ray.mean_latency_s(stations, rate)
    runs = [ray.dispatch_tasks(stations, rate, 150_000, rng=seed) for seed in range(3)]
    for name, seconds in expected.items():
        measured = np.mean([run[f"{name}_s"].mean() for run in runs])
        assert measured == pytest.approx(seconds, rel=0.05), name


def test_one_station_is_m_m_1() -> None:
    lone = ray.Dispatch(nodes=1, local_s=1.0, store_s=1e-9, shards=1)
    assert ray.mean_latency_s(lone, 0.5)["local"] == pytest.approx(2.0)


@pytest.mark.parametrize("central", [0.0, 1.0])
def test_beyond_the_limit_tasks_leave_at_the_limit(central: float) -> None:
    stations = ray.Dispatch(nodes=8, passed_on=central, shards=4)
    run = ray.dispatch_tasks(stations, 3 * stations.limit_per_s, 200_000)
    rate = len(run) / (run["done_s"].max() - run["arrival_s"].min())
    assert rate == pytest.approx(stations.limit_per_s, rel=0.03)
    assert stations.bottleneck == ("global" if central else "local")


def test_ends_are_served_one_at_a_time() -> None:
    run = ray.dispatch_tasks(ray.Dispatch(nodes=1, shards=1), 20_000, 5000)
    assert (run[["local_s", "global_s", "store_s"]] >= 0).all(axis=None)
    assert (run["global_s"] == 0).all()
    assert run["done_s"].to_numpy() == pytest.approx(
        run[["arrival_s", "local_s", "global_s", "store_s"]].sum(axis=1).to_numpy()
    )


def test_a_rate_beyond_the_limit_has_no_mean() -> None:
    with pytest.raises(BadValue, match="saturates global; valid: below"):
        ray.mean_latency_s(SMALL, 1e9)


def chain(runtime: ray.Runtime, length: int) -> list[ray.Ref]:
    refs = [runtime.submit(operator.add, 1, 0)]
    while len(refs) < length:
        refs.append(runtime.submit(operator.mul, refs[-1], 2))
    return refs


def test_a_killed_worker_loses_nothing_that_has_a_lineage() -> None:
    with ray.Runtime(workers=2) as runtime:
        refs = chain(runtime, 6)
        assert runtime.get(refs[-1]) == 32
        (holder,) = runtime.holders[refs[-1]]
        other = runtime.submit(operator.neg, 7)  # goes to the worker that holds less
        assert runtime.holders[other] == {1 - holder}
        before = list(runtime.executed)
        runtime.kill(holder)
        assert runtime.get(refs[3]) == 8
        assert runtime.executed[len(before) :] == [0, 1, 2, 3]  # what it needs, nothing else
        assert runtime.get(other) == -7


def double(submit: Callable[..., ray.Ref]) -> ray.Ref:
    return reduce(
        lambda value, _: submit(operator.mul, value, 2), range(5), submit(operator.pos, 1)
    )


def test_a_copy_shortens_what_is_made_again() -> None:
    whole = ray.recover(double)
    copied = ray.recover(double, copy_every=4)
    assert whole.before == whole.after == copied.after == 32
    assert whole.again == (0, 1, 2, 3, 4, 5)
    assert copied.again == (4, 5)
    assert {ref.number for ref in copied.lost} >= {4, 5}


def test_without_lineage_a_value_is_lost() -> None:
    gone = ray.recover(double, remember=False)
    assert gone.before == 32
    assert gone.after is None
    assert gone.again == ()


def test_the_last_worker_takes_all_with_it() -> None:
    with ray.Runtime(workers=1) as runtime:
        ref = runtime.submit(operator.add, 1, 2)
        runtime.kill(0)
        with pytest.raises(UsageError, match="no worker is left"):
            runtime.get(ref)


def test_a_task_that_fails_says_so() -> None:
    with ray.Runtime(workers=1) as runtime:
        with pytest.raises(UsageError, match="value 0 cannot be made: ZeroDivisionError"):
            runtime.submit(operator.truediv, 1, 0)
        assert runtime.get(runtime.submit(operator.add, 1, 1)) == 2


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"workers": 0}, "workers must be a whole number, at least 1"),
        ({"copy_every": 0}, "copy_every must be a whole number, at least 1"),
        ({"workers": 1, "copy_every": 2}, "copies need 2 workers"),
    ],
)
def test_settings_that_cannot_be(setting: dict[str, int], said: str) -> None:
    with pytest.raises(BadValue, match=said):
        ray.Runtime(**setting)


def test_replicas_of_the_global_scheduler_share_its_tasks() -> None:
    """With as many as nodes the nodes' schedulers are the limit again; each task has a hop more."""
    replicas = ray.Dispatch(nodes=20, passed_on=1.0, global_s=60e-6, global_schedulers=20)
    bottom_up = ray.Dispatch(nodes=20, global_s=60e-6)
    assert replicas.limit_per_s == pytest.approx(bottom_up.limit_per_s)
    rate = 0.5 * replicas.limit_per_s
    expected = ray.mean_latency_s(replicas, rate)
    run = ray.dispatch_tasks(replicas, rate, 200_000)
    for name, seconds in expected.items():
        assert run[f"{name}_s"].mean() == pytest.approx(seconds, rel=0.05), name
    assert expected["global"] == pytest.approx(expected["local"])


def test_copies_of_every_value_do_without_lineage() -> None:
    copied = ray.recover(double, remember=False, copy_every=1)
    assert copied.before == copied.after == 32
    assert copied.again == copied.lost == ()


def test_figures_draw_what_they_are_given() -> None:
    assert ray.figure_again({"never": 16, "5": 1}).data[0].y == (16, 1)
    paper = pd.DataFrame({"nodes": [60], "tasks_per_s": [1e6], "words": ["a million"]})
    rates = {"bottom-up": {1: 10.0, 10: 100.0}}
    lines = ray.figure_rates(rates, {1: 11.0, 10: 110.0}, paper, title="Tasks")
    assert [trace.y for trace in lines.data] == [(11, 110), (10, 100), (1000000,)]
    ring = ray.figure_allreduce({0.0: 200.0, 5.0: 360.0}, central_ms=5.0, paper={"paper": 400.0})
    assert ring.data[1].y == (400, 400)
    ratios = pd.DataFrame({"tasks of 1 ms": [1.0, 10.0]}, index=[1e5, 1e8])
    assert [trace.y for trace in ray.figure_locality(ratios, [10, 100]).data] == [
        (10, 10),
        (100, 100),
        (1, 10),
    ]
    barriers = ray.figure_asynchronous({"Ray": {1: 1.0}}, {1: 0.9, 16: 1.4}, title="Tasks")
    assert barriers.data[1].y == (0.9, 1.4)
    assert "node" in ray.figure_idea().layout.title.text
