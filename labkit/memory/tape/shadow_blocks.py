"""The layers of :mod:`labkit.memory.oracles.blocks` once more, on a tape: sizes without numbers.

Line by line the same programs, down to the local variables that keep a tensor alive
(:func:`~labkit.memory.tape.tape.call`). What layers keep for the backward pass is named on the way.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.memory.tape.mode import FP32, INT64
from labkit.memory.tape.operators import Linear
from labkit.memory.tape.tape import ONE, Tensor, call, unit

if TYPE_CHECKING:
    from labkit.memory.tape.shadow import Norm, Shadow

INPUT = "projection input"
FIRST, MIDDLE, LAST_FULL, LAST = "first", "middle", "last full", "last"


class Place(NamedTuple):
    """Where in the stack of layers: the group's name (of the middle, no points are recorded), how
    often this layer stands for itself, and whether it has experts."""

    group: str
    multiplicity: int = ONE
    experts: bool = False


class Module:
    """A part of a network, with its tape and operators at hand."""

    def __init__(self, net: Shadow) -> None:
        self.net, self.tape, self.ops = net, net.tape, net.ops


class Attention(Module):
    """Queries, keys and values from one matrix or three."""

    def __init__(self, net: Shadow) -> None:
        super().__init__(net)
        program = net.program
        wide, narrow = unit("b·s·q"), unit("b·s·k")
        self.parts = (wide, narrow, narrow)
        if program.fused:
            weight = net.parameter("h·q", "h·k", "h·k")
            bias = net.parameter("q", "k", "k") if program.qkv_bias else None
            self.qkv = Linear(weight, bias, wide + 2 * narrow)
        else:
            self.query, self.key, self.value = (
                net.linear("h", width, bias=program.qkv_bias) for width in "qkk"
            )
        self.norms: tuple[Tensor | None, Tensor | None] = (None, None)
        if program.qk_norm:
            self.norms = (net.parameter("d"), net.parameter("d"))
        self.out = net.linear("q", "h", bias=program.out_bias)

    @call
    def forward(self, x: Tensor) -> Tensor:
        net, ops, local = self.net, self.ops, self.tape.local
        x = local(net.gathered(x))
        if net.program.fused:
            q, k, v = ops.split(net.column(x, self.qkv, INPUT), self.parts)
            q, k = self.by_heads(q, "query"), self.by_heads(k, "key")
        else:
            q = self.by_heads(net.column(x, self.query, INPUT), "query")
            k = self.by_heads(net.column(x, self.key, INPUT), "key")
            v = net.column(x, self.value, INPUT)
        v = self.turned_back(v)
        out = net.core(local(q), local(k), local(v))
        return net.scattered(ops.linear(net.merge(out), self.out, "output"))

    def turned_back(self, x: Tensor) -> Tensor:
        """By heads; under attention written out the gradient comes back in another order."""
        return self.ops.view(x) if self.net.mode.attention == "eager" else x

    def by_heads(self, x: Tensor, name: str) -> Tensor:
        net, program = self.net, self.net.program
        norm = self.norms[name == "key"]
        if norm is not None:
            with net.part(f"attention.{name}"):
                x = net.rms_norm(x, norm, unit("b·s·a" if name == "query" else "b·s·u"))
        elif name == "query" or program.grouped or (net.llama and program.batched):
            # Else the key's gradient happens to lie right.
            x = self.turned_back(x)
        return self.ops.rotate(x) if net.llama else x


class LatentAttention(Module):
    """Queries, keys and values from normalised latents."""

    def __init__(self, net: Shadow) -> None:
        super().__init__(net)
        program = net.program
        bias = program.qkv_bias
        if program.query_rank:
            self.query_down = net.linear("h", "i", bias=bias)
            self.query_norm = net.parameter("i")
        self.query = net.linear("i" if program.query_rank else "h", "q", bias=False)
        self.kv_down = net.linear("h", "j", bias=bias)
        self.kv_norm = net.parameter("l")
        self.kv_up = net.linear("l", "z", bias=False)
        self.out = replace(net.linear("w", "h", bias=program.out_bias), outputs=unit("b·s·h"))

    @call
    def forward(self, x: Tensor) -> Tensor:
        net, local = self.net, self.tape.local
        q = local(self.queries(x))
        k, v = map(local, self.keys_and_values(x))
        return self.ops.linear(net.merge(net.core(q, k, v)), self.out, "output")

    @call
    def queries(self, x: Tensor) -> Tensor:
        net, ops, name = self.net, self.ops, INPUT
        if net.program.query_rank:
            down = ops.linear(x, self.query_down, name)
            with net.part("attention.query latent"):
                x = self.tape.local(net.rms_norm(down, self.query_norm, unit("b·s")))
            name = "query input"
        both = ops.view(ops.linear(x, self.query, name))
        turned = unit("b·s·a·o")
        flat, rest = ops.split(both, (both.elements - turned, turned))
        return ops.join(unit("b·s·q"), flat, ops.rotate(rest))

    @call
    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        net, ops, local = self.net, self.ops, self.tape.local
        down = local(ops.linear(x, self.kv_down, INPUT))
        latent, turned = ops.split(down, (unit("b·s·l"), unit("b·s·o")))
        with net.part("attention.latent"):
            latent = net.rms_norm(latent, self.kv_norm, unit("b·s"))
        wide = ops.view(ops.linear(latent, self.kv_up, "key and value input"))
        flat, v = ops.split(wide, (wide.elements - unit("b·s·w"), unit("b·s·w")))
        spread = ops.view(ops.rotate(turned), unit("b·s·a·o"))
        return ops.join(unit("b·s·q"), flat, spread), v


class Mlp(Module):
    """Up, GELU, down."""

    def __init__(self, net: Shadow) -> None:
        super().__init__(net)
        bias = net.program.mlp_bias
        self.up, self.down = net.linear("h", "f", bias=bias), net.linear("f", "h", bias=bias)

    @call
    def forward(self, x: Tensor) -> Tensor:
        net, ops = self.net, self.ops
        gelu = ops.gelu
        if not net.mode.gelu_fused:
            gelu = partial(ops.gelu_written_out, wide_power=net.mode.gpu)
        up = net.column(self.tape.local(net.gathered(x)), self.up, INPUT)
        return net.scattered(ops.linear(gelu(up, "up"), self.down, "down input"))


class GatedMlp(Module):
    """SiLU of the gate times up, then down; ``letter`` is that of its width."""

    def __init__(self, net: Shadow, letter: str = "f") -> None:
        super().__init__(net)
        bias = net.program.mlp_bias
        self.gate, self.up = (net.linear("h", letter, bias=bias) for _ in range(2))
        self.down = net.linear(letter, "h", bias=bias)

    @call
    def forward(self, x: Tensor, name: str = INPUT) -> Tensor:
        net, ops = self.net, self.ops
        x = self.tape.local(net.gathered(x))
        gate = ops.silu(net.column(x, self.gate, name), "gate")
        gated = ops.multiply(gate, net.column(x, self.up, name))
        return net.scattered(ops.linear(gated, self.down, "down input"))


class Experts(Module):
    """Router, routed experts and shared ones."""

    def __init__(self, net: Shadow) -> None:
        super().__init__(net)
        self.router = net.linear("h", "x", bias=False)
        self.gate, self.up, self.down = (net.parameter("y·h·g") for _ in range(3))
        self.shared = GatedMlp(net, "m") if net.program.shared else None

    @call
    def forward(self, x: Tensor) -> Tensor:
        ops, local = self.ops, self.tape.local
        weights, _ = map(local, self.route(x))
        slots, filled = map(local, ops.places(unit("b·s·n")))
        tokens = local(self.tape.new(*slots.size, slots))
        out = self.routed(ops.index_select(x, tokens, unit("r·h")))
        share = local(ops.mask(ops.index_select(weights, slots, unit("r")), filled))
        share = ops.cast(share, out.width)
        self.tape.named("places", tokens, share)
        self.tape.named("output", out)
        out = ops.times_rows(out, share)
        if self.shared is None:
            start = self.tape.new(x.elements, out.width, out)
        else:
            with self.net.part("experts.shared"):
                start = self.shared.forward(x)
        return ops.scatter_add(start, tokens, out)

    @call
    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ops, few = self.ops, unit("b·s·n")
        scores = ops.cast(ops.linear(x, self.router, "router input"), FP32)
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
        """Of the scores and their correction; no gradient comes back this way."""
        few = unit("b·s·n")
        corrected = self.tape.new(scores.elements, FP32, scores)
        return self.tape.together((few, FP32), (few, INT64), beside=(corrected,))[1]

    @call
    def routed(self, rows: Tensor) -> Tensor:
        ops, inner = self.ops, unit("r·g")
        gate = ops.silu(ops.batched(rows, self.gate, inner, "rows"), "gate")
        gated = ops.multiply(gate, ops.batched(rows, self.up, inner, "rows"))
        return ops.batched(gated, self.down, unit("r·h"), "down input")


class Block(Module):
    """Norm, attention, norm, MLP or experts."""

    def __init__(self, net: Shadow, place: Place) -> None:
        super().__init__(net)
        self.place, first = place, len(net.tape.parameters)
        self.norm1 = net.norm_parameters()
        self.attention = LatentAttention(net) if net.program.latent else Attention(net)
        self.norm2 = net.norm_parameters()
        mlp = GatedMlp if net.llama else Mlp
        self.mlp: Mlp | GatedMlp | Experts = (Experts if place.experts else mlp)(net)
        self.parameters = net.tape.parameters[first:]

    @call
    def forward(self, x: Tensor) -> Tensor:
        x = self.add_to(x, "attention", self.norm1, self.attention)
        return self.add_to(x, "mlp", self.norm2, self.mlp)

    @call
    def add_to(self, x: Tensor, part: str, norm: Norm, module: Any) -> Tensor:
        """The stream and what a module makes of it, normalised."""
        net, ops = self.net, self.ops
        with net.part(part):
            x_normal = net.normalise(x, norm)
            with net.part("experts" if module is self.mlp and self.place.experts else part):
                out = module.forward(x_normal)
            return ops.add(x, ops.dropout(out, net.mode.dropout_mask_bytes))
