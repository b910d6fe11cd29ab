"""The site as readers use it: search, Back, a phone, paper, both themes, the keyboard."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from labkit.workbook.export.site import write_site
from labkit.workbook.review import rivals
from tests.browser.test_offline import browser, pytestmark, site, visit
from tests.export import synthetic

__all__ = ["browser", "pytestmark", "site", "visit"]

A4_PX = 210 / 25.4 * 96
BROKEN = """() => [...document.querySelectorAll('.table td, .table th')].flatMap(cell => {
  const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  const range = new Range(), broken = [];
  while (walk.nextNode())
    for (const word of walk.currentNode.data.matchAll(/[a-z]{4,}/gi)) {
      range.setStart(walk.currentNode, word.index);
      range.setEnd(walk.currentNode, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => box.top)).size > 1) broken.push(word[0]);
    }
  return broken;
})"""
"""The words of tables that go on in another line."""
HEADING = 'Claims: "less than 1 %" & more'


def keys(page: Any) -> list[str]:
    return [
        li.get_attribute("data-key") for li in page.locator("#papers li[data-key]:visible").all()
    ]


def ask(page: Any, text: str) -> list[str]:
    """The papers that the index shows for ``text``, once the search has ended."""
    before = page.evaluate("document.documentElement.dataset.shown")
    page.get_by_label("Search papers").fill(text)
    page.wait_for_function(
        "before => document.documentElement.dataset.shown !== before", arg=before, timeout=10_000
    )
    return keys(page)


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with a family of two papers, of which the queue says in Chinese why one is read.

    The second has a heading with signs that mean something in HTML and in addresses.
    """
    root = synthetic.make(tmp_path_factory.mktemp("wider") / "workbook")
    queue = root / "reading_queue.yaml"
    text = queue.read_text(encoding="utf-8")
    why = "流水线节能调度"
    queue.write_text(text.replace("the optimum to hold alpha against", why), encoding="utf-8")
    for name in ("data/papers/alpha/claims.yaml", "notebooks/energy/alpha.ipynb"):
        path = root / name.replace("alpha", "beta")
        path.parent.mkdir(exist_ok=True)
        content = (root / name).read_text(encoding="utf-8").replace('"alpha"', '"beta"')
        content = content.replace("Claims vs measured", json.dumps(HEADING)[1:-1])
        path.write_text(content, encoding="utf-8")
    synthetic.timings(root, ours_cpu_s=2, peer_cpu_s=10)
    write_site(root)
    return root / "results" / "site"


# ---------------------------------------------------------------- search


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("frontier", ["beta"]),
        ("front", ["beta"]),  # the beginning of a word
        ("rontier", []),  # not its middle
        ("idling", ["alpha"]),  # it says "idle"
        ("gas", []),  # its stem is the beginning of "gamma"
        ("lovelace idle", ["alpha"]),
        ("largest stage", ["alpha"]),  # a claim's words
        ("joule", ["alpha"]),  # a notebook's words
        ("#memory", ["gamma", "delta"]),
        ("#energy frontier", ["beta"]),
        ("#ener", ["alpha", "beta"]),
    ],
)
def test_the_search_finds_words_claims_notebooks_and_tags(
    visit: Any, query: str, shown: list[str]
) -> None:
    assert sorted(ask(visit("index.html"), query)) == sorted(shown)


@pytest.mark.parametrize(
    ("query", "shown", "said"),
    [
        ("fronteir", ["beta"], "1 of 4 papers for “frontier”"),
        ("front-ier", ["beta"], "1 of 4 papers"),
        ("largest-stage", ["alpha"], "1 of 4 papers"),
        ("zzyzx", [], "Nothing found for “zzyzx” in titles"),
    ],
)
def test_the_search_forgives_a_hyphen_and_a_letter(
    visit: Any, query: str, shown: list[str], said: str
) -> None:
    page = visit("index.html")
    assert ask(page, query) == shown
    assert said in page.locator(".found").inner_text()


def test_the_search_marks_what_it_found_and_slash_leads_to_it(visit: Any) -> None:
    page = visit("index.html")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    ask(page, "joule")
    assert page.locator(".hit mark").first.inner_text().lower().startswith("joule")


def test_a_papers_own_name_comes_first(visit: Any) -> None:
    assert ask(visit("index.html"), "alpha")[0] == "alpha"


@pytest.mark.parametrize(("query", "shown"), [("节能", ["beta"]), ("调", ["beta"]), ("能节", [])])
def test_chinese_is_found_by_its_characters(
    browser: Any, wider: Path, query: str, shown: list[str]
) -> None:
    page = browser.new_page()
    page.goto((wider / "index.html").as_uri())
    assert ask(page, query) == shown
    page.close()


def test_a_hit_leads_to_its_place(visit: Any) -> None:
    page = visit("index.html")
    ask(page, "joule")
    page.locator(".hit a").first.click()
    page.wait_for_url("**/papers/alpha.html#*")
    assert page.evaluate(
        "document.getElementById(decodeURIComponent(location.hash.slice(1))) !== null"
    )


def test_the_contents_mark_the_section_that_is_read(browser: Any, wider: Path) -> None:
    page = browser.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((wider / "papers/beta.html").as_uri())
    link = page.get_by_role("link", name=HEADING)
    link.click()
    page.wait_for_function("() => document.querySelector('nav a.now')?.hash === location.hash")
    assert page.locator("nav a.now").inner_text() == HEADING
    assert page.locator("h2", has_text=HEADING).evaluate("h => h.getBoundingClientRect().top") < 120
    assert not errors
    page.close()


def test_back_restores_what_was_searched_for(visit: Any) -> None:
    page = visit("index.html")
    assert ask(page, "idle") == ["alpha"]
    page.locator("h3 a").first.click()
    page.wait_for_url("**/papers/alpha.html")
    page.go_back()
    page.wait_for_function("() => document.querySelector('.found').textContent.startsWith('1 of')")
    assert page.get_by_label("Search papers").input_value() == "idle"
    assert keys(page) == ["alpha"]


def test_an_address_holds_the_filters_and_a_tag_is_a_link(visit: Any) -> None:
    page = visit("index.html#tag=memory&group=status")
    assert page.locator("select[name=tag]").input_value() == "memory"
    assert keys(page) == ["gamma", "delta"]
    page.locator("a.tag", has_text="memory").first.click()
    page.locator("select[name=tag]").select_option("energy")
    assert sorted(keys(page)) == ["alpha", "beta"]
    page.go_back()
    assert keys(page) == ["gamma", "delta"]


def test_ninety_papers_open_within_a_second(browser: Any, tmp_path: Path) -> None:
    root = synthetic.make(tmp_path / "workbook")
    entries = [
        f"@inproceedings{{p{n}, title = {{Paper {n}}}, author = {{Doe, Jane}}, "
        "booktitle = {ES}, year = 2020}"
        for n in range(90)
    ]
    listing = [
        f"  - {{key: p{n}, status: queued, priority: 2, why: w{n}, tags: [many]}}"
        for n in range(90)
    ]
    for name, lines in (("data/papers.bib", entries), ("reading_queue.yaml", listing)):
        path = root / name
        path.write_text(
            path.read_text(encoding="utf-8") + "\n".join(lines) + "\n", encoding="utf-8"
        )
    write_site(root)
    page = browser.new_page()
    page.goto((root / "results/site/index.html").as_uri())
    timing = "performance.getEntriesByType('navigation')[0]"
    page.wait_for_function(f"() => {timing}.loadEventEnd > 0")
    assert len(keys(page)) == 94
    # scripts and layout of the page itself; a crowded machine may delay the opening of the file
    assert page.evaluate(f"{timing}.loadEventEnd - {timing}.responseEnd") < 1000
    assert ask(page, "w77") == ["p77"]
    page.close()


# ---------------------------------------------------------------- a phone


def test_a_phone_shows_the_title_before_the_contents(visit: Any) -> None:
    page = visit("papers/alpha.html", width=390, height=844)
    title, contents, facts = (
        page.locator(selector).first.bounding_box()["y"]
        for selector in ("h1", "nav ol, nav summary", ".facts")
    )
    assert title < facts < contents
    assert title < 300


@pytest.mark.parametrize(
    ("name", "row"),
    [("scoreboard.html", ".board tr.claim"), ("papers/alpha.html", ".claims tbody tr")],
)
def test_a_phone_shows_values_and_verdicts_without_scrolling(
    visit: Any, name: str, row: str
) -> None:
    page = visit(name, width=390, height=844)
    cells = page.locator(f"{row} :is(.judged, .number)")
    boxes = cells.evaluate_all(
        "all => all.map(c => c.getBoundingClientRect()).map(r => [r.left, r.right, r.width])"
    )
    assert len(boxes) >= 12
    assert all(left >= 0 and right <= 390 and width > 0 for left, right, width in boxes)
    labels = (
        page.locator(row)
        .first.locator("[data-is]")
        .evaluate_all("all => all.map(c => getComputedStyle(c, '::before').content)")
    )
    assert labels[:2] == ['"paper"', '"ours"']


def overlap(page: Any) -> list[float]:
    """By how many pixels each figure's legend reaches into its title, or either beyond its card."""
    return page.locator(".plot").evaluate_all(
        """all => all.flatMap(plot => {
          const box = (name) => plot.querySelector(name)?.getBoundingClientRect();
          const [title, legend] = [box(".gtitle"), box(".legend")];
          const card = plot.getBoundingClientRect();
          const top = plot.querySelector("svg.main-svg").getBoundingClientRect().top;
          const beyond = (r) => Math.max(r.right - card.right, card.left - r.left, top - r.top);
          const apart = (a, b) => Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
          return [
            title && legend ? apart(title, legend) : 0,
            ...[title, legend].filter(Boolean).map(beyond),
          ];
        })"""
    )


def drawn(page: Any) -> Any:
    """The page once every figure is drawn."""
    for figure in page.locator("article .plot").all():
        figure.scroll_into_view_if_needed()
        figure.locator("svg.main-svg").first.wait_for(timeout=30_000)
    return page


def test_on_a_phone_no_legend_covers_a_title(visit: Any) -> None:
    page = drawn(visit("papers/alpha.html", width=390, height=844))
    assert max(overlap(page)) <= 1


def test_on_a_phone_a_title_that_changes_with_a_slider_stays_in_its_place(visit: Any) -> None:
    page = drawn(visit("papers/alpha.html", width=390, height=844))
    plot = page.locator("article .plot:has(.knobs)")
    page.get_by_role("slider", name="pipeline stages").focus()
    titles = []
    for key in ("Home", "End"):
        page.keyboard.press(key)
        page.wait_for_timeout(300)
        titles.append(plot.locator(".gtitle").bounding_box())
    assert plot.locator(".gtitle").text_content() == "Idle share, 16 stages"
    card = plot.locator("svg.main-svg").first.bounding_box()
    for title in titles:
        assert 0 <= title["x"] - card["x"] < 20
        assert 0 <= title["y"] - card["y"] < 30


def test_a_legend_of_more_rows_than_reckoned_leaves_the_title_free(visit: Any) -> None:
    page = drawn(visit("papers/alpha.html", width=1100, height=900))
    names = [f"a way with a rather long name, number {n}" for n in range(9)]
    page.evaluate(
        """async names => {
          const canvas = document.querySelector('article .plot .canvas');
          await Plotly.addTraces(canvas, names.map(name => ({ x: [0, 1], y: [0, 1], name })));
          await Plotly.relayout(canvas, { 'title.text': 'Nine more', showlegend: true });
        }""",
        names,
    )
    plot = page.locator("article .plot").first
    title, legend = (plot.locator(name).bounding_box() for name in (".gtitle", ".legend"))
    assert legend["height"] > 100
    assert title["y"] + title["height"] <= legend["y"] + 6
    page.evaluate(
        """text => Plotly.relayout(document.querySelector('article .plot .canvas'),
                                   { 'title.text': text })""",
        "a heading of eighty-two characters, which is as long as a line of a title may be..",
    )
    title, card = (plot.locator(name).bounding_box() for name in (".gtitle", ".main-svg >> nth=0"))
    assert title["x"] + title["width"] <= card["x"] + card["width"] + 1


def test_a_title_comes_down_to_a_legend_of_fewer_rows_than_reckoned(visit: Any) -> None:
    page = drawn(visit("papers/alpha.html", width=1100, height=900))
    page.evaluate(
        """async () => {
          const figure = document.querySelector('article .plot');
          figure.querySelector('.canvas').remove();
          figure.insertAdjacentHTML('beforeend', '<div class="canvas"></div>');
          const read = Plots.read;
          Plots.read = () => ({
            data: ['one', 'other'].map(name => ({ x: [0, 1], y: [0, 1], name })),
            layout: {
              title: { text: 'One row', y: 1, yref: 'paper', yanchor: 'bottom', pad: { b: 100 } },
              legend: { orientation: 'h', x: 0, y: 1.01, yanchor: 'bottom' }, margin: { t: 160 },
            },
          });
          await Plots.draw(figure, { width: 900, height: 420, fit: true });
          Plots.read = read;
        }"""
    )
    plot = page.locator("article .plot").first
    title, legend = (plot.locator(name).bounding_box() for name in (".gtitle", ".legend"))
    assert 0 <= legend["y"] - title["y"] - title["height"] <= 20


def test_a_figure_takes_a_new_width(visit: Any) -> None:
    page = drawn(visit("papers/alpha.html"))
    page.set_viewport_size({"width": 500, "height": 800})
    page.wait_for_function(
        """() => [...document.querySelectorAll('.plot')].every(plot =>
             plot.querySelector('.main-svg').getBoundingClientRect().right
             <= plot.getBoundingClientRect().right + 1)"""
    )
    assert max(overlap(page)) <= 1


# ---------------------------------------------------------------- ways through, rivals


@pytest.fixture(scope="module")
def with_ways(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page whose headline is on the way of five minutes, and moves with a menu of rivals."""
    root = synthetic.make(tmp_path_factory.mktemp("ways") / "workbook")
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    start = next(n for n, c in enumerate(notebook.cells) if "The headline" in c.source)
    heading, headline = notebook.cells[start : start + 2]
    for cell in (heading, headline):
        cell.metadata["tags"] = [*cell.metadata.get("tags", []), "path-5", "path-30"]
    moving = rivals.figure(
        root,
        "alpha",
        lambda way: synthetic.bars() if way == "ours" else synthetic.frontier(),
        ["ours", "one clock"],
        lambda way: {"slowdown": 0.0 if way == "ours" else 0.4},
        {},
        "clocks by",
    )
    headline.outputs = [synthetic.plot(moving)]
    nbformat.write(notebook, path)
    write_site(root)
    return root / "results" / "site" / "papers" / "alpha.html"


def test_a_way_through_hides_the_rest_until_a_link_leads_there(
    browser: Any, with_ways: Path
) -> None:
    page = browser.new_page()
    page.goto(with_ways.as_uri())
    contents = page.locator(".notebook > nav li:visible")
    everything = contents.count()
    page.get_by_role("button", name="5 minutes").click()
    assert page.locator("article .block:visible").count() == 2
    assert contents.all_text_contents() == ["The headline: energy over time"]
    assert page.get_by_role("button", name="5 minutes").get_attribute("aria-pressed") == "true"
    page.evaluate("location.hash = '#Discussion'")
    page.get_by_role("heading", name="Discussion").wait_for()
    assert contents.count() == everything
    page.close()


def test_a_rival_is_chosen_from_a_menu_and_the_claims_follow(browser: Any, with_ways: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(with_ways.as_uri())
    menu = page.get_by_label("clocks by")
    menu.scroll_into_view_if_needed()
    plot = page.locator(".plot:has(select)", has=menu)
    plot.get_by_text("within: slowdown").wait_for()
    menu.select_option("one clock")
    claim = plot.get_by_text("outside: slowdown")
    claim.wait_for()
    card = plot.bounding_box()
    words = claim.bounding_box()
    assert words["x"] >= card["x"]
    assert words["x"] + words["width"] <= card["x"] + card["width"]
    legend = plot.locator(".legend").bounding_box()
    assert legend["y"] >= words["y"] + words["height"]
    page.close()


def test_a_state_without_a_height_of_its_own_is_drawn_on_a_narrow_page(
    browser: Any, with_ways: Path
) -> None:
    """A state that is as high as its figure names its margins alone."""

    def without_height(block: re.Match[str]) -> str:
        content = json.loads(block[2])
        for slider in content.get("layout", {}).get("sliders", []):
            for step in slider["steps"]:
                step["args"][1].pop("height", None)
                step["args"][1]["margin"] = content["layout"]["margin"]
        return block[1] + json.dumps(content).replace("<", "\\u003c") + "</script>"

    blocks = re.compile(r'(<script type="application/json"[^>]*>)(\{.*?)</script>', re.S)
    path = with_ways.with_name("same_height.html")
    path.write_text(blocks.sub(without_height, with_ways.read_text()), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 844})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    menu = page.get_by_label("clocks by")
    menu.scroll_into_view_if_needed()
    plot = page.locator(".plot:has(select)", has=menu)
    menu.select_option("one clock")
    plot.get_by_text("outside: slowdown").wait_for()
    heights = plot.locator(".canvas").evaluate("c => [c.layout.height, c._fullLayout.height]")
    assert heights[0] == heights[1], "what was asked for is no height"
    page.close()
    assert errors == []


def test_a_claim_keeps_its_width_beside_a_long_verdict(visit: Any) -> None:
    """Verdicts on a fitted model say so at length, and left the claim one word a line."""
    page = visit("papers/alpha.html", width=1440)
    table = page.locator("table.claims")
    where = (
        "document.querySelectorAll('.claims .verdict').forEach(chip => chip.append(' ', note()))"
    )
    text = "on a fitted model (median error 12 %)"
    note = f"Object.assign(document.createElement('small'), {{textContent: '{text}'}})"
    page.evaluate(f"const note = () => {note}; {where}")
    share = "t => t.querySelector('.statement').offsetWidth / t.offsetWidth"
    assert table.evaluate(share) > 0.4
    assert table.evaluate("t => t.offsetWidth <= t.parentElement.clientWidth")


# ---------------------------------------------------------------- paper


@pytest.mark.parametrize("name", ["papers/alpha.html", "scoreboard.html"])
def test_nothing_is_cropped_on_paper(visit: Any, name: str) -> None:
    wide = A4_PX if name.startswith("papers") else 297 / 25.4 * 96
    room = round(wide - 2 * 12 / 25.4 * 96)
    page = visit(name)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": room, "height": 1000})
    page.wait_for_timeout(600)
    rights = page.locator("table td, svg.main-svg, .formula math").evaluate_all(
        "all => all.filter(e => e.checkVisibility()).map(e => e.getBoundingClientRect().right)"
    )
    assert len(rights) > 20
    assert max(rights) <= room + 1
    assert page.evaluate(BROKEN) == []
    pdf = page.pdf(prefer_css_page_size=True)
    sides = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox \[([^\]]+)\]", pdf)}
    assert {round(side[2]) for side in sides} == {595 if name.startswith("papers") else 842}


# ---------------------------------------------------------------- themes and access


def test_the_theme_button_turns_pages_and_figures_and_is_remembered(visit: Any) -> None:
    page = drawn(visit("papers/alpha.html"))
    card = "getComputedStyle(document.querySelector('.plot')).backgroundColor"
    paper = "document.querySelector('.plot .main-svg').style.background"
    light = page.evaluate(card), page.evaluate(paper)
    page.get_by_role("button", name="Dark theme").click()
    page.wait_for_function(f"() => {paper} !== {light[1]!r}")
    assert page.evaluate(card) == "rgb(16, 21, 28)"
    lettering = page.locator(".plot .gtitle").first.evaluate("t => getComputedStyle(t).fill")
    assert min(map(int, re.findall(r"\d+", lettering)[:3])) > 180, (
        "letters are light on a dark card"
    )
    # Chromium hands what a page stores to another process, which is asked again when the page is
    # reloaded; nothing promises that this is done by then, so a later reload counts as well.
    for _ in range(10):
        page.reload()
        if (theme := page.evaluate("document.documentElement.dataset.theme")) == "dark":
            break
    assert theme == "dark"


def test_a_figure_says_in_words_what_it_shows(visit: Any) -> None:
    page = visit("papers/alpha.html")
    labels = page.locator(".plot .canvas").evaluate_all("all => all.map(c => c.ariaLabel)")
    assert labels[0].startswith("Figure: Energy falls as a stage slows, and then rises. ")
    assert "Vertical axis: energy (J)" in labels[0]
    assert "bound: 40 points, 344 to 440" in labels[0]
    assert all(labels)


def test_what_scrolls_sideways_can_be_reached_by_keyboard(visit: Any) -> None:
    for name in ("papers/alpha.html", "scoreboard.html"):
        page = visit(name, width=390, height=844)
        unreached = page.evaluate(
            """[...document.querySelectorAll('main *')].filter(e =>
                 ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)
                 && e.scrollWidth > e.clientWidth + 1 && e.checkVisibility()
                 && e.tabIndex < 0).map(e => e.className)"""
        )
        assert unreached == []


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_has_title_verdict_and_headline_figure(
    visit: Any, width: int, height: int
) -> None:
    page = visit("papers/alpha.html", width=width, height=height)
    page.wait_for_selector(".notebook > header .plot .main-svg")
    title = page.locator("header h1").bounding_box()
    figure = page.locator(".notebook > header .plot").bounding_box()
    assert title["y"] + title["height"] < figure["y"] < 0.75 * height
    banner = page.locator(".banner")
    assert banner.count() == 0 or banner.bounding_box()["y"] > figure["y"]


@pytest.mark.parametrize("name", ["index", "papers/alpha", "scoreboard", "graph"])
def test_no_text_is_smaller_than_twelve_pixels(visit: Any, name: str) -> None:
    page = visit(f"{name}.html", width=1280, height=800)
    small = page.evaluate(
        """[...document.querySelectorAll('body *')].filter(e => !e.closest('svg, math, script')
             && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())
             && e.checkVisibility() && parseFloat(getComputedStyle(e).fontSize) < 12)
             .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert small == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "name",
    [
        "index.html",
        "papers/alpha.html",
        "scoreboard.html",
        "graph.html",
        "benchmarks.html",
        "families/energy.html",
    ],
)
def test_axe_finds_nothing_serious(browser: Any, wider: Path, name: str, scheme: str) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto((wider / name).as_uri())
    page.wait_for_timeout(300)
    answer = axe.Axe().run(page).response
    assert len(answer["passes"]) > 10
    serious = [
        (v["id"], [node["html"][:120] for node in v["nodes"]][:3])
        for v in answer["violations"]
        if v["impact"] in ("serious", "critical")
    ]
    context.close()
    assert serious == []


@pytest.mark.parametrize(("fingers", "bars"), [(True, 0), (False, 1)])
def test_no_tool_bar_covers_a_title_under_a_finger(
    browser: Any, wider: Path, fingers: bool, bars: int
) -> None:
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=fingers, is_mobile=fingers
    )
    page = context.new_page()
    page.goto((wider / "papers/alpha.html").as_uri())
    plot = page.locator("article .plot").first
    plot.scroll_into_view_if_needed()
    plot.locator(".main-svg").first.wait_for()
    assert plot.locator(".modebar").count() == bars
    context.close()
