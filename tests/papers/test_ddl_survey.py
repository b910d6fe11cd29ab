"""Work and depth counted, and all-reduce schemes priced, against formulas and the engine."""

import numpy as np
import pytest

from labkit import collectives
from labkit.collectives.fitting import Fit
from labkit.datasets import source
from labkit.papers import ddl_survey as survey


def straight_link(latency_s: float, s_per_byte: float) -> survey.Link:
    """A link whose measured messages lie on a line."""
    sizes = np.geomspace(1, 2**26, 400)
    seconds = latency_s + s_per_byte * sizes
    line = collectives.fit(sizes.tolist(), seconds.tolist())
    return survey.Link(name="straight", sizes=sizes, seconds=seconds, line=line)


@pytest.mark.parametrize("operator", survey.OPERATORS)
@pytest.mark.parametrize("inputs", [1, 2, 5, 9])
def test_operators_have_the_work_and_the_depth_of_their_formulas(
    operator: str, inputs: int
) -> None:
    counted = survey.count_operator(operator, inputs=inputs, rng=np.random.default_rng(inputs))
    multiplications, depth = survey.expected(operator, inputs=inputs)
    assert counted.error < 1e-9
    assert (counted.multiplications, counted.depth) == (multiplications, depth)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 100])
def test_a_tree_sum_has_all_the_additions_and_a_logarithm_of_the_depth(count: int) -> None:
    tally = survey.Tally()
    total = survey.tree_sum([survey.Traced(float(value), tally) for value in range(count)])
    assert total.value == sum(range(count))
    assert tally.additions == count - 1
    assert total.depth == int(np.ceil(np.log2(count)))


def test_one_tower_doubles_the_work_of_the_layers_that_two_towers_split() -> None:
    towers = {layer.name: layer for layer in survey.alexnet()}
    whole = {layer.name: layer for layer in survey.alexnet(towers=False)}
    for name, layer in towers.items():
        factor = 2 if name in ("conv2", "conv4", "conv5") else 1
        assert whole[name].work == factor * layer.work


@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
@pytest.mark.parametrize(
    ("scheme", "name"),
    [
        ("butterfly", "recursive-doubling"),
        ("pipeline", "ring"),
        ("reduce-scatter and gather", "recursive-halving"),
    ],
)
def test_schemes_cost_what_the_engine_says(ranks: int, scheme: str, name: str) -> None:
    fabric = collectives.Fabric.flat(ranks, bandwidth_bytes_per_s=1e9, latency_s=1e-5)
    sizes = np.array([1e3, 1e6, 1e9])
    ours = survey.scheme_s(scheme, ranks, sizes, lambda num_bytes: 1e-5 + num_bytes / 1e9)
    np.testing.assert_allclose(ours, collectives.message_time(name, fabric)(sizes))
    assert (ours >= 0.999999 * survey.bound_s(ranks, sizes, 1e-5, 1e-9)).all()


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_crossovers_of_a_straight_link_are_those_of_algebra(ranks: int) -> None:
    link = straight_link(1e-5, 1e-9)
    sizes = np.geomspace(2**8, 2**26, 2001)
    rounds = np.log2(ranks)
    saved = rounds - 2 * (ranks - 1) / ranks  # bytes, in vectors
    for second, hops in (("pipeline", 2 * (ranks - 1)), ("reduce-scatter and gather", 2 * rounds)):
        exact = (hops - rounds) * 1e-5 / (saved * 1e-9)
        for message_s in (link.line_s, link.measured_s):
            found = survey.crossover_bytes("butterfly", second, ranks, message_s, sizes)
            assert found == pytest.approx(exact, rel=0.01)


def test_a_tree_never_overtakes_the_butterfly() -> None:
    link = straight_link(1e-5, 1e-9)
    sizes = np.geomspace(2**8, 2**26, 21)
    assert survey.crossover_bytes("butterfly", "tree", 8, link.line_s, sizes) == np.inf
    assert survey.crossover_bytes("tree", "butterfly", 8, link.line_s, sizes) == sizes[0]


def test_a_line_is_fitted_to_the_sizes_that_were_asked_for() -> None:
    sizes = np.array([1.0, 2.0, 1e6, 2e6])
    seconds = np.array([1e-6, 1e-6, 1e-3 + 5e-5, 2e-3 + 5e-5])
    line = Fit(
        latency_s=0.0,
        s_per_byte=1.0,
        median_error_fraction=0.0,
        worst_error_fraction=0.0,
        num_points=4,
    )
    link = survey.Link(name="two lines", sizes=sizes, seconds=seconds, line=line)
    assert link.fitted(smallest=1e6).line.latency_s == pytest.approx(5e-5)
    assert link.fitted(largest=2).line.latency_s == pytest.approx(1e-6)
    ends = link.through_ends()
    assert ends.line_s(sizes[[0, -1]]) == pytest.approx(seconds[[0, -1]])


def test_six_links_and_the_all_reduce_are_read() -> None:
    data = source("vidur-network", survey.file_names())
    links = survey.read_links(data)
    assert len(links) == 6
    for link in links.values():
        assert (np.diff(link.sizes) > 0).all()
        assert (link.seconds > 0).all()
        assert link.sizes[0] == 2048  # bytes
        assert link.measured_s(link.sizes) == pytest.approx(link.seconds)
    for ranks, nodes in ((2, 1), (4, 1), (8, 1), (8, 2), (16, 2)):
        sizes, seconds = survey.all_reduce_s(data, ranks, num_nodes=nodes)
        assert len(sizes) == len(seconds) > 50
    assert survey.all_reduce_s(data, 16)[0].size == 0


def test_figures_draw_what_they_are_given() -> None:
    idea = survey.figure_idea(8)
    assert [note.text for note in idea.layout.annotations] == [
        "one after another: work 7, depth 7",
        "in pairs: work 7, depth 3",
    ]
    layers = survey.figure_layers(survey.alexnet(), 100.0, "A100")
    assert sum(len(trace.x) for trace in layers.data) == len(survey.alexnet())
