"""Liquid (TPDS'22): jobs with parameter servers share the links of nodes and racks.

    from labkit.papers import liquid

    racks = liquid.Racks(racks=2, nodes=4, gpus=4, node_bytes_per_s=1e10, rack_bytes_per_s=2e10)
    jobs = liquid.draw_workers(racks, num_jobs=100, load=0.6)
    liquid.simulate(jobs, racks, liquid.Way.BEST_FIT).jct_s

``racks`` holds links and traffic, ``jobs`` what runs, ``placing`` who gets which GPUs, ``running``
the simulation and a genetic search, ``estimates`` regressors of step times, ``experiment`` the
gains of one way over others, ``figures`` draws. Everything but the step times is simulated.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "estimates": ["REGRESSORS", "estimation_errors", "read_steps"],
        "experiment": ["Experiment", "two_racks"],
        "figures": ["figure_errors", "figure_gains", "figure_idea"],
        "jobs": ["NETWORKS", "Workers", "draw_workers"],
        "placing": ["Way", "place"],
        "racks": ["Racks"],
        "running": ["Placed", "compare", "evolve", "simulate"],
    },
)
