"""One call for a figure that moves: asked anew where a kernel listens, stored where none does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from labkit.errors import UsageError
from labkit.kit import draw as figures  # noqa: F401  (the docstring's example draws with it)
from labkit.workbook.review import axes as controls
from labkit.workbook.review import stored
from labkit.workbook.review.listening import is_live

if TYPE_CHECKING:
    from labkit.workbook.review.live import Live


def explore(
    make_figure: Callable[..., go.Figure],
    *,
    label: str | Mapping[str, str] = "",
    start: Any = None,
    **axes: Iterable[Any],
) -> go.Figure | Live:
    """A figure with a control for each of its function's parameters.

    In JupyterLab and Voilà each control is a widget and every value in its range is computed when
    it is asked for. Elsewhere (papermill, nbval, and so slides and pages) the states are stored in
    the figure: a slider for the first axis, a menu for the second; it takes no more there.

    Args:
        make_figure: called with a value for each axis by name; returns a figure that went through
            ``labkit.kit.draw.finish``. Axis ranges it leaves open are fixed to hold every stored
            state, so that what moves on the screen is the result and not the scale.
        label: what the first control says; with several axes, a mapping from axis name.
        start: where the first control stands (default: its first value); or a mapping.
        axes: ``(low, high)`` is a range, of whole numbers if both ends are, and so is a longer
            tuple, which says at which values it is stored; a list holds all values there are.

    Raises:
        UsageError: no axis, one without values or that ``make_figure`` does not take, ``start``
            not among them, stored states of three axes, or of more than about 1 MB in all.

    >>> def bar(stages):
    ...     return figures.finish(go.Figure(go.Bar(x=["bubble"], y=[stages - 1])))
    >>> moving = explore(bar, stages=(2, 8), label="pipeline stages")
    >>> [step.label for step in moving.layout.sliders[0].steps]
    ['2', '3', '4', '5', '6', '7', '8']
    >>> moving.layout.yaxis.range
    (0, 7.35)
    """
    knobs = controls.read(axes, label, start)
    for stranger in axes.keys() - controls.taken(make_figure, axes).keys():
        raise UsageError(f"explore: {make_figure} has no parameter {stranger!r}")
    if not is_live():
        return stored.figure(make_figure, knobs)
    from labkit.workbook.review.live import Live

    return Live([make_figure], knobs)
