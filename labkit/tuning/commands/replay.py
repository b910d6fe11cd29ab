"""``labkit tuning outcomes``, ``simulate`` and ``savings``: what a trace says of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import pandas as pd

from labkit import tuning
from labkit.errors import UsageError
from labkit.kit.command import words
from labkit.kit.report import Figure, Report, Sheet, records
from labkit.quantities import joules, percent, seconds
from labkit.tuning.commands import options
from labkit.tuning.commands.options import commands, energy_notes, report
from labkit.tuning.configurations.outcomes import config_text
from labkit.tuning.simulation.runs import Runs
from labkit.tuning.traces import sweeps
from labkit.tuning.traces.job import Job
from labkit.tuning.traces.trace import TrainingTrace, folder_of

_POLICIES = "Policies; `all` for every one."
Policies = Annotated[str, options.in_policy(_POLICIES, "--policies", "-p", metavar="A,B")]
Seeds = Annotated[int, options.in_policy("How many seeds, from 0.", min=1)]

AGAINST = (
    "saved against b0 at the highest limit in the last 5 recurrences, mean ± half its 95 % interval"
)
_INTERVALS = (
    "intervals are of the mean over seeds (Student's t); recorded runs are drawn at random",
    "one seed has no interval",
)


def policy_names(text: str) -> list[str]:
    """Read ``--policies A,B`` as names; ``all`` stands for every policy there is."""
    names = list(tuning.POLICIES) if text == "all" else words(text)
    if not names:
        raise UsageError(f"--policies names none; there are: {', '.join(tuning.POLICIES)}, or all")
    return names


def notes_of(trace: TrainingTrace, job: Job) -> list[str]:
    """Say what the numbers rest on: how energy was found, and what the trace lacks."""
    gaps = trace.gaps(job.name)[["count", "gap", "detail"]].to_numpy()
    lacks = [f"{count} {gap}: {detail}" for count, gap, detail in gaps]
    host = [f"with {job.host_power_w:g} W for the rest of the server"] if job.host_power_w else []
    return [*energy_notes(trace.energy_source), *derived_notes(trace, job), *lacks, *host]


def derived_notes(trace: TrainingTrace, job: Job) -> list[str]:
    """Say what was derived from a sweep of somebody's own, in place of a ``meta.json``."""
    if not trace.is_own_sweep:
        return []
    given = trace.workloads[job.name]
    unsaid = "" if trace.energy_source else "; power.csv does not say whether energy was measured"
    derived = sweeps.DERIVED.format(
        b0=given.default_batch_size, target=given.target_metric, epochs=given.max_epochs
    )
    return [derived + unsaid]


def standins(*traces: TrainingTrace) -> dict[str, str]:
    """Say which of the traces are stand-ins, for the report's banner."""
    return {f"the {trace.gpu} trace": trace.standin for trace in traces}


# ---------------------------------------------------------------- outcomes


@commands.add(
    examples=[
        "labkit tuning outcomes digits-mlp --trace digits --eta 0.3",
        "labkit tuning outcomes digits-mlp -t digits --selector max-slowdown --max-slowdown 0.05",
    ]
)
def outcomes(job: options.JobOptions, cost: options.CostOptions) -> Report:
    """Time, energy and cost of every batch size and power limit, and what none other beats.

    A sweep of your own is a folder for --trace that holds two tables.

    train.csv: dataset, network, optimizer, batch_size, target_metric, run,
    learning_rate, target_epoch (first to reach the target; empty: never).

    power.csv: dataset, network, optimizer, batch_size, power_limit (W),
    time_per_epoch (s), average_power (W); it may have energy_source
    (measured or modelled).

    WORKLOAD is then the dataset. What --b0, --target and --max-epochs leave
    out is derived from the tables, and the report says how.
    """
    trace, it = job.load()
    table = tuning.outcomes(it, eta=cost.eta)
    best = tuning.optimum(it, eta=cost.eta)
    limits = tuning.best_power_limits(it, **asdict(cost))
    selected = dict(zip(it.batch_sizes, (it.power_limits_w[i] for i in limits), strict=True))
    chosen = table[table["power_limit_w"] == table["batch_size"].map(selected)]
    front = table[table["is_pareto"]].sort_values("time_to_accuracy_s")
    base = tuning.default_choice(it, eta=cost.eta)
    both = f"{joules(base.energy_to_accuracy_j)} in {seconds(base.time_to_accuracy_s)}"
    saved = 1 - best.energy_to_accuracy_j / base.energy_to_accuracy_j
    how = cost.selector + ("" if cost.max_slowdown is None else f" {cost.max_slowdown:g}")
    return report(
        "outcomes",
        {
            "workload": it.name,
            "gpu": trace.gpu,
            **asdict(cost),
            "optimum": {"batch_size": best.batch_size, "power_limit_w": best.power_limit_w},
            "selected_limits_w": selected,
            "selected_average_power_w": dict(
                zip(chosen["batch_size"], chosen["average_power_w"], strict=True)
            ),
            "energy_source": trace.energy_source,
            "num_holes": it.num_holes,
            "configurations": records(table),
        },
        standins=standins(trace),
        title=f"{it.title}: {len(table)} configurations on {trace.gpu}",
        lead=f"to {it.target_metric:g}, η = {cost.eta:g}; expected over the recorded runs"
        + (f"; energy {trace.energy_source}" if trace.energy_source else ""),
        facts=[
            (
                "default",
                config_text(base.batch_size, base.power_limit_w),
                both if base.reach_probability else "never reaches the target",
            ),
            (
                "least cost",
                config_text(best.batch_size, best.power_limit_w),
                f"{joules(best.energy_to_accuracy_j)}, {percent(saved, 1)} saved",
            ),
        ],
        tables=[
            outcome_sheet("Pareto front of time and energy", front),
            outcome_sheet(f"Each batch size at the limit that {how} takes", chosen),
            outcome_sheet("All configurations", table, page_only=True),
        ],
        csv=table,
        notes=notes_of(trace, it),
        figures=lambda: [
            ("Time and energy", "", tuning.figures.figure_pareto(table, chosen=best)),
            ("Energy to accuracy of every configuration", "", tuning.figures.figure_map(table)),
        ],
    )


def outcome_sheet(heading: str, rows: pd.DataFrame, **more: Any) -> Sheet:
    """Make a sheet of configurations; what never reaches the target has empty cells."""
    columns = {
        "batch_size": "batch size",
        "power_limit_w": "limit",
        "average_power_w": "draws",
        "reach_probability": "reach it",
        "expected_epochs": "epochs",
        "time_to_accuracy_s": "time",
        "energy_to_accuracy_j": "energy",
        "cost_j": "cost",
    }
    finite = rows.replace(float("inf"), float("nan"))
    formats = {"reach_probability": partial(percent, digits=0)}
    return Sheet(heading=heading, table=finite, columns=columns, formats=formats, **more)


# ---------------------------------------------------------------- simulate and savings


def savings_sheet(table: pd.DataFrame, names: Sequence[str], more: Mapping[str, str]) -> Sheet:
    """Make a sheet of savings with intervals, one row for each policy.

    Args:
        table: what a policy saves, with its intervals.
        names: the columns of ``table`` that say which row is which.
        more: further columns and their headings.
    """

    def intervals(name: str) -> list[str]:
        """Write a value with its interval, in per cent, where there is one."""
        half = 50 * (table[f"{name}_high"] - table[f"{name}_low"])
        margins = half.map(" ± {:.1f}".format).where(half.notna(), "")
        return [
            percent(mean, 1) + margin for mean, margin in zip(table[name], margins, strict=True)
        ]

    shown = table.assign(
        saved=intervals("energy_reduction"),
        faster=intervals("time_reduction"),
        ends=[*map(config_text, table["batch_size"], table["power_limit_w"])],
    )
    columns = {name: name for name in names} | {"saved": "energy saved", "faster": "time saved"}
    columns |= {**more, "ends": "ends at", "agreement_fraction": "of seeds"}
    wide = ("faster", "excess_cost_fraction", "agreement_fraction")
    formats = {"published_energy_reduction": partial(percent, digits=1)}
    return Sheet(table=shown, columns=columns, wide=wide, formats=formats)


@commands.add(
    examples=["labkit tuning simulate digits-mlp --trace digits -p zeus,grid,oracle --seeds 20"]
)
def simulate(
    job: options.JobOptions,
    cost: options.CostOptions,
    *,
    policies: Policies = "zeus",
    beta: options.Beta = 2.0,
    seeds: Seeds = 100,
    recurrences: Annotated[
        int | None, options.in_policy("Default: twice the configurations.", min=5)
    ] = None,
    concurrency: Annotated[int, options.in_policy("Recurrences at a time.", min=1)] = 1,
) -> Report:
    """Replay a recurring job under policies: what they save, and what finding out cost."""
    trace, it = job.load()
    replay = partial(
        tuning.simulate,
        it,
        beta=beta,
        recurrences=recurrences,
        concurrency=concurrency,
        seeds=range(seeds),
        **asdict(cost),
    )
    runs = {name: replay(policy=name) for name in policy_names(policies)}
    table = pd.DataFrame([run.summary() for run in runs.values()])
    num_recurrences = next(iter(runs.values())).experiment.num_recurrences
    more = {"regret_j": "regret", "excess_cost_fraction": "above the best"}
    return report(
        "simulate",
        {
            "workload": it.name,
            "gpu": trace.gpu,
            **asdict(cost),
            "beta": beta,
            "num_recurrences": num_recurrences,
            "num_seeds": seeds,
            "policies": records(table),
        },
        standins=standins(trace),
        title=f"{it.title} recurring {num_recurrences} times on {trace.gpu}",
        lead=f"η = {cost.eta:g}, {seeds} seeds; {AGAINST}",
        tables=[savings_sheet(table, ["policy"], more)],
        csv=table,
        notes=[_INTERVALS[seeds < 2], *notes_of(trace, it)],
        figures=partial(_simulation_figures, tuning.optimum(it, eta=cost.eta), runs),
    )


def _simulation_figures(best: Any, runs: Mapping[str, Runs]) -> list[Figure]:
    """Draw where a seed goes under each policy, and what learning costs."""
    regret = tuning.figures.figure_regret({name: run.regret_j() for name, run in runs.items()})
    walks = [
        (f"Where {name} went", "Seed 0.", tuning.figures.figure_search_path(run.path(0), best))
        for name, run in runs.items()
        if name not in ("default", "oracle", "tuned-power")
    ]
    return [("Regret over recurrences", "Cost above the oracle's, added up.", regret), *walks]


@commands.add(examples=["labkit tuning savings --trace digits --seeds 20"])
def savings(
    *,
    trace: options.TraceName = "zeus-nsdi23",
    gpus: Annotated[
        str, options.in_trace("GPUs of the trace.", "--gpus", "-g", metavar="A,B")
    ] = "v100,a40",
    policies: Policies = "zeus",
    eta: options.Eta = 0.5,
    seeds: Seeds = 100,
) -> Report:
    """Savings of every workload on every GPU with 95 % intervals, beside the published figures."""
    names = policy_names(policies)
    each_gpu = words(gpus) if folder_of(trace) is None else [None]
    traces = [tuning.load(trace, gpu=gpu) for gpu in each_gpu]
    table = tuning.savings(traces, policies=names, eta=eta, seeds=range(seeds))
    low, high = tuning.PAPER_RANGE
    first = ["gpu", "workload", *(["policy"] if len(names) > 1 else [])]
    notes = [_INTERVALS[seeds < 2], "published: zeus-ml's simulator, mean of five seeds, η = 0.5"]
    return report(
        "savings",
        {"eta": eta, "num_seeds": seeds, "paper_range": [low, high], "rows": records(table)},
        standins=standins(*traces),
        title="Energy and time saved in steady state",
        lead=f"η = {eta:g}, {seeds} seeds; {AGAINST}",
        facts=[
            ("paper", f"{percent(low, 1)} to {percent(high, 1)}", "energy, over its six workloads")
        ],
        tables=[savings_sheet(table, first, {"published_energy_reduction": "published"})],
        csv=table,
        notes=[*notes, *dict.fromkeys(n for t in traces for n in energy_notes(t.energy_source))],
        figures=lambda: [
            (
                f"On {gpu}",
                "Whiskers: 95 % intervals.",
                tuning.figures.figure_savings(rows, (low, high)),
            )
            for gpu, rows in table.groupby("gpu", sort=False)
        ],
    )
