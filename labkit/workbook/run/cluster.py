"""Jobs on the workers of a Dask scheduler, which lose workers, their nannies and the scheduler.

The client keeps at most two jobs a worker's thread with the scheduler; an outcome is taken, and its
future let go, as soon as it is there. So neither client, scheduler nor workers ever hold more than
that many notebooks, however many wait. What was taken is on disk; what a lost scheduler had of the
rest is submitted again.
"""

from __future__ import annotations

import pickle
import queue
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labkit.errors import LabkitError
from labkit.workbook.run import remote
from labkit.workbook.run.jobs import Event, Job, Outcome, Terms

if TYPE_CHECKING:
    from distributed import Client, Future

MAX_STARTS = 4
"""How often a job may start on workers that are lost before it counts as what loses them."""
PULSE_S = 2.0
"""How often the scheduler is asked whether it is still the same, and for its workers."""
RETURN_S = 120.0
"""How long a lost scheduler may stay away."""
_NOBODY_S = 10.0  # without a worker, until the user is told


@dataclass
class _Flight:
    """A job with the scheduler; ``starts`` counts the workers that began it."""

    job: Job
    future: Future
    starts: int = 0
    retries: bool = False
    submissions: int = 1


def _died(flight: _Flight, message: str) -> Outcome:
    tries = max(flight.starts, flight.submissions)
    return Outcome(status="died", error="WorkerLost", message=message, attempts=tries)


class DaskExecutor:
    """Runs jobs on the workers of the Dask scheduler that ``connect`` gives a client of.

    Every worker is checked before its first job against what ``notebooks``, a job of each, rest on.
    ``note`` is told what users should know; ``most`` limits the jobs at a time.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        notebooks: Sequence[Job],
        terms: Terms,
        note: Callable[[str], None],
        most: int | None = None,
    ) -> None:
        try:
            self._connect = connect
            self._client = connect()
        except OSError as error:
            raise LabkitError(f"the scheduler does not answer: {error}") from error
        self._notebooks = notebooks
        self._terms = terms
        self._note = note
        self._most = most
        self._inbox: queue.SimpleQueue[Future | bytes] = queue.SimpleQueue()
        self._flights: dict[str, _Flight] = {}
        self._asked = self._staffed = time.monotonic()
        self._scheduler = ""
        self._threads = 0
        self._look()

    @property
    def num_workers(self) -> int:
        """Threads of the workers that are there, which may come and go."""
        return max(1, min(self._threads, self._most or self._threads))

    def run(self, jobs: Iterable[Job]) -> Generator[Event]:
        """As :meth:`labkit.workbook.run.executors.LocalPool.run`.

        Raises WrongWorker where a worker's checkout, packages or data are not the client's, and
        LabkitError where the scheduler is lost and stays away.
        """
        waiting = iter(jobs)
        more = True
        try:
            self._check_workers()
            self._client.subscribe_topic(self._terms.run_id, self._hear)
            while more or self._flights:
                while more and self._has_room():
                    if more := (job := next(waiting, None)) is not None:
                        self._flights[job.name] = _Flight(job, self._submit(job))
                if more or self._flights:
                    yield from self._step()
        finally:
            self._cancel()

    def _has_room(self) -> bool:
        """A thread runs one job while another waits there; a lost scheduler gets none."""
        room = min(2 * self.num_workers, self._most or 2 * self.num_workers)
        return len(self._flights) < room and self._client.status == "running"

    # ------------------------------------------------------------ workers

    def _check_workers(self) -> None:
        """Every worker checks what it stands on; those that come later do with their first job."""
        ours = (self._terms.run_id, remote.standing(), list(map(remote.to_send, self._notebooks)))
        for address, problem in self._client.run(remote.check, *ours, on_error="return").items():
            if isinstance(problem, remote.WrongWorker):
                raise problem
            if isinstance(problem, Exception) and not isinstance(problem, OSError):  # it was lost
                worker = f"{self._names.get(address, '')} ({address})".strip()
                raise LabkitError(
                    f"worker {worker} cannot say what it stands on: {type(problem).__name__}: "
                    f"{problem}. It needs this checkout and its packages, and must start in the "
                    "workbook's folder or with LABKIT_ROOT set"
                ) from problem

    def _look(self) -> bool:
        """Ask the scheduler for its workers; whether it is the one that was asked before."""
        self._asked = time.monotonic()
        known = self._client.scheduler_info(n_workers=-1)
        self._address = known["address"]
        self._names = {address: str(w["name"]) for address, w in known["workers"].items()}
        self._threads = sum(worker["nthreads"] for worker in known["workers"].values())
        if self._threads:
            self._staffed = self._asked
        elif self._asked - self._staffed > _NOBODY_S:
            self._note(f"{self._address} has no workers; waiting for some to come")
            self._staffed = float("inf")
        self._scheduler = self._scheduler or known["id"]
        return bool(known["id"] == self._scheduler)

    # ------------------------------------------------------------ jobs

    def _submit(self, job: Job) -> Future:
        # The scheduler keeps statistics of each kind of key for ever: ours are all of one kind.
        key = f"notebook-{uuid.uuid4().hex}"
        future = self._client.submit(
            pickle.loads, remote.packed(job, self._terms), key=key, pure=False
        )
        future.add_done_callback(self._inbox.put)
        return future

    def _hear(self, event: tuple[float, bytes]) -> None:
        self._inbox.put(event[1])

    def _step(self) -> Iterator[Event]:
        """One sign of life, or none for a while: then ask whether the scheduler still lives."""
        with suppress(queue.Empty):
            sign = self._inbox.get(timeout=PULSE_S)
            if isinstance(sign, bytes):
                yield from self._progress(pickle.loads(sign))
            else:
                yield from self._land(sign)
        if time.monotonic() - self._asked > PULSE_S and not self._alive():
            self._find_scheduler()

    def _progress(self, event: Event) -> Iterator[Event]:
        """What a worker says of a job that is still under way."""
        flight = self._flights.get(event.job.name)
        if flight is None or not (flight.starts or event.kind == "start"):
            return
        if event.kind == "start":
            if flight.starts and not flight.retries:
                lost = Outcome(status="died", error="WorkerLost", message="its worker was lost")
                yield Event(kind="retry", job=flight.job, outcome=lost)
            flight.starts += not flight.retries
        flight.retries = event.kind == "retry"  # its kernel died; the same worker begins it anew
        yield replace(event, job=flight.job)

    def _land(self, future: Future) -> Iterator[Event]:
        """Take the outcome of ``future`` and let it go; submit its job again where it has none."""
        flights = (flight for flight in self._flights.values() if flight.future is future)
        if (flight := next(flights, None)) is None:
            return
        outcome = self._outcome(flight)
        if outcome is None:
            return
        del self._flights[flight.job.name]
        future.release()
        yield Event(kind="end", job=flight.job, outcome=outcome, worker=outcome.worker)

    def _outcome(self, flight: _Flight) -> Outcome | None:
        """How the flight ended; None where its job goes on, or was submitted again."""
        from distributed import KilledWorker

        future = flight.future
        again = max(flight.starts - 1, 0)
        try:
            outcome: Outcome = future.result(timeout=10 * PULSE_S)
            return replace(outcome, attempts=outcome.attempts + again)
        except Exception as problem:
            error = problem
        if future.status in ("pending", "finished"):  # lost with its worker; another is at it
            future.add_done_callback(self._inbox.put)
        elif future.cancelled() and not self._alive():
            pass  # with its scheduler; all that flies starts anew once that is back
        elif isinstance(error, KilledWorker) and flight.starts >= MAX_STARTS:
            return _died(flight, f"{flight.starts} workers were lost while they ran it")
        elif future.cancelled() or isinstance(error, KilledWorker | OSError | MemoryError):
            # Somebody cancelled it, it waited on workers that other jobs lost, or one is full.
            if flight.submissions == MAX_STARTS:
                return _died(flight, f"{type(error).__name__}: {error}")
            flight.submissions += 1
            flight.future = self._submit(flight.job)
        elif isinstance(error, LabkitError):
            raise error
        else:
            what = f"{flight.job.name}: no worker can run it: {type(error).__name__}"
            raise LabkitError(f"{what}: {error}") from error
        return None

    # ------------------------------------------------------------ the scheduler

    def _alive(self) -> bool:
        """Whether the scheduler that has our jobs still answers."""
        try:
            return self._client.status == "running" and self._look()
        except (OSError, RuntimeError):
            return False

    def _find_scheduler(self) -> None:
        """Wait for a lost scheduler, for a bounded time; it comes back without our jobs."""
        address = self._address
        self._note(f"lost the scheduler {address}; waiting up to {RETURN_S:g} s for it to return")
        deadline = time.monotonic() + RETURN_S
        self._close()
        while True:
            try:
                self._client = self._connect()
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise LabkitError(
                        f"the scheduler {address} did not return within {RETURN_S:g} s; what ended "
                        "is kept, and the same command goes on from there"
                    ) from error
                time.sleep(0.5)
        self._scheduler = ""
        self._staffed = time.monotonic()
        self._look()
        self._client.subscribe_topic(self._terms.run_id, self._hear)
        for flight in self._flights.values():
            flight.future = self._submit(flight.job)
        self._note(f"the scheduler is back; {len(self._flights)} notebooks are submitted again")

    def _cancel(self) -> None:
        """Cancel what still flies: workers notice within a second, and end its kernels."""
        futures = [flight.future for flight in self._flights.values()]
        self._flights.clear()
        if futures and self._client.status == "running":
            with suppress(OSError, RuntimeError):
                self._client.cancel(futures, force=True)
        self._close()

    def _close(self) -> None:
        with suppress(OSError, RuntimeError):
            self._client.close(timeout=PULSE_S)
