"""DoRA, IA3, virtual tokens and reentrant checkpoints: peft's modules under torch's tracker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main
from labkit.errors import UsageError
from labkit.memory import Adapter, Batch, Model, Network, Parallel, Plan, Recipe, check
from labkit.memory.oracles import adapters
from labkit.memory.tape import moments
from labkit.memory.tape.sizes import Numbers
from tests.memory.models import check_sweep, llama_of_transformers
from tests.memory.steps import GPT, LLAMA
from tests.memory.test_adapters import EVERY, FIRST_LLAMA, FORMATS, SECOND_LLAMA

DEEP = LLAMA.resized(num_layers=9)
PROMPT = Adapter(kind="prompt", tokens=5)
MLP = Adapter(kind="p-tuning", tokens=5, hidden=24)
DORA = Adapter(kind="dora", rank=4, targets=EVERY)
DROPPED = Adapter(kind="dora", rank=4, targets=("q", "down"), dropout=True)
IA3 = Adapter(kind="ia3", targets=("k", "v", "down"))
ASKED = {"recompute": "full", "input_gradients": True}


def plan_of(model: Model, adapter: Adapter | None, formats: str, **batch: Any) -> Plan:
    recipe = Recipe.preset({"bf16": "pure-bf16", "fp32": "fp32-adam"}.get(formats, "bf16-autocast"))
    if adapter is not None:
        recipe = Recipe.preset("lora", adapter=adapter, **FORMATS[formats])
    given = {"seq": 16, "micro_batch": 2} | batch
    return Plan(model=model, recipe=recipe, batch=Batch(**given))


def apart(plan: Plan) -> dict[str, float]:
    """What the plan says beyond the tracker, moment by moment; the tracker counts counters too."""
    seen = adapters.track(**adapters.settings_of(plan))
    job = plan.estimate.job
    parts = moments.tensors(job.shape, job.mode, Numbers(**job.arguments))
    told = plan.moments()["total"] + 4 * moments.over_layers(job.shape, parts, len)
    found = {
        moment: told[moment] - seen.moments[moment]["Total"]
        for moment in told.index
        if moment in seen.moments
    }
    assert set(found) >= {"forward, first", "backward, first", "optimizer step"}
    return found


CASES: list[tuple[Model, Adapter | None, str, dict[str, Any]]] = [
    (LLAMA, PROMPT, "fp32 on bf16", {}),
    (LLAMA, PROMPT, "bf16", {"micro_batch": 1, "loss": "chunked"}),
    (GPT, PROMPT, "autocast", {"attention": "eager", "micro_batch": 3}),
    (GPT, PROMPT, "fp32", {"attention": "eager", "micro_batch": 1, "recompute": "full"}),
    (LLAMA, PROMPT, "autocast", {"recompute": "full", "norm_fused": False}),
    (LLAMA, MLP, "fp32 on bf16", {"recompute": "operators"}),
    (LLAMA, MLP, "autocast", {"micro_batch": 1}),
    (DEEP, MLP, "bf16", {"recompute": 4}),
    (GPT, Adapter(kind="p-tuning", tokens=3), "fp32", {"loss": "chunked", "recompute": "full"}),
    (LLAMA, DORA, "fp32 on bf16", {}),
    (LLAMA, DORA, "autocast", {"recompute": "full", "micro_batch": 1}),
    (LLAMA, DROPPED, "fp32 on bf16", {"attention": "eager"}),
    (LLAMA, DROPPED, "autocast", {}),
    (LLAMA, DORA, "bf16", {"recompute": "full"}),
    (GPT, Adapter(kind="dora", rank=4, targets=("qkv", "down")), "autocast", {}),
    (DEEP, Adapter(kind="dora", rank=4, layers=(3, 4, 5, 6, 7), saved=("head",)), "fp32", {}),
    (LLAMA, IA3, "fp32 on bf16", {"recompute": "full", "micro_batch": 1}),
    (LLAMA, IA3, "autocast", {"attention": "eager"}),
    (DEEP, Adapter(kind="ia3", targets=EVERY, saved=("head",)), "bf16", {}),
    (GPT, Adapter(kind="ia3", targets=("qkv", "down")), "fp32", {"recompute": "full"}),
    (LLAMA, None, "fp32", {"recompute": "full", "reentrant": True}),
    (SECOND_LLAMA, None, "fp32", {"recompute": "full", "reentrant": True}),
    (FIRST_LLAMA, DORA, "autocast", {"recompute": "full"}),
    (SECOND_LLAMA, IA3, "bf16", {"recompute": "full"}),
    (DEEP, None, "autocast", {"recompute": 4, "reentrant": True}),
    (
        GPT.resized(num_layers=8),
        None,
        "bf16",
        {"recompute": "full", "recompute_group": 3, "reentrant": True},
    ),
]


@pytest.mark.parametrize(("model", "adapter", "formats", "batch"), CASES)
def test_every_moment_is_that_of_peft_modules(
    model: Model, adapter: Adapter | None, formats: str, batch: dict[str, Any]
) -> None:
    pytest.importorskip("peft")
    assert not any(apart(plan_of(model, adapter, formats, **batch)).values())


@pytest.mark.parametrize(
    ("model", "adapter", "formats", "batch"),
    [
        (LLAMA, Adapter(rank=4), "fp32 on bf16", {"reentrant": True}),
        (FIRST_LLAMA, Adapter(rank=4), "autocast", {"reentrant": True}),
        (LLAMA, DORA, "autocast", {"reentrant": True, "micro_batch": 1}),
        (GPT, PROMPT, "bf16", {"reentrant": True, "micro_batch": 1}),
        (LLAMA.resized(num_layers=6), MLP, "fp32 on bf16", {"recompute_group": 2}),
    ],
)
def test_layers_recomputed_where_the_embedding_asks_for_a_gradient(
    model: Model, adapter: Adapter, formats: str, batch: dict[str, Any]
) -> None:
    """The tracker's own hooks keep that output and its gradient into the optimizer's step."""
    pytest.importorskip("peft")
    found = apart(plan_of(model, adapter, formats, **ASKED | batch))
    assert found.pop("optimizer step") < 0
    assert not any(found.values())


def test_check_sets_peft_beside_the_plan() -> None:
    pytest.importorskip("peft")
    plans = (
        plan_of(LLAMA, MLP, "autocast"),
        plan_of(LLAMA, None, "fp32", recompute="full", reentrant=True),
    )
    for plan in plans:
        assert (check(plan)["difference_bytes"] == 0).all()


# ---------------------------------------------------------------- what is trained


@pytest.mark.parametrize(
    ("name", "adapter", "trained"),
    [
        # What peft's print_trainable_parameters says of these.
        ("bloom", Adapter(kind="prompt", tokens=8), 8 * 1024),
        ("llama-2-7b", Adapter(kind="prompt", tokens=20), 81_920),
        ("llama-2-7b", Adapter(kind="dora", rank=8), 4_194_304 + 32 * 2 * 4096),
        ("llama-2-7b", IA3, 32 * (2 * 4096 + 11_008)),
        ("llama-2-7b", Adapter(kind="p-tuning", tokens=20, hidden=128), 1_151_232),
    ],
)
def test_trained_parameters_are_those_that_peft_prints(
    name: str, adapter: Adapter, trained: int
) -> None:
    model = GPT.resized(hidden=1024, heads=16, head_dim=0) if name == "bloom" else None
    plan = Plan(
        model=model or Model.preset(name),
        recipe=Recipe.preset("lora", adapter=adapter),
        batch=Batch(seq=16),
    )
    row = plan.moments().loc["optimizer step"]
    assert (row["gradients"], row["optimizer"]) == (4 * trained, 8 * trained)


def test_virtual_tokens_are_in_addition_to_those_of_a_sample() -> None:
    """The layers keep what they keep of so many tokens more."""
    kept = [
        plan_of(LLAMA, Adapter(kind="prompt", tokens=tokens), "bf16", seq=seq).moments()
        for tokens, seq in ((4, 28), (16, 16))
    ]
    rows = [table.loc["loss forward"] for table in kept]
    targets_and_table = 8 * 2 * 12 + 2 * 12 * 64 * 2  # prefix labels, prompts kept by peft's frame
    assert 0 <= rows[1]["activations"] - rows[0]["activations"] <= 2 * targets_and_table


def test_a_reentrant_checkpoint_computes_a_layer_to_its_end() -> None:
    """So its peak is the larger one by what torch's other kind of checkpoint stops before."""
    first = plan_of(DEEP, None, "bf16", recompute="full").moments()["total"]
    again = plan_of(DEEP, None, "bf16", recompute="full", reentrant=True).moments()["total"]
    assert again["backward, first"] > first["backward, first"]
    assert again["loss forward"] == first["loss forward"]


def test_sweeps_know_virtual_tokens() -> None:
    model = Model.preset("llama-2-7b")
    for adapter in (Adapter(kind="prompt", tokens=20), Adapter(kind="dora")):
        recipe = Recipe.preset("lora", adapter=adapter)
        check_sweep(Plan(model=model, recipe=recipe, batch=Batch(seq=16)))


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        (["gpt2-124m", "--prompt-tokens", "8"], 8 * 768),
        (["llama-2-7b", "--adapter", "ia3"], 614_400),
        (
            ["llama-2-7b", "--adapter", "dora", "--lora-rank", "8", "--set", "recompute=full"],
            4_194_304 + 32 * 2 * 4096,
        ),
        (
            ["llama-2-7b", "--adapter", "p-tuning", "--prompt-tokens=20", "--prompt-hidden=128"],
            1_151_232,
        ),
    ],
)
def test_options_say_what_is_trained(
    options: list[str], trained: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", "plan", *options, "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert f"{trained:,} trained" in " ".join(told["assumptions"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--adapter", "loha"], "no kind (--adapter) 'loha'"),
        (["--prompt-tokens", "0"], "--prompt-tokens must be at least 1"),
        (["--adapter", "prompt"], "--prompt-tokens must be at least 1"),
        (["--adapter", "ia3", "--lora-rank", "4"], "--lora-rank must be left out"),
        (["--prompt-tokens", "4", "--lora-rank", "4"], "--lora-rank and --lora-targets must be"),
        (["--adapter", "dora", "--prompt-hidden", "4"], "--prompt-tokens and --prompt-hidden must"),
        (["--prompt-tokens", "4", "--prompt-hidden", "4"], "hidden must be left out"),
    ],
)
def test_options_of_another_kind_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", "plan", "llama-2-7b", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


# ---------------------------------------------------------------- peft's words


CONFIGS: list[tuple[dict[str, Any], Adapter]] = [
    ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 8}, Adapter(kind="prompt", tokens=8)),
    (
        {"peft_type": "P_TUNING", "num_virtual_tokens": 8, "encoder_hidden_size": 24},
        Adapter(kind="p-tuning", tokens=8, hidden=24),
    ),
    (
        {"r": 8, "target_modules": ["q_proj"], "use_dora": True},
        Adapter(kind="dora", rank=8, targets=("q",)),
    ),
    (
        {
            "peft_type": "IA3",
            "target_modules": ["k_proj", "v_proj", "down_proj"],
            "feedforward_modules": ["down_proj"],
        },
        IA3,
    ),
]


@pytest.mark.parametrize(("config", "adapter"), CONFIGS)
def test_a_peft_configuration_says_the_same(
    config: dict[str, Any], adapter: Adapter, tmp_path: Path
) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    assert Adapter.from_peft(file, LLAMA) == adapter


@pytest.mark.parametrize(("config", "adapter"), CONFIGS)
def test_a_module_says_what_a_recipe_says(config: dict[str, Any], adapter: Adapter) -> None:
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    base, model = llama_of_transformers()
    given = dict(config)
    kind = given.pop("peft_type", "LORA")
    kinds = {"PROMPT_TUNING": "PromptTuning", "P_TUNING": "PromptEncoder", "IA3": "IA3"}
    of = getattr(peft, f"{kinds.get(kind, 'Lora')}Config")
    with torch.device("meta"):
        module = peft.get_peft_model(base, of(**given, task_type="CAUSAL_LM"))
    written = module.peft_config["default"].to_dict()
    plain = {name: sorted(v) if isinstance(v, set) else v for name, v in written.items()}
    assert Adapter.from_peft(plain | {"peft_type": kind}, model) == adapter
    measured = Plan(
        model=Model.from_module(module), recipe=Recipe.preset("lora"), batch=Batch(seq=16)
    )
    said = Plan(model=model, recipe=Recipe.preset("lora", adapter=adapter), batch=Batch(seq=16))
    assert measured.moments().equals(said.moments())
    trained = sum(part.numel() for part in module.parameters() if part.requires_grad)
    assert measured.moments().loc["optimizer step", "gradients"] == 4 * trained


PREFIXES: list[tuple[str, int, dict[str, Any]]] = [
    ("PrefixTuning", 1, {}),
    ("PrefixTuning", 3, {"prefix_projection": True, "encoder_hidden_size": 24}),
    (
        "PromptEncoder",
        1,
        {"encoder_reparameterization_type": "LSTM", "encoder_hidden_size": 24},
    ),
]


def module_with(kind: str, given: dict[str, Any]) -> Any:
    """A module of transformers with peft's virtual tokens of a kind, without numbers."""
    peft = pytest.importorskip("peft")
    torch = pytest.importorskip("torch")
    base, _ = llama_of_transformers()
    own = getattr(peft, f"{kind}Config")(task_type="CAUSAL_LM", num_virtual_tokens=4, **given)
    with torch.device("meta"):
        return peft.get_peft_model(base, own)


def ids_and_labels(batch: Batch) -> dict[str, Any]:
    """The arguments of a decoder of transformers."""
    import torch

    ids = torch.zeros(batch.micro_batch, batch.seq, dtype=torch.int64)
    return {"input_ids": ids, "labels": ids.clone()}


@pytest.mark.parametrize(("kind", "samples", "given"), PREFIXES)
def test_prefixes_and_encoders_without_a_closed_form_are_traced(
    kind: str, samples: int, given: dict[str, Any]
) -> None:
    module = module_with(kind, given)
    network = Network.from_module(module, inputs=ids_and_labels)
    recipe = Recipe.preset("fp32-adam")
    plan = Plan(model=network, recipe=recipe, batch=Batch(seq=16, micro_batch=samples))
    assert (check(plan)["difference_bytes"] == 0).all()
    trained = sum(part.numel() for part in module.parameters() if part.requires_grad)
    assert plan.moments().loc["optimizer step", "gradients"] == 4 * trained
    measured = Plan(
        model=Model.from_module(module), recipe=Recipe.preset("lora"), batch=Batch(seq=16)
    )
    with pytest.raises(UsageError, match=r"trace the module .Network.from_module.; got prompt"):
        _ = measured.peak_bytes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 8},
            "which only a trace of peft.s own module knows",
        ),
        ({"peft_type": "LOHA", "r": 8}, "peft_type must be LORA, IA3, PROMPT_TUNING, P_TUNING"),
        ({"peft_type": "XLORA"}, "several adapters at once are not known"),
        ({"peft_type": "PROMPT_TUNING"}, "num_virtual_tokens must be a whole number"),
        (
            {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 8, "task_type": "SEQ_2_SEQ_LM"},
            "task_type must be CAUSAL_LM, got 'SEQ_2_SEQ_LM'",
        ),
        (
            {
                "peft_type": "P_TUNING",
                "num_virtual_tokens": 8,
                "encoder_reparameterization_type": "LSTM",
            },
            "encoder_reparameterization_type must be MLP, got 'LSTM'",
        ),
        (
            {"peft_type": "P_TUNING", "num_virtual_tokens": 8, "encoder_hidden_size": 0},
            "encoder_hidden_size must be a whole number",
        ),
        (
            {"peft_type": "IA3", "target_modules": ["k_proj", "down_proj"]},
            "feedforward_modules must be down, as the targets have it, got none",
        ),
    ],
)
def test_a_configuration_that_is_not_known_names_its_field(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Adapter.from_peft(config, LLAMA)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "prompt"}, "tokens must be at least 1 where kind is prompt"),
        ({"tokens": 5}, "tokens must be left out where kind is lora, got 5"),
        ({"kind": "prompt", "tokens": 5, "rank": 8}, "rank must be left out where kind is prompt"),
        ({"kind": "prompt", "tokens": 5, "hidden": 8}, "hidden must be left out"),
        ({"kind": "ia3", "dropout": True}, "dropout must be left out where kind is ia3"),
        ({"kind": "dora", "base": "nf4"}, "base must be stored where kind is dora, got nf4"),
    ],
)
def test_fields_of_another_kind_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Adapter(**fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallel": Parallel(tp=2)}, "tp must be 1 where there is an adapter, got 2"),
        ({"parallel": Parallel(dp=2, zero=3)}, "zero must be <= 2 where the adapter is prompt"),
        ({"model": GPT, "batch": Batch(seq=36)}, "seq must be at most 35 .* behind 5 virtual"),
        (
            {"batch": Batch(seq=16, recompute="full", reentrant=True), "recipe": "lora"},
            "input_gradients must be True where reentrant is",
        ),
        (
            {
                "batch": Batch(seq=16, recompute="full", reentrant=True),
                "parallel": Parallel(dp=2, zero=3),
                "recipe": "bf16-mixed",
            },
            "reentrant must be False where zero is 3",
        ),
        (
            {
                "batch": Batch(seq=16, recompute="full", reentrant=True),
                "recipe": "adam-in-backward",
            },
            "reentrant must be False where the step is",
        ),
    ],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any], message: str) -> None:
    recipe = Recipe.preset("lora", adapter=PROMPT)
    if "recipe" in changes:
        recipe = Recipe.preset(changes["recipe"])
    given: dict[str, Any] = {"model": LLAMA, "batch": Batch(seq=16)} | changes
    with pytest.raises(UsageError, match=message):
        _ = Plan(**given | {"recipe": recipe}).peak_bytes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "recompute must be full or a number where reentrant is True, got none"),
        ({"recompute": "operators"}, "got operators"),
        ({"recompute": "full", "offload_activations": "cpu"}, "offload_activations must be device"),
    ],
)
def test_checkpoints_that_cannot_be_reentrant_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Batch(seq=16, reentrant=True, **fields)
