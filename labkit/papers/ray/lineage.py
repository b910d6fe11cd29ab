"""Tasks on real worker processes: values stay where they were made, and can be made again.

A worker is a process with a store of values. The driver holds two tables: which function of which
values made a value (its lineage), and who holds it. Where a worker dies, its values are lost; one
that is asked for is made again from its lineage, and so are those it needs that are lost too.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from subprocess import PIPE, Popen
from typing import Any, NamedTuple, Self

from labkit.errors import BadValue, UsageError, shown
from labkit.kit.describe import Count, checked

_DEAD = (EOFError, BrokenPipeError)
_WORKER = [sys.executable, "-c", "from labkit.papers.ray import lineage; lineage.serve()"]


class Ref(NamedTuple):
    """A value that some worker holds, or held."""

    number: int


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

    @checked
    def __init__(
        self, *, workers: Count = 2, remember: bool = True, copy_every: Count | None = None
    ) -> None:
        """``copy_every``: each so-many-th value is put on a second worker as well."""
        if copy_every is not None and workers < 2:
            raise BadValue(f"Runtime: copies need 2 workers or more; got {workers}")
        self.remember = remember
        self.copy_every = copy_every
        self.processes = [Popen(_WORKER, stdin=PIPE, stdout=PIPE) for _ in range(workers)]
        self.alive = set(range(workers))  # as far as anybody has noticed
        self.lineage: dict[Ref, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self.holders: dict[Ref, set[int]] = {}
        self.executed: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            with suppress(BrokenPipeError), process:  # closes its pipes
                pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Ref:
        """Run an importable function where most of its arguments lie; returns at its end.

        Raises:
            UsageError: the task fails.
        """
        ref = Ref(len(self.lineage))
        self.lineage[ref] = function, arguments
        self._run(ref)
        if self.copy_every and len(self.lineage) % self.copy_every == 0:
            other = min(self.alive - self.holders[ref])
            self._ask(other, "put", ref, self.get(ref))
            self.holders[ref].add(other)
        return ref

    def get(self, ref: Ref) -> Any:
        """The value; made again from its lineage where nobody holds it any more.

        Raises:
            UsageError: it is lost, and lineage is not remembered or no worker is left.
        """
        while True:
            for worker in sorted(self.holders.get(ref, ())):
                with suppress(*_DEAD):
                    return self._ask(worker, "get", ref)
            if not self.remember:
                raise UsageError(f"value {ref.number} is lost with its worker")
            self._run(ref)

    def kill(self, worker: int) -> None:
        """End a worker's process at once; nobody is told."""
        self.processes[worker].kill()
        self.processes[worker].wait()

    def _ask(self, worker: int, *message: Any) -> Any:
        """A worker's answer; where it is dead, its values are struck off and ``_DEAD`` raised."""
        inbox = self.processes[worker].stdin
        outbox = self.processes[worker].stdout
        assert inbox is not None
        assert outbox is not None
        try:
            pickle.dump(message, inbox)
            inbox.flush()
            failure, answer = pickle.load(outbox)
        except _DEAD:
            self.alive.discard(worker)
            for held in self.holders.values():
                held.discard(worker)
            raise
        if failure:
            raise UsageError(f"value {message[1].number} cannot be made: {failure}")
        return answer

    def _run(self, ref: Ref) -> None:
        function, arguments = self.lineage[ref]
        while self.alive:
            values = [self.get(each) if isinstance(each, Ref) else each for each in arguments]
            worker = self._nearest(arguments)
            with suppress(*_DEAD):
                self._ask(worker, "run", ref, function, values)
                self.executed.append(ref.number)
                self.holders[ref] = {worker}
                return
        raise UsageError(f"value {ref.number} cannot be made: no worker is left")

    def _nearest(self, arguments: tuple[Any, ...]) -> int:
        """The living worker that holds most of the arguments; of several, who holds least else."""
        inputs = [each for each in arguments if isinstance(each, Ref)]

        def rank(worker: int) -> tuple[int, int, int]:
            inputs_held = sum(worker in self.holders[value] for value in inputs)
            values_held = sum(worker in holders for holders in self.holders.values())
            return -inputs_held, values_held, worker

        return min(self.alive, key=rank)


class Recovery(NamedTuple):
    """A value before and after its worker was killed (None: gone), what was lost, made again."""

    before: Any
    after: Any
    lost: tuple[Ref, ...]
    again: tuple[int, ...]


@checked
def recover(program: Callable[[Callable[..., Ref]], Ref], **settings: Any) -> Recovery:
    """Run a program on two processes, kill the one that holds its result, and ask again.

    Args:
        program: gets :meth:`Runtime.submit` and returns the value it wants.
        settings: of the :class:`Runtime`.

    Raises:
        BadValue: the program gives no value of the runtime's.
    """
    with Runtime(**settings) as runtime:
        ref = program(runtime.submit)
        if ref not in runtime.lineage:
            raise BadValue(
                f"recover: program must return a value that it submitted; got {shown(ref)}"
            )
        before = runtime.get(ref)
        num_executed = len(runtime.executed)
        killed = min(runtime.holders[ref])
        lost = tuple(value for value, held in runtime.holders.items() if held == {killed})
        runtime.kill(killed)
        after = None
        with suppress(UsageError):
            after = runtime.get(ref)
        return Recovery(before, after, lost, tuple(runtime.executed[num_executed:]))


def serve() -> None:
    """A worker's loop: run, put or get until the driver is gone."""
    inbox = sys.stdin.buffer
    outbox = sys.stdout.buffer
    values = {}
    sys.stdout = sys.stderr
    with suppress(EOFError):
        while True:
            what, ref, *rest = pickle.load(inbox)
            failure = ""
            try:
                if what != "get":
                    values[ref] = rest[0](*rest[1]) if what == "run" else rest[0]
            except Exception as error:  # whatever the task raises is the driver's to see
                failure = repr(error)
            pickle.dump((failure, values[ref] if what == "get" else None), outbox)
            outbox.flush()
