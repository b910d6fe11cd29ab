"""What ``labkit memory`` answered before its commands moved: the same keys and the same numbers.

A file of ``tests/cli/pins/memory`` holds the arguments of one command and the JSON it gave.
Numbers, names and keys must stay; sentences (formulas, assumptions, reasons) may be put in better
words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GROUP = "memory"
PINS = sorted((Path(__file__).parent / "pins" / "memory").glob("*.json"))
SENTENCES = {"assumptions", "formula", "source", "why", "problem", "refused"}


@pytest.mark.parametrize("path", PINS, ids=lambda path: path.stem)
def test_json_keeps_its_keys_and_numbers(path: Path, told: Callable[..., dict[str, Any]]) -> None:
    pin = json.loads(path.read_text(encoding="utf-8"))
    if pin["arguments"][0] == "check":
        pytest.importorskip("torch")
    compare(told(*pin["arguments"]), pin["json"], pin["arguments"][0])


def compare(ours: Any, pinned: Any, where: str) -> None:
    """Raise where a key, a length, a name or a number is another.

    A command's own answer may have further keys after the pinned ones.
    """
    if isinstance(pinned, dict):
        there = list(ours)[: len(pinned)] if "." not in where and "[" not in where else list(ours)
        assert there == list(pinned), where
        for key in pinned:
            if key not in SENTENCES:
                compare(ours[key], pinned[key], f"{where}.{key}")
    elif isinstance(pinned, list):
        assert len(ours) == len(pinned), where
        for place, (left, right) in enumerate(zip(ours, pinned, strict=True)):
            compare(left, right, f"{where}[{place}]")
    elif isinstance(pinned, float):
        assert ours == pytest.approx(pinned, rel=1e-12), where
    else:
        assert ours == pinned, where
