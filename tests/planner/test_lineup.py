"""All planners on one small transformer: what is priced, and what no plan can beat."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from labkit import planner
from labkit.errors import BadValue, UsageError
from labkit.planner.lineup import Lineup, Stage, Stages

NEAR = planner.Level(count=4, bandwidth_bytes_per_s=1e11, latency_s=1e-6)
FAR = planner.Level(count=2, bandwidth_bytes_per_s=1e9, latency_s=1e-5)
JOB = planner.Job(
    model="gpt2-124m",
    batch=16,
    length=128,
    fabric=planner.Fabric(levels=(NEAR, FAR)),
    flops_per_s=5e12,
    memory_bytes=8e9,
    num_layers=4,
)


def test_no_method_beats_the_bound_and_alpa_beats_its_parts() -> None:
    table = planner.lineup(JOB).set_index("method")
    seconds = table["iteration_s"]
    assert (seconds > table["bound_s"]).all()
    assert table["fits"].all()
    for name in ("data parallelism (Horovod)", "Whale", "DAPPLE", "Megatron-LM", "OptCNN"):
        assert seconds["Alpa"] <= seconds[name] * (1 + 1e-3), name
    assert seconds["Unity"] <= min(seconds["OptCNN"], seconds["Megatron-LM"]) * (1 + 1e-9)
    assert seconds["OptCNN"] <= min(seconds["FlexFlow"], seconds["One weird trick"])


def test_data_parallelism_is_priced_by_hand() -> None:
    line = Lineup(job=JOB)
    plan = Stages((Stage(0, 4, 8, "samples"),), 2)
    flops = sum(operator.forward_flops for operator in line.whole.operators) * 16
    weights = sum(operator.weights for operator in line.whole.operators)
    ring_s = 2 * 7 * 1e-5 + 2 * 7 / 8 * 2 * weights / 1e9  # between machines, the slower level
    rings_s = ring_s + (len([o for o in line.whole.operators if o.weights]) - 1) * 2 * 7 * 1e-5
    price = line.price(plan)
    assert price.iteration_s == pytest.approx(3 * flops / 8 / 5e12 + rings_s)
    kept = sum(operator.num_outputs for operator in line.part(0, 4, 8).operators) / 8 * 2
    assert price.memory_bytes == pytest.approx(16 * weights + kept)
    assert line.link_bytes(plan).sum() == pytest.approx(8 * 2 * 7 / 8 * 2 * weights)
    assert line.link_bytes(plan)[1] == pytest.approx(2 * 2 * 7 / 8 * 2 * weights)


def test_stages_send_activations_over_their_cut() -> None:
    line = Lineup(job=JOB)
    two = Stages((Stage(0, 2, 4, "samples"), Stage(2, 4, 4, "samples")), 4)
    one = [
        line.price_stage(stage, first, 4) for stage, first in zip(two.stages, (0, 4), strict=True)
    ]
    crossing = 4 * 128 * 768 * 2
    cut_s = 2 * (1e-5 + crossing / 1e9)
    slowest_s = max(one[0].seconds, one[1].seconds, cut_s)
    expected = one[0].seconds + one[1].seconds + cut_s + 3 * slowest_s
    expected += max(stage.gradients_s for stage in one)
    assert line.price(two).iteration_s == pytest.approx(expected)
    assert line.link_bytes(two)[1] == pytest.approx(4 * 2 * crossing)


def test_what_does_not_fit_is_said() -> None:
    small = replace(JOB, memory_bytes=1e8)
    table = planner.lineup(small, methods=["data parallelism (Horovod)"])
    assert not table["fits"].any()
    assert math.isfinite(table["iteration_s"].iloc[0])
    with pytest.raises(UsageError, match="method 'Horovod'"):
        planner.lineup(JOB, methods=["Horovod"])


def test_jobs_are_of_transformers_on_machines() -> None:
    with pytest.raises(BadValue, match="two levels are valid"):
        replace(JOB, fabric=planner.Fabric.flat(8, bandwidth_bytes_per_s=1e9))
    with pytest.raises(BadValue, match="num_layers is 3; 4 or more are valid"):
        replace(JOB, num_layers=3)
    with pytest.raises(UsageError, match="no model 'vgg16'"):
        replace(JOB, model="vgg16")


def test_a_part_has_the_operators_of_its_blocks() -> None:
    line = Lineup(job=JOB)
    whole = line.part(0, 4, 2)
    parts = [line.part(0, 1, 2), line.part(1, 3, 2), line.part(3, 4, 2)]
    weights = [sum(operator.weights for operator in part.operators) for part in parts]
    assert sum(weights) == sum(operator.weights for operator in whole.operators)
    flops = [sum(operator.forward_flops for operator in part.operators) for part in parts]
    assert np.sum(flops) == sum(operator.forward_flops for operator in whole.operators)
