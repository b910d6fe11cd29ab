"""How long a data-parallel training step takes, by allocation and batch size.

A step computes a gradient on every GPU (T_grad, by the batch size of one GPU), synchronises it
(T_sync, by how many GPUs on how many nodes) and overlaps the two as far as the exponent γ says:
T = (T_grad^γ + T_sync^γ)^(1/γ), their sum at γ = 1 and the longer of the two as γ grows. Gradient
accumulation puts further gradients before it, each T_grad long. Of several GPUs the slowest is
waited for, so that the gradient that is synchronised takes a little longer the more there are:
T_grad(1 + w·log2 K) in place of T_grad; this is ours, and w = 0 is Pollux's form.

Source: Pollux (OSDI'21), §3.2. ``step_fit.fit`` finds the coefficients.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import ArrayLike, NDArray

from labkit.errors import UsageError
from labkit.kit.describe import Count, NonNegative, Positive, checked, description

MAX_OVERLAP = 10.0
"""Largest overlap exponent: the norm is then within 7 % of the longer of the two times."""


@description(slots=True)
class SyncTier:
    """Says how long allocations on ``from_nodes`` nodes or more synchronise, up to the next tier.

    The time of K GPUs on N nodes is base_s + per_gpu_s·(K − 2) + per_node_doubling_s·log2(N /
    from_nodes) + per_gpu_doubling_s·log2(K / max(N, 2)).
    """

    from_nodes: Count
    base_s: float
    per_gpu_s: float = 0.0
    per_node_doubling_s: float = 0.0
    per_gpu_doubling_s: float = 0.0


@description(slots=True)
class StepTimes:
    """Predicts step time by (nodes, GPUs, batch size of one GPU, accumulation steps); arrays
    broadcast.

    The gradient takes ``base_s + per_example_s · m`` for m examples. Where ``measured`` lists (m,
    seconds), ascending, it is interpolated between them instead, and goes on in proportion to the
    line outside them.
    """

    base_s: float
    per_example_s: float
    tiers: tuple[SyncTier, ...]
    overlap: Annotated[float, Ge(1), Le(MAX_OVERLAP)]
    measured: tuple[tuple[Positive, Positive], ...] = ()
    wait_per_doubling: NonNegative = 0.0
    """How much longer the slowest GPU's gradient takes for each doubling of GPUs, as a share."""

    def __post_init__(self) -> None:
        starts = [tier.from_nodes for tier in self.tiers]
        if starts != sorted(set(starts)):
            raise UsageError(f"tiers must start at ascending numbers of nodes, got {starts}")
        sizes = [size for size, _ in self.measured]
        if sizes != sorted(set(sizes)):
            raise UsageError(f"measured batch sizes must ascend, got {sizes}")

    @checked
    def grad_s(self, atomic_bsz: ArrayLike) -> NDArray[np.float64]:
        """How long one GPU computes for the gradient of ``atomic_bsz`` examples (T_grad)."""
        size = _at_least_one("atomic_bsz", atomic_bsz).astype(float)
        line = self.base_s + self.per_example_s * size
        if not self.measured:
            return line
        sizes, times = np.array(self.measured).T
        nearest = np.clip(size, sizes[0], sizes[-1])
        at_nearest = self.base_s + self.per_example_s * nearest
        return np.interp(nearest, sizes, times) * (line / at_nearest)

    @checked
    def sync_s(self, num_nodes: ArrayLike, num_gpus: ArrayLike) -> NDArray[np.float64]:
        """How many seconds synchronisation takes (T_sync): none for one GPU.

        Raises:
            UsageError: no tier covers an allocation, since none of its kind was measured.
        """
        nodes, gpus = allocation_of(num_nodes, num_gpus)
        starts = np.array([tier.from_nodes for tier in self.tiers], dtype=np.intp)
        tier = np.searchsorted(starts, nodes, side="right") - 1
        unknown = (gpus > 1) & (tier < 0)
        if unknown.any():
            where = np.flatnonzero(unknown.ravel())[0]
            known = f"those on {starts[0]} nodes and more" if self.tiers else "single GPUs alone"
            raise UsageError(
                f"no allocation of {gpus.ravel()[where]} GPUs on {nodes.ravel()[where]} node(s) "
                f"can be predicted: measured were {known}"
            )
        if not self.tiers:
            return np.zeros(gpus.shape)
        table = np.array([[getattr(t, name) for name in SYNC_NAMES] for t in self.tiers])[tier]
        return np.where(gpus > 1, (table * sync_terms(nodes, gpus, starts[tier])).sum(-1), 0.0)

    @checked
    def step_time_s(
        self,
        num_nodes: ArrayLike,
        num_gpus: ArrayLike,
        atomic_bsz: ArrayLike,
        accum_steps: ArrayLike = 0,
        *,
        slowdown: ArrayLike = 1.0,
    ) -> NDArray[np.float64]:
        """How many seconds one optimizer step takes after ``accum_steps`` further gradients.

        Args:
            num_nodes, num_gpus: the allocation.
            atomic_bsz: examples of one GPU at a time.
            accum_steps: further gradients before the one that is synchronised.
            slowdown: how many times longer a gradient takes than here, say under a power limit;
                synchronisation is the network's and stays as it is.

        Source: Pollux §3.2.

        >>> alone = StepTimes(base_s=0.1, per_example_s=0.01, tiers=(), overlap=1.0)
        >>> alone.step_time_s(1, 1, 10, [0, 1]).round(6).tolist()
        [0.2, 0.4]
        """
        steps = np.asarray(accum_steps)
        if (steps < 0).any():
            raise UsageError(f"accum_steps must be >= 0, got {steps.min()}")
        factor = np.asarray(slowdown, dtype=float)
        if not (factor > 0).all():
            raise UsageError(f"slowdown must be above 0, got {factor.min():g}")
        grad = self.grad_s(atomic_bsz) * factor
        sync = self.sync_s(num_nodes, num_gpus)
        last = grad * (1 + self.wait_per_doubling * np.log2(np.asarray(num_gpus)))
        return steps * grad + last * (1 + (sync / last) ** self.overlap) ** (1 / self.overlap)

    @checked
    def throughput(
        self,
        num_nodes: ArrayLike,
        num_gpus: ArrayLike,
        atomic_bsz: ArrayLike,
        accum_steps: ArrayLike = 0,
    ) -> NDArray[np.float64]:
        """Examples a second: K · m · (accum_steps + 1) over the step time; it takes what that
        takes.
        """
        step_s = self.step_time_s(num_nodes, num_gpus, atomic_bsz, accum_steps)
        batch = np.asarray(num_gpus) * np.asarray(atomic_bsz) * (np.asarray(accum_steps) + 1)
        return batch / step_s


SYNC_NAMES = ("base_s", "per_gpu_s", "per_node_doubling_s", "per_gpu_doubling_s")


def sync_terms(nodes: NDArray, gpus: NDArray, start: NDArray) -> NDArray[np.float64]:
    """What each coefficient of a :class:`SyncTier` is multiplied by, on a last axis of four."""
    extra = np.maximum(gpus - 2, 0)
    neighbours = np.log2(np.maximum(gpus / np.maximum(nodes, 2), 1.0))
    spread = np.log2(np.maximum(nodes / start, 1.0))
    return np.stack([np.ones(nodes.shape), extra, spread, neighbours], -1)


def allocation_of(
    num_nodes: ArrayLike, num_gpus: ArrayLike
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Broadcast nodes and GPUs, and refuse allocations with a node that holds no GPU."""
    nodes, gpus = np.broadcast_arrays(
        _at_least_one("num_nodes", num_nodes), _at_least_one("num_gpus", num_gpus)
    )
    if (gpus < nodes).any():
        where = int(np.flatnonzero((gpus < nodes).ravel())[0])
        raise UsageError(
            f"every node of an allocation holds a GPU: got num_nodes {nodes.ravel()[where]} and "
            f"num_gpus {gpus.ravel()[where]}"
        )
    return nodes, gpus


def _at_least_one(name: str, values: ArrayLike) -> NDArray[Any]:
    """Refuse an array that holds numbers below 1."""
    array = np.asarray(values)
    if not (array >= 1).all():
        raise UsageError(f"{name} must be >= 1, got {array.min()}")
    return array
