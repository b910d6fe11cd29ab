"""Aceso (EuroSys 2024): plans found by alleviating one bottleneck after the other.

``tables`` reads the authors' tables, ``pricing`` is their cost model, ``primitives`` has the moves
and ``alleviating`` the search. ``bounding`` says what no plan beats, ``rivals`` has grids and a
random walk, ``experiment`` the artifact's jobs and the claims' values, ``figures`` draws.
"""

from labkit.papers.aceso.alleviating import Result, Search, alleviate, by_bottleneck, shares
from labkit.papers.aceso.bounding import Bound, bound
from labkit.papers.aceso.experiment import (
    PUBLISHED_PLAN,
    REFERENCES,
    SETTINGS,
    Setting,
    Way,
    above_the_limit,
    always_again,
    budget_of,
    files,
    find,
    gain,
    gradients_s,
    measures,
    noisy,
    open_jobs,
    published_job,
    reference,
)
from labkit.papers.aceso.figures import figure_gains, figure_limits, figure_search, figure_stages
from labkit.papers.aceso.pricing import Job, Plan, Price, Recompute, Stage
from labkit.papers.aceso.primitives import EFFECTS, Move, Resource, apply, even_plan, plan_of
from labkit.papers.aceso.tables import Tables

__all__ = [
    "EFFECTS",
    "PUBLISHED_PLAN",
    "REFERENCES",
    "SETTINGS",
    "Bound",
    "Job",
    "Move",
    "Plan",
    "Price",
    "Recompute",
    "Resource",
    "Result",
    "Search",
    "Setting",
    "Stage",
    "Tables",
    "Way",
    "above_the_limit",
    "alleviate",
    "always_again",
    "apply",
    "bound",
    "budget_of",
    "by_bottleneck",
    "even_plan",
    "figure_gains",
    "figure_limits",
    "figure_search",
    "figure_stages",
    "files",
    "find",
    "gain",
    "gradients_s",
    "measures",
    "noisy",
    "open_jobs",
    "plan_of",
    "published_job",
    "reference",
    "shares",
]
