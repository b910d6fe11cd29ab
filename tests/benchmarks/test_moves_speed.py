"""A proposal's delta simulation beside a full one: processor time, printed as a ratio.

``make bench`` runs it; nothing here asserts a time. ``delta`` puts the changed parts in and goes on
from the first change; ``limited`` stops where a walk refuses the plan, as walks do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from labkit import planner
from labkit.planner.simulating import Part

NUM_WAYS = 4


class Training:
    """A chain of operators, forward and back, on some devices with a link each."""

    def __init__(self, num_operators: int, num_devices: int) -> None:
        self.rng = np.random.default_rng(5)
        self.num_devices = num_devices
        self.names = [f"o{place}" for place in range(num_operators)]
        self.choices = {name: [f"w{way}" for way in range(NUM_WAYS)] for name in self.names}
        self.drawn: dict[object, Part] = {}

    def operator(self, name: str, way: str) -> Part:
        """A task a device forward, and one back after it."""
        if (name, way) not in self.drawn:
            devices = np.arange(self.num_devices)
            self.drawn[name, way] = Part(
                resources=np.concatenate([devices, devices]),
                seconds=self.rng.random(2 * self.num_devices) + 0.5,
                needs=[(name, name, np.stack([devices, devices + self.num_devices], axis=1))],
            )
        return self.drawn[name, way]

    def edge(self, one: str, other: str, plan: Mapping[str, str]) -> Part:
        """A transfer out of each device forward, and one back; none where the ways are one."""
        key = (one, plan[one], plan[other])
        if key not in self.drawn:
            name = f"{one}-{other}"
            devices = np.arange(self.num_devices)
            back = devices + self.num_devices
            all_pairs = np.argwhere(np.ones((self.num_devices, self.num_devices)))
            if plan[one] == plan[other]:
                alike = np.stack([devices, devices], axis=1)
                needs = [(one, other, alike), (other, one, alike + self.num_devices)]
                part = Part(resources=np.zeros(0, dtype=int), seconds=np.zeros(0), needs=needs)
            else:
                needs = [
                    (one, name, np.stack([devices, devices], axis=1)),
                    (name, other, all_pairs),
                    (other, name, np.stack([back, back], axis=1)),
                    (name, one, all_pairs + self.num_devices),
                ]
                part = Part(
                    resources=self.num_devices + np.concatenate([devices, devices]),
                    seconds=self.rng.random(2 * self.num_devices),
                    needs=needs,
                )
            self.drawn[key] = part
        return self.drawn[key]

    def parts(self, nodes: Iterable[str], plan: Mapping[str, str]) -> dict[str, Part]:
        nodes = set(nodes)
        parts = {name: self.operator(name, plan[name]) for name in self.names if name in nodes}
        for one, other in zip(self.names, self.names[1:], strict=False):
            if one in nodes or other in nodes:
                parts[f"{one}-{other}"] = self.edge(one, other, plan)
        return parts


@pytest.mark.parametrize(
    ("num_operators", "num_devices"),
    [(16, 4), (128, 4), pytest.param(128, 16, marks=pytest.mark.large)],
)
def test_delta_beside_full(benchmark: Any, num_operators: int, num_devices: int) -> None:
    graph = Training(num_operators, num_devices)
    num_plans = 200
    cpu_s = {}
    costs = {}
    for words, delta, early in [
        ("full", False, False),
        ("delta", True, False),
        ("limited", True, True),
    ]:
        moves = planner.TimelineMoves(graph.choices, graph.parts, delta=delta)
        start = moves.start(dict.fromkeys(graph.names, "w0"))
        for warm in (True, False):  # the first walk draws the parts, and compiles
            rng = np.random.default_rng(1)
            begun = time.process_time()
            found = planner.walk(
                moves, start, num_plans=num_plans, temperature=0.2, rng=rng, stop_early=early
            )
            if not warm:
                cpu_s[words] = time.process_time() - begun
        costs[words] = found.cost
    assert costs["full"] == costs["delta"] == costs["limited"]
    assert start.timeline is not None
    begun = time.process_time()
    for _ in range(20):
        planner.simulate(start.timeline.parts)
    built_s = (time.process_time() - begun) / 20
    benchmark.pedantic(moves.price, (start, planner.moves.OtherChoice("o1", "w1"), 1e9), rounds=5)
    benchmark.extra_info |= {
        "tasks": start.timeline.num_tasks,
        "full_ms": round(1000 * cpu_s["full"] / num_plans, 3),
        "parts_at_hand_ms": round(1000 * built_s, 3),
        "full_over_delta": round(cpu_s["full"] / cpu_s["delta"], 1),
        "full_over_limited": round(cpu_s["full"] / cpu_s["limited"], 1),
    }
    print(benchmark.extra_info)
