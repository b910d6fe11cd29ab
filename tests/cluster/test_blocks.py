"""Blocks of parameters on servers: conserved, near the best division, MXNet's rule by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import cluster
from labkit.errors import BadValue

SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=40)


@given(sizes=SIZES, servers=st.integers(1, 9), rule=st.sampled_from(["fit", "hash"]))
@settings(max_examples=80, deadline=None)
def test_every_parameter_has_a_server(sizes: list[int], servers: int, rule: str) -> None:
    held = cluster.balance(sizes, servers, rule=rule)
    assert held.parameters.sum() == pytest.approx(sum(sizes))
    assert len(sizes) <= held.requests.sum() <= len(sizes) + servers * len(sizes)
    assert held.requests.min() >= 0


@given(sizes=SIZES, servers=st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_the_fullest_server_is_a_block_above_the_mean_at_most(
    sizes: list[int], servers: int
) -> None:
    """A block that fits nowhere goes to the emptiest server, which holds no more than the mean;
    small ones, below a hundredth of it, may add up on one server."""
    held = cluster.balance(sizes, servers)
    part = sum(sizes) / servers
    small = sum(size for size in sizes if size < part / 100)
    largest = min(max(sizes), part)
    assert held.parameters.max() <= part + largest + small + 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_within_a_third_of_the_best_of_all_divisions(seed: int) -> None:
    """Below 4/3 − 1/(3m) of the optimum, the bound of largest first to the emptiest."""
    sizes = np.random.default_rng(seed).integers(20, 100, 9).astype(float)
    assert sizes.max() <= sizes.sum() / 3
    best = min(
        max(sum(s for s, to in zip(sizes, way, strict=True) if to == k) for k in range(3))
        for way in product(range(3), repeat=9)
    )
    assert cluster.balance(sizes, 3).parameters.max() <= (4 / 3 - 1 / 9) * best + 1e-9


def test_a_block_above_the_mean_is_divided_and_requests_count_its_parts() -> None:
    held = cluster.balance([10.0, 1.0, 1.0], 3)
    assert held.parameters.tolist() == pytest.approx([4, 4, 4])
    assert held.requests.sum() == 5  # three parts, two blocks
    assert cluster.balance([7.0], 7).parameters.tolist() == pytest.approx([1.0] * 7)


def test_mxnet_default_by_hand() -> None:
    """Block k to server 9973·k mod 4 = k mod 4; a million or more in equal parts to all."""
    held = cluster.balance([1.0, 2.0, 4e6, 8.0, 16.0], 4, rule="hash")
    assert held.parameters.tolist() == [1e6 + 17, 1e6 + 2, 1e6, 1e6 + 8]
    assert held.requests.tolist() == [3, 2, 1, 2]
    again = cluster.balance([1.0, 2.0, 4e6, 8.0, 16.0], 4, rule="hash", numbers=[0, 0, 0, 0, 1])
    assert again.parameters.tolist() == [1e6 + 11, 1e6 + 16, 1e6, 1e6]


def test_blocks_need_sizes() -> None:
    with pytest.raises(BadValue, match="numbers above 0"):
        cluster.balance([1.0, 0.0], 2)
