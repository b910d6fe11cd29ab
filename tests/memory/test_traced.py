"""Traced networks beside torch's tracker, closed forms and published peaks; what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.memory import (
    Batch,
    Model,
    Network,
    Parallel,
    Plan,
    Recipe,
    check,
    differences,
    fit,
    inference,
    published,
    sweep,
)
from labkit.memory.jobs.recipe import state_bytes
from labkit.memory.oracles import families, modules
from labkit.memory.oracles.families import CONFIGS
from labkit.memory.plans import grid
from labkit.memory.traced import ranks
from labkit.memory.traced.recording import SENT, WHOLE
from labkit.memory.traced.step import made
from tests.memory.steps import GPT, LLAMA

pytest.importorskip("torch")
pytest.importorskip("transformers")

PURE = Recipe(master=None, states="bf16")
AUTOCAST = Recipe.preset("bf16-autocast")
ONE_BY_ONE = Recipe.fp32_adam(step="for-loop")
LIVE = ("t5", "gpt-oss", "swin")
FSDP = Recipe.preset("fsdp-bf16", step="fused")  # fp32 shards, gathered in 16 bits
SPREAD: list[tuple[str, Recipe, dict[str, Any], dict[str, Any]]] = [
    ("bert", FSDP, {"wrap": "blocks"}, {}),
    ("t5", AUTOCAST, {"wrap": "blocks"}, {"attention": "eager"}),
    ("gemma3", Recipe.preset("fsdp-bf16-reduce"), {"wrap": "blocks"}, {"recompute": "full"}),
    ("phi", PURE, {"keep_gathered": "head"}, {}),
    ("gpt-oss", PURE, {"keep_gathered": "last block", "wrap": "blocks"}, {}),
    ("opt", PURE, {"dp": 8, "replicate": 2}, {}),
    ("vit", PURE, {"dp": 8, "partition_group": 2}, {}),
    ("gpt-neox", PURE, {"reshard_after_forward": False}, {}),
    ("phi3", replace(PURE, step="for-loop"), {}, {}),
    ("bert", AUTOCAST, {"dp": 3, "zero": 2}, {"recompute": "full"}),
    ("phi", replace(PURE, step="for-loop"), {"zero": 2}, {}),
]


def planned(network: Network, recipe: Recipe = PURE, **batch: Any) -> Plan:
    seq = 24 if network.tokens else 1
    return Plan(model=network, recipe=recipe, batch=Batch(**{"seq": seq, "micro_batch": 2} | batch))


def off_by(plan: Plan) -> int:
    """Bytes between a plan's peak and that of torch's tracker."""
    peak = check(plan).iloc[-1]
    assert str(peak["component"]) == f"peak, {plan.peak_moment}"
    return int(peak["difference_bytes"])


# ---------------------------------------------------------------- beside torch's tracker


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_step_is_torchs_trackers_to_the_byte(kind: str) -> None:
    """On one rank and at stages 2 and 3; what the tracker saw is stored, a sample of it runs."""
    table = families.stored()
    rows = [row for row in table["rows"] if row["part"] == "traced" and row["family"] == kind]
    assert [row["zero"] for row in rows] == list(families.STAGES)
    for row in rows:
        plan = families.traced_plan(kind, row["zero"])
        live = kind in LIVE and row["zero"] == 0
        if live or table["versions"] != families.versions():
            assert off_by(plan) == 0
        assert plan.peak_bytes == row["tracked_bytes"], row


@pytest.mark.parametrize(("kind", "recipe", "spread", "batch"), SPREAD)
def test_every_moment_of_a_spread_step_is_torchs(
    kind: str, recipe: Recipe, spread: dict[str, Any], batch: dict[str, Any]
) -> None:
    """MemTracker on the module under FSDP2, or with gradients cut by unit, on ranks not there."""
    network = Network.from_hf(CONFIGS[kind])
    base = planned(network, recipe, **batch)
    check_moments(replace(base, parallel=Parallel(**{"dp": 4, "zero": 3} | spread)))


def check_moments(plan: Plan) -> None:
    """Assert that every moment is the tracker's, to the byte."""
    seen = modules.track(plan)
    assert plan.recipe.step != "for-loop" or plan.recipe.counters_on == "cpu"
    counted = sum(t.num_bytes for t in plan.terms() if t.component == "optimizer.step")
    counters = counted if plan.recipe.counters_on == "cpu" else 0
    ours = plan.moments()["total"] + counters
    tracked = {moment: parts["Total"] for moment, parts in seen.moments.items()}
    assert len(tracked) == 3
    assert {moment: ours[moment] for moment in tracked} == tracked


def test_units_are_the_layers_and_the_ends_that_share_nothing() -> None:
    """T5 and BERT tie their head; Phi does not."""
    layers = {"bert": "bert.encoder.layer.", "phi": "model.layers."}
    for kind, ends in (("bert", []), ("phi", [ranks.EMBEDDING, ranks.HEAD])):
        subject = Network.from_hf(CONFIGS[kind]).subject
        assert subject is not None
        module = made(subject)
        names = [f"{layers[kind]}{number}" for number in range(3)]
        assert list(ranks.units_of(module, "blocks")) == [*names, ranks.ROOT]
        assert list(ranks.units_of(module, "parts")) == [*names, *ends, ranks.ROOT]


def test_stages_2_and_3_hold_less_and_more_ranks_less_still() -> None:
    network = Network.from_hf(CONFIGS["phi"])
    table = sweep(planned(network), dp=[2, 8], zero=[1, 2, 3])
    peaks = table.astype({"dp": int, "zero": int}).set_index(["dp", "zero"])["peak_bytes"]
    for zero in (1, 2, 3):
        assert peaks[8, zero] < peaks[2, zero]
    assert peaks[8, 3] < peaks[8, 2] <= peaks[8, 1]  # of the two the forward pass may be fullest


def test_a_bucket_takes_each_gradient_as_it_comes() -> None:
    """DeepSpeed's stage 2: a bucket is there, and no unit's gradients wait for its last."""
    network = Network.from_hf(CONFIGS["phi"])
    spread = Parallel(dp=4, zero=2, shard_rule="flat")
    bucket = replace(PURE, reduce_bucket_size=1000)
    by_unit = replace(planned(network), parallel=spread)
    at_once = replace(planned(network, bucket), parallel=spread)
    assert at_once.moments().loc["backward", SENT] == 2 * 1000  # in 16 bits

    def most_whole(plan: Plan) -> int:
        return int(plan.account.recording.bytes_by_category[WHOLE].max())  # type: ignore[union-attr]

    # Of a unit the gradient that comes last is cut as soon as it is there: a temporary.
    assert most_whole(at_once) == 0
    layer = [t.numel for t in network.layout if t.name.startswith("model.layers.0.")]
    assert most_whole(by_unit) >= 2 * (sum(layer) - max(layer)) > 0


# ---------------------------------------------------------------- forward alone


@pytest.mark.parametrize("kind", ["bert", "t5", "gemma3", "gpt-oss", "vit", "mamba"])
def test_a_forward_pass_is_torchs_trackers_to_the_byte(kind: str) -> None:
    network = Network.from_hf(CONFIGS[kind])
    batch = Batch(seq=24 if network.tokens else 1, micro_batch=2)
    found = inference(network, batch, parameters="fp32" if kind == "vit" else "bf16")
    bits = 32 if kind == "vit" else 16
    assert found.peak_bytes == modules.track_forward(network, batch, bits=bits)
    assert found.frame()["num_bytes"].sum() == found.peak_bytes
    assert (found.cache_bytes > 0) == (kind not in {"bert", "vit"})


def test_keys_and_values_are_the_closed_form() -> None:
    """2 · layers · key heads · width of a head · tokens, of 2 bytes each."""
    batch = Batch(seq=24, micro_batch=2)
    for kind, key_heads in (("phi", 4), ("phi3", 2), ("opt", 4)):
        found = inference(Network.from_hf(CONFIGS[kind]), batch)
        assert found.cache_bytes == 2 * 3 * key_heads * 16 * batch.tokens * 2, kind


def test_what_a_forward_pass_has_not_is_refused() -> None:
    network = Network.from_hf(CONFIGS["phi"])
    with pytest.raises(UsageError, match="recompute must be none where a forward pass is run"):
        inference(network, Batch(seq=8, recompute="full"))
    with pytest.raises(UsageError, match="seq must be <= 64, got 65"):
        inference(Network.from_hf(CONFIGS["bert"]), Batch(seq=65))


@pytest.mark.parametrize("kind", ["bert", "t5", "gemma3", "vit"])
@pytest.mark.parametrize("recipe", [AUTOCAST, ONE_BY_ONE], ids=["autocast", "one by one"])
def test_so_it_is_recomputed_and_written_out_and_in_other_formats(
    kind: str, recipe: Recipe
) -> None:
    batch: dict[str, Any] = {"attention": "eager", "recompute": "full"}
    network = Network.from_hf(CONFIGS[kind])
    assert off_by(planned(network, recipe, **batch)) == 0
    longer = {"target_seq": 40} if kind == "t5" else {}
    assert off_by(planned(network, recipe, micro_batch=3, **longer)) == 0


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification"])
def test_another_head_is_another_class(head: str) -> None:
    network = Network.from_hf(CONFIGS["bert"], architecture=f"Bert{head}")
    assert network.name == f"Bert{head}"
    assert off_by(planned(network)) == 0


# ---------------------------------------------------------------- beside the closed forms


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("gpu", [False, True], ids=["cpu", "gpu"])
def test_a_network_of_known_sizes_is_what_closed_forms_say(
    model: Model, attention: Any, gpu: bool
) -> None:
    """The same network written out in torch, traced, and its sizes alone: every byte agrees."""
    import torch

    from labkit.memory.oracles import networks
    from labkit.memory.plans.job import mode_of

    batch = Batch(seq=16, micro_batch=2, attention=attention, gpu=gpu)
    mode = mode_of(model, PURE, batch)
    with torch.device("meta"):
        module = networks.build(model, mode, seq=16)

    def tokens(batch: Batch) -> dict[str, Any]:
        shape = (batch.micro_batch, batch.seq)
        return {name: torch.zeros(shape, dtype=torch.int64) for name in ("tokens", "targets")}

    network = Network.from_module(module, inputs=tokens)
    traced = Plan(model=network, recipe=PURE, batch=batch)
    known = Plan(model=model, recipe=PURE, batch=batch)
    assert traced.peak_bytes == known.peak_bytes
    assert traced.peak_moment.phase == known.peak_moment.phase
    assert traced.num_params == known.num_params


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_configuration_of_both_is_within_what_is_known_of_the_library(kind: str) -> None:
    """Some copies of transformers' attention are in no closed form (``test_transformers.py``)."""
    from tests.oracles.transformers_peaks import configuration

    config = configuration(kind)
    batch = Batch(seq=256, micro_batch=4)
    traced = Plan(model=Network.from_hf(config), recipe=PURE, batch=batch)
    known = Plan(model=Model.from_hf(config), recipe=PURE, batch=batch)
    assert traced.peak_bytes == pytest.approx(known.peak_bytes, rel=0.02)
    assert traced.states_bytes == known.states_bytes


def test_peaks_that_others_published() -> None:
    """Of bert-base and vit-base, from torch's allocator."""
    table = published.peak_errors(path=Path(published.files.shipped(published.TRACED)))
    assert set(table["run"]) == {"bert-base b2", "vit-base b2"}
    assert table["error"].abs().max() < 0.005


# ---------------------------------------------------------------- a module of one's own


def diffusion(samples: int) -> tuple[Any, Any]:
    """A convolution over an image and a step's number, as a diffusion model has, and its inputs."""
    import torch
    from torch import nn

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Linear(1, 8)
            self.first = nn.Conv2d(4, 8, 3, padding=1)
            self.norm = nn.GroupNorm(2, 8)
            self.last = nn.Conv2d(8, 4, 3, padding=1)

        def forward(self, image: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            x = self.first(image) + self.time(step)[:, :, None, None]
            return self.last(nn.functional.silu(self.norm(x)))

    def inputs(batch: Batch) -> dict[str, torch.Tensor]:
        side = 16
        return {
            "image": torch.zeros(batch.micro_batch, 4, side, side),
            "step": torch.zeros(batch.micro_batch, 1),
        }

    return Denoiser(), inputs


def test_a_module_of_ones_own_is_traced_and_left_alone() -> None:
    module, inputs = diffusion(2)
    before = {name: (p.dtype, p.data_ptr()) for name, p in module.named_parameters()}
    network = Network.from_module(
        module, inputs=inputs, loss=lambda out: out.float().pow(2).mean(), tokens=False
    )
    plan = planned(network, Recipe.fp32_adam())
    assert off_by(plan) == 0
    assert {name: (p.dtype, p.data_ptr()) for name, p in module.named_parameters()} == before
    assert all(parameter.grad is None for parameter in module.parameters())
    kept = {term.component for term in plan.terms()}
    assert "activation.norm" in kept


def test_frozen_parameters_have_no_states() -> None:
    module, inputs = diffusion(2)
    module.first.weight.requires_grad_(False)
    network = Network.from_module(module, inputs=inputs, loss=lambda out: out.mean(), tokens=False)
    plan = planned(network, Recipe.fp32_adam())
    trained = [t for t in network.layout if t.name != "first.weight"]
    rows = plan.frame().set_index("component")["num_bytes"]
    moments = {k: v for k, v in state_bytes(trained, plan.recipe).items() if k != "step"}
    assert plan.states_bytes - rows["parameters"] == sum(moments.values()) + 4 * sum(
        tensor.numel for tensor in trained
    )
    assert off_by(plan) == 0


# ---------------------------------------------------------------- what a recording says


def test_bytes_at_every_time_are_those_of_what_is_there() -> None:
    plan = planned(Network.from_hf(CONFIGS["opt"]))
    recording = plan.account.recording  # type: ignore[union-attr]
    table = plan.account.timeline()  # type: ignore[union-attr]
    always = recording.buffers_bytes + recording.inputs_bytes
    for time in range(0, recording.end, 7):
        there = sum(storage.num_bytes for storage in recording.there(time))
        assert table["total"].iloc[time] == there + always
    largest = planned(Network.from_hf(CONFIGS["opt"]), micro_batch=40).account.largest(3)  # type: ignore[union-attr]
    assert largest["num_bytes"].is_monotonic_decreasing
    assert len(largest) == 3


def test_a_layer_more_keeps_as_much_more() -> None:
    """What is kept by module adds up, and grows by a layer's part with each layer."""
    kept = []
    for layers in (2, 3, 4):
        config = CONFIGS["bert"] | {"num_hidden_layers": layers}
        terms = planned(Network.from_hf(config)).terms()
        kept.append(sum(t.num_bytes for t in terms if ".layer.*." in t.component))
    assert kept[2] - kept[1] == kept[1] - kept[0] > 0


def test_dropout_keeps_a_byte_an_element_and_attention_none() -> None:
    """12 masks here: after the embedding, attention's output and the MLP, none of the scores."""
    with_it = planned(Network.from_hf(CONFIGS["bert"]))
    config = CONFIGS["bert"] | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    without = planned(Network.from_hf(config))

    def kept(plan: Plan) -> float:
        return sum(t.num_bytes for t in plan.terms() if t.component.startswith("activation."))

    tokens = 2 * 24
    width = 64
    masks = 1 + 2 * CONFIGS["bert"]["num_hidden_layers"]
    # A norm's input is the sum after dropout either way; the product before it is dropped.
    assert kept(with_it) - kept(without) == masks * tokens * width


def test_gradients_that_stay_are_there_throughout() -> None:
    network = Network.from_hf(CONFIGS["phi"])
    once = planned(network).moments()
    stays = planned(network, replace(PURE, accumulation=4)).moments()
    whole = 2 * network.num_params
    assert (stays.loc[["forward", "backward"], "gradients"] == whole).all()
    assert once.loc["forward", "gradients"] == 0
    buffer = planned(network, replace(PURE, gradient_buffer=True)).moments()
    assert buffer.loc["after init", "gradients"] == whole


def test_zero_shards_the_optimizer_by_the_tensors() -> None:
    network = Network.from_hf(CONFIGS["bert"])
    batch = Batch(seq=24)
    whole = Plan(model=network, batch=batch, parallel=Parallel(dp=4))
    shared = Plan(model=network, batch=batch, parallel=Parallel(dp=4, zero=1, shard_rule="flat"))

    def optimizer(plan: Plan) -> float:
        return float(plan.moments()["optimizer"].iloc[0])

    assert optimizer(shared) == pytest.approx(optimizer(whole) / 4, rel=1e-3)


def test_the_largest_batch_that_fits_is_the_last() -> None:
    plan = planned(Network.from_hf(CONFIGS["phi"]), micro_batch=1)
    room = 8 * 10**6
    best = fit(plan, vary="micro_batch", device=room).value
    assert best is not None
    sizes = [planned(Network.from_hf(CONFIGS["phi"]), micro_batch=best + n) for n in (0, 1)]
    assert sizes[0].peak_bytes <= room < sizes[1].peak_bytes


def test_the_fewest_ranks_that_fit_are_the_first() -> None:
    plan = planned(Network.from_hf(CONFIGS["phi"]))
    at_stage_2 = [replace(plan, parallel=Parallel(dp=dp, zero=2)) for dp in range(1, 8)]
    peaks = [each.peak_bytes for each in at_stage_2]
    assert fit(at_stage_2[0], vary="dp", device=peaks[3]).value == 4
    assert fit(at_stage_2[0], vary="dp", device=peaks[3] - 1).value == 5


def test_ranks_that_cannot_make_it_fit_are_not_tried_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    def noted(plan: Plan, given: dict[str, Any]) -> Plan:
        tried.append(given["dp"])
        return plan_at(plan, given)

    plan_at = grid.plan_at
    monkeypatch.setattr(grid, "plan_at", noted)
    plan = planned(Network.from_hf(CONFIGS["phi"]))
    plan = replace(plan, parallel=Parallel(dp=2, zero=2))
    assert fit(plan, vary="dp", device=1000).value is None
    assert max(tried) <= 256
    assert len(tried) < 10


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "nosuch", "auto_map": {"AutoModel": "m.M"}}, "auto_map names is not run"),
        ({}, "no model_type None"),
        ({"model_type": "bert", "architectures": ["Evil"]}, "must be a class of transformers"),
        (
            {"model_type": "bert", "architectures": ["T5Model"]},
            "is for model_type 't5', got 'bert'",
        ),
        (CONFIGS["bert"] | {"hidden_size": 63}, "cannot be made: ValueError"),
    ],
)
def test_a_configuration_that_is_no_class_is_refused(config: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        Network.from_hf(config)


def test_code_beside_a_configuration_never_runs(tmp_path: Path) -> None:
    """Of a known type the library's class is made; the file that auto_map names stays unread."""
    trap = tmp_path / "ran"
    (tmp_path / "modeling.py").write_text(f"open({str(trap)!r}, 'w')\n")
    config = CONFIGS["bert"] | {"auto_map": {"AutoModelForMaskedLM": "modeling.BertForMaskedLM"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Network.from_hf(tmp_path).name == "BertForMaskedLM"
    assert not trap.exists()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"parallel": Parallel(tp=2)}, "tp must be 1"),
        (
            {"parallel": Parallel(dp=4, zero=3, keep_gathered="head")},
            "keep_gathered must be none where the network has no head",
        ),
        (
            {"parallel": Parallel(dp=4, zero=3), "recipe": replace(PURE, reduce_bucket_size=9)},
            "reduce_bucket_size must be left out",
        ),
        ({"recipe": Recipe(parameters="fp8")}, "parameters must be one of fp32"),
        (
            {"recipe": Recipe.preset("lora")},
            "adapter must be None where a network is traced, got lora:",
        ),
        ({"batch": Batch(seq=8, target_seq=4)}, "target_seq must be None for Bert"),
        ({"batch": Batch(seq=65)}, "seq must be <= 64"),
        ({"batch": Batch(seq=8, loss="fused")}, "loss must be eager-fp32"),
        ({"batch": Batch(seq=8, recompute="selective")}, "recompute must be none or full"),
        ({"batch": Batch(seq=8, dropout_mask_bytes=1)}, "dropout_mask_bytes must be 0"),
    ],
)
def test_what_a_trace_cannot_follow_is_refused_by_name(parts: Any, words: str) -> None:
    network = Network.from_hf(CONFIGS["bert"])
    with pytest.raises(UsageError, match=words):
        _ = Plan(**{"model": network, "recipe": PURE, "batch": Batch(seq=8)} | parts).peak_bytes


def test_other_questions_are_refused_or_answered() -> None:
    image = Network.from_hf(CONFIGS["vit"])
    with pytest.raises(UsageError, match="seq must be 1 for ViTForImageClassification"):
        _ = planned(image, seq=16).peak_bytes
    with pytest.raises(UsageError, match="is traced: only its"):
        differences(planned(Network.from_hf(CONFIGS["bert"])))
    with pytest.raises(UsageError, match="target_seq must be None"):
        _ = Plan(model=LLAMA, batch=Batch(seq=8, target_seq=8)).peak_bytes
    module, inputs = diffusion(1)
    headless = Network.from_module(module, inputs=inputs, tokens=False)
    with pytest.raises(UsageError, match="must be a tensor of one element; give loss="):
        _ = planned(headless).peak_bytes


def test_known_models_load_neither_torch_nor_transformers() -> None:
    program = (
        "import sys; from labkit.memory import *; import labkit.memory as m;"
        "p = m.Plan(model=m.Model.preset('gpt2-124m'), batch=m.Batch(seq=64)); p.peak_bytes;"
        "m.Network; assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
