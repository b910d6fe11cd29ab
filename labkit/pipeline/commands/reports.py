"""What the reports of ``labkit pipeline`` share: sheets, facts and figures of plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labkit import pipeline
from labkit.kit.report import Figure, Report, Sheet, standin_banner
from labkit.quantities import joules, percent, seconds, significant

if TYPE_CHECKING:
    import pandas as pd

    from labkit.pipeline.planning.plans import Plan
    from labkit.pipeline.profiles.published import NamedProfile
    from labkit.pipeline.scheduling.schedule import Schedule
    from labkit.pipeline.simulation.timeline import Timeline

MOST_TIMELINES = 8  # plans drawn on one page of `compare`


def measured(source: NamedProfile, command: str, data: Mapping[str, Any], **more: Any) -> Report:
    """Make a report that says where its profile comes from.

    Args:
        source: the profile.
        command: the command's name, for JSON.
        data: what else the JSON says.
        more: further parts of the report.
    """
    return Report(
        lead=f"profile {source.origin}, {source.profile.blocking_power_w:g} W while waiting",
        banner=standin_banner({source.origin: source.standin_reason}),
        data={"command": command, "profile": source.data, **data},
        **more,
    )


def sizes(schedule: Schedule) -> str:
    """Say in words how large a schedule is."""
    chunks = schedule.num_stages != schedule.num_devices
    stages = f"{schedule.num_stages} stages, " if chunks else ""
    return f"{schedule.num_devices} devices, {stages}{schedule.num_microbatches} microbatches"


def device_sheet(devices: pd.DataFrame, counts: bool) -> Sheet:
    """Make a sheet of each device's seconds by cause; causes that no device knows are left out.

    Args:
        devices: a row each.
        counts: activations are counted, not in bytes, so that their column would say nothing new.
    """
    causes = [name for name in devices.columns if name.endswith("_s") and name != "makespan_s"]
    shown = [name for name in causes if name == "busy_s" or (devices[name] > 0).any()]
    columns = {name: name.removesuffix("_s").replace("_", "-") for name in ["device", *shown]}
    columns["peak_in_flight"] = "in flight"
    return Sheet(
        table=devices,
        columns=columns if counts else {**columns, "peak_activation_bytes": "activations"},
        formats=dict.fromkeys(shown, lambda value: significant(value, 4)),
        heading="Seconds of each device: busy, and idle by cause",
    )


def simulation_figures(line: Timeline) -> list[Figure]:
    """Draw a timeline, where its time goes, and the memory it holds."""
    messages = None if line.network is None else line.messages_frame()
    return [
        ("Timeline", "", pipeline.figure_timeline(line.frame(), messages=messages)),
        ("Where the time goes", "", pipeline.figure_idle(line.idle_frame())),
        ("Activations held", "", pipeline.figure_memory(line.memory_frame())),
    ]


def plan_facts(
    chosen: Plan, fastest: Plan, against: str, of_all_j: float | None = None
) -> list[tuple[str, Any, str]]:
    """Sum up a plan beside another.

    Args:
        chosen, fastest: the plan, and the one it is compared with.
        against: what the other is called.
        of_all_j: a bound on all candidates; by default the bound is on the plan's own schedule.
    """
    later = chosen.makespan_s / fastest.makespan_s - 1
    shift = f"{percent(abs(later))} {'later' if later > 0 else 'earlier'}"
    shift = "as fast" if abs(later) < 5e-5 else shift
    latest = "" if chosen.deadline_s is None else f", deadline {seconds(chosen.deadline_s)}"
    bound_j = of_all_j
    whose = "of every candidate within the limits"
    if bound_j is None:
        bound_j = chosen.bound_j
        whose = f"no plan takes less by {seconds(chosen.horizon_s)}"
    return [
        ("energy_j", chosen.energy_j, f"{against} {joules(fastest.energy_j)}"),
        ("saving_fraction", 1 - chosen.energy_j / fastest.energy_j, ""),
        ("makespan_s", chosen.makespan_s, shift + latest),
        ("lower bound_j", bound_j, whose),
        ("gap", percent(chosen.energy_j / bound_j - 1, 3), "above the bound at most"),
    ]


def stage_sheet(chosen: Plan, fastest: Plan) -> Sheet:
    """Make a row for each kind of work of a stage: its clocks, its energy, what that saves."""
    table = chosen.stages_frame()
    before = fastest.stages_frame()
    clocks = [list(counts) for counts in table["instructions_by_clock_mhz"]]
    table["clocks_mhz"] = [f"{c[-1]}–{c[0]}" if c[1:] else c[0] for c in clocks]
    table["saving_fraction"] = 1 - table["energy_j"] / before["energy_j"]
    columns = ["stage", "kind", "clocks_mhz", "mean_clock_mhz", "energy_j", "saving_fraction"]
    heading = "Clocks and energy of each stage, waiting left out"
    return Sheet(table=table, columns=columns, heading=heading)


def plan_figures(
    chosen: Plan, fastest: Plan, against: str, front: pd.DataFrame | None = None
) -> list[Figure]:
    """Draw the frontier where there is one, then the plan's timeline by clock and the fastest
    one's.

    Args:
        chosen, fastest: the plan, and the one it is compared with.
        against: what the other is called.
        front: the frontier's table.
    """
    drawn = timelines({"Clocks of the plan": chosen, against.capitalize(): fastest})
    if front is None:
        return drawn
    marks = pipeline.compare({"max clock": fastest, chosen.method: chosen}, bounds=False)
    return [("Energy against time", "", pipeline.figure_frontier(front, plans=marks)), *drawn]


def timelines(plans: Mapping[str, Plan]) -> list[Figure]:
    """Draw plans by clock on one scale of time and one of colour."""
    span_s = max(each.makespan_s for each in plans.values())
    clocks = [mhz for each in plans.values() for mhz in each.profile.clock_mhz]
    style: dict[str, Any] = {"colour": "clock", "span_s": span_s}
    style["colour_range"] = (float(min(clocks)), float(max(clocks)))
    drawn = list(plans.items())[:MOST_TIMELINES]
    return [(name, "", pipeline.figure_timeline(each.frame(), **style)) for name, each in drawn]


def verdicts(table: pd.DataFrame) -> Any:
    """Say why candidates were not chosen, in a word or two: the numbers stand in the same row."""
    import numpy as np

    reasons = {
        "the best": table["dropped"] == "",
        "too large": ~table["fits"],
        "costs more": table["energy_j"].notna(),
        "too slow": table["bound_j"].isna(),
    }
    return np.select(list(reasons.values()), list(reasons), "cannot win")
