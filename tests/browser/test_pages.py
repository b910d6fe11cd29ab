"""Pages as a browser lays them out: talks within their budget, a scoreboard that sorts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.workbook import notebooks
from labkit.workbook.export import write_site, write_slides
from labkit.workbook.review import anatomy
from tests.browser.test_offline import browser, pytestmark
from tests.export import synthetic

ROOT = Path(__file__).resolve().parents[2]
SIZED = {
    key: size
    for key, path in notebooks.paths(ROOT).items()
    if (size := anatomy.Subject(ROOT, key, path, notebooks.read(path)).size)
}

__all__ = ["browser", "pytestmark"]


@pytest.mark.parametrize("key", SIZED)
def test_the_exported_deck_keeps_its_budget(browser: Any, tmp_path: Path, key: str) -> None:
    """What does not fit a slide goes on to the next one, so that types alone count too few."""
    written = write_slides(ROOT, key, out=tmp_path / "deck.html")
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(written.path.as_uri())
    page.wait_for_function("window.Reveal && Reveal.isReady()")
    pages = page.evaluate("Reveal.getTotalSlides()")
    page.close()
    assert pages >= written.num_slides
    most = anatomy.BUDGETS["slides"][SIZED[key]][1]
    assert most is not None
    assert pages <= most, f"{key}: {pages} pages of slides, at most {most} for a {SIZED[key]}"


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
