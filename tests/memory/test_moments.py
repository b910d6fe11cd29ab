"""The step's moments and its peak, against torch's tracker: every moment's bytes, not only one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.memory import Plan
from labkit.memory.oracles import accuracy, cases, tracker
from labkit.memory.tape import saved
from labkit.memory.tape.saved import Mode
from labkit.memory.tape.sizes import Shape, shape_of
from labkit.models import Model
from tests.memory import steps
from tests.memory.steps import GPT
from tests.oracles import packing

STEPS = [*steps.grid(), *steps.others()]
"""Two tests look at one run of each, and so stand in one module: two would run in two processes."""
REPEATS = ("group", "period")


@pytest.mark.parametrize("case", STEPS)
def test_every_moment_is_torchs(case: steps.Case) -> None:
    model, mode, sizes = case
    seen = steps.tracked(case)
    given_sizes = dict(sizes)
    told = steps.moments_of(model, mode, **given_sizes)
    totals = {moment: sum(told[moment].values()) for moment in seen.moments if moment in told}
    assert totals == {moment: seen.moments[moment]["Total"] for moment in totals}
    assert set(seen.moments) - set(told) <= {"forward, middle", "backward, middle"}
    peak = steps.peak(model, mode, **given_sizes)
    assert (peak.num_bytes, peak.moment) == (seen.peak_bytes, seen.peak_moment)


@pytest.mark.parametrize("case", STEPS)
def test_layers_save_what_torch_saves(case: steps.Case) -> None:
    model, mode, sizes = case
    seen = steps.tracked(case)
    given = dict(sizes)
    batch = {name: given[name] for name in ("seq", "micro_batch")}
    repeat = {name: given[name] for name in REPEATS if name in given}
    stack = saved.total_bytes(saved.stack_terms(model, mode, **batch, **repeat))
    if mode.recompute == "operators":  # what its checkpoint keeps of outputs is never packed
        layer = saved.total_bytes(saved.layer_terms(model, mode, **batch))
        assert mode.dtype == "autocast" or set(seen.layer_kept_bytes) == {layer}
        assert stack == layer * model.num_layers > sum(seen.layer_saved_bytes)
        return
    assert sum(seen.layer_saved_bytes) == stack
    ends = saved.total_bytes(saved.end_terms(model, mode, **batch))
    assert seen.saved_bytes == stack + ends
    if repeat:
        return
    layer = saved.total_bytes(saved.layer_terms(model, mode, **batch))
    assert seen.layer_saved_bytes == (layer,) * model.num_layers
    # What lives is what is saved, but for autocast's cached biases, and for the layer's input where
    # a norm written out saves its fp32 copy instead.
    if mode.dtype != "autocast" and mode.norm_fused:
        assert set(seen.layer_kept_bytes) <= {layer}


def test_stored_steps_ran_on_these_networks() -> None:
    """Else all of them run live, which takes a minute: ``python -m tests.oracles.packing``."""
    stored = json.loads(packing.STORED.read_text(encoding="utf-8"))["versions"]
    if stored["torch"] != packing.versions()["torch"]:
        pytest.skip(f"stored with torch {stored['torch']}")
    assert stored == packing.versions()


@pytest.mark.slow
@pytest.mark.parametrize("plan", cases.on_one_rank(), ids=lambda plan: plan.model.name)
def test_large_models_peak_where_torch_says(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(tracker, "track", lambda **of: packing.step(packing.case_of(**of)))
    row = accuracy.peak_row(plan)
    assert row["error_bytes"] == 0
    assert row["predicted_moment"] == row["tracked_moment"]


def test_the_table_has_different_moments() -> None:
    """Else naming the moment right would be no feat."""
    assert len({plan.peak_moment for plan in cases.on_one_rank()}) >= 6


@pytest.mark.parametrize("name", ["gpt2-124m", "gpt2-1.5b", "llama-2-7b", "llama-3-70b"])
def test_parameters_are_the_models(name: str) -> None:
    model = Model.preset(name)
    assert steps.trained(model) == (model.num_params, len(model.tensors()))


def spread(size: int, seed: int) -> tuple[Shape, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    heads = rng.integers(2, 9, size)
    small = Model(num_layers=1, hidden=16, heads=1, vocab=9)
    model = shape_of(
        small,
        num_layers=rng.integers(2, 40, size),
        hidden=16 * heads,
        heads=heads,
        kv_heads=heads,
        head_dim=16,
        ffn=rng.integers(16, 900, size),
        vocab=rng.integers(9, 5000, size),
        positions=256,
    )
    return model, {"seq": rng.integers(1, 257, size), "micro_batch": rng.integers(1, 5, size)}


def one_of(model: Shape, sizes: dict[str, Any], place: int) -> tuple[Model, dict]:
    chosen = {name: _at(value, place) for name, value in vars(model).items()}
    return Model(**chosen), {name: _at(value, place) for name, value in sizes.items()}


def _at(value: Any, place: int) -> Any:
    return int(value[place]) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("step", steps.STEPS)
@pytest.mark.parametrize(
    "choices", [{}, {"attention": "eager"}, {"recompute": "full"}, {"loss": "chunked"}]
)
def test_arrays_give_what_numbers_give(choices: dict[str, Any], step: str) -> None:
    mode = Mode(**choices)
    model, sizes = spread(40, seed=3)
    peak = steps.peak(model, mode, step=step, **sizes)
    assert (sum(peak.components.values()) == peak.num_bytes).all()
    for place in range(40):
        single, given_sizes = one_of(model, sizes, place)
        found = steps.peak(single, mode, step=step, **given_sizes)
        assert (found.num_bytes, found.moment) == (peak.num_bytes[place], peak.moment[place])


def test_groups_may_vary_within_a_call() -> None:
    mode = Mode(recompute="full")
    groups = np.array([1, 2, 3, 7, 50])
    model = GPT.resized(num_layers=7)
    sizes = {"seq": 16, "micro_batch": 2}
    found = steps.peak(model, mode, group=groups, **sizes).num_bytes
    single = [steps.peak(model, mode, group=int(g), **sizes).num_bytes for g in groups]
    assert found.tolist() == single


@settings(max_examples=40)
@given(
    layers=st.integers(1, 30),
    seq=st.integers(1, 300),
    micro_batch=st.integers(2, 9),
    hidden=st.integers(1, 20),
    vocab=st.integers(2, 3000),
)
def test_more_of_anything_is_never_less(
    layers: int, seq: int, micro_batch: int, hidden: int, vocab: int
) -> None:
    model = Model(num_layers=layers, hidden=8 * hidden, heads=4, vocab=vocab, positions=999)
    mode = Mode()
    sizes = {"seq": seq, "micro_batch": micro_batch}
    base = steps.peak(model, mode, **sizes).num_bytes
    assert steps.peak(model, mode, seq=seq + 1, micro_batch=micro_batch).num_bytes > base
    assert steps.peak(model, mode, seq=seq, micro_batch=micro_batch + 1).num_bytes > base
    assert steps.peak(model.resized(num_layers=layers + 1), mode, **sizes).num_bytes > base
    assert steps.peak(model, replace(mode, dtype="fp32"), **sizes).num_bytes > base
    assert steps.peak(model, replace(mode, recompute="full"), **sizes).num_bytes <= base


def test_bad_sizes_name_the_rule() -> None:
    with pytest.raises(UsageError, match="seq must be >= 1, got 0"):
        steps.peak(GPT, Mode(), seq=0, micro_batch=1)
    with pytest.raises(UsageError, match=r"period must be in 2\.\.num_layers"):
        steps.peak(GPT, Mode(recompute="every"), seq=8, micro_batch=1, period=9)
