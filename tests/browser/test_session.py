"""A session on a real server: who gets in, what Lab opens on, a deck whose figure is live."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from labkit.workbook import normalise
from labkit.workbook.queue import edits
from tests.browser.test_offline import CHROMIUM, playwright
from tests.export import synthetic

pytest.importorskip("jupyterlab", reason="JupyterLab is not installed (extra: lab)")
pytest.importorskip("voila", reason="Voilà is not installed (extra: lab)")
sees = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium found (set LABKIT_CHROMIUM to one): pixels unseen"
)
pytestmark = pytest.mark.slow

TOKEN = "a token for the tests only"
LIVE = """
import os, ipywidgets
ours = {"JPY_SESSION_NAME", "VOILA_BASE_URL"}  # a front end of Lab's or of Voilà's
out, stages = ipywidgets.Output(), ipywidgets.IntSlider(2, 1, 9, description="stages")
def show(change):
    out.clear_output()
    with out:
        print("live:", bool(ours & set(os.environ)), "square:", stages.value ** 2)
stages.observe(show, "value")
show(None)
ipywidgets.VBox([stages, out])
"""
FIGURE = """
from labkit import workbook
from labkit.kit import draw
def bar(num_stages, chunks):
    share = (num_stages - 1) / (4 * chunks + num_stages - 1)
    figure = draw.go.Figure(draw.go.Bar(x=["bubble"], y=[share]))
    return draw.finish(figure, title=f"Idle share, {num_stages} stages")
workbook.explore(bar, num_stages=(2, 16), chunks=[1, 2], label={"num_stages": "pipeline stages"})
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed workbook whose explorable is a widget when its kernel runs."""
    root = synthetic.make(tmp_path_factory.mktemp("session") / "workbook")
    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cell.metadata.tags != ["hostile"]]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = LIVE if cell.metadata.tags == ["explore"] else "print('not shown')"
    path.write_text(normalise.dumps(normalise.normalise(notebook)), encoding="utf-8")
    for cell in notebook.cells:  # a second paper, whose kernel fails before it comes so far
        cell.source = "1 / 0" if cell.metadata.tags == ["setup"] else cell.source
    nbformat.write(notebook, path.with_name("beta.ipynb"))
    for cell in notebook.cells:  # a third, whose explorable is a figure of the workbook's
        if cell.metadata.tags == ["explore"]:
            cell.source = FIGURE
        elif cell.cell_type == "code":
            cell.source = "print('not shown')"
    nbformat.write(notebook, path.with_name("delta.ipynb"))
    edits.ask(root, "alpha", "Is the last stage <always> the slowest?", by="Ann")
    (root / ".gitignore").write_text("results/\n.ipynb_checkpoints/\n.*.lock\n")
    for command in ("init -q", "add -A", "-c user.name=T -c user.email=t@t commit -qm start"):
        subprocess.run(["git", *command.split()], cwd=root, check=True)
    return root


@pytest.fixture(scope="module")
def address(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Lab and a deck, each served by its command; gives the address of either by its name."""
    home = tmp_path_factory.mktemp("home")
    ports = {}
    servers = []
    for name, arguments in {"lab": ["lab"], "deck": ["present", "alpha"]}.items():
        with socket.create_server(("127.0.0.1", 0)) as probe:
            ports[name] = probe.getsockname()[1]
        options = ["--no-browser", "--allow-root", f"--port={ports[name]}"]
        code = f"from labkit.cli import main; main({[*arguments, *options]})"
        environment = os.environ | {
            "HOME": str(home),
            "JUPYTER_TOKEN": TOKEN,
            "LABKIT_ROOT": str(root),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        log = (home / f"{name}.log").open("w")
        run = [sys.executable, "-c", code]
        servers.append(subprocess.Popen(run, env=environment, cwd=root, stdout=log, stderr=log))
    for name, port in ports.items():
        _wait_for(port, home / f"{name}.log")
    yield lambda name, path="/": f"http://127.0.0.1:{ports[name]}{path}"
    for server in servers:
        server.terminate()
    for server in servers:
        server.wait(20)
    assert not (home / ".jupyter").exists()  # the settings stand in the project


def _wait_for(port: int, log: Path) -> None:
    for _ in range(400):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(log.read_text())


def _status(address: str) -> int:
    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    try:
        return urllib.request.build_opener(Stay).open(address, timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("server", "path"),
    [
        ("lab", "/lab"),
        ("lab", "/labkit/deck/alpha"),
        ("lab", "/voila/render/notebooks/energy/alpha.ipynb"),
        ("deck", "/labkit/deck/alpha"),
        ("deck", "/voila/render/notebooks/energy/alpha.ipynb"),
    ],
)
def test_nobody_enters_without_the_token(address: Any, server: str, path: str) -> None:
    assert _status(address(server, path)) == 302  # to the login page
    assert _status(address(server, path + "?token=guessed")) == 302


@pytest.mark.parametrize("path", ["/api/contents", "/api/kernels", "/api/sessions"])
def test_the_interface_of_the_server_asks_for_the_token_too(address: Any, path: str) -> None:
    assert _status(address("lab", path)) == 403
    assert _status(f"{address('lab', path)}?token={TOKEN.replace(' ', '%20')}") == 200


def test_a_deck_alone_comes_without_lab_and_names_what_is_missing(address: Any) -> None:
    token = TOKEN.replace(" ", "%20")
    assert _status(f"{address('deck', '/lab')}?token={token}") == 404
    assert _status(f"{address('deck', '/labkit/deck/gamma')}?token={token}") == 404


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", rules]
        started = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that enters with the token; afterwards, nothing was asked of another machine."""
    outside: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    ours = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "about:")
    page.on("request", lambda r: None if r.url.startswith(ours) else outside.append(r.url))
    page.enter = lambda url: page.goto(f"{url}?token={TOKEN}", wait_until="domcontentloaded")
    yield page
    page.close()
    assert outside == []


@sees
def test_lab_opens_on_the_start_page_without_pop_ups_and_saves_what_was_committed(
    address: Any, page: Any, root: Path
) -> None:
    page.enter(address("lab"))
    shown = page.locator(".jp-MarkdownViewer .jp-RenderedMarkdown")
    shown.get_by_text("Is the last stage <always> the slowest?").wait_for(timeout=60_000)
    assert "Beta: The Time–Energy Frontier" in shown.inner_text()  # next: it is being read
    page.wait_for_timeout(2_000)
    assert page.locator(".Toastify__toast, .jp-Dialog").count() == 0
    shown.locator("a[href*='alpha.ipynb']").first.click()
    page.get_by_text("(ipykernel) | Idle").wait_for(timeout=60_000)  # the kernel is up
    page.wait_for_timeout(1_000)
    assert page.locator(".jp-mod-dirty").count() == 0  # to open a notebook changes nothing
    assert page.locator(".jp-BreadCrumbs").inner_text().strip(" /") == "notebooks"
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    last = page.locator(".jp-Notebook .jp-CodeCell .jp-OutputArea-output").last  # in view then
    last.get_by_text("not shown").wait_for(timeout=60_000)
    page.keyboard.press("Control+s")
    page.wait_for_timeout(1_500)
    done = subprocess.run(["git", "diff"], cwd=root, capture_output=True, text=True)
    assert done.stdout == ""


@sees
def test_labs_launcher_opens_a_panel(address: Any, page: Any) -> None:
    pytest.importorskip("jupyter_server_proxy", reason="it shows the launcher's items (extra: lab)")
    # Lab brings the tabs of its last page back, and the start page to the front, some time after
    # it can be used; an empty workspace has neither, and opens the launcher.
    page.enter(address("lab", "/lab/workspaces/panels"))
    page.locator(".jp-LauncherCard", has_text="Panel: cluster").click(timeout=60_000)
    panel = page.frame_locator(".jp-ServerProxy iframe")
    panel.get_by_role("slider").first.wait_for(timeout=90_000)
    assert "--gpus 64 " in panel.locator("code").last.inner_text()
    panel.get_by_role("slider").first.press("ArrowRight")
    panel.get_by_text("--gpus 72 ").wait_for()
    panel.locator(".js-plotly-plot").nth(1).wait_for()


def present(page: Any, address: str) -> Any:
    """Enter a deck at its explorable; what the status beside the figure says."""
    page.enter(address)
    page.wait_for_function("() => window.Reveal && Reveal.isReady()")
    page.evaluate(
        """() => {
          const at = Reveal.getIndices(document.querySelector('[data-tag="explorable"]'));
          Reveal.slide(at.h, at.v);
        }"""
    )
    return page.locator("p[role=status]")


@sees
def test_a_deck_is_live_where_its_explorable_is(address: Any, page: Any) -> None:
    status = present(page, address("deck", "/labkit/deck/alpha"))
    assert "Asked and remarked by the group" in page.locator(".slides").text_content()
    status.get_by_text("live", exact=True).wait_for(timeout=90_000)
    live = page.frame_locator("iframe[title='The live figure']")
    live.get_by_text("live: True square: 4").wait_for()
    assert live.get_by_text("not shown").count() == 0
    live.locator("[role=slider]").press("ArrowRight")
    live.get_by_text("live: True square: 9").wait_for()  # computed now, by the kernel
    before = page.evaluate("Reveal.getIndices()")
    live.locator("[role=slider]").press("PageDown")
    assert page.evaluate("Reveal.getIndices()") != before
    assert status.text_content() == ""


@sees
def test_where_the_kernel_fails_the_stored_figure_stays_and_the_deck_says_why(
    address: Any, page: Any
) -> None:
    status = present(page, address("lab", "/labkit/deck/beta"))
    status.get_by_text("the kernel failed: ZeroDivisionError").wait_for(timeout=90_000)
    assert page.locator('[data-tag="explorable"] .plot').is_visible()
    assert not page.locator("iframe[title='The live figure']").is_visible()


BOTTOM_PX = 12
"""How far the live figure's foot may be from the stored one's."""


@sees
def test_the_live_figure_takes_the_stored_ones_place_and_lettering(address: Any, page: Any) -> None:
    status = present(page, address("lab", "/labkit/deck/delta"))
    place = page.locator('[data-tag="explorable"] .plot')
    place.locator("svg.main-svg").first.wait_for()
    stored = place.bounding_box()
    status.get_by_text("live", exact=True).wait_for(timeout=90_000)
    inside = page.frame_locator("iframe[title='The live figure']")
    plot = inside.locator(".js-plotly-plot")
    plot.wait_for()
    page.wait_for_function(
        """() => {
          const frame = document.querySelector("iframe[title='The live figure']");
          return frame.contentWindow.labkitRoom && frame.style.visibility === "visible";
        }"""
    )
    page.wait_for_timeout(1_000)
    drawn = plot.bounding_box()
    assert abs(drawn["y"] + drawn["height"] - stored["y"] - stored["height"]) < BOTTOM_PX
    assert drawn["width"] > 0.97 * stored["width"]
    label = inside.locator(".widget-label").first
    assert label.bounding_box()["height"] >= 20, "as large as the slide's own control"
    assert not inside.locator(".labkit-call").is_visible()
    over = page.evaluate(
        """() => {
          const { x, y, width, height } =
            document.querySelector(".navigate-right").getBoundingClientRect();
          return document.elementFromPoint(x + width / 2, y + height / 2).closest("button, iframe")
            .className;
        }"""
    )
    assert "navigate-right" in over, "the frame does not lie over the arrows"
    before = page.evaluate("Reveal.getIndices().h")
    inside.locator("[role=slider]").first.press("PageDown")
    assert page.evaluate("Reveal.getIndices().h") == before + 1
