"""Layouts of transformers: beside NumPy on virtual devices, trying all plans, and Megatron-LM."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from labkit import planner
from labkit.errors import BadValue, UsageError
from labkit.models import Model
from labkit.planner import Fabric
from labkit.planner.layouts import Layouts, layout_name
from labkit.planner.networks import AXES, Network, Operator

RATE = 1e9
HEADS = 2
HIDDEN = 8


def attention() -> Network:
    """A norm, attention and a residual, on two sequences of four places."""
    draft = planner.Draft.of_tokens("attention", 2, 4)
    before = draft.embedding("embedding", HIDDEN, 16)
    draft.norm("norm")
    draft.linear("qkv", 3 * HIDDEN)
    draft.attention("mixed", HEADS)
    draft.linear("projection", HIDDEN)
    draft.add("residual", ["projection", before])
    return draft.network()


def perceptron() -> Network:
    """A norm, two linear operators and a residual."""
    draft = planner.Draft.of_tokens("perceptron", 2, 2)
    before = draft.embedding("embedding", HIDDEN, 16)
    draft.norm("norm")
    draft.linear("up", 4 * HIDDEN)
    draft.pointwise("gelu")
    draft.linear("down", HIDDEN)
    draft.add("residual", ["down", before])
    return draft.network()


def split(network: Network, devices: int, **options: object) -> Layouts:
    fabric = Fabric.flat(devices, bandwidth_bytes_per_s=RATE)
    return planner.split(network, fabric, flops_per_s=1e9, element_bytes=1, **options)  # type: ignore[arg-type]


def run(operator: Operator, inputs: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """The output of an operator, as ``[sample, channel, height, width]``."""
    first = inputs[0]
    if operator.kind == "norm":
        return (first - first.mean(1, keepdims=True)) / (first.std(1, keepdims=True) + 1e-6)
    if operator.kind == "linear":
        return np.einsum("schw,co->sohw", first, weights)
    if operator.kind == "pointwise":
        return np.tanh(first)
    if operator.kind == "add":
        return first + inputs[1]
    if operator.kind == "softmax":
        raised = np.exp(first - first.max(3, keepdims=True))
        return raised / raised.sum(3, keepdims=True)
    fused = inputs[-1][..., 0]  # by head: queries, keys, values
    samples, channels, places = fused.shape
    by_head = fused.reshape(samples, HEADS, 3, channels // 3 // HEADS, places)
    if operator.kind == "scores":
        return np.einsum("nhdq,nhdk->nhqk", by_head[:, :, 0], by_head[:, :, 1])
    mixed = np.einsum("nhqk,nhdk->nhdq", first, by_head[:, :, 2])
    return mixed.reshape(samples, channels // 3, places, 1)


def inside(box: np.ndarray) -> tuple[slice, ...]:
    return tuple(slice(begin, end) for begin, end in box)


def only(values: np.ndarray, box: np.ndarray) -> np.ndarray:
    """What a device has of a tensor; the rest is not a number."""
    seen = np.full_like(values, np.nan)
    seen[inside(box)] = values[inside(box)]
    return seen


def on_device(
    choice: Layouts, operator: Operator, plan: dict[str, str], device: int, whole: dict
) -> np.ndarray:
    """What a device computes of an operator from what it reads alone."""
    weights = whole["weights", operator.name]
    inputs = []
    for source in operator.inputs:
        needed = choice._boxes_of(source, operator.name, plan)[1][0, device]
        if operator.kind == "linear":  # its own part of the depth
            begin, end = needed[1]
            inputs.append(only(whole[source], needed)[:, begin:end])
            weights = weights[begin:end]
        else:
            inputs.append(only(whole[source], needed))
    return run(operator, inputs, weights)


@pytest.mark.parametrize("network", [attention(), perceptron()], ids=["attention", "perceptron"])
@pytest.mark.parametrize("seed", range(8))
def test_devices_that_read_what_they_need_compute_the_whole(network: Network, seed: int) -> None:
    choice = split(network, 4)
    rng = np.random.default_rng(seed)
    plan = {
        name: layout_name(ways[rng.integers(len(ways))]) for name, ways in choice.choices.items()
    }
    whole: dict = {}
    for operator in network.operators:
        shape = tuple(operator.output[axis] for axis in AXES)
        depth = network.by_name[operator.inputs[0]].output["channel"] if operator.inputs else 1
        whole["weights", operator.name] = rng.normal(size=(depth, shape[1]))
        if operator.kind in ("input", "embedding"):
            whole[operator.name] = rng.normal(size=shape)
            continue
        inputs = [whole[name] for name in operator.inputs]
        whole[operator.name] = run(operator, inputs, whole["weights", operator.name])
        layout = choice.layout(operator.name, plan[operator.name])
        copies = layout[4]
        for first in range(0, prod(layout), copies):
            group = [
                on_device(choice, operator, plan, device, whole)
                for device in range(first, first + copies)
            ]
            place = np.unravel_index(first, layout)
            cuts = [
                [size * part // parts for part in (at, at + 1)]
                for size, parts, at in zip(shape, layout, place, strict=False)
            ]
            box = np.array(cuts)
            made = np.sum(group, axis=0) if operator.kind == "linear" else group[0]
            assert made[inside(box)] == pytest.approx(whole[operator.name][inside(box)])


@pytest.mark.parametrize("network", [attention(), perceptron()], ids=["attention", "perceptron"])
def test_elimination_finds_what_trying_all_plans_finds(network: Network) -> None:
    choice = split(network, 2, axes=("sample", "channel"))
    assert choice.problem.num_plans < 1e6
    best = planner.choose(choice.problem)
    tried = planner.choose(choice.problem, method="all")
    assert best.cost == pytest.approx(tried.cost, rel=1e-12)
    assert best.bound == pytest.approx(best.cost)


def megatron(choice: Layouts, ways: int) -> dict[str, str]:
    """Columns, then rows: heads and the wide layer by channels, all else with copies."""
    cut = ("qkv", "scores", "softmax", "context", "up", "gelu")
    plan = {}
    for operator in choice.network.operators:
        by_channels = operator.name.rpartition("_")[2] in cut or operator.name == "head"
        layout = (1, ways, 1, 1, 1) if by_channels else (1, 1, 1, 1, ways)
        plan[operator.name] = layout_name(layout)
    return plan


@pytest.mark.parametrize("ways", [2, 4])
def test_columns_then_rows_take_one_ring_each_way_a_half_of_a_block(ways: int) -> None:
    network = planner.network("gpt2-124m", batch=1, length=64, num_layers=2)
    choice = split(network, ways)
    plan = megatron(choice, ways)
    assert choice.columns_then_rows(ways) == plan
    forward = [
        operator.name
        for operator in network.operators
        if choice.summed_bytes(operator, choice.layout(operator.name, plan[operator.name]))
    ]
    backward = []
    for source, reader in network.edges:
        moved, rings = choice.returned_bytes(source, reader, plan)
        assert not choice.moved_bytes(source, reader, plan).any()
        assert not moved.any()
        if rings.any():
            backward.append((source, reader))
            assert rings[0] == pytest.approx(2 * (ways - 1) / ways * 64 * 768)
    blocks = ("block1", "block2")
    halves = [f"{block}_{name}" for block in blocks for name in ("projection", "down")]
    assert forward == ["embedding", *halves]  # the table of tokens has its rows cut
    into = [
        (f"{block}_norm{n}", f"{block}_{to}")
        for block in blocks
        for n, to in ((1, "qkv"), (2, "up"))
    ]
    assert backward == [*into, ("norm", "head")]
    messages = ways * 2 * (ways - 1) / ways * 64 * 768
    assert choice.level_bytes(plan).sum() == pytest.approx(messages * (5 + 5))


def test_one_sequence_on_fast_links_is_cut_as_megatron_cuts_it() -> None:
    network = planner.network("gpt2-124m", batch=1, num_layers=1)
    fabric = Fabric.flat(4, bandwidth_bytes_per_s=150e9, latency_s=2e-6)
    choice = planner.split(network, fabric, flops_per_s=50e12, axes=("sample", "channel"))
    best = planner.choose(choice.problem)
    ours = {name.removeprefix("block1_"): way for name, way in best.plan.items()}
    assert ours["qkv"] == ours["scores"] == ours["context"] == ours["up"] == "channel 4"
    assert ours["projection"] == ours["down"] == "copies 4"
    assert best.cost <= choice.problem.cost(megatron(choice, 4)) * (1 + 1e-12)


def test_a_single_holder_gets_each_part_of_its_gradient_once() -> None:
    choice = split(perceptron(), 4)
    plan = dict.fromkeys(choice.choices, "one device") | {"norm": "channel 4", "up": "copies 4"}
    moved, rings = choice.returned_bytes("norm", "up", plan)
    assert not moved.any()  # each reads, and makes the gradient of, its own quarter of the depth
    assert not rings.any()
    plan |= {"up": "channel 4"}
    moved, _ = choice.returned_bytes("norm", "up", plan)
    part = 2 * 2 * HIDDEN / 4
    assert (moved == part * (1 - np.eye(4))).all()
    plan |= {"up": "one device", "norm": "one device", "gelu": "copies 4"}
    moved, rings = choice.returned_bytes("up", "gelu", plan)
    assert not moved.any()  # the holder computed a copy itself
    plan |= {"up": "copies 4", "gelu": "sample 2"}
    moved, rings = choice.returned_bytes("up", "gelu", plan)
    assert rings[0] == pytest.approx(3 / 4 * 2 * 2 * 4 * HIDDEN)  # gathered, not added up


def test_images_cost_the_same_whether_copies_are_offered_or_not() -> None:
    network = planner.network("alexnet", batch=16)
    without = split(network, 4)
    offered = split(network, 4, copies=True)
    for plan in (without.same((4, 1, 1, 1)), without.same((4, 1, 1, 1), (1, 4, 1, 1))):
        assert offered.problem.cost(plan) == without.problem.cost(plan)


@pytest.mark.parametrize("name", ["gpt2-124m", "gpt2-355m", "gpt3-1.3b"])
def test_weights_are_those_of_the_model(name: str) -> None:
    network = planner.network(name, batch=1)
    weights = sum(operator.weights for operator in network.operators)
    model = Model.preset(name)
    head = model.vocab * model.hidden if model.tied else 0  # counted as weights of its own
    assert weights == model.num_params + head


def test_operators_of_one_size_share_their_seconds_and_no_others_do() -> None:
    """Measured seconds are one operator's own; other devices or rates are other seconds."""
    gpt = planner.network("gpt2-124m", batch=4, length=8, num_layers=2)
    measured = next(o.name for o in gpt.operators if o.kind == "linear")
    choice = split(gpt, 4, operator_s={measured: 1.0})
    faster = replace(choice, flops_per_s=2 * choice.flops_per_s)
    for each in (choice, faster):
        for operator in gpt.operators:
            ways = each.choices[operator.name]
            whole_s, gradients_s = each.nodes_s(operator)
            assert list(whole_s) == [each.node_s(operator, way) for way in ways]
            assert list(gradients_s) == [each.gradients_s(operator, way) for way in ways]
    tables = {id(choice.nodes_s(operator)) for operator in gpt.operators}
    assert len(tables) < len(gpt.operators) * 2 / 3


def test_bytes_on_levels_are_those_that_the_table_adds_up() -> None:
    network = planner.network("gpt2-124m", batch=8, length=32, num_layers=1)
    fabric = Fabric.machines(2, 2, inside_bytes_per_s=1e10, between_bytes_per_s=1e9)
    choice = planner.split(network, fabric, flops_per_s=1e12)
    best = planner.choose(choice.problem)
    table = choice.parts(best.plan)
    total = table["transferred_bytes"].sum() + table["gradient_bytes"].sum()
    assert choice.level_bytes(best.plan).sum() == pytest.approx(total)


def test_wrong_wishes_are_refused() -> None:
    with pytest.raises(BadValue, match="'mixed_scores' cannot be cut into channel 4 on 4 devices"):
        split(attention(), 4).columns_then_rows(4)
    draft = planner.Draft.of_tokens("wrong", 1, 4)
    draft.embedding("embedding", 10, 4)
    with pytest.raises(BadValue, match="has 10 channels, no multiple of 3 times 2 heads"):
        draft.attention("mixed", 2)
    with pytest.raises(UsageError, match="alexnet reads images"):
        planner.network("alexnet", batch=1, length=8)
    with pytest.raises(UsageError, match="did you mean 'gpt2-124m'"):
        planner.network("gpt2-125m", batch=1)
