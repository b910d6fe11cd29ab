"""Values given to parameters: what the notebook declares is what it gets, or nothing runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import UsageError
from labkit.workbook.notebooks import Parameter
from labkit.workbook.run.parameters import coerce, combinations
from tests.workbook.factory import stated

DECLARED = {
    "seed": Parameter(name="seed", default=0, annotation="int"),
    "eta": Parameter(name="eta", default=0.5, annotation="float"),
    "gpu": Parameter(name="gpu", default="V100"),
}


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("3", "int", 3),
        ("1e3", "int", 1000),
        ("-4", "int", -4),
        ("3", "float", 3.0),
        ("1e-3", "float", 0.001),
        ("true", "bool", True),
        ("true", "str", "true"),
        ("3", "str", "3"),
    ],
)
def test_values_take_the_declared_type(text: str, annotation: str, value: Any) -> None:
    got = coerce(text, annotation)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "annotation"),
    [
        ("1.5", "int"),
        ("x", "int"),
        ("true", "int"),
        ("1", "bool"),
        ("yes", "bool"),
        ("", "float"),
        (".nan", "float"),
        (".inf", "float"),
        ("[1, 2]", "list[int]"),
        ("1" + "0" * 400, "float"),
        ("\udcff", "str"),
    ],
)
def test_values_of_another_type_are_refused(text: str, annotation: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        coerce(text, annotation)


@given(st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_number_written_out_comes_back(value: Any) -> None:
    assert coerce(json.dumps(value), type(value).__name__) == value


@given(st.text())
def test_a_string_comes_back_as_typed(text: str) -> None:
    assert coerce(text, "str") == text


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.lists(st.sampled_from(["V100", "A40"]), min_size=1, max_size=3),
)
def test_sweeps_give_every_combination_once(seeds: list[int], gpus: list[str]) -> None:
    swept = {"seed": ",".join(map(str, seeds)), "gpu": ",".join(gpus)}
    found = list(combinations("zeus", DECLARED, stated({"eta": "0.5"}, swept)))
    full = {(c.get("seed", 0), c.get("gpu", "V100"), c.get("eta", 0.5)) for c in found}
    assert full == {(seed, gpu, 0.5) for seed in seeds for gpu in gpus}
    assert len(found) == len(full)


def test_an_unknown_parameter_names_the_notebook_and_what_there_is() -> None:
    with pytest.raises(UsageError) as refused:
        list(combinations("zeus", DECLARED, stated({"sed": "1"}, {})))
    said = str(refused.value)
    for part in ("'zeus'", "'sed'", "seed: int = 0", "eta: float = 0.5", "gpu = 'V100'"):
        assert part in said
