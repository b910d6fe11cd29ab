"""Training jobs and their allocators: published means, exact divisions, packings that fit."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from labkit import cluster
from labkit.cluster.policies.allocators import on_freest
from labkit.errors import BadValue
from labkit.papers import pollux
from labkit.papers.pollux.scheduling import allocator, pack
from labkit.papers.pollux.training import packed
from labkit.tuning.goodput.step_times import StepTimes
from tests.published import Need

GPUS = cluster.Cluster.nodes(16, gpus=4)
PUBLISHED = {  # mean seconds of workloads 1 to 4: petuum/adaptdl, results-jobload/*-1.0
    "tiresias": (2473.65, 5144.9625, 3876.25625, 3280.2625),
    "optimus": (4087.0625, 6913.875, 3944.00625, 5967.75),
    "pollux": (2088.76875, 3322.94375, 2188.49375, 2720.98125),
}
TOLERANCE = {"tiresias": 1e-9, "optimus": 1e-4, "pollux": 0.05}


@pytest.fixture(scope="module")
def kinds(published_data: Need) -> dict[str, pollux.Training]:
    published_data("pollux-osdi21")
    return pollux.trainings()


@pytest.fixture(scope="module")
def known(kinds: dict[str, pollux.Training]) -> dict:
    return pollux.goodputs(kinds, GPUS)


@pytest.mark.parametrize("policy", list(PUBLISHED))
@pytest.mark.parametrize("number", [1, 3])
def test_means_are_those_of_the_published_simulator(
    kinds: dict, known: dict, policy: str, number: int
) -> None:
    work = pollux.workload(number, kinds=kinds)
    run = pollux.train(work, GPUS, policy, goodput=known)
    assert run.jct_s.mean() == pytest.approx(PUBLISHED[policy][number - 1], rel=TOLERANCE[policy])
    assert run.jct_s.mean() > work.bound_s(GPUS)
    short = run.segments["end_s"] - run.segments["start_s"]
    assert (short > 0).all()


def test_ties_are_not_decided_by_how_a_processor_rounds(
    kinds: dict, known: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where restarts are free, many divisions are as good as another to the last bits."""
    work = pollux.workload(1, kinds=kinds)
    exact = StepTimes.grad_s
    draw = np.random.default_rng(0)

    def rounded(times: StepTimes, sizes: NDArray) -> NDArray:
        values = exact(times, sizes)
        return values * (1 + draw.choice([-1, 0, 1], size=values.shape) * 2.0**-51)

    monkeypatch.setattr(StepTimes, "grad_s", rounded)
    other = pollux.goodputs(kinds, GPUS)
    ends = [
        pollux.train(work, GPUS, "pollux", goodput=agents, restart_s=0.0).jct_s
        for agents in (known, other)
    ]
    assert (ends[0] == ends[1]).all()


def test_a_job_alone_takes_its_own_duration(kinds: dict, known: dict) -> None:
    """No queue and no restarts: user's GPUs, a round's wait and the first start beside."""
    work = pollux.workload(1, kinds=kinds)
    job = work.trace.kind.index("deepspeech2")
    table = work.trace.frame().iloc[[job]]
    one = cluster.Trace(
        arrival_s=[60], duration_s=table.duration_s, gpus=table.gpus, kind=tuple(table.kind)
    )
    alone = type(work)(trace=one, batch_sizes=(work.batch_sizes[job],), trainings=kinds)
    run = pollux.train(alone, GPUS, "tiresias", goodput=known)
    epochs = kinds["deepspeech2"].epochs
    assert run.jct_s[0] == pytest.approx(table.duration_s.iloc[0] + 30, abs=epochs / 2 + 1)
    other = pollux.workload(2, kinds=kinds).trace
    with pytest.raises(BadValue, match="own allocators"):
        cluster.simulate(other, GPUS, allocator(alone, GPUS, "tiresias"))
    with pytest.raises(BadValue, match="needs goodput"):
        pollux.train(alone, GPUS, "pollux")


def test_goodput_knows_the_best_batch_of_the_grid(kinds: dict, known: dict) -> None:
    """No batch of the full search is 2 % better; one GPU has a rule of its own (two gradients)."""
    from labkit.tuning import goodput

    kind = kinds["cifar10"]
    for phi, gpus in product((100.0, 3000.0), (2, 4, 16)):
        model = goodput.fit(
            kind.tables.steps,
            compute="linear",
            sync="linear",
            init_batch_size=kind.init_batch,
            noise_scale=phi,
        )
        best = model.optimize(
            len(packed(gpus, 4)),
            gpus,
            kind.max_batch,
            (kind.least_on_a_gpu, kind.most),
            accumulation=True,
        )
        ours = known["cifar10"].at(phi)[0][gpus]
        assert 0.98 * best.goodput <= ours <= best.goodput * (1 + 1e-9)
    assert known["cifar10"].batch_size(3000.0, 4) >= known["cifar10"].batch_size(100.0, 4)


@given(
    values=st.lists(st.lists(st.integers(0, 50), min_size=5, max_size=5), min_size=1, max_size=4),
    room=st.integers(4, 9),
)
@settings(max_examples=60, deadline=None)
def test_a_division_is_the_best_of_all(values: list[list[int]], room: int) -> None:
    table = np.array(values, dtype=float)
    sizes = np.arange(5)
    wanted = cluster.divide(table, room, sizes)
    ways = [w for w in product(range(5), repeat=len(table)) if sum(w) <= room]
    least = min(sum(table[job, g] for job, g in enumerate(way)) for way in ways)
    assert sum(table[job, g] for job, g in enumerate(wanted)) == least
    assert wanted.sum() <= room


@given(
    before=st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=1, max_size=8),
    seed=st.integers(0, 999),
)
@settings(max_examples=80, deadline=None)
def test_packings_fit_and_keep_what_they_can(before: list[int], seed: int) -> None:
    capacity = np.full(6, 4)
    rng = np.random.default_rng(seed)

    def fitting(sizes: list[int]) -> np.ndarray:
        wanted = np.array(sizes)
        return np.where(np.cumsum(wanted) <= capacity.sum(), wanted, 0)

    none = np.zeros((len(before), capacity.size), dtype=int)
    held = pack(none, fitting(before), capacity)
    wanted = fitting([int(rng.choice([g, 0, 1, 2, 4])) for g in before])
    for given_now in (
        pack(held, wanted, capacity),
        on_freest(held, wanted, capacity, np.argsort(wanted)),
    ):
        assert given_now.sum(1).tolist() == wanted.tolist()
        assert (given_now.sum(0) <= capacity).all()
    assert (pack(held, held.sum(1), capacity) == held).all()
    nodes = (pack(held, wanted, capacity) > 0).sum(1)
    assert nodes.tolist() == (-(-wanted // 4)).tolist()


def test_offers_of_several_gpus_get_past_a_bad_number(kinds: dict) -> None:
    """A job alone ends no later; where one more GPU never hurts, both offers are the same."""
    table = pollux.workload(1, kinds=kinds).trace.frame()
    jobs = table[table.kind == "bert"].iloc[[0]]
    one = cluster.Trace(arrival_s=[0], duration_s=jobs.duration_s, gpus=jobs.gpus, kind=("bert",))
    work = pollux.Workload(trace=one, batch_sizes=(192,), trainings=kinds)
    ends = [
        float(cluster.simulate(one, GPUS, allocator(work, GPUS, "optimus", jumps=jumps)).end_s[0])
        for jumps in (False, True)
    ]
    assert ends[1] < ends[0]
    policy = allocator(work, GPUS, "optimus")
    convex = 1 / np.arange(1.0, policy.step_s.shape[1] + 1)[None, :] + 0 * policy.step_s
    smooth = [
        cluster.simulate(one, GPUS, replace(policy, step_s=convex, jumps=jumps)).end_s[0]
        for jumps in (False, True)
    ]
    assert smooth[0] == smooth[1]


def test_fair_shares_differ_by_one_gpu_at_most(kinds: dict) -> None:
    work = pollux.workload(1, kinds=kinds)
    fair = allocator(work, GPUS, "fair")
    run = cluster.simulate(work.trace, GPUS, fair)
    segments = run.segments
    most = fair.most
    for moment in np.unique(segments["start_s"])[::7]:
        on = (segments["start_s"] <= moment) & (segments["end_s"] > moment)
        gpus = segments["gpus"][on]
        jobs = segments["job"][on]
        free = gpus[gpus < most[jobs]]
        assert free.size == 0 or free.max() - free.min() <= 1
    assert run.ran.all()


def test_a_job_alone_with_its_users_batch_gets_the_gpus_where_that_is_fastest(kinds: dict) -> None:
    table = pollux.workload(1, kinds=kinds).trace.frame()
    jobs = table[table.kind == "bert"].iloc[[0]]
    one = cluster.Trace(arrival_s=[0], duration_s=jobs.duration_s, gpus=jobs.gpus, kind=("bert",))
    work = pollux.Workload(trace=one, batch_sizes=(192,), trainings=kinds)
    policy = allocator(work, GPUS, "fixed batch", explores=False, restart_s=0.0)
    run = cluster.simulate(one, GPUS, policy)
    sizes = np.array([1, 2, *range(4, policy.step_s.shape[1], 4)])
    fastest = sizes[np.nanargmin(policy.step_s[0, sizes - 1])]
    assert set(run.segments["gpus"].tolist()) == {fastest}


def test_an_experiment_runs_the_workloads_it_says(published_data: Need) -> None:
    usual = pollux.Experiment(inputs=pollux.Inputs(published_data("pollux-osdi21")))
    means_s = usual.mean_s(pollux.Method.TIRESIAS)
    assert means_s == pytest.approx(PUBLISHED["tiresias"], rel=1e-9)
    assert usual.saving(pollux.Method.TIRESIAS, pollux.Method.TIRESIAS) == 0
    free = replace(usual, restart_s=0.0)
    assert free.mean_s(pollux.Method.TIRESIAS, numbers=(1,))[0] < means_s[0]
    kinds = usual.inputs.trainings
    held = [usual.held(pollux.Method.TIRESIAS, kind) for kind in kinds]
    all_gpu_s = 0.0
    for number in pollux.WORKLOADS[1.0]:
        segments = usual.run(pollux.Method.TIRESIAS, number).segments
        all_gpu_s += float(((segments["end_s"] - segments["start_s"]) * segments["gpus"]).sum())
    assert sum(table["gpu_s"].sum() for table in held) == pytest.approx(all_gpu_s)
    assert min(table["present"].min() for table in held) >= 1
