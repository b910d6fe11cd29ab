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
    "figures": ("figure_jct", "figure_pairs", "figure_sweep", "figure_timeline"),
    "running.allocators": ("FairShares", "MarginalGains", "divide"),
    "running.bounds": ("Bound", "bound"),
    "jobs.clusters": ("Cluster", "Pool"),
    "jobs.jobs": ("Trace", "from_csv"),
    "policies.orders": (
        "POLICIES", "Policy", "by", "fifo", "las", "las2d", "named", "sjf", "srsf", "srtf",
    ),
    "running.rounds": ("Allocator", "Rates", "State"),
    "running.runs": ("CAUSES", "Run", "simulate", "sweep"),
    "policies.shares": ("MaxMin", "SHARE_POLICIES", "SharePolicy", "share_policy"),
    "jobs.throughputs": ("Throughputs", "continuous", "load_throughputs"),
    "running.traces": ("from_slurm", "generate", "load", "load_elastic"),
    "running.turns": ("simulate_shares", "sweep_shares"),
}  # fmt: skip
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
