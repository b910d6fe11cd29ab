"""Poseidon: VGG19-22K's shapes, Table 1's bytes, and the choice between servers and factors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from labkit import collectives, planner
from labkit.papers import poseidon
from labkit.papers.poseidon import Cluster

PROFILES = Path(__file__).parents[2] / "data" / "profiles"
CLUSTER = Cluster(machines=16)


def profile(network: str) -> pd.DataFrame:
    """A fitted profile; its shapes are the published ones."""
    return planner.Chain.read(PROFILES / f"standin_layers_{network}.csv").frame()


@pytest.fixture(scope="module")
def vgg() -> pd.DataFrame:
    return poseidon.scaled(poseidon.vgg19_22k(profile("vgg16")), images_per_s=34.6, batch=32)


def test_vgg19_22k_has_the_papers_weights(vgg: pd.DataFrame) -> None:
    """The release documentation has 229M."""
    assert len(vgg) == 19
    assert round(vgg["parameter_bytes"].sum() / 4e6) == 229
    assert vgg[["forward_s", "backward_s"]].to_numpy().sum() == pytest.approx(32 / 34.6)
    dense = vgg[vgg["inputs"] > 0]
    assert [*dense["layer"]] == ["fc6", "fc7", "fc8"]
    weights = (dense["inputs"] + 1) * dense["outputs"]  # and a bias
    assert weights.to_numpy() == pytest.approx(dense["parameter_bytes"].to_numpy() / 4)


def test_all_seconds_stay_when_layers_without_weights_are_joined() -> None:
    frame = profile("resnet50")
    layers = poseidon.weighted(frame)
    for column in ("forward_s", "backward_s", "parameter_bytes"):
        assert layers[column].sum() == pytest.approx(frame[column].sum())
    last = layers.iloc[-1]
    assert (last["inputs"], last["outputs"]) == (2_048, 1_000)
    assert (layers["inputs"].iloc[:-1] == 0).all()


def test_inception_has_its_weights_and_one_dense_layer() -> None:
    layers = poseidon.by_operations("inception3")
    assert round(layers["parameter_bytes"].sum() / 4e6) == 24
    assert (layers["inputs"] > 0).sum() == 1
    assert (layers["backward_s"] == 2 * layers["forward_s"]).all()


def test_servers_on_all_machines_send_what_a_ring_sends(vgg: pd.DataFrame) -> None:
    fabric = collectives.Fabric.flat(16, bandwidth_bytes_per_s=1e9)
    for row, sent in zip(vgg.itertuples(), CLUSTER.server_bytes(vgg), strict=True):
        message = int(row.parameter_bytes) // 64 * 64
        ring = collectives.program("ring", 16, message)
        busiest = collectives.cost(ring, fabric).time_s * 1e9
        assert sent == pytest.approx(busiest, rel=0.05 if message < 10_000 else 1e-3)


def test_factors_are_table_1s_formula(vgg: pd.DataFrame) -> None:
    sent = CLUSTER.factor_bytes(vgg)
    assert np.isinf(sent[vgg["inputs"] == 0]).all()
    fc6 = sent[[*vgg["layer"]].index("fc6")]
    assert fc6 == 4 * 32 * 15 * (25_088 + 4_096)


def test_hybrid_never_sends_more_than_either(vgg: pd.DataFrame) -> None:
    for batch in (1, 32, 512, 4_096):
        for machines in (2, 16, 128):
            cluster = Cluster(machines=machines, batch=batch)
            hybrid = cluster.sent_bytes(vgg)
            assert (hybrid <= cluster.sent_bytes(vgg, "servers")).all()
            assert (hybrid <= cluster.sent_bytes(vgg, "factors")).all()


def test_large_batches_turn_the_choice(vgg: pd.DataFrame) -> None:
    assert CLUSTER.sends_factors(vgg).sum() == 3
    assert replace(CLUSTER, batch=4_096).sends_factors(vgg).sum() == 0
    assert CLUSTER.sends_factors(vgg, "servers").sum() == 0


def test_waiting_never_helps_and_multiplying_costs(vgg: pd.DataFrame) -> None:
    naive = CLUSTER.speedup(vgg, "servers", "after")
    wait_free = CLUSTER.speedup(vgg, "servers")
    assert naive < wait_free < CLUSTER.speedup(vgg) <= 16
    slow = replace(CLUSTER, flops_per_s=1e11)
    assert slow.speedup(vgg) < CLUSTER.speedup(vgg)
    assert slow.speedup(vgg, "servers") == wait_free
    assert Cluster(machines=1).speedup(vgg) == pytest.approx(1)


def test_figures_draw_what_they_are_given() -> None:
    assert len(poseidon.figure_idea().layout.shapes) == 3
    table = pd.DataFrame({"over servers": [2e6], "as factors": [float("inf")]}, index=["conv"])
    bars = poseidon.figure_schemes(table, title="t").data
    assert list(bars[0].y) == [2]
    assert list(bars[1].y) == [None]
    speedups = pd.DataFrame({"wait-free, servers": [1.0, 1.5]}, index=[1, 2])
    figure = poseidon.figure_speedup(speedups, {2: 1.75, 16: 9.0}, title="t")
    assert list(figure.data[1].y) == [1, 2]
    assert list(figure.data[2].y) == [1.75]
