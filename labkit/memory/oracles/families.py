"""Predicted peaks beside torch's MemTracker, a row a family of architectures.

There are three parts: models with closed forms, networks that are traced, and modules with peft's
adapters. Each step runs in seconds, and all together in minutes, so what the tracker saw is stored
(``python -m labkit.memory.oracles.families`` runs all and stores it again).

Layers are few and networks small: which operators there are does not depend on that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from typing import Any

import pandas as pd

from labkit.files import load_json, shipped, write_atomically
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.oracles import cases
from labkit.memory.oracles.checking import check
from labkit.memory.plans.plan import Plan
from labkit.memory.traced.network import Network
from labkit.models import Model

Step = tuple[str, str, Plan]
"""A part of :data:`PARTS`, a family of it, and the plan of its step."""
FILE = "data/measured/tracked_families.json"
PARTS = {
    "closed forms": "Closed forms beside torch's MemTracker",
    "traced": "Traced networks beside torch's MemTracker",
    "peft": "Modules with peft's adapters beside torch's MemTracker",
}
DISTRIBUTIONS = ("torch", "transformers", "peft")
FUSED = Recipe(name="bf16 Adam", master=None, states="bf16", step="fused")
RANKS = 4
"""Of the steps at ZeRO's stages 2 and 3."""
MOST_NAMED = 3
"""Targets of adapters that a row names."""
STAGES = (0, 2, 3)
# Presets with closed forms, by what they are there for, and how many of their layers run.
CLOSED = {
    "gpt": ("gpt2-124m", 4),
    "llama": ("llama-2-7b", 4),
    "grouped queries": ("llama-3-8b", 4),
    "q, k, v biased": ("qwen2.5-7b", 2),
    "q, k normed": ("qwen3-8b", 2),
    "experts": ("mixtral-8x7b", 2),
    "many experts": ("qwen3-30b-a3b", 2),
    "latent attention": ("deepseek-v3", 5),
}
_USUAL = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "vocab_size": 331,
}
_GROUPED = _USUAL | {"num_key_value_heads": 2, "head_dim": 16}
_BERT = _USUAL | {
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
_IMAGE = _USUAL | {"image_size": 32, "patch_size": 8, "num_labels": 10}
_PAIR = {
    **{"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 331},
    **{"encoder_ffn_dim": 192, "decoder_ffn_dim": 192},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
}
_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 192, "num_layers": 2, "num_heads": 4, "vocab_size": 331}
_OPT = {
    **{"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 192},
    **{"vocab_size": 331, "word_embed_proj_dim": 64, "max_position_embeddings": 64},
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", **_BERT},
    "t5": {"model_type": "t5", **_T5},
    "bart": {"model_type": "bart", **_PAIR},
    "gemma2": {"model_type": "gemma2", **_GROUPED},
    "gemma3": {"model_type": "gemma3_text", **_GROUPED},
    "phi": {"model_type": "phi", **_USUAL},
    "phi3": {"model_type": "phi3", **_USUAL, "num_key_value_heads": 2, "pad_token_id": 0},
    "gpt-oss": {"model_type": "gpt_oss", **_GROUPED, **_EXPERTS},
    "opt": {"model_type": "opt", **_OPT},
    "gpt-neox": {"model_type": "gpt_neox", **_USUAL},
    "vit": {"model_type": "vit", **_IMAGE},
    "swin": {
        **{"model_type": "swin", "image_size": 32, "patch_size": 4, "embed_dim": 16},
        **{"depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
    },
    "mamba": {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 331},
}


def closed_steps() -> Iterator[Step]:
    """The steps of models with closed forms."""
    pure = Recipe(name="bf16 Adam", master=None, states="bf16")
    for family, (name, layers) in CLOSED.items():
        model = Model.preset(name).resized(num_layers=layers)
        plan = Plan(model=model, recipe=pure, batch=Batch(seq=1024))
        yield "closed forms", family, plan
        if family in {"gpt", "llama", "grouped queries"}:
            spread = Parallel(dp=RANKS, zero=3)
            yield "closed forms", family, replace(plan, parallel=spread, recipe=FUSED)


def steps() -> Iterator[Step]:
    """Every step: its part, its family and the plan."""
    yield from closed_steps()
    for kind in CONFIGS:
        for zero in STAGES:
            yield "traced", kind, traced_plan(kind, zero)
    for plan in cases.with_adapters(every=True):
        model = plan.sized()[0]
        adapter = plan.recipe.adapter
        assert adapter is not None
        targets = "all" if len(adapter.targets) > MOST_NAMED else ", ".join(adapter.targets)
        family = f"rank {adapter.rank} on {targets}, {model.name}"
        yield "peft", family, replace(plan, model=model.resized(num_layers=3))


def traced_plan(kind: str, zero: int) -> Plan:
    """The step of one of :data:`CONFIGS` at a stage of ZeRO."""
    network = Network.from_hf(CONFIGS[kind])
    wrap: dict[str, Any] = {"wrap": "blocks"} if zero == 3 else {}
    spread = Parallel(dp=RANKS, zero=zero, **wrap) if zero else Parallel()
    batch = Batch(seq=24 if network.tokens else 1, micro_batch=2)
    return Plan(model=network, recipe=FUSED, batch=batch, parallel=spread)


def measured(part: str, family: str, plan: Plan) -> dict[str, Any]:
    """A row: bytes of the peak, and processor seconds of either."""
    started_s = time.process_time()
    name = plan.sized()[0].name
    _ = plan.peak_bytes
    predicted_s = time.process_time()
    peak = check(plan).iloc[-1]
    return {
        "part": part,
        "family": family,
        "model": name,
        "zero": plan.parallel.zero,
        "tracked_bytes": int(peak["measured_bytes"]),
        "predicted_bytes": int(peak["predicted_bytes"]),
        "error_bytes": int(peak["difference_bytes"]),
        "seconds": round(predicted_s - started_s, 3),
        "tracker_seconds": round(time.process_time() - predicted_s, 1),
    }


def versions() -> dict[str, str]:
    """Versions of what runs the modules; of what is not there none."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def run() -> dict[str, Any]:
    """All steps, run now, and the versions that ran them."""
    return {"versions": versions(), "rows": [measured(*step) for step in steps()]}


def stored() -> dict[str, Any]:
    """All steps as they are stored."""
    found: dict[str, Any] = load_json(shipped(FILE))
    return found


def by_family(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a family: the step on one rank, and how far those at other stages are off."""
    first = rows[rows["zero"] == 0].set_index("family")
    table = first.drop(columns=["part", "zero"])
    for zero in sorted(set(rows["zero"]) - {0}):
        errors = rows[rows["zero"] == zero].set_index("family")["error_bytes"]
        table[f"zero_{zero}_error_bytes"] = errors.reindex(table.index)
    return table.reset_index()


def main() -> None:
    """Run every step and store what was seen."""
    write_atomically(shipped(FILE), json.dumps(run(), indent=1) + "\n")


if __name__ == "__main__":
    main()
