"""A paper's claims file, our values beside it, and what a run carries away.

``data/papers/<key>/claims.yaml`` holds what the paper says, where it says it, whether that was
verified and, fixed before we measure, how we judge (``data/papers/README.md`` is its guide). A
notebook passes its values to :func:`judge`; the executed notebook carries the verdicts as
:data:`CLAIMS_MIME`, from which :func:`from_notebook` collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from labkit import files
from labkit.errors import LabkitError, UsageError, not_among
from labkit.quantities import is_finite_number, rounded
from labkit.workbook import notebooks
from labkit.workbook.review import tables
from labkit.workbook.review.tally import LEGEND, SYMBOLS, flipped_words, shown, signed, tally
from labkit.workbook.review.verdicts import (
    DIGITS,
    Claim,
    Text,
    Value,
    Verdict,
    is_finite,
    is_value,
    ratio_of,
    tolerance_in_words,
    value_problem,
    verdict_of,
)

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from labkit.datasets import Source

CLAIMS_MIME = "application/vnd.labkit.claims+json"
_RIGHT = ("paper", "ours", "flipped", "ratio")


class NotClaim(BaseModel):
    """A number of the abstract that no claim judges, and why not."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    number: Annotated[Text, Field(min_length=1)]
    reason: Annotated[Text, Field(min_length=1)]


class SkippedRows(BaseModel):
    """Rows of a registered file that the notebook leaves out, by name, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: Annotated[Text, Field(min_length=1)]
    file: Text = ""
    rows: Annotated[Text, Field(min_length=1)]
    reason: Annotated[Text, Field(min_length=1)]


class ClaimsFile(BaseModel):
    """The whole of a ``claims.yaml``."""

    model_config = ConfigDict(extra="forbid")

    claims: Annotated[list[Claim], Field(min_length=1)]
    abstract_numbers: list[Text] | None = None
    """Every number of the abstract, as it prints it; None where nobody listed them yet."""
    not_claims: list[NotClaim] = []
    skipped_rows: list[SkippedRows] = []


def path_of(root: Path, key: str) -> Path:
    return root / "data" / "papers" / key / "claims.yaml"


def load(root: Path, key: str) -> list[Claim]:
    """The claims of paper ``key``, in the file's order; raises as :func:`load_file` does."""
    return load_file(root, key).claims


def load_file(root: Path, key: str) -> ClaimsFile:
    """The claims of paper ``key``, what its abstract says besides, and the rows left out.

    Raises:
        BadFile: the file is missing or malformed, or two claims share an id; names the line.
    """
    path = path_of(root, key)
    tree = files.load_yaml(path)
    content = files.validate(path, tree, ClaimsFile)
    seen: set[str] = set()
    for index, claim in enumerate(content.claims):
        if claim.id in seen:
            valid = "an id of its own for every claim"
            place = ("claims", index, "id")
            problem = "two claims share an id"
            raise files.bad_field(path, tree, place, problem, value=claim.id, valid=valid)
        seen.add(claim.id)
    return content


def judge(
    root: Path,
    key: str,
    values: Mapping[str, Any],
    sources: Sequence[Source] = (),
    flips: Mapping[str, Any] | None = None,
) -> tables.Table:
    """The table of :meth:`labkit.workbook.Paper.claims`, and its errors.

    It carries a record of each claim; its caption counts reproductions with their flips, then the
    verdicts of the other kinds.
    """
    import pandas as pd

    claims = load(root, key)
    flips = flips or {}
    known = [claim.id for claim in claims]
    for name in (*values, *flips):
        if name not in known:
            raise not_among("claim", name, known)
    by_name = _by_name(sources)
    records = [
        _judged(key, claim, values.get(claim.id), flips.get(claim.id), by_name) for claim in claims
    ]
    rows = [_row(record, claim) for record, claim in zip(records, claims, strict=True)]
    return tables.Table(
        data=pd.DataFrame(records),
        headers=list(rows[0]),
        rows=[list(row.values()) for row in rows],
        align=["right" if header in _RIGHT else "left" for header in rows[0]],
        caption=f"{key}, claims beside ours: {tally(records).words}",
        lead=LEGEND,
        bold=len(rows[0]) - 1,
        carried={CLAIMS_MIME: records},
    )


def _judged(
    key: str, claim: Claim, value: Any, flip: Any, sources: Mapping[str, Source]
) -> dict[str, Any]:
    ours = _our_value(claim, value)
    flipped = _our_value(claim, flip)
    if flipped is not None and not claim.is_reproduction:
        raise UsageError(f"claim {claim.id!r} of {key} is `kind: {claim.kind}`: it takes no flip")
    call = f"pass it, paper.claims(values, data) with data = paper.data({claim.dataset!r})"
    source = _source_of(key, claim, ours, sources, call)
    return record_of(key, claim, ours, flipped, source)


def _source_of(
    key: str, claim: Claim, ours: Value | None, sources: Mapping[str, Source], advice: str
) -> Source | None:
    """The data set that a claim's value was computed from; None where it rests on none."""
    source = sources.get(claim.dataset)
    if ours is not None and claim.dataset and source is None:
        raise UsageError(
            f"claim {claim.id!r} of {key} is judged on data set {claim.dataset!r}: {advice}"
        )
    return source


def judged_alone(
    key: str, claim: Claim, value: Any, sources: Mapping[str, Source]
) -> tuple[Verdict, Value | None]:
    """The verdict of one value by the claim's rule, whatever stands in the method's place, and the
    value as plain Python."""
    ours = _our_value(claim, value)
    advice = f"open it before, paper.data({claim.dataset!r})"
    source = _source_of(key, claim, ours, sources, advice)
    return verdict_of(claim, ours, standin=_is_unjudged(source)), ours


def _is_unjudged(source: Source | None) -> bool:
    """Whether a value rests on a stand-in whose error nobody measured."""
    return source is not None and source.is_standin and source.fit_error is None


def _by_name(sources: Sequence[Source]) -> dict[str, Source]:
    for source in sources:
        if not hasattr(source, "is_standin"):
            raise UsageError(
                f"paper.claims(values, data, ...) takes data sets as paper.data(NAME) gives them, "
                f"got {type(source).__name__}"
            )
    return {source.name: source for source in sources}


def _our_value(claim: Claim, value: Any) -> Value | None:
    plain = _plain(value)
    problem = "" if plain is None else value_problem(claim, plain)
    if problem:
        raise UsageError(f"claim {claim.id!r} takes another value: {problem}; got {plain!r}")
    return plain


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays, pandas Series and tuples as plain Python."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def record_of(
    key: str,
    claim: Claim,
    ours: Value | None = None,
    flipped: Value | None = None,
    source: Source | None = None,
) -> dict[str, Any]:
    """A claim judged, as stored: values rounded to four significant digits.

    ``source`` is the data that ``ours`` and ``flipped`` were computed from. ``can_fail`` is whether
    the claim has shown that it can (its verdict or its flip's is not "reproduced"), else the
    verdict is "not earned": the nearest rival passes as well, or nobody tried it. It is None where
    nothing was judged or the kind has no flip. ``fitted`` is
    the worst relative error of the fitted model that stood in for the claim's data, None on
    published data; only where there was one, ``fitted_median`` is its median error.
    """
    error = source.fit_error if source is not None and source.is_standin else None
    unjudged = _is_unjudged(source)
    verdict = verdict_of(claim, ours, standin=unjudged)
    flip_verdict = None if flipped is None else verdict_of(claim, flipped, standin=unjudged)
    judged = verdict not in ("not attempted", "not judged")
    can_fail = None
    if claim.is_reproduction and judged:
        can_fail = verdict != "reproduced" or flip_verdict not in (None, "reproduced")
        verdict = verdict if can_fail else "not earned"
    ratio = ratio_of(claim, ours)
    tolerance = claim.tolerance
    stood_in = error if judged else None
    median = {"fitted_median": rounded(float(stood_in.median), 2)} if stood_in else {}
    same = ("id", "kind", "statement", "unit", "judge", "flip", "source", "verified", "dataset")
    return {
        "paper": key,
        **{name: getattr(claim, name) for name in same},
        "paper_value": _rounded(claim.paper),
        "our_value": _rounded(ours),
        "ratio": None if ratio is None else rounded(ratio, DIGITS),
        "tolerance": list(tolerance) if isinstance(tolerance, tuple) else tolerance,
        "verdict": verdict,
        "flip_value": _rounded(flipped),
        "flip_verdict": flip_verdict,
        "can_fail": can_fail,
        "fitted": rounded(float(stood_in.worst), 2) if stood_in else None,
        **median,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return rounded(value, DIGITS) if isinstance(value, float) else value


def _row(record: Mapping[str, Any], claim: Claim) -> dict[str, str]:
    paper = shown(record["paper_value"])
    notes = "; ".join(filter(None, (claim.note, claim.flip and f"flip: {claim.flip}")))
    return {
        "claim": claim.id,
        "kind": claim.kind,
        "statement": f"{claim.statement} ({notes})" if notes else claim.statement,
        "source": claim.source,
        "paper": paper if claim.verified or claim.paper is None else f"{paper} (unverified)",
        "ours": shown(record["our_value"]),
        "flipped": flipped_words(record),
        "unit": claim.unit,
        "ratio": tables.cell_text(record["ratio"], DIGITS),
        "judged by": tolerance_in_words(claim),
        "verdict": signed(record),
    }


# ---------------------------------------------------------------- what a run carries away


def from_notebook(notebook: NotebookNode) -> list[dict[str, Any]]:
    """The claims an executed notebook shows, merged over its calls.

    A later value of a claim replaces an earlier one; "not attempted" never replaces a value.

    Raises:
        LabkitError: a stored claim lacks what :func:`record_of` writes.
    """
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for record in chain.from_iterable(map(records_in, notebooks.carried(notebook, CLAIMS_MIME))):
        name = (record["paper"], record["id"])
        if name not in merged or record["verdict"] != "not attempted":
            merged[name] = dict(record)
    return list(merged.values())


def records_in(carried: Any) -> list[dict[str, Any]]:
    """The records of what one output carries as :data:`CLAIMS_MIME`, or of a ``claims.json``.

    Raises:
        LabkitError: one is malformed.
    """
    records = carried if isinstance(carried, list) else [carried]
    for record in records:
        check_form(record)
    return records


def check_form(record: Any) -> None:
    """Refuse a record that somebody else's notebook may hold and no table could show.

    Raises:
        LabkitError: it names the paper, the claim and the first field that is wrong.
    """
    fields = record if isinstance(record, dict) else {}
    wrong = next((n for n, fits in _FORM.items() if not fits(fields.get(n))), None)
    wrong = wrong or next((name for name in _NEEDED if name not in fields), None)
    if wrong is not None:
        raise LabkitError(
            f"a claim that the notebook of {fields.get('paper')!r} stores is malformed: "
            f"{fields.get('id')!r}, field {wrong!r}; "
            "`labkit run` and `labkit refresh` store it anew"
        )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not files.CONTROL.search(value)


def _is_text_or_missing(value: Any) -> bool:
    return value is None or _is_text(value)


def _is_verdict(value: Any) -> bool:
    return isinstance(value, str) and value in SYMBOLS


def _is_verdict_or_missing(value: Any) -> bool:
    return value is None or _is_verdict(value)


def _is_value_or_missing(value: Any) -> bool:
    """Tell whether tables can show it: numbers that floats hold, texts that terminals can print."""
    if value is None:
        return True
    parts = value if isinstance(value, list) else [value]
    texts = [part for part in parts if isinstance(part, str)]
    return is_value(value) and is_finite(value) and all(map(_is_text, texts))


def _is_number_or_missing(value: Any) -> bool:
    return value is None or is_finite_number(value)


def _is_tolerance_or_missing(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(map(_is_number_or_missing, parts))


def _is_truth_or_missing(value: Any) -> bool:
    return value is None or isinstance(value, bool)


_FORM: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("paper", "id", "kind", "statement", "unit", "source"), _is_text),
    **dict.fromkeys(("judge", "flip", "dataset"), _is_text_or_missing),
    "verdict": _is_verdict,
    "flip_verdict": _is_verdict_or_missing,
    **dict.fromkeys(("paper_value", "our_value", "flip_value"), _is_value_or_missing),
    **dict.fromkeys(("ratio", "fitted", "fitted_median"), _is_number_or_missing),
    "tolerance": _is_tolerance_or_missing,
    **dict.fromkeys(("verified", "can_fail"), _is_truth_or_missing),
}
"""What a record's fields, as :func:`record_of` writes them, may hold."""
_NEEDED = ("paper_value", "our_value", "ratio", "verified")
"""The fields that may hold nothing but must be there."""
