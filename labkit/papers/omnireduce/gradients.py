"""Gradients of small networks, one a worker, with the zeros that training gives them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn


def recommender(
    workers: int,
    *,
    rows: int = 2**15,
    dimension: int = 16,
    batch: int = 64,
    lookups: int = 8,
    skew: float = 1.05,
    steps: int = 3,
    seed: int = 0,
) -> np.ndarray:
    """Gradients of a recommender: a table of embeddings, and two layers that predict clicks.

    Ids are drawn by Zipf's law, each worker's batch by itself; the rows of the table are in random
    order, as a hash of ids would have them. All workers train on the mean gradient.

    Args:
        workers: that each draw a batch.
        rows, dimension: of the table.
        batch: examples of a worker.
        lookups: ids of an example.
        skew: the exponent of Zipf's law.
        steps: of plain gradient descent before the gradients that are returned.
        seed: of everything drawn.

    Returns:
        One row a worker: the table's gradient, row by row, then those of the layers.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    chances = np.arange(1, rows + 1) ** -skew
    chances /= chances.sum()
    place = rng.permutation(rows)
    table = nn.EmbeddingBag(rows, dimension, mode="sum")
    layers = nn.Sequential(nn.Linear(dimension, 32), nn.ReLU(), nn.Linear(32, 1))
    parameters = [*table.parameters(), *layers.parameters()]
    gradients = np.zeros((workers, sum(each.numel() for each in parameters)), dtype=np.float32)
    for _ in range(steps):
        for worker in range(workers):
            ids = torch.from_numpy(place[rng.choice(rows, (batch, lookups), p=chances)])
            clicks = torch.from_numpy(rng.integers(0, 2, (batch, 1)).astype(np.float32))
            loss = nn.functional.binary_cross_entropy_with_logits(layers(table(ids)), clicks)
            found = torch.autograd.grad(loss, parameters)
            gradients[worker] = torch.cat([each.reshape(-1) for each in found]).numpy()
        mean = torch.from_numpy(gradients.mean(axis=0))
        for each, part in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            each.data -= 0.1 * part.reshape(each.shape)
    return gradients


def dense_layer(batch: int, *, width: int = 256, dropout: float = 0.5, seed: int = 0) -> np.ndarray:
    """The gradient of a layer between two that end in ReLU and dropout, as in VGG's classifier.

    A column is zero where an input is zero for the whole batch, a row where an output is.

    Args:
        batch: examples that the gradient sums over.
        width: of all layers.
        dropout: the share of activations that is zeroed after each ReLU.
        seed: of everything drawn.

    Returns:
        The gradient, shape (outputs, inputs).
    """
    torch.manual_seed(seed)
    before = nn.Linear(width, width)
    layer = nn.Linear(width, width)
    after = nn.Linear(width, 10)
    drop = nn.Dropout(dropout)
    inputs = torch.randn(batch, width)
    hidden = drop(torch.relu(before(inputs)))
    scores = after(drop(torch.relu(layer(hidden))))
    loss = nn.functional.cross_entropy(scores, torch.randint(0, 10, (batch,)))
    (gradient,) = torch.autograd.grad(loss, [layer.weight])
    return gradient.numpy()
