"""OptCNN's cluster and ways: searches nest, bounds hold, measured layers find their operators."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from labkit import planner
from labkit.errors import BadValue
from labkit.papers import optcnn
from labkit.papers.optcnn import Cluster, Gradients, Way
from labkit.papers.optcnn.figures import _owners

SMALL = Cluster(gpus=4)


@pytest.fixture(scope="module")
def alexnet():
    return SMALL.split("alexnet")


def test_a_search_over_more_layouts_is_never_slower(alexnet):
    whole, no_places, two = (
        alexnet.step_s(way) for way in (Way.LAYER_WISE, Way.NO_PLACES, Way.TWO_LAYOUTS)
    )
    assert whole <= no_places <= two
    assert two <= min(alexnet.step_s(rival) for rival in optcnn.RIVALS)


def test_nobody_is_faster_than_all_gpus_together(alexnet):
    assert all(alexnet.speedup(way) <= SMALL.gpus for way in Way)


def test_rivals_are_those_of_the_engine(alexnet):
    same = alexnet.layouts.same((4, 1, 1, 1), dense=(1, 4, 1, 1))
    assert alexnet.plan(Way.KRIZHEVSKY) == same
    assert alexnet.plan(Way.DATA) == alexnet.layouts.same((4, 1, 1, 1))


def test_data_parallelism_sends_gradients_alone(alexnet):
    weights = sum(operator.weights for operator in alexnet.layouts.network.operators)
    assert alexnet.sent_bytes(Way.DATA) == pytest.approx(2 * 3 * 4 * weights)


def test_a_server_takes_half_as_many_rings_as_it_has_replicas(alexnet):
    server = replace(SMALL, gradients=Gradients.SERVER).split("alexnet")
    compute_s = alexnet.table(Way.DATA)["compute_s"].sum()
    rings_s = alexnet.step_s(Way.DATA) - compute_s
    assert server.step_s(Way.DATA) - compute_s == pytest.approx(4 / 2 * rings_s)


def test_hidden_gradients_cost_what_does_not_fit(alexnet):
    table = alexnet.table(Way.DATA)
    longer_s = max(table["compute_s"].sum(), table["gradients_s"].sum())
    assert alexnet.hidden_s(Way.DATA) == pytest.approx(longer_s)


def test_measures_of_the_best_rival_are_one_at_most():
    found = optcnn.measures(SMALL, Way.KRIZHEVSKY, networks=["alexnet"])
    assert max(found["speedup"]) <= 1
    assert min(found["traffic"]) <= 1


def test_a_restricted_problem_keeps_its_costs(alexnet):
    def halves(layout):
        return prod(layout) == 2

    small = optcnn.restricted(alexnet.problem, alexnet.layouts, halves)
    plan = planner.choose(small).plan
    assert small.cost(plan) == pytest.approx(alexnet.problem.cost(plan))
    with pytest.raises(BadValue, match="conv1"):
        optcnn.restricted(alexnet.problem, alexnet.layouts, lambda _: False)


def test_measured_seconds_are_all_there_and_scale_with_the_batch():
    network = planner.network("alexnet", batch=64)
    kinds = {"convolution": "Conv2d", "pool": "MaxPool2d", "dense": "Linear"}
    layers = []
    for operator in network.operators[1:]:
        layers += [f"node {kinds[operator.kind]}", "node ReLU"]
    chain = planner.Chain(
        forward_s=(1.0,) * len(layers),
        backward_s=(2.0,) * len(layers),
        activation_bytes=(4.0 * 1000 * 128,) * len(layers),  # 1,000 classes, 128 images
        cut_bytes=(0.0,) * len(layers),
        parameter_bytes=(0.0,) * len(layers),
        layers=tuple(layers),
    )
    seconds = optcnn.measured_s(chain, network)
    assert sum(seconds.values()) == pytest.approx(chain.time_s / 2)
    assert set(seconds.values()) == {3.0}
    with pytest.raises(BadValue, match="other operators"):
        optcnn.measured_s(chain, planner.network("vgg16", batch=64))
    unsized = replace(chain, activation_bytes=(0.0,) * len(layers))
    with pytest.raises(BadValue, match="no size of its last output"):
        optcnn.measured_s(unsized, network)


def test_random_problems_are_connected_and_solved_exactly():
    rng = np.random.default_rng(3)
    problem = optcnn.random_problem(rng, num_nodes=5)
    assert {reader for _, reader in problem.edge_costs} == set(problem.choices) - {"n0"}
    assert planner.choose(problem).cost == pytest.approx(planner.choose(problem, method="all").cost)


def test_gpus_fill_machines():
    with pytest.raises(BadValue, match="multiple"):
        _ = Cluster(gpus=6).fabric


@pytest.mark.parametrize("layout", [(4, 1, 1, 1), (1, 4, 1, 1), (1, 1, 2, 2), (2, 2, 1, 1)])
def test_the_idea_shows_equal_parts(layout):
    assert np.bincount(_owners(layout).ravel()).tolist() == [16, 16, 16, 16]
