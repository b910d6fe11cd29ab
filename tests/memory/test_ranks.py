"""Ranks of a pipeline: each one's account, and the microbatches it holds beside the simulator's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit import memory, pipeline
from labkit.errors import BadValue
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.memory.jobs.parallel import _HELD, _LOOPED

MODEL = Model(num_layers=24, hidden=64, heads=4, vocab=500, tied=False, mlp="swiglu")
BATCH = Batch(seq=32)


def spread(schedule: str, pp: int, chunks: int = 1) -> Parallel:
    return Parallel(pp=pp, schedule=schedule, chunks=chunks if schedule in _LOOPED else 1)


def plan(schedule: str = "1f1b", pp: int = 4, chunks: int = 3, microbatches: int = 8) -> Plan:
    recipe = Recipe.bf16_mixed(accumulation=microbatches)
    parallel = spread(schedule, pp, chunks)
    return Plan(model=MODEL, parallel=parallel, recipe=recipe, batch=BATCH)


def built(schedule: str, pp: int, chunks: int, microbatches: int) -> pipeline.Schedule:
    options = {"num_chunks": chunks} if schedule in _LOOPED else {}
    return pipeline.build(schedule, pp, microbatches, **options)


@pytest.mark.parametrize("times", [2, 3, 5])
@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize("schedule", _HELD)
def test_microbatches_in_flight_are_the_simulators(schedule: str, pp: int, times: int) -> None:
    """The order is another package's, made without these formulas."""
    microbatches = times * pp
    for chunks in (2, 3) if schedule in _LOOPED else (1,):
        parallel = spread(schedule, pp, chunks)
        stages = 1 if schedule in {"chimera", "dualpipe"} else len(parallel.stages(0))
        held = built(schedule, pp, chunks, microbatches).peak_in_flight
        ours = [stages * parallel.in_flight(device, microbatches) for device in range(pp)]
        assert ours == pytest.approx(held)


@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved-1f1b"])
def test_few_microbatches_are_never_taken_for_less(schedule: str, microbatches: int) -> None:
    parallel = spread(schedule, 4, 2)
    if schedule == "interleaved-1f1b" and microbatches % 4:
        pytest.skip("interleaving needs a multiple of the ranks")
    held = built(schedule, 4, 2, microbatches).peak_in_flight
    stages = len(parallel.stages(0))
    for device, most in enumerate(held):
        assert stages * parallel.in_flight(device, microbatches) >= most


def test_theory_of_1f1b_and_of_interleaving() -> None:
    """PipeDream-Flush, Fig. 2: p − d; Megatron-LM's warm-up: 2(p − 1 − d) + (v − 1)p chunks and
    one more."""
    assert plan(pp=8, microbatches=32).ranks()["in_flight"].tolist() == list(range(8, 0, -1))
    twice = plan("interleaved-1f1b", pp=4, chunks=3, microbatches=16).ranks()["in_flight"]
    assert twice.tolist() == pytest.approx([(2 * (3 - d) + 2 * 4 + 1) / 3 for d in range(4)])


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved-1f1b", 3)])
def test_activations_of_inner_ranks_are_the_simulated_timelines(schedule: str, chunks: int) -> None:
    """One microbatch on one stage has the bytes of a model of so many layers, alone; at the end of
    a forward pass its output, and the input of the last sum, are there besides."""
    pp = 4
    whole = plan(schedule, pp, chunks, 2 * pp)
    stages = pp * chunks
    alone = Plan(model=MODEL.resized(num_layers=24 // stages), recipe=whole.recipe, batch=BATCH)
    layer_terms = (t for t in alone.terms() if t.component.startswith("activation."))
    ends = ("activation.head", "activation.loss", "activation.final", "activation.embedding")
    each = sum(t.num_bytes for t in layer_terms if not t.component.startswith(ends))
    costs = pipeline.Costs(
        forward_s=1.0, backward_s=1.0, weight_s=1.0, activation_bytes=[each] * stages
    )
    line = pipeline.simulate(built(schedule, pp, chunks, 2 * pp), costs)
    stream = 2 * BATCH.tokens * MODEL.hidden
    for rank in (1, 2):
        moments = replace(whole, rank=rank).moments()
        held = moments["activations"].loc["forward, last"]
        assert held - line.peak_activation_bytes[rank] == pytest.approx(2 * stream)


def test_each_rank_has_its_own_account_and_the_fullest_is_the_plans() -> None:
    whole = plan()
    table = whole.ranks()
    assert table["rank"].tolist() == [0, 1, 2, 3]
    assert table["num_layers"].sum() == MODEL.num_layers
    assert table["ends"].tolist() == ["embedding", "", "", "head"]
    assert table["peak_bytes"].max() == whole.peak_bytes
    for row in table.itertuples():
        one = replace(whole, rank=int(row.rank))
        assert one.peak_bytes == row.peak_bytes
        assert one.peak_moment == row.peak_moment
        assert one.frame().query("place == 'device'")["num_bytes"].sum() == one.peak_bytes
        assert one.estimate.job.device == row.rank
        swept = memory.sweep(one, seq=[32, 64])
        assert swept["peak_bytes"].iloc[0] == one.peak_bytes
        parts = [name for name in table if name.endswith("_bytes") and name != "peak_bytes"]
        assert sum(getattr(row, name) for name in parts) == row.peak_bytes


def test_one_rank_is_a_table_of_one_and_the_papers_have_none() -> None:
    alone = Plan(model=MODEL, batch=BATCH)
    assert alone.ranks()["peak_bytes"].tolist() == [alone.peak_bytes]
    assert alone.ranks()["ends"].tolist() == ["embedding and head"]
    assert Plan(model=10**9).ranks().empty


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadValue, match=r"rank must be in 0\.\.3, the pipeline's ranks, got 4"):
        Plan(model=MODEL, parallel=spread("1f1b", 4), batch=BATCH, rank=4)
    with pytest.raises(BadValue, match="rank must be None in the papers' arithmetic"):
        Plan(model=10**9, rank=0)
    with pytest.raises(BadValue, match="rank must be a whole number"):
        Plan(model=MODEL, batch=BATCH, rank=-1)
