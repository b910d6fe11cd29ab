"""Several trainings of one small network at once, their weights stacked along a first axis.

A small network leaves the processor waiting for Python, so ten stacked runs take hardly longer than
one. A run is a seed with its own learning rates; it starts from the weights and takes the images in
the order that :func:`training.train` gives that seed. Replicas of one run are a stack as well: the
same weights, several batches, one gradient each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import MinLen
from numpy.typing import ArrayLike, NDArray

from labkit.errors import BadValue
from labkit.kit.describe import Count, Whole, description
from labkit.tuning.recording.training import MOMENTUM, load_digits, network_of, one_thread

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.tuning.recording.training import Data

    Update = Callable[[Tensor, Tensor, Tensor, Tensor], None]

_SMALLEST_VARIANCE = 1e-5  # of a normalised value, as in torch
_DRAWING = threading.Lock()  # torch's generator is every thread's


@description(slots=True)
class Stack:
    """Runs of the MLP of :mod:`training` that share a batch size, one seed a run."""

    batch_size: Count
    num_epochs: Count
    seeds: Annotated[tuple[Whole, ...], MinLen(1)]
    worker_batch: Count | None = None
    """Examples over which a worker normalises the hidden layer; None: no normalisation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedRuns:
    """What the runs did; arrays are epochs × runs."""

    losses: NDArray[np.float64]
    """Mean training loss of each epoch's batches, in nats."""
    errors: NDArray[np.float64]
    """Share of validation images that the network names wrongly after each epoch."""
    weights: tuple[Tensor, ...]
    """As the runs ended, one tensor a layer's weight or bias."""


def initial(seeds: Sequence[int]) -> tuple[Tensor, ...]:
    """The first weights of each seed, stacked: as :func:`training.train` has them.

    In 64 bits: beyond the largest stable rate a run magnifies the rounding of 32, which differs
    between processors, until its errors differ too.
    """
    import torch

    layers = []
    for seed in seeds:
        with _DRAWING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers.append([p.detach().double() for p in network_of("mlp").parameters()])
    return tuple(torch.stack(parts) for parts in zip(*layers, strict=True))


def outputs(weights: Sequence[Tensor], images: Tensor, worker_batch: int | None = None) -> Tensor:
    """Logits, runs × examples × classes, of images stacks × examples × pixels.

    Run r has the stack r mod stacks, so that runs of one seed share a product. With
    ``worker_batch`` the hidden layer is normalised over each group of so many examples; a last
    smaller group is its own.
    """
    hidden, _ = _hidden(weights, images.to(weights[0].dtype), worker_batch)
    return _logits(weights, hidden.relu_())


def _logits(weights: Sequence[Tensor], active: Tensor) -> Tensor:
    return weights[3][:, None].baddbmm(active, weights[2].transpose(1, 2))


def _hidden(
    weights: Sequence[Tensor], images: Tensor, worker_batch: int | None
) -> tuple[Tensor, list[Tensor]]:
    """The hidden layer before its ReLU, and by what each group's normalisation multiplied it."""
    first = weights[0].transpose(1, 2)
    bias = weights[1]
    stacks = len(images)
    scales = []
    sums = _beside(bias[:, None], stacks).baddbmm(images, _beside(first, stacks))
    hidden = _apart(sums, bias.shape[1])
    for part in _groups(hidden, worker_batch):
        part -= part.mean(-2, keepdim=True)
        scales.append((part.square().mean(-2, keepdim=True) + _SMALLEST_VARIANCE).rsqrt())
        part *= scales[-1]
    return hidden, scales


def _beside(runs: Tensor, stacks: int) -> Tensor:
    """Runs × rows × columns as stacks × rows × (columns of all runs that have the stack)."""
    return runs.unflatten(0, (-1, stacks)).permute(1, 2, 0, 3).flatten(2)


def _apart(stacks: Tensor, columns: int) -> Tensor:
    """The way back."""
    return stacks.unflatten(2, (-1, columns)).permute(2, 0, 1, 3).flatten(0, 1)


def _groups(rows: Tensor, size: int | None) -> list[Tensor]:
    """Views, runs × groups × ``size`` × width, and of a last smaller group; None without a size."""
    if size is None:
        return []
    rest = rows.shape[1] % size
    last = [rows[:, rows.shape[1] - rest :].unsqueeze(1)] if rest else []
    return [rows[:, : rows.shape[1] - rest].unflatten(1, (-1, size)), *last][
        rest == rows.shape[1] :
    ]


def gradients(
    weights: Sequence[Tensor], images: Tensor, labels: Tensor, worker_batch: int | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Each run's mean loss over its examples, and that loss's gradient, stacked as the weights.

    ``images`` are stacks × examples × pixels, as in :func:`outputs`, ``labels`` stacks × examples.
    The chain rule is written out: on so small a network autograd would take most of the time.
    """
    images = images.to(weights[0].dtype)
    hidden, scales = _hidden(weights, images, worker_batch)
    active = hidden.relu()
    chances = _logits(weights, active).log_softmax(2)
    named = labels.repeat(len(hidden) // len(labels), 1)[..., None]
    losses = -chances.gather(2, named).mean((1, 2))
    slope = chances.exp_().scatter_add_(2, named, chances.new_full(named.shape, -1.0))
    slope /= labels.shape[1]
    back = slope.bmm(weights[2]).mul_(active > 0)
    parts = (_groups(whole, worker_batch) for whole in (hidden, back))
    for part, flow, scale in zip(*parts, scales, strict=True):
        flow -= flow.mean(-2, keepdim=True) + part * (flow * part).mean(-2, keepdim=True)
        flow *= scale
    first = images.transpose(1, 2).bmm(_beside(back, len(images)))
    ahead = slope.transpose(1, 2).bmm(active), slope.sum(1)
    return losses, (_apart(first, back.shape[2]).transpose(1, 2), back.sum(1), *ahead)


def momentum(weight: Tensor, gradient: Tensor, velocity: Tensor, rate: Tensor) -> None:
    """SGD with momentum as torch has it: the rate outside the velocity (Goyal et al., Eq. 9)."""
    velocity.mul_(MOMENTUM).add_(gradient)
    weight.sub_(rate * velocity)


@one_thread()
def train(
    what: Stack, rates: ArrayLike, data: Data | None = None, update: Update = momentum
) -> StackedRuns:
    """Train every run for all its epochs.

    Args:
        rates: the learning rate of every step, runs × steps, else BadValue; the last batch of an
            epoch may be smaller, so an epoch has ⌈images / batch_size⌉ steps.
        data: from :func:`training.load_digits`, to read them once for many calls.
        update: changes a weight in place, given its gradient, its state (zeros at first) and the
            rates, all of them stacked.
    """
    import torch

    data = data or load_digits()
    steps = -(-len(data[0]) // what.batch_size)
    rate = torch.tensor(np.asarray(rates), dtype=torch.float64)
    if rate.shape != (len(what.seeds), steps * what.num_epochs):
        raise BadValue(
            f"rates must be runs × steps, {len(what.seeds)} × {steps * what.num_epochs}, got "
            f"{' × '.join(map(str, rate.shape))}"
        )
    images, labels, held_out, classes = data
    images = images.double()
    held_out = held_out.double()
    own = tuple(dict.fromkeys(what.seeds))  # one order a seed where seeds repeat in turn
    own = own if own * (len(what.seeds) // len(own)) == what.seeds else what.seeds
    weights = tuple(
        part.repeat(len(what.seeds) // len(own), *[1] * (part.ndim - 1)) for part in initial(own)
    )
    state = [torch.zeros_like(weight) for weight in weights]
    orders = [torch.Generator().manual_seed(seed) for seed in own]
    losses = []
    shares = []
    step = 0
    for _ in range(what.num_epochs):
        picked = torch.stack([torch.randperm(len(images), generator=order) for order in orders])
        batches = picked.split(what.batch_size, dim=1)
        epoch = torch.zeros(len(what.seeds), dtype=torch.float64)
        for batch in batches:
            loss, slopes = gradients(weights, images[batch], labels[batch], what.worker_batch)
            for weight, slope, held in zip(weights, slopes, state, strict=True):
                update(weight, slope, held, rate[:, step].view(-1, *[1] * (weight.ndim - 1)))
            epoch = epoch + loss
            step = step + 1
        losses.append((epoch / len(batches)).numpy())
        shares.append(wrong(weights, held_out, classes, what.worker_batch))
    return StackedRuns(losses=np.array(losses), errors=np.array(shares), weights=weights)


def wrong(
    weights: Sequence[Tensor], images: Tensor, labels: Tensor, worker_batch: int | None = None
) -> NDArray[np.float64]:
    """Share of images that each run names wrongly; normalised over all of them where it is."""
    import torch

    with torch.no_grad():
        named = outputs(weights, images[None], len(images) if worker_batch else None).argmax(2)
    return (named != labels).double().mean(1).numpy()
