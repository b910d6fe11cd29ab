"""What the prose points at: a table, a figure, a cell that must be where the words say."""

from __future__ import annotations

import re

_NOT_THE_PAPERS = r"(?!paper|published|printed|same|authors|original)"
_ELSEWHERE = re.compile(
    r"\babove\b(?!\s+(?:the|an?|all|what|it|that|which|every|our|its|zero|one|\d))"
    r"|\bbelow\s*(?:[).:;]|$)|\b(?:claim|table|figure|list|cell|code)s?\s+below\b"
    rf"|\b(?:our|the)\s+{_NOT_THE_PAPERS}\w+\s+figures?\b"
    r"|\bthe (?:first|second|third|last|next) (?:shows?|has|is|are|draws?)\b"
    r"|\bthe (?:first|second|third|next|last|other) tables?\b"
    r"|\bassert(?:s|ions?)?\b|\b(?:in|by) the (?:next |last |first )?cell\b",
    re.I,
)
_TABLE = re.compile(
    rf"\b(?:the|our|this)\s+(?:{_NOT_THE_PAPERS}\w+\s+)?tables?\b(?!\s+\d)|^tables?:", re.I
)
_BELOW = re.compile(r"(?:^|[.;:(]\s*)below\b|^below", re.I)


def elsewhere(text: str, *, has_table: bool = False, before: bool = False) -> bool:
    """Whether ``text`` speaks of a table, figure, claim or cell that a page of its own would lack.

    ``has_table``: a table is on the page; ``before``: what is shown comes below the text.

    >>> [elsewhere(t) for t in ("Our table has both.", "Table 3 has both.", "It sinks below 2.")]
    [True, False, False]
    """
    return bool(
        _ELSEWHERE.search(text)
        or (not has_table and _TABLE.search(text))
        or (not before and _BELOW.search(text))
    )
