"""Tiresias (NSDI'19): jobs by the GPU time they have received, beside rivals, on one cluster.

    from labkit.papers import tiresias
    from labkit.papers.tiresias import Method

    usual = tiresias.Experiment(trace=trace)
    usual.mean_s(Method.LAS2D, 96)
    cluster.simulate(trace, gpus, tiresias.gittins(history.work_gpu_s))

``policies`` holds what history knows of durations (the Gittins index) and time slicing; the queues
by attained service are :func:`labkit.cluster.las2d`, which other papers use too. ``experiment``
runs a trace on clusters of several sizes, ``figures`` draws.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "experiment": ["Experiment", "Method", "dealt_anew"],
        "figures": [
            "figure_bars",
            "figure_gains",
            "figure_idea",
            "figure_index",
            "figure_largest",
            "figure_thresholds",
            "figure_times",
        ],
        "policies": ["gittins", "gittins_index", "slices"],
    },
)
