"""LayerNorm and RMSNorm on a tape: what their kernels, or their lines, allocate and keep."""

from __future__ import annotations

from labkit.memory.tape.operators import FP32, Operators
from labkit.memory.tape.tape import Counts, Node, Tensor


class AllOperators(Operators):
    """The operators and the norms."""

    def layer_norm(
        self, x: Tensor, weight: Tensor, bias: Tensor, rows: Counts, *, wide_statistics: bool
    ) -> Tensor:
        """Keeps its input, and mean and 1/deviation of each row."""
        tape = self.tape
        statistics = FP32 if wide_statistics else x.width
        elements, width = x.elements, x.width

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = [tape.unpack(node, place) for place in range(4)]
            found = self.together((elements, width), (weight.elements, weight.width), times=(1, 2))
            kept.clear()
            return list(found)

        node = tape.node(backward, x, weight, bias)
        tape.save(node, x, weight)
        out, mean, deviation = self.together((elements, width), (rows, statistics), times=(1, 2))
        tape.save(node, mean, deviation)
        out.node = node
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, rows: Counts) -> Tensor:
        """The fused kernel: keeps its input and 1/rms of each row."""
        tape = self.tape
        elements, width = x.elements, x.width

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = [tape.unpack(node, place) for place in range(3)]
            found = self.together((elements, width), (weight.elements, weight.width), times=(1, 1))
            kept.clear()
            return list(found)

        node = tape.node(backward, x, weight)
        out, scale = self.together((elements, width), (rows, FP32), times=(1, 1))
        tape.save(node, x, scale, weight)
        out.node = node
        return out

    def rms_norm_eager(self, x: Tensor, weight: Tensor, rows: Counts) -> Tensor:
        """The norm written out: every step of it is an operator."""
        wide = self.cast(x, FP32)
        scale = self._inverse_root(self._mean_of_squares(wide, rows))
        return self._times_weight(self.cast(self.times_rows(wide, scale), x.width), weight)

    def _mean_of_squares(self, wide: Tensor, rows: Counts) -> Tensor:
        tape, elements = self.tape, wide.elements

        def square_backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = tape.unpack(node, 0)
            power = tape.new(elements, FP32)
            scaled = tape.new(elements, FP32)
            found = tape.new(elements, FP32)
            del kept, power, scaled
            return [found]

        def mean_backward(_: Node, grads: list[Tensor]) -> list[Tensor | None]:
            return [tape.new(elements, FP32)]

        node = tape.node(square_backward, wide)
        tape.save(node, wide)
        square = tape.new(elements, FP32)
        square.node = node
        node = tape.node(mean_backward, square)
        mean = tape.new(rows, FP32)
        mean.node = node
        del square
        shifted = tape.new(rows, FP32)  # the + eps
        shifted.node = mean.node
        return shifted

    def _inverse_root(self, x: Tensor) -> Tensor:
        tape, rows = self.tape, x.elements

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = tape.unpack(node, 0)
            steps = [tape.new(rows, FP32), tape.new(rows, FP32), tape.new(rows, FP32)]
            del kept
            return [steps[-1]]

        node = tape.node(backward, x)
        out = tape.new(rows, FP32)
        out.node = node
        tape.save(node, out)
        return out

    def times_rows(self, x: Tensor, scale: Tensor) -> Tensor:
        """Each row times a number of its own, in one format."""
        tape, elements, rows, width = self.tape, x.elements, scale.elements, x.width

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = [tape.unpack(node, 0), tape.unpack(node, 1)]
            to_x = tape.new(elements, width)
            product = tape.new(elements, width)
            kept.clear()
            to_scale = tape.new(rows, width)
            del product
            return [to_x, to_scale]

        node = tape.node(backward, x, scale)
        tape.save(node, x, scale)
        out = tape.new(elements, width)
        out.node = node
        return out

    def _times_weight(self, x: Tensor, weight: Tensor) -> Tensor:
        tape = self.tape
        elements, width, wide = x.elements, x.width, max(x.width, weight.width)

        def backward(node: Node, grads: list[Tensor]) -> list[Tensor | None]:
            kept = [tape.unpack(node, 0), tape.unpack(node, 1)]
            # The weight comes first: it is the left factor.
            product = tape.new(elements, wide)
            to_x = tape.new(elements, width)
            kept.clear()
            to_weight = tape.new(weight.elements, weight.width)
            del product
            return [to_weight, to_x]

        node = tape.node(backward, weight, x)
        tape.save(node, weight, x)
        out = tape.new(elements, wide)
        out.node = node
        return out
