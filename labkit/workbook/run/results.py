"""The layout of ``results/``: one folder a notebook and parameter set, whole or not there at all.

::

    results/<key>/<slug>/   <key>.ipynb  claims.json  figures/NN.json  run.json
    results/.failed/<key>/<slug>/   the partial notebook of the last run, where that failed
    results/.logs/                  a log of each of the last runs
    results/.tmp/                   folders being built; whatever a killed run left is swept

A folder is built under ``.tmp`` and renamed into place, so a reader, or a crash, sees the old
result, the new one, or (between two renames) none. ``run.json`` lists the folder's files with
their sizes: a folder that lacks one, or holds it cut short, is no result.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

RUN_FILE = "run.json"
DEFAULT = "default"
_MAX_SLUG = 120


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One complete result. ``parameters`` are all of the notebook's, by name, as it ran."""

    key: str
    slug: str
    parameters: dict[str, Any]
    folder: Path
    notebook: Path
    meta: dict[str, Any] = field(repr=False)
    claims: list[dict[str, Any]] = field(repr=False)


def results_folder(root: Path) -> Path:
    return root / "results"


def folder_of(root: Path, key: str, slug: str) -> Path:
    return results_folder(root) / key / slug


def failed_folder(root: Path, key: str, slug: str) -> Path:
    return results_folder(root) / ".failed" / key / slug


def slug_of(overrides: Mapping[str, Any]) -> str:
    """The folder name of the parameters that differ from their defaults, sorted by name.

    Characters a file name should not hold are percent-encoded; a name that would be too long
    ends in a hash of the rest.

    >>> slug_of({}), slug_of({"seed": 1, "gpu": "a/b", "eta": 0.5})
    ('default', 'eta=0.5,gpu=a%2Fb,seed=1')
    """
    if not overrides:
        return DEFAULT
    shown = ",".join(f"{name}={_text(overrides[name])}" for name in sorted(overrides))
    if len(shown) <= _MAX_SLUG:
        return shown
    digest = hashlib.sha256(shown.encode()).hexdigest()[:12]
    return f"{shown[: _MAX_SLUG - 14]}~{digest}"


def _text(value: Any) -> str:
    plain = value if isinstance(value, str) else json.dumps(value)
    return quote(plain, safe=" +:@!()[]{}").replace("{", "%7B").replace("}", "%7D") or "''"


# ---------------------------------------------------------------- reading


def records(root: Path) -> list[RunRecord]:
    """Every complete result under ``root``, sorted by key, its default parameters first."""
    folders = [path.parent for path in results_folder(root).glob(f"[!.]*/*/{RUN_FILE}")]
    complete = [record for folder in folders if (record := read(folder)) is not None]
    return sorted(complete, key=lambda record: (record.key, record.slug != DEFAULT, record.slug))


def read_meta(folder: Path) -> dict[str, Any] | None:
    """What ``folder``'s ``run.json`` says, or None where the folder is no complete result."""
    try:
        meta = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        sizes = dict(meta["files"])
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return meta if whole else None


def read(folder: Path) -> RunRecord | None:
    """The result in ``folder``, or None where it is not a complete one."""
    meta = read_meta(folder)
    if meta is None:
        return None
    key = folder.parent.name
    return RunRecord(
        key=key,
        slug=folder.name,
        parameters=dict(meta["parameters"]),
        folder=folder,
        notebook=folder / f"{key}.ipynb",
        claims=json.loads((folder / "claims.json").read_text(encoding="utf-8")),
        meta=meta,
    )


# ---------------------------------------------------------------- writing


def store(root: Path, key: str, slug: str, files: Mapping[str, str], meta: dict[str, Any]) -> Path:
    """Put a result in place in one step: ``files`` (name -> text) and ``run.json``.

    ``meta`` gains ``files`` (name -> bytes). Removes what an earlier failure of the same run
    had left under ``.failed``.
    """
    sizes = {name: len(text.encode()) for name, text in files.items()}
    whole = {**files, RUN_FILE: dumps({**meta, "files": sizes})}
    target = folder_of(root, key, slug)
    _put(root, target, whole)
    _remove(failed_folder(root, key, slug))
    return target


def store_failure(root: Path, key: str, slug: str, files: Mapping[str, str]) -> Path:
    """Keep what a failed run left (its partial notebook) under ``.failed``; returns the folder."""
    target = failed_folder(root, key, slug)
    _put(root, target, files)
    return target


def dumps(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def scratch_folder(root: Path, prefix: str = "") -> Path:
    """A new empty folder under ``results/.tmp``, on the file system of the results."""
    base = results_folder(root) / ".tmp"
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    folder.chmod(0o755)
    return folder


def sweep_scratch(root: Path) -> None:
    """Remove whatever a killed run left half-built. Call it under the run lock only."""
    shutil.rmtree(results_folder(root) / ".tmp", ignore_errors=True)


def _put(root: Path, target: Path, files: Mapping[str, str]) -> None:
    """Write ``files`` to a new folder and rename it to ``target``; an old one steps aside first.

    POSIX renames no folder over a filled one. A crash between the two renames leaves no result
    (the next run makes it again), never a mixture.
    """
    building = scratch_folder(root, f"{target.parent.name}-")
    for name, text in files.items():
        path = building / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = building.with_name(building.name + "-old")
    if target.exists():
        os.rename(target, aside)
    os.rename(building, target)
    shutil.rmtree(aside, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Remove a failure's folder, and its parents once they are empty."""
    shutil.rmtree(folder, ignore_errors=True)
    for parent in (folder.parent, folder.parent.parent):
        with suppress(OSError):  # it is not there, or holds another failure
            parent.rmdir()
