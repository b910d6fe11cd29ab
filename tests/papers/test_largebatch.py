"""Trainings at k times a small batch: rules, updates and figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from labkit.papers import largebatch
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


def test_figures_hold_a_line_a_rule_and_mark_the_papers(runs: pd.DataFrame) -> None:
    assert [trace.name for trace in largebatch.figure_losses(runs).data] == ["kept", "gradual"]
    table = largebatch.errors(runs)
    printed = pd.DataFrame({"rates": ["none"], "k": [32], "above": [0.1], "std": [0.01]})
    names = [trace.name for trace in largebatch.figure_errors(table, printed).data]
    assert names == ["gradual", "kept", "paper, none"]
