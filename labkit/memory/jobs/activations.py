"""Activations kept for the backward pass, by two published formulas that disagree on purpose.

Both are approximations of a GPT-like block, in elements or bytes a layer; neither knows which
kernels run. They stand beside each other so that one can see what each leaves out.
"""

from __future__ import annotations

from labkit.errors import BadValue
from labkit.memory.jobs.batch import Batch
from labkit.models import Model

ELEMENT_BYTES = 2


def layer_bytes(model: Model, batch: Batch) -> float:
    """Bytes one transformer layer keeps for its backward pass, nothing recomputed.

    >>> gpt2 = Model.preset("gpt2-1.5b")
    >>> round(48 * layer_bytes(gpt2, Batch(seq=1024, micro_batch=32)) / 1e9, 1)
    60.4
    """
    width = batch.seq * batch.micro_batch * model.hidden
    if batch.paper == "zero-paper":
        return 12 * width * ELEMENT_BYTES
    return width * (34 + 5 * model.heads * batch.seq / model.hidden)


def checkpoint_bytes(model: Model, batch: Batch) -> int:
    """Bytes of one layer's input: batch × sequence × hidden, 16 bits each."""
    return batch.seq * batch.micro_batch * model.hidden * ELEMENT_BYTES


def activation_bytes(model: Model, batch: Batch, *, tp: int = 1) -> float:
    """Bytes of activations on one rank: what layers keep, checkpoints, and the layers at work.

    A layer at work is divided by ``tp`` here, its input is not (that is the redundancy P_a removes)
    unless ``batch.partition_checkpoints``. Source: ZeRO §3.2, §6.1; Korthikanti et al. 2022.

    Raises:
        BadValue: selective recomputation by a formula that has no term for attention.
    """
    working = layer_bytes(model, batch) / tp
    if batch.recompute == "selective":
        if batch.paper == "zero-paper":
            raise BadValue(
                "formula must be korthikanti where recompute is selective: zero-paper has no term"
                " for attention"
            )
        return model.num_layers * batch.tokens * model.hidden * 34 / tp
    kept = model.num_layers - batch.num_recomputed(model.num_layers)
    if not batch.every:
        return kept * working
    shards = tp if batch.partition_checkpoints else 1
    inputs = batch.num_checkpoints(model.num_layers) * checkpoint_bytes(model, batch) / shards
    return inputs + (kept + batch.recompute_group) * working
