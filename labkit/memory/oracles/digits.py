"""A small network trained on scikit-learn's digits by virtual ranks, whose traffic may be rounded.

What a change of the traffic does to training shows here in a second; nothing is sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional

from labkit.kit.describe import Whole, checked
from labkit.memory.movement.quantise import rounded
from labkit.memory.oracles.collective import Adam

TRAINED = 1280  # samples to train on; the other 517 validate
RANKS = 4
BATCH = 64  # virtual ranks, and the samples that they share in a step
_SHAPE = (64, 128, 128, 10)
_SIZES = [n for wide, out in itertools.pairwise(_SHAPE) for n in (wide * out, out)]


@checked
def train_digits(
    weights: Callable[[Tensor], Tensor] | None = None,
    gradients: Callable[[Tensor], Tensor] | None = None,
    *,
    steps: Whole = 80,
    seed: Whole = 0,
) -> tuple[float, Tensor]:
    """The validation loss after ``steps`` of Adam, and all weights as one vector.

    ``weights`` is what a gathered copy of the weights looks like, ``gradients`` the sum of the
    ranks' gradients, given as rows and padded so that they divide by 16; both exact by default.
    Adam works on exact weights, as a sharded optimizer does on its own part.
    """
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images = images[order] / 16
    labels = labels[order]
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(*pair) for pair in itertools.pairwise(_SHAPE)]
    flat = torch.nn.utils.parameters_to_vector([p for layer in layers for p in layer.parameters()])
    # Rounding of 32 bits differs between processors, and a quantiser magnifies it.
    adam = Adam(flat.detach().double(), lr=3e-3)
    pad = -len(flat) % 16
    for step in range(steps):
        mine = torch.arange(step * BATCH, (step + 1) * BATCH).remainder(TRAINED).view(RANKS, -1)
        seen = adam.weights if weights is None else weights(adam.weights).double()
        own = seen.repeat(RANKS, 1).requires_grad_()
        slopes = torch.autograd.grad(_losses(own, images[mine], labels[mine]).sum(), own)[0]
        stack = functional.pad(slopes, (0, pad))
        total = stack.sum(0) if gradients is None else gradients(stack).double()
        adam.step(total[: len(flat)] / RANKS)
    seen = adam.weights if weights is None else weights(adam.weights).double()
    loss = _losses(seen[None], images[None, TRAINED:], labels[None, TRAINED:])
    return float(loss), adam.weights


def rounding_error(flat: Tensor, *, block: int) -> float:
    """Norm of what 8 bits change of all weights; no block reaches from one tensor into the next."""
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
