"""The choice on a graph as Alpa's §4.2 writes it, for HiGHS and for CBC.

Binary s of each node and choice, one of them 1; binary e of each edge and pair, one of them 1; and
what the pairs of a choice add up to is at most that choice's s, on either side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from labkit.planner.choices import Problem


class Row(NamedTuple):
    """Factors of variables, whose sum is exactly 1 or at most 0."""

    variables: np.ndarray
    factors: np.ndarray
    equal: bool


def program(problem: Problem) -> tuple[np.ndarray, list[Row]]:
    """Costs of all variables, and the rows."""
    costs: list[np.ndarray] = []
    rows: list[Row] = []
    first: dict[str, int] = {}
    begin = 0
    for node, values in problem.node_costs.items():
        first[node] = begin
        rows.append(Row(begin + np.arange(len(values)), np.ones(len(values)), equal=True))
        costs.append(np.asarray(values, dtype=float))
        begin += len(values)
    for (one, other), table in problem.edge_costs.items():
        pairs = begin + np.arange(table.size).reshape(table.shape)
        rows.append(Row(pairs.ravel(), np.ones(table.size), equal=True))
        for node, lines in ((one, pairs), (other, pairs.T)):
            for choice, line in enumerate(lines):
                variables = np.append(line, first[node] + choice)
                rows.append(Row(variables, np.append(np.ones(len(line)), -1.0), equal=False))
        costs.append(np.asarray(table, dtype=float).ravel())
        begin += table.size
    return np.concatenate(costs), rows


def by_highs(problem: Problem) -> float:
    """The least cost, all variables whole."""
    costs, rows = program(problem)
    counts = [len(row.variables) for row in rows]
    entries = (
        np.concatenate([row.factors for row in rows]),
        (np.repeat(np.arange(len(rows)), counts), np.concatenate([row.variables for row in rows])),
    )
    matrix = coo_array(entries, shape=(len(rows), len(costs))).tocsr()
    equal = np.array([row.equal for row in rows])
    limits = LinearConstraint(matrix, np.where(equal, 1.0, -np.inf), equal.astype(float))
    answer = milp(
        costs,
        constraints=[limits],
        bounds=Bounds(0, 1),
        integrality=np.ones(len(costs)),
        options={"mip_rel_gap": 0.0},
    )
    return float(answer.fun)


def by_cbc(problem: Problem, limit_s: float) -> float | None:
    """The least cost, all variables whole; None where CBC does not end in time."""
    from ortools.linear_solver import pywraplp

    costs, rows = program(problem)
    solver = pywraplp.Solver.CreateSolver("CBC")
    solver.SetTimeLimit(int(1e3 * limit_s))
    variables = [solver.BoolVar(f"x{place}") for place in range(len(costs))]
    for row in rows:
        low = 1.0 if row.equal else -solver.infinity()
        limit = solver.Constraint(low, 1.0 if row.equal else 0.0)
        for variable, factor in zip(row.variables.tolist(), row.factors.tolist(), strict=True):
            limit.SetCoefficient(variables[variable], factor)
    for variable, cost in zip(variables, costs.tolist(), strict=True):
        solver.Objective().SetCoefficient(variable, cost)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return None
    return float(solver.Objective().Value())
