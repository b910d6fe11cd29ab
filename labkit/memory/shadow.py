"""The networks of :mod:`labkit.memory.networks` once more, on a tape: sizes without numbers.

Line by line the same programs, down to the local variables that keep a tensor alive; the tests
hold the two against each other. Only this module knows both the programs and the units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from labkit.memory import tape as tapes
from labkit.memory.norm_operators import AllOperators
from labkit.memory.operators import BF16, FP32, INT64, Linear
from labkit.memory.saved import Mode
from labkit.memory.tape import Tape, Tensor, count, unit

FIRST, MIDDLE, LAST_FULL, LAST = "first", "middle", "last full", "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Every choice that changes which operators run; the numbers stay symbolic.

    ``grouped``: fewer key heads than query heads; ``batched``: more than one sample at a time
    (attention written out copies its operands then); ``structure``: how the layers repeat, all
    alike (``"flat"``), in groups recomputed together (``"nested"``), or every so many one that is
    recomputed (``"periodic"``).
    """

    mode: Mode
    mlp: str = "gelu"
    bias: bool = True
    tied: bool = True
    positions: bool = True
    grouped: bool = False
    batched: bool = True
    structure: str = "flat"


class Place(NamedTuple):
    """Where in the stack of layers: the group's name and how often this layer stands for itself."""

    group: str
    multiplicity: int
    recorded: bool


class Norm(NamedTuple):
    weight: Tensor
    bias: Tensor | None


class Shadow:
    """One network on one tape."""

    def __init__(self, program: Program) -> None:
        self.program, self.mode = program, program.mode
        self.tape = Tape()
        self.ops = AllOperators(self.tape)
        self.width = BF16 if self.mode.dtype == "bf16" else FP32
        self.llama = program.mlp == "swiglu"
        self.phase = "forward"
        self.token = self.parameter(unit("h·v"))
        self.position = self.parameter(unit("h·p")) if program.positions else None
        self.segments = [
            ([self.block(place) for place in places], whole) for places, whole in self._segments()
        ]
        self.norm = self.norm_parameters()
        head = self.token if program.tied else self.parameter(unit("h·v"))
        self.output = head

    def _segments(self) -> list[tuple[list[Place], bool]]:
        """The layers in order, in stretches that keep one input each where the flag is set."""
        return {"flat": self._flat, "nested": self._nested, "periodic": self._periodic}[
            self.program.structure
        ]()

    def _flat(self) -> list[tuple[list[Place], bool]]:
        full = self.mode.recompute == "full"
        places = (
            Place(FIRST, tapes.ONE, True),
            Place(MIDDLE, tapes.GROUPS, False),
            Place(LAST, tapes.ONE, True),
        )
        return [([place], full) for place in places]

    def _nested(self) -> list[tuple[list[Place], bool]]:
        def group(name: str, outer: int, inner: int) -> tuple[list[Place], bool]:
            ends = Place(name, outer, name != MIDDLE)
            return [ends, Place(name, inner, False), ends], True

        return [
            group(FIRST, tapes.ONE, tapes.INNER),
            group(MIDDLE, tapes.GROUPS, tapes.GROUPS_INNER),
            group(LAST_FULL, tapes.ONE, tapes.INNER),
            group(LAST, tapes.ONE, tapes.INNER_LAST),
        ]

    def _periodic(self) -> list[tuple[list[Place], bool]]:
        def kept(name: str, multiplicity: int) -> tuple[list[Place], bool]:
            return [Place(name, multiplicity, name != MIDDLE)], False

        def again(name: str, multiplicity: int) -> tuple[list[Place], bool]:
            return [Place(name, multiplicity, name != MIDDLE)], True

        return [
            *(kept(FIRST, tapes.ONE), kept(MIDDLE, tapes.INNER), kept(FIRST, tapes.ONE)),
            again(FIRST, tapes.ONE),
            *(kept(MIDDLE, tapes.GROUPS_INNER), again(MIDDLE, tapes.GROUPS)),
            *(kept(MIDDLE, tapes.ONE), kept(MIDDLE, tapes.INNER), kept(LAST, tapes.ONE)),
            again(LAST, tapes.ONE),
            *(kept(MIDDLE, tapes.INNER_LAST), kept(LAST, tapes.ONE)),
        ]

    def parameter(self, elements: tapes.Counts) -> Tensor:
        return self.tape.parameter(elements, self.width)

    def norm_parameters(self) -> Norm:
        bias = None if self.llama else self.parameter(unit("h"))
        return Norm(self.parameter(unit("h")), bias)

    def linear(self, weight: tapes.Counts, bias: tapes.Counts, outputs: tapes.Counts) -> Linear:
        shift = self.parameter(bias) if self.program.bias else None
        return Linear(self.parameter(weight), shift, outputs)

    def block(self, place: Place) -> Block:
        return LlamaBlock(self, place) if self.llama else GptBlock(self, place)

    def normalise(self, x: Tensor, norm: Norm) -> Tensor:
        rows = unit("b·s")
        if norm.bias is not None:
            wide = self.mode.wide_norm_statistics
            return self.ops.layer_norm(x, norm.weight, norm.bias, rows, wide_statistics=wide)
        if self.mode.norm_fused:
            return self.ops.rms_norm(x, norm.weight, rows)
        return self.ops.rms_norm_eager(x, norm.weight, rows)

    def enter(self, place: Place, tensor: Tensor) -> None:
        """From here on ``place`` is at work, and ``tensor`` is its own."""
        self.tape.label = f"{self.phase}, {place.group}" if place.recorded else None
        self.tape.multiplicity = place.multiplicity
        if tensor.storage is not None:
            tensor.storage.count_as(multiplicity=place.multiplicity)

    def leave(self, label: str, tensor: Tensor) -> None:
        """The layers are done, in either direction."""
        self.tape.label, self.tape.multiplicity = label, tapes.ONE
        if tensor.storage is not None:
            tensor.storage.count_as(multiplicity=tapes.ONE)

    def step(self) -> Tape:
        """Forward and backward; the points are on the tape that is returned."""
        with self.tape.autocast(self.mode.dtype == "autocast"):
            loss = self.forward()
        self.phase = "backward"
        self.tape.label, self.tape.multiplicity = "loss backward", tapes.ONE
        self.tape.backward(loss)
        return self.tape

    def forward(self) -> Tensor:
        ids = Tensor(None, unit("b·s"), INT64)
        x = self.ops.embedding(ids, self.token, unit("b·s·h"))
        if self.position is not None:
            numbers = self.tape.new(unit("s"), INT64)
            spread = self.ops.embedding(numbers, self.position, unit("s·h"))
            del numbers
            x = self.ops.add(x, spread, reduce_y=True)
            del spread
        assert x.node is not None
        x.node.hook = lambda grad: self.leave("embedding backward", grad)
        x = self.normalise(self.through_blocks(x), self.norm)
        return self.loss(x, ids)

    def through_blocks(self, x: Tensor) -> Tensor:
        for group, whole in self.segments:
            if not whole:
                x = self.unit(group, x)
            else:
                self.enter(group[0].place, x)
                x = self.tape.checkpoint(lambda y, group=group: self.unit(group, y), x)
        self.leave("loss forward", x)
        return x

    def unit(self, group: list[Block], x: Tensor) -> Tensor:
        for block in group:
            self.enter(block.place, x)
            x = block.forward(x)
            assert x.node is not None
            x.node.hook = lambda grad, place=block.place: self.enter(place, grad)
        return x

    def loss(self, x: Tensor, targets: Tensor) -> Tensor:
        if self.mode.loss != "chunked":
            return self.head(x, targets, "b·s·v")
        total = self.tape.new(unit("1"), FP32)
        # The first chunk is the last to be recomputed, and so the only one without the norm's
        # output beside it: the fullest is the second.
        places = (*(("c", tapes.ONE),) * 2, ("c", tapes.CHUNKS), ("e", tapes.ONE))
        parts = self.ops.split(x, tuple(unit(f"{size}·h") for size, _ in places))
        for part, (size, multiplicity) in zip(parts, places, strict=True):
            one = self.ops.scale(self.chunk(part, targets, size, multiplicity))
            assert one.storage is not None
            one.storage.count_as(multiplicity=tapes.ONE)
            self.tape.multiplicity = tapes.ONE
            total = self.ops.add(total, one)
            del one
        self.enter_chunk(tapes.ONE, "loss forward")
        return self.ops.scale(total)

    def chunk(self, part: Tensor, targets: Tensor, size: str, multiplicity: int) -> Tensor:
        self.enter_chunk(multiplicity, "loss forward")
        one = self.tape.checkpoint(lambda y: self.head(y, targets, f"{size}·v"), part)
        assert one.node is not None
        one.node.hook = lambda _: self.enter_chunk(multiplicity, "loss backward")
        return one

    def enter_chunk(self, multiplicity: int, label: str) -> None:
        self.tape.multiplicity = multiplicity
        self.tape.label = label if multiplicity == tapes.ONE else None

    def head(self, x: Tensor, targets: Tensor, logits_unit: str) -> Tensor:
        logits = self.ops.linear(x, Linear(self.output, None, unit(logits_unit)))
        if self.mode.loss != "plain":
            logits = self.ops.cast(logits, FP32)
        return self.ops.cross_entropy(logits, targets)

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        run: Callable[..., Tensor] = (
            self.attend_eagerly if self.mode.attention == "eager" else self.attend
        )
        if self.mode.recompute == "selective":
            return self.tape.checkpoint(run, q, k, v)
        return run(q, k, v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.ops.attention(q, k, v, unit("b·s·a"))

    def attend_eagerly(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ops, wide, copied = self.ops, unit("b·s·q"), self.program.batched
        if self.program.grouped:
            k, v = ops.repeat(k, wide), ops.repeat(v, wide)
        whole = copied and not self.program.grouped  # the repeated ones lie well as they are
        scores = ops.scale(
            ops.product(ops.copy(q) if copied else q, ops.copy(k) if whole else k, unit("b·a·s²"))
        )
        future = ops.future()
        scores = ops.mask(scores, future)
        weights = ops.softmax(scores)
        out = ops.product(weights, ops.copy(v) if whole else v, wide)
        return ops.gradient_copy(out) if copied else out

    def merge(self, out: Tensor) -> Tensor:
        """Heads side by side: the kernel's output lies that way, a product's must be copied."""
        return self.ops.copy(out) if self.mode.attention == "eager" else out


class Block:
    place: Place

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class GptBlock(Block):
    def __init__(self, net: Shadow, place: Place) -> None:
        self.net, self.place = net, place
        hidden, wide, inner = unit("b·s·h"), unit("b·s·q"), unit("b·s·f")
        self.norm1 = net.norm_parameters()
        self.parts = (wide, unit("b·s·k"), unit("b·s·k"))
        self.qkv = net.linear(
            count(**{"h·q": 1, "h·k": 2}), count(q=1, k=2), sum(self.parts[1:], wide)
        )
        self.out = net.linear(unit("h·q"), unit("h"), hidden)
        self.norm2 = net.norm_parameters()
        self.up = net.linear(unit("h·f"), unit("f"), inner)
        self.down = net.linear(unit("h·f"), unit("h"), hidden)

    def attention(self, x: Tensor) -> Tensor:
        net, ops = self.net, self.net.ops
        eager = net.mode.attention == "eager"
        q, k, v = ops.split(ops.linear(x, self.qkv), self.parts)
        if eager:  # their gradients lie by heads; the key's happens to lie right, unless repeated
            q = ops.gradient_copy(q)
            k = ops.gradient_copy(k) if net.program.grouped else k
            v = ops.gradient_copy(v)
        return ops.linear(net.merge(net.core(q, k, v)), self.out)

    def forward(self, x: Tensor) -> Tensor:
        net, ops = self.net, self.net.ops
        x = ops.add(x, self.attention(net.normalise(x, self.norm1)))
        return ops.add(
            x, ops.linear(ops.gelu(ops.linear(net.normalise(x, self.norm2), self.up)), self.down)
        )


class LlamaBlock(Block):
    def __init__(self, net: Shadow, place: Place) -> None:
        self.net, self.place = net, place
        hidden, wide, inner = unit("b·s·h"), unit("b·s·q"), unit("b·s·f")
        self.norm1 = net.norm_parameters()
        self.query = net.linear(unit("h·q"), unit("q"), wide)
        self.key = net.linear(unit("h·k"), unit("k"), unit("b·s·k"))
        self.value = net.linear(unit("h·k"), unit("k"), unit("b·s·k"))
        self.out = net.linear(unit("h·q"), unit("h"), hidden)
        self.norm2 = net.norm_parameters()
        self.gate = net.linear(unit("h·f"), unit("f"), inner)
        self.up = net.linear(unit("h·f"), unit("f"), inner)
        self.down = net.linear(unit("h·f"), unit("h"), hidden)

    def heads(self, x: Tensor) -> Tensor:
        """By heads; under attention written out the gradient comes back in another order."""
        return self.net.ops.gradient_copy(x) if self.net.mode.attention == "eager" else x

    def attention(self, x: Tensor) -> Tensor:
        net, ops = self.net, self.net.ops
        q = ops.rotate(self.heads(ops.linear(x, self.query)))
        k = ops.linear(x, self.key)
        if net.program.batched or net.program.grouped:
            k = self.heads(k)  # else the product's gradient lies right as it is
        k = ops.rotate(k)
        v = self.heads(ops.linear(x, self.value))
        return ops.linear(net.merge(net.core(q, k, v)), self.out)

    def forward(self, x: Tensor) -> Tensor:
        net, ops = self.net, self.net.ops
        x = ops.add(x, self.attention(net.normalise(x, self.norm1)))
        x2 = net.normalise(x, self.norm2)
        return ops.add(
            x,
            ops.linear(
                ops.multiply(ops.silu(ops.linear(x2, self.gate)), ops.linear(x2, self.up)),
                self.down,
            ),
        )
