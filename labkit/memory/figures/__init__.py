"""Figures of memory and traffic, drawn from tidy tables; nothing is computed here."""

from labkit.memory.figures.memory_figures import (
    figure_fits,
    figure_moments,
    figure_pairs,
    figure_states,
    figure_sweep,
)

__all__ = ["figure_fits", "figure_moments", "figure_pairs", "figure_states", "figure_sweep"]
