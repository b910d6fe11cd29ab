"""Deadlines: the artifact's counts, an exact scheduler on small cases, and what always holds."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import cluster
from labkit.errors import BadValue, UsageError
from labkit.papers import elasticflow
from labkit.papers.elasticflow.deadlines import speeds_by_size
from tests.cluster.reference import overlaps
from tests.oracles import elasticflow_simulator as oracle
from tests.published import Need

GPUS = oracle.GPUS
STORED = json.loads(oracle.STORED.read_text())


@pytest.fixture(scope="module")
def testbed(published_data: Need) -> tuple[cluster.Trace, cluster.Rates]:
    published_data("elasticflow-asplos23")
    return cluster.load_elastic()


@pytest.mark.parametrize("schedule", oracle.SCHEDULES)
def test_the_artifact_counts_as_many_jobs_in_time(testbed: tuple, schedule: str) -> None:
    """Strictly, and with a slot's grace: 0.03 of the jobs; EDF, which has no restarts, to the job.

    What a restart costs in the artifact depends on where jobs were placed before.
    """
    run = cluster.simulate(testbed[0], GPUS, oracle.policies()[1][schedule])
    most = 0 if schedule.startswith("edf") else 0.03 * len(testbed[0])
    for counted, ours in oracle.counts(run.end_s, testbed[0]).items():
        assert ours == pytest.approx(STORED["schedules"][schedule][counted], abs=most), counted


def ends(rules: str, **restarts: float) -> np.ndarray:
    """When jobs of Fig. 8a end under ElasticFlow; NaN: refused."""
    trace, policies = oracle.policies()
    policy = replace(policies["ef-accessctrl"], rules=rules, **restarts)  # type: ignore[type-var]
    return cluster.simulate(trace, GPUS, policy).end_s


@pytest.mark.parametrize(("change", "cost_s"), [("free restarts", 0.0), ("restarts of 2 s", 2.0)])
def test_each_job_ends_in_the_second_of_the_artifact(
    testbed: tuple, change: str, cost_s: float
) -> None:
    """With restarts that cost the same everywhere."""
    ours = ends("artifact", restart_s=cost_s, stay_s=cost_s, doubling_s=0.0)
    np.testing.assert_array_equal(ours, np.array(STORED["ends_s"][change], dtype=float))


def test_whom_the_artifact_refuses_and_why(testbed: tuple) -> None:
    """Its rules refuse the same jobs; without their fault the paper's do, six jobs fewer."""
    published, mended = (
        np.isnan(np.array(STORED["ends_s"][name], dtype=float)) for name in ("published", "mended")
    )
    np.testing.assert_array_equal(np.isnan(ends("artifact")), published)
    np.testing.assert_array_equal(np.isnan(ends("paper")), mended)
    assert published.sum() - mended.sum() == 6


def test_by_hand_a_job_that_is_done_keeps_another_out() -> None:
    """A restart of 4 s and 33 s of work end at 37 s, in time for 40 s; GPUs are free for the next.

    The artifact stops the work at its planned end, 33 s, and judges at 60 s who came at 50 s: 4 s
    are left, too late for 40 s, so nobody is let in. The job ends a slot and a restart later, at
    122 s.
    """
    trace = cluster.Trace(
        arrival_s=[0, 50], duration_s=[33, 33], gpus=[1, 1], deadline_s=[40, 1050]
    )
    costs = {"restart_s": 4.0, "stay_s": 2.0}
    paper, artifact = (
        cluster.simulate(trace, SMALL, elasticflow.policy(rules=rules, **costs))  # type: ignore[arg-type]
        for rules in ("paper", "artifact")
    )
    assert paper.end_s.tolist() == [37, 60 + 4 + 33]
    np.testing.assert_array_equal(artifact.end_s, [122, np.nan])
    blocked = {name: np.array(end_s, dtype=float) for name, end_s in STORED["blocked_s"].items()}
    np.testing.assert_array_equal(blocked["published"], artifact.end_s)
    assert not np.isnan(blocked["mended"]).any()


def test_on_the_recorded_trace_of_fig_8b(published_data: Need) -> None:
    """As published by its rules, mended by the paper's: 0.03 of the jobs."""
    published_data("itp-elasticflow", ["data/elasticflow-traces.tar.gz"])
    published_data("elasticflow-asplos23")
    trace, rates = cluster.load_elastic("06")
    costs = {"restart_s": 9.0, "doubling_s": 2.0, "stay_s": 7.0}  # of 256 GPUs and more
    for name, rules in {"published": "artifact", "mended": "paper"}.items():
        policy = elasticflow.policy(rates, judged="together", rules=rules, **costs)  # type: ignore[arg-type]
        run = cluster.simulate(trace, cluster.Cluster.nodes(64, gpus=8), policy)
        for counted, ours in oracle.counts(run.end_s, trace).items():
            theirs = STORED["cluster_06"][name][counted]
            assert ours == pytest.approx(theirs, abs=0.03 * len(trace)), (name, counted)


def test_who_is_admitted_is_in_time_but_for_restarts(testbed: tuple) -> None:
    trace, rates = testbed
    free = cluster.simulate(trace, GPUS, elasticflow.policy(rates))
    late = free.end_s > trace.column("deadline_s") + 60  # a round's wait for the decision
    assert not late.any()
    assert free.refused is not None
    assert free.refused.any()
    assert (free.end_s > trace.column("deadline_s")).sum() <= 0.03 * len(trace)
    assert "was refused" in free.why(int(np.argmax(free.refused)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[cluster.Trace, cluster.Rates]:
    num = draw(st.integers(1, 5))
    whole = st.integers(1, 8)
    arrival = sorted(draw(st.lists(st.integers(0, 6), min_size=num, max_size=num)))
    work = draw(st.lists(whole, min_size=num, max_size=num))
    slack = draw(st.lists(st.integers(0, 12), min_size=num, max_size=num))
    kinds = draw(st.lists(st.sampled_from("ab"), min_size=num, max_size=num))
    trace = cluster.Trace(
        arrival_s=arrival,
        duration_s=work,
        gpus=[1] * num,
        kind=tuple(kinds),
        deadline_s=np.add(arrival, slack),
    )
    rates = cluster.Rates(
        kinds=("a", "b"), gpus=(1, 2, 4),
        work_per_s=[[1.0, 2.0, 3.0], [1.0, 1.5, 1.4]],
    )  # fmt: skip
    return trace, rates


POLICIES = [
    elasticflow.policy,
    elasticflow.edf,
    elasticflow.time_slicing,
    lambda rates, **o: elasticflow.policy(rates, judged="together", **o),
    lambda rates, **o: elasticflow.policy(rates, judged="nobody", spare=False, **o),
]
SMALL = cluster.Cluster.nodes(1, gpus=4)


@pytest.mark.parametrize("make", POLICIES)
@given(case=cases(), cost=st.sampled_from([0.0, 0.25]))
@settings(max_examples=80, deadline=None)
def test_no_gpu_is_used_twice_and_no_work_is_lost(make: object, case: tuple, cost: float) -> None:
    trace, rates = case
    run = cluster.simulate(trace, SMALL, make(rates, round_s=1.0, restart_s=cost))  # type: ignore[operator]
    of, start, end, gpus = (run.segments[n] for n in ("job", "start_s", "end_s", "gpus"))
    for now in (np.unique(np.concatenate([start, end]))[:-1] + 1e-6).tolist():
        assert gpus[(start <= now) & (now < end)].sum() <= 4
    table = {"a": {1: 1.0, 2: 2.0, 4: 3.0}, "b": {1: 1.0, 2: 1.5, 4: 1.4}}
    for job in np.flatnonzero(run.ran):
        mine = of == job
        assert not overlaps([*zip(start[mine], end[mine], strict=True)])
        rate = [table[trace.kind[job]][int(n)] for n in gpus[mine]]
        most = float(np.dot(rate, end[mine] - start[mine]))
        lost = run.restart_s[job]
        assert most - max(rate) * lost - 1e-6 <= trace.duration_s[job] <= most + 1e-6
    refused = run.refused if run.refused is not None else np.zeros(len(trace), bool)
    assert (run.ran ^ refused).all()


def exact(trace: cluster.Trace, table: dict[str, tuple[float, ...]], most: int) -> int:
    """The most jobs in time in unit slots on ``most`` GPUs, by trying every schedule."""
    due = trace.column("deadline_s")
    arrival = trace.column("arrival_s")
    sizes = (0, 1, 2, 4)
    states = {tuple(trace.column("duration_s").tolist())}
    for now in range(int(due.max())):
        options = [
            [k for k in range(4) if k == 0 or arrival[j] <= now < due[j]] for j in range(len(trace))
        ]
        steps = [c for c in product(*options) if sum(sizes[k] for k in c) <= most]
        states = {
            tuple(
                max(0.0, left - (0.0, *table[kind])[k])
                for left, kind, k in zip(state, trace.kind, step, strict=True)
            )
            for state in states
            for step in steps
        }
    return max(sum(left <= 1e-9 for left in state) for state in states)


@given(case=cases())
@settings(max_examples=25, deadline=None)
def test_the_bound_is_no_less_than_the_best_schedule(case: tuple) -> None:
    trace, rates = case
    trace = trace.head(min(3, len(trace)))
    best = exact(trace, {"a": (1.0, 2.0, 3.0), "b": (1.0, 1.5, 1.4)}, 4)
    bound = elasticflow.most_deadlines(trace, SMALL, rates) * len(trace)
    assert bound >= best - 1e-6
    for make in POLICIES:
        run = cluster.simulate(trace, SMALL, make(rates, round_s=1.0))  # type: ignore[operator]
        assert (run.end_s <= trace.deadline_s).sum() <= bound + 1e-6


@given(rows=st.lists(st.integers(0, 194), min_size=4, max_size=24, unique=True))
@settings(max_examples=60, deadline=None)
def test_the_share_is_that_of_a_plain_loop(testbed: tuple, rows: list[int]) -> None:
    """Jobs at once, deadlines on the grid: who is admitted, beside a loop over dictionaries."""
    trace, rates = testbed
    pick = np.array(rows)
    window = (trace.column("deadline_s") - trace.column("arrival_s"))[pick] // 60 * 60
    few = cluster.Trace(
        arrival_s=np.zeros(pick.size),
        duration_s=trace.column("duration_s")[pick],
        gpus=trace.column("gpus")[pick],
        kind=tuple(trace.kind[j] for j in rows),
        deadline_s=window,
    )
    small = cluster.Cluster.nodes(4, gpus=4)
    sizes, speed, levels = speeds_by_size(few, small, rates)

    def lay(free: dict[float, int], job: int) -> bool:
        due = float(window[job])
        left = float(few.column("duration_s")[job])
        mine = dict(zip(sizes[: levels["best"][job] + 1], speed[job], strict=False))
        free.setdefault(due, free[max(m for m in free if m <= due)])
        starts = sorted(m for m in free if m < due)
        spans = np.diff([*starts, due])

        def held(most: int) -> list[int]:
            return [max(n for n in mine if n <= min(most, free[m])) for m in starts]

        share = next((n for n in mine if spans @ [mine[h] for h in held(n)] >= left), 0)
        for m, n, span in zip(starts, held(share), spans, strict=True):
            if left > 0 and n > 0:
                free.setdefault(m + min(span, 60 * np.ceil(left / mine[n] / 60)), free[m])
                free[m] -= n
                left -= mine[n] * span
        return left <= 0

    inside: list[int] = []
    for job in range(pick.size):
        free = {0.0: small.num_gpus}
        if all(lay(free, k) for k in sorted([*inside, job], key=lambda k: window[k])):
            inside.append(job)
    run = cluster.simulate(few, small, elasticflow.policy(rates))
    assert run.refused is not None
    assert np.flatnonzero(~run.refused).tolist() == inside


def test_by_hand() -> None:
    """4 GPUs; 4 by 2 takes 2 GPUs, 3 by 3 one: 1, 3, then 4 are left, and 8 by 4 fits, 9 does not.

    Sizes are 1, 2 and 4, so of 3 free GPUs 2 are of use.
    """
    rates = cluster.Rates(kinds=("a",), gpus=(1, 2, 4), work_per_s=[[1.0, 2.0, 4.0]])

    def ran(work: float, **options: object) -> cluster.Run:
        trace = cluster.Trace(
            arrival_s=[0, 0, 0], duration_s=[work, 3, 4], gpus=[1, 1, 1], deadline_s=[4, 3, 2],
            kind=("a",) * 3,
        )  # fmt: skip
        policy = elasticflow.policy(rates, round_s=1.0, **options)  # type: ignore[arg-type]
        return cluster.simulate(trace, SMALL, policy)

    fits = ran(8, spare=False)
    tight = ran(9, spare=False)
    assert fits.end_s.tolist() == [4, 3, 2]
    assert tight.refused is not None
    assert tight.refused.tolist() == [False, False, True]
    assert elasticflow.most_deadlines(tight.trace, SMALL, rates) == 1.0  # 16 GPU-seconds, by parts
    together = ran(9, judged="together")
    assert together.refused is not None
    assert together.refused.all()
    spare = ran(9)
    assert (spare.end_s[:2] <= [4, 3]).all()
    assert spare.jct_s[:2].sum() < tight.jct_s[:2].sum()


def test_what_cannot_be_is_refused_in_words() -> None:
    trace = cluster.generate(5, num_gpus=8)
    two = cluster.Cluster(
        pools=(
            cluster.Pool(nodes=1, gpus_per_node=8, gpu="a"),
            cluster.Pool(nodes=1, gpus_per_node=8, gpu="b"),
        )
    )
    with pytest.raises(BadValue, match="2 pools; valid: 1"):
        cluster.simulate(trace, two, elasticflow.edf())
    with pytest.raises(BadValue, match=r"no job of .* has a deadline"):
        elasticflow.most_deadlines(trace, SMALL)
    with pytest.raises(UsageError, match="part"):
        cluster.load_elastic("T5")


@pytest.mark.parametrize("rules", ["paper", "artifact"])
@pytest.mark.parametrize("judged", ["each", "nobody"])
def test_jobs_without_rates_hold_the_gpus_they_asked_for_or_none(judged: str, rules: str) -> None:
    """Also where fewer are free: there a job makes no progress."""
    draw = np.random.default_rng(0)
    arrival_s = np.sort(draw.uniform(0, 4000, 60))
    duration_s = draw.lognormal(6, 1, 60)
    trace = cluster.Trace(
        arrival_s=arrival_s,
        duration_s=duration_s,
        gpus=2 ** draw.integers(0, 3, 60),
        deadline_s=arrival_s + duration_s * draw.uniform(0.9, 4, 60),
    )
    policies = [
        elasticflow.policy(judged=judged, rules=rules),  # type: ignore[arg-type]
        elasticflow.edf(judged=judged),  # type: ignore[arg-type]
    ]
    for policy in policies:
        run = cluster.simulate(trace, SMALL, policy)
        job = run.segments["job"]
        assert (run.segments["gpus"] == trace.column("gpus")[job]).all()
        ended = ~np.isnan(run.end_s)
        assert ended.sum() > 10
        held_s = np.bincount(job, run.segments["end_s"] - run.segments["start_s"], len(trace))
        assert (held_s[ended] >= duration_s[ended] * (1 - 1e-9)).all()


def test_a_table_of_rates() -> None:
    rates = cluster.Rates(kinds=("a", "b"), gpus=(1, 2), work_per_s=[[1.0, 1.5], [1.0, 2.0]])
    trace = cluster.Trace(arrival_s=[0, 0], duration_s=[30, 30], gpus=[2, 2], kind=("a", "b"))
    asked = elasticflow.edf(rates, sizes="asked", round_s=10)
    run = cluster.simulate(trace, cluster.Cluster.nodes(1, gpus=4), asked)
    assert run.end_s.tolist() == [20, 15]
    assert run.summary()["utilisation_fraction"] == pytest.approx(70 / 80)
    other = cluster.Trace(arrival_s=[0], duration_s=[1], gpus=[1], kind=("c",))
    with pytest.raises(BadValue, match="lacks 'c'"):
        cluster.simulate(other, cluster.Cluster.nodes(1), asked)
    with pytest.raises(BadValue, match="kinds × gpus"):
        cluster.Rates(kinds=("a",), gpus=(1, 2), work_per_s=[[1.0]])


def test_slots_hold_what_the_rates_say(testbed: tuple) -> None:
    """Speeds by free GPUs are those of the largest size that is free, up to the fastest."""
    trace, rates = testbed
    jobs = elasticflow.in_slots(trace, rates, num_gpus=16, slot_s=60.0)
    for job, work_per_s in zip(jobs, rates.of(trace), strict=True):
        sizes = [size for size, speed in zip(rates.gpus, work_per_s, strict=True) if speed > 0]
        for free in range(1, 17):
            possible = [
                speed for size, speed in zip(rates.gpus, work_per_s, strict=True) if size <= free
            ]
            assert job.speed[free] <= 60 * max(possible) + 1e-9
            assert job.uses[free] <= free
        assert max(job.speed) == pytest.approx(60 * max(work_per_s[:5]))
        assert set(job.sizes) <= set(sizes)
    windows_s = trace.column("deadline_s") - trace.column("arrival_s")
    assert [job.deadline for job in jobs] == (windows_s // 60).tolist()


def test_any_order_keeps_the_jobs(testbed: tuple) -> None:
    few = testbed[0].at_once(range(12), grid_s=60.0)
    mixed = elasticflow.in_any_order(few, rng=1)
    rows = [
        sorted(zip(trace.ids, trace.duration_s, trace.deadline_s, trace.kind, strict=True))
        for trace in (few, mixed)
    ]
    assert rows[0] == rows[1]
    assert mixed.ids != few.ids


def test_figures_show_the_paper_beside_ours() -> None:
    shares = pd.DataFrame(
        {"paper": [0.1, np.nan], "in time": [0.2, 0.4], "or a slot late": [0.3, 0.5]},
        index=["EDF", "ours, all let in"],
    )
    bars = elasticflow.figure_in_time(shares, bound=0.9, jobs=10, title="Deadlines")
    assert bars.data[0].name == "paper"
    assert bars.data[-1].y == (0.9, 0.9)
    parts = pd.DataFrame({"EDF": [0.1, 0.2], "bound": [0.8, 0.9]}, index=[16, 32])
    paper = pd.DataFrame({"EDF": [0.15]}, index=[32])
    lines = elasticflow.figure_parts(parts, paper, {"EDF": "EDF"}, title="Parts")
    assert lines.data[2].marker.color == lines.data[0].line.color
    idea = elasticflow.figure_idea()
    areas = dict.fromkeys(elasticflow.figures.IDEA, 0.0)
    for name, jobs in elasticflow.figures.IDEA.items():
        for start, end, lowest, highest in jobs.values():
            areas[name] += (end - start) * (highest - lowest)
    assert [*areas.values()] == [28, 16]
    assert "28 GPU-hours" in idea.layout.title.text
