"""Adapters: what is trained beside a frozen base, and how the base is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.describe import Whole, checked, description
from labkit.memory.tape.mode import Size
from labkit.memory.tape.tuners import PROMPTS, Tuner
from labkit.models import Model

Target = Literal["q", "k", "v", "qkv", "o", "gate", "up", "down"]
TARGETS: tuple[str, ...] = get_args(Target)
BLOCK = 64
"""Weights that share a scale in 4 bits (Dettmers et al. 2023, §3; bitsandbytes' blocksize)."""
SCALES = 256
"""Scales that share a scale in turn, where they are quantised too."""
# Tensors of a layer by target, and the names that transformers' modules give them.
TENSORS = {
    "q": ("query", "q_proj"),
    "k": ("key", "k_proj"),
    "v": ("value", "v_proj"),
    "qkv": ("qkv", "c_attn", "qkv_proj", "query_key_value", "Wqkv"),
    "o": ("out", "o_proj", "out_proj", "c_proj"),
    "gate": ("gate", "gate_proj"),
    "up": ("up", "up_proj", "c_fc", "fc1"),
    "down": ("down", "down_proj", "c_proj", "fc2"),
}
ENDS = {
    "embedding": ("embed_tokens", "wte", "token", "embedding", "tok_embeddings"),
    "head": ("lm_head", "output", "head", "embed_out"),
}
Kind = Literal["lora", Tuner]
KINDS: tuple[str, ...] = get_args(Kind)
KIND_NAMES = {
    "lora": "LoRA",
    "dora": "DoRA",
    "ia3": "IA3",
    "prompt": "prompt tuning",
    "p-tuning": "P-tuning",
}
"""What people call each kind."""
_PEFT_KINDS = {"LORA": "lora", "IA3": "ia3", "PROMPT_TUNING": "prompt", "P_TUNING": "p-tuning"}
_WHY_NOT = {
    "PREFIX_TUNING": ": a prefix has keys, values and a mask in every layer, which only a trace of"
    " peft's own module knows (Network.from_module); virtual tokens in front of the embeddings are"
    " PROMPT_TUNING or P_TUNING",
    "XLORA": ": several adapters at once are not known; give the configuration of one",
}
# What peft's LoRA can do beside low rank, and the account has no term for.
_UNKNOWN = (
    "layer_replication",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "lora_bias",
    "alora_invocation_tokens",
    "exclude_modules",
    "use_qalora",
    "megatron_config",
)


@description(slots=True)
class Adapter:
    """What is trained beside a frozen base: low-rank matrices (LoRA, QLoRA, DoRA), factors (IA3),
    or virtual tokens in front of each sample (prompt tuning, P-tuning).

    Each target W of a layer gets A (rank × in) and B (out × rank), with ``dora`` a magnitude for
    each output too; with ``ia3`` a factor for each output alone, for ``down`` of its inputs. They,
    their gradients and what the optimizer remembers of them are in the formats of the recipe's
    ``gradients``, ``states`` and ``master``; the base is in that of its ``parameters`` and has
    neither. As in peft, the input of an adapter is cast to the adapter's format.

    Attributes:
        rank: r of LoRA.
        targets: the projections of each layer that have one: ``q``, ``k``, ``v`` (``qkv`` where
            they are one matrix), ``o``, ``gate``, ``up``, ``down``.
        dropout: whether the adapters' input goes through dropout, which keeps a mask and a copy.
        layers: the layers that have adapters, by number from 0; None for all of them.
        saved: the ends of the model of which a copy is trained beside the frozen original, in the
            format of ``parameters`` (peft's ``modules_to_save``).
        base: ``"nf4"``: matrices of layers have 4 bits and a scale of 8 bits for each 64 weights
            (fp32 for each 256 of those), and one at a time is made wide; embeddings, head and norms
            are as ``parameters`` says. ``"nf4-single"``: the scales are fp32. ``"stored"``: all is
            as ``parameters`` says.
        kind: ``"lora"``, ``"dora"``, ``"ia3"``; ``"prompt"``: embeddings of ``tokens`` virtual
            tokens, which every sample has in addition to the batch's ``seq``; ``"p-tuning"``: those
            come out of an MLP of three layers. rank, targets, dropout, layers and saved are not of
            these two; rank, dropout and layers are not of ``ia3``.
        tokens: virtual tokens; 0 where there are none.
        hidden: the width of P-tuning's MLP; None for the model's own.
        quant_storage: the format as which the 4 bits are stored, of which FSDP cuts floating ones
            alone: ``"bf16"`` or ``"fp16"`` are cut at stage 3, ``"uint8"`` (bitsandbytes' default)
            is whole on every rank. Scales are whole on every rank either way: they are no
            parameters.
        rest: what is not in 4 bits (embeddings, head, norms, biases) is as ``parameters`` says
            (``"stored"``), or in ``"fp32"``, as peft's ``prepare_model_for_kbit_training`` leaves
            it: the stream between the layers is fp32 then.

    Source: Hu et al. 2022 (LoRA) §4; Dettmers et al. 2023 (QLoRA) §3; Liu et al. 2024 (DoRA) §4.3;
    Liu et al. 2022 (IA3) §3.3; Lester et al. 2021 (prompt tuning) §2; Liu et al. 2021 (P-tuning)
    §2. Each is what peft 0.21 makes of it. Bits: bitsandbytes 0.50.2, docs/source/fsdp_qlora.md
    and functional.py (``QuantState``); accelerate 1.15, utils/fsdp_utils.py
    (``fsdp2_prepare_model``).

    >>> Adapter(base="nf4").base_bytes(4096 * 4096)  # 4.127 bits a weight
    8654852
    """

    rank: Size = 16
    targets: tuple[Target, ...] = ("q", "v")
    dropout: bool = False
    layers: tuple[Whole, ...] | None = None
    saved: tuple[Literal["embedding", "head"], ...] = ()
    base: Literal["stored", "nf4", "nf4-single"] = "stored"
    kind: Kind = "lora"
    tokens: Whole = 0
    hidden: Size | None = None
    quant_storage: Literal["uint8", "bf16", "fp16"] = "uint8"
    rest: Literal["stored", "fp32"] = "stored"

    def __post_init__(self) -> None:
        self._check_kind()
        if not self.targets:
            raise BadValue(f"targets must name at least one of {', '.join(TARGETS)}")
        if len(set(self.targets)) < len(self.targets):
            raise BadValue(f"targets must name each projection once, got {', '.join(self.targets)}")
        if self.layers is not None and (
            not self.layers or len(set(self.layers)) < len(self.layers)
        ):
            raise BadValue(f"layers must name each layer once, and one at least; got {self.layers}")
        if len(set(self.saved)) < len(self.saved):
            raise BadValue(f"saved must name each end once, got {', '.join(self.saved)}")
        if self.quant_storage != "uint8" and not self.packed:
            raise BadValue(
                f"quant_storage must be uint8 where the base is stored, got {self.quant_storage}:"
                " it is of a base in 4 bits, nf4 or nf4-single"
            )
        if self.rest == "fp32" and not self.packed:
            raise BadValue(
                "rest must be stored unless base is nf4 or nf4-single: of a base that is not in 4"
                " bits prepare_model_for_kbit_training makes every parameter fp32, which is the"
                " recipe's parameters"
            )
        if self.rest == "fp32" and self.saved:
            raise BadValue(
                f"saved must be empty where rest is fp32, got {', '.join(self.saved)}: the format"
                " of such copies is not known"
            )

    def _check_kind(self) -> None:
        """Refuse fields that are of another kind, which would be ignored."""
        others: dict[str, Any] = {"tokens": 0, "hidden": None}
        if self.is_prompt:
            others = {"rank": 16, "targets": ("q", "v"), "dropout": False, "layers": None}
            others |= {"saved": ()} | ({} if self.kind == "p-tuning" else {"hidden": None})
            if not self.tokens:
                raise BadValue(f"tokens must be at least 1 where kind is {self.kind}, got 0")
        elif self.kind == "ia3":
            others |= {"rank": 16, "dropout": False, "layers": None}
        for name, value in others.items():
            if getattr(self, name) != value:
                raise BadValue(
                    f"{name} must be left out where kind is {self.kind}, got"
                    f" {getattr(self, name)!r}"
                )
        if self.packed and self.kind in {"dora", "ia3"}:
            raise BadValue(
                f"base must be stored where kind is {self.kind}, got {self.base}: how bitsandbytes'"
                " layers run it is not known"
            )

    @property
    def is_prompt(self) -> bool:
        """Whether it is virtual tokens in front of each sample."""
        return self.kind in PROMPTS

    def prompt_shapes(self, hidden: int) -> tuple[tuple[int, ...], ...]:
        """The tensors of virtual tokens and of their encoder; none where there are no such tokens.

        Args:
            hidden: the model's size.
        """
        if not self.is_prompt:
            return ()
        table = (self.tokens, hidden)
        if self.kind == "prompt":
            return (table,)
        wide = self.hidden or hidden
        return (table, (wide, hidden), (wide,), (wide, wide), (wide,), (hidden, wide), (hidden,))

    @property
    def packed(self) -> bool:
        """Whether the base is in 4 bits."""
        return self.base != "stored"

    def base_bytes(self, elements: int) -> int:
        """Bytes of a matrix of the base in 4 bits, its scales with it.

        Args:
            elements: of the matrix.
        """
        return -(-elements // 2) + self.scale_bytes(elements)

    def scale_bytes(self, elements: int) -> int:
        """Bytes of the scales of a matrix of the base in 4 bits.

        Args:
            elements: of the matrix.
        """
        scales = -(-elements // BLOCK)
        if self.base == "nf4-single":
            return 4 * scales
        return scales + 4 * -(-scales // SCALES) + 4  # and the scales' mean, in fp32

    def packed_rows(self, elements: int) -> int:
        """Rows of the one column as which a matrix of the base in 4 bits is stored, which FSDP
        cuts.

        Args:
            elements: of the matrix.
        """
        return -(-elements // (2 * self.storage_bytes))

    @property
    def storage_bytes(self) -> int:
        """Bytes of an element of what the 4 bits are stored as."""
        return 1 if self.quant_storage == "uint8" else 2

    @property
    def is_cut(self) -> bool:
        """Whether FSDP cuts the base."""
        return not self.packed or self.quant_storage != "uint8"

    @checked
    def on_base_of(self, other: Adapter) -> Adapter:
        """The same adapter on the base of another: in its bits, stored and prepared as that is.

        Raises:
            BadValue: this kind of adapter is not known on such a base.
        """
        return replace(self, base=other.base, quant_storage=other.quant_storage, rest=other.rest)

    def check(self, model: Model) -> None:
        """Refuse a target that the model's layers do not have.

        Raises:
            BadValue: it has none of that name; the message says which it has.
            UsageError: nothing is known of adapters in such layers.
        """
        if model.layout:
            raise UsageError(
                "layout must be empty where there are adapters: describe the base by its sizes, by"
                " a preset or a config.json"
            )
        if model.kv_rank:
            raise BadValue("kv_rank must be 0 where there are adapters: latents are not known")
        if self.saved and model.tied:
            raise BadValue(
                f"saved must be empty for {model.name}, whose head is its embedding, got"
                f" {', '.join(self.saved)}: what a copy of one does to the other is not known"
            )
        if self.layers is not None and max(self.layers) >= model.num_layers:
            raise BadValue(
                f"layers must be from 0 to {model.num_layers - 1} for {model.name}, got"
                f" {max(self.layers)}"
            )
        if self.is_prompt:
            return
        attention = ("qkv", "o") if model.fused_qkv else ("q", "k", "v", "o")
        inner = ("gate", "up", "down") if model.mlp == "swiglu" else ("up", "down")
        known = attention if model.num_experts else (*attention, *inner)
        for target in self.targets:
            if target not in known:
                raise BadValue(
                    f"targets must be among {', '.join(known)} for {model.name}, got {target!r}"
                )

    @classmethod
    @checked
    def from_peft(cls, config: Mapping[str, Any] | str | Path, model: Model) -> Adapter:
        """Read the adapter of a PEFT configuration.

        Args:
            config: the dict, or where its ``adapter_config.json`` is.
            model: the base, whose layers decide what a name such as ``c_proj`` means.

        Raises:
            UsageError: a field is missing, or says what the account has no term for.

        >>> llama = Model.preset("llama-2-7b")
        >>> Adapter.from_peft({"r": 8, "target_modules": ["q_proj", "o_proj"]}, llama).targets
        ('q', 'o')
        """
        where, given = _given(config)
        kind = given.get("peft_type", "LORA")
        if kind not in _PEFT_KINDS:
            raise BadValue(
                f"{where}: peft_type must be {', '.join(_PEFT_KINDS)}, got {kind!r}"
                f"{_WHY_NOT.get(str(kind), '')}"
            )
        if kind == "IA3":
            return cls(**_factors(where, given, model))
        if kind != "LORA":
            return cls(**_virtual_tokens(where, given, model))
        if "r" not in given:
            raise UsageError(f"{where}: lacks a field 'r', the rank of the adapters")
        rank = _whole(where, given, "r")
        for name in _UNKNOWN:
            if given.get(name):
                raise BadValue(
                    f"{where}: {name} must be left out: the account does not know it; got"
                    f" {given[name]!r}"
                )
        if given.get("bias", "none") != "none":
            raise BadValue(f"{where}: bias must be 'none', got {given['bias']!r}")
        names = given.get("target_modules")
        targets = targets_of(f"target_modules of {where}", names, model)
        return cls(
            rank=rank,
            targets=targets,
            dropout=bool(given.get("lora_dropout")),
            layers=_layers(where, given.get("layers_to_transform")),
            saved=_saved(where, given.get("modules_to_save")),
            kind="dora" if given.get("use_dora") else "lora",
        )


def _require(where: str, given: Mapping[str, Any], wanted: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse fields of a configuration whose value the account does not know.

    Args:
        wanted: by field, the values that are known, beside none and an empty one; the message
            names the first, or says that the field must be left out.

    Raises:
        BadValue: a field has another value.
    """
    for name, values in wanted.items():
        value = given.get(name)
        if value not in (None, "", [], *values):
            raise BadValue(
                f"{where}: {name} must be {values[0] if values else 'left out'}, got {value!r}: the"
                " account does not know it"
            )


def _whole(where: str, given: Mapping[str, Any], name: str) -> int:
    """A size that a configuration says.

    Raises:
        BadValue: it is not there, or no whole number from 1 to 2⁴⁰.
    """
    value = given.get(name)
    if type(value) is not int or not 1 <= value <= 2**40:
        raise BadValue(f"{where}: {name} must be a whole number, at least 1, got {value!r}")
    return value


def _virtual_tokens(where: str, given: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """The fields of an adapter that is virtual tokens."""
    tokens = _whole(where, given, "num_virtual_tokens")
    known: dict[str, tuple[Any, ...]] = {
        "task_type": ("CAUSAL_LM",),
        "num_transformer_submodules": (1,),
        "token_dim": (model.hidden,),
        "num_layers": (model.num_layers,),
        "modules_to_save": (),
    }
    kind = _PEFT_KINDS[given["peft_type"]]
    if kind == "prompt":
        _require(where, given, known)
        return {"kind": kind, "tokens": tokens}
    _require(where, given, known | {"encoder_reparameterization_type": ("MLP",)})
    name = "encoder_hidden_size"
    hidden = None if given.get(name) is None else _whole(where, given, name)
    return {"kind": kind, "tokens": tokens, "hidden": hidden}


def _factors(where: str, given: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """The fields of an adapter that is IA3."""
    _require(where, given, {"exclude_modules": ()})
    targets = targets_of(f"target_modules of {where}", given.get("target_modules"), model)
    inner = given.get("feedforward_modules") or []
    scaled = targets_of(f"feedforward_modules of {where}", inner, model) if inner else ()
    wanted = tuple(target for target in targets if target == "down")
    if tuple(scaled) != wanted:
        raise BadValue(
            f"{where}: feedforward_modules must be {', '.join(wanted) or 'empty'}, as the targets"
            f" have it, got {', '.join(scaled) or 'none'}: factors of other inputs are not known"
        )
    return {"kind": "ia3", "targets": targets, "saved": _saved(where, given.get("modules_to_save"))}


def _layers(where: str, given: Any) -> tuple[int, ...] | None:
    """The layers that a configuration names; None where it names none."""
    if given is None:
        return None
    numbers = given if isinstance(given, list) else [given]
    if not numbers or any(type(number) is not int or number < 0 for number in numbers):
        raise BadValue(f"{where}: layers_to_transform must be layers from 0 on, got {given!r}")
    return tuple(sorted(set(numbers)))


def _saved(where: str, given: Any) -> tuple[Any, ...]:
    """The ends of which a configuration wants trained copies."""
    names = given or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadValue(f"{where}: modules_to_save must be a list of names, got {given!r}")
    found = []
    for name in names:
        ends = [end for end, aliases in ENDS.items() if name.split(".")[-1] in aliases]
        if not ends:
            known = [alias for aliases in ENDS.values() for alias in aliases]
            raise not_among(f"module (modules_to_save of {where})", name, known)
        found += ends
    return tuple(dict.fromkeys(found))


def _given(config: Mapping[str, Any] | str | Path) -> tuple[str, Mapping[str, Any]]:
    """The name and the fields of a configuration."""
    if isinstance(config, Mapping):
        return "config", config
    try:
        fields = json.loads(Path(config).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{config}: must be a readable adapter_config.json: {error}") from error
    if not isinstance(fields, dict):
        raise UsageError(f"{config}: must hold an object, got {type(fields).__name__}")
    return str(config), fields


def targets_of(where: str, names: Any, model: Model) -> tuple[Any, ...]:
    """The targets that names mean in a model: the account's own, or those of modules.

    Raises:
        UsageError: the model's layers have none of that name; the message names ``where``.
    """
    attention = ("qkv", "o") if model.fused_qkv else ("q", "k", "v", "o")
    inner = ("gate", "up", "down") if model.mlp == "swiglu" else ("up", "down")
    if names == "all-linear":
        return (*attention, *inner)
    if not isinstance(names, list) or not names:
        raise BadValue(f"{where} must be a list of names or 'all-linear', got {names!r}")
    found: list[str] = []
    for name in names:
        last = str(name).split(".")[-1]
        there = [t for t in (*attention, *inner) if last in (t, *TENSORS[t])]
        if not there:
            known = [alias for t in (*attention, *inner) for alias in (t, *TENSORS[t][1:])]
            raise not_among(f"target of {model.name} ({where})", str(name), dict.fromkeys(known))
        found += there
    return tuple(target for target in (*attention, *inner) if target in found)
