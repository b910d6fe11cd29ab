"""Ray (OSDI'18): a two-level scheduler of small tasks, and a runtime that recovers by lineage.

    from labkit.papers import ray

    ray.dispatch_tasks(ray.Dispatch(nodes=100), 1e6, 100_000)
    ray.recover(lambda submit: submit(abs, -1)).again

``dispatch`` simulates the schedulers and the store: a network of single servers, whose closed form
and simulation check each other. ``lineage`` runs tasks on processes that are really killed, since
what a lineage must bring back is easiest to believe when it is gone. ``figures`` draws.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "dispatch": ["Dispatch", "dispatch_tasks", "mean_latency_s"],
        "figures": [
            "figure_again",
            "figure_allreduce",
            "figure_asynchronous",
            "figure_idea",
            "figure_locality",
            "figure_rates",
        ],
        "lineage": ["Recovery", "Ref", "Runtime", "recover"],
    },
)
