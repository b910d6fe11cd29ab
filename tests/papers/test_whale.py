"""Whale's balance: against the optimum, against every way there is, and Gavel's table by hand."""

from itertools import combinations, product

import numpy as np
import pytest

from labkit import cluster
from labkit.errors import BadValue
from labkit.papers import whale
from tests.published import Need


def line(fixed_s: float, sample_s: float) -> whale.Speed:
    sizes = np.array([1.0, 2.0])
    return whale.Speed(
        sizes=sizes, seconds=fixed_s + sample_s * sizes, fixed_s=fixed_s, sample_s=sample_s
    )


def test_batches_by_weight_add_up_and_are_off_by_less_than_a_sample() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        weights = rng.uniform(0.1, 5, size=rng.integers(1, 9))
        total = int(rng.integers(0, 300))
        batches = whale.proportional(total, weights.tolist())
        assert sum(batches) == total
        assert np.abs(batches - total * weights / weights.sum()).max() < 1


def test_relief_fits_and_moves_no_more_than_it_must() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        gpus = int(rng.integers(2, 8))
        flops = rng.uniform(1, 4, size=gpus).tolist()
        batches = whale.proportional(200, flops)
        limits = rng.integers(20, 120, size=gpus).tolist()
        if sum(limits) < 200:
            with pytest.raises(BadValue, match="which memories hold"):
                whale.relieved(batches, limits, flops)
            continue
        moved = whale.relieved(batches, limits, flops)
        assert sum(moved) == 200
        for before, after, limit in zip(batches, moved, limits, strict=True):
            assert after <= limit
            assert after >= min(before, limit)  # only what does not fit leaves


def test_the_integer_program_is_best_of_all_batches() -> None:
    speeds = [line(1.0, 0.5), line(0.2, 0.9), line(0.0, 2.0)]
    limits = [6, 9, 9]
    ways = [way for way in product(range(10), repeat=3) if sum(way) == 12 and way[0] <= 6]
    fastest_s = min(
        max(s.fixed_s + s.sample_s * b for s, b in zip(speeds, way, strict=True)) for way in ways
    )
    found = whale.optimum(12, speeds, limits, whole=True)
    assert found.step_s == pytest.approx(fastest_s)
    assert sum(found.batches) == pytest.approx(12)
    relaxed = whale.optimum(12, speeds, limits)
    assert relaxed.step_s <= found.step_s + 1e-9
    with pytest.raises(BadValue, match="limits hold"):
        whale.optimum(25, speeds, limits)


def test_without_fixed_seconds_the_program_gives_batches_by_speed() -> None:
    found = whale.optimum(90, [line(0.0, 1.0), line(0.0, 2.0)])
    assert found.batches == pytest.approx((60, 30))
    assert whale.idle(found.batches, [line(0.0, 1.0), line(0.0, 2.0)]) == pytest.approx(0)
    assert whale.step_s([45, 45], [line(0.0, 1.0), line(0.0, 2.0)]) == 90


def test_gavels_table_is_read_by_model_and_batch(published_data: Need) -> None:
    path = "scheduler/simulation_throughputs.json"
    table = cluster.load_throughputs(published_data("gavel-osdi20", [path]).path(path))
    speeds = whale.read_speeds(table)
    assert {*whale.MODELS, *whale.OTHERS} == set(speeds)
    row = table.kinds.index("ResNet-50 (batch size 64)")
    column = table.gpu_types.index("p100")
    resnet = speeds["ResNet-50"]["p100"]
    assert resnet.seconds[resnet.sizes == 64] == pytest.approx(1 / table.alone[row, column])
    assert whale.usual_batch(speeds["ResNet-50"]) == 64
    for by_gpu in speeds.values():
        for speed in by_gpu.values():
            assert speed.step_s(0) == 0
            assert speed.step_s(10) == pytest.approx(speed.fixed_s + 10 * speed.sample_s)


def test_a_line_is_found_through_its_points() -> None:
    sizes = np.array([5.0, 10.0, 40.0])
    found = whale.fit(sizes, 0.2 + 0.03 * sizes)
    assert (found.fixed_s, found.sample_s) == (pytest.approx(0.2), pytest.approx(0.03))


def test_the_best_cut_is_best_of_all_cuts() -> None:
    rng = np.random.default_rng(2)
    for _ in range(30):
        layers_s = rng.uniform(0.1, 2, size=8).tolist()
        slowness = rng.uniform(1, 2, size=3).tolist()
        slowest = []
        for inner in combinations(range(1, 8), 2):
            slowest.append(max(whale.stages_s(layers_s, [0, *inner, 8], slowness)))
        best = whale.best_cut(layers_s, slowness)
        assert max(whale.stages_s(layers_s, best, slowness)) == pytest.approx(min(slowest))
        by_speed = whale.cut_by_share(layers_s, [1 / slow for slow in slowness])
        assert by_speed[0] == 0
        assert by_speed[-1] == 8
        assert sorted(set(by_speed)) == by_speed


def test_a_pipeline_takes_all_stages_and_waits_for_the_slowest() -> None:
    assert whale.pipeline_s([1.0, 3.0, 2.0], 5) == 6 + 4 * 3


def test_early_stages_keep_more() -> None:
    kept = whale.kept_bytes([1.0] * 4, [0.0] * 4, [0, 2, 4])
    assert kept == [4.0, 2.0]
