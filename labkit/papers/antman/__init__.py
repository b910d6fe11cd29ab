"""AntMan (OSDI'20): a GPU with an owner and guests that use what the owner leaves.

    from labkit.papers import antman

    shared = antman.beside(owner, [guest], mode="guests", idle_share=0.3, until_s=1.0)
    shared.slowdown_fraction, shared.units_fraction, shared.guests_fraction

``sharing`` runs pairs of programs on the engine's kernel timeline; ``figures`` draws them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "figures": [
            "WAYS",
            "figure_idea",
            "figure_interference",
            "figure_memory",
            "figure_pairs",
            "figure_timeline",
        ],
        "sharing": ["Shared", "beside", "gains", "pairs"],
    },
)
