"""Every field of every public description and every argument of every public function, fed with
every wrong kind: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from labkit import serving
from labkit.errors import LabkitError
from tests.cluster.test_wrong_kinds import WRONG
from tests.wrong_kinds import problem, problems

REQUESTS = serving.generate(2, 5, prompt_tokens=(1, 9), output_tokens=(1, 4))
DESCRIPTIONS: list[Any] = [REQUESTS]
FUNCTIONS: dict[Callable[..., Any], dict[str, Any]] = {
    serving.from_csv: {"path": "requests.csv"},
    serving.generate: {"rate_per_s": 2, "count": 3},
    serving.load: {"name": "azure-llm-2023"},
    serving.together: {"parts": [REQUESTS]},
    REQUESTS.at_rate: {"rate_per_s": 1},
    REQUESTS.head: {"count": 2},
}


@pytest.mark.parametrize("valid", DESCRIPTIONS, ids=lambda value: type(value).__name__)
def test_fields(valid: Any) -> None:
    given = {field.name: getattr(valid, field.name) for field in fields(valid) if field.init}
    assert problems(type(valid), given, given, WRONG) == []
    assert problem(lambda: type(valid)(**given, nonsense=1)) == ""


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda value: value.__qualname__)
def test_arguments(function: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    given = FUNCTIONS[function]
    assert problems(function, given, inspect.signature(function).parameters, WRONG) == []
    assert problem(lambda: function(**given, nonsense=1)) == ""


def test_the_error_is_one_sentence() -> None:
    with pytest.raises(LabkitError, match=r"serving\.generate: count must be a whole number"):
        serving.generate(1, "many")
