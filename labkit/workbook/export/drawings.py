"""Small drawings as SVG, which need no script: a figure's outline, and papers beside companions."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from html import escape, unescape
from typing import Any

from labkit.quantities import is_finite_number
from labkit.workbook.export.catalogue import Item
from labkit.workbook.notebooks import PLOTLY_MIME

_WIDTH = 160
_HEIGHT = 100
_EDGE = 6
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#882255", "#7A7A7A")
_MOST_POINTS = 120
_DRAWING = 1180  # the width of the drawing of companions
_LETTER = 7.9  # of its names, at 13 units
_LINE = 16


def headline(item: Item) -> str:
    """The outline of a paper's headline figure, else of its first; "" where neither has one."""
    headline = item.subject.section("reproduction") if item.subject else None
    cells = [*(headline.cells if headline else ()), *(item.subject.cells if item.subject else ())]
    figures = (figure for cell in cells for figure in cell.output_data(PLOTLY_MIME))
    return next(filter(None, map(thumbnail, figures)), "")


def thumbnail(figure: Mapping[str, Any]) -> str:
    """Lines, points and bars of ``figure`` on its first axes; "" for other kinds."""
    traces = [
        trace
        for trace in figure["data"]
        if trace.get("type", "scatter") in ("scatter", "bar")
        and trace.get("mode") != "text"
        and trace.get("visible") is not False
        and trace.get("xaxis", "x") + trace.get("yaxis", "y") == "xy"
    ]
    places: dict[str, float] = {}  # of categories, in order of appearance
    marks = [_points(trace, figure.get("layout", {}), places) for trace in traces]
    corners = [point for points in marks for point in points]
    if len(corners) < 2:
        return ""
    bars = [trace for trace in traces if trace.get("type") == "bar"]
    for trace in bars:  # they stand on zero, half a step from the edge
        steps = [point[trace.get("orientation") == "h"] for points in marks for point in points]
        half = (max(steps) - min(steps)) / max(1, len(set(steps)) - 1) / 2
        ends = ((0, min(steps) - half), (0, max(steps) + half))
        corners += [end if trace.get("orientation") == "h" else end[::-1] for end in ends]
    across_all, up_all = zip(*corners, strict=True)
    left = min(across_all)
    right = max(across_all)
    low = min(up_all)
    high = max(up_all)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / (right - left or 1)
        up = (y - low) / (high - low or 1)
        wide = _WIDTH - 2 * _EDGE
        tall = _HEIGHT - 2 * _EDGE
        return round(_EDGE + across * wide, 1), round(_HEIGHT - _EDGE - up * tall, 1)

    zero = place(max(left, 0), max(low, 0))
    body = ""
    for k, (trace, points) in enumerate(zip(traces, marks, strict=True)):
        given = (trace.get("line") or {}).get("color") or (trace.get("marker") or {}).get("color")
        colour = escape(given) if isinstance(given, str) else _COLOURS[k % len(_COLOURS)]
        side = (bars.index(trace), len(bars)) if trace in bars else None
        spots = [place(*point) for point in points[:: max(1, len(points) // _MOST_POINTS)]]
        body += _mark(trace, spots, zero, side, colour)
    return f'<svg class="thumb" viewBox="0 0 {_WIDTH} {_HEIGHT}" aria-hidden="true">{body}</svg>'


def _points(
    trace: Mapping[str, Any], layout: Mapping[str, Any], places: dict[str, float]
) -> list[tuple[float, float]]:
    """A trace's points as numbers: logarithms on a logarithmic axis, categories by their place."""

    def at(axis: str, value: Any) -> float | None:
        if not is_finite_number(value):
            return None if value is None else places.setdefault(f"{axis}{value}", len(places))
        if layout.get(f"{axis}axis", {}).get("type") != "log":
            return value
        return math.log10(value) if value > 0 else None

    ys = trace.get("y") or []
    xs = trace.get("x") or range(len(ys))
    pairs = [(at("x", x), at("y", y)) for x, y in zip(xs, ys, strict=False)]
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def _mark(
    trace: Mapping[str, Any],
    spots: Sequence[tuple[float, float]],
    zero: tuple[float, float],
    side: tuple[int, int] | None,
    colour: str,
) -> str:
    """One trace: bars from ``zero`` (``side``: which of how many side by side), a line, or dots."""
    if side is not None:
        wide = max(1.5, 80 / max(1, len(spots)) / side[1])
        off = (side[0] - (side[1] - 1) / 2) * wide
        flat = trace.get("orientation") == "h"
        lines = (
            f"M{zero[0]} {y + off:.1f}H{x}" if flat else f"M{x + off:.1f} {zero[1]}V{y}"
            for x, y in spots
        )
        return f'<path d="{"".join(lines)}" stroke="{colour}" stroke-width="{wide:.1f}"/>'
    if "lines" in (trace.get("mode") or "lines"):
        path = " ".join(f"{x},{y}" for x, y in spots)
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    return "".join(f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"/>' for x, y in spots)


def companions(items: Sequence[Item]) -> str:
    """Papers as dots and names, a line between companions; those with a notebook are filled."""
    import networkx

    known = {item.paper.key: item for item in items}
    graph = networkx.Graph()
    graph.add_nodes_from(known)
    graph.add_edges_from((key, to) for key, item in known.items() for to in item.paper.companions)
    if not graph:
        return ""
    families = sorted({item.family for item in items if item.family})
    colours = dict(zip(families, itertools.cycle(_COLOURS), strict=False))
    at = _spots(graph)
    lines = "".join(f"M{at[a][0]} {at[a][1]}L{at[b][0]} {at[b][1]}" for a, b in graph.edges)
    dots = [
        f'<g><circle cx="{20 + 150 * k}" cy="16" r="7" fill="{colour}"/>'
        f'<text x="{34 + 150 * k}" y="20">{escape(name)}</text></g>'
        for k, (name, colour) in enumerate(colours.items())
    ]
    circles = {key: (*at[key], 5 + graph.degree[key] // 3) for key in known}
    labels = label_boxes(circles)
    for key, item in known.items():
        where = f"papers/{key}.html" if item.has_page else f"index.html#text={key}"
        x, y, radius = circles[key]
        left, _, _, bottom = labels[key]
        dots.append(
            f'<a href="{where}"><title>{escape(_in_short(item))}</title>'
            f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{colours.get(item.family, "none")}"/>'
            f'<text x="{left:g}" y="{bottom - 4:g}">{key}</text></a>'
        )
    return (
        f'<svg viewBox="0 0 {_DRAWING} 900" role="group" aria-label="{len(known)} papers, '
        f'{graph.number_of_edges()} pairs of companions"><path d="{lines}"/>{"".join(dots)}</svg>'
    )


def _in_short(item: Item) -> str:
    """What a reader learns of a paper who points at it: title, authors, insight, what we found."""
    insight = unescape(re.sub(r"<[^>]+>", "", item.insight)) or item.why
    lines = (item.entry.title, item.entry.cite(), insight, item.tally.words)
    return "\n".join(filter(None, lines))


Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def label_boxes(circles: Mapping[str, tuple[float, float, float]]) -> dict[str, Box]:
    """Where each name stands beside its circle (x, y, radius): where it covers least.

    Right, left, below or above, or at a corner; twice, since what is placed later may leave room.
    """
    dots: dict[str, Box] = {}
    for key, (x, y, radius) in circles.items():
        dots[key] = (x - radius, y - radius, x + radius, y + radius)
    boxes: dict[str, Box] = {}
    for key in [*circles, *circles]:
        others = [box for name, box in boxes.items() if name != key]
        taken = [*others, *(dot for name, dot in dots.items() if name != key)]
        places = _places(key, *circles[key])
        boxes[key] = min(places, key=lambda box: sum(overlap(box, other) for other in taken))
    return boxes


def _places(name: str, x: float, y: float, radius: float) -> list[Box]:
    """The boxes around a circle that its name may fill, the usual one first, all in the drawing."""
    wide = _LETTER * len(name)
    out = radius + 4
    half = _LINE / 2
    corners = [
        (x + out, y - half),
        (x - out - wide, y - half),
        (x - wide / 2, y + radius),
        (x - wide / 2, y - radius - _LINE),
        (x + radius / 2, y + radius / 2),
        (x + radius / 2, y - radius / 2 - _LINE),
        (x - radius / 2 - wide, y + radius / 2),
        (x - radius / 2 - wide, y - radius / 2 - _LINE),
    ]
    boxes = [(left, top, left + wide, top + _LINE) for left, top in corners]
    return [box for box in boxes if box[0] >= 0 and box[2] <= _DRAWING] or boxes[:1]


def overlap(a: Box, b: Box) -> float:
    """The area that two boxes share.

    >>> overlap((0, 0, 4, 4), (3, 2, 9, 9)), overlap((0, 0, 1, 1), (2, 0, 3, 1))
    (2, 0)
    """
    across = min(a[2], b[2]) - max(a[0], b[0])
    down = min(a[3], b[3]) - max(a[1], b[1])
    return max(0, across) * max(0, down)


def _spots(graph: Any) -> dict[str, tuple[int, int]]:
    """Where each paper stands: the largest group that hangs together above, all others below it."""
    import networkx

    parts = sorted(networkx.connected_components(graph), key=lambda part: (-len(part), min(part)))
    rest = max(1, sum(map(len, parts[1:])))
    spots = {}
    left = 20.0
    for k, part in enumerate(parts):
        wide, top, high = (1040, 50, 690) if not k else (1040 * len(part) / rest, 790, 90)
        own = networkx.Graph()  # a subgraph's view would give its papers in another order each run
        own.add_nodes_from(sorted(part))
        own.add_edges_from(graph.subgraph(part).edges)
        for key, (right, down) in _spread(own).items():
            spots[key] = (round(left + wide * right * (0.7 if k else 1)), round(top + high * down))
        left += wide if k else 0
    return spots


def _spread(graph: Any) -> dict[str, tuple[float, float]]:
    """Places between 0 and 1: as springs of the paths' lengths hold them, turned so that the long
    way lies across, and drawn towards even steps where they crowd."""
    import networkx
    import numpy as np

    if len(graph) == 1:
        return dict.fromkeys(graph, (0.5, 0.5))
    places = networkx.kamada_kawai_layout(graph)
    points = np.array([places[key] for key in graph]) - np.mean([*places.values()], axis=0)
    turned = points @ np.linalg.svd(points, full_matrices=False)[2].T
    ranks = turned.argsort(axis=0).argsort(axis=0) / (len(graph) - 1)
    spans = np.maximum(np.ptp(turned, axis=0), 1e-9)
    mixed = 0.3 * (turned - turned.min(axis=0)) / spans + 0.7 * ranks
    return dict(zip(graph, map(tuple, mixed.tolist()), strict=True))
