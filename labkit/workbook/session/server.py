"""How the session's Jupyter server is started: on which address, who may enter, what it leaves out;
and Lab's start page: what is next, what is open, what was done last.

Our servers write in the project alone: settings, workspaces, signatures of notebooks and Voilà's
template stand in ``results/lab/.jupyter``, one folder for Lab and one for single pages, settings
written anew at each start; what is deleted in Lab goes to ``results/lab/trash``. What must not
outlive the server (the token, cookies, sockets of kernels) stands in a temporary folder of its own
that only the user can enter. What else a session leaves in the user's home is not the servers': a
browser's profile, the history that IPython keeps of a kernel, and what a notebook itself writes.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from labkit import extras, files
from labkit.errors import LabkitError, UsageError
from labkit.kit import scratch
from labkit.workbook import notebooks
from labkit.workbook.queue import questions, reading_queue
from labkit.workbook.review import claims, tally
from labkit.workbook.review.scaffold import filled
from labkit.workbook.run import processes

START = Path("results/lab/start.md")
HOME = START.parent / ".jupyter"
PANELS = START.parent / "panels"
NOTEBOOKS = "notebooks"
"""Where Lab's file browser opens."""
TRASH = START.parent / "trash"
_RUNTIME = "labkit-server-"
LOOPBACK = "127.0.0.1"
PORTS = range(8888, 8938)
SHORTEST_TOKEN = 16
_ONLY_THIS_MACHINE = (
    "default-src 'self' data: blob:; connect-src 'self' ws:; frame-ancestors 'self'; "
    "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'"
)
"""Content security policy: whatever a library would load, the browser asks no other machine."""
NOT_IN_VOILA = ["@jupyterhub/jupyter-server-proxy"]
"""Lab's extensions that Voilà's pages do not load: they need parts of Lab that those lack."""
# What a page alone, a deck or a panel, does without.
_LAB = (
    "jupyter_lsp",
    "jupyter_server_proxy",
    "jupyter_server_terminals",
    "jupyterlab",
    "notebook_shim",
)
_VIEWERS = {"defaultViewers": {"markdown": "Markdown Preview"}}
# Lab's question about news, its notice of a new version, and what installs extensions.
_NOT_IN_LAB = {
    "@jupyterlab/apputils-extension:announcements": True,
    "@jupyterlab/extensionmanager-extension": True,
}
_SETTINGS = {
    "settings/overrides.json": {
        "@jupyterlab/docmanager-extension:plugin": _VIEWERS,
        # Text of a notebook that nobody ran gives Lab no orders.
        "@jupyterlab/apputils-extension:sanitizer": {"allowCommandLinker": False},
    },
    "settings/page_config.json": {"disabledExtensions": _NOT_IN_LAB},
}
# What controls send to a kernel, as Voilà by itself allows it; no code.
_MESSAGES = [
    "comm_open",
    "comm_close",
    "comm_msg",
    "comm_info_request",
    "kernel_info_request",
    "shutdown_request",
]
# For a file that Jupyter reads whole; from those in jupyter_server_config.d it takes extensions.
_PAGE = {
    "ServerApp": {"tornado_settings": {"headers": {"Content-Security-Policy": _ONLY_THIS_MACHINE}}},
    "MappingKernelManager": {"allowed_message_types": _MESSAGES},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the server listens, and the token that whoever opens it must have."""

    ip: str
    port: int
    token: str = field(repr=False)

    def url(self, path: str) -> str:
        """The address of a page, token included."""
        return f"http://{self.ip}:{self.port}{path}?token={self.token}"


def address(ip: str = LOOPBACK, port: int = 0) -> Address:
    """An address with its token: ``$JUPYTER_TOKEN``, else a random one; ``port`` 0 is the first
    free one from 8888 on.

    Raises UsageError where ``ip`` is no address of this machine, others could reach it and no good
    token is set, or the port is taken.
    """
    try:
        local = ipaddress.IPv4Address(ip).is_loopback
    except ValueError:
        raise UsageError(f"--ip {ip}: not an IPv4 address such as 192.168.1.20") from None
    token = os.environ.get("JUPYTER_TOKEN", "")
    if not local and len(token) < SHORTEST_TOKEN:
        raise UsageError(
            f"--ip {ip} lets others in, who can then run any code: set JUPYTER_TOKEN to a token of "
            f"{SHORTEST_TOKEN} characters or more that only the group knows, such as "
            f"{secrets.token_hex(16)}"
        )
    for number in [port] if port else PORTS:
        with suppress(OSError), socket.create_server((ip, number)):
            return Address(ip=ip, port=number, token=token or secrets.token_hex(24))
    raise UsageError(f"cannot listen on {ip}:{port or PORTS}: taken, or not this machine's address")


def lab_arguments(root: Path, *, collaborative: bool = False) -> list[str]:
    """What JupyterLab is started with, to open on the start page.

    Raises UsageError where it is to be ``collaborative`` without jupyter-collaboration.
    """
    if collaborative and util.find_spec("jupyter_collaboration") is None:
        raise UsageError(f"--collaborative needs more: {extras.command('collab')}")
    never = "jupyterlab.handlers.announcements.NeverCheckForUpdate"
    home = root / HOME / "lab"
    return [
        f"--LabApp.default_url=/lab/tree/{START.as_posix()}?file-browser-path=/{NOTEBOOKS}",
        f"--LabApp.app_settings_dir={home / 'settings'}",
        f"--LabApp.workspaces_dir={home / 'workspaces'}",
        "--LabApp.news_url=None",
        f"--LabApp.check_for_updates_class={never}",
        "--LabApp.extension_manager=readonly",
        "--ServerApp.contents_manager_class=labkit.workbook.session.contents.Contents",
        "--ContentsManager.pre_save_hook=labkit.workbook.normalise.keep_outputs",
        f"--YDocExtension.disable_rtc={not collaborative}",
        f"--YDocExtension.session_store_path={home / 'sessions.json'}",
        f"--SQLiteYStore.db_path={home / 'edits.db'}",
        "--LanguageServerManager.autodetect=False",  # it would ask npm, which writes to the home
    ]


def serve(
    root: Path,
    page: str,
    place: Address,
    arguments: list[str],
    panels: Mapping[str, str] | None = None,
    notebook: Path | None = None,
) -> None:
    """Run Lab (``page`` is "lab") or a server of one page in this process until it is stopped.

    The token is an argument of a call, not of a process: no list of processes shows it.

    Args:
        page: the path of the page, such as ``/labkit/deck/KEY``.
        panels: notebooks by name; Lab's launcher has an item for each, which opens it in Voilà.
        notebook: the one that Voilà runs for the page; no other is to be had there.
    """
    is_lab = page == "lab"
    for part in ("jupyterlab" if is_lab else "jupyter_server", "voila", "anywidget"):
        if util.find_spec(part) is None:
            raise UsageError(f"{part} is missing: {extras.command('lab')}")
    _write_home(home := root / HOME / ("lab" if is_lab else "page"), lab=is_lab)
    if is_lab:
        write_panels(root, home, place.port, panels or {})
    for variable in ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH"):
        paths = [str(home), os.environ.get(variable, "")]
        os.environ[variable] = os.pathsep.join(filter(None, paths))
    if (root / files.MARKER).is_file():  # a panel needs no workbook
        os.environ["LABKIT_ROOT"] = str(root)
    where = [
        f"--ServerApp.{name}={value}"
        for name, value in (
            ("root_dir", root),
            ("ip", place.ip),
            ("port", place.port),
            ("port_retries", 0),
        )
    ]
    alone = [
        f"--ServerApp.{name}={value}"
        for name, value in (
            ("default_url", page),
            ("log_level", "WARN"),
            ("answer_yes", True),
        )
    ]
    where += [f"--IdentityProvider.token={place.token}", *([] if is_lab else alone)]
    where += [f"--NotebookNotary.data_dir={home}"]
    # Sockets in the user's own folder: whoever is on this machine could listen to a port.
    where += [] if sys.platform == "win32" else ["--KernelManager.transport=ipc"]
    scratch.sweep(_RUNTIME, processes.short_folder())
    runtime, lock = scratch.claimed(_RUNTIME, processes.short_folder())
    os.environ["JUPYTER_RUNTIME_DIR"] = str(runtime)
    try:
        if is_lab:
            _lab().launch_instance([*where, *arguments])
        else:
            from labkit.workbook.session.guard import Server

            served = [page] if notebook is None else [page, rendered(root, notebook)]
            Server.launch_instance([*where, *arguments], served=served)
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
        os.close(lock)


def rendered(root: Path, notebook: Path) -> str:
    """The path, encoded, at which Voilà runs a notebook."""
    return f"/voila/render/{quote(notebook.relative_to(root).as_posix())}"


def _lab() -> Any:
    """JupyterLab, on a server that stops when it is told to."""
    from jupyterlab.labapp import LabApp

    from labkit.workbook.session.guard import Server

    class Lab(LabApp):
        serverapp_class = Server
        migrate_config = Server.migrate_config

    return Lab


def _write_home(home: Path, *, lab: bool) -> None:
    """Write the folder of settings; without ``lab`` only what one page needs is served."""
    extensions = {"labkit.workbook.session.extension": True, "voila.server_extension": False}
    extensions |= {} if lab else dict.fromkeys(_LAB, False)
    served = {"ServerApp": {"jpserver_extensions": extensions}}
    written = _SETTINGS | {"jupyter_server_config.d/labkit.json": served}
    written |= {} if lab else {"jupyter_server_config.json": _PAGE}
    for name, content in written.items():
        files.write_atomically(home / name, json.dumps(content, indent=1) + "\n")
    template = files.read_text(Path(__file__).parent / "templates" / "live.html.j2")
    files.write_atomically(home / "voila/templates/live/index.html.j2", template)
    files.write_atomically(home / "voila/templates/live/conf.json", '{"base_template": "lab"}\n')


def write_panels(root: Path, home: Path, port: int, panels: Mapping[str, str]) -> None:
    """Write the notebooks ``panels``, and an item of Lab's launcher for each.

    jupyter-server-proxy shows the items. Each opens a page of this same server, so that nothing
    else listens and Lab's token guards it; ``port`` is there since an item must have a server.
    """
    items = {}
    for name, text in panels.items():
        files.write_atomically(root / PANELS / f"{name}.ipynb", text)
        page = f"voila/render/{PANELS.as_posix()}/{name}.ipynb"
        entry = {"title": f"Panel: {name}", "path_info": page, "category": "Other"}
        items[f"panel-{name}"] = {"launcher_entry": entry, "new_browser_tab": False, "port": port}
    config = json.dumps({"ServerProxy": {"servers": items}}, indent=1) + "\n"
    files.write_atomically(home / "jupyter_server_config.json", config)


def _numbered_open(listed: list[questions.Question]) -> list[tuple[int, questions.Question]]:
    """Keep the questions that are open, each with its number among all."""
    numbered = enumerate(listed, 1)
    return [(number, question) for number, question in numbered if question.is_open]


def write_start(root: Path, today: dt.date | None = None) -> None:
    """Write the start page; raises BadFile where the queue or a file of questions is malformed."""
    queue = reading_queue.load(root)
    day = today or dt.date.today()
    asked = {paper: questions.load(root, paper.key) for paper in queue.reading_order()}
    known = {key: _reviewed(root, path) for key, path in notebooks.paths(root).items()}
    text = filled(
        "start.md.j2",
        "labkit.workbook.session",
        coming=queue.coming(day),
        heard=queue.heard(day),
        asked=asked,
        open={paper: _numbered_open(listed) for paper, listed in asked.items()},
        notebooks=known,
        reviewed=sorted(
            (paper for paper in queue if paper.key in known),
            key=lambda paper: (known[paper.key].family, paper.key),
        ),
        signs=", ".join(f"{sign} {verdict}" for verdict, sign in tally.SYMBOLS.items()),
        library=queue.library,
    )
    files.write_atomically(root / START, text)


class _Reviewed(NamedTuple):
    """What the start page says of a paper that has a notebook."""

    link: str
    family: str
    verdicts: str


def _reviewed(root: Path, path: Path) -> _Reviewed:
    """Look at a notebook as committed; one that cannot be read is listed too, and says so."""
    link = quote(os.path.relpath(path, (root / START).parent))
    try:
        records = claims.from_notebook(notebooks.glimpse(path))
    except LabkitError:
        return _Reviewed(link, path.parent.name, "cannot be read: `labkit check` says why")
    counts = tally.tally(records).all
    said = " · ".join(f"{tally.SYMBOLS[verdict]} {count}" for verdict, count in counts.items())
    return _Reviewed(link, path.parent.name, said or "none judged")
