"""A step from a profile of operators: what goes in comes out, and the limits of the model."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from labkit.errors import BadValue, UsageError
from labkit.files import project_root
from labkit.hardware import Link
from labkit.memory import Batch, Cluster, Model, Parallel, Plan
from labkit.memory.plans.throughput import throughput
from labkit.papers import megatron
from labkit.papers.megatron.profile import KINDS, TIMES, Kind, growth
from labkit.papers.megatron.steps import ELEMENTWISE, INNER, MESSAGES, Method, StepModel

ALL_REDUCE_US = {1: 0.0, 2: 400.0, 8: 700.0}
FREE = Link(name="free", bytes_per_s=1e30, latency_s=0.0, source="test")
SLOW = Link(name="slow", bytes_per_s=1e9, latency_s=1e-5, source="test")
PROFILED = megatron.PROFILED
LAYERS = PROFILED.model.num_layers


def joined_by(link: Link) -> Cluster:
    return Cluster(flops_per_s=1e14, ring=link, node=link, inside=link, ranks_per_node=16)


def profile(degree: int) -> pd.DataFrame:
    """Operators that divide evenly, but for those on every GPU, in Aceso's columns."""
    rows = []
    for number, (name, kind) in enumerate(KINDS.items()):
        part = 1 if kind is Kind.REPEATED else degree
        forward = 100.0 * (number + 1) / part
        rows.append([name, forward, 2 * forward, 1.0])
    table = pd.DataFrame(rows, columns=["op_name", "forward-compute", "backward-compute", "size"])
    table = table.set_index("op_name")
    table.loc["enc-MLP-GEMM-1", "forward-compute"] = 400.0 / degree  # of equal work
    table.loc["enc-MLP-GEMM-1", "backward-compute"] = 800.0 / degree
    table.loc["enc-MLP-GEMM-2", "forward-compute"] = 400.0 / degree
    table.loc["enc-MLP-GEMM-2", "backward-compute"] = 800.0 / degree
    for name in ("enc-MLP-GEMM-2", "enc-attention-dense"):
        table.loc[name, "forward-compute"] += ALL_REDUCE_US[degree]
    for name in ("enc-MLP-GEMM-1", "enc-attention-qkv"):
        table.loc[name, "backward-compute"] += ALL_REDUCE_US[degree]
    return table.reset_index()


@pytest.fixture(scope="module")
def operators() -> pd.DataFrame:
    return megatron.read_operators({degree: profile(degree) for degree in ALL_REDUCE_US})


@pytest.fixture
def model(operators: pd.DataFrame) -> StepModel:
    return StepModel(operators=operators, servers=joined_by(FREE))


def plan(tp: int = 1, **batch: object) -> Plan:
    shape = Batch(**({"seq": 2048, "micro_batch": 4} | batch))
    return Plan(model=PROFILED.model, parallel=Parallel(tp=tp), batch=shape)


# ---------------------------------------------------------------- the profile


def test_all_reduces_are_taken_out(operators: pd.DataFrame) -> None:
    """What is left divides evenly, as it was made to, whatever the all-reduces were."""
    for degree in (2, 8):
        shared = operators.loc[degree].query("kind != 'repeated on every GPU'")
        alone = operators.loc[1].loc[shared.index]
        np.testing.assert_allclose(shared[TIMES] * degree, alone[TIMES])


@pytest.mark.parametrize(
    ("change", "kind", "factor"),
    [
        ({"hidden": 4096, "heads": 32}, Kind.PRODUCTS, 4),
        ({"hidden": 4096, "heads": 32}, Kind.ATTENTION, 2),
        ({"hidden": 4096, "heads": 32}, Kind.SOFTMAX, 1),
        ({"hidden": 2048, "heads": 64}, Kind.SOFTMAX, 2),
        ({"hidden": 4096, "heads": 32}, Kind.REPEATED, 2),
    ],
)
def test_work_grows_as_the_shapes_say(change: dict, kind: Kind, factor: float) -> None:
    other = Model(num_layers=8, vocab=51200, positions=2048, **change)
    wider = Plan(model=other, batch=PROFILED.batch)
    assert growth(wider)[kind] == pytest.approx(factor)
    longer = Plan(model=other, batch=Batch(seq=1024, micro_batch=8))  # as many tokens
    halved = 2 if kind in (Kind.SOFTMAX, Kind.ATTENTION) else 1
    assert growth(longer)[kind] == pytest.approx(factor / halved)
    by_scores = growth(wider, by_scores=True)
    assert by_scores[Kind.ATTENTION] == by_scores[Kind.SOFTMAX]


def test_a_profile_scaled_to_itself_is_not_off(operators: pd.DataFrame) -> None:
    same = {degree: profile(degree) for degree in ALL_REDUCE_US}
    errors = megatron.scaling_errors(operators, same, PROFILED)
    np.testing.assert_allclose(errors["error_fraction"], 0, atol=1e-12)
    slower = {d: t.assign(**(2 * t.select_dtypes("number"))) for d, t in same.items()}
    errors = megatron.scaling_errors(operators, slower, PROFILED)
    np.testing.assert_allclose(errors["error_fraction"], -0.5)
    assert megatron.scaling_errors(operators, {}, PROFILED).empty


# ---------------------------------------------------------------- the step


def test_the_profiled_plan_takes_the_profiled_time(model: StepModel) -> None:
    times = profile(1).set_index("op_name").iloc[:, :2].sum(axis=1)
    in_layer = times.index.str.startswith("enc-")
    expected_s = (LAYERS * times[in_layer].sum() + times[~in_layer].sum()) / 1e6
    assert model.step_s(plan()) == pytest.approx(expected_s)


def test_recomputing_adds_one_forward_pass_of_the_layers(model: StepModel) -> None:
    kept_s = model.step_s(plan(recompute="none"))
    again_s = model.step_s(plan(recompute="full"))
    forward = profile(1).set_index("op_name")["forward-compute"].filter(like="enc-").sum()
    assert again_s - kept_s == pytest.approx(LAYERS * forward / 1e6)


def test_only_what_is_repeated_keeps_a_group_from_dividing_the_step(model: StepModel) -> None:
    alone = model.parts(plan())
    group = model.parts(plan(8))
    assert group[Kind.REPEATED] == pytest.approx(alone[Kind.REPEATED])
    even = replace(model, operators=megatron.divided_evenly(model.operators))
    assert even.step_s(plan(8)) == pytest.approx(alone.sum() / 8)
    between = replace(model, method=Method.TOKENS_BETWEEN)
    assert between.step_s(plan(8)) == pytest.approx(alone.sum() / 8)


def test_slowdown_fusing_and_launches_do_what_they_say(model: StepModel) -> None:
    parts = model.parts(plan(8))
    slowed = replace(model, slowdown=1.5).parts(plan(8))
    np.testing.assert_allclose(slowed, 1.5 * parts, atol=1e-15)
    fused = replace(model, fused=0.5).parts(plan(8))
    for kind in Kind:
        assert fused[kind] == pytest.approx(parts[kind] * (0.5 if kind in ELEMENTWISE else 1))
    launches = replace(model, launch_s=1e-3).parts(plan(8)) - parts
    assert launches["launches"] == launches.sum() == pytest.approx(LAYERS * 1e-3)


def test_the_rate_is_operations_over_the_step(model: StepModel) -> None:
    for degree in (1, 2, 8):
        flops = throughput(plan(degree), model.servers).flops
        assert model.rate_flops(plan(degree)) * model.step_s(plan(degree)) == pytest.approx(flops)


# ---------------------------------------------------------------- methods


def test_the_papers_cut_sends_what_the_memory_engine_counts(operators: pd.DataFrame) -> None:
    servers = joined_by(SLOW)
    paper = StepModel(operators=operators, servers=servers)
    for recompute in ("none", "full"):
        cut = plan(8, recompute=recompute)
        assert paper.parts(cut)["all-reduces"] == throughput(cut, servers).tensor_s > 0
        counted = [item for item in cut.collectives() if item.what == "layers"]
        layers_s = sum(servers.time_s(item) for item in counted)
        messages = MESSAGES[Method.COLUMNS_THEN_ROWS]
        assert paper._messages_s(cut, messages) == pytest.approx(layers_s)


def test_rows_first_sends_wider_messages_and_computes_the_inside_everywhere(
    operators: pd.DataFrame,
) -> None:
    servers = joined_by(replace(SLOW, latency_s=0.0))
    paper = StepModel(operators=operators, servers=servers)
    rival = replace(paper, method=Method.ROWS_FIRST)
    tokens = plan(8).batch.tokens * PROFILED.model.hidden * 2  # a width of 1, in bytes
    extra_s = (16 - 4) * LAYERS * tokens * 2 * (7 / 8) / 1e9
    more = rival.parts(plan(8)) - paper.parts(plan(8))
    assert more["all-reduces"] == pytest.approx(extra_s)
    for kind in Kind:
        alone = paper.parts(plan())[kind]
        whole = 7 / 8 * alone if kind in INNER else 0.0
        assert more[kind] == pytest.approx(whole, abs=1e-12)
    np.testing.assert_allclose(rival.parts(plan()), paper.parts(plan()))


def test_a_pipelines_bubble_is_gpipes(model: StepModel) -> None:
    """(p - 1) / m of the computing, in p stages with m microbatches of a sample each."""
    pipeline = replace(model, method=Method.PIPELINE)
    alone_s = model.step_s(plan())
    parts = pipeline.parts(plan(8))
    assert parts["bubble"] == pytest.approx(alone_s / 8 * (8 - 1) / 4)
    assert parts.sum() == pytest.approx(alone_s / 8 * (1 + 7 / 4))
    assert parts["all-reduces"] == 0


def test_tokens_between_send_what_the_memory_engine_counts(operators: pd.DataFrame) -> None:
    servers = joined_by(SLOW)
    between = StepModel(operators=operators, servers=servers, method=Method.TOKENS_BETWEEN)
    asked = plan(8)
    divided = replace(asked, parallel=Parallel(tp=8, sp=True))
    assert between.parts(asked)["all-reduces"] == throughput(divided, servers).tensor_s
    np.testing.assert_allclose(between.parts(asked), between.parts(divided))


# ---------------------------------------------------------------- the paper's own


def test_models_of_table_1_have_the_printed_sizes() -> None:
    printed = pd.read_csv(project_root() / "data/papers/megatron/scaling.csv")
    for row in printed.itertuples():
        asked = megatron.plan_of(row, replicas=64)
        assert round(asked.num_params / 1e9, 1) == row.billion
        assert (asked.parallel.tp, asked.parallel.dp) == (row.degree, 64)
    assert megatron.plan_of(row, heads=16, degree=2).model.heads == 16


def test_figures_hold_what_they_are_given() -> None:
    idea = megatron.figure_idea(3)
    assert {trace.name for trace in idea.data} == {"every rank", "rank 0", "rank 1", "rank 2"}
    lines = {"paper": ([1.0, 0.5], [0.9, 0.4]), "ours": ([1.0, 0.6], [0.8, 0.5])}
    figure = megatron.figure_scaling(lines, ([1, 2], [64, 128]), abstract=0.45)
    drawn = {trace.name: [*trace.y] for trace in figure.data}
    assert drawn["paper"] == [100, 50, None, 90, 40]
    assert drawn["paper, abstract"] == [45]
    table = pd.DataFrame({"pass": ["forward", "backward"], "width": [3, 1]})
    bars = megatron.figure_messages({"a": table, "b": table}).data
    assert [[*bar.base] for bar in bars] == [[0, 0], [3, 3]]


# ---------------------------------------------------------------- errors


def test_what_is_missing_is_named(model: StepModel) -> None:
    short = profile(1).query("op_name != 'enc-MLP-gelu'")
    with pytest.raises(BadValue, match="degree 1 must have the operator enc-MLP-gelu"):
        megatron.read_operators({1: short})
    with pytest.raises(BadValue, match=r"among the degrees profiled \(1, 2, 8\), got 4"):
        model.parts(plan(4))
    with pytest.raises(UsageError, match="need a Model and a Batch"):
        model.parts(Plan(model=10**9))
