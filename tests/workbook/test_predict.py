"""A guess before the figure: nothing of it in stored runs, a field and a line in live ones."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

from labkit import workbook
from labkit.errors import UsageError
from labkit.kit import draw
from labkit.workbook.notebooks import GUESS_MIME
from labkit.workbook.review import predict as module

QUESTION = "How long is the longest extra delay?"


@pytest.fixture(autouse=True)
def nothing_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_last_values", {})
    monkeypatch.delenv("LABKIT_LIVE", raising=False)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipywidgets")
    monkeypatch.setenv("LABKIT_LIVE", "1")


def figure(**axis: Any) -> go.Figure:
    fig = go.Figure(go.Scatter(x=[1, 10, 100], y=[1, 2, 3], name="ours"))
    fig.update_xaxes(**axis)
    return draw.finish(fig, title="Delay", x="minutes", y="share")


def test_a_stored_run_shows_the_question_and_no_guess() -> None:
    guess = workbook.predict(QUESTION, unit="min", low=0)
    bundle = guess._repr_mimebundle_()
    assert bundle[GUESS_MIME] == {"question": QUESTION, "unit": "min"}
    assert bundle["text/html"].startswith(f"<details><summary><b>Predict.</b> {QUESTION}</summary>")
    assert "Write your guess before you read on (min)." in bundle["text/plain"]
    guess.write("64")  # even one that was written: a stored run knows of none
    assert guess.value is None
    assert bundle == guess._repr_mimebundle_()
    before = figure().to_plotly_json()
    assert guess.mark(figure()).to_plotly_json() == before


@pytest.mark.usefixtures("live")
def test_what_the_reader_writes_outlives_the_cell() -> None:
    guess = workbook.predict(QUESTION, unit="min", low=0, high=2000)
    question, row, message = guess._widget().children
    assert QUESTION in question.value
    assert "at least 0 and at most 2,000" in question.value
    assert "again" in message.value
    field = row.children[0]
    field.value = "1,200 min"
    assert guess.value == 1200
    assert workbook.predict(QUESTION, unit="min").value == 1200
    assert workbook.predict(QUESTION)._widget().children[1].children[0].value == "1,200"
    assert workbook.predict("Another?").value is None
    field.value = "many"
    assert "'many' is no number" in message.value.replace("&#x27;", "'")
    field.value = "-3"
    assert "is not at least 0" in message.value
    assert guess.value == 1200, "what cannot be a guess changes nothing"
    field.value = ""
    assert guess.value is None


@pytest.mark.usefixtures("live")
@pytest.mark.parametrize(
    ("typed", "value"),
    [("64", 64.0), ("64 %", 64.0), ("1e3", 1000.0), ("0.5", 0.5), ("\N{MINUS SIGN}2", -2.0)],
)
def test_numbers_as_people_type_them(typed: str, value: float) -> None:
    guess = workbook.predict(QUESTION, unit="%")
    assert guess.write(typed) == ""
    assert guess.value == value


@pytest.mark.usefixtures("live")
def test_the_guess_is_a_dashed_line_with_a_label() -> None:
    guess = workbook.predict(QUESTION, unit="%")
    guess.write("64")
    marked = guess.mark(figure(), scale=0.01)
    (line,) = marked.layout.shapes
    assert (line.y0, line.y1, line.yref, line.xref) == (0.64, 0.64, "y", "x domain")
    assert line.line.dash == "dash"
    assert marked.layout.annotations[0].text == "your guess: 64\N{NO-BREAK SPACE}%"


@pytest.mark.usefixtures("live")
def test_on_a_logarithmic_axis_the_label_stands_at_the_line() -> None:
    guess = workbook.predict(QUESTION, unit="min")
    guess.write("100")
    marked = guess.mark(figure(type="log"), "x")
    assert marked.layout.shapes[0].x0 == 100
    assert marked.layout.annotations[0].x == 2  # Plotly places words by the logarithm
    guess.write("0")
    marked = guess.mark(figure(type="log", range=[0, 3]), "x")
    assert marked.layout.shapes[0].x0 == 1
    assert "cannot show" in marked.layout.annotations[0].text


@pytest.mark.usefixtures("live")
def test_a_guess_beyond_the_axis_says_so() -> None:
    guess = workbook.predict(QUESTION)
    guess.write("5000")
    marked = guess.mark(figure(range=[0, 120]), "x")
    assert marked.layout.shapes[0].x0 == 120
    assert marked.layout.annotations[0].text == "your guess: 5,000, beyond this axis"


@pytest.mark.usefixtures("live")
def test_every_panel_has_the_line_and_one_the_words() -> None:
    from plotly.subplots import make_subplots

    fig = make_subplots(rows=1, cols=2)
    for column in (1, 2):
        fig.add_scatter(x=[1, 2], y=[1, 2], row=1, col=column)
    guess = workbook.predict(QUESTION)
    guess.write("1.5")
    marked = guess.mark(draw.finish(fig))
    refs = [(line.yref, line.xref) for line in marked.layout.shapes]
    assert refs == [("y", "x domain"), ("y2", "x2 domain")]
    assert len(marked.layout.annotations) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"question": " "}, "needs a question"),
        ({"question": "How?", "low": 2, "high": 1}, "low=2 is not below high=1"),
    ],
)
def test_questions_that_cannot_be_asked(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        workbook.predict(**arguments)


def test_an_axis_is_x_or_y() -> None:
    with pytest.raises(UsageError, match="'x' or 'y'"):
        workbook.predict(QUESTION).mark(figure(), "z")  # type: ignore[arg-type]
