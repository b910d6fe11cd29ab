"""Searching graphs by rules, with backtracking: for one device, or for the layouts they allow.

Unity's own search rewrites operators and layouts by the same kind of rule. Here rules rewrite the
operators, and each graph is priced by its best layouts, found exactly; the space is the same.

Source: §5 (the search), after the backtracking search of TASO and MetaFlow.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from labkit.papers.unity.costs import Machine
from labkit.papers.unity.layouts import Graph, Plan, Step, best_layouts
from labkit.papers.unity.rules import Rule, matches, written
from labkit.papers.unity.terms import (
    Misplaced,
    evaluate,
    numbers_for,
    replaced,
    shrunk,
    terms_of,
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        steps: that lead from the given graph to the best.
        price_s: of the best graph, by what the search was given.
        history: graphs priced when a better one was found, and its price.
        evaluations: graphs priced in all.
        exhausted: whether nothing within the bound was left to try.
    """

    graph: Graph
    steps: tuple[Step, ...]
    price_s: float
    history: tuple[tuple[int, float], ...]
    evaluations: int
    exhausted: bool


def neighbours(graph: Graph, rules: Sequence[Rule]) -> Iterator[Step]:
    """The graphs that one rule makes of a graph whose operators are whole."""
    terms = terms_of(graph)
    present = {one.op for one in terms}
    for rule in rules:
        if any(one.op not in present for one in rule.source):
            continue
        for chosen, bound in matches(rule, terms):
            try:
                target = written(rule, chosen, bound, 1)
            except Misplaced:
                continue
            changed = replaced(graph, dict(zip(chosen, target, strict=True)))
            if changed != graph:
                yield Step(rule.name, changed)


def search(
    graph: Graph,
    price_s: Callable[[Graph], float],
    rules: Sequence[Rule],
    *,
    slack: float = 1.05,
    budget: int = 200,
) -> Found:
    """The cheapest graph that rules lead to.

    1. Take the cheapest graph that is waiting.
    2. Apply every rule at every place.
    3. Price graphs that are new. The cheapest of all is kept.
    4. Those within ``slack`` of the best wait: a step may cost, if another makes up for it.

    Args:
        slack: how many times the best price a graph that waits may have; 1 is greedy.
        budget: graphs that are priced at most.
    """
    order = count()
    best_s = price_s(graph)
    best: tuple[Graph, tuple[Step, ...]] = (graph, ())
    waiting: list[tuple[float, int, Graph, tuple[Step, ...]]] = [(best_s, next(order), graph, ())]
    seen = {graph}
    history = [(1, best_s)]
    while waiting and len(seen) < budget:
        seconds, _, here, steps = heapq.heappop(waiting)  # 1
        if seconds > slack * best_s:
            break
        for step in neighbours(here, rules):  # 2
            if step.graph in seen or len(seen) >= budget:
                continue
            seen.add(step.graph)
            changed_s = price_s(step.graph)  # 3
            path = (*steps, step)
            if changed_s < best_s * (1 - 1e-9):
                best_s = changed_s
                best = (step.graph, path)
                history.append((len(seen), changed_s))
            if changed_s <= slack * best_s:  # 4
                heapq.heappush(waiting, (changed_s, next(order), step.graph, path))
    return Found(
        graph=best[0],
        steps=best[1],
        price_s=best_s,
        history=tuple(history),
        evaluations=len(seen),
        exhausted=len(seen) < budget,
    )


@dataclass(frozen=True, kw_only=True)
class Optimized:
    """A plan, and the algebra before it.

    Attributes:
        algebra: what the search for a graph found.
        plan: the layouts of that graph.
    """

    algebra: Found
    plan: Plan

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.plan.step_s

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every rule that was applied, in order."""
        return self.algebra.steps + self.plan.steps


def one_after_the_other(
    graph: Graph,
    machine: Machine,
    algebra: Sequence[Rule],
    dividers: Sequence[Rule],
    *,
    budget: int = 200,
) -> Optimized:
    """Algebra first, for one device; then the layouts of what it leaves."""
    found = search(graph, machine.step_s, algebra, budget=budget)
    return Optimized(algebra=found, plan=best_layouts(found.graph, machine, dividers))


def together(
    graph: Graph,
    machine: Machine,
    algebra: Sequence[Rule],
    dividers: Sequence[Rule],
    *,
    budget: int = 200,
) -> Optimized:
    """Algebra for the layouts that it allows: every graph is priced by its best layouts."""

    def price_s(one: Graph) -> float:
        return best_layouts(one, machine, dividers).step_s

    found = search(graph, price_s, algebra, budget=budget)
    return Optimized(algebra=found, plan=best_layouts(found.graph, machine, dividers))


def equal_steps(
    graph: Graph,
    steps: Sequence[Step],
    num_devices: int,
    rng: np.random.Generator,
    *,
    fewer: int = 4,
) -> list[bool]:
    """For each step, whether its graph has the first graph's numbers.

    Args:
        num_devices: of the plan.
        fewer: devices that play it, each with the part that it holds; sizes shrink with them.
    """
    small = shrunk(graph, num_devices, fewer)
    values = numbers_for(small, rng)
    expected = evaluate(small, values)
    same = []
    for step in steps:
        numbers = evaluate(shrunk(step.graph, num_devices, fewer), values)
        same.append(all(np.array_equal(a, b) for a, b in zip(numbers, expected, strict=True)))
    return same
