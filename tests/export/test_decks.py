"""Slides: one file, nothing fetched, every cell where its slide type puts it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

from labkit.errors import BadFile, UsageError
from labkit.workbook.export import pages, write_slides
from labkit.workbook.export.blocks import from_notebook, slides
from labkit.workbook.export.markup import Markup
from labkit.workbook.review.claims import CLAIMS_MIME
from tests.export import offline, synthetic


@pytest.fixture(scope="module")
def deck(made: Path) -> str:
    written = write_slides(made, "alpha")
    assert written.problems == []
    return written.path.read_text(encoding="utf-8")


def test_the_deck_loads_nothing_and_forbids_loading(deck: str) -> None:
    assert offline.resources(deck) == []
    policy = offline.policy(deck)
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert "unsafe-eval" not in policy


def test_the_page_has_its_height_or_every_slide_is_blank(deck: str) -> None:
    assert re.search(r"html, body, main \{ height: 100%", deck)


def test_every_slide_and_no_skipped_cell(deck: str) -> None:
    soup = offline.parse(deck)
    headings = [h.get_text() for h in soup.select(".sheet h1, .sheet h2, .sheet h3")]
    assert headings == [
        "Alpha: Idle Time as Free Energy in Pipeline Training",
        "At a glance",
        "Insight",
        "Symbols",
        "Figure 3: a stage's time against its energy",
        "Figure 4: bytes a stage",
        "Claims vs measured",
        "Explore: how many stages?",
        "Discussion",
        "Detailed comments",
    ]
    assert "open_paper" not in soup.select_one(".slides").get_text()


def test_a_subslide_stands_under_its_slide(deck: str) -> None:
    soup = offline.parse(deck)
    (outer,) = [s for s in soup.select(".slides > section") if s.find("section")]
    assert len(outer.find_all("section")) == 2


def test_notes_are_the_speakers_alone(deck: str) -> None:
    soup = offline.parse(deck)
    (notes,) = soup.select("aside.notes")
    assert "energy is measured at the board" in notes.get_text()
    assert all("at the board" not in sheet.get_text() for sheet in soup.select(".sheet"))
    assert "RevealNotes" in deck


def test_formulas_are_mathml_and_no_dollar_is_left(deck: str) -> None:
    soup = offline.parse(deck)
    assert len(soup.select(".sheet math")) >= 12
    assert len(soup.select('.sheet math[display="block"]')) == 2
    assert "$" not in offline.visible_text(str(soup.select_one(".slides")))


def test_figures_come_back_as_they_were(deck: str) -> None:
    scripts = offline.parse(deck).select('.plot script[type="application/json"]')
    stored = [json.loads(script.string) for script in scripts]
    drawn = [synthetic.frontier(), synthetic.bars(), synthetic.moving()]
    assert [s["data"] for s in stored] == [f.to_plotly_json()["data"] for f in drawn]


def test_scripts_end_where_they_should(deck: str) -> None:
    """Each opening tag has its own closing tag, in spite of a trace named ``</script><!--``."""
    parsed = offline.parse(deck).find("body").find_all("script")
    ours = [s for s in parsed if s.string and "Reveal.initialize" in s.string]
    assert len(ours) == 1
    assert deck.count("</script>") == len(parsed) == 7  # four of the deck's, three figures' data


def test_claims_fit_a_slide_in_five_columns(deck: str) -> None:
    table = offline.parse(deck).select_one("table.claims")
    assert [th.get_text() for th in table.find_all("th")] == [
        "claim",
        "paper",
        "ours",
        "ours/paper",
        "verdict",
    ]
    verdicts = [
        row.find(class_="verdict").get_text(" ", strip=True) for row in table.select("tbody tr")
    ]
    assert verdicts == ["✔ reproduced", "✘ differs", "✔ reproduced", "○ not attempted"]
    assert "31.4\xa0GB" in table.get_text()
    assert "1\xa0% (unverified)" in table.get_text()
    assert "24.9\xa0% flipped 0\xa0% ✘" in table.get_text()


def test_code_is_there_but_folded(deck: str) -> None:
    codes = offline.parse(deck).select(".sheet details.code")
    assert [c.has_attr("open") for c in codes] == [False] * len(codes)
    assert "figure_frontier" in codes[0].get_text()


def test_every_slide_says_that_data_are_stand_ins(root: Path, deck: str) -> None:
    assert not offline.parse(deck).select("[data-standin]")
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for record in output.get("data", {}).get(CLAIMS_MIME, []):
                record["fitted"] = 0.071
    nbformat.write(notebook, path)
    written = write_slides(root, "alpha")
    sheets = offline.parse(written.path.read_text(encoding="utf-8")).select(".sheet")
    assert written.warning == "fitted models, not the published data (worst error 7.1\u00a0%)"
    assert {sheet.get("data-standin") for sheet in sheets} == {written.warning}


def test_a_deck_without_figures_is_small(root: Path) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbformat.write(notebook, path)
    written = write_slides(root, "alpha")
    assert written.path.stat().st_size < 500_000


def test_executed_results_are_shown_before_committed_ones(root: Path) -> None:
    assert write_slides(root, "alpha").shows == "outputs as committed"
    synthetic.run(root)
    assert write_slides(root, "alpha").shows == "executed by labkit run"


@pytest.mark.parametrize("typed", ["8", "8.0"])
def test_a_run_with_parameters_gets_a_deck_of_its_own(root: Path, typed: str) -> None:
    synthetic.run(root)
    synthetic.run(root, num_stages=8)
    written = write_slides(root, "alpha", {"num_stages": typed})
    assert written.path.name == "alpha--num_stages=8.html"
    assert "num_stages=8" in written.shows
    footer = offline.parse(written.path.read_text()).select_one(".deck-footer")
    assert "num_stages=8" in footer.get_text()


def test_parameters_nobody_ran_are_refused_with_the_command_that_runs_them(root: Path) -> None:
    synthetic.run(root)
    with pytest.raises(UsageError, match=r"labkit run alpha -p num_stages=16.*default"):
        write_slides(root, "alpha", {"num_stages": "16"})
    with pytest.raises(UsageError, match=r"no parameter 'stages'.*Its parameters: num_stages"):
        write_slides(root, "alpha", {"stages": "16"})


def test_a_key_without_a_notebook_and_a_broken_notebook(root: Path) -> None:
    with pytest.raises(UsageError, match="alpha"):
        write_slides(root, "beta")
    (root / "notebooks" / "energy" / "alpha.ipynb").write_text("{")
    with pytest.raises(BadFile, match=r"alpha\.ipynb"):
        write_slides(root, "alpha")
    assert not (root / "results").exists()


def test_slide_types_arrange_cells_as_jupyter_does(root: Path) -> None:
    cells = [
        synthetic.text("a", "-", "first"),
        synthetic.text("b", "fragment", "fragment"),
        synthetic.text("c", "subslide", "below"),
        synthetic.text("d", "slide", "next"),
        synthetic.code("e", "-", "quiet = 1"),
        synthetic.code("parameters", "-", "n: int = 1"),
        synthetic.text("f", "skip", "skipped"),
        synthetic.text("g", "notes", "said"),
        synthetic.text("h", "slide", ""),
        synthetic.code("i", "slide", "empty_slide = 1"),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    columns = slides(from_notebook(notebook, Markup(root, lambda _: None)))
    names = [[[block.tags[0] for block in slide.blocks] for slide in col] for col in columns]
    assert names == [[["a", "b"], ["c"]], [["d", "parameters"]]]
    assert [block.tags[0] for block in columns[1][0].notes] == ["g"]


def test_only_webgl_figures_may_compile_code() -> None:
    assert "unsafe-eval" in pages.policy('{"type":"scattergl"}')
    assert "unsafe-eval" not in pages.policy('{"type":"scatter"}')
    assert "frame-src" not in pages.policy()
