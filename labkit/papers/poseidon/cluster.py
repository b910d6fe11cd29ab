"""Machines of one GPU each, what a layer sends between them, and a training step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from labkit import collectives
from labkit.collectives.overlapping import Overlap, Policy
from labkit.kit.fabric import GBIT

SCHEMES = ("servers", "factors", "hybrid")
"""How layers travel: all over servers, dense ones as factors, or whichever sends less."""
_VALUE_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """So many machines, each a worker and a server.

    Args:
        machines: how many (P1 = P2 in the paper).
        gbit_per_s: of a machine's link, each way.
        batch: images of a machine and step (K in the paper).
        flops_per_s: at which a GPU multiplies received factors; None takes no time for it.
    """

    machines: int
    gbit_per_s: float = 10.0
    batch: int = 32
    flops_per_s: float | None = None

    def server_bytes(self, layers: pd.DataFrame) -> np.ndarray:
        """Bytes that a machine sends for each layer, and receives, over servers.

        A worker sends a gradient of MN numbers and gets as many; of P servers its own has 1/P.
        Together, in and out, 2MN(P1 + P2 - 2)/P2 numbers with P1 = P2 = P. Half of them each way:
        2(P - 1)/P of the gradient, which is what a ring sends.

        Source: Table 1.
        """
        share = 2 * (self.machines - 1) / self.machines
        return share * layers["parameter_bytes"].to_numpy(dtype=float)

    def factor_bytes(self, layers: pd.DataFrame) -> np.ndarray:
        """Bytes that a machine sends as factors, and receives; infinite for other layers.

        To P - 1 others go K pairs of vectors of M and N numbers.

        Source: Table 1, 2K(P1 - 1)(M + N) in and out.
        """
        sides = layers["inputs"].to_numpy(dtype=float) + layers["outputs"].to_numpy(dtype=float)
        sent = _VALUE_BYTES * self.batch * (self.machines - 1) * sides
        return np.where(sides > 0, sent, np.inf)

    def sends_factors(self, layers: pd.DataFrame, scheme: str = "hybrid") -> np.ndarray:
        """Which layers travel as factors.

        Source: Algorithm 1.
        """
        factors = self.factor_bytes(layers)
        if scheme == "servers":
            return np.zeros(len(layers), dtype=bool)
        if scheme == "factors":
            return np.isfinite(factors)
        return factors <= self.server_bytes(layers)

    def sent_bytes(self, layers: pd.DataFrame, scheme: str = "hybrid") -> np.ndarray:
        """Bytes that a machine sends for each layer, and receives."""
        chosen = self.sends_factors(layers, scheme)
        return np.where(chosen, self.factor_bytes(layers), self.server_bytes(layers))

    def sending_s(self, layers: pd.DataFrame, scheme: str = "hybrid") -> np.ndarray:
        """Seconds of each layer on the network, and of multiplying the factors that came."""
        seconds = self.sent_bytes(layers, scheme) / (self.gbit_per_s * GBIT)
        if self.flops_per_s is not None:
            weights = layers["parameter_bytes"].to_numpy(dtype=float) / _VALUE_BYTES
            products = 2 * self.batch * (self.machines - 1) * weights
            chosen = self.sends_factors(layers, scheme)
            seconds = seconds + np.where(chosen, products / self.flops_per_s, 0)
        return seconds

    def step(
        self, layers: pd.DataFrame, scheme: str = "hybrid", policy: Policy = "wait-free"
    ) -> Overlap:
        """A training step."""
        return collectives.overlap(layers, list(self.sending_s(layers, scheme)), policy=policy)

    def speedup(
        self, layers: pd.DataFrame, scheme: str = "hybrid", policy: Policy = "wait-free"
    ) -> float:
        """The rate of all machines over that of one alone."""
        step = self.step(layers, scheme, policy)
        return self.machines * step.compute_s / step.step_s
