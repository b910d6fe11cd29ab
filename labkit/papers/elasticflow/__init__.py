"""ElasticFlow (ASPLOS'23): the least GPUs that meet each deadline, and who is taken in.

    from labkit.papers import elasticflow

    jobs, rates = cluster.load_elastic()
    run = cluster.simulate(jobs, cluster.Cluster.nodes(16, gpus=4), elasticflow.policy(rates))

``deadlines`` holds the policies and their bound, ``planning`` the compiled loop, ``figures`` what
is drawn.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "deadlines": ["Deadlines", "edf", "most_deadlines", "policy", "time_slicing"],
        "figures": ["figure_scaling"],
    },
)
