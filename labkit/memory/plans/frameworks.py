"""What training frameworks do by default, as options of a plan: bundles, not another account.

A user says what they run instead of a dozen options; whatever else is said goes before the bundle.
Versions and files read stand in each ``source``. What the allocator reserves beyond what is
allocated is an allowance, measured by others, and shown apart from the computed bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any

from annotated_types import Ge

from labkit.errors import BadValue, not_among
from labkit.hardware import accelerator
from labkit.kit.describe import NonNegative, description
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import PRESETS, Recipe
from labkit.memory.plans import workspaces
from labkit.memory.plans.plan import FIELDS, PARTS, Plan
from labkit.models import Model
from labkit.quantities import GIB

CONTEXT_BYTES = GIB
"""Allowance for CUDA's context and NCCL's buffers, not computed: about half a GiB each."""


@description(slots=True)
class Framework:
    """The defaults of one framework that decide memory.

    Attributes:
        recipe: name of the preset of number formats.
        fields: of ``Parallel``, ``Batch`` and ``Recipe``.
        replicated: fields that hold at ZeRO's stage 0 on several replicas.
        sharded: fields that hold at ZeRO's stage 3 (``recipe``: where no other is said),
            ``tensor`` with tensor parallelism, ``offloaded`` where the optimizer is not on the
            device.
        recipes: what a recipe is under this framework, by its name: other fields, or ``recipe``,
            another one.
        lacks: degrees whose buffers are not known, which must be 1.
        transformer_engine: whether its layers multiply by TransformerEngine, which has a
            workspace of its own.
        operators: what its models compute otherwise than by one kernel; none: what the model says.
        usual: the same by the model's kind of MLP, where neither says (a preset has sizes alone).
        reserved_over_allocated: bytes the allocator reserves for one allocated; 1 where no logs of
            this framework print both.
        source: where the defaults and the ratio were read.
    """

    name: str
    recipe: str
    fields: Mapping[str, Any]
    replicated: Mapping[str, Any] = field(default_factory=dict)
    sharded: Mapping[str, Any] = field(default_factory=dict)
    tensor: Mapping[str, Any] = field(default_factory=dict)
    offloaded: Mapping[str, Any] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    operators: tuple[str, ...] = ()
    transformer_engine: bool = False
    usual: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reserved_over_allocated: Annotated[float, Ge(1)] = 1.0
    context_bytes: NonNegative = CONTEXT_BYTES
    source: str

    def plan(self, model: Model, *, card: str | None = None, **said: Any) -> Plan:
        """A plan with this framework's defaults where nothing else is ``said``.

        ``said`` are fields of ``Parallel``, ``Batch`` and ``Recipe``, ``recipe`` the name of a
        preset, ``operators`` those of the model. Allowances for the allocator and for CUDA are the
        framework's. ``card`` is an accelerator's name: cuBLAS's workspaces, which differ by card,
        are counted where it is said.

        Raises:
            UsageError: a field is unknown, or a value breaks a rule.

        >>> model = Model.preset("llama-3-8b")
        >>> FRAMEWORKS["torchtitan"].plan(model, dp=8, seq=8192).parallel.keep_gathered
        'head'
        """
        usual = self.operators or model.operators
        if not usual and model.num_layers:  # of a network that is traced its modules say it
            usual = self.usual.get(model.mlp, ())
        operators = tuple(said.pop("operators", usual))
        spread = {**self.fields, **said}
        sharded = dict(self.sharded) if spread.get("zero") == 3 else {}
        if not spread.get("zero") and spread.get("dp", 1) > 1:
            sharded = dict(self.replicated)
        otherwise = sharded.pop("recipe", self.recipe)
        own = dict(self.recipes.get(said.get("recipe", otherwise), {}))
        preset = own.pop("recipe", said.pop("recipe", otherwise))
        said.pop("recipe", None)
        if preset not in PRESETS:
            raise not_among("recipe", preset, PRESETS)
        # What a recipe says goes before what the framework does.
        defaults = {**self.fields, **sharded}
        options = {name: defaults[name] for name in defaults if name not in PRESETS[preset]}
        options = options | own | self._workspaces(card) | said
        for name in self.lacks:
            if options.get(name, 1) > 1:
                raise BadValue(
                    f"{name} must be 1 under {self.name}, got {options[name]}: which buffers it"
                    " takes there is not known; torchtitan, hf-trainer and megatron have it"
                )
        if options.get("tp", 1) > 1:
            options = {**self.tensor, **options}
        if options.get("offload_optimizer", "device") != "device":
            options = {**self.offloaded, **options}
        parts: dict[type, dict[str, Any]] = {kind: {} for kind in PARTS}
        for name, value in options.items():
            if name not in FIELDS:
                raise not_among("field", name, sorted(FIELDS))
            parts[FIELDS[name]][name] = tuple(value) if isinstance(value, list) else value
        if model.norm != "rmsnorm":
            operators = tuple(name for name in operators if name != "norm")
        return Plan(
            model=replace(model, operators=operators),
            parallel=Parallel(**parts[Parallel]),
            recipe=Recipe.preset(preset, **parts[Recipe]),
            batch=Batch(**parts[Batch]),
            fragmentation=1 - 1 / self.reserved_over_allocated,
            context_bytes=self.context_bytes,
        )

    def _workspaces(self, card: str | None) -> dict[str, int]:
        """Bytes that cuBLAS keeps on the card for torch and for the layers' own library."""
        if card is None:
            return {}
        found = {"workspace_bytes": workspaces.of_torch(accelerator(card))}
        if self.transformer_engine:
            size = workspaces.of_transformer_engine(accelerator(card))
            found["layer_workspace_bytes"] = size
        return found


_TITAN = {"zero": 3, "attention": "sdpa", "gpu": True}
_TITAN_TENSOR = {"sp": True, "sp_gather": "kept", "loss": "loss-parallel"}
_MEGATRON = {
    "zero": 1,
    "shard_rule": "flat",
    "attention": "flash",
    "gpu": True,
    "step": "fused",
    "gradient_buffer": True,
    "cp_exchange": "ring",
}
# What transformers' modules (5.23) run, as labkit/models/huggingface.py reads it for a config.json.
_TRANSFORMERS = {"swiglu": ("norm", "mask", "softmax-fp32"), "gelu": ("mask", "gelu")}
# The trainer's bf16=True is autocast, whatever the format of a frozen base.
_CAST = {"autocast": True, "compute": "bf16"}
# Their own fp32 copy of the parameters is what is stepped, by 8-bit states too.
_MASTER = {"adam-8bit": {"recipe": "adam-8bit-master"}}
_NARROW_ADAPTERS = {"gradients": "bf16", "states": "bf16"}
_ALL = (
    Framework(
        name="torchtitan",
        recipe="fsdp-bf16",
        fields=_TITAN | {"step": "fused", "recompute": "operators", "layer_split": "torchtitan"},
        sharded={"wrap": "parts", "keep_gathered": "head"},
        tensor=_TITAN_TENSOR,
        operators=("repeat-kv",),
        reserved_over_allocated=1.204,
        source="pytorch/torchtitan since 2025-07-28 (PR 1094): models/llama3/infra/parallelize.py,"
        " components/loss.py, distributed/pipeline_parallel.py; reserved over active: PR 699,"
        " 49.586 over 41.171 GiB",
    ),
    Framework(
        name="torchtitan-2024",
        recipe="fsdp-bf16",
        fields=_TITAN | {"step": "foreach", "recompute": "operators"},
        sharded={"wrap": "blocks", "keep_gathered": "last block"},
        tensor=_TITAN_TENSOR,
        operators=("norm", "repeat-kv"),
        reserved_over_allocated=1.204,
        source="pytorch/torchtitan from 2024-06-12 (PR 391) to 2025-03-19 (PR 985):"
        " parallelisms/parallelize_llama.py, models/llama/model.py; ratio as above",
    ),
    Framework(
        name="megatron",
        recipe="fp32-gradients",
        fields=_MEGATRON | {"loss": "vocab-parallel", "swiglu_fused": True},
        tensor={"sp": True, "sp_gather": "buffer"},
        recipes=_MASTER,
        transformer_engine=True,
        source="NVIDIA/Megatron-LM: tensor_parallel/{layers,cross_entropy}.py,"
        " distributed/{distributed_data_parallel,param_and_grad_buffer}.py,"
        " fusions/fused_bias_swiglu.py, training/arguments.py (bf16, distributed optimizer)",
    ),
    Framework(
        name="nanotron",
        recipe="fp32-gradients",
        fields=_MEGATRON | {"loss": "vocab-parallel-copy"},
        tensor={"sp": True, "sp_gather": "kept"},
        lacks=("cp",),
        reserved_over_allocated=1.08,
        source="huggingface/nanotron to 2024-07-17 (1e02a9ce; since then it gathers again):"
        " parallel/tensor_parallel/functional.py, models/llama.py,"
        " optim/gradient_accumulator.py; reserved over allocated 1.01 to 1.16 in its logs",
    ),
    Framework(
        name="deepspeed",
        recipe="bf16-mixed",
        fields={
            **{"attention": "sdpa", "gpu": True, "step": "fused", "zero": 3},
            "reduce_bucket_size": 500_000_000,
        },
        sharded={"gradient_buffer": True, "persistent": 100_000},
        offloaded={"offload_gradients": "cpu"},
        recipes=_MASTER | {"lora": {"recipe": "lora-master"}},
        lacks=("cp",),
        usual=_TRANSFORMERS,
        source="deepspeedai/DeepSpeed at edaa72212: runtime/zero/{stage3,stage_1_and_2}.py (stage 3"
        " has a flat buffer of a rank's gradients and one for its bucket, both made once, the first"
        " on the host where the optimizer is), runtime/zero/parameter_offload.py"
        " (mark_persistent_parameters);"
        " models as transformers has them",
    ),
    Framework(
        name="hf-trainer",
        recipe="bf16-autocast",
        fields={"attention": "sdpa", "gpu": True, "step": "fused", "input_gradients": True},
        replicated={"gradient_buckets": "copies"},
        sharded={"recipe": "fsdp-bf16-reduce", "wrap": "blocks"},
        recipes={name: {"wide_embeddings": True} for name in ("adam-8bit", "adam-8bit-paged")}
        | {"lora": _CAST, "qlora": _CAST},
        usual=_TRANSFORMERS,
        source="transformers 5.23: training_args.py (adamw_torch_fused), trainer.py, loss_utils.py,"
        " modeling_utils.py (enable_input_require_grads);"
        " accelerate 1.15: utils/dataclasses.py (DistributedDataParallelKwargs, no views;"
        " FullyShardedDataParallelPlugin.set_mixed_precision: bf16 gathered and reduced)",
    ),
    Framework(
        name="torchtune",
        recipe="pure-bf16",
        fields={
            **{"attention": "sdpa", "gpu": True, "step": "fused", "recompute": "full"},
            "loss": "chunked-output",
        },
        sharded={"wrap": "blocks"},
        recipes={"lora": _NARROW_ADAPTERS, "qlora": _NARROW_ADAPTERS},
        operators=("norm", "repeat-kv"),
        source="pytorch/torchtune 0.6.1: recipes/configs (dtype bf16, AdamW fused, activation"
        " checkpointing, CEWithChunkedOutputLoss, no compilation), modules/{rms_norm,attention,"
        "peft/lora}.py (adapters in the model's format)",
    ),
    Framework(
        name="litgpt",
        recipe="pure-bf16",
        fields={"attention": "sdpa", "gpu": True, "step": "foreach", "logits_held": "compute"},
        recipes={
            "lora": _NARROW_ADAPTERS
            | {"loss": "chunked-output", "loss_chunk_tokens": 128, "logits_held": "none"}
        },
        operators=("norm", "repeat-kv"),
        source="Lightning-AI/litgpt at 26857050: config_hub/finetune (bf16-true, torch's AdamW),"
        " finetune/{full,lora}.py (the loop holds the logits; with adapters the head takes 128"
        " tokens of each sample at a time), model.py, lora.py",
    ),
)
FRAMEWORKS: dict[str, Framework] = {framework.name: framework for framework in _ALL}


def framework(name: str) -> Framework:
    """A framework by its name.

    Raises:
        UsageError: there is none of that name; the message says which are like it.
    """
    if name not in FRAMEWORKS:
        raise not_among("framework", name, FRAMEWORKS)
    return FRAMEWORKS[name]
