"""Orca: who is in a batch of a language model's requests, iteration by iteration.

The loop itself is the engine's: ``serving.simulate(requests, profile, serving.Batcher())`` is the
paper's Algorithm 1. What stands here is the paper's experiment: its servers and requests, the
schedules that it and its rivals use, and how they are compared.

    from labkit.papers import orca

    requests = orca.stream(2000)
    batchers = {schedule: schedule.batcher(32) for schedule in orca.Schedule}
    orca.capacity(requests, orca.server("175B"), batchers)   # requests/s at one limit of latency

``schedules`` says who may be in a batch, ``evaluation`` compares rates at one limit of latency,
``figures`` draws.

Source: Yu et al., Orca: A Distributed Serving System for Transformer-Based Generative Models
(OSDI'22).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "evaluation": ["MODELS", "capacity", "gain", "server", "stream"],
        "figures": ["figure_latency", "figure_places"],
        "schedules": ["NobodyJoins", "Schedule", "ShortestFirst", "by_request"],
    },
)
