"""Tofu's cuts: bytes by who has what, searches beside all plans, and the machine's invariants."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from labkit.errors import BadValue
from labkit.papers import tofu
from labkit.papers.tofu import Count, Machine, Method
from labkit.papers.tofu.cuts import KEPT, SUM, Role, dimension_choices, letter_choices
from labkit.papers.tofu.figures import owners

SIZE = 8


def places(letters, term, worker):
    """The numbers of a tensor of 8 × 8 that a worker has, cut by these letters, one at a time."""
    numbers = {letter: [*range(SIZE)] for letter in term}
    for letter, side in zip(letters, worker, strict=True):
        if letter in numbers:
            half = len(numbers[letter]) // 2
            numbers[letter] = numbers[letter][half:] if side else numbers[letter][:half]
    return {*itertools.product(*(numbers[letter] for letter in term))}


def counted(term, chosen, stored, role):
    """Numbers that all workers receive, one by one."""
    received = 0
    workers = [*itertools.product((0, 1), repeat=len(chosen))]
    held_letters = tuple(term[dimension] for dimension in stored)
    for worker in workers:
        held = places(held_letters, term, worker)
        if role is Role.OUTPUT:
            for number in held:
                received += sum(number in places(chosen, term, other) for other in workers)
            received -= len(held & places(chosen, term, worker))
        else:
            received += len(places(chosen, term, worker) - held)
    return received / SIZE**2


@pytest.mark.parametrize("role", [Role.INPUT, Role.OUTPUT])
@pytest.mark.parametrize("cuts", [1, 2, 3])
def test_moved_bytes_are_those_counted_number_by_number(role, cuts):
    for chosen in itertools.product("nio", repeat=cuts):
        for stored in itertools.product((0, 1), repeat=cuts):
            assert tofu.moved("no", chosen, stored, role) == counted("no", chosen, stored, role)


def test_halvings_count_no_less_with_one_cut_and_do_not_mind_the_order():
    for chosen in itertools.product("nio", repeat=3):
        for stored in itertools.product((0, 1), repeat=3):
            both = [*zip(chosen, stored, strict=True)]
            turned_chosen, turned_stored = zip(*both[::-1], strict=True)
            same = tofu.moved_by_halvings("no", chosen, stored)
            assert same == tofu.moved_by_halvings("no", turned_chosen, turned_stored)
    for letter, dimension in itertools.product("nio", (0, 1)):
        exact = tofu.moved("no", (letter,), (dimension,))
        assert exact == tofu.moved_by_halvings("no", (letter,), (dimension,))


def test_sums_that_are_kept_move_nothing_until_they_are_added():
    assert tofu.moved("no", ("i", "i"), (KEPT, KEPT), Role.OUTPUT) == 0
    assert tofu.moved("nc", (SUM, SUM), (KEPT, KEPT)) == 0
    assert tofu.moved("nc", (SUM,), (0,), Role.OUTPUT) == 1  # added at once
    assert tofu.moved("nc", (SUM,), (0,), Role.GRADIENT) == 1  # a copy of each half
    assert tofu.moved("no", ("i",), (KEPT,), Role.GRADIENT) == 0
    assert tofu.moved("no", ("n",), (KEPT,)) == float("inf")


@pytest.fixture(scope="module")
def networks():
    rng = np.random.default_rng(0)
    return [tofu.small_network(rng) for _ in range(6)]


def test_halving_by_halving_recursion_is_the_best_of_these_plans(networks):
    found = tofu.ratios(networks, [Method.TOFU], Count.HALVINGS)[Method.TOFU]
    assert found == pytest.approx([1] * len(networks))


def test_by_who_has_what_it_is_not(networks):
    found = tofu.ratios(networks, [Method.TOFU])[Method.TOFU]
    assert min(found) >= 1 - 1e-9
    assert max(found) > 1.01


def test_all_cuts_at_once_are_the_best_of_all_plans():
    network = tofu.small_network(np.random.default_rng(5), num_layers=1)
    least = np.inf
    names = [*network.tensors]
    for cuts in itertools.product(*(dimension_choices(network.tensors[name], 2) for name in names)):
        stored = dict(zip(names, cuts, strict=True))
        total = 0.0
        for operator in network.operators:
            prices = []
            for way in letter_choices(network, operator, 2):
                price = 0.0
                for name, term in (*operator.inputs, operator.output):
                    share = tofu.moved(term, way, stored[name], operator.role(name, term))
                    price += network.tensors[name].num_bytes * share
                prices.append(price)
            total += min(prices)
        least = min(least, total)
    assert tofu.planned(network, Method.FLAT, 2).moved_bytes == pytest.approx(least)


def test_no_method_beats_all_cuts_at_once(networks):
    for found in tofu.ratios(networks[:3], [*tofu.HEURISTICS, Method.TOFU]).values():
        assert min(found) >= 1 - 1e-9


def test_sums_kept_are_never_worse():
    model = tofu.lstm(2, hidden=1024, sequences=64)
    kept = tofu.planned(model.network, Method.KEPT)
    assert kept.moved_bytes <= tofu.planned(model.network, Method.FLAT).moved_bytes
    tofu_plan = tofu.planned(model.network, Method.TOFU)
    assert tofu.memory_share(model, kept, 8) > tofu.memory_share(model, tofu_plan, 8)


def test_models_have_the_sizes_of_their_layers():
    model = tofu.wide_resnet(152, width=1, images=8)
    convolutions = 1 + 3 * 50 + 4  # stem, units, and short ways
    assert len(model.layers) == convolutions + 1
    assert sum(layer.flops for layer in model.layers) == pytest.approx(model.network.flops)
    assert model.weight_bytes / 4 == pytest.approx(60.0e6, rel=0.01)  # ResNet-152, no biases
    recurrent = tofu.lstm(10)
    assert recurrent.weight_bytes / 4 == pytest.approx(10 * 8 * 8192**2, rel=0.06)
    assert sum(layer.flops for layer in recurrent.layers) == pytest.approx(recurrent.network.flops)


def test_layers_are_placed_in_order_and_evenly():
    model = tofu.wide_resnet(50, width=2, images=8)
    parts = tofu.placed(model, 8)
    assert [layer for part in parts for layer in part] == [*model.layers]
    assert len(parts) <= 8
    assert 1 / 8 <= tofu.placement_share(model, 8) < 1


def test_nothing_is_faster_than_the_ideal():
    model = tofu.lstm(2, hidden=1024, sequences=64)
    machine = Machine()
    ideal_s = machine.ideal_s(model)
    plan = tofu.planned(model.network, Method.TOFU)
    assert ideal_s <= machine.step_s(model, plan)
    assert ideal_s <= machine.swapping_s(model)
    assert ideal_s <= machine.placement_s(model)
    assert machine.step_s(model, plan) > replace(machine, hidden_share=1.0).step_s(model, plan)


def test_what_fits_is_not_swapped():
    model = tofu.lstm(2, hidden=1024, sequences=64)
    small = replace(Machine(), memory_bytes=1e6)
    assert small.swapping_s(model) > Machine().swapping_s(model)


def test_owners_are_equal_parts():
    for cuts in itertools.product((0, 1), repeat=3):
        assert np.bincount(owners(cuts).ravel()).tolist() == [8] * 8


def test_what_cannot_be_halved_is_refused():
    network = tofu.Network("odd")
    network.tensor("data", (3, 5), 15.0)
    network.tensor("w", (2, 5), 10.0)
    network.tensor("made", (3, 2), 6.0)
    network.dense("data", "w", "made")
    with pytest.raises(BadValue, match="even halvings"):
        tofu.next_cut(network)
    with pytest.raises(BadValue, match="at least 1"):
        tofu.recursive(network, 0)
