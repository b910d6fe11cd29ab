"""Whatever is asked of memory: an answer, or one paragraph that says what is wrong."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

from labkit.errors import BadValue, LabkitError
from labkit.hardware import Link
from labkit.memory import (
    Batch,
    Model,
    Parallel,
    Plan,
    Recipe,
    compare,
    fit,
    offload,
    sweep,
)
from labkit.memory.jobs.traffic import Collective

WRONG: tuple[Any, ...] = (
    None, "text", "", float("nan"), float("inf"), -float("inf"), -1, 0, 9.5, [], {}, (), object(),
    True, b"bytes", 10**30, ["a"], {"a": 1}, print,
)  # fmt: skip
GPT = Model.preset("gpt2-124m")
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
RECORDS = (Batch, Collective, Model, Parallel, Plan, Recipe)
LINK = Link(name="a link", bytes_per_s=1e9, latency_s=1e-6, source="this test")
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "fit": (fit, {"plan": PLAN, "vary": "micro_batch", "device": 10**10}),
    "fit a count": (fit, {"plan": COUNT, "vary": "model", "device": 10**10}),
    "sweep": (sweep, {"plan": PLAN, "device": 10**10, "micro_batch": [1, 2], "zero": [0, 1]}),
    "sweep a count": (sweep, {"plan": COUNT, "links": (LINK, LINK), "dp": [8, 16]}),
    "compare": (compare, {"plans": {"a": PLAN}}),
    "offload": (offload, {"model": GPT, "parallel": Parallel(), "recipe": Recipe()}),
    "Parallel.of": (Parallel.of, {"world_size": 8, "tp": 2}),
    "Recipe.preset": (Recipe.preset, {"name": "sgd"}),
    "Plan.explain": (PLAN.explain, {"component": "activation"}),
    "Plan.fits": (PLAN.fits, {"capacity": 10**9, "headroom": 0.5}),
    "Plan.usable_bytes": (PLAN.usable_bytes, {"capacity": 10**9, "headroom": 0.5}),
    "Plan.traffic": (PLAN.traffic, {"ranks_per_node": 4}),
}


@contextlib.contextmanager
def answer_or_paragraph() -> Iterator[None]:
    try:
        yield
    except LabkitError as error:
        text = str(error)
        assert text.strip()
        assert "\n" not in text


def kinds(record: type) -> list[str]:
    return [field.name for field in fields(record)]


@pytest.mark.parametrize(
    ("record", "name"),
    [(record, name) for record in RECORDS for name in kinds(record)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_field_takes_every_wrong_kind(record: Any, name: str) -> None:
    """What is accepted must also do: a plan made of it answers."""
    for value in WRONG:
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


@pytest.mark.parametrize("case", CALLS)
def test_every_argument_takes_every_wrong_kind(case: str) -> None:
    function, given = CALLS[case]
    names = set(given) | {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and name != "cls"
    }
    function(**given)  # as it is meant
    for name in sorted(names):
        for value in WRONG:
            with answer_or_paragraph():
                function(**(given | {name: value}))


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
        "shard_rule": ("dim0", "flat", "tensor"),
    },
    "recipe": {
        "optimizer": ("adam", "sgd", "adafactor", "muon", "adam-8bit"), "momentum": (True, False),
        "master": (None, "fp32"), "compute": (None, "bf16", "fp8"), "autocast": (True, False),
        "reduce": (None, "int4"), "reduce_bucket_size": (0, 10**8), "overlap_comm": (True, False),
        "step": ("foreach", "fused", "for-loop"), "accumulation": (1, 8), "amsgrad": (True, False),
        "gradient_buffer": (True, False),
        "offload_parameters": ("device", "cpu", "nvme"), "offload_optimizer": ("device", "nvme"),
        "offload_gradients": ("device", "cpu"), "second_gradients": (None, "fp32"),
    },
    "batch": {
        "seq": (1, 64, 1000, 4096), "micro_batch": (1, 3), "recompute_group": (1, 3),
        "recompute": ("none", "selective", "full", 1, 2, 99), "attention": ("eager", "flash"),
        "dropout_mask_bytes": (0, 1), "norm_fused": (True, False), "loss_chunks": (1, 2, 8),
        "swiglu_fused": (True, False),
        "loss": ("eager-fp32", "chunked", "fused"), "partition_checkpoints": (True, False),
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
