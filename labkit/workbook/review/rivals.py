"""A menu that puts the paper's rivals in the method's place: headline and claims, drawn anew."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError, not_among
from labkit.kit.draw import PALETTE
from labkit.workbook.review import claims as claims_file
from labkit.workbook.review.explore import explore
from labkit.workbook.review.tally import SYMBOLS, with_unit

if TYPE_CHECKING:
    from labkit.datasets import Source

LABEL = "in the method's place"
LINE_PX = 22
"""Height of a line of claims below the figure, at the figure's own size of letters."""
ROOM_PX = 10
LEFT_PX = 56
"""How far the claims start left of the plot, below the numbers of its axis."""
WIDTH = 52
"""Characters of a line of claims: what a telephone has room for."""

OUTCOMES = {
    "reproduced": "within",
    "same direction": "outside, on the paper's side",
    "differs": "outside",
}
"""What a value is beside the rule. A verdict says more (whether the method earned it), and one
method alone, as the menu shows it, cannot say that.
"""

Figure = Any
ClaimsOf = Callable[[str], Mapping[str, Any]]


def figure(
    root: Path,
    key: str,
    make_figure: Callable[[str], Figure],
    rivals: Sequence[str],
    claims: ClaimsOf | None,
    sources: Mapping[str, Source],
    label: str,
) -> Figure:
    """The explorable of :meth:`labkit.workbook.Paper.rivals`, and its errors."""
    names = list(rivals)
    if isinstance(rivals, str) or len(names) < 2 or len(set(names)) < len(names):
        raise UsageError(
            "paper.rivals needs the names of the paper's method and of one rival or more, each "
            f"once, the method first; got {rivals!r}"
        )
    parameter = next(iter(inspect.signature(make_figure).parameters), "")
    if not parameter:
        raise UsageError(f"paper.rivals: {make_figure} takes no name of a rival")

    @functools.wraps(make_figure)
    def drawn(**chosen: str) -> Figure:
        rival = chosen[parameter]
        shown = make_figure(rival)
        if claims is not None:
            lines = _lines(root, key, rival, claims(rival), sources)
            _write_below(shown, lines)
        return shown

    return explore(drawn, label={parameter: label or LABEL}, **{parameter: names})


def _lines(
    root: Path, key: str, rival: str, values: Mapping[str, Any], sources: Mapping[str, Source]
) -> list[str]:
    """A line for each claim: the verdict's sign, our value with this rival, the paper's."""
    known = {claim.id: claim for claim in claims_file.load(root, key)}
    lines = [f"With <b>{escape(rival)}</b>, by the rule of each claim:"]
    for name, value in values.items():
        if name not in known:
            raise not_among("claim", name, list(known))
        claim = known[name]
        verdict, ours = claims_file.judged_alone(key, claim, value, sources)
        papers = with_unit(claim.paper, claim.unit)
        words = f"{name} {with_unit(ours, claim.unit)} (paper {papers})"
        line = f"{SYMBOLS[verdict]} {OUTCOMES.get(verdict, verdict)}: {words}"
        lines += textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)
    return [lines[0], *map(escape, lines[1:])]


def _write_below(figure: Figure, lines: Sequence[str]) -> None:
    """Write ``lines`` under the plot and its axis, in room that the figure grows by."""
    below_px = figure.layout.margin.b or 60
    taken_px = LINE_PX * len(lines) + ROOM_PX
    figure.layout.height = (figure.layout.height or 420) + taken_px
    figure.layout.margin.b = below_px + taken_px
    figure.add_annotation(
        text="<br>".join(lines),
        x=0,
        y=0,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="top",
        xshift=-LEFT_PX,
        yshift=-below_px,
        align="left",
        showarrow=False,
        font={"color": PALETTE["bound"]},
    )
