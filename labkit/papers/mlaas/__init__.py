"""MLaaS in the Wild (NSDI'22): durations of recurring jobs, estimated from those that are over.

    from labkit.papers import mlaas

    by_group = mlaas.shortest_estimate("group", ["tenant", "kind"])
    cluster.simulate(trace, gpus, by_group)

``durations`` holds the estimates and the policies that order a queue by them, ``experiment`` the
jobs that the notebook makes of a recorded trace (groups, bursts, parts of GPUs), ``figures`` draws.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "durations": ["estimates", "shortest_estimate"],
        "experiment": [
            "IN_BURST_S",
            "burst",
            "explained_variance",
            "groups_by_gap",
            "mean_in_burst_s",
            "parts_of_gpus",
        ],
        "figures": ["figure_errors", "figure_gains", "figure_idea", "figure_sharing"],
    },
)
