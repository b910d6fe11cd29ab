"""The engines' panels, listed and shown as widgets: for ``labkit panel`` and Lab's launcher.

What a panel shows is its engine's: the module ``panel`` of each (:mod:`labkit.kit.panel`).
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING

from labkit import ENGINES
from labkit.errors import UsageError, not_among

if TYPE_CHECKING:
    from labkit.kit.panel import Panel
    from labkit.workbook.review.live import Live

PANELS = tuple(engine.name for engine in ENGINES if engine.has_panel)
"""The engines that have a panel, by name."""


def notebook(name: str, profile: str = "", model: str = "") -> str:
    """The notebook that Voilà shows: one cell, which shows the panel."""
    import nbformat

    source = f"from labkit.cli import panel\npanel.show({name!r}, {profile!r}, {model!r})"
    cells = [nbformat.v4.new_code_cell(source)]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec}))


def built(name: str, *, profile: str = "", model: str = "") -> Panel:
    """The panel ``name`` on what the user brought.

    Raises:
        UsageError: there is no such panel, or it cannot use what was brought.
    """
    if name not in PANELS:
        raise not_among("panel", name, PANELS)
    make = import_module(f"labkit.{name}.panel").panel
    brought = {"profile": profile, "model": model}
    usable = inspect.signature(make).parameters
    for option, value in brought.items():
        if value and option not in usable:
            others = " or ".join(f"--{other}" for other in usable)
            raise UsageError(f"the panel {name!r} takes {others}, not --{option} {value}")
    made: Panel = make(**{option: brought[option] for option in usable})
    return made


def drawn_once(panel: Panel) -> None:
    """Draw a panel's figures where its controls start, for no one to see.

    The engines' loops are compiled by that and kept, which may take twenty seconds; the page that
    comes after shows its first figure without them.
    """
    from labkit.workbook.review import axes

    knobs = axes.read(panel.axes, panel.label, dict(panel.start))
    values = {axis.name: axis.start for axis in knobs}
    for figure in panel.figures:
        figure(**axes.taken(figure, values))


def show(name: str, profile: str = "", model: str = "") -> Live:
    """The panel ``name`` as widgets, under a heading."""
    from IPython.display import HTML, display

    from labkit.workbook.review import axes
    from labkit.workbook.review.live import Live

    panel = built(name, profile=profile, model=model)
    display(HTML(f"<h1>{panel.title}</h1>"))
    knobs = axes.read(panel.axes, panel.label, dict(panel.start))
    return Live(panel.figures, knobs, call=panel.call)
