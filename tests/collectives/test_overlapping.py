"""Overlap: logs of small steps, and what no order beats."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import collectives
from labkit.errors import BadValue

POLICIES = ("after", "wait-free", "across", "priority")


def layers(forward: list[float], backward: list[float], num_bytes: list[int]) -> pd.DataFrame:
    columns = {"forward_s": forward, "backward_s": backward, "parameter_bytes": num_bytes}
    return pd.DataFrame(columns)


TWO = layers([1, 1], [2, 2], [4, 4])


def test_the_log_of_a_step_without_waiting() -> None:
    run = collectives.overlap(TWO, [3.0, 3.0], policy="wait-free")
    begin = run.events[0].start_s
    log = [(e.lane, e.what, e.layer, e.start_s - begin, e.end_s - begin) for e in run.events]
    assert log == [
        ("compute", "forward", 0, 0, 1),
        ("compute", "forward", 1, 1, 2),
        ("compute", "backward", 1, 2, 4),
        ("compute", "backward", 0, 4, 6),
        ("network", "gradients", 1, 4, 7),
        ("network", "gradients", 0, 7, 10),
    ]
    assert run.step_s == 10
    assert run.exposed_s == 4


def test_what_waits_for_what() -> None:
    steps = {p: collectives.overlap(TWO, [3.0, 3.0], policy=p).step_s for p in POLICIES}
    # after: 6 + 6; wait-free: 4 + 6; across: layer 0 comes last, so nothing is gained; priority:
    # layer 1 is sent first, since it exists first, so nothing either.
    assert steps == {"after": 12, "wait-free": 10, "across": 10, "priority": 10}


def test_priority_sends_first_what_is_needed_first() -> None:
    # Three layers: while the last one's gradients are sent, both others come to exist.
    three = layers([1, 1, 1], [1, 1, 1], [1, 1, 1])
    steps = {p: collectives.overlap(three, [3, 3, 3], policy=p).step_s for p in POLICIES}
    assert steps["priority"] < steps["across"] <= steps["wait-free"] < steps["after"]


@st.composite
def profiles(draw: st.DrawFn) -> pd.DataFrame:
    count = draw(st.integers(1, 6))
    seconds = st.lists(st.floats(0, 10), min_size=count, max_size=count)
    sizes = st.lists(st.integers(0, 100), min_size=count, max_size=count)
    return layers(draw(seconds), draw(seconds), draw(sizes))


@given(profile=profiles(), bucket=st.integers(0, 150), each=st.floats(0, 0.2))
def test_no_order_beats_the_busier_lane(profile: pd.DataFrame, bucket: int, each: float) -> None:
    for policy in POLICIES:
        run = collectives.overlap(
            profile, lambda num_bytes: 0.5 + each * num_bytes, policy=policy, bucket_bytes=bucket
        )
        assert run.step_s >= run.bound_s * (1 - 1e-9)
        assert run.step_s <= (run.compute_s + run.network_s) * (1 + 1e-9)
        assert (
            sum(message.num_bytes for message in run.messages) == profile["parameter_bytes"].sum()
        )


@given(profile=profiles())
def test_waiting_for_less_is_never_slower(profile: pd.DataFrame) -> None:
    steps = [
        collectives.overlap(profile, lambda num_bytes: 0.01 * num_bytes, policy=policy).step_s
        for policy in ("after", "wait-free", "across")
    ]
    assert steps[0] * (1 + 1e-9) >= steps[1] >= steps[2] * (1 - 1e-9)


def test_joining_small_gradients_saves_latency() -> None:
    many = layers([0.0] * 100, [1e-5] * 100, [4_000] * 100)
    fabric = collectives.Fabric.flat(8, bandwidth_bytes_per_s=1e9, latency_s=1e-4)
    seconds = collectives.message_time("ring", fabric)
    alone = collectives.overlap(many, seconds)
    joined = collectives.overlap(many, seconds, bucket_bytes=400_000)
    assert len(alone.messages) == 100
    assert len(joined.messages) == 1
    assert alone.step_s > 20 * joined.step_s


@pytest.mark.parametrize(
    ("profile", "problem"),
    [
        (TWO.drop(columns="backward_s"), "lacks the column 'backward_s'"),
        (TWO.assign(forward_s=math.nan), "forward_s of profile must hold numbers of at least 0"),
        (TWO.iloc[:0], "must hold numbers"),
    ],
)
def test_wrong_profiles_are_refused(profile: pd.DataFrame, problem: str) -> None:
    with pytest.raises(BadValue, match=problem):
        collectives.overlap(profile, [1.0, 1.0])


def test_as_many_seconds_as_layers() -> None:
    with pytest.raises(BadValue, match="message_s holds 3 seconds for the 2 layers"):
        collectives.overlap(TWO, [1.0, 1.0, 1.0])
