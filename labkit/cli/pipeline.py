"""``labkit pipeline``: schedules simulated, and clocks chosen for them, from the shell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from labkit.cli import pipeline_options as ask

if TYPE_CHECKING:
    import pandas as pd

    from labkit.pipeline.planning.plans import Plan
    from labkit.pipeline.profiles.profile import EnergyProfile
    from labkit.pipeline.scheduling.schedule import Schedule
    from labkit.pipeline.simulation.network import Network
    from labkit.pipeline.simulation.timeline import Timeline

pipeline = typer.Typer(
    name="pipeline",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""
    Pipeline parallelism: what a schedule costs in time, memory and joules.

    A profile is a CSV file (columns stage, instruction, frequency in MHz, time
    in s, energy in J of one GPU), a published one by its short name
    (a100/gpt3-175b, a100/bloom, a40/gpt3-175b), or a file of a dataset.

    Every command takes [cyan]--json FILE[/cyan], or [cyan]-[/cyan] for standard output. Keys end
    in their unit: _s, _j, _w, _mhz, _bytes; a _fraction of 0.05 is 5 %; null is
    what is missing.

    [bold]Examples[/bold]

      [cyan]labkit pipeline schedules[/cyan]
      [cyan]labkit pipeline simulate zb-h1 -s 8 -m 12[/cyan]
      [cyan]labkit pipeline plan 1f1b -p a100/bloom -m 12[/cyan]
      [cyan]labkit pipeline compare -p a100/bloom -m 12[/cyan]
      [cyan]labkit pipeline choose -p a100/bloom -m 12 --memory-limit 8[/cyan]
    """,
)


def register(app: typer.Typer) -> None:
    app.add_typer(pipeline)


@pipeline.command("schedules")
def schedules(json_to: str = ask.JSON) -> None:
    """The schedules there are: options, memory and bubble in closed form, sources.

    S devices, M microbatches, v chunks a device; F, B and W are the seconds of
    a forward and of the input and weight halves of a backward on one chunk.
    """
    from labkit.cli import pipeline_report, pipeline_view

    pipeline_view.tell(pipeline_report.of_schedules(), json_to, None)


@pipeline.command()
def simulate(
    name: str = ask.NAME,
    stages: int = ask.STAGES,
    microbatches: int = ask.MICROBATCHES,
    chunks: int = ask.CHUNKS,
    max_in_flight: str = ask.CAP,
    assignments: list[str] = ask.SET,
    order: Path = ask.ORDER,
    forward: str = ask.FORWARD,
    backward: str = ask.BACKWARD,
    weight: str = ask.WEIGHT,
    activation_bytes: str = ask.ACTIVATIONS,
    jitter: float = ask.JITTER,
    seed: int = ask.SEED,
    latency: str = ask.LATENCY,
    bandwidth: str = ask.BANDWIDTH,
    message_bytes: str = ask.MESSAGE,
    overlap: bool = ask.OVERLAP,
    json_to: str = ask.JSON,
    html: Path = ask.HTML,
    trace: Path = ask.TRACE,
    csv: Path = ask.CSV,
    save_order: Path = ask.SAVE_ORDER,
) -> None:
    """Run a schedule: makespan, bubbles and their causes, activations in flight.

    [bold]Examples[/bold]

      [cyan]labkit pipeline simulate 1f1b -s 8 -m 12[/cyan]
      [cyan]labkit pipeline simulate interleaved-1f1b -s 8 -m 16 --chunks 4[/cyan]
      [cyan]labkit pipeline simulate zb-h1 -s 3 -m 6 --forward 1,1.2,1 --latency .1[/cyan]
      [cyan]labkit pipeline simulate --order mine.csv --trace mine.json[/cyan]
    """
    import numpy as np

    from labkit.cli import pipeline_input as read
    from labkit.cli import pipeline_report, pipeline_view
    from labkit.pipeline.simulation.timeline import simulate as run

    options = read.options(chunks, max_in_flight, assignments)
    costs = read.costs(forward, backward, weight, activation_bytes)
    schedule = read.schedule(name, order, stages, microbatches, options, costs)
    network = read.network(latency, bandwidth, message_bytes, overlap)
    rng = np.random.default_rng(seed)
    line = run(schedule, costs, network=network, jitter=jitter, rng=rng)
    pipeline_view.tell(pipeline_report.of_simulation(line, costs), json_to, html)
    if save_order is not None:
        from labkit.pipeline.scheduling.orders import save_order as save

        save(schedule, save_order)
        pipeline_view.wrote("order", save_order, json_to)
    _save(line, line.frame(), json_to, csv, trace)


@pipeline.command()
def plan(
    name: str = ask.NAME,
    profile: str = ask.PROFILE,
    microbatches: int = ask.MICROBATCHES,
    blocking_power: float = ask.POWER,
    smooth: bool = ask.SMOOTH,
    weight_fraction: float = ask.WEIGHT_SHARE,
    chunks: int = ask.CHUNKS,
    max_in_flight: str = ask.CAP,
    assignments: list[str] = ask.SET,
    order: Path = ask.ORDER,
    method: str = ask.METHOD,
    settings: list[str] = ask.PLANNER_SET,
    deadline: str = ask.DEADLINE,
    slowdown: str = ask.SLOWDOWN,
    frontier: int = ask.FRONTIER,
    latency: str = ask.LATENCY,
    bandwidth: str = ask.BANDWIDTH,
    message_bytes: str = ask.MESSAGE,
    overlap: bool = ask.OVERLAP,
    json_to: str = ask.JSON,
    html: Path = ask.HTML,
    trace: Path = ask.TRACE,
    csv: Path = ask.CSV,
) -> None:
    """Choose a clock for every instruction of a schedule.

    Without a deadline the iteration takes no longer than at the highest clock.

    [bold]Examples[/bold]

      [cyan]labkit pipeline plan 1f1b -p a100/gpt3-175b -m 12[/cyan]
      [cyan]labkit pipeline plan zb-v -p a100/bloom -m 24 --slowdown 0.05[/cyan]
      [cyan]labkit pipeline plan envpipe -p a100/bloom -m 8 --method envpipe[/cyan]
      [cyan]labkit pipeline plan 1f1b -p a100/bloom -m 12 --frontier 40[/cyan]
    """
    from labkit.cli import pipeline_input as read
    from labkit.cli import pipeline_report, pipeline_view
    from labkit.pipeline.planning import plans

    source = read.profile(profile, blocking_power, smooth=smooth)
    options = read.options(chunks, max_in_flight, assignments)
    schedule, fitting = read.schedule_for(
        source.profile, name, order, microbatches, options, weight_fraction
    )
    network = read.network(latency, bandwidth, message_bytes, overlap)
    fastest = plans.plan(schedule, fitting, "max-clock", network=network)
    latest = read.the_deadline(deadline, slowdown, fastest.makespan_s)
    chosen = read.settings("--planner-set", settings)
    made = plans.plan(schedule, fitting, method, latest, network=network, **chosen)
    front = _frontier(schedule, fitting, frontier, network)
    report = pipeline_report.of_plan(made, fastest, source, front)
    pipeline_view.tell(report, json_to, html)
    _save(made, made.frame(), json_to, csv, trace)


@pipeline.command()
def compare(
    profile: str = ask.PROFILE,
    microbatches: int = ask.MICROBATCHES,
    schedules: str = ask.SCHEDULES,
    methods: str = ask.METHODS,
    blocking_power: float = ask.POWER,
    smooth: bool = ask.SMOOTH,
    weight_fraction: float = ask.WEIGHT_SHARE,
    chunks: int = ask.CHUNKS,
    max_in_flight: str = ask.CAP,
    deadline: str = ask.DEADLINE,
    slowdown: str = ask.SLOWDOWN,
    latency: str = ask.LATENCY,
    bandwidth: str = ask.BANDWIDTH,
    message_bytes: str = ask.MESSAGE,
    overlap: bool = ask.OVERLAP,
    json_to: str = ask.JSON,
    html: Path = ask.HTML,
) -> None:
    """Planners and schedules side by side, against 1F1B at the highest clock.

    The deadline is where that ends; planners that need none keep none, unless
    you give it.

    [bold]Examples[/bold]

      [cyan]labkit pipeline compare -p a100/gpt3-175b -m 12[/cyan]
      [cyan]labkit pipeline compare -p a40/gpt3-175b -m 24 --schedules 1f1b,zb-h1[/cyan]
      [cyan]labkit pipeline compare -p a100/bloom -m 12 --methods envpipe,optimal[/cyan]
    """
    from labkit.cli import pipeline_compare, pipeline_view
    from labkit.cli import pipeline_input as read

    source = read.profile(profile, blocking_power, smooth=smooth)
    report = pipeline_compare.of_comparison(
        source,
        read.needed("--microbatches", microbatches),
        schedules=read.words(schedules),
        methods=read.words(methods),
        options=read.options(chunks, max_in_flight, None),
        weight_fraction=weight_fraction,
        deadline=deadline,
        slowdown=slowdown,
        network=read.network(latency, bandwidth, message_bytes, overlap),
    )
    pipeline_view.tell(report, json_to, html)


@pipeline.command()
def choose(
    profile: str = ask.PROFILE,
    microbatches: int = ask.MICROBATCHES,
    memory_limit: str = ask.MEMORY,
    activation_bytes: str = ask.HELD,
    parameter_bytes: str = ask.PARAMETERS,
    schedules: str = ask.ANY_SCHEDULES,
    chunks: str = ask.ANY_CHUNKS,
    blocking_power: float = ask.POWER,
    smooth: bool = ask.SMOOTH,
    weight_fraction: float = ask.WEIGHT_SHARE,
    deadline: str = ask.DEADLINE,
    slowdown: str = ask.SLOWDOWN,
    tolerance: float = ask.TOLERANCE,
    latency: str = ask.LATENCY,
    bandwidth: str = ask.BANDWIDTH,
    message_bytes: str = ask.MESSAGE,
    overlap: bool = ask.OVERLAP,
    json_to: str = ask.JSON,
    html: Path = ask.HTML,
    trace: Path = ask.TRACE,
    csv: Path = ask.CSV,
) -> None:
    """Choose schedule, in-flight cap and clocks together, within memory and time.

    The default deadline is where 1F1B ends at the highest clock. Several limits,
    separated by commas, give a table of what each costs. [bold]Examples[/bold]

      [cyan]labkit pipeline choose -p a100/bloom -m 12 --memory-limit 6[/cyan]
      [cyan]labkit pipeline choose -p a100/bloom -m 12 --memory-limit 24GiB \\
          --activation-bytes 2.5GiB --parameter-bytes 9GiB[/cyan]
      [cyan]labkit pipeline choose -p a100/bloom -m 12 --memory-limit 4,6,8[/cyan]
    """
    from labkit.cli import pipeline_choose, pipeline_view
    from labkit.cli import pipeline_input as read
    from labkit.pipeline.choice.joint import Search

    source = read.profile(profile, blocking_power, smooth=smooth)
    search = Search(
        source.profile,
        read.needed("--microbatches", microbatches),
        activation_bytes=read.bytes_each("--activation-bytes", activation_bytes or "1"),
        parameter_bytes=read.bytes_each("--parameter-bytes", parameter_bytes or "0"),
        schedules=read.words(schedules) or None,
        num_chunks=read.whole_numbers("--chunks", chunks),
        weight_fraction=weight_fraction,
        tolerance=tolerance,
        network=read.network(latency, bandwidth, message_bytes, overlap),
    )
    limits = read.byte_counts("--memory-limit", memory_limit) if memory_limit else [None]
    latest = read.deadlines(deadline, slowdown, search.reference.makespan_s)
    if len(limits) * len(latest) > 1:
        read.no_single_plan(csv=csv, trace=trace)
        several = pipeline_choose.of_tradeoff(search, limits, latest, source)
        pipeline_view.tell(several, json_to, html)
        return
    choice = search.choose(memory_limit_bytes=limits[0], deadline_s=latest[0])
    pipeline_view.tell(pipeline_choose.of_choice(choice, source), json_to, html)
    _save(choice.best, choice.best.frame(), json_to, csv, trace)


def _frontier(
    schedule: Schedule, profile: EnergyProfile, num_points: int, network: Network | None
) -> pd.DataFrame | None:
    """The optimal planner's frontier; None where no points were asked for."""
    from labkit.errors import UsageError
    from labkit.pipeline.planning.plans import frontier

    if not num_points:
        return None
    if network is not None:
        raise UsageError("--frontier plans without a network: leave out --latency and --bandwidth")
    return frontier(schedule, profile, num_points)


def _save(
    made: Plan | Timeline, table: pd.DataFrame, json_to: str, csv: Path | None, trace: Path | None
) -> None:
    """Write the instructions as a table and as trace events, where asked for."""
    from labkit.cli import pipeline_view

    if csv is not None:
        from labkit.files import write_atomically

        write_atomically(csv, table.to_csv(index=False))
        pipeline_view.wrote("CSV", csv, json_to)
    if trace is not None:
        made.save_trace(trace)
        pipeline_view.wrote("trace", trace, json_to)
