"""Programs are right: every contribution arrives once, textbook counts of steps and bytes hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import collectives
from labkit.collectives.building import BUILDERS, Name
from labkit.collectives.programs import Action, Op, Program
from labkit.errors import BadValue, UsageError

PAIRS = sorted(BUILDERS)
POWERS_ALONE = {("recursive-halving", "reduce-scatter"), ("recursive-halving", "all-gather")}


def arguments(name: str, op: str, workers: int, spare: int) -> dict[str, Any]:
    """What an algorithm needs, for a number of workers that it takes."""
    if name in ("hierarchical", "two-level"):
        return {"per_node": max(d for d in range(1, 4) if workers % d == 0)}
    if name in ("parameter-server", "byteps"):
        return {"num_servers": spare, "num_pieces": spare}
    if name == "sparse-blocks":
        draws = np.random.default_rng(workers * 7 + spare)
        return {"num_servers": spare, "nonzero": draws.random((workers, 5)) < 0.4}
    return {"num_pieces": spare} if name == "tree" else {}


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any algorithm, among up to nine workers, with chunks of different sizes."""
    name, op = draw(st.sampled_from(PAIRS))
    workers = draw(st.sampled_from([1, 2, 4, 8])) if (name, op) in POWERS_ALONE else draw(
        st.integers(1, 9)
    )  # fmt: skip
    elements = draw(st.integers(1, 200))
    more = arguments(name, op, workers, draw(st.integers(1, 4)))
    return collectives.program(name, workers, 4 * elements, op=op, **more)


@given(program=programs())
def test_every_contribution_arrives_once(program: Program) -> None:
    program.verify()


@given(program=programs())
def test_no_rank_sends_to_itself_and_steps_are_in_order(program: Program) -> None:
    assert (program.rows.source != program.rows.destination).all()
    assert (np.diff(program.rows.step) >= 0).all()
    assert program.num_bytes == program.chunk_bytes.sum()


MEGABYTE = 1 << 20


@pytest.mark.parametrize("workers", [2, 3, 8, 12])
def test_a_ring_sends_least_and_waits_longest(workers: int) -> None:
    # Patarasuk and Yuan 2009: 2(n-1) steps, 2(n-1)/n of the message from each rank.
    message = 12 * 8 * MEGABYTE
    ring = collectives.program("ring", workers, message)
    assert ring.num_steps == 2 * (workers - 1)
    assert set(ring.sent_bytes.sum(axis=1)) == {2 * (workers - 1) * message // workers}


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_halving_and_doubling_take_logarithms(workers: int) -> None:
    # Thakur et al. 2005, §4.4.
    steps = workers.bit_length() - 1
    halving = collectives.program("recursive-halving", workers, MEGABYTE)
    doubling = collectives.program("recursive-doubling", workers, MEGABYTE)
    assert halving.num_steps == 2 * steps
    assert set(halving.sent_bytes.sum(axis=1)) == {2 * (workers - 1) * MEGABYTE // workers}
    assert doubling.num_steps == steps
    assert set(doubling.sent_bytes.sum(axis=1)) == {steps * MEGABYTE}


def test_beyond_a_power_of_two_two_steps_are_added() -> None:
    assert collectives.program("recursive-doubling", 6, MEGABYTE).num_steps == 2 + 2


def test_a_binary_tree_is_twice_its_depth_each_way() -> None:
    # 7 ranks in a full tree of depth 2: two steps a level and direction.
    tree = collectives.program("tree", 7, MEGABYTE)
    assert tree.num_steps == 2 * 2 + 2 * 2
    assert tree.sent_bytes.sum() == 2 * 6 * MEGABYTE


def test_two_levels_send_fewer_messages_out_of_a_node() -> None:
    # Tutel §3.4: n/g - 1 messages of g·M/n bytes leave a rank's node, in place of n - g of M/n.
    direct = collectives.program("direct", 16, 16 * MEGABYTE, op="all-to-all")
    levels = collectives.program("two-level", 16, 16 * MEGABYTE, op="all-to-all", per_node=4)
    outside = np.arange(16) >= 4  # of rank 0's node
    assert np.count_nonzero(direct.sent_bytes[0, outside]) == 12
    assert np.count_nonzero(levels.sent_bytes[0, outside]) == 3
    assert set(levels.sent_bytes[0, outside]) == {0, 4 * MEGABYTE}
    assert direct.sent_bytes[0, outside].sum() == levels.sent_bytes[0, outside].sum()


@pytest.mark.parametrize(("workers", "servers"), [(4, 0), (8, 3), (8, 8), (16, 5)])
def test_byteps_keeps_all_links_equally_busy(workers: int, servers: int) -> None:
    # BytePS §4.1: a worker's own server takes what its link has left over; at k = 0 it is an
    # all-reduce, at k = n a parameter server.
    own, spare = collectives.byteps_shares(workers, servers)
    assert workers * own + servers * spare == pytest.approx(1)
    worker_bytes = (1 - own) + (workers - 1) * own  # sends what others serve, returns its sums
    if servers:
        assert workers * spare == pytest.approx(worker_bytes)
    if servers == 0:
        assert worker_bytes == pytest.approx(2 * (workers - 1) / workers)
    if servers == workers:
        assert worker_bytes == pytest.approx(1)


def test_only_blocks_that_hold_anything_are_sent() -> None:
    nonzero = np.zeros((3, 4), dtype=bool)
    nonzero[0, 1] = nonzero[2, 1] = nonzero[2, 3] = True
    sparse = collectives.program("sparse-blocks", 3, 4 * 64, num_servers=2, nonzero=nonzero)
    assert sparse.sent_bytes[:3].sum() == 3 * 64  # three blocks go up
    assert sparse.sent_bytes[3:].sum() == 2 * 3 * 64  # two sums go to three workers


def test_numbers_of_four_bits_take_an_eighth_and_their_scales() -> None:
    plain = collectives.program("direct", 4, 4 * 1024, op="reduce-scatter")
    coded = collectives.program("direct", 4, 4 * 1024, op="reduce-scatter", bits=4)
    assert coded.sent_bytes.sum() == plain.sent_bytes.sum() // 8 + 12 * 4  # one scale a message


def test_a_wrong_program_is_found() -> None:
    right = collectives.program("ring", 4, MEGABYTE)
    rows = right.rows
    short = replace(right, rows=rows.at(rows.step < right.num_steps - 1))
    with pytest.raises(BadValue, match="lacks the contribution of rank"):
        short.verify()
    twice = rows._replace(action=np.full(len(rows.action), Action.ADD))
    with pytest.raises(BadValue, match="would be added twice"):
        replace(right, rows=twice).verify()
    gather = collectives.program("ring", 4, MEGABYTE, op="all-gather")
    early = gather.rows._replace(step=np.zeros_like(gather.rows.step))
    with pytest.raises(BadValue, match="holds nothing of it"):
        replace(gather, rows=early).verify()


@pytest.mark.parametrize(
    ("given_", "problem"),
    [
        ({"num_bytes": 0}, "num_bytes must be a whole number, at least 1"),
        ({"num_bytes": 10}, "num_bytes must be a multiple of element_bytes"),
        ({"num_workers": 0}, "num_workers must be a whole number, at least 1"),
        ({"name": "rings"}, "did you mean 'ring'"),
        ({"name": "tree", "op": "all-to-all"}, "no operation of 'tree' 'all-to-all'"),
        ({"name": "hierarchical"}, "'hierarchical' needs per_node"),
        (
            {"name": "hierarchical", "per_node": 3},
            "num_workers must be a multiple of per_node 3, got 8",
        ),
        ({"name": "byteps"}, "'byteps' needs num_servers"),
        ({"name": "sparse-blocks", "num_servers": 1}, "'sparse-blocks' needs nonzero"),
        ({"name": "direct", "bits": 1}, "bits must be"),
        (
            {"name": "recursive-halving", "op": "all-gather", "num_workers": 6},
            "a power of two of workers, got 6",
        ),
    ],
)
def test_wrong_wishes_are_refused(given_: dict[str, Any], problem: str) -> None:
    wish: dict[str, Any] = {"name": "ring", "num_workers": 8, "num_bytes": 64} | given_
    with pytest.raises(UsageError, match=problem):
        collectives.program(**wish)


def test_names_are_those_that_can_be_built() -> None:
    operations: set[Op] = {op for _, op in BUILDERS}
    built = {(name, op) for op in operations for name in collectives.names(op)}
    assert built == set(BUILDERS)
    names: set[Name] = {name for name, _ in BUILDERS}
    assert len(names) == 10
