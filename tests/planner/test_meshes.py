"""Stages on meshes: the best of all plans, the published loops agree, wrong tables are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import planner
from labkit.errors import BadValue, UsageError
from tests.oracles.stages_on_meshes import by_published_loops, cost_s, least_s


@st.composite
def tables(draw: st.DrawFn, kinds: int = 1, most_layers: int = 4) -> planner.StageTable:
    """Any seconds and bytes of up to four layers on up to three meshes; some stages forbidden."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layers = draw(st.integers(1, most_layers))
    devices = random.integers(0, 3, (draw(st.integers(1, 3)), kinds))
    devices[:, 0] += devices.sum(axis=1) == 0
    shape = (len(devices), layers + 1, layers + 1)
    times = random.integers(1, 20, shape) * 1.0
    times[random.random(shape) < 0.15] = math.inf
    return planner.StageTable(
        meshes=tuple(f"mesh {number}" for number in range(len(devices))),
        devices=devices,
        seconds=times,
        stage_bytes=random.integers(0, 9, shape) * 1.0,
        microbatch_bytes=random.integers(0, 9, shape) * 1.0,
    )


def check(
    table: planner.StageTable, counts: tuple[int, ...], flushes: int, limit: float | None
) -> None:
    least = least_s(table, counts, flushes, limit)
    if math.isinf(least):
        with pytest.raises(UsageError, match="no stages of"):
            planner.place(table, counts, num_microbatches=flushes, memory_bytes=limit)
        return
    found = planner.place(table, counts, num_microbatches=flushes, memory_bytes=limit)
    assert found.cost_s == pytest.approx(least)
    assert found.gap == pytest.approx(0, abs=1e-6)
    firsts = (0, *found.ends[:-1])
    stages = list(zip(found.meshes, firsts, found.ends, strict=True))
    assert cost_s(table, stages, flushes, limit) == pytest.approx(found.cost_s)
    used = table.devices_by_kind[list(found.meshes)].sum(axis=0)
    assert tuple(used.tolist()) == counts


@given(
    table=tables(),
    devices=st.integers(1, 5),
    flushes=st.integers(1, 6),
    limit=st.none() | st.floats(1, 40),
)
def test_no_stages_on_all_devices_take_less(
    table: planner.StageTable, devices: int, flushes: int, limit: float | None
) -> None:
    check(table, (devices,), flushes, limit)


@given(
    table=tables(kinds=2, most_layers=3),
    fast=st.integers(1, 3),
    slow=st.integers(0, 3),
    limit=st.none() | st.floats(1, 40),
)
def test_devices_of_two_kinds_are_all_used(
    table: planner.StageTable, fast: int, slow: int, limit: float | None
) -> None:
    check(table, (fast, slow), 4, limit)


@given(table=tables(), devices=st.integers(1, 5), flushes=st.integers(1, 6))
def test_the_published_loops_find_the_same(
    table: planner.StageTable, devices: int, flushes: int
) -> None:
    assert by_published_loops(table, devices, flushes) == pytest.approx(
        least_s(table, (devices,), flushes)
    )


def even(layers: int, sizes: tuple[int, ...]) -> planner.StageTable:
    """Layers of a second each, divided among the devices of a mesh without loss."""
    places = np.arange(layers + 1)
    work = np.maximum(places[None, :] - places[:, None], 0) * 1.0
    return planner.StageTable(
        meshes=tuple(f"{size} devices" for size in sizes),
        devices=np.array(sizes),
        seconds=np.stack([work / size for size in sizes]),
        microbatch_bytes=np.stack([work / size for size in sizes]),
    )


def test_without_loss_inside_meshes_one_stage_is_best() -> None:
    found = planner.place(even(8, (1, 2, 4)), 4, num_microbatches=3)
    assert found.name == "8 on 4 devices"
    assert found.cost_s == pytest.approx(3 * 8 / 4)
    assert found.num_candidates == 3 * 36


def test_the_first_stage_keeps_more_microbatches() -> None:
    table = even(4, (1,))
    found = planner.place(table, 2, num_microbatches=9, memory_bytes=4)
    assert found.name == "2 on 1 devices, 2 on 1 devices"
    assert found.frame()["memory_bytes"].tolist() == [4, 2]
    tight = planner.place(table, 2, num_microbatches=9, memory_bytes=3)
    assert tight.name == "1 on 1 devices, 3 on 1 devices"
    assert found.cost_s < tight.cost_s


def test_why_names_the_stage_that_limits() -> None:
    words = planner.place(even(3, (1,)), 2, num_microbatches=2).why()
    assert words.startswith("1 on 1 devices, 2 on 1 devices: stage 1 limits it, 2 s")
    assert "6 stages were priced, and no plan takes less than 5 s" in words


GOOD = {"meshes": ("a",), "devices": np.array([1]), "seconds": np.ones((1, 3, 3))}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"devices": np.array([1, 2])}, "a row for each of the 1 meshes"),
        ({"devices": np.array([0])}, "each mesh has some"),
        ({"devices": np.array([1.5])}, "devices must be whole"),
        ({"seconds": np.ones((1, 2, 3))}, "(meshes, layers + 1, layers + 1)"),
        ({"seconds": np.full((1, 3, 3), math.nan)}, "seconds holds NaN"),
        ({"stage_bytes": np.ones((1, 2, 2))}, "stage_bytes must have the shape (1, 3, 3)"),
        ({"stage_bytes": np.full((1, 3, 3), math.inf)}, "stage_bytes must be finite"),
        ({"microbatch_bytes": -np.ones((1, 3, 3))}, "microbatch_bytes holds NaN or a negative"),
    ],
)
def test_wrong_tables_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadValue) as caught:
        planner.StageTable(**(GOOD | change))
    assert problem in str(caught.value)


def test_what_cannot_be_placed_is_said() -> None:
    table = planner.StageTable(**GOOD)
    with pytest.raises(UsageError, match="no stages of 2 layers use exactly 3 devices"):
        planner.place(table, 3)
    with pytest.raises(UsageError, match=r"within memory_bytes, 0\.5"):
        planner.place(even(2, (1,)), 2, memory_bytes=0.5)
    with pytest.raises(BadValue, match="names 2 kinds"):
        planner.place(table, (1, 1))
    with pytest.raises(UsageError, match="num_devices 10000000 need a table of"):
        planner.place(table, 10**7)
