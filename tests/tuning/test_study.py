from __future__ import annotations

import pytest

from labkit import tuning
from tests.oracles import zeus_simulator as peer
from tests.tuning.conftest import trace_files

TRACES = [("stand-in", "v100"), ("published", "v100"), ("published", "a40")]


@pytest.mark.parametrize(("trace", "gpu"), TRACES)
@pytest.mark.parametrize("workload", tuning.PUBLISHED)
def test_ours_lies_in_the_peers_interval(trace: str, gpu: str, workload: str) -> None:
    """The published policy here and in zeus-ml's simulator, energy and time of the last five runs.

    On published traces in the interval of the simulator's mean, and Welch's t-test tells them
    apart nowhere; where nothing varies both are the same.
    """
    cases = [
        case
        for case in peer.cases()
        if (case.trace, case.gpu, case.workload) == (trace, gpu, workload) and not case.first_runs
    ]
    files = trace_files(trace, gpu)
    job = peer.job_of(*files, cases[0])
    runs = tuning.simulate(job, seeds=range(100), recurrences=cases[0].recurrences or None)
    table = peer.agreement(job, [peer.stored_runs(*files, case) for case in cases], runs)
    assert table["inside"].all() or trace == "stand-in", table.to_string()
    assert (table["p_value"] > 0.001).all(), table.to_string()
    assert ((table["peer"] - table["ours"]).abs() < 0.05).all()


def test_savings_stand_beside_the_paper(standin: tuning.TrainingTrace) -> None:
    table = tuning.savings([standin], policies=("zeus", "oracle"), seeds=range(4))
    assert len(table) == 2 * len(standin.names)
    assert set(table["gpu"]) == {"v100"}
    zeus = table[table["policy"] == "zeus"]
    low, high = tuning.PAPER_RANGE
    expected = zeus["energy_reduction"].between(low, high)
    assert (zeus["in_paper_range"] == expected).all()
    alone = tuning.simulate(standin.job("squad"), seeds=range(4)).summary()
    row = zeus[zeus["workload"] == alone["workload"]].iloc[0]
    assert row["energy_reduction"] == alone["energy_reduction"]
