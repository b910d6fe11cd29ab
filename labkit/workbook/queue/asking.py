"""Changes to a paper's questions: locked, read back before they are written, hand edits kept."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

from labkit import files
from labkit.errors import BadFile, LabkitError, UsageError
from labkit.workbook.queue import questions, reading_queue, yaml_edit
from labkit.workbook.queue.edits import locked, write
from labkit.workbook.queue.questions import LISTING, Question

_HEAD = """\
# Questions and remarks of the reading group: `labkit ask` adds to them, and you may edit them by
# hand. Fields: date, by, kind (question, remark), text, state (open, answered), answer.

questions: []
"""


def ask(root: Path, key: str, text: str, *, by: str = "", remark: bool = False) -> None:
    """Add a question (or a remark) of today; raises UsageError where the queue has no such paper,
    or the text is empty."""
    reading_queue.load(root)[key]  # raises where there is none
    if not text.strip():
        raise UsageError(f"the question is empty; say it in quotes: labkit ask {key} 'Why …?'")
    new = Question(date=dt.date.today(), by=by, kind="remark" if remark else "question", text=text)

    def change(old: str, known: list[Question]) -> tuple[str, list[Question]]:
        record = new.model_dump(exclude_defaults=True)
        return yaml_edit.append_record(old, LISTING, record), [*known, new]

    _edit(root, key, change)


def answer(root: Path, key: str, number: int, text: str = "") -> None:
    """Mark question ``number`` (from 1, as listed) as answered, with the answer where given.

    Raises UsageError where there is no such question.
    """
    changes = {"state": "answered"} | ({"answer": text} if text else {})

    def change(old: str, known: list[Question]) -> tuple[str, list[Question]]:
        if not 1 <= number <= len(known):
            valid = f"1 to {len(known)}" if known else f'none yet; labkit ask {key} "…" adds one'
            raise UsageError(f"no question {number} on {key!r}; there are: {valid}")
        known[number - 1] = Question.model_validate(known[number - 1].model_dump() | changes)
        order = tuple(Question.model_fields)
        return yaml_edit.set_fields(old, LISTING, number - 1, changes, order), known

    _edit(root, key, change)


def _edit(
    root: Path, key: str, change: Callable[[str, list[Question]], tuple[str, list[Question]]]
) -> None:
    """Write the text that ``change`` makes, where it reads back as the questions meant."""
    path = questions.path_of(root, key)
    with locked(root):
        before = files.read_text(path) if path.exists() else _HEAD
        after, expected = change(before, questions.checked(path, before))
        try:
            same = questions.checked(path, after) == expected
        except BadFile:
            same = False
        if not same:
            layout = "its layout (aliases?) cannot be edited safely"
            raise LabkitError(f"{path}: {layout}; please do it by hand. Nothing was changed")
        write(path, before, after)
