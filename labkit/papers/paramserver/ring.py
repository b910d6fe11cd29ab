"""Keys on a ring of servers, and clocks of ranges of keys."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from labkit.errors import BadValue


def place(name: str) -> int:
    """Where a name lies on a ring of 2**32 places.

    >>> place("server 0, copy 0")
    839574824
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


@dataclass(frozen=True)
class Ring:
    """Servers on a ring; each stands at several places, and owns the keys up to the next one.

    Args:
        servers: their names.
        copies: places of a server ("virtual servers").

    Source: §4.3.
    """

    servers: tuple[str, ...]
    copies: int = 8
    points: tuple[tuple[int, str], ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.servers:
            raise BadValue("Ring: servers is empty; give one name or more")
        points = [
            (place(f"{server}, copy {copy}"), server)
            for server in self.servers
            for copy in range(self.copies)
        ]
        object.__setattr__(self, "points", tuple(sorted(points)))

    def _after(self, where: int) -> int:
        return bisect_right(self.points, (where, "￿")) - 1

    def master(self, where: int) -> str:
        """The server that owns a place: the one whose point comes last before it."""
        return self.points[self._after(where)][1]

    def holders(self, where: int, replicas: int) -> list[str]:
        """The master, and the servers of the points before its own that hold copies.

        Source: §4.4.
        """
        found: list[str] = []
        start = self._after(where)
        for step in range(len(self.points)):
            server = self.points[start - step][1]
            if server not in found:
                found.append(server)
            if len(found) == replicas + 1:
                break
        return found

    def without(self, server: str) -> Ring:
        """The ring after a server has left.

        Raises:
            BadValue: there is no such server.
        """
        if server not in self.servers:
            raise BadValue(f"Ring: no server {server!r}; there are {', '.join(self.servers)}")
        return Ring(tuple(name for name in self.servers if name != server), self.copies)


@dataclass
class RangeClock:
    """One node's time for every key, kept by ranges: a set splits at most two of them.

    Args:
        num_keys: from 0 on.

    Source: §4.1, Algorithm 2.

    >>> clock = RangeClock(100)
    >>> clock.set(20, 40, 7)
    >>> clock.starts, clock.times
    ([0, 20, 40], [0, 7, 0])
    """

    num_keys: int
    starts: list[int] = field(default_factory=lambda: [0])
    times: list[int] = field(default_factory=lambda: [0])

    def time(self, key: int) -> int:
        """The time of a key."""
        return self.times[bisect_right(self.starts, key) - 1]

    def set(self, start: int, end: int, time: int) -> None:
        """Give all keys from ``start`` to before ``end`` one time.

        Raises:
            BadValue: the range is empty, or leaves the keys.
        """
        if not 0 <= start < end <= self.num_keys:
            raise BadValue(f"RangeClock: no range {start} to {end} in {self.num_keys} keys")
        self._split(start)
        if end < self.num_keys:
            self._split(end)
        first = bisect_left(self.starts, start)
        last = bisect_left(self.starts, end)
        self.starts[first:last] = [start]
        self.times[first:last] = [time]

    def _split(self, at: int) -> None:
        after = bisect_right(self.starts, at)
        if self.starts[after - 1] != at:
            self.starts.insert(after, at)
            self.times.insert(after, self.times[after - 1])
