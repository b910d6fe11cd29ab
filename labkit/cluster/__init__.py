"""GPU clusters: which job runs when, how long users wait, and what no policy can beat.

    trace = cluster.load("itp-elasticflow", part="06")   # or from_csv(path), generate(...)
    gpus = cluster.Cluster.nodes(12, gpus=8)
    run = cluster.simulate(trace, gpus, cluster.las2d(3250, 7200))
    run.summary(), run.frame(), run.why(job)
    cluster.bound(trace, gpus).mean_jct_s

Everything is simulated from a trace; figures are in ``cluster.figures``, which loads Plotly.
"""

from importlib import import_module
from typing import Any

_HOMES = {  # where each public name comes from; modules are loaded with the first of their names
    "accounting": ("from_slurm",),
    "adaptive": ("divide", "fair", "goodputs", "optimus", "pollux", "tiresias", "train"),
    "bounds": ("Bound", "bound"),
    "cells": ("Buddies", "Hierarchy", "Reserved", "refusals"),
    "clusters": ("Cluster", "Pool"),
    "dispatch": ("Dispatch", "dispatch_tasks", "mean_latency_s"),
    "history": ("estimates",),
    "deadlines": (
        "Deadlines", "edf", "elasticflow", "most_deadlines", "options", "time_slicing",
    ),
    "jobs": ("Trace", "from_csv"),
    "lineage": ("Ref", "Runtime", "recover"),
    "links": (
        "Racks", "Workers", "draw_workers", "evolve", "place", "place_all", "run_on_links",
    ),
    "policies": (
        "POLICIES", "Policy", "by", "fifo", "gittins", "gittins_index", "las", "las2d", "named",
        "sjf", "slices", "srsf", "srtf",
    ),
    "programs": ("MaxMin",),
    "rounds": ("Allocator", "InOrder", "Rates", "State"),
    "searches": ("search_hours",),
    "runs": ("CAUSES", "Run", "simulate", "simulate_rounds", "sweep"),
    "shares": ("SHARE_POLICIES", "SharePolicy", "share_policy"),
    "sharing": ("nodes_for", "share", "tenants", "together"),
    "tasks": ("GANGS", "Rounds", "compare", "draw_rounds", "schedule"),
    "throughputs": ("Throughputs", "continuous", "load_throughputs"),
    "traces": ("generate", "load", "load_elastic", "recurring"),
    "training": ("Training", "Workload", "trainings", "workload"),
    "turns": ("simulate_shares", "sweep_shares"),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_FIGURES = (
    "figure_jct", "figure_pairs", "figure_scaling", "figure_speeds", "figure_sweep",
    "figure_timeline",
)  # fmt: skip

__all__ = [*_HOME, *_FIGURES]


def __getattr__(name: str) -> Any:
    if name in _FIGURES:
        return getattr(import_module(f"{__name__}.figures"), name)
    if name not in _HOME:
        raise AttributeError(f"module 'labkit.cluster' has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOME[name]}"), name))


def __dir__() -> list[str]:
    return sorted(__all__)
