"""A matrix product and its collective on lanes of time: whole, and cut into slices and hops.

A chip has a lane that computes and a lane for each direction of its ring. A lane does one thing at
a time, in the order in which it is told. All chips do the same, so one chip stands for all.

Source: §4 and §5 (unverified: the paper's own text was not found).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

COMPUTE = "compute"
SENDING = ("right", "left")
Rings = Literal[1, 2]


class Event(NamedTuple):
    """Something on a lane."""

    lane: str
    what: str
    start_s: float
    end_s: float


class Timeline:
    """Events of one chip, in the order in which they were told.

    >>> timeline = Timeline()
    >>> arrived_s = timeline.add("right", "hop", 2.0)
    >>> timeline.add("compute", "slice", 1.0, after_s=arrived_s), timeline.seconds
    (3.0, 3.0)
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._free_s: dict[str, float] = {}

    def add(self, lane: str, what: str, seconds: float, *, after_s: float = 0.0) -> float:
        """Put something on a lane, when the lane is free and not before ``after_s``.

        Returns:
            When it ends.
        """
        start_s = max(self._free_s.get(lane, 0.0), after_s)
        end_s = start_s + seconds
        self._free_s[lane] = end_s
        self.events.append(Event(lane, what, start_s, end_s))
        return end_s

    @property
    def seconds(self) -> float:
        """When the last event ends."""
        return max((event.end_s for event in self.events), default=0.0)

    def busy_s(self, lane: str) -> float:
        """How long a lane works."""
        return sum(event.end_s - event.start_s for event in self.events if event.lane == lane)

    def frame(self) -> pd.DataFrame:
        """The events as a table: lane, what, start_s, end_s."""
        import pandas as pd

        return pd.DataFrame(self.events, columns=list(Event._fields))


@dataclass(frozen=True, kw_only=True)
class Product:
    """A matrix product of one chip whose operand is gathered, or whose result is scattered.

    Attributes:
        workers: chips of the ring, two or more.
        compute_s: of the whole product.
        collective_s: of the gather or the scatter as one operation.
        hop_s: of one chip's part, to one neighbour.
        half_hop_s: of half of it.
        slice_s: what starting a product costs, whole or a slice.
        rows: of one slice.
        tile_rows: rows that a product is computed in; the last tile takes as long as a full one.
        copy_s: of one part inside a chip's memory; a loop that is not unrolled copies what arrived.
        add_s: of adding one part to what arrived.
        interference: share by which computing slows while messages travel beside it.
        scatter: whether the result is scattered, else the operand is gathered.
    """

    workers: int
    compute_s: float
    collective_s: float
    hop_s: float
    half_hop_s: float
    slice_s: float = 0.0
    rows: int = 1
    tile_rows: int = 1
    copy_s: float = 0.0
    add_s: float = 0.0
    interference: float = 0.0
    scatter: bool = False

    @property
    def whole_s(self) -> float:
        """Seconds undecomposed: one after the other."""
        return self.slice_s + self.compute_s + self.collective_s

    @property
    def bound_s(self) -> float:
        """Seconds that no way to cut the product beats: the busier of computing and sending."""
        return max(self.slice_s + self.compute_s, self.collective_s)

    def slices_s(self, count: int) -> float:
        """Seconds of so many slices that are computed as one product.

        >>> product = Product(
        ...     workers=4, compute_s=4.0, collective_s=1.0, hop_s=1.0, half_hop_s=0.5,
        ...     rows=96, tile_rows=128,
        ... )
        >>> round(product.slices_s(1), 3), round(product.slices_s(2), 3)  # 1 tile, 2 tiles
        (1.333, 2.667)
        """
        tiles = -(-count * self.rows // self.tile_rows)
        seconds = tiles * self.tile_rows / self.rows * self.compute_s / self.workers
        return self.slice_s + seconds * (1 + self.interference)

    def loop(self, *, rings: Rings = 2, unrolled: bool = True) -> Timeline:
        """The product as a loop over slices, each beside a hop.

        Args:
            rings: 1 sends everything one way round; 2 send half the chips' parts each way, and
                compute on two parts at a time.
            unrolled: else each turn of the loop ends before the next begins, and copies what
                arrived; a scattered result then cannot travel beside the next slice.

        Source: §5.4 (unverified).
        """
        build = _scattered if self.scatter else _gathered
        return build(self, rings, unrolled)

    def faster(self, *, rings: Rings = 2) -> float:
        """Seconds of the unrolled loop, or of the whole product where that is faster (§5.5)."""
        return min(self.whole_s, self.loop(rings=rings).seconds)


def _counts(workers: int, rings: Rings) -> tuple[int, int, int]:
    """Parts that a turn brings, turns, and parts that are left over and come in halves."""
    if rings == 1:
        return 1, workers - 1, 0
    turns, left_over = divmod(workers - 1, 2)
    return 2, turns, left_over


def _send(
    timeline: Timeline, rings: Rings, seconds: float, what: str, after_s: tuple[float, float]
) -> tuple[float, float]:
    """A hop on each ring; returns when each has arrived."""
    right_s = timeline.add(SENDING[0], what, seconds, after_s=after_s[0])
    if rings == 1:
        return right_s, right_s
    return right_s, timeline.add(SENDING[1], what, seconds, after_s=after_s[1])


def _gathered(product: Product, rings: Rings, unrolled: bool) -> Timeline:
    """Multiply what is here while the next parts arrive."""
    timeline = Timeline()
    parts, turns, left_over = _counts(product.workers, rings)
    here_s = (0.0, 0.0)
    computed_s = 0.0
    count = 1  # of the parts that lie here: a chip's own comes first
    hops = [(product.hop_s, parts)] * turns + [(product.half_hop_s, 1)] * left_over
    for hop_s, arriving in hops:
        if not unrolled:
            # 1. A turn that is not unrolled begins when the last one has ended, with a copy.
            ready_s = max(*here_s, computed_s)
            ready_s = timeline.add(COMPUTE, "copy", count * product.copy_s, after_s=ready_s)
            here_s = (ready_s, ready_s)
        # 2. What is here is sent on and multiplied at once.
        next_s = _send(timeline, rings, hop_s, "hop", here_s)
        computed_s = timeline.add(COMPUTE, "slice", product.slices_s(count), after_s=max(here_s))
        here_s = next_s
        count = arriving
    timeline.add(COMPUTE, "slice", product.slices_s(count), after_s=max(here_s))
    return timeline


def _scattered(product: Product, rings: Rings, unrolled: bool) -> Timeline:
    """Multiply for the farthest chip first; partial sums travel and grow on their way."""
    timeline = Timeline()
    parts, turns, left_over = _counts(product.workers, rings)
    arrived_s: tuple[float, float] | None = None
    arriving = 0.0  # parts that have to be added
    sends = [(product.half_hop_s, 1, 1.0)] * left_over + [(product.hop_s, parts, parts)] * turns
    for hop_s, count, leaving in [*sends, (0.0, 1, 0.0)]:
        wait_s = max(arrived_s) if arrived_s and not unrolled else 0.0
        if not unrolled:
            wait_s = timeline.add(COMPUTE, "copy", count * product.copy_s, after_s=wait_s)
        # 1. The slice needs nothing that travels.
        ready_s = timeline.add(COMPUTE, "slice", product.slices_s(count), after_s=wait_s)
        # 2. Its sum does: what arrived is added, then all is sent on.
        if arrived_s:
            ready_s = timeline.add(
                COMPUTE, "add", arriving * product.add_s, after_s=max(ready_s, *arrived_s)
            )
        if leaving:
            arrived_s = _send(timeline, rings, hop_s, "hop", (ready_s, ready_s))
            arriving = leaving
    return timeline
