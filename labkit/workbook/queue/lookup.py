"""A paper's BibTeX from the network: an arXiv id or a DOI, given up after seconds.

Sources: arXiv API user manual (https://info.arxiv.org/help/api/user-manual.html), DOI content
negotiation (https://citation.crosscite.org/docs.html).
"""

from __future__ import annotations

import html
import os
import re
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labkit.errors import BadFile, LabkitError, UsageError
from labkit.workbook.queue import bibliography

CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 10.0
DEADLINE_S = 15.0
ARXIV_API = "https://export.arxiv.org/api/query"

_ATOM = "{http://www.w3.org/2005/Atom}"
_ARXIV = "{http://arxiv.org/schemas/atom}"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Identifier:
    """What a person typed, recognised: an arXiv id (without version) or a DOI."""

    kind: Literal["arXiv", "DOI"]
    value: str

    @property
    def url(self) -> str:
        """The page a person can open to find the BibTeX by hand."""
        return f"https://{'arxiv.org/abs' if self.kind == 'arXiv' else 'doi.org'}/{self.value}"


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


def bibtex(identifier: Identifier) -> str:
    """One BibTeX entry for the paper, in the bibliography's house style.

    Raises:
        UsageError: there is no such paper.
        LabkitError: the host is out of reach or answers with an error; the message says how to
            add the paper without it.
    """
    if identifier.kind == "arXiv":
        url = f"{ARXIV_API}?id_list={identifier.value}&max_results=1"
        return arxiv_bibtex(_get(identifier, url, {}), identifier)
    headers = {"Accept": "application/x-bibtex; charset=utf-8"}
    return doi_bibtex(_get(identifier, identifier.url, headers), identifier)


def arxiv_bibtex(feed: str, identifier: Identifier) -> str:
    """The answer of arXiv's query API (Atom) as a BibTeX ``@misc`` entry."""
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(feed)
    except ElementTree.ParseError as error:
        raise _unusable(identifier, f"its answer is no Atom feed ({error})") from None
    entry = root.find(f"{_ATOM}entry")
    link = "" if entry is None else entry.findtext(f"{_ATOM}id", "")
    if entry is None or "/api/errors" in link or not entry.findtext(f"{_ATOM}title"):
        raise UsageError(f"arXiv knows no paper {identifier.value!r}; valid: an id like 1910.02054")
    names = (author.findtext(f"{_ATOM}name", "") for author in entry.findall(f"{_ATOM}author"))
    category = entry.find(f"{_ARXIV}primary_category")
    fields = {
        "title": _tidy(_protected(entry.findtext(f"{_ATOM}title", ""))),
        "author": " and ".join(_tidy(name) for name in names),
        "year": entry.findtext(f"{_ATOM}published", "")[:4],
        "eprint": identifier.value,
        "archiveprefix": "arXiv",
        "primaryclass": "" if category is None else category.get("term", ""),
        "doi": entry.findtext(f"{_ARXIV}doi", ""),
        "url": identifier.url,
    }
    return _checked(bibliography.render("misc", "unnamed", fields), identifier)


def doi_bibtex(answer: str, identifier: Identifier) -> str:
    """The BibTeX a DOI agency sends (one line, HTML entities) in the house style."""
    try:
        entries = bibliography.fields(answer, Path(identifier.url))
    except BadFile as error:
        raise _unusable(identifier, f"its BibTeX cannot be read ({error.problem})") from None
    if len(entries) != 1:
        raise _unusable(identifier, f"it sent {len(entries)} BibTeX entries instead of one")
    [(_, kind, fields)] = entries
    plain = {name: html.unescape(value) for name, value in fields.items()}
    plain["title"] = _protected(plain.get("title", ""))
    tidy = {name: _tidy(value) for name, value in plain.items()}
    tidy |= {"doi": identifier.value, "url": identifier.url}
    return _checked(bibliography.render(kind, "unnamed", tidy), identifier)


def _checked(text: str, identifier: Identifier) -> str:
    try:
        bibliography.parse(text, Path(identifier.url))
    except BadFile as error:
        raise _unusable(identifier, f"its record is incomplete ({error.problem})") from None
    return text


def _get(identifier: Identifier, url: str, headers: dict[str, str]) -> str:
    """Fetch, bounded as a whole: a name lookup has no timeout of its own, hence the thread."""
    if os.environ.get("LABKIT_OFFLINE"):
        raise _unusable(identifier, "LABKIT_OFFLINE is set")
    outcome: Future[str] = Future()

    def work() -> None:
        try:
            outcome.set_result(_request(identifier, url, headers))
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return outcome.result(DEADLINE_S)
    except TimeoutError:
        raise _unusable(identifier, f"no answer within {DEADLINE_S:g} s") from None


def _request(identifier: Identifier, url: str, headers: dict[str, str]) -> str:
    import requests

    agent = {"User-Agent": "labkit (reading queue of a research workbook)"}
    try:
        answer = requests.get(
            url, headers={**agent, **headers}, timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S)
        )
    except requests.exceptions.Timeout:
        raise _unusable(identifier, "the connection timed out") from None
    except requests.exceptions.RequestException as error:
        raise _unusable(identifier, f"out of reach ({type(error).__name__})") from None
    if answer.status_code == 404:
        raise UsageError(f"{identifier.kind} {identifier.value!r} does not exist (404 at {url})")
    if not answer.ok:
        raise _unusable(identifier, f"it answered {answer.status_code} {answer.reason}")
    answer.encoding = "utf-8"
    return answer.text


def _unusable(identifier: Identifier, reason: str) -> LabkitError:
    host = "arXiv" if identifier.kind == "arXiv" else "doi.org"
    return LabkitError(
        f"cannot get {identifier.kind} {identifier.value} from {host}: {reason}. "
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
