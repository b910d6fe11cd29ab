"""Which expert a token goes to: a small gate, trained, and the slots that experts have."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labkit.kit.describe import Count, NonNegative, checked
from labkit.kit.randomness import Rng, seed_of
from labkit.papers.tutel.layers import SharedExperts
from labkit.tuning.recording.training import read_digits

NUM_EXPERTS = 8
BATCH = 256
HIDDEN = 16  # of an expert


@checked
def train_gate(*, steps: Count = 120, balance: NonNegative = 0.0, rng: Rng = 0) -> np.ndarray:
    """Train eight experts and their gate on scikit-learn's digits; each image is one token.

    Args:
        steps: of Adam, on 256 images each.
        balance: weight of the usual loss for even loads, experts · Σ share · mean probability.
        rng: of the images' order and of the first weights.

    Returns:
        The capacity factor that drops no token, a value a step: the largest number of tokens of an
        expert over the mean.
    """
    pixels, digits = read_digits()
    generator = torch.Generator().manual_seed(seed_of(rng))
    images = torch.from_numpy(pixels).double() / 16
    labels = torch.from_numpy(digits)

    def drawn(*shape: int) -> Tensor:
        """First weights, scaled by the numbers that come in."""
        weights = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return (weights / shape[-2] ** 0.5).requires_grad_()

    gate = drawn(images.shape[1], NUM_EXPERTS)
    up = drawn(NUM_EXPERTS, images.shape[1], HIDDEN)
    down = drawn(NUM_EXPERTS, HIDDEN, 10)
    adam = torch.optim.Adam([gate, up, down], lr=1e-2)
    factors = []
    for _ in range(steps):
        batch = torch.randint(len(images), (BATCH,), generator=generator)
        probability = (images[batch] @ gate).softmax(1)
        expert = probability.argmax(1)
        counts = torch.bincount(expert, minlength=NUM_EXPERTS)
        factors.append(float(counts.max()) * NUM_EXPERTS / BATCH)
        hidden = torch.einsum("tw,ewh->teh", images[batch], up).relu()
        outputs = torch.einsum("teh,eho->teo", hidden, down)
        chosen = torch.arange(BATCH)
        scores = outputs[chosen, expert] * probability[chosen, expert, None]
        uneven = NUM_EXPERTS * (counts / BATCH * probability.mean(0)).sum()
        loss = functional.cross_entropy(scores, labels[batch]) + balance * uneven
        adam.zero_grad()
        loss.backward()
        adam.step()
    return np.array(factors)


def slots(expert: np.ndarray, capacity: int) -> np.ndarray:
    """Give each token a slot of its expert, first come first served; -1 where none is left.

    >>> slots(np.array([1, 0, 1, 1]), capacity=2).tolist()
    [2, 0, 3, -1]
    """
    taken: dict[int, int] = {}
    given = []
    for number in expert.tolist():
        place = taken.get(number, 0)
        taken[number] = place + 1
        given.append(number * capacity + place if place < capacity else -1)
    return np.array(given)


def best_s(
    experts: SharedExperts, factors: np.ndarray, *, bin_width: float | None = None
) -> np.ndarray:
    """Seconds of each step, with the fastest number of copies.

    Args:
        experts: whose parallelism is chosen.
        factors: capacity factor of each step.
        bin_width: the choice is made at the first step of a bin of the capacity factor, and kept
            for all its steps; None chooses at each step.
    """
    chosen: dict[float, int] = {}
    seconds = []
    for factor in factors.tolist():
        place = factor if bin_width is None else float(factor // bin_width)
        if place not in chosen:
            times = {copies: experts.seconds(copies, factor) for copies in experts.choices}
            chosen[place] = min(times, key=lambda copies: times[copies])
        seconds.append(experts.seconds(chosen[place], factor))
    return np.array(seconds)
