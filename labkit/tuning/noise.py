"""The gradient noise scale: how large a batch must be before its gradient stops being mostly noise.

With G the true gradient and Σ the covariance of one example's gradient, the gradient of a batch of
B examples has squared norm |G|² + tr(Σ)/B in expectation. Two batch sizes tell both terms apart,
and their ratio tr(Σ)/|G|², a number of examples, is the noise scale. Replicas (or microbatches) of
one step are the usual two sizes: their own gradients, and the mean that the step takes.

Source: McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), §2.2 and App. A.1;
Pollux (OSDI'21), §3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from labkit.errors import UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNoise:
    """Squared norm of the true gradient, and trace of the covariance of one example's.

    Estimates are unbiased, so either may come out negative where the noise is large; average
    several (:func:`average`) before dividing.
    """

    grad_sqr: float
    covariance_trace: float

    @property
    def noise_scale(self) -> float:
        """tr(Σ)/|G|² in examples: 0 without noise, infinite where no gradient is left.

        Source: McCandlish et al. 2018, §2.2 (the simple noise scale); Pollux §3.1 (φ).

        >>> GradientNoise(grad_sqr=2.0, covariance_trace=100.0).noise_scale
        50.0
        """
        if self.grad_sqr <= 0:
            return math.inf
        return max(self.covariance_trace, 0.0) / self.grad_sqr

    def expected_sqr(self, batch_size: ArrayLike) -> NDArray[np.float64]:
        """E|g|² of the mean gradient of ``batch_size`` examples: |G|² + tr(Σ)/B."""
        return self.grad_sqr + self.covariance_trace / np.asarray(batch_size, dtype=float)


def from_two_batches(
    *, small_sqr: float, small_batch: float, large_sqr: float, large_batch: float
) -> GradientNoise:
    """Both terms from squared gradient norms (or their means) at two batch sizes; unbiased.

    Source: McCandlish et al. 2018, App. A.1.

    >>> from_two_batches(small_sqr=3.0, small_batch=10, large_sqr=2.0, large_batch=20)
    GradientNoise(grad_sqr=1.0, covariance_trace=20.0)
    """
    if not 0 < small_batch < large_batch:
        raise UsageError(
            f"two batch sizes, 0 < small < large, are needed, got {small_batch} and {large_batch}"
        )
    span = large_batch - small_batch
    return GradientNoise(
        grad_sqr=(large_batch * large_sqr - small_batch * small_sqr) / span,
        covariance_trace=(small_sqr - large_sqr) * small_batch * large_batch / span,
    )


def from_replicas(gradients: ArrayLike, examples_each: float) -> GradientNoise:
    """Both terms from the gradients of replicas of one step, one row a replica.

    Every replica's gradient is the mean over ``examples_each`` examples of its own. The mean of
    their squared norms and the squared norm of their mean are the two batch sizes. With a row an
    example and ``examples_each=1`` this is the sample covariance.

    Source: Pollux §4.1 (its estimator where there are several replicas).
    """
    rows = _rows(gradients)
    return from_two_batches(
        small_sqr=float(np.mean(np.sum(rows**2, axis=1))),
        small_batch=examples_each,
        large_sqr=float(np.sum(rows.mean(0) ** 2)),
        large_batch=examples_each * len(rows),
    )


def from_successive(gradients: ArrayLike, batch_size: float) -> list[GradientNoise]:
    """One estimate for each pair of successive steps' gradients, taken as two replicas.

    For a single GPU without accumulation. Biased as far as the true gradient moves in a step.

    Source: Pollux §4.1 (its differenced estimator).
    """
    rows = _rows(gradients)
    return [from_replicas(pair, batch_size) for pair in pairwise(rows)]


def average(estimates: Iterable[GradientNoise]) -> GradientNoise:
    """Term by term; the ratio of means is far less biased than the mean of ratios.

    Source: McCandlish et al. 2018, App. A.1.
    """
    terms = np.array([(e.grad_sqr, e.covariance_trace) for e in estimates])
    if not len(terms):
        raise UsageError("there is no estimate of the gradient noise to average")
    grad_sqr, trace = terms.mean(0)
    return GradientNoise(grad_sqr=float(grad_sqr), covariance_trace=float(trace))


def interval(
    estimates: Sequence[GradientNoise], *, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the noise scale of :func:`average`, from independent estimates."""
    if not 0 < level < 1:
        raise UsageError(f"level must lie in (0, 1), got {level}")
    if len(estimates) < 2:
        raise UsageError(f"an interval needs two estimates or more, got {len(estimates)}")
    terms = np.array([(e.grad_sqr, e.covariance_trace) for e in estimates])
    rng = np.random.default_rng(seed)
    drawn = terms[rng.integers(0, len(terms), (1000, len(terms)))].mean(1)
    scales = [GradientNoise(grad_sqr=g, covariance_trace=t).noise_scale for g, t in drawn]
    low, high = np.quantile(scales, [(1 - level) / 2, (1 + level) / 2], method="nearest")
    return float(low), float(high)


def smoothed(table: pd.DataFrame, *, over_examples: float) -> pd.DataFrame:
    """The noise scale as training goes: both terms averaged over about the last ``over_examples``.

    ``table`` has batch_size, grad_sqr and covariance_trace for each step, in order (as
    :func:`train` returns). Each step weighs by its examples, and older ones decay exponentially;
    the average is corrected for its start. Returns the table with the two columns replaced and
    noise_scale added.
    """
    if not over_examples > 0:
        raise UsageError(f"over_examples must be above 0, got {over_examples}")
    values = table[["grad_sqr", "covariance_trace"]].to_numpy(float)
    averages, total, weight = np.empty_like(values), np.zeros(2), 0.0
    for step, batch_size in enumerate(table["batch_size"]):
        keep = math.exp(-batch_size / over_examples)
        total = keep * total + (1 - keep) * values[step]
        weight = keep * weight + (1 - keep)
        averages[step] = total / weight
    scale = [GradientNoise(grad_sqr=g, covariance_trace=t).noise_scale for g, t in averages]
    return table.assign(grad_sqr=averages[:, 0], covariance_trace=averages[:, 1], noise_scale=scale)


# ---------------------------------------------------------------- from training with torch


def train(
    model: torch.nn.Module,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    inputs: torch.Tensor,
    targets: torch.Tensor,
    *,
    optimizer: torch.optim.Optimizer,
    batch_size: int,
    num_replicas: int,
    num_steps: int,
    seed: int = 0,
    learning_rates: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Train ``model`` in place and measure the gradient noise at every step.

    Every step draws ``batch_size`` examples with replacement and computes their gradient in
    ``num_replicas`` equal parts, as that many GPUs (or accumulation steps) would; ``loss_of`` must
    be a mean over examples. With one replica, a step is paired with the one before it.

    Returns step (from 1), batch_size, loss, grad_sqr, covariance_trace; one replica leaves the
    first step out.

    Raises:
        UsageError: ``batch_size`` is not a multiple of ``num_replicas``, or a loss is not finite.
    """
    import torch

    if num_replicas < 1 or batch_size % num_replicas:
        raise UsageError(
            f"batch_size {batch_size} must be a multiple of num_replicas, got {num_replicas}"
        )
    each = batch_size // num_replicas
    draw = torch.Generator().manual_seed(seed)
    rows: list[dict[str, float]] = []
    before: NDArray[np.float64] | None = None
    for step in range(num_steps):
        chosen = torch.randint(len(inputs), (batch_size,), generator=draw)
        gradients, loss = _replica_gradients(model, loss_of, inputs, targets, chosen, each)
        if not math.isfinite(loss):
            raise UsageError(f"step {step + 1}: the loss is {loss}; lower the learning rate")
        known = gradients if num_replicas > 1 or before is None else np.stack([before, *gradients])
        if len(known) > 1:
            found = from_replicas(known, each)
            place = {"step": step + 1, "batch_size": batch_size, "loss": loss}
            terms = {"grad_sqr": found.grad_sqr, "covariance_trace": found.covariance_trace}
            rows.append(place | terms)
        before = gradients[-1]
        if learning_rates is not None:
            for group in optimizer.param_groups:
                group["lr"] = learning_rates[step]
        _set_gradient(model, gradients.mean(0))
        optimizer.step()
    return pd.DataFrame(rows)


def _replica_gradients(
    model: torch.nn.Module, loss_of: Any, inputs: Any, targets: Any, chosen: Any, each: int
) -> tuple[NDArray[np.float64], float]:
    """The gradient of each part of the batch as a row, and the mean loss."""
    import torch

    rows, losses = [], []
    parameters = [p for p in model.parameters() if p.requires_grad]
    for part in chosen.split(each):
        loss = loss_of(model(inputs[part]), targets[part])
        gradient = torch.autograd.grad(loss, parameters)
        rows.append(torch.cat([g.reshape(-1) for g in gradient]).double().numpy())
        losses.append(float(loss.detach()))
    return np.stack(rows), float(np.mean(losses))


def _set_gradient(model: torch.nn.Module, flat: NDArray[np.float64]) -> None:
    import torch

    start = 0
    for parameter in model.parameters():
        if parameter.requires_grad:
            part = flat[start : start + parameter.numel()]
            parameter.grad = torch.as_tensor(part, dtype=parameter.dtype).reshape(parameter.shape)
            start += parameter.numel()


def _rows(gradients: ArrayLike) -> NDArray[np.float64]:
    rows = np.asarray(gradients, dtype=float)
    if rows.ndim != 2 or len(rows) < 2:
        raise UsageError(f"gradients must be a table of at least two rows, got shape {rows.shape}")
    return rows
