"""Sublinear memory: the block on which the notebook measures how peaks grow with depth.

The paper's ways to recompute are the engine's (:data:`labkit.swap.METHODS`). Loads torch.

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost (2016).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """A linear layer and a tanh beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return x + torch.tanh(self.linear(x))
