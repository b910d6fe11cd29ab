"""``reading_queue.yaml``: what we want to read, why, and how far each paper has come.

A paper goes queued -> reading -> reviewed -> presented, or is dropped with a reason. The order of
reading is the priority, then the order in the file. :mod:`labkit.workbook.queue.edits` changes it.
"""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from labkit import files
from labkit.errors import UsageError, did_you_mean, not_among
from labkit.workbook.queue import bibliography

FILE = Path("reading_queue.yaml")
LISTING = "papers"

Status = Literal["queued", "reading", "reviewed", "presented", "dropped"]
STATUSES: tuple[Status, ...] = get_args(Status)
PRIORITIES = (1, 2, 3)
_KEY_FORM = r"^[a-z0-9][a-z0-9-]*$"
_KEY_HELP = "small letters, digits and hyphens, such as zero-offload"


def calendar_day(value: object) -> object:
    if isinstance(value, int | float):
        raise ValueError("a number is no date")
    return value


Key = Annotated[str, Field(pattern=_KEY_FORM, description=_KEY_HELP)]
Line = Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]


class Paper(BaseModel):
    """One entry of the queue; the fields stand in the file in this order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Key
    status: Status
    priority: Literal[1, 2, 3] = Field(description="1 (next), 2 (soon) or 3 (some day)")
    presenter: Line = Field(default="", description="a name")
    date: Annotated[dt.date | None, BeforeValidator(calendar_day)] = Field(
        default=None, description="a date such as 2026-03-14"
    )
    reason: Line = Field(default="", description="why it was dropped, in words")
    why: Line = Field(default="", description="why we want to read it, in words")
    tags: tuple[Key, ...] = Field(default=(), description=f"a list of {_KEY_HELP}")
    companions: tuple[Key, ...] = Field(default=(), description="a list of keys of the queue")


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    papers: list[Paper] = Field(description="a list of papers, each with key, status, priority")


@dataclass(frozen=True, slots=True)
class Queue:
    """The papers in file order, with the bibliography they are cited from."""

    root: Path
    entries: tuple[Paper, ...]
    library: Mapping[str, bibliography.Entry]

    def __iter__(self) -> Iterator[Paper]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: object) -> bool:
        return any(paper.key == key for paper in self.entries)

    def __getitem__(self, key: str) -> Paper:
        """The paper ``key``; raises UsageError with near matches where there is none."""
        for paper in self.entries:
            if paper.key == key:
                return paper
        named = [p.key for p in self.entries if folded(key) in self._names(p).split()][:3]
        hint = did_you_mean(key, [paper.key for paper in self.entries])
        hint = f"did you mean {' or '.join(map(repr, named))}?" if named else hint
        raise UsageError(f"no paper {key!r} in {FILE}; {hint or '`labkit queue` lists them'}")

    def entry(self, key: str) -> bibliography.Entry:
        """The bibliography entry of a paper of the queue."""
        return self.library[self[key].key]

    def reading_order(self) -> list[Paper]:
        """Being read, then queued by priority and place, then reviewed, presented, dropped."""
        rank = {"reading": 0, "queued": 1, "reviewed": 2, "presented": 3, "dropped": 4}
        return sorted(self.entries, key=lambda paper: (rank[paper.status], paper.priority))

    def select(self, *, status: Collection[str] = (), tags: Collection[str] = ()) -> list[Paper]:
        """Papers in reading order with one of the statuses (none given: any) and all the tags;
        raises UsageError for a status or a tag that no paper could have."""
        known = sorted({tag for paper in self.entries for tag in paper.tags})
        for what, asked, valid in (("status", status, STATUSES), ("tag", tags, known)):
            for name in asked:
                if name not in valid:
                    raise not_among(what, name, valid)
        return [
            paper
            for paper in self.reading_order()
            if (not status or paper.status in status) and set(tags) <= set(paper.tags)
        ]

    def coming(self, today: dt.date) -> list[Paper]:
        """What to read for next time: the next date's papers, else those being read, else the first
        queued. Papers that were presented or dropped are past, whatever their date."""
        ahead = [paper for paper in self if paper.status not in ("presented", "dropped")]
        dates = [paper.date for paper in ahead if paper.date and paper.date >= today]
        if dates:
            return [paper for paper in ahead if paper.date == min(dates)]
        return self.select(status=["reading"]) or self.select(status=["queued"])[:1]

    def heard(self, today: dt.date) -> list[Paper]:
        """What was presented on the latest day, up to ``today``, on which the group heard any."""
        past = [p for p in self.select(status=["presented"]) if p.date and p.date <= today]
        return [paper for paper in past if paper.date == max(p.date for p in past if p.date)]

    def search(self, text: str) -> list[Paper]:
        """Papers with every word of ``text`` in key, title, authors, tags or why.

        Case and accents do not matter: "dragojevic" finds Dragojević.
        """
        words = folded(text).split()
        return [p for p in self.reading_order() if all(w in self._haystack(p) for w in words)]

    def _haystack(self, paper: Paper) -> str:
        entry = self.library[paper.key]
        where = f"{entry.venue} {entry.year}"
        return folded(" ".join((self._names(paper), where, *paper.tags, paper.why)))

    def _names(self, paper: Paper) -> str:
        entry = self.library[paper.key]
        return folded(" ".join((paper.key, entry.title, entry.shorttitle, *entry.authors)))


def load(root: Path) -> Queue:
    """The queue of the workbook at ``root``; raises BadFile with line, field and value."""
    path = root / FILE
    return checked(root, files.load_yaml(path), bibliography.load(root))


def checked(root: Path, tree: Any, library: Mapping[str, bibliography.Entry]) -> Queue:
    """The queue in a parsed ``tree`` of its file; raises BadFile as :func:`load` does."""
    path = root / FILE
    papers = files.validate(path, tree, _File).papers
    lines: dict[str, int | None] = {}
    for place, paper in enumerate(papers):
        where = (LISTING, place, "key")
        if paper.key in lines:
            problem = f"the paper is listed twice (first on line {lines[paper.key]})"
            raise files.bad_field(
                path, tree, where, problem, value=paper.key, valid="each key once"
            )
        lines[paper.key] = files.line_of(tree, where)
    for place, paper in enumerate(papers):
        for name, problem, value, valid in _problems(paper, lines, library):
            problem = f"paper {paper.key!r}: {problem}"
            where = (LISTING, place, name)
            raise files.bad_field(path, tree, where, problem, value=value, valid=valid)
    return Queue(root, tuple(papers), library)


def _problems(
    paper: Paper, keys: Collection[str], library: Collection[str]
) -> Iterator[tuple[str, str, str | None, str]]:
    """What is wrong with a paper among the others: field, message, value, what is valid."""

    def near(valid: str, value: str, known: Collection[str]) -> str:
        return "; ".join(filter(None, (valid, did_you_mean(value, known))))

    if paper.key not in library:
        valid = near("a key of it", paper.key, library)
        yield "key", f"{bibliography.FILE} has no such entry", paper.key, valid
    if paper.status == "dropped" and not paper.reason:
        yield "reason", "dropped without a reason", None, "reason: why it was dropped"
    if paper.reason and paper.status != "dropped":
        yield "reason", "a reason but not dropped", paper.reason, "reason only with dropped"
    for companion in paper.companions:
        if companion == paper.key:
            yield "companions", "is its own companion", companion, "keys of other papers"
        if companion not in keys:
            valid = near("keys of the queue", companion, keys)
            yield "companions", "a companion that is not listed", companion, valid
    for name in ("tags", "companions"):
        listed = getattr(paper, name)
        yield from (
            (name, "listed twice", item, "each once") for item in listed if listed.count(item) > 1
        )


def as_key(text: str) -> str:
    """``text`` as a key of the queue: small letters, digits and hyphens.

    >>> as_key("Shoeybi_2019: Megatron-LM")
    'shoeybi-2019-megatron-lm'
    """
    return re.sub(r"[^a-z0-9]+", "-", folded(text)).strip("-")


def key_for(entry: bibliography.Entry) -> str:
    """A key for a paper that came without a good one: its system's name, else author and year.

    A title such as "Zeus: Understanding ..." names its system before the colon.
    """
    name = entry.shorttitle or entry.title.partition(":")[0]
    if name != entry.title and len(name.split()) == 1 and as_key(name):
        return as_key(name)
    word = next((w for w in re.findall(r"\w+", entry.title) if len(w) > 4), "")
    return as_key(f"{entry.surnames[0]}{entry.year}{word}")


def folded(text: str) -> str:
    """Without case and accents, for comparing."""
    parts = unicodedata.normalize("NFKD", text.casefold())
    return "".join(char for char in parts if not unicodedata.combining(char))
