"""Which notebook a page shows: the one that was run here, or the one with its stored outputs.

A result under ``results/`` is shown while it is the present notebook's. One whose cells are no
longer the notebook's gives way to the outputs stored in ``notebooks/``, and so does any older one
where the stored outputs were made of just what is here now. What is shown, and since when it is
not up to date, a page says in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import LabkitError, UsageError
from labkit.quantities import format_bytes, number
from labkit.workbook import notebooks
from labkit.workbook.queue import bibliography, questions, reading_queue
from labkit.workbook.review.anatomy import Subject
from labkit.workbook.run import fingerprint, parameters, results

if TYPE_CHECKING:
    from labkit.workbook.queue.bibliography import Entry


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A notebook to show: ``path`` is ``committed`` itself, or of the run ``record``.

    ``since``: what is not as it was at the last run here, in words; "" where all is, or nothing
    was run.
    """

    root: Path
    key: str
    path: Path
    committed: Path
    entry: Entry | None
    record: results.RunRecord | None
    since: str = ""

    def subject(self) -> Subject:
        """The notebook, and what the group asked and remarked at the end of its discussion."""
        subject = Subject(self.root, self.key, self.path, notebooks.read(self.path))
        if asked := questions.markdown(questions.load(self.root, self.key)):
            from nbformat.v4 import new_markdown_cell

            section = subject.section("discussion")
            place = section.cells[-1].number if section else len(subject.cells)
            subject.notebook.cells.insert(place, new_markdown_cell(asked, id="asked"))
        return replace(subject)

    def as_committed(self) -> Subject:
        """The notebook with the outputs that stand in the repository."""
        return Subject(self.root, self.key, self.committed, notebooks.read(self.committed))

    @property
    def presented(self) -> str:
        """Who presents the paper and when, as far as the queue says it.

        Raises:
            BadFile: the queue is malformed.
        """
        queue = reading_queue.load(self.root)
        if self.key not in queue:
            return ""
        paper = queue[self.key]
        day = f"{paper.date:%A}, {paper.date.day} {paper.date:%B %Y}" if paper.date else ""
        return " · ".join(filter(None, [paper.presenter, day]))

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
            why = f"the last run here is older ({self.since})" if self.since else "not run here yet"
            return f"stored outputs: {why}"
        values = f" with {self.parameters}" if self.parameters else ""
        return f"executed by labkit run{values}"

    @property
    def outdated(self) -> str:
        """What changed since the run that is shown; "" where nothing did, or none is shown."""
        return f"since then {self.since}" if self.record and self.since else ""

    @property
    def provenance(self) -> str:
        """When, from which commit and on which machine it was run, and what changed since; "" of
        stored outputs."""
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
        return "; ".join(filter(None, [", ".join(filter(None, parts)), self.outdated]))

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
    overrides = _overrides(root, key, committed, with_parameters) if with_parameters else {}
    record = results.read(results.folder_of(root, key, results.slug_of(overrides)))
    if with_parameters and record is None:
        raise _not_run(root, key, with_parameters)
    since = ""
    if record is not None:
        since, stored_first = _changes(root, committed, record, overrides)
        if stored_first and not with_parameters:
            record = None
    return Origin(
        root=root,
        key=key,
        path=record.notebook if record else committed,
        committed=committed,
        entry=bibliography.load(root).get(key),
        record=record,
        since=since,
    )


class Found(dict[str, Origin]):
    """The origins of the papers of one workbook, by key, each looked for when first asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def __missing__(self, key: str) -> Origin:
        self[key] = find(self._root, key)
        return self[key]


def _changes(
    root: Path, committed: Path, record: results.RunRecord, overrides: Mapping[str, Any]
) -> tuple[str, bool]:
    """What changed since the run ``record``, in words, and whether stored outputs come first.

    They do where they are of the notebook's present cells and the run's are not, and where they
    were made of just what is here now.
    """
    try:
        notebook = notebooks.glimpse(committed)
        current = fingerprint.of_notebook(root, committed, notebook, overrides)
    except LabkitError:
        return "changed: the notebook, which cannot be read", False
    since = current.since(record.meta)
    changed = current.changes_since(record.meta.get("fingerprint_parts", {}))
    made_of = notebook.metadata.get("labkit", {}).get(fingerprint.OUTPUTS)
    are_nearer = "source" in changed or made_of == current.digest
    is_stored = any(cell.get("outputs") for cell in notebook.cells)
    return since, bool(since) and is_stored and are_nearer


def _overrides(root: Path, key: str, committed: Path, texts: Sequence[str]) -> dict[str, Any]:
    """The one set of values that ``texts`` (``name=value``) ask for."""
    declared = notebooks.parameters(notebooks.read(committed))
    sweep = parameters.Sweep(choices=parameters.choices(texts))
    require = parameters.requirement(root, key)
    (overrides,) = parameters.combinations(key, declared, sweep, require)
    return overrides


def _not_run(root: Path, key: str, texts: Sequence[str]) -> UsageError:
    options = " ".join(f"-p {text}" for text in texts)
    slugs = [record.slug for record in results.records(root, key)]
    return UsageError(
        f"no result of {key} with {options}: run `labkit run {key} {options}` first "
        f"(results there are: {', '.join(slugs) or 'none yet'})"
    )
