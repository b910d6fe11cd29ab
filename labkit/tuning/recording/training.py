"""Small real networks trained to a target accuracy on scikit-learn's handwritten digits.

1,797 images of 8 × 8 pixels that ship with scikit-learn: no download, seconds a run, and still a
real optimisation problem, with batch sizes that are too small, too large, and unlucky seeds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Gt, Le, MinLen
from numpy.typing import NDArray

from labkit import extras
from labkit.errors import not_among
from labkit.kit.describe import Count, Positive, Whole, description

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Data = tuple[Tensor, Tensor, Tensor, Tensor]

DATASET = "digits"
VALIDATION_SHARE = 0.2
SPLIT_SEED = 0  # the same validation images for every run, whatever its seed
MOMENTUM = 0.9
Accuracy = Annotated[float, Gt(0), Le(1)]


TITLES = {"mlp": "MLP, digits", "cnn": "CNN, digits"}


def network_of(name: str) -> nn.Module:
    """Build a network: one hidden layer of 32, or two convolutions of 8 and 16 channels."""
    from torch import nn

    if name == "mlp":
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


@description(slots=True)
class Training:
    """Describes one run: what is trained, how, and until when."""

    network: str
    batch_size: Count
    rng: Whole
    """The seed of the first weights and of the order of the images."""
    learning_rate: Positive
    max_epochs: Count
    targets: Annotated[tuple[Accuracy, ...], MinLen(1)]
    """Validation accuracies, as fractions; the run ends at the highest."""

    def __post_init__(self) -> None:
        if self.network not in TITLES:
            raise not_among("network", self.network, TITLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run did, epoch by epoch."""

    accuracies: tuple[float, ...]
    epoch_s: tuple[float, ...]
    """Wall time of each epoch's training steps (validation apart)."""
    cpu_s: tuple[float, ...]
    """Processor time of the thread that trains: the wall time on a machine with nothing else on."""

    def epochs_to(self, target: float) -> int | None:
        """The first epoch (from 1) that ended at ``target`` or better; None where none did."""
        return next((n for n, a in enumerate(self.accuracies, 1) if a >= target), None)


def read_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Read scikit-learn's digits: 1,797 images of 64 values from 0 to 16, and what each shows.

    Their file is read here, since importing ``sklearn.datasets`` takes a second.

    Raises:
        UsageError: torch or scikit-learn is not installed.
    """
    extras.need("training", "torch", "torch", "sklearn")
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(np.int64)


def load_digits(device: str = "cpu") -> Data:
    """Split the digits: training images and labels, then validation's, 1,438 and 359 rows of 64
    values in [0, 1].

    Raises:
        UsageError: torch or scikit-learn is not installed.
    """
    pixels, digits = read_digits()
    import torch

    order = np.random.default_rng(SPLIT_SEED).permutation(len(pixels))
    images = torch.tensor(pixels[order] / 16, dtype=torch.float32, device=device)
    classes = torch.tensor(digits[order], dtype=torch.int64, device=device)
    cut = round(len(images) * (1 - VALIDATION_SHARE))
    return images[:cut], classes[:cut], images[cut:], classes[cut:]


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread, so that the same call gives the same numbers."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def train(what: Training, data: Data | None = None, *, device: str = "cpu") -> Trained:
    """Train until the highest target is reached or the epochs are used up.

    Plain SGD with momentum minimises cross-entropy, in a new order of the images each epoch. The
    same description gives the same accuracies on the same machine and libraries: weights and order
    come from ``rng`` alone and one thread computes.

    Args:
        what: the run.
        data: from :func:`load_digits`, to read them once for many runs.
        device: ``cpu`` or ``cuda``.
    """
    import torch

    images, labels, *validation = data or load_digits(device)
    accuracies: list[float] = []
    times: list[tuple[float, float]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(what.rng)
        network = network_of(what.network).to(device)
        optimizer = torch.optim.SGD(network.parameters(), lr=what.learning_rate, momentum=MOMENTUM)
        order = torch.Generator().manual_seed(what.rng)
        while len(times) < what.max_epochs and max(accuracies, default=0) < max(what.targets):
            picked = torch.randperm(len(images), generator=order).to(device)
            batches = picked.split(what.batch_size)
            times.append(_epoch(network, optimizer, images, labels, batches, device))
            accuracies.append(accuracy(network, *validation))
    wall_s, cpu_s = zip(*times, strict=True)
    return Trained(accuracies=tuple(accuracies), epoch_s=wall_s, cpu_s=cpu_s)


def _epoch(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    batches: Sequence[Tensor],
    device: str,
) -> tuple[float, float]:
    """Pass over the images once, and measure its wall and processor time in seconds."""
    from torch.nn.functional import cross_entropy

    start_s = _now(device)
    start_cpu_s = time.thread_time()
    for batch in batches:
        optimizer.zero_grad()
        cross_entropy(network(images[batch]), labels[batch]).backward()
        optimizer.step()
    return _now(device) - start_s, time.thread_time() - start_cpu_s


def _now(device: str) -> float:
    """The time in seconds, once the device has done all it was given."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def accuracy(network: Any, images: Tensor, labels: Tensor) -> float:
    """The share of images whose class the network names."""
    import torch

    with torch.no_grad():
        return float((network(images).argmax(1) == labels).double().mean())
