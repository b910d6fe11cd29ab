"""Collectives as programs: who sends which chunk to whom, what it costs, and the same executed.

>>> from labkit import collectives
>>> fabric = collectives.Fabric.flat(8, bandwidth_bytes_per_s=1.25e9, latency_s=2e-5)
>>> ring = collectives.program("ring", 8, 100_000_000)
>>> round(collectives.cost(ring, fabric).time_s, 4)
0.1403
>>> collectives.best("all-reduce", fabric, 1024).program.name
'recursive-doubling'
"""

import lazy_loader

_HOMES = {  # where each public name comes from; modules are loaded with the first of their names
    "building": ("byteps_shares", "names", "program"),
    "costing": ("Fabric", "best", "bound", "compare", "cost"),
    "executing": ("execute",),
    "figures": ("figure_costs", "figure_overlap", "figure_program"),
    "fitting": ("fit",),
    "overlapping": ("overlap",),
    "scaling": ("message_time",),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
