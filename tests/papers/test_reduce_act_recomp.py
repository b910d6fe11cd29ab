"""A block cut over real ranks: kept bytes are the printed ones, numbers are those of the whole."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.kit.ranks import on_ranks

pytest.importorskip("torch")

SIZES = {"hidden": 64, "heads": 4, "seq": 32, "samples": 2}
RANKS = 2
WAYS = [
    {"sequence_parallel": False},
    {"sequence_parallel": True},
    {"sequence_parallel": False, "selective": True},
    {"sequence_parallel": True, "selective": True},
    {"sequence_parallel": False, "reduce": False},
    {"sequence_parallel": True, "reduce": False},
]


def printed(way: dict[str, bool], ranks: int) -> float:
    """Table 2 in bytes: 10 + 24/t without sequence parallelism, 34/t with it, and the scores."""
    tokens = SIZES["seq"] * SIZES["samples"]
    whole, divided = (0, 34) if way["sequence_parallel"] else (10, 24)
    scores = 0 if way.get("selective") else 5 * SIZES["heads"] * SIZES["seq"] / SIZES["hidden"]
    return tokens * SIZES["hidden"] * (whole + (divided + scores) / ranks)


def statistics(way: dict[str, bool], ranks: int) -> int:
    """What §4 leaves out: mean and 1/deviation of both norms, two bytes each on a CPU."""
    tokens = SIZES["seq"] * SIZES["samples"]
    return 2 * 2 * 2 * tokens // (ranks if way["sequence_parallel"] else 1)


@pytest.fixture(scope="module")
def runs() -> list[tuple[dict[str, Any], ...]]:
    """By way, each rank's row."""
    name = "labkit.papers.reduce_act_recomp:measure"
    return list(zip(*on_ranks(name, RANKS, SIZES, WAYS).results, strict=True))


@pytest.mark.parametrize("number", range(len(WAYS)))
def test_every_rank_keeps_table_2_and_the_norms_statistics(
    runs: list[tuple[dict[str, Any], ...]], number: int
) -> None:
    way = WAYS[number]
    for row in runs[number]:
        assert row["kept_bytes"] == printed(way, RANKS) + statistics(way, RANKS)


def test_cut_blocks_compute_what_the_whole_does(runs: list[tuple[dict[str, Any], ...]]) -> None:
    for way, rows in zip(WAYS, runs, strict=True):
        if way.get("reduce", True):
            assert rows[0]["difference"] < 1e-5
        else:  # a rank's own share of a sum is not the sum
            assert rows[0]["difference"] > 0.1


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("again", ["none", "selective", "full"])
def test_counted_operations_are_those_of_the_products(again: str, early_stop: bool) -> None:
    """Forward 24·s·b·h² + 4·b·s²·h (Narayanan et al. 2021, Appendix), backward twice that; what is
    computed again comes on top. torch stops once it has what the backward pass wants: before the
    last product of the part, whose result nothing keeps."""
    from torch.utils.checkpoint import set_checkpoint_early_stop

    from labkit.memory.tape.mode import Mode
    from labkit.models import Model
    from labkit.papers import reduce_act_recomp

    model = Model(num_layers=1, hidden=64, heads=4, vocab=96, positions=32)
    values = 2 * 2 * 32**2 * 64
    down = 8 * 2 * 32 * 64**2  # the last products of core and layer
    forward = 3 * down + 2 * values
    mode = Mode(dtype="fp32", attention="eager", recompute=again)  # type: ignore[arg-type]
    more = {"none": 0, "selective": 2 * values, "full": forward}[again]
    if early_stop:
        more -= {"none": 0, "selective": values, "full": down}[again]
    with set_checkpoint_early_stop(early_stop):
        counted = reduce_act_recomp.operations(model, mode, seq=32, micro_batch=2)
    assert counted == 3 * forward + more


def test_a_budget_keeps_less_for_more_operations() -> None:
    import torch

    from labkit.papers import reduce_act_recomp

    whole = reduce_act_recomp.tensors(**SIZES, dtype=torch.float32, rng=0)
    block = reduce_act_recomp.Block(whole, heads=4, degree=1, rank=0, sliced=False)
    plain = reduce_act_recomp.trained(block)
    rows = [reduce_act_recomp.budgeted(block, budget) for budget in (1.0, 0.5, 0.0)]
    kept, operations = ([row[name] for row in rows] for name in ("kept_bytes", "operations"))
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] == 0
    assert operations == sorted(operations)
    core = 4 * 2 * 32**2 * 64
    assert operations[0] == 3 * (24 * 2 * 32 * 64**2 + core)
    assert operations[-1] > operations[0]
    assert torch.equal(block.forward(), plain["gradient"])  # the block is as it was
