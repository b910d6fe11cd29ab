"""FlexFlow's experiments: how much of a timeline changes, ten walks, and the claims' values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from labkit import planner
from labkit.papers.flexflow.tasks import NETWORKS, RIVALS, Cluster, Simulated, Way
from labkit.planner.moves import Chosen, Search
from labkit.planner.simulating import Timeline


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long a search may take, and how warm it is.

    Attributes:
        num_plans: that it prices.
        temperature: as a share of data parallelism's time.
        seed: of its draws.
    """

    num_plans: int = 600
    temperature: float = 0.005
    seed: int = 0

    def plan(self, split: Simulated, way: Way) -> Mapping[str, str]:
        """The plan of a way to find one."""
        return split.plan(
            way, num_plans=self.num_plans, temperature=self.temperature, seed=self.seed
        )

    def step_s(self, split: Simulated, way: Way) -> float:
        """Seconds of a step of that plan, simulated."""
        return split.timeline(self.plan(split, way)).end_s


def differing(before: Timeline, after: Timeline) -> int:
    """Tasks of a timeline that the other lacks, or has at other times."""
    count = 0
    for name, part in after.parts.items():
        times_s = after.times_s(name)
        if before.parts[name] is not part:
            count += len(times_s)
        else:
            count += int((times_s != before.times_s(name)).any(axis=1).sum())
    return count


def count_tasks(split: Simulated, budget: Budget) -> dict[str, float]:
    """Count each proposal's tasks along a walk from data parallelism; means.

    Returns:
        ``all``: tasks of the plan. ``differ``: those whose times differ, which no delta simulation
        can leave out. ``from``: those that are simulated from the first change on. ``limit``: those
        of them that are left where a refused plan is dropped early. ``equal``: the share of the
        proposals on which all times are those of full simulation.
    """
    moves = split.moves()
    plan = moves.start(split.fixed_plan(Way.DATA))
    temperature_s = budget.temperature * plan.cost
    rng = np.random.default_rng(budget.seed)
    rows = []
    for _ in range(budget.num_plans):
        change = moves.propose(plan, rng)
        limit_s = plan.cost - temperature_s * math.log(1.0 - rng.random())
        cost, changed = moves.price(plan, change, math.inf)
        _, stopped = moves.price(plan, change, limit_s)
        full = split.timeline(changed.choices)
        assert plan.timeline
        assert changed.timeline
        assert stopped.timeline
        rows.append(
            {
                "all": changed.timeline.num_tasks,
                "differ": differing(plan.timeline, changed.timeline),
                "from": changed.timeline.num_simulated,
                "limit": stopped.timeline.num_simulated,
                "equal": not _moved(full, changed.timeline),
            }
        )
        if cost <= limit_s:
            plan = changed
    return {str(name): float(value) for name, value in pd.DataFrame(rows).mean().items()}


def _moved(one: Timeline, other: Timeline) -> bool:
    """Whether any task has other times in two timelines of one plan."""
    return any((one.times_s(name) != other.times_s(name)).any() for name in one.parts)


def walks_of_sums(split: Simulated, budget: Budget, seeds: Iterable[int]) -> list[Search[Chosen]]:
    """Walks on the sum of times, from data parallelism, one a seed."""
    moves = planner.ChoiceMoves(split.layouts.problem)
    start = moves.start(split.fixed_plan(Way.DATA))
    return [
        planner.walk(
            moves,
            start,
            num_plans=budget.num_plans,
            temperature=budget.temperature * start.cost,
            rng=np.random.default_rng(seed),
        )
        for seed in seeds
    ]


def lenet(cluster: Cluster, images: int) -> Simulated:
    """LeNet, cut by samples and channels.

    Source: LeCun et al. 1998, with pools and dense operators for its subsampling and last layers.

    Args:
        images: of a step, all GPUs together.
    """
    draft = planner.Draft("lenet", images, 32)
    draft.convolution("conv1", 6, 5)
    draft.pool("pool1", 2, stride=2)
    draft.convolution("conv2", 16, 5)
    draft.pool("pool2", 2, stride=2)
    for number, channels in enumerate([120, 84, 10], 3):
        draft.dense(f"fc{number}", channels)
    layouts = planner.split(
        draft.network(),
        cluster.fabric,
        flops_per_s=cluster.flops_per_s,
        axes=["sample", "channel"],
    )
    return Simulated(layouts)


def best_of_all(split: Simulated) -> float:
    """Seconds of the best plan, by trying all: each goes on from the one before."""
    choices = split.layouts.problem.choices
    first = {name: ways[0] for name, ways in choices.items()}
    plan = first
    timeline = split.timeline(first)
    best_s = timeline.end_s
    for ways in itertools.product(*choices.values()):
        after = dict(zip(choices, ways, strict=True))
        other = [name for name in after if after[name] != plan[name]]
        timeline = timeline.changed(split.parts(other, after))
        plan = after
        best_s = min(best_s, timeline.end_s)
    return best_s


def measures(
    cluster: Cluster, budget: Budget, way: Way = Way.WALK, networks: Iterable[str] = tuple(NETWORKS)
) -> dict[str, float]:
    """The values of claims on a cluster, with a way in the method's place.

    Args:
        networks: over which the largest is taken.
    """
    gains = []
    savings = []
    for name in networks:
        split = cluster.split(name)
        step_s = budget.step_s(split, way)
        gains.append(min(budget.step_s(split, rival) for rival in RIVALS) / step_s)
        sent = split.sent_bytes(split.fixed_plan(Way.DATA))
        savings.append(sent / split.sent_bytes(budget.plan(split, way)))
    return {"speedup": max(gains), "traffic": max(savings)}


def over_optcnn(cluster: Cluster, budget: Budget, way: Way, network: str) -> float:
    """Throughput of a way's plan, times that of OptCNN's."""
    split = cluster.split(network)
    return budget.step_s(split, Way.OPTCNN) / budget.step_s(split, way)


def slower(cluster: Cluster, share: float) -> Cluster:
    """The cluster with links that reach a share of their rate."""
    return replace(
        cluster,
        inside_bytes_per_s=share * cluster.inside_bytes_per_s,
        between_bytes_per_s=share * cluster.between_bytes_per_s,
    )


def gains(cluster: Cluster, budget: Budget, ways: Iterable[Way]) -> pd.DataFrame:
    """Throughput over the better rival's, one row a network and way, and what no plan can beat.

    The bound computes evenly on all GPUs and sends nothing.
    """
    rows = []
    for name, words in NETWORKS.items():
        split = cluster.split(name)
        rival_s = min(budget.step_s(split, rival) for rival in RIVALS)
        alone = (1, 1, 1, 1)
        operators = split.layouts.network.operators
        alone_s = sum(split.layouts.compute_s(operator, alone) for operator in operators)
        for way in ways:
            row = {"network": words, "way": way.value, "bound": rival_s * cluster.gpus / alone_s}
            rows.append({**row, "gain": rival_s / budget.step_s(split, way)})
    return pd.DataFrame(rows)
