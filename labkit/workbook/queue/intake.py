"""Papers on their way into the queue: BibTeX from a file, a text, standard input or the network."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from labkit import files
from labkit.errors import UsageError
from labkit.workbook.queue import bibliography, lookup
from labkit.workbook.queue.bibliography import Entry
from labkit.workbook.queue.reading_queue import Paper, as_key, key_for

FORMS = (
    "a .bib file, a BibTeX entry (@inproceedings{...}), - for standard input, an arXiv id such as "
    "1910.02054, a DOI such as 10.1145/3341301.3359646, a link to either, or the key of an entry "
    f"that {bibliography.FILE} holds already"
)


def read(source: str, library: Mapping[str, Entry], *, key: str = "") -> list[Entry]:
    """The entries that ``source`` names, under keys the queue can use.

    ``key`` sets the key of a single entry; else a key that does not fit is made to (small
    letters, digits, hyphens), and a paper from the network gets its system's name. What the
    ``library`` has is taken from there, without network.

    Raises:
        UsageError: the source is none of the forms, or holds no entry.
        BadFile: it is not proper BibTeX.
        LabkitError: the network is needed and out of reach.
    """
    if known := _known(source, library):
        return [known]
    text, label, keyless = _bibtex(source)
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
    identifier = lookup.recognise(source)
    if identifier is None:
        return None
    for entry in library.values():
        own = filter(None, map(lookup.recognise, (entry.doi, entry.eprint, entry.url)))
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
    if identifier := lookup.recognise(source):
        return lookup.bibtex(identifier), Path(identifier.url), True
    if path.suffix.lower() in (".bib", ".bibtex", ".txt"):
        raise UsageError(f"there is no file {source}")
    raise UsageError(f"cannot tell what {source!r} is; valid: {FORMS}")


def _under(entry: Entry, key: str) -> Entry:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", key):
        valid = Paper.model_fields["key"].description
        raise UsageError(f"{key!r} cannot be a key; valid: {valid} (choose with --key)")
    if key == entry.key:
        return entry
    return replace(entry, key=key, text=bibliography.rekeyed(entry.text, key))
