"""Horovod: fused messages, scaled message times, and steps held against the engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from labkit import collectives
from labkit.collectives.building import Name
from labkit.kit.fabric import GBIT, Fabric
from labkit.papers import horovod
from labkit.papers.horovod import Job
from labkit.papers.horovod.jobs import INSIDE_BYTES_PER_S, MIB, message_time

LAYERS = pd.DataFrame(
    {
        "forward_s": [2.0, 1.0, 1.0, 1.0],
        "backward_s": [4.0, 2.0, 2.0, 2.0],
        "parameter_bytes": [4_000, 0, 40_000, 400_000_000],
    }
)
JOB = Job(profile=LAYERS, images_per_s=100.0, gpus=16)


def line(num_bytes: float) -> float:
    """One second a message and a second for eight bytes."""
    return 1.0 + num_bytes / 8


@pytest.mark.parametrize("threshold", [0, 8, 20, 1_000])
@pytest.mark.parametrize("cycle_s", [0.0, 0.5, 3.0])
def test_each_gradient_is_sent_once_and_never_early(threshold: int, cycle_s: float) -> None:
    rng = np.random.default_rng(0)
    ready_s = np.sort(rng.uniform(0, 20, size=30)).tolist()
    sizes = [int(size) for size in rng.integers(1, 12, size=30)]
    sent = horovod.fused(ready_s, sizes, line, threshold_bytes=threshold, cycle_s=cycle_s)
    assert sum(count for count, _, _ in sent) == len(sizes)
    first = 0
    free_s = 0.0
    for count, start_s, end_s in sent:
        size = sum(sizes[first : first + count])
        assert count == 1 or size <= threshold
        assert start_s >= max(free_s, ready_s[first + count - 1])
        assert end_s == pytest.approx(start_s + line(size))
        first += count
        free_s = end_s


def test_a_look_sends_all_that_it_found_before_the_next() -> None:
    sent = horovod.fused([0.5, 0.6, 0.7], [8, 8, 8], line, threshold_bytes=0, cycle_s=10.0)
    assert sent == [(1, 10.0, 12.0), (1, 12.0, 14.0), (1, 14.0, 16.0)]


@pytest.mark.parametrize("algorithm", ["ring", "recursive-halving", "hierarchical"])
def test_scaled_times_are_those_of_the_fabric(algorithm: Name) -> None:
    fabric = Fabric.machines(
        8,
        4,
        inside_bytes_per_s=INSIDE_BYTES_PER_S,
        between_bytes_per_s=25 * GBIT,
        latency_s=1e-5,
    )
    per_node = 4 if algorithm == "hierarchical" else None
    wanted = collectives.message_time(algorithm, fabric, per_node=per_node)
    sizes = [1, 4_096, 10**6, 10**9]
    assert message_time(32, algorithm, 25.0, 1e-5)(sizes) == pytest.approx(wanted(sizes))


def test_a_ring_crosses_each_link_with_nearly_twice_the_message() -> None:
    seconds = message_time(16, "ring", 8.0, 0.0)(10**9)
    assert seconds == pytest.approx(2 * 15 / 16)


def test_steps_without_fusion_are_the_engines() -> None:
    job = replace(JOB, threshold_bytes=0, cycle_s=0.0)
    engine = collectives.overlap(job.layers(), job.message_s, policy="wait-free")
    step = job.step()
    assert step.step_s == pytest.approx(engine.step_s)
    assert step.network_s == pytest.approx(engine.network_s)
    for ours, theirs in zip(step.events, engine.events, strict=True):
        assert ours[:3] == theirs[:3]
        begun_s = engine.events[0].start_s  # of the engine's last step
        assert ours.end_s == pytest.approx(theirs.end_s - begun_s)


def test_a_step_computes_at_the_gpus_rate_and_sends_all_bytes() -> None:
    step = JOB.step()
    assert step.compute_s == pytest.approx(64 / 100)
    assert sum(message.num_bytes for message in step.messages) == LAYERS["parameter_bytes"].sum()
    assert 0 < JOB.efficiency() <= 1
    assert JOB.speedup() == pytest.approx(16 * JOB.efficiency())


def test_more_hops_and_slower_links_never_help() -> None:
    alone = replace(JOB, threshold_bytes=0, cycle_s=0.0)
    assert replace(alone, gpus=64).efficiency() <= alone.efficiency()
    assert replace(alone, hop_s=1e-3).efficiency() <= alone.efficiency()
    assert replace(alone, gbit_per_s=10.0).efficiency() <= alone.efficiency()
    assert replace(alone, wait_s=1e-2).efficiency() <= alone.efficiency()


def test_one_large_buffer_joins_what_one_look_finds() -> None:
    late = replace(JOB, cycle_s=10.0, threshold_bytes=1_000 * MIB)
    assert len(late.step().messages) == 1


def test_real_ranks_sum_alike_and_are_timed() -> None:
    assert horovod.fusion_gain(2, num_tensors=5, num_bytes=64) > 0
    seconds = horovod.all_reduce_s(2, [64, 4_096], repeats=2)
    assert len(seconds) == 2
    assert min(seconds) > 0


def test_figures_draw_what_they_are_given() -> None:
    assert len(horovod.figure_idea(num_ranks=4).layout.annotations) == 2 * 4 + 4 + 2
    measured = pd.DataFrame({"num_bytes": [10, 1_000], "time_s": [1e-3, 2e-3]})
    fitted = collectives.fit(measured["num_bytes"], measured["time_s"])
    assert list(horovod.figure_line(measured, fitted).data[0].y) == [1.0, 2.0]
    shares = pd.DataFrame({"ready": [0.5, 0.75]}, index=[0, 64])
    assert list(horovod.figure_fusion(shares, title="t").data[0].y) == [50, 75]
    lines = {"net": pd.DataFrame({"ring, fused": [0.9, 0.8]}, index=[16, 128])}
    figure = horovod.figure_efficiency(lines, {"net": {16: 0.91, 512: 0.5}}, title="t")
    assert list(figure.data[1].y) == [91]
