"""The same job by other people's arithmetic: what each counts, term by term, and why they differ.

ZeRO's paper, what torch stores, and six estimators, which are reproduced as they are, faults
included (:mod:`labkit.memory.tools.known_faults` names and shows them). Numbers are exact fractions
where a tool truncates or rounds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from labkit.errors import BadValue, UsageError, not_among
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.jobs.states import COMPONENTS, is_sharded
from labkit.memory.plans.plan import Plan
from labkit.memory.tape.lines import Term
from labkit.memory.tools import calculon, megatron, peers, stored
from labkit.memory.tools.reasons import why
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd

Convention = Literal[
    "zero-paper",
    "deepspeed",
    "megatron",
    "torch",
    "llm-analysis",
    "calculon",
    "cookbook",
    "accelerate",
]

CONVENTIONS: dict[str, str] = {
    "zero-paper": "Ψ/N of each state, 12·h·b·s elements a layer (ZeRO §3, §5)",
    "deepspeed": "DeepSpeed's estimators of model states for stages 2 and 3; no activations",
    "megatron": "Megatron-LM's theoretical_memory_usage: first pipeline stage, dense activations",
    "torch": "what torch stores: whole rows of every tensor, saved tensors one by one",
    "llm-analysis": "llm-analysis's training: all layers' activations, fp32 gradients",
    "calculon": "Calculon's blocks: matrices and norms, tensors kept and worked on; no embeddings",
    "cookbook": "EleutherAI's calc_transformer_mem: GPT's parameters, ZeRO over all GPUs",
    "accelerate": "accelerate estimate-memory: one rank, model states, the largest of its parts",
}
# The rows of a comparison, in this order; everything but the last is on the device.
ROWS = (
    *("parameters", "gradients", "optimizer", "gathered layer", "communication"),
    *("activations", "activation gradients", "embedding", "head and loss", "allowance", "host"),
)
TOTAL = "total on the device"


def count(
    convention: Convention,
    model: Model,
    parallel: Parallel | None = None,
    recipe: Recipe | None = None,
    batch: Batch | None = None,
    **settings: Any,
) -> tuple[Term, ...]:
    """What ``convention`` counts for one rank (and one host, where it counts that).

    ``settings`` are the tool's own: ``gpus_per_node``, ``zero_init``, ``buffer_factor`` of
    DeepSpeed; ``num_microbatches`` of Megatron-LM and Calculon (None: enough to fill the pipeline),
    ``fused_activation`` of Calculon; ``release`` of llm-analysis; ``gradient_bytes``, ``bucket``,
    ``live_parameters``, ``misc_gib`` of the cookbook.

    Raises:
        UsageError: there is no such convention or setting, or it says nothing of this job.

    >>> lines = count("deepspeed", Model.preset("gpt2-1.5b"), Parallel(dp=8, zero=2))
    >>> total_bytes(lines)
    6619847600
    """
    _check(convention)
    parallel, recipe = parallel or Parallel(), recipe or Recipe.mixed_adam()
    known = _SETTINGS[convention]
    if unknown := [name for name in settings if name not in known]:
        raise not_among(f"setting of {convention}", unknown[0], known)
    return tuple(_COUNTS[convention](model, parallel, recipe, batch, **settings))


def total_bytes(lines: Iterable[Term], place: str = "device") -> int:
    """Bytes on the device (or ``"host"``), cut to whole bytes as the tools do."""
    return int(sum(Fraction(line.num_bytes) for line in lines if line.place == place))


def told_bytes(convention: Convention, lines: Iterable[Term]) -> int:
    """The one number on the device that the tool gives: the sum, but for Accelerate.

    >>> lines = count("accelerate", Model.preset("gpt2-1.5b"))
    >>> total_bytes(lines), told_bytes("accelerate", lines)
    (28037001600, 12460889600)
    """
    _check(convention)
    return peers.accelerate_total(lines) if convention == "accelerate" else total_bytes(lines)


def differences(
    model: Model | Plan,
    parallel: Parallel | None = None,
    recipe: Recipe | None = None,
    batch: Batch | None = None,
    *,
    conventions: Iterable[str] = tuple(CONVENTIONS),
) -> pd.DataFrame:
    """A row a component, a column of bytes a convention, and what each does differently in words.

    Of a model, or of a plan that says the rest too. NaN: the convention has no such term. One that
    says nothing of this job is all NaN, and ``attrs["refused"]`` says why. The last row is what the
    tool gives for the device.

    >>> differences(Model.preset("gpt2-1.5b"), conventions=["zero-paper", "cookbook"]).index[0]
    'parameters'
    """
    import pandas as pd

    if isinstance(model, Plan):
        model, parallel, recipe, batch = _parts(model)
    columns: dict[str, pd.Series[float]] = {}
    refused: dict[str, str] = {}
    for name in conventions:
        try:
            lines = count(name, model, parallel, recipe, batch)  # type: ignore[arg-type]
        except BadValue as error:
            refused[name], lines = str(error), ()
        sums: dict[str, float] = {}
        for line in lines:
            sums[line.row] = sums.get(line.row, 0.0) + float(line.num_bytes)
        if lines:
            sums[TOTAL] = float(told_bytes(name, lines))  # type: ignore[arg-type]
        columns[name] = pd.Series(sums, dtype=float)
    table = pd.DataFrame(columns).reindex([*ROWS, TOTAL])
    table = table.dropna(how="all").rename_axis("component")
    answering = [name for name in columns if name not in refused]
    table["why"] = [why(str(row), answering) for row in table.index]
    table.attrs["refused"] = refused
    return table


def _parts(plan: Plan) -> tuple[Model, Parallel, Recipe, Batch | None]:
    if not isinstance(plan.model, Model):
        raise UsageError(
            f"a plan of {plan.model} bare parameters has no layers to count: give it a model"
        )
    return plan.model, plan.parallel, plan.recipe, plan.batch


def _check(convention: str) -> None:
    if convention not in CONVENTIONS:
        raise not_among("convention", convention, CONVENTIONS)


def _zero_paper(
    model: Model, parallel: Parallel, recipe: Recipe, batch: Batch | None
) -> Iterable[Term]:
    """Ψ/N_m/N_d of each state; a layer's 12·h·b·s elements, or its checkpoint.

    No activations where only attention is recomputed: the paper has no term for attention.
    """
    split = parallel.tp * parallel.pp
    for component in COMPONENTS:
        width = recipe.bytes_of(component)
        degree = parallel.shard_degree if is_sharded(component, parallel.zero) else 1
        yield Term(
            component=component,
            num_bytes=Fraction(width) * model.num_params / split / degree,
            formula=f"{width} B × Ψ/({split}·{degree})",
            source="ZeRO §3.1, §5",
        )
    if batch is not None and not (batch.recompute == "selective" and batch.paper == "zero-paper"):
        from labkit.memory.jobs.activations import FORMULAS, activation_bytes

        kept = activation_bytes(model, batch, tp=parallel.tp) / parallel.pp
        yield Term(
            component="activations",
            num_bytes=Fraction(kept),
            formula=FORMULAS[batch.paper],
            source="ZeRO §3.2, §6.1",
        )


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
    model: Model,
    parallel: Parallel,
    recipe: Recipe,
    batch: Batch | None,
    *,
    gpus_per_node: int = 8,
    zero_init: bool = True,
    buffer_factor: float = 1.5,
) -> Iterable[Term]:
    """``estimate_zero2_model_states_mem_needs`` and ``estimate_zero3_...``, split into terms.

    Stage 2 is 2Ψ + 18Ψ/N; earlier versions had 4Ψ + 16Ψ/N.
    """
    if parallel.zero not in {2, 3}:
        raise BadValue(f"zero must be 2 or 3 for deepspeed's estimators, got {parallel.zero}")
    psi, ranks = model.num_params, parallel.world_size
    here = min(gpus_per_node, ranks)
    nodes = -(-ranks // here)
    offload = recipe.offload_optimizer != "device"
    away = offload and recipe.offload_parameters != "device" and parallel.zero == 3
    source = f"DeepSpeed, estimate_zero{parallel.zero}_model_states_mem_needs"

    def line(component: str, num_bytes: Fraction | int, formula: str) -> Term:
        return Term(component=component, num_bytes=num_bytes, formula=formula, source=source)

    if parallel.zero == 2:
        yield line("parameters", 2 * psi, "2 B × Ψ")
    else:
        yield line("gathered layer", 4 * _largest_module(model), "4 B × largest module")
        if not away:
            yield line("parameters", Fraction(2 * psi, ranks), f"2 B × Ψ/{ranks}")
    if not offload:
        width = 6 if parallel.zero == 2 else 4
        yield line("gradients", Fraction(width * psi, ranks), f"{width} B × Ψ/{ranks}")
        yield line("optimizer", Fraction(12 * psi, ranks), f"12 B × Ψ/{ranks}")
    factor = Fraction(buffer_factor)
    if parallel.zero == 2:
        held, text = _host_stage_2(psi, ranks, here, offload)
    else:
        largest = _largest_module(model)
        held, text = _host_stage_3(psi, largest, here, nodes, (offload, away, zero_init))
    yield Term(
        component="host",
        num_bytes=held * factor,
        formula=f"{text} × {buffer_factor}",
        source=source,
        place="host",
    )


def _host_stage_2(psi: int, ranks: int, here: int, offload: bool) -> tuple[Fraction, str]:
    if offload:
        return Fraction(psi * max(4 * ranks, 16)), f"max(4·{ranks}, 16) B × Ψ"
    return Fraction(4 * psi * here), f"4 B × Ψ × {here} GPUs a node"


def _host_stage_3(
    psi: int, largest: int, here: int, nodes: int, chosen: tuple[bool, bool, bool]
) -> tuple[Fraction, str]:
    offload, away, zero_init = chosen
    if offload:
        width = 18 if away else 16
        spread, text = Fraction(width, nodes), f"{width}/{nodes} B × Ψ"
        if zero_init:
            return psi * spread, text
        return psi * max(Fraction(4 * here), spread), f"max(4·{here}, {width}/{nodes}) B × Ψ"
    whole, what = (largest, "largest module") if zero_init else (psi, "Ψ")
    return Fraction(4 * whole * here), f"4 B × {what} × {here} GPUs a node"


_SETTINGS: dict[str, tuple[str, ...]] = {
    "zero-paper": (),
    "deepspeed": ("gpus_per_node", "zero_init", "buffer_factor"),
    "megatron": ("num_microbatches",),
    "torch": (),
    "llm-analysis": ("release",),
    "calculon": ("num_microbatches", "fused_activation"),
    "cookbook": ("gradient_bytes", "bucket", "live_parameters", "misc_gib"),
    "accelerate": (),
}
_COUNTS: dict[str, Callable[..., Iterable[Term]]] = {
    "zero-paper": _zero_paper,
    "deepspeed": _deepspeed,
    "megatron": megatron.lines,
    "torch": stored.lines,
    "llm-analysis": peers.llm_analysis,
    "calculon": calculon.lines,
    "cookbook": peers.cookbook,
    "accelerate": peers.accelerate,
}
