"""The training steps on which formulas and torch's tracker are held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from labkit.memory.jobs.states import dealt
from labkit.memory.plans.estimate import fullest_moment
from labkit.memory.plans.job import rank_shape
from labkit.memory.tape import moments
from labkit.memory.tape.saved import Mode
from labkit.memory.tape.sizes import Numbers, shape_of
from labkit.memory.tape.step import Moment
from labkit.models import Model, TensorShape

if TYPE_CHECKING:
    from tests.oracles.packing import Packing

GPT = Model(num_layers=3, hidden=48, heads=4, vocab=101, positions=40)
LLAMA = Model(
    num_layers=3,
    hidden=64,
    heads=4,
    kv_heads=2,
    ffn=88,
    vocab=97,
    tied=False,
    bias=False,
    mlp="swiglu",
    norm="rmsnorm",
    fused_qkv=False,
)
UNGROUPED = LLAMA.resized(kv_heads=4)
WIDE = LLAMA.resized(head_dim=24)  # the heads together wider than the hidden size
STEPS = ("foreach", "fused", "for-loop")

Case = tuple[Model, Mode, tuple[tuple[str, Any], ...]]


def grid() -> list[Any]:
    """Every number format, attention and recomputation with every other, for both kinds of block;
    the sizes, and what is left to choose, change from one to the next."""
    sizes = cycle([(2, 12), (1, 16), (3, 33), (2, 7), (4, 20)])
    heads = cycle([4, 1, 2, 8])
    llamas = cycle([LLAMA, UNGROUPED, WIDE])
    fused = cycle([True, False])
    steps = cycle(STEPS)
    losses = cycle(["eager-fp32", "eager-fp32", "loss-parallel"])
    found = []
    for dtype, attention, recompute in product(
        ("bf16", "fp32", "autocast"), ("sdpa", "eager"), ("none", "selective", "full")
    ):
        for model in (GPT.resized(heads=next(heads), head_dim=0), next(llamas)):
            mode = Mode(dtype=dtype, attention=attention, recompute=recompute, loss=next(losses))
            mode = replace(mode, norm_fused=model.mlp == "gelu" or next(fused))
            given = dict(zip(("micro_batch", "seq"), next(sizes), strict=True))
            found.append(param(model, mode, {**given, "step": next(steps)}))
    # One sample, no groups of heads: the only case in which nothing is copied.
    for mode in (Mode(attention="eager"), Mode(attention="eager", recompute="full")):
        found.append(param(UNGROUPED, mode, {"micro_batch": 1, "seq": 11}))
    return found


def others() -> list[Any]:
    """Layers recomputed in groups or every so many, chunked heads, other parts, few layers."""
    rows = [
        (GPT.resized(num_layers=8), {"recompute": "full"}, {"group": 3}),
        (LLAMA.resized(num_layers=4), {"recompute": "full", "dtype": "autocast"}, {"group": 2}),
        (LLAMA.resized(num_layers=7), {"recompute": "every"}, {"period": 3}),
        (GPT.resized(num_layers=5), {"recompute": "every", "dtype": "autocast"}, {"period": 2}),
        (GPT, {"loss": "chunked"}, {"chunks": 3}),
        (LLAMA, {"loss": "chunked", "dtype": "autocast"}, {"chunks": 5}),
        (LLAMA.resized(bias=True, tied=True), {}, {}),
        (GPT.resized(bias=False, tied=False), {}, {}),
        (GPT.resized(num_layers=1), {}, {}),
        (GPT.resized(num_layers=2), {"recompute": "full"}, {}),
        (GPT.resized(kv_heads=2), {"attention": "eager"}, {}),
        (GPT, {"gelu_fused": False}, {}),
        (GPT, {"gelu_fused": False, "dtype": "autocast", "recompute": "full"}, {}),
        (LLAMA, {"swiglu_fused": True}, {}),
        (LLAMA, {"swiglu_fused": True, "dtype": "autocast", "recompute": "operators"}, {}),
        (LLAMA, {"repeat_kv": True, "recompute": "operators"}, {}),
        (LLAMA, {"repeat_kv": True, "logits_held": "fp32"}, {}),
        (GPT, {"dtype": "autocast", "logits_held": "compute", "recompute": "operators"}, {}),
        (LLAMA, {"recompute": "operators", "norm_fused": False, "loss": "vocab-parallel"}, {}),
        (LLAMA, {"recompute": "operators", "attention": "eager", "loss": "loss-parallel"}, {}),
        (GPT, {"loss": "vocab-parallel-copy", "dtype": "autocast"}, {}),
        (GPT, {"loss": "vocab-parallel", "dtype": "fp32"}, {}),
        (LLAMA, {"loss": "loss-parallel", "dtype": "autocast", "logits_held": "fp32"}, {}),
        *(
            (model, {"attention": "eager", "mask_added": True, "dtype": dtype, **choices}, {})
            for model, dtype, choices in (
                (GPT, "bf16", {}),
                (GPT, "autocast", {"softmax_fp32": True, "recompute": "full"}),
                (LLAMA, "bf16", {"softmax_fp32": True}),
                (LLAMA, "autocast", {"softmax_fp32": True, "recompute": "selective"}),
                (UNGROUPED, "fp32", {"recompute": "operators"}),
            )
        ),
    ]
    return [
        param(model, Mode(**choices), {"seq": 30, "micro_batch": 4, **sizes})
        for model, choices, sizes in rows
    ] + older()


def older() -> list[Any]:
    """Operators of transformers before 4.49: each version's that differ from the next's."""
    of_samples = ("mask-a-sample", "own-tables", "shifted-loss")
    first = (*of_samples, "narrow-loss", "norm-of-input", "clamp")  # 4.28, 4.29
    last = (*first, "norm-wide")  # 4.30
    eager = {"attention": "eager", "mask_added": True, "softmax_fp32": True}
    alike = {"mask_added": True, "softmax_fp32": True, "repeat_kv": True}
    biased = LLAMA.resized(qkv_bias=True, num_layers=5)
    full = {"recompute": "full"}
    rows: list[tuple[Model, dict[str, Any], dict[str, Any]]] = [
        (UNGROUPED, {**eager, "older": last}, {"seq": 30, "micro_batch": 4}),
        (UNGROUPED, {**eager, "older": last, **full}, {"seq": 21, "micro_batch": 3}),
        (UNGROUPED, {**eager, "older": last, "dtype": "fp32"}, {"seq": 12, "micro_batch": 2}),
        (UNGROUPED, {**eager, "older": last, "dtype": "autocast"}, {"seq": 17, "micro_batch": 1}),
        (UNGROUPED, {**eager, "older": first}, {"seq": 17, "micro_batch": 1}),
        (UNGROUPED, {**eager, "older": first, "dtype": "autocast", **full}, {"seq": 30}),
        (
            LLAMA.resized(num_layers=4),
            {**eager, "older": of_samples, **full},
            {"seq": 9, "group": 2},
        ),
        (biased, {**eager, "older": of_samples, "recompute": "every"}, {"seq": 20, "period": 2}),
        (biased, {**alike, "older": of_samples[1:], "dtype": "autocast"}, {"seq": 20}),
        (LLAMA, {**alike, **eager, "older": of_samples[1:]}, {"seq": 11, "micro_batch": 1}),
        (LLAMA, {**alike, "older": ("shifted-loss",), "logits_held": "compute"}, {"seq": 20}),
        (LLAMA, {**alike, "older": ("shifted-loss", "loss-beside")}, {"seq": 20}),
        (GPT, {"older": ("shifted-loss", "narrow-loss")}, {"seq": 20}),
        (GPT, {"older": ("shifted-loss", "narrow-loss"), "dtype": "autocast", **full}, {"seq": 9}),
    ]
    return [
        param(model, Mode(norm_fused=False, **choices), {"micro_batch": 3, **sizes})
        for model, choices, sizes in rows
    ]


def param(model: Model, mode: Mode, sizes: dict[str, Any]) -> Any:
    """A step as a test's parameter, its choices in its name."""
    name = (model.mlp, f"{model.num_layers}l", f"{model.heads}a", mode.dtype, mode.attention)
    parts = {"e": model.num_experts, "mla": model.kv_rank, "qk": model.qk_norm}
    name += tuple(part for part, there in parts.items() if there)
    rest = (mode.recompute, "" if mode.norm_fused else "written-out", mode.loss)
    return pytest.param(
        (model, mode, tuple(sizes.items())),
        id="-".join(filter(None, (*name, *rest, *map(str, sizes.values())))),
    )


@cache
def tracked(case: Case) -> Packing:
    """What torch's tracker says; each step runs once however many tests look at it."""
    pytest.importorskip("torch")
    from tests.oracles import packing

    return packing.step(case)


def stored_elements(
    tensors: Sequence[TensorShape], *, num_ranks: int, sharding: str = "dim0"
) -> int:
    """Elements that the fullest rank allocates: rows of every tensor, padded, or whole tensors."""
    if sharding == "dim0":
        return sum(-(-t.shape[0] // num_ranks) * (t.numel // t.shape[0]) for t in tensors)
    return max(sum(tensor.numel for tensor in held) for held in dealt(tensors, num_ranks))


def trained(model: Model, **cut: Any) -> tuple[int, int]:
    """Parameters that gradients train, and in how many tensors (experts stacked), by the tape."""
    numbers = Numbers(seq=8, micro_batch=1, **cut)
    mode = Mode()
    shape = rank_shape(model, 1)
    parts = moments.tensors(shape, mode, numbers)
    return moments.over_layers(shape, parts, sum), moments.over_layers(shape, parts, len)


def expert_params(model: Model) -> int:
    """Parameters of all routed experts."""
    pairs = ((unit, tensor) for unit in model.units() for tensor in unit.tensors)
    return sum(unit.count * tensor.numel for unit, tensor in pairs if tensor.role == "expert")


def moments_of(
    model: Any, mode: Mode, *, step: str = "foreach", **sizes: Any
) -> dict[str, dict[str, Any]]:
    """The tape's moments with AdamW's states and counters, and with what its step allocates."""
    shape = shape_of(model)
    numbers = Numbers(**sizes)
    width = mode.stream_bytes
    parts = moments.tensors(shape, mode, numbers)
    elements, counters = (moments.over_layers(shape, parts, of) for of in (sum, len))
    of_step = {"foreach": width * elements, "fused": 0}
    of_step["for-loop"] = moments.for_loop_temporaries(shape, mode, numbers)
    by_moment = moments.moments(shape, mode, **sizes)
    by_moment[Moment.STEP]["temporaries"] = of_step[step]
    states = {"optimizer": 2 * width * elements + 4 * counters}
    return {moment: components | states for moment, components in by_moment.items()}


def peak(model: Any, mode: Mode, **sizes: Any) -> Any:
    """The largest moment of a step: its name, its bytes, and what they are."""
    moment, parts = fullest_moment(moments_of(model, mode, **sizes).items())
    return SimpleNamespace(moment=moment, num_bytes=sum(parts.values()), components=parts)
