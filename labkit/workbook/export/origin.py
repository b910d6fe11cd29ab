"""Which notebook a page shows: the executed one where there is a result, else the committed one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError
from labkit.workbook import notebooks, results

if TYPE_CHECKING:
    from nbformat import NotebookNode


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A notebook to show and the run it comes from (``record`` is None for the committed one)."""

    key: str
    path: Path
    record: results.RunRecord | None

    def read(self) -> NotebookNode:
        return notebooks.read(self.path)

    @property
    def parameters(self) -> str:
        """The parameters that differ from the notebook's own, as ``name=value, …``."""
        if self.record is None or self.record.slug == results.DEFAULT:
            return ""
        return ", ".join(self.record.slug.split(","))

    @property
    def words(self) -> str:
        """What it is, for the reader of a page."""
        if self.record is None:
            return "outputs as committed"
        with_parameters = f" with {self.parameters}" if self.parameters else ""
        return f"executed by labkit run{with_parameters}"


def find(root: Path, key: str, parameters: Mapping[str, str] | None = None) -> Origin:
    """The notebook of paper ``key``, run with ``parameters`` (texts, as typed) where given.

    Raises:
        UsageError: there is no such notebook, or no result with exactly these parameters.
    """
    path = notebooks.path_of(root, key)
    records = [record for record in results.records(root) if record.key == key]
    if parameters:
        return _with_parameters(key, path, records, parameters)
    for record in records:
        if record.slug == results.DEFAULT:
            return Origin(key=key, path=record.notebook, record=record)
    return Origin(key=key, path=path, record=None)


def _with_parameters(
    key: str, path: Path, records: list[results.RunRecord], wanted: Mapping[str, str]
) -> Origin:
    defaults = notebooks.parameters(notebooks.read(path))
    for name in wanted:
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise UsageError(f"{key} has no parameter {name!r}; there are: {known}")
    target = {name: wanted.get(name, _text(p.default)) for name, p in defaults.items()}
    for record in records:
        if all(text in _spellings(record.parameters.get(name)) for name, text in target.items()):
            return Origin(key=key, path=record.notebook, record=record)
    options = " ".join(f"-p {name}={text}" for name, text in wanted.items())
    there = ", ".join(record.slug for record in records) or "none yet"
    raise UsageError(
        f"no result of {key} with {options}: run `labkit run {key} {options}` first "
        f"(results there are: {there})"
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _spellings(value: Any) -> set[str]:
    """How a value may be typed: 8, 8.0 and True or true name one value each."""
    spellings = {_text(value), str(value)}
    if isinstance(value, float) and value.is_integer():
        spellings.add(str(int(value)))
    if isinstance(value, int) and not isinstance(value, bool):
        spellings.add(str(float(value)))
    return spellings
