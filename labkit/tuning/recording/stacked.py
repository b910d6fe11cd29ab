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
    """Runs of the MLP of :mod:`training` that share a batch size.

    Attributes:
        batch_size, num_epochs: of every run.
        seeds: one a run.
        worker_batch: examples over which a worker normalises the hidden layer; None for no
            normalisation.
    """

    batch_size: Count
    num_epochs: Count
    seeds: Annotated[tuple[Whole, ...], MinLen(1)]
    worker_batch: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedRuns:
    """What the runs did; arrays are epochs × runs.

    Attributes:
        losses: mean training loss of each epoch's batches, in nats.
        errors: share of validation images that the network names wrongly after each epoch.
        weights: as the runs ended, one tensor a layer's weight or bias.
    """

    losses: NDArray[np.float64]
    errors: NDArray[np.float64]
    weights: tuple[Tensor, ...]


def initial(seeds: Sequence[int]) -> tuple[Tensor, ...]:
    """The first weights of each seed, stacked: as :func:`training.train` has them.

    They have 64 bits. Beyond the largest stable rate a run magnifies the rounding of 32, which
    differs between processors, until its errors differ too.
    """
    import torch

    layers = []
    for seed in seeds:
        with _DRAWING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers.append([p.detach().double() for p in network_of("mlp").parameters()])
    return tuple(torch.stack(parts) for parts in zip(*layers, strict=True))


def outputs(weights: Sequence[Tensor], images: Tensor, worker_batch: int | None = None) -> Tensor:
    """Logits, runs × examples × classes.

    Args:
        weights: stacked, as :func:`initial` gives them.
        images: stacks × examples × pixels. Run r has the stack r mod stacks, so that runs of one
            seed share a product.
        worker_batch: the hidden layer is normalised over each group of so many examples; a last
            smaller group is its own. None: it is not normalised.
    """
    hidden, _ = _hidden(weights, images.to(weights[0].dtype), worker_batch)
    return _logits(weights, hidden.relu_())


def _logits(weights: Sequence[Tensor], active: Tensor) -> Tensor:
    """The last layer's product, given the hidden layer after its ReLU."""
    return weights[3][:, None].baddbmm(active, weights[2].transpose(1, 2))


def _hidden(
    weights: Sequence[Tensor], images: Tensor, worker_batch: int | None
) -> tuple[Tensor, list[Tensor]]:
    """The hidden layer before its ReLU, and the factor by which each group was normalised."""
    first = weights[0].transpose(1, 2)
    bias = weights[1]
    stacks = len(images)
    scales = []
    sums = _side_by_side(bias[:, None], stacks).baddbmm(images, _side_by_side(first, stacks))
    hidden = _run_by_run(sums, bias.shape[1])
    for part in _groups(hidden, worker_batch):
        part -= part.mean(-2, keepdim=True)
        scales.append((part.square().mean(-2, keepdim=True) + _SMALLEST_VARIANCE).rsqrt())
        part *= scales[-1]
    return hidden, scales


def _side_by_side(runs: Tensor, stacks: int) -> Tensor:
    """Put the columns of all runs that share a stack of images side by side.

    From runs × rows × columns to stacks × rows × (columns of all runs that have the stack).
    """
    return runs.unflatten(0, (-1, stacks)).permute(1, 2, 0, 3).flatten(2)


def _run_by_run(stacks: Tensor, columns: int) -> Tensor:
    """Give each run its ``columns`` back: what :func:`_side_by_side` did is undone."""
    return stacks.unflatten(2, (-1, columns)).permute(2, 0, 1, 3).flatten(0, 1)


def _groups(rows: Tensor, size: int | None) -> list[Tensor]:
    """Views of the groups that are normalised together, none where ``size`` is None.

    Of rows, runs × examples × width: first all full groups, runs × groups × size × width, then a
    smaller last group, where the examples leave one.
    """
    if size is None:
        return []
    groups = []
    whole = rows.shape[1] // size * size  # examples that fill groups
    if whole:
        groups.append(rows[:, :whole].unflatten(1, (-1, size)))
    if whole < rows.shape[1]:
        groups.append(rows[:, whole:].unsqueeze(1))
    return groups


def gradients(
    weights: Sequence[Tensor], images: Tensor, labels: Tensor, worker_batch: int | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Each run's mean loss over its examples, and that loss's gradient, stacked as the weights.

    The chain rule is written out: on so small a network autograd would take most of the time.

    Args:
        weights, images, worker_batch: as :func:`outputs` takes them.
        labels: stacks × examples.
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
    first = images.transpose(1, 2).bmm(_side_by_side(back, len(images)))
    ahead = slope.transpose(1, 2).bmm(active), slope.sum(1)
    return losses, (_run_by_run(first, back.shape[2]).transpose(1, 2), back.sum(1), *ahead)


def momentum(weight: Tensor, gradient: Tensor, velocity: Tensor, rate: Tensor) -> None:
    """SGD with momentum as torch has it: the rate outside the velocity (Goyal et al., Eq. 9)."""
    velocity.mul_(MOMENTUM).add_(gradient)
    weight.sub_(rate * velocity)


@one_thread()
def train(
    stack: Stack, rates: ArrayLike, data: Data | None = None, update: Update = momentum
) -> StackedRuns:
    """Train every run for all its epochs.

    Args:
        rates: the learning rate of every step, runs × steps; the last batch of an epoch may be
            smaller, so an epoch has ⌈images / batch_size⌉ steps.
        data: from :func:`training.load_digits`, to read them once for many calls.
        update: changes a weight in place, given its gradient, its state (zeros at first) and the
            rates, all of them stacked.

    Raises:
        BadValue: the rates have another shape.
    """
    import torch

    data = data or load_digits()
    steps = -(-len(data[0]) // stack.batch_size)
    rate = torch.tensor(np.asarray(rates), dtype=torch.float64)
    if rate.shape != (len(stack.seeds), steps * stack.num_epochs):
        raise BadValue(
            f"rates must be runs × steps, {len(stack.seeds)} × {steps * stack.num_epochs}, got "
            f"{' × '.join(map(str, rate.shape))}"
        )
    images, labels, held_out, classes = data
    images = images.double()
    held_out = held_out.double()
    distinct = _distinct_seeds(stack.seeds)
    repeats = len(stack.seeds) // len(distinct)
    weights = tuple(part.repeat(repeats, *[1] * (part.ndim - 1)) for part in initial(distinct))
    velocity = [torch.zeros_like(weight) for weight in weights]
    orders = [torch.Generator().manual_seed(seed) for seed in distinct]
    losses = []
    errors = []
    step = 0
    for _ in range(stack.num_epochs):
        picked = torch.stack([torch.randperm(len(images), generator=order) for order in orders])
        batches = picked.split(stack.batch_size, dim=1)
        epoch_loss = torch.zeros(len(stack.seeds), dtype=torch.float64)
        for batch in batches:
            loss, slopes = gradients(weights, images[batch], labels[batch], stack.worker_batch)
            for weight, slope, state in zip(weights, slopes, velocity, strict=True):
                update(weight, slope, state, rate[:, step].view(-1, *[1] * (weight.ndim - 1)))
            epoch_loss = epoch_loss + loss
            step = step + 1
        losses.append((epoch_loss / len(batches)).numpy())
        errors.append(wrong(weights, held_out, classes, stack.worker_batch))
    return StackedRuns(losses=np.array(losses), errors=np.array(errors), weights=weights)


def _distinct_seeds(seeds: tuple[int, ...]) -> tuple[int, ...]:
    """Each seed once where they repeat in turn, so that runs of one seed share an order."""
    distinct = tuple(dict.fromkeys(seeds))
    repeats = len(seeds) // len(distinct)
    return distinct if distinct * repeats == seeds else seeds


def wrong(
    weights: Sequence[Tensor], images: Tensor, labels: Tensor, worker_batch: int | None = None
) -> NDArray[np.float64]:
    """The share of images that each run names wrongly.

    Args:
        weights: stacked, as :func:`initial` gives them.
        images, labels: examples × pixels, and the class of each.
        worker_batch: None, or any number where the network normalises: it then does so over all
            of the images.
    """
    import torch

    with torch.no_grad():
        named = outputs(weights, images[None], len(images) if worker_batch else None).argmax(2)
    return (named != labels).double().mean(1).numpy()
