"""Live explorables where readers meet them: JupyterLab and the panels, in a real browser.

Lab on every notebook and all panels take minutes: ``LABKIT_BROWSER=all pytest tests/browser``.
"""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from labkit.files import project_root
from labkit.workbook import normalise, notebooks
from tests.browser.servers import LAB, TOKEN, serving
from tests.browser.test_offline import ALL, CHROMIUM, only_if_all

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("anywidget", reason="live figures need anywidget: the extra 'lab'")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found: live controls unseen"),
]

NOTEBOOKS = notebooks.paths(project_root())
ALL_STORED = {  # lists of settings, and ranges of a few whole numbers: nothing lies in between
    "dapple",
    "elasticflow",
    "envpipe",
    "gavel",
    "hare",
    "kungfu",
    "largebatch",
    "pollux",
    "reef",
    "synergy",
    "tiresias",
    "zeus",
}
PANELS = ("pipeline", "memory", "tuning", "cluster", "serving")

SOURCE = """
from labkit import workbook
from labkit.kit import draw
def bar(stages, rate):
    if rate > 1.9:
        raise ValueError("rate must be <= 1.9")
    figure = draw.go.Figure(draw.go.Bar(x=["bubble"], y=[rate * (stages - 1)]))
    return draw.finish(figure, title=f"{stages} stages at {rate:g}")
workbook.explore(bar, stages=(2, 302), rate=(1.0, 2.0))
"""

RUN = """async (path) => {
    await jupyterapp.commands.execute('application:close-all');
    const { content, context } = await jupyterapp.commands.execute('docmanager:open', { path });
    await context.ready;
    await context.sessionContext.ready;
    const at = content.widgets.findIndex((c) => c.model.sharedModel.source.includes('.explore('));
    content.activeCellIndex = at;
    await jupyterapp.commands.execute('notebook:run-all-above');
    await jupyterapp.commands.execute('notebook:run-cell');
    await content.scrollToItem(at, 'start');
    const outputs = content.widgets.flatMap((cell) => cell.model.outputs?.toJSON() ?? []);
    return outputs.filter((output) => output.output_type === 'error').map((error) => error.evalue);
}"""
DRAWN = """() => [...document.querySelectorAll('.widget-vbox .js-plotly-plot')].map((plot) =>
    JSON.stringify([plot.data.map((t) => [t.x, t.y, t.z, t.base]), plot.layout.title.text]))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


def opened(browser: Any, address: str, complaints: list[str]) -> Any:
    page = browser.new_page(viewport={"width": 1300, "height": 1000})
    page.set_default_timeout(300_000 if ALL else 60_000)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("requestfinished", lambda r: _outside(r.url, complaints))
    page.goto(address)
    return page


def _outside(address: str, complaints: list[str]) -> None:
    if address.startswith("http") and "//127.0.0.1:" not in address:
        complaints.append(f"asked for {address}")


def moved(page: Any, *, far: bool = False) -> tuple[list[str], list[str]]:
    """What the live figures hold before and after the first slider moves by a step, or to one
    step before its other end."""
    handle = page.locator(".widget-vbox .noUi-handle").first
    handle.wait_for()
    page.wait_for_function(f"() => ({DRAWN})().length > 0")
    before = page.evaluate(DRAWN)
    handle.focus()
    track = page.locator(".widget-vbox .noUi-target").first.bounding_box()
    high = handle.bounding_box()["x"] > track["x"] + track["width"] / 2
    if far:
        page.keyboard.press("Home" if high else "End")
    page.keyboard.press("ArrowLeft" if high != far else "ArrowRight")
    page.wait_for_function(f"before => ({DRAWN})().join() !== before", arg=",".join(before))
    return before, page.evaluate(DRAWN)


def in_lab(browser: Any, address: str, complaints: list[str]) -> Any:
    page = opened(browser, f"{address}/lab?token={TOKEN}&reset", complaints)
    page.wait_for_function("() => window.jupyterapp?.shell")
    page.evaluate("() => jupyterapp.restored")
    return page


def test_lab_moves_updates_refuses_and_saves_nothing(browser: Any, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(SOURCE, id="explorable")],
        metadata={
            "labkit": {"paper": "tiny"},
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
        },
    )
    path = tmp_path / "tiny.ipynb"
    complaints = []
    path.write_text(normalise.dumps(normalise.normalise(notebook)), encoding="utf-8")
    before = path.read_bytes()
    with serving(*LAB, folder=tmp_path) as address:
        page = in_lab(browser, address, complaints)
        assert page.evaluate(RUN, "tiny.ipynb") == []
        _, after = moved(page)
        assert "3 stages at 1" in after[0]
        page.locator(".widget-vbox .noUi-handle").first.focus()
        for _ in range(300):
            page.keyboard.press("ArrowRight")
        page.wait_for_function(f"() => ({DRAWN})()[0].includes('302 stages')")
        page.locator(".noUi-handle").nth(1).focus()
        page.keyboard.press("End")
        page.get_by_text("rate must be <= 1.9", exact=True).wait_for()
        assert "302 stages at 1" in page.evaluate(DRAWN)[0]
        page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
        page.close()
    assert complaints == []
    assert nbformat.read(path, 4).cells[0].outputs == []
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "memory" else only_if_all) for n in PANELS]
)
def test_a_panel_answers_to_the_keyboard(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    complaints: list[str] = []
    monkeypatch.setenv("JUPYTER_TOKEN", TOKEN)
    command = ("labkit", "panel", name, "--no-browser", "--port", "{port}")
    with serving(*command, folder=tmp_path, ready="/voila/static/voila.js") as address:
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert "/login?" in answer.url, "nobody enters without the token"
        page = opened(browser, f"{address}/?token={TOKEN}", complaints)
        call = page.locator("code").last.inner_text()
        assert call.startswith(f"labkit {name} ")
        moved(page)
        page.wait_for_function(
            "call => [...document.querySelectorAll('code')].at(-1).innerText !== call", arg=call
        )
        assert page.get_by_role("alert").count() == 0
        page.close()
    assert complaints == []


@pytest.fixture(scope="module")
def lab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, list[str]]]:
    """A page with JupyterLab on the committed notebooks, and what its browser complained of."""
    complaints: list[str] = []
    root = f"--ServerApp.root_dir={project_root()}"
    with serving(*LAB, root, folder=tmp_path_factory.mktemp("lab")) as address:
        page = in_lab(browser, address, complaints)
        yield page, complaints
        page.close()


def stored_values(path: Path) -> list[float]:
    """Where the slider of a notebook's stored explorable can stand."""
    outputs = [out for cell in notebooks.read(path).cells for out in cell.get("outputs", [])]
    figures = [out.get("data", {}).get(notebooks.PLOTLY_MIME) for out in outputs]
    (slider,) = [f["layout"]["sliders"][0] for f in figures if f and "sliders" in f["layout"]]
    return [float(step["label"]) for step in slider["steps"]]


@only_if_all
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("key", NOTEBOOKS)
def test_lab_moves_every_notebook_and_changes_none(lab: Any, key: str) -> None:
    page, complaints = lab
    complaints.clear()
    status = ["git", "status", "--short"]
    before = subprocess.run(status, cwd=project_root(), capture_output=True, text=True).stdout
    try:
        path = NOTEBOOKS[key].relative_to(project_root()).as_posix()
        assert page.evaluate(RUN, path) == []
        moved(page, far=True)
        if key not in ALL_STORED:
            readout = page.locator(".widget-vbox .widget-readout").first
            assert float(readout.inner_text()) not in stored_values(NOTEBOOKS[key])
        assert page.locator(".widget-vbox").get_by_role("alert").count() == 0
    finally:
        page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
        page.evaluate("() => jupyterapp.serviceManager.sessions.shutdownAll()")
    assert complaints == []
    after = subprocess.run(status, cwd=project_root(), capture_output=True, text=True).stdout
    assert after == before
