"""Schedules of every kind with random durations, for property tests."""

import numpy as np
from hypothesis import strategies as st

from labkit.pipeline import Costs, Network, build
from labkit.pipeline.planning.relaxation import OptimalPlanner
from labkit.pipeline.profiles.clocks import Task
from labkit.pipeline.simulation.costs import lags

SIZES = {  # names with what their sizes must be multiples of: devices, microbatches
    "gpipe": (1, 1),
    "1f1b": (1, 1),
    "envpipe": (1, 1),
    "pipedream": (1, 1),
    "zb-h1": (1, 1),
    "zb-v": (1, 1),
    "interleaved-1f1b": (2, 4),
    "chimera": (2, 4),
    "dualpipe": (2, 4),
}


def lower_bound_j(schedule, profile, deadline_s, *, network=None):
    """Joules that no plan which ends by the deadline can undercut."""
    return OptimalPlanner(Task(schedule, profile, lag_s=lags(schedule, network))).bounds_j(
        [deadline_s]
    )[0]


@st.composite
def schedules(draw, names=tuple(SIZES)):
    name = draw(st.sampled_from(names))
    stages_of, microbatches_of = SIZES[name]
    stages = stages_of * draw(st.integers(1, 4 // stages_of))
    microbatches = microbatches_of * draw(st.integers(1, 8 // microbatches_of))
    return build(name, stages, max(microbatches, 2 * stages if stages_of > 1 else 1))


@st.composite
def costs(draw, schedule):
    """Whole seconds and bytes a stage, so that sums and comparisons are exact."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))

    def each(low, high):
        return rng.integers(low, high, schedule.num_stages).astype(float)

    return Costs(
        forward_s=each(1, 6),
        backward_s=each(1, 6),
        weight_s=each(1, 6),
        activation_bytes=each(2, 9),
    )


@st.composite
def networks(draw, schedule):
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    return Network(
        latency_s=rng.integers(0, 4, schedule.num_stages - 1).astype(float),
        message_bytes=rng.integers(0, 4, schedule.num_stages - 1).astype(float),
        bandwidth_bytes_per_s=1.0,
        overlap=draw(st.booleans()),
    )


@st.composite
def cases(draw, names=tuple(SIZES)):
    """A schedule, costs and a network for it."""
    schedule = draw(schedules(names))
    return schedule, draw(costs(schedule)), draw(networks(schedule))
