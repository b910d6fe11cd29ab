"""Figures that ask their function again: widgets above plots that are updated in place.

No ``Output`` widget takes part (they can hang a client that is not a browser): a control's
``observe`` arms a timer, and the timer draws the latest values.
"""

from __future__ import annotations

import asyncio
import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import plotly.graph_objects as go
import traitlets
from plotly.offline import get_plotlyjs

from labkit.errors import UsageError
from labkit.kit import draw as figures
from labkit.workbook.review import scales, stored
from labkit.workbook.review.axes import Axis, taken

DELAY_S = 0.03
"""How long a move soon after a drawing waits for the next one; a single move is drawn at once."""

MakeFigure = Callable[..., go.Figure]
State = dict[str, Any]

_TEMPLATE = figures.plain(figures.TEMPLATE.to_plotly_json())

_last_values: dict[str, dict[str, Any]] = {}
"""Where each explorable's controls stood, so that running its cell again keeps them."""

CALL = "labkit-call"
"""The class of the line below the figures with their call, which a talk does not show."""
_COPY = "navigator.clipboard.writeText(this.nextElementSibling.textContent)"


class Plot(anywidget.AnyWidget):
    """A figure on a page: shows ``state``, a figure's data and layout as plain values.

    Plotly's own FigureWidget carries all of plotly.js in each figure, and a browser that is busy
    for two seconds with loading it gives the figure up; this one sends it once to each page.
    """

    _esm = Path(__file__).with_name("live.js")
    state = traitlets.Dict().tag(sync=True)

    def __init__(self, state: State) -> None:
        super().__init__(state=state)
        self.on_msg(self._answer)

    def _answer(self, _: Any, message: Any, __: Any) -> None:
        if message == {"kind": "plotly.js"}:
            self.send(message, buffers=[get_plotlyjs().encode()])


class Live(ipywidgets.VBox):
    """Controls above one or more figures, each drawn from those its function has parameters for.

    ``num_drawn`` counts the drawings since the first.
    """

    def __init__(
        self,
        makers: Sequence[MakeFigure],
        axes: Sequence[Axis],
        call: Callable[..., str] | None = None,
    ) -> None:
        self._makers = list(makers)
        self._axes = {axis.name: axis for axis in axes}
        name = getattr(makers[0], "__qualname__", type(makers[0]).__name__)
        self._call = call or partial(_call, name if name.isidentifier() else "")
        self._key = f"{name}({', '.join(self._axes)})"
        self._timer: asyncio.TimerHandle | None = None
        self._drawn_at_s = -math.inf
        self.num_drawn = 0
        kept = _last_values.get(self._key, {})
        starts = {a.name: kept.get(a.name, a.start) for a in axes}
        self.controls = {
            a.name: _control(a, starts[a.name] if a.holds(starts[a.name]) else a.start)
            for a in axes
        }
        self._extremes = [_extremes(maker, taken(maker, self._axes)) for maker in makers]
        self._shown = [taken(maker, self.values) for maker in makers]
        self.figures = [Plot(self._drawn(*each)) for each in enumerate(self._shown)]
        self._message = ipywidgets.HTML()
        self._pasted = ipywidgets.HTML(self._words())
        self._pasted.add_class(CALL)
        knobs = ipywidgets.Box(
            [*self.controls.values()], layout={"flex_flow": "row wrap", "width": "100%"}
        )
        super().__init__([knobs, self._message, *self.figures, self._pasted])
        for control in self.controls.values():
            control.observe(self._moved, names="value")

    @property
    def values(self) -> dict[str, Any]:
        """What the controls say now, by axis."""
        values = {name: control.value for name, control in self.controls.items()}
        return {n: float(f"{v:.6g}") if isinstance(v, float) else v for n, v in values.items()}

    @property
    def error(self) -> str:
        """What went wrong with the last values; "" if they were drawn."""
        return str(self._message.value)

    def refresh(self) -> None:
        """Draw the controls' values now; where the function refuses them, say why and keep the
        last figures."""
        self._timer = None
        values = self.values
        asked = enumerate([taken(maker, values) for maker in self._makers])
        moved = {place: own for place, own in asked if own != self._shown[place]}
        try:
            states = {place: self._drawn(place, own) for place, own in moved.items()}
        except Exception as error:  # whatever the function refuses is the reader's to see
            kind = "" if isinstance(error, UsageError | ValueError) else f"{type(error).__name__}: "
            text = escape(f"{kind}{error}")
            self._message.value = f'<p role="alert" style="color:#b00020">{text}</p>'
            return
        _last_values[self._key] = values  # only those that can be drawn, for the next run
        self.num_drawn += 1
        for place, state in states.items():
            self.figures[place].state = state
            self._shown[place] = moved[place]
        self._message.value = ""
        self._pasted.value = self._words()
        self._drawn_at_s = time.monotonic()

    def _moved(self, _: Any) -> None:
        """Draw the values soon; what moves until then, or moved during a drawing, is with them."""
        if self._timer is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a plain script: nothing would ever wake a timer
            self.refresh()
            return
        soon = time.monotonic() - self._drawn_at_s < DELAY_S
        self._timer = loop.call_later(DELAY_S if soon else 0, self.refresh)

    def _drawn(self, place: int, values: Mapping[str, Any]) -> State:
        """Figure ``place`` for ``values``, on the scale that holds its extremes."""
        state = stored.draw(self._makers[place], values)
        apart = [_apart(other) for other in (state, *self._extremes[place])]
        scales.share(apart)
        layout = {**figures.plain(apart[0]["layout"]), "template": _TEMPLATE}
        return {"data": apart[0]["data"], "layout": layout}

    def _words(self) -> str:
        """A button that copies the call with the current values, and the call."""
        text = self._call(**self.values)
        button = f'<button type="button" onclick="{escape(_COPY)}">Copy</button>'
        return f"{button} <code>{escape(text)}</code>"


def _call(name: str, /, **values: Any) -> str:
    """Python that draws ``values``: a named function's call, or where a nameless one starts."""
    given = ", ".join(f"{axis}={value!r}" for axis, value in values.items())
    return f"{name}({given})" if name else f"start=dict({given})"


def _control(axis: Axis, value: Any) -> ipywidgets.Widget:
    """A slider for a range or for numbers, a menu for anything else; all obey the keyboard."""
    look = {
        "description": axis.label,
        "style": {"description_width": "initial"},
        "layout": {"width": "26rem", "margin": "0 1rem 0 0"},
    }
    if axis.is_range:
        low = axis.values[0]
        high = axis.values[-1]
        if isinstance(axis.step, int):
            return ipywidgets.IntSlider(value=value, min=low, max=high, step=1, **look)
        return ipywidgets.FloatSlider(
            value=value, min=low, max=high, step=axis.step, readout_format=".4g", **look
        )
    options = [(axis.text(option), option) for option in axis.values]
    numeric = all(isinstance(option, int | float) for option in axis.values)
    kind = ipywidgets.SelectionSlider if numeric else ipywidgets.Dropdown
    return kind(options=options, value=value, **look)


def _extremes(make_figure: MakeFigure, axes: Mapping[str, Axis]) -> list[State]:
    """The figure at both ends of each axis, the others at their start: what the scale must hold.

    An end that the function refuses is nothing to hold.
    """
    start = {name: axis.start for name, axis in axes.items()}
    states = []
    for values in [start | {name: axes[name].values[end]} for name in axes for end in (0, -1)]:
        with suppress(Exception):
            states.append(stored.draw(make_figure, values))
    return states


def _apart(state: State) -> State:
    """A copy whose layout and traces' own entries can be written to."""
    layout = copy.deepcopy(state["layout"])
    return {"data": [dict(trace) for trace in state["data"]], "layout": layout}
