"""The layers of :mod:`labkit.memory.oracles.blocks` once more, on a tape: sizes without numbers.

Line by line the same programs, down to the local variables that keep a tensor alive
(:func:`~labkit.memory.tape.tape.call`). What layers keep for the backward pass is named on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from labkit.memory.tape.mode import FP32, INT64
from labkit.memory.tape.network import Network
from labkit.memory.tape.operators import Linear
from labkit.memory.tape.step import Stretch
from labkit.memory.tape.tape import INDEX, ONE, Tensor, call, unit
from labkit.memory.tape.trained import Names, is_trained
from labkit.memory.tape.tuners import DORA, IA3, SQUARES

INPUT = "projection input"
ADAPTED = {
    "query": "q",
    "key": "k",
    "value": "v",
    "qkv": "qkv",
    "out": "o",
    "gate f": "gate",
    "mlp up": "up",
    "up f": "up",
    "mlp down": "down",
    "down f": "down",
}
"""Parameters of a layer, and what they are called as targets of adapters."""


class Place(NamedTuple):
    """Where a layer stands in the stack, how often it stands for itself, whether it has experts,
    and what of it is trained (None: all).
    """

    stretch: Stretch
    multiplicity: int = ONE
    experts: bool = False
    trained: Names | None = None


class Block:
    """A layer: norm, attention, norm, MLP or experts. Parameters are made where first used."""

    def __init__(self, net: Network, place: Place) -> None:
        self.net = net
        self.tape = net.tape
        self.ops = net.ops
        self.place = place
        self.parameters: dict[str, Tensor] = {}

    def parameter(self, name: str, *units: str) -> Tensor:
        """The parameter of that name, with as many elements as these units have together."""
        if name not in self.parameters:
            frozen = not is_trained(name, self.place.trained)
            matrix = not name.endswith((" norm", ", bias"))
            width = self.net.mode.matrix_bytes if matrix else 0
            self.parameters[name] = self.net.parameter(*units, frozen=frozen, width=width)
        return self.parameters[name]

    def linear(self, name: str, inner: str, width: str, *, bias: bool) -> Linear:
        """A linear layer from one width to another; into the stream it gives the tokens of all
        ranks.
        """
        product = f"{inner}·{width}" if f"{inner}·{width}" in INDEX else f"{width}·{inner}"
        outputs = self.net.all_tokens if width == "h" else unit(f"b·s·{width}")
        weight = self.parameter(name, product)
        shift = self.parameter(f"{name}, bias", width) if bias else None
        return self.adapted(name, Linear(weight, shift, outputs), inner, width)

    def adapted(self, name: str, layer: Linear, inner: str, *widths: str) -> Linear:
        """The layer with its adapter where it has one, and in 4 bits where the base is."""
        program = self.net.program
        layer.weight.packed = program.packed
        there = "adapters" in (self.place.trained or ())
        if not there or ADAPTED.get(name) not in program.adapted:
            return layer
        if program.tuner == IA3:
            return self._scaled(name, layer, inner, *widths)
        for part, units in {"A": [inner], "B": widths}.items():
            key = f"{name}, {part}"
            if key not in self.parameters:
                self.parameters[key] = self.net.adapter(*(f"{letter}·ρ" for letter in units))
        down, up = (self.parameters[f"{name}, {part}"] for part in "AB")
        narrow = Linear(down, None, unit("b·s·ρ"))
        pair = (narrow, Linear(up, None, layer.outputs), program.adapter_dropout)
        if program.tuner != DORA:
            return replace(layer, adapter=pair)
        square = unit(SQUARES[inner])
        return replace(layer, adapter=pair, vector=self._vector(name, *widths), square=square)

    def _vector(self, name: str, *widths: str) -> Tensor:
        """A projection's vector beside the base, as long as these widths together."""
        key = f"{name}, vector"
        if key not in self.parameters:
            self.parameters[key] = self.net.adapter(*widths)
        return self.parameters[key]

    def _scaled(self, name: str, layer: Linear, inner: str, *widths: str) -> Linear:
        """The layer with IA3's factors: of its input where it leads out of an MLP."""
        if "down" in name:
            return replace(layer, vector=self._vector(name, inner), scales_input=True)
        return replace(layer, vector=self._vector(name, *widths))

    @call
    def forward(self, x: Tensor) -> Tensor:
        """The layer's output: the stream, attention's part and the MLP's."""
        latent = self.net.program.latent
        llama = self.net.llama
        x = self.add_to(x, "attention", self.latent_attention if latent else self.attention)
        mlp = self.experts if self.place.experts else self.gated_mlp if llama else self.mlp
        return self.add_to(x, "mlp", mlp)

    @call
    def add_to(self, x: Tensor, part: str, module: Callable[[Tensor], Tensor]) -> Tensor:
        """The stream plus what a module makes of it, normalised."""
        net = self.net
        ops = self.ops
        names = [f"{part} norm", f"{part} norm, bias"]
        learned = [self.parameter(name, "h") for name in names[: 1 if net.llama else 2]]
        with net.part(part):
            x_normal = net.normalise(x, learned)
            with net.part("experts" if part == "mlp" and self.place.experts else part):
                out = module(x_normal)
            return ops.add(x, ops.dropout(out, net.mode.dropout_mask_bytes))

    # ---------------------------------------------------------------- attention

    @call
    def attention(self, x: Tensor) -> Tensor:
        """Attention with queries, keys and values from one matrix or three."""
        net = self.net
        ops = self.ops
        local = self.tape.local
        bias = self.net.program.qkv_bias
        x = local(net.gathered(x))
        if net.program.fused_qkv:
            wide = unit("b·s·q")
            narrow = unit("b·s·k")
            weight = self.parameter("qkv", "h·q", "h·k", "h·k")
            shift = self.parameter("qkv, bias", "q", "k", "k") if bias else None
            whole = Linear(weight, shift, wide + 2 * narrow)
            layer = self.adapted("qkv", whole, "h", "q", "k", "k")
            q, k, v = ops.split(net.column(x, layer, INPUT), (wide, narrow, narrow))
            q = self.by_heads(q, "query")
            k = self.by_heads(k, "key")
        else:
            widths = {"query": "q", "key": "k", "value": "k"}
            query, key, value = (self.linear(n, "h", w, bias=bias) for n, w in widths.items())
            q = self.by_heads(net.column(x, query, INPUT), "query")
            k = self.by_heads(net.column(x, key, INPUT), "key")
            v = net.column(x, value, INPUT)
        v = self.turned_back(v)
        out = net.merge(net.core(local(q), local(k), local(v)))
        layer = self.linear("out", "q", "h", bias=net.program.out_bias)
        return net.scattered(ops.linear(out, layer, "output"))

    def turned_back(self, x: Tensor) -> Tensor:
        """x by heads; under attention written out its gradient comes back in another order."""
        return self.ops.view(x) if self.net.mode.attention == "eager" else x

    def by_heads(self, x: Tensor, name: str) -> Tensor:
        """Queries or keys by heads, normalised and turned where the model does so."""
        net = self.net
        program = self.net.program
        if program.qk_norm:
            learned = [self.parameter(f"{name} norm", "d")]
            with net.part(f"attention.{name}"):
                x = net.normalise(x, learned, "b·s·a" if name == "query" else "b·s·u")
        elif name == "query" or program.grouped or (net.llama and program.batched):
            # Else the key's gradient happens to lie right.
            x = self.turned_back(x)
        return self.ops.rotate(x) if net.llama else x

    @call
    def latent_attention(self, x: Tensor) -> Tensor:
        """Attention with queries, keys and values from normalised latents."""
        net = self.net
        local = self.tape.local
        q = local(self.queries(x))
        k, v = map(local, self.keys_and_values(x))
        out = self.linear("out", "w", "h", bias=net.program.out_bias)
        out = replace(out, outputs=unit("b·s·h"))
        return self.ops.linear(net.merge(net.core(q, k, v)), out, "output")

    @call
    def queries(self, x: Tensor) -> Tensor:
        """Queries of latent attention, from a latent or the stream, one part of each turned."""
        net = self.net
        ops = self.ops
        width = "h"
        name = INPUT
        if net.program.query_rank:
            layer = self.linear("query down", "h", "i", bias=net.program.qkv_bias)
            down = ops.linear(x, layer, name)
            with net.part("attention.query latent"):
                x = self.tape.local(net.normalise(down, [self.parameter("query norm", "i")]))
            width = "i"
            name = "query input"
        both = ops.view(ops.linear(x, self.linear("query", width, "q", bias=False), name))
        turned = unit("b·s·a·o")
        flat, rest = ops.split(both, (both.elements - turned, turned))
        return ops.join((unit("b·s·q"), flat.width), flat, ops.rotate(rest))

    @call
    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of latent attention; all heads share the key's turned part."""
        net = self.net
        ops = self.ops
        local = self.tape.local
        layer = self.linear("latent down", "h", "j", bias=net.program.qkv_bias)
        down = local(ops.linear(x, layer, INPUT))
        latent, turned = ops.split(down, (unit("b·s·l"), unit("b·s·o")))
        with net.part("attention.latent"):
            latent = net.normalise(latent, [self.parameter("latent norm", "l")])
        up = self.linear("latent up", "l", "z", bias=False)
        wide = ops.view(ops.linear(latent, up, "key and value input"))
        flat, v = ops.split(wide, (wide.elements - unit("b·s·w"), unit("b·s·w")))
        spread = ops.view(ops.rotate(turned), unit("b·s·a·o"))
        return ops.join((unit("b·s·q"), flat.width), flat, spread), v

    # ---------------------------------------------------------------- MLPs and experts

    @call
    def mlp(self, x: Tensor) -> Tensor:
        """An MLP: up, GELU, down."""
        net = self.net
        ops = self.ops
        linear = partial(self.linear, bias=net.program.mlp_bias)
        gelu = ops.gelu
        if not net.mode.gelu_fused:
            gelu = partial(ops.gelu_written_out, wide_power=net.mode.gpu)
        x = self.tape.local(net.gathered(x))
        up = net.column(x, linear("mlp up", "h", "f"), INPUT)
        return net.scattered(ops.linear(gelu(up, "up"), linear("mlp down", "f", "h"), "down input"))

    @call
    def gated_mlp(self, x: Tensor, letter: str = "f") -> Tensor:
        """An MLP whose gate goes through SiLU and multiplies up, then down; ``letter`` names its
        width.
        """
        net = self.net
        ops = self.ops
        linear = partial(self.linear, bias=net.program.mlp_bias)
        x = self.tape.local(net.gathered(x))
        product = partial(net.column, x)
        gated = self.gated(
            partial(product, linear(f"gate {letter}", "h", letter), INPUT),
            partial(product, linear(f"up {letter}", "h", letter), INPUT),
        )
        return net.scattered(ops.linear(gated, linear(f"down {letter}", letter, "h"), "down input"))

    def gated(self, gate: Callable[[], Tensor], up: Callable[[], Tensor]) -> Tensor:
        """SiLU of a product times another: in two kernels, or in one after both products."""
        if self.net.mode.swiglu_fused:
            return self.ops.swiglu(gate(), up())
        return self.ops.multiply(self.ops.silu(gate(), "gate"), up())

    @call
    def experts(self, x: Tensor) -> Tensor:
        """A router, the routed experts, and the shared ones where there are any."""
        ops = self.ops
        local = self.tape.local
        weights, _ = map(local, self.route(x))
        slots, filled = map(local, ops.places(unit("b·s·n")))
        tokens = local(self.tape.new(*slots.size, slots))
        out = self.routed(ops.index_select(x, tokens, unit("r·h")))
        share = local(ops.mask(ops.index_select(weights, slots, unit("r")), filled))
        share = ops.cast(share, out.width)
        self.tape.named("places", tokens, share)
        self.tape.named("output", out)
        out = ops.times(out, share)
        if self.net.program.shared:
            with self.net.part("experts.shared"):
                start = self.gated_mlp(x, "m")
        else:
            start = self.tape.new(x.elements, out.width, out)
        return ops.scatter_add(start, tokens, out)

    @call
    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The chosen experts of each token and their weights."""
        ops = self.ops
        few = unit("b·s·n")
        router = self.linear("router", "h", "x", bias=False)
        scores = ops.cast(ops.linear(x, router, "router input"), FP32)
        if self.net.program.sigmoid:
            scores = ops.softmax(scores, "scores")
            chosen = self.chosen(scores)
            weights = ops.gather(scores, chosen, few)
        else:
            weights, chosen = ops.top(ops.softmax(scores, "scores"), few)
        self.tape.local(scores)
        self.tape.named("chosen and weights", chosen)
        return ops.over_sum(weights, unit("b·s")), chosen

    def chosen(self, scores: Tensor) -> Tensor:
        """The experts chosen by scores and their correction; no gradient comes back this way."""
        few = unit("b·s·n")
        corrected = self.tape.new(scores.elements, FP32, scores)
        return self.tape.together((few, FP32), (few, INT64), beside=(corrected,))[1]

    @call
    def routed(self, rows: Tensor) -> Tensor:
        """The routed experts' MLP on all their places, as batched products."""
        ops = self.ops
        inner = unit("r·g")
        gate, up, down = (self.parameter(name, "y·h·g") for name in ("gate", "up", "down"))
        gated = self.gated(
            partial(ops.batched, rows, gate, inner, "rows"),
            partial(ops.batched, rows, up, inner, "rows"),
        )
        return ops.batched(gated, down, unit("r·h"), "down input")
