"""Searches by small changes: from plan to plan, each priced, the best one kept.

Whatever is searched offers *moves* (:class:`Moves`), which propose a change of a plan and price
the changed plan.

- :func:`walk` takes a change that makes the plan cheaper, and one that makes it dearer by d with
  the probability exp(-d / temperature) (Metropolis). It draws its chance first, and so knows the
  price above which it refuses the plan before it prices it: pricing may stop there, and the walk
  is the same.
- :func:`descend` tries changes in the order in which they are listed, takes each that makes the
  plan cheaper, and ends where no single change does.

A search that is written elsewhere gives the same record, :class:`Search`.

Source: Metropolis et al. 1953; as a search of parallel plans, Jia et al. 2019 (FlexFlow), §6.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from annotated_types import Ge, Le

from labkit.errors import BadValue, UsageError, shown
from labkit.kit.describe import NonNegative, checked
from labkit.planner.simulating import Part, Timeline, simulate

if TYPE_CHECKING:
    import pandas as pd

    from labkit.planner.choices import Problem

NumPlans = Annotated[int, Ge(1), Le(10**7)]
"""How many plans a search prices; more than ten million would take hours."""
PlanT = TypeVar("PlanT")
ChangeT = TypeVar("ChangeT")


class Moves(Protocol[PlanT, ChangeT]):
    """What a search needs to know of its plans."""

    def cost(self, plan: PlanT) -> float:
        """What a plan costs."""

    def propose(self, plan: PlanT, rng: np.random.Generator) -> ChangeT:
        """Draw a change of the plan."""

    def changes(self, plan: PlanT) -> Iterable[ChangeT]:
        """All changes of the plan, in the order in which a descent tries them."""

    def price(self, plan: PlanT, change: ChangeT, limit: float) -> tuple[float, PlanT]:
        """What the changed plan costs, and the changed plan.

        The cost may be infinite instead where it is above the limit.
        """


class Better(NamedTuple):
    """A plan that was the best so far.

    Attributes:
        num_priced: plans that had been priced, this one among them.
        cost: of the plan.
        change: that led to it; None for the plan at which a search began.
    """

    num_priced: int
    cost: float
    change: object


@dataclass(frozen=True, kw_only=True, eq=False)
class Search(Generic[PlanT]):
    """What a search found, and how.

    Attributes:
        plan: the best one.
        cost: of the plan.
        num_priced: plans that were priced, the first among them.
        num_accepted: changes that were taken, dearer ones too.
        history: each plan that was the best so far, from the one at which the search began.
        bound: no plan costs less, as far as the search knows.
    """

    plan: PlanT
    cost: float
    num_priced: int
    num_accepted: int
    history: tuple[Better, ...]
    bound: float = -math.inf

    @property
    def gap(self) -> float:
        """How much cheaper another plan can be at most, as a share of the cost."""
        return 1 - self.bound / self.cost if self.cost else 0.0

    def best_after(self, num_priced: int) -> float:
        """The best cost when so many plans had been priced.

        Raises:
            BadValue: fewer than one plan.
        """
        if num_priced < 1:
            raise BadValue(f"Search.best_after: num_priced must be at least 1, got {num_priced}")
        return min(better.cost for better in self.history if better.num_priced <= num_priced)

    def frame(self) -> pd.DataFrame:
        """One row a plan that was the best so far: plans priced by then, its cost, its change."""
        import pandas as pd

        return pd.DataFrame(self.history, columns=["num_priced", "cost", "change"])

    def why(self) -> str:
        """One sentence: where the search began, what it found and when, and how often it moved."""
        first = self.history[0]
        last = self.history[-1]
        return (
            f"from {first.cost:.4g} to {last.cost:.4g} in {len(self.history) - 1} improvements, "
            f"the last after {last.num_priced:,} of {self.num_priced:,} plans; "
            f"{self.num_accepted:,} changes were taken"
        )


@checked
def walk(
    moves: Moves[PlanT, ChangeT],
    plan: PlanT,
    *,
    num_plans: NumPlans,
    temperature: NonNegative,
    rng: np.random.Generator,
    stop_early: bool = True,
) -> Search[PlanT]:
    """A random walk that takes dearer plans with a chance (Metropolis).

    Args:
        moves: propose changes, and price them.
        plan: where it begins.
        num_plans: that are priced, the first among them.
        temperature: a plan that is dearer by this, in the cost's unit, is taken with the
            probability 1/e; with 0 none is.
        stop_early: tell the moves above which price a plan is refused, so that pricing may stop
            there. The walk is the same without.

    Raises:
        UsageError: the first plan has no finite cost.

    >>> from labkit.planner.choices import Problem
    >>> costs = {"a": np.array([1.0, 3.0]), "b": np.array([3.0, 1.0])}
    >>> ways = {"a": ["rows", "columns"], "b": ["rows", "columns"]}
    >>> moves = ChoiceMoves(Problem(choices=ways, node_costs=costs))
    >>> start = moves.start({"a": "columns", "b": "rows"})
    >>> rng = np.random.default_rng(0)
    >>> found = walk(moves, start, num_plans=50, temperature=1.0, rng=rng)
    >>> found.cost
    2.0
    """
    cost = _first_cost(moves, plan)
    best = plan
    history = [Better(1, cost, None)]
    accepted = 0
    for num_priced in range(2, num_plans + 1):
        change = moves.propose(plan, rng)
        limit = cost - temperature * math.log(1.0 - rng.random())
        price, changed = moves.price(plan, change, limit if stop_early else math.inf)
        if price > limit:
            continue
        plan = changed
        cost = price
        accepted += 1
        if cost < history[-1].cost:
            best = plan
            history.append(Better(num_priced, cost, change))
    return Search(
        plan=best,
        cost=history[-1].cost,
        num_priced=num_plans,
        num_accepted=accepted,
        history=tuple(history),
    )


@checked
def descend(
    moves: Moves[PlanT, ChangeT], plan: PlanT, *, num_plans: NumPlans | None = None
) -> Search[PlanT]:
    """Take each change that makes the plan cheaper, until none does or so many plans are priced.

    Args:
        moves: list changes, and price them.
        plan: where it begins.
        num_plans: that are priced at most, the first among them; None for as many as it takes.

    Raises:
        UsageError: the first plan has no finite cost.
    """
    cost = _first_cost(moves, plan)
    history = [Better(1, cost, None)]
    priced = 1
    better = True
    while better:
        better = False
        for change in moves.changes(plan):
            if num_plans is not None and priced >= num_plans:
                break
            priced += 1
            price, changed = moves.price(plan, change, cost)
            if price < cost:
                plan = changed
                cost = price
                better = True
                history.append(Better(priced, cost, change))
    return Search(
        plan=plan,
        cost=cost,
        num_priced=priced,
        num_accepted=len(history) - 1,
        history=tuple(history),
    )


def _first_cost(moves: Moves[PlanT, ChangeT], plan: PlanT) -> float:
    """The cost of where a search begins."""
    cost = moves.cost(plan)
    if not math.isfinite(cost):
        raise UsageError(f"a search cannot begin at a plan whose cost is {cost}")
    return cost


# ---------------------------------------------------------------- moves on choices


class Chosen(NamedTuple):
    """A choice for each node, and what the whole costs.

    Attributes:
        choices: the name of each node's choice.
        cost: of the plan.
        timeline: of the plan, where it is simulated.
    """

    choices: Mapping[str, str]
    cost: float
    timeline: Timeline | None = None


class OtherChoice(NamedTuple):
    """A change: a node takes another choice."""

    node: str
    choice: str


class _OneNodeMoves:
    """Changes of one node's choice, drawn and listed; nodes with a single choice never change."""

    def __init__(self, choices: Mapping[str, Sequence[str]]) -> None:
        self.choices = {node: tuple(names) for node, names in choices.items()}
        self.changeable = [node for node, names in self.choices.items() if len(names) > 1]
        if not self.changeable:
            raise UsageError("no node has two choices, so there is nothing to search")

    def propose(self, plan: Chosen, rng: np.random.Generator) -> OtherChoice:
        """Draw a node, and another of its choices; all are as likely."""
        node = self.changeable[rng.integers(len(self.changeable))]
        names = self.choices[node]
        steps = 1 + int(rng.integers(len(names) - 1))  # 1 or more from the choice of the plan
        place = names.index(plan.choices[node]) + steps
        return OtherChoice(node, names[place % len(names)])

    def changes(self, plan: Chosen) -> Iterable[OtherChoice]:
        """Each node in order, with each choice that is not the plan's."""
        for node in self.changeable:
            for name in self.choices[node]:
                if name != plan.choices[node]:
                    yield OtherChoice(node, name)

    def cost(self, plan: Chosen) -> float:
        """What the plan costs.

        Raises:
            BadValue: it is no plan that ``start`` gave.
        """
        if not isinstance(plan, Chosen):
            raise BadValue(f"planner: plan must be what start(choices) gives; got {shown(plan)}")
        return plan.cost

    def _check(self, choices: Mapping[str, str]) -> None:
        """Refuse a plan without a node, or with a choice that the node does not have."""
        for node, names in self.choices.items():
            if choices.get(node) not in names:
                raise BadValue(
                    f"choices[{node!r}] is {shown(choices.get(node))}, which is no choice of it; "
                    f"there are: {', '.join(names)}"
                )


class ChoiceMoves(_OneNodeMoves):
    """Moves on a :class:`labkit.planner.Problem`: one node takes another choice.

    A change is priced by the tables of its node and of the node's edges alone.

    >>> costs = {"a": np.array([1.0, 3.0]), "b": np.array([3.0, 1.0])}
    >>> ways = {"a": ["rows", "columns"], "b": ["rows", "columns"]}
    >>> from labkit.planner.choices import Problem
    >>> moves = ChoiceMoves(Problem(choices=ways, node_costs=costs))
    >>> found = descend(moves, moves.start({"a": "columns", "b": "rows"}))
    >>> found.plan.choices, found.cost
    ({'a': 'rows', 'b': 'columns'}, 2.0)
    """

    @checked
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.choices)
        self.problem = problem
        self._place = {
            node: {name: place for place, name in enumerate(names)}
            for node, names in self.choices.items()
        }
        self._edges: dict[str, list[tuple[str, np.ndarray]]] = {node: [] for node in self.choices}
        for (one, other), table in problem.edge_costs.items():
            self._edges[one].append((other, np.asarray(table, dtype=float)))
            self._edges[other].append((one, np.asarray(table, dtype=float).T))

    @checked
    def start(self, choices: Mapping[str, str]) -> Chosen:
        """A plan to begin with.

        Raises:
            BadValue: a node is missing, or it has no such choice.
        """
        self._check(choices)
        return Chosen(dict(choices), self.problem.cost(choices))

    def price(self, plan: Chosen, change: OtherChoice, limit: float) -> tuple[float, Chosen]:
        """What the changed plan costs, and that plan."""
        node, choice = change
        before = self._place[node][plan.choices[node]]
        after = self._place[node][choice]
        costs = self.problem.node_costs[node]
        difference = float(costs[after]) - float(costs[before])
        for other, table in self._edges[node]:
            column = self._place[other][plan.choices[other]]
            difference += float(table[after, column]) - float(table[before, column])
        cost = plan.cost + difference
        if cost > limit:
            return cost, plan
        return cost, Chosen({**plan.choices, node: choice}, cost)


class TimelineMoves(_OneNodeMoves):
    """Moves on a simulated plan: one node takes another choice.

    Tasks that are ready before the change can matter keep their times.

    Args:
        choices: the names of each node's choices.
        parts: called with nodes and a plan, it gives the parts of those nodes under that plan, and
            every part that names tasks of theirs. With all nodes it gives all parts, always in the
            same order.
        delta: simulate from the first change on; without it the whole plan is simulated each
            time, for comparison.

    Attributes:
        num_simulated: tasks that these moves have simulated, of all plans.
    """

    @checked
    def __init__(
        self,
        choices: Mapping[str, Sequence[str]],
        parts: Callable[[Iterable[str], Mapping[str, str]], Mapping[str, Part]],
        *,
        delta: bool = True,
    ) -> None:
        super().__init__(choices)
        self.parts = parts
        self.delta = delta
        self.num_simulated = 0

    @checked
    def start(self, choices: Mapping[str, str]) -> Chosen:
        """A plan to begin with, simulated.

        Raises:
            BadValue: a node is missing, or it has no such choice.
        """
        self._check(choices)
        return self._chosen(dict(choices), simulate(self.parts(self.choices, choices)))

    def price(self, plan: Chosen, change: OtherChoice, limit: float) -> tuple[float, Chosen]:
        """When the changed plan ends, and that plan.

        With ``delta`` the cost is infinite where the plan ends after the limit.
        """
        choices = {**plan.choices, change.node: change.choice}
        if not self.delta or plan.timeline is None:
            chosen = self.start(choices)
        else:
            parts = self.parts((change.node,), choices)
            chosen = self._chosen(choices, plan.timeline.changed(parts, limit_s=limit))
        return chosen.cost, chosen

    def _chosen(self, choices: Mapping[str, str], timeline: Timeline) -> Chosen:
        """The plan with its timeline."""
        self.num_simulated += timeline.num_simulated
        return Chosen(choices, timeline.end_s, timeline)
