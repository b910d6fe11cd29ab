"""Delayed block proximal gradient on sparse logistic regression, in virtual time.

Every iteration updates one block of features. Workers compute its first and second derivatives on
their own examples, on weights that may lack the last iterations; the servers add them up and solve
a proximal step. The optimisation is real, the clock is virtual, bytes are counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from labkit.kit.describe import Count, NonNegative, Positive, description
from labkit.kit.randomness import Rng
from labkit.papers.paramserver.clicks import Clicks
from labkit.papers.paramserver.messages import (
    HASH_BYTES,
    KEY_BYTES,
    VALUE_BYTES,
    compressed_parts,
)

Vector = NDArray[np.float64]
Filter = Literal["none", "kkt", "significant"]
EVENTUAL = 1_000_000
"""A delay that no run reaches: workers never wait."""


@description
class Problem:
    """Describes what is minimised, and how features are cut.

    Args:
        penalty: on the sum of the weights' sizes (lambda).
        blocks: of features; an iteration updates one.
    """

    penalty: Positive = 4.0
    blocks: Count = 32


@description
class Cluster:
    """Describes workers and links, with their virtual clock.

    Args:
        workers: each with its own examples.
        entry_s: seconds of computing per nonzero entry of the block.
        spread: sigma of the lognormal factor, of mean 1, on a worker's computing of an iteration.
        lasting: sigma of a factor that a worker keeps for the whole run.
        link_bytes_per_s: of a worker.
        message_s: that a message takes beside its bytes.
    """

    workers: Count = 16
    entry_s: Positive = 1e-5
    spread: NonNegative = 0.5
    lasting: NonNegative = 0.0
    link_bytes_per_s: Positive = 1e8
    message_s: NonNegative = 1e-4


@description
class Sending:
    """Describes what is sent.

    Args:
        caching: whether a list of keys is sent once, and a hash of it afterwards.
        compression: whether zeros among values are compressed.
        filtering: "kkt" leaves out features whose weight is 0 and would stay so; "significant"
            those whose derivative has changed little since it was last sent.
        slack: of the KKT filter, as a share of the penalty; or the significant filter's threshold.
        recheck: visits of a block after which all its features are sent again.
    """

    caching: bool = False
    compression: bool = False
    filtering: Filter = "none"
    slack: NonNegative = 0.1
    recheck: Count = 20


PLAIN = Sending()
ALL = Sending(caching=True, compression=True, filtering="kkt")


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a run did.

    Args:
        time_s: virtual time at which the objective was reached; None where it was not.
        iterations: until then, or until it was given up.
        objective: at the end.
        waiting: share of the workers' time.
        computing_s: of a worker, on average.
        filtered: share of the features' derivatives that were not sent.
        worker_bytes, server_bytes: that all workers, and all servers, sent.
        worker_value_bytes, server_value_bytes: values among them, before and after compression.
        weights: at the end.
        curve: iterations, virtual seconds and objective at each look.
        rate: of the proximal step.
    """

    time_s: float | None
    iterations: int
    objective: float
    waiting: float
    computing_s: float
    filtered: float
    worker_bytes: int
    server_bytes: int
    worker_value_bytes: tuple[int, int]
    server_value_bytes: tuple[int, int]
    weights: Vector
    curve: list[tuple[int, float, float]]
    rate: float


def objective(margins: Vector, weights: Vector, penalty: float) -> float:
    """The logistic loss of all examples, and the penalty."""
    return float(np.logaddexp(0, -margins).sum() + penalty * np.abs(weights).sum())


def proximal(weights: Vector, first: Vector, second: Vector, rate: float, penalty: float) -> Vector:
    """Solve each weight's step: a scaled gradient step, shrunk towards 0.

    Args:
        weights: of a block.
        first, second: derivatives of the loss, added up over workers.
        rate: of the step (eta).
        penalty: on the size of a weight (lambda).

    Source: Algorithm 3, servers.
    """
    scale = rate / (second + 1e-3)
    moved = weights - scale * first
    return np.sign(moved) * np.maximum(np.abs(moved) - scale * penalty, 0)


class _Bytes:
    """Counts the messages of all workers and servers."""

    def __init__(self, clicks: Clicks, blocks: list[NDArray[np.int64]], cluster: Cluster) -> None:
        shards = clicks.shards(cluster.workers)
        self.keys: list[NDArray[np.int64]] = []
        self.borders: list[NDArray[np.int64]] = []
        for features in blocks:
            rows_of_block = clicks.columns[:, features[0] : features[-1] + 1].tocsr()
            found = [np.unique(rows_of_block[rows[0] : rows[-1] + 1].indices) for rows in shards]
            self.keys.append(np.concatenate(found).astype(np.int64))
            self.borders.append(np.cumsum([0, *map(len, found)]))
        self.worker = 0
        self.server = 0
        self.worker_values = [0, 0]
        self.server_values = [0, 0]
        self.seen: set[int] = set()

    def count(self, block: int, sent: NDArray[np.bool_], pulled: Vector, how: Sending) -> Vector:
        """Add an iteration's messages; bytes that each worker sends.

        Up go keys with two derivatives, and keys whose weights are wanted; down go keys with
        weights.

        Args:
            block: that was updated.
            sent: which features' derivatives are sent.
            pulled: the block's weights afterwards.
            how: what is sent.
        """
        keys = self.keys[block]
        borders = self.borders[block]
        plain = VALUE_BYTES * np.diff(borders)
        listed = KEY_BYTES * np.diff(borders)
        if how.caching and block in self.seen:
            listed = np.full(len(plain), HASH_BYTES)
        self.seen.add(block)
        up = compressed_parts(sent[keys], borders) if how.compression else plain
        down = compressed_parts(pulled[keys] != 0, borders) if how.compression else plain
        pushed = 2 * listed + 2 * up
        self.worker += int(pushed.sum())
        self.server += int((listed + down).sum())
        self.worker_values[0] += int(2 * plain.sum())
        self.worker_values[1] += int(2 * up.sum())
        self.server_values[0] += int(plain.sum())
        self.server_values[1] += int(down.sum())
        return pushed


def _held_back(
    how: Sending, visits: int, first: Vector, last: Vector, weights: Vector, penalty: float
) -> NDArray[np.bool_]:
    """Which features of a block are not sent.

    Args:
        how: the filter.
        visits: of the block before this one.
        first: derivatives now, added up over workers.
        last: those that the servers had last.
        weights: of the block.
        penalty: on the size of a weight.

    Source: §3.6 and §5.1.
    """
    if how.filtering == "none" or visits % how.recheck == 0:
        return np.zeros(len(first), dtype=bool)
    if how.filtering == "kkt":
        return (weights == 0) & (np.abs(last) <= (1 - how.slack) * penalty)
    return np.abs(first - last) <= how.slack


def learn(
    clicks: Clicks,
    *,
    problem: Problem,
    cluster: Cluster,
    delay: int = 0,
    sending: Sending = PLAIN,
    rate: float = 0.5,
    target: float = 0.0,
    limit_s: float = 1e9,
    max_iterations: int = 4_000,
    look_every: int = 8,
    lost: Callable[[int, Vector], NDArray[np.int64] | None] | None = None,
    rng: Rng = 0,
) -> Learned:
    """Minimise the objective; a worker begins iteration t when all before t - delay are finished.

    Args:
        clicks: the examples.
        problem: what is minimised.
        cluster: workers and their clock.
        delay: iterations that a worker may lack (tau); 0 is sequential consistency.
        sending: filters, caching, compression.
        rate: of the proximal step (eta).
        target: objective at which it ends.
        limit_s: virtual time at which it gives up.
        max_iterations: after which it gives up.
        look_every: iterations between two looks at the objective.
        lost: called with an iteration and the weights; returns features whose weights a server
            loses then, or None.
        rng: of blocks and times.

    Source: Algorithm 3.
    """
    generator = np.random.default_rng(rng)
    blocks = clicks.blocks(problem.blocks)
    parts = [clicks.columns[:, block[0] : block[-1] + 1].tocsr() for block in blocks]
    turned = [part.T.tocsr() for part in parts]
    shards = [slice(int(rows[0]), int(rows[-1]) + 1) for rows in clicks.shards(cluster.workers)]
    entries = np.array([[part[rows].nnz for rows in shards] for part in parts])
    counter = _Bytes(clicks, blocks, cluster)
    kept = np.exp(cluster.lasting * generator.standard_normal(cluster.workers))

    weights = np.zeros(clicks.features)
    last = [np.zeros(len(block)) for block in blocks]
    visits = [0] * len(blocks)
    margins = np.zeros(clicks.examples)  # by the servers' weights
    seen = np.zeros(clicks.examples)  # by each worker's own weights, in its examples' rows
    unseen: list[deque[tuple[float, Vector]]] = [deque() for _ in shards]

    free_s = np.zeros(cluster.workers)
    link_free_s = np.zeros(cluster.workers)
    computing_s = np.zeros(cluster.workers)
    finished_s: list[float] = []
    curve: list[tuple[int, float, float]] = []
    held, asked = 0, 0
    reached_s: float | None = None
    value = objective(margins, weights, problem.penalty)
    start_value = value
    iteration = 0
    order = generator.permutation(len(blocks))
    while iteration < max_iterations:
        # 1. Blocks come in random order, each once a round.
        if iteration % len(blocks) == 0:
            order = generator.permutation(len(blocks))
        block = int(order[iteration % len(blocks)])
        features = blocks[block]
        # 2. A worker waits until all iterations before t - delay are finished.
        bound = iteration - delay - 1
        waited_s = finished_s[bound] if bound >= 0 else 0.0
        begin_s = np.maximum(free_s, waited_s)
        for worker, rows in enumerate(shards):
            news = unseen[worker]
            while news and news[0][0] <= begin_s[worker]:
                seen[rows] += news.popleft()[1][rows]
        # 3. It computes both derivatives of its examples, and pushes them.
        factor = np.exp(
            cluster.spread * generator.standard_normal(cluster.workers) - cluster.spread**2 / 2
        )
        work_s = entries[block] * cluster.entry_s * factor * kept
        free_s = begin_s + work_s
        computing_s += work_s
        chance = special.expit(-clicks.clicked * seen)
        first = turned[block] @ (-clicks.clicked * chance)
        second = turned[block] @ (chance * (1 - chance))
        back = _held_back(
            sending, visits[block], first, last[block], weights[features], problem.penalty
        )
        visits[block] += 1
        held += int(back.sum())
        asked += len(back)
        if sending.filtering == "significant":
            first = np.where(back, last[block], first)
        last[block] = np.where(back, last[block], first)
        # 4. The servers solve the proximal step for what they got.
        moved = proximal(weights[features], first, second, rate, problem.penalty)
        if sending.filtering == "kkt":
            moved[back] = 0.0
        change = moved - weights[features]
        weights[features] = moved
        pushed = counter.count(block, ~back, moved, sending)
        link_free_s = np.maximum(link_free_s, free_s) + pushed / cluster.link_bytes_per_s
        end_s = float(link_free_s.max()) + 2 * cluster.message_s
        finished_s.append(max(end_s, finished_s[-1]) if finished_s else end_s)
        # 5. Workers will see the change when it has come back.
        shift = parts[block] @ change
        margins += clicks.clicked * shift
        for news in unseen:
            news.append((finished_s[-1], shift))
        iteration += 1
        if lost is not None:
            gone = lost(iteration, weights)
            if gone is not None:
                cleared = np.zeros(clicks.features)
                cleared[gone] = -weights[gone]
                weights = weights + cleared
                shift = clicks.rows @ cleared
                margins += clicks.clicked * shift
                for news in unseen:
                    news.append((finished_s[-1], shift))
        # 6. Look at the objective now and then.
        if iteration % look_every == 0:
            value = objective(margins, weights, problem.penalty)
            curve.append((iteration, finished_s[-1], value))
            if value <= target:
                reached_s = finished_s[-1]
                break
            if finished_s[-1] > limit_s or not value < 4 * start_value:
                break
    total_s = float(finished_s[-1])
    return Learned(
        time_s=reached_s,
        iterations=iteration,
        objective=value,
        waiting=float(1 - computing_s.mean() / total_s),
        computing_s=float(computing_s.mean()),
        filtered=held / max(asked, 1),
        worker_bytes=counter.worker,
        server_bytes=counter.server,
        worker_value_bytes=(counter.worker_values[0], counter.worker_values[1]),
        server_value_bytes=(counter.server_values[0], counter.server_values[1]),
        weights=weights,
        curve=curve,
        rate=rate,
    )


def at_best_rate(
    run: Callable[[float, float], Learned], rates: Iterable[float], *, limit_s: float = 1e9
) -> Learned:
    """Try each rate, and return the run that reached the objective first.

    Args:
        run: called with a rate and with the virtual time at which it may give up.
        rates: to try, from high to low; once one is slower than a higher one, the rest is left out.
        limit_s: of the first try; later ones end where they cannot be faster.
    """
    best: Learned | None = None
    for rate in rates:
        learned = run(rate, limit_s)
        if learned.time_s is not None:
            best = learned
            limit_s = learned.time_s
        elif best is not None and best.time_s is not None:
            break
        best = best or learned
    if best is None:
        raise ValueError("at_best_rate: rates is empty; give one rate or more")
    return best
