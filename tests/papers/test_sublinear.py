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


def test_tracked_peaks_are_those_of_the_replay() -> None:
    """The tracker also sees the gradients of one block's weights, made beside the old ones."""
    from labkit.papers import sublinear

    peaks = sublinear.tracked_peaks([4, 9], ["square-root", "recursive"])
    for method in peaks:
        for number in peaks.index:
            replay = swap.plan(swap.Chain.even(int(number)), str(method)).replay()
            beside = peaks.loc[number, method] - replay.peak_bytes
            assert 0 <= beside <= 17 * 16 / (256 * 16)


def test_no_plan_goes_below_the_least() -> None:
    from labkit.papers import sublinear

    table = sublinear.plan_bytes([26, 50], sublinear.WORDS, batch=2)
    bound = table[table["method"] == "bound"].set_index("layers")["maps_bytes"]
    plans = table[table["method"] != "bound"]
    assert len(plans) == 2 * len(sublinear.WORDS)
    assert (plans["maps_bytes"].to_numpy() >= bound[plans["layers"]].to_numpy()).all()
    kept = table[table["method"] == "all-kept"]
    assert (kept["added_fraction"].abs() < 1e-12).all()


def test_the_best_number_of_equal_segments_is_no_worse_than_the_square_root() -> None:
    from labkit.papers import sublinear

    table = sublinear.plan_bytes([50], ["square-root", "best-equal"], batch=2)
    peaks = table.set_index("method")["maps_bytes"]
    assert peaks["bound"] <= peaks["best-equal"] <= peaks["square-root"]
    even = swap.Chain.even(16)
    best = sublinear.best_equal(even).replay().peak_bytes
    assert best == min(swap.segments(even, number).replay().peak_bytes for number in range(2, 9))
