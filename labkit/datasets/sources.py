"""What a notebook reads: a dataset as published, or, openly, its stand-in. Never a mixture."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from labkit.datasets.store import (
    CorruptDownload,
    DatasetUnavailable,
    check_root,
    locate,
    obtain,
    on_this_machine,
)
from labkit.errors import BadValue, LabkitError, UsageError, shown
from labkit.files import shipped
from labkit.quantities import percent

if TYPE_CHECKING:
    import pandas as pd

    from labkit.datasets.registry import Dataset, PublishedFile

_FIT_ERROR = re.compile(r"# fit-error: median=(\S+) worst=(\S+)")
STANDIN_MARK = "!!! STAND-IN DATA:"
SAID_MARK = "Stand-in data for "
"""How the plain text of a stand-in's banner begins, and of one that was shown before."""
QUIET = "border-left:3px solid #767676;padding:2px 10px;color:inherit;font-size:90%"
LOUD = (
    "border:4px solid #000;border-left-width:16px;background:#ffd24d;color:#000;"
    "padding:10px 14px;margin:6px 0;font-size:105%"
)


class FitError(NamedTuple):
    """How far a fitted model lies from the published values, as relative errors."""

    median: float
    worst: float


@dataclass(frozen=True, kw_only=True, repr=False)
class Source:
    """The files of one dataset that a notebook asked for, all published or all stand-in.

    ``files`` maps the published path of each file that is here to where it is; for a stand-in
    ``reason`` says why the published files could not be had, and a file that has no stand-in
    is in ``asked`` but not in ``files``. ``announced``: its banner was shown where it was opened.
    """

    dataset: Dataset
    asked: tuple[str, ...]
    files: Mapping[str, Path]
    is_standin: bool
    reason: str = ""
    announced: bool = False

    @property
    def name(self) -> str:
        return self.dataset.name

    @property
    def fit_error(self) -> FitError | None:
        """How far the worst fitted of a stand-in's files is off; None where nothing was fitted."""
        errors = [_fit_error(path) for path in self.files.values()] if self.is_standin else []
        known = [error for error in errors if error is not None]
        if not known or len(known) < len(errors):
            return None
        return max(known, key=lambda error: error.worst)

    def has(self, file: str) -> bool:
        """Tell whether :meth:`path` would find ``file`` (a stand-in may lack it)."""
        return self.dataset.file(file).path in self.files

    def path(self, file: str) -> Path:
        """Find where ``file`` (a published path, or its unambiguous end) is on this machine.

        Raises:
            LabkitError: this source does not hold it: it was not asked for, or has no stand-in.
        """
        path = self.dataset.file(file).path
        if path in self.files:
            return self.files[path]
        if path not in self.asked:
            raise LabkitError(
                f"{self.name}/{path} was not asked for: this source was opened for "
                f"{', '.join(self.asked)}; add it to the files it is opened for"
            )
        raise LabkitError(
            f"{self.name}/{path} has no stand-in, and the published file was not to be had: "
            f"{self.reason}; `labkit data fetch {self.name}` downloads it, and "
            "source.has(file) tells beforehand"
        )

    def frame(self, file: str) -> pd.DataFrame:
        """Read ``file``, a CSV file, as a table, without a stand-in's lines that start with #."""
        import pandas as pd

        return pd.read_csv(self.path(file), comment="#" if self.is_standin else None)

    def __repr__(self) -> str:
        return f"Source({self.name!r}, {'stand-in' if self.is_standin else 'published'})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """Show the banner: one quiet line for published data, a loud box for a stand-in."""
        if self.announced:
            return {"text/plain": f"{SAID_MARK}{self.name}, as said where they were opened"}
        if self.is_standin:
            return _standin_banner(self)
        return _published_banner(self.dataset)


def source(name: str, files: Sequence[str] | None = None, root: Path | None = None) -> Source:
    """Open the files of dataset ``name`` as published; where one cannot be had, all as stand-ins.

    Args:
        name: the dataset's, or one file, ``dataset/path``.
        files: which of its files; by default all.
        root: the workbook's folder; by default the one around the working directory.

    Raises:
        UsageError: no such dataset or file.
        CorruptDownload: a file is there but is not the published one; never replaced silently.
    """
    dataset, chosen = _select(name, files, root)
    asked = tuple(file.path for file in chosen)
    present = {file.path: on_this_machine(dataset, file, root) for file in chosen}
    try:
        published = {f.path: present[f.path] or obtain(dataset, f, root) for f in chosen}
    except DatasetUnavailable as unavailable:
        ours = {file.path: path for file, path in _standins(dataset, chosen, root)}
        return Source(
            dataset=dataset, asked=asked, files=ours, is_standin=True, reason=unavailable.reason
        )
    return Source(dataset=dataset, asked=asked, files=published, is_standin=False)


def fetch(
    name: str, files: Sequence[str] | None = None, root: Path | None = None
) -> list[LabkitError]:
    """Have the published files on this machine, downloading what is missing.

    It returns what went wrong, file by file (nothing when all are here): one failure does not keep
    the other files from being fetched.

    Args:
        name, files, root: as :func:`source` takes them.
    """
    dataset, chosen = _select(name, files, root)
    problems: list[LabkitError] = []
    for file in chosen:
        try:
            obtain(dataset, file, root)
        except (DatasetUnavailable, CorruptDownload) as problem:
            problems.append(problem)
    return problems


def available(name: str, files: Sequence[str] | None = None, root: Path | None = None) -> bool:
    """Tell whether the published files are all on this machine and intact; download nothing.

    Args:
        name, files, root: as :func:`source` takes them.
    """
    dataset, chosen = _select(name, files, root)
    copies = (locate(dataset, file, root) for file in chosen)
    return all(copy is not None and copy.intact for copy in copies)


def fingerprint(name: str, files: Sequence[str] | None = None, root: Path | None = None) -> str:
    """Say what :func:`source` would give without downloading, as text that changes when that does.

    It is a hash of the registry's hashes where the published files are here; ``stand-in:`` and a
    hash of the stand-in files where one is missing; ``corrupt:`` and a hash of what was found where
    the mirror holds other bytes, in which case :func:`source` raises.

    Args:
        name, files, root: as :func:`source` takes them.
    """
    dataset, chosen = _select(name, files, root)
    copies = [(file, locate(dataset, file, root)) for file in chosen]
    corrupt = [(f.path, c.sha256) for f, c in copies if c is not None and not c.intact]
    if corrupt:
        return f"corrupt:{_digest(corrupt)}"
    if all(copy is not None for _, copy in copies):
        return _digest((file.path, file.sha256) for file in chosen)
    ours = _standins(dataset, chosen, root)
    return "stand-in:" + _digest(
        (file.path, hashlib.sha256(path.read_bytes()).hexdigest()) for file, path in ours
    )


def needed(entries: Iterable[str], root: Path | None = None) -> dict[str, tuple[str, ...]]:
    """List the files a notebook's ``labkit.datasets`` entries ask for, by dataset.

    An entry is a dataset's name (all its files) or ``name/path`` (that file).

    >>> needed(["perseus-sosp24/envpipe_result.csv"])
    {'perseus-sosp24': ('sosp24_data/emulation/envpipe_result.csv',)}
    """
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise BadValue(f"entries must be a list of texts; got {shown(entries)}")
    wanted: dict[str, dict[str, None]] = {}
    for entry in entries:
        if not isinstance(entry, str):
            raise BadValue(f"entries must be texts; one is {shown(entry)}")
        dataset, chosen = _select(entry, None, root)
        wanted.setdefault(dataset.name, {}).update(dict.fromkeys(file.path for file in chosen))
    return {name: tuple(sorted(paths)) for name, paths in wanted.items()}


def _select(
    name: str, files: Sequence[str] | None, root: Path | None
) -> tuple[Dataset, tuple[PublishedFile, ...]]:
    from labkit.datasets.registry import load_registry

    if not isinstance(name, str):
        raise BadValue(f"name must be a text, a dataset's name; got {shown(name)}")
    check_root(root)
    registry = load_registry(root)
    if "/" in name:
        if files is not None:
            raise UsageError(f"{name!r} is one file: name the dataset alone to choose its files")
        dataset, file = registry.find(name)
        return dataset, (file,)
    dataset = registry.dataset(name)
    if isinstance(files, str):
        raise UsageError(f"files={files!r}: give a list of files, such as [{files!r}]")
    if files is None:
        return dataset, dataset.files
    if not isinstance(files, Sequence) or not all(isinstance(file, str) for file in files):
        raise BadValue(f"files must be a list of texts, or None; got {shown(files)}")
    if not files:
        raise UsageError(f"no files of {name} asked for: name at least one, or leave it out")
    chosen = {file.path: file for file in map(dataset.file, files)}
    return dataset, tuple(chosen[path] for path in sorted(chosen))


def _standins(
    dataset: Dataset, files: Iterable[PublishedFile], root: Path | None
) -> list[tuple[PublishedFile, Path]]:
    ours = [(f, shipped(f.standin, root)) for f in files if f.standin is not None]
    for file, path in ours:
        if not path.is_file():
            raise LabkitError(
                f"{file.standin}, the stand-in of {dataset.name}/{file.path}, is missing: "
                "restore it, or run the script in data/profiles/ that makes it"
            )
    return ours


def _fit_error(path: Path) -> FitError | None:
    """Read what a stand-in's head says of its fit: ``# fit-error: median=0.002 worst=0.017``."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("#"):
                return None
            if match := _FIT_ERROR.fullmatch(line.strip()):
                return FitError(median=float(match[1]), worst=float(match[2]))
    return None


def _digest(pairs: Iterable[tuple[str, str]]) -> str:
    return hashlib.sha256(repr(sorted(pairs)).encode()).hexdigest()


def _published_banner(dataset: Dataset) -> dict[str, str]:
    credit = f"{dataset.repository} at {dataset.commit[:7]}, {dataset.licence}"
    tree = f"{dataset.origin}/tree/{dataset.commit}"
    link = f'<a href="{escape(tree)}" style="color:inherit">{escape(credit)}</a>'
    return {
        "text/plain": f"Published data: {dataset.title} ({credit})",
        "text/html": f'<div style="{QUIET}">Published data: {escape(dataset.title)} ({link})</div>',
    }


def _standin_banner(source: Source) -> dict[str, str]:
    name = source.dataset.name
    title = source.dataset.title
    absent = [path.rpartition("/")[2] for path in source.asked if path not in source.files]
    error = source.fit_error
    if error is None:
        lead = "not the published measurements; claims on it read 'not judged'."
    else:
        lead = (
            "a model of ours fitted to the published measurements (relative error: median "
            f"{percent(error.median, 1)}, worst {percent(error.worst, 1)}); claims on it say so."
        )
    lines = [
        f"In place of {name}: {title}.",
        f"Why: {source.reason}. To use the published data: labkit data fetch {name}",
    ]
    if absent:
        lines.append(f"Without a stand-in, so left out: {', '.join(absent)}.")
    html = "".join(f"<br>{escape(line)}" for line in lines)
    return {
        "text/plain": "\n".join([f"{STANDIN_MARK} {lead}", *lines]),
        "text/html": f'<div role="alert" style="{LOUD}"><strong style="font-size:125%">&#9888; '
        f"STAND-IN DATA: {escape(lead)}</strong>{html}</div>",
    }
