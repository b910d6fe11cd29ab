"""Pictures say what they show, and refuse what they cannot."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit import collectives
from labkit.errors import BadValue

FABRIC = collectives.Fabric.flat(4, bandwidth_bytes_per_s=1e9, latency_s=1e-5)


def test_a_program_has_a_line_a_row() -> None:
    ring = collectives.program("ring", 4, 1 << 20)
    fig = collectives.figure_program(ring)
    lines = [trace for trace in fig.data if trace.mode == "lines"]
    assert [trace.name for trace in lines] == ["added by the receiver", "kept by the receiver"]
    assert sum(list(trace.x).count(None) for trace in lines) == len(ring.rows.step)


def test_costs_have_a_line_an_algorithm_and_the_bound() -> None:
    table = collectives.compare("all-reduce", FABRIC, [1024, 1 << 20])
    fig = collectives.figure_costs(table)
    assert [trace.name for trace in fig.data] == [*sorted(set(table["algorithm"])), "bound"]


def test_overlap_has_two_lanes_a_run() -> None:
    layers = {"forward_s": [1.0, 1.0], "backward_s": [2.0, 2.0], "parameter_bytes": [1, 1]}
    run = collectives.overlap(pd.DataFrame(layers), [3.0, 3.0])
    fig = collectives.figure_overlap({"wait-free": run})
    assert {lane for trace in fig.data for lane in trace.y} == {"compute", "network"}
    assert max(b + x for t in fig.data for b, x in zip(t.base, t.x, strict=True)) == 10_000


def test_what_cannot_be_drawn_is_refused() -> None:
    large = collectives.program("ring", 64, 1 << 20)
    with pytest.raises(BadValue, match="a picture shows at most 4,000"):
        collectives.figure_program(large)
    with pytest.raises(BadValue, match="lacks the column 'algorithm'"):
        collectives.figure_costs(pd.DataFrame({"num_bytes": [1]}))
    with pytest.raises(BadValue, match="runs is empty"):
        collectives.figure_overlap({})
