"""Saved activations in closed form: by hand, by the tape, and by published equations."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice, product
from typing import Any

import numpy as np
import pytest

from labkit.errors import UsageError
from labkit.memory.tape import saved
from labkit.memory.tape.saved import Mode
from labkit.memory.tape.sizes import shape_of
from labkit.models import Model
from tests.memory.steps import GPT, LLAMA
from tests.oracles import saved_by_hand as by_hand

GIVEN = {"seq": 1024, "micro_batch": 2}


def combinations() -> list[Any]:
    """Some of all choices for each kind of block, others each time."""
    shift = cycle(range(3))
    rows = []
    for name, model in BLOCKS.items():
        every = product(
            ("bf16", "fp32", "autocast"), ("sdpa", "eager"), ("none", "selective", "full", "every"),
            ("eager-fp32", "chunked", "fused"), (0, 1), (True, False),
        )  # fmt: skip
        rows += [(name, model, choices) for choices in islice(every, next(shift), None, 17)]
    return [
        pytest.param(m, choices, id="-".join(map(str, (n, *choices)))) for n, m, choices in rows
    ]


BLOCKS = {
    "gpt": GPT,
    "llama": LLAMA,
    "experts": LLAMA.resized(num_experts=4, experts_per_token=2, expert_ffn=24),
    "normalised": LLAMA.resized(qk_norm=True),
    "latent": Model.preset("deepseek-v3").resized(num_layers=6),
}
CHOICES = ("dtype", "attention", "recompute", "loss", "dropout_mask_bytes", "norm_fused")


@pytest.mark.parametrize(("model", "choices"), combinations())
def test_the_tapes_record_is_the_closed_form_by_hand(model: Model, choices: Any) -> None:
    mode = Mode(**dict(zip(CHOICES, choices, strict=True)))
    alone = {"seq": 16, "micro_batch": 1, "tp": 2, "sequence_parallel": True}
    for sizes in ({"seq": 32, "micro_batch": 2}, alone):
        repeats = {"period": 2, "group": 2}
        pairs = [
            (saved.layer_terms(model, mode, **sizes), by_hand.layer_terms(model, mode, **sizes)),
            (saved.end_terms(model, mode, **sizes), by_hand.end_terms(model, mode, **sizes)),
            (
                saved.stack_terms(model, mode, **sizes, **repeats),
                by_hand.stack_terms(model, mode, **sizes, **repeats),
            ),
        ]
        for ours, theirs in pairs:
            assert saved.total_bytes(ours) == by_hand.total_bytes(theirs)


def per_token(model: Model, mode: Mode, *, leave_out: tuple[str, ...] = (), **given: Any) -> Any:
    """Bytes a layer and token, in units of the hidden size."""
    terms = saved.layer_terms(model, mode, **{**GIVEN, **given})
    kept = [t for t in terms if not any(word in t.component for word in leave_out)]
    return saved.total_bytes(tuple(kept)) / (GIVEN["seq"] * GIVEN["micro_batch"] * model.hidden)


def test_plain_blocks_have_the_known_sums() -> None:
    gpt = Model.preset("gpt2-1.5b")
    llama = Model.preset("llama-3-8b")
    a = gpt.heads
    h = gpt.hidden
    s = GIVEN["seq"]
    cached = 24 * h * h / (s * GIVEN["micro_batch"] * h)
    assert per_token(gpt, Mode()) == pytest.approx(32 + 4 * a / h + 8 / h)
    assert per_token(gpt, Mode(dtype="autocast")) == pytest.approx(36 + 4 * a / h + 16 / h + cached)
    assert per_token(gpt, Mode(recompute="full")) == 2
    assert per_token(gpt, Mode(recompute="full", dtype="autocast")) == 4
    eager = per_token(gpt, Mode(attention="eager"), leave_out=("causal mask",))
    assert eager == pytest.approx(32 + 2 * a * s / h + 8 / h)
    f = llama.ffn / llama.hidden
    g = llama.kv_heads / llama.heads
    a = llama.heads
    h = llama.hidden
    assert per_token(llama, Mode()) == pytest.approx(12 + 4 * g + 8 * f + 4 * a / h + 8 / h)
    one_kernel = per_token(llama, Mode(swiglu_fused=True))
    assert one_kernel == pytest.approx(12 + 4 * g + 6 * f + 4 * a / h + 8 / h)


# Korthikanti et al. 2022, eq. 1, 2 and 4, and Table 2: they leave out norm statistics and the
# causal mask, and take ffn = 4h and one byte of dropout mask.
LEFT_OUT = ("statistics", "causal mask")


@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("name", ["gpt3-175b", "gpt2-355m"])
def test_korthikanti_equations(t: int, name: str) -> None:
    model = Model.preset(name)
    scores = 5 * model.heads * GIVEN["seq"] / model.hidden
    given = {"tp": t, "leave_out": LEFT_OUT}
    eager = Mode(attention="eager", dropout_mask_bytes=1)
    selective = replace(eager, recompute="selective")
    assert per_token(model, eager, **given) == pytest.approx(10 + 24 / t + scores / t)
    assert per_token(model, eager, sequence_parallel=True, **given) == pytest.approx(
        (34 + scores) / t
    )
    assert per_token(model, selective, **given) == pytest.approx(10 + 24 / t)
    assert per_token(model, selective, sequence_parallel=True, **given) == pytest.approx(34 / t)
    assert per_token(model, Mode(recompute="full"), **given) == 2


def test_arrays_give_what_numbers_give() -> None:
    seqs = np.array([128, 1024])
    batches = np.array([[1], [4], [9]])
    for mode in (Mode(), Mode(attention="eager", dtype="autocast"), Mode(recompute="full")):
        both = saved.total_bytes(saved.stack_terms(GPT, mode, seq=seqs, micro_batch=batches))
        for row, micro_batch in enumerate(batches.ravel().tolist()):
            for column, seq in enumerate(seqs.tolist()):
                one = saved.stack_terms(GPT, mode, seq=seq, micro_batch=micro_batch)
                assert both[row, column] == saved.total_bytes(one)


def test_every_term_says_how_it_comes_about() -> None:
    for model in (GPT, LLAMA):
        terms = saved.layer_terms(model, Mode(attention="eager", dropout_mask_bytes=1), **GIVEN)
        assert all(term.formula and term.source and term.num_bytes > 0 for term in terms)
        assert len({term.component for term in terms}) == len(terms)


def test_wrong_choices_are_named() -> None:
    with pytest.raises(UsageError, match=r"recompute must be one of 'none', 'selective'.*'some'"):
        Mode(recompute="some")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="mlp must be swiglu where num_experts=2"):
        shape_of(GPT.resized(num_experts=2, experts_per_token=1, expert_ffn=8))
    with pytest.raises(UsageError, match="qk_norm must be False where kv_rank"):
        shape_of(Model.preset("deepseek-v3").resized(qk_norm=True))
