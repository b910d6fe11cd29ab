"""Edits of YAML text: the meaning changes as asked, and other records do not change at all."""

from __future__ import annotations

import difflib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from ruamel.yaml import YAML

from labkit.workbook.queue import yaml_edit


class Record(BaseModel):
    key: str
    status: str
    date: Any = None
    reason: Any = None
    tags: list[str] = []


PLAIN = """\
# head

papers:
  - key: a  # the first
    status: queued
    reason: >-
      folded, as a person
      folded it
    tags: [x, y]

  # about b
  - key: b
    status: "queued"   # quoted

  - key: c
    status: 'queued'
    tags:
      - p
      - q   # trailing
# tail
other: kept
"""
COMPACT = (
    "papers:\n- key: a\n  status: queued\n- {key: b, status: queued}\n- key: c\n  status: queued"
)
LAYOUTS = {
    "plain": PLAIN,
    "compact": COMPACT,
    "no newline at the end": PLAIN.removesuffix("# tail\nother: kept\n").rstrip("\n"),
    "wide": PLAIN.replace("\n  ", "\n      "),
}


def read(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def records(text: str) -> dict[int, BaseModel]:
    return dict(enumerate(Record(**record) for record in read(text)["papers"] or []))


def with_fields(text: str, index: int, changes: dict[str, Any]) -> str:
    """``text`` with fields of record ``index`` set, or removed where they are None."""
    before = records(text)
    after = before | {index: before[index].model_copy(update=changes)}
    return yaml_edit.rewritten(text, "papers", before, after)


def appended(text: str, record: dict[str, Any]) -> str:
    before = records(text)
    return yaml_edit.rewritten(text, "papers", before, {**before, "new": Record(**record)})


def moved(text: str, index: int, before: int) -> str:
    """``text`` with record ``index`` in front of record ``before`` (their number: at the end)."""
    known = records(text)
    order = [place for place in known if place != index]
    order.insert(before - (before > index), index)
    return yaml_edit.rewritten(text, "papers", known, {place: known[place] for place in order})


def changed_lines(before: str, after: str) -> list[str]:
    old = before.splitlines()
    new = after.splitlines()
    return [line for line in difflib.ndiff(old, new) if line[0] in "+-"]


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_setting_a_field_changes_its_line_alone(text: str, index: int) -> None:
    after = with_fields(text, index, {"status": "done"})
    expected = read(text)
    expected["papers"][index]["status"] = "done"
    assert read(after) == expected
    lines = changed_lines(text, after)
    assert [line[0] for line in lines] == ["-", "+"]
    old, new = lines
    for word in ("'queued'", '"queued"', "queued"):
        old = old.replace(word, "done")
    assert old[1:].split() == new[1:].split()  # also the comment


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_new_field_is_one_line_after_those_before_it(text: str, index: int) -> None:
    after = with_fields(text, index, {"date": "2026-03-14"})
    expected = read(text)
    expected["papers"][index]["date"] = "2026-03-14"
    assert read(after) == expected
    record = list(read(after)["papers"][index])
    assert record.index("date") == record.index("status") + 1
    flow = "{" in text.splitlines()[3] and index == 1
    assert [line[0] for line in changed_lines(text, after)] == (["-", "+"] if flow else ["+"])


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS)
def test_adding_and_removing_a_field_gives_the_text_back(text: str) -> None:
    for index in range(3):
        added = with_fields(text, index, {"date": "2026-03-14"})
        assert with_fields(added, index, {"date": None}) == (
            text if text.endswith("\n") else text + "\n"
        )


def test_removing_a_folded_field_removes_all_its_lines() -> None:
    after = with_fields(PLAIN, 0, {"reason": None, "status": "new"})
    assert read(after)["papers"][0] == {"key": "a", "status": "new", "tags": ["x", "y"]}
    removed = [line for line in changed_lines(PLAIN, after) if "status" not in line]
    assert [line[0] for line in removed] == ["-"] * 3


@pytest.mark.parametrize("text", [*LAYOUTS.values(), "papers: []\n", "papers:\n# none yet\n"])
def test_appending_adds_lines_only(text: str) -> None:
    record = {"key": "new", "status": "yes", "reason": "word " * 40 + "end", "tags": ["t: 1", "u"]}
    after = appended(text, record)
    assert read(after)["papers"][-1] == record
    assert (read(after)["papers"] or [])[:-1] == (read(text)["papers"] or [])
    assert all(len(line) <= yaml_edit.WIDTH for line in after.splitlines())
    if "[]" not in text:
        assert {line[0] for line in changed_lines(text, after)} == {"+"}


@pytest.mark.parametrize("text", [PLAIN, COMPACT])
@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_moving_keeps_every_line(text: str, index: int, before: int) -> None:
    after = moved(text, index, before)
    records = read(text)["papers"]
    expected = [record for record in records if record is not records[index]]
    expected.insert(before - (before > index), records[index])
    assert read(after)["papers"] == expected
    assert sorted(after.split()) == sorted(text.split())
    if index in (before, before - 1):
        assert after.rstrip() == text.rstrip()


def test_comments_right_above_move_along_and_others_stay() -> None:
    after = moved(PLAIN, 1, 0)
    assert after.startswith("# head\n\npapers:\n  # about b\n  - key: b\n")
    assert after.endswith("# tail\nother: kept\n")


SCALARS = st.one_of(
    st.text(max_size=90).map(lambda text: " ".join(text.split())),
    st.sampled_from(["yes", "null", "2026-01-02", "1", "- x", "a: b", "#c", "'q'", '"', "", "{a}"]),
    st.integers(-5, 5),
    st.dates(),
)


@settings(max_examples=60, deadline=None)
@given(value=SCALARS, layout=st.sampled_from(sorted(LAYOUTS)), index=st.integers(0, 2))
def test_any_scalar_survives_the_trip(value: Any, layout: str, index: int) -> None:
    text = LAYOUTS[layout]
    try:
        read_back = read(yaml_edit._block({"x": value}, ""))["x"]
    except Exception:  # a character YAML does not allow at all: nothing to compare
        return
    after = with_fields(text, index, {"reason": value})
    assert read(after)["papers"][index]["reason"] == read_back == value


def test_a_long_series_of_edits_equals_the_same_edits_on_the_data() -> None:
    rng = random.Random(7)
    text = PLAIN
    data = read(PLAIN)["papers"]
    for step in range(60):
        index = rng.randrange(len(data))
        before = rng.randrange(len(data) + 1)
        action = rng.choice(["set", "remove", "move", "append"])
        if action == "set":
            data[index]["reason"] = f"because of {step}" * rng.choice([1, 9])
            text = with_fields(text, index, {"reason": data[index]["reason"]})
        elif action == "remove":
            data[index].pop("reason", None)
            text = with_fields(text, index, {"reason": None})
        elif action == "move":
            record = data.pop(index)
            data.insert(before - (before > index), record)
            text = moved(text, index, before)
        else:
            data.append({"key": f"n{step}", "status": "queued"})
            text = appended(text, data[-1])
        assert read(text) == {"papers": data, "other": "kept"}
    assert text.startswith("# head\n\npapers:\n")
    assert "# tail\nother: kept\n" in text
    assert "# about b\n  - key: b\n" in text
