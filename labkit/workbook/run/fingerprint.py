"""What a result depends on, as hashes: a result whose fingerprint still holds need not run again.

The parts of a fingerprint, by name:

- ``source``: type, source, metadata (tags, slide type) and attachments of every cell in order,
  and the notebook's kernel and ``labkit`` metadata; not outputs, not counts
- ``parameters``: the values injected over the defaults (those are source)
- ``versions``: Python's, and those of the libraries that compute or execute
- ``labkit.…``: one part for each module of ours that the notebook reaches (see ``imports``),
  and for modules that lie beside the notebook
- ``data NAME``: the published files it declares, or the stand-in used in their place
- ``file PATH``: files under ``data/papers/<key>/``, but not the group's questions, and files of
  the project named by a string in the notebook or in a module it reaches (``"hardware.yaml"``,
  ``"data/profiles/x.csv"``); where the workbook has none of that name, the file labkit brings
- ``bibliography``: the BibTeX entries of the papers the notebook names by their key
- ``glance KEY``: the at-a-glance lines of a companion it puts itself beside

Left out on purpose: the reading queue, and the bibliography's other entries. Where a result was
made (machine, all versions, commit) stands beside its fingerprint and decides nothing.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import labkit
from labkit import files
from labkit.workbook import notebooks
from labkit.workbook.normalise import cell_metadata, made_by_papermill
from labkit.workbook.run import imports

DISTRIBUTIONS = (
    "ipykernel",
    "nbclient",
    "numba",
    "numpy",
    "pandas",
    "papermill",
    "plotly",
    "scipy",
    "torch",
)
MAX_REASONS = 4
OUTPUTS = "outputs"
"""The key of a notebook's ``labkit`` metadata that holds its stored outputs' fingerprint."""
_ENTRY = re.compile(r"^[ \t]*@\w+\s*[{(]\s*([^\s,{}]+)\s*,", re.MULTILINE)
_FILE_NAME = re.compile(r"[\w./+ -]{1,160}\.\w{1,8}")
_ASKED = "questions.yaml"  # of the reading group: shown by exports alone, so no result rests on it
_ELSEWHERE = ("data/papers.bib", "data/datasets.yaml", "reading_queue.yaml")
"""Files of which a notebook sees only a part, which has a part of its own in the fingerprint."""


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """The hashes a result rests on, by what they are of."""

    parts: Mapping[str, str]

    @property
    def digest(self) -> str:
        return _hash(json.dumps(dict(self.parts), sort_keys=True))

    def with_parameters(self, parameters: Mapping[str, Any]) -> Fingerprint:
        """That of the same notebook run with other ``parameters``; all else is shared."""
        own = {"parameters": _hash(json.dumps(dict(parameters), sort_keys=True))}
        return Fingerprint(parts=ChainMap(own, cast(dict[str, str], self.parts)))

    def changes_since(self, before: Mapping[str, str]) -> list[str]:
        """The names of the parts that differ from ``before``, gained or lost ones included."""
        names = sorted({*self.parts, *before})
        return [name for name in names if self.parts.get(name) != before.get(name)]

    def since(self, meta: Mapping[str, Any]) -> str:
        """What changed since the result that ``meta`` describes, in words; nothing if current."""
        if meta.get("fingerprint") == self.digest:
            return ""
        changed = self.changes_since(meta.get("fingerprint_parts", {}))
        more = len(changed) - MAX_REASONS
        return "changed: " + ", ".join(changed[:MAX_REASONS] + [f"{more} more"] * (more > 0))

    def datasets(self) -> dict[str, str]:
        """The fingerprints of the data sets, by name."""
        marked = {name: value for name, value in self.parts.items() if name.startswith("data ")}
        return {name.removeprefix("data "): value for name, value in marked.items()}

    @property
    def on_standin(self) -> bool:
        return any(value.startswith("stand-in:") for value in self.datasets().values())


def of_notebook(
    root: Path, path: Path, notebook: Any, parameters: Mapping[str, Any]
) -> Fingerprint:
    """The fingerprint of ``notebook`` (at ``path``) run with ``parameters`` over its defaults.

    Raises UsageError where the notebook declares data that the registry does not have.
    """
    key = path.stem
    code = (cell for cell in notebook.cells if cell.cell_type == "code")
    trees = [tree for cell in code if (tree := notebooks.tree(cell.source))]
    named = set[str]().union(*map(imports.strings, trees))
    modules = imports.reached(trees, [imports.source_root(), path.parent])
    parts = {
        "source": _hash(json.dumps(_content(notebook), sort_keys=True)),
        "parameters": _hash(json.dumps(dict(parameters), sort_keys=True)),
        "versions": _hash(json.dumps(versions(), sort_keys=True)),
        **{name: module.sha256 for name, module in modules.items()},
        **_data(root, notebook),
        **_files(root, path, named.union(*(module.strings for module in modules.values()))),
        "bibliography": _bibliography(root, named | {key}),
        **{f"glance {name}": _glance(root, name) for name in _companions(trees)},
    }
    return Fingerprint(parts=parts)


def _hash(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def _content(notebook: Any) -> list[Any]:
    """What of a notebook its author writes."""
    kept = notebook.metadata
    labkit = {name: value for name, value in kept.get("labkit", {}).items() if name != OUTPUTS}
    content: list[Any] = [kept.get("kernelspec", {}).get("name"), labkit]
    for cell in notebook.cells:
        if not made_by_papermill(cell):
            attached = cell.get("attachments", {})
            content.append([cell.cell_type, cell.source, cell_metadata(cell.metadata), attached])
    return content


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Python's version (major.minor) and those of the libraries a result may depend on."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"python": python, **installed(DISTRIBUTIONS)}


def installed(names: Iterable[str]) -> dict[str, str]:
    """The versions of those of the distributions ``names`` that are installed."""
    known = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            known[name] = metadata.version(name)
    return known


def _data(root: Path, notebook: Any) -> dict[str, str]:
    entries = notebooks.dataset_names(notebook)
    if not entries:
        return {}
    from labkit import datasets

    return {
        f"data {name}": datasets.fingerprint(name, files, root)
        for name, files in datasets.needed(entries, root).items()
    }


def _files(root: Path, path: Path, named: Iterable[str]) -> dict[str, str]:
    """Files of the project that the paper has, or that the code names, and of those that labkit
    brings the ones that are read in their place."""
    home = root.resolve()
    own = (root / "data" / "papers" / path.stem).rglob("*")
    found = {file.resolve().relative_to(home).as_posix(): file for file in own if file.is_file()}
    brought = files.home_of_data()
    for text in named:
        if not _FILE_NAME.fullmatch(text) or text.startswith("/"):
            continue
        for base in (root, root / "data", path.parent):
            candidate = (base / text).resolve()
            if candidate.is_file() and candidate.is_relative_to(home):
                found[candidate.relative_to(home).as_posix()] = candidate
        if brought is None:
            continue
        elsewhere = (brought / text).resolve()
        if elsewhere.is_file() and elsewhere.is_relative_to(brought / "data"):
            found.setdefault(text, elsewhere)
    skipped = (*_ELSEWHERE, path.resolve().relative_to(home).as_posix())
    return {
        f"file {name}": _hash(file.read_bytes())
        for name, file in sorted(found.items())
        if name not in skipped and not name.startswith("results/") and file.name != _ASKED
    }


def _bibliography(root: Path, named: Iterable[str]) -> str:
    entries = _entries(root / "data" / "papers.bib")
    return _hash(json.dumps([[key, entries[key]] for key in sorted(named) if key in entries]))


def _entries(path: Path) -> dict[str, str]:
    """The text of each BibTeX entry: from its ``@`` to where the next one starts."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    starts = list(_ENTRY.finditer(text))
    ends = [*(match.start() for match in starts[1:]), len(text)]
    entries = {}
    for start, end in zip(starts, ends, strict=False):
        entries[start[1]] = text[start.start() : end].strip()
    return entries


def _companions(trees: Iterable[ast.Module]) -> Iterator[str]:
    """The string arguments of every call of a method ``beside``."""
    for call in (call for tree in trees for call in notebooks.calls(tree, "beside")):
        for argument in call.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def _glance(root: Path, key: str) -> str:
    """The companion's five lines: those of its notebook, else its ``glance.yaml``."""
    path = notebooks.paths(root).get(key)
    if path is not None:
        tagged = notebooks.tagged(notebooks.glimpse(path), "at-a-glance")
        return _hash("\n\n".join(cell.source for cell in tagged))
    file = root / "data" / "papers" / key / "glance.yaml"
    return _hash(file.read_bytes()) if file.is_file() else "none"


# ---------------------------------------------------------------- where a result was made


@lru_cache(maxsize=1)
def machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory (bytes) and operating system."""
    import psutil

    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": platform.platform(),
    }


def usable_cores() -> int:
    """Cores this process may run on, which a container may keep below those there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    if model := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
        return model[1].strip()
    return platform.processor() or platform.machine()


@lru_cache(maxsize=1)
def full_versions() -> dict[str, str]:
    """Python to the patch level, labkit, and the libraries that compute or execute."""
    own = {"python": platform.python_version(), "labkit": labkit.__version__}
    return own | installed((*DISTRIBUTIONS, "ipywidgets", "nbformat", "pyarrow"))


@lru_cache(maxsize=8)
def git_commit(root: Path) -> str | None:
    """The checkout's commit, with ``-dirty`` where tracked files differ; None outside git."""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--match="]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
