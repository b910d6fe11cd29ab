"""Liquid (TPDS'22): jobs with parameter servers share the links of nodes and racks.

    from labkit.papers import liquid

    racks = liquid.Racks(racks=2, nodes=4, gpus=4, node_bytes_per_s=1e10, rack_bytes_per_s=2e10)
    jobs = liquid.draw_workers(racks, num_jobs=100, load=0.6)
    liquid.simulate(jobs, racks, "best-fit").jct_s

Everything is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.cluster.inputs.published import generate
from labkit.cluster.inputs.traces import Trace
from labkit.errors import BadValue
from labkit.kit.describe import Count, Positive, Whole, checked, description

if TYPE_CHECKING:
    import pandas as pd

How = Literal["random", "spread", "pack", "best-fit", "chosen"]


@description
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
        self, loads: NDArray[np.float64], compute_s: ArrayLike, model_bytes: ArrayLike
    ) -> NDArray[np.float64]:
        """Seconds of a step of jobs that run at once; a link is shared evenly by who uses it.

        ``loads``: job × link, the :meth:`traffic` of each.
        """
        slowest = (loads * (loads > 0).sum(axis=0) / self.rate).max(axis=1, initial=0.0)
        return np.asarray(compute_s) + np.asarray(model_bytes) * slowest


class Placed(NamedTuple):
    """Completion and execution seconds of every job; simulated."""

    jct_s: NDArray[np.float64]
    execution_s: NDArray[np.float64]


NETWORKS = {
    "ResNet-50": (25.6e6, 0.25),
    "VGG-16": (138.4e6, 0.35),
    "AlexNet": (61.1e6, 0.10),
    "Inception-v3": (23.8e6, 0.30),
    "BERT-base": (110e6, 0.40),
    "LSTM": (66e6, 0.30),
}
"""Parameters, and seconds of a step without the network (ours: round numbers of one GPU)."""


@description
class Workers:
    """Jobs of workers and a parameter server.

    Attributes:
        trace: when each comes and on how many GPUs; its duration is the seconds it computes.
        model_bytes, compute_s: a number a job: its model, and a step without the network.
    """

    trace: Trace
    model_bytes: ArrayLike
    compute_s: ArrayLike

    def __post_init__(self) -> None:
        for name in ("model_bytes", "compute_s"):
            array = np.array(getattr(self, name), dtype=float)
            if array.shape != (len(self.trace),) or not (np.isfinite(array) & (array > 0)).all():
                raise BadValue(f"Workers.{name} must be one number above 0 a job")
            object.__setattr__(self, name, array)


@checked
def draw_workers(racks: Racks, *, num_jobs: Count, load: Positive, rng: Whole = 0) -> Workers:
    """Jobs of :data:`NETWORKS`, each as likely, on 1, 2, 4 or 8 GPUs; Poisson arrivals.

    Args:
        racks: where they run.
        num_jobs: how many.
        load: work that arrives a second, over what all GPUs can do without a network.
        rng: a seed.
    """
    trace = generate(
        num_jobs,
        num_gpus=racks.racks * racks.nodes * racks.gpus,
        load=load,
        sigma=1.0,
        mean_duration_s=1800.0,
        gpus={1: 0.4, 2: 0.3, 4: 0.2, 8: 0.1},
        rng=rng,
    )
    kind = np.random.default_rng([rng, 1]).integers(len(NETWORKS), size=num_jobs)
    parameters, compute_s = np.array(list(NETWORKS.values()))[kind].T
    return Workers(trace=trace, model_bytes=4 * parameters, compute_s=compute_s)


@checked
def place(
    racks: Racks,
    free: ArrayLike,
    gpus: Count,
    how: How = "best-fit",
    *,
    rng: np.random.Generator | Whole = 0,
    anchor: Whole = 0,
) -> NDArray[np.int64]:
    """GPUs by node for a job that fits into the free ones.

    Args:
        racks: the nodes and their links.
        free: GPUs that are free, by node.
        gpus: of the job.
        how: ``random``; ``spread``: one by one from the emptiest node; ``pack``: from the fullest
            nodes on; ``best-fit``: the least bytes over the busiest link, then the node that is
            left fullest; ``chosen``: around the node ``anchor``, its rack first.
        rng: of ``random``: a generator or a seed.
        anchor: of ``chosen``.

    Raises:
        BadValue: ``free`` is not a whole number a node, the job does not fit, no such ``anchor``.
    """
    free = np.asarray(free)
    nodes = racks.racks * racks.nodes
    if free.shape != (nodes,) or free.dtype.kind != "i" or not gpus <= free.sum() or free.min() < 0:
        raise BadValue(f"place: {gpus} GPUs; valid: up to those free on {nodes} nodes; got {free}")
    if anchor >= nodes:
        raise BadValue(f"place: anchor {anchor}; valid: 0 to {nodes - 1}")
    held = np.zeros_like(free)
    if how == "random":
        picked = np.random.default_rng(rng).choice(
            np.repeat(np.arange(free.size), free), gpus, replace=False
        )
        return np.bincount(picked, minlength=free.size)
    if how == "spread":
        for _ in range(gpus):
            held[np.argmax(free - held)] += 1
        return held
    if how == "pack":
        return _fill(free, gpus, np.argsort(free, kind="stable"))
    rack = np.arange(free.size) // racks.nodes
    if how == "chosen":
        return _around(rack, free, gpus, anchor)
    options = []
    rate = racks.rate
    for node in np.flatnonzero(free).tolist():
        held = _around(rack, free, gpus, node)
        cost = float((racks.traffic(held) / rate).max())
        options.append((cost, int((free - held)[held > 0].sum()), node, held))
    return min(options, key=lambda option: option[:3])[3]


def _around(rack: Any, free: NDArray[np.int64], gpus: int, node: int) -> NDArray[np.int64]:
    """A node first, then those of its rack, then the others, the emptiest first."""
    order = np.lexsort((-free, rack != rack[node]))
    return _fill(free, gpus, np.concatenate([[node], order[order != node]]))


def _fill(free: NDArray[np.int64], gpus: int, order: NDArray[np.int64]) -> NDArray[np.int64]:
    held = np.zeros_like(free)
    before = np.cumsum(free[order])
    held[order] = np.clip(gpus - (before - free[order]), 0, free[order])
    return held


@checked
def simulate(
    jobs: Workers,
    racks: Racks,
    how: How,
    *,
    rng: np.random.Generator | Whole = 0,
    order: ArrayLike = (),
    anchors: ArrayLike = (),
) -> Placed:
    """Run the jobs first come, first served; their speeds change whenever one starts or ends.

    Args:
        jobs: workers and their parameter servers.
        racks: where they run.
        how: as of :func:`place`.
        rng: of ``random``: a generator or a seed.
        order, anchors: a number a job: who comes first of those that wait, and for ``chosen`` the
            node that each is placed around; default: by arrival, the first node.

    Raises:
        BadValue: a job asks for more GPUs than there are, or an array has another length.
    """
    trace = jobs.trace
    size = np.asarray(jobs.model_bytes)
    alone = np.asarray(jobs.compute_s)
    gpus = trace.column("gpus")
    left = trace.column("duration_s").copy()
    arrival = trace.column("arrival_s")
    come = arrival.tolist()
    total = racks.racks * racks.nodes * racks.gpus
    first = np.argsort(order if np.size(order) else arrival, kind="stable")
    node = np.asarray(anchors if np.size(anchors) else np.zeros(gpus.size, int))
    alike = first.shape == node.shape == gpus.shape and node.dtype.kind == "i"
    if gpus.max() > total or not alike:
        raise BadValue(
            f"liquid.simulate: valid: jobs of up to {total} GPUs, {gpus.size} orders, anchors"
        )
    draw = np.random.default_rng(rng)
    free = np.full(racks.racks * racks.nodes, racks.gpus)
    held: dict[int, NDArray[np.int64]] = {}
    loads = np.zeros((gpus.size, racks.rate.size))
    start = np.full(gpus.size, np.nan)
    end = np.zeros(gpus.size)
    now = 0.0
    waiting = first.tolist()
    while waiting or held:
        # 1. Who has come starts in order, until one does not fit.
        for job in [j for j in waiting if come[j] <= now]:
            if gpus[job] > free.sum():
                break
            held[job] = place(racks, free, int(gpus[job]), how, rng=draw, anchor=int(node[job]))
            loads[job] = racks.traffic(held[job])
            free = free - held[job]
            start[job] = now
            waiting.remove(job)
        # 2. All run until one is done or the next one comes.
        running = np.array(list(held), dtype=int)
        step = racks.step_s(loads[running], alone[running], size[running])
        done = left[running] * step / alone[running]
        arriving = min((come[j] for j in waiting if come[j] > now), default=np.inf)
        until = min(arriving, now + done.min(initial=np.inf))
        left[running] -= (until - now) * alone[running] / step
        # 3. Who is done gives its GPUs back.
        for job in running[now + done <= until].tolist():
            free = free + held.pop(job)
            end[job] = until
        now = until
    return Placed(end - arrival, end - start)


@checked
def compare(racks: Racks, batches: Sequence[Workers], hows: Sequence[How]) -> pd.DataFrame:
    """Mean seconds of every batch by way of placing: rows (measure, batch), a column a way.

    Measures are ``execution`` and ``completion``; the column ``computing`` is without a network.

    Args:
        racks: where the jobs run.
        batches: of jobs.
        hows: ways of :func:`place`.
    """
    import pandas as pd

    rows = {}
    for number, jobs in enumerate(batches):
        placed = {how: simulate(jobs, racks, how) for how in hows}
        least = {"computing": float(jobs.trace.column("duration_s").mean())}
        for measure, name in (("execution", "execution_s"), ("completion", "jct_s")):
            means = {how: float(getattr(run, name).mean()) for how, run in placed.items()}
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
        return simulate(jobs, racks, "chosen", order=genes[0], anchors=anchors)

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
