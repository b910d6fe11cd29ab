"""An explorable with every state inside it.

Nothing is computed when the reader moves the slider: each value's figure is drawn beforehand and
stored, so the same figure moves on an exported slide, on the site and on GitHub's copy, offline.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, cycle
from typing import Any

import plotly.graph_objects as go

from labkit.errors import UsageError
from labkit.kit import draw as figures
from labkit.workbook.review import scales
from labkit.workbook.review.axes import Axis

LARGEST_BYTES = 1_000_000
CONTROL_HEIGHT_PX = 96
LABEL_WIDTH = 18
"""Characters of a line below the slider: five such names stand beside each other."""
LABEL_LINE_PX = 18
LETTER_PX = 8
"""How wide a letter of these is, rather more than less."""
HANDLE_PX = 10
"""How far inside its ends the slider has its first and last value."""


def figure(make_figure: Callable[..., go.Figure], axes: Sequence[Axis]) -> go.Figure:
    """The stored form of :func:`labkit.workbook.explore`: the first axis is a slider, the second
    a menu."""
    if len(axes) > 2:
        raise UsageError(f"explore stores a slider and a menu, got {len(axes)} axes")
    slider = axes[0]
    menu = axes[1] if len(axes) > 1 else None
    choices = menu.values if menu else (None,)
    states = [
        draw(make_figure, {slider.name: value} | ({menu.name: choice} if menu else {}))
        for choice in choices
        for value in slider.values
    ]
    scales.share(states)
    layouts = [figures.plain(state["layout"]) for state in states]
    traces, visible = _pool([state["data"] for state in states])
    steps = _steps(layouts, visible, slider)
    at = slider.values.index(slider.start)
    choice = menu.values.index(menu.start) if menu else 0
    first = choice * len(slider.values) + at
    data = [{**trace, "visible": on} for trace, on in zip(traces, visible[first], strict=True)]
    moving = go.Figure(data=data, layout={**layouts[first], "template": figures.TEMPLATE})
    _add_slider(moving, steps[choice], at, slider.label)
    if menu:
        _add_menu(moving, menu, steps, at)
    return _within_budget(moving)


def draw(make_figure: Callable[..., go.Figure], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What ``make_figure`` draws for ``arguments``, as plain data and layout without template."""
    figure = make_figure(**arguments)
    if not isinstance(figure, go.Figure):
        raise UsageError(
            f"explore: make_figure({arguments}) returned {type(figure).__name__}, not a figure"
        )
    data, layout = figures.contents(figure)
    for position, trace in enumerate(data):
        _fix_colour(trace, figures.CYCLE[position % len(figures.CYCLE)])
    return {"data": data, "layout": layout}


def _fix_colour(trace: dict[str, Any], colour: str) -> None:
    """Name the colour Plotly would give by position: positions shift when states are pooled."""
    if trace["type"] not in ("scatter", "scattergl", "bar", "box", "violin", "histogram"):
        return
    line = trace.get("line", {}).get("color")
    marker = trace.get("marker", {}).get("color")
    if line is None and marker is None:
        trace["marker"] = {**trace.get("marker", {}), "color": colour}
        if trace["type"] in ("scatter", "scattergl"):
            trace["line"] = {**trace.get("line", {}), "color": colour}


# ---------------------------------------------------------------- states in one figure


def _pool(states: Sequence[Sequence[Any]]) -> tuple[list[dict[str, Any]], list[list[bool]]]:
    """Every distinct trace once, and which of them each state shows.

    Traces stay ordered by their position in their state, because drawing and stacking follow it.
    """
    keys = [
        [(place, json.dumps(trace, sort_keys=True)) for place, trace in enumerate(traces)]
        for traces in states
    ]
    distinct = sorted(dict.fromkeys(chain(*keys)), key=lambda key: key[0])
    visible = [[key in own for key in distinct] for own in keys]
    return [json.loads(text) for _, text in distinct], visible


def _varying(layouts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What each state must set of the layout: the properties that are not the same in all."""
    names = sorted({name for layout in layouts for name in layout})
    moving = [n for n in names if any(x.get(n) != layouts[0].get(n) for x in layouts)]
    return [{name: layout.get(name) for name in moving} for layout in layouts]


def _steps(
    layouts: Sequence[Mapping[str, Any]], visible: Sequence[list[bool]], slider: Axis
) -> list[list[dict[str, Any]]]:
    """For each choice of the menu, the slider's steps: which traces show, what the layout says."""
    labels = cycle(_broken(slider.text(value)) for value in slider.values)
    width = len(slider.values)
    steps = [
        {"label": label, "method": "update", "args": [{"visible": on}, layout]}
        for label, on, layout in zip(labels, visible, _varying(layouts), strict=False)
    ]
    return [steps[row : row + width] for row in range(0, len(steps), width)]


def _broken(label: str) -> str:
    """A long name in several lines, which Plotly would otherwise leave out beside its neighbours.

    >>> _broken("streamed in equal groups")
    'streamed in equal<br>groups'
    """
    lines = textwrap.wrap(label, LABEL_WIDTH, break_long_words=False, break_on_hyphens=False)
    return "<br>".join(lines) or label


def _beyond_px(label: str, margin_px: float) -> float:
    """How much of a label, centred below the slider's first or last value, the margin does not
    hold.

    >>> _beyond_px("2", 24), _beyond_px("one copy, then run", 24)
    (0, 38.0)
    """
    half_px = LETTER_PX * max(map(len, label.split("<br>"))) / 2
    return max(0, half_px - HANDLE_PX - margin_px)


def _add_slider(figure: go.Figure, steps: Sequence[Any], first: int, label: str) -> None:
    margin = figure.layout.margin
    below_px = margin.b or 60
    labels = [step["label"] for step in steps]
    lines = 1 + max(text.count("<br>") for text in labels)
    # the value that is shown above the slider has as many lines as its label below
    height_px = CONTROL_HEIGHT_PX + 2 * LABEL_LINE_PX * (lines - 1)
    pad = {"t": below_px + 6, "b": 6}
    if left_px := _beyond_px(labels[0], margin.l or 0):
        pad["l"] = left_px
    if right_px := _beyond_px(labels[-1], margin.r or 0):
        pad["r"] = right_px
    figure.update_layout(
        height=(figure.layout.height or 420) + height_px,
        margin_b=below_px + height_px,
        sliders=[
            {
                "active": first,
                "steps": steps,
                "currentvalue": {"prefix": f"{label}: ", "font": {"size": 18}},
                "pad": pad,
                "font": {"size": 14},
                "bgcolor": figures.PALETTE["bubble"],
                "activebgcolor": figures.PALETTE["ours"],
                "bordercolor": figures.PALETTE["muted"],
                "ticklen": 5,
            }
        ],
    )


def _add_menu(figure: go.Figure, menu: Axis, steps: Sequence[Any], at: int) -> None:
    """A menu above the plot; each choice hands the slider its own steps.

    Plotly alone cannot know where the slider stands when the menu is used, so there it goes back
    to its start; pages and slides put real controls in its place (``explore.js``), which keep it.
    """
    buttons = []
    for choice, own in zip(menu.values, steps, strict=True):
        visible, layout = own[at]["args"]
        moved = {**layout, "sliders[0].steps": own, "sliders[0].active": at}
        label = f"{menu.label}: {menu.text(choice)}"
        buttons.append({"label": label, "method": "update", "args": [visible, moved]})
    look: dict[str, Any] = {
        "buttons": buttons,
        "x": 1,
        "xanchor": "right",
        "y": 1.01,
        "yanchor": "bottom",
        "direction": "down",
        "font": {"size": 15},
        "showactive": True,
    }
    if active := menu.values.index(menu.start):
        look["active"] = active
    figure.update_layout(margin_t=(figure.layout.margin.t or 60) + 8, updatemenus=[look])


def _within_budget(figure: go.Figure) -> go.Figure:
    size_bytes = len(json.dumps(figure.to_plotly_json(), separators=(",", ":")))
    if size_bytes > LARGEST_BYTES:
        raise UsageError(
            f"explore: all states together hold {size_bytes / 1e6:.1f} MB, more than "
            f"{LARGEST_BYTES / 1e6:.0f} MB: take fewer values, or fewer points in each figure"
        )
    return figure
