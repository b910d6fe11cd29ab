"""The rules a notebook is checked by, as one table; ``labkit check --rules`` lists them."""

from labkit.workbook.review.rules import (
    budgets,
    content,
    facts,
    literals,
    outputs,
    prose,
    structure,
)
from labkit.workbook.review.rules.rule import RULES, Remark

__all__ = ["RULES", "Remark"]

assert all((structure, budgets, content, prose, facts, literals, outputs))  # fill the table
