"""Pages as a browser lays them out: talks within their budget, a scoreboard that sorts.

Flagships' talks; every talk with ``LABKIT_BROWSER=all pytest tests/browser``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.workbook import notebooks
from labkit.workbook.export.pages import write_slides
from labkit.workbook.export.site import write_site
from labkit.workbook.review import anatomy
from tests.browser.test_offline import browser, only_if_all, pytestmark
from tests.export import synthetic
from tests.smoke import without_cells

ROOT = Path(__file__).resolve().parents[2]
SIZED = {
    key: size
    for key, path in notebooks.paths(ROOT).items()
    if (size := anatomy.Subject(ROOT, key, path, without_cells(path)).size)
}

__all__ = ["browser", "pytestmark"]


LAYOUT = """() => {
  const slide = Reveal.getCurrentSlide(), sheet = slide.querySelector(".sheet");
  const plot = slide.querySelector(".plot"), unit = Reveal.getScale();
  const box = plot?.getBoundingClientRect();
  const sizes = [...(plot?.querySelectorAll("svg text") || [])]
    .filter((t) => t.textContent.trim() && t.getBoundingClientRect().width && t.checkVisibility())
    .filter((t) => t.style.opacity !== "0" && !t.closest(".hoverlayer"))
    .map((t) => parseFloat(getComputedStyle(t).fontSize)
      * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b) / unit);
  const texts = [...sheet.querySelectorAll("h1, h2, .lead, .message, .body, li")];
  return {
    name: slide.dataset.tag, notes: slide.querySelector("aside.notes").textContent.trim().length,
    over: Math.max(...[sheet, ...sheet.querySelectorAll(".body, .table, pre")].map((p) =>
      Math.max(p.scrollHeight - p.clientHeight, p.scrollWidth - p.clientWidth))),
    wide: Math.max(...texts.map((t) => t.getBoundingClientRect().right)) - innerWidth,
    share: box ? (box.width * box.height) / (innerWidth * innerHeight) : 1,
    digits: Math.min(99, ...sizes), lettering: parseFloat(getComputedStyle(sheet).fontSize) / 25,
  };
}"""
LEAST = {"share": 0.7, "digits": 15.9, "lettering": 0.7, "notes": 40}
"""Of the page the figure's share, its smallest digits in pixels, the text's size over the usual
one, characters of the speaker's notes."""
DRAWN = '() => [...Reveal.getCurrentSlide().querySelectorAll(".plot")].every(p => p.dataset.large)'


def pages_of(page: Any, talk: Path) -> Iterator[dict[str, Any]]:
    """Open a talk and turn its pages: how each is laid out."""
    page.goto(talk.as_uri())
    page.wait_for_function("() => window.Reveal && Reveal.isReady()")
    for _ in range(page.evaluate("Reveal.getTotalSlides()")):
        page.wait_for_function(DRAWN)
        yield page.evaluate(LAYOUT)
        page.keyboard.press("ArrowRight")


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(key, marks=() if size == "flagship" else only_if_all)
        for key, size in SIZED.items()
    ],
)
def test_a_talk_pages_through_offline_and_can_be_read(
    browser: Any, tmp_path: Path, key: str
) -> None:
    """Every page at two sizes: nothing asked of a network, nothing cut off, large figures."""
    written = write_slides(ROOT, key, out=tmp_path / "deck.html")
    assert written.problems == []
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: asked.append(f"script error: {error}"))
    pages = 0
    for seen in pages_of(page, written.path):
        pages += 1
        if pages % 3 == 1:
            page.set_viewport_size({"width": 1920, "height": 1080})
            larger = page.evaluate(LAYOUT)
            page.set_viewport_size({"width": 1280, "height": 720})
            assert max(larger["over"], larger["wide"]) <= 1, (key, larger)
        assert max(seen["over"], seen["wide"]) <= 1, (key, seen)
        assert all(seen[name] >= least for name, least in LEAST.items()), (key, seen)
    assert pages == written.num_slides <= anatomy.MAX_PAGES[SIZED[key]]
    page.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_a_talk_fits_in_the_widest_lettering_a_machine_may_have(
    browser: Any, tmp_path: Path
) -> None:
    """Nobody knows which fonts stand on a presenter's machine."""
    path = write_slides(ROOT, "zeus", out=tmp_path / "deck.html").path
    path.write_text(path.read_text().replace("--sans:", "--sans: monospace; --usual:"))
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    for seen in pages_of(page, path):
        assert max(seen["over"], seen["wide"]) <= 1, seen
    page.close()


def test_the_scoreboard_sorts_by_the_heading_that_is_pressed(browser: Any, tmp_path: Path) -> None:
    root = synthetic.make(tmp_path / "workbook")
    write_site(root)
    page = browser.new_page()
    page.goto((root / "results/site/scoreboard.html").as_uri())
    heading = page.get_by_role("button", name="ours/paper")
    ratios = "[...document.querySelectorAll('#alpha .claim')].map(row => row.cells[4].textContent)"
    heading.press("Enter")
    assert page.evaluate(ratios) == ["0.9881", "1.3", "–", "–"]
    heading.press("Enter")
    assert page.evaluate(ratios)[2:] == ["1.3", "0.9881"]
    page.close()
