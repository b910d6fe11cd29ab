"""REEF: a real-time program kills what a GPU runs, and lets blocks in where it leaves units.

The GPU is the engine's kernel timeline; REEF is its mode ``padded``. What stands here is the
paper's experiment: the clients of its benchmark DISB, policies that share the GPU, figures.

    from labkit.papers import reef

    experiment = reef.Experiment(clients=rows, programs=programs, until_s=3.0, gpu=gpu)
    experiment.over_alone(reef.Policy.REEF, "DISB C")   # latency and throughput, over alone

Source: Han et al., Microsecond-scale Preemption for Concurrent GPU-accelerated DNN Inferences
(OSDI'22), and its artifact.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "clients": ["workload_of"],
        "experiment": ["Experiment", "Policy"],
        "figures": ["figure_disb", "figure_guests", "figure_idea", "figure_units"],
    },
)
