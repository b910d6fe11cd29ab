"""The workbook's pages on the kit's page frame: its own templates, and the verdicts' symbols."""

from __future__ import annotations

import functools
from typing import Any

from labkit.kit import page
from labkit.kit.page import code_style, package_file, policy
from labkit.workbook.review.tally import SYMBOLS

_PACKAGE = "labkit.workbook.export"

_LINKS = {"Papers": "index.html", "Scoreboard": "scoreboard.html", "Companions": "graph.html",
          "Benchmarks": "benchmarks.html"}  # fmt: skip
_REFERENCE = {"Library": "api/labkit.html"}

__all__ = ["code_style", "fingerprint", "links", "package_file", "policy", "render"]


def links(site: str = "", *, reference: bool = False) -> dict[str, str]:
    """What the bar of the site's pages leads to; ``site`` is the way to the site's folder."""
    known = _LINKS | (_REFERENCE if reference else {})
    return {words: site + name for words, name in known.items()}


def render(template: str, **values: Any) -> str:
    """The page ``template`` of the workbook filled with ``values``."""
    page.environment(_PACKAGE).globals["symbols"] = SYMBOLS
    return page.render(template, package=_PACKAGE, **values)


@functools.cache
def fingerprint() -> str:
    """Changes when a page would come out differently from the same notebook."""
    return page.fingerprint(_PACKAGE)
