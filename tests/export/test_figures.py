"""The figure theme: small, plain, large type, colours that stay apart."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go
import plotly.io as pio
import pytest
from plotly.subplots import make_subplots

from labkit.kit import draw as figures


def stored(fig: go.Figure) -> dict[str, Any]:
    """The figure as a notebook stores it: what Plotly puts in the output, through JSON."""
    return json.loads(json.dumps(fig._repr_mimebundle_()["application/vnd.plotly.v1+json"]))


def walk(value: Any) -> Any:
    if isinstance(value, dict):
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)
    else:
        yield value


def test_numbers_are_stored_plain_and_rounded() -> None:
    rng = np.random.default_rng(0)
    fig = go.Figure(
        go.Scatter(
            x=rng.random(5) * 1e6,
            y=rng.random(5) / 1e6,
            customdata=rng.random((5, 2)),
            marker={"color": rng.random(5)},
            text=pd.Series(list("abcde")),
        )
    )
    fig.add_heatmap(z=rng.random((2, 3)))
    fig.update_layout(xaxis_range=np.array([0.0, 1 / 3]), xaxis_tickvals=np.arange(3))
    content = stored(figures.finish(fig))
    assert "bdata" not in json.dumps(content)
    for number in walk(content["data"]):
        if isinstance(number, float):
            assert number == float(f"{number:.6g}")
    assert content["layout"]["xaxis"]["range"] == [0, 0.333333]
    assert content["layout"]["xaxis"]["tickvals"] == [0, 1, 2]


@pytest.mark.parametrize("draw", ["line", "bar", "density_heatmap", "area"])
def test_a_finished_figure_is_what_plotly_makes_of_its_properties(draw: str) -> None:
    """Plotly did not check them again; numbers as texts and empty properties are what differed."""
    table = pd.DataFrame({"x": [1, 2] * 2, "y": [0.1, 2, 3, 1 / 3], "part": list("aabb")})
    more = {"text": "x"} if draw in ("line", "bar") else {}
    fig = figures.finish(getattr(px, draw)(table, "x", "y", facet_col="part", **more), title="T")
    content = stored(fig)
    assert stored(go.Figure(content)) == content
    with pytest.raises(ValueError, match="height"):  # what comes later is checked
        fig.layout.height = "tall"


def test_two_values_that_differ_by_rounding_error_store_the_same_figure() -> None:
    def draw(value: float) -> dict[str, Any]:
        return stored(figures.finish(go.Figure(go.Bar(y=np.array([value])))))

    assert draw(0.1 + 0.2) == draw(0.3)
    assert draw(0.3) != draw(0.30001)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (2.0, 2),
        (-0.0, 0),
        (math.nan, None),
        (-math.inf, None),
        (1234567.0, 1234570),
        (1234567, 1234567),
        (1e20, 1e20),
        (pd.Timestamp("2026-03-14"), "2026-03-14 00:00:00"),
        (np.array(["2026-03-14"], dtype="datetime64[D]"), ["2026-03-14"]),
        ((1.5, "a", None), [1.5, "a", None]),
    ],
)
def test_plain_values(given: object, expected: object) -> None:
    assert figures.plain(given) == expected
    assert type(figures.plain(given)) is type(expected)


def test_base64_arrays_decode_to_the_array() -> None:
    array = np.arange(6, dtype=float).reshape(2, 3) / 7
    encoded = go.Figure(go.Heatmap(z=array)).to_dict()["data"][0]["z"]
    assert "bdata" in encoded, "Plotly no longer encodes arrays: simplify figures.plain"
    assert figures.plain(encoded) == figures.plain(array)


def test_a_figure_refuses_what_json_cannot_hold() -> None:
    with pytest.raises(TypeError, match="object"):
        figures.plain({"x": object()})


def test_an_empty_figure_costs_less_than_two_kilobytes() -> None:
    assert len(json.dumps(stored(figures.finish(go.Figure())))) < 2_000


def test_lettering_is_readable_from_the_back_of_a_room() -> None:
    layout = figures.TEMPLATE.layout
    sizes = [layout.font.size, layout.title.font.size, layout.hoverlabel.font.size]
    assert min(sizes) >= 14


def test_no_script_is_stored_in_an_output() -> None:
    assert pio.renderers.default == "plotly_mimetype"
    assert set(figures.finish(go.Figure())._repr_mimebundle_()) == {
        "application/vnd.plotly.v1+json"
    }


def test_axis_titles_stand_at_the_outer_axes_only() -> None:
    fig = make_subplots(2, 2)
    for row, column in itertools.product((1, 2), repeat=2):
        fig.add_scatter(x=[1], y=[1], row=row, col=column)
    figures.finish(fig, x="time (s)", y="energy (J)")
    assert [a.title.text for a in fig.select_xaxes()] == [None, None, "time (s)", "time (s)"]
    assert [a.title.text for a in fig.select_yaxes()] == ["energy (J)", None, "energy (J)", None]


def test_titles_given_before_are_kept() -> None:
    fig = figures.finish(go.Figure(layout={"title": "kept", "xaxis": {"title": "also"}}))
    assert (fig.layout.title.text, fig.layout.xaxis.title.text) == ("kept", "also")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("cpus_per_gpu", "CPUs per GPU"),
        ("time_s", "time (s)"),
        ("value", None),
        ("$T_{1}$", "$T_{1}$"),
        ("rate, num_gpus fixed", "rate, num_gpus fixed"),
    ],
)
def test_a_column_that_titles_an_axis_is_put_in_words(given: str, shown: str | None) -> None:
    fig = go.Figure(layout={"yaxis": {"title": {"text": given}}})
    assert figures.finish(fig).layout.yaxis.title.text == shown


def test_a_long_title_wraps_and_the_margin_grows_with_it() -> None:
    short = figures.finish(go.Figure(), title="word " * 5)
    long = figures.finish(go.Figure(), title="word " * 40)
    assert long.layout.title.text.count("<br>") == 2
    assert long.layout.margin.t - short.layout.margin.t == 2 * 26


@pytest.mark.parametrize("shorter", [6, 2])  # Plotly gives every name the longest one's width
def test_a_legend_in_rows_is_reserved_a_grid(shorter: int) -> None:
    fig = go.Figure([go.Scatter(y=[1], name="x" * n) for n in (15, 14, 11, *[shorter] * 6)])
    row = go.Figure([go.Scatter(y=[1], name="x") for _ in range(2)])
    tops = [figures.finish(f, title="one line").layout.margin.t for f in (fig, row)]
    assert tops[0] - tops[1] == 2 * 25


def test_direct_labels_replace_the_legend_and_keep_apart() -> None:
    fig = go.Figure()
    for name, end in (("a", 1.0), ("b", 1.0), ("c", 1.001), ("d", 5.0)):
        fig.add_scatter(x=[0, 1], y=[0, end], name=name)
    figures.finish(fig, direct=True, height=420)
    assert fig.layout.showlegend is False
    pixels = sorted(n.y / 5 * 0.7 * 420 + n.yshift for n in fig.layout.annotations)
    assert [n.text for n in fig.layout.annotations] == list("abcd")
    assert min(b - a for a, b in itertools.pairwise(pixels)) >= 20


def test_direct_labels_keep_apart_on_the_range_that_a_figure_fixes() -> None:
    """Lines 2 apart on an axis of 100 are some 6 pixels apart, however far others reach."""
    ends = pd.DataFrame({"x": [0, 1] * 2, "y": [0, 50, 0, 52], "by": list("aabb")})
    fig = px.line(ends, "x", "y", color="by")
    fig.update_yaxes(range=[0, 100])
    figures.finish(fig, direct=True, height=420)
    pixels = sorted(n.y / 100 * 0.7 * 420 + n.yshift for n in fig.layout.annotations)
    assert pixels[1] - pixels[0] >= 20


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# How a colour looks to a reader without one kind of cone.
# Source: F. Vienot, H. Brettel and J. Mollon, Color Research & Application 24(4), 1999.
DICHROMATS = {
    "protan": ((0.11238, 0.88762, 0), (0.11238, 0.88762, 0), (0.00401, -0.00401, 1)),
    "deutan": ((0.29275, 0.70725, 0), (0.29275, 0.70725, 0), (-0.02234, 0.02234, 1)),
}


def seen(colour: str, kind: str) -> np.ndarray:
    linear = np.array([(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)])
    return np.clip(np.array(DICHROMATS[kind]) @ linear, 0, 1) ** (1 / 2.2)


@pytest.mark.parametrize("kind", sorted(DICHROMATS))
def test_concepts_shown_together_stay_apart_for_every_reader(kind: str) -> None:
    together = [
        ("forward", "backward", "weight", "bubble", "communication"),
        ("parameter", "gradient", "optimizer", "activation"),
        ("ours", "paper", "baseline", "bound"),
        ("energy", "time"),
    ]
    for group in together:
        for one, other in itertools.combinations(group, 2):
            a, b = (seen(figures.PALETTE[name], kind) for name in (one, other))
            assert np.linalg.norm(a - b) > 0.12, (one, other)


def test_lines_are_visible_on_white() -> None:
    for colour in figures.CYCLE:
        assert 1.05 / (luminance(colour) + 0.05) >= 2.2, colour


def test_the_heatmap_scale_brightens_all_along() -> None:
    steps = [luminance(colour) for _, colour in figures.SEQUENTIAL]
    assert all(b > a for a, b in itertools.pairwise(steps))


def test_direct_labels_stand_at_the_lines_ends_on_logarithmic_axes() -> None:
    fig = go.Figure(go.Scatter(x=[1, 10, 1000], y=[1, 10, 100], name="line"))
    fig.update_layout(xaxis_type="log", yaxis_type="log")
    label = figures.finish(fig, direct=True).layout.annotations[0]
    assert (label.x, label.y) == (3, 2)  # Plotly wants the exponents there
