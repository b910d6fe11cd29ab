from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from labkit import pipeline
from tests.published import Need

BLOCKING_POWER_W = {"a100_sxm": 83.64, "a40": 70.38}


@pytest.fixture(scope="session")
def make_profile() -> Callable[..., pipeline.EnergyProfile]:
    """A profile of random stages: time falls with the clock, energy may do anything."""

    def make(
        rng: np.random.Generator, num_stages: int, num_clocks: int, blocking_power_w: float = 80.0
    ) -> pipeline.EnergyProfile:
        rows = []
        for stage in range(num_stages):
            for kind, factor in (("forward", 1.0), ("backward", 2.0)):
                times = np.sort(factor * rng.uniform(0.05, 0.2, num_clocks))
                powers = rng.uniform(60, 450, num_clocks)
                for level, (time_s, power_w) in enumerate(zip(times, powers, strict=True)):
                    rows.append((stage, kind, 1500 - 15 * level, time_s, time_s * power_w))
        columns = ["stage", "instruction", "frequency", "time", "energy"]
        return pipeline.EnergyProfile.from_frame(
            pd.DataFrame(rows, columns=columns), blocking_power_w=blocking_power_w
        )

    return make


@pytest.fixture(scope="session")
def published(published_data: Need) -> Callable[[str], pd.DataFrame]:
    """A table of the Perseus artifact; the test is skipped where the data set is not here."""

    def read(file: str) -> pd.DataFrame:
        path = f"sosp24_data/emulation/{file}"
        return published_data("perseus-sosp24", [path]).frame(path)

    return read


@pytest.fixture(scope="session")
def measured(published: Callable[[str], pd.DataFrame]) -> Callable[..., pipeline.EnergyProfile]:
    """A published stage profile of the Perseus artifact."""

    def read(
        model: str, device: str = "a100_sxm", dominance: str = "net"
    ) -> pipeline.EnergyProfile:
        table = published(f"stage_profile/{model}+{device}_bf16.csv")
        power_w = BLOCKING_POWER_W[device]
        profile = pipeline.EnergyProfile.from_frame(table, blocking_power_w=power_w)
        return profile.with_dominance(dominance)

    return read


@pytest.fixture(scope="session")
def generated() -> Callable[[int], pipeline.EnergyProfile]:
    """A profile of eight stages as an A100 might give it: physics of clocks, a little noise.

    A part of the work waits for memory whatever the clock; power is an idle part and one that
    grows with the clock and the square of the voltage, which falls no further at some clock.
    """

    def make(seed: int) -> pipeline.EnergyProfile:
        rng = np.random.default_rng(seed)
        clock_mhz = np.arange(1410.0, 850.0, -15.0)
        share = clock_mhz / clock_mhz[0]
        parts = []
        middle_s = rng.uniform(0.03, 0.08)
        for stage in range(8):
            forward_s = middle_s * rng.normal(1, 0.06)
            for kind, factor in (("forward", 1.0), ("backward", rng.uniform(1.8, 2.2))):
                memory = rng.uniform(0.1, 0.35)
                voltage = np.maximum(rng.uniform(0.6, 0.75), share)
                power_w = rng.uniform(80, 110) + rng.uniform(200, 280) * share * voltage**2
                time_s = forward_s * factor * (memory + (1 - memory) / share)
                time_s = time_s * rng.normal(1, 0.0015, len(share))
                energy_j = power_w * time_s * rng.normal(1, 0.003, len(share))
                part = {"frequency": clock_mhz, "time": time_s, "energy": energy_j}
                parts.append(pd.DataFrame(part).assign(stage=stage, instruction=kind))
        power_w = rng.uniform(70, 95)
        return pipeline.EnergyProfile.from_frame(
            pd.concat(parts, ignore_index=True), blocking_power_w=power_w
        )

    return make
