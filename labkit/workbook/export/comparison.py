"""Papers side by side: their five lines, their claims, and their results on shared inputs.

Everything is pulled from the notebooks, executed where a result is at hand; a companion that has
none yet gives its five lines alone, and says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError
from labkit.kit.report import Figure, Report, Sheet
from labkit.quantities import formatted, heading
from labkit.workbook import notebooks
from labkit.workbook.export import origin
from labkit.workbook.queue import bibliography
from labkit.workbook.review import claims, glance, tables, tally
from labkit.workbook.review.paper import known_entry
from labkit.workbook.review.verdicts import REPRODUCTIONS

if TYPE_CHECKING:
    import pandas as pd

QUANTITIES = {
    "cluster": "mean_jct_h",
    "collectives": "traffic_s",
    "energy": "energy_j",
    "memory": "states_bytes",
    "parallelism": "iteration_s",
}
"""What a family's papers are about, as a shared measure; its figure shows it first."""
MOST_MEASURES = 2
"""Measures of an input that are drawn."""
CUT_FROM = 5.0
"""A bar so many times as long as the next one is cut."""
CUT_SHOWN = 1.3
"""Where the axis then ends, as a multiple of the next one."""
SIDE_BY_SIDE = 4
"""Up to so many papers are columns of the table of their five lines, more are its rows."""
_UNIT = re.compile(r"\(([^()]+)\)$")
_CLAIMS = {
    "paper_key": "paper",
    "statement": "claim",
    "kind": "kind",
    "paper": "the paper's",
    "ours": "ours",
    "verdict": "verdict",
}


def families(root: Path) -> dict[str, list[str]]:
    """The papers that have a notebook, by family: the notebook's folder."""
    grouped: dict[str, list[str]] = {}
    for key, path in sorted(notebooks.paths(root).items()):
        grouped.setdefault(path.parent.name, []).append(key)
    return grouped


def compare(
    root: Path,
    keys: Sequence[str],
    title: str = "",
    family: str = "",
    sources: Mapping[str, origin.Origin] | None = None,
) -> Report:
    """The papers ``keys`` in one report.

    Args:
        title: its heading; default the keys.
        family: whose quantity the figures show first (:data:`QUANTITIES`); default what differs
            most among the methods.
        sources: the notebooks to show, where they are known.

    Raises:
        UsageError: fewer than two papers, one named twice, or one that the bibliography lacks.
        BadFile: a notebook or a companion's five lines cannot be read; names the file.
    """
    library = bibliography.load(root)
    known = notebooks.paths(root)
    for key in keys:
        known_entry(library, key, root)  # else a wrong key would read as one too few
    if len(keys) < 2 or len(set(keys)) < len(keys):
        raise UsageError(
            f"compare takes two papers or more, each once, got: {', '.join(keys) or 'none'}; "
            "`labkit queue search TEXT` finds a key"
        )
    entries = {key: known_entry(library, key, root) for key in keys}
    lines = {key: glance.of(root, key) for key in keys}
    shown = origin.Found(root) if sources is None else sources
    origins = [shown[key] for key in keys if key in known]
    executed = [notebooks.glimpse(source.path) for source in origins]
    judged = [record for book in executed for record in claims.from_notebook(book)]
    results = [record for book in executed for record in tables.shared_in(book)]
    claims_sheet = _claims(judged)
    inputs = _shared(results)
    return Report(
        title=title or " · ".join(keys),
        lead="Five lines and the claims of each paper, and what ran on one input.",
        banner=tally.standin_warning(judged),
        tables=[_glances(lines, entries), claims_sheet, *inputs],
        csv=claims_sheet.table,
        data={
            "papers": {key: entry.title for key, entry in entries.items()},
            "at_a_glance": {key: line.rows for key, line in lines.items()},
            "claims": judged,
            "shared": results,
        },
        notes=[f"{key}: {line.marks}" for key, line in lines.items() if line.marks],
        figures=lambda: [figure for sheet in inputs for figure in _figures(sheet, family)],
    )


def _glances(lines: Mapping[str, glance.Glance], entries: Mapping[str, Any]) -> Sheet:
    import pandas as pd

    titles = {key: f"{entry.title} ({entry.cite()})" for key, entry in entries.items()}
    rows = [{"aspect": "paper"} | titles] + [
        {"aspect": aspect} | {key: line.rows[aspect] for key, line in lines.items()}
        for aspect in glance.ASPECTS
    ]
    sides = pd.DataFrame(rows).set_index("aspect")
    is_wide = len(lines) <= SIDE_BY_SIDE
    table = sides if is_wide else sides.T
    columns = {str(name): str(name) for name in table}
    look: Any = {"columns": {"": ""} | columns, "ratio": dict.fromkeys(columns, 1)}
    look["titles"] = [] if is_wide else ["paper", ""]
    return Sheet(table=table.rename_axis("").reset_index(), heading="At a glance", **look)


def _claims(judged: Sequence[Mapping[str, Any]]) -> Sheet:
    """Headline and mechanism claims; consistency and group claims stand in the JSON."""
    import pandas as pd

    rows = [
        tally.row(record) | {"paper_key": record["paper"], "verdict": tally.signed(record)}
        for record in judged
        if record["kind"] in REPRODUCTIONS
    ]
    return Sheet(
        table=pd.DataFrame(rows, columns=list(_CLAIMS)),
        columns=_CLAIMS,
        heading="Claims: the paper's number beside ours",
        note=tally.tally(judged).words,
        wide=["kind"],
        ratio={"paper_key": 2, "statement": 6, "kind": 2, "paper": 3, "ours": 2, "verdict": 3},
    )


def _shared(records: Sequence[Mapping[str, Any]]) -> list[Sheet]:
    """A table an input: a row a method and the notebooks that ran it, a column a measure.

    The input that most methods ran on comes first.
    """
    import pandas as pd

    sheets = []
    methods: dict[str, set[str]] = {}
    for record in records:
        methods.setdefault(record["input"], set()).add(record["method"])
    for name in sorted(methods, key=lambda name: -len(methods[name])):
        rows = pd.DataFrame([record for record in records if record["input"] == name])
        table = rows.pivot_table(
            index=["method", "paper"], columns="measure", values="value", sort=False, aggfunc="last"
        )
        table = table.rename_axis(columns=None).reset_index().rename(columns={"paper": "notebook"})
        twice = disagreements(rows)
        notes = ["Computed on our stand-in data."] if rows["standin"].any() else []
        notes += [f"Notebooks differ on {', '.join(twice)}: not one input."] if twice else []
        sheet = _merged(table.astype(object).where(table.notna(), None))  # a gap is None, not NaN
        sheets.append(Sheet(table=sheet, heading=f"On one input: {name}", note=" ".join(notes)))
    return sheets


def disagreements(rows: pd.DataFrame) -> list[str]:
    """The methods that two notebooks ran on one input with results more than 1 % apart."""
    own = rows.astype({"value": float}).groupby(["input", "method", "measure"], sort=False)["value"]
    largest = own.agg(lambda values: values.abs().max())
    apart = own.max() - own.min() > 0.01 * largest
    return [*dict.fromkeys(apart[apart].index.get_level_values("method"))]


def _figures(sheet: Sheet, family: str) -> Iterator[Figure]:
    """The family's quantity on an input, and below it the measure that differs most besides:
    what the one costs in the other."""
    measures = _ranked(sheet.table, family)[:MOST_MEASURES]
    if not measures:
        return
    methods = sheet.table.dropna(subset=measures[:1])
    methods = methods.sort_values(measures[0], ascending=False, kind="stable")
    for place, measure in enumerate(measures):
        note = sheet.note if place == 0 else "The same methods in the same order."
        parts = [note, _range_in_words(methods, measure)]
        title = sheet.heading if place == 0 else ""
        yield title, " ".join(filter(None, parts)), _bars(methods, measure)


def _ranked(table: pd.DataFrame, family: str) -> list[str]:
    """What may be drawn of an input: the family's quantity first, then what differs most.

    Left out is what fewer than half as many methods have as another measure, and what is the same
    for all.
    """
    values = table[table["method"] != "bound"].iloc[:, 2:].astype(float)
    known = {str(name): int(count) for name, count in values.count().items()}
    half = max(known.values(), default=0) / 2
    lowest = values.abs().min()
    ratio = (values.abs().max() / lowest.where(lowest > 0)).fillna(0)
    spread = {str(name): float(times) for name, times in ratio.items()}
    kept = [name for name, count in known.items() if count > 1 and count >= half]
    differing = [name for name in kept if values[name].nunique() > 1]
    return sorted(
        differing or kept,
        key=lambda name: (name != QUANTITIES.get(family), -spread[name]),
    )


def _range_in_words(methods: pd.DataFrame, measure: str) -> str:
    """Which method has least and which most; bounds are no methods."""
    rows = methods[methods["method"] != "bound"].dropna(subset=[measure])
    values = dict(zip(rows["method"], rows[measure].astype(float), strict=True))
    if len(values) < 2:
        return ""
    ends = (min(values, key=values.__getitem__), max(values, key=values.__getitem__))
    least, most = (f"{method} ({_said(measure, values[method])})" for method in ends)
    return f"Least: {least}; most: {most}."


def _cut_at(values: Sequence[float]) -> float:
    """Where an axis ends so that one very long bar leaves the others their lengths; infinite
    where none is."""
    ordered = sorted(values)
    if len(ordered) < 3 or ordered[-2] <= 0:
        return math.inf
    return CUT_SHOWN * ordered[-2] if ordered[-1] > CUT_FROM * ordered[-2] else math.inf


def _said(measure: str, value: float) -> str:
    """A value with its unit, also where the measure's name has that in brackets."""
    words = formatted(measure, value)
    unit = _UNIT.search(measure)
    return f"{words} {unit[1]}" if unit and words else words


def _bars(methods: pd.DataFrame, measure: str) -> Any:
    """A bar a method, in their order, and a line for what none can beat."""
    import plotly.graph_objects as go

    from labkit.kit.draw import PALETTE, finish

    limit = methods["method"].eq("bound")
    bars = methods[~limit].dropna(subset=[measure])
    texts = [_said(measure, value) for value in bars[measure]]
    ends_at = _cut_at(bars[measure].astype(float).tolist())
    places = ["inside" if value > ends_at else "auto" for value in bars[measure]]
    look: dict[str, Any] = {
        "orientation": "h",
        "marker_color": PALETTE["ours"],
        "textposition": places,
    }
    look |= {"insidetextanchor": "start"} if "inside" in places else {}
    figure = go.Figure(go.Bar(x=bars[measure], y=bars["method"], text=texts, **look))
    bounds = methods.loc[limit, measure].dropna()
    for least in bounds:
        figure.add_vline(least, line_dash="dash")
    what = f"{heading(measure)}{'; dashed: what none can beat' if len(bounds) else ''}"
    figure.update_xaxes(exponentformat="SI")  # 2G bytes, not 2B
    if "inside" in places:
        figure.update_xaxes(range=[0, ends_at])
        what += "; longest cut"
    return finish(figure, x=what, height=130 + 34 * len(bars))


def _merged(table: pd.DataFrame) -> pd.DataFrame:
    """Rows that differ in their notebook alone as one row that names both."""
    values = table.columns.drop("notebook").tolist()
    by_row = table.groupby(values, sort=False, dropna=False)["notebook"].agg(", ".join)
    return by_row.reset_index()[table.columns.tolist()]


def markdown(report: Report) -> str:
    """The report as Markdown, for an issue, a wiki or a chat."""
    parts = [f"# {report.title}", report.lead]
    parts += [f"> {report.banner}"] if report.banner else []
    for sheet in report.tables:
        titles = list(sheet.headings.values())
        lines = [_line(titles), _line(["---"] * len(titles)), *map(_line, sheet.rows())]
        parts += [f"## {sheet.heading}", "\n".join(lines)] + ([sheet.note] if sheet.note else [])
    parts += ["\n".join(f"- {note}" for note in report.notes)] if report.notes else []
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
