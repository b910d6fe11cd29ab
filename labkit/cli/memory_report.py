"""What the commands of ``labkit memory`` report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from labkit.cli.pipeline_view import Report, Sheet, percent, records
from labkit.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

    from labkit.memory import Plan

MOST_ROWS = 60


def of_plan(plan: Plan, device: str, headroom: float) -> Report:
    """Peak, components, moments, what is kept elsewhere and sent."""
    room = plan.usable_bytes(device, headroom=headroom)
    frame, table, sent = plan.frame(), plan.moments(), plan.traffic()
    away = plan.elsewhere()
    fits = plan.peak_bytes <= room
    parts = [
        (one["component"], _size(one["num_bytes"]), percent(one["share"]))
        for one in frame.to_dict("records")
    ]
    sheets = [
        Sheet(heading="At the peak", columns=("component", "bytes", "share"), rows=parts),
        _moments(table),
    ]
    if len(away):
        rows = [(a["component"], a["place"], _size(a["num_bytes"])) for a in records(away)]
        columns = ("component", "place", "bytes")
        sheets.append(Sheet(heading="Elsewhere", columns=columns, rows=rows, words=(0, 1)))
    if len(sent):
        sheets.append(_traffic(sent))
    return Report(
        title=f"{_name(plan)}: {_size(plan.peak_bytes)} at the peak",
        lead=_lead(plan),
        facts=[
            ("peak", _size(plan.peak_bytes), plan.peak_moment),
            ("fits", "yes" if fits else "no", f"{_size(room)} of {device} may be filled"),
        ],
        tables=sheets,
        notes=plan.assumptions,
        data={
            "command": "plan",
            "peak_bytes": plan.peak_bytes,
            "peak_moment": plan.peak_moment,
            "usable_bytes": room,
            "fits": fits,
            "components": records(frame),
            "moments": records(table.reset_index()),
            "elsewhere": records(away),
            "traffic": records(sent),
            "assumptions": list(plan.assumptions),
        },
        draw=lambda: [("Moments of a step", "", plan.figure())],
    )


# Columns of the table of moments, narrower than its data.
_GROUPS = {
    "parameters": ("parameters", "second copy of the parameters", "cast parameters"),
    "gathered": ("gathered layers",),
    "gradients": ("gradients", "gradients to be reduced"),
    "optimizer": ("optimizer",),
    "activations": ("activations",),
    "the rest": ("cached weights", "temporaries", "buffers and inputs"),
}


def _moments(table: pd.DataFrame) -> Sheet:
    rows = []
    for moment, *values in table.reset_index().itertuples(index=False):
        sizes = dict(zip(table.columns, values, strict=True))
        groups = [sum(sizes.get(name, 0.0) for name in names) for names in _GROUPS.values()]
        rows.append((str(moment), *map(_size, groups), _size(sizes["total"])))
    columns = ("moment", *_GROUPS, "total")
    return Sheet(heading="Moments of a step", columns=columns, rows=rows, wide=(2, 6))


def _name(plan: Plan) -> str:
    return str(getattr(plan.model, "name", plan.model))


def _lead(plan: Plan) -> str:
    spread, batch = plan.parallel, plan.batch
    assert batch is not None
    sizes = {name: getattr(spread, name) for name in ("dp", "tp", "pp", "cp", "ep")}
    degrees = ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    return (
        f"{degrees or 'one rank'}, ZeRO stage {spread.zero}; {plan.recipe.name};"
        f" {batch.micro_batch} × {batch.seq:,} tokens, recompute {batch.recompute}"
    )


def _traffic(sent: pd.DataFrame) -> Sheet:
    rows = [
        (
            *(one["axis"], one["phase"], f"{one['collective']} of {one['what']}", one["link"]),
            _size(one["sent_bytes"]),
        )
        for one in records(sent)
        if one["ranks"] > 1
    ]
    columns = ("axis", "phase", "collective", "link", "sent")
    return Sheet(heading="Sent in a step", columns=columns, rows=rows, words=(0, 1, 2, 3))


def _size(value: float | None) -> str:
    if value is None or math.isnan(value):
        return ""
    return format_bytes(value) if value else "0"


def of_fit(plan: Plan, vary: str, device: str, headroom: float) -> Report:
    """The value found, and the plan there."""
    from labkit import memory

    found = memory.fit(plan, vary=vary, device=device, headroom=headroom)
    best = found.plan
    value = "nothing" if found.value is None else f"{found.value:,}"
    facts = [(vary, value, f"fits {_size(found.usable_bytes)} of {device}")]
    if best is not None:
        facts.append(("peak", _size(best.peak_bytes), best.peak_moment))
    return Report(
        title=f"{_name(plan)}: what {vary} fits",
        lead=_lead(best or plan),
        facts=facts,
        notes=plan.assumptions,
        data={
            "command": "fit",
            "vary": vary,
            "value": found.value,
            "usable_bytes": found.usable_bytes,
            "peak_bytes": best.peak_bytes if best else None,
            "peak_moment": best.peak_moment if best else None,
        },
    )


def of_sweep(
    plan: Plan, axes: dict[str, list[Any]], device: str, headroom: float
) -> tuple[Report, pd.DataFrame]:
    """Every combination; the terminal shows the first rows."""
    from labkit import memory

    table = memory.sweep(plan, device=device, headroom=headroom, **axes)  # type: ignore[arg-type]
    rows = [
        (
            *(f"{one[name]}" for name in axes),
            *(_size(one["peak_bytes"]), one["peak_moment"]),
            "yes" if one["fits"] else one["problem"] or "no",
        )
        for one in records(table.head(MOST_ROWS))
    ]
    more = len(table) - len(rows)
    sheet = Sheet(
        heading="",
        columns=(*axes, "peak", "moment", "fits"),
        rows=rows,
        words=(len(axes) + 1, len(axes) + 2),
        note=f"and {more:,} more rows: --csv or --json has them" if more else "",
    )
    report = Report(
        title=f"{_name(plan)}: {len(table):,} configurations, {int(table['fits'].sum()):,} fit",
        lead=f"{headroom:.0%} of {device} may be filled; {plan.recipe.name}",
        tables=[sheet],
        notes=plan.assumptions,
        data={"command": "sweep", "axes": axes, "device": device, "rows": records(table)},
    )
    return report, table


def of_check(plan: Plan, oracle: str) -> Report:
    """Predicted and measured, component by component."""
    from labkit import memory

    table = memory.check(plan, oracle=oracle)
    rows = [
        (
            one["component"],
            *(f"{one[f'{name}_bytes']:,.0f}" for name in ("predicted", "measured", "difference")),
            percent(one["difference_fraction"] or 0.0),
        )
        for one in records(table)
    ]
    columns = ("component", "predicted bytes", "measured bytes", "difference", "of measured")
    return Report(
        title=f"{_name(plan)} beside a run ({oracle})",
        lead=_lead(plan),
        tables=[Sheet(heading="", columns=columns, rows=rows)],
        data={"command": "check", "oracle": oracle, "components": records(table)},
    )


def of_comparison(plan: Plan) -> Report:
    """Each convention's count, term by term, and why they differ."""
    from labkit.memory.conventions import differences
    from labkit.models import Model

    assert isinstance(plan.model, Model)
    table = differences(plan.model, plan.parallel, plan.recipe, plan.batch)
    names = [str(name) for name in table.columns if name != "why"]
    rows = [
        (str(component), *(_size(table.loc[component, name]) for name in names))
        for component in table.index
    ]
    why = [(str(component), str(text)) for component, text in table["why"].items()]
    refused = table.attrs["refused"]
    return Report(
        title=f"{_name(plan)} by other people's arithmetic",
        lead=_lead(plan),
        tables=[
            Sheet(heading="", columns=("component", *names), rows=rows),
            Sheet(heading="Why", columns=("component", ""), rows=why, words=(0, 1), ratio={1: 1}),
        ],
        notes=[f"{name} says nothing of this: {text}" for name, text in refused.items()],
        data={
            "command": "compare",
            "components": records(table.reset_index()),
            "refused": refused,
            "peak_bytes": plan.peak_bytes,
        },
    )
