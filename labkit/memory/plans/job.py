"""The step of one rank: what a plan's four parts say together, and which ranks can be the fullest.

A :class:`Job` is what the account by moments works on. Sequence, micro-batch, data-parallel ranks
and layers may be arrays that broadcast, in a sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from labkit.errors import BadValue, UsageError
from labkit.memory.jobs.adapter import Adapter
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.modules import resolved
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import DTYPE_BYTES, Recipe
from labkit.memory.jobs.states import Holding, rows_of
from labkit.memory.jobs.trained import trained_of
from labkit.memory.tape.mode import Base, Mode, SequenceGather
from labkit.memory.tape.older import OLDER
from labkit.memory.tape.sizes import Shape, is_array, shape_of
from labkit.memory.tape.trained import Trained
from labkit.models import Model


@lru_cache(maxsize=256)
def mode_of(model: Model, recipe: Recipe, batch: Batch, gather: SequenceGather = "again") -> Mode:
    """Which operators a job runs.

    Args:
        gather: how the inputs of column-parallel products are gathered under sequence parallelism.
    """
    narrow = "fp32" if recipe.compute_bytes == 4 else "bf16"
    again = batch.recompute
    if isinstance(again, int):
        again = "full" if again == 1 else "every"  # type: ignore[assignment]
    written_out = {"eager", "sdpa"} if "no-sdpa" in model.operators else {"eager"}
    return Mode(
        dtype="autocast" if recipe.autocast else narrow,  # type: ignore[arg-type]
        base=_base_of(recipe),
        attention="eager" if batch.attention in written_out else "sdpa",
        recompute=again,  # type: ignore[arg-type]
        norm_fused=batch.norm_fused and "norm" not in model.operators,
        gelu_fused="gelu" not in model.operators,
        swiglu_fused=batch.swiglu_fused,
        repeat_kv="repeat-kv" in model.operators,
        mask_added="mask" in model.operators,
        softmax_fp32="softmax-fp32" in model.operators,
        older=tuple(name for name in model.operators if name in OLDER),
        loss=batch.loss,
        logits_held=batch.logits_held,
        sequence_gather=gather,
        gpu=batch.gpu,
        input_gradients=batch.input_gradients and batch.recompute != "none",
        offload=batch.offload_activations != "device",
        dropout_mask_bytes=batch.dropout_mask_bytes,
    )


def _base_of(recipe: Recipe) -> Base:
    """What of a frozen base is in 16 bits under autocast."""
    if recipe.adapter is None or not recipe.autocast or recipe.parameters == "fp32":
        return ""
    return "matrices" if recipe.adapter.rest == "fp32" else "bf16"


@lru_cache(maxsize=256)
def rank_shape(model: Model, tp: int) -> Shape:
    """The sizes of ``model`` on a rank of tensor parallelism, each norm as its kind of block has
    it.

    Args:
        tp: ranks that share each layer.

    Raises:
        UsageError: the model's layers are not known, or not by the tape.
    """
    norm = "rmsnorm" if model.mlp == "swiglu" else "layernorm"
    # Fewer key heads than ranks are copied, so that each rank has one.
    kv_heads = max(model.kv_heads, tp)
    return shape_of(model.require_shapes(), layout=(), norm=norm, kv_heads=kv_heads)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The step of one rank of pipeline device ``device``.

    ``numbers`` are ``seq``, ``micro_batch``, ``dp`` and ``layers`` of a sweep, maybe arrays, in
    place of those that the batch, the parallelism and the model have.
    """

    model: Model
    parallel: Parallel
    recipe: Recipe
    batch: Batch
    device: int = 0
    ideal: bool = False
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse what cannot be, or is not known.

        Raises:
            BadValue: a rule of :meth:`Parallel.check` or :meth:`Recipe.check_offload` is broken.
            UsageError: the account has no term for what is asked.
        """
        self.parallel.check(self.model, self.batch)
        self.recipe.check_offload(self.parallel.zero)
        self.model.require_shapes()
        if self.parallel.cp > 1 and self.batch.attention == "eager":
            raise BadValue(
                f"attention must be sdpa or flash where cp is {self.parallel.cp}, got eager:"
                " outputs of several ranks' keys are merged by a kernel's log of sums"
            )
        self._check_older()
        if self.recipe.adapter is not None:
            self.recipe.adapter.check(self.model)
            self._check_tuner(self.recipe.adapter)
        if self.recipe.adapter is not None or self.recipe.trained:
            self._check_frozen()
        if self.batch.target_seq is not None:
            raise BadValue(
                f"target_seq must be None for {self.model.name}, a decoder alone, got"
                f" {self.batch.target_seq}"
            )
        if self.batch.partition_checkpoints:
            raise UsageError(
                "partition_checkpoints must be False in the account tensor by tensor;"
                " formula='zero-paper' has it"
            )
        if self.batch.every > max(1, self.model.num_layers):
            raise BadValue(
                f"recompute must be a word, or at most the {self.model.num_layers} layers of"
                f" {self.model.name}, got {self.batch.recompute}"
            )
        whole = self.recipe.optimizer in {"adafactor", "muon"}
        if whole and self.parallel.shard_rule == "flat":
            raise BadValue(
                f"shard_rule must be dim0 or tensor for {self.recipe.optimizer}, whose states need"
                " rows and columns; a slice of a flat buffer has none"
            )
        if self.trained is not None:
            self._check_all_trained()
        if self.recipe.in_backward:
            self._check_in_backward()
        if self.batch.reentrant:
            self._check_reentrant()
        chunks = self.batch.loss_chunks
        by_number = self.batch.loss.startswith("chunked") and self.batch.loss_chunk_tokens is None
        if by_number and isinstance(chunks, int) and chunks < 2:
            raise BadValue(f"loss_chunks must be >= 2 for a chunked head, got {chunks}")

    def _check_all_trained(self) -> None:
        """Refuse what the account knows of wholly trained models alone."""
        if self.batch.offload_activations != "device":
            raise BadValue(
                "offload_activations must be device where parameters are frozen: how what frozen"
                " layers keep comes back is not known"
            )
        if self.recipe.in_backward:
            raise BadValue(
                f"step must be foreach, fused or for-loop where parameters are frozen, got"
                f" {self.recipe.step}"
            )

    def _check_in_backward(self) -> None:
        """Refuse a step inside the backward pass where gradients are not those of one rank."""
        step = self.recipe.step
        if (ranks := self.parallel.world_size) > 1:
            raise BadValue(
                f"dp, tp, cp and pp must be 1 where the step is {step}, inside the backward pass;"
                f" got {ranks} ranks: how their gradients meet before it is not known"
            )
        if self.batch.loss == "fused":
            raise BadValue(
                f"loss must not be fused where the step is {step}: its kernel makes the gradient of"
                " the head's matrix in the forward pass"
            )

    def _check_older(self) -> None:
        """Refuse what older code of transformers does not do, or nobody ran with it."""
        older = [name for name in self.model.operators if name in OLDER]
        if not older:
            return
        batch = self.batch
        whole = batch.recompute not in {"selective", "operators"}
        device = batch.offload_activations == "device"
        fields = {
            "adapter.tokens": (self._virtual, 0, self._virtual == 0),
            "cp": (self.parallel.cp, 1, self.parallel.cp == 1),
            "recompute": (batch.recompute, "none, full or a number", whole),
            "offload_activations": (batch.offload_activations, "device", device),
        }
        for name, (value, valid, holds) in fields.items():
            if not holds:
                raise BadValue(
                    f"{name} must be {valid} with the operators of older versions of transformers"
                    f" ({', '.join(older)}), got {value}"
                )

    def _check_reentrant(self) -> None:
        """Refuse reentrant checkpoints where a layer would not learn, or they are not known."""
        trained = self.trained
        asked = self.mode.input_gradients or trained is None
        if not asked and trained is not None and trained.deepest >= 0:
            raise BadValue(
                "input_gradients must be True where reentrant is and the embedding is frozen, got"
                " False: a reentrant checkpoint has a gradient only where its input has one"
                " (transformers' enable_input_require_grads)"
            )
        if self.parallel.zero == 3 or self.parallel.cp > 1:
            raise BadValue(
                f"reentrant must be False where zero is 3 or cp is not 1, got zero"
                f" {self.parallel.zero} and cp {self.parallel.cp}: how layers are gathered inside"
                " its own backward pass is not known"
            )
        if self.recipe.in_backward:
            raise BadValue(
                f"reentrant must be False where the step is {self.recipe.step}, inside the backward"
                " pass"
            )

    def _check_tuner(self, adapter: Adapter) -> None:
        """Refuse what is not known of adapters that are not LoRA's."""
        if adapter.kind == "lora":
            return
        if self.parallel.zero == 3:
            raise BadValue(
                f"zero must be <= 2 where the adapter is {adapter.kind}, got 3: it is known of one"
                " rank's layers alone"
            )
        seen = self.batch.seq + adapter.tokens
        if self.model.positions and seen > self.model.positions:
            raise BadValue(
                f"seq must be at most {self.model.positions - adapter.tokens} for"
                f" {self.model.name} behind {adapter.tokens} virtual tokens, got {self.batch.seq}"
            )

    def _check_frozen(self) -> None:
        """Refuse what the account does not know of frozen parameters."""
        parallel = self.parallel
        what = "there is an adapter" if self.recipe.adapter else "only a part is trained"
        if self.recipe.trained and self.model.layout:
            raise UsageError(
                f"trained must be empty for {self.model.name}, a module that was measured: it says"
                " itself what is trained, by requires_grad"
            )
        for name in ("tp", "pp", "cp", "ep"):
            if (degree := getattr(parallel, name)) > 1:
                raise BadValue(f"{name} must be 1 where {what}, got {degree}")
        cast = self.recipe.compute is not None and not self.recipe.autocast
        alone = parallel.zero < 3 or bool(np.all(np.equal(self.held.degree, 1)))
        if self.recipe.adapter is not None and cast and alone:
            raise BadValue(
                f"compute must be None where {what}, no autocast and no FSDP, got"
                f" {self.recipe.compute}: the base is used as it is stored; zero=3 on 2 ranks or"
                " more casts what it gathers"
            )
        if self.batch.loss == "fused":
            raise BadValue(
                f"loss must not be fused where {what}: its kernel makes the gradient of the head's"
                " matrix"
            )
        trained = self.trained
        if "layers" in self.numbers and trained is not None and len(trained.layers) > 1:
            raise UsageError(f"num_layers must be a number, not an axis, where {what}")

    @cached_property
    def mode(self) -> Mode:
        """Which operators the job runs."""
        mode = mode_of(self.model, self.recipe, self.batch, self.parallel.sp_gather)
        if mode.recompute == "every" and self.batch.every > self.layers:
            return replace(mode, recompute="none")  # so seldom that it is never
        return mode

    @cached_property
    def shape(self) -> Shape:
        """The model's sizes on the rank."""
        return rank_shape(self.model, self.parallel.tp)

    @cached_property
    def layers(self) -> int:
        """Layers of the device."""
        lengths = self.parallel.stage_layers(self.model.num_layers)
        return sum(lengths[stage] for stage in self.parallel.stages(self.device))

    @cached_property
    def dense_layers(self) -> int:
        """Layers of the device that have an MLP and no experts."""
        units = self.parallel.units(self.model, self.device)
        return sum(unit.count for unit in units if unit.name == "block")

    @cached_property
    def ends(self) -> set[str]:
        """The device's units that are no layers."""
        units = self.parallel.units(self.model, self.device)
        return {unit.name for unit in units if "block" not in unit.name}

    @cached_property
    def has_embedding(self) -> bool:
        """Whether the device has the embedding."""
        return bool({"root", "embedding"} & self.ends)

    @cached_property
    def has_head(self) -> bool:
        """Whether the device has the head."""
        return bool({"root", "head"} & self.ends)

    @property
    def microbatches(self) -> int:
        """Microbatches of a step; enough to fill a pipeline where the recipe does not say."""
        given = self.recipe.accumulation
        return given if given > 1 or self.parallel.pp == 1 else 2 * self.parallel.pp

    @property
    def gradients_stay(self) -> bool:
        """Whether gradients are there throughout a step: in a buffer, or to be added up."""
        return self.gradients_once or self.recipe.accumulation > 1 or self.parallel.pp > 1

    @property
    def gradients_once(self) -> bool:
        """Whether gradients lie in a buffer that is made once, before the first step."""
        return self.recipe.gradient_buffer or self.parallel.gradient_buckets == "views"

    @cached_property
    def in_flight(self) -> float:
        """Microbatches whose activations the device holds at most."""
        return max(1.0, float(self.parallel.in_flight(self.device, self.microbatches)))

    @cached_property
    def casts(self) -> bool:
        """Whether weights are cast as wholes, before they are used."""
        recipe = self.recipe
        return not recipe.autocast and recipe.compute_bytes != recipe.parameter_bytes

    @cached_property
    def trained(self) -> Trained | None:
        """What is trained; None where all is, or where it is not known of the layers."""
        return trained_of(self.model, self.recipe.adapter, self.recipe.trained)

    @cached_property
    def held(self) -> Holding:
        """The states that the rank holds."""
        return Holding(
            tensors=rows_of(
                self.model, self.parallel, self.device, self.recipe.adapter, self.trained
            ),
            parallel=self.parallel,
            recipe=self.recipe,
            dp=self.numbers.get("dp", self.parallel.dp),
            layers=self.numbers.get("layers"),
            ideal=self.ideal,
        )

    @cached_property
    def own_shape(self) -> Shape:
        """The shape of the device's own layers.

        Without both ends its vocabulary is next to nothing, so that no head is counted.
        """
        changes: dict[str, Any] = {"num_layers": self.layers, "dense_layers": self.dense_layers}
        if "layers" in self.numbers:
            changes = {"num_layers": self.numbers["layers"]}
        if not (self.has_embedding or self.has_head):
            changes["vocab"] = self.parallel.tp
        return shape_of(self.shape, **changes)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """What saved tensors and moments take beside the shape and the mode."""
        return (
            {
                "seq": self.numbers.get("seq", self.batch.seq) // self.parallel.cp + self._virtual,
                "micro_batch": self.numbers.get("micro_batch", self.batch.micro_batch),
                "tp": self.parallel.tp,
                "ep": self.parallel.ep,
                "cp": self.parallel.cp,
                "cp_exchange": self.parallel.cp_exchange,
                "sequence_parallel": self.parallel.sp,
                "period": max(1, self.batch.every),
                "group": self.batch.recompute_group,
            }
            | self._chunks()
            | self._adapted()
            | self._updated()
            | ({"reentrant": True} if self.batch.reentrant else {})
        )

    @property
    def _virtual(self) -> int:
        """Virtual tokens in front of each sample."""
        return self.recipe.adapter.tokens if self.recipe.adapter is not None else 0

    def _chunks(self) -> dict[str, Any]:
        """How the head parts the tokens: how many parts, or how many tokens each.

        Source of Liger's rule: liger-kernel 0.6, ops/fused_linear_cross_entropy.py.
        """
        batch = self.batch
        each: Any = batch.loss_chunk_tokens
        if each is None and batch.loss_chunks != "liger":
            return {"chunks": batch.loss_chunks}
        seq = self.numbers.get("seq", batch.seq) // self.parallel.cp + self._virtual
        tokens = seq * self.numbers.get("micro_batch", batch.micro_batch)
        if self.parallel.sp:
            tokens = tokens // self.parallel.tp
        if each is None:
            wide = -(-self.shape.vocab // self.parallel.tp // self.shape.hidden)
            each = 2 ** np.ceil(np.log2(-(-tokens // wide))).astype(int)
            each = each if is_array(tokens) else int(each)
        return {"chunks": -(-tokens // each), "chunk_tokens": each}

    def _updated(self) -> dict[str, Any]:
        """What the tape takes of a step inside the backward pass; nothing where there is none."""
        recipe = self.recipe
        if not recipe.in_backward:
            return {}
        way = {"lomo": "late", "backward-fused": "in place"}.get(recipe.step, "root")
        if recipe.optimizer != "adam" or recipe.paged:
            way = "late" if recipe.step == "lomo" else "in place"
        return {"update": way, "state_bytes": int(DTYPE_BYTES[recipe.states])}

    def _adapted(self) -> dict[str, Any]:
        """What the tape takes of what is trained; nothing where all is."""
        adapter = self.recipe.adapter
        trained = self.trained
        if trained is not None and self.mode.input_gradients:
            trained = replace(trained, ends=trained.ends | {"input"})
        chosen: dict[str, Any] = {} if trained is None else {"trained": trained}
        if adapter is None:
            return chosen
        if adapter.kind != "lora":
            chosen |= {"tuner": adapter.kind}
        if adapter.is_prompt:
            chosen |= {
                "prompt_tokens": adapter.tokens,
                "prompt_hidden": adapter.hidden or self.model.hidden,
            }
        return chosen | {
            "rank": adapter.rank,
            "adapted": () if adapter.is_prompt else adapter.targets,
            "adapter_bytes": int(DTYPE_BYTES[self.recipe.adapter_format]),
            "adapter_dropout": adapter.dropout,
            "packed": adapter.packed,
        }


def jobs(
    model: Model,
    parallel: Parallel,
    recipe: Recipe,
    batch: Batch,
    ideal: bool,
    rank: int | None = None,
    **numbers: Any,
) -> Iterator[Job]:
    """The job of a rank of each pipeline device that can be the fullest.

    Args:
        ideal: divide by the number of ranks where torch rounds up to whole rows.
        rank: the job of this pipeline rank alone.
        numbers: fields of :class:`Job` that a sweep varies, maybe as arrays.

    Raises:
        UsageError: as :meth:`Job.check` does.
    """
    model, recipe = resolved(model, recipe)
    chosen = devices(parallel, model) if rank is None else (rank,)
    for device in chosen:
        job = Job(
            model=model,
            parallel=parallel,
            recipe=recipe,
            batch=batch,
            device=device,
            ideal=ideal,
            numbers=numbers,
        )
        if device == chosen[0]:
            job.check()
        yield job


def devices(parallel: Parallel, model: Model) -> tuple[int, ...]:
    """The pipeline devices that can be the fullest: all, or three where the others are alike.

    Activations in flight do not grow from device 1 on in any schedule known here, and what lies
    between the ends has the same layers unless the first of them are dense and the rest not.
    """
    uneven = parallel.layers is not None or parallel.layer_split != "even" or model.dense_layers
    if uneven or parallel.pp <= 3:
        return tuple(range(parallel.pp))
    return (0, 1, parallel.pp - 1)
