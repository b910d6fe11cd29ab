"""One download that knows when to give up: seconds for a silent host, and only once each."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

CONNECT_S = 3.0  # for one address of the host
ANSWER_S = 5.0  # until the first byte: name, all addresses, TLS, the server's own time
STALL_S = 8.0  # between two pieces of the body
SLOWEST_BYTES_PER_S = 50_000.0  # slower than this over the whole file is given up too
EXCESS_BYTES = 1 << 20  # more than this beyond the published size is no download of ours
CHUNK_BYTES = 1 << 13

_unreachable: dict[str, str] = {}


class DownloadError(Exception):
    """The file could not be had from its address; the text says why, in a few words."""

    status: int | None = None
    """What HTTP said, where the host answered at all."""


def download(
    url: str,
    target: Path,
    size_bytes: int,
    label: str,
    headers: Mapping[str, str] | None = None,
    answer_s: float | None = None,
) -> None:
    """Write what ``url`` serves to ``target``; its content is for the caller to check.

    ``answer_s`` is how long the first byte may take, where not :data:`ANSWER_S`.

    Works in a thread that is left behind when the host falls silent, because neither resolving
    a name nor reading headers one byte at a time can be bounded from inside. A progress bar is
    drawn on stderr where that is a terminal and there is a ``label``.

    Raises:
        DownloadError: no connection, an HTTP error, silence, or slower than is worth waiting
            for. A host that failed so is not tried again by this process.
    """
    host = urlsplit(url).netloc
    if host in _unreachable:
        raise DownloadError(_unreachable[host])
    with target.open("wb") as stream:
        transfer = _Transfer(url, stream, size_bytes + EXCESS_BYTES, headers or {})
        try:
            _watch(transfer, size_bytes, label, answer_s or ANSWER_S)
        except _HostError as failure:
            _unreachable[host] = f"{host}: {failure}"
            raise DownloadError(_unreachable[host]) from None
        finally:
            transfer.abandon()


class _HostError(Exception):
    """Says that the host, rather than this one file of it, is what failed."""


class _AbandonedError(Exception):
    """Ends a transfer nobody waits for any more."""


class _Transfer:
    """A download under way in its own thread: a file-like object that counts what passes."""

    def __init__(
        self, url: str, stream: BinaryIO, limit_bytes: int, headers: Mapping[str, str]
    ) -> None:
        self.received_bytes = 0
        self.error: BaseException | None = None
        self.done = threading.Event()
        self._stream = stream
        self._limit_bytes = limit_bytes
        self._headers = headers
        self._writing = threading.Lock()
        self._abandoned = False
        threading.Thread(target=self._run, args=(url,), daemon=True, name="download").start()

    def _run(self, url: str) -> None:
        try:
            import pooch

            pooch.HTTPDownloader(
                chunk_size=CHUNK_BYTES,
                timeout=(CONNECT_S, 2 * STALL_S),  # silence is for _watch to call
                headers={"Accept-Encoding": "identity", **self._headers},
            )(url, self, None)
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()

    def write(self, piece: bytes) -> int:
        with self._writing:
            if self._abandoned:
                raise _AbandonedError
            self.received_bytes += len(piece)
            if self.received_bytes > self._limit_bytes:
                raise DownloadError(f"far more bytes than published ({self.received_bytes})")
            return self._stream.write(piece)

    def flush(self) -> None:
        """Do nothing: the file is flushed when it is closed."""

    def abandon(self) -> None:
        """Write nothing more to the file from here on."""
        with self._writing:
            self._abandoned = True


def _watch(transfer: _Transfer, size_bytes: int, label: str, answer_s: float) -> None:
    """Wait for the transfer, drawing progress, and give up when it is silent or too slow."""
    from tqdm import tqdm

    started_s = heard_s = time.monotonic()
    longest_s = answer_s + STALL_S + size_bytes / SLOWEST_BYTES_PER_S
    seen_bytes = 0
    hidden = not (label and sys.stderr.isatty())
    with tqdm(
        total=size_bytes, desc=label, unit="B", unit_scale=True, leave=False, disable=hidden
    ) as bar:
        while not transfer.done.wait(0.1):
            now_s = time.monotonic()
            if transfer.received_bytes > seen_bytes:
                bar.update(transfer.received_bytes - seen_bytes)
                seen_bytes = transfer.received_bytes
                heard_s = now_s
            silence_s = STALL_S if seen_bytes else answer_s
            if now_s - heard_s > silence_s:
                what = "went silent" if seen_bytes else "did not answer"
                raise _HostError(f"{what} for {silence_s:g} s")
            if now_s - started_s > longest_s:
                raise _HostError(f"only {seen_bytes} of {size_bytes} bytes in {longest_s:.0f} s")
        bar.update(transfer.received_bytes - seen_bytes)
    if transfer.error is not None:
        raise _explained(transfer.error)


def _explained(error: BaseException) -> Exception:
    """Explain an error of requests in a few words, and say whether the host or the one file is to
    blame.
    """
    import requests

    if isinstance(error, DownloadError):
        return error
    if isinstance(error, requests.HTTPError) and error.response is not None:
        status = error.response.status_code
        reason = error.response.reason or ""
        failure = DownloadError(f"HTTP {status} {reason}".strip())
        failure.status = status
        return failure
    if isinstance(error, requests.Timeout):
        return _HostError("timed out")
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return DownloadError("the connection broke off before the end of the file")
    if isinstance(error, requests.RequestException):
        return _HostError(root_cause(error))
    raise error  # a fault of ours, or a full disk: not for the network to explain


def root_cause(error: BaseException) -> str:
    """Find the operating system's own words under requests' and urllib3's wrapping."""
    deepest: BaseException | None = error
    words = ""
    while deepest is not None:
        if isinstance(deepest, OSError):
            words = deepest.strerror or (
                "timed out" if isinstance(deepest, TimeoutError) else words
            )
        deepest = deepest.__cause__ or deepest.__context__
    return words[:1].lower() + words[1:] if words else type(error).__name__
