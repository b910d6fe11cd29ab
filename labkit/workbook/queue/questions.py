"""``data/papers/<key>/questions.yaml``: what the reading group asked and remarked about a paper.

``labkit ask`` writes it (:mod:`labkit.workbook.queue.edits`), people edit it by hand, and every
page and deck shows it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from labkit import files
from labkit.workbook.queue.reading_queue import Line, calendar_day

LISTING = "questions"
HEADING = "Asked and remarked by the group"


class Question(BaseModel):
    """One question or remark; the fields stand in the file in this order."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    date: Annotated[dt.date, BeforeValidator(calendar_day)] = Field(
        description="a date such as 2026-03-14"
    )
    by: Line = Field(default="", description="a name")
    kind: Literal["question", "remark"] = "question"
    text: Line = Field(min_length=1, description="the question or the remark, in words")
    state: Literal["open", "answered"] = "open"
    answer: Line = Field(default="", description="the answer, in words")

    @property
    def is_open(self) -> bool:
        """Whether it waits for an answer; a remark never does."""
        return self.kind == "question" and self.state == "open"

    @property
    def origin(self) -> str:
        """Who said it, and when."""
        return ", ".join(filter(None, (self.by, str(self.date))))


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    questions: list[Question] = Field(description="a list of questions, each with date and text")


def path_of(root: Path, key: str) -> Path:
    return root / "data" / "papers" / key / "questions.yaml"


def load(root: Path, key: str) -> list[Question]:
    """The questions on paper ``key`` as they stand, none where nobody asked; raises BadFile."""
    path = path_of(root, key)
    return checked(path, files.read_text(path)) if path.exists() else []


def checked(path: Path, text: str) -> list[Question]:
    """The questions in the ``text`` of a file; raises BadFile with line, field and value."""
    tree = files.parse_yaml(path, text)
    questions = files.validate(path, tree, _File).questions
    for place, question in enumerate(questions):
        if question.answer and question.state == "open":
            where = (LISTING, place, "state")
            problem = "an answer, but the question is open"
            raise files.bad_field(path, tree, where, problem, value="open", valid="answered")
    return questions


def markdown(questions: Sequence[Question]) -> str:
    """The questions as a section of a notebook, answers folded; "" where there is none."""
    parts = [f"### {HEADING}"] if questions else []
    for number, question in enumerate(questions, 1):
        mark = " · answered" if question.state == "answered" else ""
        parts.append(
            f"**{number}.** {escape(question.text, quote=False)} "
            f"(*{question.kind}, {escape(question.origin, quote=False)}{mark}*)"
        )
        if question.answer:
            answer = escape(question.answer, quote=False)
            parts.append(f"<details><summary>Answer</summary>\n\n{answer}\n\n</details>")
    return "\n\n".join(parts)
