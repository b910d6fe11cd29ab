"""Calculon's bytes of a processor, from the tensors of its transformer block.

Layer by layer as its block is built, with 16-bit elements; the sums that it reports are differences
of what layers work on, keep, and give up. Embeddings, head, loss and biases have no terms there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from labkit.errors import BadValue
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.tape.saved import Term
from labkit.models import Model

SOURCE = "Calculon, llm.py and layers.py"
WIDTH = 2


def lines(
    model: Model,
    parallel: Parallel,
    recipe: Recipe,
    batch: Batch | None,
    *,
    num_microbatches: int | None = None,
    fused_activation: bool = True,
) -> Iterator[Term]:
    """States and, with a batch, activations and their gradients (the recipe is not asked).

    Raises:
        BadValue: ZeRO's stage is not 0 or 1 (its optimizer sharding), the heads do not divide, or
            the model has experts or latent attention.
    """
    check(model, parallel)
    blocks = -(-model.num_layers // parallel.pp)
    yield from _states(model, parallel, blocks)
    if batch is not None:
        if batch.every > 1:
            raise BadValue(f"calculon recomputes every block or none, got {batch.recompute}")
        block = Block.of(model, parallel, batch, fused=fused_activation)
        flight = _in_flight(parallel, num_microbatches)
        yield from _activations(block, batch, blocks, flight)


def check(model: Model, parallel: Parallel) -> None:
    """Refuse what it cannot be asked."""
    if parallel.zero > 1:
        raise BadValue(f"zero must be 0 or 1 for calculon, got {parallel.zero}")
    if parallel.zero and parallel.dp == 1:
        raise BadValue("dp must be >= 2 for calculon to shard the optimizer, got 1")
    if model.num_experts or model.kv_rank:
        raise BadValue("calculon's blocks are dense, with every head's own keys and values")
    for name in ("hidden", "heads", "ffn"):
        if getattr(model, name) % parallel.tp:
            raise BadValue(
                f"{name} ({getattr(model, name)}) must divide by tp ({parallel.tp}) for calculon"
            )


def _states(model: Model, parallel: Parallel, blocks: int) -> Iterator[Term]:
    width = model.heads * model.head_dim
    matrices = 4 * model.hidden * width + 2 * model.hidden * model.ffn
    block = Fraction(matrices, parallel.tp) + 4 * model.hidden
    shards = parallel.dp if parallel.zero else 1
    reduced = 4 * block + WIDTH * block * (blocks - 1) / shards
    for component, size, formula in (
        ("parameters", WIDTH * block * blocks, f"2 B × block × {blocks}"),
        ("gradients", reduced, f"block × (4 B + 2 B × {blocks - 1}/{shards})"),
        ("optimizer", 12 * block * blocks / shards, f"12 B × block × {blocks}/{shards}"),
    ):
        yield Term(component=component, num_bytes=size, formula=formula, source=SOURCE)


def _in_flight(parallel: Parallel, num_microbatches: int | None) -> Fraction:
    flight = Fraction(min(parallel.pp, num_microbatches or parallel.pp))
    if parallel.chunks > 1:
        flight *= 1 + Fraction(parallel.pp - 1, parallel.chunks * parallel.pp)
    return flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Bytes of one block for one microbatch: worked on at a time, kept, and of gradients."""

    working: Fraction
    stored: Fraction
    gradients: Fraction
    input: int

    @classmethod
    def of(cls, model: Model, parallel: Parallel, batch: Batch, *, fused: bool) -> Block:
        """With sequence parallelism (``sp``) tensors between the parts and the collectives' are
        cut; the inputs of both parts stay whole."""
        tokens = batch.tokens
        tp = parallel.tp
        whole = Fraction(WIDTH * tokens * model.hidden)
        thin = whole / tp if parallel.sp else whole
        heads = Fraction(WIDTH * tokens * model.heads * model.head_dim, tp)
        wide = Fraction(WIDTH * tokens * model.ffn, tp)
        gelu = 0 if fused else wide
        scores = Fraction(model.heads * batch.seq * tokens, tp)  # elements
        entry = thin if parallel.sp and tp > 1 else Fraction(0)
        leaving = thin if tp > 1 else Fraction(0)
        back = (thin if parallel.sp else whole) if tp > 1 else Fraction(0)
        # Two parts, each: fork, collective in, input; collective out and a mask of one byte.
        ends = 2 * (thin + entry + whole + leaving + thin / 2)
        working = ends + 4 * heads + 5 * scores + wide + gelu
        stored = working - 2 * leaving
        if batch.recompute == "selective":
            stored -= 5 * scores + whole
        # Each: norm, residual, mask, collectives, output matrix; then heads, scores, the MLP.
        gradients = 2 * (2 * thin + thin / 2 + back + entry + whole)
        gradients += 4 * heads + 5 * scores + wide + gelu
        return cls(working=working, stored=stored, gradients=gradients, input=int(whole))


def _activations(block: Block, batch: Batch, blocks: int, flight: Fraction) -> Iterator[Term]:
    full = batch.every == 1
    more = Fraction(0) if full else block.stored * (blocks * flight - 1)
    kept = f"block at work + kept × ({blocks}·{flight} - 1)"
    found = [("activations.blocks", block.working + more, "block at work" if full else kept)]
    if full:
        inputs = block.input * blocks * flight
        found.append(("activations.checkpoints", inputs, f"2·s·b·h × {blocks} × {flight}"))
    found.append(("activation gradients", block.gradients, "outputs of one block"))
    for component, size, formula in found:
        yield Term(component=component, num_bytes=size, formula=formula, source=SOURCE)
