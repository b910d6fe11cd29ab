"""Operators of transformers' code before 4.49, which later versions do not run.

As in :mod:`labkit.memory.tape.operators`, each method mirrors operators as torch 2.13 runs them on
a CPU. Which version runs which stands in :mod:`labkit.models.transformers_versions`. Source:
transformers 4.28 to 4.48, ``models/llama/modeling_llama.py``, read and run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from labkit.memory.tape.mode import BOOL, FP32
from labkit.memory.tape.operators import kept_for_others
from labkit.memory.tape.special_operators import SpecialOperators
from labkit.memory.tape.tape import Counts, Size, Tensor, call, unit
from labkit.models.sizes import OlderOperator

OLDER: tuple[OlderOperator, ...] = get_args(OlderOperator)
"""What only older code runs (:data:`labkit.models.sizes.OPERATORS` says what each is)."""


class OlderOperators(SpecialOperators):
    """Norms in two formats, clamped scores, masks of samples, logits without their last."""

    @call
    def rms_norm_of_input(self, x: Tensor, weight: Tensor, rows: Counts, *, wide: bool) -> Tensor:
        """RMSNorm that scales x itself; its fp32 copy is kept for the squares, x for the scale.

        Args:
            wide: the weight multiplies the fp32 product (4.30); else its narrow copy (4.28, 4.29).
        """
        local = self.tape.local
        copy = self.cast(x, FP32)
        self.tape.named("norm input", copy)
        scale = local(self._inverse_root(self._mean_of_squares(copy, rows)))
        scaled = self.times_in_fp32(x, scale, names=["norm input, narrow"])
        if not wide:
            scaled = local(self.cast(scaled, weight.width))
            return self.times(scaled, weight, left=True, names=["", "normalised"])
        out = self.times_in_fp32(local(scaled), weight, left=True, names=["", "normalised"])
        return self.cast(out, x.width)

    def times_in_fp32(
        self, x: Tensor, factor: Tensor, *, left: bool = False, names: Sequence[str] = ()
    ) -> Tensor:
        """x times a smaller factor spread over it, in fp32 whatever formats they have.

        Both gradients are made in fp32, then summed or cast to what they belong to, one by one.
        """
        operands = [factor, x] if left else [x, factor]
        whole = (x.elements, FP32)
        wanted = [not operand.frozen for operand in operands]
        sizes = [operand.size for operand in operands]
        small = 0 if left else 1

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            new = self.tape.new
            gradients: list[Tensor | None] = [None, None]
            for place in range(2):
                if wanted[place]:
                    gradients[place] = new(*whole, *saved)
            self.tape.done(saved)
            for place, gradient in enumerate(gradients):
                if gradient is None:
                    continue
                elements, width = sizes[place]
                if place == small:
                    gradients[place] = new(elements, FP32, *gradients)
                if width != FP32:
                    gradients[place] = new(elements, width, *gradients)
            return gradients

        saves, names = kept_for_others(operands, names)
        return self.kernel(operands, whole, saves=saves, names=names, backward=backward)[0]

    def clamp(self, x: Tensor) -> Tensor:
        """The larger of x and the least number of its format, both of which are kept.

        Half the gradient goes where they are equal.
        """
        new = self.tape.new
        size: Size = x.size
        least = new(unit("1"), FP32, x)

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            half = new(*size, *saved)
            equal = new(size[0], BOOL, half, *saved)
            chosen = new(*size, half, equal, *saved)
            new(size[0], BOOL, half, equal, chosen, *saved)  # where x is the smaller
            return [chosen]

        names = ["scores before the clamp", "least number"]
        return self.kernel([x], size, saves=[x, least], names=names, backward=backward)[0]

    @call
    def softmax_in_fp32(self, x: Tensor, width: int) -> Tensor:
        """A softmax that casts its input, in a narrow format again."""
        wide = self._softmax_of_cast(x)
        return self.cast(wide, width)

    @call
    def _softmax_of_cast(self, x: Tensor) -> Tensor:
        """The softmax of x in fp32."""
        return self.softmax(self.tape.local(self.cast(x, FP32)), "softmax output")

    @call
    def mask_of_samples(self, width: int) -> Tensor:
        """What is added to the scores of each sample: which tokens are padding, and which ahead."""
        local = self.tape.local
        new = self.tape.new
        each = unit("b·s²")
        known = local(new(unit("b·s"), BOOL))
        ahead = local(self._ahead(width))
        spread = local(new(each, width, known))
        padding = local(new(each, width, spread))
        filled = local(new(each, width, new(each, BOOL, padding), padding))
        return new(each, width, filled, ahead)

    def _ahead(self, width: int) -> Tensor:
        """What is added for later positions, made in fp32."""
        wide = self.tape.new(unit("s²"), FP32)
        return wide if width == FP32 else self.tape.new(unit("s²"), width, wide)

    def shifted(self, logits: Tensor, fewer: Counts) -> Tensor:
        """A copy of a part; its gradient is put back among zeros."""
        return self.kernel([logits], (fewer, logits.width))[0]
