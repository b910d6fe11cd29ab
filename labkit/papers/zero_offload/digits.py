"""A small network on handwritten digits, whose gradients and updates are called one by one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from labkit.tuning.recording.training import load_digits

NUM_STEPS = 450
BATCH = 32


class SmallTraining:
    """One hidden layer of 32, trained by torch's Adam in 64 bits on batches of 32 digits.

    Args:
        rate: Adam's learning rate.
        seed: of the weights and of the batches; the same one gives the same training.
    """

    def __init__(self, *, rate: float = 1e-3, seed: int = 0) -> None:
        images, self._labels, unseen, self._unseen_labels = load_digits()
        self._images = images.double()
        self._unseen = unseen.double()
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)]
        self.network = torch.nn.Sequential(*layers).double()
        self._adam = torch.optim.Adam(self.network.parameters(), lr=rate, fused=True)
        self._batches = torch.randint(len(images), (NUM_STEPS, BATCH))

    def batches(self) -> Iterator[Tensor]:
        """The numbers of the images of each step."""
        yield from self._batches

    def gradients(self, batch: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the loss of a batch at the present parameters."""
        loss = cross_entropy(self.network(self._images[batch]), self._labels[batch])
        return torch.autograd.grad(loss, [*self.network.parameters()])

    def update(self, gradients: tuple[Tensor, ...]) -> None:
        """One step of Adam."""
        for parameter, gradient in zip(self.network.parameters(), gradients, strict=True):
            parameter.grad = gradient
        self._adam.step()

    def validation_loss(self) -> float:
        """The loss on images that are not trained on."""
        with torch.no_grad():
            return cross_entropy(self.network(self._unseen), self._unseen_labels).item()
