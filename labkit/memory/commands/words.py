"""Other tools' words for what options of ``labkit memory`` say: an error that names ours."""

from __future__ import annotations

from labkit.errors import UsageError

_TRAINER = "it runs transformers' Trainer: say --framework hf-trainer"
_TWICE = (
    "each sample is two there, and a model beside it that is not trained is no part of this"
    " account: say twice the --micro-batch, and add that model's weights (none with adapters, which"
    " are switched off for it)"
)
WORDS: dict[str, dict[str, str]] = {
    "framework": dict.fromkeys(
        ("axolotl", "trl", "llama-factory", "llamafactory", "peft", "accelerate", "transformers"),
        _TRAINER,
    )
    | dict.fromkeys(("huggingface", "hf", "sft-trainer", "ms-swift", "swift"), _TRAINER)
    | dict.fromkeys(("megatron-lm", "mcore", "nemo", "megatron-bridge"), "say --framework megatron")
    | {
        "unsloth": "its own kernels are not described; the nearest is --framework hf-trainer with"
        " --recompute full --set loss=chunked, which takes more",
        "fsdp": "say --framework torchtitan (FSDP2) or --framework hf-trainer, and --zero 3",
        "ddp": "say --framework hf-trainer with --dp",
        "zero": "say --framework deepspeed with --zero",
    },
    "recipe": {
        "dpo": _TWICE,
        "orpo": _TWICE,
        "full": "say --recipe bf16-mixed, or --framework hf-trainer for autocast;"
        " pure-bf16 where weights and states are in 16 bits",
        "sft": "say --recipe bf16-mixed, lora or qlora",
        "bf16": "say pure-bf16 (all in 16 bits), bf16-autocast (fp32 weights) or bf16-mixed"
        " (a master copy)",
        "fp16": "say mixed-adam (a master copy); fp16 takes what bf16 takes",
        "lora-8bit": "a base in 8 bits is not described; lora has 16 and qlora 4",
        "adamw": "say pure-bf16, bf16-autocast, bf16-mixed or fp32-adam",
        "adamw_8bit": "say adam-8bit",
        "adamw_bnb_8bit": "say adam-8bit",
        "paged_adamw_8bit": "say adam-8bit-paged",
        "paged_adamw_32bit": "say adam-32bit-paged",
        "galore": "states of projected gradients are not described",
    },
    "field (--set)": {
        "load_in_4bit": "say --recipe qlora, or qlora-prepared after"
        " prepare_model_for_kbit_training",
        "load_in_8bit": "a base in 8 bits is not described; --recipe lora has 16 and qlora 4",
        "gradient_checkpointing": "say --recompute full",
        "activation_checkpointing": "say --recompute full",
        "flash_attention": "say --set attention=flash",
        "attn_implementation": "say --set attention=eager, sdpa or flash",
        "optim": "say --recipe, such as adam-8bit",
        "optimizer_type": "say --recipe, such as adam-8bit",
        "per_device_train_batch_size": "say --micro-batch",
        "micro_batch_size": "say --micro-batch",
        "batch_size": "say --micro-batch",
        "gradient_accumulation_steps": "say --set accumulation=8",
        "grad_accum": "say --set accumulation=8",
        "max_seq_length": "say --seq",
        "max_length": "say --seq",
        "sequence_len": "say --seq",
        "cutoff_len": "say --seq",
        "bf16": "say --framework hf-trainer, whose bf16 is autocast, or --recipe pure-bf16",
        "fp16": "say --framework hf-trainer, whose fp16 takes what its bf16 takes",
        "lora_r": "say --lora-rank",
        "lora_rank": "say --lora-rank",
        "target_modules": "say --lora-targets",
        "lora_target": "say --lora-targets",
        "zero_stage": "say --zero",
        "use_liger_kernel": "say --set loss=fused --set loss_chunks=liger; its norms and MLP are"
        " not described",
    },
}
"""By kind of option, a word of another tool and what to say in its place."""


def say_instead(kind: str, word: str) -> None:
    """Refuse a word of another tool by naming ours; any other word passes.

    Args:
        kind: a key of :data:`WORDS`.
        word: what was said.

    Raises:
        UsageError: it is another tool's word.
    """
    instead = WORDS[kind].get(word.lower())
    if instead is not None:
        raise UsageError(f"no {kind} {word!r}: {instead}")
