"""Cases in which llm-analysis, Calculon, the cookbook and Accelerate are wrong."""

from __future__ import annotations

from dataclasses import replace

from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.plans.conventions import total_bytes
from labkit.models import Model
from tests.oracles.estimators import count, told_bytes
from tests.oracles.estimators.fault import (
    GPT2,
    GPT3,
    LLAMA,
    MIXTRAL,
    ONE,
    SELECTIVE,
    TOKENS,
    Fault,
    beside_the_peak,
    bytes_of,
    collector,
    counted,
    kept_widths,
    loss_peak,
    squares,
    streams,
    wider,
    wider_kept,
)

FOUND: list[Fault] = []
fault = collector(FOUND)


@fault(
    "llm-analysis",
    "two matrices in a gated MLP",
    "release 0.2.2 has 2·h·f parameters for every MLP; SwiGLU has 3·h·f",
    case="Llama-2-7B, parameters: what h more of MLP width costs",
    right="three matrices in 16 bits",
)
def _two_matrices() -> tuple[float, float]:
    return wider("parameters", "llm-analysis", ONE), 2 * 3 * squares()


@fault(
    "llm-analysis",
    "gated activations counted as plain",
    "two tensors of width f, also in the version whose parameters are three matrices",
    case="Llama-2-7B, 4,096 tokens: what h more of MLP width costs",
    right="the tensors that torch saves",
)
def _gated_as_plain() -> tuple[float, float]:
    told = wider("activations", "llm-analysis", ONE, None, TOKENS, release="main")
    return told, wider_kept()


@fault(
    "llm-analysis",
    "a head of its own is free",
    "one embedding matrix is counted, whether or not the output head shares it",
    case="Llama-2-7B, parameters beside the same model with a tied head",
    right="one more matrix in 16 bits",
)
def _free_head() -> tuple[float, float]:
    tied = replace(LLAMA, tied=True)
    asked = [("parameters", "llm-analysis", model) for model in (LLAMA, tied)]
    return bytes_of(*asked[0]) - bytes_of(*asked[1]), 2 * LLAMA.vocab * LLAMA.hidden


@fault(
    "llm-analysis",
    "both ends twice",
    "release 0.2.2 adds logits and last norm to a sum that has them, at one sample a GPU",
    case="Llama-2-7B, both ends, one sample of 4,096 tokens",
    right="half of what it gives for two samples",
)
def _ends_twice() -> tuple[float, float]:
    two = replace(TOKENS, micro_batch=2)
    asked = [("head and loss", "llm-analysis", LLAMA, ONE, None, b) for b in (TOKENS, two)]
    return bytes_of(*asked[0]), bytes_of(*asked[1]) / 2


@fault(
    "llm-analysis",
    "a sixth of a loss head",
    "16-bit logits; eager fp32 cross-entropy has 12 bytes a logit at its peak",
    case="Llama-2-7B, one sample of 4,096 tokens, the later version",
    right="12 bytes a logit",
)
def _sixth_of_a_head() -> tuple[float, float]:
    asked = (LLAMA, ONE, None, TOKENS)
    return bytes_of("head and loss", "llm-analysis", *asked, release="main"), loss_peak()


@fault(
    "llm-analysis",
    "every expert keeps every token",
    "release 0.2.2 multiplies the MLP's activations by the experts on the GPU and by the experts a"
    " token takes",
    case="Mixtral 8x7B, one rank, 4,096 tokens",
    right="its MLP's activations times the two experts a token takes",
)
def _all_experts() -> tuple[float, float]:
    told = bytes_of("activations", "llm-analysis", MIXTRAL, ONE, None, TOKENS)
    one = 2 * streams(MIXTRAL) + kept_widths(2)
    more = (MIXTRAL.num_experts - 1) * MIXTRAL.experts_per_token
    return told, told - more * one


@fault(
    "llm-analysis",
    "no biases, no positions",
    "linear biases and learnt position embeddings have no term, norms one vector each",
    case="GPT-2 1.5B, parameters on one rank",
    right="16 bits of each",
)
def _analysis_biases() -> tuple[float, float]:
    return counted("llm-analysis")


@fault(
    "calculon",
    "blocks without ends",
    "embeddings, output head, positions and biases have no parameters",
    case="GPT-2 1.5B, parameters on one rank",
    right="16 bits of each",
)
def _blocks_only() -> tuple[float, float]:
    return counted("calculon")


@fault(
    "calculon",
    "no loss head",
    "logits and loss have no term",
    case="Llama-2-7B, one rank, 4,096 tokens",
    right="12 bytes a logit",
)
def _no_head() -> tuple[float, float]:
    return bytes_of("head and loss", "calculon", LLAMA, ONE, None, TOKENS), loss_peak()


@fault(
    "calculon",
    "two matrices in a gated MLP",
    "the MLP has 2·h·f parameters; SwiGLU has 3·h·f",
    case="Llama-2-7B, parameters: what h more of MLP width costs",
    right="three matrices in 16 bits",
)
def _calculon_gated() -> tuple[float, float]:
    return wider("parameters", "calculon", ONE), 2 * 3 * squares()


@fault(
    "calculon",
    "grouped keys are whole",
    "every head has keys and values of its own, or all share one",
    case="Llama-3-8B, what 32 heads of keys cost more than its 8",
    right="24 heads of keys and of values in 16 bits",
)
def _whole_keys() -> tuple[float, float]:
    model = Model.preset("llama-3-8b")
    every = replace(model, kv_heads=model.heads)
    told = [bytes_of("parameters", "calculon", one) for one in (every, model)]
    return told[0] - told[1], 2 * (every.num_params - model.num_params)


@fault(
    "calculon",
    "scores are always there",
    "every attention materialises its scores: there is no fused kernel",
    case="Llama-2-7B, one rank, 4,096 tokens, fused attention",
    right="the same without 5 bytes a score",
)
def _always_scores() -> tuple[float, float]:
    told = bytes_of("activations", "calculon", LLAMA, ONE, None, TOKENS)
    return told, told - 5 * LLAMA.heads * TOKENS.seq**2 * LLAMA.num_layers


@fault(
    "calculon",
    "an input lost with selective recomputation",
    "the input of queries, keys and values is taken off too, also where no all-gather brings it"
    " back",
    case="Llama-2-7B, one rank, 4,096 tokens, selective recomputation",
    right="the same and 2·s·b·h for each block but the one at work",
)
def _lost_input() -> tuple[float, float]:
    told = bytes_of("activations", "calculon", LLAMA, ONE, None, SELECTIVE)
    return told, told + 2 * streams(LLAMA) * (LLAMA.num_layers - 1) / LLAMA.num_layers


@fault(
    "calculon",
    "checkpoints are whole",
    "with sequence parallelism a checkpoint is still 2·s·b·h on every rank",
    case="Llama-2-7B, tp = 8 with sequence parallelism, full recomputation",
    right="an eighth",
)
def _whole_checkpoints() -> tuple[float, float]:
    parallel = Parallel(tp=8, sp=True)
    batch = replace(TOKENS, recompute="full")
    told = bytes_of("activations.checkpoints", "calculon", LLAMA, parallel, None, batch)
    return told, 2 * streams(LLAMA) / 8


@fault(
    "cookbook",
    "divided twice",
    "at stage 3 parameters are divided by tp·pp and then by all GPUs, which are dp·tp·pp",
    case="Llama-2-7B, parameters at stage 3, dp = 8, tp = 8",
    right="its parameters without ZeRO, over dp",
)
def _divided_twice() -> tuple[float, float]:
    asked = [("parameters", "cookbook", LLAMA, Parallel(dp=8, tp=8, zero=z)) for z in (3, 0)]
    return bytes_of(*asked[0]), bytes_of(*asked[1]) / 8


@fault(
    "cookbook",
    "gradients and optimizer not divided",
    "tp and pp divide the parameters only; below stage 2 (1) gradients (the optimizer) are whole",
    case="Llama-2-7B, gradients at stage 0 with tp = 8",
    right="an eighth",
)
def _not_divided() -> tuple[float, float]:
    told = bytes_of("gradients", "cookbook", LLAMA, Parallel(tp=8))
    return told, bytes_of("gradients", "cookbook", LLAMA) / 8


@fault(
    "cookbook",
    "activations not divided",
    "without its partition of activations neither tp nor pp divides them",
    case="GPT-3 175B, 2,048 tokens, tp = 8",
    right="10 + (24 + 5·a·s/h)/t (Korthikanti et al. 2022, eq. 2)",
)
def _whole_activations() -> tuple[float, float]:
    batch = Batch(seq=2048)
    told = bytes_of("activations", "cookbook", GPT3, Parallel(tp=8), None, batch)
    scores = 5 * GPT3.heads * batch.seq / GPT3.hidden
    return told, streams(GPT3, batch) * (10 + (24 + scores) / 8)


@fault(
    "cookbook",
    "recomputation that recomputes attention",
    "with checkpointed activations a layer keeps 34·s·b·h: all but attention's scores",
    case="GPT-3 175B, 2,048 tokens, full recomputation",
    right="2·s·b·h a layer (Korthikanti et al. 2022, Table 2)",
)
def _seventeen_times() -> tuple[float, float]:
    batch = Batch(seq=2048, recompute="full")
    told = bytes_of("activations", "cookbook", GPT3, ONE, None, batch)
    return told, 2 * streams(GPT3, batch)


@fault(
    "cookbook",
    "a tied head counts",
    "two embedding matrices whether or not the output head shares the first",
    case="GPT-2 1.5B, parameters on one rank",
    right="the same without one embedding matrix in 16 bits",
)
def _tied_head() -> tuple[float, float]:
    told = bytes_of("parameters", "cookbook", GPT2)
    return told, told - 2 * GPT2.vocab * GPT2.hidden


@fault(
    "cookbook",
    "buffers of one size",
    "a bucket of 5e8 and 1e9 live parameters, also where the model has fewer",
    case="GPT-2 124M, buffers at stage 3 on 8 GPUs",
    right="at most the whole model in 16 bits",
)
def _one_size() -> tuple[float, float]:
    model = Model.preset("gpt2-124m")
    return bytes_of(
        "communication", "cookbook", model, Parallel(dp=8, zero=3)
    ), 2 * model.num_params


@fault(
    "accelerate",
    "the largest instead of the sum",
    "in mixed precision it prints the largest of parameters, gradients and optimizer",
    case="Llama-2-7B, mixed precision",
    right="the sum of its own parts",
)
def _largest() -> tuple[float, float]:
    lines = count("accelerate", LLAMA)
    return told_bytes("accelerate", lines), total_bytes(lines)


@fault(
    "accelerate",
    "one rank",
    "no sharding, no tensor or pipeline parallelism",
    case="Llama-2-7B, parts at stage 3 on 64 GPUs",
    right="a sixty-fourth",
)
def _one_rank() -> tuple[float, float]:
    lines = count("accelerate", LLAMA, Parallel(dp=64, zero=3))
    return total_bytes(lines), total_bytes(lines) / 64


@fault(
    "accelerate",
    "no activations",
    "model states only: not the memory a step needs",
    case="Llama-2-7B, mixed precision, stage 0, 4,096 tokens",
    right="the largest moment of a step",
)
def _no_activations() -> tuple[float, float]:
    return beside_the_peak("accelerate")
