"""Megatron-LM's theoretical footprint, as its ``theoretical_memory_usage.py`` has it.

Faults and all. Biases, position embeddings, attention
scores and full recomputation have no terms there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.tape.lines import Term
from labkit.models import Model

SOURCE = "Megatron-LM, theoretical_memory_usage.py"
# 16-bit parameters, fp32 gradients; fp32 master, momentum and variance.
WIDTHS = {"parameters": 2, "gradients": 4, "optimizer": 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Parameters on the fullest rank: cut or copied with ``tp``, and routed experts."""

    usual: Fraction
    experts: Fraction


def lines(model: Model, parallel: Parallel, recipe: Recipe, batch: Batch | None) -> Iterator[Term]:
    """States (the recipe is not asked) and, with a batch, activations of the first stage."""
    held = parameters(model, parallel)
    ranks = {"usual": parallel.dp, "experts": max(1, parallel.sharing // parallel.ep)}
    for component, width in WIDTHS.items():
        sharded = component == "optimizer" and parallel.zero > 0
        split = [ranks[kind] if sharded else 1 for kind in ("usual", "experts")]
        size = width * (held.usual / split[0] + held.experts / split[1])
        over = f"/{parallel.dp}" if sharded else ""
        yield Term(
            component=component,
            num_bytes=size,
            formula=f"{width}{over} B × parameters of the first stage",
            source=SOURCE,
        )
    if batch is not None:
        yield from activations(model, parallel, batch)


def parameters(model: Model, parallel: Parallel) -> Counts:
    """Parameters of the fullest rank: 1/pp of all layers, and one embedding matrix (two where the
    output head is apart and there is no pipeline). Norms of blocks are copied, of latents cut."""
    sums = dict.fromkeys(("cut", "copied", "expert"), 0)
    for unit in model.units():
        for tensor in unit.tensors:
            module, _, leaf = tensor.name.rpartition(".")
            is_norm = module.endswith((".norm1", ".norm2")) or module in ("root.norm", "head.norm")
            if tensor.role in ("embedding", "head") or (leaf == "bias" and not is_norm):
                continue
            copied = is_norm or tensor.role == "router"
            kind = "expert" if tensor.role == "expert" else "copied" if copied else "cut"
            sums[kind] += unit.count * tensor.numel
    ends = model.hidden * model.vocab * (1 if model.tied or parallel.pp > 1 else 2)
    return Counts(
        usual=(Fraction(sums["cut"], parallel.pp) + ends) / parallel.tp
        + Fraction(sums["copied"], parallel.pp),
        experts=Fraction(sums["expert"], parallel.pp * parallel.tp * parallel.ep),
    )


def activations(model: Model, parallel: Parallel, batch: Batch) -> Iterator[Term]:
    """The formula with sequence parallelism and selective recomputation, or the one without."""
    together = parallel.sp and batch.recompute == "selective"
    tokens, pp, tp = batch.tokens, parallel.pp, parallel.tp
    flight = Fraction(1)
    if parallel.chunks > 1:
        flight += Fraction(parallel.pp - 1, parallel.pp * parallel.chunks)
    wide = 18 + Fraction(4 * model.ffn, model.hidden) if together else 10 + Fraction(24, tp)
    along = tp if together else 1
    kept = tokens * model.hidden * wide * model.num_layers * flight / along
    width = "(18 + 4·f/h)/t" if together else "(10 + 24/t)"
    rows = [("activations", kept, f"{width}·s·b·h × l × {flight}")]
    ends = tokens * (8 + model.hidden) * pp * flight / along
    rows.append(("embedding", ends, f"s·b·(8 + h)·p{'/t' if together else ''} × {flight}"))
    if pp == 1 and together:
        head = Fraction(4 * tokens * (model.hidden + model.vocab), tp)
        rows.append(("head and loss", head, "4·s·b·(h + v)/t"))
    elif pp == 1:
        head = 2 * tokens * (model.hidden + Fraction(model.vocab, tp))
        rows.append(("head and loss", head, "2·s·b·(h + v/t)"))
    if not together:
        whole = sum((size for _, size, _ in rows), Fraction(0))
        rows.append(("allowance", whole / 20, "5 % of activations"))
    for component, size, formula in rows:
        yield Term(component=component, num_bytes=size, formula=formula, source=SOURCE)
