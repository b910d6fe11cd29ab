"""The trace read back as a viewer would, against the tables it was made from."""

import itertools
import json
from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings

from labkit import pipeline
from labkit.pipeline import Costs, Network, build, simulate
from labkit.pipeline.simulation.trace import trace_events
from tests.pipeline.strategies import cases

NS = 0.0011  # one nanosecond in microseconds, and rounding


def by_phase(events):
    found = defaultdict(list)
    for event in events:
        found[event["ph"]].append(event)
    return found


def table_of(events):
    """The frame's columns from complete events."""
    rows = [
        (
            e["pid"],
            e["args"]["stage"],
            e["args"]["kind"],
            e["args"]["microbatch"],
            e["ts"] / 1e6,
            (e["ts"] + e["dur"]) / 1e6,
            e["args"]["slack_s"],
        )
        for e in events
    ]
    columns = ["device", "stage", "kind", "microbatch", "start_s", "end_s", "slack_s"]
    return pd.DataFrame(rows, columns=columns)


def sorted_rows(table):
    keys = ["device", "stage", "kind", "microbatch"]
    return table.sort_values(keys).reset_index(drop=True)


@settings(max_examples=40)
@given(cases())
def test_a_trace_holds_the_frame(case):
    schedule, work, network = case
    line = simulate(schedule, work, network=network)
    events = by_phase(trace_events(line, line.frame()))
    found, expected = (sorted_rows(t) for t in (table_of(events["X"]), line.frame()))
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, atol=1e-8)


@settings(max_examples=40)
@given(cases())
def test_a_trace_is_well_formed(case):
    """No negative durations, sorted, every track named, slices of a track apart."""
    schedule, work, network = case
    line = simulate(schedule, work, network=network, jitter=0.3, rng=np.random.default_rng(1))
    events = trace_events(line, line.frame())
    assert json.loads(json.dumps(events, allow_nan=False)) == events
    names = [e for e in events if e["ph"] == "M"]
    timed = [e for e in events if e["ph"] != "M"]
    assert events == names + timed
    assert all(a["ts"] <= b["ts"] for a, b in itertools.pairwise(timed))
    tracks = {(e["pid"], e["tid"]) for e in names if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in names if e["name"] == "process_name"}
    assert processes == {d: f"device {d}" for d in range(schedule.num_devices)}
    free = dict.fromkeys(tracks, 0.0)
    for event in by_phase(events)["X"]:
        track = event["pid"], event["tid"]
        assert event["dur"] >= 0
        assert event["ts"] >= free[track] - 1e-6
        free[track] = event["ts"] + event["dur"]


@settings(max_examples=40)
@given(cases())
def test_arrows_run_from_slice_to_slice_of_another_device(case):
    schedule, work, network = case
    line = simulate(schedule, work, network=network)
    events = by_phase(trace_events(line, line.frame()))
    starts, ends = ({e["id"]: e for e in events[phase]} for phase in "sf")
    messages = line.messages_frame()
    assert starts.keys() == ends.keys()
    assert len(starts) == len(events["s"]) == len(events["f"]) == len(messages)
    sent = sorted(zip(messages.source, messages.device, messages.sent_s * 1e6, strict=True))
    drawn = sorted((e["pid"], ends[i]["pid"], e["ts"]) for i, e in starts.items())
    np.testing.assert_allclose(drawn, sent, atol=2 * NS)
    slices = {(e["pid"], e["ts"]) for e in events["X"] if e["tid"] == 0}
    for arrow in ends.values():
        assert (arrow["pid"], arrow["ts"]) in slices
        assert arrow["bp"] == "e"
        assert starts[arrow["id"]]["ts"] <= arrow["ts"]
    for arrow in starts.values():  # inside the sender's slice, not at its end
        assert any(
            e["pid"] == arrow["pid"] and e["ts"] <= arrow["ts"] < e["ts"] + e["dur"]
            for e in events["X"]
            if e["tid"] == 0
        )


@settings(max_examples=40)
@given(cases())
def test_counters_show_memory(case):
    schedule, work, network = case
    line = simulate(schedule, work, network=network)
    values = defaultdict(list)
    for event in by_phase(trace_events(line, line.frame()))["C"]:
        assert event["name"] == "activation bytes"
        values[event["pid"]].append(event["args"]["value"])
    peaks = [max(values[d]) for d in range(schedule.num_devices)]
    assert peaks == list(line.peak_activation_bytes)
    assert all(held[-1] == 0 for held in values.values())


def test_a_plans_trace_tells_clock_energy_and_power(make_profile):
    profile = make_profile(np.random.default_rng(0), num_stages=3, num_clocks=4)
    made = pipeline.plan(build("1f1b", 3, 4), profile, "optimal")
    table = made.frame()
    events = by_phase(trace_events(made.timeline, table, waiting_power_w=profile.blocking_power_w))
    assert {e["args"]["clock_mhz"] for e in events["X"]} == set(table.clock_mhz)
    energy_j = sum(e["args"]["energy_j"] for e in events["X"])
    assert energy_j == pytest.approx(table.energy_j.sum())
    watts = defaultdict(list)
    for event in events["C"]:
        if event["name"] == "power (W)":
            watts[event["pid"]].append((event["ts"] / 1e6, event["args"]["value"]))
    drawn_j = 0.0
    for steps in watts.values():  # the area under the counters is the iteration's energy
        time, power = np.array(steps).T
        drawn_j += float(np.diff(np.append(time, made.makespan_s)) @ power)
    assert drawn_j == pytest.approx(made.energy_j, rel=1e-6)


def test_a_saved_trace_is_one_whole_file(tmp_path):
    line = simulate(
        build("1f1b", 2, 3), Costs(forward_s=1.0, backward_s=2.0), network=Network(latency_s=0.1)
    )
    path = line.save_trace(tmp_path / "deep" / "trace.json")
    assert [p.name for p in path.parent.iterdir()] == ["trace.json"]
    content = json.loads(path.read_text())
    assert content["otherData"] == {"name": "1f1b"}
    assert content["traceEvents"] == trace_events(line, line.frame())
