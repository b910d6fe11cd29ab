"""Executes one notebook through papermill: the part of the workbook that papermill is in.

:mod:`labkit.workbook.engine` is what papermill finds by name; :mod:`labkit.workbook.run.batch` runs
many notebooks; between the two stands :func:`execute`, which a worker process calls for one.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbclient.output_widget import OutputWidget
from nbclient.util import run_sync
from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, NotebookExecutionManager
from papermill.exceptions import PapermillExecutionError
from papermill.log import logger

from labkit.errors import LabkitError, refused
from labkit.files import naming
from labkit.workbook import normalise, notebooks
from labkit.workbook.run import processes
from labkit.workbook.run.jobs import CELL_TIMEOUT_S, CellPlace, Job, Outcome, Status, Terms, now

_ORDERLY_END = """
import atexit, os, ipykernel.kernelapp

@atexit.register
def _end(thread=ipykernel.kernelapp.IPKernelApp.instance().control_thread, atexit=atexit, os=os):
    thread.join(2)
    atexit.unregister(_end)
    atexit._run_exitfuncs()
    os._exit(0)
"""

IOPUB_LIMIT_S = 60
SPARING = 10
"""How many times as long as the last save took lies between two, unless a cell takes a while."""
LATE_S = 0.5
"""Seconds that a cell runs before what ran until then is saved for certain."""
_OF_IPYTHON = re.compile(r"(\w*Error): (.+)")
_NO_MAGIC = "; load the extension that has it in a cell before (%load_ext NAME), or take it out"
_KERNEL = "kernelspec.name: python3 (in JupyterLab: Kernel, Change Kernel, Python 3, then save)"

CellListener = Callable[[str, int, NotebookNode], None]
"""Called with "start" or "error", the cell's index in the executed notebook, and the cell."""


class WakingOutputWidget(OutputWidget):
    """nbclient's stand-in for an ``Output`` widget, without its lost wake-up.

    It sends on a synchronous view of the asyncio shell socket. ZeroMQ signals by edges: the send
    takes note of everything that has arrived, so a reply already waiting never wakes the loop
    that awaits it. Looking at the socket again after each send puts the wake-up back.
    """

    def send(self, data: Any = None, metadata: Any = None, buffers: Any = None) -> None:
        super().send(data=data, metadata=metadata, buffers=buffers)
        wake(self.kernel_client.shell_channel.socket)


def wake(socket: Any) -> None:
    """Let the event loop see what waits on an asyncio ZeroMQ ``socket`` that was sent on."""
    with suppress(AttributeError):  # a plain socket has no events to lose
        socket._schedule_remaining_events()


class LabkitClient(PapermillNotebookClient):
    """Runs the cells of one notebook in a kernel of its own, and ends that kernel for good."""

    def __init__(
        self,
        manager: NotebookExecutionManager,
        *,
        notebook_timeout: float | None = None,
        kernel_mark: str | None = None,
        **kw: Any,
    ) -> None:
        super().__init__(manager, **kw)
        self._mark = kernel_mark or uuid.uuid4().hex
        self.widget_registry = {"@jupyter-widgets/output": {"OutputModel": WakingOutputWidget}}
        limit = math.inf if notebook_timeout is None else notebook_timeout
        self._deadline = time.monotonic() + limit
        self._cell_limit = self.timeout if self.timeout and self.timeout > 0 else math.inf
        self.timeout_func = self._limit_of_next_cell
        self._sockets: Path | None = None

    def _limit_of_next_cell(self, cell: NotebookNode) -> float | None:
        """Seconds this cell may take: its own limit or what is left for the notebook.

        Raises:
            CellTimeoutError: nothing is left; each of many short cells would end in time.
        """
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise CellTimeoutError.error_from_timeout_and_cell("no time is left", 0, cell)
        limit = min(self._cell_limit, left)
        return None if math.isinf(limit) else max(0.1, limit)

    async def async_execute_cell(self, *given: Any, **kw: Any) -> NotebookNode:
        """Run a cell, and save the notebook as it stood before if the cell takes a while."""
        late = asyncio.get_running_loop().call_later(LATE_S, self.nb_man.save_before)
        try:
            return await super().async_execute_cell(*given, **kw)
        finally:
            late.cancel()

    execute_cell = run_sync(async_execute_cell)

    def create_kernel_manager(self) -> KernelManager:
        manager = super().create_kernel_manager()
        # Only this user can enter it, and its path is short enough for a Unix socket's.
        prefix = processes.socket_prefix(pid=os.getpid())
        base = processes.short_folder()
        self._sockets = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        manager.transport = "ipc"
        manager.connection_file = str(self._sockets / "kernel.json")
        manager.ip = str(self._sockets / "s")
        return manager

    @contextmanager
    def setup_kernel(self, **kwargs: Any) -> Iterator[None]:
        """As papermill's, and afterwards no process of the kernel's is left, nor its sockets."""
        group = None
        below = []
        # A run that a reader starts from a live notebook has no reader of its own.
        given = {**os.environ, **kwargs.get("env", {})}
        # Asserts judge the results, so nobody's settings may leave them out.
        ours = {"PYTHONOPTIMIZE": "", processes.KERNEL_MARK: self._mark}
        kwargs["env"] = {"LABKIT_LIVE": "0", **given, **ours}
        try:
            with super().setup_kernel(**kwargs):
                group = getattr(self.km.provisioner, "pgid", None)
                try:
                    yield
                    run_sync(self._let_it_end)()
                except BaseException as error:
                    self.shutdown_kernel = "immediate"
                    if isinstance(error, DeadKernelError):
                        process = getattr(self.km.provisioner, "process", None)
                        error.args = (processes.death("it", process.poll() if process else None),)
                    raise
                finally:
                    if group:
                        below = processes.descendants(group)
        finally:
            processes.end(below)
            if group and group != os.getpgrp():
                with suppress(OSError):  # the usual case: nothing is left of the group
                    os.killpg(group, signal.SIGKILL)
            processes.end_marked(self._mark, processes.KERNEL_MARK)
            if self._sockets is not None:
                shutil.rmtree(self._sockets, ignore_errors=True)

    async def _let_it_end(self) -> None:
        """Let the kernel's control thread end before its output thread does, and modules stay.

        ipykernel (7.4) stops that at exit; where the control thread still writes through it, as in
        one kernel of thirty, the kernel stays until jupyter_client kills it, three seconds later.
        What a notebook left to be done at its end is done; to free its objects one by one before
        the system takes the memory back would cost a second where torch or numba was loaded.
        """
        with suppress(RuntimeError, TimeoutError):
            await self.kc.execute(_ORDERLY_END, silent=True, reply=True, timeout=2)


class SparingManager(NotebookExecutionManager):
    """papermill's record of an execution, which tells a listener of the cells.

    It saves the notebook when a code cell starts and at the end, rather than twice a cell. A save
    writes the whole notebook: where that takes long beside the cells it is put off, until
    :meth:`save_before` at the latest, so that a run's time stays in proportion to its cells.
    """

    listener: CellListener | None = None
    _saves = True
    _is_owed = False
    _saved_at_s = -math.inf
    _save_took_s = 0.0

    def save(self, **kwargs: Any) -> None:
        if self._saves:
            begun_s = time.monotonic()
            super().save(**kwargs)
            self._saved_at_s = time.monotonic()
            self._save_took_s = self._saved_at_s - begun_s
            self._is_owed = False

    def save_before(self) -> None:
        """Save what was there when the cell that now runs began, if that was put off."""
        if self._is_owed:
            self._saves = True
            self.save()

    def notebook_complete(self, **kw: Any) -> None:
        self._saves = True
        super().notebook_complete(**kw)

    def cell_start(self, cell: NotebookNode, cell_index: int, **kw: Any) -> None:
        is_code = cell.cell_type == "code"
        is_due = time.monotonic() - self._saved_at_s > SPARING * self._save_took_s
        self._saves = is_code and is_due
        self._is_owed |= is_code and not is_due
        super().cell_start(cell, cell_index, **kw)
        if self.listener:
            self.listener("start", cell_index, cell)

    def cell_exception(self, cell: NotebookNode, cell_index: int, **kw: Any) -> None:
        super().cell_exception(cell, cell_index, **kw)
        if self.listener:
            self.listener("error", cell_index, cell)

    def cell_complete(self, cell: NotebookNode, cell_index: int, **kw: Any) -> None:
        self._saves = False
        super().cell_complete(cell, cell_index, **kw)
        self._saves = True


class LabkitEngine(Engine):
    """The engine papermill finds under the name ``labkit`` (:mod:`labkit.workbook.engine`).

    Understands papermill's options, any trait of nbclient's ``NotebookClient``, and three of its
    own: ``notebook_timeout`` (seconds), ``cell_listener`` (:data:`CellListener`) and
    ``kernel_mark`` (``LABKIT_KERNEL_ID``).
    """

    @classmethod
    def execute_notebook(
        cls,
        nb: NotebookNode,
        kernel_name: str,
        output_path: str | None = None,
        progress_bar: bool | dict[str, Any] = True,
        log_output: bool = False,
        autosave_cell_every: int = 30,
        start_timeout: int = 60,
        execution_timeout: int | None = None,
        **options: Any,
    ) -> NotebookNode:
        plain = {name: options.pop(name, None) for name in ("timeout", "startup_timeout")}
        options.pop("input_path", None)
        manager = SparingManager(nb, output_path, log_output, progress_bar, autosave_cell_every)
        manager.listener = options.pop("cell_listener", None)
        manager.notebook_start()
        try:
            LabkitClient(
                manager,
                kernel_name=kernel_name,
                timeout=execution_timeout or plain["timeout"] or CELL_TIMEOUT_S,
                startup_timeout=start_timeout,
                log=logger,
                log_output=log_output,
                **{"record_timing": False, "iopub_timeout": IOPUB_LIMIT_S, **options},
            ).execute()
        finally:
            manager.cleanup_pbar()
            manager.notebook_complete()
        return manager.nb


# ---------------------------------------------------------------- one job of `labkit run`


def execute(job: Job, terms: Terms, folder: Path, send: Callable[[CellPlace], None]) -> Outcome:
    """Execute ``job`` in this process; never raises for anything the notebook does.

    ``folder`` holds the notebook while it runs, so that what was executed so far survives this
    process. ``send`` is told of each cell as it starts.
    """
    watch = _Watch(send=send, total=len(nbformat.reads(job.text, as_version=4).cells))
    source = folder / "source.ipynb"
    target = folder / f"{job.key}.ipynb"
    started = now()
    begun = time.monotonic()
    ending = _papermill(job, terms, source, target, watch)
    duration_s = round(time.monotonic() - begun, 3)
    status, name, message = _explained(ending, watch, terms, duration_s)
    return Outcome(
        status=status,
        notebook=_executed(target, keep_banner=status != "ok"),
        cell=watch.place if status != "ok" else None,
        error=name,
        message=" ".join(message.split()),
        started=started,
        duration_s=duration_s,
    )


@dataclass
class _Watch:
    """Where the execution stands, in the author's numbering, and whether a cell failed."""

    send: Callable[[CellPlace], None]
    total: int
    injected: int = 0
    error: tuple[str, str] | None = None
    place: CellPlace | None = None

    def __call__(self, kind: str, index: int, cell: NotebookNode) -> None:
        if kind == "error":
            self.error = _raised(cell)
            return
        tags = cell.metadata.get("tags", [])
        if "injected-parameters" in tags:
            self.injected += 1
            return
        lines = [line for line in cell.source.splitlines() if line.strip()]
        self.place = CellPlace(
            number=index + 1 - self.injected,
            total=self.total,
            tag=tags[0] if tags else "",
            first_line=lines[0].strip() if lines else "",
        )
        self.send(self.place)


def _raised(cell: NotebookNode) -> tuple[str, str]:
    """The name of the error that a cell raised, and what it says.

    IPython writes what it refuses itself, such as a magic that it does not know, to standard error.
    """
    raised = [output for output in cell.outputs if output.output_type == "error"]
    if raised:
        return raised[-1].ename, raised[-1].evalue
    written = "".join(o.text for o in cell.outputs if o.get("name") == "stderr").split("\n")
    refused = [match for line in written if (match := _OF_IPYTHON.fullmatch(line.strip()))]
    if not refused:
        return "CellError", "\n".join(written)
    name, message = refused[-1].groups()
    remedy = _NO_MAGIC if "not found" in message and "%" in message else ""
    return name, message.rstrip(".") + remedy


def _kernel_problem(notebook: NotebookNode) -> str:
    """Why the notebook's kernel cannot be started here, and what would be right; "" if it can."""
    name, language = notebooks.kernel(notebook)
    if not name:
        return f"its metadata name no kernel; valid: {_KERNEL}"
    installed = sorted(KernelSpecManager().find_kernel_specs())
    if name in installed:
        return ""
    of_language = f" (for {language})" if language else ""
    there = f"no kernel {name!r}{of_language} is installed here; there are: {', '.join(installed)}"
    if language in ("python", ""):
        return f"{there}; valid: {_KERNEL}"
    return f"{there}. The workbook's notebooks are Python; install that kernel to run this one"


def _papermill(
    job: Job, terms: Terms, source: Path, target: Path, watch: _Watch
) -> Exception | None:
    """Run papermill; what it raised, or None."""
    if problem := _kernel_problem(nbformat.reads(job.text, as_version=4)):
        return LabkitError(problem)
    try:
        with naming(target):
            source.write_text(job.text, encoding="utf-8")
            papermill.execute_notebook(
                str(source),
                str(target),
                parameters=job.overrides or None,
                engine_name="labkit",
                progress_bar=False,
                cwd=str((terms.root / job.path).parent),
                execution_timeout=math.ceil(terms.cell_timeout_s),
                notebook_timeout=terms.notebook_timeout_s,
                cell_listener=watch,
                kernel_mark=str(source.parent),
            )
    except Exception as error:
        return error
    return None


def _explained(
    ending: Exception | None, watch: _Watch, terms: Terms, duration_s: float
) -> tuple[Status, str, str]:
    """How the execution ended, the error's name and what it says.

    papermill also raises for errors that a cell tagged ``raises-exception`` is there to show, and
    does not for ``sys.exit()``; whether a cell failed is what nbclient told :class:`_Watch`.
    """
    if watch.error is not None:
        return ("failed", *watch.error)
    if ending is None or isinstance(ending, PapermillExecutionError):
        return "ok", "", ""
    message = str(ending)
    if isinstance(ending, LabkitError):
        return "broken", "", message
    name = type(ending).__name__
    if isinstance(ending, OSError) and (refusal := refused(ending)):
        return "broken", name, str(refusal)
    if _is_infrastructure(ending):
        return "died", name, message
    if isinstance(ending, CellTimeoutError):
        whole_s = terms.notebook_timeout_s
        passed = whole_s is not None and duration_s >= whole_s
        what, limit_s = ("notebook", whole_s) if passed else ("cell", terms.cell_timeout_s)
        message = f"the {what} had not ended after {limit_s:g} s; its kernel was killed"
        return "hung", name, message
    return "broken", name, message


def _is_infrastructure(error: Exception) -> bool:
    """A kernel that went away, fell silent or never came up, through no error a cell raised."""
    if isinstance(error, CellTimeoutError):
        return "IOPub" in str(error)  # the cell ended, but not all of its outputs arrived
    return isinstance(error, DeadKernelError) or (
        isinstance(error, RuntimeError) and "ernel" in str(error)
    )


def _executed(path: Path, *, keep_banner: bool) -> str:
    """The notebook as executed, without papermill's clock times and paths; empty where it was
    never written, or on a full disk not to its end."""
    try:
        executed = nbformat.read(path, as_version=4)
        return normalise.dumps(normalise.without_traces(executed, keep_banner=keep_banner))
    except (OSError, ValueError):
        return ""
