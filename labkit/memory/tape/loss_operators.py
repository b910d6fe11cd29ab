"""The ways of a head's loss on a tape: what each allocates, keeps, and turns into gradients."""

from __future__ import annotations

from labkit.memory.tape.mode import BF16, BOOL, FP32, INT64
from labkit.memory.tape.operators import Operators
from labkit.memory.tape.tape import Counts, Tensor, call, unit


class LossOperators(Operators):
    """Cross-entropy of logits, in place, sharded, or with the head in one kernel."""

    @call
    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean over the rows; autocast computes it in fp32."""
        if self.tape.casts is not None:
            logits = self.tape.local(self.cast(logits, FP32))
        scores, number = self.softmax(logits, "log-softmax"), (unit("1"), logits.width)
        return self.kernel(
            [scores],
            number,
            number,
            saves=[scores, targets],
            saves_outputs=[1],
            names=["log-softmax", "", "sum of weights"],
        )[0]

    @call
    def loss_parallel(self, logits: Tensor, targets: Tensor) -> Tensor:
        """torch's ``loss_parallel``: log-softmax in steps; the backward passes of both in one."""
        local, new, size, rows = self.tape.local, self.tape.new, logits.size, targets.elements
        shifted = local(new(*size, logits))
        sums = new(rows, FP32, new(*size, shifted))  # of the exponentials
        scores = local(new(*size, shifted, new(rows, FP32, sums)))
        local(new(rows, FP32))  # the scores of the targets

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            zeros = new(*size, *saved)
            exponentials = new(*size, zeros, *saved)
            total = new(*size, zeros, exponentials, *saved)
            return [new(*size, zeros, total, new(unit("1"), FP32, total), *saved)]

        number, names = (unit("1"), FP32), ["log-softmax"]
        saves = [scores, targets]
        return self.kernel([logits], number, saves=saves, names=names, backward=backward)[0]

    def vocab_parallel_loss(self, logits: Tensor, targets: Tensor, *, copy: bool = False) -> Tensor:
        """In place on the fp32 logits or a copy, which become their gradient: kept are they, and of
        each row the target's place and whether it is this rank's."""
        each = self._loss_of_rows(self.cast(logits, FP32), targets.elements, copy=copy)
        return self.kernel([each], (unit("1"), FP32))[0]

    @call
    def _loss_of_rows(self, logits: Tensor, rows: Counts, *, copy: bool) -> Tensor:
        local, new = self.tape.local, self.tape.new
        scores = local(new(*logits.size, logits)) if copy else logits
        places, mine = local(new(rows, INT64)), local(new(rows, BOOL))
        local(new(rows, FP32))  # the scores of the targets

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            return [saved[0]]

        saves, names = [scores, mine, places], ["exponentials", "mask", "place"]
        out = (rows, FP32)
        return self.kernel([logits], out, saves=saves, names=names, backward=backward)[0]

    def fused_loss(self, x: Tensor, weight: Tensor) -> Tensor:
        """Head, loss and both gradients, a part of the rows at a time: keeps the gradients."""
        new, narrow = self.tape.new, BF16 if self.tape.casts is not None else x.width
        to_x, to_weight = new(*x.size), new(*weight.size)
        total = new(unit("1"), FP32)
        parts = [] if weight.width == narrow else [new(weight.elements, narrow)]
        parts += [] if x.width == narrow else [new(unit("c·h"), narrow)]
        parts += [new(unit("c·v"), narrow), new(unit("1"), FP32)]
        new(unit("c·h"), narrow, *parts)
        if weight.width != narrow:
            new(weight.elements, narrow, *parts)
        self.tape.named("gradient of the input", to_x)
        self.tape.named("gradient of the weight", to_weight)
        total.node = self.tape.node(lambda _, saved: [*saved], x, weight)
        self.tape.save(total.node, to_x, to_weight)
        self.tape.need(x, total)
        return total
