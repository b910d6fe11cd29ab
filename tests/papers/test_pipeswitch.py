"""Layers that arrive while others run: brute force, the papers' recurrence, bounds."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from labkit.errors import BadValue
from labkit.papers import pipeswitch
from labkit.papers.pipeswitch import (
    Experiment,
    Layers,
    Link,
    Way,
    best_groups,
    bound_s,
    equal_groups,
    stream,
)
from labkit.planner.chain import open_chain


def made_up(seed: int, count: int) -> Layers:
    rng = np.random.default_rng(seed)
    return Layers(
        compute_s=rng.exponential(1e-3, count).tolist(),
        parameter_bytes=rng.exponential(8e6, count).tolist(),
    )


def link_of(seed: int) -> Link:
    rng = np.random.default_rng(100 + seed)
    return Link(
        bandwidth_bytes_per_s=1e10, call_s=rng.uniform(0, 4e-4), sync_s=rng.uniform(0, 4e-4)
    )


def groupings(count: int) -> list[tuple[int, ...]]:
    """All 2^(count - 1) of them."""
    cuts = itertools.product((False, True), repeat=count - 1)
    return [
        tuple(np.diff([0, *(i + 1 for i, is_cut in enumerate(c) if is_cut), count]).tolist())
        for c in cuts
    ]


@pytest.mark.parametrize("seed", range(12))
def test_the_best_groups_are_those_of_brute_force(seed: int) -> None:
    layers = made_up(seed, 3 + seed % 9)
    link = link_of(seed)
    ends = {groups: stream(layers, link, groups).end_s for groups in groupings(len(layers))}
    best = best_groups(layers, link)
    assert ends[best] == pytest.approx(min(ends.values()), rel=1e-12)
    fewest = min(len(g) for g, end in ends.items() if end <= ends[best] * (1 + 1e-12))
    assert len(best) == fewest


def test_a_simpy_pipeline_ends_at_the_same_times() -> None:
    """The recurrence beside a queue of processes: a link that copies, a GPU that runs."""
    simpy = pytest.importorskip("simpy")
    layers = made_up(5, 8)
    link = link_of(5)
    groups = (2, 1, 3, 2)
    starts = np.r_[0, np.cumsum(groups)[:-1]]
    sent = []
    ends = []
    env = simpy.Environment()
    arrived = simpy.Store(env)

    def copies() -> object:
        for size in np.add.reduceat(layers.parameter_bytes, starts):
            yield env.timeout(link.call_s + size / link.bandwidth_bytes_per_s)
            sent.append(env.now)
            yield arrived.put(True)

    def runs() -> object:
        for work in np.add.reduceat(layers.compute_s, starts):
            yield arrived.get()
            yield env.timeout(link.sync_s + work)
            ends.append(env.now)

    env.process(copies())
    env.process(runs())
    env.run()
    plan = stream(layers, link, groups)
    assert plan.arrival_s == pytest.approx(sent)
    assert plan.finish_s == pytest.approx(ends)


@pytest.mark.parametrize("seed", range(6))
def test_no_grouping_beats_the_bound_and_free_calls_reach_layer_by_layer(seed: int) -> None:
    layers = made_up(seed, 40)
    link = link_of(seed)
    end_s = stream(layers, link, best_groups(layers, link)).end_s
    assert bound_s(layers, link) <= end_s <= stream(layers, link, (len(layers),)).end_s
    free = Link(bandwidth_bytes_per_s=1e10)
    each = stream(layers, free, (1,) * len(layers)).end_s
    assert stream(layers, free, best_groups(layers, free)).end_s == pytest.approx(each)


def test_the_end_never_falls_with_a_slower_link() -> None:
    layers = made_up(3, 30)
    ends = []
    for bandwidth in (2e10, 1e10, 5e9, 1e9):
        link = Link(bandwidth_bytes_per_s=bandwidth, call_s=1e-4, sync_s=1e-4)
        ends.append(stream(layers, link, best_groups(layers, link)).end_s)
    assert ends == sorted(ends)
    assert ends[0] < ends[-1]


@pytest.mark.parametrize("seed", range(4))
def test_to_end_a_group_before_a_layer_without_weights_never_helps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    link = link_of(seed)
    weights = np.where(rng.random(9) < 0.5, 0.0, rng.exponential(8e6, 9))
    weights[0] = 1e6
    work = rng.exponential(1e-3, 9)
    whole = Layers(compute_s=work.tolist(), parameter_bytes=weights.tolist())
    merged = Layers.merged(work.tolist(), weights.tolist())
    assert merged.ready_s == pytest.approx(whole.ready_s)
    assert len(merged) == np.count_nonzero(weights)
    ends = [min(stream(x, link, g).end_s for g in groupings(len(x))) for x in (whole, merged)]
    assert ends[0] == pytest.approx(ends[1])


def test_a_link_is_fitted_back_from_its_own_runs() -> None:
    layers = made_up(7, 25)
    link = Link(bandwidth_bytes_per_s=8e9, call_s=6e-5, sync_s=9e-5)
    copies_s = layers.total_bytes / 8e9
    back = Link.fit(
        layers,
        whole_s=layers.ready_s + copies_s + 6e-5,
        layer_by_layer_s=layers.ready_s + copies_s + 25 * 6e-5,
        streamed_s=stream(layers, link, (1,) * 25).end_s,
    )
    assert back.bandwidth_bytes_per_s == pytest.approx(8e9, rel=1e-6)
    assert back.call_s == pytest.approx(6e-5)
    assert back.sync_s == pytest.approx(9e-5, rel=1e-6)


def test_wrong_input_is_refused_with_what_would_be_valid() -> None:
    layers = made_up(1, 4)
    with pytest.raises(BadValue, match="must hold 4 layers; got 3"):
        stream(layers, link_of(1), (1, 2))
    with pytest.raises(BadValue, match="whole_s must exceed"):
        Link.fit(layers, whole_s=1e-9, layer_by_layer_s=1.0, streamed_s=1.0)
    with pytest.raises(BadValue, match="some of each above 0"):
        Layers.merged([1.0, 2.0], [0.0, 0.0])
    with pytest.raises(BadValue, match="with weights"):
        Layers(compute_s=(1.0,), parameter_bytes=(0.0,))
    with pytest.raises(BadValue, match="2 values, compute_s 1"):
        Layers(compute_s=(1.0,), parameter_bytes=(1.0, 1.0))


def test_the_models_have_the_parameters_of_their_papers() -> None:
    """ResNet-152: 60.19 million (torchvision's count); BERT-base, cased: 108.3 million."""
    resnet = Layers.resnet152(open_chain("resnet50").chain, total_s=0.1)
    assert resnet.total_bytes / 4 == pytest.approx(60_192_808, rel=1e-4)
    assert len(resnet) == 155 + 155 + 1  # convolutions, their normalisations, the classifier
    bert = Layers.bert_base(total_s=0.1)
    assert bert.total_bytes / 4 == pytest.approx(108_310_272)
    assert (resnet.ready_s, bert.ready_s) == pytest.approx((0.1, 0.1))


def test_ways_are_ordered_as_their_copies_are() -> None:
    layers = made_up(2, 30)
    link = link_of(2)
    seconds = {way: way.seconds(layers, link) for way in Way}
    assert seconds[Way.BY_LAYER] > seconds[Way.ONE_COPY]
    assert seconds[Way.PIPESWITCH] <= min(seconds.values())
    groups = equal_groups(len(layers))
    assert seconds[Way.EQUAL_GROUPS] == stream(layers, link, groups).end_s
    copy_s = layers.total_bytes / link.bandwidth_bytes_per_s
    halved_s = Way.ONE_COPY.seconds(layers, link.shared(2))
    assert halved_s - seconds[Way.ONE_COPY] == pytest.approx(copy_s)


@pytest.mark.parametrize("count", [1, 2, 10, 99, 311])
def test_equal_groups_hold_all_layers(count: int) -> None:
    groups = equal_groups(count)
    assert sum(groups) == count
    assert len({*groups[:-1]}) <= 1
    assert 0 < groups[-1] <= groups[0]


def experiment(change_s: float = 0.0) -> Experiment:
    root = Path(__file__).resolve().parents[2] / "data" / "papers" / "pipeswitch"
    reruns = pipeswitch.read_reruns(root / "reruns.csv")
    resnet50 = open_chain("resnet50").chain
    return Experiment(resnet50=resnet50, reruns=reruns, change_s=change_s)


@pytest.mark.parametrize("change_s", [0.0, 0.003])
def test_the_link_gives_the_three_reruns_that_it_is_fitted_to(change_s: float) -> None:
    fitted = experiment(change_s)
    for way in (Way.STREAMED_BY_LAYER, Way.ONE_COPY, Way.BY_LAYER):
        rerun_s = fitted.rerun_s(way, "resnet152")
        assert fitted.latency_s(way, "resnet152") == pytest.approx(rerun_s, rel=1e-6)
    assert fitted.rerun_s(Way.EQUAL_GROUPS, "resnet152") is None
    assert fitted.overhead_s(Way.PIPESWITCH, "bert_base") > change_s
    assert fitted.bound_s("bert_base") <= fitted.latency_s(Way.PIPESWITCH, "bert_base")


def test_figures_show_what_the_model_says() -> None:
    shown = experiment()
    figure = pipeswitch.figure_ways(shown, Way, title="")
    rerun, ours = figure.data[-2:]
    assert len(ours.x) == 2 * len(Way)
    pipeswitch_ms = 1e3 * shown.latency_s(Way.PIPESWITCH, "resnet152")
    assert ours.y[0] == pytest.approx(pipeswitch_ms, rel=1e-5)
    assert rerun.y[1] is None, "nobody reran equal groups"
    toy = Layers(compute_s=(1.0, 1.0), parameter_bytes=(4.0, 2.0))
    stages = pipeswitch.figure_stream(toy, Link(bandwidth_bytes_per_s=2.0), {"x": (1, 1)}, title="")
    ends_ms = [bar.base[0] + bar.x[0] for bar in stages.data]
    assert ends_ms == [2000, 3000, 3000, 4000], "copied and run, layer by layer"
