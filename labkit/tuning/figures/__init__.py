"""Figures of batch-size and power tuning; the only package of this engine that loads Plotly."""

import lazy_loader

_HOMES = {
    "configuration_figures": ("figure_lines", "figure_map", "figure_pareto"),
    "policy_figures": ("figure_regret", "figure_savings", "figure_search_path"),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
