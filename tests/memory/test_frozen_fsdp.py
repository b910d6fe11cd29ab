"""Frozen parameters at stage 3: peft's modules and trained parts under FSDP2 itself, by moments."""

from __future__ import annotations

from typing import Any

import pytest

from labkit import memory
from labkit.errors import UsageError
from labkit.memory import Adapter, Batch, Model, Parallel, Plan, Recipe, check
from labkit.memory.oracles import adapters, tracker
from labkit.memory.plans import fsdp
from labkit.memory.tape.step import Moment, Part
from tests.memory.models import check_sweep
from tests.memory.steps import GPT, LLAMA

EVERY = ("q", "k", "v", "o", "gate", "up", "down")
DEEP = LLAMA.resized(num_layers=6)
NARROW = {"gradients": "bf16", "states": "bf16"}
FP32 = {"parameters": "fp32", "gradients": "fp32", "master": None}
PURE = {"parameters": "bf16", "gradients": "bf16", "states": "bf16", "master": None}
AUTOCAST = {"compute": "bf16", "autocast": True, "parameters": "fp32"}
# Where FSDP2 already starts on the next unit while the tracker still names the last: that start is
# a part of the moment that it begins, or inside the stack, where no moment is fuller than the last.
STARTS = {Moment.FORWARD_FIRST, Moment.EMBEDDING_BACKWARD}


def plan_of(model: Model, degrees: dict[str, Any], recipe: Recipe, **batch: Any) -> Plan:
    return Plan(
        model=model,
        parallel=Parallel(zero=3, **degrees),
        recipe=recipe,
        batch=Batch(**({"seq": 40, "micro_batch": 3} | batch)),
    )


def lora(adapter: Adapter, **formats: Any) -> Recipe:
    return Recipe.preset("lora", adapter=adapter, step="fused", **formats)


def apart(plan: Plan) -> tuple[int, dict[Moment, float]]:
    """The tracker's peak, and what the plan says beyond the tracker, moment by moment."""
    seen = adapters.track(**adapters.settings_of(plan))
    told = plan.moments()["total"]
    found = {}
    for moment, parts in seen.moments.items():
        names = tracker.FSDP_NAMES.get(moment, (moment,))
        if moment is Moment.BACKWARD_LAST and plan.recipe.trained:  # all that have a gradient
            names = (moment, Moment.PREFETCH)
        if ours := [told[name] for name in names if name in told]:
            found[moment] = max(ours) - parts["Total"]
    return seen.peak_bytes, found


CASES: list[tuple[Model, dict[str, Any], Recipe, dict[str, Any]]] = [
    (LLAMA, {"dp": 4, "wrap": "blocks"}, lora(Adapter(rank=4)), {}),
    (
        LLAMA,
        {"dp": 3, "wrap": "blocks"},
        lora(Adapter(rank=4, targets=EVERY)),
        {"recompute": "full"},
    ),
    (
        LLAMA,
        {"dp": 3, "keep_gathered": "head"},
        lora(Adapter(rank=4, targets=EVERY, dropout=True), **NARROW),
        {"recompute": "full"},
    ),
    (
        LLAMA,
        {"dp": 2, "wrap": "blocks", "keep_gathered": "last block"},
        lora(Adapter(rank=4, targets=EVERY), **AUTOCAST),
        {},
    ),
    (GPT, {"dp": 4}, lora(Adapter(rank=4, targets=("qkv",)), parameters="fp32"), {}),
    (LLAMA, {"dp": 4, "partition_group": 2}, lora(Adapter(rank=4)), {"recompute": "operators"}),
    (LLAMA, {"dp": 4, "wrap": "blocks"}, lora(Adapter(rank=4, saved=("head",)), **NARROW), {}),
    (LLAMA, {"dp": 4}, lora(Adapter(rank=4, saved=("embedding", "head")), **NARROW), {}),
    (
        LLAMA,
        {"dp": 4, "wrap": "blocks", "reshard_after_forward": False},
        lora(Adapter(rank=4, targets=("up",))),
        {},
    ),
    # Adapters are fp32 shards, gathered and reduced in bf16, as accelerate has them.
    (LLAMA, {"dp": 4}, Recipe.preset("lora-fsdp", step="fused"), {"recompute": "full"}),
    (
        LLAMA,
        {"dp": 2, "wrap": "blocks"},
        Recipe.preset("fsdp-bf16", adapter=Adapter(rank=4, targets=EVERY), step="fused"),
        {},
    ),
    (DEEP, {"dp": 4}, Recipe(**FP32, trained=("head",), step="fused"), {}),
    (DEEP, {"dp": 4}, Recipe(**PURE, trained=("layers.5", "norm", "head"), step="fused"), {}),
    (
        DEEP,
        {"dp": 4, "wrap": "blocks"},
        Recipe(**FP32, trained=("layers.2-4",), step="fused"),
        {},
    ),
    (DEEP, {"dp": 4, "wrap": "blocks"}, Recipe(**FP32, trained=("embedding",), step="fused"), {}),
]


@pytest.mark.parametrize(("model", "degrees", "recipe", "batch"), CASES)
def test_every_moment_is_fsdps(
    model: Model, degrees: dict[str, Any], recipe: Recipe, batch: dict[str, Any]
) -> None:
    pytest.importorskip("peft")
    plan = plan_of(model, degrees, recipe, **batch)
    peak, found = apart(plan)
    assert plan.peak_bytes == peak
    passing = fsdp.Passing(plan.estimate.job)
    units = sum(passing.size(name).gathered for name in ("block", "root", "embedding", "head"))
    assert len(found) >= 5
    for moment, more in found.items():
        if moment is Moment.EMBEDDING:  # two streams are summed there before a layer starts
            assert 0 <= more <= 2 * 3 * 40 * model.hidden * 4, moment
        elif moment in STARTS or (plan.parallel.wrap == "parts" and moment.part is Part.HEAD):
            assert -2 * units <= more <= 0, moment
        else:
            assert more == 0, moment


@pytest.mark.parametrize(
    ("recipe", "slack"),
    [
        (lora(Adapter(rank=4, targets=("q", "up"), layers=(1, 2, 3))), 0.06),
        (Recipe(**PURE, trained=("layers.3-5",), step="fused"), 0.06),
        (Recipe(**FP32, trained=("embedding", "layers.2-3"), step="fused"), 0.06),
    ],
)
def test_layers_that_differ_in_what_is_trained_are_taken_as_the_largest(
    recipe: Recipe, slack: float
) -> None:
    pytest.importorskip("peft")
    plan = plan_of(DEEP, {"dp": 4}, recipe, recompute="full")
    peak, _ = apart(plan)
    assert peak <= plan.peak_bytes <= (1 + slack) * peak


def test_a_start_is_the_peak_where_there_are_hardly_any_activations() -> None:
    """Three copies of a layer: whole, its buffer, and that of the layer before."""
    pytest.importorskip("peft")
    plan = plan_of(LLAMA, {"dp": 4}, lora(Adapter(rank=4)), seq=4, micro_batch=1)
    peak, _ = apart(plan)
    assert 0 <= peak - plan.peak_bytes <= 0.002 * peak


def test_check_sets_fsdp_beside_the_plan() -> None:
    pytest.importorskip("peft")
    table = check(plan_of(LLAMA, {"dp": 4, "wrap": "blocks"}, lora(Adapter(rank=4))))
    assert (table["difference_bytes"] == 0).all()


# ---------------------------------------------------------------- shares, by hand


def terms_of(plan: Plan) -> dict[str, float]:
    return {term.component: term.num_bytes for term in plan.terms()}


def test_a_base_in_4_bits_is_cut_where_it_is_stored_as_floats() -> None:
    """Columns of bf16 in ceil(rows/N) rows a rank; scales whole, as bitsandbytes keeps them."""
    sizes = {64 * 64: 2, 32 * 64: 2, 64 * 88: 3}  # o and q, k and v, the MLP's
    scales = 3 * sum(
        number * (size // 64 + 4 * -(-size // 64 // 256) + 4) for size, number in sizes.items()
    )
    packed = 3 * sum(number * size // 2 for size, number in sizes.items())
    cut = 3 * sum(number * 2 * -(-size // 4 // 5) for size, number in sizes.items())
    rest = 2 * (2 * -(-97 // 5) * 64 + 7 * -(-64 // 5))
    for recipe, base in (
        (Recipe.preset("qlora-fsdp"), {"base in 4 bits": cut, "scales of the base": scales}),
        (Recipe.preset("qlora"), {"base in 4 bits": packed + scales}),
    ):
        found = terms_of(plan_of(LLAMA, {"dp": 5}, recipe))
        own = base | {"rest of the base": rest}
        assert {name: found[f"parameters.{name}"] for name in own} == own


def test_4_bits_that_are_not_cut_are_not_gathered() -> None:
    both = [
        fsdp.Passing(plan_of(LLAMA, {"dp": 4}, Recipe.preset(name)).estimate.job)
        for name in ("qlora-fsdp", "qlora")
    ]
    cut, whole = (passing.size("block") for passing in both)
    packed = (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 88) // 2
    beside = 16 * ((64 + 64) + (64 + 32))
    assert cut.gathered == packed + 2 * (2 * 64 + beside)
    assert whole.gathered == 2 * 2 * 64 + 4 * beside
    learns = [passing.updated.size("block") for passing in both]
    assert [part.made for part in learns] == [2 * beside, 4 * beside]
    assert [part.kept for part in learns] == [beside, beside]


def test_a_base_on_the_host_leaves_its_scales_on_the_device() -> None:
    model = Model.preset("llama-2-70b")
    recipe = Recipe.preset("qlora-fsdp", offload_parameters="cpu")
    plan = plan_of(model, {"dp": 2, "wrap": "blocks"}, recipe, seq=2048, micro_batch=2)
    places = {term.component: term.place for term in plan.terms() if "parameters" in term.component}
    away = [name for name, place in places.items() if place == "cpu"]
    assert {"parameters.base in 4 bits", "parameters.rest of the base"} <= set(away)
    assert places["parameters.scales of the base"] == "device"


def test_the_announced_run_fits_two_cards_of_24_gb() -> None:
    """Llama-2-70B at 512 tokens on two RTX 3090 (answer.ai's announcement of 2024-03-06), and not
    where the 4 bits are stored as uint8.
    """
    model = Model.preset("llama-2-70b")
    batch = {"seq": 512, "micro_batch": 1, "recompute": "full"}
    adapter = Adapter(rank=64, targets=("q", "k", "v", "gate", "up", "down"), base="nf4")
    whole = Recipe.preset("qlora", adapter=adapter)
    assert plan_of(model, {"dp": 2, "wrap": "blocks"}, whole, **batch).peak_bytes > 35e9
    cut = plan_of(model, {"dp": 2, "wrap": "blocks"}, Recipe.preset("qlora-fsdp"), **batch)
    assert cut.peak_bytes < 24 * 2**30
    assert any("cut" in note for note in cut.assumptions)


def test_small_tensors_are_whole_beside_their_shards_in_deepspeed() -> None:
    """stage3_param_persistence_threshold: adapters of rank 16 on 4,096 columns are below it."""
    model = Model.preset("llama-2-7b")
    said = {"recipe": "lora", "adapter": Adapter(rank=16), "seq": 512}
    plan = memory.FRAMEWORKS["deepspeed"].plan(model, dp=8, **said)
    assert (plan.recipe.gradients, plan.recipe.master) == ("bf16", "fp32")
    found = terms_of(plan)
    norms = (2 * 32 + 1) * 4096
    matrices = 32 * 2 * 2 * 16 * 4096
    assert found["parameters.small ones, whole"] == 2 * (norms + matrices)
    bare = memory.FRAMEWORKS["deepspeed"].plan(model, dp=8, persistent=0, **said)
    assert "parameters.small ones, whole" not in terms_of(bare)
    assert bare.peak_bytes < plan.peak_bytes


def test_gathers_send_the_base_and_reductions_the_adapters_alone() -> None:
    plan = plan_of(LLAMA, {"dp": 4}, Recipe.preset("qlora-fsdp"))
    sent = {
        (str(item.phase), item.kind, item.what): item.message_bytes for item in plan.collectives()
    }
    packed = 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 88) // 2
    rest = 2 * (2 * 97 * 64 + 7 * 64)
    beside = 3 * 16 * ((64 + 64) + (64 + 32))
    for phase in ("forward", "backward"):
        assert sent[phase, "all-gather", "frozen parameters"] == packed + rest
        assert sent[phase, "all-gather", "parameters"] == 2 * beside
    assert (
        sum(size for (_, kind, _), size in sent.items() if kind == "reduce-scatter") == 2 * beside
    )


def test_sweeps_know_frozen_parameters_at_stage_3() -> None:
    recipe = Recipe.preset("qlora-fsdp")
    check_sweep(plan_of(Model.preset("mistral-7b"), {"dp": 4, "wrap": "blocks"}, recipe))


# ---------------------------------------------------------------- what is refused


def test_what_no_rank_holds_is_refused() -> None:
    for changes, message in (
        ({"base": "nf4", "quant_storage": "fp16"}, "quant_storage must be uint8 or bf16"),
        ({"quant_storage": "bf16"}, "quant_storage must be uint8 where the base is stored"),
    ):
        with pytest.raises(UsageError, match=message):
            Recipe.preset("lora", adapter=Adapter(**changes))
    with pytest.raises(UsageError, match="persistent must be 0 unless zero is 3"):
        Parallel(dp=2, persistent=100_000)
    with pytest.raises(UsageError, match="zero=3 on 2 ranks or more"):
        _ = Plan(model=LLAMA, recipe=Recipe.preset("lora-fsdp"), batch=Batch(seq=16)).peak_bytes
