"""A collective as a program: who sends which chunk to whom in which step, and what becomes of it.

Data are cut into chunks. What a collective asks for is two tables: which ranks hold a contribution
to each chunk before it (``held``), and which must have the sum of all contributions after it
(``wanted``). In an all-reduce every worker holds a contribution to every chunk and wants every
chunk; in an all-gather a chunk has one contribution; in an all-to-all it has one and goes to one
rank.

A program is rows of (step, source, destination, chunk, action). All sends of a step read what ranks
held when it began. The destination adds what arrives to what it holds, or keeps it instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from labkit.collectives.coding import PLAIN, Coding
from labkit.errors import BadValue

if TYPE_CHECKING:
    import pandas as pd

Op = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce"]


class Action(IntEnum):
    """What a destination does with a chunk that arrives."""

    COPY = 0
    ADD = 1


class Rows(NamedTuple):
    """The rows of a program, each column an array of whole numbers of the same length."""

    step: np.ndarray
    source: np.ndarray
    destination: np.ndarray
    chunk: np.ndarray
    action: np.ndarray

    def at(self, chosen: np.ndarray) -> Rows:
        """The rows that a mask or an order chooses."""
        return Rows(*(column[chosen] for column in self))


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A collective, row by row.

    Attributes:
        name: of the algorithm.
        op: what it computes.
        rows: in the order of their steps.
        chunk_bytes: of each chunk, before coding; shape (chunks,).
        held: whether a rank holds a contribution at first; shape (ranks, chunks).
        wanted: whether a rank must have the sum at last; shape (ranks, chunks).
        num_workers: ranks 0 to ``num_workers`` - 1; those after them are servers.
        element_bytes: of one number.
        coding: how numbers are written on the wire.
    """

    name: str
    op: Op
    rows: Rows
    chunk_bytes: np.ndarray
    held: np.ndarray
    wanted: np.ndarray
    num_workers: int
    element_bytes: int = 4
    coding: Coding = PLAIN

    @property
    def num_ranks(self) -> int:
        """Workers and servers."""
        return len(self.held)

    @property
    def num_steps(self) -> int:
        """Steps, one after another."""
        return int(self.rows.step.max(initial=-1)) + 1

    @property
    def num_bytes(self) -> int:
        """Bytes of all chunks, before coding."""
        return int(self.chunk_bytes.sum())

    @property
    def wire_bytes(self) -> np.ndarray:
        """Bytes that each chunk takes on the wire; shape (chunks,)."""
        return self.coding.wire_bytes(self.chunk_bytes, self.element_bytes)

    @property
    def sent_bytes(self) -> np.ndarray:
        """Bytes that each rank sends to each other, as ``[source, destination]``."""
        sent = np.zeros((self.num_ranks, self.num_ranks), dtype=np.int64)
        pairs = (self.rows.source, self.rows.destination)
        np.add.at(sent, pairs, self.wire_bytes[self.rows.chunk])
        return sent

    def frame(self) -> pd.DataFrame:
        """The rows as a table, with each chunk's bytes on the wire."""
        import pandas as pd

        table = pd.DataFrame(self.rows._asdict())
        table["action"] = [Action(action).name.lower() for action in self.rows.action]
        table["wire_bytes"] = self.wire_bytes[self.rows.chunk]
        return table

    def verify(self) -> Program:
        """Follow every contribution through the rows, and return the program if it is right.

        1. Each rank starts with its own contribution to the chunks that it holds.
        2. Step by step, what arrives is added, or kept instead, as a set of contributions.
        3. At last each rank has every contribution to the chunks that it wants, each once.

        Raises:
            BadValue: a chunk is sent by a rank that holds nothing of it, a contribution would be
                added twice, two copies reach a rank in a step, or a sum that is wanted is missing
                or lacks a contribution.

        It takes ranks² × chunks of memory.
        """
        workers = np.arange(self.num_ranks)
        has = np.zeros((self.num_ranks, self.held.shape[1], self.num_ranks), dtype=bool)
        for rank in workers:
            has[rank, self.held[rank], rank] = True
        every = has.any(axis=0)
        for step in range(self.num_steps):
            rows = self.rows.at(self.rows.step == step)
            before = has.copy()
            for source, destination, chunk, action in np.stack(rows[1:], axis=1).tolist():
                self._deliver(before[source, chunk], has[destination, chunk], action, (
                    f"{self.name}: step {step}, chunk {chunk} from rank {source} to {destination}"
                ))  # fmt: skip
        lacking = np.argwhere(self.wanted[:, :, None] & every & ~has)
        if len(lacking):
            rank, chunk, other = lacking[0]
            raise BadValue(
                f"{self.name}: at the end rank {rank} lacks the contribution of rank {other} to "
                f"chunk {chunk}"
            )
        return self

    @staticmethod
    def _deliver(sent: np.ndarray, has: np.ndarray, action: int, place: str) -> None:
        """Let a chunk arrive: ``has`` becomes the contributions that are there after it."""
        if not sent.any():
            raise BadValue(f"{place}: the sender holds nothing of it")
        if action == Action.ADD and (sent & has).any():
            twice = int(np.flatnonzero(sent & has)[0])
            raise BadValue(f"{place}: the contribution of rank {twice} would be added twice")
        if action == Action.COPY:
            has[:] = sent
        else:
            has |= sent
