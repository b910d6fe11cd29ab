"""Commands as a person runs them. A module says which group of commands its tests run, in GROUP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from labkit.cli import main

Ran = Callable[..., tuple[str, str]]
Told = Callable[..., dict[str, Any]]
Refused = Callable[..., str]


@pytest.fixture
def ran(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Ran:
    """Run a command that must succeed; gives standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: object) -> tuple[str, str]:
        code = main([request.module.GROUP, *map(str, arguments)])
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out, captured.err

    return run


@pytest.fixture
def told(ran: Ran) -> Told:
    """What a command says as JSON on standard output."""

    def run(*arguments: object) -> dict[str, Any]:
        out, _ = ran(*arguments, "--json", "-")
        found = json.loads(out)
        assert found["command"] == arguments[0]
        return dict(found)

    return run


@pytest.fixture
def refused(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must be refused as wrong use; gives its one paragraph."""

    def run(*arguments: object) -> str:
        assert main([request.module.GROUP, *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        return " ".join(captured.err.split())

    return run
