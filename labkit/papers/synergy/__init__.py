"""Synergy (OSDI'22): CPUs and memory beside GPUs, divided by what each kind of job can use.

    from labkit.papers import synergy

    needs = synergy.load_needs("data/papers/synergy/needs.csv", cpus_per_gpu=3)
    trace = synergy.draw_mix(5000, jobs_per_hour=9.0)
    run = cluster.simulate(trace, cluster.Cluster.nodes(16), synergy.allocator(needs, give="tune"))

``resources`` holds the descriptions and policies, ``packing`` the compiled loop over rounds: queue,
nodes, CPUs, memory, progress; ``figures`` draws.

With its generator's seed and whole iterations each of the 1,000 jobs
that the authors' simulator counts ends in the same round, and the mean of their README comes out to
the last digit. First fit is the default since that program uses it. Its tables are in no registered
data set: facts derived from them stand in ``data/papers/synergy``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "figures": ["figure_gains", "figure_needs", "figure_ratio", "figure_speeds"],
        "resources": [
            "Resources",
            "Sensitivity",
            "allocator",
            "draw_mix",
            "load_needs",
            "sweep",
        ],
    },
)
