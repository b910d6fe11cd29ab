"""Groups against queueing theory, AlpaServe's own simulator and brute force."""

from __future__ import annotations

import json

import numpy as np
import pytest

from labkit import serving
from labkit.errors import BadValue, UsageError
from tests.oracles import alpaserve_two_models as two_models
from tests.oracles.alpaserve_simulator import FIXED_S, MODELS, STORED, cases, digest

ORACLE = json.loads(STORED.read_text())["cases"]
CASES = cases()
TWO_MODELS = json.loads(two_models.STORED.read_text())


@pytest.mark.parametrize("case", CASES)
def test_every_request_ends_when_alpaserve_simulates(case: str) -> None:
    requests, groups = CASES[case]
    run = serving.simulate(requests, MODELS, serving.Groups(groups=groups, fixed_s=FIXED_S))
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
    run = serving.simulate(
        requests, [model], serving.Groups(groups=[serving.Group(models=("m",), stages=stages)])
    )
    wait_s = load / stages / (2 * (1 - load))
    assert run.latency_s.mean() == pytest.approx(1 + wait_s, rel=0.02)


def test_every_request_in_time_or_dropped_at_once() -> None:
    requests, groups = CASES["eight"]
    run = serving.simulate(requests, MODELS, serving.Groups(groups=groups, fixed_s=FIXED_S))
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
        serving.simulate(requests, [model], serving.Groups(groups=[serving.Group(models=("x",))]))
    with pytest.raises(BadValue, match="must differ"):
        serving.Group(models=("m", "m"))
