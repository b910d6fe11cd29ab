"""Seconds on a fabric: textbook formulas, what no program beats, and shared links."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import collectives
from labkit.collectives.programs import Program
from labkit.errors import BadValue
from tests.collectives.test_programs import PAIRS, POWERS_ALONE, arguments, programs

ALPHA = 1e-5
RATE = 1e9
MESSAGE = 96_000_000


def flat(count: int) -> collectives.Fabric:
    return collectives.Fabric.flat(count, bandwidth_bytes_per_s=RATE, latency_s=ALPHA)


FORMULAS = {  # Thakur et al. 2005 and Chan et al. 2007, in seconds, for n workers and b = M / rate
    ("ring", "all-reduce"): lambda n, log, b: 2 * (n - 1) * ALPHA + 2 * (n - 1) / n * b,
    ("ring", "all-gather"): lambda n, log, b: (n - 1) * ALPHA + (n - 1) / n * b,
    ("ring", "reduce-scatter"): lambda n, log, b: (n - 1) * ALPHA + (n - 1) / n * b,
    ("recursive-halving", "all-reduce"): lambda n, log, b: 2 * log * ALPHA + 2 * (n - 1) / n * b,
    ("recursive-halving", "all-gather"): lambda n, log, b: log * ALPHA + (n - 1) / n * b,
    ("recursive-halving", "reduce-scatter"): lambda n, log, b: log * ALPHA + (n - 1) / n * b,
    ("recursive-doubling", "all-reduce"): lambda n, log, b: log * (ALPHA + b),
    ("direct", "all-reduce"): lambda n, log, b: 2 * (n - 1) * (ALPHA + b / n),
    ("direct", "all-to-all"): lambda n, log, b: (n - 1) * (ALPHA + b / n),
}


@pytest.mark.parametrize("workers", [2, 4, 16])
@pytest.mark.parametrize(("name", "op"), FORMULAS)
def test_the_textbook_formulas(name: str, op: str, workers: int) -> None:
    written = collectives.program(name, workers, MESSAGE, op=op)
    expected = FORMULAS[name, op](workers, math.log2(workers), MESSAGE / RATE)
    assert collectives.cost(written, flat(workers)).time_s == pytest.approx(expected, rel=1e-9)


@given(program=programs(), inside=st.sampled_from([1, 2, 3]))
def test_nothing_beats_the_bound(program: Program, inside: int) -> None:
    if program.num_ranks > program.num_workers:
        return  # servers add links of their own
    groups = -(-program.num_ranks // inside)
    rates = {"inside_bytes_per_s": 1e10, "between_bytes_per_s": RATE, "latency_s": ALPHA}
    fabric = collectives.Fabric.machines(groups, inside, **rates)
    size = int(program.num_bytes)
    if program.op == "all-to-all":
        size //= program.num_workers
    bound = collectives.bound(program.op, fabric, size, num_workers=program.num_workers)
    slack = 1 + 4 * program.num_workers / max(size, 1)  # chunks are whole numbers
    assert collectives.cost(program, fabric).time_s * slack >= bound * (1 - 1e-9)


@given(program=programs())
def test_links_carry_what_is_sent(program: Program) -> None:
    links = collectives.cost(program, flat(program.num_ranks)).links()
    sent = links[links["direction"] == "out"].set_index("unit")["num_bytes"]
    taken = links[links["direction"] == "in"].set_index("unit")["num_bytes"]
    expected = program.sent_bytes
    ranks = range(program.num_ranks)
    assert sent.reindex(ranks, fill_value=0).tolist() == expected.sum(axis=1).tolist()
    assert taken.reindex(ranks, fill_value=0).tolist() == expected.sum(axis=0).tolist()


def test_a_node_s_ranks_share_its_link() -> None:
    # Four ranks of one node each send one megabyte to the other node: four over one link.
    rates = {"inside_bytes_per_s": 1e12, "between_bytes_per_s": RATE}
    fabric = collectives.Fabric.machines(2, 4, **rates)
    exchange = collectives.program("direct", 8, 8_000_000, op="all-to-all")
    links = collectives.cost(exchange, fabric).links()
    between = links[links["level"] == 1]
    assert set(between["num_bytes"]) == {4 * 4 * 1_000_000}
    assert collectives.cost(exchange, fabric).time_s == pytest.approx(16e6 / RATE)


def test_three_levels() -> None:
    level = collectives.Fabric.flat(2, bandwidth_bytes_per_s=RATE).levels[0]
    slower = [replace(level, bandwidth_bytes_per_s=RATE / 10**depth) for depth in range(3)]
    fabric = collectives.Fabric(levels=tuple(slower))
    assert fabric.group_sizes == (1, 2, 4)
    doubling = collectives.program("recursive-doubling", 8, 8_000)
    steps = collectives.cost(doubling, fabric).frame()
    assert steps["level"].tolist() == [0, 1, 2]
    assert steps["num_bytes"].tolist() == [8_000, 16_000, 32_000]


def test_adding_takes_its_time() -> None:
    slow = replace(flat(4), add_bytes_per_s=1e8)
    ring = collectives.program("ring", 4, MESSAGE)
    more = collectives.cost(ring, slow).time_s - collectives.cost(ring, flat(4)).time_s
    assert more == pytest.approx(3 * MESSAGE / 4 / 1e8)
    assert "adding" in collectives.cost(ring, slow).why()


def test_small_messages_want_few_steps_and_large_ones_few_bytes() -> None:
    table = collectives.compare("all-reduce", flat(16), [1024, 2**28])
    first = table.drop_duplicates("num_bytes").set_index("num_bytes")["algorithm"]
    assert first[1024] == "recursive-doubling"
    assert first[2**28] == "recursive-halving"
    nodes = collectives.Fabric.machines(
        4, 8, inside_bytes_per_s=1e11, between_bytes_per_s=RATE, latency_s=ALPHA
    )
    assert collectives.best("all-reduce", nodes, 2**28).program.name == "hierarchical"
    assert collectives.best("all-to-all", nodes, 2**20).program.name == "two-level"


@pytest.mark.parametrize(("name", "op"), [pair for pair in PAIRS if pair[0] != "sparse-blocks"])
@pytest.mark.parametrize("workers", [4, 6])
def test_message_time_is_the_cost_of_each_size(name: str, op: str, workers: int) -> None:
    if (name, op) in POWERS_ALONE and workers == 6:
        return
    more = arguments(name, op, workers, 2)
    rates = {"inside_bytes_per_s": 1e10, "between_bytes_per_s": RATE, "latency_s": ALPHA}
    fabric = collectives.Fabric.machines(4, 2, **rates)
    seconds = collectives.message_time(name, fabric, op=op, num_workers=workers, **more)
    sizes = [workers**2 * 480 * size for size in (1, 1_000)]
    costs = [
        collectives.cost(collectives.program(name, workers, s, op=op, **more), fabric).time_s
        for s in sizes
    ]
    assert seconds(sizes) == pytest.approx(costs, rel=2e-3)
    assert seconds(0) == 0.0


@given(latency_s=st.floats(1e-7, 1e-3), rate=st.floats(1e8, 1e12), seed=st.integers(0, 2**32 - 1))
def test_a_line_is_found_again(latency_s: float, rate: float, seed: int) -> None:
    sizes = np.unique(np.random.default_rng(seed).integers(1, 10**9, 12))
    found = collectives.fit(sizes, latency_s + sizes / rate)
    assert found.time_s(float(sizes[0])) == pytest.approx(latency_s + sizes[0] / rate, rel=1e-6)
    assert found.worst_error_fraction < 1e-6


def test_a_fit_says_how_far_off_it_is() -> None:
    kinked = collectives.fit([1, 1e6, 2e6, 3e6], [1e-5, 1e-3, 4e-3, 9e-3])
    assert kinked.worst_error_fraction >= kinked.median_error_fraction > 0.05
    assert "half of them within" in kinked.why()


def test_wrong_input_is_refused() -> None:
    ring = collectives.program("ring", 4, MESSAGE)
    with pytest.raises(BadValue, match=r"the program has 4 ranks .* the fabric 3 devices"):
        collectives.cost(ring, flat(3))
    with pytest.raises(BadValue, match="num_workers must be at most the fabric's 3 devices"):
        collectives.bound("all-reduce", flat(3), MESSAGE, num_workers=4)
    with pytest.raises(BadValue, match="bandwidth_bytes_per_s"):
        collectives.Fabric.flat(4, bandwidth_bytes_per_s=math.nan)
    with pytest.raises(BadValue, match="levels"):
        collectives.Fabric(levels=())
    with pytest.raises(BadValue, match="leave no worker"):
        collectives.compare("all-reduce", flat(3), [MESSAGE], num_servers=3)
    with pytest.raises(BadValue, match="3 num_bytes for 2 time_s"):
        collectives.fit([1, 2, 3], [1.0, 2.0])
    with pytest.raises(BadValue, match="at least two different sizes"):
        collectives.fit([1, 1], [1.0, 2.0])
