"""Models from Hugging Face configurations: the fields of ``config.json``, by ``model_type``.

What a configuration leaves out takes the default of the transformers library's configuration class
where that default does not depend on the checkpoint; sizes are never guessed. Which operators its
modules run depends on the version of transformers (:mod:`labkit.models.transformers_versions`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from labkit import files
from labkit.errors import BadFile, BadValue, UsageError, in_short, not_among, shown
from labkit.models.transformers_versions import (
    EXPERTS_IN_GROUPS,
    LLAMA_WITHOUT_GROUPS,
    NEWEST,
    Version,
    known_versions,
    nearest_version,
    operators_of,
    version_text,
)


class _Config:
    """A configuration that names the field it lacks."""

    def __init__(self, fields: Mapping[str, Any], version: Version) -> None:
        self.fields = fields
        self.version = version
        self.kind = str(fields.get("model_type"))

    def size(self, name: str, default: int | None = None) -> int:
        """Read a whole number; ``default`` stands where the field is absent or null."""
        return int(self._of_kind(int, "a whole number", name, default))

    def sizes(self, **names: str) -> dict[str, int]:
        """Read whole numbers that must be there: our name -> the configuration's."""
        return {ours: self.size(theirs) for ours, theirs in names.items()}

    def flag(self, name: str, default: bool) -> bool:
        """Read a truth value; ``default`` stands where the field is absent or null."""
        return bool(self._of_kind(bool, "true or false", name, default))

    def _of_kind(self, kind: type, words: str, name: str, default: Any) -> Any:
        """Read a field of a kind; ``words`` say in an error what would be valid."""
        value = self.fields.get(name)
        value = default if value is None else value
        if value is None:
            raise UsageError(
                f"a {self.kind} configuration needs {name!r}; known types: {', '.join(READERS)}"
            )
        if type(value) is not kind:
            raise UsageError(
                f"{name!r} of a {self.kind} configuration must be {words}, got {shown(value)}"
            )
        return value

    def only(self, name: str, *accepted: Any) -> None:
        """Refuse a setting that would change the tensors in a way no field of Model describes."""
        value = self.fields.get(name, accepted[0])
        if value not in accepted:
            raise UsageError(
                f"{name}={shown(value)} of a {self.kind} configuration is not described; known:"
                f" {', '.join(map(repr, accepted))}"
            )


def read(
    config: Mapping[str, Any] | str | Path, transformers_version: str | None = None
) -> dict[str, Any]:
    """Read a model's fields from a dict, a JSON file, or a folder with a ``config.json``.

    Args:
        config: the configuration, or where it is.
        transformers_version: whose modules it is for; by default the installed version's.

    Raises:
        UsageError: an unknown ``model_type``, a missing field, no such file, or a version that was
            not checked.
        BadFile: the file is not JSON.
    """
    fields = fields_of(config)
    kind = fields.get("model_type")
    if kind is None:
        raise UsageError(
            f"the configuration (config) has no 'model_type'; known types: {', '.join(READERS)}"
        )
    if not isinstance(kind, str) or kind not in READERS:
        raise not_among("model_type", kind, READERS)
    name = str(fields.get("_name_or_path") or fields.get("name_or_path") or kind)
    version, remark = _version(kind, transformers_version)
    model = READERS[kind](_Config(fields, version))
    if model.get("num_experts") and version < EXPERTS_IN_GROUPS:
        remark += f", experts as of {version_text(EXPERTS_IN_GROUPS)}"
    source = f"Hugging Face {kind} configuration (transformers {version_text(version)}{remark})"
    return {"name": name, "source": source, **model}


def _version(kind: str, given: str | None) -> tuple[Version, str]:
    """Choose the version whose operators are taken: the one given, else the nearest to the
    installed.

    It returns what there is to say of that as well.
    """
    try:
        name = metadata.version("transformers") if given is None else given
    except metadata.PackageNotFoundError:
        return NEWEST, ", since none is installed"
    parts = re.match(r"(\d+)\.(\d+)(\.|$)", name)
    wanted = (int(parts[1]), int(parts[2])) if parts else (0, 0)
    version = nearest_version(kind, wanted)
    if version != wanted and given is not None:
        raise BadValue(
            f"transformers_version must be {known_versions(kind)} for {kind}, got {shown(given)}"
        )
    return version, "" if version == wanted else f", the nearest checked to {name}, unverified"


def fields_of(config: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    """The fields of a configuration: the dict itself, or those of a JSON file or a folder's.

    Raises:
        UsageError: there is no such file.
        BadFile: the file is not a JSON object.
    """
    return config if isinstance(config, Mapping) else _load(Path(config))


def _load(path: Path) -> Mapping[str, Any]:
    """Read the JSON of a configuration's file or folder."""
    path = path / "config.json" if os.path.isdir(path) else path  # whatever text it is
    if not os.path.isfile(path):
        text = str(path)
        named = in_short(text) if text.isprintable() else shown(text)[1:-1]
        raise UsageError(f"no configuration at {named}: No such file (config)")
    config = files.load_json(path)
    if not isinstance(config, dict):
        raise BadFile(path, "not a configuration", value=config, valid="a JSON object")
    return config


def _gpt2(config: _Config) -> dict[str, Any]:
    """Read GPT-2's sizes; ``gelu_new``, the default, is written out, the other GELUs are one
    kernel.
    """
    config.only("add_cross_attention", False)
    config.only("activation_function", "gelu_new", "gelu", "gelu_pytorch_tanh")
    written_out = config.fields.get("activation_function", "gelu_new") == "gelu_new"
    gelu = ("gelu",) if written_out else ()
    sizes = config.sizes(
        num_layers="n_layer",
        hidden="n_embd",
        heads="n_head",
        vocab="vocab_size",
        positions="n_positions",
    )
    return sizes | {
        "ffn": config.size("n_inner", 4 * sizes["hidden"]),
        "tied": config.flag("tie_word_embeddings", True),
        "operators": (*operators_of("gpt2", config.version), *gelu),
    }


def _llama(config: _Config) -> dict[str, Any]:
    """Read Llama's sizes; ``attention_bias`` covers four projections, ``mlp_bias`` three."""
    config.only("hidden_act", "silu", "swish")
    sizes = config.sizes(
        num_layers="num_hidden_layers",
        hidden="hidden_size",
        heads="num_attention_heads",
        vocab="vocab_size",
        ffn="intermediate_size",
    )
    heads = sizes["heads"]
    if heads < 1:
        raise UsageError(f"num_attention_heads must be >= 1, got {heads}")
    attention = config.flag("attention_bias", False)
    kv_heads = config.size("num_key_value_heads", heads)
    if config.version < LLAMA_WITHOUT_GROUPS and kv_heads != heads:
        raise UsageError(
            f"num_key_value_heads must be num_attention_heads ({heads}) before transformers"
            f" {version_text(LLAMA_WITHOUT_GROUPS)}, got {kv_heads}"
        )
    return sizes | {
        "kv_heads": kv_heads,
        "head_dim": config.size("head_dim", sizes["hidden"] // heads),
        "tied": config.flag("tie_word_embeddings", False),
        "bias": False,
        "qkv_bias": attention,
        "out_bias": attention,
        "mlp_bias": config.flag("mlp_bias", False),
        "mlp": "swiglu",
        "norm": "rmsnorm",
        "fused_qkv": False,
        "operators": operators_of(config.kind, config.version),
    }


def _mistral(config: _Config) -> dict[str, Any]:
    """Read what Llama has but any bias; a sliding window changes no tensor.

    The library's default of key heads belongs to one checkpoint, so the field must be there.
    """
    sizes = _llama(config) | {"kv_heads": config.size("num_key_value_heads")}
    return sizes | {"qkv_bias": False, "out_bias": False, "mlp_bias": False}


def _mixtral(config: _Config) -> dict[str, Any]:
    """Read Mistral's sizes, with routed experts in place of each MLP."""
    return _mistral(config) | _experts(config, "num_local_experts", "intermediate_size")


def _qwen2(config: _Config) -> dict[str, Any]:
    """Read what Llama has, with a bias on queries, keys and values only."""
    return _mistral(config) | {"qkv_bias": True}


def _qwen3(config: _Config) -> dict[str, Any]:
    """Read what Llama has, queries and keys normalised; its heads' width is a field of its own."""
    sizes = _llama(config) | {"kv_heads": config.size("num_key_value_heads")}
    return sizes | {"head_dim": config.size("head_dim"), "mlp_bias": False, "qk_norm": True}


def _qwen3_moe(config: _Config) -> dict[str, Any]:
    """Read Qwen3's sizes, with routed experts in place of each MLP."""
    config.only("decoder_sparse_step", 1)
    config.only("mlp_only_layers", [], None)
    # Published files say num_experts; the library's fifth version calls it as Mixtral does.
    experts = "num_local_experts" if "num_local_experts" in config.fields else "num_experts"
    return _qwen3(config) | _experts(config, experts, "moe_intermediate_size")


def _experts(config: _Config, number: str, width: str) -> dict[str, int]:
    """Read how many experts there are, and how many a token takes."""
    return config.sizes(
        num_experts=number, experts_per_token="num_experts_per_tok", expert_ffn=width
    )


def _deepseek_v3(config: _Config) -> dict[str, Any]:
    """Read latent attention and experts; the module that predicts further tokens is left out."""
    config.only("moe_layer_freq", 1)
    nullable = "q_lora_rank" in config.fields and config.fields["q_lora_rank"] is None
    sizes = config.sizes(
        kv_heads="num_attention_heads",
        head_dim="qk_nope_head_dim",
        kv_rank="kv_lora_rank",
        rope_head_dim="qk_rope_head_dim",
        value_head_dim="v_head_dim",
        shared_experts="n_shared_experts",
        dense_layers="first_k_dense_replace",
    )
    experts = _experts(config, "n_routed_experts", "moe_intermediate_size")
    q_rank = 0 if nullable else config.size("q_lora_rank")
    own = {"q_rank": q_rank, "mlp_bias": False, "router_bias": True}
    return _llama(config) | sizes | experts | own


READERS: dict[str, Callable[[_Config], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek_v3,
}
