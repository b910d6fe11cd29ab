"""A session's server: who may enter, what is switched off; the start page's choice of papers."""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
from pathlib import Path

import nbformat
import pytest

from labkit.cli import main, panel
from labkit.errors import UsageError
from labkit.workbook.queue import edits, reading_queue
from labkit.workbook.review import claims, tally
from labkit.workbook.session import server
from tests.export import synthetic

GOOD = "sixteen-letters-or-more"
DAY = dt.date(2026, 3, 14)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = synthetic.make(tmp_path / "workbook")
    monkeypatch.setenv("LABKIT_ROOT", str(root))
    monkeypatch.delenv("JUPYTER_TOKEN", raising=False)
    return root


def test_on_this_machine_a_token_is_drawn_each_time(root: Path) -> None:
    first = server.address()
    second = server.address()
    assert first.ip == "127.0.0.1"
    assert len(first.token) >= 32
    assert first.token != second.token
    assert first.token not in repr(first)  # nor in a log


@pytest.mark.parametrize("ip", ["0.0.0.0", "192.168.1.20", "10.0.0.1"])
@pytest.mark.parametrize("token", ["", "short", GOOD[: server.SHORTEST_TOKEN - 1]])
def test_nobody_opens_the_server_to_others_without_a_token(
    root: Path, monkeypatch: pytest.MonkeyPatch, ip: str, token: str
) -> None:
    monkeypatch.setenv("JUPYTER_TOKEN", token)
    with pytest.raises(UsageError, match="set JUPYTER_TOKEN"):
        server.address(ip)


def test_a_good_token_opens_it_to_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_TOKEN", GOOD)
    assert server.address("0.0.0.0").token == GOOD
    with pytest.raises(UsageError, match="not this machine's"):
        server.address("192.0.2.1")  # of a range that is nobody's


@pytest.mark.parametrize("ip", ["localhost", "1.2.3", "", "::1"])
def test_an_address_is_four_numbers(root: Path, ip: str) -> None:
    with pytest.raises(UsageError, match="IPv4"):
        server.address(ip)


def test_a_port_that_is_taken_is_left_alone(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=str(port)):
            server.address(port=port)
    assert server.address(port=port).port == port


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lab", "--ip", "0.0.0.0"], "--collaborative"),
        (["lab", "--ip", "0.0.0.0", "--collaborative"], "JUPYTER_TOKEN"),
        (["present", "gamma"], "no notebook for 'gamma'"),
    ],
)
def test_wrong_use_starts_nothing(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.setattr(server, "serve", lambda *_: pytest.fail("a server was started"))
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


def test_working_together_needs_the_extension(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"jupyter_collaboration": None}
    monkeypatch.setattr(server.util, "find_spec", lambda name: absent.get(name))
    with pytest.raises(UsageError, match="collab"):
        server.lab_arguments(root, collaborative=True)
    monkeypatch.setattr(server.util, "find_spec", lambda name: object())
    together = server.lab_arguments(root, collaborative=True)
    assert "--YDocExtension.disable_rtc=False" in together
    assert "--YDocExtension.disable_rtc=True" in server.lab_arguments(root)


def test_the_commands_start_what_they_say(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = []
    monkeypatch.setattr(server, "serve", lambda *call: starts.append(call))
    assert main(["lab", "--no-browser", "--port", "8899"]) == 0
    assert main(["present", "alpha"]) == 0
    (_, lab, place, arguments, shown), (_, deck, _, options) = starts
    assert set(shown) == set(panel.PANELS)
    assert (lab, deck, place.port) == ("lab", "/labkit/deck/alpha", 8899)
    assert place.url("/") in capsys.readouterr().out
    assert "--ServerApp.open_browser=False" in arguments
    start = "/lab/tree/results/lab/start.md?file-browser-path=/notebooks"
    assert f"--LabApp.default_url={start}" in arguments
    assert "--ContentsManager.pre_save_hook=labkit.workbook.normalise.keep_outputs" in arguments
    assert not any("token" in option for option in [*arguments, *options])
    assert (root / server.START).is_file()


def test_the_browser_of_a_single_page_may_ask_no_other_machine(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Jupyter reads the settings; kernels take from the page what its controls send alone."""
    app = pytest.importorskip("jupyter_server.serverapp", reason="extra: lab").ServerApp
    calls: list[list[str]] = []
    monkeypatch.setattr(app, "launch_instance", calls.append)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "")
    monkeypatch.setenv("JUPYTER_PATH", "")
    place = server.address()
    server.serve(root, "/labkit/deck/alpha", place, [])
    assert "--ServerApp.default_url=/labkit/deck/alpha" in calls[0]
    assert f"--IdentityProvider.token={place.token}" in calls[0]
    reader = app()
    reader.load_config_file()
    policy = reader.config.ServerApp.tornado_settings["headers"]["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert "*" not in policy
    kernels = reader.config.MappingKernelManager
    assert "execute_request" not in kernels.allowed_message_types
    assert "comm_msg" in kernels.allowed_message_types
    written = [path for path in (root / server.HOME).rglob("*") if path.is_file()]
    assert not any(place.token in path.read_text(encoding="utf-8") for path in written)


def test_voila_runs_output_widgets_without_the_hang() -> None:
    pytest.importorskip("voila", reason="Voilà is not installed (extra: lab)")
    from labkit.workbook.run.runner import WakingOutputWidget
    from labkit.workbook.session import extension

    executor = extension.WakingExecutor(nbformat.v4.new_notebook())
    model = executor.widget_registry["@jupyter-widgets/output"]["OutputModel"]
    assert model is WakingOutputWidget


def test_a_live_page_runs_the_code_up_to_the_explorable_alone(root: Path) -> None:
    pytest.importorskip("voila", reason="Voilà is not installed (extra: lab)")
    from labkit.workbook.session import extension

    whole = synthetic.notebook(root)
    kept = extension.live_cells(None, whole, "").cells
    assert {cell.cell_type for cell in kept} == {"code"}
    assert kept[-1].source.startswith("workbook.explore")
    assert ["live" in cell.metadata.tags for cell in kept] == [False] * (len(kept) - 1) + [True]
    plain = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# A panel")])
    assert len(extension.live_cells(None, plain, "").cells) == 1


# --- the start page ---


def test_next_is_the_nearest_date_then_what_is_read_then_the_queue(root: Path) -> None:
    def coming(day: dt.date) -> list[str]:
        return [paper.key for paper in reading_queue.load(root).coming(day)]

    assert coming(DAY) == ["alpha"]  # dated that day
    assert coming(DAY + dt.timedelta(1)) == ["beta"]  # being read
    edits.done(root, "beta")
    assert coming(DAY + dt.timedelta(1)) == ["gamma"]  # queued
    edits.done(root, "alpha", presented=True)
    assert coming(DAY) == ["gamma"]  # what was heard is past, even on its day


def test_the_last_session_is_the_latest_day_on_which_the_group_heard_any(root: Path) -> None:
    def heard(day: dt.date) -> list[str]:
        return [paper.key for paper in reading_queue.load(root).heard(day)]

    assert heard(DAY) == []
    edits.done(root, "alpha", presented=True)
    edits.done(root, "beta", presented=True, date=DAY + dt.timedelta(7))
    assert heard(DAY - dt.timedelta(1)) == []
    assert heard(DAY) == ["alpha"]
    assert heard(DAY + dt.timedelta(9)) == ["beta"]


def test_the_start_page_links_what_there_is_and_lists_what_is_open(root: Path) -> None:
    edits.ask(root, "alpha", "Is <it> so?", by="Ann")
    edits.ask(root, "alpha", "Settled already?")
    edits.answer(root, "alpha", 2)
    edits.ask(root, "beta", "Just saying.", remark=True)
    server.write_start(root, DAY)
    text = (root / server.START).read_text()
    assert "presented by **Ada** on 2026-03-14" in text
    assert "- 1: Is &lt;it&gt; so? (Ann" in text
    assert "Settled" not in text
    assert "Just saying" not in text
    notebook = (root / server.START).parent / "../../notebooks/energy/alpha.ipynb"
    assert f"({notebook.relative_to(root / 'results/lab')})" in text
    assert notebook.resolve().is_file()
    assert "/labkit/deck/alpha" in text
    assert "/labkit/deck/beta" not in text  # it has no notebook


def test_the_start_page_says_of_each_paper_what_came_out(root: Path) -> None:
    """Titles lead to notebooks, the table says family and verdicts, and stands near the top."""
    server.write_start(root, DAY)
    text = (root / server.START).read_text()
    above = text.split("## Papers")[0].strip().split("\n\n")
    assert len(above) <= 5  # the heading, what is next and why, what is asked, what was heard
    assert "**Open questions**: none; `labkit ask" in text
    assert "## Open questions" not in text
    [row] = [line for line in text.splitlines() if line.startswith("| energy |")]
    title = reading_queue.load(root).library["alpha"].title
    link = "../../notebooks/energy/alpha.ipynb"
    assert row.startswith(f"| energy | [{title}]({link}) (Lovelace")
    records = claims.from_notebook(nbformat.read(root / "notebooks/energy/alpha.ipynb", 4))
    counts = tally.tally(records).all
    assert counts
    assert all(f"{tally.SYMBOLS[verdict]} {count}" in row for verdict, count in counts.items())


def test_a_notebook_that_cannot_be_read_keeps_nobody_from_the_start_page(root: Path) -> None:
    (root / "notebooks" / "energy" / "alpha.ipynb").write_text("{")
    server.write_start(root, DAY)
    assert "cannot be read: `labkit check` says why" in (root / server.START).read_text()


def test_a_notebook_is_handed_out_as_the_kernel_has_it_and_saved_as_committed(root: Path) -> None:
    """What Lab would write into it by itself is there already, so a tab opens without changes."""
    pytest.importorskip("jupyter_server", reason="it serves Lab (extra: lab)")
    from ipykernel.ipkernel import IPythonKernel

    from labkit.workbook import normalise
    from labkit.workbook.session.contents import Contents

    path = root / "notebooks" / "energy" / "alpha.ipynb"
    notebook = nbformat.read(path, 4)
    path.write_text(normalise.dumps(normalise.normalise(notebook)))
    before = path.read_bytes()
    contents = Contents(root_dir=str(root))
    contents.register_pre_save_hook(normalise.keep_outputs)
    model = asyncio.run(contents.get("notebooks/energy/alpha.ipynb"))
    said = model["content"]["metadata"]["language_info"]
    assert said == IPythonKernel.language_info
    asyncio.run(contents.save(model, "notebooks/energy/alpha.ipynb"))
    assert path.read_bytes() == before
