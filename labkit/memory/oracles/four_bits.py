"""Linear layers in 4 bits, as bitsandbytes has them and peft puts adapters beside them.

bitsandbytes itself need not be there: the lines that decide what lives when are these, of its
``nn/modules.py`` (``Linear4bit``) and ``autograd/_functions.py`` (``MatMul4Bit``), version 0.50.2,
and of peft's ``tuners/lora/bnb.py``, version 0.21.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

COMPUTE = torch.bfloat16
"""The format in which matrices are made wide (``bnb_4bit_compute_dtype``)."""


class MatMul4Bit(torch.autograd.Function):
    """A product with a matrix that is made wide for it, and again for the input's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, shape: tuple[int, int]) -> Tensor:
        ctx.packed = packed
        ctx.shape = shape
        wide = packed.new_empty(shape, dtype=x.dtype)
        return nn.functional.linear(x, wide)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        wide = ctx.packed.new_empty(ctx.shape, dtype=gradient.dtype)
        return torch.matmul(gradient, wide), None, None


class Linear4bit(nn.Linear):
    """A frozen linear layer whose matrix and scales are ``num_bytes`` bytes."""

    def __init__(self, like: nn.Linear, num_bytes: int) -> None:
        super().__init__(like.in_features, like.out_features, bias=False)
        packed = torch.empty(num_bytes, dtype=torch.uint8, device="meta")
        self.weight = nn.Parameter(packed, requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        given = input.dtype
        x = input.to(COMPUTE)
        shape = (self.out_features, self.in_features)
        return MatMul4Bit.apply(x, self.weight, shape).to(given)


def pack(layers: nn.Module, base_bytes: Callable[[int], int]) -> None:
    """Put layers in 4 bits in place of all linear ones without a bias.

    Args:
        layers: the blocks of a network, on the meta device.
        base_bytes: of a matrix of so many elements, its scales with it.
    """
    for module in list(layers.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                assert child.bias is None, "biases beside matrices in 4 bits are not known"
                size = base_bytes(child.weight.numel())
                setattr(module, name, Linear4bit(child, size))


def forward_as_peft(network: nn.Module) -> None:
    """Have adapters beside layers in 4 bits run as peft runs them."""
    for module in network.modules():
        if isinstance(getattr(module, "base_layer", None), Linear4bit):
            module.forward = MethodType(_forward, module)


def _forward(self: Any, x: Tensor) -> Tensor:
    """The forward pass of ``peft.tuners.lora.bnb.Linear4bit`` with one adapter."""
    result = self.base_layer(x)
    result = result.clone()
    (name,) = self.active_adapters
    converted = not torch.is_autocast_enabled("cpu")
    expected = result.dtype
    if converted:
        x = x.to(self.lora_A[name].weight.dtype)
    change = self.lora_B[name](self.lora_A[name](self.lora_dropout[name](x))) * self.scaling[name]
    if converted:
        change = change.to(expected)
    return result + change
