"""BytePS's split beside linear programs and programs' rows, and its jobs beside closed forms."""

from dataclasses import replace

import pytest

from labkit import collectives
from labkit.papers import byteps
from labkit.papers.byteps import Job, Split, Way
from labkit.planner import Chain

NETWORK = Chain.even(8, forward_s=0.01, backward_s=0.02, parameter_bytes=5e7)


@pytest.mark.parametrize("machines", [2, 3, 8, 16])
def test_no_split_and_no_tree_beats_the_theorem(machines: int) -> None:
    # §4.1: proved optimal for any k up to n; the programs do not know the formula.
    for spare in range(machines + 1):
        formula = byteps.theorem(machines, spare).passes(machines, spare)
        assert byteps.best_split(machines, spare).passes(machines, spare) == pytest.approx(formula)
        assert byteps.best_trees(machines, spare) == pytest.approx(formula)


def test_more_spare_machines_than_machines_change_nothing() -> None:
    assert byteps.theorem(4, 9).passes(4, 9) == pytest.approx(1)
    assert byteps.best_split(4, 9).passes(4, 9) == pytest.approx(1)


@pytest.mark.parametrize(("machines", "spare"), [(4, 0), (4, 2), (6, 6), (8, 3)])
def test_passes_are_the_bytes_that_the_rows_of_a_program_carry(machines: int, spare: int) -> None:
    num_bytes = 4 * 2**20
    servers = spare or None
    written = collectives.program("byteps", machines, num_bytes, num_servers=servers or 1)
    if spare == 0:
        written = collectives.program("ring", machines, num_bytes)
    busiest = max(written.sent_bytes.sum(axis=1).max(), written.sent_bytes.sum(axis=0).max())
    passes = byteps.theorem(machines, spare).passes(machines, spare)
    assert busiest / num_bytes == pytest.approx(passes, rel=1e-5)


def test_a_narrow_uplink_and_slow_cpus_cost_what_they_carry() -> None:
    all_spare = Split(0.0, 1 / 8)
    assert all_spare.passes(8, 8, uplink=0.25) == pytest.approx(4)
    assert all_spare.passes(8, 8, add=0.5) == pytest.approx(2)
    for limit in ({"uplink": 0.25}, {"add": 0.5}, {"uplink": 0.4, "add": 0.6}):
        aware = byteps.best_split(8, 8, **limit).passes(8, 8, **limit)
        assert aware < all_spare.passes(8, 8, **limit)
        assert aware >= byteps.theorem(8, 8).passes(8, 8)


def test_a_ring_is_byteps_without_spare_machines_but_for_its_hops() -> None:
    alone = Job(spare=0, hop_s=0.0, policy="wait-free")
    ring = replace(alone, way=Way.RING)
    assert alone.step_s(NETWORK) == pytest.approx(ring.step_s(NETWORK))
    assert replace(ring, hop_s=1e-3).step_s(NETWORK) > ring.step_s(NETWORK)


def test_as_many_servers_as_machines_carry_what_byteps_carries() -> None:
    ours = Job(machines=8, spare=8)
    servers = replace(ours, way=Way.SERVERS)
    assert servers.passes == pytest.approx(ours.passes) == pytest.approx(1)
    assert replace(servers, spare=4).passes == pytest.approx(2)
    assert replace(servers, copies=8).passes == pytest.approx(8)
    assert replace(servers, duplex=False).passes == pytest.approx(2)


def test_updates_matter_on_slow_memory_only() -> None:
    servers = Job(machines=8, spare=8, way=Way.SERVERS, memory_gb_per_s=100.0)
    assert replace(servers, updates=True).passes == pytest.approx(servers.passes)
    slow = replace(servers, memory_gb_per_s=25.0)
    # Memory of 25 GB/s adds at 2/3 of the link's rate; an update costs 7/3 of that for an eighth.
    assert slow.passes == pytest.approx(1.5)
    assert replace(slow, updates=True).passes == pytest.approx(1.5 * (1 + 7 / 3 / 8))


def test_no_gain_is_larger_than_the_passes_allow() -> None:
    for gbit_per_s in (5.0, 20.0, 100.0):
        ours = Job(gbit_per_s=gbit_per_s, hop_s=0.0, policy="wait-free")
        ring = replace(ours, way=Way.RING)
        gain = ring.step_s(NETWORK) / ours.step_s(NETWORK)
        assert 1 <= gain <= 2 * 31 / 32 + 1e-9
