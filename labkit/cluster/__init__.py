"""GPU clusters: which job runs when, how long users wait, and what no policy can beat.

    trace = cluster.load("itp-elasticflow", part="06")   # or from_csv(path), generate(...)
    gpus = cluster.Cluster.nodes(12, gpus=8)
    run = cluster.simulate(trace, gpus, cluster.las2d(3250, 7200))
    run.summary(), run.frame(), run.why(job)
    cluster.bound(trace, gpus).mean_jct_s

Everything is simulated from a trace; figures are in ``cluster.figures``, which loads Plotly.
"""

import lazy_loader

_HOMES = {  # where each public name comes from; modules are loaded with the first of their names
    "figures": (
        "figure_jct", "figure_pairs", "figure_scaling", "figure_speeds", "figure_sweep",
        "figure_timeline",
    ),
    "elastic.adaptive": ("divide", "goodputs", "train"),
    "running.bounds": ("Bound", "bound"),
    "placement.cells": ("Buddies", "Hierarchy", "Reserved", "refusals"),
    "jobs.clusters": ("Cluster", "Pool"),
    "runtime.dispatch": ("Dispatch", "dispatch_tasks", "mean_latency_s"),
    "elastic.deadlines": ("Deadlines", "edf", "elasticflow", "most_deadlines", "time_slicing"),
    "jobs.jobs": ("Trace", "from_csv"),
    "runtime.lineage": ("Ref", "Runtime", "recover"),
    "placement.links": (
        "Racks", "Workers", "draw_workers", "evolve", "place", "place_all", "run_on_links",
    ),
    "policies.orders": (
        "POLICIES", "Policy", "by", "estimates", "fifo", "gittins", "gittins_index", "las", "las2d",
        "named", "sjf", "slices", "srsf", "srtf",
    ),
    "running.rounds": ("Allocator", "Rates", "State"),
    "running.runs": ("CAUSES", "Run", "search_hours", "simulate", "sweep"),
    "policies.shares": ("MaxMin", "SHARE_POLICIES", "SharePolicy", "share_policy"),
    "placement.resources": (
        "Resources", "Sensitivity", "draw_mix", "load_needs", "sweep_mix", "synergy",
    ),
    "placement.sharing": ("nodes_for", "share", "tenants"),
    "placement.tasks": ("GANGS", "Rounds", "compare", "draw_rounds", "schedule"),
    "jobs.throughputs": ("Throughputs", "continuous", "load_throughputs"),
    "running.traces": ("from_slurm", "generate", "load", "load_elastic"),
    "elastic.servers": (
        "ServerSpeed", "balance", "by_gains", "by_shares", "least_mean_s", "task_policies",
    ),
    "elastic.training": ("Training", "Workload", "trainings", "workload"),
    "running.turns": ("simulate_shares", "sweep_shares"),
}  # fmt: skip
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
