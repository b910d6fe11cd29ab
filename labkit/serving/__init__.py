"""Serving models: how requests become batches, how long users wait, what no server can beat.

    requests = serving.load("azure-llm-2023")      # or from_csv(path), generate(rate_per_s, ...)
    profile = serving.TokenProfile.roofline("gpt3-175b", "A100-40GB", tensor=8, stages=2)
    run = serving.simulate(requests, profile, serving.Batcher(max_batch=32))
    run.summary(), run.frame(), run.why(request)
    serving.bound(requests, profile, run.batcher).rate_per_s

:func:`simulate` is the one door: a :class:`Batcher` (or one's own), :class:`BatchServers`,
:class:`Groups` or a :class:`Gpu` says what serves the requests. Everything is simulated from
requests; figures are in ``serving.figures``, which loads Plotly.
"""

import lazy_loader

_HOMES = {  # where each public name comes from; modules are loaded with the first of their names
    "batching.batches": ("BatchServer", "BatchServers", "Session", "Slot"),
    "batching.groups": ("Group", "Groups", "ServedModel"),
    "batching.profiles": ("BatchProfile",),
    "bounds": ("Bound", "bound"),
    "device.clients": ("Client", "Gpu", "Workload"),
    "device.kernels": ("Program", "load_programs", "program_paths"),
    "figures": ("figure_latency", "figure_lines", "figure_requests"),
    "generation.batcher": ("Asked", "Batcher", "Batching"),
    "generation.tokens": ("TokenProfile",),
    "requests": ("Requests", "from_csv", "generate", "load", "merge_streams", "traffic"),
    "results": ("GpuRun", "Run", "Served"),
    "simulation": ("simulate",),
    "sweeps": ("highest_load", "sweep"),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
