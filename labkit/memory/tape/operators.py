"""What torch's operators allocate, keep and hand back: forward and backward, on sizes alone.

Each function mirrors one operator as torch 2.13 runs it on a CPU. Widths are bytes per element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.memory.tape.tape import CATEGORIES, Counts, Node, Tape, Tensor, unit

FP32 = 4
BF16 = 2
BOOL = 1
INT64 = 8
CACHED = CATEGORIES.index("cached weights")


@dataclass(frozen=True, slots=True)
class Linear:
    """The parameters of one linear layer: (out, in) weight and perhaps a bias."""

    weight: Tensor
    bias: Tensor | None
    outputs: Counts


def _half(x: Tensor) -> Tensor:
    """Half of every head; counted as half the bytes of as many elements, which keeps it whole."""
    return Tensor(x.storage, x.elements, x.width // 2)


class Operators:
    """The operators, on one tape."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def _unary(self, x: Tensor, *, keep: bool) -> Tensor:
        """Elementwise, one tensor kept or none: gelu, silu, scaling, negation."""
        tape = self.tape

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = tape.unpack(node, 0) if keep else None
            found = tape.new(x_elements, width)
            del kept
            return [found]

        x_elements, width = x.elements, x.width
        node = tape.node(backward, x)
        if keep:
            tape.save(node, x)
        out = tape.new(x.elements, x.width)
        out.node = node
        return out

    def gelu(self, x: Tensor) -> Tensor:
        return self._unary(x, keep=True)

    silu = gelu

    def scale(self, x: Tensor) -> Tensor:
        """Times a number."""
        return self._unary(x, keep=False)

    def cast(self, x: Tensor, width: int, *, category: int | None = None) -> Tensor:
        """To another dtype; the same tensor where it has it already."""
        if x.width == width:
            return x
        tape, elements, before = self.tape, x.elements, x.width

        def backward(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [tape.new(elements, before)]

        node = tape.node(backward, x)
        out = tape.new(elements, width, category=category)
        out.node = node
        return out

    def copy(self, x: Tensor) -> Tensor:
        """A contiguous copy; its gradient is a view."""
        tape = self.tape

        def backward(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [grads[0]]

        node = tape.node(backward, x)
        out = tape.new(x.elements, x.width)
        out.node = node
        return out

    def gradient_copy(self, x: Tensor) -> Tensor:
        """A view whose gradient is copied on its way back."""
        tape, elements, width = self.tape, x.elements, x.width

        def backward(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [tape.new(elements, width)]

        out = x.view()
        out.node = tape.node(backward, x)
        return out

    def dropout(self, x: Tensor, mask_bytes: int) -> Tensor:
        """Keeps its mask: of one byte where a kernel makes both, else drawn first, then applied."""
        if not mask_bytes:
            return x
        tape, elements, width = self.tape, x.elements, x.width

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = tape.unpack(node, 0)
            found = tape.new(elements, width)
            del kept
            return [found]

        node = tape.node(backward, x)
        if mask_bytes == 1:
            out, mask = self.together((elements, width), (elements, 1), times=(1, 1))
            tape.save(node, mask)
        else:
            mask = tape.new(elements, mask_bytes)
            tape.save(node, mask)
            out = tape.new(elements, width)
        out.node = node
        return out

    def add(self, x: Tensor, y: Tensor, *, reduce_y: bool = False) -> Tensor:
        """A sum in the wider dtype; ``reduce_y`` where y was spread over the batch."""
        tape = self.tape
        wide = max(x.width, y.width)
        y_elements, y_width, x_width = y.elements, y.width, x.width

        def backward(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            grad = grads[0]
            to_x = grad if x_width == wide else tape.new(grad.elements, x_width)
            to_y = grad
            if reduce_y or y_width != wide:
                to_y = tape.new(y_elements, y_width)
            return [to_x, to_y]

        node = tape.node(backward, x, y)
        out = tape.new(x.elements, wide)
        out.node = node
        return out

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        """A product of two tensors that both want gradients."""
        tape = self.tape
        shape, widths = x.elements, (x.width, y.width)

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = [tape.unpack(node, 0), tape.unpack(node, 1)]
            found = [tape.new(shape, width) for width in widths]
            kept.clear()
            return list(found)

        node = tape.node(backward, x, y)
        tape.save(node, x, y)
        out = tape.new(shape, max(widths))
        out.node = node
        return out

    def embedding(self, numbers: Tensor, table: Tensor, elements: Counts) -> Tensor:
        tape = self.tape

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = tape.unpack(node, 0)
            found = tape.new(table.elements, table.width)
            del kept
            return [found]

        node = tape.node(backward, table)
        tape.save(node, numbers)
        out = tape.new(elements, table.width)
        out.node = node
        return out

    def weight(self, parameter: Tensor, width: int) -> Tensor:
        """A parameter as a matrix product wants it: itself, or its cached cast."""
        tape = self.tape
        if tape.casts is None or parameter.width == width:
            return parameter
        if id(parameter) not in tape.casts:
            tape.casts[id(parameter)] = self.cast(parameter, width, category=CACHED)
        return tape.casts[id(parameter)]

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        """x·Wᵀ + b; autocast casts the bias, the weight and the input, in that order."""
        tape = self.tape
        width = BF16 if tape.casts is not None else x.width
        bias = None if layer.bias is None else self.weight(layer.bias, width)
        weight = self.weight(layer.weight, width)
        given, x = x, self.cast(x, width)  # a module's call holds its argument until it returns
        x_elements = x.elements

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = [tape.unpack(node, 0), tape.unpack(node, 1)]
            if layer.bias is None:  # mm finds the weight's gradient first, addmm the input's
                to_weight = tape.new(layer.weight.elements, width)
                return [tape.new(x_elements, width), to_weight, None]
            to_x = tape.new(x_elements, width)
            to_weight = tape.new(layer.weight.elements, width)
            kept.clear()
            return [to_x, to_weight, tape.new(layer.bias.elements, width)]

        node = tape.node(backward, x, weight, bias)
        tape.save(node, x, weight)
        out = tape.new(layer.outputs, width)
        del given
        out.node = node
        return out

    def together(self, *sizes: tuple[Counts, int], times: tuple[int, ...]) -> list[Tensor]:
        """Several outputs of one kernel: one point, when all are there."""
        wanted = [size for size, number in zip(sizes, times, strict=True) for _ in range(number)]
        label, self.tape.label = self.tape.label, None
        found = [self.tape.new(*size) for size in wanted[:-1]]
        self.tape.label = label
        return [*found, self.tape.new(*wanted[-1])]

    def split(self, x: Tensor, parts: tuple[Counts, ...]) -> list[Tensor]:
        """Views of one tensor; their gradients are put together again."""
        tape, elements, width = self.tape, x.elements, x.width

        def backward(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [tape.new(elements, width)]

        node = tape.node(backward, x, outputs=len(parts))
        found = [x.view(part) for part in parts]
        for place, part in enumerate(found):
            part.node, part.output = node, place
        return found

    def rotate(self, x: Tensor) -> Tensor:
        """Rotary positions: x·cos + turned(x)·sin, where half of turned(x) changed its sign."""
        turned = self._turn(x)
        plain = self.scale(x)  # the tables are buffers: they are held anyway
        return self.add(plain, self.scale(turned))

    def _turn(self, x: Tensor) -> Tensor:
        tape, elements, width = self.tape, x.elements, x.width

        def of_slice(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [tape.new(elements, width)]

        def of_cat(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [_half(grads[0]), _half(grads[0])]

        upper = _half(x)
        upper.node = tape.node(of_slice, x)
        negated = self.scale(upper)
        lower = _half(x)
        lower.node = tape.node(of_slice, x)
        node = tape.node(of_cat, negated, lower)
        out = tape.new(elements, width)
        out.node = node
        return out

    def attention(self, q: Tensor, k: Tensor, v: Tensor, outputs: Counts, rows: Counts) -> Tensor:
        """The flash kernel: keeps its inputs, its output and one fp32 number a row and head."""
        tape = self.tape
        width = BF16 if tape.casts is not None else q.width
        q, k, v = (self.cast(tensor, width) for tensor in (q, k, v))
        shapes = tuple(tensor.elements for tensor in (q, k, v))

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = [tape.unpack(node, place) for place in range(5)]
            found = self.together(*((shape, width) for shape in shapes), times=(1, 1, 1))
            kept.clear()
            return list(found)

        node = tape.node(backward, q, k, v)
        tape.save(node, q, k, v)
        out, sums = self.together((outputs, width), (rows, FP32), times=(1, 1))
        tape.save(node, out, sums)
        out.node = node
        return out

    def repeat(self, x: Tensor, elements: Counts) -> Tensor:
        """Each key head for all query heads of its group: a copy, its gradient summed."""
        tape, before, width = self.tape, x.elements, x.width

        def backward(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [tape.new(before, width)]

        node = tape.node(backward, x)
        out = tape.new(elements, width)
        out.node = node
        return out

    def product(self, x: Tensor, y: Tensor, elements: Counts) -> Tensor:
        """A batched matrix product."""
        tape, width = self.tape, x.width
        shapes = (x.elements, y.elements)

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            # Each operand is needed for the other's gradient, the second one first.
            kept = [tape.unpack(node, 0), tape.unpack(node, 1)]
            to_y, to_x = tape.new(shapes[1], width), tape.new(shapes[0], width)
            kept.clear()
            return [to_x, to_y]

        node = tape.node(backward, x, y)
        tape.save(node, x, y)
        out = tape.new(elements, width)
        out.node = node
        return out

    def future(self) -> Tensor:
        """Which positions lie ahead: one byte for each pair of positions."""
        ones = self.tape.new(unit("s²"), BOOL)
        assert ones.storage is not None
        return self.tape.new(unit("s²"), BOOL)

    def mask(self, x: Tensor, which: Tensor) -> Tensor:
        """Some elements set by a mask that is kept: ``masked_fill``, or times whether."""
        tape, elements, width = self.tape, x.elements, x.width

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = tape.unpack(node, 0)
            found = tape.new(elements, width)
            del kept
            return [found]

        node = tape.node(backward, x)
        tape.save(node, which)
        out = tape.new(elements, width)
        out.node = node
        return out

    def softmax(self, x: Tensor) -> Tensor:
        """Also log-softmax: keeps its output."""
        tape, elements, width = self.tape, x.elements, x.width

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = tape.unpack(node, 0)
            found = tape.new(elements, width)
            del kept
            return [found]

        node = tape.node(backward, x)
        out = tape.new(elements, width)
        out.node = node
        tape.save(node, out)
        return out

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean over the rows; autocast computes it in fp32."""
        tape = self.tape
        if tape.casts is not None:
            logits = self.cast(logits, FP32)
        elements, width = logits.elements, logits.width
        scores = self.softmax(logits)

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept: Any = [tape.unpack(node, place) for place in range(3)]
            found = tape.new(elements, width)
            kept.clear()
            return [found]

        node = tape.node(backward, scores)
        tape.save(node, scores, targets)
        out, weight = self.together((unit("1"), width), times=(2,))
        tape.save(node, weight)
        out.node = node
        return out
