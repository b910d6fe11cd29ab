"""Everything the index and the scoreboard say, gathered from the queue, the runs and the claims."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from labkit.errors import LabkitError
from labkit.workbook import notebooks
from labkit.workbook.export import origin
from labkit.workbook.export.markup import Markup
from labkit.workbook.queue import bibliography, reading_queue
from labkit.workbook.review import claims as claims_file
from labkit.workbook.review import glance
from labkit.workbook.review.anatomy import Subject
from labkit.workbook.review.tally import SYMBOLS, Tally, row, standin_warning, tally

T = TypeVar("T")

STATUS_WORDS = {
    "presented": "Presented",
    "reviewed": "Reviewed",
    "reading": "Being read",
    "queued": "To read",
    "dropped": "Dropped",
}


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
    claims: list[dict[str, str]]
    tally: Tally
    standin: str
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
    def session(self) -> str:
        return ", ".join(filter(None, (self.paper.presenter, str(self.paper.date or ""))))

    @property
    def search(self) -> str:
        """What the index's search box looks through."""
        paper, entry = self.paper, self.entry
        lines = (re.sub(r"<[^>]+>", "", line) for line in (self.insight, self.results))
        parts = (paper.key, entry.title, entry.cite(), *entry.authors, *paper.tags, self.why)
        return " ".join((*parts, paper.presenter, *lines))


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
        none = tally([])
        return [
            (n, items, sum((i.tally for i in items), start=none)) for n, items in groups if items
        ]

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
        return sum((item.tally for item in self.items), start=tally([]))

    @property
    def verdicts(self) -> list[str]:
        """Every verdict some claim has, in the verdicts' own order."""
        given = {claim["verdict"] for item in self.items for claim in item.claims}
        return [verdict for verdict in SYMBOLS if verdict in given]

    @property
    def standin(self) -> list[Item]:
        return [item for item in self.items if item.standin]


def load(root: Path) -> Catalogue:
    """The whole catalogue.

    Raises:
        BadFile: the queue or the bibliography is malformed. What is wrong with one paper only is
            told in ``problems``.
    """
    papers = reading_queue.load(root)
    known = notebooks.paths(root)
    problems = [
        f"{path.relative_to(root)}: {key} is not in {reading_queue.FILE}"
        for key, path in known.items()
        if key not in papers
    ]
    items = [
        _item(root, paper, papers.entry(paper.key), paper.key in known, problems)
        for paper in papers.reading_order()
    ]
    return Catalogue(items, problems)


def _item(
    root: Path,
    paper: reading_queue.Paper,
    entry: bibliography.Entry,
    has_notebook: bool,
    problems: list[str],
) -> Item:
    key = paper.key
    source = origin.find(root, key, library={}) if has_notebook else None
    has_claims = claims_file.path_of(root, key).is_file()
    content = _tried(problems, claims_file.load_file, root, key) if has_claims else None
    notebook = _tried(problems, notebooks.glimpse, source.path) if source else None
    claims = _tried(problems, _claims, key, content, notebook) or _claims(key, content, None)
    has_lines = has_notebook or glance.path_of(root, key).is_file()
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
        claims=[row(claim) for claim in claims],
        tally=tally(claims),
        standin=standin_warning(claims),
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
    rules = [_rule(claim) for claim in known]
    return [record | {"rule": rule} for record, rule in zip(records, rules, strict=True)]


def _rule(claim: claims_file.Claim) -> str:
    """How a claim is judged; bounds of a fraction in per cent or points, as its values print."""
    if claim.unit != "fraction" or claim.judge in ("ratio", "ordering", "equal"):
        return claims_file.tolerance_in_words(claim)
    between = claim.judge == "between"
    scaled = tuple(100 * end for end in claim.interval) if between else 100 * claim.slack
    changed = {"tolerance": scaled, "unit": "%" if between else "points"}
    return claims_file.tolerance_in_words(claim.model_copy(update=changed))
