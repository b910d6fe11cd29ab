"""What a session's Jupyter server is kept from: answering more than its page asks for, living on
after it was told to stop, and leaving files in the user's home.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.contents import filemanager
from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher, Rule
from tornado.web import Application, HTTPError
from traitlets import List, Unicode

STOPS_WITHIN_S = 10.0
"""Seconds that kernels have to end in, once the server was told to stop."""
_KERNEL = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OF_EVERY_PAGE = (
    r"(GET|HEAD) /",
    r"(GET|POST) /login",
    r"GET /(logout|api|api/me|favicon\.ico)",
    r"GET /static/.*",  # of the login page
    r"GET /voila/(static|templates|labextensions|api/themes)/.*",
    rf"GET /api/kernels/{_KERNEL}(/channels)?",  # the second: what controls send, and get
    rf"POST /voila/api/shutdown/{_KERNEL}",  # the page was closed
)


class Unlisted(Matcher):
    """Matches every request but those of a page: by method and path, each written out whole."""

    def __init__(self, base_url: str, paths: Iterable[str]) -> None:
        exact = [f"GET {re.escape(path)}" for path in paths]
        self.base_url = base_url
        self.listed = re.compile("|".join((*_OF_EVERY_PAGE, *exact)))

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """{}: the request is refused; None: others decide."""
        path = "/" + request.path.removeprefix(self.base_url)
        return None if self.listed.fullmatch(f"{request.method} {path}") else {}


class Refused(JupyterHandler):
    """Answers every request with 404, whoever asks."""

    def prepare(self) -> None:  # type: ignore[override]
        """Before anything of the request is looked at."""
        raise HTTPError(404)


def serve_only(application: Application, base_url: str, paths: Iterable[str]) -> None:
    """Refuse every request but those for ``paths``, each as a browser encodes it, and for what
    such a page needs.

    The rule stands before all others, also of extensions that are loaded later.
    """
    application.default_router.rules.insert(0, Rule(Unlisted(base_url, paths), Refused))


class Server(ServerApp):
    """A server that stops when it is told to.

    Jupyter's ends its kernels first, and where that fails or waits for ever it lives on. It leaves
    requests unfinished, and their threads keep the process alive: a page that was only loading.
    """

    served = List(Unicode(), help="The paths that it serves; default: all that extensions add.")

    async def _stop(self) -> None:
        try:
            await asyncio.wait_for(self._cleanup(), STOPS_WITHIN_S)
        except Exception as error:
            self.log.warning("Kernels were left to end by themselves: %r", error)
        finally:
            self.io_loop.stop()

    def migrate_config(self) -> None:
        """Leave settings of IPython 3 where they are; Jupyter would note that in the home."""

    def start_ioloop(self) -> None:
        """Serve until the server is stopped, then end what is unfinished."""
        super().start_ioloop()
        loop = asyncio.get_event_loop()
        unfinished = asyncio.all_tasks(loop)
        for task in unfinished:
            task.cancel()
        if unfinished:
            loop.run_until_complete(asyncio.wait(unfinished, timeout=STOPS_WITHIN_S))


def keep_trash(folder: Path) -> None:
    """Let what is deleted in Lab go to ``folder``, not to the desktop's trash.

    What is deleted there is gone.
    """

    def move(path: str) -> None:
        if Path(path).is_relative_to(folder):
            remove = shutil.rmtree if Path(path).is_dir() else Path.unlink
            remove(Path(path))
            return
        folder.mkdir(parents=True, exist_ok=True)
        when = f"{dt.datetime.now():%Y-%m-%d-%H%M%S-%f}"
        shutil.move(path, folder / f"{when}-{Path(path).name}")

    filemanager.send2trash = move
