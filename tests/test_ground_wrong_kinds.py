"""Whatever is asked of the ground floor: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from labkit import datasets, hardware
from labkit.kit import command, stats
from tests import kinds

NAME = "zeus-nsdi23"
OPENED: dict[str, Any] = {"name": NAME, "files": ["summary_train.csv"], "root": None}


def product(a: int, b: int) -> int:
    return a * b


def of_datasets() -> Mapping[str, Mapping[str, Any]]:
    return {
        "Source.frame": {"file": "summary_train.csv"},
        "Source.has": {"file": "summary_train.csv"},
        "Source.path": {"file": "summary_train.csv"},
        "available": OPENED,
        "fingerprint": OPENED,
        "mirror_folder": {"root": None},
        "needed": {"entries": [NAME], "root": None},
        "open": {"reference": f"{NAME}/summary_train.csv"},
        "source": OPENED,
    }


def of_kit() -> Mapping[str, Mapping[str, Any]]:
    return {"sweep": {"function": product, "grid": {"a": [1, 2], "b": [3]}, "chunk": 1}}


ROOMS = (
    kinds.Room(
        datasets,
        of_datasets,
        lambda: {"Source": datasets.source(**OPENED)},
        left_out={
            **dict.fromkeys(("CorruptDownload", "DatasetUnavailable"), "an error"),
            "Source": "a result",
            "fetch": "it downloads; it chooses files as the others do",
        },
        also={
            "needed.entries": "no dataset",
            "open.reference": "no dataset",
            **{f"{call}.name": "no dataset" for call in ("available", "fingerprint", "source")},
        },
        thin={"": 3},
        declared=False,
    ),
    kinds.Room(
        hardware,
        lambda: {
            "accelerator": {"name": "H100-80GB"},
            "link": {"name": "nvlink-v100"},
            "named_in": {"text": "8x NVIDIA H100 80GB HBM3"},
        },
        dict,
        left_out=dict.fromkeys(("Accelerator", "Link"), "a row of a file, which checks it"),
        also={"accelerator.name": "no accelerator", "link.name": "no link"},
        declared=False,
    ),
    kinds.Room(
        stats,
        lambda: {"mean_interval": {"values": [1.0, 2.0]}},
        dict,
        strange={"nan|inf": "one value alone, or a mean of what is not finite"},
        declared=False,
    ),
    kinds.Room(
        importlib.import_module("labkit.kit.sweep"),
        of_kit,
        dict,
        also={"sweep.function": "at a=1, b=3"},
        strange={r"\b(a|b|value)\.(nan|inf)": "numbers that are handed back as they are"},
    ),
)
PARSERS = (
    command.numbers,
    command.whole_numbers,
    command.byte_counts,
    command.byte_count,
    command.pairs,
)
TEXTS = [text for text in kinds.TEXTS if isinstance(text, str)] + list(kinds.CELLS)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.package.__name__)
def test_every_public_call_has_an_example(room: kinds.Room) -> None:
    room.check_examples()


@pytest.mark.parametrize(
    ("room", "name"),
    [(room, name) for room in ROOMS for name in room.names()],
    ids=lambda value: value if isinstance(value, str) else value.package.__name__,
)
def test_odd_values(
    room: kinds.Room, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    room.check(name)


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@pytest.mark.parametrize("text", TEXTS, ids=kinds.numbered(TEXTS))
def test_odd_texts_of_options(parse: Callable[[str, str], Any], text: str) -> None:
    parameters = inspect.signature(parse).parameters
    outcome = kinds.tried(parse, parameters, {"name": "--option", "text": text})
    assert outcome.kind in ("answered", "refused"), outcome.text
    assert outcome.kind == "answered" or "--option" in outcome.text


def test_a_part_of_the_values_has_one_of_each_kind() -> None:
    assert list(kinds.some([range(10), "ab", []], 4, 5)) == [1, 5, 9, "b"]
    assert list(kinds.some(["a"], 4, 3)) == ["a"]


def test_a_call_without_end_is_slow() -> None:
    def spin() -> None:
        while True:
            pass

    with kinds.limits():
        kinds.wind(0.1)
        assert kinds.tried(spin, {}, {}).kind == "slow"
