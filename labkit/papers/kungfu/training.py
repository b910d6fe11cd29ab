"""A training whose batch size changes on the way, as a policy hears it should.

Workers share a batch, so every step yields the gradient of each worker and their mean, as
synchronous data parallelism does. Here the workers are a stack of equal weights in one process; the
notebook runs the same :class:`Network` on real ranks. After each step the policy hears two squared
norms, a worker's and the mean's, and answers with the next batch size.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np
import pandas as pd
from annotated_types import Ge

from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, Whole, description
from labkit.tuning.goodput.noise import GradientNoise, average, from_two_batches
from labkit.tuning.recording import stacked
from labkit.tuning.recording.training import load_digits, one_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from labkit.tuning.recording.training import Data

    Policy = Generator[int, "Norms", None]


class Norms(NamedTuple):
    """What a policy hears of a step.

    Attributes:
        share_sqr: squared norm of a worker's gradient, the mean over workers.
        batch_sqr: squared norm of the mean gradient.
        batch: the step's batch size; a policy may hear of a step later.
    """

    share_sqr: float
    batch_sqr: float
    batch: int


@description(slots=True)
class AdaptiveRun:
    """A run over ``num_examples`` examples; its learning rate follows the batch size linearly.

    Attributes:
        small_batch, small_rate: a batch size, and the learning rate that suits it.
        num_workers: workers among which every batch is divided.
        rng: seed of the first weights and of the order of the images.
        check_every: steps between two looks at the validation images.
        heard_workers: the policy hears the mean squared norm of so many workers' gradients; None
            for all of them.
    """

    small_batch: Count
    small_rate: Positive
    num_workers: Annotated[int, Ge(2)]
    num_examples: Count
    rng: Whole
    check_every: Count = 10
    heard_workers: Count | None = None

    def rate(self, batch: int) -> float:
        """The learning rate at a batch size."""
        return self.small_rate * batch / self.small_batch


def replicas(weights: Sequence[Tensor], images: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """The gradients of one network on several batches, a row each, for ``noise.from_replicas``.

    Args:
        weights: as ``stacked.initial`` gives them; the first of the stack is taken.
        images: batches × examples × pixels.
        labels: batches × examples.
    """
    import torch

    copies = [part[:1].expand(len(images), *part.shape[1:]) for part in weights]
    _, slopes = stacked.gradients(copies, images, labels)
    flat = torch.cat([part.flatten(1) for part in slopes], 1)
    rows: NDArray[np.float64] = flat.double().numpy()
    return rows


class Network:
    """The weights of a run, the order in which it takes the images, and its validation error.

    Attributes:
        flat: all weights, as one row.
        velocity: the momentum of each.
        examples: how many images the run has taken.
    """

    def __init__(self, run: AdaptiveRun, data: Data) -> None:
        import torch

        images, self._labels, held_out, self._classes = data
        self._images = images.double()
        self._held_out = held_out.double()
        self._run = run
        start = stacked.initial([run.rng])
        self.flat = torch.cat([weight.flatten(1) for weight in start], 1)
        self.velocity = torch.zeros_like(self.flat)
        self.examples = 0
        parts = self.flat.split([weight.numel() for weight in start], 1)
        pairs = zip(parts, start, strict=True)
        self._weights = [part.view_as(weight) for part, weight in pairs]  # views of ``flat``
        self._order = torch.Generator().manual_seed(run.rng)
        self._waiting = torch.empty(0, dtype=torch.int64)

    def next_images(self, batch: int) -> Tensor:
        """Numbers of the next images; an epoch's last few are left out where they fill no batch.

        Raises:
            BadValue: the workers cannot share the batch, or it is more than all images.
        """
        import torch

        workers = self._run.num_workers
        if batch < workers or batch % workers or batch > len(self._images):
            raise BadValue(
                f"a batch size must be a multiple of {workers} workers and at most "
                f"{len(self._images)} images, the policy chose {batch}"
            )
        if len(self._waiting) < batch:
            self._waiting = torch.randperm(len(self._images), generator=self._order)
        chosen = self._waiting[:batch]
        self._waiting = self._waiting[batch:]
        self.examples += batch
        return chosen

    def gradients(self, chosen: Tensor) -> Tensor:
        """The gradient of each worker on its images, workers × weights.

        Args:
            chosen: numbers of images, workers × examples.
        """
        import torch

        copies = [weight.expand(len(chosen), *weight.shape[1:]) for weight in self._weights]
        _, slopes = stacked.gradients(copies, self._images[chosen], self._labels[chosen])
        return torch.cat([slope.flatten(1) for slope in slopes], 1)

    def step(self, gradient: Tensor, batch: int) -> None:
        """Update the weights by momentum SGD, at the rate that suits the batch."""
        import torch

        stacked.momentum(self.flat, gradient, self.velocity, torch.tensor(self._run.rate(batch)))

    def error(self) -> float:
        """The share of validation images that the network names wrongly."""
        return float(stacked.wrong(self._weights, self._held_out, self._classes)[0])


@one_thread()
def train(run: AdaptiveRun, policy: Policy, data: Data | None = None) -> pd.DataFrame:
    """Train by momentum SGD, asking ``policy`` for the next batch size after every step.

    Args:
        policy: yields a batch size, a multiple of the workers, and is sent the step's
            :class:`Norms`.
        data: from ``training.load_digits``, to read it once for many calls.

    Returns:
        A row a look at the validation images: step, examples, batch_size, grad_sqr and
        covariance_trace (means over the steps since the last look; either may be negative), error.

    Raises:
        BadValue: the policy yields a batch that its workers cannot share, or more than all images.
    """
    network = Network(run, data or load_digits())
    looks: list[tuple[float, ...]] = []
    estimates: list[GradientNoise] = []  # of the steps since the last look
    batch = next(policy)
    step = 0
    while network.examples < run.num_examples:
        own = network.gradients(network.next_images(batch).view(run.num_workers, -1))
        mean = own.mean(0, keepdim=True)
        network.step(mean, batch)
        step += 1
        share_sqr = float(own[: run.heard_workers].square().sum(1).mean())
        batch_sqr = float(mean.square().sum())
        estimates.append(_noise(own, batch_sqr, batch))
        if step % run.check_every == 0:
            terms = average(estimates)
            estimates.clear()
            noise = (terms.grad_sqr, terms.covariance_trace)
            looks.append((step, network.examples, batch, *noise, network.error()))
        batch = policy.send(Norms(share_sqr, batch_sqr, batch))
    columns = ["step", "examples", "batch_size", "grad_sqr", "covariance_trace", "error"]
    return pd.DataFrame(looks, columns=columns)


def _noise(own: Tensor, batch_sqr: float, batch: int) -> GradientNoise:
    """Both terms of the noise from one step: a worker's share and the whole are two batch sizes."""
    return from_two_batches(
        small_sqr=float(own.square().sum(1).mean()),
        small_batch=batch / len(own),
        large_sqr=batch_sqr,
        large_batch=batch,
    )
