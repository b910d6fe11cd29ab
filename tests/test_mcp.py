"""``labkit mcp`` as an assistant meets it: the SDK's own client, over standard input and output."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

import anyio
import psutil
import pytest
from mcp import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from labkit.cli import main
from labkit.files import MARKER
from labkit.mcp import tools
from labkit.quantities import plain
from labkit.workbook.queue import reading_queue
from labkit.workbook.review import verdicts

ROOT = Path(__file__).resolve().parents[1]
KEPT = (MARKER, "data/papers.bib", "data/papers/zeus", "notebooks/energy/zeus.ipynb")
ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "plan_memory": (
        {"model": "llama-2-7b", "data_parallel": 64, "zero_stage": 3, "tokens_per_sample": 4096},
        "memory plan llama-2-7b --dp 64 --zero 3 --seq 4096",
    ),
    "plan_pipeline": (
        {"schedule": "1f1b", "profile": "a100/bloom", "num_microbatches": 4},
        "pipeline plan 1f1b -p a100/bloom -m 4",
    ),
    "compare_schedulers": (
        {"num_gpus": 16, "num_jobs": 60, "policies": ["fifo", "las2d:3250,7200"]},
        "cluster compare --gpus 16 --jobs 60 --policies fifo,las2d:3250,7200",
    ),
    "find_claims": ({"paper": "zeus", "verdict": "reproduced"}, ""),
    "search_papers": ({"words": "gpu energy"}, ""),
    "reading_queue": ({"status": ["reviewed"], "most": 3}, ""),
}
"""What each tool is asked, and the command that must write the same as JSON."""
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("plan_memory", {"model": "llama-2-7"}, "no model 'llama-2-7'; did you mean 'llama-2-7b'"),
    ("plan_memory", {"model": "/etc/passwd"}, "no model '/etc/passwd'"),
    ("plan_memory", {}, "model"),
    ("plan_memory", {"model": "llama-2-7b", "zero_stage": 4}, "zero_stage"),
    ("plan_memory", {"model": "llama-2-7b", "data_parallel": 10**9}, "data_parallel"),
    ("plan_memory", {"model": "llama-2-7b", "device": "H1000"}, "no accelerator 'H1000'"),
    ("plan_memory", {"model": "llama-2-7b", "headroom_fraction": float("nan")}, "headroom"),
    ("plan_pipeline", ASKED["plan_pipeline"][0] | {"schedule": "1f1"}, "did you mean '1f1b'"),
    ("plan_pipeline", ASKED["plan_pipeline"][0] | {"profile": "../x.csv"}, "no profile"),
    ("plan_pipeline", ASKED["plan_pipeline"][0] | {"num_microbatches": 10**6}, "num_microbatches"),
    ("compare_schedulers", {"policies": ["fif"]}, "fifo"),
    ("compare_schedulers", {"trace": "jobs.csv"}, "no trace 'jobs.csv'"),
    ("compare_schedulers", {"num_gpus": 12}, "12"),
    ("find_claims", {"paper": "zeuss"}, "did you mean 'zeus'"),
    ("find_claims", {"verdict": "proved"}, "verdict"),
    ("reading_queue", {"status": ["burnt"]}, "status"),
    ("search_papers", {"words": ""}, "words"),
    ("no_tool", {}, "no_tool"),
]
NO_NETWORK = """
    import socket, pathlib

    def refused(*arguments, **more):
        with pathlib.Path({log!r}).open("a") as log:
            log.write(repr(arguments) + chr(10))
        raise OSError("no network")

    socket.socket.connect = socket.socket.bind = socket.getaddrinfo = refused
"""
"""A module that Python imports when it starts: in the server, and in its worker."""


class Said(NamedTuple):
    is_error: bool
    text: str
    data: Any


class Met(NamedTuple):
    """What one session of a client saw, and what stood on disk before and after."""

    tools: dict[str, Any]
    said: list[Said]
    before: dict[str, Any]
    after: dict[str, Any]
    network: Path


def tree(folder: Path) -> dict[str, Any]:
    """Every file with what it holds, every folder; not what Python and numba compile."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if "__pycache__" not in name:
            content = path.read_bytes() if path.is_file() else b""
            found[name] = (path.is_dir(), hashlib.sha256(content).hexdigest())
    return found


def talk(
    folder: Path, home: Path, *options: str, then: Callable[[ClientSession], Awaitable[Any]]
) -> Any:
    """Start the server in ``folder`` as a client does, and do ``then`` in a session with it."""
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "labkit", "mcp", *options],
        cwd=folder,
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith("LABKIT_")},
            "PYTHONPATH": os.pathsep.join([str(home / "start"), str(ROOT)]),
            "HOME": str(home),
            "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""),
        },
    )

    async def session() -> Any:
        async with (
            stdio_client(parameters) as (read, write),
            ClientSession(read, write) as client,
        ):
            await client.initialize()
            return await then(client)

    return anyio.run(session)


async def called(client: ClientSession, name: str, arguments: dict[str, Any]) -> Said:
    result = await client.call_tool(name, arguments)
    text = " ".join(part.text for part in result.content)
    return Said(bool(result.is_error), text, result.structured_content)


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> Met:
    """One session over a workbook of one paper: every tool, and every wrong call, in turn."""
    folder = tmp_path_factory.mktemp("workbook")
    home = tmp_path_factory.mktemp("home")
    for name in KEPT:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, folder / name)
    (home / "start").mkdir()
    network = folder.parent / "network.log"
    blocked = textwrap.dedent(NO_NETWORK).format(log=str(network))
    (home / "start" / "sitecustomize.py").write_text(blocked)
    before = tree(folder) | tree(home)

    async def everything(client: ClientSession) -> tuple[dict[str, Any], list[Said]]:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        calls = [(name, arguments) for name, (arguments, _) in ASKED.items()]
        calls += [(name, arguments) for name, arguments, _ in WRONG]
        return listed, [await called(client, name, arguments) for name, arguments in calls]

    listed, said = talk(folder, home, then=everything)
    return Met(listed, said, before, tree(folder) | tree(home), network)


def test_every_tool_is_listed_as_read_only_with_bounds(met: Met) -> None:
    assert met.tools.keys() == tools.TOOLS.keys() == ASKED.keys()
    for tool in met.tools.values():
        assert tool.annotations.read_only_hint
        assert not tool.annotations.destructive_hint
        assert not tool.annotations.open_world_hint
        assert tool.description.endswith(".")
        for name, schema in tool.input_schema["properties"].items():
            kinds = schema.get("anyOf", [schema])
            for kind in kinds:
                if kind.get("type") == "integer":
                    assert {"minimum", "maximum"} <= kind.keys(), name
                if kind.get("type") == "number":
                    assert {"minimum", "exclusiveMinimum"} & kind.keys(), name
                    assert "maximum" in kind, name
                    assert name.endswith(("_s", "_fraction", "_load")), name


@pytest.mark.parametrize("name", [name for name, (_, command) in ASKED.items() if command])
def test_a_tool_answers_what_its_command_writes_as_json(
    name: str, met: Met, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("LABKIT_DATA_MIRROR", raising=False)
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    monkeypatch.setenv("LABKIT_CACHE", "/nonexistent")
    said = met.said[[*ASKED].index(name)]
    assert not said.is_error, said.text
    assert main([*ASKED[name][1].split(), "--json", "-"]) == 0
    assert said.data == json.loads(capsys.readouterr().out)
    assert json.loads(said.text) == said.data


def answer_of(met: Met, name: str) -> Any:
    said = met.said[[*ASKED].index(name)]
    assert not said.is_error, said.text
    return said.data


def test_a_claim_comes_with_its_verdict_rule_and_rival(met: Met) -> None:
    found = answer_of(met, "find_claims")
    assert found["num_found"] == len(found["claims"]) > 0
    assert {claim["paper"] for claim in found["claims"]} == {"zeus"}
    assert {claim["verdict"] for claim in found["claims"]} == {"reproduced"}
    for claim in found["claims"]:
        assert claim["rule"]
        assert claim["source"]
        if claim["kind"] in verdicts.REPRODUCTIONS:  # else it would not be earned
            assert claim["flip_verdict"] != "reproduced"
    assert set(get_args(tools.Verdict)) == set(get_args(verdicts.Verdict))


def test_papers_are_found_and_listed_as_the_queue_does(met: Met) -> None:
    queue = reading_queue.load(ROOT)
    found = answer_of(met, "search_papers")
    keys = [paper.key for paper in queue.search("gpu energy")]
    assert [paper["key"] for paper in found["papers"]] == keys[:20]
    assert "zeus" in keys
    listed = answer_of(met, "reading_queue")
    reviewed = queue.select(status=["reviewed"])
    assert listed["num_found"] == len(reviewed)
    assert [paper["key"] for paper in listed["papers"]] == [paper.key for paper in reviewed[:3]]
    assert set(get_args(tools.Status)) == set(reading_queue.STATUSES)


@pytest.mark.parametrize(("name", "arguments", "told"), WRONG)
def test_a_wrong_call_is_told_what_is_wrong(
    name: str, arguments: dict[str, Any], told: str, met: Met
) -> None:
    said = met.said[len(ASKED) + WRONG.index((name, arguments, told))]
    assert said.is_error
    assert told in said.text
    assert "Traceback" not in said.text


def test_nothing_is_written_and_nobody_is_called(met: Met) -> None:
    assert met.after == met.before
    assert not met.network.exists(), met.network.read_text()


def test_a_call_that_takes_too_long_is_ended_with_its_process(tmp_path: Path) -> None:
    """The server lives on; when the client leaves, no process is left."""

    async def slow(client: ClientSession) -> list[Said]:
        arguments = {"num_jobs": 5000, "num_gpus": 64, "offered_load": 3.0}
        first = await called(client, "compare_schedulers", arguments)
        again = await called(client, "compare_schedulers", arguments)
        return [first, again]

    before = set(psutil.Process().children(recursive=True))
    said: Sequence[Said] = talk(tmp_path, tmp_path, "--seconds", "1", then=slow)
    assert all("no answer within 1 s" in each.text for each in said)
    assert all(each.is_error for each in said)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_without_a_workbook_the_engines_answer_and_papers_say_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LABKIT_ROOT", raising=False)
    monkeypatch.setattr("labkit.files.PACKAGE", tmp_path / "labkit")
    monkeypatch.chdir(tmp_path)
    data, problem = tools.answer("search_papers", {"words": "energy"})
    assert data is None
    assert "labkit init" in problem


def test_what_is_not_finite_becomes_null() -> None:
    assert plain({"gap_fraction": float("nan")}) == {"gap_fraction": None}
