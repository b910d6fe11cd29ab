"""Every plan is judged by one replay; the exact program is the best of all trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import swap
from labkit.errors import BadValue, UsageError
from labkit.swap import Chain
from labkit.swap.chain import BACKWARD, CHECKPOINT, FORWARD, KEEP, Action

Operations = tuple[tuple[Action, int], ...]
sizes = st.integers(0, 4).map(float)


@st.composite
def chains(draw: st.DrawFn, most: int = 5) -> Chain:
    n = draw(st.integers(1, most))
    lists = [tuple(draw(st.lists(sizes, min_size=n, max_size=n))) for _ in range(7)]
    outputs, kept, forward, backward, *extra = lists
    return Chain(
        input_bytes=draw(sizes),
        output_bytes=tuple(size + 1 for size in outputs),
        kept_bytes=kept,
        forward_cost=tuple(cost + 1 for cost in forward),
        backward_cost=backward,
        forward_extra_bytes=extra[0],
        keep_extra_bytes=extra[1],
        backward_extra_bytes=extra[2],
    )


def trees(start: int, end: int) -> Iterator[Operations]:
    """Every plan of the kind for a run, written out."""
    if end == start + 1:
        yield ((KEEP, start), (BACKWARD, start))
        return
    for rest in trees(start + 1, end):
        yield ((KEEP, start), *rest, (BACKWARD, start))
    for at in range(start + 1, end):
        passed = ((CHECKPOINT, start), *((FORWARD, block) for block in range(start + 1, at)))
        for after in trees(at, end):
            for before in trees(start, at):
                yield (*passed, *after, *before)


@given(chains())
@settings(max_examples=60)
def test_the_exact_program_is_the_best_of_all_trees(chain: Chain) -> None:
    judged = [swap.replay(chain, operations) for operations in trees(0, chain.num_blocks)]
    whole = round(swap.all_kept(chain).replay().peak_bytes)
    exact = swap.optimum(chain, slots=whole)  # a slot is one byte, and all sizes are whole
    memory, cost = exact.frontier()
    for num_bytes in range(whole + 1):
        fitting = [run.cost for run in judged if run.peak_bytes <= num_bytes]
        if not fitting:
            assert num_bytes not in memory.round()
            continue
        (number,) = np.flatnonzero(memory.round() == num_bytes)
        assert cost[number] == min(fitting)
        planned = exact.plan(num_bytes).replay()
        assert (planned.peak_bytes <= num_bytes, planned.cost) == (True, cost[number])


@given(chains(most=9))
@settings(max_examples=40)
def test_no_method_beats_the_exact_program(chain: Chain) -> None:
    whole = round(max(swap.plan(chain, name).replay().peak_bytes for name in swap.METHODS))
    memory, cost = swap.optimum(chain, float(whole), slots=whole).frontier()
    for name in swap.METHODS:
        judged = swap.plan(chain, name).replay()
        assert cost[memory.round() <= judged.peak_bytes].min() <= judged.cost
        assert judged.added_fraction >= 0


@pytest.mark.parametrize("root", [2, 3, 4, 7, 16])
def test_square_root_segments(root: int) -> None:
    """§4.3: with k = √n segments, k inputs and one segment of n/k; one forward pass is added, but
    for the last segment's."""
    chain = Chain.even(root**2)
    judged = swap.plan(chain, "square-root").replay()
    # A segment's outputs and what its blocks keep, the gradients in and out, the other inputs.
    assert judged.peak_bytes == 3 * root + 2
    assert judged.cost == chain.step_cost + root**2 - root


@pytest.mark.parametrize("power", range(1, 9))
def test_recursion_adds_one_output_and_half_a_pass_at_each_doubling(power: int) -> None:
    """Eq. 3 with k = 1: log2 n outputs; each level passes through the first half of its runs."""
    chain = Chain.even(2**power)
    judged = swap.recursive(chain).replay()
    assert judged.peak_bytes == power + 5
    assert judged.cost == chain.step_cost + power * 2**power / 2


def test_the_search_is_no_worse_than_equal_segments() -> None:
    for blocks in (9, 30, 64):
        chain = Chain.even(blocks)
        equal = [swap.segments(chain, k).replay().peak_bytes for k in range(1, blocks + 1)]
        assert swap.searched(chain).replay().peak_bytes <= min(equal) + 1


@given(chains(most=9))
def test_recursion_holds_no_more_than_keeping_all(chain: Chain) -> None:
    """What it holds at any time is a part of what a step that keeps all holds at some time; but
    what a forward pass needs for a moment may come when a gradient waits."""
    moments: dict[str, Any] = {"forward_extra_bytes": (), "keep_extra_bytes": ()}
    swap.recursive(chain).replay()  # whole in any case
    chain = replace(chain, **moments)
    assert swap.recursive(chain).replay().peak_bytes <= swap.all_kept(chain).replay().peak_bytes


def test_what_cannot_run_is_refused() -> None:
    chain = Chain.even(2)
    whole = swap.all_kept(chain).operations
    for operations, why in (
        (whole[1:], r"operations\[0\], keep of block 1, lacks"),
        (((FORWARD, 0), *whole), r"operations\[1\], keep of block 0, lacks"),
        (((CHECKPOINT, 0), *whole), r"operations\[1\], keep of block 0, lacks"),
        (whole[:2] + whole[3:], r"operations\[2\], backward of block 0, lacks"),
        (whole[:-1], "backward passes of 1 of 2 blocks are still due"),
    ):
        with pytest.raises(BadValue, match=why):
            swap.replay(chain, operations)


def test_wrong_values_are_named() -> None:
    chain = Chain.even(4)
    with pytest.raises(BadValue, match=r"starts must lie in 1\.\.3"):
        swap.segments(chain, [4])
    with pytest.raises(BadValue, match="memory_bytes must be at least"):
        swap.optimum(chain).plan(1.0)
    with pytest.raises(UsageError, match="method"):
        swap.plan(chain, "squareroot")
    with pytest.raises(BadValue, match="one value a block"):
        Chain(
            input_bytes=1,
            output_bytes=(1, 1),
            kept_bytes=(1,),
            forward_cost=(1, 1),
            backward_cost=(1, 1),
        )


def test_the_figure_has_the_optimum_below_every_method() -> None:
    from labkit.swap.figures import figure_tradeoff

    chain = Chain.even(25)
    figure = figure_tradeoff(chain, slots=53)
    best, *others = figure.data
    assert best.name == "exact optimum"
    assert {trace.name for trace in others} >= {"equal segments", "searched", "each-block"}
    for trace in others:
        for size, added in zip(trace.x, trace.y, strict=True):
            reachable = [y for x, y in zip(best.x, best.y, strict=True) if x <= size * 1.0001]
            assert min(reachable) <= added * 1.0001
