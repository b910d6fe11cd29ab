"""``labkit memory accuracy``: what is predicted beside what torch does, part by part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from labkit.cli.memory_report import pairs
from labkit.cli.pipeline_view import Report, Sheet, percent, records
from labkit.errors import not_among

if TYPE_CHECKING:
    import pandas as pd

    from labkit.cli.memory_report import Answer

PARTS = {
    "layers": "saved activations of a layer beside torch's hooks",
    "models": "peaks and their moments beside torch's MemTracker",
    "shards": "bytes of every rank of every scheme beside real ranks over gloo",
    "stage3": "peaks with collectives' buffers beside FSDP2",
    "gpu": "peaks that a GPU's allocator saw",
}


def of_accuracy(*, every: bool, parts: Iterable[str] = ()) -> Answer:
    """The parts asked for (default: all), each a sheet; CSV holds the models' rows or the last's.

    Raises:
        UsageError: there is no such part.
    """
    chosen = tuple(parts) or tuple(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        raise not_among("part", unknown[0], PARTS)
    report = Report(title="Predicted, and what torch does", data={"command": "accuracy"})
    tables: dict[str, pd.DataFrame] = {}
    for name in chosen:
        found = _table(name, every=every)
        if found is None:
            report.facts.append(("on a GPU", "not yet measured", _how_to_measure()))
            report.data["gpu"] = []
            continue
        tables[name] = found
        report.data["rows" if name == "models" else name] = records(found)
        report.facts.append(_fact(name, found))
        if "tracked_moment" in found:
            alike = (found["predicted_moment"] == found["tracked_moment"]).sum()
            report.facts.append(("", f"{alike} of {len(found)}", "name the same moment"))
        report.tables.append(_models(found) if name == "models" else _sheet(name, found))
    if "models" in tables:
        report.draw = lambda: [_figure(tables["models"])]
    last = tables.get("models", next(reversed(tables.values()), _nothing()))
    return report, last


def _table(name: str, *, every: bool) -> pd.DataFrame | None:
    from labkit.memory.oracles import accuracy

    quick = not every
    if name == "models":
        return accuracy.table(accuracy.quick_cases() if quick else None)
    if name == "layers":
        return accuracy.saved_layers(quick=quick)
    if name == "shards":
        return accuracy.shards(quick=quick)
    return accuracy.sharded_peaks(quick=quick) if name == "stage3" else accuracy.on_a_gpu()


def _how_to_measure() -> str:
    from labkit.memory.oracles.accuracy import NOT_MEASURED

    return NOT_MEASURED.partition(": ")[2]


def _nothing() -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame()


def _fact(name: str, table: pd.DataFrame) -> tuple[str, str, str]:
    """How many rows of a part are off, and by how much at most."""
    error = "worst_error_bytes" if "worst_error_bytes" in table else "error_bytes"
    off = table[table[error] != 0]
    if off.empty:
        return name, f"all {len(table)} equal", PARTS[name]
    worst = f"by {off[error].abs().max():,.0f} bytes at most"
    if "tracked_bytes" in off:
        share = (off[error].abs() / off["tracked_bytes"]).max()
        worst += f", {percent(float(share), 4)}"
    return name, f"{len(off)} of {len(table)} off", f"{PARTS[name]}: {worst}"


def _sheet(name: str, table: pd.DataFrame) -> Sheet:
    """Rows that are off, with why; where none is, the page alone has them all."""
    shown = [column for column in table.columns if table[column].astype(str).ne("").any()]
    rows = [tuple(_text(one[column]) for column in shown) for one in records(table)]
    exact = _fact(name, table)[1].startswith("all")
    numbers = {i for i, column in enumerate(shown) if column.endswith("_bytes")}
    return Sheet(
        heading=PARTS[name][0].upper() + PARTS[name][1:],
        columns=[column.replace("_", " ") for column in shown],
        rows=rows,
        words=[i for i in range(len(shown)) if i not in numbers],
        page_only=exact,
    )


def _text(value: Any) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)


def _models(table: pd.DataFrame) -> Sheet:
    columns = ("model", "step", "tokens", "predicted bytes", "tracked bytes", "error")
    return Sheet(
        heading="", columns=(*columns, "predicted moment", "tracked moment"), rows=_cells(table),
        words=(0, 1, 6, 7), wide=(1, 2, 7), ratio={1: 1},
    )  # fmt: skip


def _cells(table: pd.DataFrame) -> list[tuple[str, ...]]:
    choices = ("dtype", "attention", "recompute", "loss", "step")
    return [
        (
            *(str(one["model"]), " ".join(str(one[name]) for name in choices)),
            f"{one['micro_batch']} × {one['seq']:,}",
            *(f"{one[f'{name}_bytes']:,.0f}" for name in ("predicted", "tracked", "error")),
            *(str(one["predicted_moment"]), str(one["tracked_moment"])),
        )
        for one in records(table)
    ]


def _figure(table: pd.DataFrame) -> tuple[str, str, Any]:
    cases = [f"{row[0]}, {row[2]}, {row[1]}" for row in _cells(table)]
    renamed = table.rename(columns={"tracked_bytes": "measured_bytes"})
    return pairs(renamed.assign(case=cases), "case")
