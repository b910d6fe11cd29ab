"""``labkit pipeline``: schedules simulated, and clocks chosen for them, from the shell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Annotated, Any

from labkit import pipeline
from labkit.errors import UsageError, not_among
from labkit.kit.command import Commands, assignments, option
from labkit.kit.report import Report, Sheet, records
from labkit.pipeline.commands import reports
from labkit.pipeline.commands.options import (
    Limits,
    Links,
    Measured,
    Order,
    Size,
    Trace,
    Work,
    names,
)
from labkit.pipeline.simulation.costs import amount
from labkit.quantities import percent, seconds

if TYPE_CHECKING:
    from labkit.pipeline.choice.joint import JointChoice
    from labkit.pipeline.planning.plans import Plan
    from labkit.pipeline.profiles.published import NamedProfile
    from labkit.pipeline.scheduling.schedule import Schedule
    from labkit.pipeline.simulation.costs import Costs, Network

BASELINE = "1f1b, max-clock"
PLAIN = "1F1B at the highest clock"
FASTEST = "all at the highest clock"

commands = Commands(
    "pipeline",
    """
    Pipeline parallelism: what a schedule costs in time, memory and joules.

    A profile is a CSV file (columns stage, instruction, frequency in MHz, time
    in s, energy in J of one GPU), a published one by its short name
    (a100/gpt3-175b, a100/bloom, a40/gpt3-175b), or a file of a dataset.
    """,
)


@commands.add(examples=["labkit pipeline schedules"])
def schedules() -> Report:
    """The schedules there are: options, memory and bubble in closed form, sources.

    S devices, M microbatches, v chunks a device; F, B and W are the seconds of
    a forward and of the input and weight halves of a backward on one chunk.
    """
    table = pipeline.schedules()
    shown = table.assign(what=[_what_it_does(row) for row in records(table)])
    columns = {"name": "schedule", "what": "what it does", "bubble": "bubble"}
    columns |= {"peak_in_flight": "in flight", "source": "source"}
    ratio = {"what": 7, "bubble": 4, "peak_in_flight": 4, "source": 5}
    return Report(
        title=f"{len(table)} schedules",
        lead="Every one also takes --max-in-flight: what a device has memory for.",
        tables=[Sheet(table=shown, columns=columns, ratio=ratio, wide=("source",))],
        data={"command": "schedules", "schedules": records(table)},
        csv=table,
    )


def _what_it_does(row: Mapping[str, Any]) -> str:
    options = [part.split("=")[0] for part in row["options"].split(", ") if "=" in part]
    parts = [row["summary"], f"needs {row['constraint']}" if row["constraint"] else ""]
    parts += [f"takes {', '.join(options)}" if options else ""]
    return "; ".join(filter(None, [*parts, "asynchronous" if row["asynchronous"] else ""]))


@commands.add(
    examples=[
        "labkit pipeline simulate 1f1b -s 8 -m 12",
        "labkit pipeline simulate interleaved-1f1b -s 8 -m 16 --chunks 4",
        "labkit pipeline simulate zb-h1 -s 3 -m 6 --forward 1,1.2,1 --latency .1",
    ]
)
def simulate(
    order: Order,
    work: Work,
    links: Links,
    *,
    stages: Annotated[
        int | None, option("Devices in the pipeline.", "--stages", "-s", panel="Schedule")
    ] = None,
    jitter: Annotated[float, option("Spread of durations: 0.05 for 5 %.", panel="Work")] = 0.0,
    seed: Annotated[int, option("Of the jitter.", panel="Work")] = 0,
    trace: Trace = None,
    save_order: Annotated[
        Path | None, option("Write the order in torch's CSV format.", panel="Output")
    ] = None,
) -> Report:
    """Run a schedule: makespan, bubbles and their causes, activations in flight."""
    costs = pipeline.Costs(**vars(work))
    schedule, formula = _unmeasured(order, stages, costs)
    line = pipeline.simulate(schedule, costs, network=links.network, jitter=jitter, rng=seed)
    devices = line.idle_frame().assign(
        all_reduce_s=0.0,  # the command has none; scripts may read the key
        peak_in_flight=line.schedule.peak_in_flight,
        peak_activation_bytes=line.peak_activation_bytes,
    )
    share = line.critical_share
    steady = percent(line.steady_bubble_ratio) or "none"
    closed = "" if formula is None else f"closed form {percent(formula)}"
    once = "asynchronous: warm-up and drain are paid once, not every iteration"
    return Report(
        title=f"{schedule.name}: {reports.sizes(schedule)}",
        lead=once if schedule.asynchronous else "",
        facts=[
            ("makespan_s", line.makespan_s, ""),
            ("bubble ratio", percent(line.bubble_ratio), closed),
            ("steady bubbles", steady, "between warm-up and drain"),
            ("critical path", ", ".join(f"{kind} {x:.0%}" for kind, x in share.items()), ""),
        ],
        tables=[reports.device_sheet(devices, counts=work.activation_bytes == 1)],
        data={
            "command": "simulate",
            "schedule": schedule.data,
            "makespan_s": line.makespan_s,
            "bubble_ratio": line.bubble_ratio,
            "closed_form_bubble_ratio": formula,
            "steady_bubble_ratio": line.steady_bubble_ratio,
            "critical_path_fraction": share,
            "busiest_link_fraction": line.busiest_link_ratio,
            "devices": records(devices),
        },
        figures=lambda: reports.simulation_figures(line),
        csv=line.frame(),
        files={
            "order": (save_order, lambda path: pipeline.save_order(schedule, path)),
            "trace": (trace, line.save_trace),
        },
    )


def _unmeasured(order: Order, stages: int | None, costs: Costs) -> tuple[Schedule, float | None]:
    """The schedule of a name or a file, and its bubble ratio in closed form.

    List schedulers make their orders for these costs.
    """
    from labkit.pipeline.scheduling.families import FAMILIES, family_of

    schedule = order.read(stages)
    name = order.schedule
    each_s = {key: getattr(costs, key) for key in ("forward_s", "backward_s", "weight_s")}
    if schedule is None:
        if stages is None or order.microbatches is None:
            raise UsageError(f"{name} needs --stages and --microbatches")
        options = order.settings
        if "durations_s" in family_of(name).options:
            options = {"durations_s": tuple(each_s.values()), **options}
        schedule = pipeline.build(name, stages, order.microbatches, **options)
    alike = schedule.name in FAMILIES and all(isinstance(x, float) for x in each_s.values())
    return schedule, pipeline.closed_form_bubble_ratio(schedule, **each_s) if alike else None


@commands.add(
    examples=[
        "labkit pipeline plan 1f1b -p a100/gpt3-175b -m 12",
        "labkit pipeline plan zb-v -p a100/bloom -m 8 --slowdown 0.05",
        "labkit pipeline plan envpipe -p a100/bloom -m 8 --method envpipe",
        "labkit pipeline plan 1f1b -p a100/bloom -m 12 --frontier 10",
    ]
)
def plan(
    measured: Measured,
    order: Order,
    links: Links,
    *,
    method: Annotated[str, option("The planner.", panel="Clocks")] = "optimal",
    planner_set: Annotated[
        list[str] | None,
        option("The planner's, such as unit_s=0.002.", panel="Clocks", metavar="NAME=VALUE"),
    ] = None,
    frontier: Annotated[
        int, option("Also plan for N deadlines, up to where saving ends.", panel="Clocks", min=0)
    ] = 0,
    trace: Trace = None,
) -> Report:
    """Choose a clock for every instruction of a schedule.

    Without a deadline the iteration takes no longer than at the highest clock.
    """
    schedule = order.read()
    profile = measured.source.profile
    network = links.network
    if schedule is None:
        schedule, profile = measured.fitted(order.schedule, order, **order.settings)
    else:
        profile = profile.for_schedule(schedule, measured.weight_fraction)
    fastest = pipeline.plan(schedule, profile, "max-clock", network=network)
    latest_s = measured.deadline_s(fastest.makespan_s)
    settings = assignments("--planner-set", planner_set)
    chosen = pipeline.plan(schedule, profile, method, latest_s, network=network, **settings)
    tables = [reports.stage_sheet(chosen, fastest)]
    data = chosen.data(fastest)
    front = None
    if frontier:
        front = pipeline.frontier(schedule, profile, frontier, network=network)
        shown = front.assign(gap_fraction=front["energy_j"] / front["bound_j"] - 1)
        tables.append(Sheet(table=shown, heading="Later deadlines"))
        data["frontier"] = records(front)
    return reports.measured(
        measured.source,
        "plan",
        title=f"{chosen.method} on {schedule.name}: {reports.sizes(schedule)}",
        facts=reports.plan_facts(chosen, fastest, FASTEST),
        tables=tables,
        notes=profile.assumptions,
        data=data,
        figures=lambda: reports.plan_figures(chosen, fastest, FASTEST, front),
        csv=chosen.frame(),
        files={"trace": (trace, chosen.save_trace)},
    )


@commands.add(
    examples=[
        "labkit pipeline compare -p a100/gpt3-175b -m 8",
        "labkit pipeline compare -p a40/gpt3-175b -m 8 --schedules 1f1b,zb-h1 --methods optimal",
        "labkit pipeline compare -p a100/bloom -m 12 --methods envpipe,optimal",
    ]
)
def compare(
    measured: Measured,
    size: Size,
    links: Links,
    *,
    schedules: Annotated[Any, names("To plan for.", "Schedule")] = "1f1b",
    methods: Annotated[Any, names("Planners; all of them by default.", "Clocks")] = None,
) -> Report:
    """Planners and schedules side by side, against 1F1B at the highest clock.

    The deadline is where that ends; planners that need none keep none, unless
    you give it. What cannot be planned is said, and stops nothing.
    """
    from labkit.pipeline.planning.plans import METHODS
    from labkit.pipeline.scheduling.families import family_of

    if unknown := [method for method in methods or () if method not in METHODS]:
        raise not_among("planner", unknown[0], METHODS)
    settings = size.settings  # chunks are for those that have them
    fitted = (
        measured.fitted(name, size, **{key: settings[key] for key in settings.keys() & known})
        for name in ("1f1b", *schedules)
        for known in [{"max_in_flight", *family_of(name).options}]
    )
    plans, cpu_s, failed = _all_plans(measured, fitted, methods or METHODS, links.network)
    table = pipeline.compare(plans, baseline=BASELINE).assign(cpu_s=[cpu_s[name] for name in plans])
    assumed = list(dict.fromkeys(t for each in plans.values() for t in each.profile.assumptions))
    columns = ["schedule", "method", "makespan_s", "slowdown_fraction", "energy_j"]
    columns += ["saving_fraction", "best_saving_fraction", "gap_fraction", "cpu_s"]
    wide = ("slowdown_fraction", "best_saving_fraction", "cpu_s")
    note = "Dashes: the least energy of any plan of that schedule that ends as early."
    return reports.measured(
        measured.source,
        "compare",
        title=f"Plans for {measured.source.profile.num_stages} devices, {size.count} microbatches",
        tables=[Sheet(table=table, columns=columns, wide=wide)],
        notes=[*assumed, *(f"left out: {key}: {why}" for key, why in failed.items())],
        data={
            "num_microbatches": size.count,
            "baseline": BASELINE,
            "schedules": {each.schedule.name: each.schedule.data for each in plans.values()},
            "plans": records(table),
            "failed": failed,
            "assumptions": assumed,
        },
        figures=lambda: [
            ("Energy against time", note, pipeline.figure_plans(table)),
            *reports.timelines(plans),
        ],
    )


def _all_plans(
    measured: Measured, fitted: Iterator[Any], methods: Iterable[str], network: Network | None
) -> tuple[dict[str, Plan], dict[str, float], dict[str, str]]:
    """Every planner on every schedule but the first, which is the baseline's.

    Returns the plans, the CPU seconds each took, and why others could not be made.
    """
    from labkit.pipeline.planning.plans import TIMED_METHODS

    base = pipeline.plan(*next(fitted), "max-clock", network=network)
    latest_s = measured.deadline_s(base.makespan_s)
    plans = {BASELINE: base}
    cpu_s = {BASELINE: float("nan")}
    failed = {}
    for (schedule, profile), method in product(fitted, methods):
        name = f"{schedule.name}, {method}"
        began_s = process_time()
        by_s = base.makespan_s if latest_s is None and method in TIMED_METHODS else latest_s
        try:
            plans[name] = pipeline.plan(schedule, profile, method, by_s, network=network)
            cpu_s[name] = process_time() - began_s
        except UsageError as error:
            failed[name] = str(error)
    if len(plans) == 1 and failed:
        raise UsageError("; ".join(failed.values()))
    return plans, cpu_s, failed


@commands.add(
    examples=[
        "labkit pipeline choose -p a100/bloom -m 8 --schedules 1f1b,zb-h1 --memory-limit 4,6",
        "labkit pipeline choose -p a100/bloom -m 8 --schedules 1f1b --memory-limit 32GiB "
        "--activation-bytes 2.5GiB --parameter-bytes 9GiB",
    ]
)
def choose(measured: Measured, limits: Limits, links: Links, *, trace: Trace = None) -> Report:
    """Choose schedule, in-flight cap and clocks together, within memory and time.

    The default deadline is where 1F1B ends at the highest clock. Several limits,
    separated by commas, give a table of what each costs.
    """
    from labkit.pipeline.choice.joint import Search

    described = {**vars(limits), "weight_fraction": measured.weight_fraction}
    limits_bytes = described.pop("memory_limits_bytes") or [None]
    search = Search(measured.source.profile, network=links.network, **described)
    base = search.reference
    latest = measured.deadlines(search.reference.makespan_s)
    if len(limits_bytes) * len(latest) == 1:
        choice = search.choose(memory_limit_bytes=limits_bytes[0], deadline_s=latest[0])
        return _choice(choice, measured.source, trace)
    if trace is not None:
        raise UsageError("--trace needs one plan: give one memory limit and one deadline")
    table = search.tradeoff(memory_limits_bytes=limits_bytes, deadlines_s=latest)
    shown = table.assign(gap_fraction=table["energy_j"] / table["bound_j"] - 1)
    shown["schedule"] = [name if name == name else "nothing fits" for name in table["schedule"]]
    columns = ["memory_limit_bytes", "deadline_s", "schedule", "makespan_s", "energy_j"]
    columns += ["saving_fraction", "gap_fraction"]
    note = "Each mark names the schedule of least energy there."
    return reports.measured(
        measured.source,
        "choose",
        title=f"What memory and time are worth: {reports.sizes(base.schedule)}",
        facts=[("1F1B at the highest clock_j", base.energy_j, seconds(base.makespan_s))],
        tables=[Sheet(table=shown, columns=columns, formats={"memory_limit_bytes": amount})],
        notes=[*dict.fromkeys(filter(None, table["problem"])), *search.assumptions()],
        data={
            "reference": {"makespan_s": base.makespan_s, "energy_j": base.energy_j},
            "tradeoff": records(table),
            "left_out": search.left_out,
            "assumptions": search.assumptions(),
        },
        figures=lambda: [("Energy against limits", note, pipeline.figure_tradeoff(table))],
    )


def _choice(choice: JointChoice, source: NamedProfile, trace: Path | None) -> Report:
    """The best plan, and what became of every other candidate."""
    best = choice.best
    chosen = choice.chosen
    base = choice.reference
    table = choice.frame()
    limit = choice.memory_limit_bytes
    memory = table["peak_activation_bytes"] + table["parameter_bytes"]
    shown = table.assign(memory=memory, verdict=reports.verdicts(table))
    columns = ["schedule", "num_chunks", "max_in_flight", "memory", "fastest_s", "energy_j"]
    columns += ["bound_j", "saving_fraction", "verdict"]
    style: dict[str, Any] = {"columns": columns, "formats": {"memory": amount}}
    style |= {"wide": ("num_chunks", "max_in_flight", "fastest_s")}
    first = shown.drop_duplicates(["schedule", "num_chunks"])
    room = "" if limit is None else f", limit {amount(limit)}"
    return reports.measured(
        source,
        "choose",
        title=f"Least energy within the limits: {reports.sizes(best.schedule)}",
        facts=[
            ("schedule", chosen.title, f"one of {len(table)} candidates"),
            ("memory", amount(chosen.peak_bytes), f"of the fullest device{room}"),
            *reports.plan_facts(best, base, PLAIN, choice.bound_j),
        ],
        tables=[
            Sheet(table=first, heading="Each schedule at its best", **style),
            Sheet(table=shown, heading="All candidates", page_only=True, **style),
        ],
        notes=[*choice.assumptions, *(f"Left out: {why}." for why in choice.left_out.values())],
        data={
            "memory_limit_bytes": limit,
            "deadline_s": choice.deadline_s,
            "best": best.data(base)
            | {"bound_j": choice.bound_j, "gap_fraction": choice.gap, **chosen.data},
            "candidates": records(table),
            "left_out": choice.left_out,
            "assumptions": choice.assumptions,
        },
        figures=lambda: reports.plan_figures(best, base, PLAIN),
        csv=best.frame(),
        files={"trace": (trace, best.save_trace)},
    )
