"""Engines beside their peers, from the timings that ``make bench`` left."""

from __future__ import annotations

import itertools
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
_COLUMNS = {
    "benchmark": "benchmark",
    "peer": "peer",
    "ours": "ours",
    "theirs": "the peer's",
    "unit": "unit",
    "ratio": "times as fast",
}


def report(root: Path) -> Report:
    """Every benchmark that has a peer, and how many times as fast the engine is.

    Raises:
        BadFile: there are no timings, or they are no JSON of pytest-benchmark.
    """
    import pandas as pd

    title = "Engines beside their peers"
    path = root / FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        rows = [row for benchmark in stored["benchmarks"] for row in _rows(benchmark)]
        machine = stored["machine_info"]
        commit = stored["commit_info"]["id"]
        place = f"{machine['cpu'].get('brand_raw', machine['machine'])}"
        lead = f"Taken {stored['datetime'][:10]} on {place}, commit {commit[:12]}."
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFile(path, f"not what make bench writes: {error!r}") from None
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    note = "Where the last column is below 1, the peer is faster. CPU seconds or rates, run once."
    formats = {"ratio": lambda ratio: number(ratio, 3)}
    sheet = Sheet(table=table, columns=_COLUMNS, note=note, formats=formats)
    return Report(title=title, lead=lead, tables=[sheet], figures=lambda: [_figure(table)])


def _rows(benchmark: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each pair ``ours_<measure>``, ``<peer>_<measure>`` of a benchmark's own numbers."""
    numbers = benchmark["extra_info"]
    stem = re.sub(r"^.*test_(\w+)_speed.py::test_", r"\1: ", benchmark["fullname"])
    name = stem.replace("_", " ").replace("[", ", ").rstrip("]")
    for own, other in itertools.permutations(numbers, 2):
        measure = own.removeprefix("ours_")
        is_rate = measure.startswith("per_")
        peer = other.removesuffix(f"_{measure}")
        if measure == own or peer == other or not (is_rate or _TIME.match(measure)):
            continue
        ours = numbers[own]
        theirs = numbers[other]
        ratio = ours / theirs if is_rate else theirs / ours
        yield dict(
            zip(_COLUMNS, (name, peer, ours, theirs, measure.replace("_", " "), ratio), strict=True)
        )


def _figure(table: Any) -> tuple[str, str, Any]:
    import plotly.graph_objects as go

    from labkit.kit.draw import PALETTE, finish

    rows = table.sort_values("ratio")
    names = rows["benchmark"] + " (" + rows["peer"] + ")"
    look = {"orientation": "h", "marker_color": PALETTE["ours"]}
    figure = go.Figure(go.Bar(x=rows["ratio"], y=names, **look)).update_xaxes(type="log")
    figure.add_vline(1, line_dash="dash")
    return "", "", finish(figure, x="times as fast as the peer", height=140 + 28 * len(rows))
