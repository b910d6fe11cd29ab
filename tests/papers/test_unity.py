"""Unity: numbers of placed graphs, the authors' rules, prices, and plans that are carried out."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from labkit import collectives
from labkit.errors import BadValue
from labkit.kit.fabric import Fabric
from labkit.papers import unity
from labkit.papers.unity import Op, Setting, Verdict, Way, terms
from labkit.papers.unity.costs import Place, is_weight, operators, transfer
from labkit.papers.unity.layouts import WHOLE, divided, ways_of
from labkit.papers.unity.networks import bottleneck, dlrm, inception, mlp
from labkit.papers.unity.rules import ours, read_rules, same_numbers, tried
from labkit.papers.unity.terms import Layout, Misplaced, layout, shrunk
from tests.published import Need

STANDIN = Path(__file__).parents[2] / "data/profiles/standin_unity_rules.json"


@pytest.fixture(scope="module")
def library() -> unity.Library:
    return unity.Library.of(read_rules(STANDIN), np.random.default_rng(0))


@pytest.fixture
def setting(library: unity.Library) -> Setting:
    return Setting(library=library, machines=2, samples=32, budget=60)


def linear(relu: bool = False) -> unity.Term:
    x = unity.leaf(Op.INPUT, "x", 4, 8)
    weight = unity.leaf(Op.WEIGHT, "w", 4, 8)
    details = {"relu": True} if relu else {}
    return unity.term(Op.LINEAR, x, weight, **details)


def applied(rule: unity.Rule, graph: tuple[unity.Term, ...], devices: int) -> tuple:
    chosen, found = next(unity.matches(rule, unity.terms_of(graph)))
    target = unity.written(rule, chosen, found, devices)
    return unity.replaced(graph, dict(zip(chosen, target, strict=True)))


# ---------------------------------------------------------------- graphs


def test_equal_terms_are_one_object() -> None:
    assert linear() is linear()
    assert linear() is not linear(relu=True)


def test_a_whole_graph_is_a_matrix_product() -> None:
    rng = np.random.default_rng(1)
    graph = (unity.term(Op.RELU, linear()),)
    values = unity.numbers_for(graph, rng)
    [numbers] = unity.evaluate(graph, values)
    product = np.einsum("si,oi->so", values["x"][0], values["w"][0])
    assert np.array_equal(numbers[0], product.clip(min=0))


@pytest.mark.parametrize("devices", [2, 4])
def test_a_device_computes_with_its_own_part(library: unity.Library, devices: int) -> None:
    """Another part's numbers change the result in that part alone."""
    name = "divide LINEAR by samples (linear_by_samples)"
    [by_samples] = [rule for rule in library.dividers if rule.name == name]
    graph = applied(by_samples, (linear(),), devices)
    values = unity.numbers_for(graph, np.random.default_rng(2))
    [before] = unity.evaluate(graph, values)
    values["x"][0, -1] += 1
    [after] = unity.evaluate(graph, values)
    assert np.array_equal(before[0, :-1], after[0, :-1])


def test_layouts_say_who_has_what() -> None:
    [divided_] = applied(unity.reduction(), (linear(),), 4)
    sums = divided_.args[0]
    assert layout(sums) == Layout((4, 4, 4), (4, 1, 1), True)
    assert layout(divided_) == layout(linear())


def test_what_no_device_can_compute_is_refused() -> None:
    x = unity.leaf(Op.INPUT, "x", 4, 8)
    weight = unity.leaf(Op.WEIGHT, "w", 4, 8)
    cut = unity.term(Op.PARTITION, x, axis=unity.SAMPLES, parts=2)
    with pytest.raises(Misplaced, match="copy"):
        layout(unity.term(Op.LINEAR, cut, weight))
    with pytest.raises(Misplaced, match="divide"):
        layout(unity.term(Op.PARTITION, x, axis=unity.SAMPLES, parts=3))
    [sums] = applied(unity.reduction(), (linear(),), 2)[0].args
    square = unity.leaf(Op.WEIGHT, "v", 4, 4)
    with pytest.raises(Misplaced, match="partial sums"):
        layout(unity.term(Op.LINEAR, sums, square))


# ---------------------------------------------------------------- rules


def test_reduction_holds_and_with_a_relu_it_does_not() -> None:
    rng = np.random.default_rng(3)
    assert tried(unity.reduction(), rng) is Verdict.HOLDS
    assert tried(unity.reduction(relu=True), rng) is Verdict.NUMBERS
    assert all(tried(rule, rng) is Verdict.HOLDS for rule in ours())


def test_every_divider_holds(library: unity.Library) -> None:
    rng = np.random.default_rng(4)
    assert {tried(rule, rng) for rule in library.dividers} == {Verdict.HOLDS}


def test_a_wrong_rule_is_found() -> None:
    """RELU and REDUCE do not change places: max(a + b, 0) is not max(a, 0) + max(b, 0)."""
    x = unity.term(Op.INPUT, name="t1")
    added = unity.term(Op.REDUCE, x, axis=unity.COPIES, parts=2)
    cut_off = unity.term(Op.RELU, x)
    wrong = unity.Rule(
        name="wrong",
        source=(unity.term(Op.RELU, added),),
        target=(unity.term(Op.REDUCE, cut_off, axis=unity.COPIES, parts=2),),
    )
    assert tried(wrong, np.random.default_rng(5)) is Verdict.NUMBERS


def test_a_tensor_from_nowhere_is_named(library: unity.Library) -> None:
    name = "copies_of_a_concat_that_is_not_read"
    assert library.verdicts[name] is Verdict.UNBOUND
    [rule] = [rule for rule in read_rules(STANDIN) if rule.name == name]
    assert same_numbers(rule, np.random.default_rng(6))


def test_an_unknown_operator_is_refused(tmp_path: Path) -> None:
    text = STANDIN.read_text(encoding="utf-8").replace("OP_RELU", "OP_TANH")
    path = tmp_path / "rules.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadValue, match=r"rules\.json.*TANH"):
        read_rules(path)


def test_the_published_rules(published_data: Need) -> None:
    source = published_data("unity-substitutions", ["substitutions/graph_subst_3_v2.json"])
    path = source.path("graph_subst_3_v2.json")
    rules = read_rules(path)
    assert len(rules) == len(json.loads(path.read_text(encoding="utf-8"))["rule"]) == 640
    library = unity.Library.of(rules, np.random.default_rng(7))
    assert Verdict.NUMBERS not in library.verdicts.values(), "what can be placed is right"
    unbound = [rule.name for rule in rules if rule.unbound]
    assert unbound == [n for n, v in library.verdicts.items() if v is Verdict.UNBOUND]
    wrong = [rule.name for rule in rules if not same_numbers(rule, np.random.default_rng(8))]
    assert wrong == ["taso_rule_445"], "CONCAT of two sums of four is no sum of four in a row"


def test_blocks_for_neighbours_make_other_rules_wrong(
    published_data: Need, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file does not say what REDUCE adds. The authors' kernel adds blocks; we, neighbours."""
    neighbours = terms._numbers

    def blocks(of: unity.Term, args: list[np.ndarray], placed: bool) -> np.ndarray:
        if of.op is Op.REPLICATE:
            return np.concatenate([args[0]] * of.parts, axis=of.axis)
        if of.op is Op.REDUCE:
            return sum(np.split(args[0], of.parts, axis=of.axis))
        return neighbours(of, args, placed)

    source = published_data("unity-substitutions", ["substitutions/graph_subst_3_v2.json"])
    rules = read_rules(source.path("graph_subst_3_v2.json"))
    monkeypatch.setattr(terms, "_numbers", blocks)
    wrong = [rule.name for rule in rules if not same_numbers(rule, np.random.default_rng(8))]
    assert wrong == [f"taso_rule_{number}" for number in (273, 420, 427, 436, 444)]


# ---------------------------------------------------------------- prices


def test_a_matrix_product_is_priced_by_its_operations(setting: Setting) -> None:
    fabric = Fabric.flat(1, bandwidth_bytes_per_s=1e9)
    machine = unity.Machine(fabric=fabric, launch_s=0.0, memory_bytes_per_s=1e15)
    graph = bottleneck(1024, wide=2048, narrow=512)
    flops = 3 * 2 * 2 * 1024 * 2048 * 512
    assert machine.step_s(graph) == pytest.approx(flops / machine.flops_per_s, rel=1e-3)


def test_gradients_of_copied_weights_are_added_up(setting: Setting) -> None:
    """Data parallelism moves nothing else: its transfers are one all-reduce a weight."""
    graph = bottleneck(256, wide=1024, narrow=512)
    _, moving_s = setting.machine.parts_s(setting.plan(graph, Way.DATA).graph)
    seconds = [
        float(collectives.message_time(name, setting.machine.fabric)(4 * 1024 * 512))
        for name in ("ring", "tree", "recursive-halving", "recursive-doubling")
    ]
    assert moving_s == pytest.approx(2 * min(seconds))


def test_partial_sums_go_back_as_copies(setting: Setting) -> None:
    """What the sums cost forwards and backwards is a reduce-scatter and an all-gather."""
    machine = setting.machine
    whole = Layout((1, 256, 512), (1, 1, 1))
    there_s = machine.both_ways_s(whole, Place.SUMS, Place.SAMPLES)
    other_s = machine.both_ways_s(whole, Place.SAMPLES, Place.COPIES)
    assert there_s == pytest.approx(other_s)
    assert machine.both_ways_s(whole, Place.SUMS, Place.COPIES) > there_s


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize("make", [mlp, dlrm, inception, bottleneck])
@pytest.mark.parametrize("way", [Way.TOGETHER, Way.ONE_AFTER_THE_OTHER, Way.LAYOUTS, Way.DATA])
def test_plans_compute_the_same_and_cost_what_their_graph_does(
    setting: Setting, make: object, way: Way
) -> None:
    graph = make(setting.samples * setting.gpus)  # type: ignore[operator]
    outcome = setting.plan(graph, way)
    rng = np.random.default_rng(9)
    assert all(unity.equal_steps(graph, outcome.steps, setting.gpus, rng, fewer=2))
    assert setting.machine.step_s(outcome.graph) == pytest.approx(outcome.step_s)
    assert setting.times(graph, way, Way.DATA) <= setting.bound(graph)


def test_layouts_are_the_best_of_all(setting: Setting) -> None:
    """Every combination of ways, carried out and priced as a graph."""
    graph = bottleneck(256, wide=1024, narrow=512)
    machine = setting.machine
    dividers = setting.library.dividers
    found = {one: ways_of(one, machine, dividers) for one in operators(graph)}
    prices = []
    for chosen in itertools.product(*found.values()):
        steps = divided(graph, dict(zip(found, chosen, strict=True)), machine)
        prices.append(machine.step_s(steps[-1].graph if steps else graph))
    assert len(prices) > 50
    plan = unity.best_layouts(graph, machine, dividers)
    assert plan.step_s == pytest.approx(min(prices))
    assert any(way.name != WHOLE for way in plan.ways.values())


def test_one_search_is_never_slower_and_keeps_a_relu_apart(library: unity.Library) -> None:
    setting = Setting(library=library, machines=4)
    graph = setting.bottleneck(1024)
    assert setting.times(graph, Way.TOGETHER, Way.ONE_AFTER_THE_OTHER) > 1.1
    assert unity.kept_apart(setting.plan(graph, Way.TOGETHER)) == "kept apart"
    assert unity.kept_apart(setting.plan(graph, Way.ONE_AFTER_THE_OTHER)) == "fused"


def test_a_search_that_ends_has_seen_all_it_may(library: unity.Library) -> None:
    """Two ReLUs, each fused or not: four graphs."""
    price_s = Setting(library=library, machines=1).machine.step_s
    graph = bottleneck(64, wide=256, narrow=64)
    [fuse, *_] = library.algebra
    found = unity.search(graph, price_s, [fuse], slack=10.0)
    assert found.exhausted
    assert found.evaluations == 4
    assert [step.rule for step in found.steps] == ["fuse a ReLU"] * 2
    stopped = unity.search(graph, price_s, [fuse], budget=2)
    assert stopped.evaluations == 2
    assert not stopped.exhausted


def test_memory_is_what_the_fullest_gpu_holds(setting: Setting) -> None:
    graph = bottleneck(256, wide=1024, narrow=512)
    weights = 2 * 1024 * 512
    copied = setting.plan(graph, Way.DATA)
    activations = 4 * 256 * (2 * 1024 + 2 * 512) / setting.gpus
    assert copied.memory_bytes == pytest.approx(16 * weights + activations)


def test_transfers_are_read_off_the_graph() -> None:
    [divided_] = applied(unity.reduction(), (linear(),), 2)
    [sums] = divided_.args
    x = sums.args[0]
    assert transfer(divided_) == (sums, Place.SUMS, Place.WHOLE)
    assert transfer(x).goal is Place.CHANNELS
    assert is_weight(sums.args[1])
    assert not is_weight(sums)


def test_a_shrunk_graph_has_the_same_operators() -> None:
    graph = dlrm(64 * 16)
    small = shrunk(graph, 16, 4)
    assert [one.op for one in unity.terms_of(small)] == [one.op for one in unity.terms_of(graph)]
    assert layout(small[0]).sizes == (1, 256, 1)
