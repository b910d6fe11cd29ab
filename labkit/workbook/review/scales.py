"""One scale for several figures: the axis ranges and colour limits that hold them all.

Works on figures as plain dictionaries (``{"data": [...], "layout": {...}}``), so it needs no
Plotly. It knows lines, markers, bars and heatmaps; an axis that holds anything else is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from operator import add, sub
from typing import Any

LINES = ("scatter", "scattergl")
PAD = 0.05

State = Mapping[str, Any]


def share(states: Sequence[State]) -> None:
    """Give every axis, and colour scale, that no state fixes a range that holds all of them."""
    for axis in sorted(
        {_axis(trace, letter) for s in states for trace in s["data"] for letter in "xy"}
    ):
        layouts = [state["layout"].setdefault(axis, {}) for state in states]
        if any("range" in layout or "matches" in layout for layout in layouts):
            continue
        fixed = _categories(states, axis) or _limits(states, axis, layouts[0])
        for layout in layouts if fixed else ():
            layout.update(fixed)
    _share_colours(states)


def _axis(trace: Mapping[str, Any], letter: str) -> str:
    return f"{letter}axis{trace.get(f'{letter}axis', letter)[1:]}"


def _on(state: State, axis: str) -> list[Mapping[str, Any]]:
    return [trace for trace in state["data"] if _axis(trace, axis[0]) == axis]


def _categories(states: Sequence[State], axis: str) -> dict[str, Any]:
    """All categories in order of appearance, where the axis holds texts or is said to hold them."""
    traces = [trace for state in states for trace in _on(state, axis)]
    drawn = [trace for trace in traces if trace["type"] in (*LINES, "bar")]
    values = [value for trace in drawn for value in trace.get(axis[0]) or []]
    said = states[0]["layout"][axis].get("type") == "category"
    texts = all(isinstance(value, str) and not _is_date(value) for value in values)
    if not values or not (said or texts):
        return {}
    names = list(dict.fromkeys(values))
    ends = [-0.5, len(names) - 0.5]
    if states[0]["layout"][axis].get("autorange") == "reversed":
        ends.reverse()
    return {"type": "category", "categoryorder": "array", "categoryarray": names, "range": ends}


def _is_date(text: str) -> bool:
    return len(text) >= 10 and text[4:5] == "-" and text[:4].isdigit()


def _limits(states: Sequence[State], axis: str, layout: Mapping[str, Any]) -> dict[str, Any]:
    drawn = [_drawn(state, axis) for state in states]
    if None in drawn:  # of texts and dates, shapes are at such places too
        return {}
    x = axis[0]
    shapes = [s for state in states for s in state["layout"].get("shapes", ())]
    across = [s for s in shapes if s.get(x + "ref") == x + axis[5:] and "path" not in s]
    values = [*chain(*filter(None, drawn)), *(s[x + end] for s in across for end in "01")]
    logarithmic = layout.get("type") == "log"
    ends = list(filter(math.isfinite, values))
    if logarithmic:
        ends = [math.log10(end) for end in ends if end > 0]
    if not ends:
        return {}
    low = min(ends)
    high = max(ends)
    pad = PAD * (high - low) or PAD * (abs(high) or 1.0)
    bars = [t for state in states for t in _on(state, axis) if t["type"] == "bar"]
    # Along an axis that bars grow on, zero needs no gap below.
    rooted = not logarithmic and any(_grows(bar, axis) for bar in bars)
    limits = [
        low if rooted and low == 0 else low - pad,
        high if rooted and high == 0 else high + pad,
    ]
    rounded = [float(f"{end:.6g}") for end in limits]
    return {"range": rounded[::-1] if layout.get("autorange") == "reversed" else rounded}


def _grows(bar: Mapping[str, Any], axis: str) -> bool:
    return (bar.get("orientation") == "h") == axis.startswith("x")


def _drawn(state: State, axis: str) -> list[float] | None:
    """How far what one state draws reaches along ``axis``; None where it cannot be told."""
    ends: list[float] = []
    stacks: dict[Any, list[float]] = {}
    for trace in _on(state, axis):
        values = _numbers(trace.get(axis[0]))
        if values is None or trace["type"] not in (*LINES, "bar") or "stackgroup" in trace:
            return None
        if trace["type"] != "bar":
            ends += _around_line(trace, axis, values)
        elif not _grows(trace, axis):
            ends += _around_bars(values)
        elif "base" in trace:
            base = trace["base"]
            bases = _numbers(base if isinstance(base, list) else [base] * len(values)) or []
            ends += [*bases, *map(add, bases, values)]
        elif state["layout"].get("barmode") in ("stack", "relative"):
            places = trace.get("y" if axis.startswith("x") else "x") or range(len(values))
            for place, value in zip(places, values, strict=False):
                stack = stacks.setdefault(place, [0.0, 0.0])
                stack[value > 0] += value if math.isfinite(value) else 0.0
        else:
            ends += [0.0, *values] if values else []
    return [*ends, *chain(*stacks.values())]


def _numbers(values: Any) -> list[float] | None:
    """``values`` as floats (None becomes NaN), or None where one of them is not a number."""
    if not isinstance(values, list):
        return None
    if any(isinstance(value, str | list | Mapping) for value in values):
        return None
    return [math.nan if value is None else float(value) for value in values]


def _around_line(trace: Mapping[str, Any], axis: str, values: Sequence[float]) -> Iterable[float]:
    """The ends of a line's error bars, and zero where its fill starts there."""
    error = trace.get(f"error_{axis[0]}") or {}
    up = _numbers(error.get("array")) or [0.0] * len(values)
    down = _numbers(error.get("arrayminus")) or up
    zero = [0.0] * (trace.get("fill") == f"tozero{axis[0]}")
    return *map(sub, values, down), *map(add, values, up), *zero


def _around_bars(positions: Sequence[float]) -> list[float]:
    """The room bars at numeric ``positions`` take across: half the smallest gap on each side."""
    places = sorted({p for p in positions if math.isfinite(p)})
    half = min((b - a for a, b in pairwise(places)), default=1.0) / 2
    return [place + side * half for place in places for side in (-1, 1)]


def _share_colours(states: Sequence[State]) -> None:
    """One colour scale for the heatmaps at the same place in every state."""
    for maps in zip(
        *([t for t in s["data"] if t["type"] == "heatmap"] for s in states), strict=False
    ):
        if any("zmin" in m or "zmax" in m or "coloraxis" in m for m in maps):
            continue
        cells = [v for m in maps for row in m.get("z") or [] for v in row]
        finite = [v for v in cells if isinstance(v, int | float) and math.isfinite(v)]
        for heatmap in maps if finite else ():
            heatmap.update(zmin=min(finite), zmax=max(finite))
