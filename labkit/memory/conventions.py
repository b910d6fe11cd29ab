"""The same job by other people's arithmetic: what each counts, term by term, and why they differ.

Four conventions: ZeRO's paper, DeepSpeed's estimators, Megatron-LM's theoretical footprint and
what torch stores. The second and third are reproduced as they are, faults included, and each fault
has a name (:data:`FAULTS`). Numbers are exact fractions where a tool truncates its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from labkit.errors import BadValue, not_among
from labkit.memory import megatron, stored
from labkit.memory.batch import Batch
from labkit.memory.lines import Line
from labkit.memory.parallel import Parallel
from labkit.memory.recipe import Recipe
from labkit.memory.states import COMPONENTS, is_sharded
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd

Convention = Literal["zero-paper", "deepspeed", "megatron", "torch"]

CONVENTIONS: dict[str, str] = {
    "zero-paper": "Ψ/N of each state, 12·h·b·s elements a layer (ZeRO §3, §5)",
    "deepspeed": "DeepSpeed's estimators of model states for stages 2 and 3; no activations",
    "megatron": "Megatron-LM's theoretical_memory_usage: first pipeline stage, dense activations",
    "torch": "what torch stores: whole rows of every tensor, saved tensors one by one",
}
# The rows of a comparison, in this order; everything but the last is on the device.
ROWS = (
    *("parameters", "gradients", "optimizer", "gathered layer"),
    *("activations", "embedding", "head and loss", "allowance", "host"),
)
WHY: dict[str, str] = {
    "parameters": "Megatron leaves out biases and position embeddings and looks at the fullest"
    " pipeline stage; torch stores whole rows, so tensors with fewer rows than ranks do not shrink;"
    " DeepSpeed keeps all parameters in 16 bits whatever the recipe.",
    "gradients": "The paper has one 16-bit copy; DeepSpeed adds an fp32 copy at stage 2 and has"
    " only that at stage 3; Megatron keeps fp32 gradients whole at every stage; torch stores them"
    " in the parameters' format.",
    "optimizer": "12 bytes a parameter in all four for mixed-precision Adam; they differ in what is"
    " counted as a parameter, in rounding to rows, and in torch's step counters.",
    "gathered layer": "DeepSpeed holds parameters and gradients of its largest module, torch the"
    " parameters of the largest unit in the compute format; the paper and Megatron leave it out.",
    "activations": "The paper has 24 bytes a token and hidden unit and no term for attention;"
    " Megatron 18 + 4·f/h (or 10 + 24/t, which assumes f = 4h), without attention scores and with"
    " dropout masks; torch what its kernels save; DeepSpeed none.",
    "embedding": "Megatron counts token numbers and a dropout mask for each microbatch in flight.",
    "head and loss": "Megatron counts fp32 logits once (or 16-bit ones without sequence"
    " parallelism); torch saves the fp32 log-softmax, and its backward needs more for a moment.",
    "allowance": "Megatron adds 5 % to activations without sequence parallelism, and only there.",
    "host": "DeepSpeed alone counts a node's memory: fp32 copies while the model is built, or the"
    " offloaded states, times 1.5.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something an estimator gets wrong: where it shows, and what would be right."""

    convention: str
    name: str
    sentence: str


FAULTS: tuple[Fault, ...] = tuple(
    Fault(convention=convention, name=name, sentence=sentence)
    for convention, name, sentence in (
        (
            "deepspeed",
            "host grows with nodes",
            "at stage 2 with offload, host memory of one node is 4 bytes × all GPUs of the job;"
            " each node holds its own ranks' shards, so it should fall with the number of nodes",
        ),
        (
            "deepspeed",
            "stage 3 without 16-bit gradients",
            "18 bytes a parameter are 2 + 4 + 12: the 16-bit gradients of stage 2 are gone",
        ),
        (
            "deepspeed",
            "every parallelism is data parallelism",
            "tensor- and pipeline-parallel ranks count as ranks to shard over, and the whole model"
            " is what is sharded",
        ),
        (
            "deepspeed",
            "no activations",
            "model states only, as its name says: not the memory a step needs",
        ),
        (
            "megatron",
            "dense activations",
            "experts have no term: a token's k experts keep k times as much of the MLP",
        ),
        (
            "megatron",
            "gated MLP counted as plain",
            "4·f/h is two tensors of width f in 16 bits; SwiGLU keeps at least three",
        ),
        (
            "megatron",
            "f = 4h without sequence parallelism",
            "10 + 24/t has the MLP's 16 bytes built in, whatever ffn_hidden_size says",
        ),
        (
            "megatron",
            "no attention scores",
            "5·a·s/h is left out even where nothing is recomputed",
        ),
        (
            "megatron",
            "recomputation ignored",
            "full recomputation changes nothing: layers keep as much as without",
        ),
        (
            "megatron",
            "half a loss head",
            "fp32 logits count once, 4 bytes each; eager fp32 cross-entropy has 12 at its peak",
        ),
        (
            "megatron",
            "no biases, no positions",
            "linear biases and learnt position embeddings have no term",
        ),
        (
            "megatron",
            "context parallelism ignored",
            "cp divides neither the sequence nor, beside dp, the optimizer's states",
        ),
    )
)


def faults(convention: str) -> tuple[Fault, ...]:
    """The known faults of a convention; none for ``zero-paper`` and ``torch``."""
    _check(convention)
    return tuple(fault for fault in FAULTS if fault.convention == convention)


def count(
    convention: Convention,
    model: Model,
    parallel: Parallel | None = None,
    recipe: Recipe | None = None,
    batch: Batch | None = None,
    **settings: Any,
) -> tuple[Line, ...]:
    """What ``convention`` counts for one rank (and one host, where it counts that).

    ``settings`` are the tool's own: ``gpus_per_node``, ``zero_init``, ``buffer_factor`` of
    DeepSpeed; ``num_microbatches`` of Megatron-LM (None: enough to fill the pipeline).

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


def total_bytes(lines: Iterable[Line], place: str = "device") -> int:
    """Bytes on the device (or ``"host"``), cut to whole bytes as the tools do."""
    return int(sum(Fraction(line.num_bytes) for line in lines if line.place == place))


def differences(
    model: Model,
    parallel: Parallel | None = None,
    recipe: Recipe | None = None,
    batch: Batch | None = None,
    *,
    conventions: Iterable[str] = tuple(CONVENTIONS),
) -> pd.DataFrame:
    """A row a component, a column of bytes a convention, and a sentence on why they differ.

    NaN: the convention has no such term. One that says nothing of this job is all NaN, and
    ``attrs["refused"]`` says why. The last row is the total on the device.
    """
    import pandas as pd

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
            sums["total on the device"] = float(total_bytes(lines))
        columns[name] = pd.Series(sums, dtype=float)
    table = pd.DataFrame(columns).reindex([*ROWS, "total on the device"])
    table = table.dropna(how="all").rename_axis("component")
    table["why"] = [WHY.get(str(row), "the sum of the rows above") for row in table.index]
    table.attrs["refused"] = refused
    return table


def _check(convention: str) -> None:
    if convention not in CONVENTIONS:
        raise not_among("convention", convention, CONVENTIONS)


def _zero_paper(
    model: Model, parallel: Parallel, recipe: Recipe, batch: Batch | None
) -> Iterable[Line]:
    """Ψ/N_m/N_d of each state; a layer's 12·h·b·s elements, or its checkpoint.

    No activations where only attention is recomputed: the paper has no term for attention.
    """
    split = parallel.tp * parallel.pp
    for component in COMPONENTS:
        width = recipe.bytes_of(component)
        degree = parallel.shard_degree if is_sharded(component, parallel.zero) else 1
        yield Line(
            component=component,
            num_bytes=Fraction(width) * model.num_params / split / degree,
            formula=f"{width} B × Ψ/({split}·{degree})",
            source="ZeRO §3.1, §5",
        )
    if batch is not None and not (batch.recompute == "selective" and batch.paper == "zero-paper"):
        from labkit.memory.activations import FORMULAS, activation_bytes

        kept = activation_bytes(model, batch, tp=parallel.tp) / parallel.pp
        yield Line(
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
) -> Iterable[Line]:
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

    def line(component: str, num_bytes: Fraction | int, formula: str) -> Line:
        return Line(component=component, num_bytes=num_bytes, formula=formula, source=source)

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
    yield Line(
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
}
_COUNTS: dict[str, Callable[..., Iterable[Line]]] = {
    "zero-paper": _zero_paper,
    "deepspeed": _deepspeed,
    "megatron": megatron.lines,
    "torch": stored.lines,
}
