"""ElasticFlow (ASPLOS'23): the least GPUs that meet each deadline, and who is taken in.

    from labkit.papers import elasticflow

    jobs, rates = cluster.load_elastic()
    run = cluster.simulate(jobs, cluster.Cluster.nodes(16, gpus=4), elasticflow.policy(rates))

``deadlines`` holds the policies and their bound, ``figures`` what is drawn, ``slots`` jobs in whole
slots of time, for loops that are written in a notebook. ``planning`` is the compiled loop: it lays
all jobs into the future at each arrival, end and change, which the engine's rounds cannot do.
``rules="artifact"`` has the rules of the authors' program where they differ from the paper's: each
of its 195 jobs ends in the program's second where restarts cost the same everywhere.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "deadlines": ["Deadlines", "edf", "most_deadlines", "policy", "time_slicing"],
        "figures": [
            "figure_idea",
            "figure_in_time",
            "figure_parts",
            "figure_scaling",
            "figure_sizes",
        ],
        "slots": ["SlotJob", "in_any_order", "in_slots"],
    },
)
