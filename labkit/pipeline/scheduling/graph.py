"""Who waits for whom in a schedule, an order in which all can run, and longest paths along it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labkit.errors import LabkitError

Lag = tuple[np.ndarray, np.ndarray]
"""Extra wait after ``before`` and after ``needs``, seconds; 0 where there is no such one."""


class DeadlockError(LabkitError):
    """The order can never finish: some instructions wait for each other in a circle."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A schedule's dependencies; instructions are numbered device by device, in running order.

    Every instruction waits for at most two others: the one before it on its device, and the one
    whose output it consumes. n, the number of instructions, stands for "none".

    Attributes:
        before: the instruction just before on the same device, shape (n,).
        needs: the instruction whose output it consumes, shape (n,).
        topological: all instructions, each after those it waits for.
    """

    before: np.ndarray
    needs: np.ndarray
    topological: np.ndarray

    def __len__(self) -> int:
        return len(self.before)

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[int]]:
        """``topological``, ``before`` and ``needs`` as lists: Python loops run faster on them."""
        return self.topological.tolist(), self.before.tolist(), self.needs.tolist()

    def edges(self, lag_s: Lag | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """List who is waited for, who waits, and the lag between; n waits for those none else waits
        for.
        """
        n = len(self)
        own = np.arange(len(self))
        before_lag, needs_lag = (np.zeros(n), np.zeros(n)) if lag_s is None else lag_s
        both = self.before == self.needs
        first = self.before < n
        second = (self.needs < n) & ~both
        ends = np.setdiff1d(own, [self.before, self.needs])
        first_lag = np.where(both, np.maximum(before_lag, needs_lag), before_lag)[first]
        return (
            np.concatenate([self.before[first], self.needs[second], ends]),
            np.concatenate([own[first], own[second], np.full(len(ends), n)]),
            np.concatenate([first_lag, needs_lag[second], np.zeros(len(ends))]),
        )


def longest_to(graph: Graph, duration_s: np.ndarray, lag_s: Lag | None = None) -> np.ndarray:
    """Find the earliest end of each instruction, shape (n,): the longest path to it, itself
    included.

    Args:
        graph: who waits for whom.
        duration_s: of each instruction.
        lag_s: extra wait after the instruction ``before`` and after the one it ``needs``
            (communication), each of shape (n,); None for none.
    """
    end = [0.0] * (len(graph) + 1)
    topological, before, needs = graph.lists
    took = duration_s.tolist()
    if lag_s is None:
        for i in topological:
            a = end[before[i]]
            b = end[needs[i]]
            end[i] = (a if a > b else b) + took[i]
    else:
        before_lag = lag_s[0].tolist()
        needs_lag = lag_s[1].tolist()
        for i in topological:
            a = end[before[i]] + before_lag[i]
            b = end[needs[i]] + needs_lag[i]
            end[i] = (a if a > b else b) + took[i]
    return np.array(end[:-1])


def longest_from(graph: Graph, duration_s: np.ndarray, lag_s: Lag | None = None) -> np.ndarray:
    """Find the longest path that starts with each instruction, itself included.

    Args:
        graph, duration_s, lag_s: as :func:`longest_to` takes them.
    """
    tail = [0.0] * (len(graph) + 1)
    topological, before, needs = graph.lists
    took = duration_s.tolist()
    if lag_s is None:
        for i in reversed(topological):
            whole = tail[i] = tail[i] + took[i]
            a = before[i]
            b = needs[i]
            if whole > tail[a]:
                tail[a] = whole
            if whole > tail[b]:
                tail[b] = whole
    else:
        before_lag = lag_s[0].tolist()
        needs_lag = lag_s[1].tolist()
        for i in reversed(topological):
            whole = tail[i] = tail[i] + took[i]
            a = before[i]
            b = needs[i]
            if whole + before_lag[i] > tail[a]:
                tail[a] = whole + before_lag[i]
            if whole + needs_lag[i] > tail[b]:
                tail[b] = whole + needs_lag[i]
    return np.array(tail[:-1])


def critical_path(graph: Graph, end_s: np.ndarray, lag_s: Lag | None = None) -> np.ndarray:
    """List the instructions, first to last, that the makespan is made of, given when each ends.

    Each starts when the one before it has ended and its message, if any, has arrived; where both
    end its wait, the path goes along the device.

    Args:
        graph: who waits for whom.
        end_s: when each instruction ends.
        lag_s: as :func:`longest_to` takes it.
    """
    n = len(graph)
    path = []
    end = end_s.tolist()
    _, before, needs = graph.lists
    before_lag, needs_lag = lag_s or (np.zeros(n), np.zeros(n))
    at = end.index(max(end))
    while at < n:
        path.append(at)
        a = before[at]
        b = needs[at]
        on_device_s = end[a] + before_lag[at] if a < n else -1.0
        message_s = end[b] + needs_lag[at] if b < n else -1.0
        at = a if on_device_s >= message_s else b
    return np.array(path[::-1])


def build_graph(
    lengths: Sequence[int], needs: np.ndarray, describe: Callable[[int], object]
) -> Graph:
    """Find the dependencies of instructions in a row per device, in time linear in their number.

    Args:
        lengths: number of instructions of each device.
        needs: the instruction whose output each one consumes; n for none.
        describe: what to call instruction i in an error.

    Raises:
        DeadlockError: the order can never finish; the message names the circle.
    """
    n = len(needs)
    start = np.cumsum([0, *lengths])
    before = np.arange(n) - 1
    before[start[:-1][np.array(lengths) > 0]] = n
    topological, head = _topological(start.tolist(), needs.tolist())
    if len(topological) < n:
        raise DeadlockError(_circle(start, head, needs, describe))
    return Graph(before=before, needs=needs, topological=np.array(topological, dtype=int))


def _topological(start: list[int], needs: list[int]) -> tuple[list[int], list[int]]:
    """Let every device run until it must wait; a device resumes when what it waits for is done.

    It returns the order and, for each device, the first instruction that could not run.
    """
    head = start[:-1].copy()
    done = [False] * len(needs) + [True]
    waiting: dict[int, int] = {}
    order: list[int] = []
    runnable = list(range(len(head)))
    while runnable:
        device = runnable.pop()
        i = head[device]
        end = start[device + 1]
        while i < end:
            if not done[needs[i]]:
                waiting[needs[i]] = device
                break
            done[i] = True
            order.append(i)
            if i in waiting:
                runnable.append(waiting.pop(i))
            i += 1
        head[device] = i
    return order, head


def _circle(
    start: np.ndarray, head: list[int], needs: np.ndarray, describe: Callable[[int], object]
) -> str:
    """Follow who waits for whom from any blocked device until a device repeats."""
    device = next(d for d in range(len(head)) if head[d] < start[d + 1])
    path: list[int] = []
    while device not in path:
        path.append(device)
        device = int(np.searchsorted(start, needs[head[device]], side="right")) - 1
    circle = path[path.index(device) :]
    waits = []
    for d, other in zip(circle, [*circle[1:], circle[0]], strict=True):
        waits.append(
            f"{describe(head[d])} waits for {describe(needs[head[d]])}, "
            f"which stands behind {describe(head[other])} on device {other}"
        )
    return "the order deadlocks: " + "; ".join(waits)
