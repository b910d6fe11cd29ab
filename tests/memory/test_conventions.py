"""Each convention against the tool's own numbers, every row of the table of peers."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import product

import pytest

from labkit.errors import BadValue, UsageError
from labkit.memory import Batch, Plan, Recipe
from labkit.memory.jobs import states
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.plans import conventions
from labkit.memory.plans.conventions import convention_terms, differences, total_bytes
from labkit.memory.tape import saved
from labkit.models import Model
from tests.memory.steps import expert_params, stored_elements
from tests.published import need_peers

MODELS = {
    "gpt2-1.5b": Model.preset("gpt2-1.5b"),
    "gpt3-175b": replace(Model.preset("gpt3-175b"), vocab=51200),
    "llama2-7b": Model.preset("llama-2-7b"),
}
LLAMA = Model.preset("llama-2-7b")


def rows(tool: str) -> list[dict[str, str]]:
    found = [row for row in need_peers() if row["tool"] == tool]
    assert found
    return found


def parallel_of(row: dict[str, str], **changes: bool) -> Parallel:
    degrees = {name: int(row[name]) for name in ("dp", "tp", "pp")}
    return Parallel(**degrees, zero=int(row["stage"]), **changes)  # type: ignore[arg-type]


def test_deepspeeds_90_numbers_exactly() -> None:
    for row in rows("deepspeed"):
        kind = row["component"]
        recipe = Recipe(
            offload_optimizer="cpu" if "offload_opt" in kind else "device",
            offload_parameters="cpu" if kind.endswith("param") else "device",
        )
        lines = convention_terms("deepspeed", MODELS[row["case"]], parallel_of(row), recipe)
        place = "host" if kind.startswith("cpu") else "device"
        assert total_bytes(lines, place) == int(row["bytes"]), row


def test_megatrons_120_numbers_exactly() -> None:
    for row in rows("megatron-lm"):
        kind = row["component"]
        batch = Batch(
            seq=int(row["seq"]),
            micro_batch=int(row["mbs"]),
            recompute="none" if kind == "act_no_sp" else "selective",
        )
        parallel = parallel_of(row, sp=kind != "act_no_sp")
        lines = convention_terms("megatron", MODELS[row["case"]], parallel, None, batch)
        held = [line for line in lines if line.component in states.COMPONENTS]
        kept = [line for line in lines if line.component not in states.COMPONENTS]
        wanted = {"states": held, "total": lines}.get(kind, kept)
        assert total_bytes(wanted) == int(row["bytes"]), row


def test_the_papers_240_numbers_exactly() -> None:
    names = {"params": "parameters", "grads": "gradients", "optim": "optimizer"}
    for row in rows("zero-paper-16B"):
        lines = convention_terms("zero-paper", MODELS[row["case"]], parallel_of(row))
        wanted = [x for x in lines if row["component"] in {"total", _short(x.component, names)}]
        assert total_bytes(wanted) == int(row["bytes"]), row


def _short(component: str, names: dict[str, str]) -> str:
    return next(short for short, name in names.items() if name == component)


@pytest.mark.parametrize(
    "name", ["llama-2-7b", "llama-2-70b", "llama-3-8b", "llama-3-405b", "mistral-7b"]
)
def test_megatron_counts_all_of_a_model_without_biases(name: str) -> None:
    model = Model.preset(name)
    assert conventions.megatron_parameters(model, Parallel()) == (model.num_params, 0)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3"])
def test_megatron_counts_experts_and_latent_attention(name: str) -> None:
    """All but the router's correction, which it does not know."""
    model = Model.preset(name)
    usual, experts = conventions.megatron_parameters(model, Parallel())
    corrections = 256 * 58 if model.router_bias else 0
    assert experts == expert_params(model)
    assert usual + experts == model.num_params - corrections


def test_megatron_misses_gpt2s_positions_and_biases() -> None:
    model = MODELS["gpt2-1.5b"]
    biases = sum(
        t.numel for t in model.tensors() if t.name.endswith(".bias") and "norm" not in t.name
    )
    positions = 1024 * 1600
    usual, _ = conventions.megatron_parameters(model, Parallel())
    assert usual == model.num_params - biases - positions


@pytest.mark.parametrize("zero", range(4))
def test_the_paper_is_what_a_plan_counts(zero: int) -> None:
    parallel = Parallel(dp=48, zero=zero)
    lines = convention_terms("zero-paper", LLAMA, parallel)
    plan = Plan(model=LLAMA, parallel=parallel)
    assert total_bytes(lines) == pytest.approx(plan.states_bytes, abs=1)


@pytest.mark.parametrize("zero", range(4))
@pytest.mark.parametrize("dp", [1, 3, 64])
def test_torch_stores_whole_rows_or_whole_tensors(zero: int, dp: int) -> None:
    recipe = Recipe.fp32_adam()
    model = Model.preset("tiny-gpt")
    lines = {
        x.component: x for x in convention_terms("torch", model, Parallel(dp=dp, zero=zero), recipe)
    }
    tensors = model.tensors()
    whole = model.num_params

    def held(sharding: str) -> int:
        return stored_elements(tensors, num_ranks=dp, sharding=sharding)

    parameters = held("dim0") if zero >= 2 else whole
    moments = held("dim0") if zero >= 2 else held("tensor") if zero == 1 else whole
    assert lines["parameters"].num_bytes == lines["gradients"].num_bytes == 4 * parameters
    assert lines["optimizer.momentum"].num_bytes == 4 * moments
    # One rank alone has nothing to gather.
    assert ("gathered layer" in lines) == (zero >= 2 and dp > 1)


def test_torchs_activations_are_its_saved_tensors() -> None:
    batch = Batch(seq=1024, micro_batch=2)
    lines = convention_terms("torch", LLAMA, Parallel(), Recipe.bf16_mixed(), batch)
    kept = [x for x in lines if x.row in {"activations", "head and loss"}]
    stack = saved.stack_terms(LLAMA, saved.Mode(), seq=1024, micro_batch=2)
    ends = saved.end_terms(LLAMA, saved.Mode(), seq=1024, micro_batch=2)
    assert total_bytes(kept) == saved.total_bytes(stack) + saved.total_bytes(ends)


def test_a_pipelines_first_device_keeps_as_much_as_without_it() -> None:
    """1F1B: p microbatches in flight on 1/p of the layers (Korthikanti et al. 2022, §4.2.3)."""
    batch = Batch(seq=512)

    def layers(pp: int) -> int:
        found = convention_terms("torch", LLAMA, Parallel(pp=pp), Recipe(accumulation=32), batch)
        return total_bytes(x for x in found if x.row == "activations")

    assert layers(1) == layers(4) == layers(8)


def test_differences_add_up_and_say_why() -> None:
    parallel = Parallel(dp=16, zero=3)
    batch = Batch(seq=4096)
    plan = Plan(model=LLAMA, parallel=parallel, recipe=Recipe.bf16_mixed(), batch=batch)
    table = differences(plan)
    assert list(table.columns) == [*conventions.CONVENTIONS, "why"]
    assert set(table.index) <= set(conventions.REASONS)
    assert table["why"].str.len().min() > 20
    for name in conventions.CONVENTIONS:
        on_device = table[name].drop(index=["host", "total on the device"]).sum()
        assert table.loc["total on the device", name] == pytest.approx(on_device, abs=2)
    assert table.attrs["refused"] == {}
    optimizer = table.loc["optimizer", ["zero-paper", "deepspeed", "megatron", "torch"]]
    assert optimizer.max() / optimizer.min() == pytest.approx(1, rel=1e-3)


def test_every_difference_has_its_reason() -> None:
    """Whoever has bytes in a row says how it comes to them, and nobody says more."""
    batch = Batch(seq=1024, recompute="full", attention="eager")
    told: dict[str, set[str]] = {}
    away = Recipe(offload_optimizer="cpu", offload_gradients="cpu")
    for zero, sp, recipe in product((1, 3), (True, False), (None, away)):
        for convention in conventions.CONVENTIONS:
            with contextlib.suppress(BadValue):
                parallel = Parallel(dp=16, zero=zero, sp=sp)
                for line in convention_terms(convention, LLAMA, parallel, recipe, batch):  # type: ignore[arg-type]
                    told.setdefault(line.row, set()).add(convention)
    reasons = {row: set(by) for row, by in conventions.REASONS.items() if row != conventions.TOTAL}
    assert told == reasons


def test_who_says_nothing_of_a_job_is_named() -> None:
    table = differences(Plan(model=LLAMA, parallel=Parallel(dp=8, zero=1)))
    assert table["deepspeed"].isna().all()
    assert "zero must be 2 or 3" in table.attrs["refused"]["deepspeed"]
    with pytest.raises(BadValue, match="zero must be 2 or 3"):
        convention_terms("deepspeed", LLAMA, Parallel())


def test_the_host_of_deepspeed_grows_with_nodes() -> None:
    """The fault of that name: stage 2 with offload, one node's share grows eightfold."""
    recipe = Recipe(offload_optimizer="cpu", offload_gradients="cpu")
    hosts = [
        total_bytes(convention_terms("deepspeed", LLAMA, Parallel(dp=dp, zero=2), recipe), "host")
        for dp in (8, 64)
    ]
    assert hosts[1] == 8 * hosts[0]


def test_megatrons_faults_show() -> None:
    batch = Batch(seq=4096)

    def kept(model: Model, **changes: object) -> int:
        lines = convention_terms("megatron", model, Parallel(), None, replace(batch, **changes))  # type: ignore[arg-type]
        return total_bytes(x for x in lines if x.component == "activations")

    assert kept(LLAMA) == kept(LLAMA, recompute="full")
    assert kept(LLAMA) == kept(LLAMA.resized(ffn=4 * LLAMA.hidden))
    mixtral = Model.preset("mixtral-8x7b")
    dense = replace(mixtral, num_experts=0, experts_per_token=0, expert_ffn=0)
    assert kept(mixtral) == kept(dense)


def test_settings_and_conventions_are_checked() -> None:
    with pytest.raises(UsageError, match="got 'megatorn'; did you mean 'megatron'"):
        convention_terms("megatorn", LLAMA)  # type: ignore[arg-type]
