"""Serving models: how requests become batches, how long users wait, what no server can beat.

    requests = serving.load("azure-llm-2023")      # or from_csv(path), generate(rate_per_s, ...)
    profile = serving.TokenProfile.roofline("gpt3-175b", "A100-40GB", tensor=8, stages=2)
    run = serving.simulate(requests, profile, serving.Batcher(max_batch=32))
    run.summary(), run.frame(), run.why(request)
    serving.bound(requests, profile, run.batcher).rate_per_s

Everything is simulated from requests; figures are in ``serving.figures``, which loads Plotly.
"""

import lazy_loader

_HOMES = {  # where each public name comes from; modules are loaded with the first of their names
    "batching.batches": ("BatchServer", "Served", "Session", "Slot", "serve"),
    "batching.groups": ("Group", "ServedModel", "serve_groups"),
    "batching.profiles": ("BatchProfile",),
    "figures": ("figure_latency", "figure_lines", "figure_requests"),
    "generation.batcher": ("Batcher", "Bound", "Run", "bound", "simulate", "sweep"),
    "requests": ("Requests", "from_csv", "generate", "highest", "load", "together", "traffic"),
    "generation.tokens": ("TokenProfile",),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
