"""A network in training on one rank, behind one small interface whatever the scheme.

Loads torch: only :mod:`labkit.memory.oracles.schemes` and what it is made of import it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.memory.oracles.meters import storage_bytes

Slice = tuple[str, int, int]


class Adam(NamedTuple):
    """The two numbers of Adam that matter here."""

    lr: float
    eps: float

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.lr, eps=self.eps, fused=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One scheme on the first ``num_ranks`` ranks; ``group`` is None on ranks that sit it out, and
    ``size`` how many share a shard where not all do."""

    scheme: str
    num_ranks: int
    rank: int
    group: Any
    mesh: Any
    size: int = 2


class Trainer:
    """A network, its optimizer, and what this rank keeps of both."""

    def __init__(self, network: nn.Module, plain: nn.Module, optimizer: Any) -> None:
        self.network, self.plain, self.optimizer = network, plain, optimizer

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        self.optimizer.step()

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.plain.parameters() if p.grad is not None]

    def optimizer_bytes(self) -> tuple[int, int]:
        """Bytes of Adam's two moments on this rank, and of its step counters."""
        states = self._inner().state.values()
        counters = [state["step"] for state in states]
        moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
        return storage_bytes(moments), sum(counter.nbytes for counter in counters)

    def _inner(self) -> torch.optim.Optimizer:
        return self.optimizer

    def full_weights(self) -> list[Tensor]:
        return [p.detach() for p in self.plain.parameters()]

    def slices(self) -> list[Slice]:
        """What this rank updates: tensor, first row, row after the last."""
        return [(name, 0, p.shape[0]) for name, p in self.plain.named_parameters()]
