"""Which notebook a page shows: the executed one where there is a result, else the committed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.errors import UsageError
from labkit.quantities import format_bytes, number
from labkit.workbook import notebooks
from labkit.workbook.queue import bibliography, questions
from labkit.workbook.review.anatomy import Subject
from labkit.workbook.run import parameters, results

if TYPE_CHECKING:
    from labkit.workbook.queue.bibliography import Entry


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A notebook to show: ``path`` is ``committed`` itself, or of the run ``record``."""

    root: Path
    key: str
    path: Path
    committed: Path
    entry: Entry | None
    record: results.RunRecord | None

    def subject(self) -> Subject:
        """The notebook, and what the group asked and remarked at the end of its discussion."""
        subject = Subject(self.root, self.key, self.path, notebooks.read(self.path))
        if asked := questions.markdown(questions.load(self.root, self.key)):
            from nbformat.v4 import new_markdown_cell

            section = subject.section("discussion")
            place = section.cells[-1].number if section else len(subject.cells)
            subject.notebook.cells.insert(place, new_markdown_cell(asked, id="asked"))
        return replace(subject)

    @property
    def title(self) -> str:
        return self.entry.title if self.entry else self.key

    @property
    def slug(self) -> str:
        """The parameters that differ from the notebook's own, as its results folder says them."""
        if self.record is None or self.record.slug == results.DEFAULT:
            return ""
        return self.record.slug

    @property
    def parameters(self) -> str:
        """The same, for people."""
        return ", ".join(self.slug.split(","))

    @property
    def words(self) -> str:
        """What it is, for the reader of a page."""
        if self.record is None:
            return "outputs as committed"
        values = f" with {self.parameters}" if self.parameters else ""
        return f"executed by labkit run{values}"

    @property
    def provenance(self) -> str:
        """When, from which commit and on which machine it was run; "" as committed."""
        if self.record is None:
            return ""
        meta = self.record.meta
        machine = meta.get("machine") or {}
        commit, _, dirty = (meta.get("git_commit") or "").partition("-")
        parts = (
            f"run on {meta['ended'][:10]}" if meta.get("ended") else "",
            f"in {number(meta['duration_s'], 2)} s" if meta.get("duration_s") else "",
            f"commit {commit[:12]}{' with changes' if dirty else ''}" if commit else "",
            str(machine.get("cpu", "")),
            f"{machine['cores']} cores" if "cores" in machine else "",
            format_bytes(machine["memory_bytes"]) if "memory_bytes" in machine else "",
        )
        return ", ".join(filter(None, parts))

    @property
    def rerun(self) -> str:
        """The command that makes this result anew."""
        values = (self.record.meta.get("overrides") or {}) if self.record else {}
        return " ".join([f"labkit run {self.key}", *(f"-p {k}={v}" for k, v in values.items())])


def find(root: Path, key: str, with_parameters: Sequence[str] = ()) -> Origin:
    """The notebook of paper ``key``, run ``with_parameters`` (``name=value``) where given.

    Raises:
        UsageError: there is no such notebook, or no result with exactly these parameters.
    """
    committed = notebooks.path_of(root, key)
    record = (
        _run_with(root, key, committed, with_parameters)
        if with_parameters
        else results.read(results.folder_of(root, key, results.DEFAULT))
    )
    return Origin(
        root=root,
        key=key,
        path=record.notebook if record else committed,
        committed=committed,
        entry=bibliography.load(root).get(key),
        record=record,
    )


def _run_with(root: Path, key: str, committed: Path, texts: Sequence[str]) -> results.RunRecord:
    declared = notebooks.parameters(notebooks.read(committed))
    sweep = parameters.Sweep(choices=parameters.choices(texts))
    require = parameters.requirement(root, key)
    (overrides,) = parameters.combinations(key, declared, sweep, require)
    record = results.read(results.folder_of(root, key, results.slug_of(overrides)))
    if record is not None:
        return record
    options = " ".join(f"-p {text}" for text in texts)
    slugs = [record.slug for record in results.records(root, key)]
    raise UsageError(
        f"no result of {key} with {options}: run `labkit run {key} {options}` first "
        f"(results there are: {', '.join(slugs) or 'none yet'})"
    )
