"""Results on an input that companions share, so that ``labkit compare`` can set them side by side.

Where papers solve the same problem, each notebook runs the methods on one input and shows them with
:meth:`labkit.workbook.Paper.shared`. The executed notebook carries the numbers as
:data:`SHARED_MIME`; comparisons collect them by the name of the input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError
from labkit.workbook.review import tables

if TYPE_CHECKING:
    import pandas as pd
    from nbformat import NotebookNode

    from labkit.datasets import Source

SHARED_MIME = "application/vnd.labkit.shared+json"


class SharedTable(tables.Table):
    """Methods by measures on one input, as a notebook shows and carries them."""

    def __init__(
        self,
        key: str,
        input: str,
        results: pd.DataFrame | Mapping[str, Mapping[str, float]],
        sources: Sequence[Source] = (),
    ) -> None:
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
        self.records = [
            {"paper": key, "input": input, "method": str(method), "measure": str(measure)}
            | {"value": _value(measure, value)}
            | {"standin": any(source.is_standin for source in sources)}
            for method, row in results.iterrows()
            for measure, value in row.items()
        ]
        super().__init__(results, tables.table(results, f"On one input: {input}").grid)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {**super()._repr_mimebundle_(), SHARED_MIME: self.records}


def _value(measure: Any, value: Any) -> float | None:
    if isinstance(value, Real) and not isfinite(value):
        return None
    if not isinstance(value, Real) or isinstance(value, bool):
        raise UsageError(f"paper.shared: {measure!r} must hold numbers, got {value!r}")
    return float(tables.rounded(float(value), 4))


def from_notebook(notebook: NotebookNode) -> list[dict[str, Any]]:
    """The shared results that an executed notebook carries, in order."""
    return [
        record
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        for record in output.get("data", {}).get(SHARED_MIME, [])
    ]


def disagreements(records: Iterable[Mapping[str, Any]], tolerance: float = 0.01) -> list[str]:
    """The methods that two notebooks ran on one input with results further apart than this."""
    seen: dict[tuple[str, str, str], list[float]] = {}
    for record in records:
        if record["value"] is not None:
            case = record["input"], record["method"], record["measure"]
            seen.setdefault(case, []).append(record["value"])
    apart = [
        method
        for (_, method, _), values in seen.items()
        if max(values) - min(values) > tolerance * max(map(abs, values))
    ]
    return list(dict.fromkeys(apart))
