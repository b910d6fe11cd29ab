"""Figures of batch-size and power tuning; the only package of this engine that loads Plotly."""

import lazy_loader

_HOMES = {
    "configuration_figures": (
        "figure_batch_curves", "figure_lines", "figure_map", "figure_pareto", "figure_potential",
    ),
    "policy_figures": (
        "figure_regret", "figure_regret_bands", "figure_savings", "figure_search_path",
    ),
}  # fmt: skip
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
