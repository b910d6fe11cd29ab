"""GPU clusters: which job runs when, how long users wait, and what no policy can beat.

    trace = cluster.load("itp-elasticflow", part="06")   # or from_csv(path), generate(...)
    gpus = cluster.Cluster.nodes(12, gpus=8)
    run = cluster.simulate(trace, gpus, cluster.las2d(3250, 7200))
    run.summary(), run.frame(), run.why(job)
    cluster.bound(trace, gpus).mean_jct_s
    cluster.compare(trace, gpus, [cluster.fifo(), cluster.las2d()])   # a table; sweep: of grids

Everything is simulated from a trace; figures are in ``cluster.figures``, which loads Plotly.
``simulate`` takes any kind of policy: an order of jobs (``Policy``; your own: ``priority_policy``),
shares of time (``SharePolicy``), numbers of GPUs (``Allocator``), or a loop (``OwnLoop``).
"""

import lazy_loader

_HOMES = {  # where each public name comes from; modules are loaded with the first of their names
    "bounds": ["Bound", "bound"],
    "figures": ["figure_jct", "figure_pairs", "figure_sweep", "figure_timeline"],
    "inputs.clusters": ["Cluster", "Pool"],
    "inputs.logs": ["from_pods", "from_swf"],
    "inputs.published": ["from_slurm", "generate", "load", "load_elastic"],
    "inputs.rates": ["Rates"],
    "inputs.throughputs": ["Throughputs", "generate_continuous", "load_throughputs"],
    "inputs.traces": ["Trace", "from_csv"],
    "policies.allocators": [
        "Allocator",
        "FairShares",
        "MarginalGains",
        "OwnLoop",
        "State",
        "divide",
    ],
    "policies.orders": [
        "POLICIES",
        "Policy",
        "fifo",
        "las",
        "las2d",
        "named",
        "priority_policy",
        "sjf",
        "srsf",
        "srtf",
    ],
    "policies.shares": ["SHARE_POLICIES", "Active", "SharePolicy", "Shares", "share_policy"],
    "results": ["CAUSES", "Run"],
    "simulation": ["compare", "simulate", "sweep"],
}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
