"""What a person sees: decks and pages in a real browser with the network off.

A page can pass every check of its text and still be blank, so these tests look at pixels.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from labkit.kit import draw
from labkit.workbook.export.pages import write_slides
from labkit.workbook.export.site import write_site
from labkit.workbook.review.explore import explore
from tests.export import synthetic

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = os.environ.get("LABKIT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium found (set LABKIT_CHROMIUM to one): pixels unseen"
    ),
]

ALL = os.environ.get("LABKIT_BROWSER") == "all"
only_if_all = pytest.mark.skipif(not ALL, reason="takes minutes: set LABKIT_BROWSER=all")

SLIDE = ".reveal section.present:not(.stack)"
BLUE = (0, 114, 178)
GREEN_CHIP = (217, 242, 226)
GREY_BAR = (213, 216, 220)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--host-resolver-rules=MAP * ~NOTFOUND",
            ],
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = synthetic.make(tmp_path_factory.mktemp("browser") / "workbook")
    write_site(root)
    write_slides(root, "alpha")
    return root / "results" / "site"


@pytest.fixture
def visit(browser: Any, site: Path) -> Iterator[Any]:
    """Opens a page of the site; afterwards, nothing must have been asked of the network."""
    complaints: list[str] = []
    contexts = []

    def go(name: str, width: int = 1280, height: int = 720, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda r: _note(complaints, r.url))
        page.on("pageerror", lambda error: complaints.append(f"script error: {error}"))
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.goto((site / name.partition("#")[0].partition("?")[0]).as_uri() + _tail(name))
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []


def _note(complaints: list[str], address: str) -> None:
    if not address.startswith(("file:", "data:", "blob:", "about:")):
        complaints.append(f"asked for {address}")


def _tail(name: str) -> str:
    cut = min((name.find(mark) for mark in "?#" if mark in name), default=len(name))
    return name[cut:]


def slide(visit: Any, heading: str, **options: Any) -> Any:
    """The deck at the slide with ``heading``."""
    page = visit("slides/alpha.html", **options)
    page.wait_for_function("() => window.Reveal && Reveal.isReady()")
    page.evaluate(
        """heading => {
            const wanted = Reveal.getSlides().find((s) =>
                s.querySelector("h1, h2, h3").textContent.startsWith(heading));
            const { h, v } = Reveal.getIndices(wanted);
            Reveal.slide(h, v);
        }""",
        heading,
    )
    page.wait_for_timeout(300)
    return page


def near(browser: Any, png: bytes, colour: tuple[int, int, int]) -> int:
    """How many pixels of a picture are within 12 of ``colour`` in every channel."""
    return _count(browser, png, list(colour), 12)


def ink(browser: Any, png: bytes) -> float:
    """The share of a picture's pixels that are clearly not white."""
    white = _count(browser, png, [255, 255, 255], 60)
    return 1 - white / _count(browser, png, [128, 128, 128], 255)


def _count(browser: Any, png: bytes, colour: list[int], within: int) -> int:
    """Pixels are decoded by the browser itself, on a page of its own."""
    page = browser.new_page()
    try:
        return page.evaluate(
            """async ([source, colour, within]) => {
                const image = new Image();
                image.src = "data:image/png;base64," + source;
                await image.decode();
                const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
                canvas.drawImage(image, 0, 0);
                const { data } = canvas.getImageData(0, 0, image.width, image.height);
                let count = 0;
                for (let i = 0; i < data.length; i += 4) {
                    count += colour.every((c, k) => Math.abs(data[i + k] - c) <= within);
                }
                return count;
            }""",
            [base64.b64encode(png).decode(), colour, within],
        )
    finally:
        page.close()


def shot(page: Any, selector: str) -> bytes:
    return page.locator(selector).first.screenshot()


# ---------------------------------------------------------------- slides


IN_ITS_SITE = "slides/alpha.html"
IN_ONE_FILE = "../slides/alpha.html"


@pytest.mark.parametrize("name", [IN_ITS_SITE, IN_ONE_FILE])
def test_no_page_is_blank(browser: Any, visit: Any, name: str) -> None:
    page = visit(name)
    page.wait_for_function("() => window.Reveal && Reveal.isReady()")
    for number in range(1, page.evaluate("Reveal.getTotalSlides()") + 1):
        page.wait_for_timeout(150)
        picture = page.screenshot(clip={"x": 0, "y": 0, "width": 1280, "height": 670})
        assert ink(browser, picture) > 0.004, f"page {number} is blank"
        page.keyboard.press("ArrowRight")


def test_keys_in_an_input_turn_no_page(visit: Any) -> None:
    page = slide(visit, "Explore")
    before = page.evaluate("Reveal.getIndices().h")
    page.evaluate(
        """() => {
            const input = document.createElement("input");
            Object.assign(input, { type: "range", id: "own" });
            Reveal.getCurrentSlide().querySelector(".sheet").append(input);
            input.focus();
        }"""
    )
    page.keyboard.press("ArrowRight")
    assert page.evaluate("Reveal.getIndices().h") == before
    assert page.locator("#own").input_value() == "51", "the key moved the slider"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("Reveal.getIndices().h") == before + 1


@pytest.mark.parametrize("role", ["slider", "combobox"])
def test_a_presenters_remote_turns_pages_wherever_the_focus_is(visit: Any, role: str) -> None:
    page = slide(visit, "Explore")
    at = page.evaluate("Reveal.getIndices().h")
    for key, step in (("PageDown", 1), ("PageUp", -1), (" ", 1), ("n", 1), ("Shift+ ", -1)):
        page.evaluate(f"Reveal.slide({at})")
        control = page.locator(SLIDE).get_by_role(role).first
        control.focus()
        before = control.input_value()
        page.keyboard.press(key)
        moved = page.evaluate("Reveal.getIndices().h") - at
        assert moved == step, f"{key!r} from a {role} moved the deck by {moved}"
        assert page.evaluate("document.activeElement === document.body")
        page.evaluate(f"Reveal.slide({at})")
        assert control.input_value() == before, "the key was the deck's alone"


def test_escape_and_a_pointers_change_give_the_keys_back_to_the_deck(visit: Any) -> None:
    page = slide(visit, "Explore")
    at = page.evaluate("Reveal.getIndices().h")
    slider = page.locator(SLIDE).get_by_role("slider")
    slider.focus()
    page.keyboard.press("Escape")
    assert not page.evaluate("Reveal.isOverview()"), "the first Escape leaves the slider"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("Reveal.getIndices().h") == at + 1
    page.keyboard.press("ArrowLeft")
    box = slider.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.97, box["y"] + box["height"] / 2)
    assert slider.get_attribute("aria-valuetext") == "16", "the pointer moved the slider"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("Reveal.getIndices().h") == at + 1
    page.keyboard.press("ArrowLeft")
    assert slider.get_attribute("aria-valuetext") == "16", "the arrows left it alone"
    menu = page.locator(SLIDE).get_by_role("combobox")
    menu.click()
    page.keyboard.press("Escape")  # of the open menu
    menu.evaluate("m => { m.value = '2'; m.selectedIndex = 1; }")
    menu.dispatch_event("pointerdown")
    menu.dispatch_event("change", {"bubbles": True})
    page.keyboard.press("ArrowRight")
    assert page.evaluate("Reveal.getIndices().h") == at + 1


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1920, 1080), (1024, 600)])
def test_a_plot_is_drawn_in_its_colours(browser: Any, visit: Any, width: int, height: int) -> None:
    page = slide(visit, "Figure 3", width=width, height=height)
    figure = shot(page, f"{SLIDE} .plot")
    assert near(browser, figure, BLUE) > 0.5 * width, "the line is as long as the plot"
    box = page.locator(f"{SLIDE} .plot").first.bounding_box()
    assert box["width"] > 0.85 * width
    assert box["height"] > 0.4 * height


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1920, 1080)])
def test_dragging_the_slider_moves_the_figure(
    browser: Any, visit: Any, width: int, height: int
) -> None:
    page = slide(visit, "Explore", width=width, height=height)
    before = shot(page, f"{SLIDE} .plot .canvas")
    slider = page.locator(SLIDE).get_by_role("slider", name="pipeline stages")
    box = slider.bounding_box()
    page.mouse.move(box["x"] + 6, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + box["height"] / 2, steps=8)
    page.mouse.up()
    page.wait_for_timeout(500)
    after = shot(page, f"{SLIDE} .plot .canvas")
    assert slider.get_attribute("aria-valuetext") == "16"
    taller = near(browser, after, GREY_BAR) / near(browser, before, GREY_BAR)
    shares = [sum((s - 1) / (m + s - 1) for m in (4, 8, 16, 32)) for s in (2, 16)]
    assert taller > 0.7 * shares[1] / shares[0]


@pytest.mark.parametrize("name", ["slides/alpha.html", "papers/alpha.html"])
def test_controls_obey_the_keyboard_and_keep_each_other(visit: Any, name: str) -> None:
    in_deck = name.startswith("slides")
    page = slide(visit, "Explore") if in_deck else visit(name)
    area = page.locator(SLIDE if in_deck else "article")
    slider = area.get_by_role("slider", name="pipeline stages")
    slider.scroll_into_view_if_needed()
    area.locator(".plot:has(.knobs) svg.main-svg").first.wait_for()
    slider.focus()
    for key in ("End", "ArrowLeft"):
        page.keyboard.press(key)
    assert slider.get_attribute("aria-valuetext") == "8"
    places = [option.get_attribute("value") for option in page.locator("datalist option").all()]
    assert places == ["0", "333", "667", "1000"], "2, 4, 8, 16 lie evenly by their logarithms"
    area.get_by_role("combobox", name="chunks").select_option("2")
    assert slider.get_attribute("aria-valuetext") == "8", "the menu keeps the slider"
    shown = area.locator(".plot:has(.knobs) .canvas").evaluate(
        "c => c._fullData.filter((t) => t.visible === true).map((t) => t.y[0])"
    )
    assert shown == [pytest.approx((8 - 1) / (2 * 4 + 8 - 1), rel=1e-4)]
    if in_deck:
        assert page.locator(SLIDE).inner_text().startswith("Explore"), "the page was not turned"


def test_long_names_below_plotlys_own_slider_are_all_drawn_and_whole(browser: Any) -> None:
    """As Lab shows a notebook that was not run: no label cut by the figure's edge, or left out."""
    names = ["linear scaling, gradual warm-up", "rate kept", "linear scaling, no warm-up", "none"]
    names += ["square-root scaling, gradual warm-up"]

    def bar(way: str) -> go.Figure:
        return draw.finish(go.Figure(go.Bar(x=["bar"], y=[len(way)])), title=way)

    page = browser.new_page(viewport={"width": 900, "height": 720})
    page.set_content(explore(bar, way=names).to_html(include_plotlyjs=True))
    page.wait_for_selector(".slider-label")
    labels = page.locator(".slider-label-group .slider-label").all()
    assert len(labels) == len(names)
    boxes = [label.bounding_box() for label in labels]
    whole = page.locator(".main-svg").first.bounding_box()
    assert whole["x"] <= boxes[0]["x"]
    assert boxes[-1]["x"] + boxes[-1]["width"] <= whole["x"] + whole["width"]
    assert all(a["x"] + a["width"] < b["x"] for a, b in pairwise(boxes))
    assert max(b["y"] + b["height"] for b in boxes) <= whole["y"] + whole["height"]
    page.close()


def test_formulas_are_typeset(browser: Any, visit: Any) -> None:
    page = slide(visit, "Insight")
    boxes = page.locator(f"{SLIDE} math").evaluate_all(
        "all => all.map(m => { const r = m.getBoundingClientRect(); return [r.width, r.height]; })"
    )
    assert len(boxes) == 6, "two displayed, four in the text"
    assert all(width > 5 and height > 8 for width, height in boxes)
    fraction = page.locator(f"{SLIDE} mfrac").first.bounding_box()
    letter = page.locator(f"{SLIDE} math mi").first.bounding_box()
    assert fraction["height"] > 1.6 * letter["height"], "a fraction stands on two levels"
    assert ink(browser, shot(page, f"{SLIDE} .formula")) > 0.005
    assert "$" not in page.locator(f"{SLIDE} p").first.inner_text()


def test_headline_claims_are_on_the_screen_in_large_type(browser: Any, visit: Any) -> None:
    page = slide(visit, "Claims")
    rows = page.locator(f"{SLIDE} .headlines")
    box = rows.bounding_box()
    assert box["y"] + box["height"] < 690
    assert near(browser, rows.screenshot(), GREEN_CHIP) > 1000
    size = page.locator(f"{SLIDE} .value").first.evaluate("v => getComputedStyle(v).fontSize")
    assert float(size.removesuffix("px")) >= 32


def test_the_speaker_sees_the_notes(visit: Any) -> None:
    page = slide(visit, "The mechanism")
    with page.expect_popup() as popup:
        page.keyboard.press("s")
    popup.value.get_by_text("energy is measured at the board").wait_for(timeout=30_000)


def test_the_deck_prints_a_page_for_each_slide(visit: Any) -> None:
    page = visit("slides/alpha.html?print-pdf")
    # As a function: a text is evaluated at each look, which the policy of the page refuses.
    page.wait_for_function("() => window.Reveal && Reveal.isReady()")
    page.wait_for_function("() => document.querySelectorAll('.pdf-page').length === 9")
    page.wait_for_function("() => document.querySelectorAll('.plot svg.main-svg').length >= 3")
    pdf = page.pdf(prefer_css_page_size=True, print_background=True)
    assert pdf.count(b"/Type /Page\n") == 9


def test_a_talk_taken_out_of_its_site_says_how_to_get_it_in_one_file(
    browser: Any, site: Path, tmp_path: Path
) -> None:
    alone = Path(shutil.copy(site / "slides" / "alpha.html", tmp_path))
    page = browser.new_page()
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.goto(alone.as_uri())
    said = page.get_by_role("alert")
    assert said.is_visible()
    assert "labkit slides alpha" in said.inner_text()
    assert ink(browser, page.screenshot()) > 0.004
    assert broken == []
    page.goto((site / "slides" / "alpha.html").as_uri())
    assert not page.get_by_role("alert").is_visible()
    page.close()


# ---------------------------------------------------------------- pages


def test_figures_of_a_page_are_drawn_as_they_come_near(browser: Any, visit: Any) -> None:
    page = visit("papers/alpha.html")
    figures = page.locator("article .plot")
    for number in range(figures.count()):
        figure = figures.nth(number)
        figure.scroll_into_view_if_needed()
        figure.locator("svg.main-svg").first.wait_for(timeout=30_000)
        shares = (ink(browser, figure.screenshot()) for _ in range(50))  # it draws while we look
        assert any(share > 0.01 or page.wait_for_timeout(200) for share in shares)


def test_all_code_unfolds_at_once(visit: Any) -> None:
    page = visit("papers/alpha.html")
    code = page.get_by_text("open_paper").first
    assert not code.is_visible()
    page.get_by_role("button", name="Show all code").click()
    assert code.is_visible()


def test_the_index_lists_filters_and_groups(visit: Any) -> None:
    page = visit("index.html")
    papers = page.locator("#papers li[data-key]:visible")
    assert papers.count() == 4
    page.locator("select[name=tag]").select_option("memory")
    assert [li.get_attribute("data-key") for li in papers.all()] == ["gamma", "delta"]
    assert page.get_by_role("status").inner_text() == "2 of 4 papers"
    page.locator("select[name=tag]").select_option("")
    page.locator("select[name=group]").select_option("tag")
    headings = page.locator("#papers h2").all_inner_texts()
    assert [h.split() for h in headings] == [["energy", "2"], ["memory", "2"], ["pipeline", "1"]]


def test_the_scoreboard_narrows_to_a_verdict(visit: Any) -> None:
    page = visit("scoreboard.html")
    page.locator("select[name=verdict]").select_option("differs")
    visible = page.locator("tr.claim:visible")
    assert visible.count() == 1
    assert "Iteration time" in visible.first.inner_text()
    page.get_by_label("Search claims").fill("nothing says this")
    assert page.locator("tbody:has(tr.paper):visible").count() == 0


@pytest.mark.parametrize("name", ["index.html", "scoreboard.html", "papers/alpha.html"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_and_keep_their_contrast(visit: Any, name: str, scheme: str) -> None:
    page = visit(name, width=390, height=800, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    weakest = page.evaluate(CONTRAST)
    assert weakest["ratio"] >= 4.5, weakest


# The lowest contrast of any text with the colour behind it, by WCAG 2's formula.
CONTRAST = """() => {
  const parse = (text) => {
    const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 })
      .getContext("2d");
    context.fillStyle = text;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const level = ([r, g, b]) => [r, g, b]
    .map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > 250) return colour;
    }
    return [255, 255, 255, 255];
  };
  let weakest = { ratio: 99 };
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("svg, .highlight, select")) continue;
    const pair = [level(parse(getComputedStyle(element).color)), level(behind(element))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < weakest.ratio) {
      weakest = { ratio, text: element.textContent.slice(0, 60), of: element.className };
    }
  }
  return weakest;
}"""
