"""Groups against queueing theory, AlpaServe's own simulator and brute force."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit import serving
from labkit.errors import BadValue, UsageError
from tests.oracles import alpaserve_two_models as two_models
from tests.oracles.alpaserve_simulator import FIXED_S, MODELS, STORED, cases, digest
from tests.published import Need

ORACLE = json.loads(STORED.read_text())["cases"]
CASES = cases()
TWO_MODELS = json.loads(two_models.STORED.read_text())


@pytest.mark.parametrize("case", CASES)
def test_every_request_ends_when_alpaserve_simulates(case: str) -> None:
    requests, groups = CASES[case]
    run = serving.serve_groups(requests, groups, MODELS, fixed_s=FIXED_S)
    assert digest(run.end_s) == ORACLE[case]["sha256"]
    assert np.nanmean(run.latency_s) == pytest.approx(ORACLE[case]["mean_latency_s"], rel=1e-9)


@pytest.mark.parametrize("mix", two_models.MIXES)
@pytest.mark.parametrize("name", two_models.SETTINGS)
def test_the_authors_own_example_ends_request_by_request(name: str, mix: str) -> None:
    """On their generator's arrivals; the ratio within 2 % where overheads are drawn."""
    mean_s = []
    stored_s = []
    for stages in (1, 2):
        stored = TWO_MODELS[name][f"{mix}, {stages}"]
        run = two_models.ours(two_models.SETTINGS[name], mix, stages)
        arrival_s = run.requests.column("arrival_s")
        assert len(arrival_s) == stored["requests"]
        assert digest(arrival_s) == stored["arrivals"]
        assert two_models.ends(arrival_s, run.end_s) == stored["ends"]
        mean_s.append(two_models.mean_latency_s(arrival_s, run.latency_s))
        stored_s.append(stored["mean_latency_s"])
    assert mean_s[0] / mean_s[1] == pytest.approx(stored_s[0] / stored_s[1], rel=0.02)
    if name == "loop":
        assert mean_s[0] / mean_s[1] == pytest.approx(two_models.RECORDED[mix], rel=0.02)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_pipeline_of_equal_stages_is_one_md1_queue(load: float, stages: int) -> None:
    """Only the first stage queues; waiting there is M/D/1's, ρD/2(1 − ρ), D a stage's seconds."""
    model = serving.ServedModel(name="m", latency_s=1.0)
    requests = serving.generate(load * stages, 400_000, model="m", rng=1)
    run = serving.serve_groups(requests, [serving.Group(models=("m",), stages=stages)], [model])
    wait_s = load / stages / (2 * (1 - load))
    assert run.latency_s.mean() == pytest.approx(1 + wait_s, rel=0.02)


def test_every_request_in_time_or_dropped_at_once() -> None:
    requests, groups = CASES["eight"]
    run = serving.serve_groups(requests, groups, MODELS, fixed_s=FIXED_S)
    dropped = np.isnan(run.end_s)
    assert 0 < dropped.sum() < len(requests)
    assert (run.met == ~dropped).all()


def test_overheads_only_count_where_a_model_is_split() -> None:
    model = serving.ServedModel(name="m", latency_s=8.0, stage_overhead=0.5, tensor_overhead=0.25)
    times = {
        shape: serving.Group(stages=shape[0], tensor=shape[1]).stage_s(model)
        for shape in ((1, 1), (4, 1), (1, 2), (2, 2))
    }
    assert times == {(1, 1): 8.0, (4, 1): 3.0, (1, 2): 5.0, (2, 2): 3.75}


def _room(groups: tuple[serving.Group, ...], each: float, memory: float) -> bool:
    return all(len(group.models) * each <= memory * group.num_gpus for group in groups)


def test_placement_keeps_within_memory_and_near_the_best_of_all() -> None:
    """Every placement of three models on four GPUs in pairs or alone, by brute force."""
    names = ("a", "b", "c")
    memory = 2.0
    models = [serving.ServedModel(name=name, latency_s=1.0, memory_bytes=1.0) for name in names]
    requests = serving.together(
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
                run = serving.serve_groups(requests, groups, models)
                best = max(best, float(run.met.mean()))
    placed = serving.place(
        requests, models, num_gpus=4, memory_bytes=memory, shapes=((1, 1), (2, 1))
    )
    assert _room(placed.groups, 1.0, memory)
    run = serving.serve_groups(requests, placed.groups, models)
    assert placed.attainment == run.met.mean()
    assert best - 0.02 <= placed.attainment <= best


def test_more_memory_or_more_shapes_never_hurt_much() -> None:
    models = [serving.ServedModel(name=f"m{i}", latency_s=1.0, memory_bytes=1.0) for i in range(4)]
    requests = serving.together(
        [
            serving.generate(0.6, 300, cv=4, slo_s=4, model=model.name, rng=i)
            for i, model in enumerate(models)
        ]
    )
    one = {"requests": requests, "models": models, "num_gpus": 4}
    tight = serving.place(**one, memory_bytes=1.0, shapes=((1, 1),))
    roomy = serving.place(**one, memory_bytes=4.0, shapes=((1, 1),))
    split = serving.place(**one, memory_bytes=1.0)
    assert roomy.attainment >= tight.attainment
    assert split.attainment > tight.attainment + 0.02
    assert {group.stages for group in split.groups} != {1}


def _gain(arrival_s: list[Any]) -> float:
    """How much higher a rate eight models on eight GPUs sustain in stages than whole."""
    models = [
        serving.ServedModel(name=f"m{i}", latency_s=0.396, memory_bytes=1.0, stage_overhead=0.1)
        for i in range(8)
    ]
    asked = serving.together(
        [
            serving.Requests(
                arrival_s=own_s, slo_s=np.full(len(own_s), 1.98), model=(model.name,) * len(own_s)
            )
            for model, own_s in zip(models, arrival_s, strict=True)
        ]
    )
    whole, split = (
        serving.highest(
            lambda rate, shapes=shapes: (
                serving.place(
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


def test_one_objective_is_that_of_every_model() -> None:
    rates = {"a": 1.0, "b": 2.0}
    both = [serving.traffic(rates, 50.0, slo_s=slo_s) for slo_s in (3.0, {"a": 3.0, "b": 3.0})]
    assert both[0].frame().equals(both[1].frame())
    assert np.isinf(serving.traffic(rates, 50.0).column("slo_s")).all()
    with pytest.raises(UsageError, match="no model of rates_per_s 'c'"):
        serving.traffic(rates, 50.0, slo_s={"c": 3.0})
    with pytest.raises(BadValue, match=r"rates_per_s must be .*, not empty"):
        serving.traffic({}, 50.0)


def test_faults_are_named() -> None:
    model = serving.ServedModel(name="m", latency_s=1.0, memory_bytes=5.0)
    requests = serving.generate(1, 3, model="m")
    with pytest.raises(BadValue, match="lacks 'x'"):
        serving.serve_groups(requests, [serving.Group(models=("x",))], [model])
    with pytest.raises(BadValue, match="no model fits into 1 bytes"):
        serving.place(requests, [model], num_gpus=4, memory_bytes=1.0)
    with pytest.raises(BadValue, match="must differ"):
        serving.Group(models=("m", "m"))
