"""Gandiva (OSDI'18): a hyper-parameter search in time slices, whose bad trials are stopped early.

    from labkit.papers import gandiva

    gandiva.search_hours(gandiva.slices(1800.0), 128, feedback=0.05).mean()

``search`` runs the search, ``figures`` draws it. Packing two jobs on one GPU is the engine's share
policy ``packed``, which Gavel compares with.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "figures": ["figure_early", "figure_idea", "figure_search"],
        "search": ["search_hours", "slices"],
    },
)
