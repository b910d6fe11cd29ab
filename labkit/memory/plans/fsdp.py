"""What sharded training holds for a while: gathered layers, collectives' buffers, whole gradients.

Stage 3 as torch's FSDP2 runs it, unit by unit (a layer, or an end of the model; both ends are one
unit where they share the embedding), read in ``torch.distributed.fsdp._fully_shard`` of torch 2.13:

- forward: a unit's all-gather lands in a buffer, from which its tensors are copied out. The buffer
  stays until the next unit's copy-out is done, so a layer computes beside one buffer, and starts
  beside two (``wait_for_unshard``);
- backward: while a unit computes, the next one's all-gather is under way in its own buffer
  (``pre_backward``), and the buffer from which the previous one's gradients are sent is still there
  (``post_backward``); its own gradients are whole until they are copied into a buffer in turn;
- at the end the first unit's gradients are sent with nothing left to compute.

Every buffer has the unit's size rounded up to whole rows on every rank. Stages 1 and 2 of DeepSpeed
reduce through buckets of a given size instead (``ipg_buffer`` of ``stage_1_and_2.py``): one, two
where communication overlaps the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkit.memory.jobs.recipe import DTYPE_BYTES
from labkit.memory.plans.job import Job
from labkit.memory.tape.sizes import is_array
from labkit.memory.tape.step import Moment, Part, Phase
from labkit.memory.traced.recording import GATHER, GATHERED, SENT, WHOLE

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """Elements of a unit: as it is, padded to whole rows on every rank, and one rank's share."""

    whole: Any = 0
    padded: Any = 0
    share: Any = 0


class Passing:
    """A rank's units, and what its communication holds for a while.

    Arrays, as the job's numbers may be: ``layers``, ``degree`` (ranks that share one copy) and
    ``whole``, the elements of the rank before ZeRO.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.held = job.held
        self.layers = job.own_shape.num_layers
        self.degree = self.held.degree
        self.whole = self.held.whole

    @cached_property
    def shared(self) -> bool:
        """Whether anything is spread over more than one rank; of arrays, whether any of them is."""
        return bool(np.any(self.degree > 1)) if is_array(self.degree) else self.degree > 1

    @cached_property
    def gathers(self) -> bool:
        """Whether layers are made whole one by one: at stage 3; on one rank only to cast them."""
        return self.job.parallel.zero == 3 and (self.job.casts or self.shared)

    @cached_property
    def reduces(self) -> bool:
        """Whether gradients are whole for a while only."""
        return self.job.parallel.zero >= 2 and self.shared

    @cached_property
    def updated(self) -> Passing:
        """The part of it that has gradients, where some layers are known to have none."""
        trained = self.job.arguments.get("trained")
        if trained is None:
            return self
        part = Passing(self.job)
        part.held = self.held.trained
        part.whole = part.held.whole
        if len(trained.layers) > 1:
            part.layers = sum(bool(names) for names in trained.layers)
        return part

    def size(self, *names: str) -> Size:
        """The size of the first of the named units that there is; of layers that of the largest."""
        for name in names:
            if name == "block" and self._largest_block:
                return self._sizes[self._largest_block]
            if name in self._sizes:
                return self._sizes[name]
        return Size()

    @cached_property
    def _largest_block(self) -> str:
        """The name of the largest kind of layer."""
        blocks = [name for name in self._sizes if "block" in name]
        return max(blocks, key=lambda name: self._sizes[name].whole, default="")

    @cached_property
    def _sizes(self) -> dict[str, Size]:
        """The size of each unit by name."""
        sizes: dict[str, list[Any]] = {}
        for tensor in self.held.tensors:
            parts = self.held.parts(tensor, self.degree)
            rows = tensor.rows / parts if self.held.ideal else -(-tensor.rows // parts)
            share = rows * tensor.rest * tensor.number
            each = sizes.setdefault(tensor.unit, [0, 0, 0])
            each[0] += tensor.rows * tensor.rest * tensor.number
            each[1] += share * parts
            each[2] += share
        return {name: Size(*each) for name, each in sizes.items()}

    def only_shared(self, size: Any) -> Any:
        """``size`` where there is more than one rank to share with, else 0."""
        return size * (self.degree > 1)

    @cached_property
    def deep(self) -> Any:
        """Whether there is a layer after the first."""
        return self.layers >= 2

    def weights(self, moment: Moment) -> Row:
        """Whole layers at a moment, and the buffers in which they arrive."""
        job = self.job
        if not self.gathers:
            width = job.recipe.compute_bytes
            return {"cast parameters": width * self.whole} if job.casts else {}
        gathered, arriving = self._weights(moment)
        if not job.parallel.reshard_after_forward:
            gathered, arriving = self._kept(moment, gathered, arriving)
        whole = job.whole_width * gathered
        return {
            GATHERED: whole if job.casts else self.only_shared(whole),
            GATHER: self.only_shared(job.whole_width * arriving),
        }

    def _weights(self, moment: Moment) -> tuple[Any, Any]:
        """Elements of the units that are whole, and of the all-gathers' buffers."""
        root, head, block = (self.size(unit).padded for unit in ("root", "head", "block"))
        first = self.size("root", "embedding").padded
        if moment.phase is Phase.FORWARD and moment.part is Part.LAYERS:
            return root + block, block
        tied = "root" in self._sizes
        ends = "head" in self._sizes
        stays = self.job.parallel.keep_gathered
        last = block if stays == "last block" else 0
        to_last = 0 if last else block  # still to be gathered for the backward pass
        again = (
            head if self.job.mode.loss.startswith("chunked") else 0
        )  # gathered anew for every chunk
        ending = head if ends else block
        at_loss = root + last + (head if stays == "head" else again)
        return {
            Moment.EMBEDDING: (first, first),
            Moment.LOSS_FORWARD: (at_loss, ending),
            Moment.LOSS_BACKWARD: (at_loss, to_last if tied else 0),
            Moment.HEAD_BACKWARD: (root + head + last, to_last),
            Moment.BACKWARD_FIRST: (root + block, 0 if tied else first),
            Moment.EMBEDDING_BACKWARD: (first, 0),
        }.get(moment, (root + block, block * self.deep))

    def _kept(self, moment: Moment, gathered: Any, arriving: Any) -> tuple[Any, Any]:
        """The same elements where layers stay whole until their backward pass is done."""
        first = self.size("root", "embedding").padded
        block = self.size("block").padded
        if moment in {Moment.EMBEDDING, Moment.FORWARD_FIRST}:
            return gathered, arriving
        if moment is Moment.EMBEDDING_BACKWARD:
            return first, 0
        if moment is Moment.BACKWARD_FIRST:
            return first + block, 0
        every = first + self.size("head").padded + self.layers * block
        return every, 0 if moment.phase is Phase.BACKWARD else arriving

    @cached_property
    def once(self) -> Any:
        """Bytes of DeepSpeed's bucket at stage 3, which is made once."""
        size = self.job.recipe.reduce_bucket_size
        if self.job.parallel.zero != 3 or not size or not self.shared:
            return 0
        return self.only_shared(self.sent_width * size)

    def buckets(self, gradients: Any) -> Row:
        """Buffers for gradients on their way that are there throughout: DDP's, DeepSpeed's.

        Args:
            gradients: bytes of all gradients of the rank.
        """
        parallel = self.job.parallel
        if parallel.zero == 0 and parallel.gradient_buckets == "copies" and self.shared:
            return {SENT: self.only_shared(gradients)}
        return {SENT: self.once} if parallel.zero == 3 and np.any(self.once) else {}

    def sent(self, moment: Moment) -> Row:
        """Buffers from which gradients are being sent at a moment."""
        recipe = self.job.recipe
        zero = self.job.parallel.zero
        if moment.phase is not Phase.BACKWARD or not self.shared:
            return {}
        if zero in {1, 2} and recipe.reduce_bucket_size:
            elements: Any = recipe.reduce_bucket_size * (2 if recipe.overlap_comm else 1)
        elif zero == 3:
            elements = self._sent(moment)
        else:
            return {}
        return {SENT: self.once + self.only_shared(self.sent_width * elements)}

    def _sent(self, moment: Moment) -> Any:
        """Elements of the unit whose gradients are on their way at stage 3: the one before."""
        head = self.size("head").padded
        block = self.size("block").padded
        if moment.part is Part.HEAD:
            return 0
        if moment is Moment.BACKWARD_LAST:
            return head
        if moment is Moment.BACKWARD_FIRST:
            return block * self.deep + head * (1 - self.deep)
        return block

    @cached_property
    def made_format(self) -> str:
        """The format in which the backward pass makes a gradient."""
        recipe = self.job.recipe
        return recipe.compute_format if self.job.casts else recipe.gradients

    @cached_property
    def sent_width(self) -> float:
        """Bytes of a gradient's element on the wire."""
        return DTYPE_BYTES[self.job.recipe.reduce or self.made_format]

    def gradients(self, moment: Moment, share: Any, total: Any, *, finished: Any = None) -> Row:
        """Gradients at a moment where ``share`` of the rank's are made; ``total`` bytes in the end.

        From stage 2 on those of the unit at work are whole, those of ``finished`` layers sent.
        """
        away = self.job.recipe.offload_gradients != "device"
        if moment.phase is not Phase.BACKWARD or not (away or self.reduces):
            return {"gradients": whole_bytes(total * share)}
        part = self.updated
        head = part.size("head")
        block = part.size("block")
        layers = part._finished(moment) if finished is None else finished
        after_head = moment.part is not Part.HEAD
        before = layers * block.whole + after_head * head.whole
        computed = part.whole * share
        whole = smaller(larger(computed - before, 0), block.whole + part.size("root", "head").whole)
        if not away:
            whole = self.only_shared(whole)
        rest = larger(computed - before - whole, 0) / part.whole
        kept = (layers * block.share + after_head * head.share) * self.job.recipe.gradient_bytes
        kept = smaller(kept + rest * total, total)
        bucket = self.job.parallel.zero == 2 and self.job.recipe.reduce_bucket_size
        row = {"gradients": 0 if away else whole_bytes(kept)}
        if not bucket:
            row[WHOLE] = whole_bytes(DTYPE_BYTES[self.made_format] * whole)
        return row

    def _finished(self, moment: Moment) -> Any:
        """Layers whose gradients are sent."""
        if moment is Moment.EMBEDDING_BACKWARD:
            return self.layers
        if moment is not Moment.BACKWARD_FIRST:
            return 0
        batch = self.job.batch
        mode = self.job.mode
        at_once = {"full": batch.recompute_group, "every": batch.every}.get(mode.recompute, 1)
        return larger(self.layers - at_once, 0)

    def prefetched(self, first: Row, base: Row, *, layer_bytes: Any, share: Any) -> list[Row]:
        """Rows inside the backward pass: the next layer arrives while the previous one's gradients
        go.

        The stack is uniform, so that bytes are linear in the layer and one end is the fullest: both
        are returned.

        Args:
            first: one rank's row of the first layer, the last to be computed. What it lacks is what
                the layers below keep.
            layer_bytes: what a layer keeps.
            share: of one layer in the gradients.
        """
        rows = []
        for below in (larger(self.layers - 2, 0), smaller(1, self.layers - 1)):
            done = larger(self.layers - 1 - below, 0)
            computed = larger(first["share"] - below * share, 0)
            row = base | {"activations": first["activations"] + below * layer_bytes}
            row |= {name: first[name] for name in ("cached weights", "temporaries")}
            row |= self.gradients(Moment.PREFETCH, computed, first["total"], finished=done)
            row |= self.weights(Moment.PREFETCH) | self.sent(Moment.PREFETCH)
            if not self.job.parallel.reshard_after_forward:
                gone = done * self.size("block").padded + self.size("head").padded
                row[GATHERED] = row[GATHERED] - self.job.whole_width * gone
            rows.append(row)
        return rows

    def last_sent(self, base: Row, total: Any) -> Row:
        """The row in which the first unit's gradients are on their way, with nothing left to
        compute.
        """
        first = self.size("root", "embedding")
        kept = total - self.only_shared(self.job.recipe.gradient_bytes * first.share)
        whole = DTYPE_BYTES[self.made_format] * first.whole
        out = first.padded + first.share
        row = base | {"gradients": kept, WHOLE: self.only_shared(whole)}
        return row | {SENT: self.once + self.only_shared(self.sent_width * out)}


def larger(first: Any, other: Any) -> Any:
    """The elementwise maximum; two plain numbers do not become arrays on the way."""
    return np.maximum(first, other) if is_array(first) or is_array(other) else max(first, other)


def smaller(first: Any, other: Any) -> Any:
    """The elementwise minimum; two plain numbers do not become arrays on the way."""
    return np.minimum(first, other) if is_array(first) or is_array(other) else min(first, other)


def whole_bytes(size: Any) -> Any:
    """Bytes to the nearest whole one."""
    return np.rint(size) if is_array(size) else round(float(size))
