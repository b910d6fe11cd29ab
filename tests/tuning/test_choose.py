"""The joint choice against brute force, against the single-knob engines, and by its invariants."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import tuning
from labkit.errors import UsageError
from labkit.tuning.choice.choose import JointChoice, choose
from labkit.tuning.choice.gpu_power import GpuPower, HostPower
from labkit.tuning.choice.progress import ModelledProgress
from labkit.tuning.goodput.step_times import StepTimes, SyncTier
from tests.amounts import amounts
from tests.tuning.conftest import published_trace, random_job

ALLOCATIONS = [(1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (3, 6)]
BATCHES = [24, 48, 96, 192, 384]

TIMES = StepTimes(
    base_s=0.01,
    per_example_s=0.001,
    tiers=(
        SyncTier(from_nodes=1, base_s=0.004, per_gpu_s=0.001),
        SyncTier(from_nodes=2, base_s=0.03, per_gpu_s=0.002),
    ),
    overlap=1.7,
)
POWER = GpuPower(
    power_limits_w=(100.0, 150.0, 200.0, 250.0),
    batch_sizes=(4, 32, 256),
    relative_speed=((0.8, 0.95, 1, 1), (0.7, 0.9, 1.0, 1), (0.6, 0.85, 0.97, 1)),
    busy_power_w=((90, 120, 130, 130), (95, 140, 180, 190), (99, 148, 199, 240)),
)
PROGRESS = ModelledProgress(init_batch_size=24, phases=((300, 50.0), (700, 400.0)))


def only(power: GpuPower, limits: list[float]) -> GpuPower:
    """The same GPU with some of its power limits; the highest among them."""
    places = [power.power_limits_w.index(limit) for limit in sorted({*limits})]
    tables = {
        name: tuple(tuple(row[i] for i in places) for row in getattr(power, name))
        for name in ("relative_speed", "busy_power_w")
    }
    return replace(power, power_limits_w=tuple(power.power_limits_w[i] for i in places), **tables)


def within(found: JointChoice, deadline_s: float) -> JointChoice:
    """The choice among the same points under another deadline, by pandas alone."""
    in_time = found.points[found.points["time_s"] <= deadline_s]
    best = in_time.sort_values(["energy_j", "time_s", "num_gpus"], kind="stable").iloc[0]
    return replace(found, best=best, deadline_s=deadline_s)


def fastest_s(found: JointChoice) -> float:
    return float(found.points["time_s"].min())


def chosen(**changes: Any) -> JointChoice:
    inputs = [
        changes.pop(name, default)
        for name, default in (("times", TIMES), ("progress", PROGRESS), ("power", POWER))
    ]
    given: dict[str, Any] = {
        "allocations": ALLOCATIONS,
        "batch_sizes": BATCHES,
        "atomic_bsz_range": (1, 10_000),
    }
    return choose(*inputs, **(given | changes))


def by_hand(
    place: tuple[int, int, int],
    limit: int,
    rule: str,
    host: HostPower,
    power: GpuPower = POWER,
) -> tuple[float, float]:
    """Time and energy of one point, step by step in plain floats."""
    nodes, gpus, batch = place
    size = batch // gpus
    known = np.log(power.batch_sizes)
    speed, busy_w = (
        float(np.interp(np.log(size), known, [row[limit] for row in table]))
        for table in (power.relative_speed, power.busy_power_w)
    )
    grad = (TIMES.base_s + TIMES.per_example_s * size) / speed
    tier = TIMES.tiers[min(nodes, 2) - 1]
    sync = 0.0 if gpus == 1 else tier.base_s + tier.per_gpu_s * (gpus - 2)
    step = (grad**TIMES.overlap + sync**TIMES.overlap) ** (1 / TIMES.overlap)
    steps = 0.0
    for done, noise in PROGRESS.phases:
        gain = (noise / 24 + 1) / (noise / batch + 1)
        factor = {"none": 1.0, "linear": batch / 24, "sqrt": (batch / 24) ** 0.5}
        factor |= {"adascale": gain, "sqrt-adascale": gain**0.5}
        share = factor[rule] / gain
        steps += done / (gain * share * (2 - share)) if share < 2 else np.inf
    idle = 0 if host.gpus_per_node is None else nodes * host.gpus_per_node - gpus
    joules = gpus * step * busy_w
    joules += step * (idle * host.idle_gpu_power_w + nodes * host.node_power_w)
    return steps * step, steps * joules


HOST = HostPower(node_power_w=120, idle_gpu_power_w=25, gpus_per_node=4)


@pytest.mark.parametrize("host", [HostPower(), HOST], ids=["GPUs alone", "with the host"])
def test_the_choice_and_its_front_are_what_brute_force_finds(host: HostPower) -> None:
    points = {}
    for (nodes, gpus), batch in product(ALLOCATIONS, BATCHES):
        if batch % gpus == 0:
            for limit, rule in product(range(4), PROGRESS.rules):
                place = (nodes, gpus, batch)
                points[(*place, limit, rule)] = by_hand(place, limit, rule, host)
    finite = {key: value for key, value in points.items() if np.isfinite(value[0])}
    front = {
        value
        for value in finite.values()
        if not any(t <= value[0] and e <= value[1] and (t, e) != value for t, e in finite.values())
    }
    found = chosen(host=host)
    assert len(found.points) == len(points)
    assert len(found.frame()) == len(finite)
    assert f"{len(points):,} points evaluated, {len(finite):,} reach" in found.certificate
    expected = np.array(sorted(front))
    rows = found.frontier
    kept = [0, *(np.flatnonzero(np.diff(expected[:, 0]) > 1e-9) + 1)]
    assert np.allclose(rows["time_s"], expected[kept, 0])
    assert np.allclose(rows["energy_j"], expected[kept, 1])
    for deadline_s in np.quantile([t for t, _ in finite.values()], [0.01, 0.1, 0.5, 0.9]):
        least = min(e for t, e in finite.values() if t <= deadline_s)
        best = chosen(host=host, deadline_s=float(deadline_s)).best
        assert best.energy_j == pytest.approx(least, rel=1e-9)
        assert best.time_s <= deadline_s
        place = (best.num_nodes, best.num_gpus, best.batch_size)
        limit = POWER.power_limits_w.index(best.power_limit_w)
        assert by_hand(place, limit, best.rule, host) == pytest.approx((best.time_s, best.energy_j))


def test_the_certificate_counts_what_is_in_time() -> None:
    found = chosen(deadline_s=60.0)
    table = found.frame()
    in_time = table[table["in_time"]]
    assert (table["time_s"] <= 60).sum() == len(in_time)
    assert (in_time["energy_j"] < found.best.energy_j).sum() == 0
    assert f"{len(in_time):,} of them in time, 0 of those with less" in found.certificate
    assert found.frontier["is_chosen"].sum() == 1


def test_a_deadline_that_nothing_meets_names_the_fastest() -> None:
    fastest = chosen().frontier.iloc[0]
    with pytest.raises(UsageError, match=rf"within 0.5 s.*takes {fastest['time_s']:.6g} s: .*GPU"):
        chosen(deadline_s=0.5)
    with pytest.raises(UsageError, match=r"phases must be .*a finite number is 1e\+150 at most"):
        replace(PROGRESS, phases=((1e308, 1.0),) * 4)  # it would never end
    just = chosen(deadline_s=float(fastest["time_s"]))
    assert just.best.energy_j == fastest["energy_j"]


# ---------------------------------------------------------------- invariants

watts = amounts(300)
hosts = st.builds(
    HostPower,
    node_power_w=watts,
    idle_gpu_power_w=amounts(60),
    gpus_per_node=st.sampled_from([None, 4, 8]),
)
jobs = st.builds(
    ModelledProgress,
    init_batch_size=st.just(24),
    phases=st.lists(st.tuples(st.floats(1, 1e4), amounts(1e4)), min_size=1, max_size=3).map(tuple),
)


@settings(max_examples=40, deadline=None)
@given(hosts, jobs, st.floats(1, 3), st.floats(1, 3))
def test_a_looser_deadline_never_costs_energy(
    host: HostPower, progress: ModelledProgress, first: float, more: float
) -> None:
    found = chosen(host=host, progress=progress)
    tight = fastest_s(found) * first
    looser, tighter = (
        chosen(host=host, progress=progress, deadline_s=limit).best.energy_j
        for limit in (tight * more, tight)
    )
    assert found.best.energy_j <= looser <= tighter


@settings(max_examples=40, deadline=None)
@given(hosts, jobs, st.sets(st.integers(0, 2)), st.data())
def test_more_to_choose_from_is_never_worse(
    host: HostPower, progress: ModelledProgress, few: set[int], data: st.DataObject
) -> None:
    some = only(POWER, [*(POWER.power_limits_w[i] for i in few), 250.0])
    found = chosen(host=host, progress=progress)
    deadline_s = fastest_s(found) * data.draw(st.floats(1, 5))
    whole = chosen(host=host, progress=progress, deadline_s=deadline_s).best
    fewer_limits = chosen(host=host, progress=progress, power=some, deadline_s=deadline_s)
    assert whole.energy_j <= fewer_limits.best.energy_j
    assert fastest_s(found) <= fastest_s(fewer_limits)


@settings(max_examples=40, deadline=None)
@given(hosts, jobs, amounts(200), amounts(30))
def test_idle_and_host_power_never_lower_the_energy(
    host: HostPower, progress: ModelledProgress, node_w: float, idle_w: float
) -> None:
    more = replace(
        host,
        node_power_w=host.node_power_w + node_w,
        idle_gpu_power_w=host.idle_gpu_power_w + idle_w,
    )
    less = chosen(host=host, progress=progress)
    greater = chosen(host=more, progress=progress)
    assert greater.best.energy_j >= less.best.energy_j * (1 - 1e-12)
    assert fastest_s(greater) == fastest_s(less)


@settings(max_examples=30, deadline=None)
@given(hosts, jobs, st.floats(1, 4))
def test_together_is_never_worse_than_one_by_one(
    host: HostPower, progress: ModelledProgress, looser: float
) -> None:
    found = chosen(host=host, progress=progress)
    found = within(found, fastest_s(found) * looser)
    table = found.one_by_one(num_nodes=1, num_gpus=2, batch_size=24)
    energies = table.set_index("knobs")["energy_j"].astype(float)
    assert energies["all together"] == found.best.energy_j
    assert (energies.dropna() >= found.best.energy_j).all()
    assert (table["excess_fraction"].dropna() >= 0).all()
    nested = ["batch size, rule and power limit", "power limit", "as given"]
    values = energies[nested].fillna(np.inf).to_numpy()
    assert (values[:-1] <= values[1:]).all()


def test_host_power_makes_haste_pay() -> None:
    """A GPU alone is frugal at low power; a server that waits for it is not."""
    alone = chosen(allocations=[(1, 1)], batch_sizes=[24]).best
    hosted = chosen(allocations=[(1, 1)], batch_sizes=[24], host=HostPower(node_power_w=2000)).best
    assert hosted.power_limit_w > alone.power_limit_w
    assert hosted.time_s < alone.time_s


# ---------------------------------------------------------------- against the single-knob engine


class Recorded(ModelledProgress):
    """Steps as the recorded runs of a job needed them, under one rule of their own."""

    def __init__(self, job: tuning.Job, num_examples: float) -> None:
        super().__init__(init_batch_size=job.default_batch_size, phases=((1.0, 1.0),))
        steps = tuning.convergence(job)[1] * num_examples / np.array(job.batch_sizes)
        object.__setattr__(self, "of_size", dict(zip(job.batch_sizes, steps, strict=True)))

    @property
    def rules(self) -> tuple[str, ...]:
        return ("as recorded",)

    def steps(self, batch_size: Any, rule: str = "as recorded") -> Any:
        return np.array([self.of_size[size] for size in batch_size])  # type: ignore[attr-defined]


def step_times_from(job: tuning.Job, num_examples: float) -> StepTimes:
    """Step times of a recorded job at its highest power limit, as measured on one GPU."""
    steps = job.epoch_time_s[:, -1] * job.batch_sizes / num_examples
    measured = tuple(zip(job.batch_sizes, steps.tolist(), strict=True))
    return StepTimes(base_s=0.01, per_example_s=0.01, tiers=(), overlap=1.0, measured=measured)


@pytest.mark.parametrize("source", ["random", "published"])
def test_on_one_gpu_it_is_the_recorded_trace(source: str) -> None:
    """With one GPU and recorded runs, every point is the one that ``outcomes`` lists."""
    job = random_job(3) if source == "random" else published_trace("v100").job("cifar100")
    num_examples = 50_000
    found = choose(
        step_times_from(job, num_examples),
        Recorded(job, num_examples),
        GpuPower.from_job(job),
        allocations=[(1, 1)],
        batch_sizes=job.batch_sizes,
        atomic_bsz_range=(job.batch_sizes[0], job.batch_sizes[-1]),
    )
    table = tuning.outcomes(job, eta=1.0)
    table = table[np.isfinite(table["time_to_accuracy_s"])]
    key = ["batch_size", "power_limit_w"]
    both = found.frame().merge(table, on=key, suffixes=("", "_recorded"))
    assert len(both) == len(table) == len(found.frame())
    assert np.allclose(both["time_s"], both["time_to_accuracy_s"])
    assert np.allclose(both["energy_j"], both["energy_to_accuracy_j"])
    best = tuning.optimum(job, eta=1.0)
    assert (found.best.batch_size, found.best.power_limit_w) == (
        best.batch_size,
        best.power_limit_w,
    )
    front = tuning.outcomes(job).query("is_pareto").sort_values("time_to_accuracy_s")
    assert np.allclose(found.frontier["energy_j"], front["energy_to_accuracy_j"])


def test_the_fastest_point_at_full_power_is_the_one_of_most_goodput() -> None:
    """One noise scale and AdaScale: time to the target is M0·steps/goodput."""
    progress = ModelledProgress(init_batch_size=24, phases=((1000, 500),))
    model = tuning.goodput.GoodputModel(step_times=TIMES, init_batch_size=24, noise_scale=500)
    found = choose(
        TIMES,
        progress,
        only(POWER, [250.0]),
        allocations=[(2, 8)],
        batch_sizes=range(24, 4001, 8),
        atomic_bsz_range=(1, 4000),
    )
    fastest = found.frontier.iloc[0]
    best = model.optimize(2, 8, max_batch_size=4000)
    assert fastest["atomic_bsz"] == best.atomic_bsz
    assert fastest["time_s"] == pytest.approx(24 * 1000 / best.goodput)


# ---------------------------------------------------------------- progress


@given(amounts(1e4), st.floats(1, 50), st.floats(0.01, 10))
def test_a_step_on_the_noisy_quadratic_is_worth_what_the_model_says(
    noise: float, scale: float, curvature: float
) -> None:
    """Expected loss after one step from |G|² = 1, against that at the initial batch and rate."""

    def gain_of(rate: float, batch: float) -> float:
        return rate - rate**2 * curvature * (1 + noise / batch) / 2

    init = 32.0
    batch = 32.0 * scale
    rate = 1 / (curvature * (1 + noise / init))
    rules: tuple[tuning.large_batch.ScalingRule, ...] = get_args(tuning.large_batch.ScalingRule)
    for rule in rules:
        taken = tuning.large_batch.learning_rate(
            rule, batch, init_batch_size=init, init_learning_rate=rate, noise_scale=noise
        )
        job = ModelledProgress(init_batch_size=32, phases=((1.0, noise),))
        fall = gain_of(float(taken), batch)
        steps = float(job.steps(batch, rule))
        if fall <= 1e-9 * gain_of(rate, init):
            assert steps == np.inf or steps > 1e8
        else:
            assert steps == pytest.approx(gain_of(rate, init) / fall, rel=1e-5)


def test_adascale_is_the_published_trade_off() -> None:
    """McCandlish et al. 2018, §2.3: least steps · (1 + noise scale / batch size)."""
    job = ModelledProgress(init_batch_size=64, phases=((5000, 700),))
    sizes = np.array([64, 128, 1024, 65536])
    published = 5000 * (1 + 700 / sizes) / (1 + 700 / 64)
    assert np.allclose(job.steps(sizes, "adascale"), published)
    for rule in job.rules:
        assert (job.steps(sizes, rule) >= published * (1 - 1e-12)).all()


# ---------------------------------------------------------------- power


def test_power_is_interpolated_between_batch_sizes_and_clamped_outside() -> None:
    speed, draw = POWER.at([1, 4, 11.3137085, 32, 1000])
    assert speed[:, 0] == pytest.approx([0.8, 0.8, 0.75, 0.7, 0.6])
    assert draw[:, 3] == pytest.approx([130, 130, 160, 190, 240])


def test_scaling_keeps_the_shape_and_says_so() -> None:
    small = POWER.scaled(70.0)
    assert small.power_limits_w[-1] == 70
    assert np.allclose(np.array(small.busy_power_w) / np.array(POWER.busy_power_w), 70 / 250)
    assert small.relative_speed == POWER.relative_speed
    assert "scaled from 250 W to 70 W" in small.assumptions[0]


def test_assumptions_name_every_source() -> None:
    found = chosen(host=HOST, power=POWER.scaled(70.0))
    text = " ".join(found.assumptions)
    for word in ("predicted", "noisy quadratic", "scaled from 250 W", "120 W", "taken whole"):
        assert word in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"deadline_s": -1.0}, "deadline_s must be a finite number, above 0, or None; got -1"),
        ({"allocations": []}, "one or more of allocations"),
        ({"allocations": [(2, 1)]}, "num_nodes 2 and num_gpus 1"),
        ({"batch_sizes": [25]}, "25 can be split"),
        ({"atomic_bsz_range": (8, 4)}, "must ascend"),
        ({"host": HostPower(idle_gpu_power_w=200)}, "idle_gpu_power_w must not exceed"),
        ({"host": HostPower(gpus_per_node=2)}, "4 GPUs do not fit on 1 node"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(changes: dict[str, Any], message: str) -> None:
    if changes.get("batch_sizes") == [25]:
        changes = changes | {"allocations": [(1, 2)]}
    with pytest.raises(UsageError, match=message):
        chosen(**changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HostPower(node_power_w=-1), "node_power_w must be a finite number, at least 0"),
        (lambda: replace(POWER, power_limits_w=(2.0, 1.0, 3.0, 4.0)), "power_limits_w must ascend"),
        (lambda: replace(POWER, busy_power_w=((1.0,),)), "busy_power_w must have a row"),
        (lambda: replace(PROGRESS, phases=()), "phases must be .*, not empty"),
    ],
)
def test_descriptions_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
