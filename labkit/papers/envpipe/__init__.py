"""EnvPipe (ATC'23): the authors' configurations, the policies compared, and the figures.

``configurations`` reads how heavy the last stage of each script is and what a policy saves there,
``readme`` fits durations to the plan that the authors' README prints, ``figures`` draws. The
planner itself stands in ``labkit.pipeline.planning.envpipe``, since commands offer it.
"""

from labkit.papers.envpipe.configurations import (
    CASES,
    Policy,
    open_profiles,
    savings,
    shaped,
)
from labkit.papers.envpipe.figures import (
    figure_balance,
    figure_idea,
    figure_plane,
    figure_steps,
    figure_valley,
)
from labkit.papers.envpipe.readme import Fit, fit_readme, readme_order

__all__ = [
    "CASES",
    "Fit",
    "Policy",
    "figure_balance",
    "figure_idea",
    "figure_plane",
    "figure_steps",
    "figure_valley",
    "fit_readme",
    "open_profiles",
    "readme_order",
    "savings",
    "shaped",
]
