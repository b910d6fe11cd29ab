"""Llama's layers as transformers wrote them before 4.45, on the tape.

Line by line as :mod:`labkit.memory.oracles.older`. Queries, keys and values are all there before
the first is turned, by tables that the layer looks up for itself.
"""

from __future__ import annotations

from labkit.memory.tape.network import MASKED, OPERANDS
from labkit.memory.tape.shadow_blocks import INPUT, Block
from labkit.memory.tape.tape import Tensor, call, unit


class OlderBlock(Block):
    """A layer whose attention has rotary tables of its own."""

    @call
    def attention(self, x: Tensor) -> Tensor:
        """Attention with queries, keys and values from three matrices."""
        net = self.net
        local = self.tape.local
        bias = net.program.qkv_bias
        widths = {"query": "q", "key": "k", "value": "k"}
        q, k, v = (
            net.column(x, self.linear(name, "h", width, bias=bias), INPUT)
            for name, width in widths.items()
        )
        v = local(self.turned_back(v))
        self.look_up_tables()
        q, k = map(local, self.both_turned(q, k))
        out = net.merge(self.core(q, k, v))
        layer = self.linear("out", "q", "h", bias=net.program.out_bias)
        return net.scattered(self.ops.linear(local(out), layer, "output"))

    def look_up_tables(self) -> None:
        """Rows of both rotary tables by position, which are kept for the gradients."""
        width = self.net.mode.compute_bytes
        tables = [self.tape.local(self.tape.new(unit("s·δ"), width)) for _ in range(2)]
        self.tape.named("rotary tables", *tables)
        self.ops.tables = [[table] for table in tables]

    @call
    def both_turned(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys by heads, turned."""
        turned = self.tape.local(self.by_heads(q, "query"))
        return turned, self.by_heads(k, "key")

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention's core: written out, or a kernel."""
        if self.net.mode.attention == "eager":
            return self.attend(q, k, v)
        return self.net.attend(q, k, v)

    @call
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention written out; one variable has the scores, then the weights."""
        net = self.net
        ops = self.ops
        local = self.tape.local
        copied = net.program.batched
        if net.program.grouped:
            k = local(ops.repeat(k, net.wide))
            v = local(ops.repeat(v, net.wide))
        whole = copied and not net.program.grouped
        left = ops.copy(q) if copied else q
        right = ops.copy(k) if whole else k
        weights = ops.product(left, right, unit("b·a·s²"), (OPERANDS, OPERANDS))
        weights = ops.add_constant(ops.scale(weights), net.width)
        if "clamp" in net.mode.older:
            weights = ops.clamp(weights)
        weights = ops.softmax_in_fp32(weights, q.width)
        weights = local(ops.dropout(weights, net.mode.dropout_mask_bytes, MASKED))
        v = ops.copy(v) if whole else v
        out = ops.product(weights, v, net.wide, (MASKED, OPERANDS))
        return ops.view(out) if copied else out
