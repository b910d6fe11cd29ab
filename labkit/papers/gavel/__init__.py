"""Gavel (OSDI'20): shares of time by linear programs over jobs and GPU types.

    from labkit.papers import gavel

    table = cluster.load_throughputs()
    trace = cluster.generate_continuous(6000, jobs_per_hour=5.6)
    policy = gavel.share_policy("max-min-shared", pairs=table)
    run = cluster.simulate(trace, table.cluster(36, 36, 36), policy)

The rounds that realise shares are the engine's (Gavel §5, Algorithm 1), since Gandiva's packing
runs in them too. ``policies`` holds Gavel's own programs and AlloX, its nearest rival;
``experiment`` the paper's two experiments; ``figures`` draws them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "experiment": ["NAMES", "alone_h", "completion_times", "makespans"],
        "figures": [
            "figure_completion",
            "figure_gains",
            "figure_idea",
            "figure_makespan",
            "figure_programs",
            "figure_speeds",
        ],
        "policies": [
            "SHARE_POLICIES",
            "FairSpeeds",
            "LeastMakespan",
            "Matching",
            "MaxMin",
            "share_policy",
            "useful_pairs",
        ],
    },
)
