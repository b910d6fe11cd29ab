"""AlpaServe: models that share GPUs in stages, so that a burst for one finds all of them.

    from labkit.papers import alpaserve

    cluster = alpaserve.Cluster()                      # 8 models on 8 GPUs
    bursty = alpaserve.Arrivals(cv=2.0)
    cluster.highest_rate(alpaserve.Method.ALPASERVE, bursty)   # requests/s with 99 % in time

``placement`` chooses groups of GPUs and their models, ``workloads`` holds the experiment,
``figures`` draws. Groups and their queue are the engine's (:class:`labkit.serving.Groups`).

Source: Li et al., AlpaServe: Statistical Multiplexing with Model Parallelism for Deep Learning
Serving (OSDI'23).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "figures": ["figure_burst", "figure_rates"],
        "placement": ["SHAPES", "Method", "Placement", "place"],
        "workloads": ["Arrivals", "Cluster", "two_models"],
    },
)
