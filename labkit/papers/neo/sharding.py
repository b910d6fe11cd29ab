"""Embedding tables, the four ways to cut them, and the pieces' places on GPUs."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

NUMBER_BYTES = 4
NARROWEST = 32
"""Columns of a piece at least: 128 bytes, what a GPU's memory gives at once."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """An embedding table.

    Attributes:
        name: of the table.
        rows: of it.
        ids: rows that a sample looks up in it; their sum is the output.
        columns: numbers of a row.
    """

    name: str
    rows: int
    ids: float = 1.0
    columns: int = 128

    @property
    def num_bytes(self) -> int:
        """Of all rows."""
        return self.rows * self.columns * NUMBER_BYTES


def tables_of(points: pd.DataFrame, rows: str, ids: str = "") -> list[Table]:
    """Make tables of a CSV's rows.

    Args:
        points: with a column ``table`` of their numbers.
        rows: the column of their sizes.
        ids: the column of the rows that a sample looks up; without it, one.
    """
    tables = []
    for _, row in points.iterrows():
        looked_up = float(row[ids]) if ids else 1.0
        tables.append(Table(name=str(row["table"]), rows=int(row[rows]), ids=looked_up))
    return tables


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a table is cut.

    Attributes:
        by_columns, by_rows: into how many parts each way.
        copied: whether every GPU has all of it instead (data parallelism).
    """

    by_columns: int = 1
    by_rows: int = 1
    copied: bool = False


WHOLE = Cut()


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A piece of a table on one GPU.

    Attributes:
        table: its name.
        rows, columns: of the piece.
        ids: rows of the piece that a sample looks up, on average.
        copied: whether all GPUs have it, and each looks up its own samples only.
    """

    table: str
    rows: int
    columns: int
    ids: float
    copied: bool = False

    @property
    def num_bytes(self) -> int:
        """Of the piece."""
        return self.rows * self.columns * NUMBER_BYTES


Weigh = Callable[[Shard], float]
"""What a piece costs its GPU."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Pieces by GPU, copied ones on each.

    Attributes:
        gpus: the pieces of each.
        cuts: how each table is cut, by name; tables not named are whole.
    """

    gpus: tuple[tuple[Shard, ...], ...]
    cuts: Mapping[str, Cut]

    def loads(self, weigh: Weigh) -> np.ndarray:
        """What each GPU's pieces cost together."""
        return np.array([sum(weigh(shard) for shard in shards) for shards in self.gpus])

    def imbalance(self, weigh: Weigh) -> float:
        """The largest load over the mean."""
        loads = self.loads(weigh)
        return float(loads.max() / loads.mean())


def weigh_bytes(shard: Shard) -> float:
    """Its bytes."""
    return shard.num_bytes


def weigh_ids(shard: Shard) -> float:
    """The rows that a sample looks up in it."""
    return shard.ids


def kinds_of_pieces(table: Table, cut: Cut) -> list[tuple[Shard, int]]:
    """The different pieces of a table, and how many there are of each."""
    whole = Shard(
        table=table.name,
        rows=table.rows,
        columns=table.columns,
        ids=table.ids,
        copied=cut.copied,
    )
    if cut.copied:
        return [(whole, 1)]
    block = math.ceil(table.rows / cut.by_rows)
    full_blocks, rows_left = divmod(table.rows, block)
    kinds = []
    for rows, blocks in ((block, full_blocks), (rows_left, 1)):
        if rows and blocks:
            part = replace(
                whole,
                rows=rows,
                columns=table.columns // cut.by_columns,
                ids=table.ids * rows / table.rows,
            )
            kinds.append((part, blocks * cut.by_columns))
    return kinds


def pieces(table: Table, cut: Cut) -> list[Shard]:
    """The pieces of a table; rows are looked up equally often, whichever they are.

    >>> [(piece.rows, piece.columns, piece.ids) for piece in pieces(
    ...     Table(name="t", rows=5, ids=4), Cut(by_columns=2, by_rows=2))]
    [(3, 64, 2.4), (3, 64, 2.4), (2, 64, 1.6), (2, 64, 1.6)]
    """
    cut_up: list[Shard] = []
    for piece, count in kinds_of_pieces(table, cut):
        cut_up += [piece] * count
    return cut_up


def place(
    tables: Sequence[Table], num_gpus: int, weigh: Weigh, cuts: Mapping[str, Cut] | None = None
) -> Plan:
    """Place the pieces, the heaviest first, each on the GPU that has least so far.

    Args:
        tables: what is cut.
        num_gpus: how many.
        weigh: what a piece costs.
        cuts: by table's name; tables that it does not name stay whole.
    """
    cuts = cuts or {}
    cut_up: list[Shard] = []
    for table in tables:
        cut_up += pieces(table, cuts.get(table.name, WHOLE))
    gpus: list[list[Shard]] = [[] for _ in range(num_gpus)]
    copied = [shard for shard in cut_up if shard.copied]
    waiting = [(0.0, gpu) for gpu in range(num_gpus)]
    for shard in sorted(cut_up, key=weigh, reverse=True):
        if shard.copied:
            continue
        load, gpu = heapq.heappop(waiting)
        gpus[gpu].append(shard)
        heapq.heappush(waiting, (load + weigh(shard), gpu))
    return Plan(gpus=tuple(tuple(shards + copied) for shards in gpus), cuts=cuts)


def by_rows(tables: Sequence[Table], num_gpus: int) -> Plan:
    """Cut every table by rows, block 0 on GPU 0 and so on; small tables end early."""
    gpus: list[list[Shard]] = [[] for _ in range(num_gpus)]
    cuts = {table.name: Cut(by_rows=num_gpus) for table in tables}
    for table in tables:
        for gpu, piece in enumerate(pieces(table, cuts[table.name])):
            gpus[gpu].append(piece)
    return Plan(gpus=tuple(tuple(shards) for shards in gpus), cuts=cuts)


Way = Literal["columns", "rows", "copies"]
WAYS: tuple[Way, ...] = ("columns", "rows", "copies")


def cuts_of(table: Table, num_gpus: int, ways: Sequence[Way], copied_bytes: int) -> list[Cut]:
    """The cuts there are of a table: powers of two by columns and by rows, and copies.

    Args:
        table: what is cut.
        num_gpus: parts by rows at most.
        ways: which of the three there are.
        copied_bytes: of a table that may be copied, at most.
    """
    most_columns = max(1, table.columns // NARROWEST) if "columns" in ways else 1
    most_rows = min(num_gpus, table.rows) if "rows" in ways else 1
    found = []
    for columns in range(most_columns.bit_length()):
        for rows in range(most_rows.bit_length()):
            found.append(Cut(by_columns=2**columns, by_rows=2**rows))
    if "copies" in ways and table.num_bytes <= copied_bytes:
        found.append(Cut(copied=True))
    return found


def cost_of(table: Table, cut: Cut, num_gpus: int, weigh: Weigh) -> tuple[float, float, int]:
    """What the pieces of a table cost: the heaviest, all together on all GPUs, and their number."""
    weights = [(weigh(piece), count) for piece, count in kinds_of_pieces(table, cut)]
    copies = num_gpus if cut.copied else 1
    heaviest = max(weight for weight, _ in weights)
    in_all = copies * sum(weight * count for weight, count in weights)
    return heaviest, in_all, sum(count for _, count in weights)


def largest_load(
    tables: Sequence[Table], num_gpus: int, weigh: Weigh, cuts: Mapping[str, Cut]
) -> float:
    """The largest load of :func:`place`'s plan, without making the plan."""
    weights: list[float] = []
    everywhere = 0.0
    for table in tables:
        for piece, count in kinds_of_pieces(table, cuts[table.name]):
            if piece.copied:
                everywhere += weigh(piece)
            else:
                weights += [weigh(piece)] * count
    loads = [0.0] * num_gpus
    for weight in sorted(weights, reverse=True):
        heapq.heapreplace(loads, loads[0] + weight)
    return max(loads) + everywhere


def cheapest_cut(costs: Mapping[Cut, tuple[float, float, int]], most: float) -> Cut:
    """The cut whose pieces cost least together, of those with no piece above ``most``.

    Of equal ones it is the one with fewest pieces; where each has too heavy a piece, the one whose
    heaviest piece is lightest.
    """
    allowed = {cut: cost for cut, cost in costs.items() if cost[0] <= most * (1 + 1e-9)}
    if not allowed:
        return min(costs, key=lambda cut: costs[cut])
    return min(allowed, key=lambda cut: allowed[cut][1:])


def four_d(
    tables: Sequence[Table],
    num_gpus: int,
    weigh: Weigh,
    *,
    ways: Sequence[Way] = WAYS,
    copied_bytes: int = 1 << 20,
    close: float = 1.05,
) -> Plan:
    """Cut tables and place the pieces so that the largest load is small.

    1. Say how much a piece may cost, from all down to a thirty-second of a GPU's even share.
    2. Give each table the cut that costs least and has no heavier piece.
    3. Place the pieces, heaviest first.
    4. Of all limits keep the largest whose largest load is within ``close`` of the least.

    Args:
        tables: what is cut.
        num_gpus: how many.
        weigh: what a piece costs; cuts may raise the sum.
        ways: of cutting.
        copied_bytes: of a table that may be copied, at most.
        close: to the least largest load, as a factor. Fewer pieces cost less elsewhere.

    Source: the idea, abstract; its planner is not described there.
    """
    costs = {}
    for table in tables:
        possible = cuts_of(table, num_gpus, ways, copied_bytes)
        costs[table.name] = {cut: cost_of(table, cut, num_gpus, weigh) for cut in possible}
    total = sum(of_table[WHOLE][1] for of_table in costs.values())
    tried = [{table.name: WHOLE for table in tables}]
    for halvings in np.arange(0, np.log2(num_gpus) + 5.5, 0.5):
        most = total / 2**halvings
        cuts = {name: cheapest_cut(of_table, most) for name, of_table in costs.items()}
        if cuts != tried[-1]:
            tried.append(cuts)
    largest = [largest_load(tables, num_gpus, weigh, cuts) for cuts in tried]
    enough = close * min(largest)
    chosen = next(cuts for cuts, load in zip(tried, largest, strict=True) if load <= enough)
    return place(tables, num_gpus, weigh, chosen)
