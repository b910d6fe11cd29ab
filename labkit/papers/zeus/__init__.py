"""Zeus (NSDI'23): what its notebook shows of recorded trainings, in hindsight and under its policy.

``tables`` counts, ``figures`` draws. The policy, the outcomes that it chooses among and the replay
stand in ``labkit.tuning``; the paper's two algorithms stand in the notebook, as code to be read.
"""

from labkit.papers.zeus.figures import (
    POLICY_WORDS,
    figure_batch_curves,
    figure_defaults,
    figure_headline,
    figure_idea,
    figure_potential,
    figure_regret_bands,
    figure_shares,
    figure_steps,
)
from labkit.papers.zeus.tables import (
    batch_curves,
    eta_sweep,
    favour_larger,
    hindsight,
    least_energy,
    measured_against,
    potential_savings,
    reach_shares,
    regret_bands,
    share_that_ends,
    single_simulations,
)

__all__ = [
    "POLICY_WORDS",
    "batch_curves",
    "eta_sweep",
    "favour_larger",
    "figure_batch_curves",
    "figure_defaults",
    "figure_headline",
    "figure_idea",
    "figure_potential",
    "figure_regret_bands",
    "figure_shares",
    "figure_steps",
    "hindsight",
    "least_energy",
    "measured_against",
    "potential_savings",
    "reach_shares",
    "regret_bands",
    "share_that_ends",
    "single_simulations",
]
