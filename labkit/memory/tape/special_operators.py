"""Operators that only some networks run: the ways of a head's loss, routing, batched experts.

As in :mod:`labkit.memory.tape.operators`, each method mirrors operators as torch 2.13 runs them
on a CPU. Scattering into zeros is out of place under any dispatch mode, so zeros and result both
exist for a moment; real training does it in place.
"""

from __future__ import annotations

from labkit.memory.tape.exchanges import SharedAttention
from labkit.memory.tape.mode import BF16, BOOL, FP32, INT64
from labkit.memory.tape.tape import Backward, Counts, Tensor, call, unit


class SpecialOperators(SharedAttention):
    """Cross-entropy of logits, in place, sharded, or with the head in one kernel; and experts."""

    @call
    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean of the rows' cross-entropy, by log-softmax and a gather."""
        scores = self.softmax(logits, "log-softmax")
        number = (unit("1"), logits.width)
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
        """torch's ``loss_parallel``: log-softmax in steps, whose backward pass is one with the
        loss's.
        """
        local = self.tape.local
        new = self.tape.new
        size = logits.size
        rows = targets.elements
        shifted = local(new(*size, logits))
        sums = new(rows, FP32, new(*size, shifted))  # of the exponentials
        scores = local(new(*size, shifted, new(rows, FP32, sums)))
        local(new(rows, FP32))  # the scores of the targets

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            zeros = new(*size, *saved)
            exponentials = new(*size, zeros, *saved)
            total = new(*size, zeros, exponentials, *saved)
            return [new(*size, zeros, total, new(unit("1"), FP32, total), *saved)]

        number = (unit("1"), FP32)
        names = ["log-softmax"]
        saves = [scores, targets]
        return self.kernel([logits], number, saves=saves, names=names, backward=backward)[0]

    def vocab_parallel_loss(self, logits: Tensor, targets: Tensor, *, copy: bool) -> Tensor:
        """Megatron-LM's loss, in place on fp32 logits or on a copy, which become their own
        gradient.

        It keeps them and, of each row, the target's place and whether that is this rank's.
        """
        each = self._loss_of_rows(logits, targets.elements, copy=copy)
        return self.kernel([each], (unit("1"), FP32))[0]

    @call
    def _loss_of_rows(self, logits: Tensor, rows: Counts, *, copy: bool) -> Tensor:
        """The loss of each row; see :meth:`vocab_parallel_loss`."""
        local = self.tape.local
        new = self.tape.new
        scores = local(new(*logits.size, logits)) if copy else logits
        places = local(new(rows, INT64))
        mine = local(new(rows, BOOL))
        local(new(rows, FP32))  # the scores of the targets

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            return [saved[0]]

        saves = [scores, mine, places]
        names = ["exponentials", "mask", "place"]
        out = (rows, FP32)
        return self.kernel([logits], out, saves=saves, names=names, backward=backward)[0]

    def fused_loss(self, x: Tensor, weight: Tensor) -> Tensor:
        """Head, loss and both gradients in one, a part of the rows at a time; it keeps the
        gradients.
        """
        new = self.tape.new
        narrow = BF16 if self.tape.casts is not None else x.width
        to_x = new(*x.size)
        to_weight = new(*weight.size)
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

    # ---------------------------------------------------------------- experts

    def _scattered(self, x: Tensor) -> Backward:
        """A backward pass that puts gradients of picked elements back among zeros."""

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            zeros = self.tape.new(*size, *saved)
            return [self.tape.new(*size, zeros, *saved)]

        size = x.size
        return backward

    def index_select(self, x: Tensor, kept: Tensor, out: Counts) -> Tensor:
        """Elements of x by their numbers, which are kept."""
        backward = self._scattered(x)
        return self.kernel([x], (out, x.width), saves=[kept], backward=backward)[0]

    gather = index_select

    def top(self, x: Tensor, elements: Counts) -> tuple[Tensor, Tensor]:
        """The largest few of each row, and their numbers."""
        sizes = ((elements, x.width), (elements, INT64))
        backward = self._scattered(x)
        values, chosen = self.kernel([x], *sizes, saves_outputs=[1], backward=backward)
        return values, chosen

    @call
    def over_sum(self, x: Tensor, rows: Counts) -> Tensor:
        """Each row over its sum; the sum's gradient is spread without a copy."""
        new = self.tape.new
        size = x.size

        def of_sum(grads: list[Tensor], _: list[Tensor]) -> list[Tensor | None]:
            return [grads[0].view(size[0])]

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            steps = [new(*size, *saved) for _ in range(3)]  # -grad · (x / sum) / sum
            to_sum = new(*size, *steps, *saved)
            to_x = new(*size, *saved)
            self.tape.done(saved)
            return [to_x, new(rows, size[1], to_sum)]

        total = self.kernel([x], (rows, x.width), backward=of_sum)[0]
        inputs = [x, total]
        names = 2 * ["chosen and weights"]
        return self.kernel(inputs, size, saves=inputs, names=names, backward=backward)[0]

    def places(self, chosen: Counts) -> tuple[Tensor, Tensor]:
        """Which choice fills each place of each expert, and whether one does: no gradients."""
        new = self.tape.new
        sorting = self.tape.together((chosen, INT64), (chosen, INT64))
        bounds = [new(unit("x"), INT64) for _ in range(3)]
        along = new(unit("t"), INT64)
        numbers = new(unit("r"), INT64, along)
        filled = new(unit("r"), BOOL)
        slots = new(unit("r"), INT64, *sorting, *bounds, numbers)
        self.tape.named("places", slots, filled)
        return slots, filled

    def scatter_add(self, start: Tensor, numbers: Tensor, x: Tensor) -> Tensor:
        """``start`` plus the rows of x at their tokens; the start's gradient is the sum's own."""
        learns = start.node is not None
        start.frozen = not learns  # else zeros that nobody wants a gradient of
        size = x.size

        def backward(grads: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            return [grads[0] if learns else None, self.tape.new(*size, *saved)]

        return self.kernel([start, x], start.size, saves=[numbers], backward=backward)[0]

    @call
    def batched(self, x: Tensor, weight: Tensor, elements: Counts, name: str) -> Tensor:
        """One product for each expert; autocast casts the matrices, then the rows."""
        width = BF16 if self.tape.casts is not None else x.width
        matrix = self.weight(weight, width)
        names = [name, "cached weights"]
        return self._batched([self.cast(x, width), matrix], (elements, width), names)
