"""llm-analysis, EleutherAI's cookbook and Accelerate: their arithmetic, term by term.

Each is what the tool counts, not what is right: see :mod:`tests.oracles.estimators.peer_faults`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from labkit.errors import BadValue, not_among
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.jobs.states import COMPONENTS, is_sharded
from labkit.memory.tape.saved import Term
from labkit.models import Model

# llm-analysis: bytes a parameter. Its optimizer's 12 hold the master copy.
WIDTHS = {"parameters": 2, "gradients": 4, "optimizer": 12}
RELEASES = {
    "0.2.2": "the latest release on PyPI",
    "main": "its repository after that release, whose experts are not known here",
}
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Analysis:
    """One question to llm-analysis. Its ``sp_size`` is ``tp`` or 1."""

    model: Model
    parallel: Parallel
    release: str

    @property
    def source(self) -> str:
        return f"llm-analysis {self.release}, analysis.py"

    @property
    def along(self) -> int:
        return self.parallel.tp if self.parallel.sp else 1

    @property
    def experts(self) -> int:
        return self.model.num_experts or 1

    @property
    def ffn(self) -> int:
        return self.model.expert_ffn if self.model.num_experts else self.model.ffn

    @property
    def usual(self) -> Fraction:
        """Elements of one layer outside its MLP and norms; each rank has at least one key head."""
        h = self.model.hidden
        tp = self.parallel.tp
        kv = max(Fraction(self.model.kv_heads, tp), Fraction(1)) * tp
        return 2 * h * h * (1 + kv / self.model.heads)

    @property
    def router(self) -> int:
        return self.model.hidden * self.model.num_experts

    @property
    def mlp(self) -> int:
        """Two matrices; the later version has three where they are gated."""
        gated = self.release == "main" and self.model.mlp == "swiglu"
        return (3 if gated else 2) * self.model.hidden * self.ffn * self.experts


def llm_analysis(
    model: Model,
    parallel: Parallel,
    recipe: Recipe,
    batch: Batch | None,
    *,
    release: str = "0.2.2",
) -> Iterator[Term]:
    """``LLMAnalysis.training``: its numbers of one GPU (the recipe is not asked).

    Raises:
        BadValue: latent attention, a recomputation it has not, or experts of the later version.
    """
    if release not in RELEASES:
        raise not_among("release of llm-analysis", release, RELEASES)
    if model.kv_rank or (model.num_experts and release == "main"):
        raise BadValue(
            f"llm-analysis {release} is known for models without latent attention"
            f"{' and experts' if release == 'main' else ''}, got {model.name or 'one with'}"
        )
    job = _Analysis(model=model, parallel=parallel, release=release)
    for component in COMPONENTS:
        yield _state(job, component)
    if batch is not None:
        yield from _kept(job, batch)


def _state(job: _Analysis, component: str) -> Term:
    """The embedding, an equal share of the layers, the last norm."""
    model = job.model
    parallel = job.parallel
    tp = parallel.tp
    ep = parallel.ep
    width = WIDTHS[component]
    sharded = is_sharded(component, parallel.zero)
    shards = parallel.dp if sharded else 1
    expert_shards = Fraction(parallel.dp, ep) if sharded else Fraction(1)
    norm = Fraction(2 * model.hidden)
    if job.release == "0.2.2" or component == "gradients":
        norm /= tp
    layer = job.usual / tp / shards + Fraction(job.mlp, ep * tp) / expert_shards + norm / shards
    router = Fraction(job.router, tp)  # with the experts only among the parameters
    layer += router / (expert_shards if component == "parameters" else shards)
    layers = model.num_layers // parallel.pp
    ends = Fraction(model.hidden * (model.vocab + 1), tp) / shards
    over = f"/{shards}" if shards > 1 else ""
    return Term(
        component=component,
        num_bytes=width * (layers * layer + ends),
        formula=f"{width} B × (one embedding + {layers} layers){over}",
        source=job.source,
    )


def _kept(job: _Analysis, batch: Batch) -> Iterator[Term]:
    """Activations of all layers, whatever ``pp``, and of both ends."""
    if batch.every > 1:
        raise BadValue(
            f"llm-analysis recomputes every layer or none, got recompute={batch.recompute}"
        )
    full = batch.every == 1
    model = job.model
    tp = job.parallel.tp
    along = job.along
    width = Fraction(batch.tokens * model.hidden)
    layer = 2 * width / tp if full else _layer(job, batch, width)
    logits = Fraction(2 * model.vocab * batch.tokens, tp)
    norm = 4 * width / along
    if full and job.release == "0.2.2":
        norm = Fraction(0)
    found = [("activations", layer * model.num_layers, f"a layer's × {model.num_layers}")]
    if job.release == "main":
        found.append(("embedding", 2 * width / tp, "2·s·b·h/t"))
        times = 1
    else:
        # With one sample the release adds both ends to a sum that has them already.
        times = 2 if batch.micro_batch == 1 else 1
    twice = " × 2" if times == 2 else ""
    found.append(("head and loss", times * (logits + norm), f"(2·s·b·v/t + 4·s·b·h/sp){twice}"))
    for component, size, formula in found:
        yield Term(component=component, num_bytes=size, formula=formula, source=job.source)


def _layer(job: _Analysis, batch: Batch, width: Fraction) -> Fraction:
    """Attention with one mask, a plain MLP, two norms with fp32 inputs."""
    model = job.model
    tp = job.parallel.tp
    along = job.along
    core = Fraction(0)
    if batch.recompute != "selective":
        rows = Fraction(model.heads * batch.tokens)
        flash = 4 * width + 8 * rows
        core = (4 * rows * batch.seq if batch.attention == "eager" else flash) / tp
    attention = 3 * width / along + 8 * width / tp + core
    often = Fraction(job.experts, job.parallel.ep) * (model.experts_per_token or 1)
    ratio = Fraction(job.ffn, model.hidden)
    mlp = often * (2 * width / along + 4 * ratio * width / tp)
    return attention + mlp + 8 * width / along


def cookbook(
    model: Model,
    parallel: Parallel,
    recipe: Recipe,
    batch: Batch | None,
    *,
    gradient_bytes: int = 4,
    bucket: float = 5e8,
    live_parameters: float = 1e9,
    misc_gib: int = 0,
) -> Iterator[Term]:
    """``calc_transformer_mem.py``; the settings are its options, with its defaults.

    Of the recipe only the width of the parameters is asked, of recomputation only whether there is
    any. Without a batch its positions and activations are left out.

    Raises:
        BadValue: latent attention, for which it has no options.
    """
    if model.kv_rank:
        raise BadValue("cookbook has no options for latent attention")
    source = "EleutherAI cookbook, calc_transformer_mem.py"
    h = model.hidden
    layers = model.num_layers
    split = parallel.tp * parallel.pp
    ranks = parallel.world_size
    low = 4 if recipe.bytes_of("parameters") == 4 else 2
    matrices = 3 if model.mlp == "swiglu" else 2
    ffn = model.expert_ffn if model.num_experts else model.ffn
    mlp = Fraction(matrices * layers * h * ffn * (model.num_experts or 1), parallel.ep)
    attention = 2 * (1 + Fraction(model.kv_heads, model.heads)) * layers * h * h
    positions = h * batch.seq if batch else 0
    psi = 2 * model.vocab * h + positions + 8 * h * layers + 2 * h + attention + mlp
    zero = parallel.zero
    shards = [ranks if is_sharded(name, zero) else 1 for name in COMPONENTS]
    found: list[tuple[str, Fraction, str]] = [
        ("parameters", low * psi / split / shards[0], f"{low} B × Ψ/{split}/{shards[0]}"),
        ("gradients", gradient_bytes * psi / shards[1], f"{gradient_bytes} B × Ψ/{shards[1]}"),
        ("optimizer", 12 * psi / shards[2], f"12 B × Ψ/{shards[2]}"),
    ]
    if zero and ranks > 1:
        live = Fraction(bucket) + Fraction(live_parameters if zero == 3 else 0)
        found.append(("communication", low * live, "bucket, and live parameters at stage 3"))
    if batch is not None:
        scores = 5 * Fraction(model.heads * batch.seq, h) if batch.recompute == "none" else 0
        kept = Fraction(batch.tokens * h * layers) * (34 + scores)
        cut = parallel.tp if batch.partition_checkpoints else 1
        found.append(("activations", kept / cut, "s·b·h·l·(34 + 5·a·s/h)"))
    if misc_gib:
        found.append(("allowance", Fraction(misc_gib * _GIB), "as told"))
    for component, size, formula in found:
        yield Term(component=component, num_bytes=size, formula=formula, source=source)


def accelerate(
    model: Model, parallel: Parallel, recipe: Recipe, batch: Batch | None
) -> Iterator[Term]:
    """``accelerate estimate-memory``: one rank, no sharding, no activations.

    Mixed precision (16-bit products) keeps fp32 parameters and one and a half times the gradients.
    """
    size = 4 * model.num_params
    mixed = recipe.compute_bytes < 4
    gradients = size + size // 2 if mixed else size
    for component, num_bytes, formula in (
        ("parameters", size, "4 B × Ψ"),
        ("gradients", gradients, f"{'6' if mixed else '4'} B × Ψ"),
        ("optimizer", 2 * size, "8 B × Ψ"),
    ):
        yield Term(
            component=component,
            num_bytes=num_bytes,
            formula=formula,
            source="Accelerate, commands/estimate.py",
        )


def accelerate_total(lines: Iterable[Term]) -> int:
    """What it prints for training: the largest of its parts and of a step. A step in fp32 is the
    sum of the parts, in mixed precision the optimizer's alone."""
    sizes = {line.component: int(line.num_bytes) for line in lines}
    fp32 = sizes["gradients"] == sizes["parameters"]
    return sum(sizes.values()) if fp32 else max(sizes.values())
