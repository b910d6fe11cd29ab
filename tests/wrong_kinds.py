"""What the engines' tests of wrong kinds share: calls with one value replaced by a wrong one."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.errors import LabkitError

WRONG: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    9.5,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "text",
    b"bytes",
    [],
    [1],
    ["text"],
    [None],
    (),
    (1, 2),
    ((1.0,), ("x",)),
    {},
    {"a": 1},
    {1: -2},
    {1, 2},
    object(),
    int,
    len,
    np.array([]),
    np.array([[1.0, np.nan]]),
    np.float64(2.5),
    np.int64(-3),
    np.bool_(True),
    pd.DataFrame({"a": [1]}),
    pd.Series(["x"]),
    Path("nowhere"),
    1 + 2j,
    range(0),
    range(3),
)
"""A value of every kind that a careless caller may give."""


def problem(call: Callable[[], Any]) -> str:
    """What a call does instead of answering or refusing in one paragraph; empty where it does."""
    try:
        call()
    except LabkitError as error:
        return f"no paragraph: {error}" if not str(error) or "\n" in str(error) else ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def problems(
    call: Callable[..., Any], given: Mapping[str, Any], names: Iterable[str], wrong: Iterable[Any]
) -> list[str]:
    """Every problem of a call with one of its values replaced by a wrong one."""
    values = tuple(wrong)
    outcomes = {
        (name, repr(value)): problem(lambda n=name, v=value: call(**{**given, n: v}))
        for name in names
        for value in values
    }
    return [f"{place}: {text}" for place, text in outcomes.items() if text]


def assert_fields_are_checked(valid: Any, wrong: Iterable[Any]) -> None:
    """A description answers or refuses in a paragraph, whatever one of its fields is given."""
    given = {field.name: getattr(valid, field.name) for field in fields(valid) if field.init}
    assert problems(type(valid), given, given, wrong) == []
    assert problem(lambda: type(valid)(**given, nonsense=1)) == ""


def assert_arguments_are_checked(
    function: Callable[..., Any], given: Mapping[str, Any], wrong: Iterable[Any]
) -> None:
    """A function answers or refuses in a paragraph, whatever one of its arguments is given."""
    assert problems(function, given, inspect.signature(function).parameters, wrong) == []
    assert problem(lambda: function(**given, nonsense=1)) == ""


def assert_answers_or_paragraphs(
    cases: Mapping[str, Mapping[str, Any]],
    target: Callable[[str], Callable[..., Any]],
    parameters: Callable[[str], Iterable[str]],
    wrong: Iterable[Any],
) -> int:
    """Every case answers as given; with any parameter wrong it answers or refuses in a paragraph,
    and more often refuses. Gives the number of wrong calls."""
    values = tuple(wrong)
    calls = 0
    refusals = []
    raw = []
    for name, given in cases.items():
        call = target(name)
        call(**given)
        for parameter in sorted(parameters(name)):
            for value in values:
                calls += 1
                try:
                    call(**{**given, parameter: value})
                except LabkitError as error:
                    refusals.append(str(error))
                except Exception as error:
                    raw.append(f"{name}({parameter}={value!r}): {type(error).__name__}: {error}")
    assert not raw, f"{len(raw)} of {calls} calls:\n" + "\n".join(raw)
    assert len(refusals) > calls / 2
    assert all(text.strip() and "\n\n" not in text for text in refusals)
    return calls
