"""``labkit check``: every rule on every notebook, and every paper's facts read once.

Only the stored notebook is read: nothing runs, and no engine is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import BadFile, LabkitError
from labkit.workbook import notebooks
from labkit.workbook.queue import questions
from labkit.workbook.review import anatomy, claims, glance, rules


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to put right: where, which rule, what is wrong, what would be right.

    ``cell`` counts from 1 (None: the file as a whole); ``file`` is the path inside the workbook.
    """

    file: str
    cell: int | None
    cell_id: str
    rule: str
    problem: str
    fix: str

    @property
    def warns(self) -> bool:
        return any(rule.warns for rule in rules.RULES if rule.name == self.rule)


@dataclass(frozen=True, kw_only=True)
class Report:
    """The findings and what was looked at."""

    findings: tuple[Finding, ...]
    notebooks: tuple[str, ...]
    num_rules: int

    @property
    def is_clean(self) -> bool:
        return all(finding.warns for finding in self.findings)


def check(root: Path, keys: Sequence[str] = ()) -> Report:
    """Check the notebooks of ``keys`` (default: all, and every paper's facts with them)."""
    known = notebooks.paths(root)
    chosen = {key: notebooks.path_of(root, key) for key in keys} or known
    findings: list[Finding] = []
    for key, path in chosen.items():
        findings += check_notebook(root, key, path)
    if not keys:
        findings += check_facts(root)
    return Report(findings=tuple(findings), notebooks=tuple(chosen), num_rules=len(rules.RULES))


def check_notebook(root: Path, key: str, path: Path) -> list[Finding]:
    """All findings on one notebook, in the order of its cells."""
    try:
        subject = anatomy.Subject(root, key, path, notebooks.read(path))
    except BadFile as error:
        return [_finding(root, path, "readable", _unreadable(error))]
    findings = [_finding(root, path, name, remark) for name, remark in _remarks(subject)]
    return sorted(findings, key=lambda finding: finding.cell or 0)


def _remarks(subject: anatomy.Subject) -> Iterator[tuple[str, rules.Remark]]:
    """What each rule says; a file beside the notebook that does not read is told once."""
    told_of = set[str]()
    for rule in rules.RULES:
        try:
            yield from ((rule.name, remark) for remark in rule.check(subject))
        except LabkitError as error:
            if str(error) not in told_of:
                told_of.add(str(error))
                yield rule.name, _unreadable(error)


def check_facts(root: Path) -> list[Finding]:
    """Findings on the files of ``data/papers/``, whether or not a notebook reads them yet."""
    findings = []
    for folder in sorted((root / "data" / "papers").glob("*/")):
        key = folder.name
        for facts in (claims, glance, questions):
            if (path := facts.path_of(root, key)).is_file():
                try:
                    facts.load(root, key)
                except LabkitError as error:
                    findings.append(_finding(root, path, "readable", _unreadable(error)))
    return findings


def _unreadable(error: LabkitError) -> rules.Remark:
    return rules.Remark(None, str(error), getattr(error, "valid", "") or "a file that reads")


def _finding(root: Path, path: Path, rule: str, remark: rules.Remark) -> Finding:
    return Finding(
        file=path.relative_to(root).as_posix(),
        cell=remark.where.number if remark.where else None,
        cell_id=remark.where.id if remark.where else "",
        rule=rule,
        problem=remark.problem.replace(f"{root}/", ""),
        fix=remark.fix,
    )
