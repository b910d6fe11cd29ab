"""Over many plans: what is the largest that fits, and how does everything change along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError
from labkit.hardware import Link
from labkit.memory.jobs import traffic
from labkit.memory.jobs.states import STAGE_NAMES, Recipe
from labkit.memory.plans.plan import Parallel, Plan
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The extreme value of what was varied that still fits; None where nothing does."""

    vary: str
    value: int | None
    plan: Plan | None
    usable_bytes: float

    @property
    def fits(self) -> bool:
        return self.value is not None


_VARY: dict[str, Callable[[Plan, int], Plan]] = {
    "model": lambda plan, value: replace(plan, model=value),
    "dp": lambda plan, value: replace(plan, parallel=replace(plan.parallel, dp=value)),
    "micro_batch": lambda plan, value: _with_batch(plan, {"micro_batch": value}),
    "seq": lambda plan, value: _with_batch(plan, {"seq": value}),
}


def _with_batch(plan: Plan, changes: dict[str, Any]) -> Plan:
    if plan.batch is None:
        raise UsageError(f"varying {', '.join(changes)} needs a plan with a batch")
    return replace(plan, batch=replace(plan.batch, **changes))


def fit(
    plan: Plan, *, vary: str, device: int | str, headroom: float = 1.0, limit: int = 10**15
) -> Fit:
    """The largest ``model`` (a count), ``micro_batch`` or ``seq`` that fits, or the least ``dp``.

    A detailed plan (see :class:`Plan`) is fitted by its peak, and takes ``layers``, ``zero`` and
    every other degree too: the largest number of layers, the least stage or degree. Its ``model``
    is the largest of the presets that fits, and ``value`` its parameters.

    ``device`` is an accelerator's name or a number of bytes. O(log limit) evaluations: what is
    varied must move the total one way only, and all four do.

    Raises:
        UsageError: ``vary`` is none of these, or the plan has no batch to vary.

    >>> plan = Plan(model=1, parallel=Parallel(dp=64, zero=1))
    >>> fit(plan, vary="model", device=32 * 10**9).value / 1e9
    7.641791044
    """
    if plan.detailed:
        from labkit.memory.plans import grid

        room = plan.usable_bytes(device, headroom=headroom)
        return grid.fit(plan, vary=vary, usable_bytes=room, limit=limit)
    if vary not in _VARY:
        raise UsageError(f"cannot vary {vary!r}; one of: {', '.join(_VARY)}")
    usable = plan.usable_bytes(device, headroom=headroom)
    change, least = _VARY[vary], vary == "dp"

    def good(value: int) -> bool:
        return change(plan, value).total_bytes <= usable

    limit = min(limit, 2**24) if least else limit
    value = _boundary(good, limit, least=least)
    found = None if value is None else change(plan, value)
    return Fit(vary=vary, value=value, plan=found, usable_bytes=usable)


def _boundary(good: Callable[[int], bool], limit: int, *, least: bool) -> int | None:
    """The least (or greatest) value in 1..limit that is good; goodness changes once at most."""
    low, high = 1, limit
    if not good(limit if least else 1):
        return None
    while low < high:
        middle = (low + high + (not least)) // 2
        if good(middle):
            low, high = (low, middle) if least else (middle, high)
        else:
            low, high = (middle + 1, high) if least else (low, middle - 1)
    return low


def largest_model(
    parallel: Parallel, capacity_bytes: int, *, recipe: Recipe | None = None, headroom: float = 1.0
) -> int:
    """Parameters of the largest model whose states alone fit: the papers' "max model size".

    >>> largest_model(Parallel(dp=64, tp=2, zero=1), 32 * 10**9) / 1e9
    15.283582089
    """
    plan = Plan(model=1, parallel=parallel, recipe=recipe or Recipe.mixed_adam())
    return fit(plan, vary="model", device=capacity_bytes, headroom=headroom).value or 0


def stages(
    model: Model | int, *, dp: int, tp: int = 1, recipe: Recipe | None = None
) -> dict[str, Plan]:
    """The same plan at ZeRO stages 0 to 3, by the papers' names for them.

    >>> [round(plan.states_bytes / 1e9, 1) for plan in stages(7_500_000_000, dp=64).values()]
    [120.0, 31.4, 16.6, 1.9]
    """
    recipe = recipe or Recipe.mixed_adam()
    return {
        name: Plan(model=model, parallel=Parallel(dp=dp, tp=tp, zero=zero), recipe=recipe)
        for zero, name in STAGE_NAMES.items()
    }


def compare(plans: Mapping[str, Plan], *, coarse: bool = False) -> pd.DataFrame:
    """The accounts of several plans in one table: the columns of ``plan.frame()``, and ``plan``.

    ``coarse`` adds up kin components, so that seven are left at most.
    """
    import pandas as pd

    from labkit.memory.plans import panels

    table = pd.concat(
        [plan.frame().assign(plan=name) for name, plan in plans.items()], ignore_index=True
    )
    return panels.coarse(table) if coarse else table


_PARALLEL_FIELDS = ("dp", "tp", "zero", "partition_group", "secondary_group")
_BATCH_FIELDS = ("seq", "micro_batch", "recompute", "formula")
_PLAN_FIELDS = ("model", "recipe", "sharding", "buffer_elements", "count_gathered")


def sweep(
    plan: Plan | Mapping[str, Plan],
    *,
    device: int | str | None = None,
    headroom: float = 1.0,
    links: tuple[Link, Link] | None = None,
    ranks_per_node: int = 8,
    **axes: Iterable[Any],
) -> pd.DataFrame:
    """Every combination of ``axes`` as one row: the axes, each component's bytes, totals, traffic.

    Axes are fields of :class:`Parallel` and :class:`Batch`, and ``model``, ``recipe``,
    ``sharding``. Several named plans are swept alike, and a column ``plan`` says which. With
    ``device``, a column says what fits (not fitting is never an error); with ``links``, between
    nodes and inside one, a column says how long the communication takes by the α–β model.

    Detailed plans are evaluated as arrays (:mod:`labkit.memory.plans.grid`): about a million rows a
    second where ``seq``, ``micro_batch``, ``dp`` and ``layers`` vary. Axes may be any field of
    :class:`Parallel`, :class:`Batch` and :class:`Recipe`, and ``world_size``, which lets ``dp`` be
    what the other degrees leave; what cannot be has NaN and a ``problem``. Traffic is left out
    unless there are ``links``, since it takes milliseconds a row.

    Raises:
        UsageError: an axis is unknown.
    """
    import pandas as pd

    if _detailed(plan):
        found = _as_arrays(plan, device, headroom, axes)
        return found if links is None else _with_traffic(plan, found, axes, ranks_per_node, links)
    rows = []
    for row, here in _grid(plan, axes):
        row |= _account(here, ranks_per_node, links)
        rows.append(row if device is None else row | {"fits": here.fits(device, headroom=headroom)})
    return pd.DataFrame(rows)


def _detailed(plan: Plan | Mapping[str, Plan]) -> bool:
    plans = list(plan.values()) if isinstance(plan, Mapping) else [plan]
    return all(one.detailed for one in plans)


def _as_arrays(
    plan: Plan | Mapping[str, Plan],
    device: int | str | None,
    headroom: float,
    axes: Mapping[str, Iterable[Any]],
) -> pd.DataFrame:
    import pandas as pd

    from labkit.memory.plans import grid

    values = {name: list(axis) for name, axis in axes.items()}
    tables = []
    for name, one in grid.named(plan):
        room = None if device is None else one.usable_bytes(device, headroom=headroom)
        table = grid.sweep(one, values, usable_bytes=room)
        if name:
            table.insert(0, "plan", name)
        tables.append(table)
    return tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)


def _with_traffic(
    plan: Plan | Mapping[str, Plan],
    table: pd.DataFrame,
    axes: Mapping[str, Iterable[Any]],
    ranks_per_node: int,
    links: tuple[Link, Link],
) -> pd.DataFrame:
    """``table`` with what each row sends in a step, and how long that takes; NaN for no plan."""
    from labkit.memory.plans import grid

    values = {name: grid.described(name, axis) for name, axis in axes.items()}
    points = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    sent: dict[tuple[Any, ...], tuple[float, float, float]] = {}
    for name, base in grid.named(plan):
        for point in points:
            label = (name, *(_label(value) for value in point.values()))
            sent[label] = _sent(base, point, ranks_per_node, links)
    keys = [table["plan"] if isinstance(plan, Mapping) else [""] * len(table)]
    keys += [table[name] for name in values]
    rows = [sent[key] for key in zip(*keys, strict=True)]
    columns = ("sent_bytes", "node_bytes", "communication_s")
    return table.assign(**dict(zip(columns, zip(*rows, strict=True), strict=True)))


def _sent(
    plan: Plan, point: Mapping[str, Any], ranks_per_node: int, links: tuple[Link, Link]
) -> tuple[float, float, float]:
    from labkit.memory.plans import grid

    try:
        found = grid.at(plan, point).collectives(ranks_per_node=ranks_per_node)
    except UsageError:
        return (math.nan, math.nan, math.nan)
    sent, out = sum(item.sent_bytes for item in found), sum(item.node_bytes for item in found)
    return sent, out, traffic.step_time_s(found, inter=links[0], intra=links[1])


def frontier(
    plan: Plan | Mapping[str, Plan],
    *,
    vary: str,
    device: int | str,
    headroom: float = 1.0,
    **axes: Iterable[Any],
) -> pd.DataFrame:
    """What :func:`fit` finds at every combination of ``axes``: a column ``vary``, NaN for nothing.

    Raises as :func:`sweep` and :func:`fit` do.
    """
    import pandas as pd

    rows = [
        row | {vary: fit(here, vary=vary, device=device, headroom=headroom).value}
        for row, here in _grid(plan, axes)
    ]
    return pd.DataFrame(rows)


def _grid(
    plan: Plan | Mapping[str, Plan], axes: Mapping[str, Iterable[Any]]
) -> Iterator[tuple[dict[str, Any], Plan]]:
    """Every plan at every combination of ``axes``, with what a row says of it."""
    known = (*_PARALLEL_FIELDS, *_BATCH_FIELDS, *_PLAN_FIELDS)
    if unknown := [name for name in axes if name not in known]:
        raise UsageError(f"cannot sweep {', '.join(unknown)}; one of: {', '.join(known)}")
    named = plan.items() if isinstance(plan, Mapping) else [("", plan)]
    values = {name: list(axis) for name, axis in axes.items()}
    for name, base in named:
        for combination in product(*values.values()):
            point = dict(zip(values, combination, strict=True))
            row = {axis: _label(value) for axis, value in point.items()}
            yield ({"plan": name} if name else {}) | row, _at(base, point)


def _account(plan: Plan, ranks_per_node: int, links: tuple[Link, Link] | None) -> dict[str, Any]:
    """One row's numbers."""
    terms = plan.terms()
    row: dict[str, Any] = {f"{t.component.replace(' ', '_')}_bytes": t.num_bytes for t in terms}
    row["states_bytes"] = plan.states_bytes
    row["total_bytes"] = plan.total_bytes  # not the sum where terms come and go
    found = plan.collectives(ranks_per_node=ranks_per_node)
    row["sent_bytes"] = sum(item.sent_bytes for item in found)
    row["node_bytes"] = sum(item.node_bytes for item in found)
    if links is not None:
        row["communication_s"] = traffic.step_time_s(found, inter=links[0], intra=links[1])
    return row


def _at(plan: Plan, point: dict[str, Any]) -> Plan:
    parallel = {name: value for name, value in point.items() if name in _PARALLEL_FIELDS}
    batch = {name: value for name, value in point.items() if name in _BATCH_FIELDS}
    rest: dict[str, Any] = {name: value for name, value in point.items() if name in _PLAN_FIELDS}
    changed = replace(plan, parallel=replace(plan.parallel, **parallel), **rest)
    return _with_batch(changed, batch) if batch else changed


def _label(value: Any) -> Any:
    return value.name if isinstance(value, Model | Recipe) else value
