"""The rules a notebook is checked by, as one table; ``labkit check --rules`` lists them."""

from labkit.workbook.review.rules import (
    budgets,
    content,
    facts,
    literals,
    outputs,
    prose,
    references,
    structure,
)
from labkit.workbook.review.rules.rule import RULES, Remark, Rule

__all__ = ["RULES", "Remark", "Rule"]

assert all(
    (structure, budgets, content, prose, facts, literals, outputs, references)
)  # fill the table
