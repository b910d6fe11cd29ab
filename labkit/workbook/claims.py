"""A paper's claims, and how ours stand beside them.

``data/papers/<key>/claims.yaml`` holds what the paper says, where it says it, whether that was
verified, and — fixed before we measure — how we judge. A notebook passes its values to
:func:`judge`; the executed notebook carries the verdicts as :data:`CLAIMS_MIME`, from which
:func:`from_notebook` and :func:`ledger` collect them. ``data/papers/README.md`` tells
contributors how to write the file.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from labkit import files
from labkit.errors import BadFile, UsageError
from labkit.workbook import tables

if TYPE_CHECKING:
    import pandas as pd
    from nbformat import NotebookNode

CLAIMS_MIME = "application/vnd.labkit.claims+json"
DIGITS = 4
EDGE = 1e-9
"""Relative slack at a tolerance's edge: 1.05 against 1 is within 5 % also in binary."""

Judge = Literal["ratio", "absolute", "at-least", "at-most", "between", "ordering", "equal"]
Verdict = Literal["reproduced", "same direction", "differs", "not attempted", "not judged"]
Scalar = bool | int | float | str
Value = Scalar | list[Scalar]

SYMBOLS: dict[str, str] = {
    "reproduced": "✔",
    "same direction": "≈",
    "differs": "✘",
    "not attempted": "○",
    "not judged": "◇",
}
"""A verdict's sign. The word always stands beside it: neither colour nor shape carries it alone."""


class SourceLike(Protocol):
    """What :func:`judge` needs to know of a data set (``labkit.datasets.Source``)."""

    @property
    def name(self) -> str: ...
    @property
    def is_standin(self) -> bool: ...


class Claim(BaseModel):
    """One claim of a paper and the rule, set beforehand, by which we judge our value of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    statement: Annotated[str, Field(min_length=1)]
    paper: Value | None
    unit: str = ""
    source: Annotated[str, Field(min_length=1)]
    verified: bool
    checked: str = ""
    judge: Judge
    tolerance: float | tuple[float | None, float | None] | None = None
    neutral: float | None = None
    dataset: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problem = _inconsistency(self)
        if problem:
            raise ValueError(problem)
        return self

    @property
    def slack(self) -> float:
        """The tolerance as one number (0 where none is set)."""
        return float(self.tolerance) if isinstance(self.tolerance, int | float) else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The two ends that ``between`` allows, infinite where an end is open."""
        ends = self.tolerance if isinstance(self.tolerance, tuple) else self.paper
        assert isinstance(ends, tuple | list)
        low, high = ends
        return (
            -math.inf if low is None else float(low),
            math.inf if high is None else float(high),
        )

    @property
    def tolerance_in_words(self) -> str:
        return _tolerance_in_words(self)


class ClaimsFile(BaseModel):
    """The whole of a ``claims.yaml``."""

    model_config = ConfigDict(extra="forbid")

    claims: Annotated[list[Claim], Field(min_length=1)]


def path_of(root: Path, key: str) -> Path:
    return root / "data" / "papers" / key / "claims.yaml"


def load(root: Path, key: str) -> list[Claim]:
    """The claims of paper ``key``.

    Raises:
        BadFile: the file is missing or malformed, or two claims share an id; names the line.
    """
    path = path_of(root, key)
    tree = files.load_yaml(path)
    claims = files.validate(path, tree, ClaimsFile).claims
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        if claim.id in seen:
            raise BadFile(
                path,
                "two claims share an id",
                line=files.line_of(tree, ("claims", index, "id")),
                field=f"claims.{index}.id",
                value=claim.id,
                valid="an id of its own for every claim",
            )
        seen.add(claim.id)
    return claims


def judge(
    root: Path, key: str, values: Mapping[str, Any], sources: Sequence[SourceLike] = ()
) -> ClaimsTable:
    """Our ``values`` (claim id -> number, text or list; None = not attempted) beside the paper's.

    Raises:
        UsageError: an id the file does not have, a value that is not finite or not of the claim's
            kind, or a value for a claim whose data set is not among ``sources``.
    """
    claims = load(root, key)
    known = {claim.id: claim for claim in claims}
    for name in values:
        if name not in known:
            raise UsageError(unknown_claim(key, name, list(known)))
    standin = {source.name: source.is_standin for source in sources}
    records = []
    for claim in claims:
        ours = _clean(claim, values.get(claim.id))
        if ours is not None and claim.dataset and claim.dataset not in standin:
            raise UsageError(
                f"claim {claim.id!r} of {key} is judged on data set {claim.dataset!r}: pass it, "
                f"paper.claims(values, data) with data = paper.data({claim.dataset!r})"
            )
        verdict = verdict_of(claim, ours, standin=standin.get(claim.dataset, False))
        records.append(_record(key, claim, ours, verdict))
    return ClaimsTable(records, claims)


def unknown_claim(key: str, name: str, valid: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(name), valid, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{key} has no claim {name!r}.{hint} Its claims: {', '.join(valid)}"


# ---------------------------------------------------------------- verdicts


def verdict_of(claim: Claim, ours: Value | None, *, standin: bool = False) -> Verdict:
    """How ``ours`` stands beside the paper's value.

    Unrounded values are judged. ``standin``: the claim's data set is a stand-in, so a value of
    ours says nothing about the paper's and is not judged.
    """
    if ours is None:
        return "not attempted"
    if standin:
        return "not judged"
    if _holds(claim, ours):
        return "reproduced"
    return "same direction" if _same_direction(claim, ours) else "differs"


def _holds(claim: Claim, ours: Value) -> bool:
    if claim.judge == "equal":
        return ours == claim.paper
    if claim.judge == "ordering":
        agree, differ = _pairs(claim.paper, ours)
        return differ <= claim.slack * (agree + differ) * (1 + EDGE)
    if claim.judge == "between":
        low, high = claim.interval
        return all(low - _edge(low) <= value <= high + _edge(high) for value in _numbers(ours))
    papers = _numbers(claim.paper)
    return all(
        _close(claim, value, paper) for value, paper in zip(_numbers(ours), papers, strict=True)
    )


def _close(claim: Claim, ours: float, paper: float) -> bool:
    slack = claim.slack
    if claim.judge == "ratio":
        return abs(ours / paper - 1) <= slack + EDGE
    edge = _edge(paper)
    if claim.judge == "absolute":
        return abs(ours - paper) <= slack + edge
    if claim.judge == "at-least":
        return ours >= paper - slack - edge
    return ours <= paper + slack + edge


def _edge(value: float) -> float:
    return EDGE * abs(value) if math.isfinite(value) else 0.0


def _same_direction(claim: Claim, ours: Value) -> bool:
    """Ours lies on the paper's side of the value that means "no effect"."""
    if claim.neutral is None or claim.judge == "equal":
        return False
    if claim.judge == "ordering":
        agree, differ = _pairs(claim.paper, ours)
        return agree > differ
    if claim.judge == "between":
        low, high = claim.interval
        side = (low >= claim.neutral) - (high <= claim.neutral)
        return side != 0 and all((value - claim.neutral) * side > 0 for value in _numbers(ours))
    return all(
        (value - claim.neutral) * (paper - claim.neutral) > 0
        for value, paper in zip(_numbers(ours), _numbers(claim.paper), strict=True)
    )


def _pairs(paper: Any, ours: Any) -> tuple[int, int]:
    """How many pairs stand in the paper's order in ours too, and how many do not.

    Lists of names are compared by position, lists of numbers by rank; pairs that the paper has
    level say nothing and are left out.
    """
    if isinstance(paper[0], str):
        place = {name: index for index, name in enumerate(ours)}
        paper, ours = list(range(len(paper))), [place[name] for name in paper]
    agree = differ = 0
    for i in range(len(paper)):
        for j in range(i):
            if paper[i] == paper[j]:
                continue
            if (paper[i] - paper[j]) * (ours[i] - ours[j]) > 0:
                agree += 1
            else:
                differ += 1
    return agree, differ


def _numbers(value: Any) -> list[float]:
    return [float(part) for part in (value if isinstance(value, list) else [value])]


def _ratio(claim: Claim, ours: Value | None) -> float | None:
    """ours/paper; for lists the one furthest from 1; None where it means nothing."""
    pair = (ours, claim.paper)
    if claim.judge == "ordering" or not all(_is_numeric(value) for value in pair):
        return None
    values, papers = _numbers(ours), _numbers(claim.paper)
    if len(values) != len(papers) or 0.0 in papers:
        return None
    return max(
        (value / paper for value, paper in zip(values, papers, strict=True)),
        key=lambda ratio: abs(ratio - 1),
    )


def _is_numeric(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return bool(parts) and all(
        isinstance(part, int | float) and not isinstance(part, bool) for part in parts
    )


# ---------------------------------------------------------------- what may be said


def _inconsistency(claim: Claim) -> str:
    """What makes a claim impossible to judge, or ""."""
    if claim.verified and not claim.checked:
        return "a verified claim says in `checked` where it was verified"
    if not _finite(claim.paper):
        return "`paper` must be finite"
    rules = {
        "between": _between_problem,
        "ordering": _ordering_problem,
        "equal": _equal_problem,
        "ratio": _number_problem,
        "absolute": _number_problem,
        "at-least": _bound_problem,
        "at-most": _bound_problem,
    }
    return rules[claim.judge](claim)


def _between_problem(claim: Claim) -> str:
    ends = claim.tolerance if isinstance(claim.tolerance, tuple) else claim.paper
    if not isinstance(ends, tuple | list) or len(ends) != 2:
        return "`judge: between` needs `tolerance: [low, high]` (null leaves an end open)"
    if any(isinstance(end, bool | str) for end in ends):
        return "`judge: between` needs two numbers as ends"
    low, high = claim.interval
    if low > high or (math.isinf(low) and math.isinf(high)):
        return "`tolerance: [low, high]` must have low <= high and at least one end closed"
    if claim.paper is not None and not _is_numeric(claim.paper):
        return "`judge: between` needs a number (or null) as `paper`"
    return ""


def _ordering_problem(claim: Claim) -> str:
    paper = claim.paper
    if not isinstance(paper, list) or len(paper) < 2:
        return "`judge: ordering` needs a list of two or more in `paper`"
    if all(isinstance(part, str) for part in paper):
        if len(set(paper)) != len(paper):
            return "`paper` names one thing twice in its order"
    elif not _is_numeric(paper):
        return "`judge: ordering` compares names or numbers, not a mixture"
    if isinstance(claim.tolerance, tuple) or not 0 <= claim.slack < 1:
        return "`tolerance` of an ordering is the share of pairs that may be swapped, 0 to 1"
    return ""


def _equal_problem(claim: Claim) -> str:
    if claim.paper is None:
        return "`judge: equal` needs a value in `paper`"
    return "`judge: equal` takes no tolerance" if claim.tolerance is not None else ""


def _number_problem(claim: Claim) -> str:
    if not _is_numeric(claim.paper):
        return f"`judge: {claim.judge}` needs a number, or a list of them, in `paper`"
    if claim.judge == "ratio" and 0.0 in _numbers(claim.paper):
        return "a ratio to a `paper` value of 0 means nothing: use `judge: absolute`"
    if not isinstance(claim.tolerance, int | float) or not 0 <= claim.slack < math.inf:
        return f"`judge: {claim.judge}` needs `tolerance`: one number, 0 or more"
    return ""


def _bound_problem(claim: Claim) -> str:
    if not _is_numeric(claim.paper):
        return (
            f"`judge: {claim.judge}` needs a number in `paper`; where the paper gives none, "
            "use `judge: between` with `tolerance: [low, null]`"
        )
    if isinstance(claim.tolerance, tuple) or not 0 <= claim.slack < math.inf:
        return f"`tolerance` of `judge: {claim.judge}` is a slack: one number, 0 or more"
    return ""


def _finite(value: Any) -> bool:
    parts = value if isinstance(value, list) else [value]
    return all(not isinstance(part, float) or math.isfinite(part) for part in parts)


def _clean(claim: Claim, value: Any) -> Value | None:
    """Our value as plain Python of the kind the claim is judged by.

    Raises:
        UsageError: it is not finite, not of that kind, or not of the paper's length.
    """
    value = _plain(value)
    if value is None:
        return None
    problem = _value_problem(claim, value)
    if problem:
        raise UsageError(f"claim {claim.id!r}: {problem}, got {value!r}")
    return value


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy scalars and arrays, pandas Series
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def _value_problem(claim: Claim, value: Any) -> str:
    if not _finite(value):
        return "a value must be finite"
    if claim.judge == "equal":
        return _equal_value_problem(value)
    if claim.judge == "ordering":
        return _ordering_value_problem(claim, value)
    if not _is_numeric(value):
        return f"`judge: {claim.judge}` needs a number"
    if claim.judge == "between" or not isinstance(value, list | tuple):
        listed = isinstance(claim.paper, list) and claim.judge != "between"
        return f"the paper gives {len(_numbers(claim.paper))} values, so must we" if listed else ""
    if not isinstance(claim.paper, list) or len(value) != len(claim.paper):
        return f"the paper gives {len(_numbers(claim.paper))} value(s), so must we"
    return ""


def _equal_value_problem(value: Any) -> str:
    parts = value if isinstance(value, list) else [value]
    fine = all(isinstance(part, bool | int | float | str) for part in parts)
    return "" if fine else "`judge: equal` compares numbers, texts or lists of them"


def _ordering_value_problem(claim: Claim, value: Any) -> str:
    assert isinstance(claim.paper, list)
    if isinstance(claim.paper[0], str):
        same = isinstance(value, list) and sorted(map(str, value)) == sorted(map(str, claim.paper))
        return "" if same else f"an ordering needs the same names as the paper's {claim.paper}"
    same = isinstance(value, list) and len(value) == len(claim.paper) and _is_numeric(value)
    return "" if same else f"an ordering needs {len(claim.paper)} numbers, as the paper's"


def _tolerance_in_words(claim: Claim) -> str:
    slack = tables.number(claim.slack, DIGITS)
    unit = "" if claim.unit in ("", "fraction") else f" {claim.unit}"
    if claim.judge == "ratio":
        return f"within {tables.number(claim.slack * 100, DIGITS)} %"
    if claim.judge == "absolute":
        return f"within ±{slack}{unit}"
    if claim.judge == "between":
        low, high = claim.interval
        if math.isinf(high):
            return f"at least {tables.number(low, DIGITS)}{unit}"
        if math.isinf(low):
            return f"at most {tables.number(high, DIGITS)}{unit}"
        return f"{tables.number(low, DIGITS)} to {tables.number(high, DIGITS)}{unit}"
    if claim.judge == "ordering":
        share = tables.number(claim.slack * 100, DIGITS)
        return f"same order, up to {share} % of pairs swapped" if claim.slack else "same order"
    if claim.judge == "equal":
        return "equal"
    words = "at least" if claim.judge == "at-least" else "at most"
    give = f", slack {slack}{unit}" if claim.slack else ""
    return f"{words} the paper's{give}"


# ---------------------------------------------------------------- records and tables


def _record(key: str, claim: Claim, ours: Value | None, verdict: Verdict) -> dict[str, Any]:
    ratio = _ratio(claim, ours)
    tolerance = claim.tolerance
    return {
        "paper": key,
        "id": claim.id,
        "statement": claim.statement,
        "paper_value": _rounded(claim.paper),
        "our_value": _rounded(ours),
        "unit": claim.unit,
        "ratio": None if ratio is None else tables.rounded(ratio, DIGITS),
        "tolerance": list(tolerance) if isinstance(tolerance, tuple) else tolerance,
        "judge": claim.judge,
        "verdict": verdict,
        "source": claim.source,
        "verified": claim.verified,
        "dataset": claim.dataset,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return tables.rounded(value, DIGITS) if isinstance(value, float) else value


class ClaimsTable:
    """The verdicts as a notebook shows them and as an executed notebook carries them.

    Values are rounded to four significant digits for showing and storing, after judging.
    """

    def __init__(self, records: list[dict[str, Any]], claims: Sequence[Claim]) -> None:
        self.records = records
        self._words = [claim.tolerance_in_words for claim in claims]

    def frame(self) -> pd.DataFrame:
        """One row a claim, with the columns of the stored records."""
        import pandas as pd

        return pd.DataFrame(self.records)

    @cached_property
    def grid(self) -> tables.Grid:
        headers = [
            "claim", "statement", "source", "paper", "ours", "unit", "ours/paper", "judged by",
            "verdict",
        ]  # fmt: skip
        right = ("paper", "ours", "ours/paper")
        return tables.Grid(
            headers=headers,
            rows=[_row(r, words) for r, words in zip(self.records, self._words, strict=True)],
            align=["right" if header in right else "left" for header in headers],
            bold=frozenset((row, len(headers) - 1) for row in range(len(self.records))),
        )

    def __repr__(self) -> str:
        return self.grid.text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {**self.grid.bundle(), CLAIMS_MIME: self.records}


def _row(record: Mapping[str, Any], words: str) -> list[str]:
    paper = tables.cell_text(record["paper_value"], DIGITS)
    return [
        record["id"],
        record["statement"],
        record["source"],
        paper if record["verified"] else f"{paper} (unverified)",
        tables.cell_text(record["our_value"], DIGITS),
        record["unit"],
        tables.cell_text(record["ratio"], DIGITS),
        words,
        f"{SYMBOLS[record['verdict']]} {record['verdict']}",
    ]


def from_notebook(notebook: NotebookNode) -> list[dict[str, Any]]:
    """The claims an executed notebook shows, merged over its calls.

    A later value of a claim replaces an earlier one; "not attempted" never replaces a value.
    """
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for record in output.get("data", {}).get(CLAIMS_MIME, []):
                name = (record["paper"], record["id"])
                if name not in merged or record["verdict"] != "not attempted":
                    merged[name] = dict(record)
    return list(merged.values())


TEXT = ("paper", "slug", "parameters", "id", "statement", "unit", "source", "judge", "tolerance",
        "dataset", "verdict", "paper_value", "our_value")  # fmt: skip
NUMERIC = ("paper_number", "our_number", "ratio")


def ledger(records: Iterable[Any], root: Path | None = None) -> pd.DataFrame:
    """Every claim of every run, one row each: what ``results/claims.parquet`` holds.

    ``records`` are ``results.RunRecord`` s. Claims of the paper's file that a run never showed
    are listed as not attempted. ``paper_value``, ``our_value``, ``tolerance`` and ``parameters``
    are JSON texts, since values may be numbers, names or lists; ``paper_number`` and
    ``our_number`` hold the single numbers among them (NaN elsewhere).
    """
    import pandas as pd

    rows = [row for record in records for row in _ledger_rows(record, root)]
    columns = [*TEXT, "verified", *NUMERIC]
    frame = pd.DataFrame(rows, columns=columns)
    types = {**dict.fromkeys(TEXT, "str"), "verified": "bool", **dict.fromkeys(NUMERIC, "float64")}
    frame = frame.astype(types)
    return frame.sort_values(["paper", "slug", "id"], ignore_index=True)


def _ledger_rows(run: Any, root: Path | None) -> list[dict[str, Any]]:
    shown = {record["id"]: record for record in run.claims}
    root = root or files.project_root()
    if path_of(root, run.key).is_file():
        for claim in load(root, run.key):
            if claim.id not in shown:
                shown[claim.id] = _record(run.key, claim, None, "not attempted")
    return [
        {
            **{name: record[name] for name in record if name in TEXT},
            "slug": run.slug,
            "parameters": _json(dict(run.parameters)),
            "tolerance": _json(record["tolerance"]),
            "paper_value": _json(record["paper_value"]),
            "our_value": _json(record["our_value"]),
            "verified": bool(record["verified"]),
            "paper_number": _number_or_none(record["paper_value"]),
            "our_number": _number_or_none(record["our_value"]),
            "ratio": record["ratio"],
        }
        for record in shown.values()
    ]


def _number_or_none(value: Any) -> float | None:
    return float(value) if _is_numeric(value) and not isinstance(value, list) else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
