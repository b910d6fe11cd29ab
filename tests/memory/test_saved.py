"""Saved activations in closed form: torch's own storages to the byte, and published equations."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import numpy as np
import pytest

from labkit.errors import UsageError
from labkit.memory import saved
from labkit.memory.saved import Mode
from labkit.models import Model

GPT = Model(num_layers=2, hidden=48, heads=4, vocab=61, positions=40)
LLAMA = Model(
    num_layers=2, hidden=64, heads=4, kv_heads=2, ffn=88, vocab=53,
    tied=False, bias=False, mlp="swiglu", norm="rmsnorm", fused_qkv=False,
)  # fmt: skip
WIDE = LLAMA.resized(head_dim=24, kv_heads=4)  # heads wider together than the hidden size
DTYPES, RECOMPUTE = ("bf16", "fp32", "autocast"), ("none", "selective", "full")
GIVEN = {"seq": 1024, "micro_batch": 2}


def grid() -> list[Any]:
    """Every choice with every other; the sizes change from one to the next."""
    sizes = cycle([(1, 16), (2, 12), (3, 7), (2, 33)])
    heads = cycle([1, 2, 4, 8])
    found = []
    for dtype, attention, recompute in product(DTYPES, ("sdpa", "eager"), RECOMPUTE):
        mode = Mode(dtype=dtype, attention=attention, recompute=recompute)
        found.append((GPT.resized(heads=next(heads), head_dim=0), mode, next(sizes)))
        for model in (LLAMA, WIDE):
            fused = (len(found) % 2) == 0
            mode = Mode(dtype=dtype, attention=attention, recompute=recompute, norm_fused=fused)
            found.append((model, mode, next(sizes)))
    return [pytest.param(*case, id="-".join(map(str, _name(*case)))) for case in found]


def _name(model: Model, mode: Mode, size: tuple[int, int]) -> tuple[Any, ...]:
    norm = "fused" if mode.norm_fused else "written-out"
    return model.mlp, mode.dtype, mode.attention, mode.recompute, norm, model.heads, *size


@pytest.mark.parametrize(("model", "mode", "size"), grid())
def test_a_layer_saves_what_torch_saves(model: Model, mode: Mode, size: tuple[int, int]) -> None:
    pytest.importorskip("torch")
    from labkit.memory import tracker

    batch = {"micro_batch": size[0], "seq": size[1]}
    seen = tracker.track(model, mode, **batch)
    layer = saved.total_bytes(saved.layer_terms(model, mode, **batch))
    assert seen.layer_saved_bytes == (layer,) * model.num_layers
    ends = saved.total_bytes(saved.end_terms(model, mode, **batch))
    stack = saved.total_bytes(saved.stack_terms(model, mode, **batch))
    assert seen.saved_bytes == stack + ends
    if mode.dtype != "autocast":  # whose cached biases live, unsaved, to the end of the forward
        assert set(seen.layer_kept_bytes) == {layer}


@pytest.mark.parametrize(
    ("choices", "layers"),
    [({"recompute": "every"}, 7), ({"recompute": "full"}, 7), ({"recompute": "full"}, 6)],
)
def test_a_stack_saves_what_torch_saves(choices: dict[str, Any], layers: int) -> None:
    pytest.importorskip("torch")
    from labkit.memory import tracker

    model, mode = LLAMA.resized(num_layers=layers), Mode(**choices)
    repeat = {"period" if mode.recompute == "every" else "group": 3}
    batch = {"micro_batch": 2, "seq": 9, **repeat}
    stack = saved.total_bytes(saved.stack_terms(model, mode, **batch))
    assert sum(tracker.track(model, mode, **batch).layer_saved_bytes) == stack


def per_token(model: Model, mode: Mode, *, leave_out: tuple[str, ...] = (), **given: Any) -> Any:
    """Bytes a layer and token, in units of the hidden size."""
    terms = saved.layer_terms(model, mode, **{**GIVEN, **given})
    kept = [t for t in terms if not any(word in t.component for word in leave_out)]
    return saved.total_bytes(tuple(kept)) / (GIVEN["seq"] * GIVEN["micro_batch"] * model.hidden)


def test_plain_blocks_have_the_known_sums() -> None:
    gpt, llama = Model.preset("gpt2-1.5b"), Model.preset("llama-3-8b")
    a, h, s = gpt.heads, gpt.hidden, GIVEN["seq"]
    cached = 24 * h * h / (s * GIVEN["micro_batch"] * h)
    assert per_token(gpt, Mode()) == pytest.approx(32 + 4 * a / h + 8 / h)
    assert per_token(gpt, Mode(dtype="autocast")) == pytest.approx(36 + 4 * a / h + 16 / h + cached)
    assert per_token(gpt, Mode(recompute="full")) == 2
    assert per_token(gpt, Mode(recompute="full", dtype="autocast")) == 4
    eager = per_token(gpt, Mode(attention="eager"), leave_out=("causal mask",))
    assert eager == pytest.approx(32 + 2 * a * s / h + 8 / h)
    f, g, a, h = llama.ffn / llama.hidden, llama.kv_heads / llama.heads, llama.heads, llama.hidden
    assert per_token(llama, Mode()) == pytest.approx(12 + 4 * g + 8 * f + 4 * a / h + 8 / h)


# Korthikanti et al. 2022, eq. 1, 2 and 4, and Table 2: they leave out norm statistics and the
# causal mask, and take ffn = 4h and one byte of dropout mask.
LEFT_OUT = ("statistics", "causal mask")


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("name", ["gpt3-175b", "gpt2-355m"])
def test_korthikanti_equations(t: int, name: str) -> None:
    model = Model.preset(name)
    scores = 5 * model.heads * GIVEN["seq"] / model.hidden
    given = {"dropout_mask_bytes": 1, "tp": t, "leave_out": LEFT_OUT}
    eager, selective = Mode(attention="eager"), Mode(attention="eager", recompute="selective")
    assert per_token(model, eager, **given) == pytest.approx(10 + 24 / t + scores / t)
    assert per_token(model, eager, sequence_parallel=True, **given) == pytest.approx(
        (34 + scores) / t
    )
    assert per_token(model, selective, **given) == pytest.approx(10 + 24 / t)
    assert per_token(model, selective, sequence_parallel=True, **given) == pytest.approx(34 / t)
    assert per_token(model, Mode(recompute="full"), **given) == 2


def test_arrays_give_what_numbers_give() -> None:
    seqs, batches = np.array([128, 1024]), np.array([[1], [4], [9]])
    for mode in (Mode(), Mode(attention="eager", dtype="autocast"), Mode(recompute="full")):
        both = saved.total_bytes(saved.stack_terms(GPT, mode, seq=seqs, micro_batch=batches))
        for row, micro_batch in enumerate(batches.ravel().tolist()):
            for column, seq in enumerate(seqs.tolist()):
                one = saved.stack_terms(GPT, mode, seq=seq, micro_batch=micro_batch)
                assert both[row, column] == saved.total_bytes(one)


def test_every_term_says_how_it_comes_about() -> None:
    for model in (GPT, LLAMA):
        terms = saved.layer_terms(model, Mode(attention="eager"), **GIVEN, dropout_mask_bytes=1)
        assert all(term.formula and term.source and term.num_bytes > 0 for term in terms)
        assert len({term.component for term in terms}) == len(terms)


def test_wrong_choices_are_named() -> None:
    with pytest.raises(UsageError, match="recompute must be one of none, selective.*'some'"):
        Mode(recompute="some")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="num_experts=8"):
        saved.supported(Model.preset("mixtral-8x7b"))
