"""GSPMD's partitioner: layouts spread, and any layouts leave a program's meaning as it is."""

import numpy as np
import pytest

from labkit import collectives
from labkit.errors import BadValue
from labkit.papers import gspmd
from labkit.papers.gspmd import Core, Way
from labkit.papers.gspmd.dtensor import RANKS, SIDES
from labkit.papers.gspmd.layers import model_flops

EVEN = {"batch": 4, "sequence": 3, "model": 8, "heads": 4, "head": 2, "hidden": 8}
UNEVEN = {"batch": 5, "sequence": 3, "model": 7, "heads": 3, "head": 2, "hidden": 9}


def agreement(graph, layouts, mesh):
    """The largest difference between the partitioned and the whole program, over its values."""
    given = graph.draw(np.random.default_rng(1))
    program = gspmd.partition(graph, layouts, mesh)
    made, received_bytes = program.run(given)
    whole = graph.run(given)
    for name, values in whole.items():
        np.testing.assert_allclose(made[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
    return program, received_bytes


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN])
@pytest.mark.parametrize("mesh", [{"x": 2, "y": 4}, {"x": 4, "y": 4}, {"x": 3, "y": 2}])
@pytest.mark.parametrize("way", [Way.FINAL, Way.SECOND, Way.FIRST])
def test_a_partitioned_layer_equals_the_whole(sizes, mesh, way):
    graph = gspmd.transformer_layer(**sizes)
    layouts = gspmd.propagate(graph, gspmd.annotated(way))
    program, received_bytes = agreement(graph, layouts, mesh)
    devices = mesh["x"] * mesh["y"]
    assert received_bytes == pytest.approx(devices * program.received_bytes)


def test_any_layouts_are_right():
    rng = np.random.default_rng(7)
    graph = gspmd.transformer_layer(**UNEVEN)
    for _ in range(12):
        layouts = {}
        for name, shape in graph.shapes.items():
            cuts = ["x", "y", *[""] * (len(shape) - 1)]
            layouts[name] = tuple(str(cut) for cut in rng.permutation(cuts)[: len(shape)])
        program, received_bytes = agreement(graph, layouts, {"x": 3, "y": 2})
        assert received_bytes == pytest.approx(6 * program.received_bytes)


def test_seven_annotations_give_the_layout_by_hand():
    graph = gspmd.transformer_layer(**EVEN)
    assert gspmd.propagate(graph, gspmd.annotated(Way.FINAL)) == gspmd.by_hand()


def test_with_priorities_the_order_of_operations_does_not_matter():
    graph = gspmd.transformer_layer(**EVEN)
    rng = np.random.default_rng(0)
    for _ in range(20):
        order = rng.permutation(len(graph.operations)).tolist()
        few = gspmd.annotated(Way.FINAL)
        assert gspmd.propagate(graph, few, order=order) == gspmd.by_hand()


def test_annotations_stay():
    graph = gspmd.transformer_layer(**EVEN)
    fixed = {"up": ("", "", ""), **gspmd.annotated(Way.FINAL)}
    assert gspmd.propagate(graph, fixed)["up"] == ("", "", "")


def test_counted_bytes_are_the_formulas():
    graph = gspmd.transformer_layer(batch=8, sequence=4, model=16, heads=8, head=2, hidden=32)
    mesh = {"x": 4, "y": 4}
    program = gspmd.partition(graph, gspmd.by_hand(), mesh, number_bytes=2)
    assert program.received_bytes == pytest.approx(gspmd.formula_bytes(graph.shapes, mesh))


def test_rings_take_as_long_as_the_bytes_that_are_received():
    graph = gspmd.transformer_layer(batch=8, sequence=4, model=16, heads=8, head=2, hidden=32)
    mesh = {"x": 4, "y": 4}
    program = gspmd.partition(graph, gspmd.by_hand(), mesh)
    fabric = collectives.Fabric.flat(4, bandwidth_bytes_per_s=1.0)
    for each in program.instructions:
        if each.kind in ("all-reduce", "all-gather", "reduce-scatter"):
            ring_s = collectives.message_time("ring", fabric, op=each.kind)
            assert ring_s(each.message_bytes) == pytest.approx(each.received_bytes)


def test_experts_exchange_tokens():
    graph = gspmd.expert_layer(groups=4, tokens=6, experts=4, slots=3, model=5)
    given = {"tokens": ("x", "", ""), "gates": ("x", "", "", ""), "w_experts": ("x", "", "")}
    layouts = gspmd.propagate(graph, {**given, "sent": ("", "x", "", ""), "back": ("x", "", "")})
    program, _ = agreement(graph, {**layouts, "computed": ("", "x", "", "")}, {"x": 4})
    assert program.frame()["collective"].tolist() == ["all-to-all", "all-to-all"]


def test_the_program_is_the_same_on_more_devices():
    small, large = (
        gspmd.partition(gspmd.MODELS[0].graph(), gspmd.by_hand(), mesh)
        for mesh in ({"x": 2, "y": 4}, {"x": 32, "y": 64})
    )
    kinds = [[each.kind for each in program.instructions] for program in (small, large)]
    assert kinds[0] == kinds[1]


def test_products_are_shared_by_all_cores():
    for model in gspmd.MODELS:
        program = gspmd.partitioned(model, Way.FINAL)
        assert program.local_flops * model.cores == pytest.approx(model_flops(model), rel=0.001)


def test_no_step_beats_the_bound():
    for core in (Core(), Core(recompute=False), Core(hidden_share=1.0)):
        for way in Way:
            assert max(gspmd.measures(core, way)) <= core.bound


def test_activations_by_width_leave_room_for_more_layers():
    largest = gspmd.MODELS[-1]
    room = [gspmd.largest_weights(largest, way) for way in (Way.FINAL, Way.SECOND, Way.ONE)]
    assert room == sorted(room, reverse=True)
    a_layer = largest.weights / largest.layers
    kept_bytes = (8 * a_layer + 2 * 2**10 * 2**10 * largest.model) / largest.cores
    assert room[0] == pytest.approx(16 * 2**30 / kept_bytes * a_layer, rel=0.01)


def test_weights_are_powers_of_two():
    assert gspmd.MODELS[0].weights == 64 * 2**30
    assert gspmd.MODELS[-1].weights == 1024 * 2**30


def test_dtensor_agrees():
    pytest.importorskip("torch")
    table = gspmd.compare_products()
    assert len(table) == 9
    other = table[~table["same"]]
    assert other[["left", "right", "DTensor", "ours"]].values.tolist() == [
        ["rows", "rows", "rows", "sums"]
    ]


def test_where_dtensor_does_otherwise_fewer_bytes_are_received():
    rows, summed, columns = SIDES
    graph = gspmd.Graph()
    graph.given("left", (rows, summed))
    graph.given("right", (summed, columns))
    graph.product("ik,kj->ij", "left", "right", to="output")
    layouts = dict.fromkeys(graph.shapes, ("x", ""))
    program = gspmd.partition(graph, layouts, {"x": RANKS}, number_bytes=1)
    gathered = (RANKS - 1) / RANKS * summed * columns  # what DTensor receives of the right
    assert program.received_bytes < gathered


def test_what_does_not_fit_is_refused():
    graph = gspmd.Graph()
    graph.given("a", (2, 3))
    with pytest.raises(BadValue, match="not there"):
        graph.product("ik,kj->ij", "a", "b", to="c")
    graph.given("b", (2, 2))
    with pytest.raises(BadValue, match="'k' is 3 and 2"):
        graph.product("ik,kj->ij", "a", "b", to="c")
    with pytest.raises(BadValue, match="must keep"):
        graph.each("ik->i", "a", to="c", function=np.abs)
    with pytest.raises(BadValue, match="no tensor"):
        gspmd.propagate(graph, {"c": ("x",)})
    with pytest.raises(BadValue, match="another axis"):
        gspmd.propagate(graph, {"a": ("x", "x")})
    with pytest.raises(BadValue, match="the mesh has x"):
        gspmd.partition(graph, {"a": ("z", ""), "b": ("", "")}, {"x": 2})
