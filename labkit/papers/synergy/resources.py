"""CPUs and memory beside GPUs: jobs whose speed depends on them, and who gets how much.

GPUs are what each job asked for. With a GPU's share of its node's CPUs and memory a job runs at
speed 1.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from labkit import files
from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.loops.records import jobs_of, replayed
from labkit.cluster.policies.allocators import OwnLoop
from labkit.cluster.results import Run
from labkit.cluster.simulation import simulate
from labkit.errors import BadFile, BadValue, not_among
from labkit.kit import tables
from labkit.kit.describe import Count, Positive, Whole, checked, description
from labkit.papers.synergy import packing

if TYPE_CHECKING:
    import pandas as pd

TASKS = {
    "image": ("alexnet", "res18", "res50", "mobilenet", "shufflenet"),
    "language": ("gnmt", "transformer", "lstm"),
    "speech": ("m5", "deepspeech"),
}
"""Models by task, in the order in which the authors' program deals them out."""
SIZES = (1, 2, 4, 8)
SIZE_LIMITS = (0.7, 0.8, 0.95)
"""GPUs of wide jobs, and where each number ends if one is drawn evenly from 0 to 1."""
NUM_COUNTED = 1000
NUM_BEHIND = 700
"""Jobs of a sweep whose times count, and jobs that come after them."""
Fit = Literal["first", "best", "spread"]
Give = Literal["proportional", "greedy", "tune"]
Order = Literal["fifo", "srtf", "las", "drf", "tetris"]


@description
class Sensitivity:
    """What a job can use for each of its GPUs, and how fast it is with that.

    Attributes:
        cpus, memory_gb: beyond which it gets no faster.
        speed: with both, over its speed with the share of a GPU.
        steps: the speed with fewer CPUs and a share's memory, by number of CPUs.
        iteration_s: how long an iteration takes with a share; None: not known.
    """

    cpus: Positive
    memory_gb: Positive
    speed: Positive = 1.0
    steps: dict[float, float] = field(default_factory=dict)
    iteration_s: Positive | None = None


NEEDS = (
    "model",
    "cpus_per_gpu",
    "cpus",
    "memory_gb",
    "speed",
    "iteration_s",
    "share_speed",
    "table_speed",
    "table_cpus",
)
"""Columns of the table of what models can use."""


@checked
def load_needs(
    path: str | Path,
    *,
    cpus_per_gpu: Literal[3, 4, 5, 6] = 3,
    speeds: Literal["used", "read"] = "used",
) -> dict[str, Sensitivity]:
    """What models can use at a ratio of CPUs to GPUs; ``data/papers/synergy/needs.csv``.

    Args:
        speeds: ``used``, those that the authors' program computes with; ``read``, those that its
            tables of speed by CPUs give, which at ratio 6 are others.

    Raises:
        BadFile: the file is no such table.
    """
    path = Path(path)
    table = tables.typed(path)
    if missing := [name for name in NEEDS if name not in table]:
        raise BadFile(path, f"lacks the column {missing[0]}", line=1, valid=",".join(NEEDS))
    with files.holding(path, f"{','.join(NEEDS)}, of numbers above 0"):
        return _needs(table, cpus_per_gpu, speeds)


def _needs(
    table: pd.DataFrame, cpus_per_gpu: int, speeds: Literal["used", "read"]
) -> dict[str, Sensitivity]:
    """What models can use, from the table of it."""
    rows = table[table.cpus_per_gpu == cpus_per_gpu].set_index("model")
    needs = {}
    for name, row in rows.iterrows():
        own = table[table.model == name].set_index("cpus_per_gpu").share_speed / row.share_speed
        steps = {float(c): float(s) for c, s in own.items() if c > cpus_per_gpu and s > 1}
        speed = row.speed if speeds == "used" else row.table_speed
        needs[str(name)] = Sensitivity(
            cpus=float(row.cpus if speeds == "used" else row.table_cpus),
            memory_gb=float(row.memory_gb),
            speed=float(speed),
            steps=steps,
            iteration_s=float(row.iteration_s),
        )
    return needs


@checked
def draw_mix(
    num_jobs: Count,
    *,
    jobs_per_hour: Positive | None,
    split: tuple[Whole, Whole, Whole] = (20, 70, 10),
    rng: Whole = 42,
    wide: bool = False,
) -> Trace:
    """Jobs as Synergy's simulator draws them, to the second.

    A fifth of the jobs lasts 10³ to 10⁴ minutes at its share, the others 10^1.5 to 10³, uniform in
    the logarithm. The next task is the one that lies furthest behind its part of the split; its
    models take turns.

    Args:
        num_jobs: how many.
        jobs_per_hour: of Poisson arrivals in whole seconds; None: all at once, shuffled.
        split: per cent of image, language and speech.
        rng: a seed of Python's generator, since the published runs are of its seeds: one generator
            for arrivals, another of the same seed for durations, which the authors had stored.
        wide: whether jobs have 1, 2, 4 or 8 GPUs with the shares 0.7, 0.1, 0.15, 0.05, all drawn
            from one generator; else one GPU each.

    Source: Synergy (OSDI'22), its programs ``workload``, ``model_zoo`` and ``helpers.utils``.
    """
    draw = random.Random(rng)
    stored = random.Random(rng)
    dealt = dict.fromkeys(TASKS, 0)
    now_s = 0
    rows = []
    parts = dict(zip(TASKS, split, strict=True))
    num_models = sum(map(len, TASKS.values()))
    for job in range(num_jobs):
        if jobs_per_hour:
            now_s += math.ceil(-math.log(1.0 - draw.random()) / jobs_per_hour * 60 * 60)
        source = draw if wide else stored
        low, high = (3.0, 4.0) if source.random() >= 0.8 else (1.5, 3.0)
        duration_s = 60 * 10 ** source.uniform(low, high)
        size = draw.uniform(0, 1) if wide else 0.0
        gpus = SIZES[bisect_right(SIZE_LIMITS, size)]
        draw.randint(0, num_models - 1)  # drawn there too, and not used
        behind = {task: part / 100 - dealt[task] / max(job, 1) for task, part in parts.items()}
        task = max(TASKS, key=behind.__getitem__) if job else next(iter(TASKS))
        models = TASKS[task]
        rows.append((now_s, duration_s, gpus, models[dealt[task] % len(models)]))
        dealt[task] += 1
    if not jobs_per_hour:
        draw.shuffle(rows)
    arrival_s, durations_s, sizes, kinds = zip(*rows, strict=True)
    return Trace(
        arrival_s=arrival_s,
        duration_s=durations_s,
        gpus=sizes,
        kind=kinds,
        name=f"{jobs_per_hour or 0:g} jobs/h, split {'/'.join(map(str, split))}, seed {rng}",
    )


@description(eq=False)
class Resources(OwnLoop):
    """Jobs in an order, each on nodes that hold its GPUs, CPUs and memory; the rest waits a round.

    Attributes:
        needs: by kind of job; its ``kind`` in the trace.
        cpus_per_node, memory_gb_per_node: of every node.
        give: ``proportional``, each job its GPUs' share of a node; ``greedy``, what it can use, and
            it waits where no node has that; ``tune``, what it can use, or its share where no node
            has that, for which jobs that hold more than theirs give back.
        order: ``fifo``; ``srtf``, least time left at the speed it has or hopes for; ``las``, least
            GPU time had; ``drf``, least dominant share of the cluster; ``tetris``, least time left
            times shares.
        fit: ``first``, in order, GPU by GPU, on the first node with room, as the authors' program
            does; ``best``, the largest of the jobs whose turn it is first, each on the node of
            fewest free GPUs that holds it whole, else GPU by GPU so; ``spread``, the same on the
            node of most free CPUs.
        ends: a job ends ``within`` a round, or counts as ended at its ``boundary``.
        whole: whether a round holds whole iterations only, as the authors' program counts.
    """

    needs: dict[str, Sensitivity]
    cpus_per_node: Positive = 24.0
    memory_gb_per_node: Positive = 500.0
    give: Give = "tune"
    order: Order = "fifo"
    fit: Fit = "first"
    round_s: Positive = 300.0
    ends: Literal["within", "boundary"] = "within"
    whole: bool = False

    def run(self, trace: Trace, cluster: Cluster) -> Run:
        """By the compiled loop; the first start of a job costs nothing.

        Raises:
            BadValue: there are several pools, or a job's kind has no needs.
        """
        jobs, nodes, rule = self._records(trace, cluster)
        return replayed(self, trace, cluster, jobs, packing.replay(rule, jobs, nodes))

    @checked
    def allot(self, trace: Trace, cluster: Cluster) -> pd.DataFrame:
        """What the jobs of a trace hold if all are there: a row a job and node."""
        import pandas as pd

        jobs, nodes, rule = self._records(trace, cluster)
        most = cluster.num_gpus
        floor = packing.Floor(
            nodes.copy(),
            np.zeros((most, len(nodes)), np.int64),
            np.zeros((most, 4)),
            np.zeros(most, np.int64),
        )
        queue = np.argsort(
            jobs["weight"] if rule.key == packing.FIXED else jobs["arrival"], kind="stable"
        )
        rows = packing.place(rule, jobs, queue, floor)
        row, node = floor.held[:rows].nonzero()
        gpus = floor.held[row, node]
        job = floor.job[row]
        return pd.DataFrame(
            {
                "job": job,
                "node": node,
                "gpus": gpus,
                "cpus": gpus * floor.grant[row, packing.CPUS],
                "memory_gb": gpus * floor.grant[row, packing.GB],
                "speed": jobs["speed"][job],
            }
        )

    @checked
    def most_speed(self, trace: Trace, cluster: Cluster) -> float:
        """What no division of CPUs and memory over these jobs can beat: GPUs' worth of work.

        All nodes are one, and a job may be split between its options: its share, each step above
        it, all that it can use. With x the jobs of a kind and number of GPUs with an option::

            max Σ x · GPUs · speed    Σ_option x = jobs,  Σ x · GPUs · CPUs ≤ the cluster's, GB too

        Raises:
            BadValue: the jobs ask for more GPUs than there are.
        """
        from scipy.optimize import linprog

        jobs, nodes, rule = self._records(trace, cluster)
        if jobs["gpus"].sum() > cluster.num_gpus:
            raise BadValue(
                f"most_speed: {trace.name} asks for {jobs['gpus'].sum()} GPUs; valid: at most "
                f"{cluster.num_gpus}"
            )
        pairs = [*zip(trace.kind, jobs["gpus"].tolist(), strict=True)]
        groups = sorted(set(pairs))
        counts = [pairs.count(group) for group in groups]
        of = []
        rows = []
        for group, (kind, number) in enumerate(groups):
            for option in self._options(kind, number, rule.share):
                of.append(group)
                rows.append([number * amount for amount in option])
        cpus, memory, speed = np.array(rows).T
        answer = linprog(
            -speed,
            A_ub=[cpus, memory],
            b_ub=nodes[:, 1:].sum(0),
            method="highs",
            A_eq=np.array(of) == np.arange(len(groups))[:, None],
            b_eq=counts,
        )
        return float(-answer.fun)

    def _options(self, kind: str, gpus: int, share: NDArray[np.float64]) -> list[tuple[float, ...]]:
        """CPUs and memory a GPU, and the speed, of what a job may be given."""
        cpus, memory, speed = self._most(kind, gpus, share)
        if cpus <= share[1] and memory <= share[2]:
            return [(cpus, memory, speed)]
        share_memory = float(share[2])
        known = self.needs[kind].steps.items()
        steps = [(step, share_memory, faster) for step, faster in known if step <= cpus]
        return [(float(share[1]), share_memory, 1.0), *steps, (cpus, memory, speed)]

    def _most(self, kind: str, gpus: int, share: NDArray[np.float64]) -> tuple[float, float, float]:
        """All that a job can use of one node; where that is not enough, so much slower.

        Between its share and what it can use, speed is linear in what it lacks most, as in the
        authors' program (which forgets memory). A job of more GPUs than a node has its share.
        """
        need = self.needs[kind]
        whole = round(self.cpus_per_node / share[1])
        if gpus > whole:
            return float(share[1]), float(share[2]), 1.0
        cpus = min(need.cpus, self.cpus_per_node / gpus)
        memory = min(need.memory_gb, self.memory_gb_per_node / gpus)
        part = min(
            (have - own) / (wants - own) if have < wants else 1.0
            for have, wants, own in (
                (cpus, need.cpus, share[1]),
                (memory, need.memory_gb, share[2]),
            )
        )
        return cpus, memory, 1.0 + (need.speed - 1.0) * part

    def _records(self, trace: Trace, cluster: Cluster) -> tuple[Any, Any, packing.Rule]:
        """Jobs, nodes and the rule, for the loop."""
        if len(cluster.pools) > 1:
            raise BadValue(f"{self.name}: the cluster has {len(cluster.pools)} pools; valid: 1")
        if unknown := set(trace.kind or ("",)) - set(self.needs):
            raise not_among("kind of job", min(unknown), self.needs)
        pool = cluster.pools[0]
        asked = trace.column("gpus")
        node = np.array([pool.gpus_per_node, self.cpus_per_node, self.memory_gb_per_node], float)
        share = node / node[0]
        jobs = jobs_of(trace, packing.JOB)
        pairs = [*zip(trace.kind, asked.tolist(), strict=True)]
        most = {pair: self._most(*pair, share) for pair in set(pairs)}
        jobs["cpus"], jobs["memory"], jobs["full"] = np.array([most[pair] for pair in pairs]).T
        if self.give == "proportional":
            jobs["full"] = 1.0
        if self.whole:
            lasts_s = np.array([self.needs[kind].iteration_s or np.nan for kind in trace.kind])
            if np.isnan(lasts_s).any():
                raise BadValue(f"{self.name}: whole iterations need every Sensitivity.iteration_s")
            each = np.floor(self.round_s / lasts_s)
            jobs["left"] = (jobs["left"] // lasts_s) * self.round_s / each
            jobs["full"] = np.floor(self.round_s / (lasts_s / jobs["full"])) / each
        a_gpu = np.stack([np.ones(len(trace)), jobs["cpus"], jobs["memory"]], 1)
        parts = asked[:, None] * a_gpu / (node * pool.nodes)
        weights = {"fifo": np.arange(len(trace)), "drf": parts.max(1), "tetris": parts.sum(1)}
        jobs["weight"] = weights.get(self.order, 1.0)
        keys = {"fifo": packing.FIXED, "drf": packing.FIXED, "las": packing.ATTAINED}
        rule = packing.Rule(
            share=share,
            give=get_args(Give).index(self.give),
            fit=get_args(Fit).index(self.fit),
            key=keys.get(self.order, packing.LEFT),
            round_s=float(self.round_s),
            restart_s=float(self.restart_s),
            within=self.ends == "within",
        )
        return jobs, np.tile(node, (pool.nodes, 1)), rule


@checked
def allocator(
    needs: dict[str, Sensitivity], *, give: Give = "tune", order: Order = "fifo", **options: Any
) -> Resources:
    """CPUs and memory by sensitivity, divided anew in each round.

    Args:
        needs: by kind of job (:func:`load_needs`).
        give, order: as :class:`Resources` has them.
        options: other fields of :class:`Resources`.

    Source: Synergy (OSDI'22), its allocations in proportion, Greedy and Tune.
    """
    given = {"name": f"{order}-{give}", "needs": needs, "give": give, "order": order}
    return Resources(**given | options)


@checked
def sweep(path: str | Path, axes: dict[str, Any], *, nodes: Count = 16) -> pd.DataFrame:
    """Completion times of a thousand jobs of :func:`draw_mix`, for all combinations of settings.

    Args:
        path: of :func:`load_needs`.
        axes: values by setting: those of :func:`load_needs`, :func:`draw_mix` and :func:`allocator`
            by their names, and ``first``, the first job that is counted; 700 come after the last.
        nodes: of eight GPUs.

    Raises:
        BadValue: a setting is not known.
    """
    import pandas as pd

    usual: dict[str, Any] = {
        "cpus_per_gpu": 3,
        "speeds": "used",
        "jobs_per_hour": 9.0,
        "rng": 42,
        "split": (20, 70, 10),
        "first": 1500,
        "give": "tune",
        "order": "fifo",
        "fit": "first",
        "ends": "within",
        "whole": False,
    }
    if unknown := set(axes) - set(usual):
        raise not_among("setting", min(unknown), usual)
    cluster = Cluster.nodes(nodes)
    read = cache(partial(load_needs, path))
    draw = cache(draw_mix)

    def row(values: tuple[Any, ...]) -> dict[str, Any]:
        point = dict(zip(axes, values, strict=True))
        case = {**usual, **point}
        needs = read(cpus_per_gpu=case["cpus_per_gpu"], speeds=case["speeds"])
        drawn = {name: case[name] for name in ("jobs_per_hour", "rng", "split")}
        trace = draw(case["first"] + NUM_COUNTED + NUM_BEHIND, **drawn)
        rule = {name: case[name] for name in ("give", "order", "fit", "ends", "whole")}
        policy = allocator(needs, cpus_per_node=8.0 * case["cpus_per_gpu"], **rule)
        counted = slice(case["first"], case["first"] + NUM_COUNTED)
        hours = simulate(trace, cluster, policy).jct_s[counted] / 3600
        return {
            **point,
            "split": "/".join(map(str, case["split"])),
            "offered_load": trace.offered_load(cluster.num_gpus),
            "mean_h": hours.mean(),
            "p99_h": np.percentile(hours, 99),
        }

    with ThreadPoolExecutor(2) as pool:
        return pd.DataFrame(pool.map(row, product(*axes.values())))
