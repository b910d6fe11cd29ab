"""A small network, trained on scikit-learn's digits by virtual ranks whose traffic is rounded.

It shows in a second what a change of the traffic does to training; nothing is sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from labkit.kit.describe import Whole, checked
from labkit.kit.randomness import Rng, seed_of
from labkit.memory.oracles.collective import Adam
from labkit.papers.zeropp.quantised import rounded
from labkit.tuning.recording.training import read_digits

NUM_TRAINED = 1280  # samples to train on; the other 517 validate
NUM_RANKS = 4
BATCH = 64  # samples that the virtual ranks share in a step
LAYERS = (64, 128, 128, 10)
_SIZES = [size for wide, out in itertools.pairwise(LAYERS) for size in (wide * out, out)]


@checked
def train_digits(
    weights: Callable[[Tensor], Tensor] | None = None,
    gradients: Callable[[Tensor], Tensor] | None = None,
    *,
    steps: Whole = 80,
    rng: Rng = 0,
) -> tuple[float, Tensor]:
    """The validation loss after ``steps`` of Adam, and all weights as one vector.

    Adam works on exact weights, as a sharded optimizer does on its own part.

    Args:
        weights: what a gathered copy of the weights looks like; exact by default.
        gradients: the sum of the ranks' gradients, given as rows and padded so that they divide
            by 16; exact by default.
        rng: of the samples' order and of the first weights.
    """
    pixels, digits = read_digits()
    seed = seed_of(rng)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(pixels)[order] / 16
    labels = torch.from_numpy(digits)[order]
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(*pair) for pair in itertools.pairwise(LAYERS)]
    flat = torch.nn.utils.parameters_to_vector([p for layer in layers for p in layer.parameters()])
    # Rounding of 32 bits differs between processors, and a quantiser magnifies it.
    adam = Adam(flat.detach().double(), lr=3e-3)
    pad = -len(flat) % 16
    for step in range(steps):
        batch = torch.arange(step * BATCH, (step + 1) * BATCH)
        mine = batch.remainder(NUM_TRAINED).view(NUM_RANKS, -1)
        seen = adam.weights if weights is None else weights(adam.weights).double()
        own = seen.repeat(NUM_RANKS, 1).requires_grad_()
        slopes = torch.autograd.grad(_losses(own, images[mine], labels[mine]).sum(), own)[0]
        rows = functional.pad(slopes, (0, pad))
        total = rows.sum(0) if gradients is None else gradients(rows).double()
        adam.step(total[: len(flat)] / NUM_RANKS)
    seen = adam.weights if weights is None else weights(adam.weights).double()
    loss = _losses(seen[None], images[None, NUM_TRAINED:], labels[None, NUM_TRAINED:])
    return float(loss), adam.weights


def rounding_error(flat: Tensor, *, block: int) -> float:
    """The norm of what 8 bits change of all weights.

    No block reaches from one tensor into the next.

    Args:
        flat: the weights, as :func:`train_digits` returns them.
        block: values that share a scale.
    """
    parts = flat.split(_SIZES)
    return float(torch.cat([rounded(part, block=block) - part for part in parts]).norm())


def _losses(rows: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Every rank's mean loss, given its weights as a row and its images, ranks × batch × pixels."""
    parts = rows.split(_SIZES, 1)
    for weight, bias in zip(parts[::2], parts[1::2], strict=True):
        hidden = images if weight is parts[0] else functional.gelu(images)
        matrix = weight.view(len(rows), bias.shape[1], -1).transpose(1, 2)
        images = bias[:, None].baddbmm(hidden, matrix)
    each = functional.cross_entropy(images.transpose(1, 2), labels, reduction="none")
    return each.mean(1)
