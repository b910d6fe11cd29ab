"""Are the registered addresses still there: each is asked once, for its headers alone."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import urlsplit

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
    """An address that is registered: ``size_bytes`` where the size is known, ``headers`` to ask
    with.
    """

    url: str
    size_bytes: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a host said of one address: ``size_bytes`` as told, and where it has ``moved_to``."""

    address: Address
    state: State
    words: str
    size_bytes: int | None = None
    moved_to: str = ""


def ask(addresses: Iterable[Address]) -> Iterator[Answer]:
    """Ask each of ``addresses``, a few at once, and return the answers in order.

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
    """Ask in a thread that is left behind when the host falls silent.

    Neither resolving a name nor headers that come byte by byte can be bounded from inside.
    """
    answers = [Answer(address=address, state="unreachable", words=f"no answer in {limit_s:g} s")]
    asking = threading.Thread(target=lambda: answers.append(_asked(address)), daemon=True)
    asking.start()
    asking.join(limit_s)
    return answers[-1]


def _asked(address: Address) -> Answer:
    """Send HEAD and, where a host refuses that, a GET of no more than the first byte."""
    import requests

    state: State = "unreachable"
    with requests.Session() as session:
        session.max_redirects = MOST_REDIRECTS
        session.headers.update({"Accept-Encoding": "identity", **address.headers})
        try:
            end = _end(session.head, address.url)
            if end.status_code in _ASK_AGAIN:
                session.headers["Range"] = "bytes=0-0"
                end = _end(session.get, address.url)
            return _judged(address, end)
        except requests.TooManyRedirects:
            state = "refused"
            words = f"more than {MOST_REDIRECTS} redirects"
        except requests.exceptions.InvalidSchema as error:  # its text ends with the address
            state = "refused"
            words = "redirects to " + str(error).rpartition(" for ")[2].strip("'")
        except requests.RequestException as error:
            words = "timed out" if isinstance(error, requests.Timeout) else root_cause(error)
    return Answer(address=address, state=state, words=words)


def _end(method: Callable[..., Response], url: str) -> Response:
    """Ask where redirects end."""
    timeout = (CONNECT_S, 2 * ANSWER_S)  # silence is for _within to call
    with method(url, allow_redirects=True, stream=True, timeout=timeout) as response:
        return response


def _judged(address: Address, end: Response) -> Answer:
    size = _size(end)
    registered = address.size_bytes
    for_good = [*takewhile(lambda hop: hop.status_code in _PERMANENT, end.history)]
    moved_to = [*end.history, end][len(for_good)].url if for_good else ""
    state: State = "moved" if moved_to else "fine"
    words = f"to {moved_to}" if moved_to else "size as registered" if registered is not None else ""
    if end.status_code in _GONE:
        state = "gone"
        words = f"HTTP {end.status_code}"
    elif end.status_code not in (200, 206) and size is None:
        state = "refused"
        words = f"HTTP {end.status_code}"
    elif registered is not None and size not in (None, registered):
        state = "changed"
        words = f"{size} bytes, {registered} registered"
    elif registered is not None and size is None and not moved_to:
        words = "size not told"
    return Answer(address=address, state=state, words=words, size_bytes=size, moved_to=moved_to)


def _size(end: Response) -> int | None:
    """Read the whole file's size, where the headers say it.

    A part's range says it too (416 for an empty file), and what is compressed on the way is of
    another size.
    """
    total = re.fullmatch(r"bytes (?:\d+-\d+|\*)/(\d+)", end.headers.get("Content-Range", ""))
    if total and end.status_code in (206, 416):
        return int(total[1])
    length = end.headers.get("Content-Length", "")
    is_plain = end.headers.get("Content-Encoding", "identity") == "identity"
    return int(length) if end.status_code == 200 and is_plain and length.isdecimal() else None
