"""What a model replica works on at a time, and which kernels work on it."""

from __future__ import annotations

from typing import Literal

from labkit.errors import BadValue
from labkit.kit.describe import Whole, description
from labkit.memory.tape.mode import LogitsHeld, Loss, MaskBytes, Size

Recompute = Literal["none", "selective", "operators", "full"]
Attention = Literal["eager", "sdpa", "flash"]

FORMULA = "12·h·b·s elements a layer (ZeRO, footnote to §3.2): no term for attention"


@description(slots=True)
class Batch:
    """Samples of ``seq`` tokens, what is kept of them for the backward pass, and by which kernels.

    Attributes:
        seq, micro_batch: tokens a sample, samples a replica at a time.
        target_seq: tokens that the decoder of an encoder and a decoder has for a sample; None for
            as many as ``seq``. Decoders alone have none.
        recompute: ``"none"``: every layer keeps what its backward needs; ``"selective"``:
            attention's scores, softmax and dropout are computed again (Korthikanti et al. 2022,
            §5); ``"operators"``: each layer keeps its input, attention's output and every second
            matrix product's (torchtitan); ``"full"``: its input only; a number k: every k-th layer
            does.
        recompute_group: with ``"full"``, how many layers in a row keep one input between them and
            are recomputed together.
        attention: ``"eager"`` stores the scores; ``"sdpa"`` (torch's kernels) and ``"flash"`` one
            number a row. norm_fused: an RMSNorm is one kernel. swiglu_fused: so is SiLU of the gate
            times up, whose output alone is then kept beside its inputs.
        loss: of logits cast to fp32 (``"eager-fp32"``); in place on them (``"vocab-parallel"``,
            Megatron-LM) or on a copy (``"vocab-parallel-copy"``, nanotron); on DTensors sharded
            over the vocabulary (``"loss-parallel"``, torchtitan's tensor parallelism); over one
            part of the tokens at a time, whose logits are made again in the backward pass
            (``"chunked"``), or are all made before, and only the loss takes them one by one
            (``"chunked-output"``: torchtune's ``CEWithChunkedOutputLoss``); or with its gradient in
            one kernel (``"fused"``: Liger).
        loss_chunks, loss_chunk_tokens: how many parts there are, or how many tokens each has;
            ``"liger"``: as many as Liger's rule has for the vocabulary and the hidden size.
        logits_held: which logits the training loop holds until the step is done: ``"none"``, those
            of the ``"compute"`` format (a Hugging Face output that is kept), or their ``"fp32"``
            copy (torchtitan's loop before it deleted them).
        offload_activations: ``"cpu"``: what is saved for the backward pass, inputs of recomputed
            layers among it, is copied to the host and back when it is needed (torch's
            ``save_on_cpu`` around the forward pass, on which torchtune's and TRL's
            ``OffloadActivations`` are built; these keep a few tensors longer to overlap copies).
        gpu: operators as a GPU runs them rather than a CPU: fp32 statistics of LayerNorm, and
            powers in fp32 under autocast.
        dropout_mask_bytes: what dropout stores for an element: 0 without dropout, 1 on CUDA.
        input_gradients: where layers are recomputed, the embedding's output asks for a gradient
            even if the embedding is frozen, as transformers' ``enable_input_require_grads`` makes
            it: the first layers then have a backward pass, and that gradient is kept.
        reentrant: layers that are recomputed run without a graph at first, and the backward pass of
            each has one inside it (``use_reentrant=True`` of torch's ``checkpoint``): a layer is
            computed again to its end, and has a gradient only where its input has one.
        workspace_bytes: what cuBLAS keeps for each of torch's two threads that multiply, forward
            and backward, from their first product on; 0 where no card is named.
        layer_workspace_bytes: what the layers' own library keeps for its products beside that
            (TransformerEngine); torch then multiplies for the head, stored scores and routers only.
        formula: None for the account tensor by tensor, moment by moment; ``"zero-paper"``:
            :data:`FORMULA` stands in for activations.
        partition_checkpoints: layer inputs are divided among the tensor-parallel ranks (ZeRO's
            P_a).

    >>> batch = Batch(seq=1024, micro_batch=8, recompute=2)
    >>> batch.tokens, batch.num_recomputed(12)
    (8192, 6)
    """

    seq: Size
    micro_batch: Size = 1
    target_seq: Size | None = None
    recompute: Recompute | Size = "none"
    recompute_group: Size = 1
    attention: Attention = "sdpa"
    dropout_mask_bytes: MaskBytes = 0
    norm_fused: bool = True
    swiglu_fused: bool = False
    loss: Loss = "eager-fp32"
    loss_chunks: Size | Literal["liger"] = 8
    loss_chunk_tokens: Size | None = None
    logits_held: LogitsHeld = "none"
    offload_activations: Literal["device", "cpu"] = "device"
    gpu: bool = False
    input_gradients: bool = False
    reentrant: bool = False
    workspace_bytes: Whole = 0
    layer_workspace_bytes: Whole = 0
    formula: Literal["zero-paper"] | None = None
    partition_checkpoints: bool = False

    def __post_init__(self) -> None:
        self._check_chunks()
        if self.formula is not None and self.offload_activations != "device":
            raise BadValue(
                f"offload_activations must be device where formula is {self.formula}, got"
                f" {self.offload_activations}: papers' activations have no place of their own"
            )
        if self.reentrant and not self.every:
            raise BadValue(
                f"recompute must be full or a number where reentrant is True, got {self.recompute}:"
                " a reentrant checkpoint keeps nothing inside a layer"
            )
        if self.reentrant and self.offload_activations != "device":
            raise BadValue(
                f"offload_activations must be device where reentrant is True, got"
                f" {self.offload_activations}: how its inputs come back is not known"
            )
        if self.recompute_group > 1 and self.recompute != "full":
            raise BadValue(
                f"recompute_group ({self.recompute_group}) must be 1 unless recompute is full"
            )

    def _check_chunks(self) -> None:
        """Refuse parts of the tokens that the loss would ignore, or of two sizes."""
        if self.loss_chunks == "liger" and self.loss != "fused":
            raise BadValue(f"loss_chunks must be a number where loss is {self.loss}, got liger")
        if self.loss_chunk_tokens is None:
            return
        if self.loss not in {"chunked", "chunked-output", "fused"}:
            raise BadValue(
                "loss must be chunked, chunked-output or fused where loss_chunk_tokens is given,"
                f" got {self.loss}"
            )
        if self.loss_chunks != 8:
            raise BadValue(
                f"loss_chunks must be left out where loss_chunk_tokens is given, got"
                f" {self.loss_chunks}"
            )

    @property
    def tokens(self) -> int:
        """Tokens that a replica works on at a time."""
        return self.seq * self.micro_batch

    @property
    def every(self) -> int:
        """Every how many layers one is recomputed whole; 0 where none is."""
        if isinstance(self.recompute, int):
            return self.recompute
        return 1 if self.recompute == "full" else 0

    def num_recomputed(self, num_layers: int) -> int:
        """How many of the first ``num_layers`` layers are recomputed whole."""
        return num_layers // self.every if self.every else 0

    def num_checkpoints(self, num_layers: int) -> int:
        """Layer inputs that are kept for recomputing."""
        return -(-self.num_recomputed(num_layers) // self.recompute_group)
