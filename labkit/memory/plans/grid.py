"""Axes of sweeps, and many detailed plans at once as arrays.

Numbers (sequence, micro-batch, data-parallel ranks, layers) are broadcast against each other; each
combination of everything else is one pass over their arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import BadValue, UsageError, not_among
from labkit.memory.jobs.batch import Batch
from labkit.memory.jobs.parallel import Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.plans import estimate as estimates
from labkit.memory.plans.estimate import COMPONENTS, Row, Sizes
from labkit.memory.plans.plan import Plan
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd

_MOST = 2**40  # of any number: products of larger ones leave 64 bits
NUMBERS = ("dp", "seq", "micro_batch", "layers")
PARALLEL_FIELDS = tuple(field.name for field in fields(Parallel) if field.name != "layers")
BATCH_FIELDS = tuple(field.name for field in fields(Batch) if field.name != "formula")
RECIPE_FIELDS = tuple(
    field.name for field in fields(Recipe) if field.name not in {"name", "source"}
)
AXES = tuple(
    dict.fromkeys(
        ("model", "recipe", "world_size", *NUMBERS, *PARALLEL_FIELDS, *BATCH_FIELDS, *RECIPE_FIELDS)
    )
)
# Axes of plans that keep the papers' arithmetic.
ARITHMETIC_AXES = (
    *("dp", "tp", "zero", "partition_group", "secondary_group", "seq", "micro_batch", "recompute"),
    *("formula", "model", "recipe"),
)


def axes_of(plan: Plan, axes: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    """The values of each axis; models and recipes may be given by name.

    Raises:
        UsageError: there is no such axis, or no preset of a name.
    """
    known = AXES if plan.detailed else ARITHMETIC_AXES
    if unknown := [name for name in axes if name not in known]:
        raise not_among("axis", unknown[0], known)
    lists = {name: list(axis) for name, axis in axes.items()}
    if empty := [name for name, axis in lists.items() if not axis]:
        raise BadValue(f"axis {empty[0]} must have at least one value; got an empty list")
    named: dict[str, Callable[[str], Any]] = {"model": Model.preset, "recipe": Recipe.preset}
    return {
        name: [
            named[name](value) if name in named and isinstance(value, str) else value
            for value in axis
        ]
        for name, axis in lists.items()
    }


@dataclass(frozen=True, slots=True)
class Found:
    """What one combination of categories gave over the grid of its numbers."""

    peak_bytes: Any
    peak_moment: Any
    row: Row
    problem: Any


def sweep(
    plan: Plan,
    axes: Mapping[str, Iterable[Any]],
    *,
    usable_bytes: float | None = None,
    components: bool = True,
) -> pd.DataFrame:
    """Every combination of ``axes`` as a row: peak, its moment, components at the peak.

    Combinations that cannot be have NaN and say why in a column ``problem``. Rows come with the
    numbers (:data:`NUMBERS`) innermost. ``world_size`` lets dp be what the other degrees leave, or
    holds it to that. Models and recipes may be given by name.

    Raises:
        UsageError: an axis is unknown, or a number below 1.
    """
    import pandas as pd

    values = axes_of(plan, axes)
    numbers = {name: _numbers(name, values[name]) for name in values if _numeric(plan, name, axes)}
    rest = {name: values[name] for name in values if name not in numbers}
    size = prod(len(axis) for axis in numbers.values())
    mesh = np.meshgrid(*numbers.values(), indexing="ij") if numbers else []
    tables = []
    for chosen in product(*rest.values()):
        point = dict(zip(rest, chosen, strict=True))
        result = _evaluate(plan, point, numbers)
        columns = {name: _repeated(label(value), size) for name, value in point.items()}
        columns |= {n: grid.ravel() for n, grid in zip(numbers, mesh, strict=True)}
        if "world_size" in point and "dp" not in values:
            columns["dp"] = np.full(size, _filled(plan, point))
        columns |= _columns(result, tuple(map(len, numbers.values())), components)
        tables.append({name: columns[name] for name in (*values, *columns)})
    table = _stacked(tables)
    if usable_bytes is not None:
        table["fits"] = table["peak_bytes"] <= usable_bytes
    return pd.DataFrame(table, copy=False)


def _stacked(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns one below the other; a component that a part does not have is 0 there, or NaN where
    there is no plan."""
    names = dict.fromkeys(name for table in tables for name in table)
    order = [name for name in names if name not in {"peak_bytes", "peak_moment", "problem"}]
    if len(tables) == 1:
        return {name: tables[0][name] for name in names}
    return {
        name: np.concatenate(
            [
                t[name] if name in t else np.where(np.isnan(t["peak_bytes"]), np.nan, 0)
                for t in tables
            ]
        )
        for name in [*order, "peak_bytes", "peak_moment", "problem"]
    }


def _repeated(value: Any, size: int) -> Any:
    if isinstance(value, bool | int | float):
        return np.full(size, value)
    column = np.empty(size, dtype=object)
    column[:] = [value] * size
    return column


def label(value: Any) -> Any:
    """What a row of a sweep says of a value: models and recipes by their names."""
    return value.name if isinstance(value, Model | Recipe) else value


def _numbers(name: str, values: list[Any]) -> Any:
    array = np.asarray(values)
    if (
        array.dtype.kind not in "iu"
        or array.size == 0
        or not 1 <= array.min() <= array.max() <= _MOST
    ):
        raise BadValue(f"{name} must be whole numbers >= 1, at most {_MOST:,}, got {values[:5]}")
    return array.astype(np.int64)


def _numeric(plan: Plan, name: str, axes: Mapping[str, Iterable[Any]]) -> bool:
    """Layers are a number only where nothing cuts or tells them apart."""
    if name != "layers":
        return name in NUMBERS
    plain = isinstance(plan.model, Model) and not plan.model.num_experts
    cut = {"pp", "model", "recompute", "schedule", "chunks"} & set(axes)
    return bool(
        plain and not cut and plan.parallel.pp == 1 and not isinstance(_recompute(plan), int)
    )


def _recompute(plan: Plan) -> Any:
    return plan.batch.recompute if plan.batch else "none"


def at(plan: Plan, point: Mapping[str, Any]) -> Plan:
    """``plan`` with other values of some axes.

    Raises:
        UsageError: they break a rule.
    """
    model = point.get("model", plan.model)
    if "layers" in point:
        assert isinstance(model, Model)
        model = model.resized(num_layers=int(point["layers"]))
    batch = _of(point, (*BATCH_FIELDS, "formula"))
    if batch and plan.batch is None:
        raise UsageError(f"varying {', '.join(batch)} needs a plan with a batch")
    parallel = _of(point, PARALLEL_FIELDS)
    if "world_size" in point:
        parallel = _filling(plan.parallel, parallel, point["world_size"])
    return replace(
        plan,
        model=model,
        recipe=_changed(point.get("recipe", plan.recipe), _of(point, RECIPE_FIELDS)),
        batch=_changed(plan.batch, batch),
        parallel=_changed(plan.parallel, parallel),
    )


def _of(point: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: point[name] for name in names if name in point}


def _changed(record: Any, changes: dict[str, Any]) -> Any:
    return replace(record, **changes) if changes else record


def _filling(spread: Parallel, changes: dict[str, Any], world_size: int) -> dict[str, Any]:
    """``changes`` with the dp that fills the ranks; where dp is among them it must."""
    every = {field.name: getattr(spread, field.name) for field in fields(Parallel)} | changes
    if "dp" not in changes:
        del every["dp"]
    return changes | {"dp": Parallel.of(world_size, **every).dp}


def _filled(plan: Plan, point: Mapping[str, Any]) -> float:
    """The dp that fills the ranks; NaN where none does."""
    try:
        return at(plan, point).parallel.dp
    except UsageError:
        return np.nan


def _evaluate(plan: Plan, point: dict[str, Any], numbers: dict[str, Any]) -> Found | str:
    """One pass over the numbers' arrays, or why there is none."""
    shapes = dict(zip(numbers, np.ix_(*numbers.values()), strict=True))
    try:
        # One rank a group is always possible; the numbers that are not are marked below.
        world_size = point.get("world_size")
        if "dp" in numbers:
            point = point | {"dp": smallest_dp(plan, point)}
            point.pop("world_size", None)
        candidate = at(plan, point)
        assert isinstance(candidate.model, Model)
        assert candidate.batch is not None
        problem = _problems(candidate, shapes, world_size)
        pieces = pieces_of(candidate.parallel)
        seq = shapes.get("seq", np.int64(candidate.batch.seq))
        sizes = Sizes(
            seq=np.maximum(seq // pieces, 1) * pieces,
            micro_batch=shapes.get("micro_batch", np.int64(candidate.batch.micro_batch)),
            dp=shapes.get("dp", np.int64(candidate.parallel.dp)),
            layers=shapes.get("layers"),
        )
        return _over_devices(candidate, sizes, problem)
    except UsageError as error:
        return str(error)


def smallest_dp(plan: Plan, point: Mapping[str, Any]) -> int:
    """The least dp that every group divides."""
    degrees = [
        point.get(name, getattr(plan.parallel, name)) or 1
        for name in ("ep", "replicate", "partition_group", "secondary_group")
    ]
    return int(np.lcm.reduce(degrees))


def pieces_of(parallel: Parallel) -> int:
    """What a sequence must divide by: the pieces that cp and tp make of it."""
    return (2 * parallel.cp if parallel.cp > 1 else 1) * (parallel.tp if parallel.sp else 1)


def _problems(plan: Plan, shapes: Mapping[str, Any], world_size: int | None) -> Any:
    """For each number what is wrong with it; an empty text where nothing is."""
    parallel, faults = plan.parallel, []
    if "dp" in shapes:
        sharing = shapes["dp"] * parallel.cp
        if world_size is not None:
            wrong = sharing * parallel.tp * parallel.pp != world_size
            faults.append((wrong, f"world size ({world_size}) must be dp · tp · cp · pp"))
        for name in ("ep", "replicate", "partition_group", "secondary_group"):
            size = getattr(parallel, name) or 1
            faults.append((sharing % size != 0, f"dp × cp must divide by {name} ({size})"))
    if "seq" in shapes:
        pieces, seq = pieces_of(parallel), shapes["seq"]
        text = f"seq must divide by {pieces}, the pieces that cp and tp make of it"
        faults.append((seq % pieces != 0, text))
        if most := plan.model.positions if isinstance(plan.model, Model) else 0:
            text = f"seq must be <= {most}, the positions that {label(plan.model)} has learnt"
            faults.append((seq > most, text))
    problems = np.array("", dtype=object)
    for wrong, text in faults:
        problems = np.where(wrong, np.array(text, dtype=object), problems)
    return problems


def _over_devices(plan: Plan, sizes: Sizes, problem: Any) -> Found:
    """The fullest moment of any pipeline device, for each configuration its own."""
    assert isinstance(plan.model, Model)
    assert plan.batch is not None
    batch = replace(plan.batch, seq=int(np.asarray(sizes.seq).flat[0]))
    jobs = estimates.jobs(plan.model, plan.parallel, plan.recipe, batch, plan.ideal)
    named = [moment for job in jobs for moment in estimates.rows(job, sizes).items()]
    moment, row = estimates.largest(named)
    return Found(estimates.total(row), moment, row, problem)


def _columns(result: Found | str, shape: tuple[int, ...], components: bool) -> dict[str, Any]:
    size = prod(shape)
    if isinstance(result, str):
        nothing, problem = np.full(size, np.nan), _repeated(result, size)
        return {"peak_bytes": nothing, "peak_moment": _repeated("", size), "problem": problem}

    def flat(value: Any) -> Any:
        return np.broadcast_to(value, shape).ravel()

    bad = flat(result.problem != "") if np.ndim(result.problem) else None
    sizes = {"peak_bytes": result.peak_bytes}
    if components:
        named = {
            f"{n.replace(' ', '_')}_bytes": result.row[n] for n in COMPONENTS if n in result.row
        }
        sizes = named | sizes
    columns = {name: flat(value) for name, value in sizes.items()}
    if bad is not None and bad.any():
        columns = {name: np.where(bad, np.nan, value) for name, value in columns.items()}
    moment = flat(np.asarray(result.peak_moment, dtype=object))
    if bad is not None:
        moment = np.where(bad, "", moment)
    return columns | {"peak_moment": moment, "problem": flat(result.problem)}
