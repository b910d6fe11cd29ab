"""The reader guesses before the figure: a question, and the guess drawn into what follows.

Where a front end listens (JupyterLab, Voilà) the question has a field for a number; elsewhere it
says to write a guess down, and nothing of it differs from run to run.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from labkit.errors import UsageError
from labkit.kit.draw import PALETTE, VEIL
from labkit.quantities import number
from labkit.workbook.notebooks import GUESS_MIME
from labkit.workbook.review.listening import is_live
from labkit.workbook.review.tally import with_unit

_DIGITS = 4
_ON_PAGES = "Write your guess before you read on."
_IN_LAB = "Run the cell of the figure again to see your guess in it."

_last_values: dict[str, float] = {}
"""What the reader wrote, by question, so that running the cell again keeps it."""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A question to the reader; make it with :func:`predict`, end its cell with it."""

    question: str
    unit: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def value(self) -> float | None:
        """What the reader wrote; None where nobody did, and in every stored run."""
        return _last_values.get(self.question) if is_live() else None

    def write(self, text: str) -> str:
        """Take what the reader typed; returns what is wrong with it, "" where nothing is.

        An empty text takes the guess back.
        """
        typed = text.strip().removesuffix(self.unit).strip().replace("\N{MINUS SIGN}", "-")
        if not typed:
            _last_values.pop(self.question, None)
            return ""
        try:
            value = float(re.sub(r"(?<=\d)[,\s](?=\d{3}\b)", "", typed))
        except ValueError:
            return f"{text!r} is no number"
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        if not (math.isfinite(value) and low <= value <= high):
            return f"{text.strip()} is not {self._span() or 'a finite number'}"
        _last_values[self.question] = value
        return ""

    def mark(self, figure: Any, axis: Literal["x", "y"] = "y", *, scale: float = 1.0) -> Any:
        """Draw the guess into ``figure`` as a dashed line with a label; returns the figure.

        Without a guess the figure comes back as it is.

        Args:
            figure: a Plotly figure that went through ``labkit.kit.draw.finish``.
            axis: along which the guess is a value; in panels it is drawn in each of them.
            scale: what the axis shows for one of the question's unit (0.01 where the question
                asks per cent and the axis shows fractions).
        """
        if axis not in ("x", "y"):
            raise UsageError(f"guess.mark: axis={axis!r}: 'x' or 'y'")
        if self.value is None:
            return figure
        words = f"your guess: {with_unit(self.value, self.unit)}"
        axes = figure.select_yaxes() if axis == "y" else figure.select_xaxes()
        drawn = [each for each in axes if each.overlaying is None]
        for place, each in enumerate(drawn):
            _draw_line(figure, axis, each, self.value * scale, "" if place else words)
        return figure

    def _span(self) -> str:
        ends = [("at least", self.low), ("at most", self.high)]
        return " and ".join(f"{words} {number(end, 4)}" for words, end in ends if end is not None)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if is_live():
            return dict(self._widget()._repr_mimebundle_())
        unit = f" ({self.unit})" if self.unit else ""
        html = (
            f"<details><summary><b>Predict.</b> {escape(self.question)}</summary>"
            f"<p>{_ON_PAGES[:-1]}{escape(unit)}.</p></details>"
        )
        return {
            "text/html": html,
            "text/plain": f"Predict. {self.question}\n{_ON_PAGES[:-1]}{unit}.",
            GUESS_MIME: {"question": self.question, "unit": self.unit},
        }

    def _widget(self) -> Any:
        """The question, a field for a number, and what became of it."""
        import ipywidgets

        value = self.value
        field = ipywidgets.Text(
            value="" if value is None else number(value, _DIGITS),
            placeholder="your guess",
            description="Your guess",
            continuous_update=False,
            layout={"width": "16rem"},
        )
        message = ipywidgets.HTML(_IN_LAB)

        def take(change: Any) -> None:
            problem = self.write(change["new"])
            alert = f'<span role="alert" style="color:#b00020">{escape(problem)}</span>'
            message.value = alert if problem else _IN_LAB

        field.observe(take, names="value")
        span = f" ({self._span()})" if self._span() else ""
        question = ipywidgets.HTML(f"<b>Predict.</b> {escape(self.question)}{escape(span)}")
        row = ipywidgets.HBox([field, ipywidgets.HTML(escape(self.unit))])
        return ipywidgets.VBox([question, row, message])


def predict(
    question: str, *, unit: str = "", low: float | None = None, high: float | None = None
) -> Guess:
    """Ask the reader for a number before the notebook shows it.

    End the cell with the guess, so that it shows, and draw it into the headline figure.

    Args:
        question: one sentence that a number answers.
        unit: of the number: "%", "min", "GB".
        low, high: what the number cannot lie below and above.

    Raises:
        UsageError: the question is empty, or ``low`` is not below ``high``.

    >>> guess = predict("8.3B on 8 GPUs keeps how much of one GPU's rate?", unit="%", low=0)
    >>> guess.value is None
    True
    """
    if not question.strip():
        raise UsageError("predict needs a question: predict('How many …?', unit='%')")
    if low is not None and high is not None and not low < high:
        raise UsageError(f"predict: low={low:g} is not below high={high:g}")
    return Guess(question=" ".join(question.split()), unit=unit, low=low, high=high)


def _draw_line(figure: Any, axis: str, drawn: Any, value: float, words: str) -> None:
    """A dashed line at ``value`` across what is drawn on one axis, with ``words`` at its end.

    A value beyond the range that the axis fixes is drawn at the range's end, and says so.
    """
    is_log = drawn.type == "log"
    if is_log and value <= 0:
        words = words and f"{words}, which a logarithmic axis cannot show"
        value = 10 ** min(drawn.range) if drawn.range else 1.0
    place = math.log10(value) if is_log else value
    if drawn.range and not min(drawn.range) <= place <= max(drawn.range):
        place = min(max(place, min(drawn.range)), max(drawn.range))
        value = 10**place if is_log else place
        words = words and f"{words}, beyond this axis"
    own = drawn.plotly_name.replace("axis", "")
    across = "x" if axis == "y" else "y"
    other = f"{drawn.anchor or across} domain"
    line = {"color": PALETTE["highlight"], "dash": "dash", "width": 2}
    ends = {f"{axis}0": value, f"{axis}1": value, f"{across}0": 0, f"{across}1": 1}
    figure.add_shape(type="line", **{f"{axis}ref": own, f"{across}ref": other}, **ends, line=line)
    if not words:
        return
    upright = {"textangle": -90, "xanchor": "right"}
    look = {"xanchor": "left"} if axis == "y" else upright
    figure.add_annotation(
        text=words,
        showarrow=False,
        font={"color": PALETTE["highlight"]},
        bgcolor=VEIL,
        yanchor="bottom",
        **{f"{axis}ref": own, f"{across}ref": other, axis: place, across: 0},
        **look,
    )
