"""Number formats, optimizer and offload: what one parameter costs, and by which tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Gt, Le

from labkit.errors import BadValue, UsageError, not_among
from labkit.kit.describe import Whole, checked, description
from labkit.memory.jobs.adapter import Adapter
from labkit.memory.jobs.trained import check_words
from labkit.memory.tape.mode import Size
from labkit.models import TensorShape

Dtype = Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4"]
Optimizer = Literal[
    "adam",
    "sgd",
    "adafactor",
    "muon",
    "adam-8bit",
    "adam-8bit-torchao",
    "adam-4bit-torchao",
    "adam-fp8-torchao",
]
Step = Literal["foreach", "fused", "for-loop", "backward", "backward-fused", "lomo"]
Place = Literal["device", "cpu", "nvme"]

DTYPE_BYTES: dict[str, float] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "int4": 0.5}
_WIDE = ("fp32", "bf16", "fp16")
# A step counter, which torch keeps as an fp32 tensor beside each parameter's states.
COUNTER_BYTES = 4
IN_BACKWARD = ("backward", "backward-fused", "lomo")
"""Steps that are taken tensor by tensor inside the backward pass."""
# bitsandbytes pages no states of smaller tensors (optim/optimizer.py, get_state_buffer).
SMALLEST_PAGED = 100_000


class Quantised(NamedTuple):
    """How a library lays out Adam's two states where each block of elements shares an fp32 scale.

    Attributes:
        width: bytes of an element.
        block: elements that share a scale.
        table_bytes: of the two tables of fp32 values that codes stand for; ``shared`` by all
            tensors, or one a tensor.
        whole_blocks: tensors that are not whole blocks are left as they are.
        smallest: tensors with fewer elements are left as they are: in fp32 where ``wide``, else in
            the format of the parameter.
    """

    width: float
    block: int
    table_bytes: int
    shared: bool = False
    whole_blocks: bool = True
    wide: bool = False
    smallest: int = 4096


QUANTISED: dict[str, Quantised] = {
    "adam-8bit": Quantised(1, 256, 2 * 256 * 4, shared=True, whole_blocks=False, wide=True),
    "adam-8bit-torchao": Quantised(1, 256, 2 * 256 * 4),
    "adam-4bit-torchao": Quantised(0.5, 128, 2 * 16 * 4),
    "adam-fp8-torchao": Quantised(1, 256, 0),
}
"""Optimizers whose states are quantised.

Source: bitsandbytes 0.50.2, optim/optimizer.py (``init_state``); torchao 0.14.1, optim/adam.py
(``_new_buffer``) and optim/subclass_{8bit,4bit,fp8}.py.
"""


@description(slots=True)
class Recipe:
    """In which formats a step computes, stores and sends, and what its optimizer remembers.

    The default is mixed-precision Adam: 16-bit parameters and gradients, fp32 master copy, momentum
    and variance, 16 bytes a parameter (ZeRO §3.1).

    Attributes:
        parameters, gradients: formats of what is stored between steps and until the step.
        second_gradients: one more copy of the gradients, in this format.
        master: format of the optimizer's own copy of the parameters; None for no copy.
        optimizer: ``"adam"`` (AdamW too) remembers momentum and variance of every parameter;
            ``"sgd"`` momentum, or nothing; ``"adafactor"`` a number a row and one a column of
            matrices, the variance of vectors; ``"muon"`` momentum of matrices inside layers, Adam's
            states of all else; those of :data:`QUANTISED` Adam's in fewer bits with an fp32 scale a
            block, as bitsandbytes (``"adam-8bit"``) and torchao lay them out. ``states`` is the
            format of its states where it is not quantised.
        momentum: whether SGD has one. ``amsgrad``: Adam keeps the largest variance too.
        block: elements that share a scale in quantised states; None for what the library has
            (Dettmers et al. 2022, §2, has 2,048; bitsandbytes 0.50 has 256).
        wide_embeddings: states of embeddings stay in fp32, as transformers' Trainer asks of
            bitsandbytes' 8-bit optimizers (``create_optimizer`` of trainer.py 5.23).
        paged: states of tensors with 100,000 elements or more are in CUDA's managed memory
            (bitsandbytes' paged optimizers), which the driver moves between host and device: they
            are counted on the CPU, and no part of the peak.
        compute: format of the matrix products; None for that of the parameters. With ``autocast``
            torch casts each weight at its first use and keeps the cast until the forward ends or
            its gradient is done; without, weights are cast where they are gathered (FSDP2's
            ``param_dtype``).
        gather, reduce: formats on the wire of parameters and of gradients; None for what is stored,
            or for ``compute`` where weights are cast before they are gathered. ZeRO++ sends int8
            and int4.
        reduce_bucket_size, overlap_comm: DeepSpeed's buckets of gradients, in elements (its
            default is 500,000,000; 0: no buckets). At stages 1 and 2 they are there in the backward
            pass, two of them where communication overlaps it (``ipg_buffer`` in its
            ``stage_1_and_2.py``); at stage 3 one is made once (``__ipg_bucket_flat_buffer`` in
            ``stage3.py``). Parameters are
            gathered in place there, so ``allgather_bucket_size`` needs no room of its own.
        step: how the optimizer runs: over lists of tensors, in one kernel, or one by one; or
            inside the backward pass, each tensor as soon as its gradient is there, which is then
            dropped: by torch's default (``"backward"``) or one kernel (``"backward-fused"``) in a
            hook behind the gradient, or as LOMO does (``"lomo"``): when the next gradient is made,
            by fp32 copies of the gradient and of the parameter.
        accumulation: micro-batches whose gradients add up before a step.
        gradient_buffer: gradients lie in a buffer that is allocated once, before the first step,
            and stays (Megatron-LM's, nanotron's, DeepSpeed's at stage 3); False: each is made in
            the backward pass and dropped after the step, as ``zero_grad`` of torch does.
        offload_parameters, offload_gradients, offload_optimizer: where they are kept (ZeRO-Offload:
            gradients and optimizer on the CPU; ZeRO-Infinity: any of them on NVMe).
        offload_fraction: the share of the optimizer that is kept there (DeepSpeed's ``ratio``, in
            whole sub-groups there; Megatron-LM's ``--optimizer-offload-fraction``).
        adapter: what is trained in place of all parameters, which are then frozen.
        trained: the parts of the model that are trained, all others frozen; empty for all of it:
            ``"embedding"``, ``"norm"`` (the last one), ``"head"``, ``"layers"``, ``"layers.30"``,
            ``"layers.30-31"``, of layers also ``".attention"``, ``".mlp"``, ``".norms"`` and
            ``".biases"``.

    >>> Recipe().optimizer_bytes, Recipe().bytes_per_param
    (12, 16)
    """

    name: str = "mixed-precision Adam"
    parameters: Dtype = "bf16"
    gradients: Dtype = "bf16"
    second_gradients: Dtype | None = None
    master: Dtype | None = "fp32"
    optimizer: Optimizer = "adam"
    states: Dtype = "fp32"
    momentum: bool = True
    amsgrad: bool = False
    block: Size | None = None
    wide_embeddings: bool = False
    paged: bool = False
    compute: Dtype | None = None
    autocast: bool = False
    gather: Dtype | None = None
    reduce: Dtype | None = None
    reduce_bucket_size: Whole = 0
    overlap_comm: bool = False
    step: Step = "foreach"
    accumulation: Size = 1
    gradient_buffer: bool = False
    offload_parameters: Place = "device"
    offload_gradients: Place = "device"
    offload_optimizer: Place = "device"
    offload_fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    adapter: Adapter | None = None
    trained: tuple[str, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        if self.overlap_comm and not self.reduce_bucket_size:
            raise BadValue("reduce_bucket_size must be at least 1 where overlap_comm is True")
        if self.autocast and self.compute is None:
            raise BadValue("autocast must have a compute format, such as bf16")
        if self.amsgrad and self.optimizer != "adam":
            raise BadValue(f"amsgrad must be False for {self.optimizer}: it is Adam's")
        if not self.momentum and self.optimizer != "sgd":
            raise BadValue(f"momentum must be True for {self.optimizer}: only sgd is without")
        self._check_quantised()
        self._check_places()
        if self.in_backward:
            self._check_in_backward()
        check_words(self.trained)
        if self.adapter is not None:
            self._check_adapter(self.adapter)

    def _check_quantised(self) -> None:
        """Refuse formats of states that the optimizer would ignore."""
        if self.optimizer in QUANTISED and self.states != "fp32":
            raise BadValue(
                f"states must be fp32 for {self.optimizer}, got {self.states}: its states are"
                " quantised with a scale a block; adam has states of every format, and"
                f" {', '.join(QUANTISED)} are quantised"
            )
        if self.optimizer not in QUANTISED and self.block is not None:
            raise BadValue(
                f"block must be None for {self.optimizer}, got {self.block}: only the states of"
                f" {', '.join(QUANTISED)} share scales"
            )
        if self.wide_embeddings and self.optimizer != "adam-8bit":
            raise BadValue(
                f"wide_embeddings must be False for {self.optimizer}: it is of bitsandbytes'"
                " adam-8bit"
            )

    def _check_places(self) -> None:
        """Refuse places that exclude each other."""
        if self.paged and self.optimizer not in {"adam", "adam-8bit"}:
            raise BadValue(
                f"paged must be False for {self.optimizer}: bitsandbytes pages the states of adam"
                " and adam-8bit"
            )
        if self.paged and self.offload_optimizer != "device":
            raise BadValue(
                f"offload_optimizer must be device where states are paged, got"
                f" {self.offload_optimizer}"
            )
        if self.offload_fraction < 1 and self.offload_optimizer == "device":
            raise BadValue(
                f"offload_optimizer must be cpu or nvme where offload_fraction is"
                f" {self.offload_fraction}, got device"
            )

    def _check_in_backward(self) -> None:
        """Refuse what no step inside the backward pass has.

        Source: torchtune 0.6.1, training/memory.py (``register_optim_in_bwd_hooks``); LOMO
        0.1.1, lomo.py (``fuse_update``).
        """
        fixed = {
            "master": None,
            "second_gradients": None,
            "gradient_buffer": False,
            "accumulation": 1,
            "gradients": self.parameters,
            "offload_gradients": "device",
            "offload_optimizer": "device",
            "offload_parameters": "device",
            "adapter": None,
            "trained": (),
        }
        if not self.autocast:
            fixed["compute"] = None
        for name, needed in fixed.items():
            if (given := getattr(self, name)) != needed:
                raise BadValue(
                    f"{name} must be {needed} where the step is {self.step}, inside the backward"
                    f" pass, got {given}"
                )
        if self.optimizer in {"adafactor", "muon"}:
            raise BadValue(
                f"optimizer must not be {self.optimizer} where the step is {self.step}: what its"
                " step allocates for one tensor is known at the end of the backward pass only"
            )
        if self.step == "lomo" and (self.optimizer != "sgd" or self.momentum):
            raise BadValue(
                f"optimizer must be sgd without momentum where the step is lomo, got"
                f" {self.optimizer}; step='backward' takes every other"
            )

    def _check_adapter(self, adapter: Adapter) -> None:
        """Refuse formats in which nobody runs adapters, or which the account does not know."""
        if self.trained:
            raise BadValue(
                f"trained must be empty where there is an adapter, got {', '.join(self.trained)};"
                " ends that are trained as well are the adapter's saved"
            )
        if adapter.saved and self.gradients != self.parameters and self.master is not None:
            raise BadValue(
                f"master must be None where the adapter's saved ends are in another format than its"
                f" matrices, got {self.master}"
            )
        for name in ("parameters", "gradients"):
            if (given := getattr(self, name)) not in _WIDE:
                raise BadValue(
                    f"{name} must be {', '.join(_WIDE)} where there is an adapter, got {given}; a"
                    " base in 4 bits is the adapter's base='nf4'"
                )
        if adapter.quant_storage not in {"uint8", self.parameters}:
            raise BadValue(
                f"quant_storage must be uint8 or {self.parameters}, the format of the rest of the"
                f" base, got {adapter.quant_storage}: FSDP casts and cuts both alike"
            )
        if adapter.packed and self.compute not in {None, self.parameters}:
            raise BadValue(
                f"compute must be None or {self.parameters}, the format of the rest of the base,"
                f" where that is in 4 bits, got {self.compute}"
            )
        if adapter.rest == "fp32" and not self.autocast:
            raise BadValue(
                "autocast must be True where the adapter's rest is fp32 (compute bf16): without it"
                " attention would run in fp32, of which no run is known"
            )
        if adapter.packed and self.parameters == "fp32":
            raise BadValue(
                "parameters must be bf16 or fp16 where the base is in 4 bits, got fp32: it is the"
                " format of the rest, and of the products"
            )

    @classmethod
    @checked
    def preset(cls, name: str, **changes: Any) -> Recipe:
        """A recipe of :data:`PRESETS` by its short name, with other values of some fields.

        Raises:
            UsageError: there is none of that name; the message says which are like it.

        >>> Recipe.preset("bf16-mixed") == Recipe.bf16_mixed()
        True
        """
        if name not in PRESETS:
            raise not_among("recipe", name, PRESETS)
        return cls(**(PRESETS[name] | changes))

    @classmethod
    def mixed_adam(cls, **changes: Any) -> Recipe:
        """fp16 or bf16 parameters and gradients, fp32 master, momentum and variance: 16 bytes."""
        return cls.preset("mixed-adam", **changes)

    @classmethod
    def bf16_mixed(cls, **changes: Any) -> Recipe:
        """The same as :meth:`mixed_adam`, under the name of bf16."""
        return cls.preset("bf16-mixed", **changes)

    @classmethod
    def fp32_adam(cls, **changes: Any) -> Recipe:
        """Everything in fp32 and no master copy: also 16 bytes, and what FSDP2 keeps in shards."""
        return cls.preset("fp32-adam", **changes)

    @property
    def parameter_bytes(self) -> int | float:
        """Bytes of one parameter as it is stored."""
        return DTYPE_BYTES[self.parameters]

    @property
    def gradient_bytes(self) -> int | float:
        """Bytes of all copies of one parameter's gradient."""
        return DTYPE_BYTES[self.gradients] + _bytes(self.second_gradients)

    @property
    def master_bytes(self) -> int | float:
        """Bytes of one parameter in the optimizer's own copy; 0 where there is none."""
        return _bytes(self.master)

    @property
    def compute_format(self) -> Dtype:
        """The format of matrix products and of what they keep."""
        return self.compute or self.parameters

    @property
    def adapter_format(self) -> Dtype:
        """The format in which adapters work: as they are stored, or as FSDP casts what it
        gathers.
        """
        cast = self.compute is not None and not self.autocast
        return self.compute_format if cast else self.gradients

    @property
    def compute_bytes(self) -> int | float:
        """Bytes of an element in matrix products."""
        return DTYPE_BYTES[self.compute_format]

    @property
    def in_backward(self) -> bool:
        """Whether the step is taken tensor by tensor inside the backward pass."""
        return self.step in IN_BACKWARD

    @property
    def per_element(self) -> bool:
        """Whether each parameter costs the same whatever tensor it is in."""
        return self.optimizer in {"adam", "sgd"} and not self.paged

    @property
    def optimizer_bytes(self) -> int | float:
        """The paper's K: master copy and states of one parameter, step counters left out.

        Raises:
            UsageError: it depends on the tensor; use :func:`state_bytes`.
        """
        if not self.per_element:
            raise UsageError(
                f"the states of {'paged ' if self.paged else ''}{self.optimizer} depend on each"
                " tensor's shape, not on the number of parameters alone: they need a Model"
            )
        return sum(element_bytes(self).values())

    @property
    def bytes_per_param(self) -> int | float:
        """Bytes of one parameter, its gradient and its optimizer states."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    def bytes_of(self, component: str) -> int | float:
        """Bytes a parameter of ``"parameters"``, ``"gradients"`` or ``"optimizer"``."""
        width: int | float = getattr(self, f"{component.removesuffix('s')}_bytes")
        return width

    @property
    def scales(self) -> tuple[float, float]:
        """What is sent over what is held: of parameters, and of gradients."""
        cast = None if self.autocast else self.compute
        sent = _bytes(self.gather or cast or self.parameters)
        reduced = _bytes(self.reduce or self.gradients)
        return sent / self.parameter_bytes, reduced / self.gradient_bytes

    @property
    def counters_on(self) -> Place:
        """Where step counters are: torch leaves them on the CPU unless the step is fused."""
        fused = self.step.endswith("fused") and self.offload_optimizer == "device"
        return "device" if fused else "cpu"

    def refuse_adapter(self, what: str) -> None:
        """Refuse an adapter, or a trained part, where it would be ignored.

        Args:
            what: what knows none, as a sentence's subject.

        Raises:
            BadValue: there is one.
        """
        if self.trained:
            raise BadValue(
                f"trained must be empty: {what} takes every parameter as trained; the account by"
                " moments (a Model with a Batch) knows frozen ones"
            )
        if self.adapter is not None:
            raise BadValue(
                f"adapter must be None: {what} takes every parameter as trained; the account by"
                " moments (a Model with a Batch) knows adapters"
            )

    def refuse_fraction(self, what: str) -> None:
        """Refuse a fraction of the optimizer elsewhere where all of it would be taken to be.

        Args:
            what: what knows no fractions, as a sentence's subject.

        Raises:
            BadValue: there is one.
        """
        if self.offload_fraction < 1:
            raise BadValue(
                f"offload_fraction must be 1, got {self.offload_fraction}: {what} moves the whole"
                " optimizer; a plan's own account knows fractions"
            )

    @checked
    def check_offload(self, zero: Whole) -> None:
        """Refuse what ZeRO's stages cannot keep elsewhere.

        Raises:
            BadValue: parameters off the device need stage 3, gradients and optimizer states stage
                1, and NVMe stage 3. Source: DeepSpeed's configuration, "Parameter offloading" and
                "Optimizer offloading".
        """
        needs = {"parameters": 3, "gradients": 1, "optimizer": 1}
        for what, stage in needs.items():
            place = getattr(self, f"offload_{what}")
            least = 3 if place == "nvme" else stage
            if place != "device" and zero < least:
                raise BadValue(
                    f"zero must be >= {least} where offload_{what} is {place}, got {zero}"
                )


def _bytes(dtype: str | None) -> int | float:
    """Bytes of an element; 0 where there is no format."""
    return 0 if dtype is None else DTYPE_BYTES[dtype]


_FP32 = {"name": "fp32 Adam", "parameters": "fp32", "gradients": "fp32", "master": None}
_ADAPTERS = {"gradients": "fp32", "master": None, "source": "Hu et al. 2022; peft 0.21"}
_SHARDED = (
    "accelerate 1.15, utils/fsdp_utils.py (fsdp2_prepare_model) and utils/dataclasses.py"
    " (set_mixed_precision); peft 0.21"
)
_PURE: dict[str, Any] = {"master": None}
_BITS = "Dettmers et al. 2022; bitsandbytes 0.50.2, optim/optimizer.py"
_AO = "torchao 0.14.1, optim/adam.py"
_TORCHTUNE = (
    "torchtune 0.6.1, recipes full_finetune_single_device (dtype bf16) and training/memory.py"
)
PRESETS: dict[str, dict[str, Any]] = {
    "mixed-adam": {"source": "ZeRO §3.1"},
    "bf16-mixed": {"name": "bf16 mixed-precision Adam", "source": "ZeRO §3.1"},
    "fp32-adam": _FP32,
    "bf16-autocast": _FP32
    | {"name": "fp32 Adam, bf16 autocast", "compute": "bf16", "autocast": True},
    # fp32 shards, gathered and computed with in bf16, gradients reduced in fp32.
    "fsdp-bf16": _FP32 | {"name": "fp32 Adam, bf16 gathered", "compute": "bf16", "reduce": "fp32"},
    # As accelerate has FSDP with bf16: gradients reduced in bf16 too, autocast has nothing to cast.
    "fsdp-bf16-reduce": _FP32 | {"name": "fp32 Adam, bf16 gathered and reduced", "compute": "bf16"},
    # Gradients accumulated in fp32: 18 bytes.
    "fp32-gradients": {
        "name": "mixed-precision Adam, fp32 gradients",
        "gradients": "fp32",
        "source": "Megatron-LM, distributed optimizer (18 bytes; 6 + 12/d sharded)",
    },
    # A 16-bit and an fp32 copy of the gradients: 20 bytes.
    "two-gradients": {
        "name": "mixed-precision Adam, two copies of the gradients",
        "second_gradients": "fp32",
    },
    # int8 weights and int4 gradients on the wire (qwZ, qgZ).
    "quantised": {
        "name": "mixed-precision Adam, quantised collectives",
        **{"gather": "int8", "reduce": "int4", "source": "ZeRO++ §3"},
    },
    # K = 8 with momentum, 4 without.
    "sgd": {"name": "mixed-precision SGD", "optimizer": "sgd"},
    # Without a first moment: about 8 bytes a parameter.
    "adafactor": {"name": "mixed-precision Adafactor", "optimizer": "adafactor"},
    "muon": {"name": "mixed-precision Muon", "optimizer": "muon"},
    # Weights, gradients and states in bf16: 8 bytes, and no autocast.
    "pure-bf16": _PURE | {"name": "pure bf16 Adam", "states": "bf16", "source": _TORCHTUNE},
    "sgd-bf16": _PURE
    | {"name": "pure bf16 SGD", "optimizer": "sgd", "momentum": False, "source": _TORCHTUNE},
    # Beside 16-bit weights alone: 6 bytes and scales.
    "adam-8bit": _PURE
    | {"name": "bf16, 8-bit Adam of bitsandbytes", "optimizer": "adam-8bit", "source": _BITS},
    "adam-8bit-paged": _PURE
    | {
        "name": "bf16, paged 8-bit Adam of bitsandbytes",
        **{"optimizer": "adam-8bit", "paged": True, "source": _BITS},
    },
    # fp32 states, no counters.
    "adam-32bit-paged": _PURE
    | {"name": "bf16, paged 32-bit Adam of bitsandbytes", "paged": True, "source": _BITS},
    # What DeepSpeed and Megatron-LM step is their fp32 copy of the parameters.
    "adam-8bit-master": {
        "name": "mixed-precision 8-bit Adam, fp32 master",
        "optimizer": "adam-8bit",
        "source": "Dettmers et al. 2022; bitsandbytes 0.50.2; DeepSpeed, runtime/bf16_optimizer.py"
        " and zero/stage3.py (fp32_partitioned_groups_flat)",
    },
    "adam-8bit-torchao": _PURE
    | {"name": "bf16, 8-bit Adam of torchao", "optimizer": "adam-8bit-torchao", "source": _AO},
    "adam-4bit-torchao": _PURE
    | {"name": "bf16, 4-bit Adam of torchao", "optimizer": "adam-4bit-torchao", "source": _AO},
    "adam-fp8-torchao": _PURE
    | {"name": "bf16, fp8 Adam of torchao", "optimizer": "adam-fp8-torchao", "source": _AO},
    # One gradient at a time.
    "adam-in-backward": _PURE
    | {
        "name": "pure bf16 Adam, step inside the backward pass",
        **{"states": "bf16", "step": "backward", "source": _TORCHTUNE},
    },
    "adam-8bit-in-backward": _PURE
    | {
        "name": "bf16, paged 8-bit Adam, step inside the backward pass",
        **{"optimizer": "adam-8bit", "paged": True, "step": "backward"},
        "source": f"{_TORCHTUNE}; {_BITS}",
    },
    "lomo": _PURE
    | {
        "name": "LOMO: bf16 SGD inside the backward pass",
        **{"optimizer": "sgd", "momentum": False, "step": "lomo"},
        "source": "Lv et al. 2023; lomo-optim 0.1.1, lomo.py (fuse_update)",
    },
    # A frozen 16-bit base; peft makes its adapters fp32 unless it is told otherwise.
    "lora": _ADAPTERS | {"name": "LoRA: fp32 adapters, bf16 base", "adapter": Adapter()},
    # The base in 4 bits.
    "qlora": _ADAPTERS
    | {
        "name": "QLoRA: fp32 adapters, 4-bit base",
        "adapter": Adapter(base="nf4"),
        "source": "Dettmers et al. 2023; peft 0.21",
    },
    # fp32 shards of the adapters, all gathered and reduced in bf16.
    "lora-fsdp": _ADAPTERS
    | {
        "name": "LoRA over FSDP: fp32 adapters, bf16 base, bf16 gathered and reduced",
        **{"adapter": Adapter(), "compute": "bf16", "reduce": "bf16", "source": _SHARDED},
    },
    "qlora-fsdp": _ADAPTERS
    | {
        "name": "QLoRA over FSDP: fp32 adapters, 4-bit base stored as bf16, bf16 reduced",
        **{"adapter": Adapter(base="nf4", quant_storage="bf16")},
        **{"compute": "bf16", "reduce": "bf16"},
        "source": f"{_SHARDED}; bitsandbytes 0.50.2, docs/source/fsdp_qlora.md",
    },
    # DeepSpeed makes the adapters bf16 and steps an fp32 copy of them.
    "lora-master": {
        "name": "LoRA: bf16 adapters with an fp32 master, bf16 base",
        "adapter": Adapter(),
        "source": "DeepSpeed, runtime/engine.py (module.bfloat16) and zero/stage3.py; peft 0.21",
    },
    # After peft's prepare_model_for_kbit_training, which most scripts call.
    "qlora-prepared": _ADAPTERS
    | {
        "name": "QLoRA prepared by peft: fp32 norms, embeddings, head",
        "adapter": Adapter(base="nf4", rest="fp32"),
        **{"compute": "bf16", "autocast": True},
        "source": "Dettmers et al. 2023; peft 0.21, utils/other.py; bitsandbytes 0.50.2,"
        " nn/modules.py (Linear4bit)",
    },
}


def state_bytes(tensors: Iterable[TensorShape], recipe: Recipe) -> dict[str, int]:
    """Bytes of each kind of optimizer state over ``tensors``, exactly as stored; none is zero.

    Kinds are ``master``, ``momentum``, ``variance``, ``largest variance``, ``row variance``,
    ``column variance``, ``scales``, ``tables``, ``paged momentum``, ``paged variance`` (on the CPU)
    and ``step`` (the counters, which may be on the CPU: :attr:`Recipe.counters_on`). A rank that
    holds shards takes the shards' shapes.

    >>> from labkit.models import Model
    >>> state_bytes(Model.preset("gpt2-124m").tensors(), Recipe.fp32_adam())
    {'momentum': 497759232, 'variance': 497759232, 'step': 592}
    """
    shapes = Counter(
        (tensor.shape, tensor.is_hidden_matrix, tensor.role == "embedding") for tensor in tensors
    )
    sizes: dict[str, float] = dict.fromkeys(_ORDER, 0)
    for (shape, matrix, embedding), count in shapes.items():
        sizes["master"] += count * prod(shape) * recipe.master_bytes
        for kind, num_bytes in _kinds(recipe, shape, matrix, embedding).items():
            sizes[kind] += count * num_bytes
    layout = QUANTISED.get(recipe.optimizer)
    if layout is not None and layout.shared and sizes["scales"]:
        sizes["tables"] = layout.table_bytes
    return {kind: int(num_bytes) for kind, num_bytes in sizes.items() if num_bytes}


def element_bytes(recipe: Recipe) -> dict[str, int | float]:
    """Bytes of each kind of state for one element, of optimizers that treat all alike."""
    kinds = _kinds(recipe, (1,), matrix=False) | {"step": 0}
    widths = {"master": recipe.master_bytes} | kinds
    return {kind: width for kind, width in widths.items() if width}


_ORDER = (
    "master",
    "momentum",
    "variance",
    "largest variance",
    "row variance",
    "column variance",
    "scales",
    "tables",
    "paged momentum",
    "paged variance",
    "step",
)


def _kinds(
    recipe: Recipe, shape: tuple[int, ...], matrix: bool, embedding: bool = False
) -> dict[str, int | float]:
    """Bytes of each kind of state for one tensor.

    ``matrix``: it is one inside a layer; ``embedding``: its rows are looked up.
    """
    size = prod(shape)
    width = DTYPE_BYTES[recipe.states]
    counter = {"step": COUNTER_BYTES}
    if recipe.optimizer in QUANTISED:
        return _quantised(recipe, size, embedding and recipe.wide_embeddings)
    match recipe.optimizer:
        case "sgd":
            return {"momentum": size * width} if recipe.momentum else {}
        case "muon" if matrix:
            return {"momentum": size * width}
        case "adafactor" if len(shape) > 1:
            columns = prod((*shape[:-2], shape[-1]))
            rows = prod(shape[:-1])
            return {"row variance": rows * width, "column variance": columns * width} | counter
        case "adafactor":
            return {"variance": size * width} | counter
    if recipe.paged:  # bitsandbytes counts its steps in Python
        return _paged(recipe, size, size * width)
    adam = {"momentum": size * width, "variance": size * width}
    return adam | ({"largest variance": size * width} if recipe.amsgrad else {}) | counter


def _quantised(recipe: Recipe, size: int, wide: bool) -> dict[str, int | float]:
    """Bytes of each kind of state of one tensor where Adam's states are quantised."""
    layout = QUANTISED[recipe.optimizer]
    block = recipe.block or layout.block
    # torchao counts the steps of a tensor in an fp32 tensor on the CPU.
    counter = {} if layout.wide else {"step": COUNTER_BYTES}
    if wide or size < layout.smallest or (layout.whole_blocks and size % block):
        width = 4 if layout.wide else DTYPE_BYTES[recipe.master or recipe.parameters]
        return _paged(recipe, size, size * width) | counter
    states = _paged(recipe, size, size * layout.width)
    tables = {} if layout.shared else {"tables": layout.table_bytes}
    return states | {"scales": 2 * 4 * -(-size // block)} | tables | counter


def _paged(recipe: Recipe, size: int, num_bytes: float) -> dict[str, int | float]:
    """Momentum and variance of so many bytes each, paged where the tensor is large enough."""
    pages = "paged " if recipe.paged and size >= SMALLEST_PAGED else ""
    return {f"{pages}momentum": num_bytes, f"{pages}variance": num_bytes}
