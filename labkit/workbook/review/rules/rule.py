"""What a rule is: a small function that says what is wrong where, and what would be right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from labkit.workbook.review.anatomy import Cell, Section, Subject


class Remark(NamedTuple):
    """What is wrong where (None: in the notebook as a whole), and what would be right."""

    where: Cell | None
    problem: str
    fix: str


Check = Callable[[Subject], Iterator[Remark]]
SectionCheck = Callable[[Subject, Section], Iterator[Remark]]


@dataclass(frozen=True)
class Rule:
    """``demand`` is the rule in one line, as ``labkit check --rules`` prints it.

    What a rule finds that only ``warns`` is shown, and fails nothing.
    """

    name: str
    demand: str
    check: Check
    warns: bool = False


RULES: list[Rule] = []


def rule(name: str, demand: str, *, warns: bool = False) -> Callable[[Check], Check]:
    """Register a rule."""

    def register(check: Check) -> Check:
        RULES.append(Rule(name, demand, check, warns))
        return check

    return register


def section_rule(
    tag: str, demand: str, *, name: str = ""
) -> Callable[[SectionCheck], SectionCheck]:
    """Register a rule about every section of one tag; default: named as the section.

    It is silent where the section is missing (the ``sections`` rule says so) or still says TODO
    (the ``todo`` rule does).
    """

    def register(check: SectionCheck) -> SectionCheck:
        @rule(name or tag, demand)
        def over_sections(subject: Subject) -> Iterator[Remark]:
            for section in subject.sections:
                if section.tag == tag and not section.is_unwritten:
                    yield from check(subject, section)

        return check

    return register


Missing = Callable[[Section], bool]


def needs(tag: str, demand: str, *wanted: tuple[Missing, str, str]) -> None:
    """Register a rule, named as its section, from rows of: what is missing, problem, fix."""

    @section_rule(tag, demand)
    def check(subject: Subject, section: Section) -> Iterator[Remark]:
        for missing, problem, fix in wanted:
            if missing(section):
                yield Remark(section.first, problem, fix)
