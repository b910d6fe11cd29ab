"""What a network's layers and ends share on the tape: its choices, its parameters, its attention.

:class:`Network` is the base of :class:`~labkit.memory.tape.shadow.Shadow`; its layers
(:mod:`labkit.memory.tape.shadow_blocks`) know no more of it than this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from labkit.memory.tape import tape as tapes
from labkit.memory.tape.exchanges import Rounds
from labkit.memory.tape.mode import FP32, Mode
from labkit.memory.tape.older import OlderOperators
from labkit.memory.tape.operators import Linear
from labkit.memory.tape.sizes import DENSE
from labkit.memory.tape.tape import Tape, Tensor, call, count, unit
from labkit.memory.tape.trained import Trained
from labkit.memory.tape.tuners import TunerOperators

OPERANDS = "query, key, value"
MASKED = "dropout mask and output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Every choice that changes which operators run; the numbers stay symbolic.

    ``grouped``: fewer key heads than query heads; ``batched``: more than one sample at a time
    (attention written out copies its operands then); ``structure``: how the layers repeat, all
    alike (``"flat"``), in groups recomputed together (``"nested"``), or every so many one that is
    recomputed (``"periodic"``); or one by one (``"listed"``), where ``layers`` with an MLP and with
    experts and ``repeat`` (of the recomputation) are fixed. ``stack``: which kinds there are.
    ``trained``: what is not frozen, None where all is trained. Where layers differ in it, structure
    ``"runs"`` has each run of like layers, and ``layers`` are fixed. ``adapted``: the projections
    that have adapters, of ``adapter_width`` bytes an element, with dropout or not; ``packed``:
    frozen matrices of layers have 4 bits.
    ``exchange``: how ranks that share the sequence exchange keys and values, in ``exchanges`` (how
    many, and how many of them with earlier ranks). ``update`` and ``state_width``: of the step
    inside the backward pass, as :class:`~labkit.memory.tape.sizes.Numbers` has them, and so are
    ``reentrant`` and ``tuner``.
    """

    mode: Mode
    mlp: str = "gelu"
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    fused_qkv: bool = True
    qk_norm: bool = False
    latent: bool = False
    query_rank: bool = False
    stack: str = DENSE
    shared: bool = False
    sigmoid: bool = False
    tied: bool = True
    positions: bool = True
    grouped: bool = False
    batched: bool = True
    structure: str = "flat"
    layers: tuple[int, int] = (0, 0)
    repeat: int = 1
    sequence_parallel: bool = False
    trained: Trained | None = None
    adapted: tuple[str, ...] = ()
    adapter_width: int = FP32
    adapter_dropout: bool = False
    packed: bool = False
    exchange: str = ""
    exchanges: tuple[int, int] = (1, 0)
    update: str = ""
    state_width: int = 0
    reentrant: bool = False
    tuner: str = ""


class BlockOperators(TunerOperators, OlderOperators):
    """Operators of every kind of block: today's, older ones, and what peft puts beside them."""


class Network:
    """One network on one tape: what its layers ask of it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.mode = program.mode
        mode = program.mode
        self.tape = Tape(
            update=program.update, state_width=program.state_width, offload=mode.offload
        )
        self.ops = BlockOperators(self.tape, gpu=self.mode.gpu)
        self.width = mode.stream_bytes
        self.ops.tables = [[Tensor(None, unit("s·δ"), mode.table_bytes)] for _ in range(2)]
        self.llama = program.mlp == "swiglu"

    def parameter(self, *names: str, frozen: bool = False, width: int = 0) -> Tensor:
        """A parameter with as many elements as these units have together, as wide as the stream
        unless ``width`` says otherwise.
        """
        return self.tape.parameter(count(**Counter(names)), width or self.width, frozen=frozen)

    def end(self, part: str, *names: str) -> Tensor:
        """A parameter outside the layers, of a part that is trained or not."""
        trained = self.program.trained
        return self.parameter(*names, frozen=trained is not None and part not in trained.ends)

    def adapter(self, *names: str) -> Tensor:
        """A matrix of an adapter, with as many elements as these units have together."""
        return self.tape.parameter(count(**Counter(names)), self.program.adapter_width)

    def normalise(self, x: Tensor, learned: list[Tensor], rows: str = "b·s") -> Tensor:
        """A norm of x: LayerNorm where weight and bias are learnt, RMSNorm where a weight is."""
        if len(learned) == 1 and not self.mode.norm_fused:
            older = self.mode.older
            if "norm-of-input" in older:
                return self.ops.rms_norm_of_input(
                    x, *learned, unit(rows), wide="norm-wide" in older
                )
            return self.ops.rms_norm_written_out(x, *learned, unit(rows))
        wide = len(learned) == 1 or self.mode.gpu
        if len(learned) == 2 and self.mode.gpu and self.tape.casts is not None:
            x = self.ops.cast(x, FP32)  # CUDA's autocast has LayerNorm in fp32
            learned = [self.ops.cast(part, FP32) for part in learned]
        return self.ops.norm(x, learned, unit(rows), FP32 if wide else x.width)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Names what the block keeps after a part of the model: the first half of each name."""
        before = self.tape.part
        self.tape.part = name
        try:
            yield
        finally:
            self.tape.part = before

    # ---------------------------------------------------------------- attention

    @call
    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention's core, recomputed in the backward pass where the mode is selective."""
        run = self.attend_eagerly if self.mode.attention == "eager" else self.attend
        if self.mode.recompute == "selective":
            self.tape.named(OPERANDS, q, k, v)
            return self.tape.checkpoint(run, q, k, v)
        return run(q, k, v)

    @property
    def wide(self) -> tapes.Counts:
        """Elements of attention's output."""
        return unit("b·s·w" if self.program.latent else "b·s·q")

    @call
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention by the flash kernel."""
        if self.program.grouped and self.mode.repeat_kv:
            k, v = (self.tape.local(self.ops.repeat(x, self.wide)) for x in (k, v))
        if not self.program.exchange:
            return self.ops.attention(q, k, v, self.wide, unit("b·s·a"))
        repeated = self.program.grouped and self.mode.repeat_kv
        sizes = (self.wide, unit("b·s·a"))
        if self.program.exchange == "ring":
            return self.ops.ring_attention(q, k, v, *sizes)
        gathers = self.program.exchange == "all-gather"
        number, whole = self.program.exchanges
        rounds = Rounds(number, whole, gathers=gathers, copies=not repeated)
        return self.ops.shared_attention(q, k, v, *sizes, rounds)

    @call
    def attend_eagerly(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention written out, in which all scores exist."""
        ops = self.ops
        copied = self.program.batched
        local = self.tape.local
        if self.program.grouped:
            k = local(ops.repeat(k, self.wide))
            v = local(ops.repeat(v, self.wide))
        whole = copied and not self.program.grouped  # the repeated ones lie well as they are
        if not self.program.latent:
            q = ops.copy(q) if copied else q
            k = ops.copy(k) if whole else k
        scores = ops.product(q, k, unit("b·a·s²"), (OPERANDS, OPERANDS))
        weights = ops.softmax(self.masked(ops.scale(scores)), "softmax output")
        weights = ops.cast(weights, q.width)
        weights = local(ops.dropout(weights, self.mode.dropout_mask_bytes, MASKED))
        v = ops.copy(v) if whole else v
        out = ops.product(weights, v, self.wide, (MASKED, OPERANDS))
        return ops.view(out) if copied else out

    def masked(self, scores: Tensor) -> Tensor:
        """The scores of later positions set to minus infinity, in the format of the softmax."""
        ops = self.ops
        local = self.tape.local
        if self.mode.mask_added:
            scores = local(ops.add_constant(scores, self.width))
        else:
            future = local(ops.future())
            scores = local(ops.mask(scores, future))
        return local(ops.cast(scores, FP32)) if self.mode.softmax_fp32 else scores

    # ---------------------------------------------------------------- sequence parallelism

    def gathered(self, x: Tensor) -> Tensor:
        """The tokens of all tensor-parallel ranks, where column-parallel products keep them."""
        kept = self.program.sequence_parallel and self.mode.sequence_gather == "kept"
        return self.ops.gathered(x, self.all_tokens) if kept else x

    def column(self, x: Tensor, layer: Linear, name: str) -> Tensor:
        """A column-parallel product; it gathers its input itself where that is not kept."""
        gather = self.mode.sequence_gather
        again = self.program.sequence_parallel and gather != "kept"
        whole = self.all_tokens if again else None
        return self.ops.linear(x, layer, name, whole, buffered=gather == "buffer")

    def scattered(self, x: Tensor) -> Tensor:
        """This rank's tokens of the sum over the ranks' parts of a row-parallel product."""
        return self.ops.scattered(x, unit("b·s·h")) if self.program.sequence_parallel else x

    @property
    def all_tokens(self) -> tapes.Counts:
        """Elements of the stream of all tensor-parallel ranks together."""
        return unit("tp·b·s·h" if self.program.sequence_parallel else "b·s·h")

    def merge(self, out: Tensor) -> Tensor:
        """Heads put side by side: the kernel's output lies that way, a product's must be copied,
        and so must one that was merged by halves.
        """
        number, whole = self.program.exchanges
        halves = self.program.exchange not in {"", "ring"} and whole < number - 1
        return self.ops.copy(out) if halves or self.mode.attention == "eager" else out
