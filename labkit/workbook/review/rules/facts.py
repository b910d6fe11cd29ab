"""What a notebook says of the paper, beside what the workbook's files say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from labkit.errors import not_among
from labkit.workbook import notebooks
from labkit.workbook.queue import bibliography, reading_queue
from labkit.workbook.review import claims as claims_file
from labkit.workbook.review import glance
from labkit.workbook.review.anatomy import TODO, Section, Subject
from labkit.workbook.review.rules.rule import Remark, rule, section_rule
from labkit.workbook.review.verdicts import Claim, are_numbers, numbers

_OURS = ("our_value", "ratio", "verdict", "flip_value", "flip_verdict", "can_fail", "fitted")
"""What of a stored claim our values decide, not the claims file."""


def _plain(text: str) -> str:
    """Text for comparing: no markup, one kind of dash and quote, single spaces, lower case."""
    text = re.sub(r"[*_`]|\[|\]", "", text)
    text = re.sub(r"[‐‑–—]", "-", text)
    text = re.sub(r"[‘’]", "'", text)
    return " ".join(text.split()).casefold()


@section_rule("title", "title, authors, venue, year and link are the bibliography's")
def title_is_the_papers(subject: Subject, section: Section) -> Iterator[Remark]:
    entry = bibliography.load(subject.root).get(subject.key)
    if entry is None:
        fix = "`labkit queue add`, or rename the notebook to its BibTeX key"
        yield Remark(None, f"{subject.key!r} is not in data/papers.bib", fix)
        return
    cell = section.first
    text = _plain(section.first.source)
    heading = _plain(cell.source.strip().splitlines()[0].lstrip("# ")) if cell.source else ""
    if heading != _plain(entry.title):
        yield Remark(cell, "the heading is not the paper's title", f"# {entry.title}")
    missing = [name for name in entry.authors if _plain(name) not in text]
    if missing:
        yield Remark(cell, f"authors missing: {', '.join(missing)}", ", ".join(entry.authors))
    for name, value in (("venue", entry.venue), ("year", str(entry.year)), ("link", entry.link)):
        if value and _plain(value) not in text:
            yield Remark(cell, f"the {name} is missing or another", value)


@rule("queue", "the reading queue has the paper, and not as merely queued or dropped")
def queue_knows(subject: Subject) -> Iterator[Remark]:
    papers = reading_queue.load(subject.root)
    if subject.key not in papers:
        fix = "`labkit queue add`"
        yield Remark(None, f"{subject.key!r} is not in reading_queue.yaml", fix)
    elif (status := papers[subject.key].status) in ("queued", "dropped"):
        fix = f"`labkit queue start {subject.key}`"
        yield Remark(None, f"there is a notebook, yet the queue says {status!r}", fix)


@section_rule("claims", "claims.yaml is there, and every id passed is in it")
def claims_are_known(subject: Subject, section: Section) -> Iterator[Remark]:
    claims = claims_file.load(subject.root, subject.key)
    known = [claim.id for claim in claims]
    declared = {name.partition("/")[0] for name in notebooks.dataset_names(subject.notebook)}
    for claim in claims:
        if TODO in claim.statement or TODO in claim.source:
            problem = f"claim {claim.id!r} of claims.yaml is still to be written"
            yield Remark(section.first, problem, "what the paper says, and where")
        if claim.dataset and claim.dataset not in declared:
            problem = (
                f"claim {claim.id!r} needs {claim.dataset!r}, which the metadata do not declare"
            )
            yield Remark(section.first, problem, f"metadata labkit.datasets: [{claim.dataset}]")
    calls = [(cell, call) for cell in subject.code for call in cell.calls("claims")]
    if not any(cell in section.cells for cell, _ in calls):
        yield Remark(section.first, "paper.claims is not called", "paper.claims({id: value}, data)")
    for cell, call in calls:
        for name in _passed_ids(call):
            if name not in known:
                problem = str(not_among("claim", name, known))
                yield Remark(cell, problem, "an id of claims.yaml")


@section_rule(
    "claims", "every tolerance in claims.yaml has its reason as a comment", name="tolerances"
)
def tolerances_have_reasons(subject: Subject, section: Section) -> Iterator[Remark]:
    path = claims_file.path_of(subject.root, subject.key)
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        above = lines[number - 2].strip() if number > 1 else ""
        if re.match(r"\s*tolerance:", line) and "#" not in line and not above.startswith("#"):
            problem = f"claims.yaml:{number}: a tolerance without a reason"
            yield Remark(section.first, problem, "a comment on the line above: why this much")


def _passed_ids(call: ast.Call) -> list[str]:
    given = call.args[0] if call.args else None
    if not isinstance(given, ast.Dict):
        return []
    return [str(key.value) for key in given.keys if isinstance(key, ast.Constant)]


@section_rule(
    "claims", "the stored verdicts are those of claims.yaml as it is", name="claims-stored"
)
def stored_claims_are_current(subject: Subject, section: Section) -> Iterator[Remark]:
    if not subject.was_executed or not subject.claims:
        return
    stored = dict(subject.stored_claims)
    refresh = f"`labkit refresh {subject.key}`"
    if not stored:
        yield Remark(section.first, "no stored output holds claims", refresh)
        return
    for claim in subject.claims:
        record = stored.pop(claim.id, None)
        if record is None:
            yield Remark(section.first, f"stored claims lack {claim.id!r}", refresh)
            continue
        now = claims_file.record_of(subject.key, claim)
        changed = [name for name in now if name not in _OURS and record.get(name) != now[name]]
        if changed:
            problem = f"stored claim {claim.id!r} has another {', '.join(changed)} than claims.yaml"
            yield Remark(section.first, problem, refresh)
        if record["verdict"] == "not earned" and record.get("flip_verdict") is None:
            problem = f"claim {claim.id!r} is not earned: its flip was never computed"
            yield Remark(section.first, problem, f"flips={{{claim.id!r}: …}} with {claim.flip}")
        if record["verdict"] == "not judged" or record.get("fitted") is not None:
            problem = f"stored claim {claim.id!r} was computed from stand-in data"
            yield Remark(section.first, problem, f"{refresh} with the published data")
    for name in stored:
        yield Remark(section.first, f"stored claim {name!r} is not in claims.yaml", refresh)


_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_PRINTED = re.compile(rf"(\d[\d,]*(?:\.\d+)?)\s*({'|'.join(_SCALES)})?", re.I)


@section_rule(
    "claims",
    "every number of the abstract is a claim's, or has its reason in `not_claims`",
    name="abstract",
)
def abstract_is_accounted_for(subject: Subject, section: Section) -> Iterator[Remark]:
    content = claims_file.load_file(subject.root, subject.key)
    if content.abstract_numbers is None:
        fix = 'every number of the abstract, as printed: `abstract_numbers: ["28.4 %", …]`, or []'
        yield Remark(section.first, "claims.yaml does not list the abstract's numbers", fix)
        return
    judged = {value for claim in content.claims for value in _values(claim)}
    reasons = [_plain(number.number) for number in content.not_claims]
    for text in content.abstract_numbers:
        printed = [
            float(digits.replace(",", "")) * _SCALES.get(scale.lower(), 1)
            for digits, scale in _PRINTED.findall(text)
        ]
        is_judged = bool(printed) and judged.issuperset(printed)
        if TODO in text:
            problem = "the abstract's numbers in claims.yaml are still to be written"
            yield Remark(section.first, problem, "each as printed")
        elif not is_judged and not any(_plain(text) in reason for reason in reasons):
            problem = f"the abstract's {text!r} is neither a claim nor among `not_claims`"
            yield Remark(section.first, problem, "a claim, or its reason in `not_claims`")


def _values(claim: Claim) -> list[float]:
    """The paper's values of a claim, those of a fraction as the abstract prints them too."""
    values = numbers(claim.paper) if are_numbers(claim.paper) else []
    shares = values if claim.unit == "fraction" else []
    return values + [float(f"{100 * value:.6g}") for value in shares]


@section_rule("companions", "every companion is in the bibliography", name="companions-known")
def companions_are_known(subject: Subject, section: Section) -> Iterator[Remark]:
    entries = bibliography.load(subject.root)
    for cell in section.code:
        arguments = (argument for call in cell.calls("beside") for argument in call.args)
        for key in (a.value for a in arguments if isinstance(a, ast.Constant)):
            if key not in entries:
                yield Remark(cell, f"{key!r} is not in data/papers.bib", "a BibTeX key")
            else:
                glance.of(subject.root, key)  # raises where its lines do not read
