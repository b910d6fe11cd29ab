"""Quantised blocks: how far values may be off, how many bytes they take."""

import pytest
import torch

from labkit.errors import BadValue
from labkit.papers.zeropp import (
    Method,
    StepModel,
    pack,
    ring_sum,
    rounded,
    train_digits,
    two_hop_sum,
    unpack,
)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [1, 2, 255, 256, 1000])
def test_no_value_is_off_by_more_than_half_a_step(bits: int, size: int) -> None:
    """A step is the block's largest value over the codes of one side, and what bfloat16 adds."""
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    back = unpack(pack(values, bits=bits, block=64), size, bits=bits, block=64)
    padded = torch.nn.functional.pad(values, (0, -size % 64)).view(-1, 64)
    step = padded.abs().amax(1) / (2 ** (bits - 1) - 1) * (1 + 2**-6)
    off = torch.nn.functional.pad((back - values).abs(), (0, -size % 64)).view(-1, 64)
    assert (off <= step.unsqueeze(1) / 2 * (1 + 1e-6)).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [1, 255, 256, 1000])
@pytest.mark.parametrize("block", [2, 64, 4096])
def test_rounded_values_are_those_that_are_packed_and_unpacked(
    bits: int, size: int, block: int
) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(size))
    sent = unpack(pack(values, bits=bits, block=block), size, bits=bits, block=block)
    assert torch.equal(rounded(values, bits=bits, block=block), sent)


@pytest.mark.parametrize(("bits", "expected"), [(8, 1024 + 8), (4, 512 + 8)])
def test_bytes_are_the_codes_and_two_a_block(bits: int, expected: int) -> None:
    packed = pack(torch.randn(1000), bits=bits, block=256)
    assert packed.dtype == torch.uint8
    assert len(packed) == expected


def test_what_a_code_can_say_comes_back_and_zeros_stay_zeros() -> None:
    codes = torch.arange(-7.0, 8.0)
    back = unpack(pack(codes, bits=4, block=16), 15, bits=4, block=16)
    torch.testing.assert_close(back, codes, rtol=2**-7, atol=0)
    zeros = torch.zeros(300)
    assert torch.equal(unpack(pack(zeros), 300), zeros)
    odd = unpack(pack(codes, bits=4, block=18), 15, bits=4, block=18)  # nine bytes of codes
    torch.testing.assert_close(odd, codes, rtol=2**-7, atol=0)


def test_shape_is_the_callers_and_errors_say_what_would_be_valid() -> None:
    grid = torch.randn(7, 9)
    assert unpack(pack(grid, block=8), 63, block=8).shape == (63,)
    with pytest.raises(BadValue, match="bits must be 4 or 8, got 3"):
        pack(grid, bits=3)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match="block must be even and at least 2, got 5"):
        pack(grid, block=5)
    with pytest.raises(BadValue, match="packed must have 80 bytes for 63 values"):
        unpack(pack(grid, block=8)[1:], 63, block=8)


def test_sums_are_exact_where_nothing_is_lost() -> None:
    """Values that 8 bits hold, in messages of which each has the largest: both ways add up."""
    gradients = torch.randint(-3, 4, (4, 64), generator=torch.Generator().manual_seed(0)).float()
    gradients[:, ::4] = 7.0  # every block of 4 has its largest code
    expected = gradients.sum(0)
    ring = ring_sum(gradients, bits=8, block=2)
    two = two_hop_sum(gradients, 2, bits=8, block=2)
    for total in (ring, two):
        assert (total - expected).abs().max() < 0.02 * expected.abs().max()


def test_parts_end_where_they_belong() -> None:
    """One rank's gradient alone: what arrives is that gradient, in its order."""
    gradients = torch.zeros(8, 512)
    gradients[5] = torch.linspace(-1, 1, 512)
    for total in (
        ring_sum(gradients, bits=8, block=16),
        two_hop_sum(gradients, 4, bits=8, block=16),
    ):
        torch.testing.assert_close(total, gradients[5], atol=0.02, rtol=0)
    with pytest.raises(BadValue, match="500 values must divide among 8 ranks"):
        two_hop_sum(gradients[:, :500], 4)


def test_errors_grow_with_the_roundings() -> None:
    """Independent roundings add like random steps: a ring of n has n − 1 of growing sums, two
    hops have one of a rank's values and one of a node's sum."""
    gradients = torch.randn(16, 16 * 1024, generator=torch.Generator().manual_seed(0))
    exact = gradients.sum(0)

    def off(total: torch.Tensor) -> float:
        return float((total - exact).norm() / exact.norm())

    one = off(torch.stack([rounded(row, bits=4) for row in gradients]).sum(0))
    two = off(two_hop_sum(gradients, 4))
    ring = off(ring_sum(gradients))
    assert two == pytest.approx(one * 2**0.5, rel=0.05)
    # Part k of a ring has variance k of 16: the sum of k over 15 hops, over 16, is 7.5.
    assert ring == pytest.approx(one * 7.5**0.5, rel=0.1)


def test_digits_learn_and_exact_traffic_changes_nothing() -> None:
    first, _ = train_digits(steps=1)
    last, weights = train_digits(steps=40)
    assert last < 0.3 * first
    again, same = train_digits(lambda w: w.clone(), lambda rows: rows.sum(0), steps=40)
    assert again == last
    assert torch.equal(weights, same)
    silent, _ = train_digits(gradients=lambda rows: 0 * rows[0], steps=5)
    assert silent == pytest.approx(train_digits(steps=0)[0], rel=1e-3)


@pytest.mark.parametrize(
    ("tokens", "samples"), [(512, 1), (2048, 1), (3072, 2), (4096, 2), (8192, 4), (2050, 2)]
)
def test_tokens_beyond_the_learnt_positions_are_more_samples(tokens: int, samples: int) -> None:
    batch = StepModel(gpu_flops_per_s=5e13, tokens=tokens).plan(Method.ZERO3).batch
    assert batch is not None
    assert (batch.micro_batch, batch.seq * batch.micro_batch) == (samples, tokens)


def test_more_tokens_a_step_leave_less_to_gain() -> None:
    gains = [
        StepModel(gpu_flops_per_s=5e13, tokens=tokens).gain(Method.ZEROPP, 100)
        for tokens in (1024, 2048, 4096, 8192)
    ]
    assert gains == sorted(gains, reverse=True)
