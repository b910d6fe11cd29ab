"""Routing, dispatch and batched experts on a tape; and what parts and joins in latent attention.

As in :mod:`labkit.memory.tape.operators`, each function mirrors operators as torch 2.13 runs them
on a CPU. Scattering into zeros is out of place under any dispatch mode, so zeros and result both
exist for a moment; real training does it in place.
"""

from __future__ import annotations

from labkit.memory.tape.norm_operators import AllOperators
from labkit.memory.tape.operators import BF16, BOOL, FP32, INT64
from labkit.memory.tape.tape import Counts, Node, Tensor, unit


class ExpertOperators(AllOperators):
    """All operators there are."""

    def _scattered(self, x: Tensor, kept: Tensor, out: Counts) -> Tensor:
        """What picks elements of x by ``kept`` numbers; they are put back among zeros."""
        tape, elements, width = self.tape, x.elements, x.width

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            numbers = tape.unpack(node, 0)
            zeros = tape.new(elements, width)
            found = tape.new(elements, width)
            del numbers, zeros
            return [found]

        node = tape.node(backward, x)
        tape.save(node, kept)
        picked = tape.new(out, width)
        picked.node = node
        return picked

    index_select = gather = _scattered

    def top(self, x: Tensor, elements: Counts) -> tuple[Tensor, Tensor]:
        """The largest few of each row, and their numbers."""
        tape, whole, width = self.tape, x.elements, x.width

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            numbers = tape.unpack(node, 0)
            zeros = tape.new(whole, width)
            found = tape.new(whole, width)
            del numbers, zeros
            return [found]

        node = tape.node(backward, x)
        values, chosen = self.together((elements, width), (elements, INT64), times=(1, 1))
        values.node = node
        tape.save(node, chosen)
        return values, chosen

    def over_sum(self, x: Tensor, rows: Counts) -> Tensor:
        """Each row over its sum."""
        total = self._sum(x, rows)
        tape, elements, width = self.tape, x.elements, x.width

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = [tape.unpack(node, 0), tape.unpack(node, 1)]
            steps = [tape.new(elements, width) for _ in range(4)]  # -grad · (x / sum) / sum
            to_sum = steps.pop()
            steps.clear()
            to_x = tape.new(elements, width)
            kept.clear()
            found = tape.new(rows, width)
            del to_sum
            return [to_x, found]

        node = tape.node(backward, x, total)
        tape.save(node, x, total)
        out = tape.new(elements, width)
        out.node = node
        return out

    def _sum(self, x: Tensor, rows: Counts) -> Tensor:
        """Over each row; the gradient is spread without a copy."""
        elements = x.elements

        def backward(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [grads[0].view(elements)]

        node = self.tape.node(backward, x)
        out = self.tape.new(rows, x.width)
        out.node = node
        return out

    def places(self, chosen: Counts) -> tuple[Tensor, Tensor]:
        """Which choice fills each place of each expert, and whether one does: no gradients."""
        new = self.tape.new
        experts, order = self.together((chosen, INT64), times=(2,))
        numbers = new(unit("x"), INT64)
        starts, ends = new(unit("x"), INT64), new(unit("x"), INT64)
        along = new(unit("t"), INT64)
        places = new(unit("r"), INT64)
        del along
        filled = new(unit("r"), BOOL)
        slots = new(unit("r"), INT64)
        del experts, order, numbers, starts, ends, places
        return slots, filled

    def scatter_add(self, start: Tensor, numbers: Tensor, x: Tensor) -> Tensor:
        """``start`` plus the rows of x at their tokens; the start's gradient is the sum's own."""
        tape, elements, width = self.tape, x.elements, x.width
        learns = start.node is not None

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = tape.unpack(node, 0)
            found = tape.new(elements, width)
            del kept
            return [grads[0] if learns else None, found]

        node = tape.node(backward, start, x)
        tape.save(node, numbers)
        out = tape.new(start.elements, start.width)
        out.node = node
        return out

    def batched(self, x: Tensor, weight: Tensor, elements: Counts) -> Tensor:
        """One product for each expert; autocast casts the matrices, then the rows."""
        tape = self.tape
        width = BF16 if tape.casts is not None else x.width
        matrix = self.weight(weight, width)
        given, x = x, self.cast(x, width)  # held by its caller
        shapes = (x.elements, weight.elements)

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = [tape.unpack(node, 0), tape.unpack(node, 1)]
            to_weight = tape.new(shapes[1], width)
            to_x = tape.new(shapes[0], width)
            kept.clear()
            return [to_x, to_weight]

        node = tape.node(backward, x, matrix)
        tape.save(node, x, matrix)
        out = tape.new(elements, width)
        del given
        out.node = node
        return out

    def join(self, elements: Counts, *parts: Tensor) -> Tensor:
        """Side by side in a new tensor; each part's gradient is a view of the whole's."""
        tape, width = self.tape, parts[0].width
        sizes = tuple(part.elements for part in parts)

        def backward(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [grads[0].view(size) for size in sizes]

        node = tape.node(backward, *parts)
        out = tape.new(elements, width)
        out.node = node
        return out

    def spread(self, x: Tensor, elements: Counts) -> Tensor:
        """One for all heads, a view; the heads' gradients are summed."""
        tape, before, width = self.tape, x.elements, x.width

        def backward(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [tape.new(before, width)]

        out = x.view(elements)
        out.node = tape.node(backward, x)
        return out

    def fused_loss(self, x: Tensor, weight: Tensor) -> Tensor:
        """Head, loss and both gradients, a part of the rows at a time: keeps the gradients."""
        tape = self.tape
        narrow = BF16 if tape.casts is not None else x.width

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [tape.unpack(node, 0), tape.unpack(node, 1)]

        to_x = tape.new(x.elements, x.width)
        to_weight = tape.new(weight.elements, weight.width)
        total = tape.new(unit("1"), FP32)
        matrix = weight.view() if weight.width == narrow else tape.new(weight.elements, narrow)
        rows = None if x.width == narrow else tape.new(unit("c·h"), narrow)
        logits, loss = tape.new(unit("c·v"), narrow), tape.new(unit("1"), FP32)
        product = tape.new(unit("c·h"), narrow)
        del product
        if weight.width != narrow:
            product = tape.new(weight.elements, narrow)
            del product
        del rows, logits, loss
        node = tape.node(backward, x, weight)
        tape.save(node, to_x, to_weight)
        del matrix
        total.node = node
        return total
