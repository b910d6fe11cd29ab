"""The kernel timeline of one GPU that clients share; *real-time* clients go before the others.

Kernels that run together slow each other by what a compute unit then holds, on each one's curve::

    slow-down = wave(own + others' blocks a unit) / wave(own blocks a unit)

At one moment kernels end, by place of their client, then clients issue. Real-time clients

========== ================================================================================
alone      keep the GPU; the others never run
sequential wait until the running program ends; one program at a time
streams    share it
wait       let the others finish what is queued, then run alone
reset      kill the others' kernels, which run again later, and run alone after ``reset_s``
padded     reset, and carry blocks of another client on the units each kernel leaves
guests     run at once; others launch nothing beside them, but finish a running kernel
========== ================================================================================

Source: Han et al. 2022 (REEF), its published scheduler for the rule of padding; Xiao et al. 2020
(AntMan) for guests.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from labkit.errors import BadValue
from labkit.kit.compiled import njit
from labkit.kit.describe import Count, NonNegative, Positive, Share, Whole, checked, description
from labkit.serving.device.kernels import Program

Mode = Literal["alone", "sequential", "streams", "wait", "reset", "padded", "guests"]
ALONE, SEQUENTIAL, STREAMS, WAIT, RESET, PADDED, GUESTS = range(7)

KERNEL = np.dtype(
    [("total", "f8"), ("blocks", "i8"), ("first", "i8"), ("most", "i8"), ("killable", "?")]
)
CLIENT = np.dtype(
    [
        ("first", "i8"),
        ("num", "i8"),
        ("real_time", "?"),
        ("gap", "f8"),
        ("due", "i8"),
        ("last", "i8"),  # its arrivals, from the next one to before the last
        ("at", "i8"),
        ("left", "f8"),
        ("done", "i8"),  # kernel (-1: none), share left, blocks padded
        ("drain", "i8"),  # kernels to finish before a real-time client may run
        ("ready", "f8"),
        ("issued", "f8"),
    ]
)
ROW = np.dtype([("client", "i8"), ("issued_s", "f8"), ("end_s", "f8")])
EPSILON = 1e-9
"""Shares of a kernel below which none is left, and seconds that count as none."""


@description
class Client:
    """Issues programs, the next never before the last has ended.

    Due at ``arrival_s``, or (None) ``gap_s`` after the last one ended.
    """

    program: Program
    arrival_s: tuple[NonNegative, ...] | None = None
    gap_s: NonNegative = 0.0
    real_time: bool = False


@description
class Gpu:
    """A GPU of ``units`` compute units.

    Attributes:
        reset_s: seconds to kill all kernels and empty the queues.
        queue: kernels of a client that are launched beyond the running one.
        contention: what a real-time kernel loses to padding on all units, for bandwidth.
        killable: share of kernels that may be killed; others are waited for.
    """

    units: Count = 60
    reset_s: NonNegative = 40e-6
    queue: Whole = 2
    contention: NonNegative = 0.0
    killable: Share = 1.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """A simulated timeline.

    Attributes:
        log: client, issued_s, end_s of each program that ended.
        busy_fraction: mean share of compute units with a block on them.
    """

    clients: tuple[Client, ...]
    until_s: float
    log: Any
    busy_fraction: float

    def latency_s(self, *, real_time: bool = True) -> Any:
        """Of each program of such clients, from its issue."""
        is_kind = np.array([c.real_time for c in self.clients])[self.log["client"]] == real_time
        return (self.log["end_s"] - self.log["issued_s"])[is_kind]

    def over(self, base: Run) -> tuple[float, float]:
        """Mean real-time latency and programs a second, both over another run's."""
        latency = self.latency_s().mean() / base.latency_s().mean()
        return float(latency), self.rate_per_s() / base.rate_per_s()

    def rate_per_s(self) -> float:
        """Programs that ended a second."""
        return len(self.log) / self.until_s


_World = namedtuple("_World", "kernels waves clients arrivals units mode reset_s queue contention")
"""The clients and the GPU, for the loop."""


@checked
def simulate(
    clients: Sequence[Client], *, mode: Mode, gpu: Gpu | None = None, until_s: Positive
) -> Run:
    """Run the clients until ``until_s``, without the programs that have not ended by then.

    O(clients²) a kernel.
    """
    if not clients:
        raise BadValue("simulate: clients is empty; give at least one")
    device = gpu or Gpu()
    records = np.zeros(len(clients), CLIENT)
    kernels: list[Any] = []
    waves: list[float] = []
    arrivals: list[float] = []
    for record, client in zip(records, clients, strict=True):
        program = client.program
        due = client.arrival_s
        record["first"] = len(kernels)
        record["num"] = len(program)
        record["due"] = len(arrivals)
        arrivals.extend(due or ())
        record["last"] = -1 if due is None else len(arrivals)
        record["real_time"] = client.real_time
        record["gap"] = client.gap_s
        record["at"] = -1
        for number, (total, blocks) in enumerate(zip(program.total_s, program.blocks, strict=True)):
            row = program.wave_s[number]
            lasts = int((number + 1) * device.killable) > int(number * device.killable)
            kernels.append((total, blocks, len(waves), len(row), lasts))
            waves.extend(row)
    options = float(device.reset_s), device.queue, float(device.contention)
    jobs = np.array(kernels, KERNEL), np.array(waves), records, np.array(arrivals, np.float64)
    world = _World(*jobs, float(device.units), get_args(Mode).index(mode), *options)
    log, busy_s = _loop(world, float(until_s))
    return Run(clients=tuple(clients), until_s=until_s, log=log, busy_fraction=busy_s / until_s)


@njit(cache=True)
def _kernel(w: _World, c: int) -> Any:
    return w.kernels[w.clients[c].first + w.clients[c].at]


@njit(cache=True)
def _resident(w: _World, c: int) -> float:
    """Blocks a unit of a client's kernel."""
    kernel = _kernel(w, c)
    return min(kernel.blocks / w.units, float(kernel.most))


@njit(cache=True)
def _wave(w: _World, c: int, blocks: float) -> float:
    """Seconds of a wave with so many blocks a unit, between the profile's points a line."""
    kernel = _kernel(w, c)
    if blocks >= kernel.most:
        return w.waves[kernel.first + kernel.most - 1] * blocks / kernel.most
    low = max(int(blocks), 1)
    start = w.waves[kernel.first + low - 1]
    more = max(blocks - low, 0.0)
    return start + more * (w.waves[kernel.first + low] - start) if more > 0 else start


@njit(cache=True)
def _speeds(w: _World, now: float, head: int, hold: float, padding: float, speed: Any) -> float:
    """How fast each client's kernel runs, into ``speed``; returns the share of units in use."""
    draining = False
    total = 0.0
    for c in range(w.clients.size):
        draining |= w.clients[c].drain > 0
    waits = now < hold - EPSILON or (draining and w.mode != GUESTS)
    for c in range(w.clients.size):
        client = w.clients[c]
        runs = False
        if client.at >= 0:
            if w.mode == STREAMS:
                runs = True
            elif head < 0:
                runs = w.mode > STREAMS
            elif c == head:
                runs = not waits
            else:
                runs = client.drain > 0
        speed[c] = 1.0 if runs else 0.0
        total += speed[c] * _resident(w, c) if runs else 0.0
    for c in range(w.clients.size):
        if speed[c] > 0:
            own = _resident(w, c)
            speed[c] = _wave(w, c, own) / _wave(w, c, max(own, total))
    if head >= 0 and speed[head] > 0:
        speed[head] /= 1 + w.contention * padding
    return min(total + padding * (head >= 0 and not waits), 1.0)


@njit(cache=True)
def _pad(w: _World, head: int, now: float) -> float:
    """Blocks of another client beside the head's next kernel; the share of units they fill.

    1. The kernel takes ceil(blocks / layers) units, layers = ceil(blocks / units).
    2. Of the first client whose wave is no longer than the kernel, as many blocks a unit as keep
       it so, and never so many that the kernel itself no longer fits.
    3. As many such waves as end before the kernel does, on the units left.
    """
    kernel = _kernel(w, head)
    layers = max(np.ceil(kernel.blocks / w.units), 1.0)
    free = w.units - np.ceil(kernel.blocks / layers)
    for c in range(w.clients.size):
        guest = w.clients[c]
        if c == head or guest.real_time or guest.at < 0:
            continue
        other = _kernel(w, c)
        fits = min(kernel.most, other.most)
        if fits < min(layers, kernel.most):
            continue
        while fits > 0 and w.waves[other.first + fits - 1] > kernel.total:
            fits -= 1
        if fits == 0:
            continue
        rounds = int(kernel.total / w.waves[other.first + fits - 1] + EPSILON)
        added = min(int(free) * rounds * fits, other.blocks - guest.done)
        guest.done += added
        if guest.done >= other.blocks:
            guest.at = guest.at + 1
            guest.done = 0
            guest.left = 1.0
            if guest.at == guest.num:
                guest.at = -2
                guest.ready = now + kernel.total  # ends with the head's kernel
        return min(added / fits / rounds, free) / w.units
    return 0.0


@njit(cache=True)
def _preempt(w: _World, now: float) -> float:
    """A real-time client takes over from others; returns when its first kernel may start."""
    for c in range(w.clients.size):
        client = w.clients[c]
        if client.at < 0 or client.real_time:
            continue
        if w.mode == WAIT:
            client.drain = min(1 + w.queue, client.num - client.at)
        elif client.left < 1 and (w.mode == GUESTS or not _kernel(w, c).killable):
            client.drain = 1
        else:
            client.left = 1.0
    return now + w.reset_s if w.mode == RESET or w.mode == PADDED else now


@njit(cache=True)
def _issue(w: _World, now: float) -> float:
    """Start what is due; returns when the next program is due."""
    soon = np.inf
    for c in range(w.clients.size):
        client = w.clients[c]
        if client.at >= 0 or (w.mode == ALONE and not client.real_time):
            continue
        due = client.ready
        if client.last >= 0:
            if client.due >= client.last:
                continue
            due = w.arrivals[client.due]
        if client.at == -1 and max(due, client.ready) <= now + EPSILON:
            client.at = 0
            client.left = 1.0
            client.done = 0
            client.issued = now
            client.due = client.due + 1
        elif client.at == -1:
            soon = min(soon, max(due, client.ready))
    return soon


@njit(cache=True)
def _head(w: _World) -> int:
    """The real-time client issued first; in sequential mode else the other issued first."""
    best = -1
    for c in range(w.clients.size):
        client = w.clients[c]
        other = w.clients[best]
        if client.at < 0 or not (client.real_time or w.mode == SEQUENTIAL):
            continue
        if best < 0 or (other.real_time, -other.issued) < (client.real_time, -client.issued):
            best = c
    return best


@njit(cache=True)
def _end(w: _World, c: int, end: float, log: Any, num: int) -> Any:
    if num == log.size:
        longer = np.zeros(2 * num, log.dtype)
        longer[:num] = log
        log = longer
    client = w.clients[c]
    row = log[num]
    row.client = c
    row.issued_s = client.issued
    row.end_s = end
    client.at = -1
    client.drain = 0
    client.ready = end + client.gap
    return log


@njit(cache=True)
def _loop(w: _World, until: float) -> tuple[Any, float]:
    log = np.zeros(1024, ROW)
    num = 0
    now = 0.0
    busy = 0.0
    hold = 0.0
    head = -1
    fresh = False
    ran = False
    padding = 0.0
    speed = np.zeros(w.clients.size)
    while True:
        soon = _issue(w, now)
        if head < 0 and w.mode != STREAMS:
            head = _head(w)
            fresh = head >= 0
            if fresh and ran:
                hold = _preempt(w, now)
                ran = False
        if fresh and w.mode == PADDED and now >= hold - EPSILON:
            padding = _pad(w, head, now)
            fresh = False
        used = _speeds(w, now, head, hold, padding, speed)
        ran |= head < 0 and used > 0
        step = soon - now
        if head >= 0 and now < hold - EPSILON:
            step = min(step, hold - now)
        for c in range(w.clients.size):
            if speed[c] > 0:
                step = min(step, w.clients[c].left * _kernel(w, c).total / speed[c])
        if now + step > until or step == np.inf:
            return log[:num], busy + used * max(until - now, 0.0) * (step < np.inf)
        busy = busy + used * step
        now = now + step
        for c in range(w.clients.size):
            client = w.clients[c]
            if client.at == -2 and client.ready <= now + EPSILON:
                log = _end(w, c, now, log, num)
                num = num + 1
            elif speed[c] > 0:
                client.left -= step * speed[c] / _kernel(w, c).total
                if client.left <= EPSILON:
                    client.at = client.at + 1
                    client.left = 1.0
                    client.done = 0
                    client.drain = max(client.drain - 1, 0)
                    fresh = fresh or c == head
                    padding = 0.0 if c == head else padding
                    if client.at == client.num:
                        log = _end(w, c, now, log, num)
                        num = num + 1
                        head = -1 if c == head else head
