"""Communication: closed forms, an independent simulation, and what no network can do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.pipeline import Costs, Network, build, simulate
from tests.pipeline.strategies import cases

SIZES = {"stages": st.integers(2, 5), "microbatches": st.integers(1, 9)}
WORK = {"f": st.integers(1, 5), "b": st.integers(1, 5), "c": st.integers(0, 7)}


@given(**SIZES, **WORK)
def test_gpipe_pays_for_each_way_once_when_it_overlaps(stages, microbatches, f, b, c):
    """Messages of later microbatches travel while earlier ones are worked on."""
    line = simulate(
        build("gpipe", stages, microbatches),
        Costs(forward_s=f, backward_s=b),
        network=Network(latency_s=c),
    )
    assert line.makespan_s == (microbatches + stages - 1) * (f + b) + 2 * (stages - 1) * c


@given(**SIZES, **WORK)
def test_gpipe_pays_for_every_message_when_it_does_not_overlap(stages, microbatches, f, b, c):
    """Sending lengthens every instruction but the last stage's forward, stage 0's backward."""
    network = Network(message_bytes=c * 100, bandwidth_bytes_per_s=100, overlap=False)
    line = simulate(
        build("gpipe", stages, microbatches), Costs(forward_s=f, backward_s=b), network=network
    )
    rounds = microbatches + stages - 2
    assert line.makespan_s == rounds * (f + b + 2 * c) + f + b


@given(microbatches=st.integers(1, 12), **WORK)
def test_1f1b_waits_for_a_round_trip_every_two_microbatches(microbatches, f, b, c):
    """On two stages, stage 0 holds two microbatches and must get one back to go on."""
    line = simulate(
        build("1f1b", 2, microbatches),
        Costs(forward_s=f, backward_s=b),
        network=Network(latency_s=c),
    )
    trips = (microbatches + 1) // 2
    assert line.makespan_s == (microbatches + 1) * (f + b) + 2 * c * trips


@given(stages=st.integers(2, 5), trips=st.integers(1, 3), **WORK)
def test_1f1b_is_no_faster_than_its_first_stage_gets_microbatches_back(stages, trips, f, b, c):
    microbatches = trips * stages
    line = simulate(
        build("1f1b", stages, microbatches),
        Costs(forward_s=f, backward_s=b),
        network=Network(latency_s=c),
    )
    there_and_back = stages * (f + b) + 2 * (stages - 1) * c
    assert line.makespan_s >= trips * there_and_back + (stages - 1) * (f + b)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "pipedream"])
def test_one_microbatch_crosses_every_boundary_twice(name):
    network = Network(latency_s=(0.5, 0.25), message_bytes=(8, 6), bandwidth_bytes_per_s=(4.0, 2.0))
    work = Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0)
    plain, line = (simulate(build(name, 3, 1), work, network=n) for n in (None, network))
    assert line.makespan_s == plain.makespan_s + 2 * (0.5 + 8 / 4 + 0.25 + 6 / 2)


def naive_ends(schedule, duration, network):
    """Messages looked up one by one; starts pushed back until nothing moves."""
    rows = [tuple(row) for row in schedule.frame().values]
    number = {(stage, kind, mb): i for i, (_, stage, kind, mb) in enumerate(rows)}

    def gradient(stage, mb):
        whole = number.get((stage, "backward", mb))
        return number[stage, "input", mb] if whole is None else whole

    def message_s(sender, receiver):
        if rows[sender][0] == rows[receiver][0]:
            return 0.0
        k = min(rows[sender][1], rows[receiver][1])
        return network.latency_s[k] + network.message_bytes[k] / network.bandwidth_bytes_per_s

    inputs = {}
    for i, (_, stage, kind, mb) in enumerate(rows):
        if kind == "forward":
            inputs[i] = number[stage - 1, "forward", mb] if stage else None
        elif kind == "weight":
            inputs[i] = number[stage, "input", mb]
        elif stage == schedule.num_stages - 1:
            inputs[i] = number[stage, "forward", mb]
        else:
            inputs[i] = gradient(stage + 1, mb)
    sends = np.zeros(len(rows))
    for i, j in inputs.items():
        if j is not None and not network.overlap:
            sends[j] += message_s(j, i)
    end = np.array(duration, dtype=float)
    while True:
        start = np.zeros(len(rows))
        for i, (device, *_) in enumerate(rows):
            if i and rows[i - 1][0] == device:
                start[i] = end[i - 1] + sends[i - 1]
            if inputs[i] is not None:
                start[i] = max(start[i], end[inputs[i]] + message_s(inputs[i], i))
        if np.array_equal(new := start + duration, end):
            return end
        end = new


@given(cases())
def test_simulation_agrees_with_a_naive_one(case):
    schedule, work, network = case
    line = simulate(schedule, work, network=network)
    expected = naive_ends(schedule, work.durations_s(schedule), network)
    np.testing.assert_array_equal(line.end_s, expected)


@given(cases())
def test_a_network_that_takes_no_time_changes_nothing(case):
    schedule, work, _ = case
    for overlap in (True, False):
        line = simulate(schedule, work, network=Network(overlap=overlap))
        plain = simulate(schedule, work)
        np.testing.assert_array_equal(line.start_s, plain.start_s)
        np.testing.assert_array_equal(line.slack_s, plain.slack_s)
        assert line.makespan_s == plain.makespan_s


@given(cases(), st.integers(0, 5), st.booleans())
def test_a_slower_network_never_ends_earlier(case, more_s, overlap):
    schedule, work, network = case

    def makespan_s(latency_s, overlap):
        slower = Network(
            latency_s=latency_s,
            message_bytes=network.message_bytes,
            bandwidth_bytes_per_s=1.0,
            overlap=overlap,
        )
        return simulate(schedule, work, network=slower).makespan_s

    fast = network.latency_s
    slow = np.array(network.latency_s) + more_s
    assert makespan_s(fast, overlap) <= makespan_s(slow, overlap)
    assert makespan_s(fast, True) <= makespan_s(fast, False)


def test_stages_of_one_device_exchange_nothing():
    line = simulate(
        build("zb-v", 1, 4),
        Costs(forward_s=1.0, backward_s=1.0, weight_s=1.0),
        network=Network(latency_s=9),
    )
    assert line.makespan_s == 2 * 4 * 3
    assert len(line.messages_frame()) == 0


def test_messages_tell_who_sends_what_to_whom_and_when():
    line = simulate(
        build("gpipe", 2, 1), Costs(forward_s=1.0, backward_s=2.0), network=Network(latency_s=0.5)
    )
    assert line.messages_frame().to_dict("list") == {
        "source": [0, 1],
        "device": [1, 0],
        "stage": [1, 0],
        "kind": ["forward", "backward"],
        "microbatch": [0, 0],
        "sent_s": [1.0, 4.5],
        "arrived_s": [1.5, 5.0],
    }


def test_the_busiest_link_counts_what_bandwidth_takes():
    network = Network(latency_s=5.0, message_bytes=(1.0, 4.0), bandwidth_bytes_per_s=2.0)
    line = simulate(build("gpipe", 3, 6), Costs(forward_s=3.0, backward_s=3.0), network=network)
    assert line.busiest_link_ratio == pytest.approx(6 * 4.0 / 2.0 / line.makespan_s)
    assert (
        simulate(build("gpipe", 3, 6), Costs(forward_s=3.0, backward_s=3.0)).busiest_link_ratio == 0
    )


# ---------------------------------------------------------------- bad requests


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"latency_s": -1.0}, "Network.latency_s must be a finite number, at least 0.*got -1.0"),
        ({"latency_s": (1.0, float("nan"))}, "or a list of items, each a finite number"),
        ({"latency_s": "soon"}, "latency_s must be a finite number.*'soon'"),
        ({"message_bytes": 1.0}, "message_bytes need bandwidth_bytes_per_s"),
        (
            {"message_bytes": 1.0, "bandwidth_bytes_per_s": 0.0},
            "bandwidth_bytes_per_s must be a finite number, above 0",
        ),
    ],
)
def test_bad_networks_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Network(**settings)


def test_boundaries_must_fit_the_schedule():
    with pytest.raises(UsageError, match="latency_s has 3 values, the schedule 2 stage boundaries"):
        simulate(
            build("1f1b", 3, 2),
            Costs(forward_s=1.0, backward_s=2.0),
            network=Network(latency_s=(1, 2, 3)),
        )
