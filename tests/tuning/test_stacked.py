"""Stacked trainings are the ordinary ones, side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from labkit.errors import LabkitError
from labkit.tuning import figures
from labkit.tuning.recording import stacked, training

DATA = training.load_digits()
SMALL = (DATA[0][:96], DATA[1][:96], DATA[2], DATA[3])


def constant(k: int, rate: float = 0.05) -> np.ndarray:
    return np.full(2 * -(-96 // (16 * k)), rate)


def test_every_run_is_the_ordinary_training_of_its_seed_and_rate() -> None:
    what = stacked.Stack(batch_size=100, num_epochs=3, seeds=(3, 4))
    rates = np.repeat([[0.05], [0.2]], 3 * 15, axis=1)
    runs = stacked.train(what, rates, DATA)
    for run, (seed, rate) in enumerate(zip(what.seeds, (0.05, 0.2), strict=True)):
        alone = training.Training(
            network="mlp",
            batch_size=100,
            seed=seed,
            learning_rate=rate,
            max_epochs=3,
            targets=(1.0,),
        )
        accuracies = training.train(alone, DATA).accuracies
        assert runs.errors[:, run] == pytest.approx(1 - np.array(accuracies))


def test_a_run_does_not_feel_its_neighbours_in_the_stack() -> None:
    weights = stacked.initial([0, 1, 2])
    images = DATA[0][:30].view(3, 10, 64)
    labels = DATA[1][:30].view(3, 10)
    losses, slopes = stacked.gradients(weights, images, labels)
    for run in range(3):
        own = [weight[run : run + 1] for weight in weights]
        loss, slope = stacked.gradients(own, images[run : run + 1], labels[run : run + 1])
        assert loss[0] == pytest.approx(float(losses[run]), rel=1e-5)
        for whole, part in zip(slopes, slope, strict=True):
            assert torch.allclose(whole[run], part[0], atol=1e-6)


@pytest.mark.parametrize("worker_batch", [None, 8, 10, 22, 40])
def test_the_written_chain_rule_is_autograds(worker_batch: int | None) -> None:
    """Six runs on two stacks of images: runs 0, 2 and 4 have the first."""
    weights = stacked.initial(range(6))
    images = DATA[0][:44].view(2, 22, 64)
    labels = DATA[1][:44].view(2, 22)
    losses, slopes = stacked.gradients(weights, images, labels, worker_batch)
    for run in range(6):
        leaves = [weight[run].clone().requires_grad_() for weight in weights]
        hidden = images[run % 2].double() @ leaves[0].T + leaves[1]
        if worker_batch:
            groups = hidden.split(worker_batch)
            hidden = torch.cat(
                [
                    torch.nn.functional.batch_norm(g, None, None, training=True)
                    if len(g) > 1
                    else g * 0
                    for g in groups
                ]
            )
        loss = torch.nn.functional.cross_entropy(
            hidden.relu() @ leaves[2].T + leaves[3], labels[run % 2]
        )
        assert float(losses[run]) == pytest.approx(float(loss.detach()), rel=1e-12)
        for ours, torchs in zip(slopes, torch.autograd.grad(loss, leaves), strict=True):
            torch.testing.assert_close(ours[run], torchs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("examples", [16, 22])
def test_a_worker_normalises_over_its_own_examples_alone(examples: int) -> None:
    weights = stacked.initial([5])
    images = DATA[0][None, :examples]
    together = stacked.outputs(weights, images, worker_batch=8)
    apart = [stacked.outputs(weights, part, worker_batch=8) for part in images.split(8, dim=1)]
    assert torch.allclose(together, torch.cat(apart, 1), atol=1e-5)
    whole = stacked.outputs(weights, images, worker_batch=examples)
    assert not torch.allclose(together, whole, atol=1e-3)


def test_replicas_of_equal_batches_average_to_the_gradient_of_all() -> None:
    own = stacked.initial([7])
    rows = stacked.replicas(own, DATA[0][:40].view(4, 10, 64), DATA[1][:40].view(4, 10))
    _, slopes = stacked.gradients(own, DATA[0][None, :40], DATA[1][None, :40])
    whole = torch.cat([slope.flatten() for slope in slopes])
    assert rows.mean(0) == pytest.approx(whole.double().numpy(), abs=1e-6)


def test_at_one_rate_it_does_not_matter_where_the_rate_stands() -> None:
    outside, inside = (
        stacked.train(
            stacked.Stack(batch_size=16, num_epochs=2, seeds=(0,)), [constant(1)], SMALL, update
        )
        for update in (stacked.momentum, stacked.folded)
    )
    assert outside.losses == pytest.approx(inside.losses, rel=1e-4)


def test_a_step_of_lars_follows_the_weights_and_not_the_gradient() -> None:
    weight = torch.ones(2, 3, 4)
    rate = torch.tensor([0.5, 1.0]).view(2, 1, 1)
    for scale in (1e-3, 1e3):
        moved = weight.clone()
        velocity = torch.zeros_like(weight)
        stacked.lars(moved, scale * weight, velocity, rate)
        lengths = (weight - moved).flatten(1).norm(dim=1) / weight.flatten(1).norm(dim=1)
        assert lengths.tolist() == pytest.approx([0.05, 0.1], rel=1e-3)


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    cases: dict[str, tuple[float, ...]] = {"kept": (), "gradual": (0.1,)}
    options: dict[str, Any] = {"small_batch": 16, "num_epochs": 2, "data": SMALL}
    return stacked.sweep(constant, cases, (1, 2), seeds=(0, 1, 2), **options)


def test_a_sweep_holds_every_run_and_its_errors_count_from_the_small_batch(
    runs: pd.DataFrame,
) -> None:
    assert len(runs) == 2 * 2 * 3 * 2
    table = stacked.errors(runs)
    assert (table.xs(1, level="k")["above"] == 0).all()
    last = runs.query("epoch == 2 and k == 2 and rates == 'gradual'")["error"]
    assert table.loc[("gradual", 2), "mean"] == pytest.approx(last.mean())
    options: dict[str, Any] = {"small_batch": 16, "num_epochs": 2, "data": SMALL}
    alone = stacked.sweep(constant, {"gradual": (0.1,)}, (2,), seeds=(1,), **options)
    row = runs.query("rates == 'gradual' and k == 2 and seed == 1")
    assert alone["loss"].to_numpy() == pytest.approx(row["loss"].to_numpy(), rel=1e-5)


def test_cases_that_agree_at_a_batch_size_are_one_run_under_both_names() -> None:
    cases: dict[str, tuple[float, ...]] = {"b": (0.1,), "a": (0.1,), "c": (0.2,)}
    options: dict[str, Any] = {"small_batch": 16, "num_epochs": 2, "data": SMALL}
    runs = stacked.sweep(constant, cases, (1,), seeds=(0, 4), **options)
    losses = {name: rows["loss"].tolist() for name, rows in runs.groupby("rates")}
    assert losses["a"] == losses["b"] != losses["c"]
    alone = stacked.sweep(constant, {"c": (0.2,)}, (1,), seeds=(4,), **options)
    row = runs.query("rates == 'c' and seed == 4")
    assert row["loss"].tolist() == pytest.approx(alone["loss"].tolist(), rel=1e-5)


def test_rates_of_another_length_are_refused() -> None:
    what = stacked.Stack(batch_size=16, num_epochs=2, seeds=(0,))
    with pytest.raises(LabkitError, match="1 × 12, got 1 × 3"):
        stacked.train(what, [[0.1] * 3], SMALL)


def test_figures_hold_a_line_a_rule_and_mark_the_papers(runs: pd.DataFrame) -> None:
    assert [trace.name for trace in figures.figure_losses(runs).data] == ["kept", "gradual"]
    table = stacked.errors(runs)
    printed = pd.DataFrame({"rates": ["none"], "k": [32], "above": [0.1], "std": [0.01]})
    names = [trace.name for trace in figures.figure_errors(table, printed).data]
    assert names == ["gradual", "kept", "paper, none"]
