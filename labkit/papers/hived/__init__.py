"""HiveD (OSDI'20): cells reserved for tenants, and what quotas do to the same jobs.

    from labkit.papers import hived

    jobs = hived.load_tenants(31, 7)
    nodes = hived.nodes_for(jobs, 0.8)
    hived.simulate(jobs, nodes, cluster.fifo(), "cells").wait_s

``cells`` holds the buddy allocation, ``sharing`` runs tenants' jobs on cells or under quotas.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "cells": ["Buddies", "Hierarchy", "Reserved", "refusals"],
        "sharing": ["Shared", "load_tenants", "merge_tenants", "nodes_for", "simulate"],
    },
)
