"""Tutel's layer against the engine and by hand; its gate; the slots of tokens."""

from dataclasses import replace

import numpy as np
import pytest

from labkit import collectives
from labkit.papers import tutel
from labkit.papers.tutel.figures import stages


@pytest.mark.parametrize("gpus", [16, 32, 64])
@pytest.mark.parametrize("way", ["direct", "two-level"])
def test_all_to_alls_take_as_long_as_the_engines_programs(gpus: int, way: str) -> None:
    network = tutel.Network(copy_bytes_per_s=float("inf"))
    engine_s = collectives.message_time(
        way, network.fabric(gpus), op="all-to-all", per_node=8 if way == "two-level" else None
    )
    for num_bytes in (2**12, 2**20, 2**28):
        ours_s = network.all_to_all_s(way, gpus, num_bytes)
        assert ours_s == pytest.approx(engine_s(num_bytes), rel=1e-9)


def test_two_levels_gain_at_most_the_gpus_of_a_node_and_the_copies_matter() -> None:
    network = tutel.Network()
    for gpus in (16, 256, 2048):
        direct_s = network.all_to_all_s("direct", gpus, 2**20)
        two_level_s = network.all_to_all_s("two-level", gpus, 2**20)
        assert direct_s / two_level_s < network.per_node
        assert network.all_to_all_s("two-level, chunk by chunk", gpus, 2**20) > two_level_s
        assert network.all_to_all_s("faster", gpus, 2**20) == min(direct_s, two_level_s)


def test_the_stages_of_the_picture_end_with_each_gpus_own_chunks() -> None:
    held = list(stages().values())
    everything = sorted(chunk for chunks in held[0] for chunk in chunks)
    for stage in held:
        assert sorted(chunk for chunks in stage for chunk in chunks) == everything
    for gpu, chunks in enumerate(held[-1]):
        assert chunks == [(source, gpu) for source in range(4)]


def test_pipelining_hides_at_most_the_shorter_lane() -> None:
    assert tutel.pipelined_s(3, 2, 1) == 8
    for degree in (2, 4, 64):
        seconds = tutel.pipelined_s(1 / degree, 2 / degree, degree)
        assert seconds == pytest.approx(2 + 2 / degree)  # all computing, first and last part
        sent_s = tutel.pipelined_s(2 / degree, 1 / degree, degree)
        assert sent_s >= 4  # the network is busy all along


def test_an_einsum_grows_with_the_square_of_the_tokens() -> None:
    layer = tutel.Layer(tokens=1000, dispatch="einsum")
    more = replace(layer, tokens=2000)
    assert more.dispatch_s == pytest.approx(4 * layer.dispatch_s)
    sparse = replace(layer, dispatch="sparse")
    assert replace(sparse, tokens=2000).dispatch_s == pytest.approx(2 * sparse.dispatch_s)


def test_tokens_that_lie_by_sender_slow_only_large_clusters() -> None:
    for gpus, slower in ((16, False), (2048, True)):
        layer = tutel.Layer(gpus=gpus)
        by_sender = replace(layer, flexible=False)
        assert (by_sender.experts_s > layer.experts_s) is slower


def test_interference_takes_from_overlap_alone() -> None:
    layer = tutel.Layer(interference=0.5)
    assert layer.at_degree_s(1) == tutel.Layer().at_degree_s(1)
    assert layer.at_degree_s(4) >= tutel.Layer().at_degree_s(4)


def test_copies_cost_messages_and_save_gathering() -> None:
    free_tokens = tutel.SharedExperts(slices_far=True)
    assert free_tokens.choices == (1, 2, 4, 8)
    few = [free_tokens.seconds(copies, 0.01) for copies in free_tokens.choices]
    many = [free_tokens.seconds(copies, 50) for copies in free_tokens.choices]
    assert few == sorted(few, reverse=True)
    assert many == sorted(many)


def test_choosing_each_step_is_never_slower_than_any_static_choice() -> None:
    experts = tutel.SharedExperts(slices_far=True)
    factors = np.linspace(1, 8, 50)
    best_s = tutel.best_s(experts, factors)
    for copies in experts.choices:
        assert all(best_s <= [experts.seconds(copies, factor) for factor in factors])
    assert all(tutel.best_s(experts, factors, bin_width=1.0) >= best_s)


def test_slots_are_given_first_come_first_served() -> None:
    expert = np.random.default_rng(0).integers(4, size=200)
    given = tutel.slots(expert, capacity=30)
    served = given >= 0
    assert len(set(given[served])) == served.sum()
    assert (given[served] // 30 == expert[served]).all()
    assert served.sum() == np.minimum(np.bincount(expert), 30).sum()


def test_a_balancing_loss_evens_the_load() -> None:
    uneven = tutel.train_gate(steps=40)
    even = tutel.train_gate(steps=40, balance=0.1)
    assert ((uneven >= 1) & (uneven <= 8)).all()
    assert even[-10:].mean() < uneven[-10:].mean()
    assert (tutel.train_gate(steps=5, rng=3) == tutel.train_gate(steps=5, rng=3)).all()
