"""Pollux (OSDI'21): GPUs and batch sizes by goodput, beside Tiresias, Optimus and equal shares.

    from labkit.papers import pollux

    machines = cluster.Cluster.nodes(16, gpus=4)
    work = pollux.workload(1)
    agents = pollux.goodputs(work.trainings, machines)
    run = pollux.train(work, machines, "pollux", goodput=agents)

    usual = pollux.Experiment(inputs=pollux.Inputs(data))
    usual.mean_s(pollux.Method.POLLUX, load=1.0)

``training`` says how long jobs take and what their steps are worth, ``scheduling`` who gets GPUs,
``experiment`` runs the published workloads, ``figures`` draws.
Jobs follow the rules of Pollux's published simulator, from its measured tables; its Tiresias and
Optimus end every job of all eight workloads within seconds of the published times. Its genetic
algorithm is replaced by a dynamic program over jobs, exact for its objective when nodes are left
aside, and a packing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "experiment": ["WORKLOADS", "Experiment", "Inputs", "Method"],
        "figures": [
            "figure_batches",
            "figure_idea",
            "figure_load",
            "figure_restarts",
            "figure_rounds",
            "figure_step_times",
        ],
        "scheduling": [
            "FixedBatches",
            "MostGoodput",
            "Queues",
            "allocator",
            "goodputs",
            "pack",
            "train",
        ],
        "training": ["Goodput", "Progressing", "Training", "Workload", "trainings", "workload"],
    },
)
