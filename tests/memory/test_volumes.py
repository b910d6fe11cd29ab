"""Volumes against the papers' formulas, torch's own count of collectives, and brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import BadValue
from labkit.memory import Batch, Recipe
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.traffic import Collective, frame, placed
from labkit.memory.movement.volumes import collectives
from labkit.memory.traced.ranks import fake_group
from labkit.models import Model
from tests.memory.steps import expert_params

GPT = Model(num_layers=16, hidden=1024, heads=16, vocab=512, positions=2048)
LLAMA = Model.preset("llama-3-405b")
MIXTRAL = Model.preset("mixtral-8x7b")
BATCH = Batch(seq=2048, micro_batch=2)
RECIPE = Recipe.bf16_mixed()
A = 2048 * 2 * 1024 * 2  # one microbatch's hidden states in 16 bits, in bytes


def layers_only(found: tuple[Collective, ...], axis: str = "tp") -> list[Collective]:
    return [c for c in found if c.axis == axis and c.what in {"layers", "experts"}]


def sent(found: Any) -> float:
    return sum(c.sent_bytes for c in found)


def test_one_rank_sends_nothing() -> None:
    found = collectives(GPT, Parallel(), RECIPE, BATCH)
    assert sent(found) == 0


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("accumulation", [1, 6])
def test_tensor_parallelism_is_narayanans_8bsh(tp: int, accumulation: int) -> None:
    """§3.2: 8·b·s·h·(t−1)/t elements a layer, device and microbatch."""
    recipe = replace(RECIPE, accumulation=accumulation)
    found = layers_only(collectives(GPT, Parallel(tp=tp), recipe, BATCH))
    assert sent(found) / 2 == 8 * 2 * 2048 * 1024 * (tp - 1) / tp * 16 * accumulation
    assert {c.kind for c in found} == {"all-reduce"}


def test_sequence_parallelism_sends_as_much_and_gathers_inputs_again() -> None:
    """Korthikanti et al. 2022, §4.2.2: four gathers and four reduce-scatters for four all-reduces,
    and an extra gather of what was not kept."""
    plain = layers_only(collectives(GPT, Parallel(tp=8), RECIPE, BATCH))
    both = collectives(GPT, Parallel(tp=8, sp=True), RECIPE, BATCH)
    assert sent(layers_only(both)) == sent(plain)
    calls = Counter[str]()
    for item in layers_only(both):
        calls[item.kind] += item.num_calls
    assert calls == {"all-gather": 4 * 16, "reduce-scatter": 4 * 16}
    extra = [c for c in both if c.what == "inputs of layers, again"]
    assert sent(extra) == sent(plain) / 4


@pytest.fixture
def four_ranks() -> Iterator[Any]:
    """A mesh of four ranks that send nothing, for counting what they would send."""
    pytest.importorskip("torch")
    from torch.distributed.device_mesh import init_device_mesh

    with fake_group(4):
        yield init_device_mesh("cpu", (4,))


def torch_counts(mesh: Any, num_layers: int, sp: bool) -> dict[str, Counter[str]]:
    """Collectives that torch runs for layers of two tensor-parallel halves, by pass and kind."""
    import torch
    from torch import nn
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.up = nn.Linear(8, 16)
            self.down = nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(torch.relu(self.up(self.norm(x))))

    network = nn.Sequential(*(Half() for _ in range(2 * num_layers)))
    x = torch.randn(2, 8, 8)
    plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sp:
        x = distribute_tensor(x, mesh, [Shard(1)])
        down = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
        up = ColwiseParallel(input_layouts=Shard(1))
        plan = {"norm": SequenceParallel(), "up": up, "down": down}
    for half in network:
        parallelize_module(half, mesh, plan)
    x.requires_grad_()
    modes = {"forward": CommDebugMode(), "backward": CommDebugMode()}
    with modes["forward"]:
        y = network(x)
    loss = (y.to_local() if sp else y).sum()
    with modes["backward"]:
        loss.backward()
    names = {
        "all_reduce": "all-reduce",
        "all_gather_into_tensor": "all-gather",
        "reduce_scatter_tensor": "reduce-scatter",
    }
    return {
        phase: Counter(
            {names[str(op).rpartition(".")[2]]: n for op, n in mode.get_comm_counts().items()}
        )
        for phase, mode in modes.items()
    }


@pytest.mark.parametrize("sp", [False, True])
def test_torch_runs_as_many_collectives_a_layer(four_ranks: Any, sp: bool) -> None:
    """torch keeps the gathered inputs, so it has none of the extra gathers."""
    model = replace(GPT, num_layers=3)
    found = layers_only(collectives(model, Parallel(tp=4, sp=sp), RECIPE, BATCH))
    for phase, counted in torch_counts(four_ranks, 3, sp).items():
        ours = Counter({c.kind: c.num_calls for c in found if c.phase == phase})
        assert ours == counted


def test_full_recomputation_repeats_the_forward_and_no_more() -> None:
    parallel = Parallel(tp=4, sp=True, cp=2, ep=2, dp=2)
    plain, again = (
        collectives(MIXTRAL, parallel, RECIPE, replace(BATCH, recompute=kind))
        for kind in ("none", "full")
    )
    repeated = [c for c in again if c.phase == "recompute"]
    inside = {"layers", "experts", "dispatch", "combine", "keys and values"}
    forward = [c for c in plain if c.phase == "forward" and c.what in inside]
    assert sent(repeated) == pytest.approx(sent(forward))
    assert sent(again) == pytest.approx(sent(plain) + sent(repeated))
    every = collectives(MIXTRAL, parallel, RECIPE, replace(BATCH, recompute=4))
    quarter = [c for c in every if c.phase == "recompute"]
    assert sent(quarter) == pytest.approx(sent(repeated) / 4)


def test_selective_recomputation_repeats_only_what_attention_exchanges() -> None:
    parallel = Parallel(tp=4, cp=2)
    batch = replace(BATCH, recompute="selective")
    again = [c for c in collectives(GPT, parallel, RECIPE, batch) if c.phase == "recompute"]
    assert {(c.axis, c.what) for c in again} == {("cp", "keys and values")}


def test_partitioned_checkpoints_add_less_than_a_tenth() -> None:
    """ZeRO §8: 12·s·h a block with recomputation, and one gather of s·h more."""
    batch = replace(BATCH, recompute="full", partition_checkpoints=True)
    found = collectives(GPT, Parallel(tp=16), RECIPE, batch)
    extra = [c for c in found if c.what == "checkpoints (Pa)"]
    assert sent(extra) / sent(layers_only(found)) == pytest.approx(1 / 12)


def test_context_parallelism() -> None:
    """Keys and values of all others arrive, twice; gradients go out once. Few key heads make it
    small (Llama 3, §3.3.2)."""
    parallel = Parallel(cp=8, tp=8, sp=True)
    batch = Batch(seq=131072)
    found = [c for c in collectives(LLAMA, parallel, RECIPE, batch) if c.axis == "cp"]
    keys = 131072 * 2 * 128 * 2  # one key head a rank: keys and values in 16 bits
    assert sent(found) == pytest.approx(3 * keys * 7 / 8 * 126)
    wide = replace(LLAMA, kv_heads=128)
    many = [c for c in collectives(wide, parallel, RECIPE, batch) if c.axis == "cp"]
    few = [c for c in collectives(LLAMA, parallel, RECIPE, batch) if c.axis == "cp"]
    assert sent(many) == 16 * sent(few)


def test_context_parallelism_divides_all_other_activations() -> None:
    whole, half = (collectives(GPT, Parallel(tp=2, cp=cp), RECIPE, BATCH) for cp in (1, 2))
    assert sent(layers_only(whole)) == 2 * sent(layers_only(half))


def crossings(schedule: str, pp: int, chunks: int) -> int:
    """Boundaries between stages on different devices, from the layout alone."""
    parallel = Parallel(pp=pp, schedule=schedule, chunks=chunks)
    owner = {stage: d for d in range(pp) for stage in parallel.stages(d)}
    return sum(owner[stage] != owner[stage + 1] for stage in range(len(owner) - 1))


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [
        ("gpipe", 1),
        ("1f1b", 1),
        ("zb-h1", 1),
        ("interleaved-1f1b", 2),
        ("loop-bfs", 4),
        ("zb-v", 1),
        ("dualpipe-v", 1),
    ],
)
@pytest.mark.parametrize("pp", [2, 4])
def test_every_boundary_is_crossed_once_each_way(schedule: str, chunks: int, pp: int) -> None:
    """§3.2 of Narayanan et al.: b·s·h a boundary and microbatch, v times as often interleaved."""
    parallel = Parallel(pp=pp, schedule=schedule, chunks=chunks)
    recipe = replace(RECIPE, accumulation=8)
    both = Counter[str]()
    for device in range(pp):
        for item in collectives(GPT, parallel, recipe, BATCH, device=device):
            if item.kind == "send":
                both[item.phase] += int(item.sent_bytes)
    wanted = crossings(schedule, pp, chunks) * 8 * A
    assert both == {"forward": wanted, "backward": wanted}


@pytest.mark.parametrize("schedule", ["chimera", "dualpipe"])
def test_pipelines_that_run_both_ways_send_no_more(schedule: str) -> None:
    """Half of the microbatches each way; what is new is the sum over a stage's two copies."""
    recipe = replace(RECIPE, accumulation=8)

    def total(name: str) -> float:
        parallel = Parallel(pp=4, schedule=name)
        found = [c for d in range(4) for c in collectives(GPT, parallel, recipe, BATCH, device=d)]
        return sum(c.sent_bytes for c in found if c.kind == "send")

    assert total(schedule) == total("1f1b")
    found = collectives(GPT, Parallel(pp=4, schedule=schedule), recipe, BATCH, device=1)
    copies = [c for c in found if c.what == "gradients of a stage's two copies"]
    # Eight of the sixteen layers: two stages of four, each with its copy elsewhere.
    block = next(u.numel for u in GPT.units() if u.name == "block")
    assert sent(copies) == 2 * 8 * block


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_embedding_is_summed_between_the_ends(tied: bool) -> None:
    model = replace(GPT, tied=tied)
    for device in range(4):
        found = collectives(model, Parallel(pp=4), RECIPE, BATCH, device=device)
        sums = [c for c in found if c.what == "gradients of the tied embedding"]
        assert bool(sums) == (tied and device in {0, 3})
        assert sent(sums) == (2 * 512 * 1024 if sums else 0)


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_experts_send_each_token_to_k_places_and_back(ep: int) -> None:
    """Even routing: of k copies of each token, (e−1)/e go elsewhere; four times a layer."""
    found = collectives(MIXTRAL, Parallel(dp=8, ep=ep), RECIPE, BATCH)
    moved = [c for c in found if c.axis == "ep"]
    hidden = 2048 * 2 * MIXTRAL.hidden * 2
    assert sent(moved) == 4 * 32 * 2 * hidden * (ep - 1) / ep
    assert {c.kind for c in moved} == {"all-to-all"}


@pytest.mark.parametrize("zero", range(4))
def test_experts_reduce_among_fewer_ranks(zero: int) -> None:
    """A rank holds 1/ep of the experts and shares them with dp/ep ranks; the rest with all dp."""
    parallel = Parallel(dp=64, ep=8, zero=zero)
    found = [c for c in collectives(MIXTRAL, parallel, RECIPE) if c.axis == "dp"]
    experts = expert_params(MIXTRAL)
    for item in found:
        mine = "experts" in item.what
        assert item.num_ranks == (8 if mine else 64)
        elements = experts / 8 if mine else MIXTRAL.num_params - experts
        assert item.message_bytes == 2 * elements


def data(parallel: Parallel, recipe: Recipe) -> list[tuple[str, str, float]]:
    found = collectives(GPT, parallel, recipe)
    psi = 2 * GPT.num_params
    return [(c.phase, c.kind, c.message_bytes / psi) for c in found]


def test_gradient_accumulation_by_stage() -> None:
    """Stages 0 and 1 sum locally and reduce once; 2 must reduce each; 3 must gather for each."""
    recipe = replace(RECIPE, accumulation=5)
    assert data(Parallel(dp=8), recipe) == [("backward", "all-reduce", 1)]
    one = [("backward", "reduce-scatter", 1), ("step", "all-gather", 1)]
    assert data(Parallel(dp=8, zero=1), recipe) == one
    two = [("backward", "reduce-scatter", 5), ("step", "all-gather", 1)]
    assert data(Parallel(dp=8, zero=2), recipe) == two
    gathers = [(phase, "all-gather", 5) for phase in ("forward", "backward")]
    assert data(Parallel(dp=8, zero=3), recipe) == [*gathers, ("backward", "reduce-scatter", 5)]
    groups = data(Parallel(dp=8, zero=3, partition_group=4), recipe)
    assert groups[-1] == ("step", "all-reduce", 0.25)


def test_hsdp_is_mics_said_from_the_other_side() -> None:
    mics = collectives(GPT, Parallel(dp=32, zero=3, partition_group=8), RECIPE)
    hsdp = collectives(GPT, Parallel(dp=32, zero=3, replicate=4), RECIPE)
    assert mics == hsdp


def test_quantised_collectives_shrink_what_crosses_nodes() -> None:
    """ZeRO++: a quarter of stage 3's, and the second gather stays in the node."""
    parallel = Parallel(dp=1024, zero=3)
    plain = collectives(GPT, parallel, RECIPE)
    better = collectives(GPT, replace(parallel, secondary_group=8), Recipe.preset("quantised"))
    crossed = [sum(c.node_bytes for c in found) for found in (plain, better)]
    assert crossed[0] / crossed[1] == pytest.approx(4)


powers = st.integers(0, 6).map(lambda power: 2**power)


@given(size=powers, stride=powers, ranks_per_node=st.sampled_from([1, 2, 4, 8, 16]))
def test_where_groups_sit_by_brute_force(size: int, stride: int, ranks_per_node: int) -> None:
    """All groups of a job side by side: nodes of one, and ring edges that leave the first node."""
    groups = [[start + stride * i for i in range(size)] for start in range(stride)]
    _, nodes, rings = placed(size, stride, ranks_per_node).values()
    assert nodes == len({rank // ranks_per_node for rank in groups[0]})
    if size * stride < ranks_per_node or nodes == 1:
        assert rings == 1
        return
    edges = [(a, b) for group in groups for a, b in zip(group, group[1:] + group[:1], strict=True)]
    leaving = sum(a // ranks_per_node == 0 != b // ranks_per_node for a, b in edges)
    assert rings == leaving


@given(size=powers, stride=powers, ranks_per_node=st.sampled_from([2, 4, 8]))
def test_an_all_to_all_leaves_a_node_as_counted_one_by_one(
    size: int, stride: int, ranks_per_node: int
) -> None:
    nodes = placed(size, stride, ranks_per_node)["nodes"]
    if nodes == 1:
        return
    item = Collective(
        phase="step",
        kind="all-to-all",
        what="",
        message_bytes=size,
        num_ranks=size,
        nodes=nodes,
        rings_per_node=ranks_per_node,
    )
    groups = [[start + stride * i for i in range(size)] for start in range(stride)]
    pairs = [(a, b) for group in groups for a in group for b in group]
    leaving = sum(a // ranks_per_node == 0 != b // ranks_per_node for a, b in pairs)
    assert item.node_bytes == pytest.approx(leaving)


def test_ranks_of_a_node_decide_which_link() -> None:
    parallel = Parallel(tp=2, pp=4, dp=8)
    links = [
        {axis: {c.link for c in found if c.axis == axis} for axis in ("tp", "pp", "dp")}
        for found in (
            collectives(GPT, parallel, RECIPE, BATCH, ranks_per_node=size) for size in (8, 16, 64)
        )
    ]
    assert [found["tp"] for found in links] == 3 * [{"in a node"}]
    assert [found["dp"] == {"in a node"} for found in links] == [False, True, True]
    assert [found["pp"] == {"in a node"} for found in links] == [False, False, True]


def test_every_line_has_a_formula_and_a_source() -> None:
    parallel = Parallel(dp=8, tp=4, sp=True, cp=2, pp=2, ep=4, zero=3, secondary_group=8)
    found = collectives(MIXTRAL, parallel, RECIPE, replace(BATCH, recompute="full"))
    table = frame(found)
    assert (table["formula"].str.len() > 0).all()
    assert (table["source"].str.len() > 8).all()
    assert set(table["axis"]) == {"tp", "cp", "ep", "pp", "dp"}
    assert table["sent_bytes"].sum() == pytest.approx(sent(found))


def test_bad_requests_name_the_rule() -> None:
    with pytest.raises(BadValue, match=r"seq .* must divide by 2·cp"):
        collectives(GPT, Parallel(cp=3), RECIPE, BATCH)
    with pytest.raises(BadValue, match=r"heads .* must divide by tp"):
        collectives(GPT, Parallel(tp=3), RECIPE, BATCH)
    with pytest.raises(BadValue, match="ranks_per_node must be"):
        collectives(GPT, Parallel(), RECIPE, BATCH, ranks_per_node=0)
