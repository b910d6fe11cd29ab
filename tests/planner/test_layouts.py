"""Networks have their published sizes; layouts move what a walk over every number says."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import planner
from labkit.errors import BadValue, UsageError
from labkit.kit.fabric import Fabric
from labkit.planner.layouts import Layout, Layouts, layout_name, layouts
from labkit.planner.networks import AXES, Network, Operator

RATE = 1e9


# torchvision's models: parameters (of resnet50 those of its convolutions and its dense layer, and
# a bias in place of each normalisation), and multiplications and additions of a forward pass.
@pytest.mark.parametrize(
    ("name", "weights", "gflops"),
    [
        ("alexnet", 61_100_840, 1.43),
        ("vgg16", 138_357_544, 30.95),
        ("resnet50", 25_530_472, 8.19),
        ("inception3", 23_817_352, 11.45),
    ],
)
def test_published_sizes(name: str, weights: int, gflops: float) -> None:
    network = planner.network(name, batch=2)
    assert sum(operator.weights for operator in network.operators) == weights
    flops = sum(operator.forward_flops for operator in network.operators)
    assert flops / 2 / 1e9 == pytest.approx(gflops, rel=0.01)
    assert network.operators[-1].output["channel"] == 1000
    assert network.batch == 2


def test_owt_s_premise() -> None:
    # Krizhevsky 2014, §2: convolutions have about 5 % of the weights and 90 to 95 % of the compute.
    table = planner.network("alexnet", batch=1).frame().groupby("kind").sum(numeric_only=True)
    share = table / table.sum()
    assert share.loc["convolution", "weights"] < 0.06
    assert share.loc["convolution", "forward_flops"] > 0.9


@st.composite
def pairs(draw: st.DrawFn) -> Network:
    """A small operator, and one of any kind that reads it."""
    draft = planner.Draft("small", draw(st.integers(1, 4)), draw(st.integers(4, 6)))
    source = draft.convolution("source", draw(st.integers(1, 4)), 1)
    kind = draw(st.sampled_from(["convolution", "pool", "dense", "add", "concat"]))
    window = draw(st.integers(1, 3))
    stride = draw(st.integers(1, 2))
    padding = draw(st.integers(0, window - 1))
    if kind == "convolution":
        draft.convolution("reader", draw(st.integers(1, 4)), window, stride=stride, padding=padding)
    elif kind == "pool":
        draft.pool("reader", window, stride=stride, padding=padding)
    elif kind == "dense":
        draft.dense("reader", draw(st.integers(1, 4)))
    else:
        other = draft.convolution("other", draft.operators["source"].output["channel"], 1)
        join = draft.add if kind == "add" else draft.concat
        join("reader", [other, source])
    return draft.network()


def owner(operator: Operator, layout: Layout, place: tuple[int, ...]) -> int:
    """The device that computes a number, found by counting through the parts."""
    parts = []
    for axis, number, size in zip(AXES, place, layout, strict=True):
        ends = [part * operator.output[axis] // size for part in range(size + 1)]
        parts.append(max(part for part in range(size) if ends[part] <= number))
    return int(np.ravel_multi_index(parts, layout))


def reads(reader: Operator, source: Operator, place: tuple[int, ...], before: int) -> set:
    """The numbers of the source that one number of the reader is computed from."""
    sample, channel, height, width = place
    sizes = [range(source.output[axis]) for axis in AXES[1:]]
    if reader.kind == "dense":
        return {(sample, *rest) for rest in itertools.product(*sizes)}
    if reader.kind == "concat":
        own = channel - before
        return {(sample, own, height, width)} if own in sizes[0] else set()
    if reader.kind == "add":
        return {place}
    channels = sizes[0] if reader.kind == "convolution" else [channel]
    rows = range(reader.window[0])
    columns = range(reader.window[1])
    found = set()
    for depth, row, column in itertools.product(channels, rows, columns):
        tall = height * reader.stride - reader.padding[0] + row
        wide = width * reader.stride - reader.padding[1] + column
        if tall in sizes[1] and wide in sizes[2]:
            found.add((sample, depth, tall, wide))
    return found


@settings(max_examples=60)
@given(network=pairs(), seed=st.integers(0, 2**32 - 1))
def test_what_moves_is_what_a_walk_over_every_number_says(network: Network, seed: int) -> None:
    choice = planner.split(
        network, Fabric.flat(4, bandwidth_bytes_per_s=RATE), flops_per_s=1e9, element_bytes=1
    )
    random = np.random.default_rng(seed)
    source = network.by_name["source"]
    reader = network.by_name["reader"]
    plan = {
        name: layout_name(ways[random.integers(len(ways))]) for name, ways in choice.choices.items()
    }
    one = choice.layout("source", plan["source"])
    other = choice.layout("reader", plan["reader"])
    before = source.output["channel"] if reader.kind == "concat" else 0
    needed: dict[int, set] = {}
    for place in np.ndindex(*(reader.output[axis] for axis in AXES)):
        device = owner(reader, other, place)
        needed.setdefault(device, set()).update(reads(reader, source, place, before))
    expected = np.zeros((4, 4))
    for device, numbers in needed.items():
        for number in numbers:
            holder = owner(source, one, number)
            if holder != device:
                expected[holder, device] += 1
    moved = choice.moved_bytes("source", "reader", plan)
    if reader.kind in ("pool", "convolution"):  # windows further apart than wide skip numbers
        assert (moved >= expected).all()
        if reader.stride <= min(reader.window):
            assert (moved == expected).all()
    else:
        assert (moved == expected).all()


def split(name: str, devices: int, batch: int = 256) -> Layouts:
    fabric = Fabric.flat(devices, bandwidth_bytes_per_s=RATE)
    return planner.split(planner.network(name, batch=batch), fabric, flops_per_s=5e12)


@pytest.mark.parametrize("name", ["alexnet", "vgg16"])
def test_the_best_layouts_beat_every_plan_by_kind(name: str) -> None:
    choice = split(name, 8)
    best = planner.choose(choice.problem)
    everywhere = choice.problem.cost(choice.same((8, 1, 1, 1)))
    by_kind = choice.problem.cost(choice.same((8, 1, 1, 1), (1, 8, 1, 1)))
    assert best.cost <= by_kind < everywhere


def test_a_plan_s_table_adds_up_to_its_cost() -> None:
    choice = split("alexnet", 4)
    best = planner.choose(choice.problem)
    table = choice.parts(best.plan)
    seconds = table[["compute_s", "transfers_s", "gradients_s"]].to_numpy().sum()
    assert seconds == pytest.approx(best.cost)


def test_data_parallelism_sends_gradients_alone() -> None:
    choice = split("vgg16", 4)
    table = choice.parts(choice.same((4, 1, 1, 1)))
    assert table["transferred_bytes"].sum() == 0
    assert table["gradient_bytes"].sum() == pytest.approx(4 * 2 * 3 / 4 * 138_357_544 * 4)


def test_gradients_on_machines_share_the_machine_s_link() -> None:
    rates = {"inside_bytes_per_s": 1e10, "between_bytes_per_s": RATE}
    fabric = Fabric.machines(2, 2, **rates)
    choice = planner.split(planner.network("alexnet", batch=64), fabric, flops_per_s=5e12)
    dense = choice.network.by_name["fc6"]
    weights = dense.weights * 4
    assert choice.gradients_s(dense, (2, 1, 1, 1)) == pytest.approx(weights / 1e10)
    assert choice.gradients_s(dense, (4, 1, 1, 1)) == pytest.approx(1.5 * weights / RATE)
    # Two rings, of halves of the weights, cross the link of each machine.
    assert choice.gradients_s(dense, (2, 2, 1, 1)) == pytest.approx(weights / RATE)


def test_measured_seconds_take_the_place_of_operations() -> None:
    fabric = Fabric.flat(2, bandwidth_bytes_per_s=RATE)
    network = planner.network("alexnet", batch=64)
    choice = planner.split(network, fabric, flops_per_s=5e12, operator_s={"conv1": 0.5})
    assert choice.compute_s(network.by_name["conv1"], (2, 1, 1, 1)) == 0.25


def test_layouts_divide_devices_and_axes() -> None:
    dense = planner.network("alexnet", batch=2).by_name["fc6"]
    found = layouts(dense, 8)
    assert len(found) == len(set(found)) == 4 + 3
    assert all(layout[0] <= 2 and layout[2:] == (1, 1) for layout in found)
    assert layouts(dense, 8, axes=("sample",)) == ((1, 1, 1, 1), (2, 1, 1, 1))


def test_wrong_wishes_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'vgg16'"):
        planner.network("vgg61", batch=1)
    with pytest.raises(BadValue, match="batch must be a whole number, at least 1"):
        planner.network("vgg16", batch=0)
    choice = split("alexnet", 4)
    with pytest.raises(BadValue, match="'image' cannot be cut into channel 4"):
        choice.same((1, 4, 1, 1))
    with pytest.raises(BadValue, match=r"operator_s\['conv9'\] must be seconds of an operator"):
        planner.split(choice.network, choice.fabric, flops_per_s=1.0, operator_s={"conv9": 1.0})
    draft = planner.Draft("twice", 1, 8)
    draft.dense("fc", 3)
    with pytest.raises(BadValue, match="'fc' names two operators"):
        draft.dense("fc", 3)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda draft: draft.convolution("c", 0, 1), "channels must be a whole number, at least 1"),
        (lambda draft: draft.convolution("c", 2, (3, None)), "window must be"),
        (lambda draft: draft.convolution("c", 2, 1, stride=0), "stride must be"),
        (lambda draft: draft.convolution("c", 2, 9), "window 9 of 'c' is larger than its input"),
        (lambda draft: draft.pool("p", 2, stride=2, padding=-1), "padding must be"),
        (lambda draft: draft.dense("fc", 3, after="imagine"), "did you mean 'image'"),
        (lambda draft: draft.add("sum", []), "inputs is empty"),
        (lambda draft: draft.add("sum", ["image", "nothing"]), "no operator 'nothing'"),
        (lambda draft: draft.concat("both", 7), "inputs must be"),
    ],
)
def test_wrong_operators_are_refused(call: Callable[[planner.Draft], str], problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        call(planner.Draft("small", 1, 8))


def test_sums_are_of_one_shape() -> None:
    draft = planner.Draft("small", 1, 8)
    wide = draft.convolution("wide", 4, 1)
    with pytest.raises(BadValue, match="have outputs of different sample, channel"):
        draft.add("sum", ["image", wide])
    assert draft.operators[draft.concat("both", ["image", wide])].output["channel"] == 7
