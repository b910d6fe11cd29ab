"""A part that is trained: torch's tracker on modules with requires_grad set, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.memory import Adapter, Batch, Model, Parallel, Plan, Recipe, check, differences
from labkit.memory.jobs.trained import trained_of
from labkit.memory.oracles import adapters
from labkit.memory.oracles.tracker import Tracked
from labkit.memory.tape import moments
from labkit.memory.tape.sizes import Numbers
from tests.memory.models import check_sweep, llama_of_transformers
from tests.memory.steps import GPT, LLAMA

DEEP = LLAMA.resized(num_layers=9)
DEEP_GPT = GPT.resized(num_layers=9)
MIXTRAL = Model.preset("mixtral-8x7b").resized(
    num_layers=6, hidden=64, heads=4, kv_heads=2, head_dim=0, vocab=97, expert_ffn=32, ffn=0
)
LATENT = Model.preset("deepseek-v3").resized(
    num_layers=6,
    dense_layers=2,
    hidden=64,
    heads=4,
    kv_heads=4,
    head_dim=16,
    value_head_dim=16,
    rope_head_dim=8,
    q_rank=24,
    kv_rank=16,
    num_experts=8,
    experts_per_token=2,
    expert_ffn=32,
    ffn=96,
    vocab=97,
)
NARROW = {"parameters": "bf16", "gradients": "bf16", "states": "bf16", "master": None}
CAST = {**dict.fromkeys(("parameters", "gradients"), "fp32"), "compute": "bf16", "autocast": True}
CAST |= {"master": None}
FP32 = {**dict.fromkeys(("parameters", "gradients"), "fp32"), "master": None}


def plan_of(model: Model, words: tuple[str, ...], formats: dict[str, Any], **batch: Any) -> Plan:
    return Plan(
        model=model,
        recipe=Recipe(**formats, trained=words),
        batch=Batch(seq=16, micro_batch=2, **batch),
    )


def apart(plan: Plan, seen: Tracked) -> dict[str, float]:
    """What the plan says beyond the tracker, moment by moment; the tracker counts counters too."""
    job = plan.estimate.job
    numbers = Numbers(**job.arguments)
    parts = moments.tensors(job.shape, job.mode, numbers)
    counters = 4 * moments.over_layers(job.shape, parts, len)
    told = plan.moments()["total"]
    if plan.recipe.step != "fused":
        told = told + counters
    return {
        moment: told[moment] - seen.moments[moment]["Total"]
        for moment in told.index
        if moment in seen.moments
    }


CASES: list[tuple[Model, tuple[str, ...], dict[str, Any], dict[str, Any]]] = [
    (DEEP, ("head",), FP32, {}),
    (DEEP_GPT, ("norm",), FP32, {"recompute": "full"}),
    (DEEP, ("layers.8", "norm", "head"), NARROW, {"recompute": "full"}),
    (DEEP, ("layers.2-5",), CAST, {"attention": "eager", "recompute": "selective"}),
    (DEEP, ("layers.2-5",), NARROW, {"norm_fused": False}),
    (DEEP_GPT, ("layers.0", "layers.5-7"), CAST, {"loss": "loss-parallel"}),
    (DEEP_GPT, ("layers.biases",), FP32, {"recompute": "full"}),
    (DEEP, ("layers.norms",), CAST, {}),
    (DEEP_GPT, ("layers.7-8.mlp", "layers.2.biases"), FP32, {"recompute": 3}),
    (DEEP_GPT, ("layers.7-8.mlp", "layers.2.biases"), CAST, {"recompute": "operators"}),
    (DEEP, ("layers.3-6.mlp",), NARROW, {"recompute": "operators"}),
    (DEEP, ("embedding", "layers.5-6"), NARROW, {"loss": "chunked"}),
    (DEEP_GPT, ("embedding",), FP32, {}),
    (MIXTRAL, ("layers.4-5", "head"), FP32, {}),
    (MIXTRAL, ("layers.3.mlp",), FP32, {"recompute": "full"}),
    (LATENT, ("layers.attention", "norm"), FP32, {}),
    (LATENT, ("layers.3",), FP32, {"recompute": "full"}),
]


@pytest.mark.parametrize(("model", "words", "formats", "batch"), CASES)
def test_every_moment_is_that_of_the_module(
    model: Model, words: tuple[str, ...], formats: dict[str, Any], batch: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    plan = plan_of(model, words, formats, **batch)
    found = apart(plan, adapters.track(**adapters.settings_of(plan)))
    assert "optimizer step" in found
    assert len(found) >= 6
    assert not any(found.values())


@pytest.mark.parametrize("step", ["fused", "for-loop"])
def test_every_way_of_running_the_step(step: str) -> None:
    pytest.importorskip("torch")
    plan = plan_of(DEEP, ("layers.7-8", "norm"), NARROW | {"step": step})
    assert not any(apart(plan, adapters.track(**adapters.settings_of(plan))).values())


@pytest.mark.parametrize("group", [2, 4])
def test_layers_recomputed_in_groups(group: int) -> None:
    pytest.importorskip("torch")
    words = ("layers.7-8.mlp", "layers.2.biases")
    batch = {"recompute": "full", "recompute_group": group}
    plan = plan_of(DEEP_GPT, words, FP32, **batch)
    assert not any(apart(plan, adapters.track(**adapters.settings_of(plan))).values())


def test_words_mean_what_requires_grad_says() -> None:
    """The module's own names choose here, not the words."""
    pytest.importorskip("torch")
    plan = plan_of(DEEP, ("layers.7-8", "norm", "head"), FP32)

    def trains(name: str) -> bool:
        return name.startswith(("blocks.7.", "blocks.8.", "norm.", "output."))

    given = adapters.settings_of(plan)
    assert not any(apart(plan, adapters.track(**given, trains=trains)).values())


def test_check_sets_the_module_beside_the_plan() -> None:
    pytest.importorskip("torch")
    plan = plan_of(DEEP, ("layers.8", "head"), FP32)
    assert (check(plan)["difference_bytes"] == 0).all()


# ---------------------------------------------------------------- an input that asks for gradients


@pytest.mark.parametrize(
    ("model", "words", "width"),
    [(DEEP, ("layers.4-8", "head"), 4), (DEEP_GPT, ("norm",), 4), (DEEP, ("norm",), 2)],
)
def test_gradients_asked_of_the_embedding(model: Model, words: tuple[str, ...], width: int) -> None:
    """As transformers does it where layers are recomputed: every layer has a backward pass.

    The tracker's own hooks on that tensor keep it and its gradient into the optimizer's step,
    which a program without them drops with the loss.
    """
    pytest.importorskip("torch")
    formats = FP32 if width == 4 else NARROW
    plan = plan_of(model, words, formats, recompute="full", input_gradients=True)
    found = apart(plan, adapters.track(**adapters.settings_of(plan)))
    assert found.pop("optimizer step") == -2 * 2 * 16 * model.hidden * width
    assert len(found) >= 5
    assert not any(found.values())
    without = plan_of(model, words, formats, recompute="full")
    assert without.peak_bytes <= plan.peak_bytes


def test_gradients_of_the_input_are_only_asked_where_layers_are_recomputed() -> None:
    asked, plain = (
        plan_of(DEEP, ("head",), FP32, input_gradients=flag).peak_bytes for flag in (True, False)
    )
    assert asked == plain


# ---------------------------------------------------------------- states


def test_states_are_those_of_what_is_trained() -> None:
    model = Model.preset("llama-2-7b")
    plan = plan_of(model, ("layers.30-31", "head"), FP32)
    block = next(unit for unit in model.units() if unit.name == "block").numel
    count = 2 * block + model.vocab * model.hidden
    row = plan.moments().loc["optimizer step"]
    assert (row["gradients"], row["optimizer"]) == (4 * count, 8 * count)
    assert row["parameters"] == 4 * model.num_params
    master = Plan(model=model, recipe=Recipe(trained=("head",)), batch=Batch(seq=16))
    assert master.moments().loc["optimizer step", "optimizer"] == 12 * model.vocab * model.hidden


def test_a_master_copy_and_shards_are_of_what_is_trained() -> None:
    model = Model.preset("llama-2-7b")
    recipe = Recipe(trained=("head",))
    sharded = Plan(model=model, recipe=recipe, parallel=Parallel(dp=4, zero=2), batch=Batch(seq=16))
    row = sharded.moments().loc["optimizer step"]
    assert row["gradients"] == 2 * model.vocab * model.hidden / 4
    assert row["optimizer"] == 12 * model.vocab * model.hidden / 4
    sent = sharded.collectives()
    assert {item.message_bytes for item in sent} == {2 * model.vocab * model.hidden}


def test_only_layers_above_the_deepest_trained_one_keep_anything() -> None:
    model = Model.preset("llama-2-7b")
    kept = [
        plan_of(model, (f"layers.{deepest}",), NARROW).moments().loc["loss forward", "activations"]
        for deepest in (31, 30, 29, 0)
    ]
    assert kept[1] - kept[0] == pytest.approx(kept[2] - kept[1])
    assert kept[3] - kept[0] == pytest.approx(31 * (kept[1] - kept[0]))


def test_a_tied_head_is_the_embedding() -> None:
    model = Model.preset("gpt2-124m")
    both = [trained_of(model, None, (word,)) for word in ("head", "embedding")]
    assert "embedding" in both[0].ends
    assert both[1].ends == {"embedding", "position"}


def test_sweeps_know_trained_parts() -> None:
    plan = plan_of(Model.preset("mistral-7b"), ("layers.31", "head"), NARROW)
    check_sweep(plan)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("layer.3",), "trained must be among embedding, norm, head, layers"),
        (("layers.8-9",), "trained must name layers from 0 to 8 of custom"),
        (("layers.5-2",), "in order; got 'layers.5-2'"),
        (("layers.biases",), "trained must name no biases"),
    ],
)
def test_words_that_name_nothing_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _ = plan_of(DEEP, words, FP32).peak_bytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": Parallel(tp=2)}, "tp must be 1 where only a part is trained"),
        ({"parallel": Parallel(pp=3)}, "pp must be 1"),
        ({"batch": Batch(seq=16, loss="fused")}, "loss must not be fused"),
    ],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": DEEP, "recipe": Recipe(trained=("head",))}
    with pytest.raises(UsageError, match=message):
        _ = Plan(**({"batch": Batch(seq=16)} | given | changes)).peak_bytes


def test_an_adapter_is_not_beside_a_trained_part() -> None:
    with pytest.raises(UsageError, match="trained must be empty where there is an adapter"):
        Recipe.preset("lora", adapter=Adapter(), trained=("head",))


def test_who_takes_all_as_trained_refuses_a_part() -> None:
    recipe = Recipe(trained=("head",))
    with pytest.raises(UsageError, match="trained must be empty: the papers' arithmetic"):
        Plan(model=1_000_000, recipe=recipe)
    refused = differences(Plan(model=DEEP, recipe=recipe, batch=Batch(seq=16))).attrs["refused"]
    assert {"zero-paper", "deepspeed", "megatron"} <= set(refused)


# ---------------------------------------------------------------- from a module


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (("model.layers.2.", "lm_head"), ("layers.2", "head")),
        (("model.layers.1.mlp.", "model.norm"), ("layers.1.mlp", "norm")),
        (("model.embed_tokens",), ("embedding",)),
    ],
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_module_with_frozen_parameters_says_what_a_recipe_says(
    chosen: tuple[str, ...], words: tuple[str, ...], recompute: Any
) -> None:
    module, base = llama_of_transformers()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.startswith(chosen))
    found = Plan(
        model=Model.from_module(module),
        recipe=Recipe(**FP32),
        batch=Batch(seq=16, micro_batch=2, recompute=recompute),
    )
    said = plan_of(base, words, FP32, recompute=recompute)
    assert found.moments().equals(said.moments())


def test_names_that_mean_nothing_are_counted_as_before_and_said() -> None:
    torch = pytest.importorskip("torch")
    from labkit.memory.oracles import networks
    from labkit.memory.tape.mode import Mode

    module = networks.build(GPT, Mode(dtype="fp32"), seq=16)
    for block in module.blocks:
        block.attention.strange = torch.nn.Linear(1, 1, bias=False)
        block.attention.strange.weight = block.norm1.weight
        del block.norm1.weight
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("strange" in name)
    plan = Plan(model=Model.from_module(module), recipe=Recipe.fp32_adam(), batch=Batch(seq=16))
    assert plan.moments().loc["optimizer step", "gradients"] == 4 * 3 * GPT.hidden
    assert any("counted as if they were trained" in note for note in plan.assumptions)


def test_who_takes_all_as_trained_refuses_a_module_with_frozen_parameters() -> None:
    torch = pytest.importorskip("torch")
    from labkit.memory.oracles import networks
    from labkit.memory.tape.mode import Mode

    with torch.device("meta"):
        module = networks.build(GPT, Mode(dtype="fp32"), seq=16)
    module.token.weight.requires_grad_(False)
    plan = Plan(model=Model.from_module(module), batch=Batch(seq=16))
    refused = differences(plan).attrs["refused"]
    assert "model must have no frozen parameters" in refused["megatron"]


def test_a_module_says_itself_what_is_trained() -> None:
    pytest.importorskip("torch")
    from labkit.memory.oracles import networks
    from labkit.memory.tape.mode import Mode

    measured = Model.from_module(networks.build(GPT, Mode(dtype="fp32"), seq=16))
    with pytest.raises(UsageError, match="it says itself what is trained"):
        _ = plan_of(measured, ("head",), FP32).peak_bytes


def test_gradients_to_be_reduced_are_those_of_what_is_trained() -> None:
    """At stage 2 at most one layer and the head are whole, and never more than is trained."""
    model = Model.preset("llama-2-7b")
    plan = Plan(
        model=model,
        recipe=Recipe(trained=("layers.30-31", "head")),
        parallel=Parallel(dp=4, zero=2),
        batch=Batch(seq=64),
    )
    block = next(unit for unit in model.units() if unit.name == "block").numel
    whole = plan.moments()["gradients to be reduced"].max()
    assert 0 < whole <= 2 * (block + model.vocab * model.hidden)
    lora = Plan(
        model=model, recipe=Recipe.preset("lora"), parallel=Parallel(dp=4, zero=2),
        batch=Batch(seq=64),
    ).moments()  # fmt: skip
    trained = 4 * lora.loc["optimizer step", "gradients"]
    assert lora.get("gradients to be reduced", lora["gradients"]).max() <= trained
