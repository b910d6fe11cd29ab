"""A talk's claims: which are shown, and words that do not make more of a verdict than it is."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.workbook.export import headlines
from labkit.workbook.review.claims import record_of
from labkit.workbook.review.verdicts import Claim, Value


def claim(paper: Value, **fields: Any) -> Claim:
    given = {
        "id": "rate",
        "kind": "headline",
        "statement": "Rate over replication's",
        "flip": "replication",
        "paper": paper,
        "source": "abstract",
        "verified": True,
        "checked": "abstract",
        "judge": "ratio",
        "tolerance": 0.3,
        "neutral": 1,
    }
    return Claim(**(given | fields))


def shown(made: Claim, ours: Value, flip: Value | None = None) -> dict[str, Any]:
    return headlines.row(record_of("alpha", made, ours, flip), made)


@pytest.mark.parametrize(
    ("paper", "ours", "words", "factor"),
    [
        (10.0, 1.577, "smaller effect", "0.16 × the paper's"),
        (10.0, 44.0, "larger effect", "4.4 × the paper's"),
        (0.5, 0.9, "smaller drop", "1.8 × the paper's"),
        (0.76, 0.5, "larger drop", "0.66 × the paper's"),
        ([2.0, 4.0], [1.1, 1.5], "smaller effect", "down to 0.38 × the paper's"),
        ([2.0, 4.0], [1.1, 9.0], "other sizes", "up to 2.2 × the paper's"),
    ],
)
def test_a_value_on_the_papers_side_says_how_far_off_it_is(
    paper: Value, ours: Value, words: str, factor: str
) -> None:
    row = shown(claim(paper), ours)
    assert row["verdict"] == "same direction"
    assert (row["verdict_shown"], row["factor"]) == (words, factor)
    assert row["sign"] == "≠", "a sign of what is nearly equal would praise it"
    assert row["rule"] == "within 30\xa0%"


def test_an_interval_is_compared_by_its_end_nearest_to_no_effect() -> None:
    made = claim(1000.0, judge="between", tolerance=(500, 2000), neutral=0)
    assert shown(made, 4396.0)["verdict_shown"] == "larger effect"
    assert shown(made, 18.0)["verdict_shown"] == "smaller effect"
    unsaid = claim([5.0, 9.0], judge="between", tolerance=None, neutral=1)
    assert shown(unsaid, 2.0)["verdict_shown"] == "smaller effect"


def test_an_order_says_how_much_of_it_is_kept() -> None:
    made = claim(["a", "b", "c"], judge="ordering", tolerance=0, neutral=0)
    row = shown(made, ["b", "a", "c"])
    assert (row["verdict_shown"], row["factor"]) == ("other order", "2 of 3 pairs in its order")


def test_three_digits_are_shown_unless_they_hide_a_difference() -> None:
    assert shown(claim(36.9), 28.8512, 1.0)["ours"] == "28.9"
    exact = claim(36.9, judge="at-least", tolerance=None)
    assert shown(exact, 36.86)["ours"] == "36.86", "36.9 would look like the paper's own"


def test_a_rival_carries_no_sign_of_a_verdict() -> None:
    row = shown(claim(10.0), 9.5, 1.0)
    assert row["rival"] == "replication: 1, fails as it should"
    assert not {"✔", "✘"} & set(row["rival"])


def test_a_failure_of_any_kind_is_among_the_claims_shown() -> None:
    kinds = ["headline", "headline", "mechanism", "headline", "group", "mechanism"]
    verdicts = ["reproduced"] * 4 + ["differs", "not earned"]
    records = [
        {"kind": kind, "verdict": verdict, "our_value": 1.0}
        for kind, verdict in zip(kinds, verdicts, strict=True)
    ]
    first = headlines.chosen(records)[: headlines.MAX_CLAIMS]
    assert [r["verdict"] for r in first] == ["reproduced", "reproduced", "not earned"]
    first = headlines.chosen(records[:5])[: headlines.MAX_CLAIMS]
    assert [r["verdict"] for r in first] == ["reproduced", "reproduced", "differs"]
    assert len(headlines.chosen(records)) == len(records)


def test_a_long_statement_leaves_its_remark_to_the_notes() -> None:
    statement = "Extra queueing delay of a job under quotas over a private cluster of the same size"
    made = claim(10.0, statement=f"{statement} (ours: three orders of the queue)")
    assert shown(made, 9.5)["short"] == statement
    assert shown(claim(10.0, statement="Rate (median)"), 9.5)["short"] == "Rate (median)"
