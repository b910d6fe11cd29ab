"""What lives when is computed: no reference that somebody keeps may change a byte."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest

from labkit.memory.tape import tape as tapes
from labkit.memory.tape.network import Program
from labkit.memory.tape.saved import Mode
from labkit.memory.tape.shadow import Shadow
from labkit.memory.tape.tape import Tape, Tensor, call, unit

LLAMA: dict[str, Any] = {
    "mlp": "swiglu",
    "qkv_bias": False,
    "out_bias": False,
    "mlp_bias": False,
    "fused_qkv": False,
    "tied": False,
    "positions": False,
}
BLOCKS: dict[str, dict[str, Any]] = {
    "gpt": {},
    "llama": LLAMA | {"grouped": True, "qk_norm": True},
    "experts": LLAMA | {"stack": "experts", "shared": True},
    "latent": LLAMA | {"latent": True, "query_rank": True, "stack": "mixed", "sigmoid": True},
}
STRUCTURES = {"full": "nested", "every": "periodic"}


@contextmanager
def hoarding() -> Iterator[list[Any]]:
    """Every object of a tape is kept, and so is the frame that made it, with all its locals."""
    hoard: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in (tapes.Storage, tapes.Tensor, tapes.Node, tapes.Checkpoint, tapes.Holder):

            def keep(self: Any, *given: Any, before: Any = kind.__init__, **named: Any) -> None:
                hoard.append((self, given, sys._getframe(1)))
                before(self, *given, **named)

            patch.setattr(kind, "__init__", keep)
        gc.disable()
        try:
            yield hoard
        finally:
            gc.enable()


def run(program: Program) -> list[tuple[str, Any]]:
    return Shadow(program).step().points()


CASES = [
    *product(BLOCKS, ("none", "selective", "full", "every"), ("eager-fp32", "chunked")),
    *product(BLOCKS, ("none", "full"), ("vocab-parallel", "fused")),
]


def program(block: str, recompute: Any, loss: Any) -> Program:
    choices = BLOCKS[block]
    structure = STRUCTURES.get(recompute, "flat")
    if choices.get("stack") == "mixed" and structure != "flat":
        choices = choices | {"layers": (2, 3), "repeat": 2}
        structure = "listed"
    mode = Mode(
        recompute=recompute,
        loss=loss,
        attention="eager" if loss == "chunked" else "sdpa",
        dtype="autocast" if loss in {"chunked", "vocab-parallel"} else "bf16",
        norm_fused=loss != "vocab-parallel",
        dropout_mask_bytes=1 if recompute == "full" else 0,
    )
    return Program(mode=mode, structure=structure, **choices)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_references_change_nothing(case: Any) -> None:
    freed = run(program(*case))
    with hoarding() as hoard:
        points = run(program(*case))
    assert len(hoard) > len(points)
    assert [label for label, _ in points] == [label for label, _ in freed]
    assert all((a == b).all() for (_, a), (_, b) in zip(points, freed, strict=True))


@pytest.mark.parametrize("block", BLOCKS)
def test_all_is_freed_but_gradients(block: str) -> None:
    """After the step there are the gradients, of each parameter once, and nothing else."""
    shadow = Shadow(program(block, "none", "eager-fp32"))
    tape = shadow.step()
    left = sum(storage.amount for storage in tape.storages if storage.for_ever)
    blocks = [block for group, _ in shadow.segments for block in group]
    parameters = [p for block in blocks for p in block.parameters.values()]
    parameters += {shadow.token, shadow.output, *shadow.norm}
    parameters += [] if shadow.position is None else [shadow.position]
    gradients = sum(parameter.elements * parameter.width for parameter in parameters)
    assert np.array_equal(left, gradients)
    tape.new(unit("1"), 1)
    _, after = tape.points()[-1]
    assert np.array_equal(after.sum(axis=(0, 1)), gradients + unit("1"))


class Calls:
    """Three calls, one inside the other."""

    def __init__(self) -> None:
        self.tape = Tape()
        self.new = lambda name, *beside: self.tape.new(unit(name), 1, *beside)

    @call
    def outer(self, x: Tensor) -> Tensor:
        middle = self.new("h")
        return self.inner(middle)

    @call
    def inner(self, x: Tensor) -> Tensor:
        self.tape.local(self.new("q"))
        self.new("k")
        return self.new("f")


def test_a_call_holds_its_arguments_and_locals_until_it_returns() -> None:
    calls = Calls()
    calls.outer(calls.new("s"))
    calls.new("h·v")
    live = [
        {tapes.UNITS[place] for place in np.flatnonzero(at.sum(axis=(0, 1)))}
        for _, at in calls.tape.points()
    ]
    # s is the argument of the outer call, h of the inner one, q its local; k is nobody's.
    assert live == [{"s"}, {"s", "h"}, {"s", "h", "q"}, {"s", "h", "q", "k"}, {*"shqf"}, {"h·v"}]
