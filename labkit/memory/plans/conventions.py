"""The same job by other people's arithmetic: what each counts, term by term, and why they differ.

ZeRO's paper, DeepSpeed's estimators, Megatron-LM's theoretical footprint, and what torch stores.
Each is reproduced as it is, faults included; see :data:`CONVENTIONS`. Numbers are exact fractions
where a tool truncates or rounds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import pandas as pd

from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.describe import checked
from labkit.memory.jobs.batch import FORMULA, Batch
from labkit.memory.jobs.modules import refuse_frozen
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.jobs.states import COMPONENTS, is_sharded
from labkit.memory.plans.arithmetic import activation_bytes
from labkit.memory.plans.plan import Plan
from labkit.memory.tape.saved import Term
from labkit.models import Model

Convention = Literal["zero-paper", "deepspeed", "megatron", "torch"]
TOTAL = "total on the device"
# Rows of a comparison in their order, and what each convention does there that others do not.
# Everything but the host is on the device.
REASONS: dict[str, dict[str, str]] = {
    "parameters": {
        "zero-paper": "all parameters in the recipe's format, divided evenly",
        "deepspeed": "16 bits whatever the recipe, sharded over all GPUs whatever they do",
        "megatron": "the fullest pipeline stage, without biases and position embeddings",
        "torch": "whole rows (at stage 1 whole tensors): those with fewer than ranks do not shrink",
    },
    "gradients": {
        "zero-paper": "one copy in the recipe's format",
        "deepspeed": "16 bits and fp32 at stage 2, fp32 alone at stage 3",
        "megatron": "fp32 and whole at every stage",
        "torch": "the parameters' format",
    },
    "optimizer": {
        "zero-paper": "12 bytes a parameter for mixed-precision Adam",
        "deepspeed": "12 bytes a parameter over all GPUs",
        "megatron": "12 bytes a parameter of the fullest stage",
        "torch": "12 bytes a parameter of whole rows, and a step counter a tensor",
    },
    "gathered layer": {
        "deepspeed": "parameters and gradients of its largest module, in 16 bits",
        "torch": "the parameters of the largest unit in the compute format",
    },
    "activations": {
        "zero-paper": "24 bytes a token and hidden unit, no term for attention",
        "megatron": "18 + 4·f/h, or 10 + 24/t, which assumes f = 4h; dropout masks, no scores",
        "torch": "what its kernels save",
    },
    "embedding": {"megatron": "token numbers and a dropout mask for each microbatch in flight"},
    "head and loss": {
        "megatron": "fp32 logits once, or 16-bit ones without sequence parallelism",
        "torch": "the fp32 log-softmax is saved; its backward needs more for a moment",
    },
    "allowance": {"megatron": "5 % of activations without sequence parallelism, and only there"},
    "host": {
        "deepspeed": "a node's memory: fp32 copies while the model is built, or the offloaded"
        " states, times 1.5",
        "torch": "what the recipe offloads",
    },
    TOTAL: {},
}


@checked
def convention_terms(
    convention: Convention,
    model: Model,
    parallel: Parallel | None = None,
    recipe: Recipe | None = None,
    batch: Batch | None = None,
) -> tuple[Term, ...]:
    """What a convention counts for one rank, and for one host where it counts that.

    DeepSpeed's settings are its defaults, 8 GPUs a node; Megatron-LM's pipelines are full.

    Args:
        convention: a key of :data:`CONVENTIONS`.
        recipe: mixed-precision Adam by default.
        batch: None where only states are asked for.

    Raises:
        UsageError: there is no such convention, or it says nothing of this job.

    >>> terms = convention_terms("deepspeed", Model.preset("gpt2-1.5b"), Parallel(dp=8, zero=2))
    >>> total_bytes(terms)
    6619847600
    """
    if convention not in CONVENTIONS:
        raise not_among("convention", convention, CONVENTIONS)
    given = parallel or Parallel(), recipe or Recipe.mixed_adam(), batch
    if convention != "torch":
        refuse_frozen(model, given[1], convention)
    return tuple(CONVENTIONS[convention](model, *given))


def total_bytes(terms: Iterable[Term], place: str = "device") -> int:
    """Bytes on the device (or ``"host"``), cut to whole bytes as the tools do."""
    return int(sum(Fraction(term.num_bytes) for term in terms if term.place == place))


@checked
def differences(plan: Plan) -> pd.DataFrame:
    """A row a component, a column of bytes a convention, and what each does differently in words.

    NaN: the convention has no such term. One that says nothing of this job is all NaN, and
    ``attrs["refused"]`` says why. The last row is the sum.

    >>> differences(Plan(model=Model.preset("gpt2-1.5b"))).index[0]
    'parameters'
    """
    if not isinstance(plan.model, Model):
        raise UsageError(
            f"a plan of {plan.model} bare parameters has no layers to count: give it a model"
        )
    if plan.traced:
        raise UsageError(
            f"others' arithmetic needs a model's sizes, and {plan.model.name} is traced: only its"
            " tensors are known"
        )
    columns: dict[str, pd.Series[float]] = {}
    refused: dict[str, str] = {}
    for name in CONVENTIONS:
        sums: dict[str, float] = {}
        try:
            terms = convention_terms(name, plan.model, plan.parallel, plan.recipe, plan.batch)
        except BadValue as error:
            refused[name] = str(error)
        else:
            for term in terms:
                sums[term.row] = sums.get(term.row, 0.0) + float(term.num_bytes)
            sums[TOTAL] = float(total_bytes(terms))
        columns[name] = pd.Series(sums, dtype=float)
    table = pd.DataFrame(columns).reindex(list(REASONS)).dropna(how="all")
    table["why"] = [
        "; ".join(f"{name}: {why}" for name, why in REASONS[row].items() if name not in refused)
        for row in map(str, table.index)
    ]
    table.loc[TOTAL, "why"] = "the sum of the rows above"
    table.attrs["refused"] = refused
    return table.rename_axis("component")


def _zero_paper(
    model: Model, parallel: Parallel, recipe: Recipe, batch: Batch | None
) -> Iterator[Term]:
    """ZeRO's terms: Ψ/N_m/N_d of each state, and a layer's 12·h·b·s elements, or its checkpoint.

    There are no activations where only attention is recomputed: the paper has no term for
    attention.
    """
    split = parallel.tp * parallel.pp
    for component in COMPONENTS:
        width = recipe.bytes_of(component)
        degree = parallel.shard_degree if is_sharded(component, parallel.zero) else 1
        size = Fraction(width) * model.num_params / split / degree
        yield Term(component, size, f"{width} B × Ψ/({split}·{degree})", "ZeRO §3.1, §5")
    if batch is not None and batch.recompute != "selective":
        size = Fraction(activation_bytes(model, batch, tp=parallel.tp) / parallel.pp)
        yield Term("activations", size, FORMULA, "ZeRO §3.2, §6.1")


def _largest_module(model: Model) -> int:
    """Parameters of the largest module, its children's left out."""
    sizes: dict[str, int] = {}
    for unit in model.units():
        for tensor in unit.tensors:
            parent, _, leaf = tensor.name.rpartition(".")
            module = parent if leaf in {"weight", "bias"} else tensor.name
            sizes[module] = sizes.get(module, 0) + tensor.numel
    return max(sizes.values())


def _deepspeed(
    model: Model, parallel: Parallel, recipe: Recipe, batch: Batch | None
) -> Iterator[Term]:
    """``estimate_zero2_model_states_mem_needs`` and ``estimate_zero3_...``, split into terms.

    Stage 2 is 2Ψ + 18Ψ/N; earlier versions had 4Ψ + 16Ψ/N.
    """
    if parallel.zero not in {2, 3}:
        raise BadValue(f"zero must be 2 or 3 for deepspeed's estimators, got {parallel.zero}")
    psi = model.num_params
    ranks = parallel.world_size
    stage_2 = parallel.zero == 2
    offload = recipe.offload_optimizer != "device"
    away = offload and recipe.offload_parameters != "device" and not stage_2
    local = min(8, ranks)
    nodes = -(-ranks // local)
    largest = _largest_module(model)
    rows: dict[str, tuple[Fraction | int, str]] = {}
    if stage_2:
        rows["parameters"] = (2 * psi, "2 B × Ψ")
        held: Fraction | int = max(4 * ranks, 16) * psi if offload else 4 * local * psi
    else:
        rows["gathered layer"] = (4 * largest, "4 B × largest module")
        rows["parameters"] = (0 if away else Fraction(2 * psi, ranks), f"2 B × Ψ/{ranks}")
        held = 4 * local * largest
        if offload:
            held = Fraction((18 if away else 16) * psi, nodes)
    if not offload:
        width = 6 if stage_2 else 4
        rows["gradients"] = (Fraction(width * psi, ranks), f"{width} B × Ψ/{ranks}")
        rows["optimizer"] = (Fraction(12 * psi, ranks), f"12 B × Ψ/{ranks}")
    copies = f"copies of {local} GPUs on {nodes} nodes × 1.5"
    rows["host"] = (held * Fraction(3, 2), copies)
    source = f"DeepSpeed, estimate_zero{parallel.zero}_model_states_mem_needs"
    for component, (size, formula) in rows.items():
        place = "host" if component == "host" else "device"
        if size:
            yield Term(component, size, formula, source, place)


def _megatron(
    model: Model, parallel: Parallel, recipe: Recipe, batch: Batch | None
) -> Iterator[Term]:
    """The terms of ``theoretical_memory_usage.py``: states, and activations of the first stage.

    The recipe is not asked. Biases, position embeddings, attention scores and full recomputation
    have no terms.
    """
    source = "Megatron-LM, theoretical_memory_usage.py"
    usual, experts = megatron_parameters(model, parallel)
    # 16-bit parameters, fp32 gradients; fp32 master, momentum and variance.
    for component, width in {"parameters": 2, "gradients": 4, "optimizer": 12}.items():
        sharded = component == "optimizer" and parallel.zero > 0
        ranks = (parallel.dp, max(1, parallel.sharing // parallel.ep)) if sharded else (1, 1)
        size = width * (usual / ranks[0] + experts / ranks[1])
        formula = f"{width}{f'/{parallel.dp}' if sharded else ''} B × parameters of the first stage"
        yield Term(component, size, formula, source)
    rows = _megatron_activations(model, parallel, batch) if batch is not None else ()
    for component, size, formula in rows:
        yield Term(component, size, formula, source)


def megatron_parameters(model: Model, parallel: Parallel) -> tuple[Fraction, Fraction]:
    """Parameters of the fullest rank as Megatron-LM's estimate counts them, routed experts apart.

    They are 1/pp of all layers, and one embedding matrix (two where the output head is apart and
    there is no pipeline). Norms of blocks are copied with tp, those of latents cut.
    """
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
    usual = (Fraction(sums["cut"], parallel.pp) + ends) / parallel.tp
    experts = Fraction(sums["expert"], parallel.pp * parallel.tp * parallel.ep)
    return usual + Fraction(sums["copied"], parallel.pp), experts


def _megatron_activations(
    model: Model, parallel: Parallel, batch: Batch
) -> list[tuple[str, Fraction, str]]:
    """Activations by the formula with sequence parallelism and selective recomputation, or without
    them.

    A row is a component, its bytes and its formula.
    """
    together = parallel.sp and batch.recompute == "selective"
    tokens = batch.tokens
    pp = parallel.pp
    tp = parallel.tp
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
    if pp == 1:
        split = 4 * tokens * Fraction(model.hidden + model.vocab, tp)
        head = split if together else 2 * tokens * (model.hidden + Fraction(model.vocab, tp))
        rows.append(("head and loss", head, "4·s·b·(h + v)/t" if together else "2·s·b·(h + v/t)"))
    if not together:
        whole = sum((size for _, size, _ in rows), Fraction(0))
        rows.append(("allowance", whole / 20, "5 % of activations"))
    return rows


def _torch(model: Model, parallel: Parallel, recipe: Recipe, batch: Batch | None) -> Iterator[Term]:
    """A plan's states, gathered parameters and saved tensors under what torch has for its stage.

    Stage 1 is ``ZeroRedundancyOptimizer`` (whole tensors), stages 2 and 3 are FSDP2, which shards
    all three states; at stage 2 gathered parameters stay until the backward pass is done. Step
    counters are on the device, as the fused optimizer has them.
    """
    changes: dict[int, dict[str, Any]] = {
        1: {"shard_rule": "tensor"},
        2: {"zero": 3, "reshard_after_forward": False},
    }
    torchs = replace(parallel, **changes.get(parallel.zero, {}))
    kept = replace(batch, formula=None) if batch else Batch(seq=1)
    fused = replace(recipe, step="fused")
    plan = Plan(model=model, parallel=torchs, recipe=fused, batch=kept)
    for term in plan.terms():
        first, _, rest = term.component.partition(".")
        if term.place != "device":
            yield replace(term, component=f"host.{term.component}", place="host")
        elif first in COMPONENTS:
            yield term
        elif first == "gathered layers":
            yield replace(term, component="gathered layer")
        elif first == "activation" and batch is not None:
            ends = rest.startswith(("embedding", "head", "loss"))
            row = "head and loss" if ends else "activations"
            yield replace(term, component=f"{row}.{rest}")


CONVENTIONS: dict[Convention, Callable[..., Iterable[Term]]] = {
    "zero-paper": _zero_paper,
    "deepspeed": _deepspeed,
    "megatron": _megatron,
    "torch": _torch,
}
