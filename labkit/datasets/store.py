"""Files of datasets on this machine: cache, mirror, download; nothing passes unhashed."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from labkit.errors import BadValue, LabkitError, UsageError, shown
from labkit.files import workbook_around

if TYPE_CHECKING:
    from labkit.datasets.registry import Dataset, PublishedFile

LOCK_WAIT_S = 60.0

logger = logging.getLogger("labkit.datasets")


class DatasetUnavailable(LabkitError):
    """A published file is neither in the cache nor in the mirror and cannot be downloaded."""

    def __init__(self, name: str, path: str, reason: str) -> None:
        self.name = name
        self.path = path
        self.reason = reason
        mirror = os.environ.get("LABKIT_DATA_MIRROR")
        mirrored = f"not in the mirror {mirror}" if mirror else "no mirror is set"
        super().__init__(
            f"{name}/{path} is not to be had: it is not in the cache, "
            f"{mirrored}, and it was not downloaded: {reason}. "
            f"With a network, `labkit data fetch {name}` downloads it; else set "
            "LABKIT_DATA_MIRROR to a folder that holds it as <dataset>/<path>"
        )


class CorruptDownload(LabkitError):
    """The bytes found are not the published ones."""

    def __init__(self, name: str, copy: Copy, *, origin: object, advice: str) -> None:
        super().__init__(
            f"{name}/{copy.file.path} from {origin} is not the published file: "
            f"{copy.difference}. {advice}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy of a published file on this machine, hashed: it may hold other bytes."""

    where: Literal["cache", "mirror", "download"]
    path: Path
    file: PublishedFile
    sha256: str
    size_bytes: int

    @property
    def intact(self) -> bool:
        return (self.sha256, self.size_bytes) == (self.file.sha256, self.file.size_bytes)

    @property
    def difference(self) -> str:
        return (
            f"expected sha256 {self.file.sha256} ({self.file.size_bytes} bytes), "
            f"found {self.sha256} ({self.size_bytes} bytes)"
        )


def cache_folder() -> Path:
    """Find where downloads are kept: ``$LABKIT_CACHE``, else the system's cache folder."""
    if configured := os.environ.get("LABKIT_CACHE"):
        return Path(configured).expanduser().absolute()
    import pooch

    return Path(pooch.os_cache("labkit"))


def check_root(root: object) -> None:
    """Refuse what is no folder's path.

    Raises:
        BadValue: the message has ``root``.
    """
    if root is not None and not isinstance(root, Path):
        raise BadValue(f"root must be a pathlib.Path, or None; got {shown(root)}")


def mirror_folder(root: Path | None = None) -> Path | None:
    """Find ``$LABKIT_DATA_MIRROR``, where set; a relative one starts from the workbook's folder,
    outside a workbook from the working directory.

    Raises:
        UsageError: it is set but is no folder.
    """
    check_root(root)
    configured = os.environ.get("LABKIT_DATA_MIRROR")
    if not configured:
        return None
    beside = (root or workbook_around() or Path.cwd()) / Path(configured).expanduser()
    folder = Path(os.path.normpath(beside))
    if not folder.is_dir():
        raise UsageError(
            f"LABKIT_DATA_MIRROR={configured} is not a folder (looked at {folder}); "
            "point it at one laid out as <dataset>/<path>, or unset it"
        )
    return folder


def offline() -> bool:
    """Tell whether ``LABKIT_OFFLINE`` forbids the network."""
    return os.environ.get("LABKIT_OFFLINE", "").lower() not in ("", "0", "false", "no")


def cache_path(dataset: Dataset, file: PublishedFile) -> Path:
    """Find where the cache keeps the file, by commit so that two versions never meet."""
    return cache_folder() / "datasets" / dataset.name / dataset.commit[:12] / file.path


def copies(dataset: Dataset, file: PublishedFile, root: Path | None) -> Iterator[Copy]:
    """Yield the copies on this machine, the cache's first, each hashed as it is reached."""
    if copy := _copy("cache", cache_path(dataset, file), file):
        yield copy
    mirror = mirror_folder(root)
    if mirror and (copy := _copy("mirror", mirror / dataset.name / file.path, file)):
        yield copy


def locate(dataset: Dataset, file: PublishedFile, root: Path | None) -> Copy | None:
    """Find the copy that :func:`obtain` would use without the network, or None.

    A damaged copy in the cache counts for nothing (it can be fetched again); one in the mirror
    comes back with ``intact=False``, since somebody put it there.
    """
    usable = (c for c in copies(dataset, file, root) if c.intact or c.where == "mirror")
    return next(usable, None)


def open_file(reference: str) -> Path:
    """Open the published file ``dataset/path``, checked against its hash; downloaded where need be.

    Raises:
        UsageError: no such dataset or file.
        DatasetUnavailable: it is nowhere on this machine and cannot be downloaded.
        CorruptDownload: the mirror or the published address serves other bytes.
    """
    from labkit.datasets.registry import load_registry

    return obtain(*load_registry().find(reference))


def obtain(dataset: Dataset, file: PublishedFile, root: Path | None = None) -> Path:
    """Open a file already looked up in the registry, as :func:`open_file` does."""
    return on_this_machine(dataset, file, root) or _fetch(dataset, file)


def on_this_machine(dataset: Dataset, file: PublishedFile, root: Path | None) -> Path | None:
    """Find the cache's or the mirror's file.

    Raises:
        CorruptDownload: the mirror's is another.
    """
    copy = locate(dataset, file, root)
    if copy is None or copy.intact:
        return copy.path if copy else None
    advice = (
        "The mirror was left as it is: replace the file there, or unset LABKIT_DATA_MIRROR to "
        "download it."
    )
    raise CorruptDownload(dataset.name, copy, origin=copy.path, advice=advice)


def _fetch(dataset: Dataset, file: PublishedFile) -> Path:
    """Download into the cache, one process at a time, whole and verified or not at all."""
    from filelock import FileLock, Timeout

    from labkit.datasets.download import DownloadError

    target = cache_path(dataset, file)
    damaged = "the cached copy was damaged; " if target.is_file() else ""
    lock = cache_folder() / "locks" / f"{file.sha256[:16]}.lock"
    try:
        if offline():
            why = os.environ.get("LABKIT_OFFLINE_REASON") or "LABKIT_OFFLINE is set"
            raise DownloadError(f"the network is not tried ({why})")
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=LOCK_WAIT_S):
            return _fetch_alone(dataset, file, target)
    except DownloadError as failure:
        reason = str(failure)
    except Timeout:
        reason = f"another process has been fetching it for {LOCK_WAIT_S:g} s"
    except OSError as error:
        place = error.filename or target  # a full disk names none
        reason = f"the cache is not writable ({error.strerror}: {place}); set LABKIT_CACHE"
    raise DatasetUnavailable(dataset.name, file.path, damaged + reason)


def _fetch_alone(dataset: Dataset, file: PublishedFile, target: Path) -> Path:
    from labkit.datasets.download import download

    if cached := _copy("cache", target, file):
        if cached.intact:
            return target  # fetched by another process while this one waited
        logger.warning("the cached %s/%s is damaged: fetching it again", dataset.name, file.path)
        target.unlink()
    partial = cache_folder() / "partial" / file.sha256
    partial.parent.mkdir(exist_ok=True)
    partial.unlink(missing_ok=True)  # left by a process that was killed
    try:
        download(file.url, partial, file.size_bytes, label=target.name)
        copy = _copy("download", partial, file)
        assert copy is not None
        if not copy.intact:
            raise CorruptDownload(
                dataset.name,
                copy,
                origin=file.url,
                advice=f"Nothing was kept. Try `labkit data fetch {dataset.name}` again; if it "
                "repeats, look for a proxy or sign-in page that answers in the server's place.",
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _copy(
    where: Literal["cache", "mirror", "download"], path: Path, file: PublishedFile
) -> Copy | None:
    """Hash what stands at ``path``; None where nothing does.

    Raises:
        LabkitError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            size_bytes = stream.tell()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise LabkitError(f"{path} cannot be read: {error.strerror}") from None
    return Copy(where=where, path=path, file=file, sha256=sha256, size_bytes=size_bytes)
