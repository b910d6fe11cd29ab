"""Slides: one file, nothing fetched, a talk of the notebook's sections."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

from labkit.errors import BadFile, UsageError
from labkit.kit import page
from labkit.workbook.export import talk
from labkit.workbook.export.pages import write_slides
from labkit.workbook.review import anatomy
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


def test_the_pages_are_the_anatomys_whatever_the_slide_types_say(deck: str) -> None:
    soup = offline.parse(deck)
    pages = [(s["data-tag"], s.find(["h1", "h2"]).get_text()) for s in soup.select("section")]
    assert pages == [
        ("title", "Alpha: Idle Time as Free Energy in Pipeline Training"),
        ("insight", "Insight"),
        ("mechanism", "The mechanism"),
        ("figure", "Figure 3: a stage's time against its energy"),
        ("reproduction", "The headline: energy over time"),
        ("claims", "Claims vs measured"),
        ("weaknesses", "It would be stronger with clocks that drift"),
        ("explorable", "Explore: how many stages?"),
        ("discussion", "Discussion"),
    ]
    assert "open_paper" not in soup.select_one(".slides").get_text()
    code = soup.select_one('[data-tag="mechanism"] .highlight').get_text()
    assert code.strip() == "slack = latest - earliest\nassert (slack >= 0).all()"


def sheet(deck: str, tag: str) -> str:
    return offline.parse(deck).select_one(f'[data-tag="{tag}"] .sheet').get_text(" ", strip=True)


def notes(deck: str, tag: str) -> str:
    return offline.parse(deck).select_one(f'[data-tag="{tag}"] .notes').get_text(" ", strip=True)


def test_every_page_has_notes_and_none_repeats_its_page(deck: str) -> None:
    for section in offline.parse(deck).select("section"):
        said = section.select_one("aside.notes").get_text(" ", strip=True)
        assert len(said) > 40, section["data-tag"]
        words = [part.get_text(strip=True) for part in section.select(".lead p, .message p")]
        assert all(word not in said for word in words if word), section["data-tag"]
    assert "at the board" in notes(deck, "mechanism")
    assert "at the board" not in sheet(deck, "mechanism")
    assert "It holds the loss head" in notes(deck, "discussion")


def test_notes_begin_with_what_to_say_and_leave_descriptions_to_readers_of_screens(
    deck: str,
) -> None:
    assert notes(deck, "reproduction").startswith("Results. 25.2 % less energy")
    assert "points, " not in notes(deck, "reproduction")
    canvas = offline.parse(deck).select_one('[data-tag="reproduction"] .canvas')
    assert "Horizontal axis: time (s). Vertical axis: energy (J). stage 0" in canvas["aria-label"]
    assert notes(deck, "explorable").startswith("Let the room say what will change")
    assert "kept text" not in notes(deck, "title"), "a banner stands on no page and in no notes"


def test_every_page_says_how_long_it_takes(deck: str) -> None:
    sections = offline.parse(deck).select("section")
    seconds = [int(section["data-timing"]) for section in sections]
    assert seconds == [talk.SECONDS[section["data-tag"]] for section in sections]
    assert 20 * 60 <= sum(seconds) <= 30 * 60
    assert notes(deck, "title").endswith("(about 1 minute)")
    assert "defaultTiming: 120" in deck, "the speaker's view shows a pace only with a default"


def test_the_title_page_has_the_idea_and_who_presents_it_when(deck: str) -> None:
    shown = sheet(deck, "title")
    assert "Idle time is bought already: slow clocks in it cost nothing." in shown
    assert "Ada · Saturday, 14 March 2026" in shown


def test_a_short_message_is_the_pages_title(root: Path) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cell = next(c for c in notebook.cells if c.source.startswith("Notice the knee"))
    cell.source = "Slow stages save a third of the energy. Fast ones save nothing."
    control = next(c for c in notebook.cells if c.source.startswith("## Explore"))
    control.source += "\n\nMore stages idle more."
    nbformat.write(notebook, path)
    page = offline.parse(write_slides(root, "alpha").path.read_text())
    heading = page.select_one('[data-tag="figure"] h2')
    assert heading.small.get_text() == "Figure 3: a stage's time against its energy"
    assert heading.get_text().endswith("Slow stages save a third of the energy")
    message = page.select_one('[data-tag="figure"] .message')
    assert message.get_text(strip=True) == "Fast ones save nothing."
    tried = page.select_one('[data-tag="explorable"] h2')
    assert tried.get_text() == "Explore: how many stages?", "the answer comes after the question"


def test_a_page_does_not_speak_of_what_it_lacks(deck: str) -> None:
    assert "both stages, simulated" in sheet(deck, "reproduction")
    assert "Our table" not in sheet(deck, "reproduction")
    assert "In the notebook: Our table has the rest." in notes(deck, "reproduction")
    assert "The table has the saving after an hour." in sheet(deck, "weaknesses")
    assert "In the notebook besides: It would be stronger with memory" in notes(deck, "weaknesses")


def test_a_long_text_leaves_the_page_from_its_limits_on(root: Path) -> None:
    """What the drawing does not show goes first, then the last sentences; none is cut in two."""
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    lead = next(c for c in notebook.cells if c.source.startswith("## The headline"))
    first = "Dotted lines are bounds. " * 8
    last = "The last sentence of many. " * 8
    lead.source = f"## The headline\n\n{first}It does not show memory. {last}"
    nbformat.write(notebook, path)
    shown = sheet(write_slides(root, "alpha").path.read_text(), "reproduction")
    assert shown.count("Dotted lines are bounds.") == 8
    assert "does not show" not in shown
    kept = shown.count("The last sentence of many.")
    assert 0 < kept < 8
    assert len(f"{first}{last}") > talk.CHARACTERS_BY_A_FIGURE >= 24 * 8 + 26 * kept


@pytest.mark.parametrize("size", ["standard", "flagship"])
def test_a_talk_keeps_the_pages_of_its_size(root: Path, size: str) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata["labkit"]["size"] = size
    start = next(n for n, c in enumerate(notebook.cells) if "figure" in c.metadata.tags)
    for cell in [cell for _ in range(10) for cell in notebook.cells[start : start + 2]]:
        notebook.cells.insert(start, cell.copy())
        notebook.cells[start].id = f"more-{len(notebook.cells)}"
    nbformat.write(notebook, path)
    assert write_slides(root, "alpha").num_slides == anatomy.MAX_PAGES[size]


def test_a_section_that_is_missing_has_no_page_and_no_sections_is_told(root: Path) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [c for c in notebook.cells if "discussion" not in c.metadata.tags]
    nbformat.write(notebook, path)
    deck = write_slides(root, "alpha").path.read_text()
    assert offline.parse(deck).select('[data-tag="weaknesses"]')
    assert not offline.parse(deck).select('[data-tag="discussion"]')
    for cell in notebook.cells:
        cell.metadata.pop("tags", None)
    nbformat.write(notebook, path)
    (problem,) = write_slides(root, "alpha").problems
    assert "labkit check alpha" in problem


def test_a_verdict_printed_at_the_headline_stands_on_the_title_too(root: Path) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cell = next(c for c in notebook.cells if "figure_saving" in c.source)
    cell.metadata["tags"] = ["verdict"]
    text = {"text/markdown": "**Saved: 25.2 % in the paper, 24 % here.**"}
    cell.outputs.insert(0, nbformat.v4.new_output("display_data", text))
    nbformat.write(notebook, path)
    soup = offline.parse(write_slides(root, "alpha").path.read_text())
    (message,) = soup.select('[data-tag="title"] .message')
    assert message.get_text(strip=True) == "Saved: 25.2 % in the paper, 24 % here."


def test_formulas_are_mathml_and_no_dollar_is_left(deck: str) -> None:
    soup = offline.parse(deck)
    assert len(soup.select("section math")) >= 8
    assert len(soup.select('.sheet math[display="block"]')) == 2
    assert "$" not in offline.visible_text(str(soup.select_one(".slides")))


def test_figures_come_back_as_they_were(deck: str) -> None:
    scripts = offline.parse(deck).select('.plot script[type="application/json"]')
    stored = [json.loads(script.string) for script in scripts]
    drawn = [synthetic.frontier(), synthetic.frontier(), synthetic.moving()]
    assert [s["data"] for s in stored] == [f.to_plotly_json()["data"] for f in drawn]


def test_scripts_end_where_they_should(deck: str) -> None:
    """Each opening tag has its own closing tag, in spite of a trace named ``</script><!--``."""
    parsed = offline.parse(deck).find("body").find_all("script")
    ours = [s for s in parsed if s.string and "Reveal.initialize" in s.string]
    assert len(ours) == 1
    assert deck.count("</script>") == len(parsed) == 7  # four of the deck's, three figures' data


def test_headline_claims_stand_in_large_type_and_the_rest_is_counted(deck: str) -> None:
    section = offline.parse(deck).select_one('[data-tag="claims"]')
    rows = section.select(".headlines li")
    values = [[v.get_text(" ", strip=True) for v in row.select(".value")] for row in rows]
    assert values[0] == ["paper 25.2 %", "ours 24.9 %"]
    verdicts = [row.find(class_="verdict").get_text(" ", strip=True) for row in rows]
    assert verdicts == ["✔ reproduced", "○ not attempted", "✘ differs"], "headlines come first"
    rival = "without the method: the highest clock everywhere: 0\xa0%, fails as it should"
    assert rival in rows[0].get_text()
    rules = [row.find(class_="rule").get_text(strip=True) for row in rows]
    assert rules[0] == "rule: within 5\xa0%", "the rule stands below its verdict"
    assert "flip" not in section.get_text()
    foot = section.select_one(".rest").get_text(strip=True)
    assert foot.startswith("Of 3 headline or mechanism claims 1 is reproduced, 1 differs")


def test_every_slide_says_that_data_are_stand_ins(root: Path, deck: str) -> None:
    assert not offline.parse(deck).select("[data-standin]")
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    on_standins(notebook)
    nbformat.write(notebook, path)
    written = write_slides(root, "alpha")
    sheets = offline.parse(written.path.read_text(encoding="utf-8")).select(".sheet")
    assert written.warning == "fitted models, not the published data (median error 7.1\u00a0%)"
    assert {sheet.get("data-standin") for sheet in sheets} == {written.warning}


def on_standins(notebook: nbformat.NotebookNode) -> None:
    """Let all claims of a notebook rest on a fitted model."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for record in output.get("data", {}).get(CLAIMS_MIME, []):
                record |= {"fitted": 3.8, "fitted_median": 0.071}


def test_a_stand_in_deck_says_only_what_its_data_bear_out(root: Path) -> None:
    """Words stay beside a figure that is as on the published data, and leave all others."""

    def change(notebook: nbformat.NotebookNode) -> None:
        on_standins(notebook)
        table = next(c for c in notebook.cells if c.source.startswith("drift(profile)"))
        table.outputs[0].data["text/html"] = synthetic.DRIFT.replace("24", "2")

    synthetic.run(root, change)
    soup = offline.parse(write_slides(root, "alpha").path.read_text())
    strips = {s["data-tag"]: s.select_one(".strip") for s in soup.select("section")}
    assert [tag for tag, strip in strips.items() if strip] == ["weaknesses", "discussion"]
    assert strips["weaknesses"].get_text() == talk.STANDIN
    page = soup.select_one('[data-tag="weaknesses"]')
    assert "The table has the saving" not in page.select_one(".sheet").get_text()
    said = page.select_one(".notes").get_text(" ", strip=True)
    assert said.startswith("On the published data:")
    assert "The table has the saving after an hour." in said
    kept = soup.select_one('[data-tag="reproduction"] .sheet').get_text()
    assert "Ours: both stages, simulated." in kept


def test_where_nobody_committed_published_results_no_figure_has_words(root: Path) -> None:
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    on_standins(notebook)
    nbformat.write(notebook, path)
    soup = offline.parse(write_slides(root, "alpha").path.read_text())
    drawn = soup.select("section.figure, section.table")
    assert len(drawn) == 4
    assert all(page.select_one(".strip") and not page.select(".lead, .message") for page in drawn)


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
    assert write_slides(root, "alpha").shows == "stored outputs: not run here yet"
    synthetic.run(root)
    assert write_slides(root, "alpha").shows == "executed by labkit run"


@pytest.mark.parametrize("typed", ["8", "8.0"])
def test_a_run_with_parameters_gets_a_deck_of_its_own(root: Path, typed: str) -> None:
    synthetic.run(root)
    synthetic.run(root, num_stages=8)
    written = write_slides(root, "alpha", [f"num_stages={typed}"])
    assert written.path.name == "alpha--num_stages=8.html"
    assert "num_stages=8" in written.shows
    footer = offline.parse(written.path.read_text()).select_one(".deck-footer")
    assert "num_stages=8" in footer.get_text()


def test_parameters_nobody_ran_are_refused_with_the_command_that_runs_them(root: Path) -> None:
    synthetic.run(root)
    with pytest.raises(UsageError, match=r"labkit run alpha -p num_stages=16.*default"):
        write_slides(root, "alpha", ["num_stages=16"])
    with pytest.raises(UsageError, match=r"no parameter 'stages'.*its parameters: num_stages"):
        write_slides(root, "alpha", ["stages=16"])


def test_a_key_without_a_notebook_and_a_broken_notebook(root: Path) -> None:
    with pytest.raises(UsageError, match="alpha"):
        write_slides(root, "beta")
    (root / "notebooks" / "energy" / "alpha.ipynb").write_text("{")
    with pytest.raises(BadFile, match=r"alpha\.ipynb"):
        write_slides(root, "alpha")
    assert not (root / "results").exists()


def test_only_webgl_figures_may_compile_code() -> None:
    assert "unsafe-eval" in page.policy('{"type":"scattergl"}')
    assert "unsafe-eval" not in page.policy('{"type":"scatter"}')
    assert "frame-src" not in page.policy()


# ---------------------------------------------------------------- the idea, the steps


def edited(root: Path, *edits: tuple[str, str, list[str]]) -> str:
    """The deck with more cells: before the cell that starts with a text, a source and its tags."""
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for start, source, tags in edits:
        place = next(n for n, c in enumerate(notebook.cells) if c.source.startswith(start))
        is_code = "(" in source.splitlines()[0]
        make = nbformat.v4.new_code_cell if is_code else nbformat.v4.new_markdown_cell
        cell = make(source=source, metadata={"tags": tags}, id=f"more-{place}")
        if is_code:
            figure = json.loads(synthetic.bars().to_json())
            data = {"application/vnd.plotly.v1+json": figure}
            cell.outputs = [nbformat.v4.new_output("display_data", data)]
        notebook.cells.insert(place, cell)
    nbformat.write(notebook, path)
    return write_slides(root, "alpha").path.read_text(encoding="utf-8")


def tags_of(deck: str) -> list[str]:
    return [section["data-tag"] for section in offline.parse(deck).select("section")]


def test_the_picture_of_the_idea_stands_before_any_code(root: Path) -> None:
    deck = edited(
        root,
        ("## The mechanism", "### Two rows, one room\n\nGrey is free.", []),
        ("## The mechanism", "draw(rows)", ["idea"]),
    )
    assert tags_of(deck)[:4] == ["title", "insight", "idea", "mechanism"]
    soup = offline.parse(deck)
    (page,) = soup.select('[data-tag="idea"]')
    assert page.h2.get_text() == "Two rows, one room"
    assert page.select("figure.plot")
    assert "Grey is free." in sheet(deck, "idea")
    assert "Grey is free." not in sheet(deck, "insight")


def test_an_idea_among_the_insights_words_does_not_repeat_them(root: Path) -> None:
    deck = edited(root, ("## Symbols", "draw(rows)", ["idea"]))
    assert offline.parse(deck).select_one('[data-tag="idea"] h2').get_text() == "The idea"
    assert "A stage waits." in sheet(deck, "insight")
    assert "A stage waits." not in sheet(deck, "idea")


def test_an_idea_in_words_is_a_page_of_text(root: Path) -> None:
    deck = edited(root, ("## The mechanism", "### One sentence\n\nWait slowly.", ["idea"]))
    assert "Wait slowly." in sheet(deck, "idea")
    assert "Wait slowly." not in sheet(deck, "insight")


def test_the_steps_are_shown_rather_than_the_code(root: Path) -> None:
    steps = "In three steps:\n\n1. Find the slack.\n2. Stretch into it.\n3. Check the end."
    deck = edited(root, ("slack = latest", steps, []))
    section = offline.parse(deck).select_one('[data-tag="mechanism"]')
    assert [item.get_text(strip=True) for item in section.select(".body li")] == [
        "Find the slack.",
        "Stretch into it.",
        "Check the end.",
    ]
    assert not section.select(".highlight")
    assert "In three steps:" in sheet(deck, "mechanism")


def test_no_words_lead_to_code_that_the_page_lacks(root: Path) -> None:
    deck = edited(
        root,
        ("slack = latest", "Naive: no slack. The products:", []),
        ("slack = latest", "Then the slack:", []),
    )
    assert "Then the slack:" in sheet(deck, "mechanism")
    assert "The products:" not in sheet(deck, "mechanism")
    assert "The products:" in notes(deck, "mechanism")
