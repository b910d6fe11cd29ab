"""Programs that run: exact numbers, and exactly the bytes that the rows say."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given

from labkit import collectives
from labkit.collectives.programs import Program
from labkit.errors import BadValue
from tests.collectives.test_programs import programs


def inputs(program: Program) -> list[np.ndarray]:
    """Whole numbers in floats, which add up exactly in any order."""
    draws = np.random.default_rng(0)
    elements = program.chunk_bytes // program.element_bytes
    sizes = [int(elements[program.held[rank]].sum()) for rank in range(program.num_workers)]
    return [draws.integers(-100, 100, size).astype(np.float32) for size in sizes]


def expected(program: Program, tensors: list[np.ndarray]) -> list[np.ndarray]:
    """What each worker should have, from the tables of the operation alone."""
    elements = program.chunk_bytes // program.element_bytes
    sums = [np.zeros(size, dtype=np.float32) for size in elements]
    for rank, tensor in enumerate(tensors):
        begin = 0
        for chunk in np.flatnonzero(program.held[rank]):
            sums[chunk] += tensor[begin : begin + elements[chunk]]
            begin += elements[chunk]
    return [
        np.concatenate([sums[chunk] for chunk in np.flatnonzero(wanted)] or [np.zeros(0)])
        for wanted in program.wanted[: program.num_workers]
    ]


@given(program=programs())
def test_threads_compute_the_sums_and_send_what_the_rows_say(program: Program) -> None:
    tensors = inputs(program)
    run = collectives.execute(program, tensors)
    for output, sums in zip(run.outputs, expected(program, tensors), strict=True):
        assert (output == sums).all()
    assert (run.sent_bytes == program.sent_bytes).all()


@pytest.mark.parametrize(
    ("name", "op", "more"),
    [
        ("ring", "all-reduce", {}),
        ("hierarchical", "all-reduce", {"per_node": 2}),
        ("two-level", "all-to-all", {"per_node": 2}),
        ("parameter-server", "all-reduce", {"num_servers": 1, "num_pieces": 2}),
    ],
)
def test_processes_do_the_same_over_sockets(name: str, op: str, more: dict) -> None:
    program = collectives.program(name, 4, 4 << 18, op=op, **more)
    tensors = inputs(program)
    run = collectives.execute(program, tensors, on="gloo")
    for output, sums in zip(run.outputs, expected(program, tensors), strict=True):
        assert (output == sums).all()
    assert (run.sent_bytes == program.sent_bytes).all()
    if sys.platform == "linux":  # the kernel's count: payload, and gloo's headers
        assert run.received_bytes is not None
        payload = program.sent_bytes.sum()
        assert payload <= run.received_bytes.sum() <= payload * 1.02 + 20_000


def test_coding_once_is_nearer_than_coding_at_each_hop() -> None:
    # ZeRO++ §3.3: one hop codes each number once, a ring n - 1 times.
    draws = np.random.default_rng(1)
    tensors = [draws.standard_normal(4096).astype(np.float32) for _ in range(8)]
    exact = np.sum(tensors, axis=0)
    errors = {}
    for name in ("direct", "ring"):
        program = collectives.program(name, 8, 4 * 4096, op="reduce-scatter", bits=4)
        outputs = collectives.execute(program, tensors).outputs
        errors[name] = float(np.abs(np.concatenate(outputs) - exact).mean())
    assert 0 < errors["direct"] < errors["ring"]


def test_wrong_tensors_are_refused() -> None:
    ring = collectives.program("ring", 2, 64)
    good = np.zeros(16, dtype=np.float32)
    with pytest.raises(BadValue, match="1 tensors for 2 workers"):
        collectives.execute(ring, [good])
    with pytest.raises(BadValue, match=r"tensors\[1\] must have the shape \(16,\)"):
        collectives.execute(ring, [good, good[1:]])
