"""``labkit cluster``: policies on a trace of jobs, from the shell."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import pandas as pd

from labkit import cluster
from labkit.cluster.inputs.clusters import Cluster
from labkit.cluster.inputs.published import PARTS, from_path_or_name
from labkit.cluster.inputs.traces import Trace
from labkit.cluster.policies.orders import POLICIES, Policy
from labkit.cluster.results import Placement
from labkit.errors import UsageError
from labkit.kit.command import Commands, argument, option, pairs, whole_numbers, words
from labkit.kit.report import Report, Sheet, records
from labkit.quantities import percent

commands = Commands(
    "cluster",
    "GPU clusters: which job runs when under a policy, and what no policy can beat. All simulated.",
)
ALL = ",".join(POLICIES)
PolicyNames = Annotated[str, option("Such as fifo,srsf,las2d:3250,7200.", metavar="A,B,…")]


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """The jobs: published, of a CSV file, or synthetic."""

    PANEL = "Jobs"
    trace: Annotated[
        str,
        argument(
            "A CSV file, an export of `sacct -P`, a log in the Standard Workload Format (.swf), "
            "Alibaba's pods of 2023, itp-elasticflow/06, …; default: synthetic jobs.",
            metavar="[TRACE]",
            complete=lambda: [f"{n}/{p}" for n in PARTS for p in PARTS[n]],
        ),
    ] = ""
    columns: Annotated[
        str, option("The CSV file's own headings.", metavar="arrival_s=HEADING,…")
    ] = ""
    processors_per_gpu: Annotated[
        int, option("Processors of a .swf log that stand for a GPU.", min=1)
    ] = 1
    first: Annotated[int, option("Only the first jobs; 0: all.", min=0)] = 0
    jobs: Annotated[int, option("Number of synthetic jobs.", min=1)] = 1000
    load: Annotated[float, option("Load that synthetic jobs offer the first cluster.")] = 0.9
    seed: Annotated[int, option("Of synthetic jobs.", min=0)] = 0

    def read(self, num_gpus: int) -> Trace:
        if self.trace:
            trace = from_path_or_name(
                self.trace,
                columns=pairs("--columns", self.columns),
                processors_per_gpu=self.processors_per_gpu,
            )
        else:
            trace = cluster.generate(self.jobs, num_gpus=num_gpus, load=self.load, rng=self.seed)
        return trace.head(self.first) if self.first else trace


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The machines, and what stopping a job costs."""

    PANEL = "Cluster"
    gpus: Annotated[str, option("GPUs of the cluster; sweep takes several.", metavar="N,…")] = "64"
    gpus_per_node: Annotated[int, option("GPUs of a node.", min=1)] = 8
    placement: Annotated[Placement, option("consolidated: on as few nodes as can be.")] = "any"
    restart: Annotated[float, option("Seconds to restart a stopped job.", "--restart-s")] = 0.0
    warmup: Annotated[float, option("Fraction of jobs left out of averages.")] = 0.0

    @cached_property
    def clusters(self) -> list[Cluster]:
        built = []
        for count in whole_numbers("--gpus", self.gpus):
            if count < 1 or count % self.gpus_per_node:
                raise UsageError(
                    f"--gpus {count} is no whole number of nodes of {self.gpus_per_node} GPUs; "
                    f"valid: {self.gpus_per_node}, {2 * self.gpus_per_node}, …"
                )
            built.append(Cluster.nodes(count // self.gpus_per_node, gpus=self.gpus_per_node))
        if not built:
            raise UsageError("--gpus names no number; valid: 64, or 64,96 for a sweep")
        return built

    @property
    def only(self) -> Cluster:
        if len(self.clusters) > 1:
            raise UsageError(f"--gpus {self.gpus}: valid: one number; `sweep` takes several")
        return self.clusters[0]

    def policies(self, text: str) -> list[Policy]:
        # Commas part thresholds too: a part that is a number belongs to the policy before it.
        names: list[str] = []
        for part in words(text):
            is_threshold = bool(names) and part[0].isdigit()
            names = [*names[:-1], f"{names[-1]},{part}"] if is_threshold else [*names, part]
        if not names:
            raise UsageError(f"--policies names none; valid: {ALL}")
        return [cluster.named(name, restart_s=self.restart) for name in names]


_SHOWN = {
    "policy": "policy",
    "mean_jct_s": "mean",
    "median_jct_s": "median",
    "p95_jct_s": "95th",
    "makespan_s": "makespan",
    "utilisation_fraction": "GPUs in use",
    "preemptions": "stops",
    "times_bound_ratio": "× bound",
}


def _offer(trace: Trace, gpus: Cluster) -> str:
    """How much work the jobs bring, for the time in which they arrive."""
    load = trace.offered_load(gpus.num_gpus)
    jobs = f"{len(trace):,} job{'s' * (len(trace) > 1)}"
    if not math.isfinite(load):
        return f"{jobs} of {trace.work_gpu_s.sum():,.0f} GPU-s, submitted at one moment"
    return f"{jobs} offer {load:.2f} of what the GPUs can do"


def _recorded(summary: dict[str, Any]) -> list[tuple[str, Any, str]]:
    """The simulated wait beside the recorded one, where the trace has starts."""
    if "median_recorded_wait_s" not in summary:
        return []
    recorded = f"recorded: {summary['median_recorded_wait_s']:,.0f} s"
    return [("median_simulated_wait_s", summary["median_simulated_wait_s"], recorded)]


def _notes(trace: Trace, options: ClusterOptions) -> list[str]:
    return [
        "every number is simulated; a job holds all its GPUs at once or none",
        f"stopping a job costs {options.restart:g} s; placement: {options.placement}",
        f"{options.warmup:.0%} of the {len(trace):,} jobs are left out of averages as warm-up",
    ]


@commands.add(
    examples=[
        "labkit cluster simulate --policy las2d --gpus 64",
        "labkit cluster simulate --policy fifo --jobs 200 --why 150",
    ]
)
def simulate(
    jobs: TraceOptions,
    machines: ClusterOptions,
    *,
    policy: Annotated[str, option("fifo, srsf, las2d:3250,7200, …; `compare` runs all.")] = "las2d",
    why: Annotated[str, option("Explain this job's waiting: its id or place.", metavar="JOB")] = "",
) -> Report:
    """One policy on one trace: completion times, utilisation, and what jobs waited for."""
    gpus = machines.only
    trace = jobs.read(gpus.num_gpus)
    if why:
        trace.index_of(why)  # refuses a job that is not there before anything is simulated
    named = cluster.named(policy, restart_s=machines.restart)
    run = cluster.simulate(trace, gpus, named, placement=machines.placement)
    summary = run.summary(warmup=machines.warmup)
    least = cluster.bound(trace, gpus)
    load = trace.offered_load(gpus.num_gpus)
    waits = pd.DataFrame(
        {
            "waits_for": list(cluster.CAUSES),
            "mean_s": [summary[f"mean_wait_{cause}_s"] for cause in cluster.CAUSES],
        }
    )
    reason = run.why(why) if why else ""
    return Report(
        title=f"{trace.name} on {gpus}: {named.name}",
        lead=reason or _offer(trace, gpus),
        facts=[
            ("mean_jct_s", summary["mean_jct_s"], f"bound: {least.mean_jct_s:,.0f} s"),
            ("median_jct_s", summary["median_jct_s"], ""),
            ("p95_jct_s", summary["p95_jct_s"], ""),
            ("makespan_s", summary["makespan_s"], f"bound: {least.makespan_s:,.0f} s"),
            ("GPUs in use", percent(summary["utilisation_fraction"]), "until the last end"),
            ("jobs that can never run", str(summary["never_ran"]), ""),
            *_recorded(summary),
        ],
        tables=[Sheet(table=waits, heading="What jobs waited for, on average")],
        csv=run.frame(),
        data={
            "command": "simulate",
            "trace": trace.name,
            "gpus": gpus.num_gpus,
            "offered_load": load,
            "why": reason,
            "bound_jct_s": least.mean_jct_s,
            **summary,
        },
        notes=_notes(trace, machines),
        figures=lambda: [
            ("Completion times", "Simulated.", cluster.figure_jct([run], bound=least)),
            ("The cluster over time", "Simulated.", cluster.figure_timeline(run)),
        ],
    )


@commands.add(examples=["labkit cluster compare --jobs 500 --gpus 32"])
def compare(jobs: TraceOptions, machines: ClusterOptions, *, policies: PolicyNames = ALL) -> Report:
    """Policies on one trace, beside the bound that no policy can beat."""
    gpus = machines.only
    trace = jobs.read(gpus.num_gpus)
    return _report("compare", trace, [gpus], machines, policies)


@commands.add(examples=["labkit cluster sweep --jobs 500 --gpus 32,64 --policies fifo,srsf"])
def sweep(
    jobs: TraceOptions, machines: ClusterOptions, *, policies: PolicyNames = "fifo,las2d,srsf"
) -> Report:
    """Policies on one trace over several sizes of the cluster."""
    trace = jobs.read(machines.clusters[0].num_gpus)
    return _report("sweep", trace, machines.clusters, machines, policies)


def _report(
    command: str, trace: Trace, clusters: list[Cluster], machines: ClusterOptions, policies: str
) -> Report:
    chosen = machines.policies(policies)
    table = cluster.sweep(
        [trace], clusters, chosen, placement=machines.placement, warmup=machines.warmup
    )
    best = table.loc[table["mean_jct_s"].idxmin()]
    columns: dict[str, str] = {"gpus": "GPUs", "offered_load": "load"} if clusters[1:] else {}
    if table["never_ran"].any():
        columns["never_ran"] = "never run"

    def draw() -> list[Any]:
        if clusters[1:]:
            return [("Mean completion time", "Simulated.", cluster.figure_sweep(table))]
        runs = [
            cluster.simulate(trace, clusters[0], policy, placement=machines.placement)
            for policy in chosen
        ]
        least = cluster.bound(trace, clusters[0])
        return [("Completion times", "Simulated.", cluster.figure_jct(runs, bound=least))]

    return Report(
        title=f"{trace.name}: {best['policy']} has the least mean completion time",
        lead=f"{_offer(trace, clusters[0])}, on {clusters[0]}",
        tables=[
            Sheet(table=table, columns={**columns, **_SHOWN}, wide=("median_jct_s", "makespan_s"))
        ],
        csv=table,
        data={"command": command, "trace": trace.name, "rows": records(table)},
        notes=_notes(trace, machines),
        figures=draw,
    )
