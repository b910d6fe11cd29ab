"""The small model that several tests of memory share."""

from __future__ import annotations

from labkit.memory import Model

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
