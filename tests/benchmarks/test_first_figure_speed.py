"""How long a reader waits for the first figure, in Lab and in each panel; no time is asserted.

``make bench`` runs it with a real browser. Three waits: until the server answers, until a page
with a notebook (its stored outputs) or a panel shows its first figure, and in Lab until the live
figure stands after its cells ran. The first page of a server comes apart from the next ones,
whose scripts the browser already holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.files import project_root
from labkit.workbook import notebooks
from tests.browser.servers import LAB, TOKEN, serving
from tests.browser.test_live import CHROMIUM, DRAWN, PANELS, RUN, browser, in_lab

__all__ = ["browser"]  # the fixture of the browser's tests

pytestmark = [
    pytest.mark.large,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found: nobody sees a figure"),
]

KEYS = ("zeus", "perseus", "zero")
LONGEST_MS = 100_000
SEEN = """() => [...document.querySelectorAll('.js-plotly-plot .main-svg')].some((drawing) => {
    const { top, bottom, width } = drawing.getBoundingClientRect();
    return width > 0 && bottom > 0 && top < innerHeight;
})"""
OPEN = """async (path) => {
    await jupyterapp.commands.execute('application:close-all');
    const opened = await jupyterapp.commands.execute('docmanager:open', { path });
    await opened.context.ready;
    const isFigure = (output) => 'application/vnd.plotly.v1+json' in (output.data ?? {});
    const shows = (cell) => (cell.model.outputs?.toJSON() ?? []).some(isFigure);
    await opened.content.scrollToItem(opened.content.widgets.findIndex(shows), 'start');
}"""

CLOSE = """async () => {
    await jupyterapp.shell.currentWidget.context.sessionContext.ready;
    await jupyterapp.commands.execute('application:close-all');
    await jupyterapp.serviceManager.sessions.shutdownAll();
}"""


class Watch:
    """Seconds since the last look."""

    def __init__(self) -> None:
        self.since_s = time.perf_counter()

    def lap_s(self) -> float:
        now_s = time.perf_counter()
        lap_s = now_s - self.since_s
        self.since_s = now_s
        return lap_s


@pytest.fixture
def pages(browser: Any) -> Iterator[Any]:
    """A browser that has seen nothing yet, so that no script is cached."""
    context = browser.new_context(viewport={"width": 1300, "height": 1000})
    yield context
    context.close()


def test_the_first_figure_in_lab(benchmark: Any, browser: Any, tmp_path: Path) -> None:
    root = project_root()
    at = {key: path.relative_to(root).as_posix() for key, path in notebooks.paths(root).items()}
    waits_s: dict[str, float] = {}

    def read() -> None:
        watch = Watch()
        with serving(*LAB, f"--ServerApp.root_dir={root}", folder=tmp_path) as address:
            waits_s["server"] = watch.lap_s()
            page = in_lab(browser, address, [])
            waits_s["Lab's own page"] = watch.lap_s()
            for key in KEYS:
                watch.lap_s()
                page.evaluate(OPEN, at[key])
                page.wait_for_function(SEEN, timeout=LONGEST_MS)
                waits_s[f"{key}: stored figure"] = watch.lap_s()
                page.evaluate(CLOSE)
                watch.lap_s()
                assert page.evaluate(RUN, at[key]) == []
                page.wait_for_function(f"() => ({DRAWN})().length > 0", timeout=LONGEST_MS)
                waits_s[f"{key}: live figure, cells before it run"] = watch.lap_s()

    benchmark.pedantic(read, rounds=1)
    told(benchmark, "Lab", waits_s)


@pytest.mark.parametrize("name", PANELS)
def test_the_first_figure_of_a_panel(
    benchmark: Any, pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("JUPYTER_TOKEN", TOKEN)
    command = ("labkit", "panel", name, "--no-browser", "--port", "{port}")
    waits_s: dict[str, float] = {}

    def read() -> None:
        watch = Watch()
        with serving(*command, folder=tmp_path, ready="/voila/static/voila.js") as address:
            waits_s["server"] = watch.lap_s()
            for visit in ("first visit", "second visit"):
                page = pages.new_page()
                watch.lap_s()
                page.goto(f"{address}/?token={TOKEN}")
                page.wait_for_function(f"() => ({DRAWN})().length > 0", timeout=LONGEST_MS)
                waits_s[visit] = watch.lap_s()
                page.close()

    benchmark.pedantic(read, rounds=1)
    told(benchmark, f"panel {name}", waits_s)


def told(benchmark: Any, where: str, waits_s: dict[str, float]) -> None:
    benchmark.extra_info |= waits_s
    steps = "; ".join(f"{step} {wait_s:.1f} s" for step, wait_s in waits_s.items())
    print(f"\n{where}: {steps}")
