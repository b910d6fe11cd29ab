"""The layout of ``results/``: one folder a notebook and parameter set, whole or not there at all.

::

    results/<key>/<slug>/   <key>.ipynb  claims.json  figures/NN.json  run.json
    results/.failed/<key>/<slug>/   the partial notebook of the last run, where that failed
    results/.logs/                  a log of each of the last runs
    results/.tmp/                   folders being built; whatever a killed run left is swept

A folder is built under ``.tmp`` and renamed into place, so a reader, or a crash, sees the old
result, the new one, or (between two renames) none. ``run.json`` holds the SHA-256 of each of the
folder's files and of itself: a folder that lacks one, or holds one that was cut short or altered,
is no result.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from labkit.errors import LabkitError
from labkit.files import encoded, naming, write_atomically
from labkit.quantities import is_finite_number
from labkit.workbook import normalise, notebooks
from labkit.workbook.run import fingerprint

if TYPE_CHECKING:
    from nbformat import NotebookNode

RUN_FILE = "run.json"
CLAIMS_FILE = "claims.json"
DEFAULT = "default"
_MAX_SLUG = 120
_SEAL = '"sha256": "{}"'
_UNSEALED = _SEAL.format("0" * 64)
"""What ``run.json`` says of its own hash while that is taken."""


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


def folders(root: Path, key: str = "") -> list[Path]:
    """The folders of all results, or of paper ``key``'s: by paper, default parameters first."""
    tops = [results_folder(root) / key] if key else results_folder(root).glob("[!.]*")
    stored = (path.parent for top in tops for path in top.glob(f"*/{RUN_FILE}"))
    return sorted(stored, key=lambda path: (path.parent.name, path.name != DEFAULT, path.name))


def records(root: Path, key: str = "") -> Iterator[RunRecord]:
    """The complete results of :func:`folders`, in its order, read as they are asked for."""
    return filter(None, map(read, folders(root, key)))


def stamp(records: Iterable[RunRecord]) -> str:
    """What changes with any of ``records``."""
    listed = [[record.key, record.slug, record.meta["sha256"]] for record in records]
    return _sha256(json.dumps(listed).encode())


def read_meta(folder: Path) -> dict[str, Any] | None:
    """What ``folder``'s ``run.json`` says, or None where it is missing, cut short or altered.

    Anybody can compute its seal, so what it says must have the form that :func:`store` is given.
    """
    try:
        text = _regular(folder / RUN_FILE).read_text(encoding="utf-8")
        meta: dict[str, Any] = json.loads(text)
        seal = meta["sha256"]
        unsealed = text.replace(_SEAL.format(seal), _UNSEALED)
        is_whole = _sha256(unsealed.encode()) == seal and _has_form(meta)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return meta if is_whole else None


def inspect(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """``run.json`` of a result that is as it was written, else None; and what is wrong with it."""
    meta = read_meta(folder)
    if meta is None:
        return None, f"result damaged: {RUN_FILE}" if folder.exists() else "no result yet"
    for name, digest in meta["files"].items():
        try:
            intact = _sha256(_regular(folder / name).read_bytes()) == digest
        except OSError:
            intact = False
        if not intact:
            return None, f"result damaged: {name}"
    if _claims_of(folder) is None:
        return None, f"result damaged: {CLAIMS_FILE}"
    return meta, ""


def _regular(path: Path) -> Path:
    """``path`` if it is a file; raises FileNotFoundError for what else may never end, as a pipe."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return path


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _has_form(meta: Any) -> bool:
    """Whether ``run.json`` has what a result needs, and all it has is of the kind it should be."""
    needed = {"files", "parameters"} <= meta.keys() and CLAIMS_FILE in meta["files"]
    return needed and all(fits(meta[name]) for name, fits in _FORM.items() if name in meta)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_missing(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def _is_duration(value: Any) -> bool:
    return is_finite_number(value) and value >= 0


def _are_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _are_scalars(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_scalar, value.values()))


def _are_files(value: Any) -> bool:
    """Whether names and hashes, of files that stand inside the folder."""
    names = map(PurePosixPath, value) if _are_texts(value) else [PurePosixPath("/")]
    return not any(name.is_absolute() or ".." in name.parts for name in names)


def _are_datasets(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, dict) and isinstance(each.get("standin"), bool) for each in value.values()
    )


def _is_machine(value: Any) -> bool:
    return _are_scalars(value) and is_finite_number(value.get("memory_bytes", 0))


_FORM: dict[str, Callable[[Any], bool]] = {
    "files": _are_files,
    "parameters": _is_mapping,  # a default may be any literal
    **dict.fromkeys(("overrides", "metrics"), _are_scalars),
    "fingerprint_parts": _are_texts,
    **dict.fromkeys(("fingerprint", "started", "ended"), _is_text),
    "git_commit": _is_text_or_missing,
    "datasets": _are_datasets,
    "machine": _is_machine,
    "duration_s": _is_duration,
}


def _claims_of(folder: Path) -> list[dict[str, Any]] | None:
    """A result's claims; None where they are not such as a run stores."""
    from labkit.workbook.review import claims

    try:
        return claims.records_in(json.loads(_regular(folder / CLAIMS_FILE).read_text("utf-8")))
    except (OSError, ValueError, RecursionError, LabkitError):
        return None


def read(folder: Path) -> RunRecord | None:
    """The result in ``folder``, or None where it is not whole and as it was written."""
    meta, _ = inspect(folder)
    claims = None if meta is None else _claims_of(folder)
    if meta is None or claims is None:
        return None
    key = folder.parent.name
    return RunRecord(
        key=key,
        slug=folder.name,
        parameters=dict(meta["parameters"]),
        folder=folder,
        notebook=folder / f"{key}.ipynb",
        claims=claims,
        meta=meta,
    )


# ---------------------------------------------------------------- writing


def store(root: Path, key: str, slug: str, files: Mapping[str, str], meta: dict[str, Any]) -> Path:
    """Put a result in place in one step: ``files`` (name -> text) and ``run.json``.

    ``meta`` gains ``files`` (name -> SHA-256) and ``sha256``, its own. Removes what an earlier
    failure of the same run had left under ``.failed``.
    """
    hashes = {name: _sha256(encoded(text)) for name, text in files.items()}
    run = dumps({**meta, "files": hashes, "sha256": "0" * 64})
    sealed = run.replace(_UNSEALED, _SEAL.format(_sha256(encoded(run))))
    target = _put(root, folder_of(root, key, slug), {**files, RUN_FILE: sealed})
    remove(failed_folder(root, key, slug))
    return target


def store_failure(root: Path, key: str, slug: str, files: Mapping[str, str]) -> Path:
    """Keep what a failed run left (its partial notebook) under ``.failed``; returns the folder."""
    return _put(root, failed_folder(root, key, slug), files)


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


def _put(root: Path, target: Path, files: Mapping[str, str]) -> Path:
    """Write ``files`` to a new folder and rename it to ``target``; an old one steps aside first,
    since POSIX renames no folder over a filled one, and comes back if that fails."""
    building = scratch_folder(root, f"{target.parent.name}-")
    for name, text in files.items():
        path = building / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            path.write_bytes(encoded(text))
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = building.with_name(building.name + "-old")
    if target.exists():
        os.rename(target, aside)
    try:
        os.rename(building, target)
    except OSError:
        if aside.exists():
            os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)
    return target


def remove(folder: Path) -> None:
    """Remove a folder, and its parents once they are empty."""
    shutil.rmtree(folder, ignore_errors=True)
    for parent in (folder.parent, folder.parent.parent):
        with suppress(OSError):  # it is not there, or holds more
            parent.rmdir()


# ---------------------------------------------------------------- written back to the notebook


def write_back(root: Path, key: str, *, allow_standin: bool = False) -> bool:
    """Put the outputs of ``results/<key>/default`` into ``notebooks/…/<key>.ipynb``.

    The notebook keeps its own sources, ids and metadata; outputs and counts are the result's.
    Returns whether the file had to change. Raises LabkitError where there is no result, it was made
    on stand-in data (committed outputs come from published data), or the notebook's cells are no
    longer the ones that were executed.
    """
    record = read(folder_of(root, key, DEFAULT))
    if record is None or "fingerprint" not in record.meta:
        raise LabkitError(f"{key}: there is no result to write back; `labkit run {key}` makes one")
    standins = [name for name, data in record.meta.get("datasets", {}).items() if data["standin"]]
    if standins and not allow_standin:
        raise LabkitError(
            f"{key}: not written back, since it ran on stand-in data for {', '.join(standins)}; "
            "`labkit data fetch` gets the published files, --allow-standin writes back all the same"
        )
    path = notebooks.path_of(root, key)
    notebook = notebooks.read(path)
    own = notebook.metadata.setdefault("labkit", type(notebook.metadata)())
    own[fingerprint.OUTPUTS] = record.meta["fingerprint"]
    text = refreshed(path, notebook, notebooks.read(record.notebook))
    if path.read_text(encoding="utf-8") == text:
        return False
    write_atomically(path, text)
    return True


def refreshed(path: Path, notebook: NotebookNode, executed: NotebookNode) -> str:
    """The text of ``notebook``, normalised, with the outputs of ``executed``."""
    own = [cell for cell in notebook.cells if not normalise.made_by_papermill(cell)]
    ran = [cell for cell in executed.cells if not normalise.made_by_papermill(cell)]
    same = [(cell.cell_type, cell.source) for cell in own] == [(c.cell_type, c.source) for c in ran]
    if not same:
        raise LabkitError(f"{path} has changed since it was executed; run this again")
    for cell, source in zip(own, ran, strict=True):
        if cell.cell_type == "code":
            cell.outputs = source.outputs
            cell.execution_count = source.execution_count
    if "language_info" in executed.metadata:
        notebook.metadata.language_info = executed.metadata.language_info
    return normalise.dumps(normalise.normalise(notebook))
