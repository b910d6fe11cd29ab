"""Transformer shapes against parameter counts that others published."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import hardware, models
from labkit.errors import BadFile, UsageError
from labkit.models import Model

# Counts of the published checkpoints (Hugging Face safetensors metadata of each).
PUBLISHED = {
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "gpt2-1.5b": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
}
# Sizes that papers give in their text, to the digits they give.
NAMED = {"gpt3-175b": 175e9, "megatron-8.3b": 8.3e9, "turing-nlg-17b": 17e9, "zero-60b": 60e9}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_shapes_give_the_published_parameter_count(name: str, count: int) -> None:
    assert Model.preset(name).num_params == count


@pytest.mark.parametrize(("name", "size"), NAMED.items())
def test_shapes_give_the_size_in_the_name(name: str, size: float) -> None:
    assert Model.preset(name).num_params == pytest.approx(size, rel=0.02)


def test_every_preset_says_where_its_shape_is_from() -> None:
    assert all(model.source for model in models.presets().values())


def test_units_partition_the_model() -> None:
    model = Model.preset("llama-3-8b")
    by_unit: dict[str, int] = {}
    for tensor in model.tensors():
        by_unit[tensor.unit] = by_unit.get(tensor.unit, 0) + tensor.numel
    assert sum(by_unit.values()) == model.num_params
    assert max(by_unit.values()) == model.largest_unit_params
    assert len({tensor.name for tensor in model.tensors()}) == len(model.tensors())


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_layers": 0, "hidden": 8, "heads": 2, "vocab": 10},
        {"num_layers": 1, "hidden": 9, "heads": 2, "vocab": 10},
        {"num_layers": 1, "hidden": 8, "heads": 4, "kv_heads": 3, "vocab": 10},
        {"num_layers": 1, "hidden": 8, "heads": 2, "vocab": 10, "positions": -1},
    ],
)
def test_impossible_shapes_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        Model(**sizes)  # type: ignore[arg-type]


def test_unknown_names_list_what_there_is() -> None:
    with pytest.raises(UsageError, match="gpt3-175b"):
        Model.preset("gpt-5")
    with pytest.raises(UsageError, match="V100-32GB"):
        hardware.accelerator("TPU")
    with pytest.raises(UsageError, match="ib-edr"):
        hardware.link("string and cans")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: {num_layers: 1, hidden: 8, heads: 2, vocab: 3, layers: 9}", "layers"),
        ("b: {num_layers: 1, hidden: 8, heads: 3, vocab: 3}", "must divide by heads"),
        ("c: {num_layers: 1, hidden: 8, heads: 2}", "vocab"),
    ],
)
def test_a_malformed_preset_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    with pytest.raises(BadFile, match=complaint):
        models._presets(path)


def test_nominal_memory_is_binary_as_the_maker_counts_it() -> None:
    assert hardware.accelerator("V100-32GB").memory_bytes == 32 * 2**30
