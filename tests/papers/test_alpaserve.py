"""Placements of AlpaServe: brute force, memory, and the gain on recorded conversations."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit import serving
from labkit.errors import BadValue
from labkit.papers import alpaserve
from tests.published import Need


def _room(groups: tuple[serving.Group, ...], each: float, memory: float) -> bool:
    return all(len(group.models) * each <= memory * group.num_gpus for group in groups)


def test_placement_keeps_within_memory_and_near_the_best_of_all() -> None:
    """Every placement of three models on four GPUs in pairs or alone, by brute force."""
    names = ("a", "b", "c")
    memory = 2.0
    models = [serving.ServedModel(name=name, latency_s=1.0, memory_bytes=1.0) for name in names]
    requests = serving.merge_streams(
        [
            serving.generate(rate, int(400 * rate), cv=3, slo_s=5, model=name, rng=i)
            for i, (name, rate) in enumerate(zip(names, (0.4, 0.8, 1.2), strict=True))
        ]
    )
    subsets = [
        tuple(n for n, bit in zip(names, bits, strict=True) if bit)
        for bits in product((0, 1), repeat=3)
    ]
    best = 0.0
    for stages in (1, 2):
        for chosen in product(subsets, repeat=4 // stages):
            groups = tuple(serving.Group(models=held, stages=stages) for held in chosen)
            if _room(groups, 1.0, memory) and any(chosen):
                run = serving.simulate(requests, models, serving.Groups(groups=groups))
                best = max(best, float(run.met.mean()))
    placed = alpaserve.place(
        requests, models, num_gpus=4, memory_bytes=memory, shapes=((1, 1), (2, 1))
    )
    assert _room(placed.groups, 1.0, memory)
    run = serving.simulate(requests, models, serving.Groups(groups=placed.groups))
    assert placed.attainment == run.met.mean()
    assert best - 0.02 <= placed.attainment <= best


def test_more_memory_or_more_shapes_never_hurt_much() -> None:
    models = [serving.ServedModel(name=f"m{i}", latency_s=1.0, memory_bytes=1.0) for i in range(4)]
    requests = serving.merge_streams(
        [
            serving.generate(0.6, 300, cv=4, slo_s=4, model=model.name, rng=i)
            for i, model in enumerate(models)
        ]
    )
    one = {"requests": requests, "models": models, "num_gpus": 4}
    tight = alpaserve.place(**one, memory_bytes=1.0, shapes=((1, 1),))
    roomy = alpaserve.place(**one, memory_bytes=4.0, shapes=((1, 1),))
    split = alpaserve.place(**one, memory_bytes=1.0)
    assert roomy.attainment >= tight.attainment
    assert split.attainment > tight.attainment + 0.02
    assert {group.stages for group in split.groups} != {1}


def _gain(arrival_s: list[Any]) -> float:
    """How much higher a rate eight models on eight GPUs sustain in stages than whole."""
    models = [
        serving.ServedModel(name=f"m{i}", latency_s=0.396, memory_bytes=1.0, stage_overhead=0.1)
        for i in range(8)
    ]
    asked = serving.merge_streams(
        [
            serving.Requests(
                arrival_s=own_s, slo_s=np.full(len(own_s), 1.98), model=(model.name,) * len(own_s)
            )
            for model, own_s in zip(models, arrival_s, strict=True)
        ]
    )
    whole, split = (
        serving.highest_load(
            lambda rate, shapes=shapes: (
                alpaserve.place(
                    asked.at_rate(rate), models, num_gpus=8, memory_bytes=1.0, shapes=shapes
                ).attainment
            ),
            0.1,
            20,
        )
        for shapes in (((1, 1),), ((1, 1), (2, 1), (4, 1), (8, 1)))
    )
    return split / whole


def test_conversations_by_the_minute_are_those_recorded_and_give_the_same_gain(
    published_data: Need,
) -> None:
    """The recorded times themselves beside Poisson requests moved by the minute, as the notebook
    has them: dealt to eight models, and an eighth of the hour for each."""
    published_data("azure-llm-2023")
    root = Path(__file__).resolve().parents[2] / "data" / "papers" / "alpaserve"
    minutes = pd.read_csv(root / "conversations.csv")["requests"].to_numpy()
    edges = 60.0 * np.arange(len(minutes) + 1)
    recorded_s = serving.load("azure-llm-2023").column("arrival_s")
    assert np.histogram(recorded_s, edges)[0].tolist() == minutes.tolist()
    recorded_s = recorded_s[recorded_s < edges[-1]]
    draw = np.random.default_rng(0)
    at = np.cumsum(draw.exponential(size=len(recorded_s)))
    moved_s = np.interp(at[at < minutes.sum()], np.r_[0, minutes.cumsum()], edges)
    dealt = []
    eighths = []
    for arrival_s in (recorded_s, moved_s):
        model = draw.integers(8, size=len(arrival_s))
        dealt.append(_gain([arrival_s[model == i] for i in range(8)]))
        place, into_s = np.divmod(arrival_s, edges[-1] / 8)
        eighths.append(_gain([into_s[place == i] for i in range(8)]))
    assert dealt[1] == pytest.approx(dealt[0], rel=0.1)
    assert eighths[1] == pytest.approx(eighths[0], rel=0.1)
    assert dealt[0] < eighths[0] < 2, "drift that models share takes from the gain; far from ten"


def test_a_model_that_fits_nowhere_is_named() -> None:
    model = serving.ServedModel(name="m", latency_s=1.0, memory_bytes=5.0)
    requests = serving.generate(1, 3, model="m")
    with pytest.raises(BadValue, match="no model fits into 1 bytes"):
        alpaserve.place(requests, [model], num_gpus=4, memory_bytes=1.0)


def test_arrivals_have_the_asked_rate_burstiness_and_popularity() -> None:
    requests = alpaserve.Arrivals(cv=2.0, uneven=True, rng=1).draw(8, 10.0, slo_s=2.0)
    assert requests.rate_per_s == pytest.approx(10, rel=0.1)
    shares = pd.Series(requests.model).value_counts(normalize=True).sort_index()
    assert shares["model 7"] == pytest.approx(0.23, rel=0.15)
    assert shares["model 0"] == pytest.approx(0.02, rel=0.5)
    turned = alpaserve.Arrivals(uneven=True, turned=True).draw(8, 10.0, slo_s=2.0)
    shares = pd.Series(turned.model).value_counts(normalize=True)
    assert shares["model 0"] == pytest.approx(0.23, rel=0.15)
    even = alpaserve.Arrivals(cv=2.0).draw(1, 10.0, slo_s=2.0)
    assert even.gap_cv == pytest.approx(2, rel=0.1)


def test_moved_arrivals_come_as_in_the_recorded_time() -> None:
    """Without shift every model has each minute's share; with it, each model its own order."""
    by_minute = (1.0, 3.0, 2.0, 2.0)
    for apart in (0, 1):
        arrivals = alpaserve.Arrivals(by_minute=by_minute, minutes_apart=apart)
        requests = arrivals.draw(2, 10.0, slo_s=2.0)
        frame = requests.frame()
        edges = np.linspace(0, frame["arrival_s"].max(), 5)
        for place, model in enumerate(("model 0", "model 1")):
            own_s = frame.loc[frame["model"] == model, "arrival_s"]
            expected = np.roll(by_minute, apart * place) / 8
            assert np.histogram(own_s, edges)[0] / len(own_s) == pytest.approx(expected, abs=0.03)


def test_stages_sustain_more_than_replication_and_less_than_the_bound() -> None:
    cluster = alpaserve.Cluster(num_models=4, num_gpus=4)
    bursty = alpaserve.Arrivals(cv=2.0)
    methods = (alpaserve.Method.ALPASERVE, alpaserve.Method.FOUR_STAGES)
    rates = [cluster.highest_rate(method, bursty) for method in methods]
    ours = rates[0]
    replication = cluster.highest_rate(alpaserve.Method.REPLICATION, bursty)
    assert 2 * replication < ours < cluster.bound_per_s
    assert all(replication <= rate < cluster.bound_per_s for rate in rates)
    cvs = [
        cluster.largest_cv(method, alpaserve.Arrivals())
        for method in (alpaserve.Method.REPLICATION, alpaserve.Method.ALPASERVE)
    ]
    assert cvs[0] < cvs[1]


def test_two_models_are_drawn_with_their_shares() -> None:
    requests = alpaserve.two_models(0.2)
    share = np.mean(np.array(requests.model) == "A")
    assert share == pytest.approx(0.2, abs=0.01)
    assert requests.rate_per_s == pytest.approx(3, rel=0.02)


def test_burst_figure_shows_each_piece_of_work_once() -> None:
    burst = [(0.0, "A"), (0.0, "A"), (0.5, "B")]
    placements = {"whole": ["A", "B"], "stages": ["AB"]}
    figure = alpaserve.figure_burst(burst, placements, latency_s=0.4, title="")
    whole = [bar for bar in figure.data if bar.y[0].startswith("whole")]
    stages = [bar for bar in figure.data if bar.y[0].startswith("stages")]
    assert [bar.base[0] for bar in whole] == [0, 0.4, 0.5]
    assert [bar.base[0] for bar in stages] == pytest.approx([0, 0.2, 0.2, 0.4, 0.5, 0.7])
    assert sum(bar.x[0] for bar in whole) == pytest.approx(sum(bar.x[0] for bar in stages))


def test_rates_figure_ends_the_papers_line_at_the_bound() -> None:
    rates = pd.DataFrame({"AlpaServe": [9.0, 8.0], "replication": [1.0, 5.0]}, ["x", "y"])
    figure = alpaserve.figure_rates(rates, baseline="replication", bound=20, paper=10, title="")
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert [trace.y[0] for trace in lines] == [10, 20]
    assert figure.layout.annotations[0].text == "bound 20.0: all GPUs busy"
