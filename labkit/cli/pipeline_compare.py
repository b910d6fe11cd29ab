"""What ``labkit pipeline compare`` reports."""

from __future__ import annotations

from collections.abc import Sequence
from time import process_time
from typing import TYPE_CHECKING, Any

from labkit.cli import pipeline_input as read
from labkit.cli.pipeline_report import schedule_data
from labkit.cli.pipeline_view import Report, Sheet, joules, percent, records, seconds
from labkit.errors import UsageError, not_among

if TYPE_CHECKING:
    import pandas as pd

    from labkit.pipeline.planning.plans import Plan
    from labkit.pipeline.simulation.network import Network

BASELINE = "1f1b, max-clock"
MOST_TIMELINES = 8


def of_comparison(
    source: read.Profile,
    num_microbatches: int,
    *,
    schedules: Sequence[str],
    methods: Sequence[str],
    options: dict[str, Any],
    weight_fraction: float,
    deadline: str,
    slowdown: str,
    network: Network | None,
) -> Report:
    """Every planner on every schedule; what cannot be planned is said, and stops nothing."""
    from labkit.pipeline.planning import plans
    from labkit.pipeline.studies.study import compare

    for method in methods:
        if method not in plans.METHODS:
            raise not_among("planner", method, plans.METHODS)
    plain, profile = read.schedule_for(
        source.profile, "1f1b", None, num_microbatches, {}, weight_fraction
    )
    base = plans.plan(plain, profile, "max-clock", network=network)
    latest = read.the_deadline(deadline, slowdown, base.makespan_s)
    made: dict[str, Plan] = {BASELINE: base}
    took_s = {BASELINE: float("nan")}
    failed: dict[str, str] = {}
    for name in schedules:
        schedule, fitting = read.schedule_for(
            source.profile, name, None, num_microbatches, _for(name, options), weight_fraction
        )
        for method in methods or list(plans.METHODS):
            key = f"{name}, {method}"
            needs = method in plans.TIMED_METHODS
            by_s = base.makespan_s if latest is None and needs else latest
            began_s = process_time()
            try:
                made[key] = plans.plan(schedule, fitting, method, by_s, network=network)
            except UsageError as error:
                failed[key] = str(error)
            took_s[key] = process_time() - began_s
    if len(made) == 1 and failed:
        raise UsageError("; ".join(failed.values()))
    table = compare(made, baseline=BASELINE).assign(cpu_s=[took_s[name] for name in made])
    return _report(source, made, table, failed, num_microbatches)


def _for(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that a schedule takes: chunks are for those that have them."""
    from labkit.pipeline.scheduling.families import FAMILIES

    if name not in FAMILIES:
        raise not_among("schedule", name, FAMILIES)
    known = {"max_in_flight", *FAMILIES[name].options}
    return {key: value for key, value in options.items() if key in known}


def _report(
    source: read.Profile,
    made: dict[str, Plan],
    table: pd.DataFrame,
    failed: dict[str, str],
    num_microbatches: int,
) -> Report:
    table = table.assign(
        method=[one.method for one in made.values()],
        deadline_s=[one.deadline_s or float("nan") for one in made.values()],
        bound_j=[one.bound_j for one in made.values()],
    )
    assumed = [note for one in made.values() for note in one.profile.assumptions]
    notes = [*dict.fromkeys(assumed), *(f"left out: {key}: {why}" for key, why in failed.items())]
    stages = source.profile.num_stages
    return Report(
        title=f"Plans for {stages} devices, {num_microbatches} microbatches",
        lead=f"profile {source.origin}, {source.profile.blocking_power_w:g} W while waiting; "
        "beside 1F1B at the highest clock",
        banner=source.warning,
        tables=[_sheet(table)],
        notes=notes,
        data={
            "command": "compare",
            "profile": source.data,
            "num_microbatches": num_microbatches,
            "baseline": BASELINE,
            "schedules": {one.schedule.name: schedule_data(one.schedule) for one in made.values()},
            "plans": records(table),
            "failed": failed,
            "assumptions": list(dict.fromkeys(assumed)),
        },
        draw=lambda: _figures(made, table),
    )


def _sheet(table: pd.DataFrame) -> Sheet:
    rows = [
        (
            one["schedule"],
            one["method"],
            seconds(one["makespan_s"]),
            percent(one["slowdown_fraction"]),
            joules(one["energy_j"]),
            percent(one["saving_fraction"]),
            percent(one["best_saving_fraction"]),
            percent(one["gap_fraction"]),
            str(one["peak_in_flight"]),
            "–" if one["cpu_s"] is None else f"{one['cpu_s']:.2f} s",
        )
        for one in records(table)
    ]
    return Sheet(
        heading="",
        columns=(
            "schedule", "planner", "makespan", "later", "energy", "saved", "at most", "gap",
            "in flight", "CPU",
        ),
        rows=rows,
        words=(0, 1),
        wide=(6, 8, 9),
    )  # fmt: skip


def _figures(made: dict[str, Plan], table: pd.DataFrame) -> list[tuple[str, str, Any]]:
    from labkit.pipeline.figures.plan_figures import figure_plans
    from labkit.pipeline.figures.timeline_figures import figure_timeline

    span_s = max(one.makespan_s for one in made.values())
    clocks = [mhz for one in made.values() for mhz in (one.profile.clock_mhz.min(),)]
    tops = [one.profile.clock_mhz.max() for one in made.values()]
    span_mhz = (float(min(clocks)), float(max(tops)))
    drawn = [
        ("Energy against time", "Dashes: the least energy of any plan of that schedule that ends "
         "as early.", figure_plans(table))
    ]  # fmt: skip
    for name, one in list(made.items())[:MOST_TIMELINES]:
        fig = figure_timeline(one.frame(), colour="clock", span_s=span_s, colour_range=span_mhz)
        drawn.append((name, "", fig))
    return drawn
