"""Alpa: ways inside meshes beside trying all, prices of stages, plans, the artifact's table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from labkit import planner
from labkit.files import project_root
from labkit.papers import alpa
from labkit.papers.alpa.across import SUITES, Method
from tests.published import need

RATES = {"gpt": 45e12, "moe": 45e12, "wresnet": 8.3e12}
CLUSTER = alpa.Cluster()


def inside(kind: str = "moe", gpus: int = 8, *sizes: int, **options: object) -> alpa.Inside:
    model = alpa.model_on(kind, gpus)  # type: ignore[arg-type]
    mesh = CLUSTER.mesh(*(sizes or (2, 4)))
    return alpa.Inside(model=model, mesh=mesh, flops_per_s=RATES[kind], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "size"), [("gpt", 15.4), ("moe", 26.6), ("wresnet", 6.7)])
def test_models_have_the_parameters_that_the_artifact_prints(kind: str, size: float) -> None:
    model = alpa.model_on(kind, 32)  # type: ignore[arg-type]
    assert model.parameters / 1e9 == pytest.approx(size, rel=0.01)
    name, _, num_layers = SUITES[model.kind][32]
    assert (model.name, len(model.layers)) == (name, num_layers)


def test_operations_are_those_of_a_transformers_formula() -> None:
    """Narayanan 2021: a forward pass has 24 b s l h² (1 + s / 6 h + V / 12 l h) operations."""
    model = alpa.model_on("gpt", 8)
    hidden = 2560
    layers = 32
    more = 1 + 1024 / (6 * hidden) + 51200 / (12 * layers * hidden)
    forward = 24 * model.samples * 1024 * layers * hidden**2 * more
    assert model.forward_flops == pytest.approx(forward)


@pytest.mark.parametrize("kind", ["gpt", "moe", "wresnet"])
@pytest.mark.parametrize("price_s", [0.0, 1e-10])
def test_stages_cost_what_the_program_inside_finds(kind: str, price_s: float) -> None:
    mesh = inside(kind, price_s=price_s)
    problem = mesh.problem(first=1, end=3)
    stage_s = mesh.stages.sent_s[1, 3]
    least_s = planner.choose(problem).cost
    if price_s:  # weights are cut for it, which no stage sends less for
        assert stage_s >= least_s * (1 - 1e-9)
        assert mesh.stages.parameters[1, 3] <= inside(kind).stages.parameters[1, 3] * (1 + 1e-9)
        return
    assert stage_s == pytest.approx(least_s)
    assert planner.relax(problem) == pytest.approx(least_s)


def test_one_block_costs_the_best_of_all_its_plans() -> None:
    mesh = replace(inside("moe", 8, 4), rule="all")
    block = mesh.model.layers[0][1]
    small = replace(mesh.model, layers=((block,),))
    tried = planner.choose(replace(mesh, model=small).problem(), method="all")
    seconds, _ = mesh.block(block)
    assert seconds.min() == pytest.approx(tried.cost)


def test_two_sequences_on_four_gpus_are_cut_as_megatron_does() -> None:
    model = alpa.model_on("gpt", 4, num_microbatches=512)
    layer = replace(model, layers=(model.layers[0][:2],))
    mesh = alpa.Inside(model=layer, mesh=CLUSTER.mesh(4), flops_per_s=45e12)
    plan = planner.choose(mesh.problem()).plan
    ways = [way for node, way in plan.items() if "tensor" not in node]
    assert ways == ["columns", "columns", "inputs", "columns", "inputs"]


def test_what_is_sent_follows_by_hand() -> None:
    """Data parallelism sends gradients once an iteration: 2 · 7/8 of them in a ring of eight."""
    mesh = inside("gpt", 8, 8, rule="data")
    stages = mesh.stages
    model = mesh.model
    ring_s = 2 * 7 / 8 * 2 * model.parameters / CLUSTER.inside_bytes_per_s
    assert stages.sent_s[0, -1] == pytest.approx(ring_s / model.num_microbatches)
    assert stages.parameters[0, -1] == pytest.approx(model.parameters)
    rate = stages.compute_s[0, -1] * 8 * mesh.flops_per_s
    assert rate == pytest.approx(4 * model.forward_flops)


def test_divided_gradients_are_added_up_for_each_microbatch_and_take_less_room() -> None:
    whole = inside("moe", 8, 8, rule="experts")
    divided = replace(whole, divided_gradients=True)
    assert divided.stages.sent_s[0, -1] > whole.stages.sent_s[0, -1]
    rooms = [each.stages.fixed_bytes(each.model)[0, -1] for each in (divided, whole)]
    assert rooms[0] < rooms[1]


def test_more_samples_are_never_cut_than_there_are() -> None:
    mesh = inside("gpt", 2, 8, rule="data")  # eight samples
    assert np.isfinite(mesh.stages.sent_s[0, -1])
    few = replace(mesh, model=alpa.model_on("gpt", 2, num_microbatches=256))
    assert np.isinf(few.stages.sent_s[0, -1])


METHODS: tuple[Method, ...] = (
    "intra-operator alone",
    "equal layers",
    "equal meshes",
    "data parallelism",
)


@pytest.mark.parametrize("kind", ["gpt", "moe"])
def test_restrictions_are_never_faster(kind: str) -> None:
    rate = RATES[kind]
    usual = SUITES[kind][8][1]  # type: ignore[index]
    free = alpa.predict("no limit of memory", kind, 8, rate)  # type: ignore[arg-type]
    whole = alpa.predict("Alpa", kind, 8, rate)  # type: ignore[arg-type]
    assert free is not None
    assert whole is not None
    assert free.tera_flops >= whole.tera_flops * (1 - 1e-9)
    assert whole.tera_flops <= rate / 1e12
    for method in METHODS:
        found = alpa.predict(method, kind, 8, rate, num_microbatches=usual)  # type: ignore[arg-type]
        if found is not None and found.model.num_microbatches == usual:
            assert found.tera_flops <= whole.tera_flops * (1 + 1e-9)


def test_a_plan_keeps_memory_and_its_gap_is_none() -> None:
    found = alpa.predict("Alpa", "moe", 16, RATES["moe"])
    assert found is not None
    assert found.placement.frame()["memory_bytes"].max() <= CLUSTER.memory_bytes
    assert found.placement.gap == pytest.approx(0, abs=1e-6)
    assert found.placement.name == "4 on 8, 4 on 8"  # the artifact's plan
    assert alpa.predict("data parallelism", "moe", 16, RATES["moe"]) is None


def test_overlap_gains_and_waiting_costs() -> None:
    usual = alpa.predict("Alpa", "gpt", 16, RATES["gpt"])
    hidden = alpa.predict("Alpa", "gpt", 16, RATES["gpt"], alpa.Cluster(overlap=True))
    waits = alpa.predict("Alpa", "gpt", 16, RATES["gpt"], alpa.Cluster(resharding=True))
    assert usual is not None
    assert hidden is not None
    assert waits is not None
    assert hidden.tera_flops >= usual.tera_flops >= waits.tera_flops


def test_headline_measures_are_those_of_the_predictions() -> None:
    found = alpa.measures("Alpa", RATES)  # type: ignore[arg-type]
    ours = alpa.predict("Alpa", "moe", 16, RATES["moe"])
    theirs = alpa.predict("DeepSpeed", "moe", 16, RATES["moe"])
    assert ours is not None
    assert theirs is not None
    assert found["moe-2-nodes"] == pytest.approx(ours.tera_flops / theirs.tera_flops)
    assert found["moe-4-nodes"] is None  # DeepSpeed does not fit


def test_the_artifacts_table_is_read_whole() -> None:
    source = need("alpa-osdi22", [alpa.E2E])
    table = alpa.read_measured(source.path(alpa.E2E))
    assert len(table) == 84
    rows = table.set_index(["kind", "method", "gpus"])["tera_flops"]
    assert rows["moe", "Alpa", 16] / rows["moe", "DeepSpeed", 16] == pytest.approx(3.51, abs=0.01)
    assert np.isnan(rows["moe", "inter-operator alone", 32])
    standin = alpa.read_measured(project_root() / "data/profiles/standin_alpa_e2e.csv")
    assert set(standin["method"]) == set(table["method"])


def test_a_line_ends_where_no_plan_fits() -> None:
    lines = pd.DataFrame({"a": [3.0, 2.0, np.nan], "none": [np.nan] * 3}, index=[8, 16, 32])
    figure = alpa.figure_lines(lines, title="a", x="GPUs", y="TFLOP/s of a GPU")
    assert [(trace.name, list(trace.x), list(trace.y)) for trace in figure.data] == [
        ("a", [0, 1], [3.0, 2.0])
    ]
