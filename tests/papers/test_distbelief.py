"""DistBelief: gradients, replicas in virtual time, L-BFGS, and a network cut over machines."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from labkit.errors import BadValue
from labkit.papers import distbelief
from labkit.papers.distbelief import IMAGE, SPEECH, Adagrad, Cluster, Fixed, Machine


@pytest.fixture(scope="module")
def data() -> distbelief.Data:
    return distbelief.read_data(rng=0)


@pytest.fixture(scope="module")
def start(data: distbelief.Data) -> np.ndarray:
    return distbelief.warm_start(data, updates=50, rng=0)


def test_the_gradient_is_that_of_finite_differences(
    data: distbelief.Data, start: np.ndarray
) -> None:
    images = data.images[:8]
    digits = data.digits[:8]

    def loss(weights: np.ndarray) -> float:
        return distbelief.loss_and_gradient(weights, images, digits)[0]

    slope = distbelief.gradient(start, images, digits)
    assert optimize.approx_fprime(start, loss, 1e-6) == pytest.approx(slope, abs=1e-5)


def test_replicas_that_take_turns_are_as_stale_as_there_are_others(
    data: distbelief.Data, start: np.ndarray
) -> None:
    for replicas in (1, 4):
        run = distbelief.downpour(
            data,
            start,
            Fixed(0.1),
            cluster=Cluster(replicas=replicas, spread=0.0),
            target=1.0,
            max_updates=200,
        )
        assert run.updates == 200
        # The first pushes of a run are fresher.
        assert run.staleness == pytest.approx(replicas - 1, abs=0.04)


def test_one_replica_is_plain_sgd_and_time_is_computing_and_two_messages(
    data: distbelief.Data, start: np.ndarray
) -> None:
    cluster = Cluster(spread=0.0, message_s=0.004, sample_s=0.001)
    run = distbelief.downpour(
        data, start, Fixed(0.1), cluster=cluster, target=1.0, max_updates=20, rng=3
    )
    assert run.curve[-1][0] == pytest.approx(20 * (16 * 0.001 + 0.008))


def test_adagrad_divides_by_the_root_of_the_squares(start: np.ndarray) -> None:
    rule = Adagrad(0.5)
    weights = np.zeros_like(start)
    rule.apply(weights, np.full_like(start, 3.0))
    rule.apply(weights, np.full_like(start, 4.0))
    assert weights == pytest.approx(np.full_like(start, -0.5 - 0.5 * 4 / 5))


def test_sandblaster_beats_no_lower_bound_and_reaches_the_target(
    data: distbelief.Data, start: np.ndarray
) -> None:
    few = distbelief.sandblaster(data, start, cluster=Cluster(replicas=4), target=0.95)
    many = distbelief.sandblaster(data, start, cluster=Cluster(replicas=32), target=0.95)
    assert few.samples == many.samples
    assert few.time_s > many.time_s
    bound_s = few.samples * 1e-3 / 4
    assert few.time_s > 0.8 * bound_s


def test_small_portions_even_out_slow_replicas() -> None:
    cluster = Cluster(replicas=16, spread=0.5, message_s=0.0)
    even_s = np.mean([distbelief.pass_s(cluster, portion=80, rng=seed) for seed in range(20)])
    small_s = np.mean([distbelief.pass_s(cluster, portion=8, rng=seed) for seed in range(20)])
    assert small_s < 0.8 * even_s


def test_the_networks_have_the_papers_weights() -> None:
    assert round(sum(layer.weights for layer in SPEECH) / 1e6) == 42
    assert round(sum(layer.weights for layer in IMAGE) / 1e9, 1) == 1.7


def test_a_cut_sends_nothing_on_one_machine_and_never_gains_more_than_machines() -> None:
    machine = Machine()
    for network, kind in ((SPEECH, "full"), (IMAGE, "local"), (IMAGE, "full")):
        assert distbelief.speedup(network, 1, kind, machine=machine) == 1
        for machines in (4, 16, 64):
            gain = distbelief.speedup(network, machines, kind, machine=machine)
            assert 0 < gain < machines
    free = Machine(link_bytes_per_s=1e30, message_s=0.0)
    assert distbelief.speedup(SPEECH, 16, machine=free) == pytest.approx(16)


def test_a_tile_fetches_the_rim_that_its_windows_reach() -> None:
    layer = IMAGE[1]
    side = layer.side
    tile = side / 3
    counted = distbelief.received_bytes(layer, 9, "local", batch=1)
    assert counted == pytest.approx(4 * 36 * ((tile + 9) ** 2 - tile**2))
    with pytest.raises(BadValue, match="square number"):
        distbelief.received_bytes(layer, 8, "local")
