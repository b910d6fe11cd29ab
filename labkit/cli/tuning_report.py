"""What the commands of ``labkit tuning`` report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.cli.pipeline_view import Report, Sheet, joules, percent, records, seconds
from labkit.cli.tuning_record import energy_notes

if TYPE_CHECKING:
    import pandas as pd

    from labkit.tuning import Job, Runs, TrainingTrace

MOST_ROWS = 60
_WIDE = ("time saved", "above the best", "of seeds")  # columns a narrow terminal has no room for
_AGAINST = (
    "saved against b0 at the highest limit in the last 5 recurrences, mean ± half its 95 % interval"
)


def of_outcomes(
    trace: TrainingTrace, job: Job, eta: float, selector: str, max_slowdown: float | None
) -> tuple[Report, pd.DataFrame]:
    """Every configuration; the terminal shows the front, the default, and the best limits."""
    from labkit import tuning

    table = tuning.outcomes(job, eta=eta)
    best = tuning.optimum(job, eta=eta)
    front = tuning.pareto_front(table)
    limits = tuning.best_power_limits(job, eta, selector=selector, max_slowdown=max_slowdown)
    chosen = [
        table[(table["batch_size"] == size) & (table["power_limit_w"] == job.power_limits_w[limit])]
        for size, limit in zip(job.batch_sizes, limits, strict=True)
    ]
    base = table[table["is_default"]].iloc[0]
    saved = 1 - best.energy_to_accuracy_j / base["energy_to_accuracy_j"]
    how = selector if max_slowdown is None else f"{selector} {max_slowdown:g}"
    report = Report(
        title=f"{job.title}: {len(table)} configurations on {trace.gpu}",
        lead=f"to {job.target_metric:g}, η = {eta:g}; expected over the recorded runs"
        + (f"; energy {trace.energy_source}" if trace.energy_source else ""),
        facts=[
            ("default", _place(base), _both(base)),
            ("least cost", f"{best.batch_size:,} @ {best.power_limit_w:g} W",
             f"{joules(best.energy_to_accuracy_j)}, {percent(saved, 1)} saved"),
        ],
        tables=[
            _outcome_sheet("Pareto front of time and energy", front),
            _outcome_sheet(f"Each batch size at the limit that {how} takes", *chosen),
            _outcome_sheet("All configurations", table, page_only=True),
        ],
        notes=notes_of(trace, job),
        data={
            "command": "outcomes",
            "workload": job.name,
            "gpu": trace.gpu,
            "eta": eta,
            "selector": selector,
            "optimum": {"batch_size": best.batch_size, "power_limit_w": best.power_limit_w},
            "selected_limits_w": {
                str(size): job.power_limits_w[limit]
                for size, limit in zip(job.batch_sizes, limits, strict=True)
            },
            "energy_source": trace.energy_source,
            "configurations": records(table),
        },
        draw=lambda: _outcome_figures(job, table, eta),
    )  # fmt: skip
    return report, table


def _outcome_figures(job: Job, table: pd.DataFrame, eta: float) -> list[tuple[str, str, Any]]:
    from labkit import tuning
    from labkit.tuning import figures

    chosen = records(tuning.eta_sweep(job, [eta]))[0]
    return [
        ("Time and energy", "", figures.figure_pareto(table, chosen=chosen)),
        ("Energy to accuracy of every configuration", "", figures.figure_map(table)),
    ]


def _outcome_sheet(heading: str, *tables: pd.DataFrame, page_only: bool = False) -> Sheet:
    rows = []
    for table in tables:
        for one in table.to_dict("records"):
            reached = one["reach_probability"] > 0
            rows.append(
                (
                    f"{one['batch_size']:,}",
                    f"{one['power_limit_w']:g} W",
                    f"{one['reach_probability']:.0%}",
                    f"{one['expected_epochs']:.1f}" if reached else "never",
                    seconds(one["time_to_accuracy_s"]) if reached else "",
                    joules(one["energy_to_accuracy_j"]) if reached else "",
                    joules(one["cost_j"]) if reached else "",
                )
            )
    columns = ("batch size", "limit", "reach it", "epochs", "time", "energy", "cost")
    return Sheet(heading=heading, columns=columns, rows=rows, words=(), page_only=page_only)


def notes_of(trace: TrainingTrace, job: Job) -> list[str]:
    """What the numbers rest on: how energy was found, and what the trace lacks."""
    notes = energy_notes(trace.energy_source)
    gaps = trace.gaps()
    if known := trace.workloads.get(job.name):
        mine = (gaps["network"] == known.network) & (gaps["optimizer"] == known.optimizer)
        gaps = gaps[mine & (gaps["dataset"] == (known.dataset or job.name))]
    notes += [f"{row['count']} {row['gap']}: {row['detail']}" for row in gaps.to_dict("records")]
    if job.host_power_w:
        notes.append(f"with {job.host_power_w:g} W for the rest of the server")
    return notes


def _place(row: Any) -> str:
    return f"{int(row['batch_size']):,} @ {row['power_limit_w']:g} W"


def _both(row: Any) -> str:
    if not math.isfinite(row["energy_to_accuracy_j"]):
        return "never reaches the target"
    return f"{joules(row['energy_to_accuracy_j'])} in {seconds(row['time_to_accuracy_s'])}"


# ---------------------------------------------------------------- simulate and savings


def of_simulation(
    trace: TrainingTrace, job: Job, runs: dict[str, Runs], seed: int = 0
) -> tuple[Report, pd.DataFrame]:
    """What each policy saves as the job recurs, and what finding out cost."""
    import pandas as pd

    from labkit.tuning import figures, optimum

    table = pd.DataFrame([one.summary() for one in runs.values()])
    setup = next(iter(runs.values())).experiment
    report = Report(
        title=f"{job.title} recurring {setup.num_recurrences} times on {trace.gpu}",
        lead=f"η = {setup.eta_knob:g}, {len(setup.seeds)} seeds; {_AGAINST}",
        tables=[_savings_sheet(table, ("policy",), regret=True)],
        notes=[*_of_intervals(len(setup.seeds)), *notes_of(trace, job)],
        data={
            "command": "simulate",
            "workload": job.name,
            "gpu": trace.gpu,
            "eta": setup.eta_knob,
            "beta": setup.beta_knob,
            "num_recurrences": setup.num_recurrences,
            "num_seeds": len(setup.seeds),
            "policies": records(table),
        },
        draw=lambda: [
            (
                "Regret over recurrences",
                "Cost above the oracle's, added up.",
                figures.figure_regret({name: one.regret_j() for name, one in runs.items()}),
            ),
            *(
                (
                    f"Where {name} went",
                    f"Seed {seed}.",
                    figures.figure_search_path(one.path(seed), optimum(job, eta=setup.eta_knob)),
                )
                for name, one in runs.items()
                if name not in ("default", "oracle", "tuned-power")
            ),
        ],
    )
    return report, table


def of_savings(
    traces: Sequence[TrainingTrace], policies: Sequence[str], eta: float, seeds: int, peer: int
) -> tuple[Report, pd.DataFrame]:
    """Savings by workload and GPU, beside the published figures and, if asked, the simulator."""
    from labkit import tuning
    from labkit.tuning import figures
    from labkit.tuning.published import with_published

    table = with_published(
        tuning.savings(
            traces,
            policies=policies,
            eta=eta,
            seeds=range(seeds),
            peer_seeds=range(1, peer + 1),
        )
    )
    low, high = tuning.PAPER_RANGE
    names = ("gpu", "workload", "policy")[: 3 if table["policy"].nunique() > 1 else 2]
    beside = {"published": "published_energy_reduction"}
    notes = [*_of_intervals(seeds), "published: zeus-ml's simulator, mean of five seeds, η = 0.5"]
    if peer:
        beside["simulator"] = "peer_energy_reduction"
        notes.append(f"simulator: zeus-ml's, run now on {peer} seeds")
    notes += dict.fromkeys(note for one in traces for note in energy_notes(one.energy_source))
    report = Report(
        title="Energy and time saved in steady state",
        lead=f"η = {eta:g}, {seeds} seeds; {_AGAINST}",
        facts=[
            ("paper", f"{percent(low, 1)} to {percent(high, 1)}", "energy, over its six workloads")
        ],
        tables=[_savings_sheet(table, names, beside=beside)],
        notes=notes,
        data={
            "command": "savings",
            "eta": eta,
            "num_seeds": seeds,
            "paper_range": [low, high],
            "rows": records(table),
        },
        draw=lambda: [
            (f"On {gpu}", "Whiskers: 95 % intervals.", figures.figure_savings(rows, (low, high)))
            for gpu, rows in table.groupby("gpu", sort=False)
        ],
    )
    return report, table


def _savings_sheet(
    table: pd.DataFrame,
    names: Sequence[str],
    *,
    beside: Mapping[str, str] | None = None,
    regret: bool = False,
) -> Sheet:
    """``beside``: columns of figures that are not ours, by heading."""
    beside = beside or {}
    rows = []
    for one in records(table):
        cells = [str(one[name]) for name in names]
        cells += [_interval(one, "energy_reduction")]
        cells += [percent(one[column], 1) for column in beside.values()]
        cells += [_interval(one, "time_reduction")]
        if regret:
            cells += [joules(one["regret_j"]), percent(one["excess_cost_fraction"], 1)]
        cells.append(f"{one['batch_size']:,} @ {one['power_limit_w']:g} W")
        cells.append(f"{one['agreement_fraction']:.0%}")
        rows.append(cells)
    columns = [*names, "energy saved", *beside, "time saved"]
    columns += ["regret", "above the best"] if regret else []
    columns += ["ends at", "of seeds"]
    words = tuple(range(len(names)))
    wide = [i for i, name in enumerate(columns) if name in _WIDE]
    return Sheet(heading="", columns=columns, rows=rows, words=words, wide=wide)


def _interval(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return percent(row[name], 1) + ("" if low is None else f" ± {50 * (high - low):.1f}")


def _of_intervals(num_seeds: int) -> list[str]:
    if num_seeds < 2:
        return ["one seed has no interval"]
    return ["intervals are of the mean over seeds (Student's t); recorded runs are drawn at random"]


# ---------------------------------------------------------------- goodput


def of_goodput(
    workload: str, allocations: Sequence[tuple[int, int]], at: float, accumulation: bool
) -> tuple[Report, pd.DataFrame]:
    """The fit's error on rows left out, and the best batch for each allocation."""
    from labkit.tuning import goodput

    tables = goodput.load("pollux-osdi21", workload)
    noise = tables.noise_scale(at)
    model = goodput.fit(tables.steps, init_batch_size=tables.init_batch_size, noise_scale=noise)
    left_out = goodput.cross_validate(tables.steps)
    error = (left_out["predicted_s"] / left_out["step_time_s"] - 1).abs().median()
    limits: dict[str, Any] = {
        "max_batch_size": tables.max_batch_size,
        "atomic_bsz_range": tables.atomic_bsz_range,
        "accumulation": accumulation,
    }
    table = goodput.speedups(model, allocations, **limits)
    rows = [
        (
            f"{one['num_nodes']}",
            f"{one['num_gpus']}",
            f"{one['batch_size']:,}",
            f"{one['atomic_bsz']:,} × {one['accum_steps'] + 1}",
            f"{one['goodput']:,.0f}/s",
            f"{one['speedup']:.2f}",
        )
        for one in table.to_dict("records")
    ]
    columns = ("nodes", "GPUs", "batch", "a GPU × gradients", "goodput", "speed-up")
    report = Report(
        title=f"{goodput_title(workload)}: the batch of most goodput",
        lead=f"{at:.0%} through training, where the gradient noise scale is {noise:,.0f} examples",
        facts=[
            ("fit", percent(float(error), 1), "median error of step times on rows left out"),
            ("measured", f"{len(tables.steps):,}", "step times"),
        ],
        tables=[Sheet(heading="", columns=columns, rows=rows, words=())],
        notes=[
            f"batches of {tables.init_batch_size} to {tables.max_batch_size} examples, "
            f"{tables.atomic_bsz_range[0]} to {tables.atomic_bsz_range[1]} on a GPU, as measured",
            "goodput and speed-up are predicted from the fit; step times were measured by Pollux's"
            " authors",
        ],
        data={
            "command": "goodput",
            "workload": workload,
            "noise_scale_examples": noise,
            "median_left_out_error_fraction": float(error),
            "allocations": records(table),
        },
        draw=lambda: _goodput_figures(model, left_out, allocations, tables),
    )
    return report, table


def goodput_title(workload: str) -> str:
    from labkit.tuning.goodput_tables import WORKLOADS

    return WORKLOADS[workload][0]


def _goodput_figures(
    model: Any, left_out: pd.DataFrame, allocations: Sequence[tuple[int, int]], tables: Any
) -> list[tuple[str, str, Any]]:
    from labkit.tuning import goodput, goodput_figures

    found = [("Predicted against measured step times", "", goodput_figures.figure_fit(left_out))]
    if len(allocations) > 2:
        grid = goodput.surface(
            model,
            allocations,
            max_batch_size=tables.max_batch_size,
            atomic_bsz_range=tables.atomic_bsz_range,
        )
        found.insert(0, ("Goodput", "", goodput_figures.figure_surface(grid)))
    return found


# ---------------------------------------------------------------- choose


def of_choice(
    workload: str,
    power_job: Job,
    allocations: Sequence[tuple[int, int]],
    *,
    metric: float | None,
    deadline_s: float | None,
    node_power_w: float,
) -> tuple[Report, pd.DataFrame]:
    """Batch size, learning-rate rule, power limit and GPUs of least energy within a deadline."""
    from labkit import tuning
    from labkit.tuning import goodput, goodput_figures
    from labkit.tuning.gpu_power import GpuPower, HostPower
    from labkit.tuning.progress import ModelledProgress, useful_sizes

    tables = goodput.load("pollux-osdi21", workload)
    found = tuning.choose(
        goodput.fit(tables.steps),
        ModelledProgress.from_tables(tables, metric=metric),
        GpuPower.from_job(power_job),
        allocations=allocations,
        batch_sizes=useful_sizes(tables.init_batch_size, tables.max_batch_size, per_doubling=2),
        deadline_s=deadline_s,
        atomic_bsz_range=tables.atomic_bsz_range,
        host=HostPower(node_power_w=node_power_w),
    )
    front, best = found.frontier, found.best
    by = "no deadline" if deadline_s is None else f"within {seconds(deadline_s)}"
    report = Report(
        title=f"{goodput_title(workload)}, {by}: {best}",
        lead=str(found.certificate),
        facts=[
            ("energy", joules(best.energy_j), f"{best.average_power_w:,.0f} W on average"),
            ("time", seconds(best.time_s), f"{best.steps:,.0f} steps"),
        ],
        tables=[_front_sheet(front)],
        notes=list(found.assumptions),
        data={
            "command": "choose",
            "workload": workload,
            "deadline_s": deadline_s,
            "best": {name: getattr(best, name) for name in best.__slots__},
            "frontier": records(front),
            "assumptions": list(found.assumptions),
        },
        draw=lambda: [
            (
                "Time and energy to the target",
                "Predicted; grey: other points evaluated, the slowest and dearest left out.",
                goodput_figures.figure_choice(front, points=found.frame(), deadline_s=deadline_s),
            )
        ],
    )
    return report, front


def _front_sheet(front: pd.DataFrame) -> Sheet:
    rows = [
        (
            "→" if one["is_chosen"] else "",
            f"{one['num_gpus']} on {one['num_nodes']}",
            f"{one['batch_size']:,}",
            str(one["rule"]),
            f"{one['power_limit_w']:g} W",
            seconds(one["time_s"]),
            joules(one["energy_j"]),
        )
        for one in front.head(MOST_ROWS).to_dict("records")
    ]
    columns = ("", "GPUs, nodes", "batch", "rule", "limit", "time", "energy")
    more = len(front) - len(rows)
    note = f"and {more:,} more rows: --csv or --json has them" if more > 0 else ""
    heading = "What nothing beats in time and energy both"
    return Sheet(heading=heading, columns=columns, rows=rows, words=(0, 3), note=note)
