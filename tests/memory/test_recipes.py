"""Recipes as the tools have them: states to the byte, steps inside the backward pass, buffers."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from labkit import memory
from labkit.errors import UsageError
from labkit.memory import Batch, Model, Parallel, Plan, Recipe
from labkit.memory.jobs.recipe import PRESETS, QUANTISED, state_bytes
from labkit.memory.oracles import tracker, ways
from labkit.memory.tape.mode import Mode
from labkit.memory.tape.step import Moment
from labkit.memory.traced import ranks
from labkit.models import TensorShape
from tests.memory.steps import GPT, LLAMA

SIZES = (4095, 4096, 4097, 128 * 33, 100 * 128)
"""Numbers of elements around the limits at which libraries quantise."""


def tensors(*shapes: tuple[int, ...], role: Any = "hidden") -> list[TensorShape]:
    return [TensorShape(name="t", shape=shape, unit="root", role=role) for shape in shapes]


# ---------------------------------------------------------------- states


def test_torchao_states_are_those_it_makes() -> None:
    """Bytes that torchao 0.14.1's ``_new_buffer`` made for bf16 parameters of :data:`SIZES`.

    Of 4,095 and 4,097 elements it quantises none, and 4,224 are whole blocks of 128 only.
    """
    made = {
        "adam-8bit-torchao": {"states": 33_792, "scales": 528, "tables": 4096, "plain": 49_664},
        "adam-4bit-torchao": {"states": 21_120, "scales": 1320, "tables": 384, "plain": 32_768},
        "adam-fp8-torchao": {"states": 33_792, "scales": 528, "tables": 0, "plain": 49_664},
    }
    for name, parts in made.items():
        ours = state_bytes(tensors(*((size,) for size in SIZES)), Recipe.preset(name))
        assert ours["momentum"] + ours["variance"] == parts["states"] + parts["plain"], name
        assert ours["scales"] == parts["scales"]
        assert ours.get("tables", 0) == parts["tables"]
        assert ours["step"] == 4 * len(SIZES)
        assert Recipe.preset(name).counters_on == "cpu"


@pytest.mark.parametrize("name", [name for name in QUANTISED if name.endswith("torchao")])
def test_torchao_states_beside_torchao(name: str) -> None:
    """The oracle: torchao itself, where it is installed (labkit does not need it)."""
    optim = pytest.importorskip("torchao.optim")
    import torch

    kinds = {"8bit": "AdamW8bit", "4bit": "AdamW4bit", "fp8": "AdamWFp8"}
    optimizer = getattr(optim, kinds[name.split("-")[1]])
    parameters = [torch.nn.Parameter(torch.zeros(n, dtype=torch.bfloat16)) for n in SIZES]
    made = optimizer(parameters)
    held = 0
    for parameter in parameters:
        for signed in (True, False):
            state = made._new_buffer(parameter, signed)
            parts = [getattr(state, part) for part in getattr(state, "tensor_attrs", ())]
            held += sum(part.nbytes for part in parts or [state])
    ours = state_bytes(tensors(*((size,) for size in SIZES)), Recipe.preset(name))
    assert sum(size for kind, size in ours.items() if kind != "step") == held


def test_bitsandbytes_keeps_embeddings_wide_and_pages_large_tensors() -> None:
    table = tensors((1000, 100), role="embedding")
    narrow = Recipe.preset("adam-8bit")
    assert sum(state_bytes(table, narrow).values()) == 2 * 100_000 + 2 * 4 * 391 + 2048
    assert state_bytes(table, replace(narrow, wide_embeddings=True)) == {
        "momentum": 400_000,
        "variance": 400_000,
    }
    paged = state_bytes(tensors((99_999,), (100_000,)), Recipe.preset("adam-32bit-paged"))
    assert paged == {
        "momentum": 399_996,
        "variance": 399_996,
        "paged momentum": 400_000,
        "paged variance": 400_000,
    }


def test_paged_states_are_on_the_host_and_no_part_of_the_peak() -> None:
    model = Model.preset("llama-2-7b")
    batch = Batch(seq=64)
    paged, plain = (
        Plan(model=model, recipe=Recipe.preset(name), batch=batch)
        for name in ("adam-8bit-paged", "adam-8bit")
    )
    away = paged.elsewhere()["num_bytes"].sum()
    assert plain.peak_bytes - paged.peak_bytes == away > 1.9 * model.num_params
    assert set(paged.elsewhere()["place"]) == {"cpu"}
    assert any("managed memory" in note for note in paged.assumptions)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("states", ["fp32", "bf16", "int8", "int4"])
def test_no_recipe_ignores_the_format_of_states(name: str, states: Any) -> None:
    """Each other format costs other bytes, or is refused; SGD without momentum has no states."""
    usual = Recipe.preset(name)
    if usual.optimizer in QUANTISED and states != "fp32":
        with pytest.raises(UsageError, match=f"states must be fp32 for {usual.optimizer}"):
            Recipe.preset(name, states=states)
        return
    other = Recipe.preset(name, states=states)
    model = Model.preset("gpt2-124m")
    same = state_bytes(model.tensors(), other) == state_bytes(model.tensors(), usual)
    assert same == (states == usual.states or not usual.momentum)


def test_frameworks_have_their_own_8_bit_adam() -> None:
    model = Model.preset("gpt2-124m")

    def of(framework: str) -> Recipe:
        return memory.FRAMEWORKS[framework].plan(model, recipe="adam-8bit", dp=2, seq=64).recipe

    assert of("deepspeed").master == of("megatron").master == "fp32"
    assert (of("hf-trainer").master, of("hf-trainer").wide_embeddings) == (None, True)


def test_torchaos_published_peaks() -> None:
    """pytorch/ao PR 746, Llama-2-7B on an A100 by torchtune, bf16: 52, 39, 39 and 33 GB."""
    told = {"pure-bf16": 52, "adam-8bit": 39, "adam-8bit-torchao": 39, "adam-4bit-torchao": 33}
    for name, peak_gb in told.items():
        plan = Plan(
            model=Model.preset("llama-2-7b"),
            recipe=Recipe.preset(name, step="fused"),
            batch=Batch(seq=512, micro_batch=2, recompute="full", gpu=True),
        )
        assert plan.peak_bytes / 1e9 == pytest.approx(peak_gb, rel=0.05), name


# ---------------------------------------------------------------- offloaded fractions


@pytest.mark.parametrize("batch", [None, Batch(seq=64)])
def test_a_fraction_of_the_optimizer_is_offloaded(batch: Batch | None) -> None:
    model = Model.preset("gpt2-124m")
    parallel = Parallel(dp=4, zero=3)

    def of(fraction: float) -> Plan:
        recipe = Recipe.mixed_adam(offload_optimizer="cpu", offload_fraction=fraction, step="fused")
        return Plan(model=model, parallel=parallel, recipe=recipe, batch=batch)

    def place(plan: Plan, where: str) -> float:
        table = plan.frame()
        chosen = (table["component"] == "optimizer") & (table["place"] == where)
        return float(table["num_bytes"][chosen].sum())

    whole = place(of(1.0), "cpu")
    half = of(0.5)
    assert place(half, "cpu") == pytest.approx(whole / 2, rel=1e-4)
    assert place(half, "device") == pytest.approx(whole / 2, rel=1e-4)
    assert half.peak_bytes - of(1.0).peak_bytes == pytest.approx(whole / 2, rel=1e-4)


def test_who_knows_no_fractions_refuses_them() -> None:
    recipe = Recipe.mixed_adam(offload_optimizer="cpu", offload_fraction=0.5)
    with pytest.raises(UsageError, match="offload_fraction must be 1, got"):
        memory.offload(10**9, Parallel(zero=2), recipe)


# ---------------------------------------------------------------- inside the backward pass


INSIDE = [
    (GPT, {}),
    (LLAMA, {}),
    (GPT, {"dtype": "autocast"}),
    (LLAMA, {"dtype": "fp32", "recompute": "full"}),
    (LLAMA.resized(tied=True, bias=True), {"recompute": "full", "loss": "chunked"}),
    (GPT, {"attention": "eager"}),
]


def plan_of(model: Model, mode: Mode, step: Any, **batch: Any) -> Plan:
    """The plan of a step whose parameters, gradients and states are in the mode's format."""
    formats: dict[str, Any] = dict.fromkeys(("parameters", "gradients", "states"), "bf16")
    if mode.dtype != "bf16":
        formats = dict.fromkeys(formats, "fp32")
    if mode.dtype == "autocast":
        formats |= {"compute": "bf16", "autocast": True}
    if step == "lomo":
        formats |= {"optimizer": "sgd", "momentum": False}
    recipe = Recipe(master=None, step=step, **formats)
    choices = {"recompute": mode.recompute, "loss": mode.loss, "attention": mode.attention}
    return Plan(model=model, recipe=recipe, batch=Batch(**(choices | batch)))


@pytest.mark.parametrize("step", ["backward", "backward-fused", "lomo"])
@pytest.mark.parametrize(("model", "choices"), INSIDE)
def test_a_step_inside_the_backward_pass_is_torchs_at_every_moment(
    model: Model, choices: dict[str, Any], step: str
) -> None:
    pytest.importorskip("torch")
    mode = Mode(**choices)
    plan = plan_of(model, mode, step, seq=16, micro_batch=2)
    seen = ways.track(model, mode, seq=16, micro_batch=2, step=step)
    # torch has them on the CPU unless the step is fused, and all is on a CPU here.
    counters = 4 * len(model.tensors()) if step == "backward" else 0
    told = plan.moments()["total"] + counters
    for moment, parts in seen.moments.items():
        if moment in told:
            assert told[moment] == parts["Total"], moment
    assert plan.peak_bytes + counters == seen.peak_bytes


def test_one_gradient_at_a_time() -> None:
    """Pure bf16 of Llama-2-7B: what is saved is nearly all gradients."""
    model = Model.preset("llama-2-7b")
    batch = Batch(seq=128, recompute="full")
    inside, after = (
        Plan(model=model, recipe=Recipe.preset(name, step=step), batch=batch)
        for name, step in (("adam-in-backward", "backward-fused"), ("pure-bf16", "fused"))
    )
    saved = after.peak_bytes - inside.peak_bytes
    assert 0.95 * 2 * model.num_params < saved < 2 * model.num_params
    assert "gradients" not in inside.moments()  # each is gone before anything else is made
    assert inside.states_bytes < after.states_bytes


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"step": "backward", "accumulation": 2}, "accumulation must be 1"),
        ({"step": "backward", "gradients": "fp32"}, "gradients must be bf16"),
        ({"step": "lomo"}, "optimizer must be sgd without momentum where the step is lomo"),
        ({"step": "backward", "optimizer": "muon"}, "optimizer must not be muon"),
        ({"step": "backward", "gradient_buffer": True}, "gradient_buffer must be False"),
        ({"offload_fraction": 0.5}, "offload_optimizer must be cpu or nvme"),
        ({"paged": True, "optimizer": "sgd"}, "paged must be False for sgd"),
        ({"paged": True, "offload_optimizer": "cpu"}, "offload_optimizer must be device"),
        ({"wide_embeddings": True}, "wide_embeddings must be False for adam"),
    ],
)
def test_what_no_tool_does_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Recipe(**({"master": None} | said))


def test_a_step_inside_the_backward_pass_is_of_one_rank() -> None:
    recipe = Recipe.preset("adam-in-backward")
    model = Model.preset("gpt2-124m")
    with pytest.raises(UsageError, match="dp, tp, cp and pp must be 1"):
        _ = Plan(model=model, parallel=Parallel(dp=2), recipe=recipe, batch=Batch(seq=8)).peak_bytes
    with pytest.raises(UsageError, match="loss must not be fused"):
        _ = Plan(model=model, recipe=recipe, batch=Batch(seq=8, loss="fused")).peak_bytes
    with pytest.raises(UsageError, match="step must not be backward in the papers' arithmetic"):
        Plan(model=10**9, recipe=recipe)


# ---------------------------------------------------------------- buffers of frameworks


@pytest.mark.parametrize("reduce", ["bf16", "fp32"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_fsdps_own_casts_leave_autocast_nothing_to_keep(
    model: Model, recompute: Any, reduce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FSDP2 with bf16 parameters under autocast, as accelerate wraps a model: no cached weights."""
    torch = pytest.importorskip("torch")
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from labkit.memory.oracles import worker

    formats = {"bf16": torch.bfloat16, "fp32": torch.float32}
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=formats[reduce])
    monkeypatch.setattr(worker, "fully_shard", partial(fully_shard, mp_policy=policy))
    parallel = Parallel(dp=4, zero=3)
    mode = Mode(dtype="autocast", recompute=recompute)
    sizes = {"seq": 30, "micro_batch": 3}
    seen = tracker.track(model, mode, step="fused", parallel=parallel, **sizes)
    recipe = Recipe.preset("fsdp-bf16", reduce=reduce, step="fused")
    batch = Batch(recompute=recompute, **sizes)
    plan = Plan(model=model, parallel=parallel, recipe=recipe, batch=batch)
    assert plan.peak_bytes == seen.peak_bytes
    assert "cached weights" not in plan.moments()


def test_transformers_trainer_at_stage_3_is_accelerates_fsdp() -> None:
    model = Model.preset("mistral-7b")
    plan = memory.FRAMEWORKS["hf-trainer"].plan(model, dp=8, zero=3, seq=2048)
    assert plan.recipe == Recipe.preset("fsdp-bf16-reduce", step="fused")
    assert "cached weights" not in plan.moments()
    assert plan.parallel.wrap == "blocks"
    said = memory.FRAMEWORKS["hf-trainer"].plan(
        model, dp=8, zero=3, seq=2048, recipe="bf16-autocast"
    )
    assert said.recipe.autocast


@pytest.mark.parametrize("view", [False, True])
def test_torchs_data_parallelism_keeps_its_buckets(view: bool) -> None:
    """The oracle: DistributedDataParallel itself on ranks that are not there, three steps long."""
    torch = pytest.importorskip("torch")
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.nn.parallel import DistributedDataParallel

    def total() -> int:
        return sum(part["Total"] for part in watch._curr_mem_snap.values())

    def done(tensor: Any) -> Any:
        future = torch.futures.Future()
        future.set_result(tensor)
        return future

    network = torch.nn.Sequential(*(torch.nn.Linear(100, 100) for _ in range(3)))
    size = sum(parameter.nbytes for parameter in network.parameters())
    watch = MemTracker()
    watch.track_external(network)
    with ranks.fake_group(4), watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = total()
        parallel = DistributedDataParallel(network, gradient_as_bucket_view=view)
        parallel.register_comm_hook(None, lambda _, bucket: done(bucket.buffer()))
        for _ in range(3):
            watch.reset_mod_stats()
            parallel(torch.ones(2, 100)).sum().backward()
        stepped = total() - before
        parallel.zero_grad(set_to_none=True)
        after = total() - before
    assert (stepped, after) == (size if view else 2 * size, size)
    buckets: Any = "views" if view else "copies"
    plan = Plan(
        model=GPT,
        parallel=Parallel(dp=4, gradient_buckets=buckets),
        recipe=Recipe.fp32_adam(),
        batch=Batch(seq=8),
    )
    table = plan.moments()
    held = table["gradients"] + (0 if view else table["reduce buffers"])
    whole = 4 * GPT.num_params
    assert held[Moment.INIT] == whole
    assert held[Moment.STEP] == (whole if view else 2 * whole)


def test_deepspeeds_bucket_is_there_throughout_at_stage_3() -> None:
    model = Model.preset("gpt2-124m")

    def of(size: int) -> Any:
        plan = memory.FRAMEWORKS["deepspeed"].plan(model, dp=4, seq=64, reduce_bucket_size=size)
        return plan.moments()["total"]

    assert set(of(10**6) - of(0)) == {2e6}
    usual = memory.FRAMEWORKS["deepspeed"].plan(model, dp=4, seq=64)
    assert usual.moments()["reduce buffers"].min() == 1e9


def test_buckets_are_of_stage_0() -> None:
    with pytest.raises(UsageError, match="gradient_buckets must be none unless zero is 0"):
        Parallel(dp=2, zero=1, gradient_buckets="copies")
    hf = memory.FRAMEWORKS["hf-trainer"]
    gpt = Model.preset("gpt2-124m")
    assert hf.plan(gpt, dp=2, seq=8).parallel.gradient_buckets == "copies"
    assert hf.plan(gpt, seq=8).parallel.gradient_buckets == "none"
    assert hf.plan(gpt, dp=2, zero=2, seq=8).parallel.gradient_buckets == "none"


# ---------------------------------------------------------------- activations on the host


AWAY: list[tuple[Model, dict[str, Any]]] = [
    (GPT, {}),
    (LLAMA, {}),
    (LLAMA, {"recompute": "full"}),
    (GPT, {"dtype": "autocast", "recompute": "full"}),
    (LLAMA, {"dtype": "autocast", "recompute": "operators"}),
    (LLAMA, {"dtype": "fp32", "recompute": "selective"}),
    (LLAMA, {"attention": "eager", "norm_fused": False}),
    (GPT, {"loss": "chunked"}),
]


@pytest.mark.parametrize(("model", "choices"), AWAY)
def test_saved_tensors_on_the_host_are_torchs_at_every_moment(
    model: Model, choices: dict[str, Any]
) -> None:
    pytest.importorskip("torch")
    mode = Mode(**choices)
    batch = {"norm_fused": mode.norm_fused, "offload_activations": "cpu"}
    plan = plan_of(model, mode, "fused", seq=24, micro_batch=3, **batch)
    seen = ways.track(model, mode, seq=24, micro_batch=3, step="fused", offload=True)
    told = plan.moments()["total"]
    for moment, parts in seen.moments.items():
        if moment in told:
            assert told[moment] == parts["Total"], moment
    assert plan.peak_bytes == seen.peak_bytes
    table = memory.check(plan)
    assert table["difference_bytes"].iloc[-1] == 0


def test_torch_packs_as_the_oracle_does() -> None:
    """``save_on_cpu`` keeps a copy of every tensor it is given and makes a new one each time."""
    torch = pytest.importorskip("torch")
    from torch.autograd.graph import save_on_cpu

    x = torch.ones(4, 6, requires_grad=True)
    with save_on_cpu(pin_memory=False):
        y = x * x
    hooks = save_on_cpu(pin_memory=False)
    packed = hooks.pack_hook(x)
    assert packed[1].shape == hooks.unpack_hook(packed).shape == x.shape
    y.sum().backward()
    assert x.grad is not None


def test_checkpoints_on_the_host_leave_the_device() -> None:
    """layers × tokens × hidden × 2 bytes (and rotary tables), as F5 of the trials asked."""
    model = Model.preset("llama-3-8b")
    recipe = Recipe.preset("pure-bf16", step="fused")
    here, there = (
        Plan(
            model=model,
            recipe=recipe,
            batch=Batch(seq=8192, recompute="full", offload_activations=place),
        )
        for place in ("device", "cpu")
    )
    inputs = 32 * 8192 * 4096 * 2
    saved = here.moments()["total"] - there.moments()["total"]
    assert saved[Moment.LOSS_BACKWARD] >= inputs
    away = there.elsewhere().set_index("component")["num_bytes"]
    assert away["activation.input"] == inputs
    assert set(there.elsewhere()["place"]) == {"cpu"}
    frame = there.frame()
    assert frame["num_bytes"][frame["place"] == "cpu"].sum() == pytest.approx(away.sum())


def test_who_offloads_no_activations() -> None:
    with pytest.raises(UsageError, match="offload_activations must be device where formula"):
        Batch(seq=8, formula="zero-paper", offload_activations="cpu")
    batch = Batch(seq=8, offload_activations="cpu")
    adapters = Plan(model=Model.preset("llama-2-7b"), recipe=Recipe.preset("lora"), batch=batch)
    refused = "offload_activations must be device where parameters are frozen"
    with pytest.raises(UsageError, match=refused):
        _ = adapters.peak_bytes


# ---------------------------------------------------------------- losses in parts


@pytest.mark.parametrize("chunks", [3, 4, 7])
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "autocast"])
@pytest.mark.parametrize("model", [GPT, LLAMA.resized(vocab=1001)])
def test_logits_made_in_parts_are_torchtunes_at_every_moment(
    model: Model, dtype: Any, chunks: int
) -> None:
    pytest.importorskip("torch")
    mode = Mode(dtype=dtype, loss="chunked-output")
    sizes = {"seq": 29, "micro_batch": 3}
    plan = plan_of(model, mode, "fused", loss_chunks=chunks, **sizes)
    seen = ways.track(model, mode, step="fused", chunks=chunks, **sizes)
    told = plan.moments()["total"]
    for moment, parts in seen.moments.items():
        if moment in told:
            assert told[moment] == parts["Total"], moment
    assert plan.peak_bytes == seen.peak_bytes


@pytest.mark.parametrize(
    ("recompute", "dtype", "held"),
    [
        ("none", "bf16", "none"),
        ("full", "bf16", "compute"),
        ("none", "fp32", "fp32"),
        ("full", "autocast", "none"),
    ],
)
@pytest.mark.parametrize("model", [GPT, LLAMA.resized(vocab=1001)])
def test_a_loss_of_shifted_logits_is_that_of_older_transformers_at_every_moment(
    model: Model, recompute: Any, dtype: Any, held: Any
) -> None:
    """In 4.48 the fp32 logits were copied without each sample's last token."""
    pytest.importorskip("torch")
    older = ("shifted-loss", "loss-beside")
    mode = Mode(dtype=dtype, older=older, recompute=recompute, logits_held=held)
    sizes = {"seq": 29, "micro_batch": 3}
    plan = plan_of(replace(model, operators=older), mode, "fused", logits_held=held, **sizes)
    seen = tracker.track(model, mode, step="fused", **sizes)
    told = plan.moments()["total"]
    for moment, parts in seen.moments.items():
        if moment in told:
            assert told[moment] == parts["Total"], moment
    assert plan.peak_bytes == seen.peak_bytes


@pytest.mark.parametrize("loss", ["chunked", "chunked-output", "fused"])
def test_parts_of_the_loss_by_number_and_by_tokens(loss: Any) -> None:
    model = Model.preset("gpt2-124m")

    def peak(**said: Any) -> Any:
        batch = Batch(seq=512, micro_batch=4, loss=loss, recompute="full", **said)
        return Plan(model=model, batch=batch, recipe=Recipe.preset("pure-bf16"))

    assert peak(loss_chunk_tokens=256).peak_bytes == peak(loss_chunks=8).peak_bytes
    wide = [peak(loss_chunk_tokens=tokens).moments()["total"] for tokens in (1024, 100)]
    assert wide[0].max() >= wide[1].max()
    swept = memory.sweep(peak(loss_chunk_tokens=100), seq=[256, 512], micro_batch=[1, 4])
    alone = [
        Plan(
            model=model,
            recipe=Recipe.preset("pure-bf16"),
            batch=replace(
                peak(loss_chunk_tokens=100).batch, seq=row.seq, micro_batch=row.micro_batch
            ),
        ).peak_bytes
        for row in swept.itertuples()
    ]
    assert list(swept["peak_bytes"]) == alone


def test_ligers_rule_for_the_number_of_parts() -> None:
    """Llama-3-8B, 8,192 tokens: ⌈128256/4096⌉ = 32 wide, ⌈8192/32⌉ = 256 tokens a part."""
    model = Model.preset("llama-3-8b")

    def peak(**said: Any) -> float:
        batch = Batch(seq=8192, loss="fused", recompute="full", **said)
        return Plan(model=model, recipe=Recipe.preset("pure-bf16"), batch=batch).peak_bytes

    assert peak(loss_chunks="liger") == peak(loss_chunk_tokens=256) == peak(loss_chunks=32)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"loss_chunk_tokens": 8}, "loss must be chunked, chunked-output or fused"),
        ({"loss": "chunked", "loss_chunks": "liger"}, "loss_chunks must be a number"),
        ({"loss": "fused", "loss_chunks": 4, "loss_chunk_tokens": 8}, "loss_chunks must be left"),
    ],
)
def test_parts_that_the_loss_would_ignore_are_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Batch(seq=64, **said)
