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
from labkit.papers.paramserver.clicks import Clicks, count_entries, cut_columns, find_keys
from labkit.papers.paramserver.messages import (
    HASH_BYTES,
    KEY_BYTES,
    VALUE_BYTES,
    compressed_parts,
)

Vector = NDArray[np.float64]
Filter = Literal["none", "kkt", "fresh kkt", "significant"]
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
        filtering: "kkt" leaves out features whose weight is 0 and would stay so, by the derivative
            that was sent last; "fresh kkt" judges by the derivative of now, added up over workers,
            which no single worker knows; "significant" leaves out those whose derivative has
            changed little since it was last sent.
        slack: of a KKT filter, as a share of the penalty; or the significant filter's threshold.
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

    def __init__(self, clicks: Clicks, blocks: int, cluster: Cluster) -> None:
        self.keys, self.borders = find_keys(clicks, blocks, cluster.workers)
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
    if how.filtering in ("kkt", "fresh kkt"):
        judged = last if how.filtering == "kkt" else first
        return (weights == 0) & (np.abs(judged) <= (1 - how.slack) * penalty)
    return np.abs(first - last) <= how.slack


class _Workers:
    """The workers' own views of the margins, and their virtual clock."""

    def __init__(
        self,
        clicks: Clicks,
        blocks: int,
        cluster: Cluster,
        generator: np.random.Generator,
    ) -> None:
        self.cluster = cluster
        self.generator = generator
        self.shards = [
            slice(int(rows[0]), int(rows[-1]) + 1) for rows in clicks.shards(cluster.workers)
        ]
        self.entries = count_entries(clicks, blocks, cluster.workers)
        self.lasting = np.exp(cluster.lasting * generator.standard_normal(cluster.workers))
        self.seen = np.zeros(clicks.examples)  # by each worker's weights, in its examples' rows
        self.unseen: list[deque[tuple[float, Vector]]] = [deque() for _ in self.shards]
        self.free_s = np.zeros(cluster.workers)
        self.link_free_s = np.zeros(cluster.workers)
        self.computing_s = np.zeros(cluster.workers)
        self.finished_s: list[float] = []

    def begin(self, block: int, delay: int) -> None:
        """Wait until all iterations before t - delay are finished, look at the news, compute."""
        bound = len(self.finished_s) - delay - 1
        waited_s = self.finished_s[bound] if bound >= 0 else 0.0
        begin_s = np.maximum(self.free_s, waited_s)
        for worker, rows in enumerate(self.shards):
            news = self.unseen[worker]
            while news and news[0][0] <= begin_s[worker]:
                self.seen[rows] += news.popleft()[1][rows]
        spread = self.cluster.spread
        drawn = self.generator.standard_normal(self.cluster.workers)
        factor = np.exp(spread * drawn - spread**2 / 2)
        work_s = self.entries[block] * self.cluster.entry_s * factor * self.lasting
        self.free_s = begin_s + work_s
        self.computing_s += work_s

    def end(self, pushed_bytes: Vector) -> None:
        """Push over each worker's link; the iteration is finished when the last one has arrived."""
        sending_s = pushed_bytes / self.cluster.link_bytes_per_s
        self.link_free_s = np.maximum(self.link_free_s, self.free_s) + sending_s
        end_s = float(self.link_free_s.max()) + 2 * self.cluster.message_s
        self.finished_s.append(max([end_s, *self.finished_s[-1:]]))

    def tell(self, shift: Vector) -> None:
        """Send the change of all margins; a worker sees it once the iteration is finished."""
        for news in self.unseen:
            news.append((self.finished_s[-1], shift))


class _Servers:
    """The servers' weights, and what they know of each block."""

    def __init__(self, clicks: Clicks, problem: Problem, sending: Sending, rate: float) -> None:
        self.clicks = clicks
        self.problem = problem
        self.sending = sending
        self.rate = rate
        self.blocks = clicks.blocks(problem.blocks)
        self.parts = cut_columns(clicks, problem.blocks)
        self.turned = [part.T.tocsr() for part in self.parts]
        self.weights = np.zeros(clicks.features)
        self.margins = np.zeros(clicks.examples)
        self.last = [np.zeros(len(block)) for block in self.blocks]
        self.visits = [0] * len(self.blocks)
        self.held = 0
        self.asked = 0

    def update(self, block: int, seen: Vector) -> tuple[Vector, NDArray[np.bool_]]:
        """Add up derivatives, solve the block's step; the margins' change, and what was sent.

        Args:
            block: to update.
            seen: each example's margin, by its worker's weights.
        """
        features = self.blocks[block]
        old = self.weights[features]
        clicked = self.clicks.clicked
        chance = special.expit(-clicked * seen)
        first = self.turned[block] @ (-clicked * chance)
        second = self.turned[block] @ (chance * (1 - chance))
        penalty = self.problem.penalty
        last = self.last[block]
        back = _held_back(self.sending, self.visits[block], first, last, old, penalty)
        self.visits[block] += 1
        self.held += int(back.sum())
        self.asked += len(back)
        self.last[block] = np.where(back, last, first)
        if self.sending.filtering == "significant":
            first = self.last[block]
        moved = proximal(old, first, second, self.rate, penalty)
        if self.sending.filtering == "kkt":
            moved[back] = 0.0
        self.weights[features] = moved
        shift = self.parts[block] @ (moved - old)
        self.margins += clicked * shift
        return shift, ~back

    def lose(self, features: NDArray[np.int64]) -> Vector:
        """Forget the weights of some features; the margins' change."""
        change = np.zeros(self.clicks.features)
        change[features] = -self.weights[features]
        self.weights = self.weights + change
        shift = self.clicks.rows @ change
        self.margins += self.clicks.clicked * shift
        return np.asarray(shift)

    def objective(self) -> float:
        return objective(self.margins, self.weights, self.problem.penalty)


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
    servers = _Servers(clicks, problem, sending, rate)
    workers = _Workers(clicks, problem.blocks, cluster, generator)
    counter = _Bytes(clicks, problem.blocks, cluster)
    first_value = servers.objective()
    value = first_value
    curve: list[tuple[int, float, float]] = []
    order = generator.permutation(problem.blocks)
    for iteration in range(1, max_iterations + 1):
        # 1. Blocks come in random order, each once a round.
        if (iteration - 1) % problem.blocks == 0:
            order = generator.permutation(problem.blocks)
        block = int(order[(iteration - 1) % problem.blocks])
        # 2. Workers wait as long as they must, and compute on the weights that they know.
        workers.begin(block, delay)
        # 3. Servers solve the step, and workers hear of it when all have pushed.
        shift, sent = servers.update(block, workers.seen)
        pulled = servers.weights[servers.blocks[block]]
        workers.end(counter.count(block, sent, pulled, sending))
        workers.tell(shift)
        # 4. A server may be lost.
        gone = None if lost is None else lost(iteration, servers.weights)
        if gone is not None:
            workers.tell(servers.lose(gone))
        # 5. Look at the objective now and then.
        if iteration % look_every == 0:
            value = servers.objective()
            now_s = workers.finished_s[-1]
            curve.append((iteration, now_s, value))
            if value <= target or now_s > limit_s or not value < 4 * first_value:
                break
    return _learned(servers, workers, counter, curve, objective=value, target=target, rate=rate)


def _learned(
    servers: _Servers,
    workers: _Workers,
    counter: _Bytes,
    curve: list[tuple[int, float, float]],
    *,
    objective: float,
    target: float,
    rate: float,
) -> Learned:
    """What came of a minimisation, once its loop has ended."""
    return Learned(
        time_s=workers.finished_s[-1] if objective <= target else None,
        iterations=len(workers.finished_s),
        objective=objective,
        waiting=float(1 - workers.computing_s.mean() / workers.finished_s[-1]),
        computing_s=float(workers.computing_s.mean()),
        filtered=servers.held / max(servers.asked, 1),
        worker_bytes=counter.worker,
        server_bytes=counter.server,
        worker_value_bytes=(counter.worker_values[0], counter.worker_values[1]),
        server_value_bytes=(counter.server_values[0], counter.server_values[1]),
        weights=servers.weights,
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
