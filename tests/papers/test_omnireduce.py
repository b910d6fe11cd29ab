"""OmniReduce's zeros beside what a batch can touch, and its seconds beside rows of programs."""

from dataclasses import replace

import numpy as np
import pytest

from labkit import collectives
from labkit.kit.fabric import GBIT
from labkit.papers import omnireduce
from labkit.papers.omnireduce import Job, Way


def test_blocks_hold_anything_where_a_number_does() -> None:
    gradients = np.array([[0.0, 0, 3, 0, 0], [0, 0, 0, 0, -1]])
    assert omnireduce.blocks_of(gradients, 2).tolist() == [
        [False, True, False],
        [False, False, True],
    ]
    assert omnireduce.blocks_of(gradients, 5).all()


def test_a_recommender_has_gradients_for_looked_up_rows_alone() -> None:
    gradients = omnireduce.recommender(2, rows=500, dimension=4, batch=3, lookups=2, steps=2)
    table = gradients[:, : 500 * 4].reshape(2, 500, 4)
    touched = (table != 0).any(axis=2).sum(axis=1)
    assert ((touched >= 1) & (touched <= 3 * 2)).all()
    again = omnireduce.recommender(2, rows=500, dimension=4, batch=3, lookups=2, steps=2)
    assert (gradients == again).all()


def test_more_examples_leave_fewer_zeros_in_a_dense_layer() -> None:
    zeros = [float((omnireduce.dense_layer(batch) == 0).mean()) for batch in (1, 4, 32)]
    assert zeros == sorted(zeros, reverse=True)
    one = omnireduce.dense_layer(1)
    # Of one example the gradient is an outer product: zero rows times zero columns.
    full = np.outer((one != 0).any(axis=1), (one != 0).any(axis=0))
    assert ((one != 0) == full).all()


@pytest.mark.parametrize("density", [1.0, 0.3, 0.05])
@pytest.mark.parametrize("aggregators", [2, 4])
def test_seconds_are_those_of_the_busiest_link_of_the_program(
    density: float, aggregators: int
) -> None:
    nonzero = omnireduce.random_blocks(4, 64, density, np.random.default_rng(1))
    num_bytes = 64 * 256 * 4
    program = collectives.program(
        "sparse-blocks", 4, num_bytes, num_servers=aggregators, nonzero=nonzero
    )
    out = program.sent_bytes.sum(axis=1)
    into = program.sent_bytes.sum(axis=0)
    job = Job(gradient_bytes=num_bytes, aggregators=aggregators, header_bytes=0.0)
    busiest_s = max(out.max(), into.max()) / (job.gbit_per_s * GBIT)
    # The program deals blocks out in turn, which is even only on average.
    assert job.sum_s(Way.BLOCKS, nonzero) == pytest.approx(busiest_s, rel=0.5)
    assert job.sum_s(Way.BLOCKS, nonzero) <= busiest_s * (1 + 1e-12)


def test_the_ring_and_gathers_have_their_closed_forms() -> None:
    job = Job(gradient_bytes=1e9, gbit_per_s=8.0)  # a gigabyte a second
    full = np.ones((5, 10), dtype=bool)
    assert job.sum_s(Way.RING, full) == pytest.approx(2 * 4 / 5)
    assert job.sum_s(Way.PAIRS, full, 0.1) == pytest.approx(4 * 0.1 * 2)
    assert job.sum_s(Way.ROWS, full) == pytest.approx(4 * (1024 + 4) / 1024)


def test_what_comes_with_a_block_weighs_more_on_small_blocks() -> None:
    full = np.ones((4, 10), dtype=bool)
    for block, weight in ((256, 1 + 16 / 1024), (4, 2.0)):
        job = Job(gradient_bytes=1e9, gbit_per_s=8.0, block=block, header_bytes=16.0)
        assert job.sum_s(Way.BLOCKS, full) == pytest.approx(weight)


def test_copies_and_compute_are_added_to_a_step() -> None:
    job = Job(gradient_bytes=1e9, gbit_per_s=8.0, compute_s=0.5)
    full = np.ones((4, 10), dtype=bool)
    copied = replace(job, copy_gb_per_s=4.0)
    assert copied.step_s(Way.BLOCKS, full) - job.step_s(Way.BLOCKS, full) == pytest.approx(0.5)
    assert copied.step_s(Way.RING, full) == pytest.approx(0.5 + job.sum_s(Way.RING, full))


def test_workers_that_draw_by_themselves_fill_the_union() -> None:
    nonzero = omnireduce.random_blocks(8, 20_000, 0.05, np.random.default_rng(0))
    assert nonzero.mean() == pytest.approx(0.05)
    assert nonzero.any(axis=0).mean() == pytest.approx(1 - 0.95**8, abs=0.01)
