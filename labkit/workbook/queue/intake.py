"""Papers on their way into the queue: BibTeX from a file, a text, standard input or the network.

An arXiv id or a DOI is asked of doi.org, which forwards to the agency that registered the DOI;
arXiv registers one for each of its papers. Sources: DOI content negotiation
(https://citation.crosscite.org/docs.html), arXiv identifiers as DOIs
(https://info.arxiv.org/help/doi.html).
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from labkit import files
from labkit.datasets import download, store
from labkit.errors import BadFile, LabkitError, UsageError
from labkit.workbook.queue import bibliography
from labkit.workbook.queue.bibliography import Entry
from labkit.workbook.queue.reading_queue import Paper, as_key, key_for

FORMS = (
    "a .bib file, a BibTeX entry (@inproceedings{...}), - for standard input, an arXiv id such as "
    "2309.06180, a DOI such as 10.1145/1327452.1327492, a link to either, or the key of an entry "
    f"that {bibliography.FILE} holds already"
)

RESOLVER = "https://doi.org"
ANSWER_S = 15.0
LARGEST_BYTES = 100_000
HEADERS = {
    "User-Agent": "labkit (reading queue of a research workbook)",
    "Accept": "application/x-bibtex; charset=utf-8",
}

_ARXIV_ID = re.compile(
    r"(?:arxiv:|https?://(?:www\.|export\.)?arxiv\.org/(?:abs|pdf)/)?"
    r"(?P<id>\d{4}\.\d{4,5}|[a-z-]+(?:\.[A-Z]{2})?/\d{7})(?:v\d+)?(?:\.pdf)?",
    re.IGNORECASE,
)
_DOI = re.compile(
    r"(?:doi:\s*|https?://(?:dx\.|www\.)?doi\.org/|https?://dl\.acm\.org/doi/(?:abs/|pdf/)?)?"
    r"(?P<id>10\.\d{4,9}/\S+)",
    re.IGNORECASE,
)


def read(source: str, library: Mapping[str, Entry], *, key: str = "") -> list[Entry]:
    """The entries that ``source`` names, under keys the queue can use.

    ``key`` sets the key of a single entry; else a key that does not fit is made to (small
    letters, digits, hyphens), and a paper from the network gets its system's name. What the
    ``library`` has is taken from there, without network.

    Raises UsageError where the source is none of the forms or holds no entry, BadFile where it is
    not proper BibTeX, LabkitError where the network is needed and out of reach.
    """
    if known := _known(source, library):
        return [known]
    text, label, keyless = _bibtex(source)
    if key:
        text = bibliography.keyed(text, key)
    entries = list(bibliography.parse(text, label).values())
    if not entries:
        raise UsageError(f"{label} holds no BibTeX entry; valid: {FORMS}")
    if key and len(entries) > 1:
        raise UsageError(f"--key names one paper, but {label} holds {len(entries)} entries")
    return [
        _under(entry, key or (key_for(entry) if keyless else as_key(entry.key)))
        for entry in entries
    ]


def papers(
    entries: Sequence[Entry],
    *,
    priority: int = 2,
    why: str = "",
    tags: Sequence[str] = (),
    companions: Sequence[str] = (),
) -> list[Paper]:
    """A queued paper for each entry; raises UsageError for a field the queue would not take."""
    from pydantic import ValidationError

    common = {"priority": priority, "why": why, "tags": tags, "companions": companions}
    try:
        return [
            Paper.model_validate({"key": entry.key, "status": "queued", **common})
            for entry in entries
        ]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        valid = Paper.model_fields[name].description
        raise UsageError(f"{name} {first['input']!r}: {first['msg']}; valid: {valid}") from None


def _known(source: str, library: Mapping[str, Entry]) -> Entry | None:
    """The entry of the library that ``source`` names by its key, arXiv id or DOI."""
    if source in library:
        return library[source]
    identifier = recognise(source)
    if identifier is None:
        return None
    for entry in library.values():
        own = filter(None, map(recognise, (entry.doi, entry.eprint, entry.url)))
        if identifier.value.casefold() in {known.value.casefold() for known in own}:
            return entry
    return None


def _bibtex(source: str) -> tuple[str, Path, bool]:
    """BibTeX, the name of where it comes from, and whether its key is only a placeholder."""
    if source == "-":
        return sys.stdin.read(), Path("standard input"), False
    if source.lstrip().startswith("@"):
        return source, Path("the text given"), False
    path = Path(source).expanduser()
    if path.is_file():
        return files.read_text(path).removeprefix("\ufeff"), path, False
    if identifier := recognise(source):
        return in_house_style(_get(identifier), identifier), Path(identifier.url), True
    if path.suffix.lower() in (".bib", ".bibtex", ".txt"):
        raise UsageError(f"there is no file {source}")
    raise UsageError(f"cannot tell what {source!r} is; valid: {FORMS}")


def _under(entry: Entry, key: str) -> Entry:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", key):
        valid = Paper.model_fields["key"].description
        raise UsageError(f"{key!r} cannot be a key; valid: {valid} (choose with --key)")
    text = bibliography.shared(entry.text, bibliography.FILE)
    return replace(entry, key=key, text=bibliography.rekeyed(text, key))


# ---------------------------------------------------------------- from the network


@dataclass(frozen=True, slots=True, kw_only=True)
class Identifier:
    """What a person typed, recognised: an arXiv id (without version) or a DOI."""

    kind: Literal["arXiv", "DOI"]
    value: str

    @property
    def url(self) -> str:
        """The page a person can open to find the BibTeX by hand."""
        return f"https://{'arxiv.org/abs' if self.kind == 'arXiv' else 'doi.org'}/{self.value}"

    @property
    def doi(self) -> str:
        return f"10.48550/arXiv.{self.value}" if self.kind == "arXiv" else self.value


def recognise(text: str) -> Identifier | None:
    """The identifier in ``text``, also as a link or with a prefix; None if it is neither.

    >>> recognise("https://arxiv.org/abs/1910.02054v3")
    Identifier(kind='arXiv', value='1910.02054')
    >>> recognise("doi:10.1109/SC41405.2020.00024").value
    '10.1109/SC41405.2020.00024'
    """
    if match := _ARXIV_ID.fullmatch(text.strip()):
        return Identifier(kind="arXiv", value=match["id"])
    if match := _DOI.fullmatch(text.strip()):
        return Identifier(kind="DOI", value=match["id"].rstrip(".,;"))
    return None


def in_house_style(answer: str, identifier: Identifier) -> str:
    """The BibTeX that a DOI agency sends (one line, HTML entities), our identifiers in place.

    Raises LabkitError, which says how to add the paper by hand, where it is no proper entry.
    """
    page = Path(identifier.url)
    try:
        entries = list(bibliography.scan(answer, page))
        if len(entries) != 1:
            raise _unusable(identifier, f"it sent {len(entries)} BibTeX entries instead of one")
        plain = {name: html.unescape(value) for name, value in entries[0].fields.items()}
        plain["title"] = _protected(plain.get("title", ""))
        tidy = {name: _tidy(value) for name, value in plain.items()}
        tidy |= {"doi": identifier.value, "url": identifier.url}
        if identifier.kind == "arXiv":  # its agency calls arXiv a publisher, and adds keywords
            tidy = {name: tidy.get(name, "") for name in ("title", "author", "year", "url")}
            tidy |= {"eprint": identifier.value, "archiveprefix": "arXiv"}
        text = bibliography.render(entries[0].kind, "unnamed", tidy)
        bibliography.parse(text, page)
    except BadFile as error:
        raise _unusable(identifier, f"its record cannot be read ({error.problem})") from None
    return text


def _get(identifier: Identifier) -> str:
    if store.offline():
        raise _unusable(identifier, "LABKIT_OFFLINE is set")
    address = f"{RESOLVER}/{identifier.doi}"
    with TemporaryDirectory() as folder:
        target = Path(folder) / "answer.bib"
        try:
            download.download(
                address, target, LARGEST_BYTES, label="", headers=HEADERS, answer_s=ANSWER_S
            )
        except download.DownloadError as error:
            if error.status == 404:
                problem = f"{identifier.kind} {identifier.value!r} does not exist"
                raise UsageError(f"{problem} (404 at {address})") from None
            raise _unusable(identifier, str(error)) from None
        return target.read_text(encoding="utf-8", errors="replace")


def _unusable(identifier: Identifier, reason: str) -> LabkitError:
    return LabkitError(
        f"cannot get {identifier.kind} {identifier.value} from doi.org: {reason}. "
        f"Without it, copy the paper's BibTeX from {identifier.url} (or Zotero) on a machine that "
        "has it, save it and run `labkit queue add paper.bib`, or paste it into "
        "`labkit queue add -`. Nothing was changed"
    )


def _tidy(text: str) -> str:
    """One line, braces balanced, and the characters TeX would trip over escaped."""
    text = " ".join(text.split())
    if text.count("{") != text.count("}"):
        text = text.replace("{", "").replace("}", "")
    return re.sub(r"(?<!\\)([&%#])", r"\\\1", text)


def _protected(title: str) -> str:
    """Braces around words with inner capitals, so that no style lowers them ({GPU}, {ZeRO})."""
    if re.search(r"[{}$\\]", title):
        return title
    return re.sub(r"\b\w+[A-Z]\w*\b", lambda word: "{" + word[0] + "}", title)
