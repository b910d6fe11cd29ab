"""Training under a policy is training; what a policy hears is what the step computed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from labkit.errors import LabkitError
from labkit.papers import kungfu
from labkit.papers.kungfu import figures
from labkit.tuning import goodput, noise
from labkit.tuning.recording import stacked, training

DATA = training.load_digits()
Policy = Generator[int, kungfu.Norms, None]


def run_of(**fields: Any) -> kungfu.AdaptiveRun:
    given = {
        "small_batch": 16,
        "small_rate": 0.05,
        "num_workers": 4,
        "num_examples": 160,
        "rng": 0,
    }
    return kungfu.AdaptiveRun(**(given | {"check_every": 1} | fields))


def fixed(batch: int, heard: list[kungfu.Norms] | None = None) -> Policy:
    while True:
        norms = yield batch
        if heard is not None:
            heard.append(norms)


def test_workers_that_share_a_batch_train_as_one_process_does() -> None:
    batch = 718
    seed = 3  # two steps, then two images are left over, at a rate of 0
    run = run_of(small_batch=batch, num_workers=2, num_examples=2 * batch, rng=seed)
    shared = kungfu.train(run, fixed(batch), DATA)
    stack = stacked.Stack(batch_size=batch, num_epochs=1, seeds=(seed,))
    alone = stacked.train(stack, [[0.05, 0.05, 0.0]], DATA)
    assert shared["error"].iloc[-1] == pytest.approx(alone.errors[-1, 0])


def test_a_policy_hears_the_norms_of_the_workers_and_of_their_mean() -> None:
    heard: list[kungfu.Norms] = []
    table = kungfu.train(run_of(), fixed(16, heard), DATA)
    assert len(heard) == len(table) == 10
    order = torch.randperm(len(DATA[0]), generator=torch.Generator().manual_seed(0))
    share = order[:16].view(4, 4)
    rows = kungfu.replicas(stacked.initial([0]), DATA[0][share], DATA[1][share])
    assert heard[0][0] == pytest.approx((rows**2).sum(1).mean(), rel=1e-4)
    assert heard[0][1] == pytest.approx((rows.mean(0) ** 2).sum(), rel=1e-4)
    terms = noise.from_replicas(rows, 4)
    assert table["grad_sqr"][0] == pytest.approx(terms.grad_sqr, rel=1e-3)
    assert table["covariance_trace"][0] == pytest.approx(terms.covariance_trace, rel=1e-3)


def test_a_policy_may_hear_some_of_the_workers_only() -> None:
    heard: list[kungfu.Norms] = []
    kungfu.train(run_of(heard_workers=1, num_examples=16), fixed(16, heard), DATA)
    order = torch.randperm(len(DATA[0]), generator=torch.Generator().manual_seed(0))
    rows = kungfu.replicas(stacked.initial([0]), DATA[0][order[None, :4]], DATA[1][order[None, :4]])
    assert heard[0][0] == pytest.approx((rows**2).sum(), rel=1e-4)


def test_replicas_of_equal_batches_average_to_the_gradient_of_all() -> None:
    own = stacked.initial([7])
    rows = kungfu.replicas(own, DATA[0][:40].view(4, 10, 64), DATA[1][:40].view(4, 10))
    _, slopes = stacked.gradients(own, DATA[0][None, :40], DATA[1][None, :40])
    whole = torch.cat([slope.flatten() for slope in slopes])
    assert rows.mean(0) == pytest.approx(whole.double().numpy(), abs=1e-6)


def test_the_batch_and_with_it_the_rate_follow_the_policy() -> None:
    def doubling() -> Policy:
        batch = 16
        while True:
            yield batch
            batch = min(2 * batch, 64)

    table = kungfu.train(run_of(num_examples=240), doubling(), DATA)
    assert table["batch_size"].tolist() == [16, 32, 64, 64, 64]
    assert table["examples"].tolist() == [16, 48, 112, 176, 240]


@pytest.mark.parametrize("batch", [6, 2000, 0])
def test_a_batch_that_the_workers_cannot_share_is_refused(batch: int) -> None:
    with pytest.raises(LabkitError, match=f"multiple of 4 workers .* chose {batch}"):
        kungfu.train(run_of(), fixed(batch), DATA)


def test_one_worker_has_no_second_batch_size() -> None:
    with pytest.raises(LabkitError, match="num_workers"):
        run_of(num_workers=1)


LOOKS = pd.DataFrame(
    {
        "policy": ["a", "a", "a", "a", "b", "b"],
        "seed": [0, 0, 1, 1, 0, 0],
        "step": [5, 10, 5, 10, 5, 10],
        "examples": [40, 120, 40, 80, 40, 80],
        "batch_size": [8, 16, 8, 8, 8, 8],
        "error": [0.5, 0.1, 0.5, 0.3, 0.2, 0.1],
    }
)


def test_times_are_sums_of_steps_and_count_only_where_every_seed_arrives() -> None:
    times = kungfu.times_to(LOOKS, lambda batch: 2.0 * batch, [0.5, 0.1]).set_index(
        ["policy", "error"]
    )["time_s"]
    assert times.loc[("a", 0.5)] == times.loc[("b", 0.5)] == 2 * 5 * 8
    assert times.loc[("b", 0.1)] == 2 * 10 * 8
    assert np.isnan(times.loc[("a", 0.1)])  # one of its two seeds never got there


def test_a_summary_counts_steps_and_examples_as_the_run_did() -> None:
    runs = LOOKS[LOOKS["seed"] == 0]
    row = kungfu.summary(runs, lambda batch: np.full(len(batch), 3.0), 0.1).loc["a"].to_dict()
    assert row == {"steps": 10, "examples": 120, "time_s": 30, "largest_batch": 16}
    assert kungfu.final_error(runs)["a"] == pytest.approx(0.3)
    assert kungfu.final_error(runs, 60)["a"] == 0.5


def test_times_by_seed_have_a_row_a_seed_and_a_column_a_policy() -> None:
    times = kungfu.times_by_seed(LOOKS, np.ones_like, 0.3)
    assert times["a"].to_dict() == {0: 10, 1: 10}
    assert times["b"].to_dict() == {0: 5, 1: pytest.approx(np.nan, nan_ok=True)}


def test_a_comparison_names_policy_and_seed_and_its_figures_draw_each() -> None:
    fields = {"small_batch": 16, "small_rate": 0.05, "num_workers": 4, "num_examples": 160}
    cases = {"small": {"batch": 16}, "large": {"batch": 32}}
    runs = kungfu.compare(fixed, cases, (0, 1), DATA, check_every=5, **fields)
    assert set(zip(runs["policy"], runs["seed"], strict=True)) == {
        (policy, seed) for policy in cases for seed in (0, 1)
    }
    times = kungfu.times_to(runs, np.asarray, [0.9])
    assert [trace.name for trace in figures.figure_times(times).data] == ["small", "large"]
    by_seed = kungfu.times_by_seed(runs, np.ones_like, 0.9)
    ratios = figures.figure_ratios(by_seed, [*cases], baseline="small", paper=0.5, gpus=4)
    assert ratios.data[0].x[0] == 1
    assert len(ratios.data[1].x) == 4


def test_monitoring_that_costs_the_same_seconds_a_step_is_predicted_exactly() -> None:
    """8 and 64 images in 1 and 4 s; monitoring takes 1 s, or a quarter of it at interval 4."""
    rows = [(8, "none", 1, 8.0), (8, "m", 1, 4.0), (8, "m", 4, 6.4), (64, "none", 1, 16.0)]
    rows.append((64, "m", 1, 64 / 5))
    printed = pd.DataFrame(rows, columns=["batch_size", "metric", "interval", "images_per_s"])
    table = kungfu.monitored_rates(printed, 8)
    assert table["predicted_per_s"].tolist() == pytest.approx([6.4, 12.8])
    assert table["plain_per_s"].tolist() == [8, 16]


def test_the_figures_of_idea_and_noise_draw_what_they_are_given() -> None:
    assert {trace.name for trace in figures.figure_idea().data} >= {"gradient"}
    run = pd.DataFrame({"examples": [8, 24], "noise_scale": [20.0, 30.0], "batch_size": [8, 16]})
    threshold = figures.figure_noise(run, 2.0).data[1]
    assert threshold.y == (16, 32)


@pytest.fixture
def published() -> tuple[goodput.GoodputModel, goodput.Tables]:
    runs = pd.DataFrame(
        {"batch_size": 128, "progress": [100.0, 200.0, 300.0], "noise_scale": [200.0, 800.0, 3e3]}
    )
    tables = goodput.Tables(workload="cifar10", steps=pd.DataFrame(), runs=runs)
    tier = goodput.SyncTier(from_nodes=1, base_s=0.05)
    times = goodput.StepTimes(base_s=0.02, per_example_s=1e-3, tiers=(tier,), overlap=2.0)
    return goodput.GoodputModel(step_times=times, init_batch_size=128), tables


def test_the_initial_batch_takes_its_steps_and_most_goodput_the_least_time(
    published: tuple[goodput.GoodputModel, goodput.Tables],
) -> None:
    model, tables = published
    choices: dict[str, Any] = {
        "best": lambda at: 4 * at.optimize(1, 4, 4096).atomic_bsz,
        **{str(batch): batch for batch in (128, 512, 2048, 4096)},
    }
    table = kungfu.replay(model, tables, choices, 1, 4).set_index("choice")["time_s"]
    assert table["128"] == pytest.approx(300 * float(model.step_times.step_time_s(1, 4, 32)))
    assert table.idxmin() == "best"
