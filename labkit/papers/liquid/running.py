"""Jobs on racks, one after the other: their speeds change whenever one starts or ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.errors import BadValue
from labkit.kit.describe import Count, Whole, checked
from labkit.papers.liquid.jobs import Workers
from labkit.papers.liquid.placing import Way, place
from labkit.papers.liquid.racks import Racks

if TYPE_CHECKING:
    import pandas as pd


class Placed(NamedTuple):
    """Completion and execution seconds of every job; simulated."""

    jct_s: NDArray[np.float64]
    execution_s: NDArray[np.float64]


class _Run:
    """What a simulation knows at a moment: who waits, who holds which GPUs, and what is left."""

    def __init__(
        self, jobs: Workers, racks: Racks, order: NDArray[np.intp], anchors: NDArray[np.int64]
    ) -> None:
        self.racks = racks
        self.model_bytes = np.asarray(jobs.model_bytes)
        self.compute_s = np.asarray(jobs.compute_s)
        self.gpus = jobs.trace.column("gpus")
        self.left_s = jobs.trace.column("duration_s").copy()  # of computing
        self.arrival_s = jobs.trace.column("arrival_s").tolist()
        self.anchors = anchors
        self.waiting = order.tolist()
        self.free = np.full(racks.racks * racks.nodes, racks.gpus)
        self.held: dict[int, NDArray[np.int64]] = {}
        self.loads = np.zeros((self.gpus.size, racks.rate.size))
        self.start_s = np.full(self.gpus.size, np.nan)
        self.end_s = np.zeros(self.gpus.size)
        self.now_s = 0.0

    def start(self, way: Way, rng: np.random.Generator) -> None:
        """Start who has come, in order, until one does not fit."""
        for job in [each for each in self.waiting if self.arrival_s[each] <= self.now_s]:
            gpus = int(self.gpus[job])
            if gpus > self.free.sum():
                return
            anchor = int(self.anchors[job])
            self.held[job] = place(self.racks, self.free, gpus, way, rng=rng, anchor=anchor)
            self.loads[job] = self.racks.traffic(self.held[job])
            self.free = self.free - self.held[job]
            self.start_s[job] = self.now_s
            self.waiting.remove(job)

    def advance(self) -> None:
        """Run all until one is done or the next one comes; who is done gives its GPUs back."""
        running = np.array(list(self.held), dtype=int)
        alone_s = self.compute_s[running]
        step_s = self.racks.step_s(self.loads[running], alone_s, self.model_bytes[running])
        done_s = self.left_s[running] * step_s / alone_s
        coming = [self.arrival_s[job] for job in self.waiting if self.arrival_s[job] > self.now_s]
        until_s = min(min(coming, default=np.inf), self.now_s + done_s.min(initial=np.inf))
        self.left_s[running] -= (until_s - self.now_s) * alone_s / step_s
        for job in running[self.now_s + done_s <= until_s].tolist():
            self.free = self.free + self.held.pop(job)
            self.end_s[job] = until_s
        self.now_s = until_s


@checked
def simulate(
    jobs: Workers,
    racks: Racks,
    way: Way,
    *,
    rng: np.random.Generator | Whole = 0,
    order: ArrayLike = (),
    anchors: ArrayLike = (),
) -> Placed:
    """Run the jobs first come, first served; their speeds change whenever one starts or ends.

    Args:
        jobs: workers and their parameter servers.
        racks: where they run.
        way: how the nodes of a job are chosen.
        rng: of ways that draw: a generator or a seed.
        order, anchors: a number a job: who comes first of those that wait, and for a chosen place
            the node that each is placed around; default: by arrival, the first node.

    Raises:
        BadValue: a job asks for more GPUs than there are, or an array has another length.
    """
    arrival_s = jobs.trace.column("arrival_s")
    gpus = jobs.trace.column("gpus")
    total = racks.racks * racks.nodes * racks.gpus
    first = np.argsort(order if np.size(order) else arrival_s, kind="stable")
    nodes = np.asarray(anchors if np.size(anchors) else np.zeros(gpus.size, int))
    alike = first.shape == nodes.shape == gpus.shape and nodes.dtype.kind == "i"
    if gpus.max() > total or not alike:
        raise BadValue(
            f"liquid.simulate: valid: jobs of up to {total} GPUs, {gpus.size} orders, anchors"
        )
    draw = np.random.default_rng(rng)
    run = _Run(jobs, racks, first, nodes)
    while run.waiting or run.held:
        run.start(way, draw)
        run.advance()
    return Placed(run.end_s - arrival_s, run.end_s - run.start_s)


@checked
def compare(racks: Racks, batches: Sequence[Workers], ways: Sequence[Way]) -> pd.DataFrame:
    """Mean seconds of every batch by way of placing: rows (measure, batch), a column a way.

    Measures are ``execution`` and ``completion``; the column ``computing`` is without a network.

    Args:
        racks: where the jobs run.
        batches: of jobs.
        ways: of choosing nodes.
    """
    import pandas as pd

    rows = {}
    for number, jobs in enumerate(batches):
        placed = {way: simulate(jobs, racks, way) for way in ways}
        least = {"computing": float(jobs.trace.column("duration_s").mean())}
        for measure, name in (("execution", "execution_s"), ("completion", "jct_s")):
            means = {way: float(getattr(run, name).mean()) for way, run in placed.items()}
            rows[measure, number] = means | least
    return pd.DataFrame(rows).T


@checked
def evolve(
    jobs: Workers,
    racks: Racks,
    *,
    population: Count = 24,
    generations: Count = 20,
    rng: np.random.Generator | Whole = 0,
) -> Placed:
    """Who comes first and around which node, for a batch, by a genetic search.

    Each job has two genes. The better half of a generation lives on; children take each gene from
    either parent, a tenth of them anew. The least mean completion time wins.

    Args:
        jobs: the batch.
        racks: where they run.
        population: candidates of a generation.
        generations: how many follow the first.
        rng: a generator or a seed.
    """
    trace = jobs.trace
    draw = np.random.default_rng(rng)
    num = len(trace)
    nodes = racks.racks * racks.nodes

    def run(genes: NDArray[np.float64]) -> Placed:
        anchors = (genes[1] * nodes).astype(int)
        return simulate(jobs, racks, Way.CHOSEN, order=genes[0], anchors=anchors)

    def seconds(genes: NDArray[np.float64]) -> float:
        return float(run(genes).jct_s.mean())

    genes = draw.random((population, 2, num))
    genes[0, 0] = trace.column("arrival_s") + np.arange(num) / num
    scores = np.array([seconds(g) for g in genes])
    for _ in range(generations):
        best = np.argsort(scores, kind="stable")[: max(population // 2, 1)]
        genes = genes[best]
        scores = scores[best]
        pairs = draw.integers(best.size, size=(2, population - best.size))
        take = draw.random((pairs.shape[1], 2, num))
        children = np.where(take < 0.5, genes[pairs[0]], genes[pairs[1]])
        children = np.where(draw.random(take.shape) < 0.1, draw.random(take.shape), children)
        genes = np.concatenate([genes, children])
        scores = np.concatenate([scores, [seconds(g) for g in children]])
    return run(genes[int(np.argmin(scores))])
