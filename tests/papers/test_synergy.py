"""CPUs and memory: the authors' program's end times; what each division does, and what never."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import cluster
from labkit.errors import UsageError
from labkit.papers import synergy
from tests.oracles.synergy_simulator import NEEDS, RUNS, STORED, as_program
from tests.oracles.tiresias_simulator import digest

ORACLE = json.loads(STORED.read_text())["runs"]
KEYED = {"srtf-tune", "tetris-greedy"}
"""Whose queue is ordered by seconds left, in which the program does not count whole iterations."""
PAIR = {
    "image": synergy.Sensitivity(cpus=12, memory_gb=62.5, speed=3.0),
    "language": synergy.Sensitivity(cpus=1, memory_gb=20),
}
NODE = cluster.Cluster.nodes(1, gpus=8)  # 24 CPUs and 500 GB: 3 CPUs and 62.5 GB a GPU


def at_once(kinds: tuple[str, ...], gpus: list[int] | None = None) -> cluster.Trace:
    return cluster.Trace(
        arrival_s=np.zeros(len(kinds)),
        duration_s=np.full(len(kinds), 300.0),
        gpus=gpus or [1] * len(kinds),
        kind=kinds,
    )


def ends(give: str, *kinds: str) -> list[float]:
    policy = synergy.allocator(PAIR, give=give, round_s=1.0)  # type: ignore[arg-type]
    return cluster.simulate(at_once(kinds), NODE, policy).end_s.tolist()


@pytest.mark.parametrize("name", RUNS)
def test_jobs_end_in_the_round_that_the_authors_simulator_says(name: str) -> None:
    run = cluster.simulate(*as_program(name))
    (first, last) = RUNS[name]["jobs"]
    hours = run.jct_s[first:last] / 3600
    if name in KEYED:
        assert hours.mean() == pytest.approx(ORACLE[name]["mean_jct_h"], rel=0.005)
        return
    assert hours.mean() == pytest.approx(ORACLE[name]["mean_jct_h"], rel=1e-12)
    assert digest(run.end_s[first:last]) == ORACLE[name]["sha256"]


def test_the_readme_of_the_artifact_prints_the_same() -> None:
    """Mean and 99th percentile in ae-readme.md, for its default run."""
    assert ORACLE["readme"]["mean_jct_h"] == pytest.approx(21.876600555555555, rel=1e-14)
    assert ORACLE["readme"]["p99_jct_h"] == pytest.approx(156.93307777777775, rel=1e-14)


def test_two_image_jobs_get_all_the_cpus_they_can_use() -> None:
    assert ends("proportional", "image", "image") == [300, 300]
    assert ends("greedy", "image", "image") == [100, 100]
    assert ends("tune", "image", "image") == [100, 100]


def test_a_third_waits_under_greedy_and_takes_cpus_back_under_tune() -> None:
    assert ends("greedy", "image", "image", "image") == [100, 100, 200]
    # Tune: the first gives back 9 CPUs; at 100 s the second ends, and the two left speed up.
    tuned = ends("tune", "image", "image", "image")
    assert tuned == pytest.approx([100 + 200 / 3, 100, 100 + 200 / 3], abs=1)


def test_language_jobs_cost_the_others_nothing() -> None:
    assert ends("tune", *["language"] * 6, "image") == [300] * 6 + [100]


def test_a_kind_nobody_profiled_is_named() -> None:
    with pytest.raises(UsageError, match="speech"):
        ends("tune", "speech")


@st.composite
def crowds(draw: st.DrawFn) -> tuple[cluster.Trace, cluster.Cluster, dict[str, object]]:
    sizes = draw(st.lists(st.sampled_from([1, 1, 1, 2, 4, 8]), min_size=1, max_size=40))
    needs = synergy.load_needs(NEEDS, cpus_per_gpu=draw(st.sampled_from([3, 4, 5, 6])))
    kinds = tuple(draw(st.sampled_from(sorted(needs))) for _ in sizes)
    how = {"needs": needs, "fit": draw(st.sampled_from(["first", "best", "spread"]))}
    return at_once(kinds, sizes), cluster.Cluster.nodes(draw(st.integers(1, 4))), how


@settings(max_examples=60, deadline=None)
@given(crowds(), st.sampled_from(["proportional", "greedy", "tune"]))
def test_no_node_gives_more_than_it_has_and_no_job_less_than_its_share(
    crowd: tuple[cluster.Trace, cluster.Cluster, dict[str, object]], give: str
) -> None:
    trace, gpus, how = crowd
    policy = synergy.allocator(give=give, **how)  # type: ignore[arg-type]
    table = policy.allot(trace, gpus)
    nodes = table.groupby("node")[["gpus", "cpus", "memory_gb"]].sum()
    assert (nodes <= [8, 24 + 1e-6, 500 + 1e-6]).all(axis=None)
    asked = trace.column("gpus")
    held = table.groupby("job").gpus.sum()
    assert (held == asked[held.index]).all()  # all of a job's GPUs or none
    assert (table.speed >= 1).all()
    if give != "greedy":  # no GPUs idle that a job could take
        rest = np.delete(asked, held.index)
        assert not rest.size or rest.min() > gpus.num_gpus - held.sum()
    ran = at_once(tuple(trace.kind[job] for job in held.index), asked[held.index].tolist())
    worth = (table.speed * table.gpus).sum()
    assert worth <= policy.most_speed(ran, gpus) * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(crowds(), st.sampled_from(["fifo", "srtf", "las", "drf", "tetris"]))
def test_work_is_conserved(
    crowd: tuple[cluster.Trace, cluster.Cluster, dict[str, object]], order: str
) -> None:
    trace, gpus, how = crowd
    policy = synergy.allocator(give="proportional", order=order, round_s=7.0, **how)  # type: ignore[arg-type]
    run = cluster.simulate(trace, gpus, policy)
    held_s = np.bincount(run.segments["job"], run.segments["end_s"] - run.segments["start_s"])
    ran = run.ran
    assert ran.sum() == (trace.column("gpus") <= gpus.num_gpus).sum()
    assert held_s[ran] == pytest.approx(300.0)


def test_the_program_of_one_node_is_its_best_division() -> None:
    """By hand: two images and two language jobs on a node of 4 GPUs, 12 CPUs, 250 GB."""
    policy = synergy.allocator(PAIR, cpus_per_node=12.0, memory_gb_per_node=250.0)
    small = cluster.Cluster.nodes(1, gpus=4)
    trace = at_once(("image", "image", "language", "language"))
    # 10 CPUs for two images: their shares are 6, and 4 of the 9 that the next needs: 4/9 of 2.
    assert policy.most_speed(trace, small) == pytest.approx(2 + 2 + 2 * 4 / 9)


def test_authors_speeds_at_ratio_six_are_not_their_tables() -> None:
    used, read = (synergy.load_needs(NEEDS, cpus_per_gpu=6, speeds=s) for s in ("used", "read"))  # type: ignore[arg-type]
    off = {kind for kind in used if abs(used[kind].speed - read[kind].speed) > 0.01}
    assert off == {"alexnet", "shufflenet", "m5"}


def test_figures_draw_what_they_are_given() -> None:
    needs = synergy.load_needs(NEEDS)
    bars = {bar.name: [*bar.y] for bar in synergy.figure_needs(needs, 3).data if bar.type == "bar"}
    assert bars["language"] == [1, 1, 1]
    gains = pd.DataFrame({"greedy": [2.0, 3.0], "tune": [2.5, 3.5]}, index=["a", "b"])
    figure = synergy.figure_gains(gains, [5.0, 6.0], paper_gain=3.4, title="A title")
    shown = {trace.name: [*trace.y] for trace in figure.data}
    assert shown["Tune, simulated"] == [2.5, 3.5]
    assert shown["bound: nobody waits"] == [5, 6]
    assert shown["paper: up to 3.4"] == [3.4, 3.4]
    profiles = pd.read_csv(NEEDS, comment="#")
    assert len(synergy.figure_speeds(profiles).data) == profiles.cpus_per_gpu.nunique()
    by_ratio = pd.DataFrame(
        {"cpus_per_gpu": [3, 4], "split": ["s"] * 2, "speeds": ["used"] * 2, "mean_h": [1.0, 2.0]}
    )
    line, shares = synergy.figure_ratio(by_ratio, 9.0).data
    assert ([*line.y], [*shares.y]) == ([1, 2], [9, 9])
