"""The tracker itself: that watching changes nothing, and what torch does that we rely on."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.errors import UsageError
from labkit.memory.oracles import tracker
from labkit.memory.tape.mode import Mode
from labkit.models import Model

torch = pytest.importorskip("torch")

GPT = Model(num_layers=2, hidden=32, heads=4, vocab=71, positions=16)
LLAMA = Model(
    num_layers=2,
    hidden=32,
    heads=4,
    kv_heads=2,
    ffn=40,
    vocab=71,
    tied=False,
    bias=False,
    mlp="swiglu",
    norm="rmsnorm",
    fused_qkv=False,
)


def plain_peak(model: Model, mode: Mode, seq: int, micro_batch: int) -> int:
    """The peak as MemTracker itself reports it, nobody else looking on."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from labkit.memory.oracles import networks

    with FakeTensorMode():
        network = networks.build(model, mode, seq=seq)
        optimizer = networks.adamw(network, "foreach")
        for parameter in network.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        batch = [torch.zeros(micro_batch, seq, dtype=torch.int64) for _ in range(2)]
        seen = MemTracker()
        seen.track_external(network, optimizer, *batch)
        with seen:
            with networks.autocast(mode):
                loss = network(*batch)
            loss.backward()
            del loss
            optimizer.step()
    (snapshot,) = seen.get_tracker_snapshot("peak").values()
    return snapshot["Total"]


@pytest.mark.parametrize(
    ("model", "choices"),
    [(GPT, {}), (GPT, {"dtype": "autocast", "recompute": "full"}), (LLAMA, {"attention": "eager"})],
)
def test_watching_changes_nothing(model: Model, choices: dict[str, Any]) -> None:
    mode = Mode(**choices)
    seen = tracker.track(model, mode, seq=12, micro_batch=3)
    assert seen.peak_bytes == plain_peak(model, mode, 12, 3)
    assert seen.peak_bytes == max(parts["Total"] for parts in seen.moments.values())
    assert seen.moments[seen.peak_moment]["Total"] == seen.peak_bytes


def test_the_networks_have_the_models_parameters() -> None:
    from labkit.memory.oracles import networks

    for model in (GPT, LLAMA, LLAMA.resized(head_dim=16, tied=True)):
        network = networks.build(model, Mode(), seq=8)
        assert sum(p.numel() for p in network.parameters()) == model.num_params


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize(
    "choices",
    [
        {"attention": "eager"},
        {"recompute": "selective"},
        {"recompute": "full"},
        {"recompute": "every"},
        {"norm_fused": False},
        {"loss": "chunked"},
    ],
)
def test_all_ways_to_compute_agree_on_real_numbers(model: Model, choices: dict[str, Any]) -> None:
    """The networks compute what they should: the same loss and gradients whatever is kept."""
    from labkit.memory.oracles import networks

    tokens = torch.randint(model.vocab, (3, 12), generator=torch.Generator().manual_seed(1))
    found = []
    for mode in (Mode(dtype="fp32"), Mode(dtype="fp32", **choices)):
        torch.manual_seed(0)
        network = networks.build(model, mode, seq=12, period=2, chunks=4)
        loss = network(tokens, tokens.roll(-1, dims=1))
        loss.backward()
        gradients = [p.grad for p in network.parameters()]
        assert all(gradient is not None for gradient in gradients)
        found.append([loss.detach(), *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_rotary_positions_are_relative() -> None:
    from labkit.memory.oracles import blocks, networks

    tables = networks.rotary_tables(9, 8, Mode(dtype="fp32"))
    x = torch.randn(8)
    y = torch.randn(8)
    turned = [blocks.rotate(v.expand(9, 8), *tables) for v in (x, y)]
    scores = turned[0] @ turned[1].T
    for offset in range(-3, 4):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[0].expand_as(diagonal), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_tracked_is_refused() -> None:
    with pytest.raises(UsageError, match="seq \\(17\\) must not exceed the model's positions"):
        tracker.track(GPT, Mode(), seq=17, micro_batch=1)
    with pytest.raises(UsageError, match="mlp must be swiglu where qk_norm=True"):
        tracker.track(GPT.resized(qk_norm=True), Mode(), seq=8, micro_batch=1)
