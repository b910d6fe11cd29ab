"""Hare (HPDC'22): jobs of rounds of tasks on GPUs of several kinds, relaxed or as gangs.

    from labkit.papers import hare

    jobs = hare.draw_rounds([[2.0, 1.0]], (4, 4), num_jobs=20, load=2.0)
    hare.compare(jobs)  # every way; hare.schedule(jobs, "gang") is one of them

``rounds`` holds jobs and the bound, ``schedules`` runs them, ``experiment`` asks what Hare gains
over the best gang, ``figures`` draws it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "experiment": ["Draws", "summary"],
        "figures": ["figure_gains", "figure_idea", "figure_schedule", "figure_speeds"],
        "rounds": ["Rounds", "draw_rounds"],
        "schedules": ["GANGS", "WAYS", "Tasks", "compare", "schedule"],
    },
)
