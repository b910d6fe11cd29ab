"""A function over a grid: the loop it stands for, in any executor; errors that name the point."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labkit
from labkit.errors import BadValue, LabkitError


def power(a: int, b: int) -> dict[str, int]:
    return {"sum": a + b, "power": a**b}


AXES = st.dictionaries(
    st.sampled_from("abc"), st.lists(st.integers(-9, 9), min_size=1, max_size=4), min_size=1
)


@given(AXES, st.integers(1, 7), st.booleans())
def test_rows_are_those_of_the_nested_loops(
    grid: dict[str, list[int]], chunk: int, threads: bool
) -> None:
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    expected = pd.DataFrame([{**point, "value": sum(point.values())} for point in points])
    with ThreadPoolExecutor(3) as pool:
        where = pool if threads else None
        for given_as in (grid, points):
            table = labkit.sweep(
                lambda **point: sum(point.values()), given_as, executor=where, chunk=chunk
            )
            pd.testing.assert_frame_equal(table, expected)


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ProcessPoolExecutor(2) as processes:
        yield processes


def test_processes_give_what_this_one_gives(pool: Executor) -> None:
    grid = {"a": range(20), "b": [0, 1, 2]}
    expected = labkit.sweep(power, grid)
    factor = 3  # a closure travels by value
    for where in (pool, 2):
        table = labkit.sweep(power, grid, executor=where)
        pd.testing.assert_frame_equal(table, expected)
    scaled = labkit.sweep(lambda a: factor * a, {"a": range(5)}, executor=pool)
    assert scaled["value"].tolist() == [0, 3, 6, 9, 12]


def test_workers_of_dask_give_what_this_process_gives() -> None:
    distributed = pytest.importorskip("distributed")
    grid = {"a": range(20), "b": [0, 1, 2]}
    with distributed.Client(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None
    ) as client:
        executor = client.get_executor()
        table = labkit.sweep(power, grid, executor=executor)
        with pytest.raises(LabkitError, match=r"at a=2: ValueError: odd luck$"):
            labkit.sweep(unlucky, {"a": range(5)}, executor=executor)
    pd.testing.assert_frame_equal(table, labkit.sweep(power, grid))


def test_a_script_needs_no_guard_around_its_own_program(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import labkit\nprint('once')\n"
        "print(labkit.sweep(lambda a: a + 1, {'a': [1, 2]}, executor=2)['value'].tolist())\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "once\n[2, 3]\n"


class Counting(Executor):
    """Runs a task when its result is asked for, and counts those given and not yet run."""

    _max_workers = 2

    def __init__(self) -> None:
        self.waiting = self.most = self.cancelled = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        outer = self
        self.waiting += 1
        self.most = max(self.most, self.waiting)

        class Late(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                outer.waiting -= 1
                return fn(*args, **kwargs)

            def cancel(self) -> bool:
                outer.cancelled += 1
                return True

        return Late()


def test_a_long_grid_is_handed_out_bit_by_bit() -> None:
    counting = Counting()
    table = labkit.sweep(power, {"a": range(300), "b": [1]}, executor=counting, chunk=10)
    assert table["sum"].tolist() == list(range(1, 301))
    assert counting.most <= 6  # three chunks a worker, of 30


def test_after_an_error_what_waits_is_cancelled() -> None:
    counting = Counting()
    with pytest.raises(LabkitError, match=r"at a=0, b=-1: ZeroDivisionError"):
        labkit.sweep(power, {"a": [1, 0, 2, 3], "b": [-1]}, executor=counting, chunk=1)
    assert counting.cancelled == 2  # the points after it


@pytest.mark.parametrize("where", ["here", "processes"])
def test_an_error_names_its_point(pool: Executor, where: str) -> None:
    executor = pool if where == "processes" else None
    with pytest.raises(LabkitError, match=r"^sweep: at a=2: ValueError: odd luck$"):
        labkit.sweep(unlucky, {"a": range(5)}, executor=executor)


def test_ten_thousand_points_cost_little_time_and_memory() -> None:
    """Under 2 ms and 1 kB each over the function."""
    grid = {"a": range(100), "b": range(100)}
    start = time.process_time()
    labkit.sweep(power, grid)
    assert time.process_time() - start < 10_000 * 2e-3
    tracemalloc.start()
    labkit.sweep(lambda a, b: a + b, grid)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 10_000 * 1_000


def unlucky(a: int) -> int:
    if a == 2:
        raise ValueError("odd luck")
    return a


def test_a_dead_worker_is_an_error_that_says_where(pool: Executor) -> None:
    with ProcessPoolExecutor(1) as own, pytest.raises(LabkitError, match=r"at a=0 to a=3: the exe"):
        labkit.sweep(deadly, {"a": range(4)}, executor=own, chunk=4)


def deadly(a: int) -> int:
    import os

    os._exit(a + 1)


class Run:
    def __init__(self, rate: float, batcher: str = "orca") -> None:
        self.rate = rate
        self.batcher = batcher

    def summary(self) -> dict[str, Any]:
        return {"rate": self.rate, "latency_s": 1 / self.rate}

    def frame(self) -> pd.DataFrame:
        raise AssertionError("a summary is a row a point, and comes first")


def test_what_describes_itself_becomes_columns() -> None:
    table = labkit.sweep(Run, {"rate": [1.0, 2.0]})
    assert table.to_dict("list") == {"rate": [1.0, 2.0], "latency_s": [1.0, 0.5]}
    lines = labkit.sweep(lambda a: pd.DataFrame({"i": range(a)}), {"a": [2, 0, 1]})
    assert lines.to_dict("list") == {"a": [2, 2, 1], "i": [0, 1, 0]}


def test_named_values_are_shown_by_their_names() -> None:
    batchers = {"first": Run(1.0), "second": Run(4.0)}
    table = labkit.sweep(lambda batcher, k: k * batcher.rate, {"batcher": batchers, "k": [1, 2]})
    assert table["batcher"].tolist() == ["first", "first", "second", "second"]
    assert table["value"].tolist() == [1.0, 2.0, 4.0, 8.0]


def test_points_may_differ_in_their_columns() -> None:
    table = labkit.sweep(lambda **point: dict(point), [{"a": 1}, {"b": 2}])
    assert table["a"].tolist()[0] == 1
    assert table.isna().to_numpy().tolist() == [[False, True], [True, False]]


@pytest.mark.parametrize(
    ("function", "grid", "said"),
    [
        (power, {}, "grid holds no point"),
        (power, {"a": [1], "b": []}, "grid holds no point"),
        (power, [], "grid holds no point"),
        (power, {"a": "12", "b": [1]}, "grid['a'] must hold the values"),
        (power, {"a": 3, "b": [1]}, "grid['a'] must hold the values"),
        (power, [{"a": 1, "b": 1}, 3], "grid must be a mapping"),
        (lambda a: {"a": a + 1}, {"a": [1]}, "at a=1: the function returned a=2"),
    ],
)
def test_a_wrong_grid_is_refused(function: Any, grid: Any, said: str) -> None:
    with pytest.raises(BadValue) as refused:
        labkit.sweep(function, grid)
    assert said in str(refused.value)


@pytest.mark.parametrize("value", [None, [1, 2], object()])
def test_what_is_no_row_is_refused(value: Any) -> None:
    with pytest.raises(LabkitError, match=r"at a=1: TypeError: the function returned .*; valid: a"):
        labkit.sweep(lambda a: value, {"a": [1]})
