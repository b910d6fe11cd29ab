"""The parameter server (2014): sparse clicks, delayed block proximal gradient, messages, ring.

``clicks`` draws examples, ``learning`` minimises in virtual time, ``messages`` counts bytes,
``ring`` has servers' keys and clocks of ranges, ``figures`` draws.
"""

from labkit.papers.paramserver.clicks import Clicks, draw_clicks
from labkit.papers.paramserver.figures import (
    figure_bytes,
    figure_delay,
    figure_idea,
    figure_shares,
)
from labkit.papers.paramserver.learning import (
    ALL,
    EVENTUAL,
    PLAIN,
    Cluster,
    Learned,
    Problem,
    Sending,
    at_best_rate,
    learn,
    objective,
    proximal,
)
from labkit.papers.paramserver.messages import compressed_bytes, compressed_parts
from labkit.papers.paramserver.ring import RangeClock, Ring, place

__all__ = [
    "ALL",
    "EVENTUAL",
    "PLAIN",
    "Clicks",
    "Cluster",
    "Learned",
    "Problem",
    "RangeClock",
    "Ring",
    "Sending",
    "at_best_rate",
    "compressed_bytes",
    "compressed_parts",
    "draw_clicks",
    "figure_bytes",
    "figure_delay",
    "figure_idea",
    "figure_shares",
    "learn",
    "objective",
    "place",
    "proximal",
]
