"""Transformer shapes against parameter counts that others published."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from labkit import files, hardware, models
from labkit.errors import BadFile, UsageError
from labkit.models import Model
from tests.memory.steps import expert_params

# Counts of the published checkpoints (Hugging Face safetensors metadata of each).
PUBLISHED = {
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "tinyllama-1.1b": 1_100_048_384,
    "ministral-8b": 8_019_808_256,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    # The published weights without the module that predicts further tokens, and without the
    # scales of their 8-bit blocks.
    "deepseek-v3": 671_026_419_200,
}
# Sizes that papers give in their text, to the digits they give.
NAMED = {
    "gpt3-1.3b": 1.3e9,
    "gpt3-175b": 175e9,
    "megatron-8.3b": 8.3e9,
    "turing-nlg-17b": 17e9,
    "zero-60b": 60e9,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_shapes_give_the_published_parameter_count(name: str, count: int) -> None:
    assert Model.preset(name).num_params == count


@pytest.mark.parametrize(
    ("hub", "name"),
    [
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3-70b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3-70b"),
        ("unsloth/Qwen2.5-7B-Instruct-unsloth-bnb-4bit", "qwen2.5-7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("Qwen3-32B", "qwen3-32b"),
    ],
)
def test_a_hubs_name_is_the_models(hub: str, name: str) -> None:
    assert Model.preset(hub) == Model.preset(name)


@pytest.mark.parametrize("name", ["mistralai/Mistral-7B-v0.3", "meta-llama/Llama-4-8B", "a/b/c"])
def test_another_vocabulary_or_release_is_another_model(name: str) -> None:
    with pytest.raises(UsageError, match=r"a config\.json, or its folder, describes any other"):
        Model.preset(name)


@pytest.mark.parametrize(("name", "size"), NAMED.items())
def test_shapes_give_the_size_in_the_name(name: str, size: float) -> None:
    assert Model.preset(name).num_params == pytest.approx(size, rel=0.02)


# What a token meets, as the papers and model cards say it. Qwen and Mistral count the embedding;
# DeepSeek's README_WEIGHTS says 36.6 billion, "including 0.9B for the output Head", without it.
ACTIVE = {"mixtral-8x7b": 12.9e9, "qwen3-30b-a3b": 3.3e9, "qwen3-235b-a22b": 22.2e9}


@pytest.mark.parametrize(("name", "size"), ACTIVE.items())
def test_active_parameters_are_the_published_ones(name: str, size: float) -> None:
    assert active(Model.preset(name)) == pytest.approx(size, rel=0.02)


def active(model: Model) -> int:
    """Parameters that one token meets: all but the routed experts it is not sent to."""
    idle = model.num_experts - model.experts_per_token
    return model.num_params - expert_params(model) // model.num_experts * idle


def test_deepseeks_active_parameters_leave_out_its_embedding() -> None:
    model = Model.preset("deepseek-v3")
    embedding = model.vocab * model.hidden
    assert round((active(model) - embedding) / 1e9, 1) == 36.6
    assert round(embedding / 1e9, 1) == 0.9


def test_every_preset_says_where_its_shape_is_from() -> None:
    assert all(model.source for model in models.presets().values())


def test_units_partition_the_model() -> None:
    model = Model.preset("llama-3-8b")
    by_unit: dict[str, int] = {}
    for tensor in model.tensors():
        by_unit[tensor.unit] = by_unit.get(tensor.unit, 0) + tensor.numel
    assert sum(by_unit.values()) == model.num_params
    assert max(by_unit.values()) == max(unit.numel for unit in model.units())
    assert len({tensor.name for tensor in model.tensors()}) == len(model.tensors())


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_layers": 0, "hidden": 8, "heads": 2, "vocab": 10},
        {"num_layers": 1, "hidden": 9, "heads": 2, "vocab": 10},
        {"num_layers": 1, "hidden": 8, "heads": 4, "kv_heads": 3, "vocab": 10},
        {"num_layers": 1, "hidden": 8, "heads": 2, "vocab": 10, "positions": -1},
        {"num_layers": 1, "hidden": 8, "heads": 2, "vocab": 10, "expert_ffn": 8},
        {"num_layers": 1, "hidden": 8, "heads": 2, "vocab": 10, "num_experts": 2},
        {"num_layers": 1, "hidden": 8, "heads": 2, "vocab": 10, "q_rank": 2},
        {"num_layers": 1, "hidden": 8, "heads": 2, "vocab": 10, "kv_rank": 2},
        {"num_layers": 1, "hidden": 8, "heads": 2, "vocab": 10, "mlp": "conv"},
        {"num_layers": 1, "hidden": 8, "heads": 2, "vocab": 10, "norm": "batch"},
        {"num_layers": 1, "hidden": 8, "heads": 2, "vocab": 10, "num_experts": 2}
        | {"experts_per_token": 1, "expert_ffn": 8, "dense_layers": 2},
    ],
)
def test_impossible_shapes_are_refused(sizes: dict[str, Any]) -> None:
    for kind in (UsageError, ValueError):
        with pytest.raises(kind, match="must"):
            Model(**sizes)


def test_unknown_names_list_what_there_is() -> None:
    with pytest.raises(
        UsageError, match=r"did you mean 'llama-2-7b'.*There are \d+; a config\.json"
    ):
        Model.preset("llama2-7b")
    with pytest.raises(UsageError, match="V100-32GB"):
        hardware.accelerator("TPU")
    with pytest.raises(UsageError, match="ib-edr"):
        hardware.link("string and cans")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: {num_layers: 1, hidden: 8, heads: 2, vocab: 3, layers: 9}", "layers"),
        ("b: {num_layers: 1, hidden: 8, heads: 3, vocab: 3}", "must divide by heads"),
        ("c: {num_layers: 1, hidden: 8, heads: 2}", "vocab"),
    ],
)
def test_a_malformed_preset_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    with pytest.raises(BadFile, match=complaint):
        files.named(path, Model)


def test_nominal_memory_is_binary_as_the_maker_counts_it() -> None:
    assert hardware.accelerator("V100-32GB").memory_bytes == 32 * 2**30


@pytest.mark.parametrize(
    ("name", "reported_mib"),
    [("A100-80GB", 81_920), ("H100-80GB", 81_559), ("H200", 143_771), ("RTX-4090", 24_564)],
)
def test_nominal_memory_is_what_drivers_report_but_for_a_per_cent(
    name: str, reported_mib: int
) -> None:
    """By the totals that nvidia-smi prints in public logs."""
    nominal = hardware.accelerator(name).memory_bytes / 2**20
    assert 1 <= nominal / reported_mib < 1.01


def test_every_rate_of_an_accelerator_has_a_source() -> None:
    rows = yaml.safe_load(files.shipped("data/hardware.yaml").read_text(encoding="utf-8"))
    assert len(rows["accelerators"]) >= 15
    for name, row in rows["accelerators"].items():
        chip = hardware.accelerator(name)
        assert "datasheet" in row["source"] or "whitepaper" in row["source"] or "§" in row["source"]
        # On cards of the last ten years so many operations go to a byte that memory delivers.
        assert 60 < chip.peak_flops / chip.hbm_bytes_per_s < 450


# ---------------------------------------------------------------- what one rank holds


@pytest.mark.parametrize("name", ["gpt2-1.5b", "llama-3-70b", "mixtral-8x7b", "qwen2.5-7b"])
def test_units_times_their_counts_are_the_tensors(name: str) -> None:
    model = Model.preset(name)
    per_unit = [(t.shape, unit.count) for unit in model.units() for t in unit.tensors]
    listed = sorted(tensor.shape for tensor in model.tensors())
    assert sorted(shape for shape, count in per_unit for _ in range(count)) == listed


def test_tensor_parallel_ranks_hold_the_model_and_copies_of_what_is_not_cut() -> None:
    """Megatron's cut: matrices are divided exactly, norms and row-parallel biases are copied."""
    model = replace(Model.preset("gpt2-355m"), vocab=50304)
    tp = 8
    whole = model.tensors()
    part = model.tensors(tp=tp)
    assert [t.name for t in whole] == [t.name for t in part]
    for before, after in zip(whole, part, strict=True):
        kept = ("norm", "position", "out.bias", "down.bias")
        copied = any(word in before.name for word in kept)
        assert before.numel == after.numel * (1 if copied else tp)


def test_keys_and_values_are_copied_where_ranks_outnumber_them() -> None:
    """8 key heads on 16 ranks: each rank has 64/16 query heads and one key head of its own."""
    shapes = {t.name: t.shape for t in Model.preset("llama-2-70b").tensors(tp=16)}
    assert shapes["block0.query.weight"] == (4 * 128, 8192)
    assert shapes["block0.key.weight"] == (128, 8192)


@given(st.sampled_from([1, 2, 4, 8, 16, 64, 256]))
def test_expert_parallel_ranks_share_the_experts_only(ep: int) -> None:
    model = Model.preset("deepseek-v3")
    held = sum(unit.count * unit.numel for unit in model.units(ep=ep))
    shared = model.num_params - expert_params(model)
    assert held == shared + expert_params(model) // ep


@given(st.integers(1, 31))
def test_pipeline_stages_hold_the_model_and_a_copy_of_a_tied_head(cut: int) -> None:
    for name in ("llama-2-7b", "mixtral-8x7b"):
        model = Model.preset(name)
        assert stages(model, cut) == model.num_params
    tied = replace(Model.preset("llama-2-7b"), tied=True)
    assert stages(tied, cut) == tied.num_params + tied.vocab * tied.hidden


def stages(model: Model, cut: int) -> int:
    first = model.tensors(end_layer=cut, head=False)
    last = model.tensors(first_layer=cut, embedding=False)
    return sum(tensor.numel for tensor in (*first, *last))


@pytest.mark.parametrize(
    ("name", "part", "complaint"),
    [
        ("gpt2-1.5b", {"tp": 2}, r"heads \(25\) must divide by tp \(2\)"),
        ("qwen2.5-7b", {"tp": 7}, r"ffn \(18944\) must divide by tp \(7\)"),
        ("deepseek-v3", {"ep": 3}, r"experts \(256\) must divide by ep \(3\)"),
        ("llama-2-7b", {"ep": 2}, "no experts"),
        ("llama-2-7b", {"tp": -1}, r"tp must be a whole number, at least 1"),
    ],
)
def test_cuts_through_a_head_or_an_expert_are_refused(
    name: str, part: dict[str, int], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        Model.preset(name).tensors(**part)


def test_keys_that_neither_divide_nor_are_copied_evenly_are_refused() -> None:
    model = Model(num_layers=1, hidden=96, heads=12, kv_heads=4, vocab=10)
    with pytest.raises(UsageError, match=r"kv_heads \(4\) must divide by tp \(6\), or tp by it"):
        model.tensors(tp=6)


def test_a_description_survives_json() -> None:
    """As it does on its way to the processes that measure."""
    model = Model.preset("deepseek-v3")
    again = Model(**json.loads(json.dumps(asdict(model))))
    assert again == model
    assert again.num_params == model.num_params


def test_resizing_derives_again_what_followed_from_defaults() -> None:
    gpt2 = Model.preset("gpt2-124m")
    llama = Model.preset("llama-2-7b")
    assert gpt2.resized(hidden=1024, heads=16, num_layers=24) == replace(
        Model.preset("gpt2-355m"), name=gpt2.name, source=gpt2.source
    )
    assert llama.resized(hidden=5120, heads=40).ffn == 11008


# ---------------------------------------------------------------- Hugging Face configurations

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "gpt2-1.5b": {
        "model_type": "gpt2",
        "n_embd": 1600,
        "n_head": 25,
        "n_layer": 48,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "llama-2-7b": LLAMA,
    "llama-2-70b": LLAMA
    | {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}
    | {"num_hidden_layers": 80, "num_key_value_heads": 8},
    "mistral-7b": LLAMA
    | {"model_type": "mistral", "intermediate_size": 14336, "num_key_value_heads": 8},
    "mixtral-8x7b": LLAMA
    | {"model_type": "mixtral", "intermediate_size": 14336, "num_key_value_heads": 8}
    | {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2.5-7b": LLAMA
    | {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944}
    | {"num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4}
    | {"vocab_size": 152064, "tie_word_embeddings": False},
    "qwen3-8b": LLAMA
    | {"model_type": "qwen3", "head_dim": 128, "intermediate_size": 12288}
    | {"num_hidden_layers": 36, "num_key_value_heads": 8, "vocab_size": 151936},
    "qwen3-30b-a3b": LLAMA
    | {"model_type": "qwen3_moe", "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144}
    | {"num_hidden_layers": 48, "num_key_value_heads": 4, "vocab_size": 151936}
    | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    "deepseek-v3": LLAMA
    | {"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432}
    | {"num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61}
    | {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    | {"v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "vocab_size": 129280}
    | {"num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3},
}


@pytest.mark.parametrize(("name", "config"), CONFIGURATIONS.items())
def test_published_configurations_give_the_published_counts(
    name: str, config: dict[str, Any], tmp_path: Path
) -> None:
    model = Model.from_hf(config)
    preset = Model.preset(name)
    assert model.num_params == PUBLISHED[name]
    assert [t.shape for t in model.tensors()] == [t.shape for t in preset.tensors()]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Model.from_hf(tmp_path) == Model.from_hf(tmp_path / "config.json") == model


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model_type": "lama"}, "no model_type 'lama'; did you mean 'llama'"),
        ({"model_type": None}, "no 'model_type'; known types: gpt2, llama"),
        ({"hidden_size": None}, "needs 'hidden_size'; known types: gpt2, llama"),
        ({"hidden_size": "wide"}, "'hidden_size'.*whole number"),
        ({"num_hidden_layers": -1}, "num_layers must be >= 1"),
        ({"num_attention_heads": 0}, "num_attention_heads must be >= 1"),
        ({"tie_word_embeddings": 3}, "true or false"),
        ({"hidden_act": "relu2"}, "hidden_act='relu2'"),
        ({"model_type": "qwen2"}, "needs 'num_key_value_heads'"),
        ({"model_type": "qwen3", "num_key_value_heads": 8}, "needs 'head_dim'"),
        ({"model_type": "mixtral", "num_key_value_heads": 8}, "needs 'num_local_experts'"),
        ({"model_type": "qwen3_moe", "num_key_value_heads": 8, "head_dim": 128}, "'num_experts'"),
        ({"model_type": "deepseek_v3"}, "needs 'qk_nope_head_dim'"),
    ],
)
def test_configurations_that_cannot_be_read_say_why(
    changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        Model.from_hf(LLAMA | changes)


def test_a_configuration_that_is_not_there_or_not_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no configuration at"):
        Model.from_hf(tmp_path)
    for text in ("{", "[1]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(BadFile, match=r"config\.json"):
            Model.from_hf(tmp_path)


SMALL = {
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": 16, "vocab_size": 97},
    "llama": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2},
    "mistral": {"head_dim": 6, "num_key_value_heads": 2},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 2},
    "qwen2": {"tie_word_embeddings": True, "num_key_value_heads": 2},
    "qwen3": {"head_dim": 16, "num_key_value_heads": 1},
    "qwen3_moe": {"head_dim": 16, "num_experts": 5, "moe_intermediate_size": 9}
    | {"num_experts_per_tok": 2, "num_key_value_heads": 4},
    "deepseek_v3": {"q_lora_rank": 10, "kv_lora_rank": 6, "qk_rope_head_dim": 4}
    | {"qk_nope_head_dim": 8, "v_head_dim": 5, "n_routed_experts": 8, "n_group": 2}
    | {"topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 9}
    | {"first_k_dense_replace": 1, "n_shared_experts": 2},
}


@pytest.mark.parametrize(("kind", "changes"), SMALL.items())
def test_transformers_makes_the_same_tensors(kind: str, changes: dict[str, Any]) -> None:
    """The oracle: the library's own modules, where it is installed (labkit does not need it)."""
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    torch = pytest.importorskip("torch")
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4}
    sizes |= {"num_hidden_layers": 3, "vocab_size": 97}
    config = transformers.AutoConfig.for_model(
        kind, **(changes if kind == "gpt2" else sizes | changes)
    )
    with torch.device("meta"):
        network = transformers.AutoModelForCausalLM.from_config(config)
    model = Model.from_hf(config.to_dict())
    # The router's correction is a buffer there: stored, not trained.
    stored = model.num_experts * 2 if model.router_bias else 0
    assert model.num_params == sum(p.numel() for p in network.parameters()) + stored
    measured = Model.from_module(network)
    assert measured.hidden
    assert measured.num_layers == 3
    assert measured.num_params == model.num_params - stored


# ---------------------------------------------------------------- torch modules


def test_a_modules_tensors_are_measured_and_its_sizes_recognised() -> None:
    pytest.importorskip("torch")
    from labkit.memory.oracles.networks import build
    from labkit.memory.tape.saved import Mode

    gpt = Model.preset("small-gpt")
    network = build(gpt, Mode(dtype="fp32"), seq=gpt.positions)
    measured = Model.from_module(network, name="again")
    assert [t.shape for t in measured.tensors()] == [t.shape for t in gpt.tensors()]
    assert measured.hidden
    sizes = ("num_layers", "hidden", "heads", "vocab", "positions", "ffn", "tied", "mlp", "norm")
    assert all(getattr(measured, size) == getattr(gpt, size) for size in sizes)
    assert measured.num_params == gpt.num_params
    with pytest.raises(UsageError, match="measured whole"):
        measured.tensors(tp=2)


def test_a_gated_network_with_a_head_of_its_own_is_recognised() -> None:
    nn = pytest.importorskip("torch").nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n_heads = 4
            self.n_kv_heads = 2
            self.norms = nn.ModuleList(nn.RMSNorm(32) for _ in range(2))
            widths = [(32, 32), (32, 16), (32, 16), (32, 32), (32, 80), (32, 80), (80, 32)]
            self.linears = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in widths)

    network = nn.Module()
    network.embedding = nn.Embedding(61, 32)
    network.layers = nn.ModuleList(Layer() for _ in range(3))
    network.norm = nn.RMSNorm(32)
    network.head = nn.Linear(32, 61, bias=False)
    model = Model.from_module(network)
    assert (model.num_layers, model.heads, model.kv_heads, model.ffn) == (3, 4, 2, 80)
    assert (model.mlp, model.norm, model.bias, model.tied) == ("swiglu", "rmsnorm", False, False)
    assert [t.role for t in model.tensors() if t.unit == "root"] == ["embedding", "hidden", "head"]
    network.head.weight = network.embedding.weight  # shared: counted once
    assert Model.from_module(network).num_params == model.num_params - 61 * 32


def test_what_is_not_a_known_transformer_has_states_only() -> None:
    nn = pytest.importorskip("torch").nn
    model = Model.from_module(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(8, 10)))
    assert model.num_params == 8 * 27 + 8 + 90
    assert not model.hidden
    assert "states only" in model.source
    with pytest.raises(UsageError, match="only its states are known"):
        model.require_shapes()
    assert Model.preset("gpt2-124m").require_shapes().hidden
    with pytest.raises(UsageError, match="no parameters"):
        Model.from_module(nn.ReLU())
