"""What torch stores: whole rows of every tensor, saved tensors by the closed forms.

Stage 0 is DDP, stage 1 ``ZeroRedundancyOptimizer`` (whole tensors), stages 2 and 3 FSDP2, which
shards all three states; at stage 2 the gathered parameters stay until the backward pass is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.modes import mode_of
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe, state_bytes
from labkit.memory.jobs.states import owners
from labkit.memory.tape.lines import Term
from labkit.models import Model, TensorShape, Unit

FSDP2 = "torch FSDP2: ceil(d0/N) rows of every tensor, padded"
DDP = "torch DDP: whole tensors"
ZERO1 = "torch ZeroRedundancyOptimizer: whole tensors, largest first to the emptiest rank"


def lines(model: Model, parallel: Parallel, recipe: Recipe, batch: Batch | None) -> Iterator[Term]:
    """States of a rank of the first pipeline device, the largest gathered unit, activations."""
    whole = parallel.units(model)
    sharded = parallel.zero >= 2
    kept = tuple(_shard(unit, parallel) for unit in whole) if sharded else whole
    elements = sum(unit.count * unit.numel for unit in kept)
    source, what = (FSDP2, "Σ ceil(d0/N)·rest") if sharded else (DDP, "Ψ")
    for component in ("parameters", "gradients"):
        width = recipe.bytes_of(component)
        yield Term(
            component=component,
            num_bytes=width * elements,
            formula=f"{width} B × {what}",
            source=source,
        )
    updated: tuple[TensorShape | Unit, ...] = kept
    if parallel.zero == 1:
        updated, source, what = _fullest(model, parallel), ZERO1, "fullest rank's tensors"
    for kind, num_bytes in state_bytes(updated, recipe).items():
        yield Term(
            component=f"optimizer.{kind}",
            num_bytes=num_bytes,
            formula=f"{kind} of {what}",
            source=source,
        )
    if sharded:
        yield _gathered(whole, parallel, recipe)
    if batch is not None and not model.num_experts and not model.kv_rank:
        yield from _activations(model, parallel, recipe, batch)


def _shard(unit: Unit, parallel: Parallel) -> Unit:
    """The unit with the rows that each rank allocates."""
    found = []
    for tensor in unit.tensors:
        degree = parallel.shard_degree
        if tensor.role == "expert":
            degree = parallel.expert_shard_degree
        found.append(replace(tensor, shape=(-(-tensor.shape[0] // degree), *tensor.shape[1:])))
    return replace(unit, tensors=tuple(found))


def _fullest(model: Model, parallel: Parallel) -> tuple[TensorShape, ...]:
    tensors = parallel.tensors(model)
    held: dict[int, list[TensorShape]] = {}
    for tensor, owner in zip(tensors, owners(tensors, parallel.sharing), strict=True):
        held.setdefault(owner, []).append(tensor)
    return tuple(max(held.values(), key=lambda mine: sum(prod(t.shape) for t in mine)))


def _gathered(whole: tuple[Unit, ...], parallel: Parallel, recipe: Recipe) -> Term:
    """What is whole at once: one unit at stage 3, all of them at stage 2."""
    width = recipe.compute_bytes
    if parallel.zero == 3:
        elements, what = max(unit.numel for unit in whole), "largest unit"
    else:
        elements, what = sum(unit.count * unit.numel for unit in whole), "Ψ"
    return Term(
        component="gathered layer",
        num_bytes=width * elements,
        formula=f"{width} B × {what}",
        source="torch FSDP2: unsharded from all-gather to reshard",
    )


def _activations(model: Model, parallel: Parallel, recipe: Recipe, batch: Batch) -> Iterator[Term]:
    """Saved tensors of the first device's layers, times the microbatches in flight."""
    from labkit.memory.tape import saved

    arguments: dict[str, Any] = {
        "seq": batch.seq // parallel.cp,
        "micro_batch": batch.micro_batch,
        "tp": parallel.tp,
        "sequence_parallel": parallel.sp,
    }
    mode = mode_of(recipe, batch)
    flight = float(parallel.in_flight(0, max(recipe.accumulation, 2 * parallel.pp)))
    lengths = parallel.stage_layers(model.num_layers)
    layers = sum(lengths[stage] for stage in parallel.stages(0))
    for term in saved.stack_terms(
        replace(model, num_layers=layers),
        mode,
        period=max(1, batch.every),
        group=batch.recompute_group,
        dropout_mask_bytes=batch.dropout_mask_bytes,
        **arguments,
    ):
        yield Term(
            component=f"activations.{term.component}",
            num_bytes=float(term.num_bytes) * flight,
            formula=f"{term.formula} × {flight:g}",
            source=term.source,
        )
    if parallel.pp == 1:
        for term in saved.end_terms(model, mode, **arguments):
            yield Term(
                component=f"head and loss.{term.component}",
                num_bytes=float(term.num_bytes),
                formula=term.formula,
                source=term.source,
            )
