"""Small networks trained on digits with weights as old as a pipeline's, and real gradients.

A pipeline of S stages is a network of S layers, one a stage. Stage s starts the forward of a
minibatch S - 1 - s updates before that minibatch's backward comes back. The rules differ in which
weights the forward and the backward then use. Trainings of several learning rates and seeds run
side by side, as one batch of matrices.

Source: PipeDream §3.3 (weight stashing, vertical sync).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from labkit.tuning.recording.training import read_digits

if TYPE_CHECKING:
    from torch import Tensor

WIDTH = 48
BATCH_SIZE = 32
TRAINING_IMAGES = 1400
NUM_IMAGES = 1797
STRIDE = 1000
"""Images are taken every so many, so that no two neighbours of the file stand side by side."""


class Rule(StrEnum):
    """Which weights a minibatch sees."""

    ONE_WORKER = "one worker"
    STASHING = "stashing"
    VERTICAL_SYNC = "vertical sync"
    NO_STASHING = "no stashing"


def age(rule: Rule, num_stages: int, stage: int) -> int:
    """How many updates old the weights of a stage's forward are when its backward comes.

    >>> [age(Rule.STASHING, 4, stage) for stage in range(4)]
    [3, 2, 1, 0]
    >>> [age(Rule.VERTICAL_SYNC, 4, stage) for stage in range(4)]
    [3, 3, 3, 3]
    """
    if rule is Rule.ONE_WORKER:
        return 0
    if rule is Rule.VERTICAL_SYNC:
        return num_stages - 1
    return num_stages - 1 - stage


def images() -> tuple[Tensor, Tensor]:
    """All digits, mixed, as pixels in [0, 1] and labels: shapes (1797, 64) and (1797,)."""
    import torch

    pixels, labels = map(torch.tensor, read_digits())
    mixed = torch.arange(NUM_IMAGES) * STRIDE % NUM_IMAGES
    return pixels[mixed] / 16, labels[mixed]


def draw_weights(num_stages: int, rng: np.random.Generator, num_seeds: int) -> list[Tensor]:
    """First weights of a network of one layer a stage: each of shape (num_seeds, in, out).

    Args:
        num_stages: layers; all but the last have 48 outputs, the last has 10.
        rng: draws them, layer by layer.
        num_seeds: networks side by side.
    """
    import torch

    sizes = [64, *[WIDTH] * (num_stages - 1), 10]
    weights = []
    for inputs, outputs in pairwise(sizes):
        values = rng.standard_normal((num_seeds, inputs, outputs))
        weights.append(torch.tensor(values) * (2 / inputs) ** 0.5)
    return weights


def gradients(
    forward: Sequence[Tensor], backward: Sequence[Tensor], inputs: Tensor, targets: Tensor
) -> list[Tensor]:
    """What each layer is updated by: a forward through some weights, a backward through others.

    Args:
        forward: the weights of each layer that the forward pass uses.
        backward: those that the backward pass uses; the same for a true gradient.
        inputs: shape (…, n, 64).
        targets: a one at each image's digit, shape (…, n, 10).

    Returns:
        For each layer, the gradient of the mean cross entropy, of the shape of its weights.
    """
    kept = [inputs]
    for weight in forward[:-1]:
        kept.append((kept[-1] @ weight).relu())
    scores = kept[-1] @ forward[-1]
    error = (scores.softmax(-1) - targets) / targets.shape[-2]
    steps: list[Tensor] = []
    for values, weight in zip(reversed(kept), reversed(backward), strict=True):
        steps.insert(0, values.mT @ error)
        error = error @ weight.mT * (values > 0)
    return steps


def accuracies(
    rule: Rule,
    num_stages: int,
    rates: Sequence[float],
    *,
    num_seeds: int,
    num_steps: int = 400,
) -> np.ndarray:
    """Test accuracy after a training, for each learning rate and seed.

    Args:
        rule: which weights a minibatch sees.
        num_stages: of the pipeline, and layers of the network.
        rates: learning rates.
        num_seeds: trainings of each rate, with weights and images of their own.
        num_steps: updates.

    Returns:
        Shares of 397 images that no training sees, shape (len(rates), num_seeds).
    """
    import torch

    torch.set_num_threads(1)
    pixels, labels = images()
    targets = torch.eye(10).double()[labels]
    rate = torch.tensor(rates).repeat_interleave(num_seeds)[:, None, None]
    first = draw_weights(num_stages, np.random.default_rng(0), num_seeds)
    versions = [[weight.repeat(len(rates), 1, 1) for weight in first]]
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_steps):
        shape = (num_seeds, BATCH_SIZE)
        rows = torch.randint(TRAINING_IMAGES, shape, generator=generator).repeat(len(rates), 1)
        newest = len(versions) - 1
        forward = []
        for stage in range(num_stages):
            version = max(newest - age(rule, num_stages, stage), 0)
            forward.append(versions[version][stage])
        backward = versions[-1] if rule is Rule.NO_STASHING else forward
        steps = gradients(forward, backward, pixels[rows], targets[rows])
        updated = [w - rate * step for w, step in zip(versions[-1], steps, strict=True)]
        versions = [*versions[1 - num_stages :], updated]
    outputs = pixels[TRAINING_IMAGES:].expand(rate.shape[0], -1, -1)
    for weight in versions[-1][:-1]:
        outputs = (outputs @ weight).relu()
    hits = (outputs @ versions[-1][-1]).argmax(-1) == labels[TRAINING_IMAGES:]
    return hits.double().mean(-1).view(-1, num_seeds).numpy()
