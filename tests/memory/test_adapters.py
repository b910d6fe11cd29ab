"""Adapters: peft's own modules under torch's tracker, the base in 4 bits by hand, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit import hardware
from labkit.errors import UsageError
from labkit.memory import (
    Adapter,
    Batch,
    Cluster,
    Model,
    Parallel,
    Plan,
    Recipe,
    Update,
    check,
    convention_terms,
    differences,
    fit,
    offload,
    updated_step,
)
from labkit.models.transformers_versions import operators_of
from tests.memory.models import check_sweep, llama_of_transformers
from tests.memory.steps import GPT, LLAMA, UNGROUPED

EVERY = ("q", "k", "v", "o", "gate", "up", "down")
DEEP = LLAMA.resized(num_layers=9)
FIRST_LLAMA = replace(UNGROUPED, operators=operators_of("llama", (4, 30)))
SECOND_LLAMA = replace(LLAMA, operators=operators_of("llama", (4, 31)))
BATCH = Batch(seq=16, micro_batch=2)
AUTOCAST = {"compute": "bf16", "autocast": True, "parameters": "fp32"}
FORMATS: dict[str, dict[str, Any]] = {
    "fp32 on bf16": {},
    "bf16": {"gradients": "bf16", "states": "bf16"},
    "fp32": {"parameters": "fp32"},
    "autocast": AUTOCAST,
    "autocast on bf16": AUTOCAST | {"parameters": "bf16"},
    "bf16 under autocast": AUTOCAST | {"parameters": "bf16", "gradients": "bf16", "states": "bf16"},
}
PACKED = {"base": "nf4"}
PREPARED = {"base": "nf4", "rest": "fp32"}


def plan_of(model: Model, adapter: Adapter, formats: str = "fp32 on bf16", **batch: Any) -> Plan:
    return Plan(
        model=model,
        recipe=Recipe.preset("lora", adapter=adapter, **FORMATS[formats]),
        batch=Batch(seq=16, micro_batch=2, **batch),
    )


# ---------------------------------------------------------------- beside peft

CASES = [
    (LLAMA, Adapter(rank=4), "fp32 on bf16", {}),
    (LLAMA, Adapter(rank=4, targets=EVERY), "bf16", {"norm_fused": False}),
    (LLAMA, Adapter(rank=3, targets=EVERY, dropout=True), "autocast", {"attention": "eager"}),
    (LLAMA, Adapter(rank=3, targets=EVERY, dropout=True), "fp32 on bf16", {"recompute": "full"}),
    (
        LLAMA,
        Adapter(rank=4, targets=EVERY),
        "autocast",
        {"recompute": "full", "attention": "eager"},
    ),
    (LLAMA, Adapter(rank=4, targets=("up",)), "fp32", {"recompute": "selective"}),
    (GPT, Adapter(rank=4, targets=("qkv",)), "fp32 on bf16", {"attention": "eager"}),
    (GPT, Adapter(rank=2, targets=("o", "down"), dropout=True), "autocast", {}),
    (DEEP, Adapter(rank=4, targets=("q", "up"), layers=(3, 4, 5, 6, 7)), "fp32 on bf16", {}),
    (DEEP, Adapter(rank=4, targets=EVERY, saved=("head",)), "bf16", {"recompute": "full"}),
    (DEEP, Adapter(rank=4, saved=("embedding", "head"), dropout=True), "fp32 on bf16", {}),
    (DEEP, Adapter(rank=4, layers=(2, 7), saved=("head",)), "autocast", {"attention": "eager"}),
    (
        GPT.resized(num_layers=8),
        Adapter(rank=4, targets=("qkv",)),
        "fp32 on bf16",
        {"recompute_group": 3},
    ),
    (LLAMA, Adapter(rank=4, targets=EVERY), "fp32 on bf16", {"recompute": "operators"}),
    (LLAMA, Adapter(rank=4, targets=EVERY), "bf16", {"loss": "chunked"}),
    (FIRST_LLAMA, Adapter(rank=4), "fp32 on bf16", {"recompute": "full"}),
    (FIRST_LLAMA, Adapter(rank=4), "bf16", {}),
    (SECOND_LLAMA, Adapter(rank=4), "autocast", {}),
    # As transformers' Trainer runs them (bf16=True): a frozen base in 16 bits under autocast.
    (LLAMA, Adapter(rank=4), "autocast on bf16", {"norm_fused": False}),
    (LLAMA, Adapter(rank=4, targets=EVERY, dropout=True), "autocast on bf16", {"loss": "chunked"}),
    (GPT, Adapter(rank=4, targets=("qkv",)), "autocast on bf16", {"recompute": "full"}),
    (LLAMA, Adapter(rank=4, targets=EVERY), "bf16 under autocast", {"attention": "eager"}),
    # A base in 4 bits, without autocast and under it.
    (LLAMA, Adapter(rank=4, targets=EVERY, dropout=True, **PACKED), "fp32 on bf16", {}),
    (LLAMA, Adapter(rank=4, **PACKED), "fp32 on bf16", {"recompute": "full"}),
    (LLAMA, Adapter(rank=4, **PACKED), "autocast on bf16", {"norm_fused": False}),
    # After prepare_model_for_kbit_training.
    (LLAMA, Adapter(rank=4, **PREPARED), "autocast on bf16", {"norm_fused": False}),
    (LLAMA, Adapter(rank=4, **PREPARED), "autocast on bf16", {"attention": "eager"}),
    (
        LLAMA,
        Adapter(rank=3, targets=("v", "o", "up", "down"), dropout=True, **PREPARED),
        "autocast on bf16",
        {"recompute": "full", "norm_fused": False},
    ),
]


@pytest.mark.parametrize(("model", "adapter", "formats", "batch"), CASES)
def test_every_moment_is_that_of_peft_modules(
    model: Model, adapter: Adapter, formats: str, batch: dict[str, Any]
) -> None:
    pytest.importorskip("peft")
    from labkit.memory.oracles import adapters

    if "recompute_group" in batch:
        batch = batch | {"recompute": "full"}
    plan = plan_of(model, adapter, formats, **batch)
    seen = adapters.track(**adapters.settings_of(plan))
    told = plan.moments()["total"]
    counters = 4 * (2 * len(adapter.targets) * layers_of(plan) + len(adapter.saved))
    differences = {
        moment: told[moment] + counters - seen.moments[moment]["Total"]
        for moment in told.index
        if moment in seen.moments
    }
    assert set(differences) >= {"forward, first", "backward, first", "optimizer step"}
    assert not any(differences.values())


def layers_of(plan: Plan) -> int:
    """How many layers have adapters."""
    assert plan.recipe.adapter is not None
    assert isinstance(plan.model, Model)
    return len(plan.recipe.adapter.layers or range(plan.model.num_layers))


@pytest.mark.parametrize("formats", FORMATS)
def test_recomputation_as_transformers_runs_it_with_adapters(formats: str) -> None:
    """The embedding's output asks for a gradient; see tests/memory/test_trained.py."""
    pytest.importorskip("peft")
    from labkit.memory.oracles import adapters

    again = {"recompute": "full", "input_gradients": True}
    plan = plan_of(LLAMA, Adapter(rank=4), formats, **again)
    seen = adapters.track(**adapters.settings_of(plan))
    told = plan.moments()["total"].drop("optimizer step") + 4 * 4 * LLAMA.num_layers
    tracked = {
        moment: seen.moments[moment]["Total"] for moment in told.index if moment in seen.moments
    }
    assert len(tracked) >= 5
    assert {moment: told[moment] for moment in tracked} == tracked
    without = plan_of(LLAMA, Adapter(rank=4), formats, recompute="full").moments()["total"]
    assert plan.moments().loc["backward, first", "total"] > without["backward, first"]


def test_copies_of_ends_lie_beside_the_frozen_ones() -> None:
    """modules_to_save: a copy in the base's format, with a gradient and two states of that."""
    plain, saved = (
        plan_of(DEEP, Adapter(rank=4, saved=ends)).moments().loc["optimizer step"]
        for ends in ((), ("head",))
    )
    copy = 2 * DEEP.vocab * DEEP.hidden
    more = {name: saved[name] - plain[name] for name in ("parameters", "gradients", "optimizer")}
    assert more == {"parameters": copy, "gradients": copy, "optimizer": 2 * copy}


def test_check_sets_peft_beside_the_plan() -> None:
    pytest.importorskip("peft")
    assert (check(plan_of(LLAMA, Adapter(rank=4)))["difference_bytes"] == 0).all()


@pytest.mark.parametrize(
    ("name", "adapter", "trained"),
    [
        # What peft's print_trainable_parameters says of these, in many public logs.
        ("mistral-7b", Adapter(rank=16), 6_815_744),
        ("llama-2-7b", Adapter(rank=8), 4_194_304),
        ("llama-3-8b", Adapter(rank=16, targets=EVERY), 41_943_040),
        ("gpt2-124m", Adapter(rank=8, targets=("qkv",)), 294_912),
    ],
)
def test_trained_parameters_are_those_that_peft_prints(
    name: str, adapter: Adapter, trained: int
) -> None:
    plan = Plan(
        model=Model.preset(name), recipe=Recipe.preset("lora", adapter=adapter), batch=BATCH
    )
    row = plan.moments().loc["optimizer step"]
    assert (row["gradients"], row["optimizer"]) == (4 * trained, 8 * trained)


def test_a_master_copy_is_of_the_adapters_alone() -> None:
    small = plan_of(LLAMA, Adapter(rank=4), "bf16")
    recipe = Recipe.preset("mixed-adam", adapter=Adapter(rank=4))
    large = Plan(model=LLAMA, recipe=recipe, batch=BATCH)
    trained = small.moments().loc["optimizer step", "gradients"] / 2
    assert large.moments().loc["optimizer step", "optimizer"] == 12 * trained


# ---------------------------------------------------------------- the base in 4 bits


def test_double_quantisation_saves_what_the_paper_says() -> None:
    """0.373 bits a weight: 32/64 become 8/64 + 32/(64·256) (Dettmers et al. 2023, §3)."""
    elements = 64 * 256 * 1000
    double = 8 * (Adapter(base="nf4").base_bytes(elements) - 4) / elements
    single = 8 * Adapter(base="nf4-single").base_bytes(elements) / elements
    assert single == 4.5
    assert round(single - double, 3) == 0.373


def test_a_base_in_4_bits_by_hand() -> None:
    model = LLAMA  # 3 layers; h = q = 64, k = 32, f = 88, v = 97, untied
    recipe = Recipe.preset("qlora")
    plan = Plan(model=model, recipe=recipe, batch=BATCH)
    sizes = {64 * 64: 2, 32 * 64: 2, 64 * 88: 3}  # o and q, k and v, the MLP's
    packed = 3 * sum(
        number * (size // 2 + size // 64 + 4 * -(-size // 64 // 256) + 4)
        for size, number in sizes.items()
    )
    rest = 2 * (2 * 97 * 64 + 7 * 64)  # embedding, head and norms
    adapters = 4 * 3 * 16 * ((64 + 64) + (64 + 32))
    terms = {term.component: term.num_bytes for term in plan.terms()}
    assert terms["parameters.base in 4 bits"] == packed
    assert terms["parameters.rest of the base"] == rest
    assert terms["parameters.adapters"] == adapters
    assert plan.moments().loc["after init", "parameters"] == packed + rest + adapters


def test_one_matrix_at_a_time_is_made_wide() -> None:
    """With next to no tokens the matrices are what a step allocates: the largest one, once."""
    model = Model.preset("mistral-7b")
    tiny = Batch(seq=1, micro_batch=1)
    plans = {
        name: Plan(model=model, recipe=Recipe.preset(name), batch=tiny)
        for name in ("lora", "qlora")
    }
    largest = 2 * model.hidden * model.ffn
    row, packed = (plan.moments().loc["forward, first"] for plan in plans.values())
    less = row["parameters"] - packed["parameters"]
    more = packed["total"] - (row["total"] - less)
    assert largest <= more < 1.01 * largest


# ---------------------------------------------------------------- what is refused


def lora(**changes: Any) -> dict[str, Any]:
    """A plan's recipe with an adapter of that kind."""
    return {"recipe": Recipe.preset("lora", adapter=Adapter(**changes))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": Parallel(tp=2)}, "tp must be 1"),
        (
            {"recipe": Recipe.preset("lora", compute="bf16")},
            "compute must be None where there is an adapter, no autocast and no FSDP",
        ),
        ({"batch": Batch(seq=16, micro_batch=2, loss="fused")}, "loss must not be fused"),
        ({"model": Model.preset("gpt2-124m")}, "targets must be among qkv, o, up, down"),
        ({"model": Model.preset("deepseek-v3")}, "kv_rank must be 0"),
        (lora(saved=("head",)) | {"model": Model.preset("gpt2-124m")}, "saved must be empty"),
        (lora(layers=(0, 3)), "layers must be from 0 to 2 for custom, got 3"),
    ],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": LLAMA, "recipe": Recipe.preset("lora"), "batch": BATCH}
    with pytest.raises(UsageError, match=message):
        _ = Plan(**given | changes).peak_bytes


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"parameters": "int4"}, "parameters must be fp32, bf16, fp16"),
        ({"adapter": Adapter(base="nf4", quant_storage="fp16")}, "quant_storage must be uint8 or"),
        (
            {"adapter": Adapter(base="nf4"), "compute": "fp16"},
            "compute must be None or bf16, the format of the rest",
        ),
        ({"adapter": Adapter(base="nf4", rest="fp32")}, "autocast must be True"),
        ({"parameters": "fp32", "adapter": Adapter(base="nf4")}, "parameters must be bf16"),
    ],
)
def test_formats_that_nobody_runs_are_refused(recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe.preset("lora", **recipe)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rest": "fp32"}, "rest must be stored unless base is nf4"),
        ({"rest": "fp32", "base": "nf4", "saved": ("head",)}, "saved must be empty where rest"),
    ],
)
def test_an_fp32_rest_is_of_a_base_in_4_bits(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Adapter(**fields)


def test_what_prepare_model_for_kbit_training_makes_wide() -> None:
    """Embedding, head and norms take 2 bytes more an element, and so does the stream that a layer
    keeps for its recomputation (peft 0.21, utils/other.py; 32 layers of h = 4096)."""
    model = Model.preset("mistral-7b")
    batch = Batch(seq=4096, recompute="full")
    stored, wide = (
        Plan(model=model, recipe=Recipe.preset(name, **cast), batch=batch)
        for name, cast in (
            ("qlora", {"compute": "bf16", "autocast": True}),
            ("qlora-prepared", {}),
        )
    )
    ends = 2 * 32000 * 4096 + 65 * 4096
    rest = [{term.component: term.num_bytes for term in plan.terms()} for plan in (stored, wide)]
    more = {name: rest[1][name] - rest[0][name] for name in rest[1] if name in rest[0]}
    assert more["parameters.rest of the base"] == 2 * ends
    assert more["parameters.base in 4 bits"] == 0
    assert more["activation.input"] == 2 * 32 * 4096 * 4096


def test_who_knows_no_adapters_refuses_them() -> None:
    recipe = Recipe.preset("lora")
    plan = Plan(model=LLAMA, recipe=recipe, batch=BATCH)
    link = hardware.link("nvlink-v100")
    cluster = Cluster(flops_per_s=1e14, ring=link, node=link, inside=link)
    for ask in (
        lambda: Plan(model=1_000_000, recipe=recipe),
        lambda: Plan(model=LLAMA, recipe=recipe),
        lambda: convention_terms("megatron", LLAMA, recipe=recipe, batch=BATCH),
        lambda: offload(LLAMA, Parallel(), recipe),
        lambda: updated_step(plan, cluster, Update(s_per_param=1e-9, link_bytes_per_s=1e10)),
    ):
        with pytest.raises(UsageError, match="adapter must be None"):
            ask()
    table = differences(plan)
    assert set(table.attrs["refused"]) == {"zero-paper", "deepspeed", "megatron"}
    assert table.loc["gradients", "torch"] == plan.moments().loc["optimizer step", "gradients"]


def test_replicas_send_the_gradients_of_adapters_alone() -> None:
    plan = plan_of(LLAMA, Adapter(rank=4))
    spread = replace(plan, parallel=Parallel(dp=4))
    trained_bytes = plan.moments().loc["optimizer step", "gradients"]
    (sent,) = spread.collectives()
    assert sent.message_bytes == trained_bytes


# ---------------------------------------------------------------- peft's configuration

CONFIG = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none"}


def test_a_peft_configuration_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(CONFIG | {"lora_dropout": 0.05}), encoding="utf-8")
    adapter = Adapter.from_peft(file, LLAMA)
    assert adapter == Adapter(rank=8, targets=("q", "v"), dropout=True)
    every = CONFIG | {"target_modules": "all-linear"}
    assert set(Adapter.from_peft(every, LLAMA).targets) == set(EVERY)
    both = CONFIG | {"target_modules": ["c_attn", "c_proj"]}
    assert Adapter.from_peft(both, GPT).targets == ("qkv", "o", "down")


def test_parts_of_a_configuration_that_cost_bytes_are_read() -> None:
    given = CONFIG | {"modules_to_save": ["lm_head"], "layers_to_transform": [2, 1]}
    assert Adapter.from_peft(given, LLAMA) == Adapter(rank=8, layers=(1, 2), saved=("head",))
    one = Adapter.from_peft(CONFIG | {"layers_to_transform": 2, "use_rslora": True}, LLAMA)
    assert one == Adapter(rank=8, layers=(2,))  # rank-stabilised: another factor, the same bytes


def test_peft_itself_writes_such_a_configuration() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "o_proj"]).to_dict()
    given = {name: sorted(v) if isinstance(v, set) else v for name, v in config.items()}
    given["peft_type"] = given["peft_type"].value
    assert Adapter.from_peft(given, LLAMA) == Adapter(rank=4, targets=("q", "o"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": None}, "lacks a field 'r'"),
        ({"r": 0}, "config: r must be a whole number, at least 1, got 0"),
        ({"lora_bias": True}, "lora_bias must be left out"),
        ({"modules_to_save": ["score"]}, "no module .modules_to_save of config. 'score'"),
        ({"modules_to_save": "lm_head"}, "modules_to_save must be a list of names"),
        ({"layers_to_transform": [-1]}, "layers_to_transform must be layers from 0 on"),
        ({"bias": "all"}, "bias must be 'none', got 'all'"),
        ({"peft_type": "LOHA"}, "peft_type must be LORA, IA3, PROMPT_TUNING, P_TUNING, got 'LOHA'"),
        ({"target_modules": ["w1"]}, "no target of custom .target_modules of config. .w1"),
        ({"target_modules": ".*proj"}, "must be a list of names or 'all-linear'"),
    ],
)
def test_a_configuration_that_is_not_known_names_its_field(
    changes: dict[str, Any], message: str
) -> None:
    given = {name: value for name, value in (CONFIG | changes).items() if value is not None}
    with pytest.raises(UsageError, match=message):
        Adapter.from_peft(given, LLAMA)


# ---------------------------------------------------------------- what fits


def test_sweeps_and_fits_know_adapters() -> None:
    plan = Plan(model=Model.preset("mistral-7b"), recipe=Recipe.preset("qlora"), batch=BATCH)
    check_sweep(plan)
    assert fit(plan, vary="micro_batch", device="A100-40GB", headroom=0.9).value is not None


# ---------------------------------------------------------------- from a module


LORA: list[tuple[dict[str, Any], Adapter]] = [
    ({"target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.1}, Adapter(rank=4, dropout=True)),
    ({"target_modules": "all-linear", "use_rslora": True}, Adapter(rank=4, targets=EVERY)),
    (
        {"target_modules": ["o_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
        Adapter(rank=4, targets=("o",), saved=("embedding", "head")),
    ),
    (
        {"target_modules": ["up_proj"], "layers_to_transform": [1]},
        Adapter(rank=4, targets=("up",), layers=(1,)),
    ),
]


def llama_module(**lora: Any) -> tuple[Any, Model]:
    """A module of transformers with peft's adapters, and its base by configuration."""
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    base, model = llama_of_transformers()
    with torch.device("meta"):
        return peft.get_peft_model(base, peft.LoraConfig(r=4, **lora)), model


@pytest.mark.parametrize(("lora_config", "adapter"), LORA)
def test_a_module_with_adapters_says_what_a_recipe_says(
    lora_config: dict[str, Any], adapter: Adapter
) -> None:
    module, base = llama_module(**lora_config)
    measured = Model.from_module(module)
    said = Plan(model=base, recipe=Recipe.preset("lora", adapter=adapter), batch=BATCH)
    for recipe in (Recipe.preset("lora"), Recipe.preset("lora", adapter=None)):
        found = Plan(model=measured, recipe=recipe, batch=BATCH)
        assert found.moments().equals(said.moments())
    for name in ("qlora", "qlora-fsdp", *(() if adapter.saved else ("qlora-prepared",))):
        recipe = Recipe.preset(name, **({"compute": None} if name == "qlora-fsdp" else {}))
        packed = Plan(model=measured, recipe=recipe, batch=BATCH)
        assert recipe.adapter is not None
        own = replace(recipe, adapter=adapter.on_base_of(recipe.adapter))
        said = Plan(model=base, recipe=own, batch=BATCH)
        assert packed.moments().equals(said.moments())
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    (sent,) = replace(found, parallel=Parallel(dp=4)).collectives()
    if not adapter.saved:
        assert sent.message_bytes == 4 * trained


def test_gpts_modules_with_adapters_are_known_by_their_names() -> None:
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=48, n_layer=2, n_head=4, vocab_size=101, n_positions=40)
    names = ["c_attn", "attn.c_proj", "mlp.c_proj"]
    with torch.device("meta"):
        base = transformers.AutoModelForCausalLM.from_config(config)
        lora_config = peft.LoraConfig(r=2, target_modules=names, fan_in_fan_out=True)
        module = peft.get_peft_model(base, lora_config)
    plan = Plan(model=Model.from_module(module), recipe=Recipe.preset("lora"), batch=BATCH)
    adapter = plan.estimate.job.recipe.adapter
    assert adapter == Adapter(rank=2, targets=("qkv", "o", "down"))


def test_a_network_that_nobody_configured_is_recognised_with_its_adapters() -> None:
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    from labkit.memory.oracles import networks
    from labkit.memory.tape.mode import Mode

    with torch.device("meta"):
        network = networks.build(LLAMA, Mode(), seq=16)
        module = peft.get_peft_model(network, peft.LoraConfig(r=4, target_modules=["query", "up"]))
    found = Plan(model=Model.from_module(module), recipe=Recipe.preset("lora"), batch=BATCH)
    said = plan_of(LLAMA, Adapter(rank=4, targets=("q", "up")))
    assert found.peak_bytes == said.peak_bytes


@pytest.mark.parametrize(
    ("lora_config", "recipe", "message"),
    [
        ({"use_dora": True}, {}, "the same targets in every layer"),
        ({"bias": "all"}, {}, "must be frozen"),
        ({"modules_to_save": ["model.norm"]}, {}, "must be the embedding or the head"),
        ({}, {"adapter": Adapter(rank=8)}, "adapter must be None, or as the module"),
        ({"rank_pattern": {"q_proj": 2}}, {}, "adapters must have one rank"),
    ],
)
def test_what_a_module_has_beside_its_base_is_known_or_refused(
    lora_config: dict[str, Any], recipe: dict[str, Any], message: str
) -> None:
    torch = pytest.importorskip("torch")
    targets = {"target_modules": ["q_proj", "v_proj"]}
    if "use_dora" in lora_config:
        pytest.importorskip("peft")
        module, _ = llama_module(**targets)
        vector = torch.nn.Parameter(torch.empty(64, device="meta"))
        module.base_model.model.model.layers[0].self_attn.q_proj.lora_magnitude_vector[
            "default"
        ] = torch.nn.ParameterDict({"weight": vector})
    else:
        if lora_config.get("bias"):
            module, _ = llama_module(**targets)
            module.base_model.model.model.norm.weight.requires_grad_(True)
        else:
            module, _ = llama_module(**targets | lora_config)
    plan = Plan(
        model=Model.from_module(module), recipe=Recipe.preset("lora", **recipe), batch=BATCH
    )
    with pytest.raises(UsageError, match=message):
        _ = plan.peak_bytes
