"""When a training converges: real losses of a small network, and the rule that ends them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.kit.describe import Count, Positive, checked
from labkit.tuning.recording.stacked import Stack, train

_STEPS_AN_EPOCH = 23
_EPOCHS = 40
_EPOCHS_BEFORE_DROP = 12


@checked
def converged_epoch(
    losses: ArrayLike, *, window: Count = 10, drop: Positive = 0.05, most: Count = 400
) -> int:
    """The first epoch that lowered the loss by ``drop`` or less over the ``window`` before it.

    Args:
        losses: of each epoch, from the first on.
        window: in epochs.
        drop: in the loss's unit.
        most: the answer where no epoch does.

    Source: the authors' program.

    >>> converged_epoch([1 / (1 + k) for k in range(99)])
    19
    """
    values = np.asarray(losses, dtype=float)
    flat = np.flatnonzero(values[:-window] - values[window:] <= drop)
    return int(flat[0]) + window if flat.size else most


def digit_losses() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Losses by epoch of real trainings of a small network on digits, a row a training.

    Returns:
        Nine trainings of 40 epochs at one learning rate (three rates, three seeds); three whose
        rate drops to a tenth after 12 epochs.
    """
    rates = [(0.01, 0.01), (0.02, 0.02), (0.05, 0.05), (0.02, 0.002)]
    by_run = np.repeat(rates, 3, axis=0)
    epochs = np.array([_EPOCHS_BEFORE_DROP, _EPOCHS - _EPOCHS_BEFORE_DROP])
    by_step = by_run.repeat(_STEPS_AN_EPOCH * epochs, axis=1)
    stack = Stack(batch_size=64, num_epochs=_EPOCHS, seeds=(0, 1, 2) * len(rates))
    losses = train(stack, by_step).losses.T
    return losses[:9], losses[9:]
