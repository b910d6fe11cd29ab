"""The runs that ZeRO-Offload prints, the servers behind them, and Adam on this CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.memory import Recipe
from labkit.memory.plans.throughput import throughput
from labkit.papers import zero_offload

PAPERS = Path(__file__).resolve().parents[2] / "data" / "papers"
AWAY = Recipe(offload_gradients="cpu", offload_optimizer="cpu")


def test_the_cluster_of_zeros_runs_keeps_to_the_hardware() -> None:
    """Below a V100's peak and a card's line rate; within 20 % of every run it is fitted to."""
    path = PAPERS / "zero" / "runs.csv"
    cluster = zero_offload.dgx2_cluster(path)
    assert cluster.flops_per_s < 125e12
    assert cluster.ring.bytes_per_s < 12.5e9
    fig4 = zero_offload.printed_runs(path).query("figure == 'Fig. 4' and stage == 2")
    for run in fig4.itertuples():
        ours = throughput(run.plan, cluster).flops_per_s / 1e12  # type: ignore[arg-type]
        assert ours == pytest.approx(run.tflops, rel=0.2)


def test_the_printed_sizes_are_those_of_their_plans() -> None:
    """The size column in billions is the model's, to the rounding of whole and half billions."""
    runs = zero_offload.printed_runs(PAPERS / "zero-offload" / "runs.csv", AWAY)
    assert [of.recipe for of in runs["plan"]] == [AWAY]
    assert runs["plan"][0].num_params / 1e9 == pytest.approx(10, rel=0.05)


def test_one_kernel_updates_faster_than_many() -> None:
    speed = zero_offload.adam_speed()
    assert speed["fused"] * 3 < speed["for-loop"]


def test_a_small_training_is_the_same_each_time_and_learns() -> None:
    losses = []
    for _ in range(2):
        training = zero_offload.SmallTraining(rate=1e-3, seed=3)
        before = training.validation_loss()
        for batch in training.batches():
            training.update(training.gradients(batch))
        losses.append(training.validation_loss())
        assert losses[-1] < before / 2
    assert losses[0] == losses[1]
