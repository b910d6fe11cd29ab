"""What no linter of ours asks: one value a line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from labkit.workbook.review.rules.code import is_packed

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", ["labkit", "tests"])
def test_no_line_packs_values_that_have_nothing_to_do_with_each_other(folder: str) -> None:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and is_packed(node):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:60]}")
    assert found == []
