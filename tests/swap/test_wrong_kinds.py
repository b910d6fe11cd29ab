"""Whatever is asked of swap: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from labkit import swap
from labkit.errors import LabkitError
from labkit.swap import Chain

WRONG: tuple[Any, ...] = (
    None, "text", "", float("nan"), float("inf"), -float("inf"), -1, 0, 9.5, [], {}, (), object(),
    True, b"bytes", 10**30, ["a"], [1], [0], {"a": 1}, print,
)  # fmt: skip
CHAIN = Chain.even(3)
GIVEN: dict[str, Any] = {
    "input_bytes": 1,
    "output_bytes": (1, 1, 1),
    "kept_bytes": (1, 1, 1),
    "forward_cost": (1, 1, 1),
    "backward_cost": (2, 2, 2),
}
CALLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Chain.even": (Chain.even, {"num_blocks": 3, "kept_bytes": 1}),
    "all_kept": (swap.all_kept, {"chain": CHAIN}),
    "segments": (swap.segments, {"chain": CHAIN, "starts": 2}),
    "recursive": (swap.recursive, {"chain": CHAIN}),
    "searched": (swap.searched, {"chain": CHAIN, "tries": 2}),
    "optimum": (swap.optimum, {"chain": CHAIN, "memory_bytes": 9.0, "slots": 9}),
    "plan": (swap.plan, {"chain": CHAIN, "method": "searched"}),
    "replay": (swap.replay, {"chain": CHAIN, "operations": swap.all_kept(CHAIN).operations}),
}


def answered(function: Any, given: dict[str, Any]) -> None:
    try:
        function(**given)
    except LabkitError as error:
        text = str(error)
        assert text.strip()
        assert "\n" not in text


@pytest.mark.parametrize("name", [field.name for field in fields(Chain)])
def test_every_field_takes_every_wrong_kind(name: str) -> None:
    for value in WRONG:
        answered(lambda **given: swap.searched(Chain(**given)), GIVEN | {name: value})


@pytest.mark.parametrize(
    ("call", "name"), [(call, name) for call in CALLS for name in CALLS[call][1]]
)
def test_every_argument_takes_every_wrong_kind(call: str, name: str) -> None:
    function, given = CALLS[call]
    for value in WRONG:
        answered(function, given | {name: value})
