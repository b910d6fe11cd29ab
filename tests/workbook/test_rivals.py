"""Rivals in the method's place: a state each, the claims judged anew below the plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from labkit import workbook
from labkit.errors import UsageError
from labkit.kit import draw
from labkit.workbook.review import stored

BIB = """\
@inproceedings{alpha, title = {Alpha}, author = {Ada One}, booktitle = {NSDI}, year = {2023},
  url = {https://example.org/alpha}}
"""
CLAIMS = """\
claims:
  - id: delay
    kind: headline
    statement: Longest delay
    flip: the largest cell first
    paper: 1000
    unit: min
    source: abstract
    verified: false
    judge: between
    # A factor of two.
    tolerance: [500, 2000]
  - id: refused
    kind: mechanism
    statement: Requests refused
    flip: the largest cell first
    paper: 0
    source: "§3"
    verified: false
    judge: at-most
"""
DELAYS = {"buddies": 1136.0, "largest first": 64.0}


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> workbook.Paper:
    for name, text in {
        "reading_queue.yaml": "papers: []\n",
        "data/papers.bib": BIB,
        "data/papers/alpha/claims.yaml": CLAIMS,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    monkeypatch.setenv("LABKIT_LIVE", "0")
    return workbook.open_paper("alpha")


def headline(way: str) -> go.Figure:
    fig = go.Figure(go.Bar(x=["delay"], y=[DELAYS[way]], name=way))
    return draw.finish(fig, title=f"Delay by {way}", y="delay (min)")


def claims_of(way: str) -> dict[str, Any]:
    return {"delay": DELAYS[way], "refused": 0 if way == "buddies" else 17}


def below(layout: Any) -> list[str]:
    (note,) = layout["annotations"]
    return note["text"].split("<br>")


def test_each_rival_has_its_figure_and_its_verdicts(paper: workbook.Paper) -> None:
    shown = paper.rivals(headline, ["buddies", "largest first"], claims_of)
    (slider,) = shown.layout.sliders
    assert slider.currentvalue.prefix == "in the method's place: "
    assert [step.label for step in slider.steps] == ["buddies", "largest first"]
    assert shown.layout.title.text == "Delay by buddies"
    first, second = (below(step.args[1]) for step in slider.steps)
    assert first == [
        "With <b>buddies</b>, by the rule of each claim:",
        "✔ within: delay 1,136\N{NO-BREAK SPACE}min (paper 1,000\N{NO-BREAK SPACE}min)",
        "✔ within: refused 0 (paper 0)",
    ]
    assert second[0] == "With <b>largest first</b>, by the rule of each claim:"
    assert second[1].startswith("✘ outside: delay 64")
    assert second[2] == "✘ outside: refused 17 (paper 0)"


def test_the_claims_stand_between_plot_and_slider(paper: workbook.Paper) -> None:
    bare = headline("buddies").layout
    moving = paper.rivals(headline, ["buddies", "largest first"]).layout
    full = paper.rivals(headline, ["buddies", "largest first"], claims_of).layout
    grown_px = full.height - moving.height
    assert grown_px >= 3 * 20
    assert full.margin.b - moving.margin.b == grown_px
    assert full.sliders[0].pad.t - moving.sliders[0].pad.t == grown_px
    assert full.annotations[0].yshift == -bare.margin.b
    plot_px = [each.height - each.margin.b for each in (bare, moving, full)]
    assert len(set(plot_px)) == 1, "the plot keeps its height"


def test_two_runs_store_the_same_and_little(paper: workbook.Paper) -> None:
    texts = [
        json.dumps(paper.rivals(headline, [*DELAYS], claims_of).to_plotly_json()) for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) < 0.02 * stored.LARGEST_BYTES


def test_live_it_is_a_menu_that_asks_again(
    paper: workbook.Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    ipywidgets = pytest.importorskip("ipywidgets")
    monkeypatch.setenv("LABKIT_LIVE", "1")
    panel = paper.rivals(headline, [*DELAYS], claims_of, label="Who places jobs")
    menu = panel.controls["way"]
    assert isinstance(menu, ipywidgets.Dropdown)
    assert menu.description == "Who places jobs"
    menu.value = "largest first"
    layout = panel.figures[0].state["layout"]
    assert layout["title"]["text"] == "Delay by largest first"
    assert below(layout)[2] == "✘ outside: refused 17 (paper 0)"
    again = paper.rivals(headline, [*DELAYS], claims_of)
    assert again.controls["way"].value == "largest first", "running the cell again keeps it"


@pytest.mark.parametrize(
    ("rivals", "claims", "words"),
    [
        (["buddies"], claims_of, "one rival or more"),
        ("buddies", claims_of, "one rival or more"),
        (["buddies", "buddies"], claims_of, "each once"),
        ([*DELAYS], lambda way: {"delays": 1.0}, "did you mean 'delay'"),
        ([*DELAYS], lambda way: {"delay": "long"}, "needs a number"),
    ],
)
def test_what_cannot_be_shown_is_said(
    paper: workbook.Paper, rivals: Any, claims: Any, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        paper.rivals(headline, rivals, claims)


def test_a_claim_on_data_needs_them_opened(paper: workbook.Paper) -> None:
    path = paper.root / "data/papers/alpha/claims.yaml"
    path.write_text(CLAIMS + "    dataset: traces\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"'refused' .* paper\.data\('traces'\)"):
        paper.rivals(headline, [*DELAYS], claims_of)
