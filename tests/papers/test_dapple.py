"""DAPPLE's published planner beside the engine's exact search."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import planner
from labkit.errors import UsageError
from labkit.papers import dapple
from tests.planner.conftest import chains, clusters, published

TEN_GBIT = 10 * 1e9 / 8


@settings(max_examples=60)
@given(chain=chains(5), cluster=clusters(4), count=st.integers(1, 12))
def test_the_published_plan_is_never_better_than_the_exact_one(
    chain: Any, cluster: Any, count: int
) -> None:
    exact = planner.plan(
        chain, cluster, objective="latency", num_microbatches=count, tolerance=1e-9
    )
    own = dapple.published_plan(chain, cluster, num_microbatches=count)
    assert own.cost_s >= exact.cost_s * (1 - 1e-9)
    assert math.isnan(own.gap)
    assert own.evaluations >= 1


def test_its_cost_is_that_of_its_stages() -> None:
    cluster = planner.Cluster.flat(16, bandwidth_bytes_per_s=TEN_GBIT)
    own = dapple.published_plan(published("alexnet"), cluster, num_microbatches=16)
    assert own.cost_s == pytest.approx(own.priced().cost_s, rel=1e-12)


def test_machines_of_several_devices_are_refused() -> None:
    chain = planner.Chain.even(4, forward_s=0.1, backward_s=0.2)
    two = planner.Cluster.machines(2, 2, inside_bytes_per_s=1e10, between_bytes_per_s=1e9)
    with pytest.raises(UsageError, match="published_plan takes a flat cluster"):
        dapple.published_plan(chain, two, num_microbatches=4)
