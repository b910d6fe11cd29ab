"""A GPU with an owner and guests: theory for one kernel each, and what must hold for any."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.errors import BadValue
from labkit.papers import antman
from labkit.papers.antman import beside, gains, pairs
from labkit.serving.device.clients import Mode
from labkit.serving.device.kernels import Program


def full(name: str, s: float) -> Program:
    """One kernel that fills the units, whose wave grows in proportion."""
    return Program(name=name, blocks=(60,), total_s=(s,), wave_s=((s, 2 * s),))


def test_an_owner_waits_its_idle_share_and_is_not_slowed_alone() -> None:
    shared = beside(full("o", 0.07), [], mode="alone", idle_share=0.3, until_s=2.001)
    assert shared.slowdown_fraction == pytest.approx(0)
    assert shared.units_fraction == pytest.approx(0.7, rel=0.02)
    assert len(shared.run.log) == 20


def test_packing_halves_an_owner_that_never_waits() -> None:
    shared = beside(full("o", 0.01), [full("g", 0.01)], mode="streams", idle_share=0, until_s=1.001)
    assert shared.slowdown_fraction == pytest.approx(1.0)
    assert shared.guests_fraction == pytest.approx(0.5, rel=0.01)


def test_a_guest_costs_the_owner_at_most_its_kernel_in_flight() -> None:
    """The owner waits 30 of 100 ms; the guest's kernel of 1 ms runs beside at half speed."""
    shared = beside(full("o", 0.07), [full("g", 0.0011)], mode="guests", idle_share=0.3, until_s=5)
    assert 0 < shared.slowdown_fraction <= 0.0011 / 0.1 + 1e-9
    assert shared.guests_fraction == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("mode", ["streams", "guests", "reset", "padded"])
def test_sharing_never_speeds_the_owner_up_and_never_idles_the_gpu_more(mode: Mode) -> None:
    rng = np.random.default_rng(3)
    programs = {
        name: Program(
            name=name,
            blocks=tuple(rng.integers(1, 200, 6).tolist()),
            total_s=tuple(rng.uniform(1e-4, 1e-3, 6).tolist()),
            wave_s=tuple(tuple(sorted(rng.uniform(5e-5, 1e-3, 4).tolist())) for _ in range(6)),
        )
        for name in "abc"
    }
    table = pairs(programs, {"alone": "alone", mode: "shared"}, idle_share=0.4, until_s=0.5)
    by = table.set_index(["way", "owner", "guest"])
    assert len(by.loc["shared"]) == 6
    assert (by.loc["shared"].slowdown_fraction >= 0).all()
    gained = by.loc["shared"].units_fraction - by.loc["alone"].units_fraction
    assert (gained > 0).all()
    assert (by.loc["alone"].guests_fraction == 0).all()
    assert by.loc["alone"].units_fraction.equals(by.loc["alone"].alone_units_fraction)
    assert gains(table)["alone"] == 0
    assert gains(table)["shared"] > 0


def test_guests_alike_gain_the_idle_share_over_the_busy_one() -> None:
    programs = {name: full(name, 0.001) for name in "ab"}
    for share in (0.2, 0.5):
        table = pairs(programs, {"guests": "AntMan"}, idle_share=share, until_s=2.0)
        gained = gains(table)["AntMan"]
        assert gained == pytest.approx(share / (1 - share), rel=0.03)
        figure = antman.figure_pairs(
            table, ["AntMan"], idle_share=share, paper_gain=0.34, title="pairs"
        )
        mean = next(trace for trace in figure.data if trace.name == "AntMan, mean")
        assert mean.y[0] == pytest.approx(100 * gained, rel=1e-4)


def test_a_kernels_curve_between_its_points_and_beyond() -> None:
    program = Program(name="p", blocks=(60,), total_s=(0.01,), wave_s=((0.01, 0.012, 0.02),))
    assert program.resident(0) == 1.0
    assert program.slowed(0, 0.0) == 1.0
    assert program.slowed(0, 0.5) == pytest.approx(1.1)
    assert program.slowed(0, 2.0) == pytest.approx(2.0)
    assert program.slowed(0, 5.0) == pytest.approx(2.0 * 6 / 3)
    assert program.longer(3).slowed(0, 2.0) == pytest.approx(2.0)
    assert program.longer(3).alone_s == pytest.approx(0.03)


def test_an_owner_that_only_waits_is_refused() -> None:
    with pytest.raises(BadValue, match="idle_share"):
        beside(full("o", 0.01), [], mode="alone", idle_share=1.0, until_s=1.0)
