"""What ZeRO-3 sends, and plain Adam on mean gradients."""

import sys

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
