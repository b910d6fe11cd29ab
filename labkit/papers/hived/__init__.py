"""HiveD (OSDI'20): cells reserved for tenants, and what quotas do to the same jobs.

    from labkit.papers import hived

    week = hived.Week(first_day=31)
    week.extra_delay_min("shortest first", hived.Sharing.QUOTA).max()

``cells`` holds the buddy allocation and the binding of reserved cells, ``sharing`` runs tenants'
jobs on cells or under quotas, ``experiment`` is what the notebook runs, ``figures`` draws it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "cells": ["Buddies", "Hierarchy", "Reserved", "bind_for_good", "refusals"],
        "experiment": ["ORDERS", "Week"],
        "figures": ["figure_delays", "figure_idea", "figure_refusals", "figure_waits"],
        "sharing": [
            "Shared",
            "Sharing",
            "cells_for",
            "load_tenants",
            "merge_tenants",
            "nodes_for",
            "num_nodes",
            "simulate",
        ],
    },
)
