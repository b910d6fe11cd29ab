"""What the stored outputs must be: from one clean run, the same on every machine, and small."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from labkit.workbook.review.anatomy import Cell, Subject
from labkit.workbook.review.rules.rule import Remark, rule

MAX_FILE_BYTES = 1_500_000
UNCHECKED = {"nbval-ignore-output", "nbval-skip"}
_PATH = re.compile(
    r"(?<![\w/.:\-])(?:file://)?/(?:home|Users|root|tmp|work|mnt|var|private|opt|usr|scratch|data)/"
    r"[\w.\-/]+|\b[A-Z]:\\\\?[\w.\-\\]+"
)

_CHANGING = (
    (re.compile(r"\b0x[0-9a-f]{8,}\b"), "a memory address"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "a UUID"),
    (re.compile(r'id="T_[0-9a-f]{5}'), "a random pandas Styler id"),
)


@rule("executed", "every code cell ran, top to bottom, in one clean run")
def ran_top_to_bottom(subject: Subject) -> Iterator[Remark]:
    refresh = f"`labkit refresh {subject.key}`"
    if not subject.was_executed:
        if subject.code:
            yield Remark(None, "the notebook was never executed", refresh)
        return
    for count, cell in enumerate(subject.code, 1):
        if cell.node.get("execution_count") != count:
            problem = f"execution count {cell.node.get('execution_count')}, where a clean run has"
            yield Remark(cell, f"{problem} {count}", refresh)
            return


@rule("errors", "no stored output is an error or a warning")
def no_errors(subject: Subject) -> Iterator[Remark]:
    for cell in subject.code:
        for output in cell.outputs:
            if output.output_type == "error":
                problem = f"a stored error: {output.get('ename', '')}"
                yield Remark(cell, problem, "code that runs; `labkit refresh`")
            elif output.output_type == "stream" and output.get("name") == "stderr":
                line = str(output.text).strip().splitlines()
                problem = f"a stored message on stderr: {line[0][:80] if line else ''}"
                yield Remark(cell, problem, "code that says nothing there")


@rule("paths", "no path of one machine in sources or outputs")
def no_machine_paths(subject: Subject) -> Iterator[Remark]:
    for cell in subject.cells:
        for text in (cell.source, *_output_texts(cell)):
            if match := _PATH.search(text):
                fix = "a path inside the workbook, or none"
                yield Remark(cell, f"a path of one machine: {match[0][:60]}", fix)
                break


@rule("changing", "nothing in the outputs differs from run to run")
def no_changing_outputs(subject: Subject) -> Iterator[Remark]:
    for cell in subject.code:
        if UNCHECKED & set(cell.tags):
            continue
        for pattern, what in _CHANGING:
            if any(pattern.search(text) for text in _output_texts(cell)):
                fix = "an output that does not change; or tag the cell 'nbval-ignore-output'"
                yield Remark(cell, f"{what} in the output", fix)


def _output_texts(cell: Cell) -> Iterator[str]:
    for output in cell.outputs:
        yield from _strings(output.get("data", output.get("text", "")))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)


@rule("size", f"the file holds at most {MAX_FILE_BYTES / 1e6:g} MB")
def small_file(subject: Subject) -> Iterator[Remark]:
    size_bytes = subject.path.stat().st_size
    if size_bytes > MAX_FILE_BYTES:
        sizes = {cell: sum(map(len, _output_texts(cell))) for cell in subject.code}
        largest = max(sizes, key=lambda cell: sizes[cell]) if sizes else None
        problem = f"{size_bytes / 1e6:.1f} MB"
        yield Remark(largest, problem, f"at most {MAX_FILE_BYTES / 1e6:g} MB: fewer points, states")
