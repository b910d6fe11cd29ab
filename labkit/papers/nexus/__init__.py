"""Nexus: which models share a GPU, in batches of which size, and how a query splits its latency.

    from labkit.papers import nexus

    sessions = nexus.specialised_copies(profiles, 48, slo_s=0.1)
    plan = nexus.Method(prefixes=False).plan(sessions, 16)
    nexus.sustained_rate(plan)                 # requests a second of which 99 % are in time
    nexus.fractional_bound(plan.sessions)      # GPUs that no schedule can do without

``packing`` says who shares a GPU, ``methods`` puts the paper's parts together and runs them,
``queries`` splits a query's latency, ``figures`` draws. Batches run on
:class:`labkit.serving.BatchServer`, which is the engine's.

Source: Shen et al., Nexus: A GPU Cluster Engine for Accelerating DNN-Based Video Analysis
(SOSP'19), and its authors' program.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "figures": ["figure_cycles", "figure_gains", "figure_splits"],
        "methods": ["Method", "Scheduler", "late_share", "run_plan", "sustained_rate"],
        "packing": [
            "DATASET",
            "Packing",
            "example_sessions",
            "fractional_bound",
            "fullest_packing",
            "linear_profile",
            "oblivious",
            "pack",
            "profile_of_rate",
            "profile_through",
            "profiles_by_budget",
            "published_profiles",
            "share_prefix",
            "specialised_copies",
        ],
        "queries": ["Stage", "split_latency"],
    },
)
