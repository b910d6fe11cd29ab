"""Squishy packing against the paper's example, its authors' own tests, and brute force."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit import serving
from labkit.errors import BadFile, BadValue
from labkit.papers import nexus
from labkit.papers.nexus import Method, Scheduler, packing
from labkit.serving.batching import profiles
from tests.published import Need

ROOT = Path(__file__).parents[2]


def table(name: str, latency_ms: dict[int, float]) -> serving.BatchProfile:
    """A profile through the paper's rows; batches between them are interpolated."""
    sizes = np.arange(1, max(latency_ms) + 1)
    values = np.interp(sizes, list(latency_ms), list(latency_ms.values())) / 1e3
    return serving.BatchProfile(name=name, latency_s=tuple(values.tolist()))


A = table("A", {1: 40, 4: 50, 8: 75, 16: 100})
B = table("B", {1: 30, 4: 50, 8: 90, 16: 125})
C = table("C", {1: 40, 4: 60, 8: 95, 16: 125})


def session(model: str, profile: Any, rate: float, slo_s: float) -> serving.Session:
    return serving.Session(model=model, profile=profile, rate_per_s=rate, slo_s=slo_s)


def random_sessions(seed: int, count: int) -> list[serving.Session]:
    draw = np.random.default_rng(seed)
    return [
        session(f"s{i}", (A, B, C)[draw.integers(3)], draw.uniform(5, 60), draw.uniform(0.2, 0.6))
        for i in range(count)
    ]


def test_the_example_of_section_4() -> None:
    """A with 64 requests a second in batches of 8 leaves room for 4 of B, and not for 4 of C."""
    packed = (
        nexus.pack([session("A", A, 64, 0.2), session("B", B, 32, 0.25), session("C", C, 32, 0.25)])
        .frame()
        .set_index("model")
    )
    assert packed.loc[["A", "B"], "gpu"].nunique() == 1
    assert packed.loc["C", "gpu"] != packed.loc["A", "gpu"]
    assert packed.loc[["A", "B"], "batch"].tolist() == [8, 4]
    assert packed.loc[["A", "B"], "latency_s"].tolist() == pytest.approx([0.075, 0.050])
    assert packed.loc[["A", "B"], "duty_s"].tolist() == pytest.approx([0.125, 0.125])
    assert packed.loc[["A", "B"], "worst_s"].tolist() == pytest.approx([0.200, 0.175])


def test_whole_gpus_run_the_best_batch_of_half_the_objective() -> None:
    """§4.1: within 200 ms A's batch is at most 16, and a GPU serves 160 requests a second."""
    assert session("A", A, 1, 0.2).best == (16, pytest.approx(160))
    assert session("B", B, 1, 0.25).best == (16, pytest.approx(128))
    packed = nexus.pack([session("A", A, 480, 0.2)])
    assert packed.num_gpus == 3 == nexus.fractional_bound(packed.sessions)


@pytest.fixture(scope="module")
def published(published_data: Need) -> dict[str, serving.BatchProfile]:
    published_data(nexus.DATASET)
    return nexus.published_profiles()


def cautious(profile: serving.BatchProfile) -> serving.BatchProfile:
    """Latency plus one deviation, as Nexus's program plans with."""
    latency = np.array(profile.latency_s) + np.array(profile.std_s)
    return serving.BatchProfile(name=profile.name, latency_s=tuple(latency.tolist()))


PROCESSING_S = {"vgg16": 6.739e-3, "vgg_face": 4.845e-3}
"""Pre- and postprocessing, each plus a deviation, at the end of the published files."""


def test_the_answers_of_the_authors_own_tests(published: Any) -> None:
    """tests/cpp/scheduler/backend_delegate_test.cpp: VGG-16 at 500 ms fills a GPU above 298
    requests a second; beside 150 of them there is room for up to 125 of VGG-Face at 300 ms."""
    plans = {name: cautious(published[name]) for name in PROCESSING_S}

    def gpus(**rates: float) -> int:
        slo = {"vgg16": 0.5, "vgg_face": 0.3}
        return nexus.pack(
            [session(n, plans[n], rate, slo[n] - PROCESSING_S[n]) for n, rate in rates.items()]
        ).num_gpus

    assert session("m", plans["vgg16"], 1, 0.5 - PROCESSING_S["vgg16"]).best[1] == pytest.approx(
        298, abs=1
    )
    assert [gpus(vgg16=rate) for rate in (50, 100, 150, 200, 250)] == [1] * 5
    assert [gpus(vgg16=rate) for rate in (300, 400, 500)] == [2] * 3
    assert [gpus(vgg16=150, vgg_face=rate) for rate in (50, 100, 125)] == [1] * 3
    assert [gpus(vgg16=150, vgg_face=rate) for rate in (150, 200, 250)] == [2] * 3


def test_the_published_table_is_no_line(published: Any) -> None:
    vgg = published["vgg16"]
    assert [round(1e3 * s, 1) for s in vgg.latency_s[:2]] == [6.3, 14.5]
    assert vgg.throughput_per_s[1] < vgg.throughput_per_s[0]
    assert vgg.best(0.0145)[0] == 1  # two images at once would be slower
    assert vgg.largest(0.0146) == 2


@pytest.mark.parametrize("seed", range(12))
def test_every_plan_keeps_its_promise(seed: int) -> None:
    plan = nexus.pack(random_sessions(seed, 8))
    slo = {s.model: s.slo_s for s in plan.sessions}
    frame = plan.frame()
    assert (frame["worst_s"] <= frame["model"].map(slo) * (1 + 1e-6)).all()
    assert (frame["batch"] / frame["duty_s"] >= frame["rate_per_s"] * (1 - 1e-6)).all()
    for _, gpu in frame.groupby("gpu"):
        assert gpu["latency_s"].sum() <= gpu["duty_s"].iloc[0] * (1 + 1e-6)
    rates = frame.groupby("model")["rate_per_s"].sum()
    assert [rates[s.model] for s in plan.sessions] == pytest.approx(
        [s.rate_per_s for s in plan.sessions]
    )
    assert nexus.fractional_bound(plan.sessions) <= plan.num_gpus
    assert nexus.fractional_bound(plan.sessions, waits=False) <= plan.num_gpus


@pytest.mark.parametrize("seed", range(4))
def test_even_arrivals_at_the_planned_rate_are_all_in_time(seed: int) -> None:
    plan = nexus.pack(random_sessions(seed, 6))
    requests = serving.merge_streams(
        [
            serving.generate(
                s.rate_per_s, int(200 * s.rate_per_s), cv=0, slo_s=s.slo_s, model=s.model, rng=1
            )
            for s in plan.sessions
        ]
    )
    servers = serving.BatchServers(servers=plan.servers)
    assert serving.simulate(requests, servers.profiles, servers).met.mean() == 1.0


@cache
def _sooner(server: serving.BatchServer, duty_s: float) -> serving.BatchServer:
    return replace(server, duty_s=min(duty_s, server.duty_s))


def _fewest(sessions: list[serving.Session]) -> int:
    """Bins of the best partition of small loads, over all of them, at every duty cycle."""
    parts = [packing._alone(s, s.rate_per_s) for s in sessions]
    cycles = sorted({p.duty_s * scale for p in parts for scale in np.linspace(0.4, 1, 7)})
    best = len(sessions)
    for labels in product(range(len(sessions)), repeat=len(sessions)):
        bins = [
            [p for p, label in zip(parts, labels, strict=True) if label == b] for b in set(labels)
        ]
        if len(bins) < best and all(
            any(packing._merged([_sooner(p, d) for p in bin_]) for d in cycles) for bin_ in bins
        ):
            best = len(bins)
    return best


@pytest.mark.parametrize("seed", range(4))
def test_at_most_one_gpu_more_than_the_best_of_all_partitions(seed: int) -> None:
    sessions = [s for s in random_sessions(seed, 5) if s.rate_per_s < s.best[1]]
    assert _fewest(sessions) <= nexus.pack(sessions).num_gpus <= _fewest(sessions) + 1
    assert nexus.pack(sessions).num_gpus <= nexus.pack(sessions, merge=False).num_gpus


def test_fill_takes_all_gpus_and_no_more() -> None:
    sessions = random_sessions(5, 8)
    plan = nexus.fullest_packing(sessions, 10)
    scale = plan.sessions[0].rate_per_s / sessions[0].rate_per_s
    more = [session(s.model, s.profile, s.rate_per_s * scale * 1.02, s.slo_s) for s in sessions]
    assert plan.num_gpus == 10 < nexus.pack(more).num_gpus
    with pytest.raises(BadValue, match="num_gpus is 1, and the sessions need 9 even"):
        nexus.fullest_packing(random_sessions(5, 60), 1)


def test_a_shared_prefix_is_one_model_with_a_suffix_each() -> None:
    copies = [session(f"c{i}", A, 4.0, 0.3) for i in range(5)]
    (merged,) = nexus.share_prefix(copies, suffix_s=0.001)
    assert merged.rate_per_s == 20
    extra = (np.array(merged.profile.latency_s) - np.array(A.latency_s)) * 1e3
    assert extra[:6] == pytest.approx([1, 2, 3, 4, 5, 5])
    assert nexus.fractional_bound([merged]) < nexus.pack(copies).num_gpus
    with pytest.raises(BadValue, match="one slo_s"):
        nexus.share_prefix([*copies, session("late", A, 1.0, 0.4)])


@pytest.mark.parametrize("scheduler", list(Scheduler))
@pytest.mark.parametrize("prefixes", [True, False])
def test_what_a_plan_sustains_stays_below_the_bound(scheduler: Any, prefixes: bool) -> None:
    asked = nexus.specialised_copies([A, B], 12, slo_s=0.4)
    plan = Method(scheduler=scheduler, prefixes=prefixes).plan(asked, 4)
    rate = nexus.sustained_rate(plan, count=4000)
    assert plan.num_gpus == 4
    assert 0 < rate <= 4 / nexus.fractional_bound(asked, waits=False)
    calm = nexus.run_plan(plan, rate * 0.5, count=4000)
    crowded = nexus.run_plan(plan, rate * 2, count=4000)
    assert calm.met.mean() >= 0.99 > crowded.met.mean()
    assert nexus.sustained_rate(plan, count=4000, overhead=1e6) == 0


def test_common_prefixes_raise_the_rate() -> None:
    asked = nexus.specialised_copies([A, B, C], 30, slo_s=0.4)
    ways = {
        "by load": Method(scheduler=Scheduler.BY_LOAD, prefixes=False),
        "packing": Method(prefixes=False),
        "prefixes": Method(),
    }
    plans = {name: method.plan(asked, 6) for name, method in ways.items()}
    rates = {name: nexus.sustained_rate(plan, count=4000) for name, plan in plans.items()}
    assert rates["prefixes"] > 1.3 * max(rates["by load"], rates["packing"])


def test_batches_that_keep_their_size_never_share_more() -> None:
    """A merge of fixed sizes is one of squishy sizes: smaller batches are no slower."""
    for seed in range(6):
        gpus = [packing._alone(s, s.rate_per_s) for s in random_sessions(seed, 6)]
        for first, second in combinations(gpus, 2):
            if packing._merged((first, second), squishy=False):
                assert packing._merged((first, second))


def test_kinds_of_networks_have_no_common_prefix() -> None:
    for families, sessions in ((1, 1), (4, 4), (12, 12)):
        asked = nexus.specialised_copies([A, B], 12, slo_s=0.4, families=families)
        assert len(nexus.share_prefix(asked)) == sessions
    kinds = nexus.specialised_copies([A, B], 4, slo_s=0.4, families=4)
    assert [s.profile.latency_s for s in kinds] == [p.latency_s for p in (A, B, A, B)]


def test_lines_go_through_what_the_paper_prints() -> None:
    """§4.1's rows and Fig. 4's rates, from the files beside the claims."""
    folder = ROOT / "data/papers/nexus"
    rows: Any = pd.read_csv(folder / "example.csv", comment="#").itertuples()
    for row in rows:
        (read,) = nexus.example_sessions(pd.DataFrame([row]))
        assert read.profile.latency_s[row.small_batch - 1] == pytest.approx(row.small_ms / 1e3)
        assert read.profile.latency_s[row.large_batch - 1] == pytest.approx(row.large_ms / 1e3)
    rates = pd.read_csv(folder / "fig4.csv", comment="#")
    profiles_of = nexus.profiles_by_budget(rates)
    ends: Any = rates[rates["budget_ms"] != 50].itertuples()
    for row in ends:
        assert profiles_of[row.model].best(row.budget_ms / 1e3)[1] == pytest.approx(row.rate_per_s)
    with pytest.raises(BadValue, match="large must be a larger batch"):
        nexus.profile_through("x", (8, 75), (8, 75))


def test_late_and_in_time_are_all() -> None:
    plan = Method().plan(nexus.specialised_copies([A, B], 12, slo_s=0.4), 4)
    run = nexus.run_plan(plan, 500, count=2000)
    assert nexus.late_share(plan, 500, count=2000) == pytest.approx(1 - run.met.mean())


def test_figures_show_what_they_are_given() -> None:
    sessions = [session("A", A, 64, 0.2), session("B", B, 32, 0.25), session("C", C, 32, 0.25)]
    plans = {"by load": nexus.oblivious(sessions, 1), "Nexus": nexus.pack(sessions)}
    figure = nexus.figure_cycles(plans)
    texts = [note.text for note in figure.layout.annotations]
    assert any("late" in text for text in texts[:1])
    assert not any("late" in text for text in texts[1:])
    gains = pd.DataFrame({48: [1.0, 1.2], 96: [1.0, 1.5]}, index=["by load", "+ duty cycles"])
    bars = nexus.figure_gains(gains, pd.Series({48: 1.6, 96: 1.9}), paper=1.8, title="t").data
    assert [list(bar.y) for bar in bars[:2]] == [[1.0, 1.0], [1.2, 1.5]]
    queries = pd.DataFrame({"fan-out 1": [1.0, 4.0, 2.0]}, index=[10, 20, 30])
    stars = nexus.figure_splits(queries, title="t").data[1]
    assert list(stars.x) == [20]


def test_the_oblivious_baseline_splits_gpus_by_load() -> None:
    sessions = random_sessions(3, 7)
    plan = nexus.oblivious(sessions, 4)
    frame = plan.frame()
    best = {s.model: s.best[1] for s in sessions}
    load = frame["rate_per_s"] / frame["model"].map(best)
    assert plan.num_gpus == 4
    assert load.groupby(frame["gpu"]).sum().to_numpy() == pytest.approx(np.full(4, load.sum() / 4))
    rates = frame.groupby("model")["rate_per_s"].sum()
    assert [rates[s.model] for s in sessions] == pytest.approx([s.rate_per_s for s in sessions])


@pytest.mark.parametrize("fan_out", [0.1, 0.5, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("waits", [True, False])
def test_the_latency_split_is_the_best_of_all(fan_out: float, waits: bool) -> None:
    """A root, a child, and two children of that, against every split of the grid."""
    stages = [
        nexus.Stage(model="x", profile=A),
        nexus.Stage(model="y", profile=B, fan_out=fan_out, parent=0),
        nexus.Stage(model="z", profile=C, parent=1),
        nexus.Stage(model="w", profile=A, fan_out=0.5, parent=0),
    ]
    rates = (1, fan_out, fan_out, 0.5)
    step = 0.05
    steps = 10

    def gpus(budget: tuple[int, ...]) -> float:
        x, y, z, w = budget
        if max(x + y + z, x + w) > steps:
            return np.inf
        speeds = [
            s.profile.best(k * step / (2 if waits else 1) * (1 + 1e-9))[1]
            for s, k in zip(stages, budget, strict=True)
        ]
        return sum(r / v if v else np.inf for r, v in zip(rates, speeds, strict=True))

    best = min(map(gpus, product(range(1, steps + 1), repeat=4)))
    budget_s = nexus.split_latency(stages, slo_s=step * steps, step_s=step, waits=waits)
    assert gpus(tuple(round(b / step) for b in budget_s)) == pytest.approx(best)


def test_faults_are_named(tmp_path: Any) -> None:
    with pytest.raises(BadValue, match=r"Session\.slo_s of 'A' must be at least twice"):
        session("A", A, 1, 0.05)
    with pytest.raises(BadValue, match="different models"):
        nexus.pack([session("A", A, 1, 0.2)] * 2)
    with pytest.raises(BadValue, match="stage 1 must come after its parent"):
        nexus.split_latency([nexus.Stage(model="x", profile=A)] * 2, slo_s=1, step_s=0.1)
    with pytest.raises(BadValue, match="no split"):
        nexus.split_latency([nexus.Stage(model="x", profile=A)], slo_s=0.05, step_s=0.01)
    path = tmp_path / "a.txt"
    for text, fault in (
        ("", "no profile"),
        (profiles.HEADING, "no row follows"),
        (f"{profiles.HEADING}\n1,2,x,4", "no row of a profile"),
        (f"{profiles.HEADING}\n2,2,3,4", "valid: batch 1"),
    ):
        path.write_text(text)
        with pytest.raises(BadFile, match=fault):
            serving.BatchProfile.read(path)
