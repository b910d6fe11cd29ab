"""Running a program: every rank sends and adds real numbers, and what it sent is counted.

Ranks are threads of this process, which hand each other copies, or processes joined by gloo, which
send them over sockets (``labkit.kit.ranks``). Both follow the same rows: in each step a rank posts
what it sends, then takes what it is sent, in the order of the rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from labkit.collectives.programs import Action, Program
from labkit.errors import BadValue
from labkit.kit import ranks
from labkit.kit.describe import checked


@dataclass(frozen=True, kw_only=True, eq=False)
class Execution:
    """What a program computed, and what ranks sent.

    Attributes:
        outputs: of each worker, the chunks that it wanted, one after another.
        sent_bytes: payload on the wire, as ``[source, destination]``.
        time_s: of the slowest rank, from a common start to its last chunk.
        received_bytes: what the kernel counted on the ranks' sockets, as ``[to, from]``; None for
            threads, and where the system cannot tell.
    """

    outputs: tuple[np.ndarray, ...]
    sent_bytes: np.ndarray
    time_s: float
    received_bytes: np.ndarray | None = None


class Wire(Protocol):
    """How a rank exchanges one step's messages with others."""

    def exchange(
        self, sends: dict[int, np.ndarray], receives: dict[int, int]
    ) -> dict[int, np.ndarray]:
        """Send each destination its numbers, and take so many of each source."""


class Turn(NamedTuple):
    """What a rank does in a step: chunks to send by destination, and to take by source."""

    sends: dict[int, list[int]]
    receives: dict[int, list[tuple[int, Action]]]


@checked
def execute(
    program: Program, tensors: Sequence[np.ndarray], *, on: Literal["threads", "gloo"] = "threads"
) -> Execution:
    """Run a program on real numbers.

    Args:
        tensors: of each worker, the chunks that it holds at first, one after another; each has
            one axis, and they have one type.
        on: threads of this process, or processes of ``torch.distributed``.

    Raises:
        BadValue: there are not as many tensors as workers, or one has another length than its
            chunks.
        LabkitError: torch is missing, or a rank failed.

    >>> from labkit.collectives import program
    >>> tensors = [np.full(6, float(worker)) for worker in range(3)]
    >>> run = execute(program("ring", 3, 48, element_bytes=8), tensors)
    >>> run.outputs[1].tolist(), int(run.sent_bytes.sum())
    ([3.0, 3.0, 3.0, 3.0, 3.0, 3.0], 192)
    """
    chunks = _chunks_of(program, tensors)
    if on == "gloo":
        run = ranks.on_ranks(f"{__name__}:gloo_rank", program.num_ranks, program, chunks)
        reports = list(run.results)
        received_bytes = run.received_bytes
    else:
        reports = _on_threads(program, chunks)
        received_bytes = None
    sent_bytes = np.zeros((program.num_ranks, program.num_ranks), dtype=np.int64)
    for rank, report in enumerate(reports):
        for destination, num_bytes in report["sent_bytes"].items():
            sent_bytes[rank, destination] = num_bytes
    return Execution(
        outputs=tuple(report["output"] for report in reports[: program.num_workers]),
        sent_bytes=sent_bytes,
        time_s=max(report["time_s"] for report in reports),
        received_bytes=received_bytes,
    )


def _chunks_of(program: Program, tensors: Sequence[np.ndarray]) -> list[dict[int, np.ndarray]]:
    """Cut each worker's tensor into the chunks that it holds; servers hold none."""
    if len(tensors) != program.num_workers:
        raise BadValue(
            f"collectives.execute: {len(tensors)} tensors for {program.num_workers} workers"
        )
    elements = program.chunk_bytes // program.element_bytes
    cut: list[dict[int, np.ndarray]] = []
    for rank in range(program.num_ranks):
        held = np.flatnonzero(program.held[rank])
        if rank >= program.num_workers:
            cut.append({})
            continue
        tensor = np.asarray(tensors[rank])
        expected = int(elements[held].sum())
        if tensor.shape != (expected,):
            raise BadValue(
                f"collectives.execute: tensors[{rank}] must have the shape ({expected},), that of "
                f"the chunks it holds, got {tensor.shape}"
            )
        ends = np.cumsum(elements[held])
        parts = np.split(tensor, ends)[:-1]  # what remains after the last end is empty
        cut.append(dict(zip(held.tolist(), parts, strict=True)))
    return cut


def _turns(program: Program, rank: int) -> Iterator[Turn]:
    """What a rank does, step by step; steps in which it does nothing are left out."""
    rows = program.rows
    mine = np.flatnonzero((rows.source == rank) | (rows.destination == rank))
    turn = Turn({}, {})
    step = -1
    table = np.stack(rows.at(mine), axis=1).tolist()
    for at, source, destination, chunk, action in table:
        if at != step and (turn.sends or turn.receives):
            yield turn
            turn = Turn({}, {})
        step = at
        if source == rank:
            turn.sends.setdefault(destination, []).append(chunk)
        else:
            turn.receives.setdefault(source, []).append((chunk, Action(action)))
    if turn.sends or turn.receives:
        yield turn


def follow(program: Program, rank: int, held: dict[int, np.ndarray], wire: Wire) -> dict[str, Any]:
    """Do a rank's part of a program.

    1. Write what is sent as the coding has it, before anything of this step arrives.
    2. Exchange the step's messages, one for each pair of ranks.
    3. Add each chunk that arrives to what is held, or keep it instead.

    Returns:
        ``output``: the chunks that are wanted; ``sent_bytes`` by destination; ``time_s``.
    """
    start = perf_counter()
    elements = program.chunk_bytes // program.element_bytes
    wire_bytes = program.wire_bytes
    sent_bytes: dict[int, int] = {}
    for turn in _turns(program, rank):
        sends = {}
        for destination, chunks in turn.sends.items():
            parts = [program.coding.as_received(held[chunk]) for chunk in chunks]
            sends[destination] = np.concatenate(parts)
            num_bytes = int(wire_bytes[chunks].sum())
            sent_bytes[destination] = sent_bytes.get(destination, 0) + num_bytes
        counts = {
            source: int(elements[[chunk for chunk, _ in entries]].sum())
            for source, entries in turn.receives.items()
        }
        arrived = wire.exchange(sends, counts)
        for source, entries in turn.receives.items():
            ends = np.cumsum([elements[chunk] for chunk, _ in entries])
            parts = np.split(arrived[source], ends)[:-1]
            for (chunk, action), part in zip(entries, parts, strict=True):
                adds = action is Action.ADD and chunk in held
                held[chunk] = held[chunk] + part if adds else part
    time_s = perf_counter() - start
    wanted = [held[chunk] for chunk in np.flatnonzero(program.wanted[rank]).tolist()]
    output = np.concatenate(wanted) if wanted else np.zeros(0)
    return {"output": output, "sent_bytes": sent_bytes, "time_s": time_s}


# ---------------------------------------------------------------- threads


class _Mailboxes:
    """A queue for each pair of ranks."""

    def __init__(self, num_ranks: int) -> None:
        self.boxes: list[list[SimpleQueue[np.ndarray]]] = [
            [SimpleQueue() for _ in range(num_ranks)] for _ in range(num_ranks)
        ]

    def of(self, rank: int) -> Wire:
        return _ThreadWire(self.boxes, rank)


@dataclass
class _ThreadWire:
    """Mailboxes as one rank sees them."""

    boxes: list[list[SimpleQueue[np.ndarray]]]
    rank: int

    def exchange(
        self, sends: dict[int, np.ndarray], receives: dict[int, int]
    ) -> dict[int, np.ndarray]:
        for destination, numbers in sends.items():
            self.boxes[self.rank][destination].put(numbers)
        return {source: self.boxes[source][self.rank].get() for source in receives}


def _on_threads(program: Program, chunks: list[dict[int, np.ndarray]]) -> list[dict[str, Any]]:
    """Run every rank on a thread of its own."""
    mailboxes = _Mailboxes(program.num_ranks)
    reports: list[dict[str, Any]] = [{} for _ in chunks]

    def run(rank: int) -> None:
        reports[rank] = follow(program, rank, chunks[rank], mailboxes.of(rank))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(chunks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return reports


# ---------------------------------------------------------------- gloo


class _GlooWire:
    """``torch.distributed`` as one rank sees it."""

    def exchange(
        self, sends: dict[int, np.ndarray], receives: dict[int, int]
    ) -> dict[int, np.ndarray]:
        import torch
        import torch.distributed as dist

        dtype = self.dtype
        arriving = {source: torch.empty(count, dtype=dtype) for source, count in receives.items()}
        leaving = {to: torch.from_numpy(np.ascontiguousarray(n)) for to, n in sends.items()}
        operations = [dist.P2POp(dist.isend, tensor, to) for to, tensor in leaving.items()]
        operations += [
            dist.P2POp(dist.irecv, tensor, source) for source, tensor in arriving.items()
        ]
        for request in dist.batch_isend_irecv(operations):
            request.wait()
        return {source: tensor.numpy() for source, tensor in arriving.items()}

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype


def gloo_rank(rank: int, program: Program, chunks: list[dict[int, np.ndarray]]) -> dict[str, Any]:
    """Do a rank's part in a process of ``torch.distributed``."""
    import torch
    import torch.distributed as dist

    some = next(iter(chunks[0].values()))
    wire = _GlooWire(torch.from_numpy(some[:0].copy()).dtype)
    dist.barrier()
    return follow(program, rank, chunks[rank], wire)
