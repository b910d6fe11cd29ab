"""Verdicts by their definition, the file's faults by line, and what a run carries away."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat.v4 as v4
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import BadFile, UsageError
from labkit.workbook.review import claims, tables, tally
from labkit.workbook.review.claims import CLAIMS_MIME
from labkit.workbook.review.verdicts import Claim, tolerance_in_words, verdict_of
from labkit.workbook.run.runs import ledger

FILE = """\
claims:
  - id: saving
    kind: headline
    statement: Energy saved
    flip: the highest clock everywhere
    paper: 0.284
    unit: fraction
    source: "abstract"
    verified: true
    checked: usenix.org
    judge: ratio
    tolerance: 0.05
    neutral: 0
    dataset: profiles
  - id: order
    kind: consistency
    statement: Planners from least to most energy
    paper: [optimal, heuristic, none]
    source: "§6"
    verified: false
    judge: ordering
    neutral: 0
  - id: table
    kind: consistency
    statement: The row of Table 1
    paper: [120, 31.4, 16.6, 1.9]
    unit: GB
    source: "Table 1"
    verified: true
    checked: arxiv
    judge: absolute
    tolerance: 0.05
    note: printed truncated
"""


@dataclass
class Source:
    name: str
    is_standin: bool = False
    fit_error: FitError | None = None


@dataclass
class FitError:
    median: float
    worst: float


@dataclass
class Fitted(Source):
    is_standin: bool = True
    fit_error: FitError = field(default_factory=lambda: FitError(median=0.02, worst=0.0714))


@dataclass
class Run:
    key: str = "paper"
    slug: str = "default"
    parameters: dict[str, Any] = field(default_factory=dict)
    claims: list[dict[str, Any]] = field(default_factory=list)


def claim(**fields: Any) -> Claim:
    basics = {"id": "x", "kind": "consistency", "statement": "s", "source": "§1", "verified": False}
    return Claim(**{**basics, **fields})


def write(root: Path, text: str = FILE, key: str = "paper") -> Path:
    path = claims.path_of(root, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def verdicts(table: tables.Table) -> dict[str, str]:
    return {record["id"]: record["verdict"] for record in table.carried[CLAIMS_MIME]}


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("fields", "ours", "verdict"),
    [
        ({"judge": "ratio", "paper": 100, "tolerance": 0.05}, 105, "reproduced"),
        ({"judge": "ratio", "paper": 100, "tolerance": 0.05}, 95, "reproduced"),
        ({"judge": "ratio", "paper": 100, "tolerance": 0.05}, 105.1, "differs"),
        ({"judge": "ratio", "paper": 100, "tolerance": 0.05, "neutral": 0}, 20, "same direction"),
        ({"judge": "ratio", "paper": 100, "tolerance": 0.05, "neutral": 0}, -20, "differs"),
        ({"judge": "ratio", "paper": 100, "tolerance": 0.05, "neutral": 0}, 0, "differs"),
        ({"judge": "ratio", "paper": 2.0, "tolerance": 0.1, "neutral": 1}, 1.2, "same direction"),
        ({"judge": "ratio", "paper": 2.0, "tolerance": 0.1, "neutral": 1}, 0.9, "differs"),
        ({"judge": "ratio", "paper": 2.0, "tolerance": 0.1, "neutral": 1}, 1 + 4e-16, "differs"),
        ({"judge": "ratio", "paper": -4.0, "tolerance": 0.25}, -5, "reproduced"),
        ({"judge": "absolute", "paper": 0, "tolerance": 0.01}, -0.01, "reproduced"),
        ({"judge": "absolute", "paper": 0, "tolerance": 0.01}, 0.011, "differs"),
        ({"judge": "at-least", "paper": 3}, 3, "reproduced"),
        ({"judge": "at-least", "paper": 3, "neutral": 1}, 2.9, "same direction"),
        ({"judge": "at-least", "paper": 3, "tolerance": 0.2}, 2.9, "reproduced"),
        ({"judge": "at-most", "paper": 0.01}, 0.004, "reproduced"),
        ({"judge": "at-most", "paper": 0.01}, 0.011, "differs"),
        ({"judge": "between", "paper": None, "tolerance": [0.1, 0.3]}, 0.1, "reproduced"),
        ({"judge": "between", "paper": None, "tolerance": [0.1, 0.3]}, 0.31, "differs"),
        ({"judge": "between", "paper": None, "tolerance": [0.1, None]}, 9e9, "reproduced"),
        (
            {"judge": "between", "paper": None, "tolerance": [0.1, None], "neutral": 0},
            0.05,
            "same direction",
        ),
        (
            {"judge": "between", "paper": None, "tolerance": [-1, 1], "neutral": 0},
            2,
            "differs",  # the interval holds "no effect": no side to be on
        ),
        ({"judge": "between", "paper": [0.153, 0.758]}, [0.2, 0.7], "reproduced"),
        ({"judge": "between", "paper": [0.153, 0.758]}, [0.1, 0.7], "differs"),
        ({"judge": "ordering", "paper": ["a", "b", "c"]}, ["a", "b", "c"], "reproduced"),
        ({"judge": "ordering", "paper": ["a", "b", "c"]}, ["b", "a", "c"], "differs"),
        (
            {"judge": "ordering", "paper": ["a", "b", "c"], "tolerance": 0.34},
            ["b", "a", "c"],
            "reproduced",
        ),
        (
            {"judge": "ordering", "paper": ["a", "b", "c"], "neutral": 0},
            ["b", "a", "c"],
            "same direction",
        ),
        ({"judge": "ordering", "paper": ["a", "b"], "neutral": 0}, ["b", "a"], "differs"),
        ({"judge": "ordering", "paper": [3, 1, 2]}, [30, 10, 11], "reproduced"),
        ({"judge": "ordering", "paper": [3, 1, 2]}, [30, 11, 10], "differs"),
        ({"judge": "ordering", "paper": [3, 1, 1]}, [30, 11, 10], "reproduced"),
        ({"judge": "ordering", "paper": [3, 1]}, [7, 7], "differs"),
        ({"judge": "equal", "paper": [120, 31.4]}, [120, 31.4], "reproduced"),
        ({"judge": "equal", "paper": [120, 31.4]}, [120, 31.5], "differs"),
        ({"judge": "equal", "paper": [120, 31.4]}, [120], "differs"),
        ({"judge": "equal", "paper": 0.3}, 0.1 + 0.2, "reproduced"),
        ({"judge": "equal", "paper": "1F1B"}, "1F1B", "reproduced"),
        ({"judge": "equal", "paper": True}, False, "differs"),
        ({"judge": "ratio", "paper": [10, 20], "tolerance": 0.1}, [11, 19], "reproduced"),
        ({"judge": "ratio", "paper": [10, 20], "tolerance": 0.1}, [12, 20], "differs"),
        (
            {"judge": "ratio", "paper": [10, 20], "tolerance": 0.1, "neutral": 0},
            [12, 20],
            "same direction",
        ),
    ],
)
def test_verdict_by_definition(fields: dict[str, Any], ours: Any, verdict: str) -> None:
    judged = claim(**fields)
    assert verdict_of(judged, ours) == verdict
    assert verdict_of(judged, ours, standin=True) == "not judged"
    assert verdict_of(judged, None) == "not attempted"
    assert verdict_of(judged, None, standin=True) == "not attempted"


positive = st.floats(1e-6, 1e6)
tolerance = st.floats(0, 2)


@given(paper=positive, slack=tolerance, share=st.floats(-1, 1))
def test_ratio_bounds_are_symmetrical(paper: float, slack: float, share: float) -> None:
    judged = claim(judge="ratio", paper=paper, tolerance=slack)
    inside = (1 + share * slack, 1 - share * slack)
    outside = (1 + slack + 1e-6, 1 - slack - 1e-6)
    assert {verdict_of(judged, paper * factor) for factor in inside} == {"reproduced"}
    assert {verdict_of(judged, paper * factor) for factor in outside} == {"differs"}


@given(paper=positive, ours=positive, slack=tolerance, scale=st.sampled_from([0.125, -2.0, 1024.0]))
def test_ratio_ignores_the_unit(paper: float, ours: float, slack: float, scale: float) -> None:
    one = claim(judge="ratio", paper=paper, tolerance=slack, neutral=0)
    other = claim(judge="ratio", paper=paper * scale, tolerance=slack, neutral=0)
    assert verdict_of(one, ours) == verdict_of(other, ours * scale)


@given(
    judge=st.sampled_from(["ratio", "absolute", "at-least", "at-most"]),
    paper=positive,
    ours=st.floats(-1e6, 1e6),
    slack=tolerance,
    more=tolerance,
)
def test_a_wider_tolerance_never_loses_a_claim(
    judge: str, paper: float, ours: float, slack: float, more: float
) -> None:
    tight = claim(judge=judge, paper=paper, tolerance=slack)
    loose = claim(judge=judge, paper=paper, tolerance=slack + more)
    if verdict_of(tight, ours) == "reproduced":
        assert verdict_of(loose, ours) == "reproduced"


@given(paper=positive, ours=positive, slack=tolerance)
def test_at_least_and_at_most_mirror_each_other(paper: float, ours: float, slack: float) -> None:
    floor = claim(judge="at-least", paper=paper, tolerance=slack, neutral=0)
    ceiling = claim(judge="at-most", paper=-paper, tolerance=slack, neutral=0)
    assert verdict_of(floor, ours) == verdict_of(ceiling, -ours)


@given(paper=positive, ours=st.floats(-1e6, 1e6), slack=tolerance)
def test_neutral_moves_only_what_is_not_reproduced(paper: float, ours: float, slack: float) -> None:
    plain = verdict_of(claim(judge="ratio", paper=paper, tolerance=slack), ours)
    neutral = verdict_of(claim(judge="ratio", paper=paper, tolerance=slack, neutral=0), ours)
    if plain == "reproduced":
        assert neutral == "reproduced"
    else:
        assert neutral == ("same direction" if ours > 0 else "differs")


@given(values=st.lists(st.integers(-1000, 1000), min_size=2, max_size=8, unique=True))
def test_an_ordering_sees_ranks_only(values: list[int]) -> None:
    judged = claim(judge="ordering", paper=values)
    assert verdict_of(judged, [math.atan(value) for value in values]) == "reproduced"
    assert verdict_of(judged, [-value for value in values]) == "differs"


@given(names=st.permutations(list("abcde")))
def test_an_ordering_of_names_is_that_of_their_places(names: list[str]) -> None:
    by_name = claim(judge="ordering", paper=list("abcde"), tolerance=0.3, neutral=0)
    by_place = claim(judge="ordering", paper=[1, 2, 3, 4, 5], tolerance=0.3, neutral=0)
    assert verdict_of(by_name, names) == verdict_of(
        by_place, [names.index(name) for name in "abcde"]
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"judge": "ratio", "paper": 1, "tolerance": 0.05}, "within 5 %"),
        ({"judge": "absolute", "paper": 1, "tolerance": 0.05, "unit": "GB"}, "within ±0.05 GB"),
        ({"judge": "at-least", "paper": 1}, "at least the paper's"),
        ({"judge": "at-most", "paper": 1, "tolerance": 2}, "at most the paper's, slack 2"),
        ({"judge": "between", "paper": None, "tolerance": [0.1, 0.3]}, "0.1 to 0.3"),
        ({"judge": "between", "paper": None, "tolerance": [2, None], "unit": "J"}, "at least 2 J"),
        ({"judge": "ordering", "paper": [1, 2]}, "same order"),
        ({"judge": "equal", "paper": 1}, "equal"),
    ],
)
def test_tolerance_in_words(fields: dict[str, Any], words: str) -> None:
    assert tolerance_in_words(claim(**fields)).replace("\u00a0", " ") == words


# ---------------------------------------------------------------- a notebook's call


def test_claims_table_shows_and_stores_four_digits_and_judges_the_rest(tmp_path: Path) -> None:
    write(tmp_path, FILE.replace("judge: ratio\n    tolerance: 0.05", "judge: at-most"))
    flips = {"saving": 0.0}
    table = claims.judge(tmp_path, "paper", {"saving": 0.28400001}, [Source("profiles")], flips)
    stored = table.carried[CLAIMS_MIME][0]
    assert (stored["our_value"], stored["ratio"]) == (0.284, 1.0)
    assert stored["verdict"] == "same direction"  # 0.28400001 > 0.284, though both print alike
    assert "0.284" in repr(table)


def test_claims_table_lists_every_claim_and_marks_the_unverified(tmp_path: Path) -> None:
    write(tmp_path)
    order = ["optimal", "heuristic", "none"]
    table = claims.judge(tmp_path, "paper", {"order": order, "saving": None})
    assert verdicts(table) == {
        "saving": "not attempted",
        "order": "reproduced",
        "table": "not attempted",
    }
    text = repr(table)
    assert text.count("unverified") == 1
    assert "printed truncated" in text
    assert "✔ reproduced" in text
    assert "○ not attempted" in text
    assert list(table.frame()["id"]) == ["saving", "order", "table"]


def test_long_lists_are_shown_by_their_beginning_and_stored_whole(tmp_path: Path) -> None:
    cells = ", ".join(str(n) for n in range(1, 19))
    write(tmp_path, FILE.replace("[120, 31.4, 16.6, 1.9]", f"[{cells}]"))
    table = claims.judge(tmp_path, "paper", {"table": list(range(1, 19))})
    assert "1, 2, 3, … (18 values)" in table.html()
    assert table.carried[CLAIMS_MIME][2]["our_value"] == list(range(1, 19))


def test_a_value_on_standin_data_is_not_judged(tmp_path: Path) -> None:
    write(tmp_path)
    data = Source("profiles", is_standin=True)
    table = claims.judge(
        tmp_path, "paper", {"saving": 0.284, "table": [120, 31.4, 16.6, 1.9]}, [data]
    )
    assert verdicts(table) == {
        "saving": "not judged",
        "order": "not attempted",
        "table": "reproduced",
    }
    assert table.carried[CLAIMS_MIME][0]["our_value"] == 0.284


@pytest.mark.parametrize(
    ("ours", "flip", "verdict", "can_fail"),
    [
        (0.284, 0.0, "reproduced", True),
        (0.284, 0.29, "not earned", False),  # the nearest rival passes as well
        (0.284, None, "not earned", False),  # nobody tried
        (0.1, None, "same direction", True),  # it did fail
        (0.1, 0.284, "same direction", True),
        (None, 0.0, "not attempted", None),
    ],
)
def test_a_reproduction_counts_only_if_its_flip_changes_the_verdict(
    tmp_path: Path, ours: float | None, flip: float | None, verdict: str, can_fail: bool | None
) -> None:
    write(tmp_path)
    table = claims.judge(
        tmp_path, "paper", {"saving": ours}, [Source("profiles")], {"saving": flip}
    )
    record = table.carried[CLAIMS_MIME][0]
    assert (record["verdict"], record["can_fail"]) == (verdict, can_fail)
    counted = tally.tally(table.carried[CLAIMS_MIME])
    assert counted.reproductions.get("reproduced", 0) == (verdict == "reproduced")
    assert sum(counted.reproductions.values()) == 1
    assert counted.not_earned == (verdict == "not earned")


def test_a_line_above_the_table_says_what_the_signs_mean(tmp_path: Path) -> None:
    write(tmp_path)
    table = claims.judge(tmp_path, "paper", {}, ())
    assert table.text().splitlines()[0] == tally.LEGEND
    above, _, rest = table.html().partition("<table")
    assert tally.LEGEND in above
    assert tally.LEGEND not in rest
    for sign in "✔≈✘⊘":
        assert sign in tally.LEGEND


@given(ours=st.floats(-1, 1), flip=st.floats(-1, 1))
def test_a_flip_is_judged_by_the_claims_own_rule(ours: float, flip: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        flipped = claims.judge(
            Path(folder), "paper", {"saving": ours}, [Source("profiles")], {"saving": flip}
        ).carried[CLAIMS_MIME][0]
        alone = claims.judge(Path(folder), "paper", {"saving": flip}, [Source("profiles")])
    passes = alone.carried[CLAIMS_MIME][0]["verdict"] in ("reproduced", "not earned")
    assert (flipped["flip_verdict"] == "reproduced") == passes
    assert not (flipped["verdict"] == "reproduced" and passes)


def test_a_flip_is_shown_stored_and_only_where_a_claim_takes_one(tmp_path: Path) -> None:
    write(tmp_path)
    data = [Source("profiles")]
    table = claims.judge(tmp_path, "paper", {"saving": 0.284}, data, {"saving": 0.01234567})
    record = table.carried[CLAIMS_MIME][0]
    assert record["flip"] == "the highest clock everywhere"
    assert (record["flip_value"], record["flip_verdict"]) == (0.01235, "same direction")
    assert "0.01235 ≈" in repr(table)
    assert "1 of 1 reproduced, each with its flip" in table.caption
    with pytest.raises(UsageError, match="takes no flip"):
        claims.judge(tmp_path, "paper", {}, (), {"table": [1, 2, 3, 4]})
    with pytest.raises(UsageError, match="no claim 'savings'"):
        claims.judge(tmp_path, "paper", {}, (), {"savings": 1})


def test_a_claim_on_a_fitted_model_is_judged_shown_and_counted_apart(tmp_path: Path) -> None:
    write(tmp_path)
    table = claims.judge(
        tmp_path, "paper", {"saving": 0.284}, [Fitted("profiles")], {"saving": 0.0}
    )
    record = table.carried[CLAIMS_MIME][0]
    assert (record["verdict"], record["fitted"]) == ("reproduced", 0.071)
    assert record["fitted_median"] == 0.02
    words = table.html().replace("\u00a0", " ")
    assert "✔ reproduced on a fitted model (median error 2 %)" in words
    counted = tally.tally(table.carried[CLAIMS_MIME])
    assert counted.fitted == {"reproduced": 1}
    assert counted.reproductions == {}
    assert "1 of 1 reproduced on a fitted model" in table.caption
    published = claims.judge(tmp_path, "paper", {"saving": 0.284}, [Source("profiles")])
    assert published.carried[CLAIMS_MIME][0]["fitted"] is None
    assert "fitted_median" not in published.carried[CLAIMS_MIME][0]


@pytest.mark.parametrize(("median", "hangs"), [(0.02, False), (0.2, True)])
def test_a_verdict_that_the_fitted_model_could_tip_is_named(
    tmp_path: Path, median: float, hangs: bool
) -> None:
    """2 % more or less than the paper's value stays within the rule of 5 %, 20 % does not."""
    write(tmp_path)
    source = Fitted("profiles", fit_error=FitError(median=median, worst=3.8))
    table = claims.judge(tmp_path, "paper", {"saving": 0.284}, [source], {"saving": 0.0})
    (record,) = [r for r in table.carried[CLAIMS_MIME] if r["id"] == "saving"]
    stated = claims.load(tmp_path, "paper")
    assert tally.unsure([record], stated) == (["saving"] if hangs else [])
    assert "380" not in tally.outcome(record)
    assert "380" in tally.fit_words(record)


def test_what_the_file_says_besides_its_claims(tmp_path: Path) -> None:
    more = """\
not_claims:
  - {number: 75.8, reason: no public data of that GPU}
skipped_rows:
  - {dataset: profiles, file: results.csv, rows: the four A40 rows, reason: another profile}
"""
    write(tmp_path, FILE + more)
    content = claims.load_file(tmp_path, "paper")
    assert [entry.number for entry in content.not_claims] == ["75.8"]
    assert [entry.rows for entry in content.skipped_rows] == ["the four A40 rows"]
    write(tmp_path, FILE + more.replace(", reason: another profile", ""))
    with pytest.raises(BadFile, match=r"skipped_rows\.0\.reason"):
        claims.load_file(tmp_path, "paper")


def test_numpy_and_pandas_values_are_plain_in_the_record(tmp_path: Path) -> None:
    write(tmp_path)
    for row in (np.array([120.0, 31.4, 16.6, 1.9]), pd.Series([120, 31.4, 16.6, 1.9])):
        values = {"saving": np.float64(0.29), "table": row}
        table = claims.judge(tmp_path, "paper", values, [Source("profiles")])
        assert verdicts(table)["table"] == "reproduced"
        json.dumps(table._repr_mimebundle_()[claims.CLAIMS_MIME], allow_nan=False)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"savings": 0.2}, ["no claim 'savings'", "'saving'?", "saving, order, table"]),
        ({"saving": float("nan")}, ["'saving'", "finite", "nan"]),
        ({"saving": float("inf")}, ["finite", "inf"]),
        ({"table": [1, 2, math.nan, 3]}, ["'table'", "finite"]),
        ({"saving": "0.2"}, ["needs a number", "'0.2'"]),
        ({"saving": True}, ["needs a number", "True"]),
        ({"saving": [0.1, 0.2]}, ["one number", "[0.1, 0.2]"]),
        ({"table": [1, 2]}, ["a list of 4 numbers"]),
        ({"table": 3}, ["a list of 4 numbers"]),
        ({"order": ["optimal", "none"]}, ["the paper's names"]),
        ({"order": [1, 2, 3]}, ["the paper's names"]),
        ({"saving": 0.2, "order": {"a": 1}}, ["'order'"]),
    ],
)
def test_values_that_cannot_be_judged(
    tmp_path: Path, values: dict[str, Any], words: list[str]
) -> None:
    write(tmp_path)
    with pytest.raises(UsageError) as caught:
        claims.judge(tmp_path, "paper", values, [Source("profiles")])
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_claim_on_data_asks_for_the_data(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(UsageError, match=r"paper\.data\('profiles'\)"):
        claims.judge(tmp_path, "paper", {"saving": 0.2})
    claims.judge(tmp_path, "paper", {"saving": None})
    with pytest.raises(UsageError, match="got str"):
        claims.judge(tmp_path, "paper", {"saving": 0.2}, ["profiles"])  # type: ignore[list-item]


# ---------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("    judge: ratio", "    judge: ratoi", 11, ["claims.0.judge", "ratoi", "'at-least'"]),
        ("    paper: 0.284", "    paper: {a: 1}", 6, ["claims.0.paper", "a number, a text"]),
        ("    paper: 0.284", "    paper: []", 6, ["empty list"]),
        ("    paper: 0.284\n", "", 2, ["claims.0.paper", "required"]),
        ("    tolerance: 0.05", "    tolerance: [1, 2, 3]", 12, ["[low, high]"]),
        ("    tolerance: 0.05", "    tolerance: wide", 12, ["claims.0.tolerance"]),
        ("    tolerance: 0.05", "    tolerance: -1", 2, ["'saving'", "one number, 0 or more"]),
        ("    tolerance: 0.05\n    neutral: 0\n", "", 2, ["'saving'", "needs a tolerance"]),
        ("    checked: usenix.org\n", "", 2, ["`checked:` says where"]),
        ("    paper: 0.284", "    paper: .nan", 6, ["claims.0.paper", "finite"]),
        ("    paper: 0.284", "    paper: 1" + "0" * 400, 6, ["claims.0.paper", "finite"]),
        ("    paper: 0.284", "    paper: 0", 2, ["judge: absolute"]),
        ("    paper: 0.284", "    paper: null", 2, ["'saving'", "value of the paper"]),
        ("    flip: the highest clock everywhere\n", "", 2, ["'saving'", "needs a flip"]),
        ("    kind: headline", "    kind: consistency", 2, ["'saving'", "takes no flip"]),
        ("    kind: headline", "    kind: headlin", 3, ["claims.0.kind", "'mechanism'"]),
        ("    kind: headline\n", "", 2, ["claims.0.kind", "required"]),
        ("  - id: saving", "  - id: Saving Energy", 2, ["claims.0.id", "Saving Energy"]),
        ("  - id: table", "  - id: saving", 23, ["claims.2.id", "share an id"]),
        ("    unit: fraction", "    units: fraction", 7, ["claims.0.units"]),
        ("    verified: false", "    verified: maybe", 20, ["claims.1.verified", "maybe"]),
        ('    source: "§6"', '    source: ""', 19, ["claims.1.source"]),
        ("[optimal, heuristic, none]", "[optimal]", 15, ["'order'", "two or more"]),
        ("[optimal, heuristic, none]", "[optimal, optimal]", 15, ["cannot be ordered"]),
        ("[optimal, heuristic, none]", "[optimal, 3]", 15, ["cannot be ordered"]),
        ("claims:\n", "claim:\n", 1, ["claim"]),
        ("    statement: Energy saved", "   statement: Energy saved", 4, ["not valid YAML"]),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, words: list[str]
) -> None:
    assert old in FILE
    path = write(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(BadFile) as caught:
        claims.load(tmp_path, "paper")
    message = str(caught.value)
    assert str(path) in message
    assert all(word in message for word in words), message
    if new != "claim:\n":  # a missing top-level field has no line of its own
        assert caught.value.line == line, message


@pytest.mark.parametrize(
    "fields",
    [
        {"judge": "between", "paper": None},
        {"judge": "between", "paper": None, "tolerance": [2, 1]},
        {"judge": "between", "paper": None, "tolerance": [None, None]},
        {"judge": "between", "paper": ["a", "b"]},
        {"judge": "equal", "paper": None},
        {"judge": "equal", "paper": 1, "tolerance": 0.1},
        {"judge": "equal", "paper": 1, "neutral": 0},
        {"judge": "at-least", "paper": None},
        {"judge": "at-least", "paper": 1, "tolerance": [0, 1]},
        {"judge": "ordering", "paper": [1, 2], "tolerance": 1.5},
        {"judge": "absolute", "paper": "two", "tolerance": 1},
        {"judge": "absolute", "paper": 1, "tolerance": 1, "neutral": math.inf},
        {"kind": "group", "judge": "at-least", "paper": 1},
        {"kind": "group", "judge": "between", "paper": None, "tolerance": [0, 1], "flip": "none"},
        {"kind": "headline", "judge": "between", "paper": None, "tolerance": [0, 1], "flip": "f"},
        {"judge": "between", "paper": None, "tolerance": [0, 1], "verified": True, "checked": "x"},
    ],
)
def test_a_claim_nobody_could_judge_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="claim 'x'"):
        claim(**fields)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"papers/paper/claims\.yaml: the file is missing"):
        claims.load(tmp_path, "paper")


# ---------------------------------------------------------------- what a run carries away


def notebook(*tables: tables.Table) -> Any:
    cells = []
    for table in tables:
        output = v4.new_output("execute_result", data=table._repr_mimebundle_())
        cells.append(v4.new_code_cell("paper.claims(…)", outputs=[output]))
    return v4.new_notebook(cells=cells)


def test_several_calls_add_up_and_not_attempted_replaces_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    data = [Source("profiles")]
    first = claims.judge(tmp_path, "paper", {"saving": 0.1, "table": [1, 1, 1, 1]}, data)
    second = claims.judge(tmp_path, "paper", {"saving": 0.284}, data)
    merged = {record["id"]: record for record in claims.from_notebook(notebook(first, second))}
    assert merged["saving"]["our_value"] == 0.284
    assert merged["table"]["our_value"] == [1, 1, 1, 1]
    assert merged["order"]["verdict"] == "not attempted"
    back = {record["id"]: record for record in claims.from_notebook(notebook(second, first))}
    assert back["saving"]["our_value"] == 0.1


def test_stored_claims_survive_a_notebook_file(tmp_path: Path) -> None:
    import nbformat

    write(tmp_path)
    table = claims.judge(tmp_path, "paper", {"order": ["none", "optimal", "heuristic"]})
    path = tmp_path / "n.ipynb"
    nbformat.write(notebook(table), path)
    assert claims.from_notebook(nbformat.read(path, as_version=4)) == table.carried[CLAIMS_MIME]


def test_ledger_survives_parquet_and_lists_what_was_never_shown(tmp_path: Path) -> None:
    write(tmp_path)
    table = claims.judge(tmp_path, "paper", {"saving": 0.3}, [Source("profiles")])
    only_saving = [record for record in table.carried[CLAIMS_MIME] if record["id"] == "saving"]
    runs = [
        Run(claims=table.carried[CLAIMS_MIME]),
        Run(slug="seed=1", parameters={"seed": 1, "name": "é"}, claims=only_saving),
        Run(slug="empty"),
    ]
    frame = ledger(runs, tmp_path)
    assert len(frame) == 9
    assert set(frame.loc[frame["slug"] == "empty", "verdict"]) == {"not attempted"}
    saving = frame[(frame["slug"] == "seed=1") & (frame["id"] == "saving")].iloc[0]
    assert (saving["our_number"], saving["paper_number"]) == (0.3, 0.284)
    assert json.loads(saving["parameters"]) == {"seed": 1, "name": "é"}
    row = frame[(frame["slug"] == "default") & (frame["id"] == "table")].iloc[0]
    assert json.loads(row["paper_value"]) == [120, 31.4, 16.6, 1.9]
    assert math.isnan(row["paper_number"])

    path = tmp_path / "claims.parquet"
    frame.to_parquet(path)
    pd.testing.assert_frame_equal(pd.read_parquet(path), frame)


def test_an_empty_ledger_has_the_types_of_a_full_one(tmp_path: Path) -> None:
    write(tmp_path)
    full = ledger([Run()], tmp_path)
    empty = ledger([], tmp_path)
    assert len(empty) == 0
    assert dict(empty.dtypes) == dict(full.dtypes)


def test_html_is_the_same_in_another_process(tmp_path: Path) -> None:
    write(tmp_path)
    code = (
        "import sys; from pathlib import Path; from labkit.workbook.review import claims;"
        "t = claims.judge(Path(sys.argv[1]), 'paper', {'table': [121, 31.4, 16.6, 1.9]});"
        "b = t._repr_mimebundle_(); print(b['text/html']); print(b['text/plain'])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert "✘ differs" in runs[0]
    assert " id=" not in runs[0]
    assert "<script" not in runs[0]
