"""Deadlines: the artifact's counts, an exact scheduler on small cases, and what always holds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import cluster, datasets
from labkit.errors import BadValue, UsageError
from tests.cluster.reference import overlaps

GPUS = cluster.Cluster.nodes(16, gpus=4)
LIMITS = {"bert": 16, "ncf": 1}  # set by hand in the artifact for its own policy alone
COSTS = {"restart_s": 4.0, "doubling_s": 2.0}


@pytest.fixture(scope="module")
def testbed() -> tuple[cluster.Trace, cluster.Rates]:
    if not datasets.available("elasticflow-asplos23"):
        pytest.skip("elasticflow-asplos23 is not on this machine (see `labkit data`)")
    return cluster.load_elastic()


def in_time(testbed: tuple[cluster.Trace, cluster.Rates], policy: cluster.Deadlines) -> int:
    run = cluster.simulate(testbed[0], GPUS, policy)
    return int((run.end_s <= testbed[0].deadline_s).sum())


def test_the_artifact_counts_as_many_jobs_in_time(testbed: tuple) -> None:
    """pkusys/ElasticFlow, run_fig8a.sh, and the same with edf-accessctrl: jobs accepted of 195."""
    rates = testbed[1]
    assert in_time(testbed, cluster.edf(rates, sizes="largest")) == 23
    assert in_time(testbed, cluster.edf(rates, sizes="largest", judged="each")) == 80
    assert in_time(testbed, cluster.time_slicing(rates, **COSTS)) == pytest.approx(18, abs=5)
    limited = cluster.load_elastic(limits=LIMITS)[1]
    policy = cluster.elasticflow(limited, judged="together", stay_s=2.0, **COSTS)
    assert in_time(testbed, policy) == pytest.approx(142, abs=5)


def test_who_is_admitted_is_in_time_but_for_restarts(testbed: tuple) -> None:
    trace, rates = testbed
    free = cluster.simulate(trace, GPUS, cluster.elasticflow(rates))
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
        arrival_s=arrival, duration_s=work, gpus=[1] * num, kind=tuple(kinds),
        deadline_s=np.add(arrival, slack),
    )  # fmt: skip
    rates = cluster.Rates(
        kinds=("a", "b"), gpus=(1, 2, 4),
        work_per_s=np.array([[1.0, 2.0, 3.0], [1.0, 1.5, 1.4]])[:, :, None],
    )  # fmt: skip
    return trace, rates


POLICIES = [
    cluster.elasticflow, cluster.edf, cluster.time_slicing,
    lambda rates, **o: cluster.elasticflow(rates, judged="together", **o),
    lambda rates, **o: cluster.elasticflow(rates, judged="nobody", spare=False, **o),
]  # fmt: skip
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
    due, arrival = trace.column("deadline_s"), trace.column("arrival_s")
    sizes = (0, 1, 2, 4)
    states = {tuple(trace.column("duration_s").tolist())}
    for now in range(int(due.max())):
        options = [
            [k for k in range(4) if k == 0 or arrival[j] <= now < due[j]] for j in range(len(trace))
        ]
        steps = [c for c in product(*options) if sum(sizes[k] for k in c) <= most]
        states = {
            tuple(max(0.0, left - (0.0, *table[kind])[k])
                  for left, kind, k in zip(state, trace.kind, step, strict=True))
            for state in states for step in steps
        }  # fmt: skip
    return max(sum(left <= 1e-9 for left in state) for state in states)


@given(case=cases())
@settings(max_examples=25, deadline=None)
def test_the_bound_is_no_less_than_the_best_schedule(case: tuple) -> None:
    trace, rates = case
    trace = trace.head(min(3, len(trace)))
    best = exact(trace, {"a": (1.0, 2.0, 3.0), "b": (1.0, 1.5, 1.4)}, 4)
    bound = cluster.most_deadlines(trace, SMALL, rates) * len(trace)
    assert bound >= best - 1e-6
    for make in POLICIES:
        run = cluster.simulate(trace, SMALL, make(rates, round_s=1.0))  # type: ignore[operator]
        assert (run.end_s <= trace.deadline_s).sum() <= bound + 1e-6


def test_by_hand() -> None:
    """4 GPUs, all at 0: 8 by 4 needs 2 GPUs, 3 by 3 needs 1; 4 by 2 then needs 2 and gets 1."""
    trace = cluster.Trace(
        arrival_s=[0, 0, 0], duration_s=[8, 3, 4], gpus=[1, 1, 1], deadline_s=[4, 3, 2],
        kind=("a",) * 3,
    )  # fmt: skip
    rates = cluster.Rates(kinds=("a",), gpus=(1, 2, 4), work_per_s=[[[1.0], [2.0], [4.0]]])
    run = cluster.simulate(trace, SMALL, cluster.elasticflow(rates, round_s=1.0, spare=False))
    assert run.refused is not None
    assert run.refused.tolist() == [False, False, True]
    assert run.end_s[:2].tolist() == [4, 3]
    spare = cluster.simulate(trace, SMALL, cluster.elasticflow(rates, round_s=1.0))
    assert (spare.end_s[:2] <= [4, 3]).all()
    assert spare.jct_s[:2].sum() < 7
    assert cluster.most_deadlines(trace, SMALL, rates) == 1.0  # 15 GPU-seconds of 16, by parts
    everyone = cluster.simulate(trace, SMALL, cluster.elasticflow(rates, judged="together"))
    assert everyone.refused is not None
    assert everyone.refused.all()


def test_what_cannot_be_is_refused_in_words() -> None:
    trace = cluster.generate(5, num_gpus=8)
    two = cluster.Cluster(pools=(cluster.Pool(nodes=1, gpus_per_node=8, gpu="a"),
                                 cluster.Pool(nodes=1, gpus_per_node=8, gpu="b")))  # fmt: skip
    with pytest.raises(BadValue, match="2 pools; valid: 1"):
        cluster.simulate(trace, two, cluster.edf())
    with pytest.raises(BadValue, match=r"no job of .* has a deadline"):
        cluster.most_deadlines(trace, SMALL)
    with pytest.raises(UsageError, match="part"):
        cluster.load_elastic("T5")
    with pytest.raises(BadValue, match="judged=… in place of admit="):
        cluster.simulate_rounds(trace, SMALL, cluster.edf(), admit=lambda state, new: new >= 0)
