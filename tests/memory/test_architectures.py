"""Experts, latent attention, normalised heads, fused losses, dropout: all of torch's bytes."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product
from typing import Any

import numpy as np
import pytest

from labkit.errors import UsageError
from labkit.memory import Batch, Parallel, Plan, Recipe
from labkit.memory.tape import moments, saved
from labkit.memory.tape.saved import Mode
from labkit.models import Model, presets
from tests.memory import steps
from tests.memory.steps import GPT, LLAMA, expert_params

NORMALISED = LLAMA.resized(qk_norm=True, head_dim=24)
LATENT = LLAMA.resized(
    kv_heads=4, head_dim=16, q_rank=20, kv_rank=12, rope_head_dim=8, value_head_dim=10
)
EXPERTS = LLAMA.resized(num_experts=4, experts_per_token=2, expert_ffn=24)
# Nothing divides: 36 or 40 tokens to 3 of 7 experts; a shared one; heads normalised as in Qwen3.
UNEVEN = NORMALISED.resized(num_experts=7, experts_per_token=3, expert_ffn=20, shared_experts=1)
DEEPSEEK = LATENT.resized(
    num_layers=4,
    num_experts=6,
    experts_per_token=2,
    expert_ffn=24,
    shared_experts=2,
    dense_layers=2,
    router_bias=True,
)
SMALL = {"seq": 12, "micro_batch": 3}


def grid() -> list[Any]:
    """Every number format, attention and recomputation, the architectures taking turns; every other
    one is left to the slow tests."""
    kinds = cycle([NORMALISED, LATENT, EXPERTS, DEEPSEEK, UNEVEN])
    written = cycle([True, False, True])
    sizes_of = cycle([(3, 12), (1, 11), (2, 20)])
    found = []
    choices = product(
        ("bf16", "fp32", "autocast"), ("sdpa", "eager"), ("none", "selective", "full")
    )
    for dtype, attention, recompute in choices:
        mode = Mode(dtype=dtype, attention=attention, recompute=recompute, norm_fused=next(written))
        micro_batch, seq = next(sizes_of)
        found.append(steps.param(next(kinds), mode, {"micro_batch": micro_batch, "seq": seq}))
    return [_slow(case) if place % 2 else case for place, case in enumerate(found)]


def _slow(case: Any) -> Any:
    return pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)


def others() -> list[Any]:
    rows = [
        (DEEPSEEK.resized(q_rank=0, dense_layers=1), {}, {}),
        (DEEPSEEK, {"recompute": "full"}, {"group": 2}),
        (DEEPSEEK, {"recompute": "every", "dtype": "autocast"}, {"period": 2}),
        (DEEPSEEK.resized(num_layers=2), {}, {"step": "for-loop"}),
        (EXPERTS, {"loss": "fused", "dtype": "autocast", "recompute": "full"}, {"chunks": 3}),
        (GPT, {"loss": "fused"}, {"chunks": 4}),
        (GPT, {"loss": "fused", "dtype": "fp32", "recompute": "full"}, {"chunks": 5}),
        (GPT, {"dropout_mask_bytes": 1, "attention": "eager"}, {}),
        (GPT, {"dropout_mask_bytes": 1, "attention": "eager", "recompute": "selective"}, {}),
        (GPT, {"dropout_mask_bytes": 1, "dtype": "autocast", "recompute": "full"}, {}),
        (LLAMA, {"dropout_mask_bytes": 1, "dtype": "fp32"}, {}),
        (LLAMA.resized(fused_qkv=True), {"dtype": "autocast"}, {}),
        (LLAMA.resized(qkv_bias=True), {"dtype": "autocast", "attention": "eager"}, {}),
        (LATENT.resized(value_head_dim=24, qkv_bias=True, out_bias=True), {}, {}),
    ]
    return [
        steps.param(model, Mode(**choices), {**SMALL, **given}) for model, choices, given in rows
    ]


@pytest.mark.parametrize("case", [*grid(), *others()])
def test_bytes_are_torchs(case: steps.Case) -> None:
    """Every moment, the peak and its name, and what is saved, with no byte of difference."""
    model, mode, given = case
    seen = steps.tracked(case)
    numbers = dict(given)
    told = steps.moments_of(model, mode, **numbers)
    totals = {moment: sum(told[moment].values()) for moment in seen.moments if moment in told}
    assert totals == {moment: seen.moments[moment]["Total"] for moment in totals}
    peak = steps.peak(model, mode, **numbers)
    assert (peak.num_bytes, peak.moment) == (seen.peak_bytes, seen.peak_moment)
    batch = {name: numbers[name] for name in ("seq", "micro_batch")}
    repeat = {name: numbers[name] for name in ("group", "period") if name in numbers}
    stack = saved.total_bytes(saved.stack_terms(model, mode, **batch, **repeat))
    assert stack == sum(seen.layer_saved_bytes)
    ends = saved.total_bytes(saved.end_terms(model, mode, **batch))
    assert stack + ends == seen.saved_bytes


@pytest.mark.parametrize("model", [NORMALISED, LATENT, UNEVEN, DEEPSEEK])
def test_all_ways_to_compute_agree_on_real_numbers(model: Model) -> None:
    """The networks, kernels that stand for a GPU's included, compute what they should."""
    torch = pytest.importorskip("torch")
    from labkit.memory.oracles import networks

    tokens = torch.randint(model.vocab, (2, 8), generator=torch.Generator().manual_seed(1))
    found = []
    ways = (
        {},
        {"attention": "eager", "norm_fused": False},
        {"recompute": "full", "loss": "fused"},
        {"swiglu_fused": True},
    )
    for choices in ways:
        torch.manual_seed(0)
        network = networks.build(model, Mode(dtype="fp32", **choices), seq=8, chunks=3)
        assert sum(p.numel() for p in network.parameters()) == steps.trained(model)[0]
        loss = network(tokens, tokens.roll(-1, dims=1))
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in network.parameters())])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_experts_of_a_token_are_weighed_and_summed() -> None:
    """Against a loop over tokens, with places enough for every choice: all experts are chosen."""
    torch = pytest.importorskip("torch")
    from labkit.memory.oracles.blocks import Experts

    torch.manual_seed(0)
    layer = Experts(EXPERTS.resized(experts_per_token=4))
    x = torch.randn(2, 3, EXPERTS.hidden)
    rows = []
    for token in x.flatten(0, 1):
        shares = torch.softmax(layer.router.weight @ token, 0)
        outs = [
            (torch.nn.functional.silu(token @ layer.gate[e]) * (token @ layer.up[e]))
            @ layer.down[e]
            for e in range(4)
        ]
        rows.append(sum(share * out for share, out in zip(shares, outs, strict=True)))
    torch.testing.assert_close(layer(x), torch.stack(rows).view_as(x), rtol=1e-4, atol=1e-5)


def test_a_full_expert_turns_tokens_away() -> None:
    """Capacity: of tokens that all want one expert, its places take the first."""
    torch = pytest.importorskip("torch")
    from labkit.memory.oracles.blocks import Experts

    layer = Experts(EXPERTS.resized(experts_per_token=1))
    slots, filled = layer.places(torch.tensor([[2]] * 8))
    assert slots.view(4, 2)[2].tolist() == [0, 1]
    assert filled.view(4, 2).tolist() == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]


def test_values_narrower_than_keys_get_the_right_gradients() -> None:
    torch = pytest.importorskip("torch")
    from labkit.memory.oracles.blocks import attend_eagerly, attend_narrowly

    torch.manual_seed(0)
    shapes = [(2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 4)]
    operands = [torch.randn(shape, requires_grad=True) for shape in shapes]
    outs = [run(*operands) for run in (attend_narrowly, attend_eagerly)]
    torch.testing.assert_close(*outs)
    grads = [torch.autograd.grad(out.square().sum(), operands) for out in outs]
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two)


def test_a_dropped_element_has_no_gradient_and_the_rest_keep_the_mean() -> None:
    torch = pytest.importorskip("torch")
    from labkit.memory.oracles import kernels

    torch.manual_seed(0)
    x = torch.ones(10_000, requires_grad=True)
    out = kernels.dropout(x, 1)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, out.detach())
    # Each is 0 or 1/(1-p): a standard error of sqrt(p/(1-p)/n); five of them are never seen.
    error = (kernels.DROP / (1 - kernels.DROP) / 10_000) ** 0.5
    assert abs(float(out.detach().mean()) - 1) < 5 * error


@pytest.mark.parametrize("name", sorted(presets()))
def test_parameters_of_every_preset(name: str) -> None:
    """The tape's own count is the catalogue's, but for what corrects a router's choices."""
    model = Model.preset(name)
    # PaLM has LayerNorms around a gated MLP; the tape's gated blocks have RMSNorms.
    model = replace(model, norm="rmsnorm" if model.mlp == "swiglu" else "layernorm")
    routers = (model.num_layers - model.num_dense_layers) * model.router_bias
    assert steps.trained(model)[0] + routers * model.num_experts == model.num_params


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_has_moments_of_its_own_kind(name: str) -> None:
    model = Model.preset(name)
    plan = Plan(
        model=model,
        parallel=Parallel(dp=8, zero=3, ep=2 if model.num_experts else 1),
        recipe=Recipe.bf16_mixed(),
        batch=Batch(seq=min(model.positions or 128, 128), micro_batch=1),
    )
    assert not any("nearest" in note or "one MLP" in note for note in plan.assumptions)
    kinds = {
        term.component.split(".")[1] for term in plan.terms() if "activation." in term.component
    }
    assert ("experts" in kinds) == bool(model.num_experts)
    assert ("mlp" in kinds) >= bool(model.num_dense_layers)


def test_three_projections_keep_their_input_once() -> None:
    """But autocast casts it for each matrix it meets; one matrix for all has one cast."""
    given = {"seq": 64, "micro_batch": 2}
    one = LLAMA.resized(fused_qkv=True)
    for dtype, copies in (("bf16", 1), ("fp32", 1), ("autocast", 3)):
        mode = Mode(dtype=dtype)
        found = []
        for model in (LLAMA, one):
            terms = {t.component: t.num_bytes for t in saved.layer_terms(model, mode, **given)}
            found.append(terms["attention.projection input"])
        size = mode.compute_bytes * 128 * LLAMA.hidden
        assert found == [copies * size, size]


def test_experts_of_many_ranks() -> None:
    """ep divides the experts' weights, not the rows; tp the experts' width, not the rows."""
    given = {"seq": 64, "micro_batch": 2}

    def term(name: str, **cut: int) -> Any:
        found = {
            t.component: t.num_bytes for t in saved.layer_terms(EXPERTS, Mode(), **given, **cut)
        }
        return found[f"experts.{name}"]

    assert term("rows", ep=2) == term("rows", tp=2) == term("rows") == 2 * 2 * 128 * 64
    assert term("gate", tp=2) * 2 == term("gate", ep=2) == term("gate")
    whole, halved = (steps.trained(EXPERTS, ep=ep)[0] for ep in (1, 2))
    assert whole - halved == expert_params(EXPERTS) // 2


@pytest.mark.parametrize("name", ["gpt3-175b", "gpt2-355m"])
def test_dropout_of_a_gpu_is_the_published_sum(name: str) -> None:
    """Korthikanti et al. 2022, eq. 1: 34 + 5as/h bytes a token, layer and hidden unit, from the
    moments themselves: what one more layer adds at the end of the forward pass."""
    model = Model.preset(name)
    seq = 1024
    mode = Mode(attention="eager", dropout_mask_bytes=1)
    totals = [
        moments.moments(model.resized(num_layers=n), mode, seq=seq, micro_batch=2) for n in (8, 9)
    ]
    more = np.diff([found["loss forward"]["activations"] for found in totals])[0]
    statistics = 8 * 2 * seq
    causal = seq * seq
    width = 2 * seq * model.hidden
    assert (more - statistics - causal) / width == pytest.approx(
        34 + 5 * model.heads * seq / model.hidden
    )


def test_a_fused_loss_keeps_gradients_instead_of_logits() -> None:
    model = Model.preset("llama-3-8b")
    given = {"seq": 8192, "micro_batch": 1}
    ends = {t.component: t.num_bytes for t in saved.end_terms(model, Mode(loss="fused"), **given)}
    assert ends["loss.gradient of the weight"] == 2 * model.hidden * model.vocab
    full = [moments.moments(model, Mode(loss=loss), **given) for loss in ("fused", "eager-fp32")]
    fused, eager = (sum(found["loss forward"].values()) for found in full)
    logits = 8192 * model.vocab
    # fp32 logits, their log-softmax and the bf16 ones beside an eighth of bf16 ones, and gradients.
    saving = logits * (4 + 4) + 2 * 8192 * model.hidden - logits * 2 // 8
    assert eager - fused <= saving
    assert fused < eager


def test_two_kinds_of_layers_take_numbers() -> None:
    many = DEEPSEEK.resized(num_layers=9)
    with pytest.raises(UsageError, match="must be numbers, not arrays"):
        steps.peak(many, Mode(recompute="full"), **SMALL, group=np.array([1, 2]))
