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

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from labkit.errors import BadValue, not_among
from labkit.kit.compiled import hear, njit
from labkit.kit.describe import checked
from labkit.serving.device.clients import Gpu, Mode, Workload
from labkit.serving.device.kernels import Program
from labkit.serving.results import GpuRun

ALONE, SEQUENTIAL, STREAMS, WAIT, RESET, PADDED, GUESTS = range(7)

NOTHING = -1
"""The place of a client that runs no kernel."""
CARRIED = -2
"""The place of a client whose last blocks end with the kernel that carries them."""

KERNEL = np.dtype(
    [
        ("total", "f8"),  # seconds alone on the GPU
        ("blocks", "i8"),  # thread blocks
        ("first", "i8"),  # its first place among the waves
        ("most", "i8"),  # blocks that a compute unit holds, as many as it has waves
        ("killable", "?"),
    ]
)
CLIENT = np.dtype(
    [
        ("first", "i8"),  # its program's first kernel
        ("num", "i8"),  # kernels of its program
        ("real_time", "?"),
        ("gap", "f8"),  # seconds between its programs, where it has no arrivals
        ("due", "i8"),  # its next arrival
        ("last", "i8"),  # the end of its arrivals; -1: it has none
        ("at", "i8"),  # the kernel it runs, NOTHING or CARRIED
        ("left", "f8"),  # share of that kernel that is left
        ("done", "i8"),  # blocks of that kernel that others carried
        ("drain", "i8"),  # kernels to finish before a real-time client may run
        ("ready", "f8"),  # when it may issue its next program
        ("issued", "f8"),  # when it issued this one
    ]
)
ROW = np.dtype(
    [
        ("client", "i8"),  # its place
        ("issued_s", "f8"),
        ("end_s", "f8"),
    ]
)
MOST_PROGRAMS = 10**9
"""Programs of a client that issues them without arrivals: minutes of a run, and GBs of its log."""
EPSILON = 1e-9
"""Shares of a kernel below which none is left, and seconds that count as none."""

Kernel: TypeAlias = Any
"""A row of :data:`KERNEL`; compiled code reads its fields as attributes."""
Log: TypeAlias = NDArray[Any]
"""Rows of :data:`ROW`."""
Floats: TypeAlias = NDArray[np.float64]


class World(NamedTuple):
    """The clients and the GPU, for the loop."""

    kernels: Any
    """Rows of :data:`KERNEL`, client by client."""
    waves: Any
    """Seconds of a wave, kernel by kernel, by blocks a unit."""
    clients: Any
    """Rows of :data:`CLIENT`."""
    arrivals: Any
    """When programs are due, client by client."""
    units: float
    mode: int
    reset_s: float
    queue: int
    contention: float


@checked
def simulate(requests: Workload, profile: Mapping[str, Program], server: Gpu) -> GpuRun:
    """Run clients on a GPU until the workload's end. O(clients²) a kernel.

    Args:
        requests: the clients; what has not ended by ``until_s`` does not count.
        profile: their programs by name.

    Raises:
        UsageError: a client's program is not in the profile.
        BadValue: a client without arrivals would issue more than :data:`MOST_PROGRAMS` of them.

    >>> from labkit.serving.device.clients import Client
    >>> waves = ((0.25, 0.5),)  # two blocks on each unit take twice as long
    >>> full = Program(name="full", blocks=(60,), total_s=(0.25,), wave_s=waves)
    >>> two = Workload(clients=(Client(program="full", arrival_s=(0.0,)),) * 2, until_s=1.0)
    >>> simulate(two, {"full": full}, Gpu(mode="streams")).log["end_s"].tolist()
    [0.5, 0.5]
    >>> simulate(two, {"full": full}, Gpu(mode="sequential")).log["end_s"].tolist()
    [0.25, 0.5]
    """
    world = _world(requests, profile, server)
    _check_length(requests, profile)
    log, busy_s = _loop(world, float(requests.until_s))
    return GpuRun(
        workload=requests,
        profile=profile,
        gpu=server,
        log=log,
        busy_fraction=busy_s / requests.until_s,
    )


def _check_length(workload: Workload, profile: Mapping[str, Program]) -> None:
    """Refuse a workload that lasts so long that its programs would take days to run."""
    for number, client in enumerate(workload.clients):
        program_s = sum(profile[client.program].total_s) + client.gap_s
        if client.arrival_s is None and workload.until_s > MOST_PROGRAMS * program_s:
            raise BadValue(
                f"Workload.until_s is {workload.until_s:g}: client {number} would issue its "
                f"program of {program_s:g} s more than {MOST_PROGRAMS:,} times; valid: at most "
                f"{MOST_PROGRAMS * program_s:g} s"
            )


def _world(workload: Workload, profile: Mapping[str, Program], gpu: Gpu) -> World:
    records = np.zeros(len(workload.clients), CLIENT)
    kernels: list[tuple[float, int, int, int, bool]] = []
    waves: list[float] = []
    arrivals: list[float] = []
    for record, client in zip(records, workload.clients, strict=True):
        if client.program not in profile:
            raise not_among("program of the clients", client.program, profile)
        program = profile[client.program]
        record["first"] = len(kernels)
        record["num"] = len(program)
        record["real_time"] = client.real_time
        record["gap"] = client.gap_s
        record["at"] = NOTHING
        record["due"] = len(arrivals)
        arrivals.extend(client.arrival_s or ())
        record["last"] = -1 if client.arrival_s is None else len(arrivals)
        for number, (blocks, total_s) in enumerate(program.work):
            wave_s = program.wave_s[number]
            killable = int((number + 1) * gpu.killable) > int(number * gpu.killable)
            kernels.append((total_s, blocks, len(waves), len(wave_s), killable))
            waves.extend(wave_s)
    return World(
        kernels=np.array(kernels, KERNEL),
        waves=np.array(waves),
        clients=records,
        arrivals=np.array(arrivals, np.float64),
        units=float(gpu.units),
        mode=get_args(Mode).index(gpu.mode),
        reset_s=float(gpu.reset_s),
        queue=gpu.queue,
        contention=float(gpu.contention),
    )


@njit(cache=True)
def _kernel(world: World, client: int) -> Kernel:
    return world.kernels[world.clients[client].first + world.clients[client].at]


@njit(cache=True)
def _resident(world: World, client: int) -> float:
    """Blocks a unit of a client's kernel."""
    kernel = _kernel(world, client)
    return min(kernel.blocks / world.units, float(kernel.most))


@njit(cache=True)
def _wave(world: World, client: int, blocks: float) -> float:
    """Seconds of a wave with so many blocks a unit, between the profile's points a line."""
    kernel = _kernel(world, client)
    if blocks >= kernel.most:
        return world.waves[kernel.first + kernel.most - 1] * blocks / kernel.most
    low = max(int(blocks), 1)
    start = world.waves[kernel.first + low - 1]
    more = max(blocks - low, 0.0)
    return start + more * (world.waves[kernel.first + low] - start) if more > 0 else start


@njit(cache=True)
def _runs(world: World, client: int, head: int, waits: bool) -> bool:
    """Whether a client's kernel runs now; ``head``: the client that has the GPU, or -1."""
    if world.clients[client].at < 0:
        return False
    if world.mode == STREAMS:
        return True
    if head < 0:
        return world.mode > STREAMS
    if client == head:
        return not waits
    return world.clients[client].drain > 0


@njit(cache=True)
def _speeds(
    world: World, now: float, head: int, hold: float, padding: float, speed: Floats
) -> float:
    """How fast each client's kernel runs, into ``speed``; returns the share of units in use."""
    # 1. The head waits for a reset, and for kernels that drain.
    draining = False
    for client in range(world.clients.size):
        draining |= world.clients[client].drain > 0
    waits = now < hold - EPSILON or (draining and world.mode != GUESTS)
    # 2. Who runs, and how many blocks a unit then holds.
    blocks = 0.0
    for client in range(world.clients.size):
        if _runs(world, client, head, waits):
            speed[client] = 1.0
            blocks += _resident(world, client)
        else:
            speed[client] = 0.0
    # 3. Each runs as much slower as its curve says.
    for client in range(world.clients.size):
        if speed[client] > 0:
            own = _resident(world, client)
            speed[client] = _wave(world, client, own) / _wave(world, client, max(own, blocks))
    if head >= 0 and speed[head] > 0:
        speed[head] /= 1 + world.contention * padding
    return min(blocks + padding * (head >= 0 and not waits), 1.0)


@njit(cache=True)
def _pad(world: World, head: int, now: float) -> float:
    """Blocks of another client beside the head's next kernel; the share of units they fill.

    1. The kernel takes ceil(blocks / layers) units, layers = ceil(blocks / units).
    2. Of the first client whose wave is no longer than the kernel, as many blocks a unit as keep
       it so, and never so many that the kernel itself no longer fits.
    3. As many such waves as end before the kernel does, on the units left.
    """
    # 1. The units that the kernel leaves.
    kernel = _kernel(world, head)
    layers = max(np.ceil(kernel.blocks / world.units), 1.0)
    free = world.units - np.ceil(kernel.blocks / layers)
    for client in range(world.clients.size):
        guest = world.clients[client]
        if client == head or guest.real_time or guest.at < 0:
            continue
        # 2. The guest's blocks a unit.
        other = _kernel(world, client)
        fits = min(kernel.most, other.most)
        if fits < min(layers, kernel.most):
            continue
        while fits > 0 and world.waves[other.first + fits - 1] > kernel.total:
            fits -= 1
        if fits == 0:
            continue
        # 3. Its waves; its last blocks end with the kernel that carries them.
        rounds = int(kernel.total / world.waves[other.first + fits - 1] + EPSILON)
        added = min(int(free) * rounds * fits, other.blocks - guest.done)
        guest.done += added
        if guest.done >= other.blocks:
            guest.at = guest.at + 1
            guest.done = 0
            guest.left = 1.0
            if guest.at == guest.num:
                guest.at = CARRIED
                guest.ready = now + kernel.total
        return min(added / fits / rounds, free) / world.units
    return 0.0


@njit(cache=True)
def _preempt(world: World, now: float) -> float:
    """A real-time client takes over from others; returns when its first kernel may start."""
    for place in range(world.clients.size):
        client = world.clients[place]
        if client.at < 0 or client.real_time:
            continue
        if world.mode == WAIT:
            client.drain = min(1 + world.queue, client.num - client.at)
        elif client.left < 1 and (world.mode == GUESTS or not _kernel(world, place).killable):
            client.drain = 1
        else:
            client.left = 1.0
    return now + world.reset_s if world.mode == RESET or world.mode == PADDED else now


@njit(cache=True)
def _issue(world: World, now: float) -> float:
    """Start what is due; returns when the next program is due."""
    soon = np.inf
    for place in range(world.clients.size):
        client = world.clients[place]
        if client.at >= 0 or (world.mode == ALONE and not client.real_time):
            continue
        due = client.ready
        if client.last >= 0:
            if client.due >= client.last:
                continue
            due = world.arrivals[client.due]
        if client.at == NOTHING and max(due, client.ready) <= now + EPSILON:
            client.at = 0
            client.left = 1.0
            client.done = 0
            client.issued = now
            client.due = client.due + 1
        elif client.at == NOTHING:
            soon = min(soon, max(due, client.ready))
    return soon


@njit(cache=True)
def _head(world: World) -> int:
    """The real-time client issued first; in sequential mode else the other issued first."""
    best = -1
    for place in range(world.clients.size):
        client = world.clients[place]
        first = world.clients[best]
        if client.at < 0 or not (client.real_time or world.mode == SEQUENTIAL):
            continue
        if best < 0 or (first.real_time, -first.issued) < (client.real_time, -client.issued):
            best = place
    return best


@njit(cache=True)
def _end(world: World, place: int, end: float, log: Log, num: int) -> Log:
    """Write a program that ended into the log, which grows where it is full."""
    if num == log.size:
        longer = np.zeros(2 * num, log.dtype)
        longer[:num] = log
        log = longer
    client = world.clients[place]
    row = log[num]
    row.client = place
    row.issued_s = client.issued
    row.end_s = end
    client.at = NOTHING
    client.drain = 0
    client.ready = end + client.gap
    return log


@njit(cache=True)
def _until_next(
    world: World, now: float, soon: float, head: int, hold: float, speed: Floats
) -> float:
    """Seconds until a program is due, a reset is over or a kernel ends."""
    step = soon - now
    if head >= 0 and now < hold - EPSILON:
        step = min(step, hold - now)
    for client in range(world.clients.size):
        if speed[client] > 0:
            left = world.clients[client].left * _kernel(world, client).total
            step = min(step, left / speed[client])
    return step


@njit(cache=True)
def _loop(world: World, until: float) -> tuple[Log, float]:
    """The programs that ended by then, and the seconds for which units were in use."""
    log = np.zeros(1024, ROW)
    num = 0  # programs that ended
    now = 0.0
    busy = 0.0
    head = -1  # the client that has the GPU
    hold = 0.0  # when its first kernel may start
    fresh = False  # whether its next kernel has carried no padding yet
    ran = False  # whether others ran since it had the GPU
    padding = 0.0  # share of units that its kernel's padding fills
    speed = np.zeros(world.clients.size)
    moments = 0
    while True:
        moments += 1
        hear(moments, 4096)
        # 1. Clients issue what is due; a real-time client takes the GPU over.
        soon = _issue(world, now)
        if head < 0 and world.mode != STREAMS:
            head = _head(world)
            fresh = head >= 0
            if fresh and ran:
                hold = _preempt(world, now)
                ran = False
        # 2. Its next kernel carries blocks of another client.
        if fresh and world.mode == PADDED and now >= hold - EPSILON:
            padding = _pad(world, head, now)
            fresh = False
        # 3. How fast everything runs, and until when.
        used = _speeds(world, now, head, hold, padding, speed)
        ran |= head < 0 and used > 0
        step = _until_next(world, now, soon, head, hold, speed)
        if now + step > until or step == np.inf:
            return log[:num], busy + used * max(until - now, 0.0) * (step < np.inf)
        busy = busy + used * step
        now = now + step
        # 4. Kernels end, and with the last one its program.
        for place in range(world.clients.size):
            client = world.clients[place]
            if client.at == CARRIED and client.ready <= now + EPSILON:
                log = _end(world, place, now, log, num)
                num = num + 1
            elif speed[place] > 0:
                client.left -= step * speed[place] / _kernel(world, place).total
                if client.left <= EPSILON:
                    client.at = client.at + 1
                    client.left = 1.0
                    client.done = 0
                    client.drain = max(client.drain - 1, 0)
                    fresh = fresh or place == head
                    padding = 0.0 if place == head else padding
                    if client.at == client.num:
                        log = _end(world, place, now, log, num)
                        num = num + 1
                        head = -1 if place == head else head
