"""Placement on racks: jobs with parameter servers share the links of nodes and racks; simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.cluster.jobs import Trace
from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, checked, description

How = Literal["random", "spread", "pack", "best-fit", "chosen"]


@description
@dataclass(frozen=True, kw_only=True)
class Racks:
    """Equal racks of equal nodes.

    Attributes:
        racks, nodes, gpus: racks, nodes of a rack, GPUs of a node.
        node_bytes_per_s: of a node's link, each way.
        rack_bytes_per_s: of a rack's link to the other racks, each way.
    """

    racks: Count
    nodes: Count
    gpus: Count
    node_bytes_per_s: Positive
    rack_bytes_per_s: Positive

    @property
    def rate(self) -> NDArray[np.float64]:
        """Bytes a second of every link: of the nodes, then of the racks."""
        num = self.racks * self.nodes
        return np.repeat([self.node_bytes_per_s, self.rack_bytes_per_s], [num, self.racks])

    def traffic(self, held: NDArray[np.int64]) -> NDArray[np.float64]:
        """What a job sends each way over every link, in models a step; its GPUs by node.

        The parameter server stands on the job's fullest node. Every worker elsewhere sends its
        gradients and fetches the model: over its node's link, over the server's, and over both
        racks' where they differ.
        """
        server = int(np.argmax(held))
        away = held.copy()
        away[server] = 0
        by_rack = away.reshape(self.racks, self.nodes).sum(axis=1).astype(float)
        rack = server // self.nodes
        by_rack[rack] = by_rack.sum() - by_rack[rack]
        nodes = away.astype(float)
        nodes[server] = away.sum()
        return np.concatenate([nodes, by_rack])

    def step_s(
        self, held: list[NDArray[np.int64]], compute_s: ArrayLike, model_bytes: ArrayLike
    ) -> NDArray[np.float64]:
        """Seconds of a step of jobs that run at once; a link is shared evenly by who uses it."""
        loads = np.array([self.traffic(gpus) for gpus in held]).reshape(len(held), self.rate.size)
        seconds = loads * (loads > 0).sum(axis=0) / self.rate
        return np.asarray(compute_s + np.asarray(model_bytes) * seconds.max(axis=1, initial=0.0))


def place(
    racks: Racks, free: NDArray[np.int64], gpus: int, how: How, *, rng: np.random.Generator,
    anchor: int = 0,
) -> NDArray[np.int64]:  # fmt: skip
    """GPUs by node for a job that fits into the free ones.

    ``random``; ``spread``: one by one from the emptiest node; ``pack``: from the fullest nodes on;
    ``best-fit``: the least bytes over the busiest link, then the node that is left fullest;
    ``chosen``: around the node ``anchor``, its rack first.
    """
    held = np.zeros_like(free)
    if how == "random":
        picked = rng.choice(np.repeat(np.arange(free.size), free), gpus, replace=False)
        return np.bincount(picked, minlength=free.size)
    if how == "spread":
        for _ in range(gpus):
            held[np.argmax(free - held)] += 1
        return held
    if how == "pack":
        return _fill(free, gpus, np.lexsort((np.arange(free.size), free)))
    rack = np.arange(free.size) // racks.nodes
    anchors = np.flatnonzero(free) if how == "best-fit" else [anchor]
    options = []
    for node in anchors:
        order = np.lexsort((-free, rack != rack[node], np.arange(free.size) != node))
        held = _fill(free, gpus, order)
        cost = float((racks.traffic(held) / racks.rate).max())
        options.append((cost, int(((free - held) * (held > 0)).sum()), int(node), held))
    return min(options, key=lambda option: option[:3])[3]


def _fill(free: NDArray[np.int64], gpus: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
    held, before = np.zeros_like(free), np.cumsum(free[order])
    held[order] = np.clip(gpus - (before - free[order]), 0, free[order])
    return held


@checked
def run_on_links(
    trace: Trace, racks: Racks, how: How, *, model_bytes: ArrayLike, compute_s: ArrayLike,
    rng: int = 0, order: ArrayLike | None = None, anchors: ArrayLike | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Completion and execution seconds of every job, first come first served.

    Args:
        trace: a job's duration is the seconds it computes.
        model_bytes, compute_s: of each job: the size of its model, and seconds of a step without
            the network.
        order, anchors: who comes first of those that wait, and for ``chosen`` the node that each
            job is placed around.

    Raises:
        BadValue: a job asks for more GPUs than there are, or an array has another length.
    """
    gpus, left = trace.column("gpus"), trace.column("duration_s").copy()
    arrival, total = trace.column("arrival_s"), racks.racks * racks.nodes * racks.gpus
    size, alone = np.asarray(model_bytes, float), np.asarray(compute_s, float)
    first = np.arange(gpus.size) if order is None else np.argsort(order, kind="stable")
    node = np.zeros(gpus.size, int) if anchors is None else np.asarray(anchors, int)
    if (
        gpus.max() > total
        or not size.shape == alone.shape == first.shape == node.shape == gpus.shape
    ):
        raise BadValue(f"run_on_links: arrays need {gpus.size} entries, jobs at most {total} GPUs")
    draw, free = np.random.default_rng(rng), np.full(racks.racks * racks.nodes, racks.gpus)
    held: dict[int, NDArray[np.int64]] = {}
    start, end, now = np.full(gpus.size, np.nan), np.zeros(gpus.size), 0.0
    waiting = first.tolist()
    while waiting or held:
        for job in [j for j in waiting if arrival[j] <= now]:
            if gpus[job] > free.sum():
                break
            held[job] = place(racks, free, int(gpus[job]), how, rng=draw, anchor=int(node[job]))
            free, start[job] = free - held[job], now
            waiting.remove(job)
        jobs = np.array(list(held), dtype=int)
        step = racks.step_s(list(held.values()), alone[jobs], size[jobs])
        done = left[jobs] * step / alone[jobs]
        arriving = min((arrival[j] for j in waiting if arrival[j] > now), default=np.inf)
        until = min(arriving, now + done.min(initial=np.inf))
        left[jobs] -= (until - now) * alone[jobs] / step
        for job in jobs[now + done <= until].tolist():
            free, end[job] = free + held.pop(job), until
        now = until
    return end - arrival, end - start


@checked
def evolve(
    trace: Trace, racks: Racks, *, model_bytes: ArrayLike, compute_s: ArrayLike,
    population: Count = 24, generations: Count = 20, rng: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """The order and anchors of :func:`run_on_links` for a batch, by a genetic search.

    Each of a batch's jobs has two genes. The better half of a generation lives on; children take
    each gene from either parent, a tenth of them anew. The least mean completion time wins.
    """
    draw, num, nodes = np.random.default_rng(rng), len(trace), racks.racks * racks.nodes

    def seconds(genes: NDArray[np.float64]) -> float:
        jct, _ = run_on_links(trace, racks, "chosen", model_bytes=model_bytes, compute_s=compute_s,
                     order=genes[0], anchors=(genes[1] * nodes).astype(int))  # fmt: skip
        return float(jct.mean())

    genes = draw.random((population, 2, num))
    genes[0, 0] = trace.column("arrival_s") + np.arange(num) / num
    scores = np.array([seconds(g) for g in genes])
    for _ in range(generations):
        best = np.argsort(scores, kind="stable")[: population // 2]
        genes, scores = genes[best], scores[best]
        pairs = draw.integers(best.size, size=(2, population - best.size))
        take = draw.random((pairs.shape[1], 2, num))
        children = np.where(take < 0.5, genes[pairs[0]], genes[pairs[1]])
        children = np.where(draw.random(take.shape) < 0.1, draw.random(take.shape), children)
        genes = np.concatenate([genes, children])
        scores = np.concatenate([scores, [seconds(g) for g in children]])
    winner = genes[int(np.argmin(scores))]
    return winner[0], (winner[1] * nodes).astype(float)
