"""Whatever is asked of models: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from labkit import models
from labkit.errors import LabkitError
from tests import kinds

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 8,
    "n_head": 2,
    "vocab_size": 16,
    "n_positions": 4,
}


def examples() -> Mapping[str, Mapping[str, Any]]:
    model = models.Model.from_hf(GPT2)
    return {
        "Model": {field.name: getattr(model, field.name) for field in fields(model)},
        "Model.from_hf": {"config": GPT2, "transformers_version": "5.0"},
        "Model.from_module": {"module": nn.Linear(2, 2), "name": "a"},
        "Model.has_bias": {"where": "mlp"},
        "Model.preset": {"name": "gpt2-124m"},
        "Model.resized": {"changes": {"hidden": 16}},
        "Model.tensors": {"part": {"end_layer": 1}},
        "Model.units": {"part": {"tp": 2, "embedding": True}},
        "plain_name": {"name": "mistralai/Mixtral-8x7B-Instruct-v0.1"},
        "TensorShape": {"name": "a", "shape": (2, 3), "unit": "block"},
    }


def objects() -> Mapping[str, Any]:
    model = models.Model.from_hf(GPT2)
    unit = model.units()[0]
    return {"Model": model, "Unit": unit, "TensorShape": unit.tensors[0]}


ROOM = kinds.Room(
    models,
    examples,
    objects,
    also={"Model.from_hf.config": r"configuration|\b(num_layers|hidden|heads|vocab|positions)\b"},
)


def test_every_public_call_has_an_example() -> None:
    ROOM.check_examples()


@pytest.mark.parametrize("name", ROOM.names())
def test_odd_values(name: str) -> None:
    ROOM.check(name)


ODD = kinds.documents(GPT2)


@pytest.mark.parametrize("content", ODD, ids=kinds.numbered(ODD))
def test_odd_configurations(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with kinds.limits():
        outcome = kinds.tried(lambda: models.Model.from_hf(path), {}, {})
    assert outcome.kind in ("answered", "refused"), outcome.text


@pytest.mark.parametrize("config", [[1], {"model_type": []}, json.dumps([1]), {}, None, 3, b"{}"])
def test_what_is_no_configuration_is_refused(config: Any) -> None:
    with pytest.raises(LabkitError):
        models.Model.from_hf(config)
