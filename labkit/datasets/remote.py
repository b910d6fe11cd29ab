"""Are the registered addresses still there: each is asked once, for its headers alone."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args
from urllib.parse import urljoin, urlsplit

from labkit.datasets.download import CONNECT_S, root_cause

if TYPE_CHECKING:
    from requests import Response

AT_ONCE = 6
ANSWER_S = 10.0  # for one address, redirects included
MOST_REDIRECTS = 5
MOST_MISSES = 3

State = Literal["fine", "moved", "changed", "gone", "refused", "unreachable"]
STATES: tuple[State, ...] = get_args(State)
_ASK_AGAIN = (400, 403, 404, 405, 501)  # said to a HEAD by hosts that serve a GET
_PERMANENT = (301, 308)
_GONE = (404, 410)


@dataclass(frozen=True, kw_only=True)
class Address:
    """What is registered: ``size_bytes`` where the size is known, ``headers`` to ask with."""

    url: str
    size_bytes: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a host said of one address: ``size_bytes`` as told, where it has ``moved_to``."""

    address: Address
    state: State
    words: str
    size_bytes: int | None = None
    moved_to: str = ""


def ask(addresses: Iterable[Address]) -> Iterator[Answer]:
    """An answer for each of ``addresses``, in order, a few asked at once.

    A host that could not be reached at first, or three times, is not asked again; its other
    addresses get the same answer.
    """
    heard: set[str] = set()
    misses: dict[str, list[str]] = {}

    def answered(address: Address) -> Answer:
        host = urlsplit(address.url).netloc
        reasons = misses.setdefault(host, [])
        if len(reasons) >= (MOST_MISSES if host in heard else 1):
            return Answer(address=address, state="unreachable", words=reasons[0])
        answer = _within(ANSWER_S, address)
        if answer.state == "unreachable":
            reasons.append(answer.words)
        else:
            heard.add(host)
        return answer

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(answered, addresses)


def _within(limit_s: float, address: Address) -> Answer:
    """The answer, in a thread that is left behind when the host falls silent: neither resolving a
    name nor headers that come byte by byte can be bounded from inside."""
    answers = [Answer(address=address, state="unreachable", words=f"no answer in {limit_s:g} s")]
    asking = threading.Thread(target=lambda: answers.append(_asked(address)), daemon=True)
    asking.start()
    asking.join(limit_s)
    return answers[-1]


class _End(NamedTuple):
    """Where the redirects end: a ``status`` (0: nowhere, for the ``problem``) and headers, and
    where the address ``moved`` to for good."""

    status: int
    headers: Mapping[str, str]
    moved: str = ""
    problem: str = ""


def _asked(address: Address) -> Answer:
    """HEAD, and where a host refuses that, a GET of no more than the first byte."""
    import requests

    with requests.Session() as session:
        try:
            end = _end(address, session.head)
            if end.status in _ASK_AGAIN:
                end = _end(address, session.get, {"Range": "bytes=0-0"})
        except requests.Timeout:
            return Answer(address=address, state="unreachable", words="timed out")
        except requests.RequestException as error:
            return Answer(address=address, state="unreachable", words=root_cause(error))
    return _judged(address, end)


def _end(
    address: Address, method: Callable[..., Response], more: Mapping[str, str] | None = None
) -> _End:
    url, moved, is_permanent = address.url, "", True
    headers = {"Accept-Encoding": "identity", **address.headers, **(more or {})}
    for _ in range(MOST_REDIRECTS + 1):
        timeout = (CONNECT_S, 2 * ANSWER_S)  # silence is for _within to call
        with method(
            url, headers=headers, allow_redirects=False, stream=True, timeout=timeout
        ) as response:
            if not response.is_redirect:
                return _End(response.status_code, response.headers, moved)
            url = urljoin(url, response.headers["Location"])
            is_permanent &= response.status_code in _PERMANENT
        moved = url if is_permanent else moved
        if not re.match(r"https?://", url):
            return _End(0, {}, problem=f"redirects to {url}")
    return _End(0, {}, problem=f"more than {MOST_REDIRECTS} redirects")


def _judged(address: Address, end: _End) -> Answer:
    size, registered = _size(end), address.size_bytes
    state: State = "moved" if end.moved else "fine"
    words = (
        f"to {end.moved}" if end.moved else "size as registered" if registered is not None else ""
    )
    if end.status in _GONE:
        state, words = "gone", f"HTTP {end.status}"
    elif end.status not in (200, 206) and size is None:
        state, words = "refused", end.problem or f"HTTP {end.status}"
    elif registered is not None and size not in (None, registered):
        state, words = "changed", f"{size} bytes, {registered} registered"
    elif registered is not None and size is None and not end.moved:
        words = "size not told"
    return Answer(address=address, state=state, words=words, size_bytes=size, moved_to=end.moved)


def _size(end: _End) -> int | None:
    """The whole file's size, where the headers say it: a part's range says it too (416 for an
    empty file), and what is compressed on the way is of another size."""
    total = re.fullmatch(r"bytes (?:\d+-\d+|\*)/(\d+)", end.headers.get("Content-Range", ""))
    if total and end.status in (206, 416):
        return int(total[1])
    length = end.headers.get("Content-Length", "")
    is_plain = end.headers.get("Content-Encoding", "identity") == "identity"
    return int(length) if end.status == 200 and is_plain and length.isdecimal() else None
