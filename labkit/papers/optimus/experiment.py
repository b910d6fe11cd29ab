"""Nine jobs on 39 tasks, drawn many times, under Optimus and equal shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.published import generate
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.simulation import sweep
from labkit.datasets import Source
from labkit.papers.optimus.servers import ServerSpeed, least_mean_s, task_policies
from labkit.planner import Chain

FILES = {
    "ResNet-50": "resnet50/graph.txt",
    "VGG-16": "vgg16/graph.txt",
    "AlexNet": "alexnet/graph.txt",
    "GNMT": "gnmt/graph.txt",
}
"""PipeDream's profiles of the networks."""

MIXES: dict[str, tuple[str, ...]] = {
    "GNMT": ("GNMT",),
    "all four": tuple(FILES),
    "ResNet-50": ("ResNet-50",),
}
"""Which networks the nine jobs train: each as likely as another."""

_TASKS = 20  # for which the paper prints the fastest division of ResNet-50 (§2)
_BEST_PAIRS = 10  # workers of the fastest even division of ResNet-50: ours


class Method(StrEnum):
    """Who gets tasks, and how they are divided into workers and servers."""

    GAINS = "Optimus"
    BEST = "equal shares, divided best"
    STOPS = "pairs that stop"
    PAIRS = "pairs"


_POLICIES = {
    "gains": Method.GAINS,
    "best division": Method.BEST,
    "pairs that stop": Method.STOPS,
    "pairs": Method.PAIRS,
}


class Networks:
    """The networks' profiles, and the speed laws that follow from one published point.

    Args:
        source: PipeDream's profiles (``paper.data("pipedream-sosp19")``).
    """

    def __init__(self, source: Source) -> None:
        self.chains = {name: Chain.read(source.path(path)) for name, path in FILES.items()}

    def costs(self) -> pd.DataFrame:
        """Computing and parameters of each network, over ResNet-50's."""
        rows = {
            name: (sum(chain.forward_s + chain.backward_s), sum(chain.parameter_bytes))
            for name, chain in self.chains.items()
        }
        table = pd.DataFrame(rows, index=["computing", "parameters"]).T
        return table / table.loc["ResNet-50"]

    def laws(self, best_workers: int) -> dict[str, ServerSpeed]:
        """Seconds a step of each network, in units of one exchange of ResNet-50.

        Args:
            best_workers: of the 20 tasks of a ResNet-50 job, the number of workers that is fastest.
        """
        base = ServerSpeed.from_peaks(best_workers, _TASKS - best_workers, _BEST_PAIRS)
        costs = self.costs()
        scaled = {}
        for name in FILES:
            computing = float(costs["computing"][name])
            parameters = float(costs["parameters"][name])
            scaled[name] = base.scaled(computing, parameters)
        return scaled


def blocks_of(chain: Chain) -> list[float]:
    """Parameters of each block that a server may hold: weights, and biases of normalisations."""
    blocks = []
    for layer, size in zip(chain.layers, chain.parameter_bytes, strict=True):
        if size and "BatchNorm" in layer:
            blocks += [size / 8, size / 8]
        elif size:
            blocks.append(size / 4)
    return blocks


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """Nine jobs on 13 machines of three tasks each, drawn several times.

    Attributes:
        laws: how long steps take, by network.
        load: offered by the jobs on one worker and one server each.
        num_draws: of nine jobs, with the seeds from 0 on.
        num_tasks: that the machines hold.
    """

    laws: Mapping[str, ServerSpeed]
    load: float = 1.0
    num_draws: int = 32
    num_tasks: int = 39
    _outcomes: dict[str, pd.DataFrame] = field(default_factory=dict, init=False, repr=False)
    _least_s: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    @property
    def machines(self) -> Cluster:
        return Cluster.nodes(self.num_tasks // 3, gpus=3)

    def draws(self, mix: str = "all four") -> list[Trace]:
        """Jobs of the networks of a mix; durations are those on one worker and one server."""
        return self.draws_of(MIXES[mix])

    def draws_of(self, kinds: tuple[str, ...]) -> list[Trace]:
        """The same of any kinds of jobs."""
        return [
            generate(
                9,
                kinds=kinds,
                num_gpus=self.num_tasks,
                load=self.load,
                mean_duration_s=3e4,
                sigma=0.7,
                gpus={2: 1},
                rng=seed,
            )
            for seed in range(self.num_draws)
        ]

    def outcomes(self, mix: str = "all four") -> pd.DataFrame:
        """A row a draw and method (the index): ``mean_jct_s``, ``makespan_s``."""
        if mix not in self._outcomes:
            policies = task_policies(self.laws, self.num_tasks)
            table = sweep(self.draws(mix), [self.machines], policies)
            table.index = pd.Index([_POLICIES[name] for name in table["policy"]])
            self._outcomes[mix] = table[["mean_jct_s", "makespan_s"]]
        return self._outcomes[mix]

    def gain(
        self, method: Method, *, over: Method = Method.PAIRS, mix: str = "all four"
    ) -> dict[str, float]:
        """How many times sooner a method ends than another, on the mean over draws."""
        table = self.outcomes(mix)
        means = table.groupby(level=0).mean()
        columns = {"completion": "mean_jct_s", "makespan": "makespan_s"}
        return {
            name: float(means[column][over] / means[column][method])
            for name, column in columns.items()
        }

    def gains_by_draw(self, method: Method, mix: str) -> NDArray[np.float64]:
        """Completion time of pairs over the method's, of each draw."""
        times = self.outcomes(mix)["mean_jct_s"]
        pairs_s, method_s = (times.loc[[way]].to_numpy() for way in (Method.PAIRS, method))
        return np.asarray(pairs_s / method_s)

    def best_gain(self, mix: str) -> float:
        """Completion time of pairs over what no division of tasks beats."""
        if mix not in self._least_s:
            least_s = [least_mean_s(self.laws, draw, self.num_tasks) for draw in self.draws(mix)]
            self._least_s[mix] = float(np.mean(least_s))
        return float(self.outcomes(mix)["mean_jct_s"][Method.PAIRS].mean()) / self._least_s[mix]
