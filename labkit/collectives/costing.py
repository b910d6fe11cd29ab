"""What a program costs on a fabric: seconds, bytes on each link, and what no program can beat.

Ranks stand on the fabric's devices in order. A message between two ranks uses the innermost level
that joins them: the sender's link there, outwards, and the receiver's, inwards. A link of an outer
level belongs to a group of devices, which share it. What a pair of ranks exchanges in a step is one
message, and a link carries one message after another:

    seconds of a link in a step = messages · latency + bytes / bandwidth

A step ends when its last link does, and with it what the busiest rank adds up. Steps follow one
another.

Source: the α-β-γ model with single ports, Thakur et al. 2005, §3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from labkit.collectives.building import Name, Workers, names, program
from labkit.collectives.programs import Action, Op, Program
from labkit.errors import BadValue
from labkit.kit.describe import Count, checked
from labkit.kit.fabric import Fabric

if TYPE_CHECKING:
    import pandas as pd

DIRECTIONS = ("out", "in")


class Loads(NamedTuple):
    """What links carry in a step, one entry a link that carries anything.

    ``direction`` is 0 for what leaves a unit and 1 for what enters it; ``unit`` is a device, or a
    group of devices, of the level.
    """

    step: np.ndarray
    level: np.ndarray
    unit: np.ndarray
    direction: np.ndarray
    num_messages: np.ndarray
    num_bytes: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class Cost:
    """What a program costs on a fabric.

    Attributes:
        loads: what each link carries in each step.
        added_bytes: that the busiest rank of each step adds up, shape (steps,).
    """

    program: Program
    fabric: Fabric
    loads: Loads
    added_bytes: np.ndarray

    @cached_property
    def sending_s(self) -> np.ndarray:
        """Seconds of each entry of ``loads`` for its bytes alone."""
        return self.loads.num_bytes / self.fabric.bandwidths_bytes_per_s[self.loads.level]

    @cached_property
    def link_s(self) -> np.ndarray:
        """Seconds of each entry of ``loads``: latencies, then bytes."""
        waiting_s = self.loads.num_messages * self.fabric.latencies_s[self.loads.level]
        return waiting_s + self.sending_s

    @property
    def adding_s(self) -> np.ndarray:
        """Seconds that the busiest rank of each step adds up, shape (steps,)."""
        return self.added_bytes / self.fabric.add_bytes_per_s

    @cached_property
    def step_s(self) -> np.ndarray:
        """Seconds of each step, shape (steps,)."""
        return self._slowest_s(self.link_s) + self.adding_s

    def _slowest_s(self, entries_s: np.ndarray) -> np.ndarray:
        """The largest of the entries of each step, shape (steps,)."""
        seconds = np.zeros(self.program.num_steps)
        np.maximum.at(seconds, self.loads.step, entries_s)
        return seconds

    @property
    def time_s(self) -> float:
        """Seconds of the whole program."""
        return float(self.step_s.sum())

    @property
    def busiest_bytes(self) -> float:
        """Bytes of the link that carries most for its bandwidth, over all steps."""
        links = self.links().sort_values("busy_s", kind="stable")
        return float(links["num_bytes"].to_numpy()[-1]) if len(links) else 0.0

    def links(self) -> pd.DataFrame:
        """One row a link and direction: its bytes, messages and busy seconds over all steps."""
        import pandas as pd

        table = pd.DataFrame(self.loads._asdict()).assign(busy_s=self.link_s)
        keys = ["level", "unit", "direction"]
        links = table.groupby(keys, as_index=False)[["num_messages", "num_bytes", "busy_s"]].sum()
        links["direction"] = [DIRECTIONS[direction] for direction in links["direction"]]
        return links

    def frame(self) -> pd.DataFrame:
        """One row a step: its seconds, the link that limits it, and what that link carries."""
        import pandas as pd

        order = np.lexsort((-self.link_s, self.loads.step))
        steps, first = np.unique(self.loads.step[order], return_index=True)
        slowest = order[first]
        return pd.DataFrame(
            {
                "step": steps,
                "step_s": self.step_s[steps],
                "level": self.loads.level[slowest],
                "unit": self.loads.unit[slowest],
                "direction": [DIRECTIONS[side] for side in self.loads.direction[slowest]],
                "num_messages": self.loads.num_messages[slowest],
                "num_bytes": self.loads.num_bytes[slowest],
                "added_bytes": self.added_bytes[steps],
            }
        )

    def summary(self) -> dict[str, float | int | str]:
        """The program's name and its totals."""
        return {
            "name": self.program.name,
            "op": self.program.op,
            "time_s": self.time_s,
            "num_steps": self.program.num_steps,
            "num_messages": int(self.loads.num_messages[self.loads.direction == 0].sum()),
            "sent_bytes": int(self.program.sent_bytes.sum()),
            "busiest_bytes": self.busiest_bytes,
        }

    def why(self) -> str:
        """One sentence: how the time parts into latency, bytes and adding."""
        if not self.time_s:
            return f"{self.program.name}: nothing is sent"
        bytes_s = float(self._slowest_s(self.sending_s).sum())
        adding_s = float(self.adding_s.sum())
        waiting_s = max(0.0, self.time_s - bytes_s - adding_s)
        parts = {"bytes": bytes_s, "latency": waiting_s, "adding": adding_s}
        shares = ", ".join(f"{part} {seconds / self.time_s:.0%}" for part, seconds in parts.items())
        return f"{self.program.name}: {self.program.num_steps} steps; {shares}"


@checked
def cost(program: Program, fabric: Fabric) -> Cost:
    """Price a program on a fabric.

    Raises:
        BadValue: the fabric has fewer devices than the program has ranks.

    >>> gigabyte = program("ring", 4, 10**9)
    >>> cost(gigabyte, Fabric.flat(4, bandwidth_bytes_per_s=1e9)).time_s
    1.5
    """
    if fabric.num_devices < program.num_ranks:
        raise BadValue(
            f"collectives.cost: the program has {program.num_ranks} ranks (num_workers "
            f"{program.num_workers}, num_servers {program.num_ranks - program.num_workers}), the "
            f"fabric {fabric.num_devices} devices"
        )
    rows = program.rows
    sizes = program.wire_bytes[rows.chunk]
    return Cost(
        program=program,
        fabric=fabric,
        loads=_loads(program, fabric, sizes),
        added_bytes=_added(program),
    )


def _loads(program: Program, fabric: Fabric, sizes: np.ndarray) -> Loads:
    """What each link carries in each step.

    1. Rows of a pair of ranks in a step are one message.
    2. A message's level is the innermost whose unit above holds both ranks.
    3. It counts at the sender's unit of that level, and at the receiver's.
    """
    rows = program.rows
    pairs = (rows.step * program.num_ranks + rows.source) * program.num_ranks + rows.destination
    message, row_of = np.unique(pairs, return_inverse=True)
    carried = np.bincount(row_of, weights=sizes, minlength=len(message))
    rest, destination = np.divmod(message, program.num_ranks)
    step, source = np.divmod(rest, program.num_ranks)

    below = np.array(fabric.group_sizes)
    above = np.array([*fabric.group_sizes[1:], fabric.num_devices])
    apart = source[:, None] // above != destination[:, None] // above
    level = apart.sum(axis=1)  # groups nest, so ranks apart at a level are apart below it

    unit = np.concatenate([source // below[level], destination // below[level]])
    direction = np.repeat([0, 1], len(message))
    width = int(unit.max(initial=0)) + 1
    both = np.tile(level, 2)
    key = ((np.tile(step, 2) * len(below) + both) * width + unit) * 2 + direction
    link, entry = np.unique(key, return_inverse=True)
    rest, side = np.divmod(link, 2)
    rest, units = np.divmod(rest, width)
    steps, levels = np.divmod(rest, len(below))
    return Loads(
        step=steps,
        level=levels,
        unit=units,
        direction=side,
        num_messages=np.bincount(entry, minlength=len(link)),
        num_bytes=np.bincount(entry, weights=np.tile(carried, 2), minlength=len(link)),
    )


def _added(program: Program) -> np.ndarray:
    """Bytes that the busiest rank of each step adds up; numbers are added as they were uncoded."""
    rows = program.rows
    added = np.zeros((program.num_steps, program.num_ranks))
    adds = rows.action == Action.ADD
    places = (rows.step[adds], rows.destination[adds])
    np.add.at(added, places, program.chunk_bytes[rows.chunk[adds]])
    return added.max(axis=1, initial=0.0)


_PIECES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of pieces that are tried where pieces follow one another."""
_PIECEWISE = ("tree", "parameter-server", "byteps")


class _Asked(NamedTuple):
    """What algorithms are compared for."""

    op: Op
    fabric: Fabric
    num_workers: int
    per_node: int | None
    num_servers: int | None

    @classmethod
    def of(cls, op: Op, fabric: Fabric, num_workers: int | None, num_servers: int | None) -> _Asked:
        """Fill in what the fabric says: all devices that are no servers, and its nodes."""
        workers = num_workers or fabric.num_devices - (num_servers or 0)
        if workers < 1:
            raise BadValue(
                f"collectives.compare: num_servers {num_servers} leave no worker of the fabric's "
                f"{fabric.num_devices} devices"
            )
        node = fabric.levels[0].count if len(fabric.levels) > 1 else None
        whole_nodes = node if node and workers % node == 0 else None
        return cls(op, fabric, workers, whole_nodes, num_servers)

    @property
    def algorithms(self) -> tuple[Name, ...]:
        """The algorithms that can be written for it; what depends on the numbers is left out."""
        lacking = {"sparse-blocks"}
        if not self.per_node:
            lacking |= {"hierarchical", "two-level"}
        if not self.num_servers:
            lacking |= {"parameter-server", "byteps"}
        if self.op != "all-reduce" and self.num_workers & (self.num_workers - 1):
            lacking.add("recursive-halving")
        return tuple(name for name in names(self.op) if name not in lacking)

    def priced(self, name: Name, num_bytes: int) -> Cost:
        """An algorithm's cost, with the number of pieces that is best where it has pieces."""
        costs = []
        for pieces in _PIECES if name in _PIECEWISE else (1,):
            written = program(
                name,
                self.num_workers,
                num_bytes,
                op=self.op,
                per_node=self.per_node,
                num_servers=self.num_servers,
                num_pieces=pieces,
                element_bytes=1 if num_bytes % 4 else 4,
            )
            costs.append(cost(written, self.fabric))
        return min(costs, key=lambda priced: priced.time_s)


@checked
def compare(
    op: Op,
    fabric: Fabric,
    num_bytes: Sequence[Count],
    *,
    num_workers: Workers | None = None,
    num_servers: Workers | None = None,
) -> pd.DataFrame:
    """Price the algorithms of an operation beside each other, and beside what none can beat.

    Those that send in pieces do so in the number of pieces, up to 64, that is best.

    Args:
        num_bytes: of the message, several.
        num_workers: of the fabric's devices; None takes all that are no servers.
        num_servers: machines beside the workers, for algorithms that have servers.

    Returns:
        One row a message and algorithm: ``time_s``, ``bound_s``, ``num_steps``,
        ``busiest_bytes``; the fastest of each message first.

    Raises:
        BadValue: the fabric has too few devices.
    """
    import pandas as pd

    asked = _Asked.of(op, fabric, num_workers, num_servers)
    rows = []
    for size in num_bytes:
        bound_s = bound(op, fabric, size, num_workers=asked.num_workers)
        for name in asked.algorithms:
            priced = asked.priced(name, size)
            rows.append(
                {
                    "num_bytes": size,
                    "algorithm": name,
                    "time_s": priced.time_s,
                    "bound_s": bound_s,
                    "num_steps": priced.program.num_steps,
                    "busiest_bytes": priced.busiest_bytes,
                }
            )
    columns = ["num_bytes", "algorithm", "time_s", "bound_s", "num_steps", "busiest_bytes"]
    table = pd.DataFrame(rows, columns=columns)
    return table.sort_values(["num_bytes", "time_s"], kind="stable", ignore_index=True)


@checked
def best(
    op: Op,
    fabric: Fabric,
    num_bytes: Count,
    *,
    num_workers: Workers | None = None,
    num_servers: Workers | None = None,
) -> Cost:
    """The cheapest of the algorithms of an operation, with the arguments of :func:`compare`.

    >>> fabric = Fabric.flat(8, bandwidth_bytes_per_s=1e9, latency_s=1e-5)
    >>> best("all-reduce", fabric, 1024).program.name
    'recursive-doubling'
    """
    asked = _Asked.of(op, fabric, num_workers, num_servers)
    costs = [asked.priced(name, num_bytes) for name in asked.algorithms]
    return min(costs, key=lambda priced: priced.time_s)


def _least_passes(op: Op, workers: int) -> float:
    """Shares of the message that must leave, or enter, some worker."""
    others = (workers - 1) / workers
    return {"all-reduce": 2 * others, "broadcast": 1.0, "reduce": 1.0}.get(op, others)


@checked
def bound(op: Op, fabric: Fabric, num_bytes: Count, *, num_workers: Count | None = None) -> float:
    """Seconds that no program of the model beats, without servers and with numbers as they are.

    It is the larger of two. Each contribution must reach every rank that wants it, which takes
    log₂ n steps of the smallest latency. And at the outermost level that parts the workers, each
    of its u units must send or take what the others lack, over its one link: of an all-reduce
    2(u - 1)/u of the message. Levels further in are left out, since their ranks have other ways.

    Source: Chan et al. 2007, §3, table 1, which has one level.

    Raises:
        BadValue: more workers than the fabric has devices.
    """
    workers = num_workers or fabric.num_devices
    if workers > fabric.num_devices:
        raise BadValue(
            f"collectives.bound: num_workers must be at most the fabric's {fabric.num_devices} "
            f"devices, got {workers}"
        )
    if workers == 1:
        return 0.0
    least_latency_s = min(level.latency_s for level in fabric.levels)
    waiting_s = int(np.ceil(np.log2(workers))) * least_latency_s
    parting = max(depth for depth, size in enumerate(fabric.group_sizes) if -(-workers // size) > 1)
    size = fabric.group_sizes[parting]
    units = workers // size  # a unit that is not full is left out, and with it what it needs
    moved = _least_passes(op, max(units, 1)) * num_bytes * (size if op == "all-to-all" else 1)
    return max(waiting_s, moved / fabric.levels[parting].bandwidth_bytes_per_s)
