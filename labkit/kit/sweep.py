"""One function over a grid of points, here or in any executor, as one tidy table.

    table = labkit.sweep(simulate, {"rate_per_s": [1, 2, 4], "batcher": batchers}, executor=4)

A chunk of points is a task, so a point costs microseconds over its call; few chunks are under way
at a time, so memory holds the table and little else.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import cloudpickle
from annotated_types import Le

from labkit.errors import BadValue, LabkitError
from labkit.kit.describe import Count, checked

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["sweep"]

LARGEST_CHUNK = 256
_CHUNKS_A_WORKER = 8  # so that workers end together although points take unequal time
_AHEAD = 3  # chunks a worker that are under way at once

Processes = Annotated[Count, Le(1024)]  # more are a mistake, and fill the machine's memory
Point = dict[str, Any]
Pair = tuple[Point, Point]  # a point as the table shows it, and as the function is called
Rows = list[dict[str, Any]]


@checked
def sweep(
    function: Callable[..., Any],
    grid: Mapping[str, Any] | Iterable[Mapping[str, Any]],
    *,
    executor: Executor | Processes | None = None,
    chunk: Count | None = None,
) -> pd.DataFrame:
    """Call ``function(**point)`` at every point of ``grid``; table the points' columns, then what
    it returned.

    Args:
        function: what is called.
        grid: lists of values by parameter, of which every combination is a point (the last
            parameter varies fastest), or the points themselves, as mappings. A mapping in a list's
            place, ``{"A40": profile, ...}``, names its values: the table shows the names.
        executor: where the calls run: an executor (threads, processes, Dask's
            ``client.get_executor()``), a number of processes, or None for this process. A function
            defined in a notebook's cell is sent by value.
        chunk: points a task; the default gives every worker several tasks.

    Returns:
        Rows in the order of the grid. A scalar that is returned is the column ``value``, a mapping
        has a column a key; of other objects ``summary()``, a mapping, or ``frame()``, a table, is
        taken, and every row carries its point. What a point lacks is missing.

    Raises:
        BadValue: the grid holds no point, or the function returned a column that the point has with
            another value.
        LabkitError: the function failed, or returned none of these; names the point.

    >>> sweep(lambda a, b: a * b, {"a": [1, 2], "b": [3, 5]})["value"].tolist()
    [3, 5, 6, 10]
    >>> sweep(lambda a: {"square": a**2}, [{"a": 2}, {"a": 3}], executor=ThreadPoolExecutor(2))
       a  square
    0  2       4
    1  3       9
    """
    import pandas as pd

    pairs, total = _points(grid)
    own = _processes(executor) if isinstance(executor, int) else nullcontext(executor)
    with own as pool:
        workers = 1 if pool is None else _num_workers(pool)
        size = chunk or max(1, min(LARGEST_CHUNK, total // (workers * _CHUNKS_A_WORKER)))
        batches = iter(lambda: list(itertools.islice(pairs, size)), [])
        tables = []
        for batch, results in _evaluated(_submitter(function, pool), batches, workers * _AHEAD):
            shown = zip((point for point, _ in batch), results, strict=True)
            tables.append(pd.DataFrame([_joined(p, row) for p, rows in shown for row in rows]))
    return pd.concat(tables, ignore_index=True)


def _pair(point: Iterable[tuple[str, Any, Any]]) -> Pair:
    """Part a point's coordinates: what is shown of them, and what the function gets."""
    shown = {}
    values = {}
    for name, words, value in point:
        shown[name] = words
        values[name] = value
    return shown, values


def _points(grid: Any) -> tuple[Iterator[Pair], int]:
    """List every point, and count them."""
    if isinstance(grid, Mapping):
        axes = [_axis(name, values) for name, values in grid.items()]
        chosen = itertools.product(*axes) if axes else iter(())
        pairs: Iterator[Pair] = map(_pair, chosen)
        total = prod(map(len, axes)) if axes else 0
    else:
        points = list(grid)
        pairs = ((dict(point), dict(point)) for point in points)
        total = len(points)
    if not total:
        raise BadValue("grid holds no point; valid: {'a': [1, 2]}, or [{'a': 1}, {'a': 2}]")
    return pairs, total


def _axis(name: str, values: Any) -> list[tuple[str, Any, Any]]:
    """List a parameter's values: its name, what the table shows, what the function gets."""
    if isinstance(values, Mapping):
        return [(name, shown, value) for shown, value in values.items()]
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise BadValue(f"grid[{name!r}] must hold the values to try, as in [1, 2], got {values!r}")
    return [(name, value, value) for value in values]


# ---------------------------------------------------------------- where points are computed


class _Stopped(Exception):
    """Says that the point at a place of its chunk failed; it travels between processes, whatever
    the error.
    """


def _evaluate(function: Callable[..., Any], points: Sequence[Point]) -> list[Rows]:
    """Call the function at each point, and turn what it returned into rows."""
    results = []
    for place, point in enumerate(points):
        try:
            results.append(_rows(function(**point)))
        except Exception as error:
            raise _Stopped(place, f"{type(error).__name__}: {error}") from error
    return results


def _evaluate_sent(function: bytes, points: bytes) -> list[Rows]:
    """Call a function that was sent to this process, at points that were sent."""
    return _evaluate(_loaded(function), cloudpickle.loads(points))


@lru_cache(maxsize=8)
def _loaded(function: bytes) -> Any:
    """Read the function once for all its points."""
    return cloudpickle.loads(function)


Submit = Callable[[list[Point]], "Future[list[Rows]]"]


def _submitter(function: Callable[..., Any], pool: Executor | None) -> Submit:
    """Make the function that gives points to a worker."""
    if pool is None or isinstance(pool, ThreadPoolExecutor):
        submit = _now if pool is None else pool.submit
        return lambda points: submit(_evaluate, function, points)
    try:
        sent = cloudpickle.dumps(function)
    except Exception as error:
        raise LabkitError(f"sweep: the function cannot be sent to a process: {error}") from error

    def submit_sent(points: list[Point]) -> Future[list[Rows]]:
        """Send the points to a process, where the function was sent."""
        with main_module_hidden():  # a submission may start a process
            return pool.submit(_evaluate_sent, sent, cloudpickle.dumps(points))

    return submit_sent


def _num_workers(pool: Any) -> int:
    """Count an executor's workers."""
    if hasattr(pool, "_client"):  # Dask's
        return max(1, sum(pool._client.ncores().values()))
    return getattr(pool, "_max_workers", None) or os.cpu_count() or 1


def _now(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Call at once, and keep the result as an executor would."""
    done: Future[Any] = Future()
    try:
        done.set_result(function(*arguments))
    except _Stopped as stopped:
        done.set_exception(stopped)
    return done


@contextmanager
def _processes(count: int) -> Iterator[Executor]:
    """Start processes that end with the block."""
    known = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    pool = ProcessPoolExecutor(count, context, initializer=_one_thread)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    """Let each process compute on one thread."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@contextmanager
def main_module_hidden() -> Iterator[None]:
    """Hide the program that started us: a worker is sent its function, and need not import that."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _evaluated(
    submit: Submit, batches: Iterator[list[Pair]], most: int
) -> Iterator[tuple[list[Pair], list[Rows]]]:
    """Yield every batch with its results, in order, at most ``most`` of them under way."""
    waiting: deque[tuple[list[Pair], Future[list[Rows]]]] = deque()
    try:
        while True:
            for batch in itertools.islice(batches, most - len(waiting)):
                waiting.append((batch, submit([called for _, called in batch])))
            if not waiting:
                return
            batch, future = waiting.popleft()
            yield batch, _results(batch, future)
    finally:
        for _, future in waiting:
            future.cancel()


def _results(batch: list[Pair], future: Future[list[Rows]]) -> list[Rows]:
    """Wait for a batch, and name the point where it failed."""
    try:
        return future.result()
    except _Stopped as stopped:
        place, problem = stopped.args
        raise LabkitError(f"sweep: at {_words(batch[place][0])}: {problem}") from stopped
    except Exception as error:  # a worker died, or what it returned cannot be sent
        span = " to ".join(dict.fromkeys(_words(batch[place][0]) for place in (0, -1)))
        problem = f"the executor failed: {type(error).__name__}: {error}"
        raise LabkitError(f"sweep: at {span}: {problem}") from error


# ---------------------------------------------------------------- the table


def _rows(result: Any) -> Rows:
    """Turn what a call returned into rows of a table."""
    if isinstance(result, Mapping):
        return [dict(result)]
    for method in ("summary", "frame"):
        if hasattr(result, method):
            return _rows(getattr(result, method)())
    if hasattr(result, "to_dict"):  # pandas: a table, or a row of one
        return result.to_dict("records") if hasattr(result, "columns") else [result.to_dict()]
    if hasattr(result, "dtype") and result.ndim == 0:
        result = result.item()
    if isinstance(result, bool | int | float | str):
        return [{"value": result}]
    valid = "a scalar, a mapping, a table, or an object with summary() or frame()"
    raise TypeError(f"the function returned {type(result).__name__}; valid: {valid}")


def _joined(point: Point, row: Point) -> Point:
    """Put a point's columns before a row's."""
    for name in point.keys() & row.keys():
        if row[name] is not point[name] and row[name] != point[name]:
            raise BadValue(
                f"sweep: at {_words(point)}: the function returned {name}={row[name]!r}; "
                "valid: the point's own value, or a column of another name"
            )
    return point | row


def _words(point: Point) -> str:
    """Name a point in an error."""
    return ", ".join(f"{name}={value!r}" for name, value in point.items())
