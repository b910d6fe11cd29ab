"""Models of the transformers library under torch's tracker, beside plans read from their config.

Every third of the 48 cases runs; ``LABKIT_TRANSFORMERS=all`` runs all (two minutes). Older versions
of the library were run once and stored.
"""

from __future__ import annotations

import json
import os
from importlib import metadata
from itertools import product
from typing import Any

import pytest

from labkit.errors import BadValue, UsageError
from labkit.memory import Adapter, Batch, Model, Parallel, Plan, Recipe
from labkit.memory.plans.job import mode_of
from labkit.memory.tape import saved
from labkit.models import huggingface
from tests.oracles import transformers_peaks
from tests.oracles.transformers_peaks import CONFIGS, Case, cases_of, configuration, label

RECIPES = {
    "bf16": Recipe(master=None, states="bf16", step="foreach"),
    "autocast": Recipe.preset("bf16-autocast", step="foreach"),
}
# grouped_mm takes bf16 only, also under autocast's fp32 parameters on a CPU.
EVERY = [
    (family, recipe, attention, checkpointed)
    for family, recipe, attention, checkpointed in product(
        CONFIGS, RECIPES, ("sdpa", "eager"), (False, True)
    )
    if recipe == "bf16" or family not in {"mixtral", "qwen3_moe"}
]
CASES = EVERY if os.environ.get("LABKIT_TRANSFORMERS") == "all" else EVERY[::5]
STORED = json.loads(transformers_peaks.STORED.read_text(encoding="utf-8"))["peak_bytes"]


def planned(model: Model, case: Case) -> int | float:
    _, recipe, attention, checkpointed = case
    batch = Batch(
        seq=256,
        micro_batch=4,
        attention=attention,  # type: ignore[arg-type]
        recompute="full" if checkpointed else "none",
    )
    return Plan(model=model, recipe=RECIPES[recipe], batch=batch).peak_bytes


@pytest.mark.parametrize("case", CASES, ids=label)
def test_peaks_are_those_of_the_library(case: Case) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    name, sizes = CONFIGS[case[0]]
    model = Model.from_hf(getattr(transformers, name)(**sizes).to_dict())
    assert planned(model, case) == pytest.approx(transformers_peaks.tracked(*case), rel=0.02)


@pytest.mark.parametrize(
    ("version", "case"),
    [(version, case) for version in STORED for case in cases_of(version)],
    ids=lambda value: value if isinstance(value, str) else label(value),
)
def test_peaks_are_those_of_older_versions(case: Case, version: str) -> None:
    """Attention's contiguous copies in 4.48 to 4.55, which are not described, make up 2.3 %."""
    model = Model.from_hf(configuration(case[0], version), transformers_version=version)
    assert planned(model, case) == pytest.approx(STORED[version][label(case)], rel=0.025)


@pytest.mark.parametrize(
    ("kind", "attention", "older", "newer"),
    [
        ("llama", "sdpa", "4.53.3", "4.57.6"),
        ("gpt2", "eager", "4.51.3", "4.52.4"),
        ("gpt2", "eager", "4.42.4", "4.52.4"),
    ],
)
def test_with_another_versions_operators_they_are_not(
    kind: str, attention: str, older: str, newer: str
) -> None:
    """Else the table of versions would say nothing."""
    case: Case = (kind, "autocast" if kind == "gpt2" else "bf16", attention, False)
    model = Model.from_hf(configuration(kind), transformers_version=newer)
    assert planned(model, case) != pytest.approx(STORED[older][label(case)], rel=0.025)


def test_the_version_is_the_given_or_the_installed_or_the_nearest(monkeypatch: Any) -> None:
    def source(installed: str, kind: str = "llama", **given: str) -> str:
        monkeypatch.setattr(huggingface.metadata, "version", lambda _: installed)
        return Model.from_hf(configuration(kind, "4.30"), **given).source

    assert "(transformers 4.53)" in source("4.53.1.dev0")
    assert "(transformers 4.50)" in source("5.0.0", transformers_version="4.50.3")
    assert "(transformers 5.23, the nearest checked to 7.1.0, unverified)" in source("7.1.0")
    assert "(transformers 4.40, the nearest checked to 4.39.3, unverified)" in source("4.39.3")
    assert "(transformers 4.28, the nearest checked to 4.20.1, unverified)" in source("4.20.1")
    assert "(transformers 4.30)" in source("5.0.0", transformers_version="4.30.2")
    assert "(transformers 4.57, experts as of 5.0)" in source("4.57.0", "mixtral")
    model = Model.from_hf(configuration("llama"), transformers_version="4.50")
    notes = Plan(model=model, batch=Batch(seq=64)).assumptions
    assert any("transformers 4.50" in note for note in notes)

    def none(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(huggingface.metadata, "version", none)
    assert "5.23, since none is installed" in Model.from_hf(configuration("llama")).source


@pytest.mark.parametrize("version", ["4.27.4", "4.38.2", "4.39", "5.24", "6", "newest", "4.5x"])
def test_versions_that_nobody_ran_are_refused(version: str) -> None:
    with pytest.raises(BadValue, match=r"4\.28 to 4\.37, 4\.40 to 5\.23 for llama, got"):
        Model.from_hf(configuration("llama"), transformers_version=version)


@pytest.mark.parametrize(
    ("kind", "version", "valid"),
    [("mistral", "4.33", "4.34 to 5.23"), ("qwen2", "4.36.2", "4.37"), ("qwen3", "4.50", "4.51")],
)
def test_a_family_is_known_since_it_is_there(kind: str, version: str, valid: str) -> None:
    with pytest.raises(BadValue, match=valid):
        Model.from_hf(configuration(kind), transformers_version=version)


def old_llama(**sizes: Any) -> Model:
    """LLaMA-7B as transformers 4.30 ran it."""
    fields = {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    }
    return Model.from_hf(fields | sizes, transformers_version="4.30.2")


@pytest.mark.parametrize(("layers", "num_bytes"), [(2, 3_332_501_450), (32, 46_374_907_970)])
def test_llama_of_2023_keeps_what_the_library_kept(layers: int, num_bytes: int) -> None:
    """8 × 512 tokens in 16 bits. The bytes are those of all storages that the library's own module
    of 4.30.2 saved for its backward pass, under torch 2.13's hooks on fake tensors, run by hand:
    43.19 GiB for LLaMA-7B. The LOMO paper (Lv et al. 2023, Table 1) gives 45.61 GiB of
    activations; what the other 5.3 % are it does not say.
    """
    model = old_llama(num_hidden_layers=layers)
    sizes = {"seq": 512, "micro_batch": 8}
    mode = mode_of(model, Recipe.preset("bf16-mixed"), Batch(**sizes))
    terms = (*saved.stack_terms(model, mode, **sizes), *saved.end_terms(model, mode, **sizes))
    assert saved.total_bytes(terms) == num_bytes


def prompt_tuning() -> Recipe:
    """Twenty virtual tokens before each sample."""
    return Recipe.preset("lora", adapter=Adapter(kind="prompt", tokens=20))


def test_sdpa_is_written_out_where_there_was_none() -> None:
    totals = {}
    for attention in ("eager", "sdpa", "flash"):
        batch = Batch(seq=512, attention=attention)  # type: ignore[arg-type]
        totals[attention] = Plan(model=old_llama(), batch=batch).moments()["total"]
    assert totals["eager"].equals(totals["sdpa"])
    assert totals["sdpa"]["loss forward"] > totals["flash"]["loss forward"]


def test_old_code_has_no_groups_of_heads() -> None:
    with pytest.raises(UsageError, match=r"num_attention_heads \(32\) before transformers 4.31"):
        old_llama(num_key_value_heads=8)


@pytest.mark.parametrize(
    ("part", "match"),
    [
        ({"batch": Batch(seq=8, recompute="selective")}, "recompute must be none, full"),
        ({"batch": Batch(seq=8, offload_activations="cpu")}, "offload_activations must be device"),
        ({"parallel": Parallel(cp=2), "batch": Batch(seq=8)}, "cp must be 1"),
        (
            {"recipe": prompt_tuning(), "batch": Batch(seq=8)},
            "adapter.tokens must be 0 with the operators of older versions",
        ),
    ],
)
def test_what_nobody_ran_with_old_code_is_refused(part: dict[str, Any], match: str) -> None:
    with pytest.raises(BadValue, match=match):
        _ = Plan(model=old_llama(), **part).peak_bytes
