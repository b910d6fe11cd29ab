"""KungFu (OSDI'20): a training whose batch size changes on the way, as a policy hears it should.

Workers share a batch, so every step yields the gradient of each worker and their mean, as
synchronous data parallelism does. The workers are a stack of equal weights in one process
(:class:`Workers`), or real ranks (:class:`Ranks`); both give the same numbers to rounding. After
each step the policy hears the squared norms of these gradients and answers with the next batch
size.

Source: Mai et al., "KungFu: Making Training in Distributed Machine Learning Adaptive", OSDI'20:
adaptation policies that are fed by monitored metrics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
from annotated_types import Ge

from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, Whole, checked, description
from labkit.tuning.goodput import GoodputModel, Tables
from labkit.tuning.goodput.noise import GradientNoise, average, from_two_batches
from labkit.tuning.recording import stacked
from labkit.tuning.recording.training import load_digits, one_thread

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from labkit.kit.draw import go
    from labkit.tuning.recording.training import Data

    Norms = tuple[list[float], float]
    Policy = Generator[int, Norms, None]
    StepSeconds = Callable[[NDArray[Any]], ArrayLike]

LAST_LOOKS = 5
"""A policy's final error is the mean of so many looks at the validation images."""


@description(slots=True)
class AdaptiveRun:
    """A run over ``num_examples`` examples; its learning rate follows the batch size linearly.

    Attributes:
        small_batch, small_rate: a batch size, and the learning rate that suits it.
        num_workers: workers among which every batch is divided.
        rng: seed of the first weights and of the order of the images.
        check_every: steps between two looks at the validation images.
    """

    small_batch: Count
    small_rate: Positive
    num_workers: Annotated[int, Ge(2)]
    num_examples: Count
    rng: Whole
    check_every: Count = 10


# ---------------------------------------------------------------- workers


class Workers:
    """All workers in this process, stacked."""

    def shares(self, batch: Tensor) -> Tensor:
        """The examples that this process computes on, of a batch of workers × examples each."""
        return batch

    def exchange(self, own: Tensor) -> tuple[Tensor, Norms]:
        """The mean of all workers' gradients, and the squared norms that a policy hears.

        ``own`` holds the gradients computed here, workers × weights.
        """
        mean = own.mean(0, keepdim=True)
        return mean, (own.square().sum(1).tolist(), float(mean.square().sum()))


class Ranks(Workers):
    """One worker, on a rank of ``torch.distributed``: gradients and norms are all-reduced.

    ``seconds`` adds up how long this rank spent on the gradients and on the norms.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.seconds = [0.0, 0.0]

    def shares(self, batch: Tensor) -> Tensor:
        return batch[self.rank : self.rank + 1]

    def exchange(self, own: Tensor) -> tuple[Tensor, Norms]:
        import torch.distributed as dist

        start_s = time.perf_counter()
        num_ranks = dist.get_world_size()
        mean = own / num_ranks
        dist.all_reduce(mean)
        reduced_s = time.perf_counter()
        small = own.new_zeros(num_ranks)
        small[self.rank] = own.square().sum()
        dist.all_reduce(small)
        norms = small.tolist(), float(mean.square().sum())
        self.seconds[0] += reduced_s - start_s
        self.seconds[1] += time.perf_counter() - reduced_s
        return mean, norms


def replicas(weights: Sequence[Tensor], images: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """The gradients of one network on several batches, a row each, for ``noise.from_replicas``.

    Args:
        weights: as ``stacked.initial`` gives them; the first of the stack is taken.
        images: batches × examples × pixels.
        labels: batches × examples.
    """
    import torch

    copies = [part[:1].expand(len(images), *part.shape[1:]) for part in weights]
    _, slopes = stacked.gradients(copies, images, labels)
    rows: NDArray[np.float64] = torch.cat([part.flatten(1) for part in slopes], 1).double().numpy()
    return rows


# ---------------------------------------------------------------- training under a policy


class _Network:
    """The weights of a run, the order in which it takes the images, and its validation error."""

    def __init__(self, run: AdaptiveRun, data: Data) -> None:
        import torch

        images, self.labels, held_out, self.classes = data
        self.images = images.double()
        self.held_out = held_out.double()
        start = stacked.initial([run.rng])
        self.flat = torch.cat([weight.flatten(1) for weight in start], 1)
        self.velocity = torch.zeros_like(self.flat)
        parts = self.flat.split([weight.numel() for weight in start], 1)
        pairs = zip(parts, start, strict=True)
        self.weights = [part.view_as(weight) for part, weight in pairs]  # views of ``flat``
        self.order = torch.Generator().manual_seed(run.rng)
        self.waiting = torch.empty(0, dtype=torch.int64)

    def next_images(self, batch: int) -> Tensor:
        """Numbers of the next images; an epoch's last few are left out where they fill no batch."""
        import torch

        if len(self.waiting) < batch:
            self.waiting = torch.randperm(len(self.images), generator=self.order)
        chosen = self.waiting[:batch]
        self.waiting = self.waiting[batch:]
        return chosen

    def gradients(self, chosen: Tensor) -> Tensor:
        """The gradient of each worker on its images, workers × weights."""
        import torch

        copies = [weight.expand(len(chosen), *weight.shape[1:]) for weight in self.weights]
        _, slopes = stacked.gradients(copies, self.images[chosen], self.labels[chosen])
        return torch.cat([slope.flatten(1) for slope in slopes], 1)

    def step(self, gradient: Tensor, rate: float) -> None:
        import torch

        stacked.momentum(self.flat, gradient, self.velocity, torch.tensor(rate))

    def error(self) -> float:
        """The share of validation images that the network names wrongly."""
        return float(stacked.wrong(self.weights, self.held_out, self.classes)[0])


@one_thread()
def train(
    run: AdaptiveRun, policy: Policy, data: Data | None = None, workers: Workers | None = None
) -> pd.DataFrame:
    """Train by momentum SGD, asking ``policy`` for the next batch size after every step.

    Args:
        policy: yields a batch size, a multiple of the workers, and is sent the step's squared
            gradient norms: those of the workers' own gradients, and that of their mean.
        data: from ``training.load_digits``, to read it once for many calls.
        workers: on real ranks each calls this with its own, and all get the same table.

    Returns:
        A row a look at the validation images: step, examples, batch_size, grad_sqr and
        covariance_trace (means over the steps since the last look; either may be negative), error.

    Raises:
        BadValue: the policy yields a batch that its workers cannot share, or more than all images.
    """
    network = _Network(run, data or load_digits())
    workers = workers or Workers()
    looks: list[tuple[float, ...]] = []
    estimates: list[GradientNoise] = []  # of the steps since the last look
    batch = next(policy)
    step = 0
    examples = 0
    while examples < run.num_examples:
        _check(batch, run.num_workers, len(network.images))
        chosen = network.next_images(batch).view(run.num_workers, -1)
        mean, norms = workers.exchange(network.gradients(workers.shares(chosen)))
        network.step(mean, run.small_rate * batch / run.small_batch)
        step += 1
        examples += batch
        estimates.append(_noise(norms, batch, run.num_workers))
        if step % run.check_every == 0:
            terms = average(estimates)
            estimates.clear()
            noise = (terms.grad_sqr, terms.covariance_trace)
            looks.append((step, examples, batch, *noise, network.error()))
        batch = policy.send(norms)
    columns = ["step", "examples", "batch_size", "grad_sqr", "covariance_trace", "error"]
    return pd.DataFrame(looks, columns=columns)


def _check(batch: int, num_workers: int, num_images: int) -> None:
    if batch < num_workers or batch % num_workers or batch > num_images:
        raise BadValue(
            f"a batch size must be a multiple of {num_workers} workers and at most {num_images} "
            f"images, the policy chose {batch}"
        )


def _noise(norms: Norms, batch: int, num_workers: int) -> GradientNoise:
    """Both terms of the noise from one step: a worker's share and the whole are two batch sizes."""
    of_workers, of_mean = norms
    return from_two_batches(
        small_sqr=sum(of_workers) / num_workers,
        small_batch=batch / num_workers,
        large_sqr=of_mean,
        large_batch=batch,
    )


# ---------------------------------------------------------------- policies beside each other


def compare(
    policy: Callable[..., Policy],
    cases: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[Whole],
    data: Data | None = None,
    **fields: Any,
) -> pd.DataFrame:
    """:func:`train` for every seed under ``policy`` with each case's arguments.

    Args:
        policy: makes a policy from a case's arguments.
        cases: those arguments by the case's name.
        seeds: a run each.
        fields: those of :class:`AdaptiveRun` but ``rng``.

    Returns:
        Columns: policy (the case's name), seed, then those of :func:`train`.
    """
    data = data or load_digits()
    tables = [
        train(AdaptiveRun(rng=seed, **fields), policy(**case), data).assign(policy=name, seed=seed)
        for name, case in cases.items()
        for seed in seeds
    ]
    return pd.concat(tables, ignore_index=True)


def times_to(runs: pd.DataFrame, step_s: StepSeconds, targets: Sequence[float]) -> pd.DataFrame:
    """When runs of :func:`compare` first look at an error of each target or less.

    Args:
        step_s: gives the seconds of a step at each batch size.
        targets: validation errors, as fractions.

    Returns:
        Columns: policy, error, time_s, the mean over seeds; NaN where a seed never gets there.
    """
    keys = ["policy", "seed"]
    taken = runs.groupby(keys)["step"].diff().fillna(runs["step"])
    spent_s = taken * np.asarray(step_s(runs["batch_size"].to_numpy()))
    timed = runs[keys].assign(time_s=spent_s.groupby([runs[key] for key in keys]).cumsum())
    every = pd.MultiIndex.from_frame(runs[keys].drop_duplicates())
    first = {}
    for error in targets:
        reached = timed[runs["error"] <= error]
        first[error] = reached.groupby(keys)["time_s"].first().reindex(every)
    means = pd.DataFrame(first).groupby("policy", sort=False).mean(skipna=False).reset_index()
    return means.melt("policy", var_name="error", value_name="time_s")


def outcomes(runs: pd.DataFrame, step_s: StepSeconds, target: float) -> pd.DataFrame:
    """What each policy of :func:`compare` took to the target error, and where it ended.

    Columns, means over seeds: steps, examples and time_s (as :func:`times_to`), error (of the last
    :data:`LAST_LOOKS` looks); and largest_batch of any seed.
    """
    costs: dict[str, StepSeconds] = {
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
    ends = runs.groupby(["policy", "seed"]).tail(LAST_LOOKS).groupby("policy")
    return table.assign(error=ends["error"].mean(), largest_batch=ends["batch_size"].max())


@checked
def replay(
    model: GoodputModel,
    tables: Tables,
    choices: Mapping[str, float | Callable[[GoodputModel], float]],
    num_nodes: Count,
    num_gpus: Count,
) -> pd.DataFrame:
    """How long a published run would take if the batch size of every epoch were chosen so.

    What an epoch of the run at the initial batch size achieved takes init · steps / goodput
    seconds. Epochs whose noise scale is infinite are left out.

    Args:
        tables: a workload of Pollux's artifact, with its run at the initial batch size.
        choices: by name a batch size, or a function from the model at the epoch's noise scale.
        num_nodes, num_gpus: the allocation that it would run on.

    Returns:
        Columns: choice, time_s, last_batch_size.
    """
    epochs = tables.initial_run()
    init = tables.init_batch_size
    epochs = epochs.assign(worth=np.diff(epochs["progress"], prepend=0.0))
    epochs = epochs[np.isfinite(epochs["noise_scale"])]
    rows = []
    for name, choice in choices.items():
        time_s = 0.0
        batch = float(init)
        for noise_scale, worth in zip(epochs["noise_scale"], epochs["worth"], strict=True):
            now = replace(model, init_batch_size=init, noise_scale=float(noise_scale))
            batch = float(choice(now) if callable(choice) else choice)
            time_s += worth * init / float(now.goodput(num_nodes, num_gpus, batch / num_gpus))
        rows.append({"choice": name, "time_s": time_s, "last_batch_size": batch})
    return pd.DataFrame(rows)


def figure_times(table: pd.DataFrame, *, title: str = "") -> go.Figure:
    """The time to each validation error, a line a policy (:func:`times_to`)."""
    from labkit.kit import draw  # Plotly, which ranks do not need

    colours = {"adaptive": draw.PALETTE["ours"], "small batch": draw.PALETTE["baseline"]}
    fig = draw.go.Figure()
    for index, (name, rows) in enumerate(table.groupby("policy", sort=False)):
        line = {"color": colours.get(str(name), draw.CYCLE[index + 1])}
        fig.add_scatter(x=rows["time_s"], y=rows["error"], mode="lines", name=str(name), line=line)
    fig.update_yaxes(tickformat=".0%")
    y = "validation error reached"
    return draw.finish(fig, title=title, x="modelled time (s)", y=y, height=450)
