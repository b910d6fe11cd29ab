"""Offload against ZeRO-Offload's graph by brute force, its volumes, and conservation."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import BadValue
from labkit.memory import Recipe
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Place
from labkit.memory.movement.offload import (
    EDGES,
    Offload,
    bandwidth_for,
    efficiency,
    intensity,
    offload,
    placement_table,
    placements,
)
from labkit.models import Model

PSI = 10**9
PLACES: tuple[Place, ...] = ("device", "cpu", "nvme")
STRATEGY = Recipe(offload_gradients="cpu", offload_optimizer="cpu")


def test_the_graph_is_a_cycle_so_a_cut_has_two_edges() -> None:
    """§3.2: any cut crosses at least two edges of at least 2M: never less than 4M."""
    assert {a for a, _ in EDGES} == {b for _, b in EDGES}
    assert len(EDGES) == len({a for a, _ in EDGES})
    assert sum(sorted(EDGES.values())[:2]) == 4
    moved = sorted(p.traffic_bytes for p in placements())
    assert moved[0] == 0
    assert moved[1] == 4
    assert moved.count(0) == 1


def test_cuts_by_brute_force() -> None:
    """Every assignment of the three data nodes, counted edge by edge."""
    nodes = ("parameters", "gradients", "update")
    found = {(p.parameters, p.gradients, p.update): p for p in placements()}
    assert len(found) == 8
    for sides in product(("gpu", "cpu"), repeat=3):
        side = dict(zip(nodes, sides, strict=True)) | {"passes": "gpu"}
        cut = 0
        for (a, b), weight in EDGES.items():
            cut += weight if side[a] != side[b] else 0
        one = found[sides]  # type: ignore[index]
        assert one.traffic_bytes == cut
        assert one.gpu_bytes + one.cpu_bytes == 16


def test_the_strategy_is_the_least_memory_at_the_least_traffic() -> None:
    """§3.3: all but the 16-bit parameters leave; an eighth stays. Sending those too would cost
    half as much traffic again."""
    least = [p for p in placements() if p.traffic_bytes == 4]
    best = min(least, key=lambda p: p.gpu_bytes)
    assert (best.parameters, best.gradients, best.update) == ("gpu", "cpu", "cpu")
    assert best.reduction == 8
    away = [p for p in placements() if p.parameters == "cpu"]
    assert min(p.traffic_bytes for p in away) == 6
    assert len(placement_table()) == 8


@pytest.mark.parametrize("dp", [1, 2, 64])
def test_zero_offload_moves_4m_whatever_the_number_of_gpus(dp: int) -> None:
    """§4.2: the traffic of all ranks together stays what one GPU has."""
    found = offload(PSI, Parallel(dp=dp, zero=2), STRATEGY)
    assert found.device_bytes == 2 * PSI
    assert dp * found.cpu_bytes == 14 * PSI
    assert dp * found.pcie_bytes == 4 * PSI
    assert found.nvme_bytes == found.nvme_traffic_bytes == 0


places = st.sampled_from(PLACES)


@given(places, places, places, st.integers(1, 16), st.integers(1, 512))
def test_nothing_is_lost_wherever_it_is_kept(
    parameters: Place, gradients: Place, optimizer: Place, accumulation: int, dp: int
) -> None:
    recipe = Recipe(
        offload_parameters=parameters,
        offload_gradients=gradients,
        offload_optimizer=optimizer,
        accumulation=accumulation,
    )
    found = offload(PSI, Parallel(dp=dp, zero=3), recipe)
    total = found.device_bytes + found.cpu_bytes + found.nvme_bytes
    assert total == pytest.approx(16 * PSI / dp)
    assert (found.nvme_traffic_bytes > 0) == (found.nvme_bytes > 0)
    assert bool(found.flows) == any(p != "device" for p in (parameters, gradients, optimizer))
    check_balance(found, recipe)


def check_balance(found: Offload, recipe: Recipe) -> None:
    """What the host updates must have come down, and what the device needs must come up."""
    down, up = found.bytes_over("PCIe to host"), found.bytes_over("PCIe to device")
    held = {one.component: one.num_bytes for one in found.held}
    if recipe.offload_optimizer != "device":
        assert down >= held["gradients"]
        assert up >= held["parameters"]
        if recipe.offload_optimizer == "nvme":
            assert found.bytes_over("NVMe read") >= held["optimizer"]
            assert found.bytes_over("NVMe write") >= held["optimizer"]
    if recipe.offload_parameters != "device":
        assert up >= 2 * recipe.accumulation * held["parameters"]


def test_zero_infinity_keeps_nothing_on_the_device() -> None:
    recipe = Recipe(offload_parameters="nvme", offload_gradients="nvme", offload_optimizer="nvme")
    found = offload(10**12, Parallel(dp=512, zero=3), recipe)
    assert found.device_bytes == found.cpu_bytes == 0
    assert 512 * found.nvme_bytes == 16 * 10**12
    # Parameters read twice and written, gradients written and read, states read and written.
    assert 512 * found.nvme_traffic_bytes == (3 * 2 + 2 * 2 + 2 * 12) * 10**12


@pytest.mark.parametrize("accumulation", [1, 4])
def test_accumulation_repeats_gradients_but_not_the_update(accumulation: int) -> None:
    recipe = Recipe(offload_gradients="cpu", offload_optimizer="cpu", accumulation=accumulation)
    found = offload(PSI, Parallel(zero=2), recipe)
    assert found.bytes_over("PCIe to host") == 2 * accumulation * PSI
    assert found.bytes_over("PCIe to device") == 2 * PSI


def test_gradients_kept_on_the_device_leave_once_a_step() -> None:
    recipe = Recipe(offload_optimizer="cpu", accumulation=4)
    found = offload(PSI, Parallel(dp=4, zero=2), recipe)
    assert found.pcie_bytes == PSI
    assert found.device_bytes == (2 + 2 / 4) * PSI


def test_experts_are_shared_by_fewer_ranks() -> None:
    model = Model.preset("mixtral-8x7b")
    found = offload(model, Parallel(dp=8, ep=8, zero=3), STRATEGY)
    experts = model.num_expert_params
    per_rank = (model.num_params - experts) / 8 + experts / 8
    assert found.cpu_bytes == pytest.approx(14 * per_rank)
    wide = offload(model, Parallel(dp=16, ep=8, zero=3), STRATEGY)
    assert wide.cpu_bytes == pytest.approx(found.cpu_bytes / 2)


@pytest.mark.parametrize(
    ("recipe", "zero"),
    [
        (Recipe(offload_parameters="cpu"), 2),
        (Recipe(offload_optimizer="cpu"), 0),
        (Recipe(offload_optimizer="nvme"), 2),
    ],
)
def test_stages_that_cannot_are_refused(recipe: Recipe, zero: int) -> None:
    with pytest.raises(BadValue, match="zero must be >="):
        offload(PSI, Parallel(dp=2, zero=zero), recipe)


def test_tables_have_a_source_each() -> None:
    found = offload(PSI, Parallel(zero=3), Recipe(offload_optimizer="nvme"))
    assert found.frame()["num_bytes"].sum() == 16 * PSI
    assert (found.traffic()["source"].str.len() > 0).all()
    slow = found.step_s(pcie_bytes_per_s=1e12, nvme_bytes_per_s=1e9)
    assert slow == found.nvme_traffic_bytes / 1e9
    assert found.step_s(pcie_bytes_per_s=1e6, nvme_bytes_per_s=1e12) == 2 * PSI / 1e6


@given(st.floats(0.01, 0.99), st.floats(1, 1e6), st.floats(1e9, 1e16))
def test_bandwidth_is_the_inverse_of_efficiency(share: float, ratio: float, peak: float) -> None:
    needed = bandwidth_for(share, ratio, flops_per_s=peak)
    assert efficiency(ratio, bytes_per_s=needed, flops_per_s=peak) == pytest.approx(share)


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 64))
def test_intensities_are_zero_infinitys(tokens: int, hidden: int, every: int) -> None:
    """seq·bsz, seq·bsz/4 and 24·hd·ci."""
    assert intensity("parameters and gradients", tokens=tokens) == tokens
    assert intensity("optimizer", tokens=tokens) == tokens / 4
    kept = intensity("checkpoints", tokens=tokens, hidden=hidden, every=every)
    assert kept == pytest.approx(24 * hidden * every)


def test_bad_questions() -> None:
    with pytest.raises(BadValue, match="what must be"):
        intensity("activations", tokens=1)
    with pytest.raises(BadValue, match="hidden and every"):
        intensity("checkpoints", tokens=1)
    with pytest.raises(BadValue, match="share must be"):
        bandwidth_for(1.0, 1.0, flops_per_s=1.0)
    with pytest.raises(BadValue, match="a parameter count"):
        offload(0, Parallel(), Recipe())
