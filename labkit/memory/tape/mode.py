"""The choices that decide which operators run, and the widths of number formats in bytes."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from labkit.kit.describe import description
from labkit.models.sizes import Operator

FP32 = 4
BF16 = 2
INT64 = 8
BOOL = 1
# A number of samples, tokens, ranks or micro-batches: products of larger ones leave 64 bits.
Size = Annotated[int, Ge(1), Le(2**40)]
MaskBytes = Literal[0, 1]  # of an element's dropout mask: none, or a kernel's

Dtype = Literal["bf16", "fp32", "autocast"]
Base = Literal["", "bf16", "matrices"]
Attention = Literal["eager", "sdpa"]
Recompute = Literal["none", "selective", "operators", "full", "every"]
Loss = Literal[
    "eager-fp32",
    "vocab-parallel",
    "vocab-parallel-copy",
    "loss-parallel",
    "chunked",
    "chunked-output",
    "fused",
]
LogitsHeld = Literal["none", "compute", "fp32"]
CpExchange = Literal["all-gather", "all-to-all", "ring"]
SequenceGather = Literal["again", "buffer", "kept"]


@description(slots=True)
class Mode:
    """The choices that decide which operators run, and so what is saved.

    What is not said below is as in :class:`~labkit.memory.jobs.batch.Batch`.

    Attributes:
        dtype: ``"bf16"`` and ``"fp32"`` throughout, or fp32 parameters under bf16 ``"autocast"``.
        base: of a frozen base under autocast, what is in bf16: nothing (``""``), all of it
            (``"bf16"``), or the layers' matrices alone (``"matrices"``).
        attention: ``"eager"`` (all scores exist) or ``"sdpa"`` (a flash kernel).
        recompute: ``"every"``: every k-th layer.
        norm_fused: RMSNorm is one kernel; otherwise the usual lines in fp32. LayerNorm always is.
        gelu_fused: GELU is one kernel; otherwise the eight operators of its tanh approximation.
        swiglu_fused: SiLU of the gate times up is one kernel, which keeps its two inputs; otherwise
            two, and the second keeps SiLU's output too.
        repeat_kv: keys and values are copied for all query heads before attention's kernel, too;
            attention written out always does so.
        mask_added: attention written out adds one mask that all layers share, instead of one
            boolean mask a layer that is kept. ``softmax_fp32``: its softmax runs in fp32.
        older: operators of transformers' code before 4.49
            (``labkit.memory.tape.older.OLDER``). A loss other than ``"eager-fp32"`` stands in
            place of the model's own, and so of what is older in it.
        input_gradients: the embedding's output asks for a gradient, though the embedding is frozen.
        sequence_gather: :attr:`~labkit.memory.jobs.parallel.Parallel.sp_gather`.
        offload: what is saved for the backward pass is copied to the host and back.
        dropout_mask_bytes: of the embedding, of attention's scores where they exist, after
            attention and after the MLP.
    """

    dtype: Dtype = "bf16"
    base: Base = ""
    attention: Attention = "sdpa"
    recompute: Recompute = "none"
    norm_fused: bool = True
    gelu_fused: bool = True
    swiglu_fused: bool = False
    repeat_kv: bool = False
    mask_added: bool = False
    softmax_fp32: bool = False
    older: tuple[Operator, ...] = ()
    loss: Loss = "eager-fp32"
    logits_held: LogitsHeld = "none"
    sequence_gather: SequenceGather = "again"
    gpu: bool = False
    input_gradients: bool = False
    offload: bool = False
    dropout_mask_bytes: MaskBytes = 0

    @property
    def compute_bytes(self) -> int:
        """Bytes of an element in matrix products."""
        return FP32 if self.dtype == "fp32" else BF16

    @property
    def stream_bytes(self) -> int:
        """Bytes of an element between the layers, and of a parameter outside their matrices."""
        return BF16 if "bf16" in {self.dtype, self.base} else FP32

    @property
    def matrix_bytes(self) -> int:
        """Bytes of an element of a layer's matrix."""
        return BF16 if self.base == "matrices" else self.stream_bytes

    @property
    def table_bytes(self) -> int:
        """Bytes of an element of a rotary table."""
        return self.stream_bytes if self.base else self.compute_bytes

    @property
    def shifted(self) -> bool:
        """Whether the loss copies all logits but each sample's last."""
        return "shifted-loss" in self.older and self.loss == "eager-fp32"

    @property
    def chunked(self) -> bool:
        """Whether the head runs over one part of the rows at a time."""
        return self.loss in {"chunked", "chunked-output", "fused"}
