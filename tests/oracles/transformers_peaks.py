"""Peaks of transformers' own modules under torch's tracker, an oracle of ``Model.from_hf``.

Older versions do not install beside ours. ``python -m tests.oracles.transformers_peaks`` unpacks
each with the two libraries it insists on into a folder of its own, runs its dense models there in
a process of its own, and stores the peaks in ``stored/transformers_peaks.json`` beside torch's
version. The installed version runs live in the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

STORED = Path(__file__).parent / "stored" / "transformers_peaks.json"
# transformers: tokenizers, huggingface_hub
VERSIONS = {
    "4.28.1": ("0.13.3", "0.17.3"),
    "4.30.2": ("0.13.3", "0.17.3"),
    "4.31.0": ("0.13.3", "0.17.3"),
    "4.35.2": ("0.15.2", "0.23.5"),
    "4.37.2": ("0.15.2", "0.23.5"),
    "4.42.4": ("0.19.1", "0.35.3"),
    "4.46.3": ("0.20.3", "0.35.3"),
    "4.48.3": ("0.21.4", "0.35.3"),
    "4.49.0": ("0.21.4", "0.35.3"),
    "4.51.3": ("0.21.4", "0.35.3"),
    "4.52.4": ("0.21.4", "0.35.3"),
    "4.53.3": ("0.21.4", "0.35.3"),
    "4.54.1": ("0.21.4", "0.35.3"),
    "4.57.6": ("0.22.2", "0.35.3"),
    "5.0.0": ("0.22.2", "1.3.0"),
}
SIZES = {
    "vocab_size": 4000,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
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
Case = tuple[str, str, str, bool]  # kind, number format, attention, whether layers are recomputed
HAVE_SDPA = {"gpt2": (4, 42), "llama": (4, 36), "mistral": (4, 37)}
EXIST = {"mistral": (4, 34)}
OLDER: tuple[Case, ...] = tuple(
    product(("gpt2", "llama", "mistral"), ("bf16", "autocast"), ("sdpa", "eager"), (False, True))
)


@contextlib.contextmanager
def no_packing() -> Iterator[None]:
    """Whether sequences are packed is read from numbers, which fake tensors do not have; without
    packing, and so in a real run of ours, plain causal attention gets no mask."""
    from unittest import mock

    try:
        from transformers import masking_utils
    except ImportError:  # before 4.53 nobody asks
        yield
        return
    name = "find_packed_sequence_indices"
    with mock.patch.object(masking_utils, name, return_value=None, create=True):
        yield


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def cases_of(version: str) -> list[Case]:
    """Older cases that there are: kinds and kernels of attention came one by one."""
    since = numbers(version)
    return [
        case
        for case in OLDER
        if since >= EXIST.get(case[0], (0, 0))
        and (case[2] == "eager" or since >= HAVE_SDPA[case[0]])
    ]


def sizes_of(kind: str, version: str) -> tuple[str, dict[str, Any]]:
    """The configuration class of a kind and its sizes; Llama had no groups of heads at first."""
    name, sizes = CONFIGS[kind]
    if kind == "llama" and numbers(version) < (4, 31):
        sizes = {key: size for key, size in sizes.items() if key != "num_key_value_heads"}
    return name, sizes


@contextlib.contextmanager
def checkpoints_of_today() -> Iterator[None]:
    """Checkpoints that are not reentrant, which versions before 4.35 could not be asked for."""
    from functools import partial
    from unittest import mock

    from torch.utils import checkpoint

    today = partial(checkpoint.checkpoint, use_reentrant=False)
    with mock.patch.object(checkpoint, "checkpoint", today):
        yield


def tracked(kind: str, recipe: str, attention: str, checkpointed: bool) -> int:
    """The peak of one step of the library's own module, in bytes."""
    import torch
    import transformers
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    class Watch(MemTracker):
        peak = 0

        def _update_peak_stats(self, peak_state: Any) -> None:
            total = sum(snapshot["Total"] for snapshot in self._curr_mem_snap.values())
            self.peak = max(self.peak, total)

    version = transformers.__version__
    name, sizes = sizes_of(kind, version)
    config = getattr(transformers, name)(**sizes, use_cache=False)
    word = "torch_dtype" if version.startswith("4.") else "dtype"
    given = {word: torch.bfloat16 if recipe == "bf16" else torch.float32}
    if numbers(version) >= (4, 36):
        given["attn_implementation"] = attention
    first = numbers(version) < (4, 35)
    with (
        FakeTensorMode(),
        no_packing(),
        checkpoints_of_today() if first else contextlib.nullcontext(),
    ):
        network = transformers.AutoModelForCausalLM.from_config(config, **given)
        network.train()
        if checkpointed:
            network.gradient_checkpointing_enable(*([] if first else [{"use_reentrant": False}]))
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


def label(case: Case) -> str:
    kind, recipe, attention, checkpointed = case
    return f"{kind} {recipe} {attention} {'recomputed' if checkpointed else 'kept'}"


def configuration(kind: str, version: str = "5.0") -> dict[str, Any]:
    """What a ``config.json`` of that kind says."""
    return {"model_type": kind, **sizes_of(kind, version)[1]}


def without_checks() -> None:
    """Spare an older version its wish for older libraries that no model asks for."""
    from types import ModuleType

    stub = ModuleType("transformers.dependency_versions_check")
    stub.dep_version_check = lambda *_: None  # type: ignore[attr-defined]
    sys.modules[stub.__name__] = stub


def of_version(version: str, folder: Path) -> dict[str, int]:
    """Every older case in a process that sees the version unpacked into ``folder`` first."""
    pins = zip(("tokenizers", "huggingface_hub"), VERSIONS[version], strict=True)
    wheels = [f"transformers=={version}", *(f"{name}=={pin}" for name, pin in pins)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    if not (folder / "transformers").exists():
        subprocess.run([*pip, *wheels], check=True)
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    run = subprocess.run(
        [sys.executable, "-m", "tests.oracles.transformers_peaks", "--older"],
        env=os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(run.stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1:] == ["--older"]:
        without_checks()
        import transformers

        cases = cases_of(transformers.__version__)
        print(json.dumps({label(case): tracked(*case) for case in cases}))
        return
    import torch

    with tempfile.TemporaryDirectory() as kept:
        folder = Path(sys.argv[1] if sys.argv[1:] else kept)
        peaks = {version: of_version(version, folder / version) for version in VERSIONS}
    stored = {"torch": torch.__version__.partition("+")[0], "peak_bytes": peaks}
    STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
