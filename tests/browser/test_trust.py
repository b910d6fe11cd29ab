"""Somebody else's workbook, opened, paged through and clicked: nothing of it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.workbook.export.site import write_site
from tests.browser.test_offline import browser, pytestmark
from tests.export import hostile

__all__ = ["browser", "pytestmark"]

# Fires every event that an attribute could listen to, and follows every link that is no web page's.
TOUCHED = "main :not(.canvas *), header :not(.canvas *), .canvas a"
TOUCH = """() => {
  const stay = (event) => {
    const link = event.target.closest?.("a");
    const address = link?.getAttribute("href") ?? link?.getAttribute("xlink:href") ?? "#";
    if (!/^\\s*(java|data)/i.test(address)) event.preventDefault();
  };
  addEventListener("click", stay, true);
  /* of what Plotly draws only the links, since it expects a pointer that moves */
  for (const element of document.querySelectorAll("@")) {
    for (const kind of ["mouseover", "focus", "toggle", "click"]) {
      element.dispatchEvent(new MouseEvent(kind, { bubbles: true, cancelable: true }));
    }
  }
  removeEventListener("click", stay, true);
}""".replace("@", TOUCHED)
# What would run, fetch or lie over the page, wherever it stands.
ACTIVE = """() => [...document.querySelectorAll("main *")].flatMap((e) => [
  ...[...e.attributes].filter((a) => /^on/i.test(a.name) || /^\\s*(java|vb)script:/i.test(a.value)
    || (/href$/.test(a.name) && /^\\s*data:/i.test(a.value))).map((a) => `${a.name}=${a.value}`),
  ...(/^(iframe|object|embed|base|link|form|template|animate)$/i.test(e.tagName)
    && !e.matches(".filters") ? [e.tagName] : []),
  ...(e.closest(".rich, .prose") && getComputedStyle(e).position === "fixed" ? ["fixed"] : []),
])"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    root = hostile.make(folder / "workbook", folder / "ran")
    write_site(root)
    assert not (folder / "ran").exists()
    return root / "results" / "site"


class Watched:
    """A page that notes every sign that something ran or was asked for."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.signs: list[str] = []
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.on("dialog", self._answer)
        self.page.on("pageerror", lambda error: self.signs.append(f"script error {error}"))
        self.page.on("console", self._hear)
        self.page.on("request", self._ask)
        self.context.on("page", lambda page: self.signs.append(f"opened {page.url}"))

    def _answer(self, dialog: Any) -> None:
        self.signs.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _hear(self, message: Any) -> None:
        if message.type == "error" and "Content Security Policy" not in message.text:
            self.signs.append(message.text)

    def _ask(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:image/", "blob:")):
            self.signs.append(f"asked for {request.url}")

    def close(self) -> list[str]:
        """The signs, once all that was touched had its time."""
        self.page.wait_for_timeout(300)
        if self.page.evaluate("window.pwned"):
            self.signs.append("pwned")
        self.context.close()
        return self.signs


def _papers(page: Any) -> None:
    for figure in page.locator("article .plot").all():
        figure.scroll_into_view_if_needed()
        figure.locator("svg.main-svg").first.wait_for(timeout=30_000)
    assert page.locator("body").is_visible()


def _index(page: Any) -> None:
    page.get_by_label("Search papers").fill("payload")
    page.locator(".hit").first.wait_for(timeout=10_000)


def _deck(page: Any) -> None:
    page.wait_for_function("() => window.Reveal && Reveal.isReady()")
    for _ in range(page.evaluate("Reveal.getTotalSlides()")):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(60)
    page.evaluate("Reveal.toggleOverview()")


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("papers/alpha.html", _papers),
        ("slides/alpha.html", _deck),
        ("index.html", _index),
        ("scoreboard.html", lambda _: None),
        ("families/energy.html", lambda _: None),
        ("graph.html", lambda _: None),
    ],
)
def test_cleaning_alone_lets_nothing_run(browser: Any, site: Path, name: str, use: Any) -> None:
    watched = Watched(browser, bypass_csp=True)
    watched.page.goto((site / name).as_uri())
    use(watched.page)
    assert hostile.CALL in watched.page.locator("main").inner_html()
    assert watched.page.evaluate(ACTIVE) == []
    watched.page.evaluate(TOUCH)
    assert watched.close() == []


@pytest.mark.parametrize("name", ["papers/alpha.html", "slides/alpha.html"])
def test_the_policy_alone_lets_nothing_run(browser: Any, site: Path, name: str) -> None:
    """The payload put into the finished page: it runs without the policy, and not with it."""
    html = (site / name).read_text(encoding="utf-8")
    planted = html.replace("<main", f'<b onclick="{hostile.CALL}">x</b>{hostile.HTML}<main', 1)
    bare = planted.replace("Content-Security-Policy", "nothing", 1)
    ran = []
    for text in (planted, bare):
        path = site / name.replace("alpha", "planted")
        path.write_text(text, encoding="utf-8")
        watched = Watched(browser)
        watched.page.goto(path.as_uri())
        watched.page.locator("body > b").first.dispatch_event("click")
        watched.page.wait_for_timeout(200)
        ran.append(bool(watched.page.evaluate("window.pwned")))
        watched.close()
    assert ran == [False, True]


def test_the_speaker_s_view_shows_notes_and_runs_none_of_them(browser: Any, site: Path) -> None:
    watched = Watched(browser)
    watched.page.goto((site / "slides/alpha.html").as_uri())
    watched.page.wait_for_function("() => window.Reveal && Reveal.isReady()")
    watched.page.evaluate("Reveal.slide(Reveal.getTotalSlides() - 1)")
    with watched.page.expect_popup() as popup:
        watched.page.keyboard.press("s")
    popup.value.get_by_text("payload").first.wait_for(timeout=30_000)
    popup.value.evaluate(TOUCH.replace(TOUCHED, "*"))
    assert not popup.value.evaluate("window.pwned")
    assert [sign for sign in watched.close() if not sign.startswith("opened about:blank")] == []
