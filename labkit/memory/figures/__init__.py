"""Figures of memory and traffic, drawn from tidy tables; nothing is computed here."""

from labkit.memory.figures.bar_figures import figure_moments, figure_pairs, figure_states
from labkit.memory.figures.fit_figures import figure_fits
from labkit.memory.figures.sweep_figures import figure_sweep

__all__ = [
    "figure_fits",
    "figure_moments",
    "figure_pairs",
    "figure_states",
    "figure_sweep",
]
