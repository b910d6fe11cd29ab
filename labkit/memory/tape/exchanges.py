"""Attention over a sequence that several ranks share: what the exchange of keys and values holds.

``torch.distributed.tensor.experimental``'s context parallelism line by line, as torch 2.13 runs it
on the rank that comes last, whose queries see all keys (others work on halves of theirs); and
Megatron-LM's, in which TransformerEngine sends keys and values around a ring.
"""

from __future__ import annotations

from typing import NamedTuple

from labkit.memory.tape.mode import BF16, FP32
from labkit.memory.tape.operators import ATTENTION, Operators
from labkit.memory.tape.tape import Counts, Tensor, call, of_all_ranks


class Rounds(NamedTuple):
    """So many exchanges; ``gathers``: all at once in the first; ``copies``: keys and values do not
    lie in one piece and are copied first. After the first, ``whole`` rounds are of ranks before
    this one (all queries see half of their keys), those after them of later ranks (half of the
    queries see all keys).
    """

    number: int
    whole: int
    gathers: bool
    copies: bool


class SharedAttention(Operators):
    """Attention of one rank's queries over the keys and values of all."""

    @call
    def shared_attention(
        self, q: Tensor, k: Tensor, v: Tensor, outputs: Counts, rows: Counts, rounds: Rounds
    ) -> Tensor:
        """Attention in rounds: each rank's keys and values one after the other, merged in fp32.

        Source: torch 2.13, distributed/tensor/experimental/_context_parallel/_attention.py
        (``_templated_ring_attention`` and ``_templated_ring_attention_backward``).
        """
        width = BF16 if self.tape.casts is not None else q.width
        inputs = [self.cast(tensor, width) for tensor in (q, k, v)]
        sizes = (outputs, width), (rows, FP32)

        def backward(grads: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            return self._shared_backward(inputs, [*grads, *saved], width, rounds)

        return self.kernel(
            inputs,
            *sizes,
            saves=inputs,
            saves_outputs=[0, 1],
            names=[*3 * ["query, key, value"], "output", "log of sums"],
            backward=backward,
            kind=ATTENTION,
            run=lambda: self._merged_rounds(inputs, outputs, rows, width, rounds),
        )[0]

    def _copied(self, inputs: list[Tensor], width: int, rounds: Rounds) -> list[Tensor]:
        """Keys and values in one piece, where they are not."""
        if not rounds.copies:
            return []
        first = self.tape.new(inputs[1].elements, width)
        return [first, self.tape.new(inputs[2].elements, width, first)]

    def _exchanged(
        self,
        pair: Counts,
        width: int,
        number: int,
        rounds: Rounds,
        there: list[Tensor],
        before: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Keys and values side by side to be sent, and what arrives: the first time all at once, or
        each time the next rank's, while those at work are still ``there``. What was sent
        ``before`` is gone once what is sent now is put together.
        """
        sent = self.tape.new(pair, width, before, *there)
        if rounds.gathers and number:
            return sent, there[:1]
        whole = of_all_ranks(pair) if rounds.gathers else pair
        return sent, [self.tape.new(whole, width, sent, *there)]

    def _merged_rounds(
        self, inputs: list[Tensor], outputs: Counts, rows: Counts, width: int, rounds: Rounds
    ) -> list[Tensor]:
        """The forward pass: an output a round, merged with those before; output and log of sums."""
        tape = self.tape
        pair = inputs[1].elements + inputs[2].elements
        keys = self._copied(inputs, width, rounds)
        at_work: list[Tensor] = []  # what the round before reads is there until this one begins
        merged: list[Tensor] = []
        out: list[Tensor] = []
        for number in range(rounds.number):
            arrived = keys
            if number < rounds.number - 1:
                there = [*keys, *at_work]
                _, arrived = self._exchanged(pair, width, number, rounds, there)
            at_work = keys
            part = 1 if number <= rounds.whole else 2
            sizes = (outputs, width // part), (rows, FP32 // part)
            new_out = tape.together(*sizes, beside=(*out, *merged, *at_work, *arrived))
            out = new_out
            wide = out[0] if width == FP32 else tape.new(outputs, FP32 // part, *out, *merged)
            block = [wide, new_out[1]]
            merged = self._merged(merged, block, part, [*out, *arrived]) if merged else block
            tape.need(*at_work, *arrived, *out)
            keys = arrived
        final = merged[0] if width == FP32 else tape.new(outputs, width, *merged, *out)
        tape.need(*inputs, *keys, *at_work, *out, *merged)
        return [final, merged[1]]

    def _merged(
        self, merged: list[Tensor], block: list[Tensor], part: int, beside: list[Tensor]
    ) -> list[Tensor]:
        """Outputs and logs of sums so far, with a round's; of ``part`` 2 for half of the rows."""
        new = self.tape.new
        outputs, rows = (tensor.elements for tensor in merged)
        wide = FP32 // part
        beside = [*merged, *block, *beside]
        share = new(rows, wide, new(rows, wide, *beside), *beside)  # a sigmoid of a difference
        change = new(outputs, wide, new(outputs, wide, share, *beside), share, *beside)
        total = new(outputs, wide, change, *beside)
        less = new(rows, wide, total, *beside)
        both = self.tape.together((rows, wide), (rows, wide), beside=(less, total, *beside))
        last = new(rows, wide, both[0], total, *beside)
        if part == 1:
            return [total, last]
        sums = new(rows, FP32, last, total, *beside)
        return [new(outputs, FP32, sums, last, total, *beside), sums]

    def _shared_backward(
        self, inputs: list[Tensor], beside: list[Tensor], width: int, rounds: Rounds
    ) -> list[Tensor | None]:
        """The backward pass: keys and values exchanged once more, their gradients sent on in fp32.

        ``beside`` is needed throughout.
        """
        tape = self.tape
        new = tape.new
        q, k, v = inputs
        rows = beside[-1].elements
        pair = k.elements + v.elements
        to_q = new(q.elements, FP32)
        sums = [new(k.elements, FP32, to_q)]
        sums.append(new(v.elements, FP32, to_q, *sums))
        keys = self._copied(inputs, width, rounds)
        at_work: list[Tensor] = []
        sent: Tensor | None = None  # keys and values
        gone: Tensor | None = None  # gradients of theirs, put together to be sent
        waiting: Tensor | None = None  # and those that arrive
        each: list[Tensor] = []
        half_sums: Tensor | None = None
        for number in range(rounds.number):
            arrived = keys
            always = [to_q, *each, *filter(None, (gone, waiting))]
            if number < rounds.number - 1:
                there = [*keys, *at_work, *sums, *always]
                sent, arrived = self._exchanged(pair, width, number, rounds, there, sent)
            tape.need(half_sums)
            at_work = keys
            of_q, of_k = (1, 2) if 0 < number <= rounds.whole else (2, 1) if number else (1, 1)
            if of_q == 2:
                half_sums = new(rows, FP32 // 2, half_sums)
            parts = (q.elements, width // of_q), (k.elements, width // of_k)
            last = (v.elements, width // of_k)
            each = tape.together(*parts, last, beside=(*each, *at_work, *arrived, *sums, *always))
            tape.need(sent, half_sums)
            if number:
                assert waiting is not None
                sums = self._added(k, v, waiting) if of_k == 2 else [waiting]
            gone = new(pair, FP32, *sums, waiting)
            waiting = new(pair, FP32, gone, *sums, waiting)
            if of_q == 2:
                to_q = new(q.elements, FP32, to_q, gone, waiting)
            tape.need(*each, *at_work, *arrived, sent, *sums, gone, waiting, to_q, half_sums)
            keys = arrived
        narrow = to_q if width == FP32 else new(q.elements, width, to_q)
        both = waiting if width == FP32 else new(pair, width, waiting)
        tape.need(*each, *keys, *at_work, sent, *sums, gone, waiting, to_q, half_sums)
        tape.need(narrow, both, *beside)
        assert both is not None
        return [narrow, both.view(k.elements), both.view(v.elements)]

    def _added(self, k: Tensor, v: Tensor, arrived: Tensor) -> list[Tensor]:
        """Gradients that arrived, with this round's added to half of them and put together."""
        to_k = self.tape.new(k.elements, FP32, arrived)
        return [to_k, self.tape.new(v.elements, FP32, to_k, arrived)]

    @call
    def ring_attention(
        self, q: Tensor, k: Tensor, v: Tensor, outputs: Counts, rows: Counts
    ) -> Tensor:
        """Attention in which keys and values go around a ring and every round's are kept.

        The forward pass keeps the keys, values and outputs of all rounds until these are merged in
        fp32; the backward pass has two buffers of keys, values and their gradients. Source:
        TransformerEngine, pytorch/attention/dot_product_attention/context_parallel.py
        (``AttnFuncWithCPAndKVP2P``); it was read and not run.
        """
        width = BF16 if self.tape.casts is not None else q.width
        inputs = [self.cast(tensor, width) for tensor in (q, k, v)]
        pair = inputs[1].elements + inputs[2].elements
        tape = self.tape

        def forward() -> list[Tensor]:
            around = tape.new(of_all_ranks(pair), width, *inputs)
            every = ((of_all_ranks(outputs), width), (of_all_ranks(rows), FP32))
            parts = tape.together(*every, beside=(around,))
            wide = tape.new(outputs, FP32, around, *parts)
            return tape.together((outputs, width), (rows, FP32), beside=(wide, around, *parts))

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            buffers = [tape.new(2 * pair, width, *saved)]
            buffers.append(tape.new(2 * pair, width, *buffers, *saved))
            to_q = tape.new(inputs[0].elements, width, *buffers, *saved)
            each = tape.together(*(x.size for x in inputs), beside=(to_q, *buffers, *saved))
            tape.new(pair, width, *each, to_q, *buffers, *saved)
            key, value = inputs[1:]
            return [to_q, buffers[-1].view(key.elements), buffers[-1].view(value.elements)]

        return self.kernel(
            inputs,
            (outputs, width),
            (rows, FP32),
            saves=inputs,
            saves_outputs=[0, 1],
            names=[*3 * ["query, key, value"], "output", "log of sums"],
            backward=backward,
            kind=ATTENTION,
            run=forward,
        )[0]
