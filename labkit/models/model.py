"""A transformer described by its sizes, or measured tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from labkit import files
from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.describe import description
from labkit.models import layout
from labkit.models.layout import Cut, TensorShape, Unit

if TYPE_CHECKING:
    from torch import nn


# What a model's code may compute by other operators than the usual kernels.
Operator = Literal["norm", "gelu", "repeat-kv", "mask", "softmax-fp32"]
OPERATORS: dict[Operator, str] = {
    "norm": "RMSNorm is written out in fp32, not one kernel",
    "gelu": "GELU's tanh approximation is written out, not one kernel",
    "repeat-kv": "keys and values are copied for all query heads before attention's kernel",
    "mask": "attention written out adds one mask that all layers share",
    "softmax-fp32": "attention written out has its softmax in fp32",
}
Size = Annotated[int, Le(2**40)]  # products of larger ones leave 64 bits
SizeIfAny = Annotated[Size, Ge(0)]  # 0: there is none
_POSITIVE = ("num_layers", "hidden", "heads", "vocab", "ffn", "kv_heads", "head_dim")


@description(slots=True)
class Model:
    """A decoder-only transformer, described by its sizes.

    Attributes:
        num_layers, hidden, heads, vocab: the sizes that have no default.
        positions: learnt position embeddings; 0 for rotary.
        ffn: width of the MLP; default 4 × hidden.
        kv_heads: heads of keys and of values; default ``heads``.
        head_dim: width of a head; default hidden / heads. With latent attention, the part of a
            query or key without position.
        tied: the output head is the embedding.
        bias: linear layers have one; ``qkv_bias``, ``out_bias`` (of attention) and ``mlp_bias``
            say otherwise for some of them.
        qk_norm: queries and keys are normalised over a head (Qwen3).
        fused_qkv: queries, keys and values are one matrix, as in GPT-2 and Megatron-LM.
        num_experts, experts_per_token, expert_ffn: routed experts, of which each token takes some.
        shared_experts: experts that every token takes, stored as one MLP of their total width.
        dense_layers: the first layers that have an MLP in place of experts.
        router_bias: one number an expert beside the router's matrix (DeepSeek-V3's correction; it
            is stored with the weights but not trained by gradients).
        q_rank, kv_rank, rope_head_dim, value_head_dim: latent attention (DeepSeek-V2 §2.1), used
            where ``kv_rank`` is not 0; ``q_rank`` 0 projects queries directly.
        operators: what its code computes otherwise than by one kernel (see :data:`OPERATORS`);
            :meth:`from_hf` knows it of transformers' models.
        layout: the tensors themselves, of a model measured rather than described; sizes may then
            be 0, which means not known (see :meth:`require_shapes`).

    Derived defaults are filled in: ``dataclasses.replace`` keeps them, :meth:`resized` derives
    them anew.

    >>> Model.preset("gpt2-124m").num_params
    124439808
    """

    name: str = "custom"
    num_layers: Size = 0
    hidden: Size = 0
    heads: Size = 0
    vocab: Size = 0
    positions: SizeIfAny = 0
    ffn: Size = 0
    kv_heads: Size = 0
    head_dim: Size = 0
    tied: bool = True
    bias: bool = True
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mlp_bias: bool | None = None
    mlp: Literal["gelu", "swiglu"] = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    qk_norm: bool = False
    fused_qkv: bool = True
    num_experts: SizeIfAny = 0
    experts_per_token: SizeIfAny = 0
    expert_ffn: SizeIfAny = 0
    shared_experts: SizeIfAny = 0
    dense_layers: SizeIfAny = 0
    router_bias: bool = False
    q_rank: SizeIfAny = 0
    kv_rank: SizeIfAny = 0
    rope_head_dim: SizeIfAny = 0
    value_head_dim: SizeIfAny = 0
    operators: tuple[Operator, ...] = ()
    layout: tuple[TensorShape, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if self.layout and not self.hidden:
            return
        self._derive()
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise BadValue(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.heads % self.kv_heads:
            raise BadValue(f"heads ({self.heads}) must divide by kv_heads ({self.kv_heads})")
        self._check_experts()
        self._check_latent()

    def _derive(self) -> None:
        if not self.head_dim and self.heads > 0 and self.hidden % self.heads:
            raise BadValue(
                f"hidden ({self.hidden}) must divide by heads ({self.heads}) where head_dim is"
                " not given"
            )
        for name, default in self._defaults().items():
            object.__setattr__(self, name, getattr(self, name) or default)

    def _defaults(self) -> dict[str, int]:
        return {
            "ffn": 4 * self.hidden,
            "kv_heads": self.heads,
            "head_dim": self.hidden // self.heads if self.heads > 0 else 0,
        }

    def _check_experts(self) -> None:
        if not self.num_experts:
            for name in ("experts_per_token", "expert_ffn", "shared_experts", "dense_layers"):
                if getattr(self, name):
                    raise BadValue(f"{name} must be 0 where num_experts is 0")
            return
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise BadValue(
                f"experts_per_token must be in 1..{self.num_experts} (num_experts),"
                f" got {self.experts_per_token}"
            )
        if self.expert_ffn < 1:
            raise BadValue("expert_ffn must be >= 1 where there are experts")
        if self.dense_layers > self.num_layers:
            raise BadValue(
                f"dense_layers ({self.dense_layers}) must not exceed num_layers ({self.num_layers})"
            )

    def _check_latent(self) -> None:
        parts = ("rope_head_dim", "value_head_dim")
        if self.kv_rank and min(self.rope_head_dim, self.value_head_dim) < 1:
            raise BadValue("rope_head_dim and value_head_dim must be >= 1 where kv_rank is not 0")
        if self.kv_rank and self.kv_heads != self.heads:
            raise BadValue("kv_heads must equal heads where kv_rank is not 0")
        if not self.kv_rank and (self.q_rank or any(getattr(self, part) for part in parts)):
            raise BadValue("q_rank, rope_head_dim and value_head_dim must be 0 where kv_rank is 0")

    @classmethod
    def preset(cls, name: str) -> Model:
        """A model of ``data/models.yaml``; raises UsageError, with like names, where none is."""
        known = presets()
        if name not in known:
            raise not_among("model", name, known)
        return known[name]

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any] | str | Path, *, transformers_version: str | None = None
    ) -> Model:
        """The model of a Hugging Face configuration: the dict, or where its JSON file is.

        Its :attr:`operators` are those of ``transformers_version``, by default the installed one;
        :attr:`source` says which.

        Raises:
            UsageError: the kind of model is unknown, a size is missing, there is no such file, or
                nobody ran that version's modules.

        >>> sizes = {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
        >>> Model.from_hf({"model_type": "gpt2", "n_positions": 1024, **sizes}).num_params
        124439808
        """
        from labkit.models.huggingface import read

        return cls(**read(config, transformers_version))

    @classmethod
    def from_module(cls, module: nn.Module, *, name: str = "") -> Model:
        """A torch module's parameters, and its sizes where they can be recognised.

        Parameters that modules share count once. See :meth:`require_shapes`.

        Raises:
            UsageError: the module has no parameters.
        """
        from labkit.models.measured import measure

        return measure(module, cls, name)

    def require_shapes(self) -> Model:
        """This model; raises UsageError where only its tensors are known, not layers and widths."""
        if not self.hidden:
            raise UsageError(
                f"model {self.name!r} was measured from its parameters and its layers were not"
                " recognised: only its states are known. Describe it with Model(num_layers=…,"
                " hidden=…, heads=…, vocab=…) for activations"
            )
        return self

    def has_bias(self, where: Literal["qkv", "out", "mlp"]) -> bool:
        chosen = {"qkv": self.qkv_bias, "out": self.out_bias, "mlp": self.mlp_bias}[where]
        return self.bias if chosen is None else chosen

    @property
    def num_dense_layers(self) -> int:
        """Layers with an MLP; the rest have experts."""
        return self.dense_layers if self.num_experts else self.num_layers

    @property
    def query_size(self) -> int:
        """Width of the queries of all heads; it need not be ``hidden``."""
        return self.heads * (self.head_dim + self.rope_head_dim)

    @property
    def kv_size(self) -> int:
        """Width of the keys, and of the values, of all heads."""
        return self.head_dim * self.kv_heads

    @property
    def num_params(self) -> int:
        return sum(unit.count * unit.numel for unit in self.units())

    def tensors(self, **part: Any) -> tuple[TensorShape, ...]:
        """Every parameter tensor in the order of the forward pass; linear weights are (out, in).

        ``part`` is as in :meth:`units`.
        """
        if self.layout:
            self._refuse_cut(part)
            return self.layout
        return layout.in_order(self, self._cut(part))

    def units(self, **part: Any) -> tuple[Unit, ...]:
        """The distinct units and how often each occurs: all a sum over tensors needs, and few.

        ``part`` asks for what one rank holds: ``tp`` and ``ep`` (degrees of tensor and expert
        parallelism; Megatron's layout: heads, MLP width and vocabulary are cut, norms and routers
        copied), ``first_layer`` and ``end_layer`` (a pipeline stage's layers), ``embedding`` and
        ``head`` (whether it has those ends; a tied head apart from its embedding is a copy).

        Raises:
            BadValue: something does not divide.

        >>> [(unit.name, unit.count) for unit in Model.preset("llama-2-7b").units(end_layer=8)]
        [('embedding', 1), ('block', 8), ('head', 1)]
        """
        if self.layout:
            self._refuse_cut(part)
            return _measured_units(self.layout)
        return layout.units(self, self._cut(part))

    def _cut(self, part: dict[str, Any]) -> Cut:
        return Cut(**{"end_layer": self.num_layers, **part})

    def _refuse_cut(self, part: dict[str, Any]) -> None:
        if part:
            raise UsageError(
                f"model {self.name!r} was measured whole: how {', '.join(part)} would cut it is"
                " not known"
            )

    def resized(self, **changes: Any) -> Model:
        """This model with other sizes; those that followed from defaults follow again.

        >>> Model.preset("gpt2-124m").resized(hidden=1536).ffn
        6144
        """
        same = asdict(self) | {"layout": self.layout}
        for name, default in self._defaults().items():
            if same[name] == default:
                same[name] = 0
        return Model(**(same | changes))


def presets() -> dict[str, Model]:
    """The models of ``data/models.yaml`` by name."""
    return files.named(files.shipped("data/models.yaml"), Model)


@lru_cache(maxsize=64)
def _measured_units(tensors: tuple[TensorShape, ...]) -> tuple[Unit, ...]:
    units = layout.by_unit(tensors)
    return tuple(Unit(name=name, count=1, tensors=members) for name, members in units.items())
