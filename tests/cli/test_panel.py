"""``labkit panel``: every panel draws between its stored values, and its command runs."""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main, panel, session
from labkit.cli.panel import built, notebook
from labkit.errors import UsageError
from labkit.kit.panel import Panel
from labkit.workbook.review import axes
from labkit.workbook.session import server

GROUP = "panel"


def test_two_panels_at_once_have_an_address_a_token_and_a_notebook_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token is told on the screen; ``test_session`` looks for it in the files."""
    runs: list[tuple[Path, str, server.Address]] = []
    monkeypatch.setattr(server, "serve", lambda *given, **_: runs.append(given[:3]))
    monkeypatch.delenv("JUPYTER_TOKEN", raising=False)
    assert main(["panel", "pipeline", "--no-browser"]) == 0
    (root, page, first) = runs[0]
    with socket.create_server((first.ip, first.port)):
        assert main(["panel", "pipeline", "--no-browser"]) == 0
    (_, other, second) = runs[1]
    assert first.ip == "127.0.0.1"
    assert len(first.token) >= 32
    assert first.token != second.token
    assert first.token in capsys.readouterr().out  # the address for whoever started it
    files = [root / path.removeprefix("/voila/render/") for path in (page, other)]
    assert files[0] != files[1]
    assert all("panel.show('pipeline'" in path.read_text(encoding="utf-8") for path in files)


def test_outside_a_workbook_a_panel_has_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders: list[Path] = []

    def serve(root: Path, page: str, *_: Any, **__: Any) -> None:
        assert (root / page.removeprefix("/voila/render/")).is_file()
        folders.append(root)

    monkeypatch.setattr(session, "workbook_around", lambda: None)
    monkeypatch.setattr(server, "serve", serve)
    assert main(["panel", "memory", "--no-browser"]) == 0
    (folder,) = folders
    assert not folder.exists(), "it goes with the panel"


def between(axis: axes.Axis) -> Any:
    """A value of the axis that no slide or page stores."""
    if not axis.is_range:
        return axis.values[-1]
    middle = (axis.values[0] + axis.values[1]) / 2
    return int(middle) if isinstance(axis.step, int) else round(middle, 3)


@pytest.mark.parametrize("name", panel.PANELS)
def test_a_panel_draws_and_its_command_answers(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    panel = built(name)
    knobs = axes.read(panel.axes, panel.label, dict(panel.start))
    starts = {axis.name: axis.start for axis in knobs}
    inner = {axis.name: between(axis) for axis in knobs}
    for figure in panel.figures:
        first, second = (
            figure(**axes.taken(figure, values)).to_plotly_json() for values in (starts, inner)
        )
        assert first["data"] != second["data"], figure.__name__
    words = shlex.split(panel.call(**inner))
    assert words[:2] == ["labkit", name]
    assert main([*words[1:], "--json", "-"]) == 0, capsys.readouterr().err


def test_the_menu_of_models_draws_any_of_them() -> None:
    """The user's own stands first, also one that has learnt fewer positions than others."""
    for own in ("llama-2-7b", "gpt2-124m"):
        panel = built("memory", model=own)
        axis = {each.name: each for each in axes.read(panel.axes, "", dict(panel.start))}
        starts = {name: each.start for name, each in axis.items()}
        models = axis["model"].values
        assert models[0] == starts["model"] == own
        assert {"llama-3-70b", "mixtral-8x7b"} < set(models)
        titles = {}
        for model in [own, *models[-3:]]:
            titles[model] = panel.figures[0](**starts | {"model": model}).layout.title.text
        assert all(title.startswith(model) for model, title in titles.items())
        assert panel.call(**starts | {"model": "gpt-13b"}).startswith("labkit memory plan gpt-13b ")


def test_a_capacity_is_said_in_the_unit_of_its_axis_too() -> None:
    """80 GiB are drawn at 85.9 GB, which looked like a slip beside the name A100-80GB."""
    panel = built("memory")
    knobs = {axis.name: axis.start for axis in axes.read(panel.axes, "", dict(panel.start))}
    for figure in panel.figures:
        said = [note.text.strip() for note in figure(**knobs).layout.annotations]
        assert "A100-80GB: 80 GiB, 85.9 GB" in said


def test_figures_are_drawn_before_the_page_is_served(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So what is compiled at its first use is, and what cannot be drawn is said in the terminal."""
    order: list[Any] = []
    made = Panel(
        title="T",
        figures=(lambda **at: order.append(at),),
        axes={"rate": (1.0, 2.0)},
        call=lambda **at: "",
        start={"rate": 1.5},
    )
    monkeypatch.setattr(panel, "built", lambda name, **brought: made)
    monkeypatch.setattr(server, "serve", lambda *given, **_: order.append("served"))
    assert main(["panel", "serving", "--no-browser"]) == 0
    assert order == [{"rate": 1.5}, "served"]
    assert "compiled the first time" in capsys.readouterr().out


def test_does_it_fit_says_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    panel = built("memory", model="llama-3-8b")
    knobs = {axis.name: axis.start for axis in axes.read(panel.axes, "", dict(panel.start))}
    moments, remedies = panel.figures
    assert "does not fit" in moments(**knobs | {"dp": 1, "zero": 0}).layout.title.text
    assert "none of these" in remedies(**knobs | {"dp": 1, "zero": 0}).layout.title.text
    assert "llama-3-8b fits" in moments(**knobs | {"dp": 64, "zero": 3}).layout.title.text
    assert main([*shlex.split(panel.call(**knobs | {"dp": 1, "zero": 0}))[1:], "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fits"] is False
    title = moments(**knobs | {"dp": 1, "zero": 0}).layout.title.text
    assert f"how sure: {said['measured']['verdict']}" in title


def test_what_a_user_brings_is_used(tmp_path: Any) -> None:
    trace = tmp_path / "jobs.csv"
    rows = ["arrival_s,gpus,duration_s", *(f"{60 * n},{1 + n % 4},600" for n in range(40))]
    trace.write_text("\n".join(rows), encoding="utf-8")
    panel = built("cluster", profile=str(trace))
    knobs = {axis.name: axis.start for axis in axes.read(panel.axes, "", dict(panel.start))}
    assert "las2d" in panel.figures[0](**knobs).data[0].name
    assert str(trace) in panel.call(**knobs)
    assert "jobs.csv" in notebook("cluster", str(trace), "")


@pytest.mark.parametrize(
    ("name", "brought", "message"),
    [
        ("clutser", {}, "cluster"),
        ("memory", {"model": "no-such-model"}, "no-such-model"),
        ("pipeline", {"profile": "no-such-profile"}, "no-such-profile"),
        ("cluster", {"model": "gpt-13b"}, "takes --profile, not --model gpt-13b"),
        ("memory", {"profile": "jobs.csv"}, "takes --model, not --profile jobs.csv"),
    ],
)
def test_what_cannot_be_shown_is_refused(name: str, brought: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        built(name, **brought)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("pipeline", {"num_microbatches": 6, "slower": 0.15}),
        ("cluster", {"nodes": 6, "load": 1.1, "restart_s": 30.0}),
        ("serving", {"rate": 3.0, "cv": 2.0, "max_batch": 8, "tensor": 2}),
        ("tuning", {"eta": 0.3}),
    ],
)
def test_a_panel_shows_the_numbers_of_its_command(
    name: str, values: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    panel = built(name)
    knobs = axes.read(panel.axes, panel.label, dict(panel.start))
    shown = {axis.name: axis.start for axis in knobs} | values
    figures = [figure(**axes.taken(figure, shown)) for figure in panel.figures]
    assert main([*shlex.split(panel.call(**shown))[1:], "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    if name == "pipeline":
        plan = said.get("plan", said)
        words = f"{plan['energy_j']:,.0f} J in {plan['makespan_s']:.3f} s"
        assert words in figures[0].layout.title.text
    elif name == "cluster":
        assert f"{said['policy']}: mean {said['mean_jct_s']:,.0f} s" in figures[0].data[0].name
    elif name == "serving":
        rows = {row["batcher"]: row for row in said["rows"]}
        for line, batcher in (("by iteration", "iteration"), ("by request", "request, up to 8")):
            (trace,) = [trace for trace in figures[0].data if trace.name == line]
            row = rows[batcher]
            at = (row["throughput_per_s"], 1e3 * row["median_token_s"])
            assert any(at == pytest.approx(p, rel=1e-4) for p in zip(trace.x, trace.y, strict=True))
    else:
        (last,) = [trace for trace in figures[1].data if trace.name == "last run"]
        (row,) = said["policies"]
        assert last.x[0] == row["batch_size"]
        assert row["power_limit_w"] <= last.y[0] < row["power_limit_w"] + 25
