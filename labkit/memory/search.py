"""Over many plans: what is the largest that fits, and how does everything change along an axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from labkit.errors import UsageError
from labkit.memory.plan import Plan
from labkit.memory.states import Recipe
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

    ``device`` is an accelerator's name or a number of bytes. O(log limit) evaluations: what is
    varied must move the total one way only, and all four do.

    Raises:
        UsageError: ``vary`` is none of these, or the plan has no batch to vary.

    >>> from labkit.memory.plan import Parallel
    >>> plan = Plan(model=1, parallel=Parallel(dp=64, zero=1))
    >>> fit(plan, vary="model", device=32 * 10**9).value / 1e9
    7.641791044
    """
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


_PARALLEL_FIELDS = ("dp", "tp", "zero", "partition_group", "secondary_group")
_BATCH_FIELDS = ("seq", "micro_batch", "recompute", "formula")
_PLAN_FIELDS = ("model", "recipe", "sharding", "buffer_elements")


def sweep(plan: Plan, *, device: int | str | None = None, **axes: Iterable[Any]) -> pd.DataFrame:
    """Every combination of ``axes`` as one row: the axes, each component's bytes, total, traffic.

    Axes are fields of :class:`Parallel` and :class:`Batch`, and ``model``, ``recipe``,
    ``sharding``. With ``device``, a column says what fits; not fitting is never an error.

    Raises:
        UsageError: an axis is unknown.
    """
    import pandas as pd

    known = (*_PARALLEL_FIELDS, *_BATCH_FIELDS, *_PLAN_FIELDS)
    if unknown := [name for name in axes if name not in known]:
        raise UsageError(f"cannot sweep {', '.join(unknown)}; one of: {', '.join(known)}")
    rows = []
    for values in product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        here = _at(plan, point)
        row: dict[str, Any] = {name: _label(value) for name, value in point.items()}
        row |= {
            f"{term.component.replace(' ', '_')}_bytes": term.num_bytes for term in here.terms()
        }
        row["states_bytes"], row["total_bytes"] = here.states_bytes, here.total_bytes
        row["sent_bytes"] = sum(item.sent_bytes for item in here.collectives())
        if device is not None:
            row["fits"] = here.fits(device)
        rows.append(row)
    return pd.DataFrame(rows)


def _at(plan: Plan, point: dict[str, Any]) -> Plan:
    parallel = {name: value for name, value in point.items() if name in _PARALLEL_FIELDS}
    batch = {name: value for name, value in point.items() if name in _BATCH_FIELDS}
    rest: dict[str, Any] = {name: value for name, value in point.items() if name in _PLAN_FIELDS}
    changed = replace(plan, parallel=replace(plan.parallel, **parallel), **rest)
    return _with_batch(changed, batch) if batch else changed


def _label(value: Any) -> Any:
    return value.name if isinstance(value, Model | Recipe) else value
