"""PipeDream: published plans, rivals' prices, training on older weights, and the figures."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit import planner
from labkit.papers import pipedream
from labkit.papers.pipedream import Rule, Way
from tests.published import Need

torch = pytest.importorskip("torch")

LINK = 1.25e9  # bytes/s


@pytest.fixture
def chain() -> planner.Chain:
    """A front that computes, a back that weighs, and little that crosses between them."""
    return planner.Chain(
        forward_s=(0.02, 0.02, 0.001),
        backward_s=(0.04, 0.04, 0.002),
        activation_bytes=(1e7, 1e7, 1e6),
        cut_bytes=(4e6, 1e5, 0.0),
        parameter_bytes=(1e6, 1e6, 4e8),
    )


@pytest.fixture
def four() -> planner.Fabric:
    return planner.Fabric.flat(4, bandwidth_bytes_per_s=LINK)


FIRST_NUMBERS = {"vgg16": 64 * 224 * 224, "resnet50": 64 * 112 * 112, "alexnet": 64 * 55 * 55}
"""What the first convolution gives for an image, from the networks' papers and torchvision."""


@pytest.mark.parametrize("network", sorted(pipedream.PROFILED_IMAGES))
def test_images_of_a_profile_follow_from_its_activations(
    network: str, published_data: Need
) -> None:
    path = f"profiler/image_classification/profiles/{network}/graph.txt"
    graph = published_data("pipedream-sosp19", [path]).path(path).read_text(encoding="utf-8")
    image_bytes = 4 * FIRST_NUMBERS[network]
    batch_bytes = pipedream.PROFILED_IMAGES[network] * image_bytes
    assert f"activation_size={batch_bytes}.000" in graph


def test_plans_are_read_as_replicas_of_each_stage(tmp_path: Path) -> None:
    conf = tmp_path / "conf.json"
    conf.write_text(json.dumps({"stage_to_rank_map": {"0": [0, 1, 2], "1": [3]}}))
    missing = "gnmt/gpus=4/hybrid_conf.json"
    data: Any = SimpleNamespace(has=lambda name: name != missing, path=lambda name: conf)
    plans = pipedream.published_plans(data)
    assert set(plans.values()) == {"3-1"}
    assert [*plans] == [case for case in pipedream.CASES if case != ("gnmt", 4)]
    assert missing in pipedream.file_names()


def test_pipedream_replicates_what_computes(chain: planner.Chain, four: planner.Fabric) -> None:
    plan = planner.plan(chain, four, costing="server")
    assert plan.name == "3-1"
    assert pipedream.last_layer(plan) == "layer 2"
    assert pipedream.minibatch_s(Way.PIPEDREAM, chain, four) == pytest.approx(plan.cost_s)


def test_rivals_lose_where_they_must(chain: planner.Chain, four: planner.Fabric) -> None:
    seconds = {way: pipedream.minibatch_s(way, chain, four) for way in Way}
    assert seconds[Way.PIPEDREAM] < seconds[Way.FLUSHED]
    assert seconds[Way.BALANCED] < seconds[Way.ALONE]
    # One minibatch at a time takes all compute, and every cut's bytes there and back.
    plan = pipedream.balanced(chain, four)
    crossing_s = 2 * sum(chain.crossing_bytes[cut] for cut in plan.cuts) / LINK
    assert seconds[Way.ALONE] == pytest.approx(chain.time_s + crossing_s)


def test_speedups_are_over_data_parallelism_and_below_the_bound(chain: planner.Chain) -> None:
    table = pipedream.speedups(Way.PIPEDREAM, chain, 4, [1, 10, 100])
    assert (table["speedup"] <= table["bound"] * (1 + 1e-9)).all()
    assert (table["speedup"] >= 1 - 1e-9).all()
    fabric = planner.Fabric.flat(4, bandwidth_bytes_per_s=10 * 1e9 / 8)
    whole = planner.price(chain, fabric, (4,), costing="server")
    ours_s = pipedream.minibatch_s(Way.PIPEDREAM, chain, fabric)
    assert table["speedup"].iloc[1] == pytest.approx(whole.cost_s / ours_s)


def test_gradients_are_autograds_at_the_weights_of_the_forward() -> None:
    pixels, labels = pipedream.images()
    targets = torch.eye(10).double()[labels]
    rng = np.random.default_rng(0)
    weights = [weight[0] for weight in pipedream.draw_weights(3, rng, num_seeds=1)]
    leaves = [weight.clone().requires_grad_() for weight in weights]
    scores = pixels[:16]
    for weight in leaves[:-1]:
        scores = (scores @ weight).relu()
    torch.nn.functional.cross_entropy(scores @ leaves[-1], labels[:16]).backward()
    found = pipedream.gradients(weights, weights, pixels[:16], targets[:16])
    for ours, leaf in zip(found, leaves, strict=True):
        assert torch.allclose(ours, leaf.grad)
    other = [2 * weight for weight in weights]
    wrong = pipedream.gradients(weights, other, pixels[:16], targets[:16])
    assert torch.allclose(wrong[-1], found[-1])  # the last layer's needs no weights behind it
    assert not torch.allclose(wrong[0], found[0])


def test_a_single_stage_trains_alike_under_every_rule() -> None:
    ran = [pipedream.accuracies(rule, 1, [0.1], num_seeds=2, num_steps=20) for rule in Rule]
    for scores in ran[1:]:
        assert np.array_equal(scores, ran[0])


def test_older_weights_change_a_training_and_rates_do_not_mix() -> None:
    both = pipedream.accuracies(Rule.STASHING, 3, [0.05, 0.1], num_seeds=2, num_steps=30)
    alone = pipedream.accuracies(Rule.STASHING, 3, [0.1], num_seeds=2, num_steps=30)
    assert np.array_equal(both[1:], alone)
    newest = pipedream.accuracies(Rule.ONE_WORKER, 3, [0.1], num_seeds=2, num_steps=30)
    assert not np.array_equal(newest, alone)


def test_figures_say_what_they_show(chain: planner.Chain, four: planner.Fabric) -> None:
    idea = pipedream.figure_idea(planner.plan(chain, four, costing="server"))
    assert [bar.name for bar in idea.data] == [
        "stage 0: layers 1 to 2, 3 GPUs",
        "stage 1: layers 3 to 3, 1 GPU",
    ]
    totals = np.sum([bar.x for bar in idea.data], axis=0)
    assert totals == pytest.approx([100, 100])
    steps = pipedream.figure_steps({"a": 0.2, "b, c": 0.1}, 0.05, title="Steps")
    assert steps.data[0].text == ("200", "100")
    scores = {rule: np.array([[0.9, 0.8], [0.5, 0.5]]) for rule in Rule}
    ages = pipedream.figure_ages(scores, [0.1, 0.2], title="Ages")
    assert ages.data[0].y == pytest.approx((85, 50))
    table = pipedream.speedups(Way.PIPEDREAM, chain, 4, [1, 10])
    lines = pipedream.figure_bandwidth({"ours": table}, 5.3, published_gbit=10, title="Lines")
    assert lines.data[-1].text == ("paper: up to 5.3",)
    swept = pd.DataFrame({"costing": ["ring"], "speedup": [2.0], "plan": ["3-1"]})
    bars = pipedream.figure_costings(swept, 5.3, title="Costings")
    assert bars.layout.annotations[0].text == "paper: up to 5.3"
    waits = pd.DataFrame({"network": "vgg16", "devices": [1, 2], "waits_fraction": [0.0, 0.5]})
    assert pipedream.figure_waiting(waits, title="Waits").data[0].y == pytest.approx((0, 50))
