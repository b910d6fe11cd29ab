"""Just-in-time power profiles: against zeus-ml's own selectors, and what they charge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zeus.optimizer.power_limit import (
    Energy,
    MaxSlowdownConstraint,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)

from labkit import tuning
from labkit.errors import BadValue, UsageError
from labkit.tuning.configurations.power_limits import (
    Slice,
    profile_limits,
    select_limits,
)
from tests.amounts import amounts
from tests.oracles import trace_slices
from tests.tuning.conftest import make_job, published_trace, random_job

PEERS = {
    "energy": (Energy(), {}),
    "time": (Time(), {}),
    "cost at 0": (ZeusCost(0.0), {"eta": 0.0}),
    "cost at 0.3": (ZeusCost(0.3), {"eta": 0.3}),
    "cost at 0.5": (ZeusCost(0.5), {"eta": 0.5}),
    "cost at 1": (ZeusCost(1.0), {"eta": 1.0}),
    "max-slowdown 0": (MaxSlowdownConstraint(1.0), {"max_slowdown": 0.0}),
    "max-slowdown 0.05": (MaxSlowdownConstraint(1.05), {"max_slowdown": 0.05}),
    "max-slowdown 0.5": (MaxSlowdownConstraint(1.5), {"max_slowdown": 0.5}),
}


def select_slice(profile: Sequence[Slice], selector: str = "cost", **knobs: float) -> float:
    """The limit (W) that a selector takes from the slices of a profile."""
    time_s, energy_j = ([getattr(one, name) for one in profile] for name in ("time_s", "energy_j"))
    highest_w = profile[-1].power_limit_w
    index = select_limits(time_s, energy_j, max_power_w=highest_w, selector=selector, **knobs)
    return profile[int(index)].power_limit_w


@pytest.mark.parametrize("gpu", ["v100", "a40"])
@pytest.mark.parametrize("name", PEERS)
def test_every_selector_chooses_as_the_peers_does(gpu: str, name: str) -> None:
    """On every batch size of every published workload; profiled from the highest limit down."""
    peer, knobs = PEERS[name]
    for job in published_trace(gpu).jobs():
        ours = tuning.best_power_limits(job, selector=name.split()[0], **{"eta": 0.5, **knobs})
        for row, profile in enumerate(trace_slices.profile_job(job)):
            measured = [
                PowerLimitMeasurement(
                    power_limit=int(one.power_limit_w), time=one.time_s, energy=one.energy_j
                )
                for one in reversed(profile)
            ]
            theirs = peer.select(measured)
            assert job.power_limits_w[ours[row]] == theirs
            assert select_slice(profile, name.split()[0], **knobs) == theirs


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), amounts(2))
def test_a_slowdown_allowed_is_kept_to_and_used_up(seed: int, allowed: float) -> None:
    """The choice is within the bound, and every lower limit is beyond it."""
    job = random_job(seed)
    chosen = tuning.best_power_limits(job, selector="max-slowdown", max_slowdown=allowed)
    for times, index in zip(job.epoch_time_s, chosen, strict=True):
        assert times[index] <= (1 + allowed) * times[-1]
        assert (times[:index] > (1 + allowed) * times[-1]).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_the_cost_at_its_ends_is_energy_alone_and_time_alone(seed: int) -> None:
    job = random_job(seed)
    for eta, selector in ((1.0, "energy"), (0.0, "time")):
        at_end = tuning.best_power_limits(job, eta)
        assert at_end.tolist() == tuning.best_power_limits(job, selector=selector).tolist()


def test_of_equals_the_highest_limit_wins_but_a_slowdown_asks_for_the_lowest() -> None:
    time_s = [2.0, 2.0, 2.0]
    energy_j = [5.0, 5.0, 5.0]
    for selector in ("energy", "time", "cost"):
        assert select_limits(time_s, energy_j, max_power_w=9, selector=selector) == 2
    lowest = select_limits(
        time_s, energy_j, max_power_w=9, selector="max-slowdown", max_slowdown=0.0
    )
    assert lowest == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["energy", "time", "cost"]))
def test_the_slices_of_a_profile_add_up_to_one_epoch_at_the_mean(seed: int, selector: str) -> None:
    """Equal slices: an epoch profiled takes the mean over limits, the rest is what it cost."""
    job = random_job(seed)
    limits = tuning.best_power_limits(job, selector=selector)
    extra = trace_slices.overheads(job, limits)
    for row, profile in enumerate(trace_slices.profile_job(job)):
        profile_s, profile_j = trace_slices.taken(profile)
        assert profile_s == pytest.approx(job.epoch_time_s[row].mean())
        assert profile_j == pytest.approx(job.epoch_energy_j[row].mean())
        chosen_s, chosen_j = (q[row, limits[row]] for q in (job.epoch_time_s, job.epoch_energy_j))
        assert extra["overhead_s"][row] == pytest.approx(profile_s - chosen_s)
        assert extra["overhead_j"][row] == pytest.approx(profile_j - chosen_j)
    if selector == "energy":
        assert (extra["overhead_j"] >= -1e-9).all()
    if selector == "time":
        assert (extra["overhead_s"] >= -1e-9).all()


def test_the_replay_charges_what_the_profiler_says(standin: tuning.TrainingTrace) -> None:
    """Every batch size is profiled once a seed; the simulator's bill is the component's."""
    job = standin.job("cifar100")
    extra = trace_slices.overheads(job, tuning.best_power_limits(job, 0.5)).set_index("batch_size")
    table = tuning.simulate(job, policy="zeus", eta=0.5, seeds=range(3)).frame()
    charged = table[(table["profiling_energy_j"] != 0) & (table["time_s"] > 0)]
    assert not charged.duplicated(["seed", "batch_size"]).any()
    for row in charged.itertuples():
        assert row.profiling_energy_j == pytest.approx(extra["overhead_j"][row.batch_size])


def test_limits_are_visited_from_the_highest_down_each_once() -> None:
    asked: list[float] = []

    class Device:
        def run_slice(self, power_limit_w: float) -> Slice:
            asked.append(power_limit_w)
            return Slice(power_limit_w=power_limit_w, time_s=1.0, energy_j=power_limit_w)

    profile = profile_limits(Device().run_slice, [100, 300, 200, 300])
    assert asked == [300, 200, 100]
    assert [part.power_limit_w for part in profile] == [100, 200, 300]
    assert select_slice(profile, "energy") == 100


def test_wrong_use_names_the_value_and_what_would_be_valid() -> None:
    job = make_job([[3.0]], [[2.0, 1.0]], [[50.0, 90.0]])
    profile = trace_slices.profile_job(job)[0]
    with pytest.raises(UsageError, match=r"selector must be one of .cost., .*did you mean .energy"):
        tuning.best_power_limits(job, selector="enrgy")
    with pytest.raises(UsageError, match="'max-slowdown' needs max_slowdown"):
        select_slice(profile, "max-slowdown")
    with pytest.raises(UsageError, match=r"max_slowdown 0\.1 is for selector 'max-slowdown'"):
        select_slice(profile, "energy", max_slowdown=0.1)
    with pytest.raises(
        BadValue, match=r"max_slowdown must be a finite number, at least 0, or None; got -0\.1"
    ):
        select_slice(profile, "max-slowdown", max_slowdown=-0.1)
    with pytest.raises(UsageError, match=r"eta must be .* at most 1; got 2"):
        select_slice(profile, eta=2)
    with pytest.raises(UsageError, match="105 W was not profiled; there are 100, 110"):
        trace_slices.TraceSlices(job=job, batch_size=2).run_slice(105)
    with pytest.raises(UsageError, match="batch size 3 is not in the trace; there are 2"):
        trace_slices.TraceSlices(job=job, batch_size=3)
    with pytest.raises(BadValue, match=r"Slice.time_s must be a finite number, above 0; got nan"):
        Slice(power_limit_w=100, time_s=np.nan, energy_j=1)
