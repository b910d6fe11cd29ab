"""Changes to a paper's questions: locked, read back before they are written, hand edits kept."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from labkit import files
from labkit.errors import BadFile, LabkitError, UsageError
from labkit.workbook.queue import questions, reading_queue, yaml_edit
from labkit.workbook.queue.edits import locked, write
from labkit.workbook.queue.questions import LISTING, Question

_HEAD = """\
# Questions and remarks of the reading group. `labkit ask` adds to them; edit them by hand too:
# comments and layout stay. Fields: date, by, kind (question, remark), text, state (open, answered),
# answer.

questions: []
"""
_ORDER = tuple(Question.model_fields)


def ask(root: Path, key: str, text: str, *, by: str = "", remark: bool = False) -> Question:
    """Add a question (or a remark) on a paper of the queue, dated today.

    Raises:
        UsageError: the paper is not in the queue, or the text is empty.
        BadFile: the file is malformed.
    """
    reading_queue.load(root)[key]  # raises where there is none
    _refuse_empty(text)
    kind = "remark" if remark else "question"
    question = Question(date=dt.date.today(), by=by, kind=kind, text=text)
    with locked(root):
        before = _text(root, key)
        expected = [*questions.checked(questions.path_of(root, key), before), question]
        record = question.model_dump(exclude_defaults=True)
        _put(root, key, before, yaml_edit.append_record(before, LISTING, record), expected)
    return question


def answer(root: Path, key: str, number: int, text: str = "") -> Question:
    """Mark question ``number`` (from 1, as listed) as answered, with the answer where given.

    Raises:
        UsageError: there is no such question.
        BadFile: the file is malformed.
    """
    with locked(root):
        before = _text(root, key)
        known = questions.checked(questions.path_of(root, key), before)
        if not 1 <= number <= len(known):
            valid = f"1 to {len(known)}" if known else f'none yet; labkit ask {key} "…" adds one'
            raise UsageError(f"no question {number} on {key!r}; there are: {valid}")
        changed = {"state": "answered"} | ({"answer": text} if text else {})
        question = Question.model_validate(known[number - 1].model_dump() | changed)
        expected = [*known[: number - 1], question, *known[number:]]
        after = yaml_edit.set_fields(before, LISTING, number - 1, changed, _ORDER)
        _put(root, key, before, after, expected)
    return question


def _refuse_empty(text: str) -> None:
    if not text.strip():
        raise UsageError("the question is empty; say it in quotes: labkit ask zeus 'Why …?'")


def _text(root: Path, key: str) -> str:
    path = questions.path_of(root, key)
    return files.read_text(path) if path.exists() else _HEAD


def _put(root: Path, key: str, before: str, after: str, expected: list[Question]) -> None:
    """Write ``after`` where it reads back as ``expected``."""
    path = questions.path_of(root, key)
    refusal = "please make this change by hand. Nothing was changed"
    try:
        same = questions.checked(path, after) == expected
    except BadFile as error:
        raise LabkitError(f"{path} would become invalid ({error.problem}); {refusal}") from None
    if not same:
        raise LabkitError(f"{path}: its layout (aliases?) cannot be edited safely; {refusal}")
    write(path, before, after)
