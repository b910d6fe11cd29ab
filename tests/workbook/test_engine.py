"""The papermill engine: what it gives a single notebook, and that it lets go of it."""

from __future__ import annotations

import asyncio
import os
import textwrap
import time
from pathlib import Path
from typing import Any

import nbformat
import papermill
import psutil
import pytest
import zmq
import zmq.asyncio
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError

from labkit.workbook.run import runner
from tests.workbook.factory import workbook

WIDGETS = """
from IPython.display import display
from ipywidgets import Output, interact
"""
OUTPUT = """
out = Output()
with out:
    print(1); display(2); out.clear_output(); print(3)
out
"""


def execute(folder: Path, *cells: Any, **options: Any) -> Any:
    """Run a notebook of these cells through papermill with our engine."""
    root = workbook(folder, paper=cells)
    return papermill.execute_notebook(
        str(root / "notebooks/tests/paper.ipynb"),
        str(folder / "out.ipynb"),
        engine_name="labkit",
        progress_bar=False,
        **options,
    )


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Whether process ``pid`` ends (or is a zombie nobody waited for) soon."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def text_of(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


SLOW_GOODBYE = """
import time
kernel = get_ipython().kernel
publish = kernel._publish_status
def late(status, channel, *args):
    if (status, channel) == ("idle", "control"):
        time.sleep(0.5)
        open("said", "w").close()
    publish(status, channel, *args)
kernel._publish_status = late
"""


def test_a_kernels_control_thread_ends_before_its_output_thread(tmp_path: Path) -> None:
    """Else the one may wait for the other, until the kernel is killed three seconds later."""
    execute(tmp_path, SLOW_GOODBYE, cwd=str(tmp_path))
    assert (tmp_path / "said").exists()


def test_what_a_notebook_leaves_for_its_end_is_done_once_and_modules_are_not_torn_down(
    tmp_path: Path,
) -> None:
    leave = """
    import atexit, builtins
    class Held:
        def __del__(self): open("torn down", "w").close()
    builtins.held = Held()
    atexit.register(lambda: print("once", file=open("left", "a")))
    """
    execute(tmp_path, textwrap.dedent(leave), cwd=str(tmp_path))
    assert (tmp_path / "left").read_text() == "once\n"
    assert not (tmp_path / "torn down").exists()


def test_executes_with_papermills_options(tmp_path: Path) -> None:
    """Parameters, working directory, output streams to files; no clock times in the cells."""
    seen: list[tuple[str, int]] = []
    said = tmp_path / "said.txt"
    with said.open("w") as stream:
        done = execute(
            tmp_path,
            ("seed: int = 0", "parameters"),
            "# Text",
            "import os\nprint(seed, os.getcwd())",
            parameters={"seed": 7},
            cwd=str(tmp_path),
            stdout_file=stream,
            cell_listener=lambda kind, index, cell: seen.append((kind, index)),
        )
    assert text_of(done.cells[3]) == f"7 {tmp_path}\n"
    assert said.read_text() == f"7 {tmp_path}\n"
    assert seen == [("start", index) for index in range(4)]
    assert not any("execution" in cell.metadata for cell in done.cells)
    assert (tmp_path / "out.ipynb").is_file()


def test_a_failed_cell_is_told_and_the_notebook_kept(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    with pytest.raises(PapermillExecutionError, match="division by zero"):
        execute(tmp_path, "1", "1/0", "2", cell_listener=lambda k, i, cell: seen.append((k, i)))
    assert seen == [("start", 0), ("start", 1), ("error", 1)]
    assert "ZeroDivisionError" in (tmp_path / "out.ipynb").read_text()


def test_asserts_hold_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    with pytest.raises(PapermillExecutionError, match="AssertionError"):
        execute(tmp_path, "assert False")


@pytest.mark.parametrize("limit", ["cell", "notebook"])
def test_past_the_limit_the_kernel_and_its_children_are_killed(tmp_path: Path, limit: str) -> None:
    """Also where they ignore signals, lead sessions of their own, or are daemons by now."""
    pids = tmp_path / "pids"
    stubborn = (
        "import os, signal, subprocess, time\n"
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        f"pids = {str(pids)!r}\n"
        "open(pids, 'w').write(f'{os.getpid()} ')\n"
        "note = f'echo $$ >> {pids}; exec sleep 1000'\n"
        "family = f'echo $$ >> {pids}; setsid sh -c \"$0\" & wait'\n"
        "subprocess.Popen(['sh', '-c', family, note], start_new_session=True)\n"
        "subprocess.run(['sh', '-c', 'setsid sh -c \"$0\" & exit 0', note])\n"
        "time.sleep(1e6)"
    )
    options = {"execution_timeout": 3} if limit == "cell" else {"notebook_timeout": 4}
    begun = time.monotonic()
    with pytest.raises(CellTimeoutError):
        execute(tmp_path, "1", stubborn, **options)
    assert time.monotonic() - begun < 30
    started = pids.read_text().split()
    assert len(started) == 4  # the kernel, a child, its child, a daemon
    for pid in started:
        assert gone(int(pid))


def test_a_notebook_of_short_cells_ends_at_its_limit_too(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(CellTimeoutError):
        execute(tmp_path, *["import time; time.sleep(0.05)"] * 1000, notebook_timeout=4)
    assert time.monotonic() - begun < 20
    ran = [cell for cell in nbformat.read(tmp_path / "out.ipynb", 4).cells if cell.execution_count]
    assert 1 < len(ran) < 100


def test_saving_takes_a_small_part_of_the_time_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that takes as long as of a notebook with thousands of cells."""
    saved = 0
    write = papermill.engines.write_ipynb

    def slowly(notebook: Any, path: str) -> None:
        nonlocal saved
        saved += 1
        time.sleep(0.3)
        write(notebook, path)

    monkeypatch.setattr(papermill.engines, "write_ipynb", slowly)
    path = str(tmp_path / "out.ipynb")
    looks = f"import time; time.sleep(2); print('just ' 'before' in open({path!r}).read())"
    begun = time.monotonic()
    done = execute(tmp_path, *["1"] * 60, "print('just', 'before')", looks)
    took_s = time.monotonic() - begun
    assert saved <= 5 + took_s / 3
    assert text_of(done.cells[-1]) == "True\n"


def test_a_kernel_that_dies_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(DeadKernelError):
        execute(tmp_path, "import os; os._exit(1)")


def test_kernels_listen_on_private_sockets_that_go_with_them(tmp_path: Path) -> None:
    done = execute(
        tmp_path,
        "import ipykernel, json, os\n"
        "info = json.loads(ipykernel.get_connection_info())\n"
        "print(info['transport'], info['ip'], oct(os.stat(os.path.dirname(info['ip'])).st_mode))",
    )
    transport, prefix, mode = text_of(done.cells[0]).split()
    assert transport == "ipc"
    assert mode.endswith("700")
    assert len(prefix) < 90
    assert not os.path.exists(os.path.dirname(prefix))


def test_output_widgets_do_not_hang(tmp_path: Path) -> None:
    """papermill's own engine loses a wake-up in about one such cell of five on a busy machine."""
    cells = [OUTPUT if number % 2 else "interact(lambda a=1: print(a))" for number in range(40)]
    done = execute(tmp_path, WIDGETS, *cells, execution_timeout=60)
    took = [cell.metadata.papermill.duration for cell in done.cells]
    assert max(took) < 30  # a lost wake-up lasts until the limit
    state = done.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    outputs = [model["state"]["outputs"] for model in state.values() if "outputs" in model["state"]]
    assert [{"output_type": "stream", "name": "stdout", "text": "3\n"}] in outputs


@pytest.mark.parametrize("cured", [False, True])
def test_the_lost_wake_up_and_its_cure(cured: bool) -> None:
    """What hangs nbclient, made certain: a reply arrives, then the socket is sent on, then awaited.

    Sending reads the socket's event flag, so the event loop is never told of the reply.
    """

    async def scene() -> bool:
        context = zmq.asyncio.Context()
        kernel = zmq.Context(context).socket(zmq.PAIR)
        client = context.socket(zmq.PAIR)
        try:
            kernel.bind("inproc://shell")
            client.connect("inproc://shell")
            waiting = asyncio.ensure_future(client.poll(1500, zmq.POLLIN))
            await asyncio.sleep(0.05)  # the loop now watches the socket
            kernel.send(b"reply")
            zmq.Socket.shadow(client.underlying).send(b"comm message")  # as Session.send does
            if cured:
                runner.wake(client)
            begun = time.monotonic()
            await waiting
            return time.monotonic() - begun < 1.0
        finally:
            client.close(0)
            kernel.close(0)
            context.term()

    assert asyncio.run(scene()) is cured


def test_the_widget_wakes_the_loop_after_each_send(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[Any] = []

    class Channel:
        socket = object()

        def send(self, message: Any) -> None:
            woken.append("sent")

    class Client:
        shell_channel = Channel()

        class session:  # noqa: N801
            @staticmethod
            def msg(*args: Any, **kwargs: Any) -> dict[str, Any]:
                return {}

    monkeypatch.setattr(runner, "wake", woken.append)
    widget = runner.WakingOutputWidget("id", {"outputs": []}, Client(), None)  # type: ignore[arg-type]
    widget.parent_header = {}
    widget.sync_state()
    assert woken == ["sent", Channel.socket]
