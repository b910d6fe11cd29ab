"""What peft puts beside a frozen base, low-rank matrices apart, operator by operator.

Each method mirrors peft 0.21 as torch 2.13 runs it on a CPU: DoRA (tuners/lora/dora.py), IA3
(tuners/ia3/layer.py), and virtual tokens in front of a sequence (peft_model.py, tuners/p_tuning).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from labkit.memory.tape.mode import BF16, INT64
from labkit.memory.tape.operators import Linear, kept_for_others
from labkit.memory.tape.special_operators import SpecialOperators
from labkit.memory.tape.tape import Counts, Tensor, call, unit

DORA = "dora"
IA3 = "ia3"
PROMPT = "prompt"
P_TUNING = "p-tuning"
PROMPTS = (PROMPT, P_TUNING)
"""Kinds that put virtual tokens in front of a sequence."""
Tuner = Literal["dora", "ia3", "prompt", "p-tuning"]
"""What is trained beside the base, where that is not LoRA."""
SQUARES = {"h": "h²", "q": "q²", "f": "f²"}
"""An identity matrix as wide as a projection's input."""


class TunerOperators(SpecialOperators):
    """Linear layers with DoRA or IA3, and the embeddings of virtual tokens."""

    @call
    def linear(
        self,
        x: Tensor,
        layer: Linear,
        name: str,
        whole: Counts | None = None,
        *,
        buffered: bool = False,
    ) -> Tensor:
        """A linear layer, tuned as :attr:`Linear.vector` says where it has one."""
        if layer.vector is None:
            return super().linear(x, layer, name, whole, buffered=buffered)
        if layer.adapter is not None:
            return self._dora(x, layer, name)
        base = replace(layer, vector=None)
        factors = self.tape.local(self.scale(layer.vector))
        if not layer.scales_input:
            out = super().linear(x, base, name)
            return self.cast(self.scaled(out, factors), out.width)
        wide = self.tape.local(self.cast(x, layer.vector.width))
        inner = self.tape.local(self.cast(self.scaled(wide, factors), x.width))
        return super().linear(inner, base, name)

    def scaled(self, x: Tensor, factors: Tensor, *, left: bool = False) -> Tensor:
        """x times one factor a column, whose gradient is summed over the rows in the end.

        ``left``: the factors are the first operand, whose gradient is found first.
        """
        operands = [factors, x] if left else [x, factors]
        width = max(x.width, factors.width)
        sizes = [operand.size for operand in operands]
        wanted = [not operand.frozen for operand in operands]
        spread = x.elements
        columns = 0 if left else 1

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            whole: list[Tensor | None] = [None, None]
            for place in range(2):
                if wanted[place]:
                    whole[place] = self.tape.new(spread, width, *saved, *whole)
            self.tape.done(saved)
            for place in range(2):
                if whole[place] is None:
                    continue
                elements, narrow = sizes[place]
                if place == columns:
                    whole[place] = self.tape.new(elements, width, *whole)
                if narrow != width:
                    whole[place] = self.tape.new(elements, narrow, *whole)
            return whole

        saves, names = kept_for_others(operands, ["scaled", "factors"])
        if left:
            names = ["factors" if kept is factors else "scaled" for kept in saves]
        return self.kernel(operands, (spread, width), saves=saves, names=names, backward=backward)[
            0
        ]

    # ---------------------------------------------------------------- DoRA

    @call
    def _dora(self, x: Tensor, layer: Linear, name: str) -> Tensor:
        """A linear layer with DoRA: m · (W + scale·B·A) / ‖W + scale·B·A‖, the norm a constant."""
        assert layer.adapter is not None
        out = super().linear(x, replace(layer, adapter=None, vector=None), name)
        x = self.tape.local(self.cast(x, layer.adapter[0].weight.width))
        return self.cast(self._with_dora(out, x, layer), out.width)

    @call
    def _with_dora(self, out: Tensor, x: Tensor, layer: Linear) -> Tensor:
        """The base's output plus DoRA's; with dropout the base runs once more, on what is left."""
        assert layer.adapter is not None
        if not layer.adapter[2]:
            return self.add(out, self._dora_change(out, x, layer))
        x = self.tape.local(self.dropped(x))
        return self.add(out, self._dora_change(None, x, layer))

    @call
    def _dora_change(self, base: Tensor | None, x: Tensor, layer: Linear) -> Tensor:
        """What DoRA adds to the base's output, or to none."""
        assert layer.adapter is not None
        assert layer.vector is not None
        local = self.tape.local
        down, up, _ = layer.adapter
        norm, weight = self._weight_norm(x, layer)
        norm = local(norm)
        vector = layer.vector
        names = ["weight norm"]
        magnitude = local(self.kernel([vector], vector.size, saves=[norm], names=names)[0])
        narrow = self.linear(x, down, "adapter input")
        change = local(self.linear(narrow, up, "adapted"))
        if base is None:
            base = local(self.linear(x, Linear(weight, None, layer.outputs), "adapter input"))
        elif layer.bias is not None:
            base = local(self.add_constant(base, layer.bias.width))
        of_base = self.scaled(base, self.shift(magnitude), left=True)
        return self.add(of_base, self.scale(self.scaled(change, magnitude, left=True)))

    def _weight_norm(self, x: Tensor, layer: Linear) -> tuple[Tensor, Tensor]:
        """The norm of each row of W + scale·B·A, and W in x's format, which the caller holds."""
        assert layer.adapter is not None
        assert layer.square is not None
        assert layer.vector is not None
        new = self.tape.new
        local = self.tape.local
        down, up, _ = layer.adapter
        width = BF16 if self.tape.casts is not None else down.weight.width
        eye = new(layer.square, down.weight.width)
        self.weight(down.weight, width)
        columns = eye if eye.width == width else new(layer.square, width, eye)
        narrow = new(down.weight.elements, width, eye, columns)
        self.weight(up.weight, width)
        size = layer.weight.elements
        product = new(size, width, eye, columns, narrow)
        # Its graph is there until this call returns, but in the first run of a checkpoint.
        if self.tape.recording is None and not self.tape.muted:
            local(columns)
            local(narrow)
        product = local(product if width == x.width else new(size, x.width, product))
        weight = layer.weight
        if weight.width != x.width:
            weight = local(new(size, x.width))
            weight.frozen = True
        whole = new(size, x.width, new(size, x.width, product, weight), weight)
        return new(layer.vector.elements, x.width, whole), weight

    # ---------------------------------------------------------------- virtual tokens

    @call
    def virtual_tokens(
        self, table: Tensor, encoder: Sequence[Linear], width: int, *, one_sample: bool
    ) -> Tensor:
        """Embeddings of the virtual tokens for each sample, in the format of the stream.

        With an ``encoder`` they come out of its layers, with a ReLU between each two.
        """
        every = unit("b·τ·h")
        numbers = Tensor(None, unit("τ"), INT64)
        if self.gpu:  # copied from the host, for every sample
            numbers = self.tape.local(self.tape.new(unit("b·τ"), INT64))
            self.tape.named("prompt numbers", numbers)
        encoded = self._encoded(numbers, table, encoder)
        if one_sample:  # its gradient is not summed
            spread = self.copy(encoded)
        else:
            spread = self.kernel([encoded], (every, encoded.width))[0]
        return self.cast(spread, width)

    @call
    def _encoded(self, numbers: Tensor, table: Tensor, encoder: Sequence[Linear]) -> Tensor:
        """Rows of the table, through the encoder where there is one."""
        x = self.tape.local(self.embedding(numbers, table, unit("τ·h")))
        for number, layer in enumerate(encoder):
            if number:
                x = self.softmax(x, "prompt activation")
            x = self.linear(x, layer, "prompt")
        return x

    def joined_labels(self) -> Tensor:
        """Targets behind those of the virtual tokens, which count for nothing."""
        local = self.tape.local
        before = local(self.tape.new(unit("b·τ"), INT64))
        targets = local(self.tape.new(unit("b·s"), INT64, before))
        self.tape.named("targets", targets)
        return targets
