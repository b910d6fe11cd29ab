"""``labkit tuning outcomes``, ``simulate`` and ``savings``: what a trace says of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from labkit.kit.command import option, words
from labkit.kit.report import Figure, Report, Sheet, records, standin_banner
from labkit.quantities import joules, percent, seconds
from labkit.tuning.commands.options import (
    Beta,
    Eta,
    JobOptions,
    Selector,
    Slowdown,
    TraceName,
    commands,
    energy_notes,
)

if TYPE_CHECKING:
    import pandas as pd

    from labkit.tuning import Job, Runs, TrainingTrace

Policies = Annotated[
    str, option("Policies; `all` for every one.", "--policies", "-p", metavar="A,B", panel="Policy")
]
Seeds = Annotated[int, option("How many seeds, from 0.", min=1, panel="Policy")]


def policy_names(text: str) -> list[str]:
    """``--policies A,B`` as names; ``all`` is every one."""
    from labkit.tuning import POLICIES

    return list(POLICIES) if text == "all" else words(text)


def notes_of(trace: TrainingTrace, job: Job) -> list[str]:
    """What the numbers rest on: how energy was found, and what the trace lacks."""
    gaps = trace.gaps()
    if known := trace.workloads.get(job.name):
        mine = (gaps["network"] == known.network) & (gaps["optimizer"] == known.optimizer)
        gaps = gaps[mine & (gaps["dataset"] == (known.dataset or job.name))]
    lacks = [f"{row['count']} {row['gap']}: {row['detail']}" for row in gaps.to_dict("records")]
    host = [f"with {job.host_power_w:g} W for the rest of the server"] if job.host_power_w else []
    return [*energy_notes(trace.energy_source), *lacks, *host]


def banner_of(*traces: TrainingTrace) -> str:
    return standin_banner({f"the {trace.gpu} trace": trace.standin for trace in traces})


def place(batch_size: float, power_limit_w: float) -> str:
    return f"{batch_size:,.0f} @ {power_limit_w:g} W"


# ---------------------------------------------------------------- outcomes


@commands.add(examples=["labkit tuning outcomes digits-mlp --trace digits --eta 0.3"])
def outcomes(
    job: JobOptions, *, eta: Eta = 0.5, selector: Selector = "cost", max_slowdown: Slowdown = None
) -> Report:
    """Time, energy and cost of every batch size and power limit, and what none other beats."""

    from labkit import tuning

    trace, it = job.load()
    table, best = tuning.outcomes(it, eta=eta), tuning.optimum(it, eta=eta)
    limits = tuning.best_power_limits(it, eta, selector=selector, max_slowdown=max_slowdown)
    selected = {
        size: it.power_limits_w[limit] for size, limit in zip(it.batch_sizes, limits, strict=True)
    }
    chosen = table[table["power_limit_w"] == table["batch_size"].map(selected)]
    base = tuning.default_choice(it, eta=eta)
    both = f"{joules(base.energy_to_accuracy_j)} in {seconds(base.time_to_accuracy_s)}"
    saved = 1 - best.energy_to_accuracy_j / base.energy_to_accuracy_j
    how = selector if max_slowdown is None else f"{selector} {max_slowdown:g}"
    return Report(
        title=f"{it.title}: {len(table)} configurations on {trace.gpu}",
        lead=f"to {it.target_metric:g}, η = {eta:g}; expected over the recorded runs"
        + (f"; energy {trace.energy_source}" if trace.energy_source else ""),
        facts=[
            ("default", place(base.batch_size, base.power_limit_w),
             both if base.reach_probability else "never reaches the target"),
            ("least cost", place(best.batch_size, best.power_limit_w),
             f"{joules(best.energy_to_accuracy_j)}, {percent(saved, 1)} saved"),
        ],
        tables=[
            outcome_sheet("Pareto front of time and energy", tuning.pareto_front(table)),
            outcome_sheet(f"Each batch size at the limit that {how} takes", chosen),
            outcome_sheet("All configurations", table, page_only=True),
        ],
        csv=table,
        banner=banner_of(trace),
        notes=notes_of(trace, it),
        figures=lambda: [
            ("Time and energy", "", tuning.figures.figure_pareto(table, chosen=asdict(best))),
            ("Energy to accuracy of every configuration", "", tuning.figures.figure_map(table)),
        ],
        data={
            "command": "outcomes",
            "is_standin": bool(trace.standin),
            "workload": it.name,
            "gpu": trace.gpu,
            "eta": eta,
            "selector": selector,
            "optimum": {"batch_size": best.batch_size, "power_limit_w": best.power_limit_w},
            "selected_limits_w": selected,
            "energy_source": trace.energy_source,
            "num_holes": it.num_holes,
            "configurations": records(table),
        },
    )  # fmt: skip


def outcome_sheet(heading: str, rows: pd.DataFrame, **more: Any) -> Sheet:
    """Configurations; what never reaches the target has empty cells."""
    columns = {
        "batch_size": "batch size", "power_limit_w": "limit", "reach_probability": "reach it",
        "expected_epochs": "epochs", "time_to_accuracy_s": "time",
        "energy_to_accuracy_j": "energy", "cost_j": "cost",
    }  # fmt: skip
    finite = rows.replace(float("inf"), float("nan"))
    formats = {"reach_probability": partial(percent, digits=0)}
    return Sheet(heading=heading, table=finite, columns=columns, formats=formats, **more)


# ---------------------------------------------------------------- simulate and savings

AGAINST = (
    "saved against b0 at the highest limit in the last 5 recurrences, mean ± half its 95 % interval"
)


_INTERVALS = (
    "intervals are of the mean over seeds (Student's t); recorded runs are drawn at random",
    "one seed has no interval",
)


def savings_sheet(table: pd.DataFrame, names: Sequence[str], more: dict[str, str]) -> Sheet:
    """Savings with intervals, one row a policy; ``more``: further columns and their headings."""

    def interval(row: dict[Any, Any], name: str) -> str:
        half = 50 * (row[f"{name}_high"] - row[f"{name}_low"])
        return percent(row[name], 1) + (f" ± {half:.1f}" if half == half else "")

    rows = table.to_dict("records")
    shown = table.assign(
        saved=[interval(row, "energy_reduction") for row in rows],
        faster=[interval(row, "time_reduction") for row in rows],
        ends=[place(row["batch_size"], row["power_limit_w"]) for row in rows],
    )
    columns = {name: name for name in names} | {"saved": "energy saved", "faster": "time saved"}
    columns |= more | {"ends": "ends at", "agreement_fraction": "of seeds"}
    wide = ("faster", "excess_cost_fraction", "agreement_fraction")
    formats = dict.fromkeys(("published_energy_reduction",), partial(percent, digits=1))
    return Sheet(table=shown, columns=columns, wide=wide, formats=formats)


@commands.add(
    examples=["labkit tuning simulate digits-mlp --trace digits -p zeus,grid,oracle --seeds 20"]
)
def simulate(
    job: JobOptions,
    *,
    policies: Policies = "zeus",
    eta: Eta = 0.5,
    beta: Beta = 2.0,
    seeds: Seeds = 100,
    recurrences: Annotated[
        int | None, option("Default: twice the configurations.", min=5, panel="Policy")
    ] = None,
    concurrency: Annotated[int, option("Recurrences at a time.", min=1, panel="Policy")] = 1,
    selector: Selector = "cost",
    max_slowdown: Slowdown = None,
) -> Report:
    """Replay a recurring job under policies: what they save, and what finding out cost."""
    import pandas as pd

    from labkit import tuning

    names = policy_names(policies)
    trace, it = job.load()
    runs = {
        name: tuning.simulate(
            it, policy=name, eta=eta, beta=beta, recurrences=recurrences, concurrency=concurrency,
            selector=selector, max_slowdown=max_slowdown, seeds=range(seeds),
        )
        for name in names
    }  # fmt: skip
    table = pd.DataFrame([run.summary() for run in runs.values()])
    setup = runs[names[0]].experiment
    more = {"regret_j": "regret", "excess_cost_fraction": "above the best"}
    return Report(
        title=f"{it.title} recurring {setup.num_recurrences} times on {trace.gpu}",
        lead=f"η = {eta:g}, {seeds} seeds; {AGAINST}",
        tables=[savings_sheet(table, ["policy"], more)],
        csv=table,
        banner=banner_of(trace),
        notes=[_INTERVALS[seeds < 2], *notes_of(trace, it)],
        figures=partial(_simulation_figures, it, runs),
        data={
            "command": "simulate",
            "is_standin": bool(trace.standin),
            "workload": it.name,
            "gpu": trace.gpu,
            "eta": eta,
            "beta": beta,
            "num_recurrences": setup.num_recurrences,
            "num_seeds": seeds,
            "policies": records(table),
        },
    )


def _simulation_figures(job: Job, runs: dict[str, Runs]) -> list[Figure]:
    from labkit.tuning import figures, optimum

    regret = figures.figure_regret({name: run.regret_j() for name, run in runs.items()})
    drawn: list[Figure] = [
        ("Regret over recurrences", "Cost above the oracle's, added up.", regret)
    ]
    for name, run in runs.items():
        if name not in ("default", "oracle", "tuned-power"):
            best = optimum(job, eta=run.experiment.eta_knob)
            walk = figures.figure_search_path(run.path(run.experiment.seeds[0]), best)
            drawn.append((f"Where {name} went", f"Seed {run.experiment.seeds[0]}.", walk))
    return drawn


@commands.add(examples=["labkit tuning savings --trace digits --seeds 20"])
def savings(
    *,
    trace: TraceName = "zeus-nsdi23",
    gpus: Annotated[
        str, option("GPUs of the trace.", "--gpus", "-g", metavar="A,B", panel="Trace")
    ] = "v100,a40",
    policies: Policies = "zeus",
    eta: Eta = 0.5,
    seeds: Seeds = 100,
) -> Report:
    """Savings of every workload on every GPU with 95 % intervals, beside the published figures."""
    from labkit import tuning
    from labkit.tuning.traces.sources import folder_of

    names = policy_names(policies)
    traces = [
        tuning.load(trace, gpu=gpu) for gpu in (words(gpus) if folder_of(trace) is None else [None])
    ]
    table = tuning.savings(traces, policies=names, eta=eta, seeds=range(seeds))
    low, high = tuning.PAPER_RANGE
    first = ["gpu", "workload", "policy"][: 3 if len(names) > 1 else 2]
    modelled = dict.fromkeys(
        note for source in traces for note in energy_notes(source.energy_source)
    )

    def figures() -> list[Figure]:
        return [
            (f"On {gpu}", "Whiskers: 95 % intervals.",
             tuning.figures.figure_savings(rows, (low, high)))
            for gpu, rows in table.groupby("gpu", sort=False)
        ]  # fmt: skip

    return Report(
        title="Energy and time saved in steady state",
        lead=f"η = {eta:g}, {seeds} seeds; {AGAINST}",
        facts=[
            ("paper", f"{percent(low, 1)} to {percent(high, 1)}", "energy, over its six workloads")
        ],
        tables=[savings_sheet(table, first, {"published_energy_reduction": "published"})],
        csv=table,
        banner=banner_of(*traces),
        notes=[
            _INTERVALS[seeds < 2],
            "published: zeus-ml's simulator, mean of five seeds, η = 0.5",
            *modelled,
        ],
        figures=figures,
        data={
            "command": "savings",
            "is_standin": any(source.standin for source in traces),
            "eta": eta,
            "num_seeds": seeds,
            "paper_range": [low, high],
            "rows": records(table),
        },
    )
