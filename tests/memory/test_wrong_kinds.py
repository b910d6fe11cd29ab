"""Whatever is asked of memory: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from torch import nn

from labkit import memory
from labkit.errors import BadValue, LabkitError
from labkit.hardware import Link
from labkit.memory import Adapter, Batch, Cluster, Model, Network, Parallel, Plan, Recipe, Update
from labkit.memory.jobs.traffic import Collective
from labkit.memory.oracles import oracle
from labkit.memory.oracles.families import CONFIGS
from tests import kinds

GPT = Model.preset("gpt2-124m")
LLAMA = Model.preset("llama-2-7b")
PLAN = Plan(model=GPT, batch=Batch(seq=64))
COUNT = Plan(model=10**9, parallel=Parallel(dp=8, zero=1))
NEEDED: dict[type, dict[str, Any]] = {
    Batch: {"seq": 64},
    Plan: {"model": GPT, "batch": Batch(seq=64)},
    Model: {"num_layers": 2, "hidden": 64, "heads": 4, "vocab": 100},
    Collective: {
        "phase": "step", "kind": "all-reduce", "what": "gradients", "message_bytes": 8.0,
        "num_ranks": 2,
    },
}  # fmt: skip
RECORDS = (Adapter, Batch, Collective, Model, Parallel, Plan, Recipe)
COLLECTIVE = Collective(**NEEDED[Collective])
SMALL = Plan(
    model=Model(num_layers=1, hidden=8, heads=2, vocab=16),
    recipe=Recipe.fp32_adam(),
    batch=Batch(seq=4),
)
TRAINED = Plan(model=GPT, parallel=Parallel(dp=8), batch=Batch(seq=64))
LINK = Link(name="a link", bytes_per_s=1e9, latency_s=1e-6, source="this test")
UPDATE = Update(s_per_param=1e-9, link_bytes_per_s=1e10)
CLUSTER = Cluster(flops_per_s=1e14, ring=LINK, node=LINK, inside=LINK)


def fields_of(valid: Any) -> dict[str, Any]:
    return {field.name: getattr(valid, field.name) for field in fields(valid) if field.init}


def examples() -> Mapping[str, Mapping[str, Any]]:
    capacity: dict[str, Any] = {"capacity": 10**9, "headroom": 0.5}
    fit_of: dict[str, Any] = {"device": 10**10, "headroom": 0.9}
    swept = memory.sweep(PLAN, dp=[8, 16], links=(LINK, LINK))
    bars = pd.DataFrame(
        {"model": ["a"], "plan": ["b"], "component": ["parameters"], "size_gb": [1.0]}
    )
    least = pd.DataFrame({"model": ["a"], "plan": ["b"], "dp": [8]})
    return {
        **{type(each).__name__: fields_of(each) for each in described()},
        "Adapter.on_base_of": {"other": memory.Adapter(base="nf4")},
        "Adapter.from_peft": {"config": {"r": 8, "target_modules": ["q_proj"]}, "model": LLAMA},
        "Cluster.of_servers": {"flops_per_s": 1e14, "gbit_per_s": 100.0},
        "Cluster.scaled": {"rate": "ring", "factor": 2.0},
        "Cluster.time_s": {"item": COLLECTIVE},
        "Network.from_hf": {"config": CONFIGS["opt"], "architecture": "OPTForCausalLM"},
        "Network.from_module": {"module": nn.Linear(2, 2), "inputs": dict, "name": "n"},
        "Network.preset": {"name": "bert-base"},
        "inference": {
            "network": Network.from_hf(CONFIGS["opt"]),
            "batch": PLAN.batch,
            "parameters": "bf16",
        },
        "Parallel.check": {"model": GPT, "batch": PLAN.batch},
        "Parallel.of": {"world_size": 8, "degrees": {"tp": 2}},
        "Plan.collectives": {"ranks_per_node": 4},
        "Plan.explain": {"component": "activation"},
        "Plan.fits": capacity,
        "Plan.traffic": {"ranks_per_node": 4},
        "Plan.usable_bytes": capacity,
        "Recipe.bf16_mixed": {"changes": {"accumulation": 2}},
        "Recipe.check_offload": {"zero": 3},
        "Recipe.fp32_adam": {"changes": {"accumulation": 2}},
        "Recipe.mixed_adam": {"changes": {"accumulation": 2}},
        "Recipe.preset": {"name": "sgd", "changes": {"accumulation": 2}},
        "check": {"plan": SMALL, "oracle": "fake"},
        "compare": {"plans": {"a": PLAN}},
        "convention_terms": {
            "convention": "megatron",
            "model": GPT,
            "parallel": Parallel(),
            "recipe": Recipe(),
            "batch": PLAN.batch,
        },
        "differences": {"plan": PLAN},
        "figure_fits": {"bars": bars, "frontier": least, "capacity_gb": 80.0},
        "figure_moments": {"table": PLAN.moments(), "look": {"title": "t"}},
        "figure_pairs": {
            "table": pd.DataFrame({"a": ["x"], "predicted_bytes": [1.0], "measured_bytes": [2.0]}),
            "category": "a",
        },
        "figure_states": {"table": memory.compare({"a": PLAN}), "capacity_gb": 8.0, "title": "t"},
        "figure_sweep": {"table": swept.assign(plan="a"), "y": "peak_bytes", "x": "dp"},
        "fit": {"plan": PLAN, "vary": "micro_batch", **fit_of},
        "features": {"plan": PLAN},
        "limits": {"plan": PLAN, **fit_of},
        "of": {"plan": PLAN, "framework": "megatron"},
        "fit:count": {"plan": COUNT, "vary": "model", **fit_of},
        "offload": {"model": GPT, "parallel": Parallel(), "recipe": Recipe()},
        "peak_errors": {"framework": None},
        "peaks": {"path": None},
        "rivals": {
            "model": GPT,
            "cluster": CLUSTER,
            "methods": ["ZeRO-3"],
            "gpus": 16,
            "partition_group": 8,
            "seq": 64,
        },
        "split_layers": {"num_layers": 12, "num_stages": 2, "split": "even"},
        "sweep": {
            "plan": PLAN,
            **fit_of,
            "links": (LINK, LINK),
            "ranks_per_node": 8,
            "axes": {"micro_batch": [1, 2], "zero": [0, 1]},
        },
        "sweep:count": {"plan": COUNT, "axes": {"dp": [8, 16]}},
        "updated_step": {"plan": TRAINED, "cluster": CLUSTER, "update": UPDATE},
    }


def described() -> tuple[Any, ...]:
    return (PLAN, GPT, Parallel(dp=8, tp=2), Recipe(), Batch(seq=64), CLUSTER, UPDATE, Adapter())


def objects() -> Mapping[str, Any]:
    network = Network.from_hf(CONFIGS["opt"])
    return {type(each).__name__: each for each in (*described(), network)}


OWN = ("from_hf", "from_module", "preset")
INNER = (
    "Adapter.base_bytes",
    "Adapter.check",
    "Adapter.packed_rows",
    "Adapter.scale_bytes",
    "Adapter.prompt_shapes",
    "Batch.num_checkpoints",
    "Batch.num_recomputed",
    "Parallel.elements",
    "Parallel.in_flight",
    "Parallel.stage_layers",
    "Parallel.stages",
    "Parallel.units",
    "Recipe.bytes_of",
    "Recipe.refuse_adapter",
    "Recipe.refuse_fraction",
)
ROOM = kinds.Room(
    memory,
    examples,
    objects,
    left_out={
        "measure": "it starts a process a rank: test_what_is_measured_on_ranks asks it",
        **dict.fromkeys(INNER, "plans ask it, for every point of a sweep, of what they checked"),
        **dict.fromkeys(
            ("Model", *(f"Model.{name}" for name in kinds.methods(Model))),
            "tests/test_models_wrong_kinds.py asks it",
        ),
        **dict.fromkeys(
            ("Network", *(f"Network.{name}" for name in kinds.methods(Network) if name not in OWN)),
            "they are a Model's, and a Network is made by its own three",
        ),
    },
    also={
        "Adapter.from_peft.model": "no target of",
        "Parallel.of.world_size": "world size",
        "Plan.model": "bare parameter count",
        "figure_sweep.table": "column of a sweep",
        "check.plan": "oracle 'fake' needs",
        "split_layers.num_stages": "the stages",
        "rivals.methods": "no method|heads",
        "rivals.gpus": "Parallel.dp|dp × cp",
        "fit.plan": "no quantity to vary",
    },
    strange={
        r"(_bytes|_s)\.nan": "what a sweep cannot have: its column problem says why",
        r"\b(dp|zero)\.(nan|inf)": "a degree that was asked for",
        r"\bvalue\.nan": "nothing fits, or no next is tried: the column binds of limits says so",
    },
    thin={"": 3},
)


@contextlib.contextmanager
def answer_or_paragraph() -> Iterator[None]:
    try:
        yield
    except LabkitError as error:
        text = str(error)
        assert text.strip()
        assert "\n" not in text


def test_every_public_call_has_an_example() -> None:
    ROOM.check_examples()


@pytest.mark.parametrize("name", ROOM.names())
def test_odd_values(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ROOM.check(name)


def test_what_is_measured_on_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: Any, **__: Any) -> None:
        raise LabkitError("ranks would start")

    monkeypatch.setattr(oracle, "on_ranks", started)
    given = {"model": SMALL.model, "schemes": ("ddp",), "ranks": (2,), "seq": 4}
    assert kinds.problem(lambda: memory.measure(**given)) == ""
    names = ("model", "schemes", "ranks", "steps", "group", "seq", "rng", "timeout_s")
    assert kinds.problems(memory.measure, given, names) == []


@pytest.mark.parametrize(
    ("record", "name"),
    [(record, field.name) for record in RECORDS for field in fields(record)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_field_takes_every_wrong_kind(record: Any, name: str) -> None:
    """What is accepted must also do: a plan made of it answers."""
    for value in kinds.WRONG:
        with answer_or_paragraph():
            made = record(**(NEEDED.get(record, {}) | {name: value}))
            use(made)


def use(made: Any) -> None:
    """Ask a description something, so that a wrong value it lets through is not lost."""
    if isinstance(made, Batch):
        ask(Plan(model=GPT, batch=made))
    elif isinstance(made, Recipe):
        ask(Plan(model=GPT, recipe=made, batch=Batch(seq=64)))
    elif isinstance(made, Parallel):
        ask(Plan(model=GPT, parallel=made, batch=Batch(seq=64)))
    elif isinstance(made, Model):
        ask(Plan(model=made, batch=Batch(seq=64)))
    elif isinstance(made, Plan):
        ask(made)
    elif isinstance(made, Collective):
        assert made.time_s(LINK, LINK) >= 0


@pytest.mark.parametrize(
    ("record", "name", "value"),
    [
        (Recipe, "accumulation", float("nan")),
        (Model, "vocab", 9.5),
        (Model, "tied", "no"),
        (Batch, "seq", True),
        (Batch, "loss_chunks", 2.5),
        (Parallel, "sp", "yes"),
        (Parallel, "zero", True),
        (Parallel, "layers", (float("inf"),)),
        (Plan, "model", "gpt2-124m"),
        (Plan, "fragmentation", "0.1"),
        (Plan, "context_bytes", float("nan")),
        (Collective, "message_bytes", float("nan")),
    ],
)
def test_what_was_once_accepted_or_raised_raw_is_refused(
    record: Any, name: str, value: Any
) -> None:
    with pytest.raises(BadValue, match=f"{record.__name__}.{name} must be"):
        record(**(NEEDED.get(record, {}) | {name: value}))


def ask(plan: Plan) -> None:
    """Every question a plan answers; each by itself may be refused."""
    questions: tuple[Callable[[], Any], ...] = (
        lambda: plan.peak_bytes,
        lambda: plan.peak_moment,
        lambda: plan.states_bytes,
        plan.frame,
        plan.terms,
        plan.moments,
        plan.elsewhere,
        plan.collectives,
        plan.traffic,
        lambda: plan.assumptions,
        lambda: plan.explain("parameters"),
    )
    for question in questions:
        with answer_or_paragraph():
            question()
    with contextlib.suppress(LabkitError):
        assert plan.peak_bytes >= 0


# Valid values of every argument and of what it is made of: what goes together is not looked at.
MODELS = (10**9, GPT, "llama-2-7b", "mixtral-8x7b", "deepseek-v3", "gpt2-124m", "tiny-gpt")
PARTS: dict[str, dict[str, tuple[Any, ...]]] = {
    "parallel": {
        "dp": (1, 2, 3, 8), "tp": (1, 2, 3), "sp": (True, False), "cp": (1, 2), "pp": (1, 2, 5),
        "layers": (None, (6, 6), (32,)), "chunks": (1, 2), "zero": (0, 1, 2, 3),
        "schedule": ("1f1b", "gpipe", "interleaved-1f1b", "zb-v", "dualpipe", "unknown"),
        "ep": (1, 2, 4), "partition_group": (None, 2, 3),
        "replicate": (1, 2), "secondary_group": (None, 2), "reshard_after_forward": (True, False),
        "shard_rule": ("dim0", "flat", "tensor"), "cp_exchange": ("all-gather", "ring"),
        "gradient_buckets": ("none", "views", "copies"),
    },
    "recipe": {
        "optimizer": ("adam", "sgd", "adafactor", "muon", "adam-8bit", "adam-4bit-torchao"),
        "momentum": (True, False), "paged": (True, False), "offload_fraction": (1.0, 0.5),
        "master": (None, "fp32"), "compute": (None, "bf16", "fp8"), "autocast": (True, False),
        "reduce": (None, "int4"), "reduce_bucket_size": (0, 10**8), "overlap_comm": (True, False),
        "step": ("foreach", "fused", "for-loop", "backward", "lomo"), "accumulation": (1, 8),
        "amsgrad": (True, False), "gradient_buffer": (True, False),
        "trained": ((), ("head",), ("layers.0-1", "norm"), ("layers.5.mlp",)),
        "offload_parameters": ("device", "cpu", "nvme"), "offload_optimizer": ("device", "nvme"),
        "offload_gradients": ("device", "cpu"), "second_gradients": (None, "fp32"),
    },
    "batch": {
        "seq": (1, 64, 1000, 4096), "micro_batch": (1, 3), "recompute_group": (1, 3),
        "recompute": ("none", "selective", "full", 1, 2, 99), "attention": ("eager", "flash"),
        "dropout_mask_bytes": (0, 1), "norm_fused": (True, False), "loss_chunks": (1, 2, 8),
        "swiglu_fused": (True, False), "input_gradients": (True, False),
        "loss": ("eager-fp32", "chunked", "chunked-output", "fused"),
        "offload_activations": ("device", "cpu"), "loss_chunk_tokens": (None, 7, 512),
        "partition_checkpoints": (True, False),
        "workspace_bytes": (0, 2**25), "layer_workspace_bytes": (0, 2**22),
        "formula": (None, "zero-paper"),
    },
    "plan": {
        "fragmentation": (0.0, 0.5), "ideal": (True, False),
        "context_bytes": (0, 10**9),
    },
}  # fmt: skip


def odd_plan(rng: random.Random) -> Plan:
    """A plan with some of its arguments, and of their fields, away from the default."""

    def some(part: str, most: int) -> dict[str, Any]:
        names = rng.sample(sorted(PARTS[part]), rng.randint(0, most))
        return {name: rng.choice(PARTS[part][name]) for name in names}

    model = rng.choice(MODELS)
    batch = Batch(**({"seq": 64} | some("batch", 4))) if rng.random() < 0.7 else None
    return Plan(
        model=Model.preset(model) if isinstance(model, str) and rng.random() < 0.9 else model,
        parallel=Parallel(**some("parallel", 4)),
        recipe=Recipe(**some("recipe", 4)),
        batch=batch,
        **some("plan", 2),
    )


def test_two_hundred_odd_combinations_of_a_plans_arguments() -> None:
    rng = random.Random(9)
    answered = 0
    refused = 0
    while answered < 200:
        try:
            plan = odd_plan(rng)
        except LabkitError:
            refused += 1
            continue
        ask(plan)
        answered += 1
    assert refused > 100  # else the combinations are not odd
    assert replace(COUNT, fragmentation=0.5).fragmentation == 0.5


def test_required_fields_are_named() -> None:
    for record in RECORDS:
        needed = [
            field.name
            for field in fields(record)
            if field.default is MISSING and field.default_factory is MISSING
        ]
        for name in needed:
            rest = {key: value for key, value in NEEDED[record].items() if key != name}
            with pytest.raises(BadValue, match=name):
                record(**rest)
