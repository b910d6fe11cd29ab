"""What is traced: a class of transformers made from a ``config.json``, or a module of one's own.

Of a configuration only the library's own classes are made; no code that it names is fetched or run.
Importing this module loads neither torch nor transformers; its functions do.
"""

from __future__ import annotations

import copy
import inspect
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit import extras
from labkit.errors import BadValue, UsageError, not_among, shown
from labkit.memory.jobs.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor, nn

# What a head is trained on, by the end of its class's name; the first end that fits.
TOKENS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForPreTraining")
CLASSES = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")
EACH = ("ForTokenClassification",)
SPANS = ("ForQuestionAnswering",)
# Where a configuration names no architecture: the first list of transformers that has its type.
_LISTS = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
)


@dataclass(frozen=True, slots=True)
class Configured:
    """A class of transformers and its configuration.

    Attributes:
        config: JSON of the configuration's fields.
        architecture: the name of the class.
    """

    config: str
    architecture: str

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.architecture

    def attention(self, wanted: str) -> str:
        """The implementation of attention that the class has: eager where there is no other."""
        import transformers

        has = getattr(getattr(transformers, self.architecture), "_supports_sdpa", False)
        return "sdpa" if has and wanted != "eager" else "eager"

    def build(self, *, attention: str, bits: int, recompute: bool) -> nn.Module:
        """The module in training mode, on tensors of the mode at work.

        Args:
            attention: ``"eager"``, or another word for torch's kernel.
            bits: 16 or 32, of its parameters.
            recompute: whether layers are checkpoints.

        Raises:
            UsageError: the configuration is refused, or layers cannot be recomputed.
        """
        import torch
        import transformers
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        kind: Any = getattr(transformers, self.architecture)
        config = _configuration(json.loads(self.config))
        config.use_cache = False
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = 0  # which number it is changes no bytes
        dtype = torch.bfloat16 if bits == 16 else torch.float32
        own = self.attention(attention)
        # On the meta device first: some classes compute numbers of their own while they are made.
        with unset_fake_temporarily(), torch.device("meta"), _no_weights():
            described: Any = kind._from_config(config, attn_implementation=own, dtype=dtype)
            described.tie_weights()
        module = _copied(described)
        module.train()
        if recompute:
            _recomputed(module, self.architecture)
        return module

    def inputs(self, module: Any, batch: Batch) -> dict[str, Any]:
        """A batch for the module, of zeros.

        Raises:
            UsageError: what the class is trained on is not known.
        """
        import torch

        names = takes(module)
        samples = batch.micro_batch
        given: dict[str, Any] = {}
        if "input_ids" in names:
            given["input_ids"] = torch.zeros(samples, batch.seq, dtype=torch.int64)
        elif "pixel_values" in names:
            given["pixel_values"] = _pixels(module, samples)
        elif "input_features" in names:
            given["input_features"] = _frames(module, samples)
        else:
            self._refuse(f"takes {', '.join(names)}")
        if batch.target_seq is not None and not module.config.is_encoder_decoder:
            raise BadValue(
                f"target_seq must be None for {type(module).__name__}, which has no decoder beside"
                f" an encoder, got {batch.target_seq}"
            )
        if "return_loss" in names and "pixel_values" in names:
            return given | {"pixel_values": _pixels(module, samples), "return_loss": True}
        return given | self._labels(names, samples, batch.target_seq or batch.seq)

    def questions(self, module: Any, batch: Batch) -> dict[str, Any]:
        """A batch without what it is trained on; classes that generate keep keys and values.

        Of an encoder and a decoder the decoder has ``target_seq`` tokens, by default the first.

        Raises:
            UsageError: what the class takes is not known.
        """
        import torch

        answers = ("labels", "start_positions", "end_positions", "return_loss")
        names = takes(module)
        made = self.inputs(module, batch)
        given = {name: value for name, value in made.items() if name not in answers}
        if module.config.is_encoder_decoder and "decoder_input_ids" in names:
            shape = (batch.micro_batch, batch.target_seq or 1)
            given["decoder_input_ids"] = torch.zeros(shape, dtype=torch.int64)
        if module.can_generate():
            given |= {"use_cache": True} if "use_cache" in names else {}
            given |= {"logits_to_keep": 1} if "logits_to_keep" in names else {}
        return given

    def _labels(self, names: tuple[str, ...], samples: int, seq: int) -> dict[str, Tensor]:
        """What the head is trained on, by the class's name."""
        import torch

        if self.architecture.endswith(SPANS):
            ends = ("start_positions", "end_positions")
            return {name: torch.zeros(samples, dtype=torch.int64) for name in ends}
        if "labels" in names and self.architecture.endswith(CLASSES):
            return {"labels": torch.zeros(samples, dtype=torch.int64)}
        if "labels" in names and self.architecture.endswith((*TOKENS, *EACH)):
            return {"labels": torch.zeros(samples, seq, dtype=torch.int64)}
        known = ", ".join((*TOKENS, *CLASSES, *EACH, *SPANS))
        self._refuse(f"is trained on something unknown (known ends of a class's name: {known})")
        raise AssertionError

    def _refuse(self, why: str) -> None:
        """Refuse a class that no batch is known for."""
        raise UsageError(
            f"{self.architecture} {why}: give another architecture, such as {_heads_like(self)},"
            " or the module itself with its inputs (memory.Network.from_module)"
        )

    def loss(self, output: Any) -> Tensor:
        """The loss that the class computes."""
        if output.loss is None:
            self._refuse("computes no loss")
        loss: Tensor = output.loss
        return loss


@dataclass(frozen=True, slots=True)
class Given:
    """A module of one's own, with a function that makes its inputs and one that takes its loss."""

    module: Any
    make: Callable[[Batch], Mapping[str, Any]]
    loss_of: Callable[[Any], Any] | None = None

    @property
    def name(self) -> str:
        """What errors call it."""
        return type(self.module).__name__

    def attention(self, wanted: str) -> str:
        """Attention is what the module makes of it."""
        return wanted

    def build(self, *, attention: str, bits: int, recompute: bool) -> nn.Module:
        """A copy of the module on tensors of the mode at work, its attention as it is.

        Raises:
            UsageError: its layers should be recomputed and it does not know how.
        """
        import torch

        module = _copied(self.module, torch.bfloat16 if bits == 16 else torch.float32)
        module.train()
        if recompute:
            _recomputed(module, self.name)
        return module

    def inputs(self, module: Any, batch: Batch) -> dict[str, Any]:
        """What the function makes of the batch; floating tensors get the parameters' format."""
        import torch

        made = self.make(batch)
        if not isinstance(made, Mapping):
            raise UsageError(
                f"inputs of {self.name} must return a dict of arguments by name, got {shown(made)}"
            )
        dtype = next(iter(module.parameters())).dtype
        return {
            name: value.to(dtype)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in made.items()
        }

    def questions(self, module: Any, batch: Batch) -> dict[str, Any]:
        """The same for a forward pass alone."""
        return self.inputs(module, batch)

    def loss(self, output: Any) -> Tensor:
        """The loss that is said, or the one that the module returns.

        Raises:
            UsageError: there is none.
        """
        import torch

        loss = self.loss_of(output) if self.loss_of else getattr(output, "loss", output)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise UsageError(
                f"loss of {self.name} must be a tensor of one element; give loss=, a function of"
                " what the module returns"
            )
        return loss


Subject = Configured | Given


def configured(fields: Mapping[str, Any], architecture: str | None = None) -> Configured:
    """The class that a configuration is for.

    Args:
        fields: of ``config.json``.
        architecture: the class, in place of the first of ``architectures``.

    Raises:
        UsageError: transformers is not there, has no such type or class, or the class is not for
            this type.
    """
    extras.need("tracing a config.json", "torch", "torch", "transformers")
    import transformers
    from transformers.models.auto import configuration_auto

    kind = fields.get("model_type")
    known = configuration_auto.CONFIG_MAPPING_NAMES
    if not isinstance(kind, str) or kind not in known:
        custom = "; the code that its auto_map names is not run" if "auto_map" in fields else ""
        error = not_among("model_type", kind, sorted(known))
        raise UsageError(f"{error}{custom}; memory.Network.from_module traces a module of your own")
    for field, value in fields.items():
        if type(value) is int and value < 1 and _SIZES.search(str(field)):
            raise UsageError(f"{field!r} of a {kind} configuration must be at least 1, got {value}")
    said = architecture or next(iter(fields.get("architectures") or ()), None)
    name = said or _first_head(kind)
    cls = getattr(transformers, str(name), None)
    if not isinstance(cls, type) or not issubclass(cls, transformers.PreTrainedModel):
        raise UsageError(
            f"architecture must be a class of transformers {transformers.__version__} such as"
            f" {_first_head(kind)}, got {shown(name)}"
        )
    own = getattr(cls.config_class, "model_type", kind)
    if own != kind:
        raise UsageError(f"architecture {name} is for model_type {own!r}, got {kind!r}")
    try:
        text = json.dumps(dict(fields), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"config must hold what JSON can: {first_line(error)}") from None
    return Configured(text, str(name))


def _first_head(kind: str) -> str | None:
    """The class of transformers that a type of model is trained as."""
    from transformers.models.auto import modeling_auto

    for table in _LISTS:
        name = getattr(modeling_auto, table, {}).get(kind)
        if name:
            return name if isinstance(name, str) else str(name[0])
    return None


def _heads_like(subject: Configured) -> str:
    """A class that a configuration could be trained as."""
    return str(_first_head(json.loads(subject.config)["model_type"]))


def _configuration(fields: Mapping[str, Any]) -> Any:
    """The library's configuration of these fields.

    Raises:
        UsageError: it refuses them.
    """
    from transformers import AutoConfig

    own = {name: value for name, value in fields.items() if name not in _NOT_SIZES}
    try:
        return AutoConfig.for_model(**own)
    except Exception as error:  # whatever the library's checks raise
        raise UsageError(
            f"transformers refuses this {own['model_type']} configuration: {first_line(error)}"
        ) from None


# Numbers that no class is made with below 1: other fields, such as pad_token_id, may be.
_SIZES = re.compile(
    r"(hidden|vocab|intermediate|embed|ffn|patch|image).*(size|dim)$|^d_model$|position_embeddings$"
)
_NOT_SIZES = ("auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version")


def _copied(module: nn.Module, dtype: Any = None) -> Any:
    """A copy of a module whose parameters and buffers are tensors of the mode at work.

    Args:
        module: the module, whatever its tensors are.
        dtype: of its floating tensors; None for their own.
    """
    import torch

    def like(tensor: Tensor) -> Tensor:
        wanted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=wanted)

    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        trained = parameter.requires_grad
        memo[id(parameter)] = torch.nn.Parameter(like(parameter), requires_grad=trained)
    for buffer in (*module.buffers(), *in_dicts(module)):
        memo[id(buffer)] = like(buffer)
    return copy.deepcopy(module, memo)


def in_dicts(module: nn.Module) -> Iterator[Tensor]:
    """Tensors that modules have in plain dicts, as peft the numbers of its virtual tokens."""
    import torch

    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, dict) and name not in {"_parameters", "_buffers"}:
                yield from (each for each in value.values() if isinstance(each, torch.Tensor))


def _recomputed(module: Any, name: str) -> None:
    """Make layers checkpoints by the module's own switch."""
    if not getattr(module, "supports_gradient_checkpointing", False):
        raise UsageError(
            f"recompute must be none for {name}, which has no gradient_checkpointing_enable"
        )
    module.gradient_checkpointing_enable({"use_reentrant": False})


def takes(module: Any) -> tuple[str, ...]:
    """The arguments of a module's forward pass."""
    return tuple(inspect.signature(module.forward).parameters)


def positions_of(module: Any) -> int:
    """How many positions a module of transformers has learnt; 0 where it has no such table."""
    most = getattr(module.config, "max_position_embeddings", None)
    for name, inner in module.named_modules():
        rows = getattr(inner, "num_embeddings", 0)
        if type(most) is int and rows >= most and "position" in name.rpartition(".")[2]:
            padding = getattr(inner, "padding_idx", None)  # RoBERTa counts from the one after it
            return most if rows > most or padding is None else most - padding - 1
    return 0


def _frames(module: Any, samples: int) -> Tensor:
    """Sounds of the configuration's length, as a convolution of stride 2 takes them."""
    import torch

    shape = (samples, module.config.num_mel_bins, 2 * module.config.max_source_positions)
    return torch.zeros(shape, dtype=module.dtype)


def _pixels(module: Any, samples: int) -> Tensor:
    """Images of the configuration's size."""
    import torch

    config = getattr(module.config, "vision_config", module.config)
    side = config.image_size
    height, width = side if isinstance(side, list | tuple) else (side, side)
    channels = getattr(config, "num_channels", 3)
    return torch.zeros(samples, channels, height, width, dtype=module.dtype)


def first_line(error: Exception) -> str:
    """The first line of an error, to be part of a sentence."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what the libraries log and warn of; an error still is one."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _no_weights() -> Any:
    """The library's context in which a class is made without numbers for its weights."""
    from transformers import initialization

    return initialization.no_init_weights()


@contextmanager
def no_packing() -> Iterator[None]:
    """Whether sequences are packed is read from numbers, which these tensors do not have.

    Without packing, as here, plain causal attention gets no mask.
    """
    try:
        from transformers import masking_utils
    except ImportError:
        yield
        return
    name = "find_packed_sequence_indices"
    before = getattr(masking_utils, name, None)
    setattr(masking_utils, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(masking_utils, name, before)
