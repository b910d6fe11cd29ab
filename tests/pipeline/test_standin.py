import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

from labkit.pipeline import EnergyProfile

FOLDER = Path(__file__).parents[2] / "data" / "profiles"
NAMES = ("gpt3-175b", "bloom")


@pytest.fixture(scope="module", params=NAMES)
def profile(request):
    path = FOLDER / f"standin_a100_{request.param}.csv"
    return EnergyProfile.from_csv(path, blocking_power_w=83.64)


def test_the_script_makes_the_committed_bytes(tmp_path):
    script = tmp_path / "make_a100_standin.py"
    shutil.copy(FOLDER / script.name, script)
    runpy.run_path(str(script), run_name="__main__")
    for name in NAMES:
        made = tmp_path / f"standin_a100_{name}.csv"
        assert made.read_bytes() == (FOLDER / made.name).read_bytes()


def test_it_has_the_shape_of_the_published_profiles(profile):
    assert profile.num_stages == 8
    assert len(np.unique(profile.clock_mhz)) == 38


def test_energy_has_a_valley_inside_the_clock_range(profile):
    assert 855 < profile.valley_clock_mhz(0) < 1410


def test_power_is_at_most_the_boards_limit_and_falls_with_the_clock(profile):
    rows = profile.rows(0, "forward")
    power = profile.energy_j[rows] / profile.time_s[rows]
    assert power.max() == pytest.approx(400, rel=1e-4)
    assert (np.diff(power) < 0).all()


def test_the_last_stage_is_heaviest_in_gpt3_and_lightest_in_bloom():
    for name, heaviest in zip(NAMES, (True, False), strict=True):
        one = EnergyProfile.from_csv(FOLDER / f"standin_a100_{name}.csv", blocking_power_w=83.64)
        first, last = (one.time_s[one.rows(stage, "forward")[0]] for stage in (0, 7))
        assert (last > first) == heaviest
