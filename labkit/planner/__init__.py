"""Plans of parallel training: which layers stand on which devices, and what no plan can beat.

>>> from labkit import planner
>>> chain = planner.Chain.even(8, forward_s=0.01, backward_s=0.02, parameter_bytes=4e7)
>>> plan = planner.plan(chain, planner.Fabric.flat(4, bandwidth_bytes_per_s=1.25e9))
>>> plan.name, round(plan.cost_s, 4)
('1-1-1-1', 0.06)
"""

import lazy_loader

_HOMES = {  # where each public name comes from; modules are loaded with the first of their names
    "chain": ("Chain",),
    "choices": ("Problem", "choose", "relax"),
    "figures": ("figure_layers", "figure_plans"),
    "layouts": ("layout_name", "split"),
    "lineup": ("Job", "lineup"),
    "meshes": ("StageTable", "place"),
    "moves": ("ChoiceMoves", "TimelineMoves", "descend", "walk"),
    "networks": ("Draft", "network"),
    "planning": ("Fabric", "Level", "plan"),
    "plans": ("price",),
    "simulating": ("Part", "simulate"),
    "study": ("sensitivity", "sweep"),
}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
