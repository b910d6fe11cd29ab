"""``data/papers.bib``: every paper the workbook knows, as BibTeX, read with line numbers.

BibTeX is what Zotero and papis read and write, so the file stays the exchange format; here it is
parsed once by pybtex, its LaTeX turned into plain text, and each entry's own text kept verbatim
so that an export gives back what a person typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from labkit import files
from labkit.errors import BadFile

FILE = Path("data/papers.bib")
LARGEST = 5_000_000
"""Characters that the file may have, and that its ``@string``s may come to in all."""

_CONTAINERS = ("journal", "journaltitle", "booktitle", "howpublished", "school", "institution")
_ACRONYM = re.compile(r"\(([A-Z][A-Za-z/& -]*?)\W*(?:\d{2}|\d{4})?\)")
_STYLED = re.compile(
    r"\\(?:text(?:tt|sf|rm|it|bf|sc|sl|md|up|normal)|emph|mbox|mathrm|mathit|mathbf|mathsf)\s*"
    r"\{([^{}]*)\}"
)
"""Commands that set their text in another type; the text stays."""
_QUOTES = {
    "textquotedblleft": "\u201c",
    "textquotedblright": "\u201d",
    "textquoteleft": "\u2018",
    "textquoteright": "\u2019",
    "textquotesingle": "'",
    "textquotedbl": '"',
}
_QUOTE = re.compile(rf"\\({'|'.join(_QUOTES)})(?![A-Za-z])(?:\{{\}}|\s+)?")
_COLLECTIONS = ("proceedings", "book", "collection", "mvcollection", "mvproceedings")
_OF_NOBODY = ("misc", "online", "electronic", "www", "manual", "software", "techreport", "report")
"""Kinds of entries that people write of pages, and leave without an author."""
_BEHIND = ("organization", "institution", "publisher")
_OF_EVERYBODY = ("doi.org", "dx.doi.org", "arxiv.org")
"""Hosts whose name says nothing of who stands behind a page."""
_ADDRESS = re.compile(r"https?://[\w.-]+\w[^\s{}]*", re.IGNORECASE)
_PRIVATE = re.compile(r"file|pdf|local-url|bdsk-.*|owner|timestamp", re.IGNORECASE)
"""Fields of reference managers that hold paths and names of one person's machine."""
_YEAR_TAIL = re.compile(r"[\s'\u2019]+(?:\d{2}|\d{4})$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One paper of the bibliography, its LaTeX decoded.

    ``venue`` is the short name people say ("NSDI"), ``container`` the full one as printed;
    ``shorttitle`` is the system's name where the title does not say it ("BytePS");
    ``authors`` are "First Last" in order and ``et_al`` says that the list is cut short with
    ``and others``; ``line`` and ``text`` are where and how the entry stands in the file.
    """

    key: str
    kind: str
    title: str
    shorttitle: str = ""
    authors: tuple[str, ...]
    surnames: tuple[str, ...] = field(repr=False)
    et_al: bool = False
    venue: str
    container: str
    year: int
    url: str = ""
    doi: str = ""
    eprint: str = ""
    line: int = field(default=0, compare=False)
    text: str = field(default="", repr=False, compare=False)

    def cite(self) -> str:
        """Short citation: "You et al., NSDI 2023"."""
        few = len(self.surnames) <= 2 and not self.et_al
        who = " and ".join(self.surnames) if few else f"{self.surnames[0]} et al."
        return f"{who}, {self.venue} {self.year}" if self.venue else f"{who}, {self.year}"

    def citation(self) -> str:
        """Full plain-text citation: authors, title, where, year, link."""
        names = ", ".join(self.authors) + (", et al." if self.et_al else "")
        ending = "" if self.title.endswith(("?", "!", ".")) else "."
        return f"{names.rstrip('.')}. {self.title}{ending} {self.where}. {self.link}".strip()

    @property
    def where(self) -> str:
        """Where and when it appeared, in full."""
        printed = self.container or self.venue
        return printed if str(self.year) in printed else f"{printed}, {self.year}".lstrip(", ")

    @property
    def link(self) -> str:
        """The best address there is: url where it is a web page's, else DOI, else arXiv."""
        if re.match(r"https?://", self.url, re.IGNORECASE):
            return self.url
        if self.doi:
            return f"https://doi.org/{self.doi}"
        return f"https://arxiv.org/abs/{self.eprint}" if self.eprint else ""


def load(root: Path) -> dict[str, Entry]:
    """The bibliography of the workbook at ``root``, by key, in file order.

    Raises BadFile where the file is missing, is no BibTeX, repeats a key, or an entry lacks a
    title, an author (or editor) or a four-digit year.
    """
    path = root / FILE
    return dict(parse(files.read_text(path), path))


@lru_cache(maxsize=2)  # a check asks for the same text three times a notebook
def parse(text: str, path: Path) -> dict[str, Entry]:
    """The entries of BibTeX ``text`` by key; ``path`` names it in errors (as :func:`load`).

    >>> text = "@misc{b07, title={Ens{\\\\=o} {NIC}}, author={Bell, Ann}, year=2007}"
    >>> entry = parse(text, Path("papers.bib"))["b07"]
    >>> entry.title, entry.cite()
    ('Ensō NIC', 'Bell, 2007')
    """
    if control := files.CONTROL.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise BadFile(path, "holds a control character", line=line, valid="text")
    entries: dict[str, Entry] = {}
    folded: dict[str, int] = {}
    for raw in whole(list(scan(text, path))):
        first = folded.setdefault(raw.key.lower(), raw.line)
        if first != raw.line:
            problem = f"the key stands twice (first on line {first})"
            valid = "each key once; BibTeX keys differ in more than case"
            raise BadFile(path, problem, line=raw.line, field="key", value=raw.key, valid=valid)
        entries[raw.key] = _entry(raw)
    return entries


def render(kind: str, key: str, fields: Mapping[str, str]) -> str:
    """A BibTeX entry in the file's house style, one field a line; empty fields are left out."""
    width = max((len(name) for name, value in fields.items() if value), default=0)
    body = "".join(f"  {name:<{width}} = {{{value}}},\n" for name, value in fields.items() if value)
    return f"@{kind}{{{key},\n{body}}}"


def rekeyed(entry_text: str, key: str) -> str:
    """The text of one entry with its key replaced, all else as it was."""
    return re.sub(r"^(@\s*\w+\s*[{(]\s*)[^\s,]+", lambda m: m[1] + key, entry_text, count=1)


def shared(entry_text: str, path: Path) -> str:
    """The text of one entry without the fields of one person's machine, as others may see it.

    >>> text = "@misc{a,\\n  title = {T},\\n  file = {/home/ann/T.pdf},\\n}"
    >>> shared(text, Path("papers.bib"))
    '@misc{a,\\n  title = {T},\\n}'
    """
    (raw,) = scan(entry_text, path)
    kept = {name: value for name, value in raw.fields.items() if not _PRIVATE.fullmatch(name)}
    return entry_text if len(kept) == len(raw.fields) else render(raw.kind, raw.key, kept)


def keyed(text: str, key: str) -> str:
    """BibTeX ``text`` with a key where its only entry has none, all else as it was.

    >>> keyed("@misc{, title={T}}", "t20"), keyed("@misc{title={T}}", "t20")
    ('@misc{t20, title={T}}', '@misc{t20, title={T}}')
    """
    text = re.sub(r"(@\s*\w+\s*[{(])\s*,", lambda m: f"{m[1]}{key},", text, count=1)
    unnamed = re.compile(r"(@\s*(?!string\b|preamble\b|comment\b)\w+\s*[{(])\s*(?=\w+\s*=)", re.I)
    return unnamed.sub(lambda m: f"{m[1]}{key}, ", text, count=1)


def decode(latex: str) -> str:
    """LaTeX markup as plain Unicode text: accents, braces, dashes, inline maths symbols."""
    styled = _QUOTE.sub(lambda quote: _QUOTES[quote[1]], latex)
    while styled != (latex := _STYLED.sub(r"\1", styled)):
        styled = latex
    if not re.search(r"[\\$~]|--|``|''", latex):
        return " ".join(latex.replace("{", "").replace("}", "").split())
    from pybtex.richtext import Text

    return " ".join(str(Text.from_latex(latex)).replace("\xa0", " ").split())


@dataclass(frozen=True, slots=True)
class Raw:
    """An entry as it stands: fields with their LaTeX, its first line and its text."""

    kind: str
    key: str
    fields: dict[str, str]
    line: int
    text: str
    path: Path

    def refused(self, name: str, problem: str, value: str | None, valid: str) -> BadFile:
        problem = f"entry {self.key!r} {problem}"
        return BadFile(self.path, problem, line=self.line, field=name, value=value, valid=valid)


def scan(text: str, path: Path) -> Iterator[Raw]:
    """Every entry as it stands, spelled out where the file has ``@string``s."""
    from pybtex.scanner import PybtexSyntaxError

    if len(text) > LARGEST:
        problem = f"holds {len(text):,} characters"
        raise BadFile(path, problem, valid=f"at most {LARGEST:,}, some ten thousand entries")
    parser = _parser(text)
    has_strings = False
    counted = 0
    line = 1
    try:
        for command, body in parser:
            start = parser.command_start or 0
            line += text.count("\n", counted, start)
            counted = start
            if command.lower() in ("string", "preamble"):
                has_strings = True
                continue
            key, pairs = body
            fields = _fields(path, line, key, pairs)
            own = render(command, key, fields) if has_strings else text[start : parser.pos]
            yield Raw(command.lower(), key, fields, line, own, path)
    except PybtexSyntaxError as error:
        begins = text.count("\n", 0, parser.command_start or 0) + 1
        reason = str(error).split(": ", 1)[-1]
        key = parser.current_entry_key
        name = f"entry {key!r}" if key else "the entry"
        raise BadFile(
            path,
            f"not valid BibTeX: {reason}, in {name} that begins on line {begins}",
            line=begins if "premature" in reason else error.lineno,
            valid="@type{key, field = {value}, ...} with balanced braces",
        ) from None


def whole(raws: Sequence[Raw]) -> Iterator[Raw]:
    """Entries with what they take from another by ``crossref``; that other is no paper itself.

    Raises BadFile where the other entry is missing.
    """
    by_key = {raw.key.lower(): raw for raw in raws}
    parents = {raw.fields["crossref"].lower() for raw in raws if "crossref" in raw.fields}
    for raw in raws:
        if raw.key.lower() in parents and raw.kind in _COLLECTIONS:
            continue
        if "crossref" not in raw.fields:
            yield raw
            continue
        named = raw.fields["crossref"]
        parent = by_key.get(named.lower())
        if parent is None:
            valid = "the key of an entry of the same file"
            raise raw.refused("crossref", "refers to no entry", named, valid)
        given = dict(parent.fields)
        title = given.pop("title", "")
        given.setdefault("booktitle", title)
        own = {name: value for name, value in raw.fields.items() if name != "crossref"}
        fields = given | own
        yield replace(raw, fields=fields, text=render(raw.kind, raw.key, fields))


def _parser(text: str) -> Any:
    """Make pybtex's parser, which follows ``@string``s without end where each names others."""
    from pybtex.database.input.bibtex import LowLevelParser, month_names
    from pybtex.scanner import PybtexSyntaxError
    from pybtex.utils import CaseInsensitiveDict

    class Parser(LowLevelParser):
        inserted = 0

        def substitute_macro(self, name: str) -> str:
            value = str(super().substitute_macro(name))
            self.inserted += len(value)
            if self.inserted > LARGEST:
                problem = f"its @strings come to more than {LARGEST:,} characters"
                raise PybtexSyntaxError(problem, self)
            return value

    return Parser(text, macros=CaseInsensitiveDict(month_names))


def _fields(path: Path, line: int, key: str, pairs: list[tuple[str, list[str]]]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, parts in pairs:
        if name.lower() in fields:
            problem = f"entry {key!r} gives a field twice"
            value = "".join(parts)
            valid = "each field once"
            raise BadFile(path, problem, line=line, field=name, value=value, valid=valid)
        fields[name.lower()] = " ".join("".join(parts).split())
    return fields


def _entry(raw: Raw) -> Entry:
    if not raw.fields.get("title"):
        raise raw.refused("title", "has no title", None, "title = {...}")
    year = raw.fields.get("year") or raw.fields.get("date", "")[:4]
    if not re.fullmatch(r"\d{4}", year):
        valid = "year = {2023}; of what is to appear the year that is expected, and a note"
        raise raw.refused("year", "has no proper year", year or None, valid)
    names, surnames, et_al = _people(raw)
    printed, venue = _places({k: v for k, v in raw.fields.items() if names != (decode(v),)})
    url = raw.fields.get("url") or _address(raw.fields.get("howpublished", ""))
    return Entry(
        key=raw.key,
        kind=raw.kind,
        title=decode(raw.fields["title"]),
        shorttitle=decode(raw.fields.get("shorttitle", "")),
        authors=names,
        surnames=surnames,
        et_al=et_al,
        venue=venue,
        container=printed,
        year=int(year),
        url=re.sub(r"\\([%&#_~])", r"\1", url),
        doi=raw.fields.get("doi", "").removeprefix("https://doi.org/"),
        eprint=raw.fields.get("eprint", ""),
        line=raw.line,
        text=raw.text,
    )


def _people(raw: Raw) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    from pybtex.bibtex.utils import split_name_list
    from pybtex.database import Person
    from pybtex.exceptions import PybtexError

    role = "author" if raw.fields.get("author") else "editor"
    listed = split_name_list(raw.fields.get(role, "")) or _publisher(raw)
    et_al = bool(listed) and listed[-1].lower() == "others"
    listed = listed[:-1] if et_al else listed
    if not listed:
        valid = "author = {First Last and First Last}, or {{An Organisation}} in two braces"
        raise raw.refused("author", "names no author", None, valid)
    try:
        people = [Person(name) for name in listed]
    except PybtexError as error:
        problem = f"has a name BibTeX cannot read ({' '.join(str(error).split())})"
        raise raw.refused(role, problem, None, "Last, First") from None
    names = tuple(
        decode(" ".join((*p.bibtex_first_names, *p.prelast_names, *p.last_names, *p.lineage_names)))
        for p in people
    )
    surnames = tuple(decode(" ".join((*p.prelast_names, *p.last_names))) for p in people)
    return names, surnames, et_al


def _publisher(raw: Raw) -> list[str]:
    """Who stands behind a page, a manual or a program that names no author: the organisation, else
    the host of its address; as a list of names, empty where nothing says it."""
    if raw.kind not in _OF_NOBODY:
        return []
    said = next((raw.fields[name] for name in _BEHIND if raw.fields.get(name)), "")
    address = _address(raw.fields.get("url", "")) or _address(raw.fields.get("howpublished", ""))
    host = address.split("/")[2].lower().removeprefix("www.") if address else ""
    name = said or ("" if host in _OF_EVERYBODY else host)
    return [f"{{{name}}}"] if name else []


def _address(text: str) -> str:
    """Find the first address of a web page in a text; empty where there is none."""
    found = _ADDRESS.search(text)
    return found[0] if found else ""


def _places(fields: Mapping[str, str]) -> tuple[str, str]:
    """Where it appeared, as printed; and in short: named so, or by an acronym in brackets."""
    named = [fields[name] for name in _CONTAINERS if fields.get(name)]
    printed = decode(next((text for text in named if not _address(text)), ""))
    archive = fields.get("archiveprefix") or fields.get("eprinttype", "")
    is_arxiv = bool(fields.get("eprint")) and archive.lower() in ("arxiv", "")
    short = decode(fields.get("shortjournal") or fields.get("series") or "")
    if short:
        venue = _YEAR_TAIL.sub("", short)
    elif acronym := _ACRONYM.search(printed):
        venue = acronym[1].strip(" '")
    else:
        venue = _YEAR_TAIL.sub("", printed) or ("arXiv" if is_arxiv else "")
    return printed or (f"arXiv:{fields['eprint']}" if is_arxiv else ""), venue
