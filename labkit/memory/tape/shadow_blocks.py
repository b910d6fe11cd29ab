"""The layers of :mod:`labkit.memory.oracles.blocks` once more, on a tape: sizes without numbers.

Line by line the same programs, down to the local variables that keep a tensor alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from labkit.memory.tape.operators import FP32
from labkit.memory.tape.tape import Tensor, count, unit

if TYPE_CHECKING:
    from labkit.memory.tape.shadow import Shadow

FIRST, MIDDLE, LAST_FULL, LAST = "first", "middle", "last full", "last"


class Place(NamedTuple):
    """Where in the stack of layers: the group's name, how often this layer stands for itself,
    whether its points are recorded, and whether it has experts."""

    group: str
    multiplicity: int
    recorded: bool
    experts: bool = False


class Attention:
    """Queries, keys and values from one matrix or three."""

    def __init__(self, net: Shadow) -> None:
        self.net, program = net, net.program
        wide, narrow = unit("b·s·q"), unit("b·s·k")
        self.parts = (wide, narrow, narrow)
        if program.fused:
            self.qkv = net.linear(
                count(**{"h·q": 1, "h·k": 2}),
                count(q=1, k=2),
                wide + 2 * narrow,
                bias=program.qkv_bias,
            )
        else:
            self.query, self.key, self.value = (
                net.linear(unit(f"h·{letter}"), unit(letter), size, bias=program.qkv_bias)
                for letter, size in zip("qkk", self.parts, strict=True)
            )
        self.norms: tuple[Tensor | None, Tensor | None] = (None, None)
        if program.qk_norm:
            self.norms = (net.parameter(unit("d")), net.parameter(unit("d")))
        self.out = net.linear(unit("h·q"), unit("h"), unit("b·s·h"), bias=program.out_bias)

    def forward(self, x: Tensor) -> Tensor:
        net, ops = self.net, self.net.ops
        if net.program.fused:
            q, k, v = ops.split(ops.linear(x, self.qkv), self.parts)
            q, k = self.by_heads(q, "query"), self.by_heads(k, "key")
        else:
            q = self.by_heads(ops.linear(x, self.query), "query")
            k = self.by_heads(ops.linear(x, self.key), "key")
            v = ops.linear(x, self.value)
        v = self.turned_back(v)
        return ops.linear(net.merge(net.core(q, k, v)), self.out)

    def turned_back(self, x: Tensor) -> Tensor:
        """By heads; under attention written out the gradient comes back in another order."""
        return self.net.ops.gradient_copy(x) if self.net.mode.attention == "eager" else x

    def by_heads(self, x: Tensor, name: str) -> Tensor:
        net, program = self.net, self.net.program
        norm = self.norms[name == "key"]
        if norm is not None:
            x = net.rms_norm(x, norm, unit("b·s·a" if name == "query" else "b·s·u"))
        elif name == "query" or program.grouped or (net.llama and program.batched):
            # Else the key's gradient happens to lie right.
            x = self.turned_back(x)
        return net.ops.rotate(x) if net.llama else x


class LatentAttention:
    """Queries, keys and values from normalised latents."""

    def __init__(self, net: Shadow) -> None:
        self.net, program = net, net.program
        bias = program.qkv_bias
        if program.query_rank:
            self.query_down = net.linear(unit("h·i"), unit("i"), unit("b·s·i"), bias=bias)
            self.query_norm = net.parameter(unit("i"))
        weight = unit("i·q" if program.query_rank else "h·q")
        self.query = net.linear(weight, unit("q"), unit("b·s·q"), bias=False)
        self.kv_down = net.linear(unit("h·j"), unit("j"), unit("b·s·j"), bias=bias)
        self.kv_norm = net.parameter(unit("l"))
        self.kv_up = net.linear(unit("l·z"), unit("1"), unit("b·s·z"), bias=False)
        self.out = net.linear(unit("h·w"), unit("h"), unit("b·s·h"), bias=program.out_bias)

    def forward(self, x: Tensor) -> Tensor:
        net = self.net
        q = self.queries(x)
        k, v = self.keys_and_values(x)
        return net.ops.linear(net.merge(net.core(q, k, v)), self.out)

    def queries(self, x: Tensor) -> Tensor:
        net, ops = self.net, self.net.ops
        if net.program.query_rank:
            x = net.rms_norm(ops.linear(x, self.query_down), self.query_norm, unit("b·s"))
        both = ops.gradient_copy(ops.linear(x, self.query))
        turned = unit("b·s·a·o")
        flat, rest = ops.split(both, (both.elements - turned, turned))
        del both
        return ops.join(unit("b·s·q"), flat, ops.rotate(rest))

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        net, ops = self.net, self.net.ops
        latent, turned = ops.split(ops.linear(x, self.kv_down), (unit("b·s·l"), unit("b·s·o")))
        wide = ops.gradient_copy(
            ops.linear(net.rms_norm(latent, self.kv_norm, unit("b·s")), self.kv_up)
        )
        flat, v = ops.split(wide, (wide.elements - unit("b·s·w"), unit("b·s·w")))
        turned = ops.spread(ops.rotate(turned), unit("b·s·a·o"))
        return ops.join(unit("b·s·q"), flat, turned), v


class Mlp:
    """Up, GELU, down."""

    def __init__(self, net: Shadow) -> None:
        self.net, bias = net, net.program.mlp_bias
        self.up = net.linear(unit("h·f"), unit("f"), unit("b·s·f"), bias=bias)
        self.down = net.linear(unit("h·f"), unit("h"), unit("b·s·h"), bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        ops = self.net.ops
        return ops.linear(ops.gelu(ops.linear(x, self.up)), self.down)


class GatedMlp:
    """SiLU of the gate times up, then down; ``letter`` is that of its width."""

    def __init__(self, net: Shadow, letter: str = "f") -> None:
        self.net, bias = net, net.program.mlp_bias
        weight, width = unit(f"h·{letter}"), unit(f"b·s·{letter}")
        shift = unit(letter) if bias else unit("1")
        self.gate = net.linear(weight, shift, width, bias=bias)
        self.up = net.linear(weight, shift, width, bias=bias)
        self.down = net.linear(weight, unit("h"), unit("b·s·h"), bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        ops = self.net.ops
        return ops.linear(
            ops.multiply(ops.silu(ops.linear(x, self.gate)), ops.linear(x, self.up)), self.down
        )


class Experts:
    """Router, routed experts and shared ones."""

    def __init__(self, net: Shadow) -> None:
        self.net = net
        self.router = net.linear(unit("h·x"), unit("1"), unit("b·s·x"), bias=False)
        self.gate, self.up, self.down = (net.parameter(unit("y·h·g")) for _ in range(3))
        self.shared = GatedMlp(net, "m") if net.program.shared else None

    def forward(self, x: Tensor) -> Tensor:
        ops = self.net.ops
        weights, chosen = self.route(x)
        slots, filled = ops.places(unit("b·s·n"))
        tokens = self.net.tape.new(slots.elements, slots.width)
        out = self.routed(ops.index_select(x, tokens, unit("r·h")))
        share = ops.mask(ops.index_select(weights, slots, unit("r")), filled)
        out = ops.times_rows(out, ops.cast(share, out.width))
        if self.shared is None:
            start = self.net.tape.new(x.elements, out.width)
        else:
            start = self.shared.forward(x)
        found = ops.scatter_add(start, tokens, out)
        del chosen
        return found

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ops, few = self.net.ops, unit("b·s·n")
        scores = ops.cast(ops.linear(x, self.router), FP32)
        if self.net.program.sigmoid:
            scores = ops.softmax(scores)
            chosen = self.chosen(scores)
            weights = ops.gather(scores, chosen, few)
        else:
            weights, chosen = ops.top(ops.softmax(scores), few)
        return ops.over_sum(weights, unit("b·s")), chosen

    def chosen(self, scores: Tensor) -> Tensor:
        """Of the scores and their correction; no gradient comes back this way."""
        new = self.net.tape.new
        corrected = new(scores.elements, FP32)
        values, chosen = self.net.ops.together(
            (unit("b·s·n"), FP32), (unit("b·s·n"), 8), times=(1, 1)
        )
        del corrected, values
        return chosen

    def routed(self, rows: Tensor) -> Tensor:
        ops, inner = self.net.ops, unit("r·g")
        gated = ops.multiply(
            ops.silu(ops.batched(rows, self.gate, inner)), ops.batched(rows, self.up, inner)
        )
        return ops.batched(gated, self.down, unit("r·h"))


class Block:
    """Norm, attention, norm, MLP or experts."""

    def __init__(self, net: Shadow, place: Place) -> None:
        self.net, self.place = net, place
        self.norm1 = net.norm_parameters()
        self.attention = LatentAttention(net) if net.program.latent else Attention(net)
        self.norm2 = net.norm_parameters()
        mlp = GatedMlp if net.llama else Mlp
        self.mlp: Mlp | GatedMlp | Experts = (Experts if place.experts else mlp)(net)

    def forward(self, x: Tensor) -> Tensor:
        net, ops = self.net, self.net.ops
        masks = net.mode.dropout_mask_bytes
        x = ops.add(x, ops.dropout(self.attention.forward(net.normalise(x, self.norm1)), masks))
        return ops.add(x, ops.dropout(self.mlp.forward(net.normalise(x, self.norm2)), masks))
