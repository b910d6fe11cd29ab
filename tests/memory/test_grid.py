"""Sweeps as arrays, and what fits: every row is the plan's own estimate."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from labkit import hardware, memory
from labkit.errors import UsageError
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.memory.jobs import parallel, traffic
from labkit.memory.jobs.states import STAGE_NAMES
from labkit.memory.plans import estimate, grid
from labkit.memory.plans.job import Job, devices
from tests.memory.models import LITTLE_LLAMA as LLAMA

GPT = Model(name="small", num_layers=6, hidden=64, heads=4, vocab=101, positions=64)
PLAN = Plan(model=LLAMA, parallel=Parallel(zero=3), recipe=Recipe.bf16_mixed(), batch=Batch(seq=32))
ADAPTED: dict[str, list[Any]] = {
    "dp": [1, 2, 8],
    "zero": [0, 3],
    "recompute": ["none", "full", 2],
    "micro_batch": [1, 4],
}
"""One rank alone gathers nothing, so that it starts no unit's copy as the others do."""


def one(plan: Plan, row: Any) -> Plan:
    """The plan of a sweep's row."""
    assert plan.batch is not None
    assert isinstance(plan.model, Model)
    given = row._asdict()
    parallel = {n: given[n] for n in ("dp", "zero", "tp", "pp", "sp", "ep") if n in given}
    batch = {n: given[n] for n in ("seq", "micro_batch", "recompute", "loss") if n in given}
    layers = given.get("layers", plan.model.num_layers)
    return replace(
        plan,
        model=plan.model.resized(num_layers=layers),
        parallel=replace(plan.parallel, **parallel),
        batch=replace(plan.batch, **batch),
    )


@pytest.mark.parametrize(
    ("plan", "axes"),
    [
        (PLAN, {"dp": [1, 2, 64], "zero": [0, 1, 2, 3], "seq": [8, 100], "micro_batch": [1, 3]}),
        (
            replace(PLAN, model=GPT),
            {"layers": [1, 2, 9], "dp": [1, 7], "recompute": ["none", "full"]},
        ),
        (PLAN, {"pp": [1, 2, 4], "tp": [1, 2], "sp": [False, True], "seq": [16, 64], "dp": [1, 4]}),
        (PLAN, {"recompute": ["selective", 2], "loss": ["fused", "chunked"], "layers": [3, 8]}),
        (replace(PLAN, ideal=True), {"dp": [1, 3, 5], "zero": [1, 3]}),
        *((replace(PLAN, recipe=Recipe.preset(name)), ADAPTED) for name in ("lora", "qlora")),
    ],
)
def test_every_row_is_the_plans_own_estimate(plan: Plan, axes: dict[str, list[Any]]) -> None:
    table = memory.sweep(plan, **axes)
    assert table.columns[: len(axes)].tolist() == list(axes)
    size = 1
    for values in axes.values():
        size *= len(values)
    assert len(table) == size
    components = [name for name in table if name.endswith("_bytes") and name != "peak_bytes"]
    for row in table.itertuples():
        here = one(plan, row)
        assert row.peak_bytes == pytest.approx(here.peak_bytes, abs=1)
        assert row.peak_moment == here.peak_moment
        told = dict(here.frame()[["component", "num_bytes"]].itertuples(index=False))
        found = {n.removesuffix("_bytes").replace("_", " "): getattr(row, n) for n in components}
        assert {n: v for n, v in found.items() if v} == pytest.approx(told, abs=1)


def test_what_cannot_be_is_a_row_with_its_reason() -> None:
    table = memory.sweep(PLAN, tp=[1, 3], pp=[1, 3], device="H100-80GB")
    assert len(table) == 4
    bad = table[table["problem"] != ""]
    assert len(bad) == 3
    assert bad["peak_bytes"].isna().all()
    assert not bad["fits"].any()
    assert any("heads (8) must divide by tp (3)" in text for text in bad["problem"])
    odd = memory.sweep(replace(PLAN, parallel=Parallel(tp=2, sp=True)), seq=[31, 32])
    assert odd["peak_bytes"].isna().tolist() == [True, False]
    grouped = memory.sweep(
        replace(PLAN, parallel=Parallel(dp=4, zero=3, partition_group=4)), dp=[4, 6]
    )
    assert grouped["peak_bytes"].isna().tolist() == [False, True]


def test_one_rank_keeps_its_own_rules_beside_ranks_that_share() -> None:
    """What is gathered may be said of ranks that gather: of each dp as of a plan of its own."""
    table = memory.sweep(replace(PLAN, recipe=Recipe.preset("qlora-fsdp")), dp=[1, 2])
    assert table["peak_bytes"].isna().tolist() == [True, False]
    assert "compute must be None" in table.loc[0, "problem"]


def test_not_fitting_is_a_column() -> None:
    table = memory.sweep(PLAN, dp=[1, 8], device=10)
    assert not table["fits"].any()
    usable = PLAN.usable_bytes("H100-80GB", headroom=0.5)
    some = memory.sweep(PLAN, micro_batch=[1, 10**6], device="H100-80GB", headroom=0.5)
    assert (some["fits"] == (some["peak_bytes"] <= usable)).all()
    assert some["fits"].tolist() == [True, False]


def test_several_plans_are_swept_alike() -> None:
    plans = {"stage 0": replace(PLAN, parallel=Parallel()), "stage 3": PLAN}
    table = memory.sweep(plans, dp=[1, 8])
    assert table["plan"].tolist() == ["stage 0"] * 2 + ["stage 3"] * 2
    mixed = memory.sweep(PLAN, recipe=[Recipe.bf16_mixed(), Recipe.fp32_adam()])
    assert mixed["recipe"].tolist() == ["bf16 mixed-precision Adam", "fp32 Adam"]


@pytest.mark.parametrize("vary", ["micro_batch", "seq", "layers"])
def test_the_largest_that_fits(vary: str) -> None:
    room = 4_000_000
    found = memory.fit(PLAN, vary=vary, device=room)
    assert found.plan is not None
    assert found.value is not None
    assert found.plan.peak_bytes <= room
    if vary == "layers":
        more = replace(PLAN, model=LLAMA.resized(num_layers=found.value + 1))
    else:
        assert PLAN.batch is not None
        more = replace(PLAN, batch=replace(PLAN.batch, **{vary: found.value + 1}))
    assert more.peak_bytes > room
    assert memory.fit(PLAN, vary=vary, device=1000).value is None


def test_what_fits_keeps_to_the_rules() -> None:
    """Sequences in whole pieces, positions that were learnt, layers that stages share."""
    cut = replace(PLAN, parallel=Parallel(tp=4, sp=True))
    value = memory.fit(cut, vary="seq", device=4_000_000).value
    assert value is not None
    assert value % 4 == 0
    assert memory.fit(replace(PLAN, model=GPT), vary="seq", device="H100-80GB").value == 64
    staged = replace(PLAN, parallel=Parallel(pp=4))
    layers = memory.fit(staged, vary="layers", device=4_000_000).value
    assert layers is not None
    assert layers % 4 == 0


def test_the_least_that_fits() -> None:
    peaks = {dp: replace(PLAN, parallel=Parallel(dp=dp, zero=3)).peak_bytes for dp in range(1, 40)}
    room = int(peaks[24])
    least = min(dp for dp, peak in peaks.items() if peak <= room)
    assert memory.fit(PLAN, vary="dp", device=room).value == least
    spread = replace(PLAN, parallel=Parallel(dp=16))
    stages = memory.sweep(spread, zero=[0, 1, 2, 3])["peak_bytes"].tolist()
    assert memory.fit(spread, vary="zero", device=int(stages[1])).value == stages.index(
        next(peak for peak in stages if peak <= int(stages[1]))
    )
    assert memory.fit(spread, vary="zero", device=1000).value is None
    assert memory.fit(PLAN, vary="tp", device=10**9).value == 1


def test_wrong_requests_name_what_is_valid() -> None:
    with pytest.raises(UsageError, match="no axis 'zeros'; did you mean 'zero'"):
        memory.sweep(PLAN, zeros=[1])
    with pytest.raises(UsageError, match="no quantity to vary 'batch'"):
        memory.fit(PLAN, vary="batch", device=10)
    with pytest.raises(UsageError, match="dp must be whole numbers >= 1"):
        memory.sweep(PLAN, dp=[0, 1])
    with pytest.raises(UsageError, match=r"heads .* must divide by tp"):
        memory.fit(replace(PLAN, parallel=Parallel(tp=3)), vary="dp", device=10)


def test_the_figure_shows_every_bar_and_what_fits() -> None:
    """Bars add up to the table's bytes; what fits is solid; a dot is the least dp."""
    from labkit.memory import figures
    from labkit.memory.plans.search import what_fits

    models = [GPT, LLAMA]
    room = 1_000_000
    plan = replace(PLAN, parallel=Parallel(dp=4))
    bars, least = what_fits(plan, models=models, device=room)
    assert len(least) == 8
    for row in least.itertuples():
        model = {one.name: one for one in models}[row.model]
        stage = {name: number for number, name in STAGE_NAMES.items()}[row.plan]
        here = replace(plan, model=model, parallel=Parallel(dp=4, zero=stage))
        expected = memory.fit(here, vary="dp", device=room).value
        assert (None if row.dp != row.dp else row.dp) == expected
    figure = figures.figure_fits(bars, least, capacity_gb=room / 1e9)
    drawn = [trace for trace in figure.data if trace.type == "bar"]
    told = sum(sum(trace.x) for trace in drawn)
    assert told == pytest.approx(bars["size_gb"].sum(), rel=1e-5)
    sums = bars.groupby(["model", "plan"], sort=False)["size_gb"].sum()
    assert sums.max() > 3 * room / 1e9  # some bar leaves the panel
    assert sums.min() <= room / 1e9 < sums.median()  # some fit, some do not
    for trace in drawn:
        for model, stage, solid in zip(*trace.y, trace.marker.opacity, strict=True):
            assert (solid == 1) == (sums[model, stage] <= room / 1e9)
    scatters = [trace for trace in figure.data if trace.type == "scatter"]
    dots = next(trace for trace in scatters if trace.mode == "markers+text")
    assert list(dots.x) == least["dp"].dropna().tolist()


def test_moments_are_drawn_whole() -> None:
    from labkit.memory import figures

    figure = figures.figure_moments(PLAN.moments())
    assert len(figure.data) == len(PLAN.moments().columns) - 1
    drawn = sum(sum(trace.x) for trace in figure.data)
    assert drawn == pytest.approx(PLAN.moments()["total"].sum() / 1e9, rel=1e-5)


def test_links_add_traffic_to_the_same_rows() -> None:
    """With links a sweep has the columns it has without, and what each plan itself sends."""
    links = (hardware.link("ib-edr"), hardware.link("nvlink-v100"))
    axes: dict[str, list[Any]] = {"zero": [1, 3], "dp": [4, 16], "tp": [1, 3], "seq": [16, 32]}
    plain = memory.sweep(PLAN, **axes)
    timed = memory.sweep(PLAN, **axes, links=links)
    assert timed[plain.columns].equals(plain)
    for row in timed.itertuples():
        if row.problem:
            assert math.isnan(row.communication_s)
            continue
        point = {name: getattr(row, name) for name in axes}
        found = grid.plan_at(PLAN, point).collectives()
        assert row.sent_bytes == pytest.approx(sum(item.sent_bytes for item in found))
        assert row.node_bytes == pytest.approx(sum(item.node_bytes for item in found))
        by_hand = traffic.step_time_s(found, inter=links[0], intra=links[1])
        assert row.communication_s == pytest.approx(by_hand)
    both = memory.sweep({"a": PLAN, "b": replace(PLAN, parallel=Parallel())}, dp=[8], links=links)
    assert both["plan"].tolist() == ["a", "b"]
    assert both["sent_bytes"][0] == pytest.approx(1.5 * both["sent_bytes"][1], rel=0.05)


def test_a_world_size_gives_dp_what_is_left() -> None:
    table = memory.sweep(PLAN, world_size=[64, 60], tp=[1, 8], pp=[1, 4], device=10**9)
    for row in table.itertuples():
        left, rest = divmod(row.world_size, row.tp * row.pp)
        assert (row.problem == "") == (rest == 0)
        if not rest:
            assert row.dp == left
            spread = Parallel(dp=left, tp=row.tp, pp=row.pp, zero=3)
            assert row.peak_bytes == replace(PLAN, parallel=spread).peak_bytes
    held = memory.sweep(PLAN, world_size=[64], dp=[8, 16, 64], tp=[1, 4])
    right = held["dp"] * held["tp"] == 64
    assert (held["problem"].eq("") == right).all()
    assert held["peak_bytes"].notna().equals(right)


def test_a_sequence_that_ranks_cannot_divide_is_a_problem_as_in_the_plan() -> None:
    odd = replace(PLAN, batch=replace(PLAN.batch, seq=12))
    for name in ("cp", "tp"):
        plan = replace(odd, parallel=Parallel(dp=1, zero=1, sp=name == "tp"))
        table = memory.sweep(plan, **{name: [1, 2, 4, 8]})
        for row in table.itertuples():
            spread = replace(plan.parallel, **{name: getattr(row, name)})
            if not row.problem:
                assert row.peak_bytes == replace(plan, parallel=spread).peak_bytes
                continue
            assert math.isnan(row.peak_bytes)
            with pytest.raises(UsageError, match="seq"):
                assert replace(plan, parallel=spread).peak_bytes
        assert table["problem"].iloc[-1].startswith("seq must divide by")


def test_models_and_recipes_go_by_name() -> None:
    named = memory.sweep(PLAN, model=["gpt2-124m", LLAMA], recipe=["fp32-adam"])
    assert named["model"].tolist() == ["gpt2-124m", "little"]
    here = replace(PLAN, model=Model.preset("gpt2-124m"), recipe=Recipe.fp32_adam())
    assert named["peak_bytes"][0] == here.peak_bytes
    with pytest.raises(UsageError, match="no model 'gpt2-124'; did you mean"):
        memory.sweep(PLAN, model=["gpt2-124"])


# ---------------------------------------------------------------- which device is the fullest


@pytest.mark.parametrize("schedule", parallel._HELD)
def test_three_devices_of_a_pipeline_are_enough(schedule: str) -> None:
    """The peak over every device, for each schedule, is that of the first two and the last."""
    chunks = 2 if schedule in parallel._LOOPED else 1
    model = replace(GPT, num_layers=16)
    for pp, tied, zero, accumulation in product((4, 8), (True, False), (0, 3), (1, 16)):
        spread = Parallel(pp=pp, schedule=schedule, chunks=chunks, zero=zero, dp=2)
        here = replace(
            PLAN,
            model=replace(model, tied=tied),
            parallel=spread,
            recipe=Recipe.bf16_mixed(accumulation=accumulation),
        )
        peaks = [peak_of(here, device) for device in range(pp)]
        assert len(devices(spread, here.model)) == 3
        assert here.peak_bytes == max(peaks)


def test_all_devices_are_looked_at_where_the_first_layers_are_dense() -> None:
    """Dense layers on device 1 and experts after it: the fullest is device 2."""
    experts = Model(
        name="mixed", num_layers=16, hidden=64, heads=4, vocab=64, num_experts=16,
        experts_per_token=2, expert_ffn=256, dense_layers=8, tied=False, bias=False,
        mlp="swiglu", norm="rmsnorm", fused_qkv=False,
    )  # fmt: skip
    batch = Batch(seq=128)
    recipe = Recipe.bf16_mixed(step="fused")  # so that the peak is in the backward pass
    here = replace(PLAN, model=experts, parallel=Parallel(pp=4), recipe=recipe, batch=batch)
    peaks = [peak_of(here, device) for device in range(4)]
    assert peaks.index(max(peaks)) == 2
    assert here.peak_bytes == max(peaks)
    assert memory.sweep(here, dp=[1])["peak_bytes"].tolist() == [max(peaks)]


def peak_of(plan: Plan, device: int) -> float:
    assert isinstance(plan.model, Model)
    assert plan.batch is not None
    job = Job(
        model=plan.model,
        parallel=plan.parallel,
        recipe=plan.recipe,
        batch=plan.batch,
        device=device,
    )
    return float(
        estimate.row_bytes(estimate.fullest_moment(estimate.rows_by_moment(job).items())[1])
    )


def test_the_trillion_is_a_trillion() -> None:
    assert Model.preset("gpt-1t").num_params == pytest.approx(1.008e12, rel=1e-3)


def test_a_column_that_a_sweep_does_not_have_is_named() -> None:
    table = memory.sweep({"plan": PLAN}, dp=[1, 2])
    with pytest.raises(UsageError, match=r"'communication_s'; there are: peak_bytes"):
        memory.figures.figure_sweep(table, y="communication_s")
    with pytest.raises(UsageError, match="'peak_byte'; did you mean 'peak_bytes'"):
        memory.figures.figure_sweep(table, y="peak_byte")


# ---------------------------------------------------------------- three questions at once


def test_limits_are_the_edges_and_say_what_the_next_step_needs() -> None:
    """Each value fits, the next does not, by the account itself."""
    cut = replace(PLAN, parallel=Parallel(dp=8, zero=3, tp=2, sp=True))
    room = int(1.5 * cut.peak_bytes)
    table = memory.limits(cut, device=room)
    assert table["vary"].tolist() == ["micro_batch", "seq", "dp"]
    for row in table.itertuples():
        each = 2 if row.vary == "dp" else 1
        values = {"now": row.value, "next": row.next_value}
        part = "parallel" if row.vary == "dp" else "batch"
        peaks = {}
        for name, value in values.items():
            changed = replace(getattr(cut, part), **{row.vary: int(value) // each})
            peaks[name] = replace(cut, **{part: changed}).peak_bytes
        assert peaks["now"] == row.peak_bytes <= room < row.next_bytes == peaks["next"]
        assert row.lacking_bytes == row.next_bytes - room
        assert str(row.binds).split(" at ")[0] in cut.moments().columns
    steps = (table["next_value"] - table["value"]).tolist()
    assert steps == [1, cut.parallel.sequence_pieces, -2]


def test_limits_name_rules_and_the_stage_at_which_there_is_an_answer() -> None:
    table = memory.limits(replace(PLAN, model=GPT), device="H100-80GB").set_index("vary")
    assert table.loc["seq", "value"] == GPT.positions
    assert f"{GPT.positions}, the positions that" in table.loc["seq", "binds"]
    assert table.loc["dp", "binds"] == "nothing: there are no fewer"
    assert table["next_value"].isna()[["seq", "dp"]].all()
    large = memory.Plan(model=Model.preset("llama-2-7b"), batch=Batch(seq=512))
    room = 40 * 10**9
    binds = memory.limits(large, device=room).set_index("vary").loc["dp", "binds"]
    stages = [replace(large, parallel=Parallel(zero=zero)) for zero in range(4)]
    found = [memory.fit(stage, vary="dp", device=room).value for stage in stages]
    first = next(zero for zero, value in enumerate(found) if value is not None)
    assert found[0] is None
    assert binds == (
        f"no number of GPUs fits at ZeRO stage 0; at stage {first} it does from {found[first]} on"
    )


def test_limits_need_a_batch() -> None:
    with pytest.raises(UsageError, match="limits need a plan with a batch"):
        memory.limits(memory.Plan(model=10**9), device=10**9)
