"""The optimal planner against independent solvers: scipy's linprog, a MILP, Perseus's plans."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import lil_matrix

from labkit.errors import UsageError
from labkit.pipeline import (
    EnergyProfile,
    Instruction,
    Schedule,
    build,
    frontier,
    plan,
)
from labkit.pipeline.planning import relaxation, rounding
from labkit.pipeline.planning.perseus import perseus_frontier
from labkit.pipeline.planning.relaxation import OptimalPlanner
from labkit.pipeline.profiles.clocks import Task
from labkit.pipeline.scheduling.schedule import KINDS
from tests.amounts import amounts

SEED = st.integers(0, 10_000)
KINDS_OF = {"1f1b": ("forward", "backward"), "zb-h1": ("forward", "input", "weight")}


def random_profile(rng, num_stages, num_clocks, kinds=("forward", "backward")):
    """Time falls with the clock, power may do anything."""
    rows = []
    for stage in range(num_stages):
        for kind in kinds:
            times = np.sort(rng.uniform(0.05, 0.3, num_clocks))
            powers = rng.uniform(60, 450, num_clocks)
            for level, (time_s, power_w) in enumerate(zip(times, powers, strict=True)):
                rows.append((stage, kind, 1500 - 15 * level, time_s, time_s * power_w))
    columns = ["stage", "instruction", "frequency", "time", "energy"]
    return EnergyProfile.from_frame(pd.DataFrame(rows, columns=columns), blocking_power_w=80.0)


def random_order(rng, num_stages, num_microbatches):
    """Any order that can run: whatever is ready, drawn by lot, next on its device."""
    devices = [[] for _ in range(num_stages)]
    done = set()
    waiting = [
        Instruction(stage, kind, microbatch)
        for stage in range(num_stages)
        for kind in ("forward", "backward")
        for microbatch in range(num_microbatches)
    ]

    def ready(one):
        if one.kind == "forward":
            return one.stage == 0 or (one.stage - 1, "forward", one.microbatch) in done
        if (one.stage, "forward", one.microbatch) not in done:
            return False
        last = one.stage == num_stages - 1
        return last or (one.stage + 1, "backward", one.microbatch) in done

    while waiting:
        can = [one for one in waiting if ready(one)]
        one = can[rng.integers(len(can))]
        waiting.remove(one)
        done.add(tuple(one))
        devices[one.stage].append(one)
    return Schedule.from_order(devices, name="random")


def random_lag(rng, schedule):
    n = len(schedule)
    graph = schedule.graph
    return (
        np.where(graph.before < n, rng.uniform(0, 0.1, n), 0.0),
        np.where(graph.needs < n, rng.uniform(0, 0.2, n), 0.0),
    )


def mixtures(schedule, profile, deadline_s, lag_s=None):
    """The problem by its definition, over every measured clock: cost, rows, bounds.

    Columns: one weight for each instruction and clock, n starts, the makespan. The weights of an
    instruction sum to one; mixed they bound, whole they are a plan.
    """
    graph = schedule.graph
    n = len(schedule)
    rows = [
        profile.rows(int(s), KINDS[k]) for s, k in zip(schedule.stage, schedule.kind, strict=True)
    ]
    first = np.cumsum([0, *map(len, rows)])
    total = first[-1]
    waiting_w = profile.blocking_power_w * schedule.num_devices
    cost = np.concatenate([*(profile.net_energy_j[r] for r in rows), np.zeros(n), [waiting_w]])
    lags = (np.zeros(n), np.zeros(n)) if lag_s is None else lag_s
    table = lil_matrix((4 * n, total + n + 1))
    low = []
    for i in range(n):
        for source, lag in zip((graph.before, graph.needs), lags, strict=True):
            row = len(low)
            j = int(source[i])
            table[row, total + i] = 1
            if j < n:
                table[row, total + j] = -1
                table[row, first[j] : first[j + 1]] = -profile.time_s[rows[j]]
            low.append(lag[i])
        table[len(low), total + n] = 1
        table[len(low), total + i] = -1
        table[len(low), first[i] : first[i + 1]] = -profile.time_s[rows[i]]
        low.append(0.0)
    for i in range(n):
        table[3 * n + i, first[i] : first[i + 1]] = 1
    low = np.concatenate([low, np.ones(n)])
    high = np.concatenate([np.full(3 * n, np.inf), np.ones(n)])
    upper = np.concatenate([np.ones(total), np.full(n + 1, deadline_s)])
    return cost, table.tocsr(), low, high, upper, total


def linear_optimum_j(*problem):
    cost, table, low, _, upper, total = mixtures(*problem)
    n = len(upper) - total - 1
    solved = linprog(
        cost,
        A_ub=-table[: 3 * n],
        b_ub=-low[: 3 * n],
        A_eq=table[3 * n :],
        b_eq=low[3 * n :],
        bounds=np.stack([0 * upper, upper], axis=1),
        method="highs-ipm",
    )
    assert solved.status == 0
    return solved.fun


def discrete_optimum_j(*problem):
    cost, table, low, high, upper, total = mixtures(*problem)
    solved = milp(
        cost,
        constraints=LinearConstraint(table, low, high),
        bounds=Bounds(0, upper),
        integrality=np.arange(len(cost)) < total,
        options={"mip_rel_gap": 1e-7, "time_limit": 60},
    )
    assert solved.status == 0
    return solved.fun


# --- the bound


@given(
    seed=SEED,
    name=st.sampled_from(["gpipe", "1f1b", "envpipe", "zb-h1", "random"]),
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 4),
    clocks=st.integers(1, 6),
    lags=st.booleans(),
    share=amounts(1.2),
)
@settings(max_examples=60, deadline=None)
def test_bound_is_the_linear_optimum(seed, name, stages, microbatches, clocks, lags, share):
    rng = np.random.default_rng(seed)
    profile = random_profile(rng, stages, clocks, KINDS_OF.get(name, KINDS_OF["1f1b"]))
    if name == "random":
        schedule = random_order(rng, stages, microbatches)
    else:
        schedule = build(name, stages, microbatches)
    lag_s = random_lag(rng, schedule) if lags else None
    planner = OptimalPlanner(Task(schedule, profile, lag_s=lag_s))
    first_s, last_s = planner.range_s
    deadline_s = first_s + share * (last_s - first_s)
    made = planner.choose([deadline_s])[0]
    linear_j = linear_optimum_j(schedule, profile, deadline_s * (1 + 1e-12), lag_s)
    assert made.bound_j == pytest.approx(linear_j, rel=1e-6)
    makespan_s, energy_j = Task(schedule, profile, lag_s=lag_s).cost(made.row)
    assert makespan_s <= deadline_s * (1 + 1e-9)
    assert energy_j >= made.bound_j * (1 - 1e-9)


@given(
    seed=SEED,
    name=st.sampled_from(["gpipe", "1f1b", "zb-h1", "random"]),
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 5),
    clocks=st.integers(1, 6),
    lags=st.booleans(),
    share=amounts(1.2),
)
@settings(max_examples=60, deadline=None)
def test_long_schedules_bound_as_short_ones_do(
    seed, name, stages, microbatches, clocks, lags, share
):
    """The interior-point method in place of simplex: never above the optimum, and hardly below."""
    rng = np.random.default_rng(seed)
    profile = random_profile(rng, stages, clocks, KINDS_OF.get(name, KINDS_OF["1f1b"]))
    if name == "random":
        schedule = random_order(rng, stages, microbatches)
    else:
        schedule = build(name, stages, microbatches)
    lag_s = random_lag(rng, schedule) if lags else None
    first_s, last_s = OptimalPlanner(Task(schedule, profile, lag_s=lag_s)).range_s
    deadline_s = first_s + share * (last_s - first_s)
    exact = OptimalPlanner(Task(schedule, profile, lag_s=lag_s)).choose([deadline_s])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relaxation, "_LARGE", 0)
        made = OptimalPlanner(Task(schedule, profile, lag_s=lag_s)).choose([deadline_s])[0]
    stake_j = abs(exact.bound_j) + profile.blocking_power_w * schedule.num_devices * deadline_s
    assert -1e-4 * stake_j <= made.bound_j - exact.bound_j <= 1e-9 * stake_j
    makespan_s, energy_j = Task(schedule, profile, lag_s=lag_s).cost(made.row)
    assert makespan_s <= deadline_s * (1 + 1e-9)
    assert energy_j >= exact.bound_j * (1 - 1e-9)


def test_a_long_schedule(measured):
    """8 stages x 200 microbatches: both methods, one bound; the plan all but meets it."""
    schedule = build("1f1b", 8, 200)
    profile = measured("bloom")
    task = Task(schedule, profile)
    deadline_s = plan(schedule, profile, "max-clock").makespan_s
    made = OptimalPlanner(task).choose([deadline_s])[0]
    assert len(schedule) > relaxation._LARGE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relaxation, "_LARGE", 10**9)
        exact = relaxation.Model(task, relaxation.options(task)).solve(deadline_s)
    assert made.bound_j == pytest.approx(exact.bound_j, rel=1e-5)
    assert made.bound_j <= exact.bound_j * (1 + 1e-9)
    assert task.cost(made.row)[1] <= 1.002 * made.bound_j


def test_a_deadline_alone_and_on_a_frontier():
    """Planned alone by the interior-point method, among others by simplex: one bound."""
    schedule = build("1f1b", 6, 40)
    profile = random_profile(np.random.default_rng(2), 6, 8)
    assert relaxation._MEDIUM <= len(schedule) < relaxation._LARGE
    first_s, last_s = OptimalPlanner(Task(schedule, profile)).range_s
    deadlines_s = np.linspace(first_s, last_s, 6)
    front = OptimalPlanner(Task(schedule, profile)).choose(deadlines_s)
    for deadline_s, among in zip(deadlines_s[1:4], front[1:4], strict=True):
        alone = OptimalPlanner(Task(schedule, profile)).choose([deadline_s])[0]
        assert (1 - 1e-5) * among.bound_j <= alone.bound_j <= among.bound_j * (1 + 1e-9)
        assert Task(schedule, profile).cost(alone.row)[0] <= deadline_s * (1 + 1e-9)


def test_units_do_not_matter():
    """The same profile in microseconds and microjoules: the same clocks, the bound scaled."""
    schedule = build("1f1b", 3, 5)
    rng = np.random.default_rng(4)
    profile = random_profile(rng, 3, 6)
    table = profile.frame().drop(columns="kept")
    small = EnergyProfile.from_frame(
        table.assign(time_s=table.time_s * 1e-6, energy_j=table.energy_j * 1e-6),
        blocking_power_w=profile.blocking_power_w,
    )
    first_s, last_s = OptimalPlanner(Task(schedule, profile)).range_s
    deadlines_s = np.linspace(first_s * (1 + 1e-6), last_s, 5)
    large = OptimalPlanner(Task(schedule, profile)).choose(deadlines_s)
    scaled = OptimalPlanner(Task(schedule, small)).choose(deadlines_s * 1e-6)
    for one, other in zip(large, scaled, strict=True):
        assert other.bound_j * 1e6 == pytest.approx(one.bound_j, rel=1e-7)
        energies_j = [Task(schedule, profile).cost(choice.row)[1] for choice in (one, other)]
        assert energies_j[1] == pytest.approx(energies_j[0], rel=2e-3)


# --- the plan


def test_plans_against_the_discrete_optimum():
    """3 stages x 4 microbatches x 4 clocks and the like: a MILP proves the best plan."""
    excess = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        stages, microbatches = (2, 4) if seed % 2 else (3, 3)
        profile = random_profile(rng, stages, 4)
        schedule = build(("1f1b", "gpipe")[seed // 2 % 2], stages, microbatches)
        lag_s = random_lag(rng, schedule) if seed % 3 == 0 else None
        planner = OptimalPlanner(Task(schedule, profile, lag_s=lag_s))
        first_s, last_s = planner.range_s
        deadline_s = first_s + (0.0, 0.2, 0.5, 0.8)[seed % 4] * (last_s - first_s)
        made = planner.choose([deadline_s])[0]
        energy_j = Task(schedule, profile, lag_s=lag_s).cost(made.row)[1]
        best_j = discrete_optimum_j(schedule, profile, deadline_s * (1 + 1e-9), lag_s)
        assert made.bound_j <= best_j * (1 + 1e-6)
        excess.append(energy_j / best_j - 1)
    assert min(excess) > -1e-6
    assert np.mean(excess) < 0.01


@given(seed=SEED, lags=st.booleans())
@settings(max_examples=15, deadline=None)
def test_a_frontier_is_its_deadlines_one_by_one(seed, lags):
    """In any order: the same bounds, deadlines kept, and more time never costs energy."""
    rng = np.random.default_rng(seed)
    schedule = random_order(rng, 3, 3)
    profile = random_profile(rng, 3, 5)
    lag_s = random_lag(rng, schedule) if lags else None
    first_s, last_s = OptimalPlanner(Task(schedule, profile, lag_s=lag_s)).range_s
    deadlines_s = np.linspace(first_s, 1.1 * last_s, 6)
    shuffled = rng.permutation(6)
    made = OptimalPlanner(Task(schedule, profile, lag_s=lag_s)).choose(deadlines_s[shuffled])
    costs = np.array(
        [Task(schedule, profile, lag_s=lag_s).cost(made[i].row) for i in np.argsort(shuffled)]
    )
    assert (costs[:, 0] <= deadlines_s * (1 + 1e-9)).all()
    assert (np.diff(costs[:, 1]) <= 1e-9 * costs[0, 1]).all()
    for i, deadline_s in zip(np.argsort(shuffled), deadlines_s, strict=True):
        alone = OptimalPlanner(Task(schedule, profile, lag_s=lag_s)).choose([deadline_s])[0]
        assert made[i].bound_j == pytest.approx(alone.bound_j, rel=1e-7)


def gaps(schedule, profile, num_points=40):
    """How far above the bound each plan of a frontier lies."""
    front = frontier(schedule, profile, num_points=num_points)
    assert (front.makespan_s <= front.deadline_s * (1 + 1e-9)).all()
    gap = (front.energy_j / front.bound_j - 1).to_numpy()
    assert gap.min() > -1e-9
    return gap


def test_gaps_of_profiles_nobody_tuned_for(generated):
    """Reached: 0.093 % and 0.169 % (mean, largest) of three, at 15 MHz from clock to clock.

    Whole plans alone, in as many variants as time allowed, came to 0.116 % and 0.201 %.
    """
    gap = np.concatenate([gaps(build("1f1b", 8, 12), generated(seed)) for seed in (100, 101, 102)])
    assert gap.mean() < 0.00098
    assert gap.max() < 0.0018


def test_long_plans_are_as_near_as_their_windows_let_them(generated):
    """Reached: 0.197 % and 0.302 % at 8 x 64, where whole plans alone left 0.243 % and 0.386 %."""
    gap = gaps(build("1f1b", 8, 64), generated(101))
    assert gap.mean() < 0.0021
    assert gap.max() < 0.0033


def test_more_effort_comes_nearer(generated):
    schedule = build("1f1b", 8, 12)
    profile = generated(103)
    first_s = plan(schedule, profile, "max-clock").makespan_s
    energy_j = []
    for effort in (0.1, 1.0, 10.0):
        plans = [
            plan(schedule, profile, deadline_s=share * first_s, effort=effort)
            for share in (1.0, 1.05, 1.1)
        ]
        energy_j.append(sum(made.energy_j for made in plans))
    assert energy_j[0] > energy_j[1] > energy_j[2]


def test_windows_only_ever_gain():
    """Whatever the shares, tries and cuts: a pass ends in time and costs no more than before."""
    rng = np.random.default_rng(5)
    schedule = random_order(rng, 3, 6)
    lag_s = random_lag(rng, schedule)
    task = Task(schedule, random_profile(rng, 3, 6), lag_s=lag_s)
    planner = OptimalPlanner(task)
    first_s, last_s = planner.range_s
    problem = rounding._problem(task, planner.choices)
    for deadline_s in np.linspace(first_s, last_s, 5):
        solution = planner._model.solve(deadline_s)
        search = rounding._Search(problem, solution.price_w, task.waiting_w, rng)
        search.start(solution.duration_s, deadline_s)
        for window in (1, 5, 17, len(schedule)):
            before_j = search.need_j
            search.anneal_windows(deadline_s, window, 3, -np.inf, shaken=0.5)
            row = planner.choices.row[planner.choices.of, search.plan.choice]
            makespan_s, energy_j = task.cost(row)
            assert makespan_s <= deadline_s * (1 + 1e-9)
            assert energy_j == pytest.approx(search.need_j, rel=1e-12)
            waited_j = task.waiting_w * (deadline_s - makespan_s)
            assert energy_j <= before_j + waited_j + 1e-9


def test_one_clock_leaves_nothing_to_choose():
    schedule = build("1f1b", 3, 4)
    profile = random_profile(np.random.default_rng(0), 3, 1)
    made = plan(schedule, profile, "optimal")
    assert made.energy_j == pytest.approx(plan(schedule, profile, "max-clock").energy_j)
    assert made.gap == pytest.approx(0, abs=1e-9)


def test_more_clocks_than_a_byte_counts():
    """300 clocks on a smooth curve, all worth choosing: the plan all but meets the bound."""
    clock = np.arange(300)
    time_s = 0.1 + 0.0003 * clock
    rows = pd.DataFrame({"frequency": 2000.0 - clock, "time": time_s, "energy": 4 / time_s + 20})
    parts = [
        rows.assign(stage=stage, instruction=kind)
        for stage in range(2)
        for kind in ("forward", "backward")
    ]
    profile = EnergyProfile.from_frame(pd.concat(parts), blocking_power_w=80.0)
    assert profile.kept.all()
    schedule = build("1f1b", 2, 4)
    made = plan(schedule, profile, "optimal", 1.5 * plan(schedule, profile, "max-clock").makespan_s)
    assert len(np.unique(made.row)) > 1
    assert 0 <= made.gap < 1e-4


def test_a_deadline_no_clock_meets_is_refused():
    schedule = build("1f1b", 2, 3)
    profile = random_profile(np.random.default_rng(1), 2, 3)
    with pytest.raises(UsageError, match="the fastest clocks need"):
        OptimalPlanner(Task(schedule, profile)).choose([100.0, 1e-3])


# --- the published profiles


@pytest.mark.parametrize(
    ("model", "device", "mean", "most"),
    [
        ("gpt3-175b", "a100_sxm", 0.00074, 0.0014),
        ("bloom", "a100_sxm", 0.0010, 0.0017),
        ("gpt3-175b", "a40", 0.0012, 0.0042),
    ],
)
def test_published_profiles_are_within_a_fraction_of_a_percent(measured, model, device, mean, most):
    """Reached at 40 deadlines: 0.068/0.126 %, 0.091/0.151 % and 0.113/0.374 %."""
    gap = gaps(build("1f1b", 8, 12), measured(model, device))
    assert gap.mean() < mean
    assert gap.max() < most


def test_gpt3_on_a100_at_64_microbatches(measured):
    """Reached: 0.089 % and 0.193 %; with whole plans alone it was 0.102 % and 0.243 %."""
    gap = gaps(build("1f1b", 8, 64), measured("gpt3-175b"))
    assert gap.mean() < 0.00096
    assert gap.max() < 0.0020


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("model", ["gpt3-175b", "bloom"])
def test_no_plan_of_perseus_needs_less(measured, model, smooth):
    """At every time its realised plans reach, from the slowest to the fastest."""
    profile = measured(model).smoothed() if smooth else measured(model)
    schedule = build("1f1b", 8, 12)
    theirs = perseus_frontier(schedule, profile, num_points=60)
    ours = OptimalPlanner(Task(schedule, profile)).choose(theirs["makespan_s"].tolist())
    ours_j = np.array([Task(schedule, profile).cost(one.row)[1] for one in ours])
    assert (ours_j <= theirs["energy_j"].to_numpy() * (1 + 1e-9)).all()
