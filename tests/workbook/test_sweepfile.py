"""A sweep's file: the runs it asks for, and the line of what is wrong in it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from labkit.errors import BadFile, UsageError
from labkit.workbook.notebooks import Parameter
from labkit.workbook.run import sweepfile
from labkit.workbook.run.parameters import combinations, with_seeds
from tests.workbook.factory import stated

DECLARED = {
    p.name: p
    for p in (
        Parameter(name="seed", default=7, annotation="int"),
        Parameter(name="seeds", default=3, annotation="int"),  # how many: not itself a seed
        Parameter(name="eta", default=0.5, annotation="float"),
        Parameter(name="gpu", default="V100", annotation="str"),
        Parameter(name="fast", default=False),
        Parameter(name="num_stages", default=4, annotation="int"),
    )
}


def runs(
    folder: Path,
    text: str,
    seeds: str = "",
    fixed: Mapping[str, str] | None = None,
    sweeps: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    path = folder / "sweep.yaml"
    path.write_text(text)
    sweep = stated(fixed or {}, sweeps or {}, with_seeds(sweepfile.read(path), seeds))
    return list(combinations("zeus", DECLARED, sweep))


def test_every_section_multiplies_and_values_keep_their_types(tmp_path: Path) -> None:
    text = """
        fixed: {fast: true}
        grid: {eta: [0, 0.25, 1e-1]}
        zip: {num_stages: [8, 16], seed: [1, 2]}
        list: [{gpu: A40}, {gpu: "A100, 80 GB"}]
    """
    cases = runs(tmp_path, text)
    stages = [{"num_stages": 8, "seed": 1}, {"num_stages": 16, "seed": 2}]
    expected = [
        {"fast": True, "eta": eta, **pair, "gpu": gpu}
        for eta, pair, gpu in itertools.product([0.0, 0.25, 0.1], stages, ["A40", "A100, 80 GB"])
    ]
    assert cases == expected
    assert {type(case["eta"]) for case in cases} == {float}


@given(
    grid=st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=3, unique=True),
    rows=st.integers(0, 3),
    listed=st.integers(0, 3),
    seeds=st.integers(1, 4),
)
def test_there_are_as_many_runs_as_the_product_says(
    grid: list[float], rows: int, listed: int, seeds: int, tmp_path_factory: Any
) -> None:
    content: dict[str, Any] = {"grid": {"eta": grid}, "seeds": seeds}
    content |= {"zip": {"num_stages": list(range(rows)), "fast": [True] * rows}} if rows else {}
    content |= {"list": [{"gpu": f"g{i}"} for i in range(listed)]} if listed else {}
    path = tmp_path_factory.mktemp("sweep") / "sweep.yaml"
    YAML().dump(content, path)
    cases = list(combinations("zeus", DECLARED, sweepfile.read(path)))
    assert len(cases) == len(grid) * max(rows, 1) * max(listed, 1) * seeds


def test_seeds_go_on_from_the_notebooks_own_or_are_listed(tmp_path: Path) -> None:
    assert runs(tmp_path, "seeds: 3") == [{}, {"seed": 8}, {"seed": 9}]
    assert runs(tmp_path, "seeds: [1, 7]") == [{"seed": 1}, {}]
    assert runs(tmp_path, "fixed: {fast: true}", "2,3") == [
        {"fast": True, "seed": 2},
        {"fast": True, "seed": 3},
    ]
    with pytest.raises(UsageError, match="no seed to repeat"):
        list(combinations("zeus", {"eta": DECLARED["eta"]}, with_seeds(None, "2")))


def test_options_and_file_multiply(tmp_path: Path) -> None:
    cases = runs(
        tmp_path, "grid: {eta: [0, 1]}", fixed={"gpu": "A40"}, sweeps={"num_stages": "1,2"}
    )
    assert len(cases) == 4
    assert all(case["gpu"] == "A40" for case in cases)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("\ngrid: {eta: 1}", 2, "not a list of values; field 'grid.eta'; found 1; valid: a list"),
        ("\ngrid:\n  eta: [1, [2]]", 3, "not a value"),
        ("grid: {eta: []}", 1, "not a list of values"),
        ("gird: {eta: [1]}", 1, "valid: the fields fixed, grid, zip, list, seeds"),
        ("\nzip:\n  eta: [1, 2]\n  seed: [1]", 2, "unequal length (eta: 2, seed: 1)"),
        ("seeds: 0", 1, "no seeds; field 'seeds'; found 0; valid: how many, 1 or more"),
        ("seeds: [1, x]", 1, "no seeds"),
        ("\n\ngrid:\n  eta:\n    - 1\n    - fast", 6, "eta: 'fast' is not of type float; field"),
        ("fixed: {num_stages: 1.5}", 1, "1.5 is not of type int"),
        ("fixed: {gpu: 40}", 1, "40 is not of type str"),
        ("fixed: {eta: .inf}", 1, "not a finite number"),
        ("\nlist:\n  - {gpu: A40}\n  - {gpuu: A40}", 4, "no parameter 'gpuu'; did you mean 'gpu'?"),
        ("fixed: {eta: 1}\ngrid: {eta: [2]}", 2, "both with fixed and with grid"),
        ("fixed: {seed: 1}\nseeds: 2", 2, "seed is given both with fixed and with seeds"),
        ("fixed: 3", 1, "field 'fixed'"),
    ],
)
def test_a_fault_is_named_by_line_field_and_value(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    with pytest.raises(BadFile) as refused:
        runs(tmp_path, text)
    assert said in str(refused.value)
    assert refused.value.line == line


def test_a_value_stands_in_an_option_or_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="both with -p and with grid"):
        runs(tmp_path, "grid: {eta: [0, 1]}", fixed={"eta": "1"})
    with pytest.raises(BadFile, match="--seeds is given as well"):
        runs(tmp_path, "seeds: 2", "3")
    with pytest.raises(UsageError, match="--seeds 'x'; valid: how many"):
        with_seeds(None, "x")


def test_runs_are_counted_before_any_is_made(tmp_path: Path) -> None:
    """A thousand millions of them would take hours to list, or more memory than there is."""
    path = tmp_path / "sweep.yaml"
    grid = {name: list(range(1000)) for name in ("seed", "eta", "n")}
    path.write_text(f"grid: {grid}\n")
    declared = {n: Parameter(name=n, default=0, annotation="int") for n in grid}
    with pytest.raises(BadFile, match=r"sweep\.yaml:1: .*'zeus': 1,000,000,000 runs.*at most 20,0"):
        next(combinations("zeus", declared, sweepfile.read(path)))
    for seeds in ("1000000000", "9" * 999, ",".join(["1"] * 20_001)):
        with pytest.raises(UsageError, match=r"notebook 'zeus': .* runs; valid: at most 20,000"):
            next(combinations("zeus", declared, with_seeds(None, seeds)))
    with pytest.raises(UsageError, match="--seeds '999"):
        with_seeds(None, "9" * 5000)
    assert len(list(combinations("zeus", {"seed": declared["seed"]}, with_seeds(None, "20000"))))
