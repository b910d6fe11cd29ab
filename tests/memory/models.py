"""Small models that several tests of memory share, and what holds for plans of every model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from labkit.memory import Batch, Model, Plan, sweep

LITTLE_LLAMA = Model(
    name="little",
    num_layers=4,
    hidden=64,
    heads=8,
    kv_heads=4,
    ffn=96,
    vocab=96,
    tied=False,
    bias=False,
    mlp="swiglu",
    norm="rmsnorm",
    fused_qkv=False,
)
"""Grouped queries, a gated MLP and untied weights, in a size that a test can run."""


def llama_of_transformers() -> tuple[Any, Model]:
    """A module of transformers without numbers, and the model that its configuration describes."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=88,
        vocab_size=97,
    )
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    return module, Model.from_hf(config.to_dict())


def check_sweep(plan: Plan) -> None:
    """Assert that a sweep of sequences and micro-batches says what plans say one by one."""
    table = sweep(plan, seq=[512, 1024], micro_batch=[1, 2])
    sizes = table[["seq", "micro_batch"]].astype(int).to_dict("records")
    single = [replace(plan, batch=Batch(**size)).peak_bytes for size in sizes]
    assert table["peak_bytes"].tolist() == single
