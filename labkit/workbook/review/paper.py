"""The paper a notebook reviews: its data, its claims, its companions, its sources."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import files
from labkit.errors import not_among
from labkit.workbook.queue import bibliography
from labkit.workbook.review import claims as _claims
from labkit.workbook.review import glance, points, tables
from labkit.workbook.review.listening import is_live
from labkit.workbook.review.verdicts import Claim

if TYPE_CHECKING:
    import pandas as pd
    from IPython.display import Markdown

    from labkit.datasets import Source
    from labkit.workbook.queue.bibliography import Entry

_LONGEST_NAME = 30


@dataclass(frozen=True, repr=False)
class Paper:
    """One paper of the workbook; make it with :func:`open_paper`."""

    key: str
    root: Path
    entry: Entry
    opened: dict[str, Source] = field(default_factory=dict, compare=False)
    """The data sets that were opened, by name."""

    def __repr__(self) -> str:
        return f"{self.entry.title} ({self.entry.cite()})"

    def data(self, name: str, *paths: str) -> Source:
        """The data set ``name``, or its stand-in where it cannot be had (``.is_standin`` says so).

        ``paths`` are the files the notebook opens (default: all). As a cell's last expression it
        shows where the data come from; a stand-in's banner shows at once, whatever comes last.
        """
        from labkit import datasets

        source = datasets.source(name, files=list(paths) or None, root=self.root)
        self.opened[source.name] = source
        shell = sys.modules.get("IPython")
        if source.is_standin and shell and shell.get_ipython():
            shell.display.display(source)
            return replace(source, announced=True)
        return source

    def claims(
        self, values: Mapping[str, Any], *data: Source, flips: Mapping[str, Any] | None = None
    ) -> tables.Table:
        """Our ``values`` (claim id -> value, None = not attempted) beside the paper's, judged.

        ``flips`` holds, for each headline and mechanism claim, the value with the claim's ``flip``
        (the paper's nearest rival) in the method's place. It is judged by the same rule; a
        reproduced claim whose flip is missing or reproduced too is shown as "not earned". A line
        above the table says what *flipped* and the signs mean.

        Pass every data set the values were computed from: on a fitted stand-in the verdict says
        so with the fit's error, on any other stand-in the claim is not judged. Several calls in
        one notebook add up; a later value of a claim replaces an earlier one.

        Raises:
            UsageError: an unknown claim id, a value that is not finite or of another kind than
                the claim's, a flip of a claim that takes none, or a claim's data set that was not
                passed.
        """
        return _claims.judge(self.root, self.key, values, data, flips)

    def claim(self, id: str) -> Claim:
        """A claim as ``claims.yaml`` has it: ``paper.claim("saving").paper`` is the paper's value.

        Figures and sentences read the paper's numbers here, so that none is typed into a cell.

        Raises:
            UsageError: an unknown id; the message says which are near.
        """
        known = {claim.id: claim for claim in _claims.load(self.root, self.key)}
        if id not in known:
            raise not_among("claim", id, list(known))
        return known[id]

    def points(self, name: str = "points") -> pd.DataFrame:
        """The paper's own points: ``data/papers/<key>/<name>.csv``, a row a point.

        Lines that start with ``#`` are comments: where the points were read, and how exactly.

        Raises:
            UsageError: no such file; the message names those there are.
            BadFile: it is no table, or has no row.
        """
        return points.load(self.root, self.key, name)

    def rivals(
        self,
        make_figure: Callable[[str], Any],
        rivals: Sequence[str],
        claims: Callable[[str], Mapping[str, Any]] | None = None,
        *,
        label: str = "",
    ) -> Any:
        """The headline with a rival of the paper in the method's place, chosen from a menu.

        In JupyterLab and Voilà the menu asks ``make_figure`` again; elsewhere the states are
        stored in the figure, as :func:`labkit.workbook.explore` does with a list. Below the plot
        stand the claims with the values under that rival, each judged by the paper's tolerance.

        Args:
            make_figure: gives the headline figure for a rival's name.
            rivals: names, the paper's own method first, then its nearest rivals.
            claims: gives, for a rival's name, claim id -> value with that rival in the method's
                place (None = cannot be computed). Its data sets were opened by :meth:`data`.
            label: what the menu says (default: "in the method's place").

        Raises:
            UsageError: fewer than two rivals, one twice, an unknown claim id, a value of another
                kind than the claim's, a data set that was not opened, or more than 1 MB of states.
        """
        from labkit.workbook.review import rivals as menu

        return menu.figure(self.root, self.key, make_figure, rivals, claims, self.opened, label)

    def beside(self, *keys: str) -> tables.Table:
        """This paper and its companions side by side, in the five at-a-glance rows.

        The lines are pulled from the notebooks (from ``glance.yaml`` for a companion that has
        none yet, which its heading says), so they are typed once.
        """
        import pandas as pd

        entries = bibliography.load(self.root)
        titles = {key: known_entry(entries, key, self.root) for key in (self.key, *keys)}
        lines = {key: glance.of(self.root, key) for key in titles}
        data = pd.DataFrame({key: of.rows for key, of in lines.items()}).rename_axis("aspect")
        return tables.Table(
            data=data,
            headers=["", *(_heading(key, titles[key], of.marks) for key, of in lines.items())],
            rows=[list(row) for row in data.itertuples()],
            align=["left"] * (1 + len(lines)),
            bold=0,
            wrap=40,
        )

    def shared(
        self, input: str, results: pd.DataFrame | Mapping[str, Mapping[str, float]], *data: Source
    ) -> tables.Table:
        """Methods on an ``input`` that companions run too, for ``labkit compare``.

        ``results`` has a row a method (its index has a name) and a column a measure, with the unit
        in its name, or maps each method to its measures; ``input`` is named the same in every
        notebook. Pass the data sets it rests on.

        Raises:
            UsageError: the table is empty, has no index name, a method twice, or holds no numbers.
        """
        return tables.shared_table(self.key, input, results, data)

    def record(self, **values: float) -> tables.Table:
        """Numbers of this run by name, the unit at its end, for ``labkit results`` and sweeps.

        >>> open_paper("zeus").record(time_s=12.5)
        recorded  value
        --------  -----
        time (s)   12.5

        Raises:
            UsageError: no number, or one that is not finite.
        """
        return tables.metrics_table(values)

    def questions(self) -> Markdown:
        """What the group asked and remarked (``labkit ask``), in a live session.

        A stored output compares exactly, and anybody may ask at any time: so it only says how to
        ask, and pages and decks take the questions from their file.
        """
        from IPython.display import Markdown

        from labkit.workbook.queue import questions

        how = f'`labkit ask {self.key} "…"` keeps a question or a remark with this paper.'
        if not is_live():
            return Markdown(how)
        return Markdown(questions.markdown(questions.load(self.root, self.key)) or how)

    def sources(self, *data: Source, cites: Sequence[str] = ()) -> tables.Table:
        """What the notebook rests on: this paper, the papers it cites, data and licences.

        The papers behind ``data`` are cited by themselves; ``cites`` adds further keys.
        """
        entries = bibliography.load(self.root)
        keys = [self.key, *cites, *(source.dataset.citation for source in data)]
        rows = [_paper_row(known_entry(entries, key, self.root)) for key in dict.fromkeys(keys)]
        rows += map(_data_row, data)
        return tables.table(rows)


def open_paper(key: str) -> Paper:
    """The paper ``key`` of ``data/papers.bib``.

    It looks at the parameters that stand above it, and refuses a value that cannot work, as
    ``data/papers/<key>/parameters.yaml`` has it. In a live session it shows the ways through the
    notebook, where its cells are tagged with them.

    Raises:
        UsageError: the bibliography has no such key; the message says which are near.
        BadValue: a parameter has a value that cannot work; the message says what would be valid.
    """
    if not gc.get_freeze_count():  # once: what is garbage by the next call would stay too
        gc.freeze()  # what a kernel has imported stays: looking through it again takes 0.2 s
    root = files.project_root()
    paper = Paper(key=key, root=root, entry=known_entry(bibliography.load(root), key, root))
    _look_at_parameters(paper)
    _show_ways(paper)
    return paper


def _look_at_parameters(paper: Paper) -> None:
    """Refuse values in the kernel that cannot work; a session without all of them is no run of the
    paper's notebook."""
    shell = sys.modules.get("IPython")
    if not (shell and shell.get_ipython()):
        return
    from labkit.workbook.review import ranges

    known = ranges.load(paper.root, paper.key)
    values = shell.get_ipython().user_ns
    if all(name in values for name in known):
        ranges.require(paper.key, known, values)


def _show_ways(paper: Paper) -> None:
    shell = sys.modules.get("IPython")
    if not (shell and shell.get_ipython() and is_live()):
        return
    from labkit.workbook.review import ways

    if text := ways.markdown(paper.root, paper.key):
        shell.display.display(shell.display.Markdown(text))


def title_markdown(entry: Entry) -> str:
    """A title cell's first lines, from the bibliography: what ``labkit check`` compares."""
    names = ", ".join(entry.authors) + (", et al." if entry.et_al else "")
    venue = f"{entry.venue} {entry.year}".strip()
    link = f" · [paper]({entry.link})" if entry.link else ""
    return f"# {entry.title}\n\n{names} · {venue}{link}"


def _heading(key: str, entry: Entry, marks: str) -> str:
    """A column's heading: the system's name where the entry has one, citation, marks."""
    name, colon, _ = entry.title.partition(":")
    short = entry.shorttitle or (name if colon and len(name) <= _LONGEST_NAME else key)
    return f"{short}: {entry.cite()}" + (f" ({marks})" if marks else "")


def _paper_row(entry: Entry) -> dict[str, str]:
    text = entry.citation().removesuffix(entry.link).rstrip()
    return {"kind": "paper", "source": text, "licence": "", "where": entry.link}


def _data_row(source: Source) -> dict[str, str]:
    dataset = source.dataset
    name = f"{dataset.title} ({dataset.name})"
    return {
        "kind": "data",
        "source": f"stand-in of our own for: {name}" if source.is_standin else name,
        "licence": dataset.licence,
        "where": f"{dataset.origin} at {dataset.commit[:12]}",
    }


def known_entry(entries: Mapping[str, Entry], key: str, root: Path) -> Entry:
    if key in entries:
        return entries[key]
    more = "`labkit queue search TEXT` finds a key, `labkit queue add` adds a paper"
    raise not_among(
        f"paper in {root / 'data' / 'papers.bib'} with the key", key, entries, more=more
    )
