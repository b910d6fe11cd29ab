"""What ZeRO-3 sends, and plain Adam on mean gradients."""

import sys
from dataclasses import replace

import pytest
import torch

from labkit.kit.ranks import on_ranks
from labkit.papers import mics


def test_undivided_adam_sees_the_mean_of_all_gradients() -> None:
    steps = torch.randn(2, 3, 4, 8, generator=torch.Generator().manual_seed(0))
    mean = steps.mean((1, 2), keepdim=True)
    torch.testing.assert_close(
        mics.undivided_adam(steps[0, 0, 0], steps),
        mics.undivided_adam(steps[0, 0, 0], mean.expand_as(steps)),
    )
    first = mics.undivided_adam(torch.zeros(8), steps[:1])  # Adam's first step is lr × the sign
    torch.testing.assert_close(first, -1e-3 * mean[0, 0, 0].sign(), rtol=1e-4, atol=0)


def test_a_micro_batch_of_zero3_sends_the_weights_twice_and_the_gradients_once() -> None:
    size = 4 * 30_000
    gradients = torch.randn(4, size, generator=torch.Generator().manual_seed(0))
    run = on_ranks(lambda rank: mics.zero3_micro_batch(gradients[0], gradients[rank]), 4)
    torch.testing.assert_close(torch.cat(run.results), gradients.sum(0), atol=1e-5, rtol=0)
    if sys.platform == "linux":
        assert run.across_bytes(1) == pytest.approx(3 * 4 * 3 / 4 * 4 * size, rel=0.02)


def test_one_group_of_all_gpus_is_zero3() -> None:
    job = mics.Job(gpus=64, group=64)
    assert job.rate_flops() == pytest.approx(job.rate_flops("ZeRO-3"))
    assert job.traffic_s() == pytest.approx(job.traffic_s("ZeRO-3"))


def test_traffic_grows_with_the_group_and_shrinks_with_the_network() -> None:
    traffic_s = [mics.Job(gpus=64, group=group).traffic_s() for group in (8, 16, 64)]
    assert traffic_s == sorted(traffic_s)
    ring = mics.Job(gpus=64, group=16)
    assert replace(ring, staged=True).traffic_s() < ring.traffic_s()
    assert replace(ring, gbit_per_s=400).traffic_s() < ring.traffic_s()
    assert ring.rate_flops() < ring.flops_per_s


def test_the_second_hop_is_paid_once_a_step() -> None:
    """Four micro-batches in one step send less than four steps of one."""
    job = mics.Job(gpus=64)
    each = replace(job, accumulation=1)
    assert job.traffic_s() < 4 * each.traffic_s()
    assert job.traffic_s("ZeRO-3") == pytest.approx(4 * each.traffic_s("ZeRO-3"))
