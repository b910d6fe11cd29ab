"""Ways of operators inside a mesh, and stages on meshes, beside Alpa's programs as published.

Three programs of one problem: ours by elimination, ours with equalities, Alpa's with inequalities
(all variables whole), the last by HiGHS as well as by CBC where OR-Tools is there. Stages on meshes
beside the loops of Alpa's Algorithm 1, restated in plain Python. ``make bench`` runs it; nothing
here asserts a time. CPU seconds, one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

from labkit import planner
from labkit.papers.alpa.across import Cluster
from labkit.papers.alpa.inside import Inside
from labkit.papers.alpa.models import Block, Model, Product, model_on
from tests.oracles.published_choices import by_cbc, by_highs
from tests.oracles.stages_on_meshes import by_published_loops

RATE_FLOPS_PER_S = 45e12
MOST_S = 300.0
"""As long as CBC may take."""


def cpu_s(call: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """CPU seconds of a call, and its answer."""
    start = time.process_time()
    answer = call(*arguments)
    return time.process_time() - start, answer


def by_cbc_in_cpu_s(problem: planner.Problem) -> tuple[float, float | None]:
    """CPU seconds of CBC, without those of loading it, and the least cost."""
    import ortools.linear_solver.pywraplp  # noqa: F401

    return cpu_s(by_cbc, problem, MOST_S)


def perceptron(layers: int) -> Model:
    """So many products of 8,192 by 8,192, on 8,192 rows."""
    size = 2.0 * 8192 * 8192
    product = Product(
        name="product", flops=8192 * size, parameters=size / 2, input_bytes=size, output_bytes=size
    )
    block = Block(paths=((product,),), input_bytes=size, output_bytes=size)
    return Model(
        name="MLP",
        kind="gpt",
        layers=((block,),) * layers,
        num_microbatches=1,
        samples=8192,
        element_bytes=2,
    )


def shapes(name: str) -> planner.Problem:
    """The problem of a whole model on four machines of eight GPUs."""
    model = perceptron(int(name.split()[1])) if "MLP" in name else model_on("gpt", 8)
    mesh = Cluster().mesh(8, machines=4)
    samples = Model(**{**vars(model), "samples": 8192})
    return Inside(model=samples, mesh=mesh, flops_per_s=RATE_FLOPS_PER_S).problem()


@pytest.mark.parametrize(
    "name",
    ["MLP 4", *(pytest.param(name, marks=pytest.mark.large) for name in ("MLP 64", "GPT 32"))],
)
def test_inside_a_mesh(benchmark: Any, name: str) -> None:
    problem = shapes(name)
    found = benchmark.pedantic(planner.choose, (problem,), rounds=3, iterations=1)
    ours_s, _ = cpu_s(planner.choose, problem)
    whole_s, whole = cpu_s(lambda: planner.choose(problem, method="integer"))
    bound_s, bound = cpu_s(planner.relax, problem)
    highs_s, published = cpu_s(by_highs, problem)
    assert whole.cost == pytest.approx(found.cost)
    assert published == pytest.approx(found.cost)
    assert bound <= found.cost * (1 + 1e-9)
    words = (
        f"\n{name}, {len(problem.choices)} nodes: elimination {ours_s:.3f} CPU s, with equalities "
        f"{whole_s:.2f} (without wholeness {bound_s:.2f}, gap {1 - bound / found.cost:.1%}), "
        f"as published {highs_s:.2f} by HiGHS: {highs_s / ours_s:.1f} and {highs_s / whole_s:.1f} "
        "times as long"
    )
    if find_spec("ortools"):
        # In a process of its own: OR-Tools and highspy bring a HiGHS each, a process holds one.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            cbc_s, by_other = fresh.submit(by_cbc_in_cpu_s, problem).result()
        assert by_other is None or by_other == pytest.approx(found.cost)
        more = "over " if by_other is None else ""
        words += f"; by CBC {more}{cbc_s:.2f}, {more}{cbc_s / ours_s:.0f} times elimination"
    print(words)


@pytest.mark.parametrize(
    ("layers", "devices", "microbatches"),
    [
        (6, 4, 8),
        pytest.param(16, 16, 64, marks=pytest.mark.large),
        pytest.param(32, 64, 128, marks=pytest.mark.large),
    ],
)
def test_across_meshes(benchmark: Any, layers: int, devices: int, microbatches: int) -> None:
    rng = np.random.default_rng(7)
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= devices]
    work = np.concatenate([[0.0], np.cumsum(rng.random(layers))])
    alone = np.maximum(work[None, :] - work[:, None], 0.0)
    losses = 1 + 0.3 * rng.random((len(sizes), layers + 1, layers + 1))
    table = planner.StageTable(
        meshes=tuple(map(str, sizes)),
        devices=np.array(sizes),
        seconds=alone[None] / np.array(sizes)[:, None, None] * losses,
    )
    found = benchmark.pedantic(
        planner.place,
        (table, devices),
        {"num_microbatches": microbatches},
        rounds=3,
        iterations=1,
    )
    ours_s, _ = cpu_s(lambda: planner.place(table, devices, num_microbatches=microbatches))
    words = (
        f"\n{layers} layers on {devices} devices, {microbatches} microbatches: {ours_s:.4f} CPU s"
    )
    if devices <= 16:
        loops_s, published = cpu_s(by_published_loops, table, devices, microbatches)
        assert published == pytest.approx(found.cost_s)
        words += f"; the published loops in Python {loops_s:.2f}, {loops_s / ours_s:.0f} times"
    print(words)
