"""What a panel answers when a degree changes, in CPU milliseconds; nothing here asserts a time.

``make bench`` runs it. The aim: under 50 ms a change, whichever degree it is.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from labkit import memory
from labkit.memory import Batch, Model, Plan, Recipe
from labkit.memory.plans import detail, grid

CHANGES = [
    {"dp": dp, "tp": tp, "pp": pp} for dp in (8, 1024) for tp in (1, 8) for pp in (1, 2, 4, 8)
]


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3-70b"])
def test_a_change_of_a_degree(benchmark: Any, name: str) -> None:
    plan = Plan(model=Model.preset(name), recipe=Recipe.bf16_mixed(), batch=Batch(seq=4096))
    one_ms = []
    all_ms = []

    def run() -> None:
        for change in CHANGES:
            detail.estimate.cache_clear()
            start = time.process_time()
            point = change | {"zero": 3, "recompute": "full"}
            assert len(grid.plan_at(plan, point).frame())
            one_ms.append(1e3 * (time.process_time() - start))
            start = time.process_time()
            axes = {name: [degree] for name, degree in change.items()}
            axes |= {"zero": [0, 1, 2, 3], "recompute": ["none", "selective", "full"]}
            assert len(memory.sweep(plan, device="H100-80GB", headroom=0.9, **axes)) == 12
            all_ms.append(1e3 * (time.process_time() - start))

    run()
    one_ms.clear(), all_ms.clear()
    benchmark.pedantic(run, rounds=3)
    slowest = {"one_cpu_ms": max(one_ms), "twelve_cpu_ms": max(all_ms)}
    benchmark.extra_info |= slowest
    print(
        f"\n{name}, {len(CHANGES)} changes of dp, tp and pp: the chosen stage and recomputation"
        f" {max(one_ms):.1f} CPU ms at most (mean {sum(one_ms) / len(one_ms):.1f}), all twelve"
        f" combinations {max(all_ms):.1f} ms (mean {sum(all_ms) / len(all_ms):.1f})"
    )
