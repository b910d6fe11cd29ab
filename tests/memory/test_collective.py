"""Collectives written out, on real ranks: the right sums, and the bytes of a ring."""

import sys

import pytest
import torch

from labkit.kit.ranks import on_ranks


def test_a_ring_adds_up_and_sends_what_a_ring_must() -> None:
    size = 3 * 40_000
    values = torch.randn(3, size, generator=torch.Generator().manual_seed(0))

    def scatter(rank: int) -> torch.Tensor:
        from labkit.memory.oracles.collective import ring_reduce_scatter

        return ring_reduce_scatter(values[rank])

    run = on_ranks(scatter, 3)
    torch.testing.assert_close(torch.cat(run.results), values.sum(0), atol=1e-5, rtol=0)
    if sys.platform == "linux":
        assert run.across_bytes(1) == pytest.approx(3 * 2 / 3 * 4 * size, rel=0.02)


def test_a_gather_among_some_ranks_holds_their_parts() -> None:
    def gathered(rank: int) -> torch.Tensor:
        import torch.distributed as dist

        from labkit.memory.oracles.collective import gather

        near, _ = dist.new_subgroups(2)
        return torch.cat([gather(torch.tensor([rank])), gather(torch.tensor([rank]), near)])

    expected = [[0, 1, 2, 3, *pair] for pair in ([0, 1], [0, 1], [2, 3], [2, 3])]
    assert [part.tolist() for part in on_ranks(gathered, 4).results] == expected


def test_adam_is_torchs_own_to_the_bit() -> None:
    from labkit.memory.oracles.collective import Adam

    gradients = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    whole = torch.nn.Parameter(gradients[0].clone())
    optimizer = torch.optim.Adam([whole], lr=3e-3)
    adam = Adam(gradients[0].clone(), lr=3e-3)
    for gradient in gradients:
        whole.grad = gradient.clone()
        optimizer.step()
        adam.step(gradient)
    assert torch.equal(adam.weights, whole)
