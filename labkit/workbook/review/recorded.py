"""Numbers that an executed notebook carries beside its claims: recorded, or on a shared input.

What a notebook records (:data:`METRICS_MIME`) is what sweeps are drawn over. Where papers solve the
same problem, each notebook runs the methods on one input and shows them with
:meth:`labkit.workbook.Paper.shared` (:data:`SHARED_MIME`); ``labkit compare`` collects them by the
name of the input. Like claims they are stored rounded, so that an output compares exactly (nbval).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError
from labkit.quantities import heading
from labkit.workbook import notebooks
from labkit.workbook.review import tables

if TYPE_CHECKING:
    import pandas as pd

    from labkit.datasets import Source

METRICS_MIME = "application/vnd.labkit.metrics+json"
SHARED_MIME = "application/vnd.labkit.shared+json"


def shared_table(
    key: str,
    input: str,
    results: pd.DataFrame | Mapping[str, Mapping[str, float]],
    sources: Sequence[Source] = (),
) -> tables.Table:
    """Methods by measures on one input, as a notebook shows and carries them."""
    import pandas as pd

    if not isinstance(results, pd.DataFrame):
        results = pd.DataFrame.from_dict(dict(results), orient="index").rename_axis("method")
    name = results.index.name
    if not input.strip():
        raise UsageError("paper.shared needs the name of the input, as its companions say it")
    if not name or results.index.has_duplicates or results.empty:
        raise UsageError(
            "paper.shared takes a table with one row a method: an index with a name and no "
            f"method twice, got index {name!r} with {len(results)} rows"
        )
    records = [
        {"paper": key, "input": input, "method": str(method), "measure": str(measure)}
        | {"value": _value(measure, value)}
        | {"standin": any(source.is_standin for source in sources)}
        for method, row in results.iterrows()
        for measure, value in row.items()
    ]
    return replace(tables.table(results, f"On one input: {input}"), carried={SHARED_MIME: records})


def _value(measure: Any, value: Any) -> float | None:
    if isinstance(value, Real) and not isfinite(value):
        return None
    if not isinstance(value, Real) or isinstance(value, bool):
        raise UsageError(f"paper.shared: {measure!r} must hold numbers, got {value!r}")
    return float(tables.rounded(float(value), 4))


def shared_in(notebook: Any) -> list[dict[str, Any]]:
    """The shared results that an executed notebook carries, in order."""
    return [record for shown in notebooks.carried(notebook, SHARED_MIME) for record in shown]


# ---------------------------------------------------------------- metrics


def metrics_table(values: Mapping[str, Any]) -> tables.Table:
    """Named numbers as a notebook shows and carries them; the end of a name is its unit."""
    import pandas as pd

    if not values:
        raise UsageError("paper.record needs a number by its name, such as time_s=12.5")
    numbers = {name: _number(name, value) for name, value in values.items()}
    return tables.Table(
        data=pd.DataFrame([numbers]),
        headers=["recorded", "value"],
        rows=[[heading(name), tables.cell_text(value)] for name, value in numbers.items()],
        align=["left", "right"],
        carried={METRICS_MIME: numbers},
    )


def _number(name: str, value: Any) -> int | float:
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, Real) or isinstance(value, bool) or not isfinite(value):
        raise UsageError(f"paper.record: {name} must be a finite number, got {value!r}")
    return value if isinstance(value, int) else tables.rounded(float(value))


def metrics_in(notebook: Any) -> dict[str, int | float]:
    """What an executed notebook recorded, a later value over an earlier one of its name, and what
    it shows on shared inputs, as ``input/method/measure``."""
    values: dict[str, int | float] = {
        f"{record['input']}/{record['method']}/{record['measure']}": record["value"]
        for record in shared_in(notebook)
        if record["value"] is not None
    }
    for recorded in notebooks.carried(notebook, METRICS_MIME):
        values |= recorded
    return values
