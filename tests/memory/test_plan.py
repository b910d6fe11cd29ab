"""Plans, what fits, sweeps: against ZeRO's tables, other estimators, and each other."""

from __future__ import annotations

import csv
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import hardware, memory, quantities
from labkit.errors import UsageError
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.memory.plans.arithmetic import activation_bytes
from tests.published import need_peers

PAPER = Path(__file__).resolve().parents[2] / "data" / "papers" / "zero"
PAPER_GPU_BYTES = 32 * quantities.GB  # the paper's tables take a 32 GB V100 as 32 × 10⁹ bytes


def cells(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((PAPER / name).open(encoding="utf-8")))


@pytest.mark.parametrize("cell", cells("table1.csv"), ids=lambda c: "-".join(c.values()))
def test_table_1_cell_is_the_formula_rounded_or_truncated(cell: dict[str, str]) -> None:
    parallel = Parallel(dp=int(cell["dp"]), zero=int(cell["zero"]))
    ours = Plan(model=int(cell["model"]), parallel=parallel).states_bytes
    cut = quantities.cut(Fraction(ours) / quantities.GB, cell["printed_gb"])
    whole = int(cell["model"]) > 10**11 and "." not in cell["printed_gb"]
    assert cut in ({"exact", "rounded", "truncated"} if whole else {"exact", "rounded"})


def test_figure_1() -> None:
    sizes = [
        Plan(model=7_500_000_000, parallel=Parallel(dp=64, zero=zero)).states_bytes / 1e9
        for zero in range(4)
    ]
    assert [f"{size:.1f}" for size in sizes] == ["120.0", "31.4", "16.6", "1.9"]


def test_section_3_2_activations() -> None:
    """60 GB for GPT-2 at batch 32 (footnote)."""
    gpt2 = Model.preset("gpt2-1.5b")
    batch = Batch(seq=1024, micro_batch=32)
    assert activation_bytes(gpt2, batch) == 12 * 1600 * 32 * 1024 * 48 * 2


def test_checkpoints_are_partitioned_by_tp_only_when_asked() -> None:
    model = Model.preset("zero-100b")
    batch = Batch(seq=1024, micro_batch=32, recompute="full")
    whole = activation_bytes(model, batch, tp=16)
    shared = activation_bytes(model, replace(batch, partition_checkpoints=True), tp=16)
    checkpoints = 125 * 32 * 1024 * 8192 * 2
    assert whole - shared == pytest.approx(checkpoints * 15 / 16)


@given(
    st.integers(10**6, 10**12), st.integers(1, 2048), st.sampled_from([1, 2, 8]), st.integers(0, 3)
)
def test_terms_sum_and_shares_are_whole(size: int, dp: int, tp: int, zero: int) -> None:
    plan = Plan(model=size, parallel=Parallel(dp=dp, tp=tp, zero=zero))
    table = plan.frame()
    assert table["num_bytes"].sum() == pytest.approx(plan.peak_bytes)
    assert table["share"].sum() == pytest.approx(1)
    assert plan.states_bytes <= plan.peak_bytes


@given(st.integers(0, 3), st.integers(1, 1024), st.sampled_from([1, 4, 16]))
def test_the_largest_model_fits_and_one_more_parameter_does_not(
    zero: int, dp: int, tp: int
) -> None:
    found = memory.fit(
        Plan(model=1, parallel=Parallel(dp=dp, tp=tp, zero=zero)), vary="model", device="V100-32GB"
    )
    assert found.plan is not None
    assert found.value is not None
    assert found.plan.fits("V100-32GB")
    assert not replace(found.plan, model=found.value + 1).fits("V100-32GB")


def test_the_least_dp_is_the_least() -> None:
    plan = Plan(model=10**12, parallel=Parallel(zero=3))
    found = memory.fit(plan, vary="dp", device=PAPER_GPU_BYTES)
    assert found.value == 500  # 16 TB over 32 GB


def test_batch_and_sequence_are_the_largest_that_fit() -> None:
    plan = Plan(model=Model.preset("gpt2-1.5b"), batch=Batch(seq=1024, formula="zero-paper"))
    for vary in ("micro_batch", "seq"):
        found = memory.fit(plan, vary=vary, device="A100-80GB", headroom=0.8)
        assert found.plan is not None
        assert found.plan.batch is not None
        assert found.plan.peak_bytes <= 0.8 * 80 * 2**30
        more = replace(found.plan.batch, **{vary: getattr(found.plan.batch, vary) + 1})
        assert replace(found.plan, batch=more).peak_bytes > 0.8 * 80 * 2**30


def test_nothing_fits_is_an_answer_not_an_error() -> None:
    plan = Plan(model=10**12, parallel=Parallel(zero=2))
    found = memory.fit(plan, vary="dp", device="V100-32GB")
    assert found.value is found.plan is None
    table = memory.sweep(plan, dp=[1, 64], zero=[0, 3], device="V100-32GB")
    assert not table["fits"].any()


def test_a_sweep_is_every_combination_and_agrees_with_the_plans() -> None:
    plan = Plan(model=10**9, batch=None)
    table = memory.sweep(plan, dp=[1, 8], zero=[0, 1, 2, 3], model=[10**9, 10**10])
    assert len(table) == 16
    row = table.query("dp == 8 and zero == 3 and model == 10000000000").iloc[0]
    same = Plan(model=10**10, parallel=Parallel(dp=8, zero=3))
    assert row["peak_bytes"] == same.peak_bytes
    assert row["peak_moment"] == same.peak_moment
    assert memory.sweep(plan, pp=[1, 2])["problem"].str.contains("pp must be 1").tolist() == [0, 1]
    assert memory.sweep(plan, layers=[1])["problem"].tolist() == [
        "varying layers needs a plan with a Model"
    ]


def test_sweeps_reach_into_the_batch() -> None:
    plan = Plan(model=Model.preset("gpt2-124m"), batch=Batch(seq=512, formula="zero-paper"))
    table = memory.sweep(plan, micro_batch=[1, 2], recompute=["none", "full"])
    none = table.query("recompute == 'none'")["activations_bytes"].tolist()
    assert none[1] == 2 * none[0]
    assert (table.query("recompute == 'full'")["activations_bytes"].values < none).all()


def test_several_plans_are_swept_and_compared_alike() -> None:
    plans = {f"stage {z}": Plan(model=10**9, parallel=Parallel(dp=8, zero=z)) for z in (2, 3)}
    table = memory.sweep(plans, dp=[8, 16])
    assert table["plan"].tolist() == ["stage 2"] * 2 + ["stage 3"] * 2
    totals = memory.compare(plans).groupby("plan", sort=False)["num_bytes"].sum()
    assert totals.tolist() == table.query("dp == 8")["peak_bytes"].tolist()


def test_a_sweep_times_what_it_is_given_links_for() -> None:
    links = (hardware.link("ib-edr"), hardware.link("nvlink-v100"))
    plan = Plan(model=10**9, parallel=Parallel(dp=8, zero=3))
    near, far = memory.sweep(plan, dp=[8, 64], links=links)["communication_s"]
    assert near == pytest.approx(3 * (7 * 2e-6 + 2e9 * 7 / 8 / 150e9))
    assert far == pytest.approx(3 * (63 * 5e-6 + 2e9 * 63 / 64 / 12.5e9))


def test_second_copies_and_groups_cost_what_they_say() -> None:
    """hpZ adds 2Ψ/p; MiCS keeps 16Ψ/p."""
    size = 10**10
    base = Parallel(dp=64, zero=3)
    plain = Plan(model=size, parallel=base).peak_bytes
    second = Plan(model=size, parallel=replace(base, secondary_group=8)).peak_bytes
    grouped = Plan(model=size, parallel=replace(base, partition_group=8)).peak_bytes
    assert second - plain == 2 * size / 8
    assert grouped == 16 * size / 8


def test_what_is_sent_may_be_smaller_than_what_is_held() -> None:
    """ZeRO++ by recipe: int8 weights, int4 gradients, a second shard in each node: 3M to 0.75M."""
    size = 10**9
    dp = 10**6
    quantised = Recipe.preset("quantised")
    second = Parallel(dp=dp, zero=3, secondary_group=8)
    better = Plan(model=size, parallel=second, recipe=quantised).traffic(ranks_per_node=8)
    plain = Plan(model=size, parallel=Parallel(dp=dp, zero=3)).traffic(ranks_per_node=8)
    between = [table["node_bytes"].sum() / (2 * size) for table in (plain, better)]
    assert between == pytest.approx([3, 0.75], rel=1e-5)
    two = Plan(model=size, parallel=Parallel(dp=2), recipe=Recipe.preset("two-gradients"))
    assert two.traffic()["sent_bytes"].sum() == pytest.approx(2 * size)


def test_every_term_explains_itself() -> None:
    plan = Plan(
        model=Model.preset("gpt2-1.5b"),
        parallel=Parallel(dp=8, zero=3, secondary_group=4),
        batch=Batch(seq=1024, formula="zero-paper"),
    )
    for term in plan.terms():
        text = plan.explain(term.component)
        assert term.formula in text
        assert "1,557,611,200" in text
    with pytest.raises(UsageError, match="activations"):
        plan.explain("feelings")
    assert len(plan.assumptions) == 5


LLAMA = Model.preset("llama-2-7b")
GPT = Model.preset("gpt2-124m")
DETAILED = {
    "one rank": Plan(model=GPT, recipe=Recipe.fp32_adam(), batch=Batch(seq=512)),
    "stage 3": Plan(model=LLAMA, parallel=Parallel(dp=8, zero=3), batch=Batch(seq=512)),
    "hpZ": Plan(
        model=LLAMA, parallel=Parallel(dp=16, zero=3, secondary_group=8), batch=Batch(seq=512)
    ),
    "autocast": Plan(
        model=GPT, recipe=Recipe.preset("bf16-autocast", step="fused"), batch=Batch(seq=512)
    ),
    "cut": Plan(
        model=LLAMA,
        parallel=Parallel(dp=2, tp=4, sp=True, pp=4, zero=1),
        batch=Batch(seq=512, recompute="full"),
    ),
    "eager, dropout": Plan(
        model=GPT,
        parallel=Parallel(dp=2, zero=2),
        batch=Batch(seq=512, attention="eager", dropout_mask_bytes=1),
    ),
    "experts": Plan(
        model=Model.preset("mixtral-8x7b"),
        parallel=Parallel(dp=8, ep=8, zero=1),
        batch=Batch(seq=512),
    ),
    "offloaded": Plan(
        model=LLAMA,
        parallel=Parallel(dp=8, zero=3),
        recipe=Recipe.bf16_mixed(
            offload_optimizer="cpu", offload_gradients="cpu", offload_parameters="nvme"
        ),
        batch=Batch(seq=512),
    ),
}


@pytest.mark.parametrize("name", DETAILED)
def test_every_component_of_the_table_explains_itself(name: str) -> None:
    """Formula, number, source and the letters' values, for each row and each term below it."""
    plan = DETAILED[name]
    assert isinstance(plan.model, Model)
    for component in plan.frame()["component"]:
        *lines, letters = plan.explain(component).splitlines()
        terms = [line for line in lines if not line.endswith(" in all")]
        assert terms
        for line in terms:
            assert " = " in line
            assert line.endswith(")")
        assert letters.startswith("with b = ")
        assert f"h = {plan.model.hidden:,}" in letters
    for term in plan.terms():
        text = plan.explain(term.component)
        assert term.component in text
        assert quantities.format_bytes(term.num_bytes) in text
        assert term.source
        assert term.source in text


@pytest.mark.parametrize("name", DETAILED)
def test_the_device_rows_are_the_peak_and_the_largest_moment(name: str) -> None:
    plan = DETAILED[name]
    table = plan.frame()
    moments = plan.moments()
    here = table[table["place"] == "device"]
    assert here["num_bytes"].sum() == plan.peak_bytes == moments["total"].max()
    assert here["share"].sum() == pytest.approx(1)
    assert plan.peak_moment == moments["total"].idxmax()
    parts = moments.drop(columns="total")
    assert (parts.sum(axis=1) == moments["total"]).all()
    largest = parts.loc[plan.peak_moment]
    assert largest[largest > 0].to_dict() == dict(
        zip(here["component"], here["num_bytes"], strict=True)
    )


def test_what_is_offloaded_is_in_the_table_by_place() -> None:
    """Nothing is lost: on the device or not, a rank's states take as many bytes."""
    away = DETAILED["offloaded"]
    table = away.frame()
    places = table.groupby("place")["num_bytes"].sum()
    kept = replace(away, recipe=Recipe.bf16_mixed())
    shard = sum(-(-t.shape[0] // 8) * (t.numel // t.shape[0]) for t in LLAMA.tensors())
    counters = 4 * len(LLAMA.tensors())  # an fp32 step a tensor, on the CPU either way
    assert places["nvme"] == 2 * shard
    assert places["cpu"] == (2 + 12) * shard + counters
    assert table.query("place != 'device'")["share"].isna().all()
    assert kept.frame()["place"].eq("device").all()
    assert kept.elsewhere()["num_bytes"].sum() == counters
    assert away.peak_bytes < kept.peak_bytes


def test_assumptions_tell_what_is_derived_and_what_is_allowed_for() -> None:
    tells = {
        "cut": ("tensor-parallel", "pipeline device", "throughout a step"),
        "stage 3": ("rows of every tensor",),
        "eager, dropout": ("dropout masks",),
        "offloaded": ("rows of every tensor",),
        "one rank": ("checked against torch's MemTracker", "left out: CUDA's context"),
    }
    for name, parts in tells.items():
        text = " ".join(DETAILED[name].assumptions)
        assert all(part in text for part in parts), name
    plan = replace(DETAILED["one rank"], context_bytes=10**9, fragmentation=0.05)
    (told,) = set(plan.assumptions) - set(DETAILED["one rank"].assumptions)
    assert "allowances, no part of the peak: 5% of the device for fragmentation, 1 GB" in told
    assert plan.peak_bytes == DETAILED["one rank"].peak_bytes


def test_an_ideal_plan_divides_evenly_and_is_never_larger() -> None:
    """Ψ/N of a sharded state exactly, where real shards are whole rows."""
    for dp in (2, 3, 7, 64, 1000):
        real = Plan(model=GPT, parallel=Parallel(dp=dp, zero=3), batch=Batch(seq=64))
        ideal = replace(real, ideal=True)
        size = {
            one: dict(p.frame()[["component", "num_bytes"]].itertuples(index=False))["parameters"]
            for one, p in (("real", real), ("ideal", ideal))
        }
        assert size["ideal"] == pytest.approx(2 * GPT.num_params / dp)
        rows = sum(-(-t.shape[0] // dp) * (t.numel // t.shape[0]) for t in GPT.tensors())
        assert size["real"] == 2 * rows >= size["ideal"]
        assert ideal.peak_bytes <= real.peak_bytes


def test_sequences_end_where_learnt_positions_do() -> None:
    with pytest.raises(UsageError, match="seq must be <= 1024, the positions that gpt2-124m"):
        _ = Plan(model=GPT, batch=Batch(seq=1025)).peak_bytes
    table = memory.sweep(Plan(model=GPT, batch=Batch(seq=8)), seq=[1024, 1025])
    assert table["peak_bytes"].isna().tolist() == [False, True]
    assert "positions" in table["problem"][1]
    assert Plan(model=LLAMA, batch=Batch(seq=10**5)).peak_bytes > 0  # rotary: no end


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"model": 0}, "Plan.model must be a Model, .*or a whole number, at least 1; got 0"),
        ({"model": 10, "batch": Batch(seq=8)}, "no shapes"),
        ({"model": 10, "fragmentation": 1.0}, "fragmentation"),
    ],
)
def test_impossible_plans_are_refused(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Plan(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments", [{"dp": 0}, {"tp": -1}, {"zero": 5}, {"dp": 10, "zero": 3, "partition_group": 4}]
)
def test_impossible_layouts_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        Parallel(**arguments)


def test_unknown_axes_are_named() -> None:
    plan = Plan(model=10)
    with pytest.raises(UsageError, match="no axis 'colour'; there are 59, the nearest are"):
        memory.sweep(plan, colour=["red"])
    with pytest.raises(UsageError, match="no quantity to vary 'colour'"):
        memory.fit(plan, vary="colour", device=1)
    with pytest.raises(UsageError, match="needs a plan with a batch"):
        memory.fit(plan, vary="seq", device=100)


# ---------------------------------------------------------------- other estimators

PEER_MODELS = {
    "gpt2-1.5b": Model.preset("gpt2-1.5b"),
    "gpt3-175b": replace(Model.preset("gpt3-175b"), vocab=51200),
    "llama2-7b": Model.preset("llama-2-7b"),
}


def peers(tool: str, component: str, case: str) -> list[dict[str, str]]:
    wanted = {"tool": tool, "component": component, "case": case}
    found = [row for row in need_peers() if wanted.items() <= row.items()]
    assert found
    return found


@pytest.mark.parametrize("case", PEER_MODELS)
def test_deepspeed_counts_two_copies_of_gradients_and_one_live_tensor(case: str) -> None:
    """Stage 2 is 2Ψ + 18Ψ/N where the paper has 2Ψ + 14Ψ/N; stage 3 is 18Ψ/N and four bytes for
    each element of the largest tensor, where the paper has 16Ψ/N."""
    model = PEER_MODELS[case]
    largest = max(tensor.numel for tensor in model.tensors())
    for row in peers("deepspeed", "gpu_total", case):
        parallel = Parallel(dp=int(row["dp"]), zero=int(row["stage"]))
        recipe = {
            "2": Recipe.preset("two-gradients"),
            "3": Recipe.preset("fp32-gradients"),
        }[row["stage"]]
        states_bytes = Plan(model=model, parallel=parallel, recipe=recipe).states_bytes
        live = 4 * largest if row["stage"] == "3" else 0
        assert int(row["bytes"]) == pytest.approx(states_bytes + live, abs=2)


@pytest.mark.parametrize("case", PEER_MODELS)
def test_megatrons_distributed_optimizer_is_six_plus_twelve_over_dp(case: str) -> None:
    """Stage by stage the ratio to the paper's count is exact, whatever it calls the model's size
    (it leaves out position embeddings and most biases)."""
    recipe = Recipe.preset("fp32-gradients")
    psi = PEER_MODELS[case].num_params
    for row in peers("megatron-lm", "states", case):
        if row["tp"] == row["pp"] == "1":
            parallel = Parallel(dp=int(row["dp"]), zero=int(row["stage"]))
            ours = Plan(model=psi, parallel=parallel, recipe=recipe).states_bytes
            assert int(row["bytes"]) == pytest.approx(ours, rel=2e-3)
