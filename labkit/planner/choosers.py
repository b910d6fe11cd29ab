"""How methods of different papers lay out the operators of a stage.

A chooser takes all layouts of a stage and the microbatches of an iteration, over which gradients
are exchanged once, and gives the name of each operator's layout. Who takes what is in
:mod:`labkit.planner.lineup`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from labkit.errors import BadValue
from labkit.kit.fabric import Fabric
from labkit.planner.choices import Problem, choose
from labkit.planner.layouts import Layout, Layouts, layout_name
from labkit.planner.moves import ChoiceMoves, walk
from labkit.planner.networks import AXES, SUMMED

WALK = 20_000
"""Plans that FlexFlow's walk prices."""
Chooser = Callable[[Layouts, int], dict[str, str]]
"""Layouts of a stage's operators, given all of them and the microbatches of an iteration."""


def _sum_of(layouts: Layouts, num_microbatches: int) -> Problem:
    """A choice of layouts in seconds a microbatch: gradients count once an iteration."""
    nodes = {}
    for operator in layouts.network.operators:
        whole_s, gradients_s = layouts.nodes_s(operator)
        nodes[operator.name] = (whole_s - gradients_s) + gradients_s / num_microbatches
    problem = layouts.problem
    return Problem(choices=problem.choices, node_costs=nodes, edge_costs=problem.edge_costs)


def _best(layouts: Layouts, num_microbatches: int) -> dict[str, str]:
    return dict(choose(_sum_of(layouts, num_microbatches)).plan)


def _samples(layouts: Layouts, num_microbatches: int) -> dict[str, str]:
    return layouts.same((layouts.fabric.num_devices, 1, 1, 1))


def _weird(layouts: Layouts, num_microbatches: int) -> dict[str, str]:
    devices = layouts.fabric.num_devices
    return layouts.same((devices, 1, 1, 1), (1, devices, 1, 1))


def _two_ways(layouts: Layouts, num_microbatches: int) -> dict[str, str]:
    """Channels inside a machine, samples between machines; tokens have no channels to cut."""
    inside = layouts.fabric.levels[0].count
    outside = layouts.fabric.num_devices // inside
    both = (outside, inside, 1, 1)
    plan = {}
    for operator in layouts.network.operators:
        known = layouts.choices[operator.name]
        layout = both if both in known else (outside, 1, 1, 1)
        if layout not in known:
            raise BadValue(f"{operator.name} has too few samples for {outside} machines")
        plan[operator.name] = layout_name(layout)
    return plan


def _walked(layouts: Layouts, num_microbatches: int) -> dict[str, str]:
    moves = ChoiceMoves(_sum_of(layouts, num_microbatches))
    start = moves.start(_samples(layouts, num_microbatches))
    rng = np.random.default_rng(0)  # the same walk for the same stage, which is priced once
    temperature = start.cost / 1000
    return dict(walk(moves, start, num_plans=WALK, temperature=temperature, rng=rng).plan.choices)


def _halved(layouts: Layouts, num_microbatches: int) -> dict[str, str]:
    """Halve all operators at once, again and again: each time at the least seconds of sending."""
    devices = layouts.fabric.num_devices
    plan: dict[str, Layout] = {}
    for operator in layouts.network.operators:
        plan[operator.name] = (1,) * (len(AXES) + 1)
    parts = 1
    while parts < devices:
        parts *= 2
        allowed = {}
        for operator in layouts.network.operators:
            known = set(layouts.choices[operator.name])
            axes = range(len(AXES) + (operator.kind in SUMMED))
            halves = [_doubled(plan[operator.name], axis) for axis in axes]
            allowed[operator.name] = tuple(each for each in halves if each in known)
        if not all(allowed.values()):
            raise BadValue("an operator cannot be halved so often")
        links = Fabric.flat(parts, bandwidth_bytes_per_s=1.0)
        sending = replace(layouts, fabric=links, flops_per_s=1e30, allowed=allowed, _tables={})
        found = choose(_sum_of(sending, num_microbatches)).plan
        plan = {name: sending.layout(name, way) for name, way in found.items()}
    return {name: layout_name(layout) for name, layout in plan.items()}


def _doubled(layout: Layout, axis: int) -> Layout:
    return (*layout[:axis], 2 * layout[axis], *layout[axis + 1 :])


def _in_groups(ways: int, layouts: Layouts, num_microbatches: int) -> dict[str, str]:
    devices = layouts.fabric.num_devices
    if devices % ways:
        raise BadValue(f"{devices} devices make no groups of {ways}")
    return layouts.columns_then_rows(ways, devices // ways)


CHOOSERS: dict[str, tuple[Chooser, bool]] = {
    "samples": (_samples, True),
    "weird": (_weird, True),
    "cuts": (_best, True),
    "walk": (_walked, True),
    "samples and channels": (_two_ways, True),
    "halves": (_halved, False),
    "all layouts": (_best, False),
    **{f"groups {2**n}": (partial(_in_groups, 2**n), False) for n in range(9)},
}
"""How layouts of a stage are chosen, and whether among cuts alone, without copies."""
