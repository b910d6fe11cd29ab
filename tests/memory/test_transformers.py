"""Models of the transformers library under torch's tracker, beside plans read from their config.

Every third of the 48 cases runs; ``LABKIT_TRANSFORMERS=all`` runs all (two minutes).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from labkit.memory import Batch, Model, Plan, Recipe

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 4000, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
EXPERTS = {"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
GPT2 = {"n_layer": 4, "n_embd": 256, "n_head": 8, "vocab_size": 4000, "n_positions": 512}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", GPT2 | NO_DROPOUT),
    "llama": ("LlamaConfig", SIZES),
    "mistral": ("MistralConfig", SIZES | {"head_dim": 32}),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", SIZES | {"head_dim": 32}),
    "mixtral": ("MixtralConfig", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("Qwen3MoeConfig", SIZES | EXPERTS),
}
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
CASES = EVERY if os.environ.get("LABKIT_TRANSFORMERS") == "all" else EVERY[::3]


@contextlib.contextmanager
def no_packing() -> Iterator[None]:
    """Whether sequences are packed is read from numbers, which fake tensors do not have; without
    packing, and so in a real run of ours, plain causal attention gets no mask."""
    from transformers import masking_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking_utils, "find_packed_sequence_indices", lambda *_: None)
        yield


def tracked(config: Any, recipe: str, attention: str, checkpointed: bool) -> int:
    """The peak of one step of the library's own module, in bytes."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    class Watch(MemTracker):
        peak = 0

        def _update_peak_stats(self, peak_state: Any) -> None:
            total = sum(snapshot["Total"] for snapshot in self._curr_mem_snap.values())
            self.peak = max(self.peak, total)

    dtype = torch.bfloat16 if recipe == "bf16" else torch.float32
    config.use_cache = False
    with FakeTensorMode(), no_packing():
        network = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=attention
        )
        network.train()
        if checkpointed:
            network.gradient_checkpointing_enable()
        optimizer = torch.optim.AdamW(network.parameters(), foreach=True)
        for parameter in network.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        tokens = torch.zeros(4, 256, dtype=torch.int64)
        watch = Watch()
        watch.track_external(network, optimizer, tokens)
        with watch:
            with torch.autocast("cpu", torch.bfloat16, enabled=recipe == "autocast"):
                loss = network(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
    return watch.peak


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_peaks_are_those_of_the_library(case: tuple[str, str, str, bool]) -> None:
    family, recipe, attention, checkpointed = case
    kind, sizes = CONFIGS[family]
    config = getattr(transformers, kind)(**sizes)
    plan = Plan(
        model=Model.from_hf(config.to_dict()),
        recipe=RECIPES[recipe],
        batch=Batch(
            seq=256,
            micro_batch=4,
            attention=attention,  # type: ignore[arg-type]
            recompute="full" if checkpointed else "none",
        ),
    )
    assert plan.peak_bytes == pytest.approx(
        tracked(config, recipe, attention, checkpointed), rel=0.02
    )
