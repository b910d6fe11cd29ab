"""The step's moments and its peak, against torch's tracker: every moment's bytes, not only one."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.memory import accuracy, moments
from labkit.memory.saved import Mode
from labkit.models import Model

GPT = Model(num_layers=3, hidden=48, heads=4, vocab=101, positions=40)
LLAMA = Model(
    num_layers=3, hidden=64, heads=4, kv_heads=2, ffn=88, vocab=97,
    tied=False, bias=False, mlp="swiglu", norm="rmsnorm", fused_qkv=False,
)  # fmt: skip
BOTH = {"gpt": GPT, "llama": LLAMA, "llama without groups": LLAMA.resized(kv_heads=4)}


def grid() -> list[Any]:
    sizes = cycle([(2, 12), (1, 16), (3, 33), (2, 7)])
    steps, losses, norms = (
        cycle(moments.STEPS),
        cycle(["eager-fp32", "plain"]),
        cycle([True, False]),
    )
    return [
        pytest.param(
            name,
            Mode(
                dtype=dtype,
                attention=attention,
                recompute=recompute,
                loss=next(losses),
                norm_fused=next(norms) if dtype == "bf16" else not next(norms),
            ),
            {"step": next(steps), **dict(zip(("micro_batch", "seq"), next(sizes), strict=True))},
            id=f"{name}-{dtype}-{attention}-{recompute}",
        )
        for dtype, attention, recompute in product(
            ("bf16", "fp32", "autocast"), ("sdpa", "eager"), ("none", "selective", "full")
        )
        for name in ([*BOTH] if attention == "eager" and dtype == "bf16" else ["gpt", "llama"])
    ]


def assert_all_moments_agree(model: Model, mode: Mode, sizes: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from labkit.memory import tracker

    seen = tracker.track(model, mode, **sizes)
    told = moments.moments(model, mode, **sizes)
    totals = {moment: sum(told[moment].values()) for moment in seen.moments if moment in told}
    assert totals == {moment: seen.moments[moment]["Total"] for moment in totals}
    assert set(seen.moments) - set(told) <= {"forward, middle", "backward, middle"}
    peak = moments.peak(model, mode, **sizes)
    assert (peak.num_bytes, peak.moment) == (seen.peak_bytes, seen.peak_moment)


@pytest.mark.parametrize(("name", "mode", "sizes"), grid())
def test_every_moment_is_torchs(name: str, mode: Mode, sizes: dict[str, Any]) -> None:
    assert_all_moments_agree(BOTH[name], mode, sizes)


@pytest.mark.parametrize(
    ("model", "choices", "sizes"),
    [
        (GPT.resized(num_layers=8), {"recompute": "full"}, {"group": 3}),
        (LLAMA.resized(num_layers=6), {"recompute": "full", "dtype": "autocast"}, {"group": 2}),
        (LLAMA.resized(num_layers=7), {"recompute": "every"}, {"period": 3}),
        (GPT.resized(num_layers=5), {"recompute": "every", "dtype": "autocast"}, {"period": 2}),
        (GPT, {"loss": "chunked"}, {"chunks": 3}),
        (LLAMA, {"loss": "chunked", "dtype": "autocast"}, {"chunks": 5}),
        (LLAMA.resized(bias=True, tied=True), {}, {}),
        (GPT.resized(bias=False, tied=False), {}, {}),
        (GPT.resized(num_layers=1), {}, {}),
        (GPT.resized(num_layers=2), {"recompute": "full"}, {}),
        (GPT.resized(kv_heads=2), {"attention": "eager"}, {}),
    ],
)
def test_other_shapes_of_a_step_are_torchs(
    model: Model, choices: dict[str, Any], sizes: dict[str, Any]
) -> None:
    assert_all_moments_agree(model, Mode(**choices), {"seq": 30, "micro_batch": 4, **sizes})


@pytest.mark.slow
@pytest.mark.parametrize("case", accuracy.quick_cases(), ids=lambda case: case.name)
def test_large_models_peak_where_torch_says(case: accuracy.Case) -> None:
    pytest.importorskip("torch")
    row = accuracy.compare(case)
    assert row["error_bytes"] == 0
    assert row["predicted_moment"] == row["tracked_moment"]


def test_the_table_has_different_moments() -> None:
    """Else naming the moment right would be no feat."""
    peaks = {moments.peak(c.model, c.mode, **c.sizes).moment for c in accuracy.quick_cases()}
    assert len(peaks) >= 6


@pytest.mark.parametrize("name", ["gpt2-124m", "gpt2-1.5b", "llama-2-7b", "llama-3-70b"])
def test_parameters_are_the_models(name: str) -> None:
    model = Model.preset(name)
    assert moments.num_params(model) == model.num_params


def test_adamw_remembers_two_numbers_a_parameter_and_a_counter_a_tensor() -> None:
    model = Model.preset("gpt2-124m")
    numbers = moments.Numbers(seq=8, micro_batch=1)
    there = moments.held(model, Mode(dtype="fp32"), numbers)
    assert there["optimizer"] == 8 * model.num_params + 4 * len(model.tensors())


def spread(size: int, seed: int) -> tuple[SimpleNamespace, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    heads = rng.integers(2, 9, size)
    model = SimpleNamespace(
        num_layers=rng.integers(2, 40, size), hidden=16 * heads, heads=heads, kv_heads=heads,
        head_dim=16, ffn=rng.integers(16, 900, size), vocab=rng.integers(9, 5000, size),
        positions=256, tied=True, bias=True, mlp="gelu", norm="layernorm",
    )  # fmt: skip
    return model, {"seq": rng.integers(1, 257, size), "micro_batch": rng.integers(1, 5, size)}


def one_of(model: SimpleNamespace, sizes: dict[str, Any], place: int) -> tuple[Model, dict]:
    chosen = {name: _at(value, place) for name, value in vars(model).items()}
    return Model(**chosen), {name: _at(value, place) for name, value in sizes.items()}


def _at(value: Any, place: int) -> Any:
    return int(value[place]) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("step", moments.STEPS)
@pytest.mark.parametrize(
    "choices", [{}, {"attention": "eager"}, {"recompute": "full"}, {"loss": "chunked"}]
)
def test_arrays_give_what_numbers_give(choices: dict[str, Any], step: str) -> None:
    """The quick path, which drops points early, included."""
    mode = Mode(**choices)
    model, sizes = spread(40, seed=3)
    peak = moments.peak(model, mode, step=step, **sizes)
    quick = moments.peak_bytes(model, mode, step=step, **sizes)
    assert (peak.num_bytes == quick).all()
    assert (sum(peak.components.values()) == quick).all()
    for place in range(40):
        single, given_sizes = one_of(model, sizes, place)
        found = moments.peak(single, mode, step=step, **given_sizes)
        assert (found.num_bytes, found.moment) == (quick[place], peak.moment[place])


def test_groups_may_vary_within_a_call() -> None:
    mode, groups = Mode(recompute="full"), np.array([1, 2, 3, 7, 50])
    model = GPT.resized(num_layers=7)
    sizes = {"seq": 16, "micro_batch": 2}
    found = moments.peak_bytes(model, mode, group=groups, **sizes)
    single = [moments.peak(model, mode, group=int(g), **sizes).num_bytes for g in groups]
    assert found.tolist() == single


@settings(max_examples=40)
@given(
    layers=st.integers(1, 30), seq=st.integers(1, 300), micro_batch=st.integers(2, 9),
    hidden=st.integers(1, 20), vocab=st.integers(2, 3000),
)  # fmt: skip
def test_more_of_anything_is_never_less(
    layers: int, seq: int, micro_batch: int, hidden: int, vocab: int
) -> None:
    model = Model(num_layers=layers, hidden=8 * hidden, heads=4, vocab=vocab, positions=999)
    mode, sizes = Mode(), {"seq": seq, "micro_batch": micro_batch}
    base = moments.peak(model, mode, **sizes).num_bytes
    assert moments.peak(model, mode, seq=seq + 1, micro_batch=micro_batch).num_bytes > base
    assert moments.peak(model, mode, seq=seq, micro_batch=micro_batch + 1).num_bytes > base
    assert moments.peak(model.resized(num_layers=layers + 1), mode, **sizes).num_bytes > base
    assert moments.peak(model, replace(mode, dtype="fp32"), **sizes).num_bytes > base
    assert moments.peak(model, replace(mode, recompute="full"), **sizes).num_bytes <= base


def test_bad_sizes_name_the_rule() -> None:
    with pytest.raises(UsageError, match="seq must be >= 1, got 0"):
        moments.peak(GPT, Mode(), seq=0, micro_batch=1)
    with pytest.raises(UsageError, match="period must be in 2..num_layers"):
        moments.peak(GPT, Mode(recompute="every"), seq=8, micro_batch=1, period=9)
    with pytest.raises(UsageError, match="step must be one of foreach, fused, for-loop"):
        moments.peak(GPT, Mode(), seq=8, micro_batch=1, step="each")
