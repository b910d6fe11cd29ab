"""A step from a profile of operators: what goes in comes out, and the limits of the model."""

import numpy as np
import pandas as pd
import pytest

from labkit.errors import BadValue
from labkit.hardware import Link
from labkit.memory import Batch, Model, Parallel, Plan
from labkit.memory.plans.throughput import Cluster, throughput
from labkit.papers import megatron

LAYERS = 24
SHAPE = Model(num_layers=LAYERS, hidden=2048, heads=32, vocab=51200, positions=2048)
BATCH = Batch(seq=2048, micro_batch=4)
PROFILED = Plan(model=SHAPE, batch=BATCH)
ALL_REDUCE_US = {1: 0.0, 2: 400.0, 8: 700.0}
FREE = Link(name="free", bytes_per_s=1e30, latency_s=0.0, source="test")
CLUSTER = Cluster(flops_per_s=1e14, ring=FREE, node=FREE, inside=FREE)
NAMES = [name for _, names in megatron.KINDS.values() for name in names.split()]


def profile(degree: int) -> pd.DataFrame:
    """Operators that divide evenly, but for those on every GPU, in Aceso's columns."""
    rows = []
    for kind, (_, names) in megatron.KINDS.items():
        for number, name in enumerate(names.split()):
            part = 1 if kind == "repeated" else degree
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


def plan(tp: int = 1, **batch: object) -> Plan:
    shape = Batch(**({"seq": 2048, "micro_batch": 4} | batch))
    return Plan(model=SHAPE, parallel=Parallel(tp=tp), batch=shape)


def test_all_reduces_are_taken_out(operators: pd.DataFrame) -> None:
    """What is left divides evenly, as it was made to, whatever the all-reduces were."""
    columns = ["forward_s", "backward_s"]
    for degree in (2, 8):
        shared = operators.loc[degree].query("kind != 'repeated'")
        alone = operators.loc[1].loc[shared.index]
        np.testing.assert_allclose(shared[columns] * degree, alone[columns])


def test_the_profiled_plan_takes_the_profiled_time(operators: pd.DataFrame) -> None:
    parts = megatron.step_parts(operators, PROFILED, plan(), CLUSTER)
    times = profile(1).set_index("op_name").iloc[:, :2].sum(axis=1)
    inner = times.index.str.startswith("enc-")
    assert parts.sum() == pytest.approx((LAYERS * times[inner].sum() + times[~inner].sum()) / 1e6)


def test_recomputing_adds_one_forward_pass_of_the_layers(operators: pd.DataFrame) -> None:
    kept, again = (
        megatron.step_parts(operators, PROFILED, plan(recompute=mode), CLUSTER).sum()
        for mode in ("none", "full")
    )
    forward = profile(1).set_index("op_name")["forward-compute"].filter(like="enc-").sum()
    assert again - kept == pytest.approx(LAYERS * forward / 1e6)


def test_only_what_is_repeated_keeps_a_group_from_dividing_the_step(
    operators: pd.DataFrame,
) -> None:
    alone = megatron.step_parts(operators, PROFILED, plan(), CLUSTER)
    group = megatron.step_parts(operators, PROFILED, plan(8), CLUSTER)
    assert group["repeated"] == pytest.approx(alone["repeated"])
    ideal = megatron.step_parts(megatron.evenly(operators), PROFILED, plan(8), CLUSTER)
    assert ideal.sum() == pytest.approx(alone.sum() / 8)
    cut = megatron.step_parts(operators, PROFILED, plan(8), CLUSTER, cut_stream=True)
    assert cut.sum() == pytest.approx(ideal.sum())


def test_collectives_are_the_throughput_models(operators: pd.DataFrame) -> None:
    slow = Link(name="slow", bytes_per_s=1e9, latency_s=1e-5, source="test")
    cluster = Cluster(flops_per_s=1e14, ring=slow, node=slow, inside=slow)
    parts = megatron.step_parts(operators, PROFILED, plan(8), cluster)
    assert parts["all-reduces"] == throughput(plan(8), cluster).tensor_s > 0


@pytest.mark.parametrize(
    ("change", "kind", "factor"),
    [
        ({"hidden": 4096, "heads": 32}, "matrix products", 4),
        ({"hidden": 4096, "heads": 32}, "attention's products", 2),
        ({"hidden": 4096, "heads": 32}, "softmax", 1),
        ({"hidden": 2048, "heads": 64}, "softmax", 2),
        ({"hidden": 4096, "heads": 32}, "repeated", 2),
    ],
)
def test_work_grows_as_the_shapes_say(change: dict, kind: str, factor: float) -> None:
    other = Model(num_layers=8, vocab=51200, positions=2048, **change)
    wider = Plan(model=other, batch=BATCH)
    assert megatron.growth(PROFILED, wider)[kind] == pytest.approx(factor)
    longer = Plan(model=other, batch=Batch(seq=1024, micro_batch=8))  # as many tokens
    halved = 2 if kind in ("softmax", "attention's products") else 1
    assert megatron.growth(PROFILED, longer)[kind] == pytest.approx(factor / halved)
    by_scores = megatron.growth(PROFILED, wider, by_scores=True)
    assert by_scores["attention's products"] == by_scores["softmax"]


def test_a_profile_scaled_to_itself_is_not_off(operators: pd.DataFrame) -> None:
    same = {degree: profile(degree) for degree in ALL_REDUCE_US}
    errors = megatron.scaling_errors(operators, PROFILED, same, PROFILED)
    np.testing.assert_allclose(errors["off_fraction"], 0, atol=1e-12)
    slower = {d: t.assign(**(2 * t.select_dtypes("number"))) for d, t in same.items()}
    errors = megatron.scaling_errors(operators, PROFILED, slower, PROFILED)
    np.testing.assert_allclose(errors["off_fraction"], -0.5)
    assert megatron.scaling_errors(operators, PROFILED, {}, PROFILED).empty


def test_a_profile_may_not_lack_an_operator_nor_a_plan_ask_for_another_degree(
    operators: pd.DataFrame,
) -> None:
    short = profile(1).query("op_name != 'enc-MLP-gelu'")
    with pytest.raises(BadValue, match="degree 1 must have the operator enc-MLP-gelu"):
        megatron.read_operators({1: short})
    with pytest.raises(BadValue, match=r"among the degrees profiled \(1, 2, 8\), got 4"):
        megatron.step_parts(operators, PROFILED, plan(4), CLUSTER)
    with pytest.raises(BadValue, match="must each have a Model and a Batch"):
        megatron.growth(PROFILED, Plan(model=10**9))
