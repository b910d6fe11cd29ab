"""What each convention does differently, row by row, in words."""

from __future__ import annotations

from collections.abc import Iterable

# By row, then by convention, in the order of `labkit.memory.tools.conventions.CONVENTIONS`.
REASONS: dict[str, dict[str, str]] = {
    "parameters": {
        "zero-paper": "all parameters in the recipe's format, divided evenly",
        "deepspeed": "16 bits whatever the recipe, sharded over all GPUs whatever they do",
        "megatron": "the fullest pipeline stage, without biases and position embeddings",
        "torch": "whole rows (at stage 1 whole tensors): those with fewer than ranks do not shrink",
        "llm-analysis": "one embedding even where the head is apart, no biases, no positions",
        "calculon": "blocks only: no embeddings, no head, no biases, two matrices an MLP",
        "cookbook": "two embeddings even where tied, divided by tp·pp and at stage 3 once more",
        "accelerate": "fp32 and whole, whatever the recipe and the number of ranks",
    },
    "gradients": {
        "zero-paper": "one copy in the recipe's format",
        "deepspeed": "16 bits and fp32 at stage 2, fp32 alone at stage 3",
        "megatron": "fp32 and whole at every stage",
        "torch": "the parameters' format",
        "llm-analysis": "fp32 at every stage",
        "calculon": "one block in fp32 before it is reduced, the others in 16 bits",
        "cookbook": "fp32, not divided by tp·pp below stage 2",
        "accelerate": "six bytes in mixed precision, four in fp32",
    },
    "optimizer": {
        "zero-paper": "12 bytes a parameter for mixed-precision Adam",
        "deepspeed": "12 bytes a parameter over all GPUs",
        "megatron": "12 bytes a parameter of the fullest stage",
        "torch": "12 bytes a parameter of whole rows, and a step counter a tensor",
        "llm-analysis": "12 bytes of each parameter that it counts",
        "calculon": "12 bytes of each parameter of its blocks",
        "cookbook": "12 bytes a parameter, not divided by tp·pp at stage 0",
        "accelerate": "8 bytes a parameter: no master copy, since its parameters are fp32",
    },
    "gathered layer": {
        "deepspeed": "parameters and gradients of its largest module, in 16 bits",
        "torch": "the parameters of the largest unit in the compute format",
    },
    "communication": {
        "cookbook": "an all-gather bucket, and at stage 3 a billion live parameters, whatever the"
        " model's size",
    },
    "activations": {
        "zero-paper": "24 bytes a token and hidden unit, no term for attention",
        "megatron": "18 + 4·f/h, or 10 + 24/t, which assumes f = 4h; dropout masks, no scores",
        "torch": "what its kernels save",
        "llm-analysis": "41 bytes a token and hidden unit where f = 4h: fp32 norm inputs, one mask;"
        " two tensors a gated MLP; all layers whatever pp",
        "calculon": "tensors of its blocks, scores in 5·a·s/h; what is worked on and what is kept",
        "cookbook": "34 + 5·a·s/h, not divided by tp or pp; 34 with recomputation",
    },
    "activation gradients": {
        "calculon": "outputs of every operation of one block, all at once",
    },
    "embedding": {
        "megatron": "token numbers and a dropout mask for each microbatch in flight",
        "llm-analysis": "its later version counts the embedding's output",
    },
    "head and loss": {
        "megatron": "fp32 logits once, or 16-bit ones without sequence parallelism",
        "torch": "the fp32 log-softmax is saved; its backward needs more for a moment",
        "llm-analysis": "16-bit logits and an fp32 norm input, twice at one sample (0.2.2)",
    },
    "allowance": {
        "megatron": "5 % of activations without sequence parallelism, and only there",
        "cookbook": "as many GiB as it is told",
    },
    "host": {
        "deepspeed": "a node's memory: fp32 copies while the model is built, or the offloaded"
        " states, times 1.5",
    },
    "total on the device": {
        "accelerate": "the largest of its parts, not their sum, in mixed precision",
    },
}
NOTHING = {
    "activations": ("deepspeed", "accelerate"),
    "head and loss": ("zero-paper", "deepspeed", "calculon", "cookbook", "accelerate"),
}


def why(row: str, conventions: Iterable[str]) -> str:
    """What each of ``conventions`` does in a row, in one line.

    >>> why("head and loss", ["zero-paper", "cookbook"])
    'zero-paper, cookbook: no such term'
    """
    named = list(conventions)
    said = [f"{name}: {text}" for name, text in REASONS[row].items() if name in named]
    silent = [name for name in named if name in NOTHING.get(row, ())]
    if silent:
        said.append(f"{', '.join(silent)}: no such term")
    if row == "total on the device":
        said.append(f"the sum of the rows above{' for the others' if said else ''}")
    return "; ".join(said)
