"""Axes of sweeps, and many detailed plans at once as arrays.

Numbers (sequence, micro-batch, data-parallel ranks, layers) are broadcast against each other; each
combination of everything else is one pass over their arrays. Plans that keep the papers' arithmetic
are taken one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import BadValue, UsageError, not_among, shown
from labkit.memory.jobs.parallel import GROUPS, Parallel
from labkit.memory.jobs.recipe import Recipe
from labkit.memory.plans import estimate as estimates
from labkit.memory.plans.estimate import COMPONENTS, Row
from labkit.memory.plans.job import jobs
from labkit.memory.plans.plan import FIELDS, PARTS, Plan
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd

_MOST = 2**40  # of any number: products of larger ones leave 64 bits
NUMBERS = ("dp", "seq", "micro_batch", "layers")
AXES = tuple(dict.fromkeys(("model", "recipe", "world_size", *NUMBERS, *FIELDS)))


def axes_of(axes: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    """The values of each axis; models and recipes may be given by name.

    Raises:
        UsageError: there is no such axis, or no preset of a name.
    """
    if unknown := [name for name in axes if name not in AXES]:
        raise not_among("axis", unknown[0], AXES)
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


def sweep(
    plan: Plan,
    values: Mapping[str, list[Any]],
    *,
    usable_bytes: float | None = None,
    components: bool = True,
) -> pd.DataFrame:
    """Every combination of axes' ``values`` as a row: peak, its moment, components at the peak.

    A column ``problem`` says of what cannot be why not. Rows come with the numbers
    (:data:`NUMBERS`) innermost.

    Args:
        values: of each axis, from :func:`axes_of`.
        usable_bytes: adds a column ``fits``.
        components: whether columns have each component's bytes.

    Raises:
        BadValue: a number below 1.
    """
    import pandas as pd

    rest, numbers = split_axes(plan, values)
    numbers = {name: _numbers(name, axis) for name, axis in numbers.items()}
    size = prod(map(len, numbers.values()))
    mesh = np.meshgrid(*numbers.values(), indexing="ij") if numbers else []
    tables = []
    for chosen in product(*rest.values()):
        point = dict(zip(rest, chosen, strict=True))
        columns = {name: _repeated(value, size) for name, value in point.items()}
        columns |= {n: grid.ravel() for n, grid in zip(numbers, mesh, strict=True)}
        if "world_size" in point and "dp" not in values:
            columns["dp"] = np.full(size, _filled(plan, point))
        columns |= _evaluate(plan, point, numbers, components)
        tables.append({name: columns[name] for name in (*values, *columns)})
    table = _stacked(tables)
    if usable_bytes is not None:
        table["fits"] = table["peak_bytes"] <= usable_bytes
    return pd.DataFrame(table, copy=False)


def split_axes(
    plan: Plan, values: Mapping[str, list[Any]]
) -> tuple[dict[str, list], dict[str, list]]:
    """The axes whose values are taken one by one, and the numbers, innermost in a sweep's rows.

    Layers are a number only where nothing cuts or tells them apart.
    """
    if not plan.detailed or plan.traced or "formula" in values:
        return dict(values), {}
    model, batch = plan.sized()
    cut = {"pp", "model", "recompute", "schedule", "chunks"} & set(values)
    apart = model.num_experts or plan.parallel.pp > 1 or isinstance(batch.recompute, int)
    known = [name for name in NUMBERS if name != "layers" or not (cut or apart)]
    numbers = {name: axis for name, axis in values.items() if name in known}
    return {name: axis for name, axis in values.items() if name not in numbers}, numbers


def _stacked(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns one below the other.

    A component that a part does not have is 0 there, or NaN where there is no plan.
    """
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
    """A column of one value; models and recipes go by their names."""
    if isinstance(value, Model | Recipe):
        value = value.name
    if isinstance(value, bool | int | float | np.number):
        return np.full(size, value)
    column = np.empty(size, dtype=object)
    column[:] = [value] * size
    return column


def _numbers(name: str, values: list[Any]) -> Any:
    """An axis of numbers as an array; refuses what is no whole number, below 1 or too large."""
    try:
        array = np.asarray(values)
    except ValueError:  # ragged
        array = np.empty(0)
    is_whole = array.ndim == 1 and array.dtype.kind in "iu"
    if not is_whole or not 1 <= array.min() <= array.max() <= _MOST:
        raise BadValue(f"{name} must be whole numbers >= 1, at most {_MOST:,}, got {shown(values)}")
    return array.astype(np.int64)


def plan_at(plan: Plan, point: Mapping[str, Any]) -> Plan:
    """``plan`` with other values of some axes.

    Raises:
        UsageError: they break a rule.
    """
    model = point.get("model", plan.model)
    if "layers" in point:
        if not isinstance(model, Model):
            raise UsageError("varying layers needs a plan with a Model")
        model = model.resized(num_layers=int(point["layers"]))
    changes: dict[type, dict[str, Any]] = {kind: {} for kind in PARTS}
    for name, value in point.items():
        if name in FIELDS and name != "layers":
            changes[FIELDS[name]][name] = value
    parallel, batch, recipe = changes.values()
    if batch and plan.batch is None:
        raise UsageError(f"varying {', '.join(batch)} needs a plan with a batch")
    if "world_size" in point:
        parallel = _filling(plan.parallel, parallel, point["world_size"])
    return replace(
        plan,
        model=model,
        recipe=_changed(point.get("recipe", plan.recipe), recipe),
        batch=_changed(plan.batch, batch),
        parallel=_changed(plan.parallel, parallel),
    )


def _changed(record: Any, changes: dict[str, Any]) -> Any:
    """A record with some fields changed."""
    return replace(record, **changes) if changes else record


def _filling(spread: Parallel, changes: dict[str, Any], world_size: int) -> dict[str, Any]:
    """The changes of a parallelism with the dp that fills the ranks; a dp that is given must."""
    every = {field.name: getattr(spread, field.name) for field in fields(Parallel)} | changes
    if "dp" not in changes:
        del every["dp"]
    return changes | {"dp": Parallel.of(world_size, **every).dp}


def _filled(plan: Plan, point: Mapping[str, Any]) -> float:
    """The dp that fills the ranks; NaN where none does."""
    try:
        return plan_at(plan, point).parallel.dp
    except UsageError:
        return np.nan


def _evaluate(
    plan: Plan, point: dict[str, Any], numbers: dict[str, Any], components: bool
) -> dict[str, Any]:
    """The columns of one point: one rank alone is a pass, and all that share are another.

    Their rules differ: one rank gathers nothing, and may not say what is gathered.
    """
    ranks = np.asarray(numbers.get("dp", [1]))
    alone = ranks == 1
    if alone.all() or not alone.any():
        columns = _pass(plan, point, numbers, components)
        return {name: column.ravel() for name, column in columns.items()}
    shape = tuple(map(len, numbers.values()))
    before = (slice(None),) * list(numbers).index("dp")
    whole: dict[str, Any] = {}
    for kind in (alone, ~alone):
        part = _pass(plan, point, numbers | {"dp": ranks[kind]}, components)
        for name, values in part.items():
            dtype = object if values.dtype == object else float
            column = whole.setdefault(name, np.zeros(shape, dtype=dtype))
            column[(*before, kind)] = values
    missing = np.isnan(whole["peak_bytes"])
    sizes = [f"{name.replace(' ', '_')}_bytes" for name in COMPONENTS]
    for name in [*sizes, "peak_bytes", "peak_moment", "problem"]:
        if name not in whole:
            continue
        column = whole.pop(name)  # and back at the end, in the order of every sweep
        whole[name] = np.where(missing, np.nan, column) if name in sizes else column
    return {name: column.ravel() for name, column in whole.items()}


def _pass(
    plan: Plan, point: dict[str, Any], numbers: dict[str, Any], components: bool
) -> dict[str, Any]:
    """One pass over the numbers' arrays as columns; where there is no plan, NaN and the reason."""
    shape = tuple(map(len, numbers.values()))
    try:
        moment, row, problem = _largest(
            plan, point, dict(zip(numbers, np.ix_(*numbers.values()), strict=True))
        )
    except UsageError as error:
        moment = ""
        row = {}
        problem = np.array(str(error), dtype=object)
    sizes = {f"{n.replace(' ', '_')}_bytes": row[n] for n in COMPONENTS if components and n in row}
    sizes |= {"peak_bytes": estimates.row_bytes(row)}
    texts = {"peak_moment": np.asarray(moment, dtype=object), "problem": problem}
    bad = np.broadcast_to(problem != "", shape)
    if bad.any():
        sizes = {name: np.where(bad, np.nan, value) for name, value in sizes.items()}
        texts["peak_moment"] = np.where(bad, "", texts["peak_moment"])
    columns = (sizes | texts).items()
    return {name: np.broadcast_to(value, shape) for name, value in columns}


def _largest(plan: Plan, point: dict[str, Any], numbers: dict[str, Any]) -> tuple[Any, Row, Any]:
    """The fullest moment of any pipeline device, for each configuration its own.

    There are its name, bytes by component, and what is wrong with the configuration; an empty text
    where nothing is.
    """
    # One rank a group is always possible; the numbers that are not are marked.
    world_size = point.get("world_size")
    if "dp" in numbers:
        least = smallest_dp(plan, point)
        shared = np.min(numbers["dp"]) > 1
        point = point | {"dp": 2 if shared and least == 1 else least}
        point.pop("world_size", None)
    candidate = plan_at(plan, point)
    if candidate.traced:
        there = candidate.estimate
        return there.peak_moment, dict(there.peak), np.array("", dtype=object)
    if not candidate.detailed:
        account = candidate.account
        sizes = {name: num_bytes for name, _, num_bytes in account.held()}
        return account.peak_moment, sizes, np.array("", dtype=object)
    parallel = candidate.parallel
    (model, batch) = candidate.sized()
    seq = numbers.get("seq", batch.seq)
    pieces = parallel.sequence_pieces
    problem = _problems(candidate, seq, numbers, world_size)
    seq = np.maximum(seq // pieces, 1) * pieces  # in rows with a problem any will do
    batch = replace(batch, seq=int(np.asarray(seq).flat[0]))
    given = model, parallel, candidate.recipe, batch, candidate.ideal, candidate.rank
    devices = jobs(*given, **numbers | {"seq": seq})
    named = [moment for job in devices for moment in estimates.rows_by_moment(job).items()]
    return *estimates.fullest_moment(named), problem


def smallest_dp(plan: Plan, point: Mapping[str, Any]) -> int:
    """The least dp that every group divides."""
    sizes = [point.get(name, getattr(plan.parallel, name)) or 1 for name in GROUPS]
    return int(np.lcm.reduce(sizes))


def _problems(plan: Plan, seq: Any, numbers: Mapping[str, Any], world_size: int | None) -> Any:
    """What is wrong with the numbers of each configuration, as an array of texts."""
    parallel = plan.parallel
    faults = []
    if "dp" in numbers:
        sharing = numbers["dp"] * parallel.cp
        if world_size is not None:
            wrong = sharing * parallel.tp * parallel.pp != world_size
            faults.append((wrong, f"world size ({world_size}) must be dp · tp · cp · pp"))
        for name in GROUPS:
            size = getattr(parallel, name) or 1
            faults.append((sharing % size != 0, f"dp × cp must divide by {name} ({size})"))
    pieces = parallel.sequence_pieces
    text = f"seq must divide by {pieces}, the pieces that cp and tp make of it"
    faults.append((seq % pieces != 0, text))
    model, _ = plan.sized()
    if model.positions and "seq" in numbers:
        text = f"seq must be <= {model.positions}, the positions that {model.name} has learnt"
        faults.append((seq > model.positions, text))
    problems = np.array("", dtype=object)
    for wrong, text in faults:
        problems = np.where(wrong, np.array(text, dtype=object), problems)
    return problems
