"""Trainings at k times a small batch: rules, updates, the model of scaling, and figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from labkit import hardware
from labkit.papers import largebatch
from labkit.papers.largebatch import Rule
from labkit.tuning.goodput import StepTimes
from labkit.tuning.recording import stacked, training

DATA = training.load_digits()
SMALL = (DATA[0][:96], DATA[1][:96], DATA[2], DATA[3])


def constant(k: int, rate: float = 0.05) -> np.ndarray:
    return np.full(2 * -(-96 // (16 * k)), rate)


def test_at_one_rate_it_does_not_matter_where_the_rate_stands() -> None:
    outside, inside = (
        stacked.train(
            stacked.Stack(batch_size=16, num_epochs=2, seeds=(0,)), [constant(1)], SMALL, update
        )
        for update in (stacked.momentum, largebatch.folded)
    )
    assert outside.losses == pytest.approx(inside.losses, rel=1e-4)


def test_a_step_of_lars_follows_the_weights_and_not_the_gradient() -> None:
    weight = torch.ones(2, 3, 4)
    rate = torch.tensor([0.5, 1.0]).view(2, 1, 1)
    for scale in (1e-3, 1e3):
        moved = weight.clone()
        velocity = torch.zeros_like(weight)
        largebatch.lars(moved, scale * weight, velocity, rate)
        lengths = (weight - moved).flatten(1).norm(dim=1) / weight.flatten(1).norm(dim=1)
        assert lengths.tolist() == pytest.approx([0.05, 0.1], rel=1e-3)


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    cases: dict[str, tuple[float, ...]] = {"kept": (), "gradual": (0.1,)}
    options: dict[str, Any] = {"small_batch": 16, "num_epochs": 2, "data": SMALL}
    return largebatch.sweep(constant, cases, (1, 2), seeds=(0, 1, 2), **options)


def test_a_sweep_holds_every_run_and_its_errors_count_from_the_small_batch(
    runs: pd.DataFrame,
) -> None:
    assert len(runs) == 2 * 2 * 3 * 2
    table = largebatch.errors(runs)
    assert (table.xs(1, level="k")["above"] == 0).all()
    last = runs.query("epoch == 2 and k == 2 and rates == 'gradual'")["error"]
    assert table.loc[("gradual", 2), "mean"] == pytest.approx(last.mean())
    options: dict[str, Any] = {"small_batch": 16, "num_epochs": 2, "data": SMALL}
    alone = largebatch.sweep(constant, {"gradual": (0.1,)}, (2,), seeds=(1,), **options)
    row = runs.query("rates == 'gradual' and k == 2 and seed == 1")
    assert alone["loss"].to_numpy() == pytest.approx(row["loss"].to_numpy(), rel=1e-5)


def test_cases_that_agree_at_a_batch_size_are_one_run_under_both_names() -> None:
    cases: dict[str, tuple[float, ...]] = {"b": (0.1,), "a": (0.1,), "c": (0.2,)}
    options: dict[str, Any] = {"small_batch": 16, "num_epochs": 2, "data": SMALL}
    runs = largebatch.sweep(constant, cases, (1,), seeds=(0, 4), **options)
    losses = {name: rows["loss"].tolist() for name, rows in runs.groupby("rates")}
    assert losses["a"] == losses["b"] != losses["c"]
    alone = largebatch.sweep(constant, {"c": (0.2,)}, (1,), seeds=(4,), **options)
    row = runs.query("rates == 'c' and seed == 4")
    assert row["loss"].tolist() == pytest.approx(alone["loss"].tolist(), rel=1e-5)


JOB = largebatch.Job(step_s=0.2, gradient_bytes=100e6, num_tensors=161)
LINK = hardware.Link(name="test", bytes_per_s=6.25e9, latency_s=20e-6, source="made up")


def fitted(overlap: float, wait: float) -> StepTimes:
    return StepTimes(
        base_s=0.1, per_example_s=0.0, tiers=(), overlap=overlap, wait_per_doubling=wait
    )


def test_without_overlap_an_iteration_is_gradient_and_all_reduce_in_turn() -> None:
    table = largebatch.efficiencies(JOB, LINK, fitted(1.0, 0.0), [2, 16])
    bytes_s = 2 * 15 / 16 * 100e6 / 6.25e9
    hops_s = 161 * 2 * 4 * 20e-6
    assert table["gpus"].tolist() == [16, 128]
    assert table["no traffic"].tolist() == [1.0, 1.0]
    expected = 0.2 / (0.2 + hops_s + bytes_s)
    assert table["halving and doubling"].iloc[1] == pytest.approx(expected)
    assert table["no overlap"].tolist() == pytest.approx(table["halving and doubling"].tolist())
    # Two servers exchange once there and once back, in either way.
    assert table["ring"].iloc[0] == pytest.approx(table["halving and doubling"].iloc[0])
    assert table["ring"].iloc[1] < table["halving and doubling"].iloc[1]


def test_waiting_counts_from_one_server_and_overlap_hides_traffic() -> None:
    table = largebatch.efficiencies(JOB, LINK, fitted(4.0, 0.01), [4])
    assert table["no traffic"].iloc[0] == pytest.approx((1 + 0.01 * 3) / (1 + 0.01 * 5))
    row = table.iloc[0]
    assert row["no overlap"] < row["ring"] < row["halving and doubling"] < row["no traffic"]


def test_figures_hold_a_line_a_rule_and_mark_the_papers(runs: pd.DataFrame) -> None:
    named = runs.replace({"rates": {"kept": Rule.KEPT, "gradual": Rule.GRADUAL}})
    losses = largebatch.figure_losses(named)
    assert [trace.name for trace in losses.data] == [Rule.KEPT, Rule.GRADUAL]
    table = largebatch.errors(named)
    printed = pd.DataFrame({"rates": [Rule.NONE], "k": [32], "above": [0.1], "std": [0.01]})
    figure = largebatch.figure_errors(table, printed, chosen=Rule.KEPT)
    widths = {trace.name: trace.line.width for trace in figure.data}
    assert widths == {Rule.GRADUAL: 2, Rule.KEPT: 5, f"paper: {Rule.NONE}": 2}
    assert figure.data[-1].y == pytest.approx((10,))


def test_other_figures_say_what_they_show() -> None:
    rates = largebatch.figure_rates({Rule.KEPT: np.array([0.1, 0.01])}, 2, title="Rates")
    assert rates.data[0].x == pytest.approx((0, 1))
    apart = largebatch.figure_distances({"at first": [0.1, 0.5]}, (2, 4), title="Apart")
    assert apart.data[0].y == pytest.approx((10, 50))
    table = largebatch.efficiencies(JOB, LINK, fitted(2.0, 0.01), [2, 4])
    scaling = largebatch.figure_scaling(table, (32, 0.9), title="Scaling")
    assert scaling.data[-1].text == ("paper: about 90%",)
