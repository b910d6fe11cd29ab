"""What torch's operators allocate, keep and hand back: forward and backward, on sizes alone.

Each method mirrors one operator as torch 2.13 runs it on a CPU. Widths are bytes per element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from labkit.memory.tape.mode import BF16, BOOL, FP32
from labkit.memory.tape.tape import CACHED, Backward, Counts, Size, Tape, Tensor, call, unit

MATRIX_PRODUCT = "matrix product"
ATTENTION = "attention"  # what a checkpoint may keep


@dataclass(frozen=True, slots=True)
class Linear:
    """The parameters of one linear layer: (out, in) weight and perhaps a bias.

    ``adapter``: the two narrow layers beside it that are trained instead of it, and whether their
    input goes through dropout. ``vector``: DoRA's magnitudes beside it, with the elements of a
    ``square`` as wide as the input; or, alone, IA3's factors of the output, or of the input.
    """

    weight: Tensor
    bias: Tensor | None
    outputs: Counts
    adapter: tuple[Linear, Linear, bool] | None = None
    vector: Tensor | None = None
    square: Counts | None = None
    scales_input: bool = False


def _passed_on(grads: list[Tensor], _: list[Tensor]) -> list[Tensor | None]:
    """The gradient of the output is that of the input."""
    return [grads[0]]


def kept_for_others(
    operands: Sequence[Tensor], names: Sequence[str]
) -> tuple[list[Tensor], list[str]]:
    """What a product keeps of its two operands: each for the other's gradient, where one is wanted.

    A matrix in 4 bits is kept as it is stored.
    """
    named = [*names, *[""] * (len(operands) - len(names))]
    pairs = zip(operands, named, reversed(operands), strict=True)
    kept = [(x, name) for x, name, other in pairs if not (other.frozen or x.packed)]
    return [x for x, _ in kept], [name for _, name in kept]


class Operators:
    """The operators, on one tape."""

    def __init__(self, tape: Tape, *, gpu: bool = False) -> None:
        self.tape = tape
        self.gpu = gpu
        self.tables: list[list[Tensor]] = [[], []]  # of rotary positions

    def kernel(
        self,
        inputs: Sequence[Tensor | None],
        *outputs: Size,
        saves: Sequence[Tensor] = (),
        saves_outputs: Sequence[int] = (),
        names: Sequence[str] = (),
        backward: Backward | None = None,
        kind: str = "",
        run: Callable[[], list[Tensor]] | None = None,
    ) -> list[Tensor]:
        """Run one operator: make its node, keep what it saves, allocate its outputs.

        Where nobody wants the gradient of any input there is no node, and nothing is kept for one;
        a checkpoint that keeps outputs of this kind keeps this one too. ``run`` allocates the
        outputs itself.
        """
        tape = self.tape
        run = run or (lambda: tape.together(*outputs, beside=(*inputs, *saves)))
        tape.need(*inputs, *saves)
        if inputs and all(x is None or x.frozen for x in inputs):
            results = [result.view() for result in tape.kept_outputs(kind, run)]
            for result in results:
                result.frozen = True
            return results
        node = tape.node(backward or self.each(inputs), *inputs)
        tape.save(node, *saves)
        results = tape.kept_outputs(kind, run)
        tape.need(*inputs, *saves)
        outer = [results[place] for place in saves_outputs]
        tape.save(node, *outer)
        for name, kept in zip(names, (*saves, *outer), strict=False):
            tape.named(name, kept)
        results[0].node = node
        return results

    def each(self, inputs: Sequence[Tensor | None], order: Sequence[int] = ()) -> Backward:
        """A backward pass that allocates one gradient after the other, in ``order``.

        Frozen inputs get none.
        """
        there = [x for x in inputs if x is not None]
        sizes = [x.size for x in there]
        wanted = [not x.frozen for x in there]

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            gradients: list[Tensor | None] = [None] * len(sizes)
            for place in order or range(len(sizes)):
                if wanted[place]:
                    gradients[place] = self.tape.new(*sizes[place], *saved)
            return gradients

        return backward

    def at_once(self, *inputs: Tensor) -> Backward:
        """A backward pass whose kernel makes all gradients together."""
        sizes = [x.size for x in inputs]
        return lambda _, saved: [*self.tape.together(*sizes, beside=tuple(saved))]

    def view(self, x: Tensor, elements: Counts | None = None, width: int | None = None) -> Tensor:
        """A view whose gradient is a tensor of its own: a copy on its way back, or a sum."""
        out = x.view(elements, width)
        if not x.frozen:
            out.node = self.tape.node(self.each([x]), x)
        return out

    def gelu(self, x: Tensor, name: str) -> Tensor:
        """GELU or SiLU in one kernel; its input is kept, which is ``name`` to the model."""
        return self.kernel([x], x.size, saves=[x], names=[name])[0]

    silu = gelu

    @call
    def gelu_written_out(self, x: Tensor, name: str, *, wide_power: bool) -> Tensor:
        """GELU's tanh approximation, operator by operator: x/2 · (1 + tanh(c·(x + d·x³))).

        It keeps x, x/2, the hyperbolic tangent, and that plus one.
        """
        self.tape.named(name, x)
        half = self.tape.local(self.scale(x))
        cubed = self.power(self.cast(x, FP32) if wide_power and self.tape.casts is not None else x)
        inner = self.scale(self.add(x, self.scale(cubed)))
        one_more = self.shift(self.softmax(inner, "tangent"))
        return self.multiply(half, one_more, ("half", "one more than the tangent"))

    def _in_steps(self, size: Size) -> Backward:
        """A backward pass that finds the gradient in three steps, each in a tensor of its own."""
        new = self.tape.new

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            steps = [new(*size, *saved), new(*size, *saved)]
            return [new(*size, *steps, *saved)]

        return backward

    def power(self, x: Tensor) -> Tensor:
        """A power of x; for the gradient the next lower power is computed anew."""
        return self.kernel([x], x.size, saves=[x], backward=self._in_steps(x.size))[0]

    def add_constant(self, x: Tensor, width: int) -> Tensor:
        """x plus a tensor without a gradient, in the wider format."""
        if x.width >= width:
            return self.shift(x)
        return self.kernel([x], (x.elements, width))[0]

    def shift(self, x: Tensor) -> Tensor:
        """x plus a number: nothing is kept, and the gradient passes on as it is."""
        return self.kernel([x], x.size, backward=_passed_on)[0]

    copy = shift  # a contiguous one, whose gradient is a view

    def scale(self, x: Tensor) -> Tensor:
        """x times a number: nothing is kept."""
        return self.kernel([x], x.size)[0]

    def cast(self, x: Tensor, width: int) -> Tensor:
        """x in another dtype; the same tensor where it has it already."""
        return x if x.width == width else self.kernel([x], (x.elements, width))[0]

    def dropout(self, x: Tensor, mask_bytes: int, name: str = "dropout mask") -> Tensor:
        """Dropout in one kernel, which keeps its mask; x itself where a mask has no bytes."""
        if not mask_bytes:
            return x
        sizes = x.size, (x.elements, mask_bytes)
        return self.kernel([x], *sizes, saves_outputs=[1], names=[name])[0]

    def add(self, x: Tensor, y: Tensor, *, reduce_y: bool = False) -> Tensor:
        """A sum in the wider dtype; ``reduce_y`` where y was spread over the batch."""
        wide = max(x.width, y.width)
        (y_elements, y_width) = y.size
        x_width = x.width
        x_learns = not x.frozen
        y_learns = not y.frozen

        def backward(grads: list[Tensor], _: list[Tensor]) -> list[Tensor | None]:
            to_x = to_y = grads[0]
            if x_learns and x_width != wide:
                to_x = self.tape.new(to_x.elements, x_width)
            if y_learns and (reduce_y or y_width != wide):
                to_y = self.tape.new(y_elements, y_width)
            return [to_x, to_y]

        return self.kernel([x, y], (x.elements, wide), backward=backward)[0]

    def multiply(self, x: Tensor, y: Tensor, names: Sequence[str] = ("activation", "up")) -> Tensor:
        """A product of two tensors; each is kept for the other's gradient."""
        out = (x.elements, max(x.width, y.width))
        saves, names = kept_for_others([x, y], names)
        return self.kernel([x, y], out, saves=saves, names=names)[0]

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        """SiLU of the gate times up, in one kernel that keeps both."""
        backward = self.at_once(gate, up)
        kept = [gate, up]
        return self.kernel(kept, up.size, saves=kept, names=("gate", "up"), backward=backward)[0]

    def embedding(self, numbers: Tensor, table: Tensor, elements: Counts) -> Tensor:
        """Rows of a table by their numbers, which are kept."""
        return self.kernel([table], (elements, table.width), saves=[numbers])[0]

    def weight(self, parameter: Tensor, width: int) -> Tensor:
        """A parameter as a matrix product wants it: itself, or its cached cast."""
        casts = self.tape.casts
        if casts is None or parameter.width == width:
            return parameter
        if parameter.frozen:  # autocast caches what is trained only
            return self.kernel([parameter], (parameter.elements, width))[0]
        if id(parameter) not in casts:
            node = self.tape.node(self.each([parameter]), parameter)
            cast = self.tape.new(parameter.elements, width, category=CACHED)
            cast.node = node
            casts[id(parameter)] = cast
        return casts[id(parameter)]

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
        """x·Wᵀ + b; autocast casts the bias, the weight and the input, in that order.

        What it keeps of its input is ``name`` to the model. Where the input is a part of ``whole``
        elements, those are gathered for the product and again for the weight's gradient, and the
        input's gradient is scattered (Megatron-LM's sequence parallelism); ``buffered``: gathered
        into a buffer that is no part of the tape.
        """
        if layer.adapter is not None:
            return self.adapted(x, layer, name)
        tape = self.tape
        width = BF16 if tape.casts is not None else x.width
        given = x.width
        bias = None if layer.bias is None else self.weight(layer.bias, width)
        packed = layer.weight.packed
        weight = layer.weight if packed else self.weight(layer.weight, width)
        x = self.cast(x, width)
        anew = None if buffered else whole
        gathered = [] if anew is None else [tape.local(tape.new(anew, width, x))]
        # Without a bias mm finds the weight's gradient first, addmm and a gathered input the other.
        order = [1, 0] if layer.bias is None and whole is None else [0, 1]
        both = self.each([x, weight], order)
        shift = None if layer.bias is None or layer.bias.frozen else layer.bias

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            beside = [*saved]
            if anew is not None:
                beside.append(tape.new(anew, width, *saved))
            if whole is not None:  # the input's gradient, before it is scattered
                beside.append(tape.new(whole, width, *beside))
            if packed:
                beside.append(tape.new(weight.elements, width, *beside))
            gradients = both([], beside)
            tape.done(saved)
            return [shift and tape.new(shift.elements, width), *gradients]

        tape.need(*gathered)
        saves, names = kept_for_others([x, weight], [name, "cached weights"])
        if packed:
            tape.local(x)
        wide = [tape.new(weight.elements, width, x)] if packed else []
        out = self.kernel(
            [bias, x, weight],  # as addmm has them: a bias gets its gradient first
            (layer.outputs, width),
            saves=saves,
            names=names,
            backward=backward,
            kind=MATRIX_PRODUCT if bias is None else "",
        )[0]
        tape.need(*wide)
        return self.cast(out, given) if packed else out  # as wide as what it was given

    @call
    def adapted(self, x: Tensor, layer: Linear, name: str) -> Tensor:
        """A linear layer plus its adapter: x·Wᵀ + scale · (x·Aᵀ)·Bᵀ.

        The adapter works in the format of its own matrices, unless autocast says otherwise. Source:
        peft 0.21, tuners/lora/layer.py and, of a base in 4 bits, tuners/lora/bnb.py.
        """
        assert layer.adapter is not None
        down, up, drops = layer.adapter
        packed = layer.weight.packed
        out = self.linear(x, replace(layer, adapter=None), name)
        width = out.width
        if packed:
            out = self.copy(out)
        if not (packed and self.tape.casts is not None):
            x = self.tape.local(self.cast(x, down.weight.width))
        change = self._change(out, x, down, up, drops)
        if packed and self.tape.casts is None:
            change = self.cast(change, width)
        return self.cast(self.add(out, change), width)

    @call
    def _change(self, out: Tensor, x: Tensor, down: Linear, up: Linear, drops: bool) -> Tensor:
        """What an adapter adds; ``out``, to which it will be added, is there all the while."""
        narrow = self.linear(self.dropped(x) if drops else x, down, "adapter input")
        return self.scale(self.linear(narrow, up, "adapted"))

    def dropped(self, x: Tensor) -> Tensor:
        """Dropout as ``nn.Dropout`` runs it: a GPU's mask has a byte an element, a CPU's is as wide
        as x.
        """
        mask = BOOL if self.gpu else x.width
        noise = self.tape.new(x.elements, mask, x)
        self.tape.named("dropout mask", noise)
        return self.kernel([x], x.size, saves=[noise])[0]

    def split(self, x: Tensor, parts: tuple[Counts, ...]) -> list[Tensor]:
        """Views of one tensor; their gradients are put together again."""
        views = [x.view(part) for part in parts]
        if x.frozen:
            return views
        node = self.tape.node(self.each([x]), x, outputs=len(parts))
        for place, part in enumerate(views):
            part.node = node
            part.output = place
        return views

    def join(self, out: Size, *parts: Tensor) -> Tensor:
        """Parts side by side in a new tensor; each part's gradient is a view of the whole's."""
        sizes = [part.size for part in parts]

        def backward(grads: list[Tensor], _: list[Tensor]) -> list[Tensor | None]:
            return [grads[0].view(*size) for size in sizes]

        return self.kernel(parts, out, backward=backward)[0]

    @call
    def rotate(self, x: Tensor) -> Tensor:
        """Rotary positions: x·cos + turned(x)·sin, where half of turned(x) changed its sign."""
        turned = self.tape.local(self._turn(x))
        # Buffers are held anyway, but copied where what is saved is offloaded.
        own = self.tables[0][0].storage is not None
        cos, sin = self.tables if self.tape.offload or own else ([], [])
        plain = self.kernel([x], x.size, saves=cos)[0]
        return self.add(plain, self.kernel([turned], turned.size, saves=sin)[0])

    def _turn(self, x: Tensor) -> Tensor:
        """One turned half of a head, counted as half the bytes of as many elements."""
        half = x.width // 2
        negated = self.scale(self.view(x, width=half))
        return self.join(x.size, negated, self.view(x, width=half))

    @call
    def attention(self, q: Tensor, k: Tensor, v: Tensor, outputs: Counts, rows: Counts) -> Tensor:
        """The flash kernel: keeps its inputs, its output and one fp32 number a row and head."""
        width = BF16 if self.tape.casts is not None else q.width
        inputs = [self.cast(tensor, width) for tensor in (q, k, v)]
        return self.kernel(
            inputs,
            (outputs, width),
            (rows, FP32),
            saves=inputs,
            saves_outputs=[0, 1],
            names=[*3 * ["query, key, value"], "output", "log of sums"],
            backward=self.at_once(*inputs),
            kind=ATTENTION,
        )[0]

    def repeat(self, x: Tensor, elements: Counts) -> Tensor:
        """Each key head for all query heads of its group: a copy, its gradient summed."""
        return self.kernel([x], (elements, x.width))[0]

    # The sequence of all tensor-parallel ranks, its gradient reduced and scattered; and a rank's
    # part of it, gathered for its gradient.
    gathered = scattered = repeat

    @call
    def product(self, x: Tensor, y: Tensor, elements: Counts, names: tuple[str, str]) -> Tensor:
        """A batched matrix product: the second operand's gradient is found first.

        What it keeps of its operands are ``names`` to the model.
        """
        width = BF16 if self.tape.casts is not None else x.width
        inputs = [self.cast(x, width), self.cast(y, width)]
        return self._batched(inputs, (elements, width), names)

    def _batched(self, inputs: list[Tensor], out: Size, names: Sequence[str]) -> Tensor:
        """A batched matrix product: it keeps both operands, and makes the gradient of the second
        first.
        """
        backward = self.each(inputs, order=[1, 0])
        saves, names = kept_for_others(inputs, names)
        return self.kernel(inputs, out, saves=saves, names=names, backward=backward)[0]

    def future(self) -> Tensor:
        """Which positions lie ahead: one byte for each pair of positions."""
        ones = self.tape.new(unit("s²"), BOOL)
        ahead = self.tape.new(unit("s²"), BOOL, ones)
        self.tape.named("causal mask", ahead)
        return ahead

    def mask(self, x: Tensor, which: Tensor) -> Tensor:
        """x with some elements set by a mask that is kept: ``masked_fill``, or a product with zeros
        and ones.
        """
        return self.kernel([x], x.size, saves=[which])[0]

    def softmax(self, x: Tensor, name: str) -> Tensor:
        """Softmax, log-softmax or tanh: it keeps its output, which is ``name`` to the model."""
        return self.kernel([x], x.size, saves_outputs=[0], names=[name])[0]

    # ---------------------------------------------------------------- norms

    def norm(self, x: Tensor, learned: Sequence[Tensor], rows: Counts, width: int) -> Tensor:
        """LayerNorm or RMSNorm in one kernel.

        It keeps its input and, of each row, 1/deviation; with a bias the mean too.
        """
        both = len(learned) > 1  # LayerNorm's kernel leaves out gradients that nobody wants
        wanted = [part for part in (x, *learned) if not (both and part.frozen)]
        at_once = self.at_once(*wanted)
        kept = learned if self.tape.offload else learned[:1]  # LayerNorm saves its bias too
        places = [place for place, part in enumerate((x, *learned)) if part in wanted]

        def backward(grads: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            gradients: list[Tensor | None] = [None] * (1 + len(learned))
            for place, gradient in zip(places, at_once(grads, saved), strict=True):
                gradients[place] = gradient
            return gradients

        return self.kernel(
            [x, *learned],
            x.size,
            *((rows, width) for _ in learned),
            saves=[x, *kept],
            saves_outputs=range(1, 1 + len(learned)),
            names=["norm input", *[""] * len(kept), *["norm statistics"] * len(learned)],
            backward=backward,
        )[0]

    @call
    def rms_norm_written_out(self, x: Tensor, weight: Tensor, rows: Counts) -> Tensor:
        """RMSNorm as its usual lines, of which every step is an operator."""
        local = self.tape.local
        wide = local(self.cast(x, FP32))
        self.tape.named("norm input", wide)
        scale = local(self._inverse_root(self._mean_of_squares(wide, rows)))
        scaled = self.cast(self.times(wide, scale), x.width)
        return self.times(scaled, weight, left=True, names=["", "normalised"])

    def _mean_of_squares(self, wide: Tensor, rows: Counts) -> Tensor:
        """The mean of each row's squares, in fp32."""
        mean = self.kernel([self.power(wide)], (rows, FP32))[0]
        shifted = self.tape.new(rows, FP32, mean)  # the + eps
        shifted.node = mean.node
        shifted.frozen = mean.frozen
        return shifted

    @call
    def _inverse_root(self, x: Tensor) -> Tensor:
        """The inverse root of each row's mean square and a small number."""
        names = ["norm statistics"]
        backward = self._in_steps(x.size)
        return self.kernel([x], x.size, saves_outputs=[0], names=names, backward=backward)[0]

    def times(
        self, x: Tensor, factor: Tensor, *, left: bool = False, names: Sequence[str] = ()
    ) -> Tensor:
        """x times a smaller factor spread over it, whose gradient is summed from a product.

        The ``left`` operand's gradient is found first.
        """
        size = x.size
        of_factor = factor.size
        wide = size[0], max(x.width, factor.width)
        alone = factor.frozen

        def backward(_: list[Tensor], saved: list[Tensor]) -> list[Tensor | None]:
            if alone:
                to_x = self.tape.new(*size, *saved)
                return [None, to_x] if left else [to_x, None]
            first, second = (
                self.tape.new(*part, *saved) for part in ((wide, size) if left else (size, wide))
            )
            self.tape.done(saved)
            if left:
                return [self.tape.new(*of_factor, first), second]
            return [first, self.tape.new(*of_factor, second)]

        operands = [factor, x] if left else [x, factor]
        saves, names = kept_for_others(operands, names)
        return self.kernel(operands, wide, saves=saves, names=names, backward=backward)[0]
