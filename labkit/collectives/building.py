"""Building programs by name: ring, tree, recursive halving, servers, blocks, and the others.

Each builder writes the rows of one algorithm for one operation; ``program`` finds it by name.
Letters: n workers, M bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Literal, NamedTuple, get_args

import numpy as np
from annotated_types import Ge, Le

from labkit.collectives.coding import Coding
from labkit.collectives.programs import Action, Op, Program, Rows
from labkit.errors import BadValue, not_among
from labkit.kit.describe import Count, Whole, checked

Name = Literal[
    "ring",
    "tree",
    "recursive-halving",
    "recursive-doubling",
    "hierarchical",
    "direct",
    "two-level",
    "parameter-server",
    "byteps",
    "sparse-blocks",
]
"""The algorithms that there are."""


Workers = Annotated[int, Ge(1), Le(10**6)]
Pieces = Annotated[int, Ge(1), Le(10**6)]
MOST_ROWS = 2 * 10**7
"""Rows of a program at most: about a gigabyte."""


class Row(NamedTuple):
    """One row of a program."""

    step: int
    source: int
    destination: int
    chunk: int
    action: Action


@checked
def program(
    name: Name,
    num_workers: Workers,
    num_bytes: Count,
    *,
    op: Op = "all-reduce",
    per_node: Count | None = None,
    num_servers: Workers | None = None,
    num_pieces: Pieces = 1,
    nonzero: np.ndarray | None = None,
    bits: Annotated[int, Ge(2), Le(16)] | None = None,
    element_bytes: Count = 4,
) -> Program:
    """Write the program of an algorithm.

    Args:
        name: of the algorithm.
        num_workers: n, the ranks that hold data.
        num_bytes: M: what each worker holds before an all-reduce, a reduce-scatter, an all-to-all,
            a broadcast or a reduce, and what each has after an all-gather.
        op: what it computes.
        per_node: consecutive workers of a node, for ``hierarchical`` and ``two-level``.
        num_servers: machines beside the workers, for ``parameter-server``, ``byteps`` and
            ``sparse-blocks``.
        num_pieces: that follow one another through a ``tree`` or through servers.
        nonzero: which blocks of each worker hold anything, shape (workers, blocks), for
            ``sparse-blocks``.
        bits: of a number on the wire, with a scale for each 256 numbers; None sends it as it is.
        element_bytes: of one number.

    Raises:
        BadValue: the algorithm has no such operation, lacks an argument that it needs, the bytes
            are no whole numbers, or the program would have too many rows.

    >>> ring = program("ring", 4, 1 << 20)
    >>> ring.num_steps, int(ring.sent_bytes[0, 1]) == 2 * 3 * (1 << 20) // 4
    (6, True)
    """
    if num_bytes % element_bytes:
        raise BadValue(
            f"collectives.program: num_bytes must be a multiple of element_bytes "
            f"({element_bytes}), got {num_bytes}"
        )
    job = Job(
        name=name,
        op=op,
        num_workers=num_workers,
        num_elements=num_bytes // element_bytes,
        element_bytes=element_bytes,
        per_node=per_node,
        num_servers=num_servers,
        num_pieces=num_pieces,
        nonzero=nonzero,
        coding=Coding(bits=bits),
    )
    check_rows(num_workers, num_servers or 0, num_pieces)
    builders = {o: build for (n, o), build in BUILDERS.items() if n == name}
    if op not in builders:
        raise not_among(f"operation of {name!r}", op, builders)
    return builders[op](job)


def check_rows(num_workers: int, num_servers: int, num_pieces: int) -> None:
    """Refuse a program that memory does not hold: it has rows for each pair of ranks, and piece.

    Raises:
        BadValue: it might have too many.
    """
    rows = 2 * num_workers * (num_workers + num_servers) * num_pieces
    if rows > MOST_ROWS:
        raise BadValue(
            f"collectives.program: num_workers {num_workers}, num_servers {num_servers} and "
            f"num_pieces {num_pieces} make up to {rows:,} rows; at most {MOST_ROWS:,} are valid"
        )


@checked
def names(op: Op) -> tuple[Name, ...]:
    """The algorithms that compute an operation.

    >>> names("all-to-all")
    ('direct', 'two-level')
    """
    return tuple(name for name in get_args(Name) if (name, op) in BUILDERS)


class Job(NamedTuple):
    """What a builder is asked for."""

    name: Name
    op: Op
    num_workers: int
    num_elements: int
    element_bytes: int
    per_node: int | None
    num_servers: int | None
    num_pieces: int
    nonzero: np.ndarray | None
    coding: Coding

    def cut(self, num_chunks: int) -> np.ndarray:
        """Bytes of chunks as even as whole numbers allow, the larger ones first."""
        small, larger = divmod(self.num_elements, num_chunks)
        elements = np.full(num_chunks, small, dtype=np.int64)
        elements[:larger] += 1
        return elements * self.element_bytes

    def need(self, argument: str) -> int:
        """An argument without which the algorithm makes no sense."""
        value: int | None = getattr(self, argument)
        if value is None:
            raise BadValue(f"collectives.program: {self.name!r} needs {argument}")
        return value

    @property
    def num_nodes(self) -> int:
        """Nodes of ``per_node`` workers."""
        per_node = self.need("per_node")
        if self.num_workers % per_node:
            raise BadValue(
                f"collectives.program: num_workers must be a multiple of per_node {per_node}, got "
                f"{self.num_workers}"
            )
        return self.num_workers // per_node

    def program(
        self,
        rows: Iterator[Row] | Rows,
        chunk_bytes: np.ndarray,
        *,
        held: np.ndarray | None = None,
        wanted: np.ndarray | None = None,
        num_servers: int = 0,
    ) -> Program:
        """The program of these rows; every worker holds and wants all that is not said."""
        workers = np.zeros((self.num_workers + num_servers, len(chunk_bytes)), dtype=bool)
        workers[: self.num_workers] = True
        return Program(
            name=self.name,
            op=self.op,
            rows=rows if isinstance(rows, Rows) else _columns(rows),
            chunk_bytes=chunk_bytes,
            held=workers if held is None else held,
            wanted=workers if wanted is None else wanted,
            num_workers=self.num_workers,
            element_bytes=self.element_bytes,
            coding=self.coding,
        )


def _columns(rows: Iterator[Row]) -> Rows:
    """Arrange rows by column, in the order of their steps."""
    table = np.array(list(rows), dtype=np.int64).reshape(-1, len(Row._fields))
    return Rows(*table[np.argsort(table[:, 0], kind="stable")].T)


def _one_each(num_ranks: int) -> np.ndarray:
    """Rank r alone, for chunk r."""
    return np.eye(num_ranks, dtype=bool)


# ---------------------------------------------------------------- ring


def _ring_rows(
    members: np.ndarray, chunks: np.ndarray, first_step: int, action: Action, shift: int
) -> Rows:
    """Rows of one turn around a ring: n - 1 steps.

    In step s member i sends chunk i + shift - s to its next. After a turn that adds from shift 0,
    member i has the sum of chunk i + 1; a turn that copies from shift 1 takes it from there.

    Args:
        members: ranks in the order of the ring, shape (n,).
        chunks: that go round, in the same order.
    """
    size = len(members)
    steps, places = np.divmod(np.arange(size * (size - 1)), size)
    return Rows(
        step=first_step + steps,
        source=members[places],
        destination=members[(places + 1) % size],
        chunk=chunks[(places + shift - steps) % size],
        action=np.full(len(steps), action),
    )


def _joined(parts: list[Rows]) -> Rows:
    """Rows of several parts, in the order of their steps."""
    rows = Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return rows.at(np.argsort(rows.step, kind="stable"))


def _ring_all_reduce(job: Job) -> Program:
    """Add in one turn, copy in another: 2(n-1) steps, 2(n-1)/n · M from each rank.

    Source: Patarasuk and Yuan 2009; Horovod §3.
    """
    size = job.num_workers
    ranks = np.arange(size)
    adding = _ring_rows(ranks, ranks, 0, Action.ADD, 0)
    copying = _ring_rows(ranks, ranks, size - 1, Action.COPY, 1)
    return job.program(_joined([adding, copying]), job.cut(size))


def _ring_reduce_scatter(job: Job) -> Program:
    """Add in one turn; rank r ends with chunk r."""
    ranks = np.arange(job.num_workers)
    rows = _ring_rows(ranks, ranks, 0, Action.ADD, -1)
    return job.program(rows, job.cut(job.num_workers), wanted=_one_each(job.num_workers))


def _ring_all_gather(job: Job) -> Program:
    """Copy in one turn; rank r begins with chunk r."""
    ranks = np.arange(job.num_workers)
    rows = _ring_rows(ranks, ranks, 0, Action.COPY, 0)
    return job.program(rows, job.cut(job.num_workers), held=_one_each(job.num_workers))


# ---------------------------------------------------------------- tree


def _parent(rank: int) -> int:
    """The rank above, in a binary tree whose root is rank 0."""
    return (rank - 1) // 2


def _depth(rank: int) -> int:
    """How many ranks are above."""
    return (rank + 1).bit_length() - 1


def _up(job: Job) -> Iterator[Row]:
    """Sums go up the tree: a rank sends a piece after its children sent it theirs.

    Left children send in even steps and right ones in odd steps, since a link takes one message at
    a time; the next piece follows two steps behind.
    """
    deepest = _depth(job.num_workers - 1)
    for rank in range(1, job.num_workers):
        for piece in range(job.num_pieces):
            step = 2 * (deepest - _depth(rank) + piece) + (rank + 1) % 2
            yield Row(step, rank, _parent(rank), piece, Action.ADD)


def _down(job: Job, first_step: int) -> Iterator[Row]:
    """Sums go down the tree, in the same rhythm."""
    for rank in range(1, job.num_workers):
        for piece in range(job.num_pieces):
            step = 2 * (_depth(rank) - 1 + piece) + (rank + 1) % 2
            yield Row(first_step + step, _parent(rank), rank, piece, Action.COPY)


def _tree(job: Job) -> Program:
    """Up a binary tree, down it, or both: about 2 log₂ n steps each way for one piece.

    Source: Sanders et al. 2009, §2 (the binary tree whose pieces follow one another).
    """
    rows: list[Row] = []
    root = np.zeros((job.num_workers, job.num_pieces), dtype=bool)
    root[0] = True
    if job.op != "broadcast":
        rows += _up(job)
    if job.op != "reduce":
        rows += _down(job, max((row.step + 1 for row in rows), default=0))
    return job.program(
        iter(rows),
        job.cut(job.num_pieces),
        held=root if job.op == "broadcast" else None,
        wanted=root if job.op == "reduce" else None,
    )


# ---------------------------------------------------------------- powers of two


def _power_below(size: int) -> int:
    """The largest power of two that is no larger."""
    return 1 << (size.bit_length() - 1)


def _folded(job: Job, inner: Callable[[int], Iterator[Row]], num_chunks: int) -> Iterator[Row]:
    """Rows where n is no power of two: those beyond it hand in before, and are told after.

    Source: Thakur et al. 2005, §4.4.
    """
    core = _power_below(job.num_workers)
    beyond = range(core, job.num_workers)
    shift = 1 if beyond else 0
    for rank in beyond:
        for chunk in range(num_chunks):
            yield Row(0, rank, rank - core, chunk, Action.ADD)
    last = 0
    for row in inner(core):
        last = max(last, row.step + 1)
        yield row._replace(step=row.step + shift)
    for rank in beyond:
        for chunk in range(num_chunks):
            yield Row(last + shift, rank - core, rank, chunk, Action.COPY)


def _halve(core: int, first_step: int = 0) -> Iterator[Row]:
    """Partners at half the distance each time exchange halves and add: rank r ends with chunk r."""
    distance = core // 2
    step = first_step
    while distance:
        for rank in range(core):
            partner = rank ^ distance
            block = partner // distance * distance
            for chunk in range(block, block + distance):
                yield Row(step, rank, partner, chunk, Action.ADD)
        distance //= 2
        step += 1


def _double(core: int, first_step: int = 0) -> Iterator[Row]:
    """Partners at twice the distance each time exchange what they have: rank r brings chunk r."""
    distance = 1
    step = first_step
    while distance < core:
        for rank in range(core):
            block = rank // distance * distance
            for chunk in range(block, block + distance):
                yield Row(step, rank, rank ^ distance, chunk, Action.COPY)
        distance *= 2
        step += 1


def _halving_all_reduce(job: Job) -> Program:
    """Halve, then double: 2 log₂ n steps, 2(n-1)/n · M from each rank.

    Source: Rabenseifner 2004; Thakur et al. 2005, §4.4.
    """
    core = _power_below(job.num_workers)

    def both(size: int) -> Iterator[Row]:
        yield from _halve(size)
        yield from _double(size, size.bit_length() - 1)

    return job.program(_folded(job, both, core), job.cut(core))


def _powers_alone(job: Job) -> None:
    if job.num_workers != _power_below(job.num_workers):
        raise BadValue(
            f"collectives.program: {job.name!r} scatters and gathers among a power of two of "
            f"workers, got {job.num_workers}; 'ring' and 'direct' take any number"
        )


def _halving_reduce_scatter(job: Job) -> Program:
    _powers_alone(job)
    rows = _halve(job.num_workers)
    return job.program(rows, job.cut(job.num_workers), wanted=_one_each(job.num_workers))


def _halving_all_gather(job: Job) -> Program:
    _powers_alone(job)
    rows = _double(job.num_workers)
    return job.program(rows, job.cut(job.num_workers), held=_one_each(job.num_workers))


def _doubling_all_reduce(job: Job) -> Program:
    """Partners exchange everything and add: log₂ n steps, log₂ n · M from each rank.

    Source: Thakur et al. 2005, §4.4.
    """

    def exchange(core: int) -> Iterator[Row]:
        for step in range(core.bit_length() - 1):
            for rank in range(core):
                yield Row(step, rank, rank ^ (1 << step), 0, Action.ADD)

    return job.program(_folded(job, exchange, 1), job.cut(1))


# ---------------------------------------------------------------- nodes


def _hierarchical_all_reduce(job: Job) -> Program:
    """Reduce-scatter in each node, all-reduce of each shard between nodes, all-gather in each node.

    A chunk is one shard's part for one node: chunk = node · g + place of the rank in its node.
    """
    size = job.need("per_node")
    nodes = job.num_nodes
    ranks = np.arange(job.num_workers).reshape(nodes, size)
    chunks = ranks  # of [node, place]
    parts = []
    for node in range(nodes):
        for part in range(nodes):
            parts.append(_ring_rows(ranks[node], chunks[part], 0, Action.ADD, -1))
    step = size - 1
    for place in range(size):
        ring = (ranks[:, place], chunks[:, place])
        parts.append(_ring_rows(*ring, step, Action.ADD, 0))
        parts.append(_ring_rows(*ring, step + nodes - 1, Action.COPY, 1))
    step += 2 * (nodes - 1)
    for node in range(nodes):
        for part in range(nodes):
            parts.append(_ring_rows(ranks[node], chunks[part], step, Action.COPY, 0))
    return job.program(_joined(parts), job.cut(job.num_workers))


# ---------------------------------------------------------------- direct


def _direct_rows(size: int, first_step: int, action: Action, *, own: bool) -> Rows:
    """Everyone sends to everyone at once: what belongs to the other, or what is one's own."""
    source, destination = np.divmod(np.arange(size * size), size)
    rows = Rows(
        step=np.full(size * size, first_step),
        source=source,
        destination=destination,
        chunk=source if own else destination,
        action=np.full(size * size, action),
    )
    return rows.at(source != destination)


def _direct(job: Job) -> Program:
    """One hop: a rank adds up its chunk of all others, and sends the sum to all others.

    Source: ZeRO++ §3.3 (a reduce-scatter in one hop, so that numbers are coded once).
    """
    size = job.num_workers
    scatter = _direct_rows(size, 0, Action.ADD, own=False)
    gather = _direct_rows(size, int(job.op == "all-reduce"), Action.COPY, own=True)
    chunk_bytes = job.cut(size)
    if job.op == "reduce-scatter":
        return job.program(scatter, chunk_bytes, wanted=_one_each(size))
    if job.op == "all-gather":
        return job.program(gather, chunk_bytes, held=_one_each(size))
    return job.program(_joined([scatter, gather]), chunk_bytes)


def _exchange(job: Job, rows: Rows) -> Program:
    """An all-to-all of n² chunks: rank i holds chunk i·n + j at first, and rank j wants it."""
    size = job.num_workers
    source, destination = np.divmod(np.arange(size * size), size)
    ranks = np.arange(size)[:, None]
    chunk_bytes = np.tile(job.cut(size), size)
    return job.program(rows, chunk_bytes, held=ranks == source, wanted=ranks == destination)


def _direct_all_to_all(job: Job) -> Program:
    """Each worker sends each other its chunk: n - 1 messages of M/n bytes from each."""
    size = job.num_workers
    rows = _direct_rows(size, 0, Action.COPY, own=False)
    chunk = rows.source * size + rows.destination
    return _exchange(job, rows._replace(chunk=chunk))


def _two_level_all_to_all(job: Job) -> Program:
    """First in the node, by place of the destination; then between nodes, among equal places.

    So g - 1 messages of M/g bytes stay in the node, and n/g - 1 of g·M/n bytes leave it.

    Source: Tutel §3.4 (two-dimensional hierarchical all-to-all).
    """
    group = job.need("per_node")
    size = group * job.num_nodes
    source, destination = np.divmod(np.arange(size * size), size)
    # The neighbour of the source that stands where the destination stands in its own node.
    between = source // group * group + destination % group
    inside = Rows(
        step=np.zeros(size * size, dtype=np.int64),
        source=source,
        destination=between,
        chunk=np.arange(size * size),
        action=np.full(size * size, Action.COPY),
    )
    across = inside._replace(step=inside.step + 1, source=between, destination=destination)
    parts = [inside.at(source != between), across.at(between != destination)]
    return _exchange(job, _joined(parts))


# ---------------------------------------------------------------- servers


def _served_rows(holders: np.ndarray, servers: np.ndarray, pieces: np.ndarray) -> Rows:
    """Rows of chunks that servers add up and send back.

    A server sends a piece back while the next one arrives, since a link carries both ways at once.

    Args:
        holders: whether a worker sends its part of a chunk, shape (workers, chunks).
        servers: the rank that serves each chunk; it may be a worker itself.
        pieces: the step in which each chunk is sent.
    """
    worker, chunk = np.nonzero(holders)
    pushed = Rows(
        step=pieces[chunk],
        source=worker,
        destination=servers[chunk],
        chunk=chunk,
        action=np.full(len(worker), Action.ADD),
    )
    everyone = np.arange(len(holders))
    any_held = np.flatnonzero(holders.any(axis=0))
    reader, read = (grid.ravel() for grid in np.meshgrid(everyone, any_held, indexing="ij"))
    pulled = Rows(
        step=pieces[read] + 1,
        source=servers[read],
        destination=reader,
        chunk=read,
        action=np.full(len(read), Action.COPY),
    )
    return _joined([part.at(part.source != part.destination) for part in (pushed, pulled)])


def _in_pieces(job: Job, share_elements: np.ndarray, ranks: np.ndarray, servers: int) -> Program:
    """The program in which each rank serves so many elements, in ``num_pieces`` of equal size."""
    ends = np.arange(1, job.num_pieces + 1) * share_elements[:, None] // job.num_pieces
    elements = np.diff(ends, axis=1, prepend=0)  # [server, piece]
    sent = elements.ravel() > 0
    server, piece = np.divmod(np.arange(elements.size)[sent], job.num_pieces)
    holders = np.ones((job.num_workers, len(server)), dtype=bool)
    rows = _served_rows(holders, ranks[server], piece)
    chunk_bytes = elements.ravel()[sent] * job.element_bytes
    return job.program(rows, chunk_bytes, num_servers=servers)


def _parameter_server(job: Job) -> Program:
    """Workers send k servers a part each, which add up and send back: M each way at a worker.

    A server takes and gives n · M/k bytes.
    """
    servers = job.need("num_servers")
    share = job.cut(servers) // job.element_bytes
    return _in_pieces(job, share, job.num_workers + np.arange(servers), servers)


@checked
def byteps_shares(num_workers: Workers, num_servers: Whole) -> tuple[float, float]:
    """The best shares of a message: of each worker's own server, and of each spare machine.

    With n workers and k ≤ n spare machines, (n - k) / (n² + k·n - 2k) and 2(n - 1) / (n² + k·n -
    2k), so that all links are equally busy.

    Source: Jiang et al. 2020 (BytePS), §4.1.

    >>> byteps_shares(4, 0), byteps_shares(4, 4)
    ((0.25, 0.375), (0.0, 0.25))
    """
    n = num_workers
    k = num_servers
    whole = n * n + k * n - 2 * k
    return (n - k) / whole, 2 * (n - 1) / whole


def _byteps(job: Job) -> Program:
    """Spare machines serve what their links can carry, workers serve the rest for each other.

    Source: Jiang et al. 2020 (BytePS), §4.1.
    """
    workers = job.num_workers
    servers = min(job.need("num_servers"), workers) if workers > 1 else 0
    own, spare = byteps_shares(workers, servers) if workers > 1 else (1.0, 0.0)
    shares = np.array([own] * workers + [spare] * servers)
    ends = np.round(np.cumsum(shares) * job.num_elements).astype(np.int64)
    return _in_pieces(job, np.diff(ends, prepend=0), np.arange(workers + servers), servers)


def _sparse_blocks(job: Job) -> Program:
    """Workers send the blocks that hold anything to servers, which send their sums to everybody.

    Blocks are dealt to the servers in turn.

    Source: Fei et al. 2021 (OmniReduce), §3.
    """
    servers = job.need("num_servers")
    if job.nonzero is None:
        raise BadValue("collectives.program: 'sparse-blocks' needs nonzero")
    nonzero = np.asarray(job.nonzero, dtype=bool)
    if nonzero.ndim != 2 or len(nonzero) != job.num_workers or not nonzero.shape[1]:
        raise BadValue(
            f"collectives.program: nonzero must have the shape (num_workers, blocks), num_workers "
            f"{job.num_workers}, got {nonzero.shape}"
        )
    blocks = nonzero.shape[1]
    place = np.arange(blocks)
    piece = place * job.num_pieces // blocks
    rows = _served_rows(nonzero, job.num_workers + place % servers, piece)
    held = np.vstack([nonzero, np.zeros((servers, blocks), dtype=bool)])
    wanted = np.zeros_like(held)
    wanted[: job.num_workers] = nonzero.any(axis=0)
    return job.program(rows, job.cut(blocks), held=held, wanted=wanted, num_servers=servers)


BUILDERS: dict[tuple[Name, Op], Callable[[Job], Program]] = {
    ("ring", "all-reduce"): _ring_all_reduce,
    ("ring", "reduce-scatter"): _ring_reduce_scatter,
    ("ring", "all-gather"): _ring_all_gather,
    ("tree", "all-reduce"): _tree,
    ("tree", "broadcast"): _tree,
    ("tree", "reduce"): _tree,
    ("recursive-halving", "all-reduce"): _halving_all_reduce,
    ("recursive-halving", "reduce-scatter"): _halving_reduce_scatter,
    ("recursive-halving", "all-gather"): _halving_all_gather,
    ("recursive-doubling", "all-reduce"): _doubling_all_reduce,
    ("hierarchical", "all-reduce"): _hierarchical_all_reduce,
    ("direct", "all-reduce"): _direct,
    ("direct", "reduce-scatter"): _direct,
    ("direct", "all-gather"): _direct,
    ("direct", "all-to-all"): _direct_all_to_all,
    ("two-level", "all-to-all"): _two_level_all_to_all,
    ("parameter-server", "all-reduce"): _parameter_server,
    ("byteps", "all-reduce"): _byteps,
    ("sparse-blocks", "all-reduce"): _sparse_blocks,
}
"""Who writes which program."""
