"""What the session's Jupyter server serves beside Jupyter: live decks.

A live deck is the exported deck; over its explorable lies a frame in which Voilà runs the notebook
up to that figure. Until the kernel is ready, and where it fails, the stored figure stays.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado import web
from voila import notebook_renderer
from voila import server_extension as voila
from voila.execute import VoilaExecutor

from labkit import files
from labkit.errors import LabkitError
from labkit.kit.page import json_for_script, with_script
from labkit.workbook.export import origin, pages
from labkit.workbook.review.anatomy import Subject
from labkit.workbook.run.runner import WakingOutputWidget
from labkit.workbook.session import guard, server

_SCRIPT = Path(__file__).parent / "templates" / "live.js"
_OWN_MATHJAX = {"fullMathjaxUrl": None, "mathjaxConfig": None}  # Voilà then takes what it ships
_LIVE = "live"  # Voilà's template of ours, and the tag of the cells that it shows


class WakingExecutor(VoilaExecutor):
    """Voilà's way to run cells, without the hang on ``Output`` widgets."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.widget_registry = {"@jupyter-widgets/output": {"OutputModel": WakingOutputWidget}}


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(app: Any) -> None:
    """Jupyter's entry: Voilà with a template and an executor of ours, and the decks; of a server
    of one page, nothing else."""
    settings = app.config.VoilaConfiguration
    settings.template = _LIVE
    settings.show_tracebacks = True
    settings.extension_denylist = server.NOT_IN_VOILA
    settings.prelaunch_hook = live_cells
    settings.page_config_hook = lambda config, **_: config | _OWN_MATHJAX
    notebook_renderer.VoilaExecutor = WakingExecutor
    voila._load_jupyter_server_extension(app)
    base_url = app.web_app.settings["base_url"]
    route = url_path_join(base_url, r"labkit/deck/([a-z0-9-]+)")
    app.web_app.add_handlers(".*$", [(route, Deck, {"root": Path(app.root_dir)})])
    if served := getattr(app, "served", ()):  # of our own server
        guard.serve_only(app.web_app, base_url, served)
    guard.keep_trash(Path(app.root_dir) / server.TRASH)


class Deck(JupyterHandler):
    """``/labkit/deck/KEY``."""

    def initialize(self, root: Path) -> None:
        self.root = root

    @web.authenticated
    async def get(self, key: str) -> None:
        try:
            html = await asyncio.to_thread(live_deck, self.root, key, self.base_url)
        except LabkitError as error:
            raise web.HTTPError(404, str(error)) from None
        self.set_header("Cache-Control", "no-store")
        await self.finish(html)


def live_deck(root: Path, key: str, base_url: str) -> str:
    """The exported deck of paper ``key`` with a frame for its live figure; raises UsageError where
    it has no notebook."""
    source = origin.find(root, key)
    html, *_ = pages.deck(source)
    live = json_for_script(url_path_join(base_url, server.rendered(root, source.committed)))
    return with_script(html, f"const LIVE = {live};\n{files.read_text(_SCRIPT)}")


def live_cells(handler: Any, notebook: Any, cwd: str) -> Any:
    """Voilà's ``prelaunch_hook``: of a paper's notebook, the code up to its explorable, tagged."""
    section = Subject(Path(), "", Path(), notebook).section("explorable")
    shown = section.code if section else []
    for cell in shown:
        cell.node.metadata["tags"] = [*cell.tags, _LIVE]
    if shown:
        upto = notebook.cells[: shown[-1].number]
        notebook.cells = [cell for cell in upto if cell.cell_type == "code"]
    return notebook
