"""The stand-ins: made by the committed script, as near to the published files as they say."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from labkit import datasets, pipeline, planner, tuning
from labkit.papers import zeus
from tests.published import Need

PROFILES = Path(__file__).resolve().parents[2] / "data" / "profiles"


@pytest.fixture(scope="module")
def fit() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("fit", PROFILES / "fit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fit"]


@pytest.fixture(scope="module")
def coefficients() -> dict:
    return json.loads((PROFILES / "coefficients.json").read_text(encoding="utf-8"))


def test_the_script_writes_the_committed_files(fit: ModuleType) -> None:
    written = fit.files()
    assert set(written) == {path.name for path in PROFILES.glob("standin_*.csv")}
    for name, text in written.items():
        assert (PROFILES / name).read_text(encoding="utf-8") == text


def test_models_are_small(coefficients: dict) -> None:
    for name, model in coefficients.items():
        assert model["num_coefficients"] < 0.5 * model["num_values"], name


@pytest.mark.parametrize(
    "name",
    [
        "a100_bloom",
        "v100_power",
        "train",
        "pollux_cifar10_placements",
        "pollux_deepspeech2_validation-*",
        "pollux_workload-1",
        "layers_vgg16",
        "kernels_vgg",
    ],
)
def test_errors_are_as_stated_on_the_published_files(
    fit: ModuleType, coefficients: dict, name: str, published_data: Need
) -> None:
    model = next(model for model in fit.MODELS if model.name == name)
    published_data(model.dataset, fit.paths(model))
    again = fit.fitted(model, model.read(fit.published(model), model.path))
    stated = coefficients[name]["error"]
    assert again["error"]["median"] == pytest.approx(stated["median"], rel=0.02)
    assert again["error"]["worst"] == pytest.approx(stated["worst"], rel=0.02)


def test_quantiles_have_the_mean_they_are_asked_for(fit: ModuleType) -> None:
    for mean in (3.3, 17.8, 204.0):
        epochs = fit.quantiles(mean, 0.1 * mean, 5, 64)
        assert all(value == round(value) for value in epochs)
        assert np.mean(epochs) == pytest.approx(mean, abs=0.11)


def standin(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> datasets.Source:
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    monkeypatch.setenv("LABKIT_DATA_MIRROR", "")
    return datasets.source(name)


def test_a_source_says_how_far_its_model_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, coefficients: dict
) -> None:
    path = "sosp24_data/emulation/stage_profile/bloom+a100_sxm_bf16.csv"
    source = standin(f"perseus-sosp24/{path}", monkeypatch, tmp_path)
    assert source.fit_error is not None
    assert source.fit_error.worst == coefficients["a100_bloom"]["error"]["worst"]
    assert "worst 2.1 %" in source._repr_mimebundle_()["text/plain"]


@pytest.mark.parametrize("model", ["gpt3-175b", "bloom"])
def test_a_fitted_profile_saves_what_the_published_one_does(
    model: str, published_data: Need
) -> None:
    """Headline values lie within 10 % of those on the published profile."""
    path = f"sosp24_data/emulation/stage_profile/{model}+a100_sxm_bf16.csv"
    published = published_data("perseus-sosp24", [path]).path(path)
    savings = []
    for file in (published, PROFILES / f"standin_a100_{model}.csv"):
        profile = pipeline.EnergyProfile.from_csv(file, blocking_power_w=83.64)
        plan, top = (
            pipeline.plan(pipeline.build_for(profile, "envpipe", 12), profile, method)
            for method in ("envpipe", "max-clock")
        )
        savings.append(1 - plan.energy_j / top.energy_j)
    assert savings[1] == pytest.approx(savings[0], rel=0.1)


def test_fitted_traces_save_what_the_published_ones_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, published_data: Need
) -> None:
    """In hindsight, energy and time of the cheapest configuration, within 10 %."""
    published_data("zeus-nsdi23")
    published = zeus.hindsight(tuning.load("zeus-nsdi23", gpu="v100").jobs())
    monkeypatch.setenv("LABKIT_OFFLINE", "1")
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path))
    monkeypatch.setenv("LABKIT_DATA_MIRROR", "")
    fitted = zeus.hindsight(tuning.load("zeus-nsdi23", gpu="v100").jobs())
    saved = [table.set_index("workload")["energy_saving_fraction"] for table in (published, fitted)]
    assert np.allclose(saved[1], saved[0], rtol=0.1)


@pytest.mark.parametrize(
    ("network", "plans"), [("vgg16", ("3-1", "15-1")), ("alexnet", ("3-1", "15-1"))]
)
def test_fitted_layers_are_planned_as_the_authors_do(network: str, plans: tuple[str, str]) -> None:
    """On 4 and on 16 devices at 10 Gbit/s; no published file is read."""
    chain = planner.Chain.read(PROFILES / f"standin_layers_{network}.csv")
    for devices, name in zip((4, 16), plans, strict=True):
        cluster = planner.Fabric.flat(devices, bandwidth_bytes_per_s=1.25e9)
        assert planner.plan(chain, cluster, costing="server").name == name
