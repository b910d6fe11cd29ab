"""One weird trick's schemes: bounds, what hides, and bytes counted by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest

from labkit.papers import owt
from labkit.papers.owt import Box, Scheme

BOX = Box()
INPUTS = 9216  # of AlexNet's first dense layer, an image


@pytest.mark.parametrize("scheme", Scheme)
def test_no_scheme_beats_the_bound(scheme):
    assert 1 < BOX.speedup(scheme) < BOX.gpus
    assert replace(BOX, gpus=1).speedup(scheme) == pytest.approx(1)


def test_schemes_send_the_same_bytes_at_other_times():
    sent = {BOX.sent_bytes(s) for s in (Scheme.ALL_AT_ONCE, Scheme.ROTATING, Scheme.SHARED)}
    assert len(sent) == 1


def test_the_first_dense_layer_gathers_all_images_and_sends_gradients_back():
    row = BOX.table(Scheme.SHARED).set_index("operator").loc["fc6"]
    images = BOX.gpus * BOX.images
    assert row["transferred_bytes"] == 2 * (BOX.gpus - 1) * images * INPUTS * 4
    assert row["gradient_bytes"] == 0


def test_data_parallelism_sends_each_weight_twice_but_for_its_part():
    weights = sum(each.weights for each in BOX.shapes.operators)
    assert BOX.sent_bytes(Scheme.DATA) == pytest.approx(2 * (BOX.gpus - 1) * 4 * weights)


def test_links_without_limit_leave_nothing_to_hide():
    fast = replace(BOX, bytes_per_s=1e18)
    for scheme in Scheme:
        assert fast.speedup(scheme) == pytest.approx(BOX.gpus)


def test_where_sending_takes_all_the_time_turns_add_a_first_and_a_last():
    slow = replace(BOX, flops_per_s=1e24)
    dense = slow.table(Scheme.SHARED).query("kind == 'dense'")
    arriving_s = dense["transfers_s"].iloc[0] / 2
    at_once_s = slow.step_s(Scheme.ALL_AT_ONCE)
    # Forward and backward share the time of K turns of a K-th, and two turns stand alone.
    shared_s = at_once_s - 2 * arriving_s + arriving_s * (1 + 2 / slow.gpus)
    assert slow.step_s(Scheme.SHARED) == pytest.approx(shared_s)
    rotating_s = at_once_s - 2 * arriving_s + arriving_s * (slow.gpus + 2)
    assert slow.step_s(Scheme.ROTATING) == pytest.approx(rotating_s)


def test_a_message_that_reaches_all_makes_the_sender_no_bottleneck():
    assert replace(BOX, multicast=True).step_s(Scheme.ROTATING) < BOX.step_s(Scheme.ROTATING)
    pair = replace(BOX, gpus=2)
    assert replace(pair, multicast=True).step_s(Scheme.ROTATING) == pair.step_s(Scheme.ROTATING)


def test_a_link_between_halves_slows_what_crosses_it():
    halves = replace(BOX, halves=True)
    assert halves.step_s(Scheme.ALL_AT_ONCE) > BOX.step_s(Scheme.ALL_AT_ONCE)
    few = replace(BOX, gpus=4)
    assert replace(few, halves=True).step_s(Scheme.DATA) == few.step_s(Scheme.DATA)


def test_speedups_grow_with_the_gpus():
    table = owt.speedups(BOX, (Scheme.SHARED, Scheme.DATA))
    for column in table:
        assert all(one < other for one, other in pairwise(table[column]))


def test_feed_forward_has_a_transformers_weights():
    network = owt.feed_forward(batch=2, tokens_a_side=4, hidden=8)
    assert network.by_name["up"].weights == 8 * 32 + 32
    assert network.by_name["down"].weights == 32 * 8 + 8
    assert network.by_name["down"].output["height"] == 4
