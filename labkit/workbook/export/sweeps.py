"""``results/<key>/sweep.html``: a paper's claims and metrics over what its runs differ in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from labkit.kit import draw
from labkit.kit.report import Figure, Report, Sheet
from labkit.kit.stats import mean_interval
from labkit.quantities import heading, number
from labkit.workbook.queue import bibliography
from labkit.workbook.review import claims
from labkit.workbook.review.tally import SYMBOLS, standin_warning
from labkit.workbook.review.verdicts import Claim, Verdict, tolerance_in_words
from labkit.workbook.run import results, runs
from labkit.workbook.run.parameters import is_seed

if TYPE_CHECKING:
    import pandas as pd

_KINDS = ("headline", "mechanism", "consistency", "group")
_MARKS: dict[Verdict, tuple[str, str]] = {
    "reproduced": ("weight", "circle"),
    "same direction": ("recompute", "diamond"),
    "differs": ("highlight", "x"),
    "not earned": ("communication", "square-open"),
    "not judged": ("muted", "diamond-open"),
}
"""A verdict's colour and shape; the legend has the word."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MOST_FIGURES = 12


def path_of(root: Path, key: str) -> Path:
    return results.results_folder(root) / key / runs.PAGE


def write(root: Path, key: str) -> Path | None:
    """Write the page of a paper's sweep; remove it where runs no longer differ in anything."""
    path = path_of(root, key)
    page = report(root, key)
    if page is None:
        path.unlink(missing_ok=True)
        return None
    page.write_page(path)
    return path


def report(root: Path, key: str) -> Report | None:
    """The runs of the version that ran last, over their parameters; None where all are alike."""
    records = list(results.records(root, key))
    every = runs.frame(map(runs.row, records))
    if every.empty:
        return None
    latest = every["run.version"].iloc[every["run.started"].argmax()]
    table = every[every["run.version"] == latest].reset_index(drop=True)
    if not (axes := runs.swept(table)):
        return None
    stated = claims.load(root, key) if claims.path_of(root, key).is_file() else []
    known = {claim.id: claim for claim in sorted(stated, key=lambda c: _KINDS.index(c.kind))}
    measured = _measured(table, known)
    drawn = [name for name in measured if table[name].nunique() > 1]
    flat = [_name(column) for column in measured if column not in drawn]
    entry = bibliography.load(root).get(key)
    num_old = len(every) - len(table)
    repeated = any(map(is_seed, axes))
    notes = [
        "lines go through means over seeds, bars are their 95 % intervals" if repeated else "",
        f"the same in every run: {', '.join(flat)}" if flat else "",
        f"not drawn: {', '.join(map(_name, rest))}" if (rest := drawn[_MOST_FIGURES:]) else "",
        f"left out: {num_old} runs of another version of notebook, code or data" if num_old else "",
    ]
    kept = set(table["run.slug"])
    shown = {column: heading(_name(column)) for column in [*axes, *drawn]}
    return Report(
        title=f"Sweep of {key}",
        lead=entry.title if entry else "",
        banner=standin_warning(c for r in records if r.slug in kept for c in r.claims),
        facts=[("runs", len(table), ""), *((name, _values(table[name]), "") for name in axes)],
        figures=lambda: [_section(table, axes, c, known) for c in drawn[:_MOST_FIGURES]],
        tables=[_verdicts(table, known), Sheet(table=table, columns=shown, heading="Every run")],
        notes=list(filter(None, notes)),
    )


def _measured(table: pd.DataFrame, known: Mapping[str, Claim]) -> list[str]:
    """The columns of numbers: claims in order of their kinds, then metrics."""
    of_claims = [f"claim.{name}" for name in known if f"claim.{name}" in table.columns]
    names = [*of_claims, *(n for n in table.columns if n.startswith("metric."))]
    return [name for name in names if table[name].dtype.kind in "iuf"]


def _name(column: str) -> str:
    return column.partition(".")[2] or column


def _values(column: pd.Series[Any]) -> str:
    """The values a parameter has: all of a few, else the first and the last."""
    values = sorted(column.dropna().unique().tolist(), key=lambda v: (isinstance(v, str), v))
    texts = [number(v) if type(v) in (int, float) else str(v) for v in values]
    return ", ".join(texts) if len(texts) <= 8 else f"{len(texts)} from {texts[0]} to {texts[-1]}"


def _verdicts(table: pd.DataFrame, known: Mapping[str, Claim]) -> Sheet:
    """How often each claim came to which verdict."""
    import pandas as pd

    rows = []
    for name, claim in known.items():
        if f"verdict.{name}" in table.columns:
            counts = table[f"verdict.{name}"].value_counts()
            marks = (f"{SYMBOLS[v]} {v}: {counts[v]}" for v in SYMBOLS if v in counts)
            rows.append({"claim": name, "kind": claim.kind, "verdicts": ", ".join(marks)})
    columns = ["claim", "kind", "verdicts"]
    return Sheet(table=pd.DataFrame(rows, columns=columns), heading="Verdicts, in runs")


# ---------------------------------------------------------------- a figure


def _section(
    table: pd.DataFrame, axes: Sequence[str], column: str, known: Mapping[str, Claim]
) -> Figure:
    claim = known.get(_name(column)) if column.startswith("claim.") else None
    figure = draw_column(table, axes, column, claim)
    if claim is None:
        return heading(_name(column)), "Recorded by the notebook.", figure
    judged = table[f"verdict.{claim.id}"].value_counts()
    share = f"{judged.get('reproduced', 0)} of {len(table)} runs reproduce it"
    statement = claim.statement[:1].upper() + claim.statement[1:]
    note = f"{statement}. {claim.kind.capitalize()}, {tolerance_in_words(claim)}: {share}."
    return claim.id, note, figure


def draw_column(
    table: pd.DataFrame, axes: Sequence[str], column: str, claim: Claim | None = None
) -> go.Figure:
    """One claim or metric over the parameter with most values, a line for each of the others'.

    Seeds are repetitions: a line goes through their mean, with its 95 % interval. Markers are
    runs, in the colour and shape of their verdict; the band is what counts as reproduced.
    """
    fields = [name for name in axes if not is_seed(name)] or list(axes[:1])
    x = max(fields, key=lambda name: table[name].dtype.kind in "iuf")
    lines = [name for name in fields if name != x]
    known = table.dropna(subset=[column])
    if table[x].dtype.kind not in "iuf":
        known = known.assign(**{x: known[x].map(str)})
    figure = go.Figure()
    groups = list(known.groupby(lines, dropna=False)) if lines else [((), known)]
    for place, (chosen, group) in enumerate(groups):
        label = ", ".join(f"{n}={_values(group[n])}" for n in lines) if chosen else ""
        _add_line(figure, group.groupby(x)[column], label, place)
    if claim is None:
        _add_runs(figure, known, x, column, None)
    for verdict in _MARKS if claim else ():
        own = known[known[f"verdict.{_name(column)}"] == verdict]
        if len(own):
            _add_runs(figure, own, x, column, verdict)
    if claim is not None:
        _add_band(figure, claim, sorted(known[x].unique().tolist()))
    _set_axis(figure, known[x])
    if known[column].abs().max() >= 1e5:
        figure.update_yaxes(exponentformat="SI")
    unit = f" ({claim.unit})" if claim and claim.unit else ""
    y = f"{claim.id}{unit}" if claim else heading(_name(column))
    return draw.finish(figure, x=heading(x), y=y, height=430)


def _add_line(figure: go.Figure, by_x: Any, label: str, place: int) -> None:
    means = {at: mean_interval(values) for at, values in by_x}
    figure.add_scatter(
        x=list(means),
        y=[mean for mean, _, _ in means.values()],
        error_y={"array": [high - mean for mean, _, high in means.values()], "color": "#222222"},
        mode="lines",
        name=label,
        showlegend=bool(label) and place < len(_DASHES),
        line={"color": draw.PALETTE["muted"], "dash": _DASHES[place % len(_DASHES)], "width": 2},
        hoverinfo=None if label else "skip",
    )


def _add_runs(
    figure: go.Figure, own: pd.DataFrame, x: str, column: str, verdict: Verdict | None
) -> None:
    colour, shape = _MARKS[verdict] if verdict else ("ours", "circle")
    figure.add_scatter(
        x=own[x].tolist(),
        y=own[column].tolist(),
        mode="markers",
        name=f"{SYMBOLS[verdict]} {verdict}" if verdict else "run",
        showlegend=bool(verdict),
        marker={"color": draw.PALETTE[colour], "symbol": shape, "size": 11},
        text=own["run.slug"].tolist(),
        hovertemplate="%{text}<br>%{y}<extra></extra>",
    )


def _add_band(figure: go.Figure, claim: Claim, at: Sequence[Any]) -> None:
    """The paper's value, and from where to where a value counts as reproduced."""
    ends = claim.accepted
    if ends is None:
        return
    colour = draw.PALETTE["paper"]
    paper = claim.paper
    if isinstance(paper, int | float):
        line = {"color": colour, "dash": "dash", "width": 2}
        name = f"paper: {number(paper)}"
        figure.add_scatter(x=list(at), y=[paper] * len(at), mode="lines", name=name, line=line)
    seen = [
        height + side * width
        for trace in figure.data
        for height, width in zip(trace.y, trace.error_y.array or [0] * len(trace.y), strict=True)
        for side in (-1, 1)
    ]
    finite = [value for value in (*seen, *ends) if math.isfinite(value)]
    pad = 0.08 * (max(finite) - min(finite) or abs(finite[0]) or 1.0)
    low = min(finite) - pad
    high = max(finite) + pad
    band = max(ends[0], low), min(ends[1], high)
    figure.add_hrect(*band, fillcolor=colour, opacity=0.16, line_width=0, layer="below")
    figure.update_yaxes(range=[low, high])


def _set_axis(figure: go.Figure, at: pd.Series[Any]) -> None:
    values = sorted(at.unique().tolist())
    if at.dtype.kind not in "iuf":
        figure.update_xaxes(type="category")
    elif len(values) <= 10:
        wide = values[0] > 0 and values[-1] / values[0] >= 16
        texts = [number(value) for value in values]
        figure.update_xaxes(tickvals=values, ticktext=texts, type="log" if wide else "linear")
