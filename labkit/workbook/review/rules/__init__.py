"""The rules a notebook is checked by, as one table; ``labkit check --rules`` lists them."""

from labkit.workbook.review.rules import (
    amounts,
    code,
    content,
    facts,
    literals,
    outputs,
    prose,
    story,
    structure,
    trying,
)
from labkit.workbook.review.rules.rule import RULES, Remark, Rule

__all__ = ["RULES", "Remark", "Rule"]

_MODULES = (structure, story, content, code, amounts, prose, facts, literals, outputs, trying)
assert all(_MODULES)  # importing them fills the table
