"""Engines beside their peers, from the timings that ``make bench`` left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labkit.errors import BadFile
from labkit.kit.report import Report, Sheet
from labkit.quantities import number

FILE = Path("results/benchmarks.json")
_TIME = re.compile(r"(cpu_)?(s|ms|us)(_\w+)?$")
_RATE = re.compile(r"per_\w+$")


def report(root: Path) -> Report:
    """Every benchmark that has a peer, and how many times as fast the engine is.

    Raises:
        BadFile: the timings are no JSON of pytest-benchmark.
    """
    import pandas as pd

    title = "Engines beside their peers"
    path = root / FILE
    if not path.is_file():
        return Report(title=title, lead="No timings are here yet: make bench takes them.")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        rows = [row for benchmark in stored["benchmarks"] for row in _rows(benchmark)]
        machine, taken = stored["machine_info"], stored["datetime"][:10]
        cpu, commit = (
            machine["cpu"].get("brand_raw", machine["machine"]),
            stored["commit_info"]["id"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFile(
            path, f"no timings of pytest-benchmark: {error!r}", valid="what make bench writes"
        ) from None
    columns = {"benchmark": "benchmark", "peer": "peer", "ours": "ours", "theirs": "the peer's",
               "unit": "unit", "ratio": "times as fast"}  # fmt: skip
    table = pd.DataFrame(rows, columns=list(columns))
    note = (
        "Where the last column is below 1, the peer is faster. CPU seconds or rates, one run each."
    )
    sheet = Sheet(
        table=table, columns=columns, note=note, formats={"ratio": lambda r: number(r, 3)}
    )
    lead = f"Taken {taken} on {cpu}, Python {machine['python_version']}, commit {commit[:12]}."
    return Report(title=title, lead=lead, tables=[sheet], figures=lambda: [_figure(table)])


def _rows(benchmark: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each pair ``ours_<measure>``, ``<peer>_<measure>`` of a benchmark's own numbers."""
    numbers = benchmark["extra_info"]
    stem = (
        re.sub(r"^.*test_(\w+)_speed.py::test_", r"\1: ", benchmark["fullname"])
        .replace("[", ", ")
        .rstrip("]")
    )
    for name in numbers:
        measure = name.removeprefix("ours_")
        if measure == name or not (_TIME.match(measure) or _RATE.match(measure)):
            continue
        for other in numbers:
            peer = other.removesuffix(f"_{measure}")
            if peer not in (other, "ours"):
                ours, theirs = numbers[name], numbers[other]
                ratio = ours / theirs if _RATE.match(measure) else theirs / ours
                yield {
                    "benchmark": stem.replace("_", " "),
                    "peer": peer,
                    "unit": measure.replace("_", " "),
                    "ours": ours,
                    "theirs": theirs,
                    "ratio": ratio,
                }


def _figure(table: Any) -> tuple[str, str, Any]:
    import plotly.graph_objects as go

    from labkit.kit.draw import PALETTE, finish

    rows = table.sort_values("ratio")
    names = rows["benchmark"] + " (" + rows["peer"] + ")"
    figure = go.Figure(
        go.Bar(x=rows["ratio"], y=names, orientation="h", marker_color=PALETTE["ours"])
    )
    figure.update_xaxes(type="log")
    figure.add_vline(1, line_dash="dash")
    return "", "", finish(figure, x="times as fast as the peer", height=140 + 28 * len(rows))
