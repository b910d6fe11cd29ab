"""Tasks on real worker processes: values stay where they were made, and can be made again.

A worker is a process with a store of values. The driver holds two tables: which function of which
values made a value (its lineage), and who holds it. Where a worker dies, its values are lost; one
that is asked for is made again from its lineage, and so are those it needs that are lost too.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple, Self

from labkit.errors import BadValue, UsageError


class Ref(NamedTuple):
    """A value that some worker holds, or held."""

    number: int


class _DeadError(Exception):
    """A worker's process is gone."""


class _Worker:
    """A process that runs functions and keeps their values, spoken to in pickles."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", "from labkit.cluster import lineage; lineage.serve()"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, *message: Any) -> Any:
        """The worker's answer; raises what its task raised."""
        inbox, outbox = self.process.stdin, self.process.stdout
        assert inbox is not None
        assert outbox is not None
        try:
            pickle.dump(message, inbox)
            inbox.flush()
            failed, answer = pickle.load(outbox)
        except (EOFError, BrokenPipeError):
            raise _DeadError from None
        if failed:
            raise answer
        return answer

    def end(self, *, close: bool = False) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if close and pipe is not None:
                with suppress(BrokenPipeError):  # what a dead worker never read
                    pipe.close()


class Runtime:
    """Workers, the lineage of every value, and who holds it; a context manager.

        with Runtime(workers=2) as runtime:
            total = runtime.submit(operator.add, 1, 2)
            assert runtime.get(runtime.submit(operator.mul, total, total)) == 9

    Attributes:
        lineage: by value, the function and arguments it came from.
        holders: by value, the workers that hold it.
        executed: numbers of the values that were made, in order, again where they were lost.
    """

    def __init__(
        self, *, workers: int = 2, remember: bool = True, copy_every: int | None = None
    ) -> None:
        """``copy_every``: each so-many-th value is put on a second worker as well."""
        if workers < 1 or (copy_every is not None and (copy_every < 1 or workers < 2)):
            raise BadValue(
                f"Runtime: workers {workers} and copy_every {copy_every}; valid: 1 or more, and "
                "two workers for copies"
            )
        self.copy_every = copy_every
        self.workers = {number: _Worker() for number in range(workers)}
        self._all = tuple(self.workers.values())
        self.remember = remember
        self.lineage: dict[Ref, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self.holders: dict[Ref, set[int]] = {}
        self.executed: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            worker.end(close=True)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Ref:
        """Run an importable function where most of its arguments lie; returns at its end."""
        ref = Ref(len(self.lineage))
        self.lineage[ref] = function, arguments
        self._make(ref)
        if self.copy_every and len(self.lineage) % self.copy_every == 0:
            other = min(set(self.workers) - self.holders[ref])
            self.workers[other].ask("put", ref, self.get(ref))
            self.holders[ref].add(other)
        return ref

    def get(self, ref: Ref) -> Any:
        """The value; made again from its lineage where nobody holds it any more.

        Raises:
            UsageError: it is lost, and lineage is not remembered or no worker is left.
        """
        for number in sorted(self.holders.get(ref, ())):
            try:
                return self.workers[number].ask("get", ref)
            except _DeadError:
                self._bury(number)
        if not self.remember:
            raise UsageError(f"value {ref.number} is lost with its worker")
        self._make(ref)
        return self.get(ref)

    def kill(self, worker: int) -> None:
        """End a worker's process at once; nobody is told."""
        self.workers[worker].end()

    def _bury(self, worker: int) -> None:
        for held in self.holders.values():
            held.discard(worker)
        self.workers.pop(worker, None)

    def _make(self, ref: Ref) -> None:
        function, arguments = self.lineage[ref]
        while self.workers:
            needed = [value for value in arguments if isinstance(value, Ref)]
            count = {w: sum(w in self.holders.get(n, ()) for n in needed) for w in self.workers}
            best = max(sorted(count), key=lambda w: (count[w], -self._load(w)))
            values = [self.get(v) if isinstance(v, Ref) else v for v in arguments]
            try:
                if best in self.workers:
                    self.workers[best].ask("run", ref, function, values)
                    self.executed.append(ref.number)
                    self.holders[ref] = {best}
                    return
            except _DeadError:
                self._bury(best)
        raise UsageError(f"value {ref.number} cannot be made: no worker is left")

    def _load(self, worker: int) -> int:
        return sum(worker in held for held in self.holders.values())


class Recovery(NamedTuple):
    """A value before and after its worker was killed (None: gone), what was lost, made again."""

    before: Any
    after: Any
    lost: tuple[Ref, ...]
    again: tuple[int, ...]


def recover(
    program: Callable[[Callable[..., Ref]], Ref],
    *,
    remember: bool = True,
    copy_every: int | None = None,
) -> Recovery:
    """Run a program on two processes, kill the one that holds its result, and ask again.

    Args:
        program: gets :meth:`Runtime.submit` and returns the value it wants.
    """
    with Runtime(remember=remember, copy_every=copy_every) as runtime:
        ref = program(runtime.submit)
        before, num_made = runtime.get(ref), len(runtime.executed)
        killed = min(runtime.holders[ref])
        lost = tuple(value for value, held in runtime.holders.items() if held == {killed})
        runtime.kill(killed)
        try:
            after = runtime.get(ref)
        except UsageError:
            after = None
        return Recovery(before, after, lost, tuple(runtime.executed[num_made:]))


def serve() -> None:
    """A worker's loop: run, put or get until the driver is gone."""
    inbox: BinaryIO = sys.stdin.buffer
    outbox: BinaryIO = sys.stdout.buffer
    sys.stdout = sys.stderr
    values: dict[Ref, Any] = {}
    while True:
        try:
            what, ref, *rest = pickle.load(inbox)
        except EOFError:
            return
        try:
            if what == "run":
                function, arguments = rest
                values[ref] = function(*arguments)
            elif what == "put":
                (values[ref],) = rest
            answer = False, values[ref] if what == "get" else None
        except Exception as error:  # whatever the task raises is the driver's to see
            answer = True, error
        pickle.dump(answer, outbox)
        outbox.flush()
