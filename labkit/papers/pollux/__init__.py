"""Pollux (OSDI'21): GPUs and batch sizes by goodput, beside Tiresias, Optimus and equal shares.

    from labkit.papers import pollux

    machines = cluster.Cluster.nodes(16, gpus=4)
    work = pollux.workload(1)
    agents = pollux.goodputs(work.trainings, machines)
    run = pollux.train(work, machines, "pollux", goodput=agents)

``training`` says how long jobs take and what their steps are worth, ``scheduling`` who gets GPUs.
Jobs follow the rules of Pollux's published simulator, from its measured tables; its Tiresias and
Optimus end every job of all eight workloads within seconds of the published times. Its genetic
algorithm is replaced by a dynamic program over jobs, exact for its objective when nodes are left
aside, and a packing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "scheduling": ["MostGoodput", "Queues", "allocator", "goodputs", "train"],
        "training": ["Goodput", "Progressing", "Training", "Workload", "trainings", "workload"],
    },
)
