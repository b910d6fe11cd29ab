"""Orca's comparison: the highest rate at a limit of latency, and what equal lengths leave of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from labkit import serving
from labkit.papers import orca

GPT3 = orca.server("175B")


def test_capacity_is_where_the_limit_is_met() -> None:
    requests = orca.stream(2000)
    batcher = serving.Batcher()
    least = serving.bound(requests, GPT3, batcher)
    limit = 2 * least.token_latency_s
    rate = orca.capacity(requests, GPT3, {"": batcher})[""]
    assert orca.capacity(requests, GPT3, {"": batcher}, limit_s=limit)[""] == rate
    medians = [
        serving.simulate(requests.at_rate(r), GPT3, batcher).summary()["median_token_s"]
        for r in (rate, 1.03 * rate)
    ]
    assert medians[0] <= limit < medians[1]
    assert rate < least.rate_per_s
    assert orca.capacity(requests, GPT3, {"": batcher}, times_alone=0.5)[""] == 0


def test_equal_lengths_leave_less_to_gain() -> None:
    """Orca Fig. 11: with equal lengths no request of a batch ends early."""

    ways = {level: serving.Batcher(level=level, max_batch=8) for level in ("iteration", "request")}  # type: ignore[arg-type]

    def gain(requests: serving.Requests) -> float:
        row = orca.gain(requests, GPT3, {"": ways["iteration"]}, {"": ways["request"]})
        rates = orca.capacity(requests, GPT3, ways)
        assert row["ratio"] == pytest.approx(rates["iteration"] / rates["request"])
        return float(row["ratio"] or 0)

    equal = orca.stream(1000, prompt_tokens=(32, 32), output_tokens=(32, 32))
    assert 1 < gain(equal) < 0.5 * gain(orca.stream(1000))
    run = serving.simulate(equal, GPT3, serving.Batcher(level="request", max_batch=8))
    assert not run.wasted_steps.any()


def test_nobody_joins_a_batch_that_has_begun() -> None:
    """On one stage a batch that nobody joins starts when the last of the one before has ended."""
    requests = orca.stream(60).at_rate(3)
    line = serving.TokenProfile(weights_s=0.02, token_s=1e-4)
    run = serving.simulate(requests, line, orca.NobodyJoins(8))
    frame = run.frame()
    batches = frame.groupby("start_s")["end_s"].agg(["max", "size"]).sort_index()
    assert batches["size"].max() == 8
    assert (batches.index[1:] >= batches["max"].to_numpy()[:-1]).all()
    assert not run.wasted_steps.any()
    assert len(batches) < len(frame)


def test_a_batch_of_one_is_joined_by_nobody() -> None:
    requests = orca.stream(40).at_rate(0.5)
    alone = serving.simulate(requests, GPT3, orca.Schedule.ORCA.batcher(1))
    for schedule in (orca.Schedule.NOBODY_JOINS, orca.Schedule.ALONE):
        run = serving.simulate(requests, GPT3, schedule.batcher(1))
        assert np.array_equal(run.end_s, alone.end_s)
    slow = serving.simulate(requests, GPT3, orca.NobodyJoins(1))
    assert np.array_equal(slow.end_s, alone.end_s)


def test_the_rival_lies_between_orca_and_its_baseline() -> None:
    requests = orca.stream(150)
    batchers = {schedule: schedule.batcher(8) for schedule in orca.Schedule}
    rates = orca.capacity(requests, GPT3, batchers)
    rival = rates[orca.Schedule.NOBODY_JOINS]
    assert rates[orca.Schedule.BY_REQUEST] < rival < rates[orca.Schedule.ORCA]


def test_places_hold_one_request_at_a_time() -> None:
    toy = serving.Requests(arrival_s=[0, 0, 0, 1, 2], output_tokens=[2, 7, 3, 2, 3])
    second = serving.TokenProfile(weights_s=1.0)
    by_request = serving.Batcher(level="request", max_batch=3)
    runs = {"whole": serving.simulate(toy, second, by_request)}
    figure = orca.figure_places(runs, names=list("abcde"), title="")
    spans: dict[str, list[tuple[float, float]]] = {}
    for bar in figure.data:
        spans.setdefault(bar.y[0], []).append((bar.base[0], bar.base[0] + bar.x[0]))
    assert len(spans) == 3
    for taken in spans.values():
        taken.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(taken))
    assert sum(bar.name == "held" for bar in figure.data) == 3


def test_latency_figure_labels_its_marks() -> None:
    batchers = {"Orca": serving.Batcher()}
    table = serving.sweep(orca.stream(50), GPT3, batchers, [1.0, 2.0])
    paper = pd.DataFrame({"system": ["baseline"], "rate_per_s": [0.185], "latency_s": [0.19]})
    figure = orca.figure_latency(table, limit_s=0.1, bound_per_s=18.0, paper=paper, title="")
    assert [note.text for note in figure.layout.annotations] == ["limit 100 ms", "bound 18.0/s"]
    assert [note.y for note in figure.layout.annotations] == [2, 1]
    assert figure.data[-1].text == (" paper,<br> baseline ",)


def test_shortest_first_overtakes() -> None:
    """The third request has a shorter answer than the second, and goes before it."""
    requests = serving.Requests(arrival_s=[0.0, 0.1, 0.2], output_tokens=[2, 5, 1])
    second = serving.TokenProfile(weights_s=1.0)
    run = serving.simulate(requests, second, orca.ShortestFirst(1))
    assert run.end_s.tolist() == [2.0, 8.0, 3.0]
