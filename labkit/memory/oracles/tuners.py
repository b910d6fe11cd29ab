"""The networks that torch's tracker runs with peft's virtual tokens, and DoRA without cycles.

peft's own model stands around a :class:`~labkit.memory.oracles.networks.Decoder`: it embeds, joins
and makes the labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from labkit.memory.jobs.adapter import Adapter
from labkit.memory.oracles import kernels
from labkit.memory.oracles.networks import Decoder
from labkit.models import Model


class _Quiet:
    """A layer without its hooks."""

    def __init__(self, layer: nn.Module) -> None:
        self.weight = layer.weight
        self.run = layer.forward

    def __call__(self, x: Tensor) -> Any:
        return self.run(x)


@contextmanager
def without_cycles() -> Iterator[None]:
    """Run DoRA's product of an identity by layers without hooks.

    That product's graph is never run back. The tracker's hooks make a cycle of it, which would stay
    until Python looks for cycles; a program without a tracker has none.
    """
    from peft.tuners.lora.dora import DoraLinearLayer

    layer: Any = DoraLinearLayer
    plain = layer.get_lora_weight

    def quiet(self: Any, **given: Any) -> Any:
        quietened = {
            name: _Quiet(value) if isinstance(value, nn.Module) else value
            for name, value in given.items()
        }
        return plain(self, **quietened)

    layer.get_lora_weight = quiet
    try:
        yield
    finally:
        layer.get_lora_weight = plain


class Behind(nn.Module):
    """A decoder as peft calls a model of transformers: from embeddings and labels on."""

    def __init__(self, decoder: Decoder, model: Model) -> None:
        super().__init__()
        self.decoder = decoder
        self.dtype = decoder.token.weight.dtype
        self.device = decoder.token.weight.device
        sizes = {
            "hidden_size": model.hidden,
            "num_hidden_layers": model.num_layers,
            "num_attention_heads": model.heads,
            "vocab_size": model.vocab,
        }
        self.config = SimpleNamespace(**sizes, model_type="decoder", to_dict=lambda: sizes)
        self.config.get_text_config = lambda: self.config

    def prepare_inputs_for_generation(self) -> None:
        """Nothing is generated here; peft asks for the method."""

    def forward(self, inputs_embeds: Tensor, labels: Tensor, **_: Any) -> Tensor:
        net = self.decoder
        x = inputs_embeds
        if net.position is not None:
            x = x + net.position(torch.arange(x.shape[1], device=x.device))
        x = kernels.dropout(x, net.mode.dropout_mask_bytes)
        x = net.norm(net.through_blocks(x))
        return net.loss(x.flatten(0, 1), labels.flatten())


class Prompted(nn.Module):
    """peft's model around :class:`Behind`, called as the tracker calls a network."""

    def __init__(self, decoder: Decoder, model: Model, adapter: Adapter) -> None:
        super().__init__()
        from peft import PeftModelForCausalLM, PromptEncoderConfig, PromptTuningConfig

        kinds = {"prompt": PromptTuningConfig, "p-tuning": PromptEncoderConfig}
        own: dict[str, Any] = {"num_virtual_tokens": adapter.tokens, "task_type": "CAUSAL_LM"}
        if adapter.kind == "p-tuning":
            own["encoder_hidden_size"] = adapter.hidden or model.hidden
        base: Any = Behind(decoder, model)
        self.peft = PeftModelForCausalLM(base, kinds[adapter.kind](**own))
        self.blocks = decoder.blocks
        self.token = decoder.token

    @property
    def mask(self) -> tuple[Tensor, ...]:
        """The decoder's mask, which is put in place from outside, as are its tables."""
        return self.decoder.mask

    @mask.setter
    def mask(self, mask: Any) -> None:
        self.decoder.mask = mask

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """The decoder's rotary tables."""
        return self.decoder.tables

    @tables.setter
    def tables(self, tables: Any) -> None:
        self.decoder.tables = tables

    @property
    def decoder(self) -> Decoder:
        """The network inside."""
        base: Any = self.peft.base_model
        decoder: Decoder = base.decoder
        return decoder

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.peft(input_ids=tokens, labels=targets)

    def number(self, watch: Any) -> None:
        """Make the numbers of the virtual tokens, which peft keeps beside its modules."""
        tokens = self.peft.prompt_tokens
        tokens["default"] = torch.arange(len(tokens["default"]))
        watch.track_external(tokens["default"])
