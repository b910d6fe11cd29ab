"""Over many plans: what is the largest that fits, and how does everything change along an axis."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

from labkit.errors import BadValue, UsageError, not_among
from labkit.hardware import Link
from labkit.kit.describe import Count, checked
from labkit.memory.jobs import traffic
from labkit.memory.jobs.states import STAGE_NAMES
from labkit.memory.plans import grid
from labkit.memory.plans.plan import Capacity, Headroom, Plan
from labkit.memory.tape.moments import TooLarge
from labkit.models import Model

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The extreme value of what was varied that still fits; None where nothing does."""

    value: int | None
    plan: Plan | None
    usable_bytes: float


# What may vary: the largest value that fits, or the least.
LARGEST = ("micro_batch", "seq", "layers")
LEAST = ("dp", "zero", "tp", "pp", "ep", "cp")
ARITHMETIC = ("model", "dp", "micro_batch", "seq")
TRACED = ("micro_batch", "seq", "dp", "zero")
_MOST_RANKS = 2**24
_MOST_TRACED_RANKS = 256  # a step of more takes 20 s each, and saves hardly more
_MOST_SAMPLES = 2**24
_MOST_PARAMS = 10**15  # where a search gives up
_MOST_ELEMENTS = 2**40  # of a sequence's hidden states: larger ones overflow the arithmetic


@checked
def fit(plan: Plan, *, vary: str, device: Capacity, headroom: Headroom = 1.0) -> Fit:
    """The extreme value of one quantity at which the plan still fits.

    It is the largest ``model`` (a count), ``micro_batch`` or ``seq``, or the least ``dp``. A
    detailed plan (see :class:`Plan`) is fitted by its peak, and takes ``layers``, ``zero`` and
    every other degree too: the largest number of layers, the least stage or degree. Values that
    break a rule (a sequence that ``tp`` does not divide) are passed over.

    Degrees are the first point of a sweep that fits. All else takes a few dozen evaluations: it
    must move the total one way only, and does. Of a network that is traced at most 256 ranks are
    tried.

    Args:
        vary: the quantity's name.
        device: an accelerator's name, or a number of bytes.
        headroom: the share of it that may be filled.

    Raises:
        UsageError: ``vary`` is none of these, the plan has no batch to vary, or it breaks a rule
            whatever the value.

    >>> from labkit.memory import Parallel
    >>> plan = Plan(model=1, parallel=Parallel(dp=64, zero=1))
    >>> fit(plan, vary="model", device=32 * 10**9).value / 1e9
    7.641791044
    """
    room = plan.usable_bytes(device, headroom=headroom)
    known = (*LARGEST, *LEAST) if plan.detailed else ARITHMETIC
    if plan.traced:
        known = TRACED
    if vary not in known:
        raise not_among("quantity to vary", vary, known)
    value = _extreme(plan, vary, room)
    fitted = None if value is None else grid.plan_at(plan, {vary: value})
    return Fit(value=value, plan=fitted, usable_bytes=room)


QUESTIONS = {
    "micro_batch": "largest micro-batch",
    "seq": "longest sequence",
    "dp": "fewest GPUs",
}
"""What :func:`limits` answers, by what it varies."""


@checked
def limits(plan: Plan, *, device: Capacity, headroom: Headroom = 1.0) -> pd.DataFrame:
    """The largest micro-batch, the longest sequence and the fewest GPUs, all else as it is.

    GPUs are replicas times the ranks of each (``dp`` varies, at the plan's ZeRO stage); the
    micro-batch of a replica stays.

    Args:
        plan: with a batch.
        device: an accelerator's name, or a number of bytes.
        headroom: the share of it that may be filled.

    Returns:
        A row a question: question, vary, value (of samples, tokens or GPUs; NaN where nothing
        fits), peak_bytes and peak_moment there; next_value, the first that does not fit (NaN where
        none is tried), next_bytes, what it would need, lacking_bytes, how much more than may be
        filled; and binds, what keeps it from fitting, as a sentence.

    Raises:
        UsageError: the plan has no batch, or breaks a rule.

    >>> from labkit.memory import Batch
    >>> plan = Plan(model=Model.preset("gpt2-124m"), batch=Batch(seq=512))
    >>> limits(plan, device="RTX-4090")[["question", "value"]].values.tolist()
    [['largest micro-batch', 52.0], ['longest sequence', 1024.0], ['fewest GPUs', 1.0]]
    """
    import pandas as pd

    if plan.batch is None:
        raise UsageError("limits need a plan with a batch: it is what they vary")
    rows = []
    for vary, question in QUESTIONS.items():
        found = fit(plan, vary=vary, device=device, headroom=headroom)
        rows.append({"question": question, "vary": vary} | _limit(plan, vary, found))
    return pd.DataFrame(rows)


def _limit(plan: Plan, vary: str, found: Fit) -> dict[str, Any]:
    """What fits of one quantity, and what of the next value does not."""
    each = plan.parallel.world_size // plan.parallel.dp if vary == "dp" else 1
    beyond, why = _beyond(plan, vary, found)
    if vary == "dp" and found.value is None:
        why = f"no number of GPUs fits at ZeRO stage {plan.parallel.zero}" + _at_a_higher_stage(
            plan, found.usable_bytes
        )
    row: dict[str, Any] = {
        "value": math.nan if found.value is None else float(found.value * each),
        "peak_bytes": math.nan if found.plan is None else float(found.plan.peak_bytes),
        "peak_moment": "" if found.plan is None else str(found.plan.peak_moment),
        "next_value": math.nan,
        "next_bytes": math.nan,
        "lacking_bytes": math.nan,
        "binds": why,
    }
    if beyond is not None:
        value = getattr(beyond.parallel if vary == "dp" else beyond.batch, vary)
        size = float(beyond.peak_bytes)
        row["next_value"] = float(value * each)
        row |= {"next_bytes": size, "lacking_bytes": size - found.usable_bytes}
    return row


def _beyond(plan: Plan, vary: str, found: Fit) -> tuple[Plan | None, str]:
    """The plan of the next value, which does not fit, and why; without one, what else binds."""
    step = grid.smallest_dp(plan, {}) if vary == "dp" else 1
    if vary == "seq" and plan.detailed:
        step = plan.parallel.sequence_pieces
    if vary != "dp":
        value = (found.value or 0) + step
    elif found.value is None:
        value = plan.parallel.dp
    else:
        value = found.value - step
    if value < 1:
        return None, "nothing: there are no fewer"
    try:
        beyond = grid.plan_at(plan, {vary: value})
        beyond.peak_bytes  # noqa: B018
    except TooLarge:
        return None, "nothing that this account can count"
    except UsageError as error:
        return None, str(error)
    return beyond, _what_fills(beyond)


def _at_a_higher_stage(plan: Plan, room: float) -> str:
    """Say with how many GPUs the plan fits at the first higher stage of ZeRO where it does."""
    each = plan.parallel.world_size // plan.parallel.dp
    for stage in range(plan.parallel.zero + 1, 4):
        try:
            value = _extreme(grid.plan_at(plan, {"zero": stage}), "dp", room)
        except UsageError:
            continue
        if value is not None:
            return f"; at stage {stage} it does from {value * each:,} on"
    return ""


def _what_fills(plan: Plan) -> str:
    """What takes the most of a plan's device, and when."""
    held = {name: size for name, place, size in plan.account.held() if place == "device"}
    first = max(held, key=lambda name: held[name])
    return f"{first} at {plan.peak_moment} ({held[first] / plan.peak_bytes:.0%} of it)"


def _extreme(plan: Plan, vary: str, room: float) -> int | None:
    """The largest value that fits, or the least degree; None where none does."""
    by_sweep = plan.detailed and vary in LEAST and not (plan.traced and vary == "dp")
    search = _first_that_fits if by_sweep else _bisected
    return search(plan, vary, room)


def _first_that_fits(plan: Plan, vary: str, room: float) -> int | None:
    """The least degree that fits: of powers of two, or of every dp that the groups divide."""
    if vary == "dp":
        step = grid.smallest_dp(plan, {})
        values = [n * step for n in range(1, max(2, 2**16 // step + 1))]
    elif vary == "zero":
        values = list(range(4))
    else:
        values = [2**power for power in range(11)]
    table = grid.sweep(plan, {vary: values}, usable_bytes=room, components=False)
    if table["peak_bytes"].isna().all():
        raise UsageError(str(table["problem"].iloc[0]))
    fits = table.loc[table["fits"], vary]
    return int(fits.iloc[0]) if len(fits) else None


def _bisected(plan: Plan, vary: str, room: float) -> int | None:
    """The boundary between what fits and what does not, in steps that break no rule."""
    least = vary == "dp"
    step = 1
    limit = _MOST_ELEMENTS
    if least or vary == "model":
        limit = _MOST_RANKS if least else _MOST_PARAMS
    elif plan.detailed:
        step, limit = _steps(plan, vary)
    if plan.traced and least:
        limit = _MOST_TRACED_RANKS
    if limit < step:
        return None

    @cache
    def good(value: int) -> bool:
        try:
            return grid.plan_at(plan, {vary: value * step}).peak_bytes <= room
        except TooLarge:
            return False

    limit //= step
    if plan.traced:  # each takes seconds: what is far beyond the boundary is not tried
        limit = _doubled(good, limit, least=least)
        if least and not good(limit):
            return None
    value = _boundary(good, limit, least=least)
    return None if value is None else value * step


def _doubled(good: Callable[[int], bool], limit: int, *, least: bool) -> int:
    """The first power of two beyond the boundary between good and not, or the limit."""
    value = 1
    while value < limit and good(value) != least:
        value *= 2
    return min(value, limit)


def _steps(plan: Plan, vary: str) -> tuple[int, int]:
    """What a number must divide by, and the value at which to give up."""
    if vary == "seq":
        model, _ = plan.sized()
        most = _MOST_ELEMENTS // max(1, model.hidden)
        return plan.parallel.sequence_pieces, min(model.positions or most, most)
    if vary == "micro_batch":
        return 1, _MOST_SAMPLES
    if plan.parallel.layers is not None:
        raise BadValue("layers must be None in the parallelism where the number of layers varies")
    if plan.parallel.pp > 1 and plan.parallel.layer_split != "even":
        raise BadValue("layer_split must be even where the number of layers varies")
    return len(plan.parallel.stage_layers(0)), _MOST_SAMPLES


def _boundary(good: Callable[[int], bool], limit: int, *, least: bool) -> int | None:
    """The least (or greatest) value in 1..limit that is good; goodness changes once at most."""
    first = bisect_left(range(1, limit + 1), True, key=lambda value: good(value) == least)
    if not least:
        return first or None  # as many as are good before the first that is not
    return first + 1 if first < limit else None


def what_fits(
    plan: Plan, *, models: Iterable[Model], device: Capacity, headroom: Headroom = 1.0
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """``plan`` for each model and ZeRO stage: components at the peak, and the least ``dp``.

    Args:
        models: in the plan's place for one.
        device: an accelerator's name, or a number of bytes.
        headroom: the share of it that may be filled.

    Returns:
        Two tables. The first has columns model, plan, component, num_bytes, size_gb, share; the
        second model, plan, dp (NaN where none fits).
    """
    import pandas as pd

    bars = []
    least = []
    for model, (stage, name) in product(models, STAGE_NAMES.items()):
        candidate = replace(plan, model=model, parallel=replace(plan.parallel, zero=stage))
        held = candidate.frame().query("place == 'device'")
        bars.append(held.assign(model=model.name, plan=name))
        ranks = fit(candidate, vary="dp", device=device, headroom=headroom).value
        least.append({"model": model.name, "plan": name, "dp": ranks})
    return pd.concat(bars, ignore_index=True), pd.DataFrame(least).astype({"dp": float})


@checked
def compare(plans: Mapping[str, Plan]) -> pd.DataFrame:
    """The accounts of several plans in one table: the columns of ``plan.frame()``, and ``plan``."""
    import pandas as pd

    if not plans:
        raise BadValue("plans must have at least one Plan by its name; got an empty mapping")
    tables = [plan.frame().assign(plan=name) for name, plan in plans.items()]
    return pd.concat(tables, ignore_index=True)


@checked
def sweep(
    plan: Plan | Mapping[str, Plan],
    *,
    device: Capacity | None = None,
    headroom: Headroom = 1.0,
    links: tuple[Link, Link] | None = None,
    ranks_per_node: Count = 8,
    **axes: Iterable[Any],
) -> pd.DataFrame:
    """Every combination of ``axes`` as one row: the axes, each component's bytes, peak, traffic.

    Detailed plans are evaluated as arrays (:mod:`labkit.memory.plans.grid`): about a million rows a
    second where ``seq``, ``micro_batch``, ``dp`` and ``layers`` vary. What cannot be has NaN and a
    ``problem``.

    Args:
        plan: one, or several by name, which are swept alike; a column ``plan`` then says which.
        device, headroom: add a column that says what fits; not fitting is never an error.
        links: between nodes, and inside one. They add columns of what is sent and how long it takes
            by the α–β model (milliseconds a row).
        ranks_per_node: for the traffic.
        axes: fields of :class:`Parallel`, :class:`Batch` and :class:`Recipe`, ``model``,
            ``recipe``, and ``world_size``, which lets ``dp`` be what the other degrees leave.

    Raises:
        UsageError: an axis is unknown.

    >>> from labkit.memory import Parallel
    >>> plan = Plan(model=10**9, parallel=Parallel(dp=8))
    >>> sweep(plan, zero=[0, 3])["peak_bytes"].tolist()
    [16000000000.0, 2000000000.0]
    """
    import pandas as pd

    named = plan if isinstance(plan, Mapping) else {"": plan}
    if not named:
        raise BadValue("plan must be a Plan, or a mapping with at least one; got an empty mapping")
    tables = []
    for name, base in named.items():
        values = grid.axes_of(axes)
        room = None if device is None else base.usable_bytes(device, headroom=headroom)
        table = grid.sweep(base, values, usable_bytes=room)
        if links is not None:
            table = table.assign(**_sent_by(base, values, links, ranks_per_node))
        if isinstance(plan, Mapping):
            table.insert(0, "plan", name)
        tables.append(table)
    return tables[0] if len(tables) == 1 else pd.concat(tables, ignore_index=True)


def _sent_by(
    base: Plan, values: Mapping[str, list[Any]], links: tuple[Link, Link], ranks_per_node: int
) -> dict[str, list[float]]:
    """Bytes that each row's rank sends, bytes that leave a node, and how long that takes.

    Lists are in the sweep's order, NaN where there is no plan.
    """
    rest, numbers = grid.split_axes(base, values)
    axes = rest | numbers
    rows = []
    for chosen in product(*axes.values()):
        try:
            plan = grid.plan_at(base, dict(zip(axes, chosen, strict=True)))
            sent = plan.collectives(ranks_per_node=ranks_per_node)
        except UsageError:
            rows.append((math.nan, math.nan, math.nan))
            continue
        moved = sum(item.sent_bytes for item in sent), sum(item.node_bytes for item in sent)
        rows.append((*moved, traffic.step_time_s(sent, inter=links[0], intra=links[1])))
    names = ("sent_bytes", "node_bytes", "communication_s")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
