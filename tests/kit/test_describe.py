"""Kinds, bounds and choices hold for every value; what breaks them is said in a sentence."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pandas as pd
import pytest
from annotated_types import Ge, Lt, MinLen
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from labkit.errors import BadValue
from labkit.kit import describe, rules
from labkit.kit.describe import AnyNumber, Count, Positive, Share, checked, description
from labkit.kit.rules import Distinct, rule

if TYPE_CHECKING:
    from pathlib import Path


@description(slots=True)
class Batch:
    seq: Count
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0
    recompute: Literal["none", "full"] | Count = "none"
    clocks_mhz: tuple[float, ...] = ()
    tied: bool = False
    limit: AnyNumber = float("inf")
    inner: Batch | None = None

    def __post_init__(self) -> None:
        assert self.seq > 0, "fields are checked before __post_init__"


@checked
def simulate(
    batch: Batch,
    path: Path | None = None,
    *sizes: int,
    eta: Share = 0.5,
    table: pd.DataFrame | None = None,
    **axes: Sequence[int],
) -> tuple[Any, ...]:
    return (batch, path, sizes, eta, table, axes)


WRONG: Mapping[str, Sequence[Any]] = {
    "seq": [0, -1, 9.5, True, "8", None, float("nan"), [], object(), np.float64(8)],
    "dropout": [1.0, -0.1, float("nan"), float("inf"), True, "0", None, 1j],
    "recompute": ["ful", 0, True, None, 2.0, ["none"]],
    "clocks_mhz": ["abc", 3, [1, "2"], [float("inf")], {"a": 1}, None, [[1.0]]],
    "tied": ["no", 0, 1, None, "True"],
    "limit": [float("nan"), "inf", None],
    "inner": ["none", 3, {}],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values]
)
def test_a_wrong_value_is_refused_in_one_sentence(field: str, value: Any) -> None:
    with pytest.raises(BadValue) as caught:
        Batch(**{"seq": 8, field: value})
    text = str(caught.value)
    assert text.startswith(f"Batch.{field} must be ")
    assert "; got " in text
    assert "\n" not in text


def test_numpy_scalars_and_sequences_become_plain() -> None:
    batch = Batch(seq=np.int64(8), clocks_mhz=np.array([1.0, 2.0]), tied=np.True_)
    assert (type(batch.seq), batch.clocks_mhz, batch.tied) == (int, (1.0, 2.0), True)
    assert type(Batch(seq=8, dropout=np.float32(0.5)).dropout) is float
    assert replace(batch, seq=16).clocks_mhz == batch.clocks_mhz


def test_a_name_that_is_near_is_offered() -> None:
    with pytest.raises(BadValue, match="did you mean 'full'"):
        Batch(seq=8, recompute="ful")
    with pytest.raises(BadValue, match=r"Batch has no field 'sqe'; did you mean 'seq'"):
        Batch(sqe=8)
    with pytest.raises(BadValue, match="Batch needs seq"):
        Batch()


@given(st.integers(), st.floats(allow_nan=True, allow_infinity=True))
def test_numbers_are_accepted_exactly_within_their_bounds(seq: int, dropout: float) -> None:
    valid = 1 <= seq <= rules.MOST_WHOLE and 0 <= dropout < 1
    try:
        batch = Batch(seq=seq, dropout=dropout)
    except BadValue:
        assert not valid
    else:
        assert valid
        assert (batch.seq, batch.dropout) == (seq, dropout)


def test_arguments_are_checked_by_kind_of_parameter() -> None:
    batch = Batch(seq=8)
    assert simulate(batch, None, 1, 2, dp=[1])[2:6:3] == ((1, 2), {"dp": [1]})
    for args, named in [
        (("text",), {}),
        ((batch, "file.csv"), {}),  # a Path is asked for
        ((batch, None, 1.5), {}),
        ((batch,), {"eta": 1.5}),
        ((batch,), {"table": [1]}),
        ((batch,), {"dp": 8}),
    ]:
        with pytest.raises(BadValue, match=r"^(\w+\.)?simulate: \w+.* must be .*; got "):
            simulate(*args, **named)
    with pytest.raises(BadValue, match="missing a required argument: 'batch'"):
        simulate()


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (Iterable[int], [range(3), (1,), {1}, iter([1])], ["abc", 3, ["a"], np.array(1)]),
        (Sequence[str], [["a"], ("a",)], ["a", {"a"}, [1], iter(["a"]), pd.DataFrame({"a": [1]})]),
        (Sequence[int], [range(10**7)], [range(10**7 + 1), range(2**70), [2**63]]),
        (Mapping[str, int], [{"a": 1}], [{"a": "b"}, [("a", 1)], {1: 1}]),
        (Callable[[int], int], [len], [3, "len"]),
        (tuple[int, float], [(1, 2.5), [1, 2]], [(1,), (1, 2, 3), "ab", ("a", 1.0), b"ab"]),
        (tuple[int, float], [np.array([1, 2])], [{1, 2}, {1: 2, 3: 4}, np.array(1)]),
        (tuple[int, ...], [(1, 2), [1]], [{1, 2}, np.array(1), np.ma.masked]),
        (np.ndarray, [np.ones(3), 2.0, [1, 2], [True]], ["a", ["a"], object(), [True, 2.0]]),
        (NDArray[np.float64], [np.ones(3), 2.0, [1, 2]], ["a", [True], [True, 2.0], np.True_]),
        (NDArray[np.bool_], [np.array([True]), [True]], [[1], 1.0, ["True"], None]),
        (float, [1, 0, 1e150, -1e-300], [1e151, -1e151, 10**400, 10**5000, np.ma.masked]),
        (Positive, [1, 1e-150], [1e-151, 0, -0.0]),
        (int, [2**63 - 1], [2**63, -(2**63), 10**5000]),
        (Annotated[tuple[int, ...], MinLen(1)], [(1,)], [(), 3]),
        (Annotated[tuple[int, ...], Distinct()], [(), (1, 2)], [(1, 1), [3, 2, 3]]),
        (Literal[0, 1], [0, np.int64(1)], [True, False, 2, "0"]),
    ],
)
def test_rules_of_containers(hint: Any, good: Sequence[Any], bad: Sequence[Any]) -> None:
    for value in good:
        rule(hint).apply("x", value)
    for value in bad:
        with pytest.raises(BadValue, match=r"^x must be"):
            rule(hint).apply("x", value)


def test_what_is_too_large_is_refused_with_the_size_that_is_not() -> None:
    with pytest.raises(BadValue, match=r"got 1e\+300; a finite number is 1e\+150 at most"):
        rule(float).apply("x", 1e300)
    with pytest.raises(
        BadValue, match="thousands of digits; whole numbers go up to 92233720368547"
    ):
        rule(int | None).apply("x", 10**5000)


def test_threads_build_one_tree_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 raises a SystemError where two threads build trees at once."""
    inside = []
    most = []

    def slow_parse(source: str) -> ast.Module:
        inside.append(source)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()
        return ast.parse(source)

    slow = SimpleNamespace(**{**vars(ast), "parse": slow_parse})
    monkeypatch.setattr(describe, "ast", slow)
    modules = ["labkit.kit.describe", "labkit.kit.rules", "labkit.errors"]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(describe._typing_imports.__wrapped__, modules))
    assert most == [1, 1, 1]


def test_half_of_a_surrogate_pair_is_no_text_and_all_letters_are() -> None:
    @description
    class Named:
        name: str

    for name in ("", "plain", "2 × sample", "\ue000", "😀"):
        assert Named(name=name).name == name
    for name in ("\ud83d", "a \udfff"):
        with pytest.raises(BadValue, match="must be a text; got"):
            Named(name=name)
