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

Frozen parameters are gathered and freed as others are, and no gradient of theirs is sent. A unit
whose input has no gradient (the first that learns, where all before it is frozen) is put away and
its gradients are sent when the whole backward pass has ended
(``_root_post_backward_final_callback``), and the unit before it is gathered in vain. Adapters are
gathered as they are stored, or cast with all else; 4 bits as the column of numbers that they are
stored as, and not at all where that is ``uint8``.

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
from labkit.memory.jobs.states import Rows
from labkit.memory.plans.job import Job
from labkit.memory.tape.sizes import is_array
from labkit.memory.tape.step import Moment, Part, Phase
from labkit.memory.tape.trained import Trained
from labkit.memory.traced.recording import GATHER, GATHERED, SENT, WHOLE

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Size:
    """A unit: its elements, and bytes padded to whole rows on every rank.

    Attributes:
        whole: elements.
        gathered: bytes of its tensors as they are gathered.
        made: bytes of its gradients as the backward pass makes them, not padded.
        sent, received: bytes of their buffer on the wire, and of one rank's share of it.
        kept: bytes of one rank's share of them as it is kept.
    """

    whole: Any = 0
    gathered: Any = 0
    made: Any = 0
    sent: Any = 0
    received: Any = 0
    kept: Any = 0

    def plus(self, other: Size, times: int) -> Size:
        """Both sizes, the other so many times."""
        names = self.__dataclass_fields__
        sums = {name: getattr(self, name) + times * getattr(other, name) for name in names}
        return Size(**sums)


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
        trained = self.trained
        if trained is None:
            return self
        part = Passing(self.job)
        part.held = self.held.trained
        part.whole = part.held.whole
        if len(trained.layers) > 1:
            part.layers = sum(bool(names) for names in trained.layers)
        return part

    @cached_property
    def trained(self) -> Trained | None:
        """What is trained; None where all is, or where it is not known of the layers."""
        return self.job.arguments.get("trained")

    @cached_property
    def deepest(self) -> int:
        """The first layer with a gradient; -1 where what comes before the layers has one."""
        return -1 if self.trained is None else self.trained.deepest

    @property
    def frozen(self) -> bool:
        """Whether a part is frozen, and it is known which."""
        return self.trained is not None

    @property
    def starts_late(self) -> bool:
        """Whether the first layer that has a gradient has none of its input."""
        return self.deepest >= 0

    @property
    def backwards(self) -> Any:
        """Layers that have a backward pass."""
        return self.layers - max(self.deepest, 0)

    @cached_property
    def made(self) -> Any:
        """Bytes of all gradients of the rank as the backward pass makes them."""
        return sum(
            self.held.count(tensor) * tensor.rows * tensor.rest * self._made_width(tensor)
            for tensor in self.held.tensors
        )

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
        """The size of each unit by name; layers of which not the same is trained are told apart."""
        sizes: dict[str, Size] = {}
        for tensor in self.held.tensors:
            name = f"{tensor.unit} {tensor.kind}" if tensor.kind else tensor.unit
            sizes[name] = sizes.get(name, Size()).plus(self._size_of(tensor), tensor.number)
        return sizes

    def _size_of(self, tensor: Rows) -> Size:
        """The part that one tensor has in its unit."""
        recipe = self.job.recipe
        parts = self.held.parts(tensor, self.degree)
        rows = tensor.rows / parts if self.held.ideal else -(-tensor.rows // parts)
        share = rows * tensor.rest
        whole = tensor.rows * tensor.rest
        made_width = self._made_width(tensor)
        wire_width = DTYPE_BYTES[recipe.reduce] if recipe.reduce else made_width
        kept_width = recipe.parameter_bytes if tensor.copied else recipe.gradient_bytes
        return Size(
            whole=whole,
            gathered=self._gathered_bytes(tensor, share, parts),
            made=made_width * whole,
            sent=wire_width * share * parts,
            received=wire_width * share,
            kept=kept_width * share,
        )

    def _gathered_bytes(self, tensor: Rows, share: Any, parts: Any) -> Any:
        """Bytes of a tensor as it is gathered: none where it is whole on every rank.

        Args:
            share: elements of each of the ``parts`` ranks.
        """
        adapter = self.job.recipe.adapter
        if self.held.stays(tensor):
            return 0
        if tensor.packed and adapter is not None:
            return self.held.packed_share(tensor, parts) * parts if adapter.is_cut else 0
        return DTYPE_BYTES[self.held.gathered_format(tensor)] * share * parts

    def _made_width(self, tensor: Rows) -> float:
        """Bytes of an element of a tensor's gradient as the backward pass makes it."""
        recipe = self.job.recipe
        if tensor.copied and not self.job.casts:
            return recipe.parameter_bytes
        return DTYPE_BYTES[self.made_format]

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
        whole, arriving = self._weights(moment)
        if not job.parallel.reshard_after_forward:
            whole, arriving = self._kept(moment, whole, arriving)
        return {
            GATHERED: whole if job.casts else self.only_shared(whole),
            GATHER: self.only_shared(arriving),
        }

    def _weights(self, moment: Moment) -> tuple[Any, Any]:
        """Bytes of the units that are whole, and of the all-gathers' buffers."""
        root, head, block = (self.size(unit).gathered for unit in ("root", "head", "block"))
        first = self.size("root", "embedding").gathered
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
        before = block if self.deepest > 0 else 0 if tied else first
        at_loss = root + last + (head if stays == "head" else again)
        return {
            Moment.EMBEDDING: (first, first),
            Moment.LOSS_FORWARD: (at_loss, ending),
            Moment.LOSS_BACKWARD: (at_loss, to_last if tied else 0),
            Moment.HEAD_BACKWARD: (root + head + last, to_last),
            Moment.BACKWARD_FIRST: (root + block, before),
            Moment.EMBEDDING_BACKWARD: (first, 0),
        }.get(moment, (root + block, block * self.deep))

    def _kept(self, moment: Moment, gathered: Any, arriving: Any) -> tuple[Any, Any]:
        """The same bytes where layers stay whole until their backward pass is done."""
        first = self.size("root", "embedding").gathered
        block = self.size("block").gathered
        if moment in {Moment.EMBEDDING, Moment.FORWARD_FIRST}:
            return gathered, arriving
        if moment is Moment.EMBEDDING_BACKWARD:
            return first, 0
        if moment is Moment.BACKWARD_FIRST:
            return first + larger(self.deepest + 1, 1) * block, 0
        head = self.size("head").gathered if moment.part is Part.HEAD else 0
        every = first + head + self.layers * block
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
            elements = recipe.reduce_bucket_size * (2 if recipe.overlap_comm else 1)
            out = self.sent_width * elements
        elif zero == 3:
            out = self.updated._sent(moment)
        else:
            return {}
        return {SENT: self.once + self.only_shared(out)}

    def _sent(self, moment: Moment) -> Any:
        """Bytes of the unit whose gradients are on their way at stage 3: the one before."""
        head = self.size("head").sent
        block = self.size("block").sent
        if moment.part is Part.HEAD:
            return 0
        if moment is Moment.BACKWARD_LAST:
            return head
        if moment is Moment.BACKWARD_FIRST:
            return block * self.deep + head * (1 - self.deep)
        return block

    @cached_property
    def varied(self) -> bool:
        """Whether layers are told apart by what of them is trained."""
        return self.trained is not None and len(self.trained.layers) > 1

    @cached_property
    def made_format(self) -> str:
        """The format in which the backward pass makes a gradient."""
        recipe = self.job.recipe
        if recipe.adapter is not None:
            return recipe.adapter_format
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
        before = layers * block.made + after_head * head.made
        computed = part.made * share
        whole = smaller(larger(computed - before, 0), block.made + part.size("root", "head").made)
        if not away:
            whole = self.only_shared(whole)
        rest = larger(computed - before - whole, 0) / part.made
        kept = layers * block.kept + after_head * head.kept
        kept = smaller(kept + rest * total, total)
        bucket = self.job.parallel.zero == 2 and self.job.recipe.reduce_bucket_size
        row = {"gradients": 0 if away else whole_bytes(kept)}
        if not bucket:
            row[WHOLE] = whole_bytes(whole)
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

    def starts(self, by_moment: dict[Moment, Row]) -> dict[Moment, Row]:
        """Rows of the forward pass in which a unit's weights are copied out: its buffer is full,
        and that of the unit before is not free yet.

        Where all is trained, gradients of a layer and their buffer take more than that.

        Returns:
            By the moment that the row is a part of; what layers keep is not in it.
        """
        root, head, block = (self.size(unit).gathered for unit in ("root", "head", "block"))
        first = self.size("root", "embedding").gathered
        tokens = by_moment[Moment.EMBEDDING]["activations"]
        units = {
            Moment.EMBEDDING: (root + block, block + first),
            Moment.FORWARD_LAST: (root + block, 2 * block),
            Moment.LOSS_FORWARD: (root + head, head + block),
        }
        rows = {}
        for moment, (whole, arriving) in units.items():
            if moment in by_moment and (np.any(head) or moment is not Moment.LOSS_FORWARD):
                row = by_moment[moment] | {"temporaries": 0, "activations": tokens}
                arriving = self.only_shared(arriving)
                rows[moment] = row | {GATHERED: self.only_shared(whole), GATHER: arriving}
        return rows

    def prefetched(self, first: Row, base: Row, *, layer_bytes: Any, share: Any) -> list[Row]:
        """Rows inside the backward pass: the next layer arrives while the previous one's gradients
        go.

        The stack is uniform, so that bytes are linear in the layer and one end is the fullest: both
        are returned. The previous one is a layer, and so is the next: fewer than three have no such
        moment. (Two layers that keep less than they weigh hold up to 3 % more than is said here,
        between the last one's work and the first one's.)

        Args:
            first: one rank's row of the first layer, the last to be computed. What it lacks is what
                the layers below keep.
            layer_bytes: what a layer keeps.
            share: of one layer in the gradients.
        """
        rows = []
        layers = self.backwards
        is_between = layers >= 3
        if not np.any(is_between):
            return []
        for below in (layers - 2, 1):
            done = layers - 1 - below
            computed = larger(first["share"] - below * share, 0)
            row = base | {"activations": first["activations"] + below * layer_bytes}
            row |= {name: first[name] for name in ("cached weights", "temporaries")}
            row |= self.gradients(Moment.PREFETCH, computed, first["total"], finished=done)
            row |= self.weights(Moment.PREFETCH) | self.sent(Moment.PREFETCH)
            if not self.job.parallel.reshard_after_forward:
                row[GATHERED] = row[GATHERED] - done * self.size("block").gathered
            if is_array(is_between):
                row = {name: size * is_between for name, size in row.items()}
            rows.append(row)
        return rows

    def last_sent(self, base: Row, total: Any) -> Row:
        """The row in which the last gradients are on their way, with nothing left to compute.

        Those of the first unit; where it is frozen, those of the first layer that learns, after
        those of a root or a head that could not be sent before.
        """
        part = self.updated
        units = [part.size("root", "embedding")]
        block = part.size("block")
        if self.deepest >= 0:
            ends = part.size("root", "head" if not block.whole else "")
            units = [unit for unit in (ends, block) if unit.whole]
        rows = []
        for number, first in enumerate(units):
            waiting = units[number + 1 :]  # whole still, as are their units
            kept = total - self.only_shared(sum(unit.kept for unit in units[number:]))
            whole = sum(unit.made for unit in units[number:])
            row = base | {"gradients": kept, WHOLE: self.only_shared(whole)}
            if waiting:
                row[GATHERED] = self.only_shared(self.size("block").gathered)
            out = first.sent + first.received
            rows.append(row | {SENT: self.once + self.only_shared(out)})
        return max(rows, key=lambda row: np.max(sum(row.values())))


def larger(first: Any, other: Any) -> Any:
    """The elementwise maximum; two plain numbers do not become arrays on the way."""
    return np.maximum(first, other) if is_array(first) or is_array(other) else max(first, other)


def smaller(first: Any, other: Any) -> Any:
    """The elementwise minimum; two plain numbers do not become arrays on the way."""
    return np.minimum(first, other) if is_array(first) or is_array(other) else min(first, other)


def whole_bytes(size: Any) -> Any:
    """Bytes to the nearest whole one."""
    return np.rint(size) if is_array(size) else round(float(size))
