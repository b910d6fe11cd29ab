"""Stacked trainings are the ordinary ones, side by side."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labkit.errors import LabkitError
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
            rng=seed,
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


def test_rates_of_another_length_are_refused() -> None:
    what = stacked.Stack(batch_size=16, num_epochs=2, seeds=(0,))
    with pytest.raises(LabkitError, match="1 × 12, got 1 × 3"):
        stacked.train(what, [[0.1] * 3], SMALL)
