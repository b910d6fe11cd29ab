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
    name = "labkit.papers.reduce_act_recomp.block:measure"
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


@pytest.fixture(scope="module")
def trainings() -> dict[str, Any]:
    import pandas as pd

    from labkit.files import project_root
    from labkit.papers import reduce_act_recomp

    table3 = project_root() / "data" / "papers" / "reduce-act-recomp" / "table3.csv"
    return reduce_act_recomp.read_trainings(pd.read_csv(table3))


def test_a_step_does_the_operations_of_equation_7(trainings: dict[str, Any]) -> None:
    """Without pipeline and replicas each of the t GPUs does one t-th."""
    from labkit.papers.reduce_act_recomp import Way, model_flops
    from labkit.papers.reduce_act_recomp.steps import iteration_counts

    small = trainings["22B"]
    assert iteration_counts(small, Way())[0] == pytest.approx(model_flops(small))


def test_full_recomputation_adds_one_forward_pass(trainings: dict[str, Any]) -> None:
    from labkit.papers.reduce_act_recomp import Recompute, Way
    from labkit.papers.reduce_act_recomp.steps import layer_counts

    for sliced in (False, True):
        plain = Way(sequence_parallel=sliced)
        full = Way(sequence_parallel=sliced, recompute=Recompute.LAYER)
        for training in trainings.values():
            forward, backward = layer_counts(training, plain)
            assert layer_counts(training, full)[1] - backward == pytest.approx(forward)


def test_a_fit_finds_the_costs_that_made_the_times(trainings: dict[str, Any]) -> None:
    from labkit.papers.reduce_act_recomp import Recompute, StepModel, Way

    full = Way(recompute=Recompute.LAYER)
    known = StepModel(costs=(4e-15, 5e-13, 6e-12))
    layer = (trainings["22B"], Way(), *known.passes_s(trainings["22B"], Way()))
    steps = [(one, full, known.iteration_s(one, full)) for one in trainings.values()]
    assert StepModel.fitted([layer], steps).costs == pytest.approx(known.costs, rel=1e-6)


def test_layers_keep_what_table_2_says(trainings: dict[str, Any]) -> None:
    from labkit.papers.reduce_act_recomp import Recompute, Way, layer_bytes

    for training in trainings.values():
        stream = training.seq * training.micro_batch * training.hidden
        scores = 5 * training.heads * training.seq / training.hidden
        table2 = {
            Way(): 10 + (24 + scores) / training.tp,
            Way(sequence_parallel=True): (34 + scores) / training.tp,
            Way(recompute=Recompute.CORE): 10 + 24 / training.tp,
            Way(recompute=Recompute.CORE, sequence_parallel=True): 34 / training.tp,
            Way(recompute=Recompute.LAYER): 2,
        }
        for way, printed_bytes in table2.items():
            kept = layer_bytes(training, way) / stream
            assert kept == pytest.approx(printed_bytes, rel=0.02)
        fused = layer_bytes(training, Way(), fused=1.0) / stream
        assert fused == pytest.approx(table2[Way(recompute=Recompute.CORE)], rel=0.02)


def test_the_fewest_layers_fit_and_one_fewer_does_not(trainings: dict[str, Any]) -> None:
    from dataclasses import replace

    from labkit.papers.reduce_act_recomp import CAPACITY_BYTES, fewest_layers, stage_bytes

    for training in trainings.values():
        way = fewest_layers(training)
        fewer = way.layers_fraction - 1 / training.layers_per_stage
        assert stage_bytes(training, way)[0] <= CAPACITY_BYTES
        assert stage_bytes(training, replace(way, layers_fraction=fewer))[0] > CAPACITY_BYTES


def test_whole_layers_with_the_same_bytes(trainings: dict[str, Any]) -> None:
    from labkit.papers.reduce_act_recomp import Recompute, Way, layer_bytes, same_bytes

    selective = Way(recompute=Recompute.CORE, sequence_parallel=True)
    for training in trainings.values():
        whole = same_bytes(training, selective)
        assert whole.recompute is Recompute.LAYER
        assert layer_bytes(training, whole) == pytest.approx(layer_bytes(training, selective))
