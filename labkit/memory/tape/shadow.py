"""The networks of ``labkit.memory.oracles.networks`` once more on a tape: sizes, no numbers.

Line by line the same programs, down to the local variables that keep a tensor alive; the tests
hold the two against each other. Only this module knows both the programs and the units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from labkit.memory.tape import tape as tapes
from labkit.memory.tape.mode import BF16, FP32, INT64, Mode
from labkit.memory.tape.operators import ATTENTION, MATRIX_PRODUCT, Linear
from labkit.memory.tape.shadow_blocks import FIRST, LAST, LAST_FULL, MIDDLE, Block, Place
from labkit.memory.tape.sizes import DENSE, EXPERTS, MIXED
from labkit.memory.tape.special_operators import SpecialOperators
from labkit.memory.tape.tape import Tape, Tensor, call, count, unit


def every_second_product(kind: str, number: int) -> bool:
    """torchtitan's choice of what selective checkpointing keeps besides a layer's input."""
    return kind == ATTENTION or (kind == MATRIX_PRODUCT and number % 2 == 1)


OPERANDS = "query, key, value"
MASKED = "dropout mask and output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Every choice that changes which operators run; the numbers stay symbolic.

    ``grouped``: fewer key heads than query heads; ``batched``: more than one sample at a time
    (attention written out copies its operands then); ``structure``: how the layers repeat, all
    alike (``"flat"``), in groups recomputed together (``"nested"``), or every so many one that is
    recomputed (``"periodic"``); or one by one (``"listed"``), where ``layers`` with an MLP and with
    experts and ``repeat`` (of the recomputation) are fixed. ``stack``: which kinds there are.
    """

    mode: Mode
    mlp: str = "gelu"
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    fused_qkv: bool = True
    qk_norm: bool = False
    latent: bool = False
    query_rank: bool = False
    stack: str = DENSE
    shared: bool = False
    sigmoid: bool = False
    tied: bool = True
    positions: bool = True
    grouped: bool = False
    batched: bool = True
    structure: str = "flat"
    layers: tuple[int, int] = (0, 0)
    repeat: int = 1
    sequence_parallel: bool = False


class Shadow:
    """One network on one tape."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.mode = program.mode
        self.tape = Tape()
        self.ops = SpecialOperators(self.tape)
        self.width = BF16 if self.mode.dtype == "bf16" else FP32
        self.llama = program.mlp == "swiglu"
        self.phase = "forward"
        self.token = self.parameter("h·v")
        self.position = self.parameter("h·p") if program.positions else None
        self.segments = [
            ([Block(self, place) for place in places], whole) for places, whole in self._segments()
        ]
        self.norm = [self.parameter("h") for _ in range(1 if self.llama else 2)]
        self.output = self.token if program.tied else self.parameter("h·v")

    def _segments(self) -> list[tuple[list[Place], bool]]:
        """The layers in order, in stretches that keep one input each where the flag is set."""
        run = {
            "flat": self._flat,
            "nested": self._nested,
            "periodic": self._periodic,
            "listed": self._listed,
        }
        segments = run[self.program.structure]()
        if self.program.stack != EXPERTS:
            return segments
        return [
            ([place._replace(experts=True) for place in group], flag) for group, flag in segments
        ]

    def _flat(self) -> list[tuple[list[Place], bool]]:
        """Where there are both kinds of layers, the first moment is that of all without experts."""
        full = self.mode.recompute in {"full", "operators"}
        places = [Place(FIRST), Place(MIDDLE, tapes.GROUPS), Place(LAST)]
        if self.program.stack == MIXED:
            last = Place(LAST, experts=True)
            places = [Place(FIRST), Place(MIDDLE, tapes.INNER), Place(FIRST)]
            places += [last, Place(MIDDLE, tapes.GROUPS, experts=True), last]
        return [([place], full) for place in places]

    def _listed(self) -> list[tuple[list[Place], bool]]:
        """Every layer for itself: what repeats with two kinds of layers in it."""
        dense, rest = self.program.layers
        every = [Place(FIRST)] * dense + [Place(LAST, experts=True)] * rest
        repeat = self.program.repeat
        if self.mode.recompute == "full":
            starts = range(0, len(every), repeat)
            return [(every[start : start + repeat], True) for start in starts]
        return [([place], not number % repeat) for number, place in enumerate(every, start=1)]

    def _nested(self) -> list[tuple[list[Place], bool]]:
        rows = (
            (Place(FIRST), tapes.INNER),
            (Place(MIDDLE, tapes.GROUPS), tapes.GROUPS_INNER),
            (Place(LAST_FULL), tapes.INNER),
            (Place(LAST), tapes.INNER_LAST),
        )
        return [([ends, Place(MIDDLE, inner), ends], True) for ends, inner in rows]

    def _periodic(self) -> list[tuple[list[Place], bool]]:
        first = Place(FIRST)
        last = Place(LAST)
        inner = Place(MIDDLE, tapes.INNER)
        rows = (
            (first, False),
            (inner, False),
            (first, False),
            (first, True),
            (Place(MIDDLE, tapes.GROUPS_INNER), False),
            (Place(MIDDLE, tapes.GROUPS), True),
            (Place(MIDDLE), False),
            (inner, False),
            (last, False),
            (last, True),
            (Place(MIDDLE, tapes.INNER_LAST), False),
            (last, False),
        )
        return [([place], again) for place, again in rows]

    def parameter(self, *names: str) -> Tensor:
        """Of as many elements as these units together."""
        return self.tape.parameter(count(**Counter(names)), self.width)

    def normalise(self, x: Tensor, learned: list[Tensor], rows: str = "b·s") -> Tensor:
        """A LayerNorm has learned a weight and a bias, an RMSNorm a weight."""
        if len(learned) == 1 and not self.mode.norm_fused:
            return self.ops.rms_norm_written_out(x, *learned, unit(rows))
        wide = len(learned) == 1 or self.mode.gpu
        return self.ops.norm(x, learned, unit(rows), FP32 if wide else x.width)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """The part of the model at work: the first half of the names of what it keeps."""
        before = self.tape.part
        self.tape.part = name
        try:
            yield
        finally:
            self.tape.part = before

    def enter(self, block: Block, tensor: Tensor) -> None:
        """From here on ``block`` is at work, and ``tensor`` is its own."""
        place = block.place
        self.tape.label = f"{self.phase}, {place.group}" if place.group != MIDDLE else None
        self.tape.multiplicity = place.multiplicity
        self.tape.layer = block
        self.tape.count_as(tensor, multiplicity=place.multiplicity)

    def leave(self, label: str, tensor: Tensor) -> None:
        """The layers are done, in either direction."""
        self.tape.label = label
        self.tape.multiplicity = tapes.ONE
        self.tape.layer = None
        self.tape.count_as(tensor, multiplicity=tapes.ONE)

    def step(self) -> Tape:
        """Forward and backward; the points are on the tape that is returned."""
        loss = self.run_forward()
        self.phase = "backward"
        self.tape.label = "loss backward"
        self.tape.multiplicity = tapes.ONE
        self.tape.backward(loss)
        return self.tape

    def run_forward(self) -> Tensor:
        """Autocast's copies of parameters are cached until it is done."""
        self.tape.casts = {} if self.mode.dtype == "autocast" else None
        loss = self.forward()
        self.tape.need(*(self.tape.casts or {}).values())
        self.tape.casts = None
        return loss

    def forward(self) -> Tensor:
        ids = Tensor(None, unit("b·s"), INT64)
        x = self.scattered(self.ops.embedding(ids, self.token, self.all_tokens))
        if self.position is not None:
            numbers = self.tape.new(unit("s"), INT64, x)
            self.tape.named("position numbers", numbers)
            spread = self.ops.embedding(numbers, self.position, unit("s·h"))
            x = self.ops.add(x, spread, reduce_y=True)
        x = self.ops.dropout(x, self.mode.dropout_mask_bytes)
        assert x.node is not None
        x.node.hook = lambda grad: self.leave("embedding backward", grad)
        x = self.body(x)
        with self.part("head"):
            return self.loss(x, ids)

    @call
    def body(self, x: Tensor) -> Tensor:
        """From the embedding to the final norm's output."""
        x = self.through_blocks(x)
        with self.part("head"):
            return self.normalise(x, self.norm)

    @call
    def through_blocks(self, x: Tensor) -> Tensor:
        for group, whole in self.segments:
            if not whole:
                x = self.unit(group, x)
            else:
                self.enter(group[0], x)
                with self.part(""):
                    self.tape.named("input", x)
                keeps = every_second_product if self.mode.recompute == "operators" else None
                x = self.tape.checkpoint(lambda y, group=group: self.unit(group, y), x, keeps=keeps)
        self.leave("loss forward", x)
        return x

    @call
    def unit(self, group: list[Block], x: Tensor) -> Tensor:
        for block in group:
            self.enter(block, x)
            x = block.forward(x)
            assert x.node is not None
            x.node.hook = lambda grad, block=block: self.enter(block, grad)
        return x

    @call
    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        if self.mode.loss == "fused":
            with self.part("loss"):
                return self.ops.fused_loss(x, self.output)
        if self.mode.loss != "chunked":
            return self.head(x, targets, "b·s·v")
        self.tape.named("input", x)
        total = self.tape.new(unit("1"), FP32)
        # The first chunk is the last to be recomputed, and so the only one without the norm's
        # output beside it: the fullest is the second.
        places = (*(("c", tapes.ONE),) * 2, ("c", tapes.CHUNKS), ("e", tapes.ONE))
        parts = self.ops.split(x, tuple(unit(f"{size}·h") for size, _ in places))
        for part, (size, multiplicity) in zip(parts, places, strict=True):
            chunk = self.ops.scale(self.chunk(part, targets, size, multiplicity))
            self.tape.count_as(chunk, multiplicity=tapes.ONE)
            self.tape.multiplicity = tapes.ONE
            total = self.ops.add(total, chunk)
        self.enter_chunk(tapes.ONE, "loss forward")
        return self.ops.scale(total)

    def chunk(self, part: Tensor, targets: Tensor, size: str, multiplicity: int) -> Tensor:
        self.enter_chunk(multiplicity, "loss forward")
        loss = self.tape.checkpoint(lambda y: self.head(y, targets, f"{size}·v"), part)
        assert loss.node is not None
        loss.node.hook = lambda _: self.enter_chunk(multiplicity, "loss backward")
        return loss

    def enter_chunk(self, multiplicity: int, label: str) -> None:
        self.tape.multiplicity = multiplicity
        self.tape.label = label if multiplicity == tapes.ONE else None

    @call
    def head(self, x: Tensor, targets: Tensor, logits_unit: str) -> Tensor:
        output = Linear(self.output, None, unit(logits_unit))
        loss = self.mode.loss
        logits = self.column(self.gathered(x), output, "input")
        if self.mode.logits_held == "compute":
            self.tape.held.append(logits)
        if loss == "vocab-parallel":
            self.tape.local(logits)
        logits = self.ops.cast(logits, FP32)
        if self.mode.logits_held == "fp32":
            self.tape.held.append(logits)
        with self.part("loss"):
            if loss.startswith("vocab-parallel"):
                return self.ops.vocab_parallel_loss(logits, targets, copy=loss.endswith("copy"))
            run = self.ops.loss_parallel if loss == "loss-parallel" else self.ops.cross_entropy
            return run(logits, targets)

    @call
    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        run = self.attend_eagerly if self.mode.attention == "eager" else self.attend
        if self.mode.recompute == "selective":
            self.tape.named(OPERANDS, q, k, v)
            return self.tape.checkpoint(run, q, k, v)
        return run(q, k, v)

    @property
    def wide(self) -> tapes.Counts:
        """Elements of attention's output."""
        return unit("b·s·w" if self.program.latent else "b·s·q")

    @call
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.program.grouped and self.mode.repeat_kv:
            k, v = (self.tape.local(self.ops.repeat(x, self.wide)) for x in (k, v))
        return self.ops.attention(q, k, v, self.wide, unit("b·s·a"))

    @call
    def attend_eagerly(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ops = self.ops
        copied = self.program.batched
        local = self.tape.local
        if self.program.grouped:
            k = local(ops.repeat(k, self.wide))
            v = local(ops.repeat(v, self.wide))
        whole = copied and not self.program.grouped  # the repeated ones lie well as they are
        if not self.program.latent:
            q = ops.copy(q) if copied else q
            k = ops.copy(k) if whole else k
        scores = ops.product(q, k, unit("b·a·s²"), (OPERANDS, OPERANDS))
        weights = ops.softmax(self.masked(ops.scale(scores)), "softmax output")
        if self.mode.softmax_fp32:
            weights = ops.cast(weights, q.width)
        weights = local(ops.dropout(weights, self.mode.dropout_mask_bytes, MASKED))
        v = ops.copy(v) if whole else v
        out = ops.product(weights, v, self.wide, (MASKED, OPERANDS))
        return ops.view(out) if copied else out

    def masked(self, scores: Tensor) -> Tensor:
        """The scores of later positions set to minus infinity, in the format of the softmax."""
        ops = self.ops
        local = self.tape.local
        if self.mode.mask_added:
            scores = local(ops.add_constant(scores, self.width))
        else:
            future = local(ops.future())
            scores = local(ops.mask(scores, future))
        return local(ops.cast(scores, FP32)) if self.mode.softmax_fp32 else scores

    def gathered(self, x: Tensor) -> Tensor:
        """The tokens of all tensor-parallel ranks, where column-parallel products keep them."""
        kept = self.program.sequence_parallel and self.mode.sequence_gather == "kept"
        return self.ops.gathered(x, self.all_tokens) if kept else x

    def column(self, x: Tensor, layer: Linear, name: str) -> Tensor:
        """A column-parallel product; it gathers its input itself where that is not kept."""
        gather = self.mode.sequence_gather
        again = self.program.sequence_parallel and gather != "kept"
        whole = self.all_tokens if again else None
        return self.ops.linear(x, layer, name, whole, buffered=gather == "buffer")

    def scattered(self, x: Tensor) -> Tensor:
        """This rank's tokens of the sum over the ranks' parts of a row-parallel product."""
        return self.ops.scattered(x, unit("b·s·h")) if self.program.sequence_parallel else x

    @property
    def all_tokens(self) -> tapes.Counts:
        """Elements of the stream of all tensor-parallel ranks together."""
        return unit("tp·b·s·h" if self.program.sequence_parallel else "b·s·h")

    def merge(self, out: Tensor) -> Tensor:
        """Heads side by side: the kernel's output lies that way, a product's must be copied."""
        return self.ops.copy(out) if self.mode.attention == "eager" else out
