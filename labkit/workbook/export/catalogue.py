"""Everything the index, the scoreboard and the search box say, gathered from the queue, the runs
and the claims."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from labkit.errors import LabkitError
from labkit.kit.page import json_for_script
from labkit.workbook import notebooks
from labkit.workbook.export import origin
from labkit.workbook.export.markup import Markup, anchor
from labkit.workbook.queue import bibliography, reading_queue
from labkit.workbook.review import claims as claims_file
from labkit.workbook.review import glance
from labkit.workbook.review.anatomy import Subject
from labkit.workbook.review.tally import Tally, row, rule_in_words, standin_warning, tally

T = TypeVar("T")

STATUS_WORDS = {
    "presented": "Presented",
    "reviewed": "Reviewed",
    "reading": "Being read",
    "queued": "To read",
    "dropped": "Dropped",
}
_HEADING = re.compile(r"^## +(.+)$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_MARKS = re.compile(r"<[^>]*>|[*`|#$\\{}]|(?<=\s)-{2,}")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One paper: where it stands in the queue, what it says in a line, what we found."""

    paper: reading_queue.Paper
    entry: bibliography.Entry
    source: origin.Origin | None
    insight: str
    results: str
    marks: str
    content: claims_file.ClaimsFile | None
    claims: list[dict[str, Any]]
    subject: Subject | None = field(repr=False)
    """The notebook that the paper's page shows."""

    @property
    def has_page(self) -> bool:
        return self.source is not None

    @property
    def executed(self) -> bool:
        return self.source is not None and self.source.record is not None

    @property
    def family(self) -> str:
        """The folder of its notebook; "" without one."""
        return self.source.committed.parent.name if self.source else ""

    @property
    def why(self) -> str:
        return self.paper.reason if self.paper.status == "dropped" else self.paper.why

    @property
    def tally(self) -> Tally:
        return tally(self.claims)

    @property
    def standin(self) -> str:
        return standin_warning(self.claims)


@dataclass(frozen=True)
class Catalogue:
    """The papers of the queue in reading order, grouped, and what could not be read."""

    items: list[Item]
    problems: list[str]

    def groups(self) -> list[tuple[str, list[Item], Tally]]:
        """Papers with a notebook by family, then all others by status; each group's claims."""
        families = sorted({item.family for item in self.items if item.family})
        groups = [(name, [i for i in self.items if i.family == name]) for name in families]
        groups += [
            (words, [i for i in self.items if not i.family and i.paper.status == name])
            for name, words in STATUS_WORDS.items()
        ]
        return [(name, own, tally(c for i in own for c in i.claims)) for name, own in groups if own]

    @property
    def statuses(self) -> list[str]:
        present = {item.paper.status for item in self.items}
        return [words for name, words in STATUS_WORDS.items() if name in present]

    @property
    def tags(self) -> list[str]:
        return sorted({tag for item in self.items for tag in item.paper.tags})

    @property
    def judged(self) -> list[Item]:
        """Papers with claims, those that were run first."""
        return sorted(
            (i for i in self.items if i.claims), key=lambda i: (not i.has_page, i.paper.key)
        )

    @property
    def tally(self) -> Tally:
        """All claims of all papers, counted."""
        return tally(claim for item in self.items for claim in item.claims)


def load(root: Path, sources: Mapping[str, origin.Origin] | None = None) -> Catalogue:
    """The whole catalogue; ``sources`` are the notebooks to show, by key, where they are known.

    Raises:
        BadFile: the queue or the bibliography is malformed. What is wrong with one paper only is
            told in ``problems``.
    """
    papers = reading_queue.load(root)
    known = notebooks.paths(root)
    shown = origin.Found(root) if sources is None else sources
    problems = [
        f"{path.relative_to(root)}: {key} is not in {reading_queue.FILE}"
        for key, path in known.items()
        if key not in papers
    ]
    items = [
        _item(
            root,
            paper,
            papers.entry(paper.key),
            shown[paper.key] if paper.key in known else None,
            problems,
        )
        for paper in papers.reading_order()
    ]
    return Catalogue(items, problems)


def _item(
    root: Path,
    paper: reading_queue.Paper,
    entry: bibliography.Entry,
    source: origin.Origin | None,
    problems: list[str],
) -> Item:
    key = paper.key
    has_claims = claims_file.path_of(root, key).is_file()
    content = _tried(problems, claims_file.load_file, root, key) if has_claims else None
    notebook = _tried(problems, notebooks.glimpse, source.path) if source else None
    claims = _tried(problems, _claims, key, content, notebook) or _claims(key, content, None)
    has_lines = source is not None or glance.path_of(root, key).is_file()
    lines = _tried(problems, glance.of, root, key) if has_lines else None
    markup = Markup(root, lambda _: None)
    item = Item(
        paper=paper,
        entry=entry,
        source=source,
        insight=markup.line(lines.rows["insight"]) if lines else "",
        results=markup.line(lines.rows["results"]) if lines else "",
        marks=lines.marks if lines else "",
        content=content,
        claims=claims,
        subject=Subject(root, key, source.path, notebook) if source and notebook else None,
    )
    problems += [f"{key}, at a glance: {problem}" for problem in markup.problems]
    return item


def _tried(problems: list[str], load: Callable[..., T], *args: Any) -> T | None:
    """What ``load`` gives, or None and its error among the ``problems``."""
    try:
        return load(*args)
    except LabkitError as error:
        problems.append(str(error))
        return None


def _claims(
    key: str, content: claims_file.ClaimsFile | None, notebook: Any
) -> list[dict[str, Any]]:
    """The claims of a paper with their verdicts; one that no run showed is not attempted.

    Headline and mechanism claims come first, as they are counted first.
    """
    shown = claims_file.from_notebook(notebook) if notebook and content else []
    by_id = {record["id"]: record for record in shown if record["paper"] == key}
    known = sorted(content.claims, key=lambda c: not c.is_reproduction) if content else []
    records = [by_id.get(claim.id) or claims_file.record_of(key, claim) for claim in known]
    return [
        row(record | {"rule": rule_in_words(claim)})
        for record, claim in zip(records, known, strict=True)
    ]


# ---------------------------------------------------------------- what the search box looks through


def search_script(items: Iterable[Item]) -> str:
    """The script that sets ``SEARCH``: a record (key, url, where, text) for each place to find.

    It stands beside the pages, since a page opened from disk may not fetch; the browser indexes it
    on the first word (elasticlunr, which pdoc ships; words as ``filters.js`` cuts them).
    """
    return f"const SEARCH = {json_for_script([r for item in items for r in _records(item)])};\n"


def _records(item: Item) -> Iterator[dict[str, Any]]:
    paper = item.paper
    entry = item.entry
    lines = (re.sub(r"<[^>]+>", "", line) for line in (item.insight, item.results))
    words = (paper.key, entry.title, entry.cite(), *entry.authors, *paper.tags, item.why)
    text = " ".join((*words, paper.presenter, *lines))
    yield {"key": paper.key, "url": "", "where": entry.title, "text": text}
    for claim in item.claims:
        text = " ".join(claim[name] for name in ("statement", "source", "flip", "paper", "ours"))
        url = f"scoreboard.html#{paper.key}:{claim['id']}"
        yield {"key": paper.key, "url": url, "where": f"Claim, {claim['verdict']}", "text": text}
    cells = item.subject.notebook.cells if item.subject else []
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    for heading, text in sections("\n\n".join(prose)) if prose else ():
        url = f"papers/{paper.key}.html" + (f"#{anchor(heading)}" if heading else "")
        yield {"key": paper.key, "url": url, "where": heading or "Verdict", "text": text}


def sections(markdown: str) -> list[tuple[str, str]]:
    """(heading, text) of each part under a second-level heading; the first has no heading.

    >>> sections("# T\\n\\nIt *holds*.\\n\\n## Why [so](x.ipynb)\\n\\nSee `f`.")
    [('', 'T It holds.'), ('Why so', 'See f.')]
    """
    first, *rest = _HEADING.split(markdown)
    pairs = [("", first), *zip(rest[::2], rest[1::2], strict=True)]
    return [(_plain(heading), _plain(text)) for heading, text in pairs]


def _plain(markdown: str) -> str:
    return " ".join(_MARKS.sub("", _LINK.sub(r"\1", markdown)).split())
