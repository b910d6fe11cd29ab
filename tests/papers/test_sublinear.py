"""The block on which the notebook measures how peaks grow with depth."""

from __future__ import annotations

import pytest

from labkit import swap

torch = pytest.importorskip("torch")


def test_a_step_of_equal_blocks_holds_an_output_and_tanhs_a_block() -> None:
    """All kept, every block more keeps its output and tanh's: two tensors of the input's size."""
    from labkit.papers.sublinear import Residual

    one = 4 * 256 * 16
    peaks = [
        swap.tracked_bytes(
            lambda count=count: [Residual(16) for _ in range(count)],
            (256, 16),
            swap.plan(swap.Chain.even(count), "all-kept"),
        )
        for count in (8, 9)
    ]
    assert peaks[1] - peaks[0] == 2 * one


def test_a_block_adds_to_its_input() -> None:
    from labkit.papers.sublinear import Residual

    block = Residual(4)
    torch.nn.init.zeros_(block.linear.weight)
    torch.nn.init.zeros_(block.linear.bias)
    x = torch.ones(3, 4)
    assert torch.equal(block(x), x)
