from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from labkit import tuning
from labkit.errors import UsageError
from tests.tuning.conftest import published_trace


def test_ours_lies_in_the_peers_interval(standin: tuning.TrainingTrace) -> None:
    """The published policy here and in zeus-ml's simulator, on two workloads, both quantities."""
    jobs = [standin.job(name) for name in ("squad", "imagenet")]
    table = tuning.against_peer(jobs, seeds=range(200), peer_seeds=range(1, 7), recurrences=40)
    assert list(table["quantity"]) == ["energy", "time"] * 2
    assert (table["p_value"] > 0.001).all()
    assert ((table["peer"] - table["ours"]).abs() < 0.05).all()
    assert (table["peer_low"] <= table["peer"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["v100", "a40"])
def test_ours_lies_in_the_peers_interval_on_every_published_workload(gpu: str) -> None:
    table = tuning.against_peer(published_trace(gpu).jobs())
    assert table["inside"].all(), table.to_string()
    assert (table["times_faster"] > 1).all()


def test_where_nothing_varies_the_peer_agrees_exactly(standin: tuning.TrainingTrace) -> None:
    table = tuning.against_peer(
        [standin.job("sentiment140")], seeds=range(3), peer_seeds=(1, 2), recurrences=20
    )
    assert table["peer"].to_numpy() == pytest.approx(table["ours"].to_numpy(), abs=1e-12)
    assert table["inside"].all()


def test_savings_stand_beside_the_paper_and_the_peer(standin: tuning.TrainingTrace) -> None:
    table = tuning.savings(
        [standin], policies=("zeus", "oracle"), seeds=range(4), recurrences=12, peer_seeds=(1, 2)
    )
    assert len(table) == 2 * len(standin.names)
    assert set(table["gpu"]) == {"v100"}
    zeus, oracle = (table[table["policy"] == name] for name in ("zeus", "oracle"))
    assert zeus["peer_energy_reduction"].notna().all()
    assert oracle["peer_energy_reduction"].isna().all()
    low, high = tuning.PAPER_RANGE
    expected = zeus["energy_reduction"].between(low, high)
    assert (zeus["in_paper_range"] == expected).all()
    alone = tuning.simulate(standin.job("squad"), seeds=range(4), recurrences=12).summary()
    row = zeus[zeus["workload"] == alone["workload"]].iloc[0]
    assert row["energy_reduction"] == alone["energy_reduction"]


def test_a_comparison_is_paired_over_seeds(standin: tuning.TrainingTrace) -> None:
    job = standin.job("squad")
    table = tuning.compare([job], ["halving", "zeus"], seeds=range(20), recurrences=30)
    cost = {
        name: tuning.simulate(job, policy=name, seeds=range(20), recurrences=30)
        .per_recurrence("cost_j")
        .sum(axis=1)
        for name in ("halving", "zeus")
    }
    paired = stats.ttest_rel(cost["halving"], cost["zeus"]).confidence_interval(0.95)
    row = table.set_index("policy").loc["halving"]
    base = cost["zeus"].mean()
    assert row["cost_ratio"] == pytest.approx(cost["halving"].mean() / base)
    assert row["cost_ratio_low"] == pytest.approx(1 + paired.low / base)
    assert row["cost_ratio_high"] == pytest.approx(1 + paired.high / base)
    same = table.set_index("policy").loc["zeus"]
    assert (same["cost_ratio"], same["regret_ratio"], same["wins"]) == (1.0, 1.0, False)


def test_what_is_held_out_does_not_choose() -> None:
    """Setting b is best only on workload z; so z's row must take a, the best on x and y."""
    ratios = {"x": (0.8, 0.9), "y": (0.7, 0.9), "z": (0.9, 0.1)}
    table = pd.DataFrame(
        [
            {"workload": w, "policy": p, "cost_ratio": r, "regret_ratio": r}
            for w, pair in ratios.items()
            for p, r in zip("ab", pair, strict=True)
        ]
    )
    chosen = tuning.held_out(table).set_index("workload")
    assert chosen.loc["z", "policy"] == "a"
    assert chosen.loc["z", "cost_ratio"] == 0.9
    assert chosen.loc["x", "policy"] == "b"
    with pytest.raises(UsageError, match="two workloads"):
        tuning.held_out(table[table["workload"] == "x"])


def test_variations_change_one_constant_each() -> None:
    set_as = tuning.CostCurve()
    varied = tuning.variations(set_as, 2.0)
    assert varied.pop("as set") == set_as
    assert len(varied) == 2 * 7
    for name, policy in varied.items():
        changed = [f for f in set_as.__slots__ if getattr(policy, f) != getattr(set_as, f)]
        assert changed == [name.split()[0]]
    assert {p.patience_factor for p in varied.values()} == {1.5, 2.0, 3.0}
    with pytest.raises(UsageError, match="factor must be above 1"):
        tuning.variations(set_as, 1.0)


def test_bands_are_student_s_intervals_in_runs_of_the_optimum(
    standin: tuning.TrainingTrace,
) -> None:
    job = standin.job("squad")
    runs = tuning.simulate(job, seeds=range(12), recurrences=15)
    bands = tuning.regret_bands([runs])
    regret = runs.regret_j() / tuning.optimum(job).cost_j
    low, high = stats.t.interval(0.95, 11, regret.mean(0), stats.sem(regret))
    assert np.allclose(bands["regret"], regret.mean(0))
    assert np.allclose(bands["regret_low"], low)
    assert np.allclose(bands["regret_high"], high)
    assert bands["recurrence"].tolist() == list(range(1, 16))


def test_the_peer_refuses_what_it_cannot_count(standin: tuning.TrainingTrace) -> None:
    with pytest.raises(UsageError, match="knows no host or idle power"):
        tuning.peer_history(standin.job("squad", host_power_w=50.0), seed=1)
