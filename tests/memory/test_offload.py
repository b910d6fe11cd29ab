"""Offload against ZeRO-Offload's graph by brute force, its volumes, and conservation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import BadValue
from labkit.memory import Recipe
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Place
from labkit.memory.movement.offload import Offload, offload
from labkit.models import Model
from tests.memory.steps import expert_params
from tests.oracles.printed.offload_graph import Placement, placements

PSI = 10**9
PLACES: tuple[Place, ...] = ("device", "cpu", "nvme")
STRATEGY = Recipe(offload_gradients="cpu", offload_optimizer="cpu")


@pytest.mark.parametrize("dp", [1, 2, 64])
def test_zero_offload_moves_4m_whatever_the_number_of_gpus(dp: int) -> None:
    """§4.2: the traffic of all ranks together stays what one GPU has."""
    found = offload(PSI, Parallel(dp=dp, zero=2), STRATEGY)
    assert found.bytes_at("device") == 2 * PSI
    assert dp * found.bytes_at("cpu") == 14 * PSI
    assert dp * found.bytes_at("PCIe to device", "PCIe to host") == 4 * PSI
    assert found.bytes_at("nvme") == found.bytes_at("NVMe read", "NVMe write") == 0


def cut_of(recipe: Recipe) -> Placement:
    """The cut of ZeRO-Offload's graph at which a recipe keeps its states."""
    sides = {"device": "gpu", "cpu": "cpu"}
    return Placement(
        parameters=sides[recipe.offload_parameters],  # type: ignore[arg-type]
        gradients=sides[recipe.offload_gradients],  # type: ignore[arg-type]
        update=sides[recipe.offload_optimizer],  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("gradients", ["device", "cpu"])
@pytest.mark.parametrize("optimizer", ["device", "cpu"])
def test_bytes_and_traffic_are_those_of_the_cut(gradients: Place, optimizer: Place) -> None:
    """ZeRO-Offload §3: every edge of the graph that is cut is traffic, every node is kept once."""
    recipe = Recipe(offload_gradients=gradients, offload_optimizer=optimizer)
    placed = offload(PSI, Parallel(zero=2), recipe)
    cut = cut_of(recipe)
    assert placed.bytes_at("device") == cut.gpu_bytes * PSI
    assert placed.bytes_at("cpu") == cut.cpu_bytes * PSI
    assert placed.bytes_at("PCIe to device", "PCIe to host") == cut.traffic_bytes * PSI


def test_the_strategy_is_the_least_memory_at_the_least_traffic() -> None:
    """§3.4: of all eight cuts that leave the GPU, at 4 bytes a parameter."""
    away = [cut for cut in placements() if cut.cpu_bytes]
    least = min(cut.traffic_bytes for cut in away)
    best = min((cut for cut in away if cut.traffic_bytes == least), key=lambda cut: cut.gpu_bytes)
    assert cut_of(STRATEGY) == best


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
    total = found.bytes_at("device") + found.bytes_at("cpu") + found.bytes_at("nvme")
    assert total == pytest.approx(16 * PSI / dp)
    assert (found.bytes_at("NVMe read", "NVMe write") > 0) == (found.bytes_at("nvme") > 0)
    assert bool(found.flows) == any(p != "device" for p in (parameters, gradients, optimizer))
    check_balance(found, recipe)


def check_balance(found: Offload, recipe: Recipe) -> None:
    """What the host updates must have come down, and what the device needs must come up."""
    down = found.bytes_at("PCIe to host")
    up = found.bytes_at("PCIe to device")
    held = {one.component: one.num_bytes for one in found.held}
    if recipe.offload_optimizer != "device":
        assert down >= held["gradients"]
        assert up >= held["parameters"]
        if recipe.offload_optimizer == "nvme":
            assert found.bytes_at("NVMe read") >= held["optimizer"]
            assert found.bytes_at("NVMe write") >= held["optimizer"]
    if recipe.offload_parameters != "device":
        assert up >= 2 * recipe.accumulation * held["parameters"]


def test_zero_infinity_keeps_nothing_on_the_device() -> None:
    recipe = Recipe(offload_parameters="nvme", offload_gradients="nvme", offload_optimizer="nvme")
    found = offload(10**12, Parallel(dp=512, zero=3), recipe)
    assert found.bytes_at("device") == found.bytes_at("cpu") == 0
    assert 512 * found.bytes_at("nvme") == 16 * 10**12
    # Parameters read twice and written, gradients written and read, states read and written.
    assert 512 * found.bytes_at("NVMe read", "NVMe write") == (3 * 2 + 2 * 2 + 2 * 12) * 10**12


@pytest.mark.parametrize("accumulation", [1, 4])
def test_accumulation_repeats_gradients_but_not_the_update(accumulation: int) -> None:
    recipe = Recipe(offload_gradients="cpu", offload_optimizer="cpu", accumulation=accumulation)
    found = offload(PSI, Parallel(zero=2), recipe)
    assert found.bytes_at("PCIe to host") == 2 * accumulation * PSI
    assert found.bytes_at("PCIe to device") == 2 * PSI


def test_gradients_kept_on_the_device_leave_once_a_step() -> None:
    recipe = Recipe(offload_optimizer="cpu", accumulation=4)
    found = offload(PSI, Parallel(dp=4, zero=2), recipe)
    assert found.bytes_at("PCIe to device", "PCIe to host") == PSI
    assert found.bytes_at("device") == (2 + 2 / 4) * PSI


def test_experts_are_shared_by_fewer_ranks() -> None:
    model = Model.preset("mixtral-8x7b")
    found = offload(model, Parallel(dp=8, ep=8, zero=3), STRATEGY)
    experts = expert_params(model)
    per_rank = (model.num_params - experts) / 8 + experts / 8
    assert found.bytes_at("cpu") == pytest.approx(14 * per_rank)
    wide = offload(model, Parallel(dp=16, ep=8, zero=3), STRATEGY)
    assert wide.bytes_at("cpu") == pytest.approx(found.bytes_at("cpu") / 2)


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


def test_every_state_is_held_once() -> None:
    found = offload(PSI, Parallel(zero=3), Recipe(offload_optimizer="nvme"))
    assert sum(part.num_bytes for part in found.held) == 16 * PSI
