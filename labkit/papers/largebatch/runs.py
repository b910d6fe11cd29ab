"""Trainings at k times a small batch, by learning-rate rule, and other updates than the paper's.

    runs = largebatch.sweep(rates, {"gradual": ()}, (1, 32), small_batch=8, seeds=range(5), ...)
    largebatch.errors(runs)          # the last errors, and how far above the small batch's

Source: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, §2 to §5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from labkit.kit.describe import Count, Whole
from labkit.tuning.recording import stacked
from labkit.tuning.recording.training import MOMENTUM

if TYPE_CHECKING:
    from torch import Tensor

SMALLEST_LENGTH = 1e-9  # of a gradient that LARS divides by
TRUST = 0.1  # LARS's step over weights at rate 1; the small batch then learns as SGD lets it


class Rule(StrEnum):
    """How the learning rate follows the batch: the paper's recipe first, then what it compares."""

    GRADUAL = "linear scaling, gradual warm-up"
    NONE = "linear scaling, no warm-up"
    CONSTANT = "linear scaling, constant warm-up"
    ROOT = "square-root scaling, gradual warm-up"
    KEPT = "rate kept"


# ---------------------------------------------------------------- updates


def folded(weight: Tensor, gradient: Tensor, velocity: Tensor, rate: Tensor) -> None:
    """SGD whose velocity holds the rate, and so remembers earlier rates (Goyal et al., Eq. 10)."""
    weight.sub_(velocity.mul_(MOMENTUM).add_(rate * gradient))


def lars(weight: Tensor, gradient: Tensor, velocity: Tensor, rate: Tensor) -> None:
    """SGD in which each layer's step is in proportion to its weights.

    Source: You et al., "Large Batch Training of Convolutional Networks", 2017, Alg. 1, without
    weight decay.
    """
    lengths = [part.flatten(1).norm(dim=1).view(rate.shape) for part in (weight, gradient)]
    trust = TRUST * lengths[0] / lengths[1].clamp(min=SMALLEST_LENGTH)
    folded(weight, trust * gradient, velocity, rate)


# ---------------------------------------------------------------- runs


def sweep(
    rates: Callable[..., ArrayLike],
    cases: Mapping[Any, Sequence[Any]],
    factors: Sequence[Count],
    *,
    small_batch: Count,
    seeds: Sequence[Whole],
    **options: Any,
) -> pd.DataFrame:
    """Train every seed at k times the small batch, for each k of ``factors``, under each rule.

    Two values of k run at a time, each on a thread. Cases that agree at some k run once there.

    Args:
        rates: ``rates(k, *case)`` gives the learning rate of every step.
        cases: further arguments of ``rates``, by the case's name.
        factors: the batch sizes, in small batches.
        small_batch: examples.
        options: further fields of :class:`stacked.Stack` and arguments of :func:`stacked.train`.

    Returns:
        Columns: k, rates (the case's name), seed, epoch (from 1), and loss and error as
        :class:`stacked.StackedRuns` has them.
    """
    of_stack = {name: options.pop(name) for name in ("num_epochs", "worker_batch") & options.keys()}

    def runs_at(k: int) -> pd.DataFrame:
        wanted = np.array([rates(k, *case) for case in cases.values()])
        distinct, place = np.unique(wanted, axis=0, return_inverse=True)
        stack = stacked.Stack(
            batch_size=k * small_batch, seeds=(*seeds,) * len(distinct), **of_stack
        )
        runs = stacked.train(stack, np.repeat(distinct, len(seeds), axis=0), **options)
        first = place.reshape(-1, 1) * len(seeds)  # each case's run of the first seed
        of_case = (first + np.arange(len(seeds))).ravel()
        epochs = range(1, stack.num_epochs + 1)
        axes: list[list[Any]] = [[k], list(cases), list(seeds), [*epochs]]
        index = pd.MultiIndex.from_product(axes, names=["k", "rates", "seed", "epoch"])
        columns = {"loss": runs.losses.T[of_case].ravel(), "error": runs.errors.T[of_case].ravel()}
        return pd.DataFrame(columns, index=index).reset_index()

    with ThreadPoolExecutor(2) as pool:
        return pd.concat(pool.map(runs_at, factors), ignore_index=True)


def errors(runs: pd.DataFrame) -> pd.DataFrame:
    """The last error of :func:`sweep` by rates and k.

    Columns: mean and std over seeds, and above, the mean less that at the smallest k.
    """
    last = runs[runs["epoch"] == runs["epoch"].max()]
    table = last.groupby(["rates", "k"])["error"].agg(["mean", "std"])
    return table.assign(above=table["mean"] - table["mean"].groupby("rates").transform("first"))
