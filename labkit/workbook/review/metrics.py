"""Numbers that a notebook records of its run, beside its claims: what sweeps are drawn over.

The executed notebook carries them as :data:`METRICS_MIME`. Like claims they are stored rounded, so
that a stored output compares exactly (nbval) on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from numbers import Real
from typing import Any

from labkit.errors import UsageError
from labkit.quantities import heading
from labkit.workbook.review import shared, tables

METRICS_MIME = "application/vnd.labkit.metrics+json"


class Metrics(tables.Table):
    """Named numbers as a notebook shows and carries them; the end of a name is its unit."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        import pandas as pd

        if not values:
            raise UsageError("paper.record needs a number by its name, such as time_s=12.5")
        self.values = {name: _number(name, value) for name, value in values.items()}
        rows = [[heading(name), tables.cell_text(value)] for name, value in self.values.items()]
        grid = tables.Grid(headers=["recorded", "value"], rows=rows, align=["left", "right"])
        super().__init__(pd.DataFrame([self.values]), grid)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {**super()._repr_mimebundle_(), METRICS_MIME: self.values}


def _number(name: str, value: Any) -> int | float:
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, Real) or isinstance(value, bool) or not isfinite(value):
        raise UsageError(f"paper.record: {name} must be a finite number, got {value!r}")
    return value if isinstance(value, int) else tables.rounded(float(value))


def from_notebook(notebook: Any) -> dict[str, int | float]:
    """What an executed notebook recorded, a later value over an earlier one of its name, and what
    it shows on shared inputs, as ``input/method/measure``."""
    values: dict[str, int | float] = {
        f"{record['input']}/{record['method']}/{record['measure']}": record["value"]
        for record in shared.from_notebook(notebook)
        if record["value"] is not None
    }
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            values |= output.get("data", {}).get(METRICS_MIME, {})
    return values
