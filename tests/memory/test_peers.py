"""Estimators beside ZeRO, DeepSpeed and Megatron-LM: every row of theirs, and each fault."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from labkit.errors import BadValue, UsageError
from labkit.memory import Batch, Model, Recipe
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.plans.conventions import total_bytes
from labkit.memory.tape.saved import Term
from tests.oracles.estimators import count, framework_faults, peer_faults, told_bytes
from tests.published import need_peers

GPT2 = Model.preset("gpt2-1.5b")
LLAMA = Model.preset("llama-2-7b")
MODELS = {
    "gpt2-1.5b": GPT2,
    "gpt3-175b": replace(Model.preset("gpt3-175b"), vocab=51200),
    "llama2-7b": LLAMA,
}
STATES = {"params": "parameters", "grads": "gradients", "optim": "optimizer"}
FAULTS = (*framework_faults.FOUND, *peer_faults.FOUND)
RECOMPUTE = {"full": "full", "selective": "selective", "ckpt": "full"}


def rows(tool: str) -> list[dict[str, str]]:
    found = [row for row in need_peers() if row["tool"].startswith(tool)]
    assert found
    return found


def asked(row: dict[str, str], tool: str, *, sp: bool = False) -> tuple[Any, ...]:
    """Model, parallelism, recipe and batch of a row; the tool's suffix says what is recomputed."""
    degrees = {name: int(row[name]) for name in ("dp", "tp", "pp")}
    parallel = Parallel(**degrees, zero=int(row["stage"]), sp=sp)  # type: ignore[arg-type]
    recompute = RECOMPUTE.get(row["tool"].removeprefix(f"{tool}-"), "none")
    batch = Batch(seq=int(row["seq"]), micro_batch=int(row["mbs"]), recompute=recompute)  # type: ignore[arg-type]
    return MODELS[row["case"]], parallel, None, batch


def size(lines: Iterable[Term], *names: str) -> Fraction:
    """Exact bytes of the lines of these names or rows."""
    wanted = [line for line in lines if {line.row, line.component} & set(names)]
    return sum((Fraction(line.num_bytes) for line in wanted), Fraction(0))


def test_llm_analysis_1260_numbers_exactly() -> None:
    """Temporaries of its loss and of prefetching are 0 in every row: no term of ours."""
    kept = ("activations", "embedding", "head and loss")
    found = rows("llm-analysis")
    for row in found:
        question = asked(row, "llm-analysis", sp=True)
        kind = row["component"]
        if kind in {"loss_bwd", "prefetch"}:
            got = Fraction(0)
        elif kind == "num_params":
            got = size(count("llm-analysis", question[0], release="main"), "gradients") / 4
        else:
            lines = count("llm-analysis", *question, release="main")
            got = size(lines, *(kept if kind == "act" else (STATES[kind],)))
        assert int(got) == int(row["bytes"]), row
    assert len(found) == 1260


def test_calculons_546_numbers_exactly() -> None:
    names = {"act": "activations.blocks", "act_ckpt": "activations.checkpoints"}
    names |= {"act_grad": "activation gradients"} | STATES
    found = rows("calculon")
    for row in found:
        lines = count("calculon", *asked(row, "calculon", sp=True))
        kind = row["component"]
        got = total_bytes(lines) if kind == "total" else size(lines, names[kind])
        assert int(got) == int(row["bytes"]), row
    assert len(found) == 546


def test_the_cookbooks_720_numbers_as_it_prints_them() -> None:
    """It prints hundredths of a GiB."""
    names = {"act": "activations", "comm": "communication"} | STATES
    found = rows("cookbook")
    for row in found:
        lines = count("cookbook", *asked(row, "cookbook"))
        kind = row["component"]
        got = total_bytes(lines) if kind == "total" else size(lines, names[kind])
        printed = f"{float(got) / 2**30:.2f}"
        assert int(float(printed) * 2**30) == int(row["bytes"]), row
    assert len(found) == 720


def test_accelerates_30_numbers_exactly() -> None:
    names = {"model": "parameters"}
    found = rows("accelerate")
    for row in found:
        fp32 = row["tool"].endswith("32")
        model = MODELS[row["case"]]
        recipe = Recipe.fp32_adam() if fp32 else None
        lines = count("accelerate", model, Parallel(), recipe)
        kind = row["component"]
        if kind == "printed_training":
            got: Fraction | int = told_bytes("accelerate", lines)
        elif kind == "step":
            got = total_bytes(lines) if fp32 else size(lines, "optimizer")
        else:
            got = size(lines, names.get(kind, kind))
        assert got == int(row["bytes"]), row
    assert len(found) == 30


def test_no_row_of_the_table_is_left_out() -> None:
    """With ZeRO's paper's, DeepSpeed's and Megatron-LM's 450: all of it."""
    assert len(need_peers()) == 450 + 1260 + 546 + 720 + 30


def analysis(model: Model, parallel: Parallel, batch: Batch) -> dict[str, float]:
    """What an installed llm-analysis 0.2.2 gives, on a GPU that is large enough for all of it."""
    tool = pytest.importorskip("llm_analysis.analysis", reason="llm-analysis is not installed")
    config = pytest.importorskip("llm_analysis.config")
    logging.getLogger("llm_analysis").setLevel(logging.CRITICAL)
    config.logger.setLevel(logging.CRITICAL)
    gpu = replace(config.get_gpu_config_by_name("a100-sxm-80gb"), mem_per_GPU_in_GB=10**9)
    ffn = model.expert_ffn or model.ffn
    shape = config.ModelConfig(
        name="asked",
        num_layers=model.num_layers,
        n_head=model.heads,
        hidden_dim=model.hidden,
        vocab_size=model.vocab,
        max_seq_len=batch.seq,
        num_key_value_heads=model.kv_heads,
        ffn_embed_dim=ffn,
        expansion_ratio=ffn / model.hidden,
        moe_num_experts=model.num_experts or 1,
        moe_top_k=model.experts_per_token or 1,
    )
    degrees = config.ParallelismConfig(
        tp_size=parallel.tp,
        pp_size=parallel.pp,
        dp_size=parallel.dp,
        ep_size=parallel.ep,
        sp_size=parallel.tp if parallel.sp else 1,
    )
    recompute = {"none": 0, "selective": 1, "full": 2}[str(batch.recompute)]
    with redirect_stdout(io.StringIO()):
        return tool.LLMAnalysis(shape, gpu, config.DtypeConfig(), degrees).training(
            batch_size_per_gpu=batch.micro_batch,
            seq_len=batch.seq,
            activation_recomputation=tool.ActivationRecomputation(recompute),
            ds_zero=tool.DSZeRO(parallel.zero),
            flash_attn=batch.attention != "eager",
        )


@pytest.mark.parametrize("name", ["gpt2-1.5b", "llama-2-7b", "llama-3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize(
    "parallel",
    [
        Parallel(dp=8, zero=1),
        Parallel(dp=4, zero=2, pp=4),
        Parallel(dp=8, zero=3, ep=2),
        Parallel(dp=2, tp=5, sp=True, zero=3),
        Parallel(tp=5, pp=2),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "batch",
    [
        Batch(seq=512),
        Batch(seq=512, micro_batch=3, attention="eager"),
        Batch(seq=256, recompute="selective"),
        Batch(seq=256, micro_batch=2, recompute="full"),
    ],
    ids=["flash", "eager", "selective", "full"],
)
def test_the_released_llm_analysis_itself(name: str, parallel: Parallel, batch: Batch) -> None:
    model = Model.preset(name)
    told = analysis(model, parallel, batch)
    lines = count("llm-analysis", model, parallel, None, batch)
    for ours, theirs in (
        ("parameters", "weight_memory_per_gpu"),
        ("gradients", "gradient_memory_per_gpu"),
        ("optimizer", "optimizer_state_memory_per_gpu"),
    ):
        assert float(size(lines, ours)) == pytest.approx(told[theirs], rel=1e-12)
    kept = float(size(lines, "activations", "head and loss"))
    assert kept == pytest.approx(told["activation_memory_per_gpu"], rel=1e-12)


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("offload", [False, True])
def test_deepspeed_itself(zero: int, offload: bool) -> None:
    """Its functions on 64 GPUs in 8 nodes; stage 3 alone wants the largest module's size."""
    stages = {2: "stage_1_and_2", 3: "stage3"}
    name = f"deepspeed.runtime.zero.{stages[zero]}"
    tool = pytest.importorskip(name, reason="DeepSpeed is not installed", exc_type=ImportError)
    sizes = {"num_gpus_per_node": 8, "num_nodes": 8, "cpu_offload": offload}
    recipe = Recipe(offload_optimizer="cpu" if offload else "device")
    lines = count("deepspeed", LLAMA, Parallel(dp=64, zero=zero), recipe)
    if zero == 2:
        told = tool.estimate_zero2_model_states_mem_needs(LLAMA.num_params, **sizes)
    else:
        largest = LLAMA.vocab * LLAMA.hidden
        told = tool.estimate_zero3_model_states_mem_needs(
            LLAMA.num_params, largest, cpu_offload_params=False, zero_init=True, **sizes
        )
    # It gives host bytes first, device bytes second.
    assert [int(told[1]), int(told[0])] == [total_bytes(lines), total_bytes(lines, "host")]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: f"{one.convention}: {one.name}")
def test_each_fault_shows_in_its_case(fault: Any) -> None:
    """At least a thousandth off: the least is GPT-2's biases and positions."""
    seen = fault.show()
    assert seen.told_bytes >= 0
    assert seen.right_bytes > 0
    assert abs(seen.share - 1) > 1e-3
    assert fault.sentence
    assert fault.case
    assert fault.right


def test_every_estimator_has_faults_of_its_own() -> None:
    names = [(fault.convention, fault.name) for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert {convention for convention, _ in names} == {
        "deepspeed",
        "megatron",
        "llm-analysis",
        "calculon",
        "cookbook",
        "accelerate",
    }


def test_who_cannot_be_asked_says_why() -> None:
    deepseek = Model.preset("deepseek-v3")
    for convention in ("llm-analysis", "calculon", "cookbook"):
        with pytest.raises(BadValue, match=r"latent attention|own keys"):
            count(convention, deepseek)
    with pytest.raises(BadValue, match="zero must be 0 or 1 for calculon, got 3"):
        count("calculon", LLAMA, Parallel(dp=8, zero=3))
    with pytest.raises(BadValue, match="dp must be >= 2 for calculon"):
        count("calculon", LLAMA, Parallel(zero=1))
    with pytest.raises(BadValue, match=r"heads \(25\) must divide by tp \(2\) for calculon"):
        count("calculon", GPT2, Parallel(tp=2))
    with pytest.raises(BadValue, match="every block or none, got 3"):
        count("calculon", LLAMA, Parallel(), None, Batch(seq=64, recompute=3))
    with pytest.raises(BadValue, match="every layer or none"):
        count("llm-analysis", LLAMA, Parallel(), None, Batch(seq=64, recompute=3))
    with pytest.raises(BadValue, match="main is known for models without latent attention and exp"):
        count("llm-analysis", Model.preset("mixtral-8x7b"), release="main")
    with pytest.raises(UsageError, match="no release of llm-analysis"):
        count("llm-analysis", LLAMA, release="0.2.3")


def test_calculons_pipeline_and_fusion() -> None:
    """Interleaving keeps 1 + (p - 1)/(v·p) as much (Korthikanti et al. 2022, §4.2.3); a fused
    activation spares one tensor of the MLP's width, and its gradient."""
    batch = Batch(seq=512, recompute="full")
    looped = Parallel(pp=4, chunks=2, schedule="interleaved-1f1b")
    inputs = [
        size(count("calculon", LLAMA, one, None, batch), "activations.checkpoints")
        for one in (Parallel(), Parallel(pp=4), looped)
    ]
    assert inputs == [inputs[0], inputs[0], inputs[0] * Fraction(11, 8)]
    few = count("calculon", LLAMA, Parallel(pp=4), None, batch, num_microbatches=2)
    assert size(few, "activations.checkpoints") == inputs[0] / 2
    fused, apart = (
        count("calculon", LLAMA, None, None, batch, fused_activation=one) for one in (True, False)
    )
    assert total_bytes(apart) - total_bytes(fused) == 2 * 2 * 512 * LLAMA.ffn


def test_calculon_without_sequence_parallelism_keeps_more() -> None:
    """Norms, residuals and masks are whole on every rank then; matrices are not."""
    batch = Batch(seq=512)
    kept = [
        size(count("calculon", LLAMA, Parallel(tp=8, sp=sp), None, batch), "activations")
        for sp in (True, False)
    ]
    assert kept[0] < kept[1] < size(count("calculon", LLAMA, None, None, batch), "activations")


def test_the_cookbooks_options() -> None:
    batch = Batch(seq=512)
    plain = count("cookbook", LLAMA, Parallel(dp=8, zero=1), None, batch)
    more = count(
        "cookbook",
        LLAMA,
        Parallel(dp=8, zero=1),
        None,
        batch,
        gradient_bytes=2,
        bucket=1e8,
        misc_gib=5,
    )
    assert size(more, "gradients") == size(plain, "gradients") / 2
    assert size(more, "communication") == size(plain, "communication") / 5 == 2e8
    assert size(more, "allowance") == 5 * 2**30
    cut = replace(batch, partition_checkpoints=True)
    parts = [
        size(count("cookbook", LLAMA, Parallel(tp=4), None, one), "activations")
        for one in (batch, cut)
    ]
    assert parts[1] == parts[0] / 4
