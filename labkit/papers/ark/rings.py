"""Copies between two pieces of shared memory, started by another process or by the sender.

The sender fills slots of a ring; somebody copies each to the same slot of a second ring, which
stands for the receiver's memory; the sender sees that the copy is done. Who copies, and how it
learns of a message, is the way:

- ``mediated``: a process sleeps until a pipe has a request, copies, and answers through a pipe;
- ``mediated, queued``: the same, but the sender asks for all messages before it waits;
- ``self-driven``: an engine, a process that never sleeps, watches a counter that the sender raises;
- ``self-driven, one at a time``: the same, but the sender waits for each copy;
- ``own copies``: the sender copies and raises the counter itself.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from labkit.errors import LabkitError
from labkit.kit.describe import Count, checked

Way = Literal[
    "mediated", "mediated, queued", "self-driven", "self-driven, one at a time", "own copies"
]
WAYS: tuple[Way, ...] = (
    "mediated",
    "mediated, queued",
    "self-driven",
    "self-driven, one at a time",
    "own copies",
)
SLOTS = 16
"""Of a ring."""
POSTED = 0
DONE = 1
STOP = 2
REQUEST = b"copy"
PATIENCE_S = 60.0
MOST_LOOKS = 200_000_000
"""Of a sender that waits, about half a minute where it has a core of its own."""
LOOKS_A_TURN = 2_000
"""After so many looks in vain, far longer than a copy takes, a watcher lets others have its core.
It does not sleep, so nobody need wake it; but on a busy machine the other side gets its turn."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Messages that went through a ring.

    Attributes:
        seconds: of each message from its start to the end of its copy, where each was waited for;
            else of all, divided by their number.
        wrong_bytes: that differ from what was sent, over all messages.
        sleeps: of the sender and of the process that copies, a message.
    """

    seconds: np.ndarray
    wrong_bytes: int
    sleeps: float


class _Memory:
    """Two rings, and three counters, in memory that a forked process shares."""

    def __init__(self, num_bytes: int) -> None:
        context = multiprocessing.get_context("fork")
        size = SLOTS * num_bytes
        self.sent = _shared(context, size).reshape(SLOTS, num_bytes)
        self.received = _shared(context, size).reshape(SLOTS, num_bytes)
        self.counters = _shared(context, 3 * 8).view(np.int64)
        self.sleeps = _shared(context, 8).view(np.int64)
        self.request_in, self.request_out = os.pipe()
        self.answer_in, self.answer_out = os.pipe()

    def close(self) -> None:
        for end in (self.request_in, self.request_out, self.answer_in, self.answer_out):
            os.close(end)

    def copy(self, message: int) -> None:
        slot = message % SLOTS
        self.received[slot] = self.sent[slot]


def _shared(context: multiprocessing.context.BaseContext, num_bytes: int) -> np.ndarray:
    return np.frombuffer(context.RawArray("b", num_bytes), dtype=np.uint8)


def _sleeps() -> int:
    """How often this process gave up its core to wait."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def _step_aside() -> None:
    """Let another process have this core, where the system has a call for it."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()


def mediator(memory: _Memory) -> None:
    """Sleep until there is a request, copy, and answer."""
    before = _sleeps()
    copied = 0
    while os.read(memory.request_in, len(REQUEST)) == REQUEST:
        memory.copy(copied)
        copied += 1
        os.write(memory.answer_out, REQUEST)
    memory.sleeps[0] = _sleeps() - before


def engine(memory: _Memory) -> None:
    """Watch the counter of messages, and copy each that is new."""
    before = _sleeps()
    counters = memory.counters
    copied = 0
    looks = 0
    while not counters[STOP]:
        looks += 1
        if looks % LOOKS_A_TURN == 0:
            _step_aside()
        while copied < counters[POSTED]:
            memory.copy(copied)
            copied += 1
            counters[DONE] = copied
            looks = 0
    memory.sleeps[0] = _sleeps() - before


def _ask(memory: _Memory, message: int) -> None:
    os.write(memory.request_out, REQUEST)


def _await_answer(memory: _Memory, message: int) -> None:
    os.read(memory.answer_in, len(REQUEST))


def _post(memory: _Memory, message: int) -> None:
    memory.counters[POSTED] = message + 1


def _await_counter(memory: _Memory, message: int) -> None:
    counters = memory.counters
    looks = 0
    while counters[DONE] <= message:
        looks += 1
        if looks % LOOKS_A_TURN == 0:
            _step_aside()
        if looks > MOST_LOOKS:
            raise LabkitError(f"message {message} was not copied: the engine has ended")


def _copy_alone(memory: _Memory, message: int) -> None:
    memory.copy(message)
    memory.counters[DONE] = message + 1


Act = Callable[[_Memory, int], None]
_ACTS: dict[Way, tuple[Act, Act, bool]] = {
    "mediated": (_ask, _await_answer, False),
    "mediated, queued": (_ask, _await_answer, True),
    "self-driven": (_post, _await_counter, True),
    "self-driven, one at a time": (_post, _await_counter, False),
    "own copies": (_copy_alone, _await_counter, False),
}
"""How a message is started, how its end is waited for, and whether a ring full may be under way."""


def _one_by_one(memory: _Memory, way: Way, num_messages: int) -> tuple[np.ndarray, int]:
    """Start each message, wait for it, and compare what arrived."""
    start, wait, _ = _ACTS[way]
    seconds = np.zeros(num_messages)
    wrong_bytes = 0
    for message in range(num_messages):
        slot = message % SLOTS
        memory.sent[slot] = message % 251
        began_s = time.perf_counter()
        start(memory, message)
        wait(memory, message)
        seconds[message] = time.perf_counter() - began_s
        wrong_bytes += int((memory.received[slot] != memory.sent[slot]).sum())
    return seconds, wrong_bytes


def _many_at_once(memory: _Memory, way: Way, num_messages: int) -> tuple[np.ndarray, int]:
    """Start a ring full of messages, wait for all, and compare; again and again."""
    start, wait, _ = _ACTS[way]
    seconds = []
    wrong_bytes = 0
    for first in range(0, num_messages, SLOTS):
        batch = range(first, min(first + SLOTS, num_messages))
        for message in batch:
            memory.sent[message % SLOTS] = message % 251
        began_s = time.perf_counter()
        for message in batch:
            start(memory, message)
        if way == "mediated, queued":
            for message in batch:
                wait(memory, message)
        else:
            wait(memory, batch[-1])
        seconds.append((time.perf_counter() - began_s) / len(batch))
        wrong_bytes += int((memory.received[: len(batch)] != memory.sent[: len(batch)]).sum())
    return np.array(seconds), wrong_bytes


@checked
def run(way: Way, num_bytes: Count, num_messages: Count) -> Run:
    """Send messages of so many bytes one way, with two processes (one for ``own copies``).

    Raises:
        LabkitError: the other process did not end.
    """
    memory = _Memory(num_bytes)
    context = multiprocessing.get_context("fork")
    target = mediator if way.startswith("mediated") else engine
    other = context.Process(target=target, args=(memory,), daemon=True)
    alone = way == "own copies"
    if not alone:
        other.start()
    before = _sleeps()
    try:
        send = _many_at_once if _ACTS[way][2] else _one_by_one
        seconds, wrong_bytes = send(memory, way, num_messages)
        slept = _sleeps() - before
    finally:
        memory.counters[STOP] = 1
        os.write(memory.request_out, b"stop")
        if not alone:
            other.join(PATIENCE_S)
        memory.close()
    if not alone and other.exitcode != 0:
        raise LabkitError(f"the process that copies ended with {other.exitcode}")
    sleeps = (slept + int(memory.sleeps[0])) / num_messages
    return Run(seconds=seconds, wrong_bytes=wrong_bytes, sleeps=sleeps)


def measure(
    sizes: Sequence[int], *, ways: Sequence[Way] = WAYS, num_messages: int = 240, rounds: int = 6
) -> pd.DataFrame:
    """Measure a message's seconds each way.

    Args:
        sizes: of messages, in bytes.
        ways: which are measured.
        num_messages: of a run.
        rounds: of which the least counts, since others use the machine as well.

    Returns:
        A row a size, a column a way: the least over rounds of a run's first decile.
    """
    found = pd.DataFrame(index=pd.Index(sizes, name="num_bytes"), columns=[*ways], dtype=float)
    for size in sizes:
        for way in ways:
            deciles = []
            for _ in range(rounds):
                deciles.append(float(np.quantile(run(way, size, num_messages).seconds, 0.1)))
            found.loc[size, way] = min(deciles)
    return found
