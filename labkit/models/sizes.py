"""The sizes of a transformer: the record that its tensors are worked out from."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from labkit.errors import BadValue
from labkit.kit.describe import checked, description
from labkit.models.tensors import TensorShape

# What a model's code may compute by other operators than the usual kernels.
OlderOperator = Literal[  # that no version of transformers from 4.49 on runs
    "shifted-loss",
    "narrow-loss",
    "loss-beside",
    "own-tables",
    "mask-a-sample",
    "norm-of-input",
    "norm-wide",
    "clamp",
]
Operator = Literal["norm", "gelu", "repeat-kv", "mask", "softmax-fp32", OlderOperator, "no-sdpa"]
OPERATORS: dict[Operator, str] = {
    "norm": "RMSNorm is written out in fp32, not one kernel",
    "gelu": "GELU's tanh approximation is written out, not one kernel",
    "repeat-kv": "keys and values are copied for all query heads before attention's kernel",
    "mask": "attention written out adds one mask that all layers share",
    "softmax-fp32": "attention written out has its softmax in fp32",
    "shifted-loss": "the loss copies the logits without each sample's last token",
    "narrow-loss": "the loss is of logits in the format of matrix products, not fp32",
    "loss-beside": "the logits stay beside their fp32 copy while the loss is computed",
    "own-tables": "each layer makes and keeps rotary tables of its own",
    "mask-a-sample": "the added mask is made anew in each step, for each sample",
    "norm-of-input": "RMSNorm scales its input, kept beside an fp32 copy of it",
    "norm-wide": "RMSNorm's product with its weight is in fp32",
    "clamp": "attention written out clamps its scores, which are kept once more",
    "no-sdpa": "attention knows no kernel of torch: sdpa is written out as eager is",
}
Size = Annotated[int, Le(2**40)]  # products of larger ones leave 64 bits
SizeIfAny = Annotated[Size, Ge(0)]  # 0: there is none
_POSITIVE = ("num_layers", "hidden", "heads", "vocab", "ffn", "kv_heads", "head_dim")


@description(slots=True)
class Sizes:
    """The sizes of a decoder-only transformer, which :class:`labkit.models.Model` adds answers to.

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
            ``Model.from_hf`` knows it of transformers' models.
        layout: the tensors themselves, of a model measured rather than described; sizes may then
            be 0, which means not known (see ``Model.require_shapes``).

    Derived defaults are filled in when the record is made.
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
        """Fill in the sizes that follow from others."""
        if not self.head_dim and self.heads > 0 and self.hidden % self.heads:
            raise BadValue(
                f"hidden ({self.hidden}) must divide by heads ({self.heads}) where head_dim is"
                " not given"
            )
        for name, default in self._defaults().items():
            object.__setattr__(self, name, getattr(self, name) or default)

    def _defaults(self) -> dict[str, int]:
        """Compute the sizes that follow from others."""
        return {
            "ffn": 4 * self.hidden,
            "kv_heads": self.heads,
            "head_dim": self.hidden // self.heads if self.heads > 0 else 0,
        }

    def _check_experts(self) -> None:
        """Refuse experts that cannot be."""
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
        """Refuse latent attention that cannot be."""
        parts = ("rope_head_dim", "value_head_dim")
        if self.kv_rank and min(self.rope_head_dim, self.value_head_dim) < 1:
            raise BadValue("rope_head_dim and value_head_dim must be >= 1 where kv_rank is not 0")
        if self.kv_rank and self.kv_heads != self.heads:
            raise BadValue("kv_heads must equal heads where kv_rank is not 0")
        if not self.kv_rank and (self.q_rank or any(getattr(self, part) for part in parts)):
            raise BadValue("q_rank, rope_head_dim and value_head_dim must be 0 where kv_rank is 0")

    @checked
    def has_bias(self, where: Literal["qkv", "out", "mlp"]) -> bool:
        """Tell whether the linear layers there (``qkv``, ``out``, ``mlp``) have a bias."""
        chosen = {"qkv": self.qkv_bias, "out": self.out_bias, "mlp": self.mlp_bias}[where]
        return self.bias if chosen is None else chosen

    @property
    def num_dense_layers(self) -> int:
        """How many layers have an MLP; the rest have experts."""
        return self.dense_layers if self.num_experts else self.num_layers

    @property
    def query_size(self) -> int:
        """The width of the queries of all heads; it need not be ``hidden``."""
        return self.heads * (self.head_dim + self.rope_head_dim)

    @property
    def kv_size(self) -> int:
        """The width of the keys, and of the values, of all heads."""
        return self.head_dim * self.kv_heads
