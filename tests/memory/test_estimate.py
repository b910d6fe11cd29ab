"""Estimates moment by moment: against the moments themselves, shards, arrays, and common sense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import memory
from labkit.errors import UsageError
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.memory.jobs import states
from labkit.memory.jobs.recipe import state_bytes
from labkit.memory.plans import estimate
from labkit.memory.plans.job import Job, mode_of
from labkit.memory.tape.step import Moment
from tests.memory.models import LITTLE_LLAMA as LLAMA
from tests.memory.steps import moments_of, stored_elements, trained

GPT = Model(name="small", num_layers=6, hidden=64, heads=4, vocab=101, positions=64)
ADAM = Recipe.mixed_adam()


def plan(model: Model = LLAMA, **given: Any) -> Plan:
    """A plan on a batch of 2 × 32; other arguments go where they belong."""
    batch = {"seq": 32, "micro_batch": 2} | given.pop("batch", {})
    recipe = given.pop("recipe", ADAM)
    options = {name: given.pop(name) for name in ("ideal",) if name in given}
    return Plan(
        model=model, parallel=Parallel(**given), recipe=recipe, batch=Batch(**batch), **options
    )


# ---------------------------------------------------------------- one rank: the moments themselves


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("step", ["foreach", "fused", "for-loop"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full", 2])
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "autocast"])
def test_one_rank_is_the_moments_byte_for_byte(
    model: Model, step: str, recompute: Any, dtype: str
) -> None:
    """Every moment that torch's tracker is held against; on a GPU the counters stay on the CPU."""
    recipe = {
        "bf16": Recipe(master=None, states="bf16", step=step),  # type: ignore[arg-type]
        "fp32": Recipe.fp32_adam(step=step),
        "autocast": Recipe.preset("bf16-autocast", step=step),
    }[dtype]
    here = plan(model, recipe=recipe, batch={"recompute": recompute})
    assert here.batch is not None
    mode = mode_of(here.model, recipe, here.batch)
    told = moments_of(model, mode, seq=32, micro_batch=2, step=step, period=here.batch.every or 1)
    counters = 0 if step == "fused" else 4 * trained(model)[1]
    table = here.moments()
    # Part of the loss's moment, told apart only where the head is gathered for it.
    assert told.pop(Moment.HEAD_BACKWARD)
    assert set(table.index) == {Moment.INIT, *told}
    for moment, parts in told.items():
        assert table.loc[moment, "total"] == sum(parts.values()) - counters, moment
    largest = {moment: sum(parts.values()) for moment, parts in told.items()}
    assert here.peak_moment == max(largest, key=lambda name: largest[name])
    assert here.peak_bytes == max(largest.values()) - counters
    assert here.frame()["num_bytes"].sum() == here.peak_bytes


# ---------------------------------------------------------------- shards


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("dp", [1, 3, 8])
def test_shards_are_whole_rows_of_every_tensor(zero: int, dp: int) -> None:
    table = plan(GPT, dp=dp, zero=zero).moments()
    sharded = stored_elements(GPT.tensors(), num_ranks=dp)
    for component, width in (("parameters", 2), ("gradients", 2), ("optimizer", 12)):
        held = sharded if states.is_sharded(component, zero) else GPT.num_params
        assert table.loc["optimizer step", component] == width * held


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_the_ideal_is_the_papers_arithmetic(zero: int) -> None:
    dp = 48
    model = Model.preset("gpt2-124m")
    here = plan(model, dp=dp, zero=zero, ideal=True)
    paper = Plan(model=model, parallel=Parallel(dp=dp, zero=zero))
    step = here.moments().loc["optimizer step"]
    found = sum(step[name] for name in states.COMPONENTS)
    assert found == pytest.approx(paper.states_bytes, rel=1e-12)
    assert here.states_bytes == pytest.approx(paper.states_bytes, rel=1e-5)  # and step counters
    assert plan(model, dp=dp, zero=zero).states_bytes >= here.states_bytes


@pytest.mark.parametrize("optimizer", ["adafactor", "muon", "adam-8bit", "sgd"])
def test_other_optimizers_keep_what_their_states_say(optimizer: str) -> None:
    recipe = Recipe.preset(optimizer)
    shards = states.shard_shapes(GPT.tensors(), num_ranks=2)
    kinds = state_bytes(shards, recipe)
    kinds.pop("step", None)
    step = plan(GPT, dp=2, zero=1, recipe=recipe).moments().loc["optimizer step"]
    assert step["optimizer"] == sum(kinds.values())


def test_stage_3_holds_the_layer_at_work_and_the_next() -> None:
    here = plan(dp=4, zero=3)
    table = here.moments()
    block = 2 * next(unit.numel for unit in LLAMA.units() if unit.name == "block")
    prefetch = table.loc[Moment.PREFETCH]
    assert prefetch["gathered layers"] == prefetch["gather buffers"] == block
    assert prefetch["reduce buffers"] == block
    head = 2 * next(unit.numel for unit in LLAMA.units() if unit.name == "head")
    last = table.loc["backward, last"]
    assert (last["gather buffers"], last["reduce buffers"]) == (block, head)
    first = table.loc["backward, first"]
    assert first["reduce buffers"] == block > first["gather buffers"] > 0
    assert "gathered layers" not in plan(dp=4, zero=2).moments()
    assert "gathered layers" not in plan(dp=1, zero=3).moments()


def test_layers_that_stay_whole_cost_the_model() -> None:
    kept, dropped = (plan(dp=4, zero=3, reshard_after_forward=r) for r in (False, True))
    assert kept.moments().loc["loss forward", "gathered layers"] == 2 * LLAMA.num_params
    assert kept.peak_bytes > dropped.peak_bytes
    assert (
        kept.moments().loc["optimizer step"].sum() == dropped.moments().loc["optimizer step"].sum()
    )


def test_buckets_are_deepspeeds() -> None:
    """reduce_bucket_size elements in the gradients' format, two such buffers where overlapped."""
    size = 5 * 10**8
    buckets = {
        overlap: replace(ADAM, reduce_bucket_size=size, overlap_comm=overlap)
        for overlap in (False, True)
    }
    here = {
        overlap: plan(dp=4, zero=2, shard_rule="flat", recipe=recipe).moments()
        for overlap, recipe in buckets.items()
    }
    for overlap, table in here.items():
        there = table["reduce buffers"]
        assert there["backward, last"] == 2 * size * (2 if overlap else 1)
        assert there["forward, last"] == there["optimizer step"] == 0
        assert "gradients to be reduced" not in table
    with pytest.raises(UsageError, match="where overlap_comm is True"):
        replace(ADAM, overlap_comm=True)


@pytest.mark.parametrize("optimizer", ["adafactor", "muon"])
def test_a_flat_slice_has_no_rows_to_factor(optimizer: str) -> None:
    with pytest.raises(UsageError, match="shard_rule must be dim0 or tensor"):
        _ = plan(dp=4, zero=1, shard_rule="flat", recipe=Recipe.preset(optimizer)).peak_bytes


@pytest.mark.parametrize(
    ("degrees", "rule"),
    [
        ({"zero": 3, "shard_rule": "flat"}, "zero must be 1 or 2 where shard_rule is flat, got 3"),
        ({"zero": 2, "shard_rule": "tensor"}, "zero must be 1 where shard_rule is tensor"),
        (
            {"zero": 1, "shard_rule": "rows"},
            "shard_rule must be one of 'dim0', 'flat', 'tensor'; got 'rows'",
        ),
        ({"zero": 2, "reshard_after_forward": False}, "reshard_after_forward must be True"),
    ],
)
def test_rules_of_sharding_have_their_stages(degrees: dict[str, Any], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        Parallel(dp=4, **degrees)


def test_what_is_offloaded_is_elsewhere() -> None:
    away = Recipe.mixed_adam(offload_optimizer="cpu", offload_gradients="cpu")
    here = plan(dp=4, zero=2, recipe=away)
    there = plan(dp=4, zero=2)
    kept = here.elsewhere().groupby("place")["num_bytes"].sum()
    states_there = there.moments().loc["optimizer step"]
    counters = there.elsewhere()["num_bytes"].sum()
    assert kept["cpu"] == states_there["optimizer"] + states_there["gradients"] + counters
    assert "optimizer" not in here.moments()
    assert here.peak_bytes < there.peak_bytes
    with pytest.raises(UsageError, match="zero must be >= 1 where offload_gradients is cpu"):
        _ = plan(dp=4, recipe=away).peak_bytes


# ---------------------------------------------------------------- other parallelism


def test_a_pipeline_holds_its_stages_and_what_is_in_flight() -> None:
    """1F1B: the first device holds p microbatches of l/p layers, as much as one of all layers."""
    model = LLAMA.resized(num_layers=8)
    one = plan(model)
    four = plan(model, pp=4)
    assert four.estimate.job.device == 0
    kept = {"no pipeline": one, "pipeline": four}
    sums = {
        name: sum(t.num_bytes for t in p.terms() if t.component.startswith("activation.mlp"))
        for name, p in kept.items()
    }
    assert sums["pipeline"] == sums["no pipeline"]
    deep = plan(model, pp=4, schedule="gpipe", recipe=replace(ADAM, accumulation=16))
    assert deep.peak_bytes > four.peak_bytes


def test_tensor_parallel_ranks_share_the_layers() -> None:
    long = {"seq": 2048}
    one = plan(batch=long)
    two = plan(tp=2, batch=long)
    with_sequence = plan(tp=2, sp=True, batch=long)
    assert two.states_bytes < 0.6 * one.states_bytes
    assert with_sequence.peak_bytes < two.peak_bytes < one.peak_bytes


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_buffer_for_gathered_sequences_stands_in_for_passing_ones(recompute: str) -> None:
    """It has 2·b·s·h bytes in bf16, at every moment; a moment holds at most one passing one."""
    batch = {"seq": 1024, "recompute": recompute}
    again, buffer = (
        plan(tp=2, sp=True, sp_gather=gather, batch=batch).moments()
        for gather in ("again", "buffer")
    )
    assert "gathered sequence" not in again
    size = 2 * 2 * 1024 * LLAMA.hidden
    step = buffer.drop(index="after init")
    assert (step["gathered sequence"] == size).all()
    extra = (buffer["total"] - again["total"]).drop(index="after init")
    assert extra.between(0, size).all()
    # No product is at work in the optimizer's step: nothing passes there that it could save.
    assert extra["optimizer step"] == size
    assert extra.min() < size
    assert plan(tp=2, sp_gather="buffer").peak_bytes == plan(tp=2).peak_bytes


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3"])
def test_experts_and_latents_are_estimated_and_their_assumptions_said(name: str) -> None:
    here = Plan(
        model=Model.preset(name),
        parallel=Parallel(dp=64, tp=8, ep=8, zero=3, sp=True),
        recipe=ADAM,
        batch=Batch(seq=4096),
    )
    assert here.peak_bytes > here.states_bytes > 0
    assert any("tokens are spread evenly" in note for note in here.assumptions)


# ---------------------------------------------------------------- more is not less


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(2, 12),
    seq=st.integers(2, 128),
    micro_batch=st.integers(2, 8),
    dp=st.integers(2, 64),
    zero=st.integers(0, 3),
)
def test_monotone(layers: int, seq: int, micro_batch: int, dp: int, zero: int) -> None:
    model = LLAMA.resized(num_layers=layers)
    given_batch = {"seq": seq, "micro_batch": micro_batch}
    base = plan(model, dp=dp, zero=zero, batch=given_batch).peak_bytes
    for more in ({"seq": seq + 1}, {"micro_batch": micro_batch + 1}):
        assert plan(model, dp=dp, zero=zero, batch=given_batch | more).peak_bytes >= base
    # Ranks beyond a tensor's rows only add padding to what FSDP2 gathers; an even split has none.
    even = [plan(model, dp=n, zero=zero, batch=given_batch, ideal=True) for n in (dp, 2 * dp)]
    assert even[1].peak_bytes <= even[0].peak_bytes
    deeper = model.resized(num_layers=layers + 1)
    assert plan(deeper, dp=dp, zero=zero, batch=given_batch).peak_bytes > base
    full = plan(model, dp=dp, zero=zero, batch=given_batch | {"recompute": "full"})
    assert full.peak_bytes <= base


# ---------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    ("zero", "rule"),
    [(0, "dim0"), (1, "dim0"), (2, "dim0"), (3, "dim0"), (1, "flat"), (2, "flat"), (1, "tensor")],
)
@pytest.mark.parametrize("recipe", ["bf16-mixed", "bf16-autocast", "fsdp-bf16", "muon"])
def test_arrays_give_what_numbers_give(zero: int, rule: str, recipe: str) -> None:
    if (rule, recipe) == ("flat", "muon"):
        pytest.skip("refused")
    seq = np.array([7, 32, 128])
    dp = np.array([[1], [2], [48]])
    base = plan(zero=zero, shard_rule=rule, recipe=Recipe.preset(recipe))
    assert isinstance(base.model, Model)
    assert base.batch is not None
    job = Job(
        model=base.model,
        parallel=base.parallel,
        recipe=base.recipe,
        batch=base.batch,
        numbers={"seq": seq, "micro_batch": 2, "dp": dp, "layers": np.int64(4)},
    )
    names, row = estimate.fullest_moment(estimate.rows_by_moment(job).items())
    total, names = (np.broadcast_to(found, (3, 3)) for found in (estimate.row_bytes(row), names))
    for i, j in np.ndindex(3, 3):
        one = plan(
            zero=zero,
            shard_rule=rule,
            recipe=base.recipe,
            dp=int(dp[i, 0]),
            batch={"seq": int(seq[j])},
        )
        assert one.peak_bytes == pytest.approx(total[i, j], abs=1)
        assert one.peak_moment == names[i, j]


# ---------------------------------------------------------------- words


def test_every_term_explains_itself() -> None:
    here = plan(dp=4, zero=3)
    text = here.explain("activation.mlp")
    for part in ("activation.mlp.up", "2·b·s·f", "in all", "f = 96", "torch"):
        assert part in text
    for term in here.terms():
        assert term.formula in here.explain(term.component)
    with pytest.raises(UsageError, match="did you mean 'activation"):
        here.explain("activation.mpl")


def test_assumptions_say_what_is_checked_and_what_is_derived() -> None:
    alone = plan().assumptions
    spread = plan(dp=4, zero=3, tp=2).assumptions
    assert any("MemTracker" in note for note in alone)
    derived = [note for note in spread if note.startswith("derived")]
    assert any("tensor-parallel" in note for note in derived)
    assert any("ZeRO stage 3" in note for note in derived)
    assert any("context" in note for note in alone)


def test_allowances_are_no_part_of_the_peak() -> None:
    here = plan()
    room = replace(here, context_bytes=10**9, fragmentation=0.1)
    assert room.peak_bytes == here.peak_bytes
    assert room.usable_bytes(10**10) == pytest.approx(0.9 * 10**10 - 10**9)


def test_traffic_covers_every_kind_of_parallelism() -> None:
    assert set(plan(dp=2, tp=2, pp=2, zero=1).traffic()["axis"]) == {"dp", "tp", "pp"}


@pytest.mark.parametrize(
    ("degrees", "rule"),
    [
        ({"tp": 3}, r"heads \(8\) must divide by tp \(3\)"),
        ({"pp": 3}, r"num_layers \(4\) must divide by the stages \(3\)"),
        ({"tp": 2, "sp": True, "batch": {"seq": 31}}, r"seq \(31\) must divide by tp"),
        ({"batch": {"partition_checkpoints": True}}, "formula='zero-paper'"),
        ({"batch": {"loss": "chunked", "loss_chunks": 1}}, "loss_chunks must be >= 2"),
    ],
)
def test_what_cannot_be_names_the_rule(degrees: dict[str, Any], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        _ = plan(**degrees).peak_bytes


def test_the_two_accounts_do_not_mix() -> None:
    with pytest.raises(UsageError, match="papers' arithmetic"):
        _ = Plan(model=LLAMA).estimate
    assert Plan(model=LLAMA).moments().index.tolist() == ["all at once"]
    paper = Plan(model=LLAMA, batch=Batch(seq=8, formula="zero-paper"))
    assert paper.peak_bytes == paper.peak_bytes
    assert memory.Plan(model=10**9).peak_moment == "all at once"
