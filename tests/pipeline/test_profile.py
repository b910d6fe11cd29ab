import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import BadFile, UsageError
from labkit.pipeline import EnergyProfile

GOOD = """\
stage,instruction,frequency,time,energy
0,forward,1410,0.050,20.0
0,forward,1200,0.060,18.0
0,forward,900,0.080,18.5
0,backward,1410,0.100,40.0
0,backward,1200,0.120,36.0
0,backward,900,0.160,37.0
"""


def load(text: str, **options) -> EnergyProfile:
    table = pd.read_csv(io.StringIO(text))
    return EnergyProfile.from_frame(table, **{"blocking_power_w": 80.0, **options})


def test_rows_are_sorted_from_the_highest_clock(tmp_path):
    path = tmp_path / "profile.csv"
    lines = GOOD.splitlines()
    path.write_text("\n".join([lines[0], *reversed(lines[1:])]))
    profile = EnergyProfile.from_csv(path, blocking_power_w=80.0)
    assert profile.num_stages == 1
    assert profile.clock_mhz[profile.rows(0, "backward")].tolist() == [1410, 1200, 900]
    assert profile.energy_j[profile.rows(0, "forward")].tolist() == [20.0, 18.0, 18.5]
    assert profile.valley_clock_mhz(0) == 1200


def test_waiting_power_decides_what_is_dominated():
    """900 MHz takes 0.5 J more than 1200 MHz but keeps the GPU busy 20 ms longer.

    At 80 W of waiting those 20 ms would cost 1.6 J, so it can pay; at 20 W (0.4 J) it cannot;
    and in (time, energy) alone it is dominated.
    """
    assert load(GOOD).num_dropped == 0
    assert load(GOOD, blocking_power_w=20.0).num_dropped == 2
    assert load(GOOD, dominance="raw").num_dropped == 2
    assert load(GOOD).with_dominance("raw").num_dropped == 2
    assert load(GOOD, dominance="raw").with_dominance("net").num_dropped == 0


@given(seed=st.integers(0, 10_000), power=st.floats(0, 200))
def test_kept_rows_are_those_no_other_dominates(make_profile, seed, power):
    profile = make_profile(np.random.default_rng(seed), 2, 6, blocking_power_w=power)
    net = profile.energy_j - power * profile.time_s
    for stage in range(2):
        for kind in ("forward", "backward"):
            rows = profile.rows(stage, kind)
            for row in rows:
                others = rows[rows != row]
                beaten = (profile.time_s[others] <= profile.time_s[row]) & (net[others] <= net[row])
                assert profile.kept[row] == (not beaten.any())
    assert not (profile.with_dominance("raw").kept & ~profile.kept).any()


def test_restaging_copies_and_scales_the_work():
    profile = load(GOOD).restage((0, 0, 0), scale=(1.0, 1.0, 1.5))
    assert profile.num_stages == 3
    table = profile.frame().query("kind == 'forward' and clock_mhz == 1200")
    np.testing.assert_allclose(table.time_s, [0.06, 0.06, 0.09])
    np.testing.assert_allclose(table.energy_j, [18, 18, 27])


def test_a_stages_table_adds_forward_and_backward():
    table = load(GOOD).stage_table(0)
    assert table.clock_mhz.tolist() == [1410, 1200, 900]
    np.testing.assert_allclose(table.time_s, [0.15, 0.18, 0.24])
    np.testing.assert_allclose(table.energy_j, [60, 54, 55.5])
    np.testing.assert_allclose(table.above_waiting_j, table.energy_j - 80 * table.time_s)
    assert load(GOOD).valley_clock_mhz(0, above_waiting=True) == 900


def test_forward_and_backward_need_a_common_clock():
    apart = (
        GOOD.replace("0,backward,1410", "0,backward,1400")
        .replace("0,backward,1200", "0,backward,1210")
        .replace("0,backward,900", "0,backward,910")
    )
    with pytest.raises(UsageError, match="no clock in common"):
        load(apart).stage_table(0)


@pytest.mark.parametrize(
    ("stages", "scale", "problem"),
    [((0, 1), None, "no stage 1"), ((0, 0), (1.0,), "1 factors"), ((0,), (0.0,), "> 0, found 0")],
)
def test_impossible_restaging_is_refused(stages, scale, problem):
    with pytest.raises(UsageError, match=problem):
        load(GOOD).restage(stages, scale=scale)


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("0.060,18.0", "-0.060,18.0", 3, "'time'; found -0.06; valid: a finite number > 0"),
        ("0.060,18.0", ",18.0", 3, "time out of range"),
        ("0.060,18.0", "fast,18.0", 3, "time out of range; field 'time'; found 'fast'"),
        ("0.120,36.0", "0.120,", 6, "energy out of range"),
        ("0.120,36.0", "120,36.0", 6, "is time in seconds and energy in joules"),
        ("0.120,36.0", "0.120,36000.0", 6, "implausible power"),
        ("0,backward,900", "0,sideways,900", 7, "forward or backward"),
        ("0,forward,900", "0.5,forward,900", 4, "an integer >= 0"),
        ("0,forward,900", "-1,forward,900", 4, "an integer >= 0"),
        ("0,forward,900", "0,forward,1200", 4, "a clock is measured twice"),
        ("0,forward,900", "2,forward,900", None, "stage 1 has no forward"),
        ("frequency", "clock", None, "no column 'frequency'"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, old, new, line, problem):
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    for preamble in ("", "# about\n# this file\n"):
        path = tmp_path / "profile.csv"
        path.write_text(preamble + text)
        with pytest.raises(BadFile, match=problem) as error:
            EnergyProfile.from_csv(path, blocking_power_w=80.0)
        assert error.value.line == (line + preamble.count("\n") if line else None)
    with pytest.raises(UsageError):
        load(text)


@pytest.mark.parametrize("text", ["", "stage,instruction,frequency,time,energy\n"])
def test_an_empty_file_is_refused(tmp_path, text):
    path = tmp_path / "profile.csv"
    path.write_text(text)
    with pytest.raises(BadFile, match=r"not a CSV table|no measurements"):
        EnergyProfile.from_csv(path, blocking_power_w=80.0)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadFile, match=r"profile\.csv: the file is missing"):
        EnergyProfile.from_csv(tmp_path / "profile.csv", blocking_power_w=80.0)


@pytest.mark.parametrize("power", [-1.0, float("nan")])
def test_blocking_power_must_make_sense(power):
    with pytest.raises(UsageError, match="blocking_power_w must be finite and >= 0"):
        load(GOOD, blocking_power_w=power)


def test_only_two_dominance_rules():
    with pytest.raises(UsageError, match="'net' or 'raw', found 'both'"):
        load(GOOD, dominance="both")
