"""An estimate in words and tables: terms with formulas and sources, moments, assumptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from labkit.memory.jobs import traffic
from labkit.memory.jobs.adapter import Adapter
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import QUANTISED, Recipe
from labkit.memory.jobs.states import COMPONENTS as STATES
from labkit.memory.jobs.states import SHARDINGS
from labkit.memory.movement import volumes
from labkit.memory.plans import estimate as estimates
from labkit.memory.plans import fsdp, workspaces
from labkit.memory.plans import job as jobs
from labkit.memory.plans.arithmetic import listed
from labkit.memory.plans.estimate import COMPONENTS, Row, row_bytes
from labkit.memory.plans.job import Job
from labkit.memory.tape import saved
from labkit.memory.tape.saved import Term
from labkit.memory.tape.step import Moment
from labkit.models import Model
from labkit.models.sizes import OPERATORS

if TYPE_CHECKING:
    import pandas as pd

CHECKED = (
    "checked against torch's MemTracker, operator by operator: moments, saved tensors and"
    " temporaries of GPT, Llama, experts and latent attention at dp = tp = pp = 1, and of GPT and"
    " Llama under FSDP2 with its buffers on ranks of a fake process group; shards of parameters,"
    " gradients and Adam against FSDP2 and other schemes on 2 to 4 real ranks"
)
DERIVED = "derived, not checked against a run: "
LEFT_OUT = (
    "left out: CUDA's context,{workspaces} fragmentation (see the allowance), gradient buckets"
    " where none are named, and buffers of expert-parallel collectives"
)

_EXCHANGES = {
    "all-gather": "keys and values are gathered in each layer, and its outputs merged in fp32, as"
    " torch's context_parallel does it; checked against torch's MemTracker",
    "all-to-all": "keys and values go from rank to rank in each layer, and its outputs are merged"
    " in fp32, as torch's context_parallel does it; checked against torch's MemTracker",
    "ring": "keys and values go around a ring in each layer, which keeps all it has seen until it"
    " is done, as TransformerEngine does it; read in its source, not run",
}
_AGAIN = {
    "again": "and gathered again backward",
    "buffer": "forward and again backward into one buffer that is there throughout",
    "kept": "and kept",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The account of a detailed plan: what a step holds, moment by moment.

    It is that of the fullest pipeline device, or of the one that was asked for.

    Attributes:
        asked: whether the device was asked for.
        moments: bytes by component at each moment.
        peak_moment, peak: the largest of them.
    """

    job: Job
    moments: dict[Moment, Row]
    peak_moment: Moment
    peak: Row
    asked: bool = False

    @property
    def peak_bytes(self) -> float:
        """Bytes on the device at the largest moment."""
        return float(row_bytes(self.peak))

    @property
    def states_bytes(self) -> float:
        """Bytes of model states on the fullest device."""
        stored = (t for t in self._states() if t.place == "device" and t.row in STATES)
        return sum(term.num_bytes for term in stored)

    def terms(self) -> tuple[Term, ...]:
        """States, what the layers keep for the backward pass, and what is there for a moment."""
        return (*self._states(), *self._activations(), *self._passing())

    def _states(self) -> Iterator[Term]:
        """States, their sizes as floats."""
        for term in self.job.held.states():
            yield replace(term, num_bytes=float(term.num_bytes))

    def _activations(self) -> Iterator[Term]:
        """What is kept at the end of the forward pass of the last microbatch in flight."""
        job = self.job
        shape = self.job.own_shape
        arguments = self.job.arguments
        place = job.batch.offload_activations
        flight = f" × {job.in_flight:g} in flight" if job.in_flight > 1 else ""
        for term in saved.stack_terms(shape, job.mode, **arguments):
            name = term.component.replace("layers.", "activation.", 1)
            formula = f"{term.formula}{flight}, l = {job.layers}"
            size = float(term.num_bytes) * job.in_flight
            yield Term(name, size, formula, term.source, place)
        for term in saved.end_terms(shape, job.mode, **arguments) if job.has_head else ():
            name = f"activation.{term.component}"
            size = float(term.num_bytes)
            yield replace(term, component=name, num_bytes=size, place=place)

    def _passing(self) -> Iterator[Term]:
        """Components that no closed form stands for, each with its largest value at any moment."""
        named = {state.row for state in self._states()} | {"activations", "gradients"}
        for component in COMPONENTS:
            sizes = {moment: row.get(component, 0) for moment, row in self.moments.items()}
            moment = max(sizes, key=lambda name: sizes[name])
            if component not in named and sizes[moment]:
                formula = f"{_HOW.get(component, 'largest')}; largest at {moment}"
                source = _SOURCE.get(component, saved.TORCH)
                yield Term(component, float(sizes[moment]), formula, source)

    def held(self) -> list[tuple[str, str, float]]:
        """Component, place and bytes: on the device at the peak, and what the recipe keeps
        elsewhere.

        Counters that torch leaves elsewhere are not among them.
        """
        sizes: Counter[tuple[str, str]] = Counter()
        for name in COMPONENTS:
            sizes[name, "device"] = self.peak.get(name, 0)
        for term in self._states():
            kept = getattr(self.job.recipe, f"offload_{term.row}", "device")
            if kept != "device" and term.place != "device":
                sizes[term.row, term.place] += term.num_bytes
        if self.job.mode.offload:
            kept = sum(term.num_bytes for term in self._activations())
            sizes["activations", self.job.batch.offload_activations] += kept
        return [(name, place, float(size)) for (name, place), size in sizes.items() if size]

    def table(self) -> pd.DataFrame:
        """Bytes of each component on the device and their total, a row a moment in order."""
        import pandas as pd

        order = [moment for moment in Moment if moment in self.moments]
        sizes = [[float(self.moments[m].get(c, 0)) for c in COMPONENTS] for m in order]
        table = pd.DataFrame(sizes, pd.Index(order, name="moment"), list(COMPONENTS))
        table = table.loc[:, (table != 0).any()]
        return table.assign(total=[float(row_bytes(self.moments[m])) for m in order])

    def ranks(self) -> pd.DataFrame:
        """Each pipeline rank at its own peak; see :meth:`Plan.ranks` for the columns."""
        import pandas as pd

        every = [on_device(replace(self.job, device=d)) for d in range(self.job.parallel.pp)]
        rows = []
        for one in every:
            job = one.job
            ends = [name for name in ("embedding", "head") if getattr(job, f"has_{name}")]
            row = {
                "rank": job.device,
                "num_layers": job.layers,
                "ends": " and ".join(ends),
                "in_flight": job.in_flight,
                "peak_moment": one.peak_moment,
            }
            held = {f"{c.replace(' ', '_')}_bytes": float(one.peak.get(c, 0)) for c in COMPONENTS}
            rows.append(row | held | {"peak_bytes": one.peak_bytes})
        table = pd.DataFrame(rows)
        empty = [name for name in held if not table[name].any()]
        return table.drop(columns=empty)

    def elsewhere(self) -> pd.DataFrame:
        """What is kept on the CPU or on NVMe: component, place, bytes, formula, source."""
        terms = (*self._states(), *self._activations())
        return listed(t for t in terms if t.place != "device" and t.num_bytes)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the estimate takes for granted, what of it is checked, and what is derived."""
        job = self.job
        parallel = job.parallel
        recipe = job.recipe
        batch = job.batch
        notes = [CHECKED]
        notes += [DERIVED + why for why in _derived(job, self.asked)]
        if job.parallel.zero:
            rule = SHARDINGS["even" if job.ideal else parallel.shard_rule]
            notes.append(f"what is sharded takes {rule}")
        if job.parallel.zero == 3:
            units = {
                "parts": "embedding, layers and head",
                "blocks": "layers, the rest as the root",
            }
            stays = parallel.keep_gathered
            also = "" if stays == "none" else f"; the {stays.removeprefix('the ')} stays gathered"
            notes.append(f"stage 3 gathers {units[parallel.wrap]} one by one{also}")
        if parallel.sp and parallel.tp > 1:
            again = _AGAIN[parallel.sp_gather]
            notes.append(f"inputs of column-parallel products are gathered, {again}")
        if job.model.operators:
            meanings = "; ".join(OPERATORS[name] for name in job.model.operators)
            notes.append(f"operators of the model's code: {meanings}")
        if "transformers" in job.model.source:
            notes.append(f"the model: {job.model.source}")
        notes += _frozen(job)
        notes += _adapted(job)
        if parallel.cp > 1:
            notes.append(_EXCHANGES[parallel.cp_exchange])
        lives = "there throughout a step" if job.gradients_stay else "made backward, then dropped"
        if job.gradients_once:
            lives = "in a buffer that is allocated once"
        if recipe.in_backward:
            lives = "used up and dropped inside the backward pass, tensor by tensor"
        notes.append(f"gradients are {lives}")
        if batch.attention == "flash":
            notes.append("flash attention keeps what torch's own kernel keeps")
        if batch.dropout_mask_bytes:
            notes.append(
                f"dropout masks take {batch.dropout_mask_bytes} bytes an element; a flash kernel's"
                " own dropout keeps its random state only"
            )
        if batch.loss == "fused":
            notes.append(
                f"a fused loss takes the tokens in {batch.loss_chunks} parts: logits exist for one"
                " part only, gradients of the head's input and weight from the forward pass on"
            )
        notes += _states_elsewhere(recipe)
        if job.mode.offload:
            notes.append(
                "saved tensors are copied to the host, each time one is saved, and back one node at"
                " a time, as torch's save_on_cpu does it; checked against torch's MemTracker"
            )
        counted = estimates.workspaces_of(job)
        left = "" if counted else " library workspaces,"
        return (*notes, *_taken_for_granted(job), LEFT_OUT.format(workspaces=left))

    def collectives(self, *, ranks_per_node: int) -> tuple[traffic.Collective, ...]:
        """What the device's ranks send in a step."""
        job = self.job
        at = {"device": self.job.device, "ranks_per_node": ranks_per_node}
        return volumes.collectives(job.model, job.parallel, job.recipe, job.batch, **at)

    @property
    def letters(self) -> dict[str, int]:
        """Values of the letters in formulas."""
        job = self.job
        shape = self.job.shape
        return {
            "b": job.batch.micro_batch,
            "s": job.batch.seq // job.parallel.cp,
            "h": shape.hidden,
            "q": shape.heads * shape.head_dim,
            "k": shape.kv_heads * shape.head_dim,
            "f": shape.ffn,
            "a": shape.heads,
            "v": shape.vocab,
            "Ψ": job.held.whole,
            "t": job.parallel.tp,
        }


@lru_cache(maxsize=512)
def estimate(
    model: Model,
    parallel: Parallel,
    recipe: Recipe,
    batch: Batch,
    ideal: bool = False,
    rank: int | None = None,
) -> Estimate:
    """The moments of the pipeline device with the largest peak, or of pipeline rank ``rank``.

    Raises:
        UsageError: something does not divide, or is not known; the message names the rule.
    """
    devices = jobs.jobs(model, parallel, recipe, batch, ideal, rank)
    fullest = max(map(on_device, devices), key=lambda device: device.peak_bytes)
    return fullest if rank is None else replace(fullest, asked=True)


def on_device(job: Job) -> Estimate:
    """The moments of the job's own pipeline device."""
    by_moment = estimates.rows_by_moment(job)
    moment, peak = estimates.fullest_moment(by_moment.items())
    return Estimate(job=job, moments=by_moment, peak_moment=moment, peak=peak)


_HOW = {
    fsdp.GATHERED: "whole weights of the units at work",
    fsdp.GATHER: "all-gathers land here before they are copied out: the last unit's going forward,"
    " the next one's, already prefetched, going back",
    fsdp.WHOLE: "whole gradients of the units at work, until they are sent or moved",
    fsdp.SENT: "gradients on their way: the previous unit's, or DeepSpeed's or"
    " DistributedDataParallel's buckets",
    "cast parameters": "all parameters in the compute format, during forward and backward",
    "cached weights": "autocast's copies of weights",
    "temporaries": "what operators and the optimizer allocate and free again",
    estimates.SEQUENCES: "the buffer for inputs of column-parallel products: b·s·h elements",
    estimates.WORKSPACES: "what cuBLAS keeps for its products on this card: one for each of torch's"
    " two threads, forward and backward, and TransformerEngine's",
    "buffers and inputs": "token numbers, targets, rotary tables",
}
_SOURCE = {
    fsdp.GATHERED: "ZeRO §7.2.2; torch FSDP2",
    fsdp.GATHER: "torch FSDP2 (wait_for_unshard, pre_backward)",
    fsdp.WHOLE: "ZeRO §5.2; torch FSDP2",
    fsdp.SENT: "torch FSDP2 (post_backward), DistributedDataParallel; DeepSpeed's ipg_buffer",
    "cast parameters": "torch FSDP2, mixed precision without resharding",
    estimates.WORKSPACES: workspaces.SOURCE,
    estimates.SEQUENCES: "Megatron-LM, core/tensor_parallel/layers.py, GlobalMemoryBuffer",
}


def _frozen(job: Job) -> Iterator[str]:
    """Sentences on frozen parameters, adapters apart."""
    recipe = job.recipe
    some = bool(recipe.trained) or not all(tensor.trained for tensor in job.model.layout)
    if not some or recipe.adapter is not None:
        return
    trained = job.arguments.get("trained")
    if trained is None:
        yield (
            "frozen parameters have no gradients and no optimizer states; what their layers keep"
            " for the backward pass is counted as if they were trained"
        )
        return
    count = job.held.trained.whole
    yield (
        f"{count:,} parameters are trained; frozen ones have no gradients and no optimizer states,"
        " and layers keep only what a gradient above them needs: as torch's MemTracker has it"
    )
    layers = job.model.num_layers
    if trained.deepest > 0:
        below = "no layer has" if trained.deepest >= layers else f"layers from {trained.deepest} on"
        have = "" if trained.deepest >= layers else " have"
        yield f"{below}{have} a backward pass"


def _states_elsewhere(recipe: Recipe) -> Iterator[str]:
    """Sentences on states that are quantised, paged or partly offloaded."""
    if recipe.optimizer in QUANTISED:
        library = "torchao" if recipe.optimizer.endswith("torchao") else "bitsandbytes"
        yield (
            f"quantised states as {library} lays them out; its step, one kernel a tensor, was not"
            " run and is taken to work in place"
        )
    if recipe.paged:
        yield (
            "paged states are in CUDA's managed memory and counted on the CPU: the driver moves"
            " them to the device where there is room, beside what torch allocates"
        )
    if recipe.offload_fraction < 1:
        yield (
            f"{recipe.offload_fraction:.0%} of the optimizer is kept on {recipe.offload_optimizer}:"
            " DeepSpeed rounds that to whole sub-groups"
        )


def _named(adapter: Adapter) -> str:
    """What is trained beside a base, in words."""
    targets = ", ".join(adapter.targets)
    if adapter.kind == "ia3":
        return f"IA3's factors at {targets}"
    if adapter.is_prompt:
        encoder = " out of an MLP (P-tuning)" if adapter.kind == "p-tuning" else ""
        return f"{adapter.tokens} virtual tokens in front of each sample{encoder}"
    kind = "adapters with magnitudes (DoRA)" if adapter.kind == "dora" else "adapters"
    return f"{kind} of rank {adapter.rank} at {targets}"


def _adapted(job: Job) -> Iterator[str]:
    """Sentences on adapters and their base."""
    adapter = job.recipe.adapter
    if adapter is None:
        return
    count = job.held.trained.whole
    yield (
        f"{_named(adapter)}: {count:,} trained"
        f" parameters in {job.recipe.gradients}, all others frozen; peft's modules are checked"
        " against torch's MemTracker"
    )
    if adapter.saved:
        yield (
            f"trained copies of {', '.join(adapter.saved)} lie beside the frozen ones, in"
            f" {job.recipe.parameters}"
        )
    if not job.arguments["trained"].ends & {"input", "embedding", "prompt"}:
        yield "the embedding's output has no gradient: the first layer's base keeps nothing for it"
    if job.parallel.zero == 3 and job.parallel.world_size > 1:
        yield (
            "frozen parameters are gathered and freed as others are, and no gradient of theirs is"
            " sent: torch's FSDP2, checked against torch's MemTracker"
        )
    if adapter.packed and job.parallel.zero == 3:
        whole = "its scales are whole on every rank"
        cut = f"4 bits are stored as {adapter.quant_storage} and cut; {whole}"
        yield (
            cut
            if adapter.is_cut
            else "4 bits stored as uint8 are not cut: the base is whole on every rank"
            " (quant_storage=bf16, the recipe qlora-fsdp, has it cut)"
        )
    if adapter.packed:
        yield (
            "matrices of layers are in 4 bits as bitsandbytes lays them out, and made wide one at a"
            " time: its lines are checked against torch's MemTracker; left out are its tables and"
            " the scales while they are made wide, less than 1/32 of a wide matrix"
        )
    if adapter.rest == "fp32":
        yield (
            "embeddings, head and norms are in fp32, and with them the stream between the layers"
            " and what products in 4 bits give, as after prepare_model_for_kbit_training"
        )


def _taken_for_granted(job: Job) -> Iterator[str]:
    """Sentences on what is not as the model says, and on how experts and latents are taken."""
    model = job.model
    norm = job.shape.norm
    if model.norm != norm:
        yield f"{model.norm} is taken as {norm}"
    if model.num_experts:
        few = model.experts_per_token
        yield (
            f"tokens are spread evenly: an expert has ceil(tokens · {few} / experts) places, as one"
            " batched product over all experts of a rank runs them"
        )
        yield "the router's matrix is in the compute format, its scores are in fp32"
        if job.parallel.tp > 1:
            yield "tensor parallelism cuts every expert's width; all ranks see all its tokens"
    if model.kv_rank:
        yield (
            "latent attention: values are narrower than keys to the kernel, which takes them as"
            " they are; projections down and their norms are whole on every tensor-parallel rank"
        )


def _derived(job: Job, asked: bool) -> Iterator[str]:
    """Sentences on what of the estimate was derived and not checked against a run."""
    parallel = job.parallel
    recipe = job.recipe
    if recipe.optimizer in {"adafactor", "muon"} and parallel.zero:
        yield f"{recipe.optimizer}'s states and step on shards, each as if it were a whole tensor"
    if parallel.tp > 1:
        yield "tensor-parallel shares (Korthikanti et al. 2022, §4)"
    if parallel.cp > 1:
        yield "context parallelism: each rank has 1/cp of the tokens"
    if parallel.pp > 1:
        lengths = parallel.stage_layers(job.model.num_layers)
        if len(set(lengths)) > 1:
            rule = "as given" if parallel.layers else f"by the rule {parallel.layer_split}"
            yield f"layers a stage {rule}: {', '.join(map(str, lengths))}"
        which = "was asked for" if asked else "is the fullest"
        yield (
            f"pipeline device {job.device} {which}, with {job.in_flight:g} microbatches in"
            f" flight ({parallel.schedule}, {job.microbatches} a step)"
        )
    if parallel.zero in {1, 2} or (parallel.zero == 3 and parallel.pp * parallel.tp > 1):
        yield f"moments of ZeRO stage {parallel.zero}" + (
            ", gradients reduced layer by layer" if parallel.zero > 1 else ""
        )
    if parallel.zero == 3 and parallel.secondary_group:
        yield "hpZ's second copy is counted throughout; FSDP2 has it between forward and backward"
    if recipe.master is not None:
        yield "the optimizer's step on a master copy: gradients are cast to its format at once"
    if parallel.ep > 1:
        yield "expert parallelism: a rank's experts get the tokens of all ranks that share them"
