"""Parallel, Recipe and Batch: against torch's optimizers, pipeline schedules, and their rules."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import BadValue, UsageError
from labkit.memory.jobs import states
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel, split_layers
from labkit.memory.jobs.recipe import PRESETS, Recipe, state_bytes
from labkit.memory.movement.volumes import step_collectives
from labkit.memory.plans import arithmetic, plan
from labkit.models import Model, TensorShape

GPT = Model.preset("small-gpt")

# ---------------------------------------------------------------- optimizer states


def torch_states(optimizers: list[Any]) -> dict[str, int]:
    """Bytes that torch's optimizers hold after a step, by the names torch gives them."""
    torch = pytest.importorskip("torch")
    found: dict[str, int] = {}
    for optimizer in optimizers:
        optimizer.step()
        for state in optimizer.state.values():
            for name, value in state.items():
                if torch.is_tensor(value):
                    found[name] = found.get(name, 0) + value.nbytes
    return found


def network(dtype: str = "float32") -> Any:
    torch = pytest.importorskip("torch")
    from labkit.memory.oracles.worker import build

    module = build(GPT, {"rng": 0, "seq": GPT.positions}).to(getattr(torch, dtype))
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)
    return module


@pytest.mark.parametrize("step", ["foreach", "fused", "for-loop"])
@pytest.mark.parametrize(("dtype", "ours"), [("float32", "fp32"), ("bfloat16", "bf16")])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adam_holds_what_torch_holds(step: str, dtype: str, ours: Any, amsgrad: bool) -> None:
    torch = pytest.importorskip("torch")
    how: dict[str, Any] = {"foreach": False} if step == "for-loop" else {step: True}
    options = how | {"amsgrad": amsgrad}
    found = torch_states([torch.optim.AdamW(network(dtype).parameters(), **options)])
    recipe = Recipe.fp32_adam(states=ours, amsgrad=amsgrad, step=step)
    names = {"momentum": "exp_avg", "variance": "exp_avg_sq", "step": "step"}
    names |= {"largest variance": "max_exp_avg_sq"} if amsgrad else {}
    assert {names[k]: v for k, v in state_bytes(GPT.tensors(), recipe).items()} == found


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_holds_what_torch_holds(momentum: float) -> None:
    torch = pytest.importorskip("torch")
    found = torch_states([torch.optim.SGD(network().parameters(), lr=0.1, momentum=momentum)])
    recipe = Recipe.preset("sgd", momentum=momentum > 0, master=None)
    assert list(state_bytes(GPT.tensors(), recipe).values()) == list(found.values())


def test_adafactor_holds_what_torch_holds() -> None:
    torch = pytest.importorskip("torch")
    found = torch_states([torch.optim.Adafactor(network().parameters())])
    ours = state_bytes(GPT.tensors(), Recipe.preset("adafactor", master=None))
    names = {"row variance": "row_var", "column variance": "col_var"}
    assert {names.get(name, name): size for name, size in ours.items()} == found


def test_muon_holds_what_torch_holds_beside_adam_for_the_rest() -> None:
    """The published use: Muon for matrices inside layers, AdamW for embeddings and vectors."""
    torch = pytest.importorskip("torch")
    named = list(network().named_parameters())
    hidden = [p for name, p in named if name.startswith("blocks") and p.ndim == 2]
    rest = [p for name, p in named if not (name.startswith("blocks") and p.ndim == 2)]
    found = torch_states([torch.optim.Muon(hidden), torch.optim.AdamW(rest)])
    ours = state_bytes(GPT.tensors(), Recipe.preset("muon", master=None))
    assert ours["momentum"] == found["momentum_buffer"] + found["exp_avg"]
    assert (ours["variance"], ours["step"]) == (found["exp_avg_sq"], found["step"])


def test_8bit_adam_holds_what_bitsandbytes_holds() -> None:
    """The oracle: bitsandbytes itself, where it is installed (labkit does not need it)."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    optimizer = bitsandbytes.optim.AdamW8bit(network().parameters())
    optimizer.step()
    held = {
        value.data_ptr(): value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if hasattr(value, "nbytes")
    }
    ours = state_bytes(GPT.tensors(), Recipe.preset("adam-8bit", master=None))
    assert sum(ours.values()) == sum(held.values())


def test_8bit_states_by_hand() -> None:
    """The threshold and the rounding: 4,095 elements stay fp32, 4,096 take 16 blocks of 256."""
    recipe = Recipe.preset("adam-8bit", master=None)
    sizes = {4095: 8 * 4095, 4096: 2 * 4096 + 2 * 16 * 4 + 2048, 4097: 2 * 4097 + 2 * 17 * 4 + 2048}
    for size, expected in sizes.items():
        tensor = TensorShape(name="t", shape=(size,), unit="root")
        assert sum(state_bytes([tensor], recipe).values()) == expected
    paper = replace(recipe, block=2048)
    tensor = TensorShape(name="t", shape=(4096, 4096), unit="root")
    assert state_bytes([tensor], paper)["scales"] == 2 * 4 * 4096 * 4096 // 2048


@pytest.mark.parametrize("num_ranks", [1, 3, 64])
def test_states_of_shards_are_states_of_their_shapes(num_ranks: int) -> None:
    """Adam's are per element, so ranks share them exactly, as they do a factored variance's
    rows; every rank has a counter for every tensor."""
    tensors = GPT.tensors()
    shards = [
        states.shard_shapes(tensors, num_ranks=num_ranks, rank=rank) for rank in range(num_ranks)
    ]
    held = [sum(tensor.numel for tensor in shard) for shard in shards]
    assert sum(held) == GPT.num_params
    adam = [state_bytes(shard, Recipe.fp32_adam()) for shard in shards]
    assert [found.get("momentum", 0) for found in adam] == [4 * elements for elements in held]
    assert {found["step"] for found in adam} == {4 * len(tensors)}
    factored = [state_bytes(shard, Recipe.preset("adafactor", master=None)) for shard in shards]
    rows = sum(4 * t.shape[0] for t in tensors if len(t.shape) == 2)
    assert sum(found.get("row variance", 0) for found in factored) == rows
    with pytest.raises(ValueError, match="rank must be in"):
        states.shard_shapes(tensors, num_ranks=2, rank=2)


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_parameter_costs_is_its_share_of_the_states(name: str) -> None:
    """K times the parameters, counters apart; where it is not per element, K is refused."""
    recipe = Recipe.preset(name)
    model = Model.preset("gpt2-124m")
    kinds = state_bytes(model.tensors(), recipe).items()
    total = sum(size for kind, size in kinds if kind != "step")
    if recipe.per_element:
        assert total == recipe.optimizer_bytes * model.num_params
        assert recipe.bytes_per_param == sum(
            recipe.bytes_of(part) for part in ("parameters", "gradients", "optimizer")
        )
    else:
        least = 4 if recipe.master else 1
        total += sum(size for kind, size in kinds if kind == "step")
        assert least * model.num_params < total < 12 * model.num_params
        with pytest.raises(UsageError, match=f"{recipe.optimizer} depend on each tensor's shape"):
            _ = recipe.optimizer_bytes


def test_adafactor_is_smaller_than_muon_than_adam_and_8bit_is_a_quarter() -> None:
    tensors = Model.preset("llama-2-7b").tensors()

    def of(name: Any) -> int:
        return sum(state_bytes(tensors, Recipe(optimizer=name, master=None)).values())

    assert of("adafactor") < of("adam-8bit") < of("muon") < of("adam")
    assert of("adam-8bit") / of("adam") == pytest.approx(0.25 * (1 + 4 / 256), rel=1e-3)


# ---------------------------------------------------------------- recipes


def test_recipes_cost_what_the_papers_say() -> None:
    """ZeRO §3.1: 2 + 2 + K with K = 12; Megatron-LM's distributed optimizer: 18."""
    costs = {name: Recipe.preset(name) for name in PRESETS}
    assert costs["bf16-mixed"].bytes_per_param == costs["fp32-adam"].bytes_per_param == 16
    assert costs["fp32-gradients"].bytes_per_param == 18
    assert costs["two-gradients"].bytes_per_param == 20
    assert costs["sgd"].optimizer_bytes == 8
    assert Recipe.preset("sgd", momentum=False).optimizer_bytes == 4


def test_what_is_sent_follows_the_cast() -> None:
    """FSDP2 gathers in ``param_dtype``; autocast casts after gathering; ZeRO++ sends fewer bits."""
    assert Recipe.preset("fsdp-bf16").scales == (0.5, 1.0)
    assert Recipe.preset("bf16-autocast").scales == (1.0, 1.0)
    assert Recipe.preset("quantised").scales == (0.5, 0.25)
    assert Recipe.preset("two-gradients").scales == pytest.approx((1.0, 1 / 3))
    assert (
        Recipe.preset("fsdp-bf16").compute_format
        == Recipe.preset("bf16-autocast").compute_format
        == "bf16"
    )
    assert Recipe.fp32_adam().compute_bytes == 4


def test_counters_are_on_the_device_only_where_the_step_is_fused() -> None:
    """As torch's AdamW has it: "Deliberately host `step` on CPU" otherwise."""
    assert Recipe().counters_on == "cpu"
    assert Recipe(step="fused").counters_on == "device"
    assert Recipe(step="fused", offload_optimizer="cpu").counters_on == "cpu"


def test_offload_needs_the_stage_that_shards_what_it_moves() -> None:
    """DeepSpeed: the optimizer to the CPU from stage 1, parameters and NVMe at stage 3 only."""
    zero_offload = Recipe(offload_gradients="cpu", offload_optimizer="cpu")
    for stage in (1, 2, 3):
        zero_offload.check_offload(stage)
    with pytest.raises(UsageError, match="zero must be >= 1 where offload_gradients is cpu, got 0"):
        zero_offload.check_offload(0)
    for infinity in (Recipe(offload_parameters="cpu"), Recipe(offload_optimizer="nvme")):
        infinity.check_offload(3)
        with pytest.raises(UsageError, match="zero must be >= 3"):
            infinity.check_offload(2)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"parameters": "bf17"}, "Recipe.parameters must be one of 'fp32', 'bf16'"),
        ({"reduce": "int5"}, "reduce must be one of"),
        ({"optimizer": "lion"}, "Recipe.optimizer must be one of 'adam', 'sgd'"),
        ({"step": "vmap"}, "Recipe.step must be one of 'foreach', 'fused', 'for-loop'"),
        (
            {"offload_optimizer": "tape"},
            "Recipe.offload_optimizer must be one of 'device', 'cpu', 'nvme'",
        ),
        ({"accumulation": -1}, "Recipe.accumulation must be a whole number, at least 1"),
        ({"block": 0}, "Recipe.block must be a whole number, at least 1"),
        ({"autocast": True}, "autocast must have a compute format"),
        ({"optimizer": "sgd", "amsgrad": True}, "amsgrad must be False for sgd"),
    ],
)
def test_impossible_recipes_are_refused(changes: dict[str, Any], complaint: str) -> None:
    for kind in (UsageError, ValueError):
        with pytest.raises(kind, match=complaint):
            Recipe(**changes)


def test_unknown_recipes_are_named() -> None:
    with pytest.raises(UsageError, match=r"no recipe 'bf16'; did you mean.*There are: mixed-adam"):
        Recipe.preset("bf16")


# ---------------------------------------------------------------- parallelism

GRID = [
    {"dp": dp, "tp": tp, "zero": zero} | group
    for dp, tp, zero in product((1, 8, 64), (1, 4), range(4))
    for group in ({}, {"partition_group": 8}, {"secondary_group": 8})
    if not group or (zero == 3 and dp > 1)
]


@pytest.mark.parametrize("degrees", GRID, ids=str)
def test_plans_are_the_same_by_either_description(degrees: dict[str, Any]) -> None:
    model = Model.preset("llama-2-7b")
    batch = Batch(seq=1024)
    old, new = (
        plan.Plan(model=model, parallel=kind(**degrees), batch=batch)
        for kind in (plan.Parallel, Parallel)
    )
    assert old.terms() == new.terms()
    assert old.collectives() == new.collectives()
    assert new.parallel.world_size == old.parallel.world_size


def test_hsdp_is_mics_said_from_the_other_side() -> None:
    hsdp = Parallel(dp=64, zero=3, replicate=8)
    mics = Parallel(dp=64, zero=3, partition_group=8)
    assert hsdp.shard_degree == mics.shard_degree == 8
    sent = [step_collectives(spread, Recipe(), 1000) for spread in (hsdp, mics)]
    assert sent[0] == sent[1]


def test_states_are_sharded_over_the_sequence_parallel_ranks_too() -> None:
    assert Parallel(dp=4, cp=2, zero=3).shard_degree == 8
    assert Parallel(dp=4, cp=2, zero=3, ep=4).expert_shard_degree == 2
    assert Parallel(dp=4, cp=2, zero=3, replicate=2).shard_degree == 4


@given(*[st.sampled_from([1, 2, 4, 8])] * 4)
def test_what_is_left_of_the_ranks_is_data_parallel(dp: int, tp: int, cp: int, pp: int) -> None:
    world = dp * tp * cp * pp
    found = Parallel.of(world, tp=tp, cp=cp, pp=pp)
    assert (found.dp, found.world_size) == (dp, world)
    assert Parallel.of(world, dp=dp, tp=tp, cp=cp, pp=pp) == found


def test_a_world_that_is_not_the_product_is_refused() -> None:
    product_ = r"must be dp · tp · cp · pp = 2 · 4 · 1 · 4 = 32, got 64"
    assert Parallel.of(32, dp=2, tp=4, pp=4).world_size == 32
    with pytest.raises(UsageError, match=product_):
        Parallel.of(64, dp=2, tp=4, pp=4)
    for world, degrees in ((100, {"tp": 8}), (-8, {}), (8, {"tp": -2})):
        with pytest.raises(UsageError, match=r"world size|world_size must be|Parallel.tp must be"):
            Parallel.of(world, **degrees)


@pytest.mark.parametrize(
    ("degrees", "complaint"),
    [
        *[
            ({name: 0}, rf"Parallel\.{name} must be a whole number, at least 1")
            for name in ("dp", "tp", "cp", "pp", "ep")
        ],
        *[
            ({name: -2}, rf"Parallel\.{name} must be a whole number, at least 1")
            for name in ("chunks", "replicate", "dp")
        ],
        ({"zero": 4}, "Parallel.zero must be a whole number, at least 0, at most 3"),
        ({"dp": 8, "ep": 3}, r"dp × cp \(8\) must divide by ep \(3\)"),
        ({"dp": 8, "zero": 3, "replicate": 3}, r"must divide by replicate \(3\)"),
        ({"dp": 8, "zero": 1, "replicate": 2}, "replicate must be 1 unless zero is 3"),
        ({"dp": 8, "zero": 3, "replicate": 2, "partition_group": 4}, "they say the same"),
        (
            {"dp": 8, "zero": 3, "partition_group": 3},
            r"dp × cp \(8\) must divide by partition_group",
        ),
        (
            {"dp": 8, "zero": 3, "secondary_group": -1},
            "Parallel.secondary_group must be a whole number, at least 1",
        ),
        ({"pp": 3, "layers": (4, 0, 4)}, "layers must be >= 1 between the first and the last"),
        ({"pp": 2, "layers": (1, 2, 3)}, r"layers must have pp \(2\) numbers, got 3"),
        (
            {"pp": 2, "layers": (4, -1)},
            "Parallel.layers must be a list of items, each a whole number",
        ),
        ({"pp": 2, "chunks": 2}, "chunks must be 1 for 1f1b, got 2; schedules that loop"),
        ({"pp": 2, "schedule": "interleaved-1f1b"}, "chunks must be >= 2"),
        ({"pp": 3, "schedule": "dualpipe"}, "pp must be even for dualpipe, got 3"),
        ({"pp": 2, "schedule": "dualpipe", "layers": (1, 1)}, "layers must be None"),
        ({"schedule": "1f1c"}, r"did you mean '1f1b'"),
    ],
)
def test_impossible_degrees_are_refused(degrees: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Parallel(**degrees)


@pytest.mark.parametrize(
    ("name", "degrees", "seq", "complaint"),
    [
        ("gpt2-1.5b", {"tp": 2}, None, r"heads \(25\) must divide by tp \(2\)"),
        ("llama-2-7b", {"tp": 3}, None, r"heads \(32\) must divide by tp \(3\)"),
        (
            "deepseek-v3",
            {"pp": 4},
            None,
            r"num_layers \(61\) must divide by the stages \(4\); give layers",
        ),
        ("gpt2-124m", {"pp": 4, "schedule": "zb-v"}, None, r"must divide by the stages \(8\)"),
        ("llama-2-7b", {"pp": 2, "layers": (15, 16)}, None, r"add up to 32, got 15 \+ 16 = 31"),
        ("mixtral-8x7b", {"dp": 16, "ep": 16}, None, r"experts \(8\) must divide by ep \(16\)"),
        ("llama-2-7b", {"dp": 2, "ep": 2}, None, "no experts"),
        ("llama-2-7b", {"tp": 4, "sp": True}, 1026, r"seq \(1026\) must divide by tp \(4\)"),
        ("llama-2-7b", {"cp": 4}, 1020, r"seq \(1020\) must divide by 2·cp \(8\)"),
        ("llama-2-7b", {"cp": 2, "tp": 2, "sp": True}, 1004, r"2·cp·tp \(8\)"),
    ],
)
def test_a_model_that_does_not_divide_is_refused_by_name(
    name: str, degrees: dict[str, Any], seq: int | None, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        Parallel(**degrees).check(Model.preset(name), seq and Batch(seq=seq))


def test_published_layouts_are_accepted() -> None:
    """Megatron-LM (Narayanan et al. 2021, Table 1, 175B), Llama 3 405B (Table 4), DeepSeek-V3."""
    gpt3 = replace(Model.preset("gpt3-175b"), vocab=51200)
    Parallel(dp=16, tp=8, pp=8, sp=True).check(gpt3, Batch(seq=2048))
    llama = Parallel(dp=4, tp=8, cp=16, pp=16, layers=(7, *[8] * 14, 7), zero=1)
    llama.check(Model.preset("llama-3-405b"), Batch(seq=131072))
    assert llama.world_size == 8192
    v3 = Parallel(dp=128, ep=64, pp=16, layers=(*[4] * 15, 1), zero=1)
    v3.check(Model.preset("deepseek-v3"), Batch(seq=4096))


def test_rules_of_frameworks_give_published_layers() -> None:
    """Llama 3 405B (§3.3.2: a layer less at both ends, 16 stages), DeepSeek-V3 on 16 stages."""
    llama = (7, *[8] * 14, 7)
    assert split_layers(126, 16, "megatron-both") == llama
    assert split_layers(126, 16, "torchtitan") == llama
    assert split_layers(126, 16, first=7, last=7) == llama
    assert split_layers(61, 16, last=1) == (*[4] * 15, 1)


@given(
    layers=st.integers(1, 200),
    stages=st.integers(1, 40),
    split=st.sampled_from(["megatron-embedding", "megatron-loss", "megatron-both", "torchtitan"]),
)
def test_stages_with_their_ends_counted_are_as_even_as_can_be(
    layers: int, stages: int, split: Any
) -> None:
    """torchtitan's differ by one layer at most, earlier ones are longer; Megatron's not at all."""
    try:
        lengths = list(split_layers(layers, stages, split))
    except UsageError:
        counted = layers + 1 + (split in {"megatron-both", "torchtitan"})
        assert counted < stages or (counted % stages and split != "torchtitan")
        return
    assert sum(lengths) == layers
    assert min(lengths) >= 0
    if stages > 1:
        lengths[0] += split != "megatron-loss"
        lengths[-1] += split != "megatron-embedding"
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= (split == "torchtitan")


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (
            lambda: split_layers(31, 4, "megatron-both"),
            r"31\).*33 by the rule megatron-both, must divide.*4",
        ),
        (lambda: split_layers(1, 4, "torchtitan"), r"1\) and ends, 3 by.*\(4\)"),
        (lambda: split_layers(32, 4, "torchtitan", last=3), "split must be even"),
        (lambda: split_layers(32, 2, first=3, last=29), "stages more than 2"),
        (lambda: Parallel(pp=4, layer_split="megatron-loss").stage_layers(32), "32.*megatron-loss"),
    ],
)
def test_layers_that_no_rule_cuts_are_refused(call: Any, complaint: str) -> None:
    with pytest.raises(BadValue, match=complaint):
        call()


def test_a_measured_model_is_held_whole() -> None:
    pytest.importorskip("torch")
    measured = Model.from_module(network())
    Parallel(dp=8, zero=3).check(measured)
    assert sum(Parallel(dp=8).elements(measured)) == measured.num_params
    for degrees in ({"tp": 2}, {"pp": 2}, {"dp": 2, "ep": 2}):
        with pytest.raises(UsageError, match="measured whole"):
            Parallel(**degrees).check(measured)


SCHEDULES: dict[str, dict[str, Any]] = {
    "gpipe": {},
    "1f1b": {},
    "dapple": {},
    "pipedream-flush": {},
    "interleaved-1f1b": {"chunks": 2},
    "loop-bfs": {"chunks": 2},
    "interleaved-zb": {"chunks": 2},
    "zb-h1": {},
    "zb-h2": {},
    "zb-v": {},
    "chimera": {},
    "dualpipe": {},
    "dualpipe-v": {},
}


@pytest.mark.parametrize("rounds", [2, 5])
@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize(("name", "options"), SCHEDULES.items())
def test_activations_in_flight_are_those_of_the_schedule(
    name: str, options: dict[str, int], pp: int, rounds: int
) -> None:
    """The oracle: the pipeline engine's orders, counted instruction by instruction."""
    from labkit.pipeline import build

    parallel = Parallel(pp=pp, schedule=name, **options)
    microbatches = rounds * pp
    chosen = {f"num_{key}": value for key, value in options.items()}
    order = build(name, num_stages=pp, num_microbatches=microbatches, **chosen)
    stages = 1 if name in ("chimera", "dualpipe") else order.num_stages // pp
    ours = parallel.in_flight(np.arange(pp), microbatches)
    assert (ours * stages).tolist() == list(order.peak_in_flight)
    assert len(parallel.stages(0)) == (2 if name in ("chimera", "dualpipe") else stages)


@given(st.integers(1, 24), st.sampled_from(["gpipe", "1f1b", "zb-h1", "zb-h2", "zb-v"]))
def test_with_few_microbatches_it_is_an_upper_bound(microbatches: int, name: str) -> None:
    from labkit.pipeline import build

    order = build(name, num_stages=6, num_microbatches=microbatches)
    ours = Parallel(pp=6, schedule=name).in_flight(np.arange(6), microbatches)
    assert (ours * order.num_stages / 6 >= order.peak_in_flight).all()


def test_one_device_holds_one_microbatch_at_a_time() -> None:
    assert Parallel(schedule="1f1b").in_flight(0, 8) == 1


@pytest.mark.parametrize(("name", "options"), SCHEDULES.items())
@pytest.mark.parametrize("tied", [False, True])
def test_the_devices_of_a_pipeline_hold_the_model(
    name: str, options: dict[str, int], tied: bool
) -> None:
    """All devices together: the model, twice where it runs both ways, and a copy of a tied head
    wherever that is not on a device with the embedding."""
    model = Model.preset("llama-2-7b").resized(tied=tied)
    parallel = Parallel(pp=4, schedule=name, **options)
    total = sum(sum(parallel.elements(model, device)) for device in range(4))
    together = name in ("zb-v", "dualpipe-v", "chimera", "dualpipe")
    copy = model.vocab * model.hidden if tied and not together else 0
    assert total == parallel.model_copies * model.num_params + copy
    by_unit = [u.count * u.numel for device in range(4) for u in parallel.units(model, device)]
    assert sum(by_unit) == total


def test_uneven_stages_hold_the_layers_they_are_given() -> None:
    model = Model.preset("deepseek-v3")
    parallel = Parallel(pp=4, layers=(13, 16, 16, 16))
    blocks = [
        sum(unit.count for unit in parallel.units(model, device) if "block" in unit.name)
        for device in range(4)
    ]
    assert blocks == [13, 16, 16, 16]
    with pytest.raises(UsageError, match=r"device must be in 0..3"):
        parallel.stages(4)


def test_a_rank_of_a_three_way_cut_holds_its_share_exactly() -> None:
    """GPT-3 on tp = 8, pp = 8 (Megatron-LM's layout): 12 layers of 12h²/8, and what is copied."""
    model = replace(Model.preset("gpt3-175b"), vocab=51200)
    h = model.hidden
    parallel = Parallel(tp=8, pp=8)
    middle = sum(parallel.elements(model, 3))
    cut_biases = (3 * h + 4 * h) // 8
    copied = 2 * h + 4 * h
    assert middle == 12 * (12 * h * h // 8 + cut_biases + copied)


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"seq": 0}, "Batch.seq must be a whole number, at least 1"),
        ({"micro_batch": -1}, "Batch.micro_batch must be a whole number, at least 1"),
        ({"attention": "ring"}, "Batch.attention must be one of 'eager', 'sdpa', 'flash'"),
        ({"loss": "hinge"}, "Batch.loss must be one of 'eager-fp32', 'vocab-parallel'"),
        ({"formula": "mine"}, "Batch.formula must be 'zero-paper', or None"),
        (
            {"recompute": "some"},
            "Batch.recompute must be one of 'none', 'selective', 'operators', 'full', or",
        ),
        ({"recompute": 0}, "Batch.recompute must be .* at least 1.*; got 0"),
        ({"recompute": True}, "recompute must be"),
        ({"recompute_group": 2}, r"recompute_group \(2\) must be 1 unless"),
        ({"recompute_group": 0}, "Batch.recompute_group must be a whole number, at least 1"),
        ({"loss_chunks": 0}, "Batch.loss_chunks must be a whole number, at least 1"),
        ({"dropout_mask_bytes": 2}, "Batch.dropout_mask_bytes must be one of 0, 1"),
    ],
)
def test_impossible_batches_are_refused(changes: dict[str, Any], complaint: str) -> None:
    for kind in (UsageError, ValueError):
        with pytest.raises(kind, match=complaint):
            Batch(**({"seq": 128} | changes))


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 10))
def test_layers_are_recomputed_or_kept(num_layers: int, every: int, group: int) -> None:
    some = Batch(seq=8, recompute=every)
    assert some.num_recomputed(num_layers) == len(range(every, num_layers + 1, every))
    assert some.num_checkpoints(num_layers) == some.num_recomputed(num_layers)
    whole = Batch(seq=8, recompute="full", recompute_group=group)
    assert whole.num_recomputed(num_layers) == num_layers
    assert whole.num_checkpoints(num_layers) == len(range(0, num_layers, group))
    assert Batch(seq=8, recompute="selective").num_recomputed(num_layers) == 0


def test_the_formula_knows_partial_recomputation() -> None:
    """Every layer is full recomputation; of selective recomputation the formula says nothing."""
    model = Model.preset("gpt3-175b")
    batch = Batch(seq=2048, formula="zero-paper")

    def of(**changes: Any) -> float:
        return arithmetic.activation_bytes(model, replace(batch, **changes))

    assert of(recompute=1) == of(recompute="full")
    every = [of(recompute=k) for k in (1, 2, 3, 96)]
    assert every == sorted(every)
    # Korthikanti et al. 2022, §5, footnote: groups of k layers keep 1/k of the inputs, k at work.
    inputs = 2 * 2048 * 12288
    layer = of() / 96
    assert of(recompute="full", recompute_group=8) == 96 / 8 * inputs + 8 * layer
    with pytest.raises(UsageError, match="must not be selective"):
        of(recompute="selective")


def test_descriptions_are_values() -> None:
    """Frozen, equal by content, usable as keys: what caches and sweeps rely on."""
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (Model, {"num_layers": 2, "hidden": 8, "heads": 2, "vocab": 10}),
        (Parallel, {"dp": 4}),
        (Recipe, {"optimizer": "sgd"}),
        (Batch, {"seq": 8}),
    ]
    for kind, changes in kinds:
        one = kind(**changes)
        other = kind(**changes)
        assert {one: 1}[other] == 1
        with pytest.raises(FrozenInstanceError):
            setattr(one, next(iter(changes)), 3)
