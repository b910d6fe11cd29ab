"""Routing, dispatch and batched experts on a tape; and what parts and joins in latent attention.

As in :mod:`labkit.memory.tape.operators`, each method mirrors operators as torch 2.13 runs them
on a CPU. Scattering into zeros is out of place under any dispatch mode, so zeros and result both
exist for a moment; real training does it in place.
"""

from __future__ import annotations

from labkit.memory.tape.loss_operators import LossOperators
from labkit.memory.tape.mode import BF16, BOOL, INT64
from labkit.memory.tape.tape import Backward, Counts, Tensor, call, unit


class ExpertOperators(LossOperators):
    """All operators there are."""

    def _scattered(self, x: Tensor) -> Backward:
        """Gradients of picked elements are put back among zeros."""

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
        sizes, backward = ((elements, x.width), (elements, INT64)), self._scattered(x)
        values, chosen = self.kernel([x], *sizes, saves_outputs=[1], backward=backward)
        return values, chosen

    @call
    def over_sum(self, x: Tensor, rows: Counts) -> Tensor:
        """Each row over its sum; the sum's gradient is spread without a copy."""
        new, size = self.tape.new, x.size

        def of_sum(grads: list[Tensor], _: list[Tensor]) -> list[Tensor | None]:
            return [grads[0].view(size[0])]

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            steps = [new(*size, *saved) for _ in range(3)]  # -grad · (x / sum) / sum
            to_sum = new(*size, *steps, *saved)
            to_x = new(*size, *saved)
            self.tape.done(saved)
            return [to_x, new(rows, size[1], to_sum)]

        total = self.kernel([x], (rows, x.width), backward=of_sum)[0]
        inputs, names = [x, total], 2 * ["chosen and weights"]
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
        learns, size = start.node is not None, x.size

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

    def join(self, elements: Counts, *parts: Tensor) -> Tensor:
        """Side by side in a new tensor; each part's gradient is a view of the whole's."""
        sizes = [part.elements for part in parts]

        def backward(grads: list[Tensor], _: list[Tensor]) -> list[Tensor | None]:
            return [grads[0].view(size) for size in sizes]

        return self.kernel(parts, (elements, parts[0].width), backward=backward)[0]
