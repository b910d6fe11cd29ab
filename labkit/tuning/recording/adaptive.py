"""One small training whose batch size changes on the way, as a policy sees the gradients' norms.

Workers share a batch, so every step yields each worker's gradient and their mean, as synchronous
data parallelism does: a stack of the same weights in one process, or real ranks (:class:`Ranks`).

Source: Mai et al., "KungFu" (OSDI'20): adaptation policies fed by monitored metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
from annotated_types import Ge

from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, Whole, description
from labkit.tuning.goodput.noise import GradientNoise, average, from_two_batches
from labkit.tuning.recording import stacked
from labkit.tuning.recording.training import load_digits, one_thread

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from labkit.tuning.recording.training import Data

    Norms = tuple[list[float], float]
    Policy = Generator[int, Norms, None]


@description(slots=True)
class AdaptiveRun:
    """A run of so many examples; the learning rate follows the batch size linearly."""

    small_batch: Count
    small_rate: Positive
    """Learning rate at the small batch."""
    num_workers: Annotated[int, Ge(2)]
    num_examples: Count
    seed: Whole
    check_every: Count = 10
    """Steps between two looks at the validation images."""


class Workers:
    """All workers in this process, stacked."""

    def shares(self, batch: Tensor) -> Tensor:
        """Those of the batch's examples, workers × share, that this process computes on."""
        return batch

    def exchange(self, own: Tensor) -> tuple[Tensor, Norms]:
        """Mean of all workers' gradients, and the norms a policy hears; own: workers × weights."""
        mean = own.mean(0, keepdim=True)
        return mean, (own.square().sum(1).tolist(), float(mean.square().sum()))


class Ranks(Workers):
    """One worker, on a rank of ``torch.distributed``: gradients and norms are all-reduced.

    ``seconds`` adds up this rank's time for the one and for the other.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.seconds = [0.0, 0.0]

    def shares(self, batch: Tensor) -> Tensor:
        return batch[self.rank : self.rank + 1]

    def exchange(self, own: Tensor) -> tuple[Tensor, Norms]:
        import torch.distributed as dist

        start_s = time.perf_counter()
        size = dist.get_world_size()
        dist.all_reduce(mean := own / size)
        done_s = time.perf_counter()
        small = own.new_zeros(size)
        small[self.rank] = own.square().sum()
        dist.all_reduce(small)
        norms = small.tolist(), float(mean.square().sum())
        self.seconds[0] += done_s - start_s
        self.seconds[1] += time.perf_counter() - done_s
        return mean, norms


@one_thread()
def train(
    what: AdaptiveRun, policy: Policy, data: Data | None = None, workers: Workers | None = None
) -> pd.DataFrame:
    """Train by momentum SGD, asking ``policy`` for the next batch size after every step.

    ``policy`` yields a batch size, a multiple of the workers, and is sent the step's squared
    gradient norms: those of the workers' own gradients, and that of their mean. Columns, one row
    a look: step, examples, batch_size, grad_sqr and covariance_trace (means over the
    steps since the last look; either may be negative), error. On real ranks each calls this with
    its own ``workers``, and all get the same.

    Raises:
        BadValue: the policy yields a batch that its workers cannot share, or more than all images.
    """
    import torch

    images, labels, held_out, classes = data or load_digits()
    images = images.double()
    held_out = held_out.double()
    workers = workers or Workers()
    rows: list[tuple[float, ...]] = []
    since: list[GradientNoise] = []  # estimates of the steps since the last look
    start = stacked.initial([what.seed])
    flat = torch.cat([weight.flatten(1) for weight in start], 1)
    parts = flat.split([weight.numel() for weight in start], 1)
    weights = [part.view_as(weight) for part, weight in zip(parts, start, strict=True)]
    velocity = torch.zeros_like(flat)
    order = torch.Generator().manual_seed(what.seed)
    picked = torch.empty(0, dtype=torch.int64)
    batch = next(policy)
    step = 0
    seen = 0
    while seen < what.num_examples:
        _check(batch, what.num_workers, len(images))
        if len(picked) < batch:
            picked = torch.randperm(len(images), generator=order)
        now = picked[:batch].view(what.num_workers, -1)
        picked = picked[batch:]
        now = workers.shares(now)
        copies = [weight.expand(len(now), *weight.shape[1:]) for weight in weights]
        slopes = stacked.gradients(copies, images[now], labels[now])[1]
        mean, norms = workers.exchange(torch.cat([slope.flatten(1) for slope in slopes], 1))
        rate = torch.tensor(what.small_rate * batch / what.small_batch)
        stacked.momentum(flat, mean, velocity, rate)
        step = step + 1
        seen = seen + batch
        since.append(
            from_two_batches(
                small_sqr=sum(norms[0]) / what.num_workers,
                small_batch=batch / what.num_workers,
                large_sqr=norms[1],
                large_batch=batch,
            )
        )
        if step % what.check_every == 0:
            error = float(stacked.wrong(weights, held_out, classes)[0])
            terms = average(since)
            rows.append((step, seen, batch, terms.grad_sqr, terms.covariance_trace, error))
            since.clear()
        batch = policy.send(norms)
    columns = ["step", "examples", "batch_size", "grad_sqr", "covariance_trace", "error"]
    return pd.DataFrame(rows, columns=columns)


def _check(batch: int, num_workers: int, most: int) -> None:
    if batch < num_workers or batch % num_workers or batch > most:
        raise BadValue(
            f"a batch size must be a multiple of {num_workers} workers and at most {most} images, "
            f"the policy chose {batch}"
        )


def sweep(
    policy: Callable[..., Policy],
    cases: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[Whole],
    data: Data | None = None,
    **fields: Any,
) -> pd.DataFrame:
    """:func:`train` for every seed under ``policy`` with each case's arguments.

    ``fields`` are those of :class:`AdaptiveRun` but for the seed. Columns: policy (the case's
    name), seed, then those of :func:`train`.
    """
    data = data or load_digits()
    tables = [
        train(AdaptiveRun(seed=seed, **fields), policy(**case), data).assign(policy=name, seed=seed)
        for name, case in cases.items()
        for seed in seeds
    ]
    return pd.concat(tables, ignore_index=True)


def times_to(
    runs: pd.DataFrame, step_s: Callable[[NDArray[Any]], ArrayLike], targets: Sequence[float]
) -> pd.DataFrame:
    """When runs of :func:`sweep` first look at an error of each target or less.

    ``step_s`` gives the seconds of a step at each batch size. Columns: policy, error, time_s, the
    mean over seeds, NaN where a seed never gets there.
    """
    keys = ["policy", "seed"]
    taken = runs.groupby(keys)["step"].diff().fillna(runs["step"])
    spent_s = taken * np.asarray(step_s(runs["batch_size"].to_numpy()))
    timed = runs[keys].assign(time_s=spent_s.groupby([runs[key] for key in keys]).cumsum())
    every = pd.MultiIndex.from_frame(runs[keys].drop_duplicates())
    first = {
        error: timed[runs["error"] <= error].groupby(keys)["time_s"].first().reindex(every)
        for error in targets
    }
    means = pd.DataFrame(first).groupby("policy", sort=False).mean(skipna=False).reset_index()
    return means.melt("policy", var_name="error", value_name="time_s")


def outcomes(
    runs: pd.DataFrame, step_s: Callable[[NDArray[Any]], ArrayLike], target: float
) -> pd.DataFrame:
    """What each policy of :func:`sweep` took to the target error, and where it ended.

    Columns, means over seeds: steps, examples and time_s (as :func:`times_to`), error (of the last
    five looks); and largest_batch of any seed.
    """
    costs: dict[str, Callable[[NDArray[Any]], ArrayLike]] = {
        "steps": np.ones_like,
        "examples": np.asarray,
        "time_s": step_s,
    }
    table = pd.DataFrame(
        {
            name: times_to(runs, cost, [target]).set_index("policy")["time_s"]
            for name, cost in costs.items()
        }
    )
    ends = runs.groupby(["policy", "seed"]).tail(5).groupby("policy")
    return table.assign(error=ends["error"].mean(), largest_batch=ends["batch_size"].max())
