"""Neo (ISCA 2022): embedding tables cut in four ways, lookups of many tables at once, a cache.

``sharding`` cuts tables and places the pieces on GPUs, ``machine`` has the modelled seconds of a
step, ``lookups`` measures fused lookups against loops on a processor or a GPU, ``reuse`` draws
lookups as they were counted and plays caches on them, ``training`` trains on shards, ``figures``
draws.
"""

from labkit.datasets.locality import read_reuse
from labkit.papers.neo.figures import figure_idea, figure_lines, figure_loads
from labkit.papers.neo.lookups import VARIANTS, Lookups, compare, largest_difference
from labkit.papers.neo.machine import Machine
from labkit.papers.neo.reuse import best_hits, draw_lookups, recency_hits
from labkit.papers.neo.sharding import (
    Cut,
    Plan,
    Shard,
    Table,
    by_rows,
    four_d,
    pieces,
    place,
    tables_of,
    weigh_bytes,
    weigh_ids,
)
from labkit.papers.neo.training import train

__all__ = [
    "VARIANTS",
    "Cut",
    "Lookups",
    "Machine",
    "Plan",
    "Shard",
    "Table",
    "best_hits",
    "by_rows",
    "compare",
    "draw_lookups",
    "figure_idea",
    "figure_lines",
    "figure_loads",
    "four_d",
    "largest_difference",
    "pieces",
    "place",
    "read_reuse",
    "recency_hits",
    "tables_of",
    "train",
    "weigh_bytes",
    "weigh_ids",
]
