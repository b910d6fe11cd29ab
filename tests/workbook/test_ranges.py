"""What a parameter may be: said once in a file, kept by runs and by whoever edits a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from labkit.errors import BadFile, BadValue, UsageError
from labkit.workbook.review import ranges
from labkit.workbook.review.ranges import Range
from tests.workbook.factory import go, workbook

FILE = """\
parameters:
  share: {tried: [0.1, 0.5], above: 0, below: 1}
  ranks: {tried: [2, 8]}
"""
CELLS = [
    ("share: float = 0.3  # of the time\nranks: int = 4  # processes", "parameters"),
    'from labkit import workbook\npaper = workbook.open_paper("zeus")',
    "print(share)",
]


def described(root: Path, text: str = FILE) -> Path:
    path = ranges.path_of(root, "zeus")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("rules", "valid", "refused", "words"),
    [
        ({"above": 0, "below": 1}, [0.01, 0.99], [0, 1, -1], "above 0 and below 1"),
        ({"at_least": 1, "at_most": 2000}, [1, 2000], [0, 2001], "at least 1 and at most 2,000"),
        ({"multiple_of": 280}, [280, 560], [0, 100, -280], "a multiple of 280"),
        ({"divisor_of": 8}, [1, 2, 8], [0, 3, 16, -2], "a divisor of 8"),
        ({"multiple_of": "ranks"}, [4, 8], [6], "a multiple of 4, the value of ranks"),
        ({"one_of": ["a100", "a40"]}, ["a40"], ["v100", 1], "one of 'a100', 'a40'"),
        ({"above": 0}, [1], ["1", None, [1]], "above 0"),
        ({"at_least": 2, "why": "two halves"}, [2], [1], "at least 2 (two halves)"),
        ({}, [0, "x", -1e9], [], ""),
    ],
)
def test_a_value_is_refused_with_what_would_be_valid(
    rules: dict[str, Any], valid: list[Any], refused: list[Any], words: str
) -> None:
    allowed = Range(tried=[1], **rules)
    for value in valid:
        assert allowed.problem("x", {"x": value, "ranks": 4}) == ""
    for value in refused:
        assert allowed.problem("x", {"x": value, "ranks": 4}) == words


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("parameters: {share: {tried: []}}", "besides the default"),
        ("parameters: {share: {above: 0}}", "Field required"),
        ("parameters: {share: {tried: [1, 2], over: 0}}", "above"),
        ("parameters: {share: {tried: [1, 2], above: ranks}}", "one of share"),
        ("share: {tried: [1, 2]}", "parameters"),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadFile, match=says) as refused:
        ranges.load(described(tmp_path, text), "zeus")
    assert "parameters.yaml" in str(refused.value)


def test_a_run_with_a_value_that_cannot_work_is_refused_before_it_begins(tmp_path: Path) -> None:
    root = described(workbook(tmp_path, zeus=CELLS))
    for how in ({"fixed": {"share": "0"}}, {"sweeps": {"share": "0.5,0"}}):
        with pytest.raises(
            BadValue, match=r"'zeus', parameter share: 0\.0; valid: above 0 and below 1$"
        ):
            go(root, "zeus", **how)  # type: ignore[arg-type]
    assert not (root / "results" / "zeus").exists()


def test_the_first_cell_refuses_whoever_edits_the_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = [(CELLS[0][0].replace("0.3", "1.0"), "parameters"), *CELLS[1:]]
    root = described(workbook(tmp_path, zeus=edited))
    monkeypatch.setenv("LABKIT_ROOT", str(root))
    [ended] = go(root, "zeus").ended
    assert ended.outcome.status == "failed"
    assert ended.outcome.error == "BadValue"
    assert ended.outcome.message.endswith("parameter share: 1.0; valid: above 0 and below 1")
    assert ended.outcome.cell is not None
    assert ended.outcome.cell.number == 2


def test_values_are_tried_one_by_one_and_all_at_once() -> None:
    known = {"share": Range(tried=[0.1, 0.5]), "live": Range(tried=[True])}
    assert ranges.points(known) == [{"share": 0.1}, {"share": 0.5}, {"live": True}]
    assert ranges.together(known, 1) == {"share": 0.5, "live": True}


@pytest.mark.parametrize(
    ("declaration", "given", "shown"),
    [
        ("value = None", "8", "8"),
        ("value = None", "a100", "'a100'"),
        ("value: int | None = None", "8", "8"),
        ("value: int | None = 3", "null", "None"),
        ("value: Optional[float] = None", "2", "2.0"),
        ("value: str | None = 'a'", "null", "None"),
        ("value: str | None = None", "8", "'8'"),
        ("value = 3", "8", "8"),
    ],
)
def test_parameters_of_papermill_take_values(
    tmp_path: Path, declaration: str, given: str, shown: str
) -> None:
    head = ("from typing import Optional\n" if "Optional" in declaration else "") + declaration
    root = workbook(tmp_path, zeus=[(head, "parameters"), "print(repr(value))"])
    [ended] = go(root, "zeus", fixed={"value": given}).ended
    assert ended.outcome.status == "ok", ended.outcome.message
    assert ended.folder is not None
    executed = nbformat.read(ended.folder / "zeus.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].text.strip() == shown


@pytest.mark.parametrize(
    ("declaration", "given", "says"),
    [
        ("value: int | None = None", "x", "of type int; valid: as declared"),
        ("value = [1, 2]", "[3]", "only parameters of the types int, float, str, bool are"),
        ("value: list[int] = [1, 2]", "[3]", "only parameters of the types int, float"),
        ("value = None", "[3]", "one value of the types int, float, str, bool, or null"),
        ("n = 2\nvalue = n * 2", "4", r"value is computed, `value = n \* 2`, before a run sets"),
        ("n = 2\nvalue = max(n, 3)", "4", r"computed, `value = max\(n, 3\)`"),
    ],
)
def test_parameters_that_no_run_can_set_are_one_clear_sentence(
    tmp_path: Path, declaration: str, given: str, says: str
) -> None:
    root = workbook(tmp_path, zeus=[(declaration, "parameters"), "print(value)"])
    with pytest.raises(UsageError, match=says) as refused:
        go(root, "zeus", fixed={"value": given})
    assert "\n" not in str(refused.value)
    assert "ast." not in str(refused.value)
