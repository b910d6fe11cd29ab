"""The best layouts of a graph whose operators stay as they are: a choice for each operator.

An operator runs whole on one device, or divided by one of the rules. What it costs follows from the
rule's own target: the part that a device computes, where the result lies, and where the inputs must
lie. So the choice is one of :class:`labkit.planner.Problem`, which finds the optimum, and the plan
is carried out by applying the chosen rules one by one.

Source: §5 (choices inside the search for graphs); the exact method is the planner's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from labkit import planner
from labkit.papers.unity.costs import Machine, Place, is_weight, operators, transfer
from labkit.papers.unity.rules import Rule, matches, simplified, written
from labkit.papers.unity.terms import Misplaced, Op, Term, layout, replaced, terms_of

Graph = tuple[Term, ...]
WHOLE = "whole"


class Way(NamedTuple):
    """A way to run an operator.

    Attributes:
        name: of the rule, or :data:`WHOLE`.
        rule: that divides it; None where it stays whole.
        inputs: where each input must lie; weights lie where they are wanted.
        output: where the result lies.
        seconds: of the operator itself, and of its weights' gradients.
    """

    name: str
    rule: Rule | None
    inputs: tuple[Place, ...]
    output: Place
    seconds: float


class Step(NamedTuple):
    """A rule that was applied, and the graph after it."""

    rule: str
    graph: Graph


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The fastest layouts of a graph.

    Attributes:
        undivided: the graph whose operators are whole.
        ways: of each operator.
        step_s: seconds of a step, where each reader of a tensor pays for it.
    """

    undivided: Graph
    ways: Mapping[Term, Way]
    step_s: float
    machine: Machine

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The rules that divide the graph, and the graph after each."""
        return divided(self.undivided, self.ways, self.machine)

    @property
    def graph(self) -> Graph:
        """The graph that the ways make."""
        return self.steps[-1].graph if self.steps else self.undivided


def ways_of(one: Term, machine: Machine, rules: Sequence[Rule]) -> list[Way]:
    """All ways to run an operator on a machine; they depend on its inputs' layouts alone."""
    kinds = [(layout(arg), is_weight(arg)) for arg in one.args]
    what = (one.op, one.relu, one.axis, one.piece, one.first, *kinds)
    kept = machine.kept.setdefault((what, tuple(rules)), [])
    assert isinstance(kept, list)
    if not kept:
        whole = tuple(Place.WHOLE for _ in one.args)
        kept.append(Way(WHOLE, None, whole, Place.WHOLE, _seconds(one, machine)))
        for rule in rules:
            for chosen, bound in matches(rule, [one]):
                try:
                    [target] = written(rule, chosen, bound, machine.num_devices)
                except Misplaced:
                    continue
                [divided] = target.args
                places = tuple(transfer(arg).goal for arg in divided.args)
                seconds = _seconds(divided, machine)
                kept.append(Way(rule.name, rule, places, transfer(target).origin, seconds))
    return kept


def _seconds(one: Term, machine: Machine) -> float:
    weights_s = [machine.transfer_s(arg) for arg in one.args if is_weight(arg)]
    return machine.operator_s(one) + sum(weights_s)


def best_layouts(
    graph: Graph, machine: Machine, rules: Sequence[Rule], *, only: str | None = None
) -> Plan:
    """The layouts that take the least time, and the graph that they make.

    Two pieces of a split are one node, as they have one layout. A tensor that two operators read is
    paid for by each.

    Args:
        rules: that divide one operator each.
        only: operators are divided by rules with this in their name wherever there is one.
    """
    found = {one: _chosen(ways_of(one, machine, rules), only) for one in operators(graph)}
    nodes: dict[Term, str] = {}
    for number, one in enumerate(found):
        twin = next((t for t in nodes if _twins(t, one)), None)
        nodes[one] = nodes[twin] if twin is not None else f"{number}: {one.op}"
    choices = {nodes[one]: tuple(way.name for way in ways) for one, ways in found.items()}
    costs = {node: np.zeros(len(names)) for node, names in choices.items()}
    edges: dict[tuple[str, str], np.ndarray] = {}
    for one, ways in found.items():
        costs[nodes[one]] += [way.seconds for way in ways]
        if one in graph:
            costs[nodes[one]] += [machine.output_s(layout(one), way.output) for way in ways]
        for place, arg in enumerate(one.args):
            if arg in found:
                pair = nodes[arg], nodes[one]
                table = _edge(found[arg], ways, arg, place, machine)
                edges[pair] = edges.get(pair, 0) + table
    problem = planner.Problem(choices=choices, node_costs=costs, edge_costs=edges)
    choice = planner.choose(problem)
    chosen = {one: _named(found[one], choice.plan[nodes[one]]) for one in found}
    return Plan(undivided=graph, ways=chosen, step_s=choice.cost, machine=machine)


def _chosen(ways: list[Way], only: str | None) -> list[Way]:
    wanted = [way for way in ways if only is not None and only in way.name]
    return wanted or ways


def _named(ways: list[Way], name: str) -> Way:
    return next(way for way in ways if way.name == name)


def _twins(one: Term, other: Term) -> bool:
    """Whether two terms are the pieces of one split."""
    split = one.op is Op.SPLIT and other.op is Op.SPLIT
    return split and one.args == other.args and one.axis == other.axis


def _edge(
    makers: list[Way], readers: list[Way], made: Term, place: int, machine: Machine
) -> np.ndarray:
    """Seconds between each pair of ways, there and back."""
    table = np.empty((len(makers), len(readers)))
    for row, maker in enumerate(makers):
        for column, reader in enumerate(readers):
            ends = maker.output, reader.inputs[place]
            table[row, column] = machine.both_ways_s(layout(made), *ends)
    return table


def divided(graph: Graph, ways: Mapping[Term, Way], machine: Machine) -> tuple[Step, ...]:
    """Apply the rule of each operator, in order, and drop what undoes itself at the end."""
    steps: list[Step] = []
    now: dict[Term, Term] = {}
    for one in terms_of(graph):
        here = replaced((one,), now)[0]
        way = ways.get(one)
        if way is None or way.rule is None:
            now[one] = here
            continue
        [(chosen, bound)] = matches(way.rule, [here])
        [now[one]] = written(way.rule, chosen, bound, machine.num_devices)
        steps.append(Step(way.name, replaced(graph, now)))
    if steps:
        steps.append(Step("cutting undoes combining", simplified(steps[-1].graph)))
    return tuple(steps)
